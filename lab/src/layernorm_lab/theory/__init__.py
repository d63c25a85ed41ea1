"""Section 5 and the appendix: a page with the measurements of `layernorm.geometry`, without runs."""
