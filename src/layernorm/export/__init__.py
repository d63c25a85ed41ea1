"""Ways out of layernorm: the ops as plain PyTorch operations, copies for TorchScript, and ONNX."""

from . import _exporter as _exporter
from .decompositions import decompositions as decompositions
from .portable import portable as portable
