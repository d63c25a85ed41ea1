"""The commands `layernorm run`, `report` and `sample`. May import every other folder of the experiments."""
