"""What `layernorm run` and `layernorm sample` do. May import every room."""
