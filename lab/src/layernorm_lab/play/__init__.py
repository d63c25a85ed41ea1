"""The pages of `layernorm play`, only for this machine: Table 1 with sliders, and trained networks that draw."""
