"""Layer Normalization (Ba, Kiros, Hinton 2016, arXiv:1607.06450) for PyTorch.

import layernorm as ln
lstm = ln.LSTM(28, 128)        # takes the place of torch.nn.LSTM
"""

from typing import TYPE_CHECKING

from . import backends as backends
from . import functional as functional
from . import interop as interop
from . import nn as nn
from .audit import audit as audit
from .convert import accelerate as accelerate
from .convert import convert as convert
from .convert import match as match
from .convert import quantize as quantize
from .convert import restore as restore
from .export.decompositions import decompositions as decompositions
from .export.portable import portable as portable
from .formula import Formula as Formula
from .nn import GRU as GRU
from .nn import LSTM as LSTM
from .nn import RNN as RNN
from .nn import BatchNorm as BatchNorm
from .nn import BatchNormOverTime as BatchNormOverTime
from .nn import GRUCell as GRUCell
from .nn import LayerNorm as LayerNorm
from .nn import LSTMCell as LSTMCell
from .nn import RMSNorm as RMSNorm
from .nn import RNNCell as RNNCell
from .nn import update_bn as update_bn

if TYPE_CHECKING:
    from . import geometry as geometry
    from .export import onnx as onnx

__version__ = "0.1.0"

_MODULES = ("backends", "formula", "functional", "geometry", "interop", "nn", "onnx")
"""The modules that are for users."""


def __dir__() -> list[str]:
    own = [name for name, item in globals().items() if getattr(item, "__module__", "").startswith(f"{__name__}.")]
    return sorted([*own, *_MODULES, "__version__"])


if not TYPE_CHECKING:  # to a type checker this function would mean that every name exists

    def __getattr__(name: str) -> object:
        lazy = {"geometry": ".geometry", "onnx": ".export.onnx"}  # few programs use them
        if name in lazy:
            from importlib import import_module

            return import_module(lazy[name], __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
