"""Section 5 and the appendix: no runs, but a page of what `layernorm.geometry` measures."""
