"""The engines: what one is (`protocol`), and each of them in a room of its own. `layernorm.backends` chooses."""
