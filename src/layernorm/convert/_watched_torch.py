"""Records what every layer of torch's own recurrent networks is called with."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch

from ..nn._normalised import Normalised
from ._convert import TABLE, constructor_arguments
from ._watched import LayerCall, layer_name, watch_calls


@contextlib.contextmanager
def watch_torch_calls(module: torch.nn.Module, note: Callable[[LayerCall], None]) -> Iterator[None]:
    """Calls ``note`` inside the ``with``, with what every layer of torch's recurrent modules was called with.

    A hook sees a call, but no single layers. So the call is made once more, by a module of layernorm's with the
    same equations and parameters, which `watch_calls` watches. It draws no dropout. Subclasses with
    a ``forward`` of their own are left out.

    Args:
        module: any network. Accelerated modules are layernorm's: `watch_calls` sees them.
        note: is called with a `LayerCall` after each call of a layer in one direction.
    """
    handles = []
    try:
        for name, part in module.named_modules():
            theirs = next((base for base in type(part).__mro__ if base in TABLE), None)
            if theirs is not None and type(part).forward is theirs.forward:
                hook = _hook(name, cast(Any, theirs), note)
                handles.append(part.register_forward_hook(hook, with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hook(name: str, theirs: type[torch.nn.Module], note: Callable[[LayerCall], None]) -> Callable[..., None]:
    def hook(part: torch.nn.Module, args: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        same = _same_equations(part, theirs)

        def note_named(call: LayerCall) -> None:
            note(call._replace(name=layer_name(name, same, call.suffix)))

        with watch_calls(same, note_named):
            same(*args, **keywords)

    return hook


def _same_equations(part: torch.nn.Module, theirs: type[torch.nn.Module]) -> Normalised:
    """Makes layernorm's module with the equations of one of torch's, and its parameters, in evaluation."""
    with warnings.catch_warnings():  # of arguments, which torch gave when it made the module
        warnings.simplefilter("ignore")
        same = cast(Any, TABLE[theirs][0])(**constructor_arguments(part, theirs), device="meta", norm=None)
    for name in same._parameters:
        same._parameters[name] = getattr(part, name)  # also where it is computed, by a parametrization
    return same.eval()
