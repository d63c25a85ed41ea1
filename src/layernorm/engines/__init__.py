"""The engines: what one is (`protocol`), and each of them. `layernorm.backends` chooses."""
