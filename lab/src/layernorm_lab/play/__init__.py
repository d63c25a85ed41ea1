"""The pages of `layernorm play`, for this machine alone: Table 1 with sliders, and trained networks that draw."""
