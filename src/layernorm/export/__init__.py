"""Ways out of layernorm: copies on plain PyTorch operations, and ONNX."""

from .portable import portable as portable
