"""What torch's own modules do under `torch.fx` and `torch.jit.script`, for modules that run on layernorm's ops."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch.fx import Proxy


def recorded(module: torch.nn.Module, input: Proxy, *args: Any, **kwargs: Any) -> Any:
    """One call of the module in the graph that `torch.fx` makes; it does not look into torch's own modules either.
    Keywords that are None or False are left out."""
    tracer: Any = input.tracer
    said = {name: value for name, value in kwargs.items() if value is not None and value is not False}
    return tracer.create_proxy("call_module", tracer.path_of_module(module), (input, *args), said)


def not_scriptable(module: torch.nn.Module) -> NoReturn:
    """What `torch.jit.script` calls before it compiles a module.

    Raises:
        RuntimeError: always; it says what to do.
    """
    name = type(module).__name__
    raise RuntimeError(
        f"torch.jit.script cannot compile {name}, which runs on layernorm's own ops; script a copy on plain PyTorch "
        "operations instead: torch.jit.script(layernorm.portable(model))"
    )
