"""The swap from `torch.nn` to layernorm at unchanged settings, on tasks with the settings of public programs."""
