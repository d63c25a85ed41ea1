"""How modules that run on layernorm's ops behave under `torch.fx` and `torch.jit.script`: as torch's own do."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch.fx import Proxy


def fx_call_module(module: torch.nn.Module, input: Proxy, *args: Any, **kwargs: Any) -> Any:
    """Records the module as one call in the graph that `torch.fx` makes, which does not look into torch's own modules
    either. Keywords that are None are left out, and arguments behind the last one that is not."""
    tracer: Any = input.tracer
    keywords = {name: value for name, value in kwargs.items() if value is not None}
    while args and args[-1] is None:
        args = args[:-1]
    return tracer.create_proxy("call_module", tracer.path_of_module(module), (input, *args), keywords)


def not_scriptable(module: torch.nn.Module) -> NoReturn:
    """Refuses `torch.jit.script`, which calls this before it compiles a module.

    Raises:
        RuntimeError: always. The message says what to do instead.
    """
    name = type(module).__name__
    raise RuntimeError(
        f"torch.jit.script cannot compile {name}, which runs on layernorm's own ops; script a copy on plain PyTorch "
        "operations instead: torch.jit.script(layernorm.portable(model))"
    )
