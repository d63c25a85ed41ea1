"""Which engines exist here, and the choice between them.

An engine is a module with the functions of `layernorm.engine.Engine`. Where it cannot run, importing it raises
ImportError, and the message says why. A new engine is one more row of `ENGINES`.

    with ln.backends.use("reference"):
        output, hx = lstm(input)
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
from collections.abc import Iterator
from typing import NamedTuple, cast

import torch

from .engine import Engine
from .formula import Recurrence, unknown

ENGINES = {
    # name: module; the order is the order of preference
    "native": "layernorm.native",
    "triton": "layernorm.gpu",
    "reference": "layernorm.reference",
}

ONLY_WHEN_ASKED = {("triton", "cpu")}  # Triton's interpreter: right, and thousands of times slower

_asked_for: str | None = None


class Status(NamedTuple):
    """One engine: its name, whether it runs here, and if not why."""

    name: str
    available: bool
    reason: str


@functools.cache
def _status(name: str) -> Status:
    spec = importlib.util.find_spec(ENGINES[name])
    if spec is None or spec.origin is None:  # a folder without an __init__.py has a spec, too, but no origin
        return Status(name, False, "this version of layernorm does not contain it")
    try:
        importlib.import_module(ENGINES[name])
    except ImportError as error:
        return Status(name, False, str(error))
    return Status(name, True, "")


def status() -> list[Status]:
    """Every engine there could be, in order of preference."""
    return [_status(name) for name in ENGINES]


def available() -> list[str]:
    """The names of the engines that run here, in order of preference."""
    return [engine.name for engine in status() if engine.available]


@contextlib.contextmanager
def use(name: str) -> Iterator[None]:
    """Every op inside the ``with`` runs on this engine, in all threads of the process.

    Raises:
        ValueError: there is no engine of that name.
        RuntimeError: it does not run here; also raised inside, by an op that it has no kernel for.
    """
    global _asked_for
    if name not in ENGINES:
        raise ValueError(unknown("backend", name, list(ENGINES)))
    engine = _status(name)
    if not engine.available:
        raise RuntimeError(f"backend {name!r} is not available: {engine.reason}; available: {available()}")
    before, _asked_for = _asked_for, name
    try:
        yield
    finally:
        _asked_for = before


def choose(op: str, tensor: torch.Tensor, recurrence: str | None = None) -> str:
    """The engine for one call: the one asked for with `use`, otherwise the first that covers it; the reference does."""
    device = "cpu" if tensor.is_cpu else tensor.device.type  # the first takes a tenth of the second's time
    return _choose(_asked_for, op, device, tensor.dtype, recurrence)


def preferred(op: str, device: str, dtype: torch.dtype) -> str:
    """The engine that `choose` takes for tensors of this kind when none is asked for."""
    return _first(None, op, device, dtype, None)


def _choose(asked_for: str | None, op: str, device: str, dtype: torch.dtype, recurrence: str | None) -> str:
    return _first(asked_for, op, device, dtype, recurrence)


@functools.lru_cache(4096)
def _first(asked_for: str | None, op: str, device: str, dtype: torch.dtype, recurrence: str | None) -> str:
    equations = None if recurrence is None else Recurrence.decode(recurrence)
    for name in (asked_for,) if asked_for else _by_itself(device):
        found = engine(name)
        knows = equations is None or equations.formula.changed <= found.FORMULA_FIELDS
        if knows and found.covers(op, device, dtype, equations):
            return name
    raise RuntimeError(f"backend {asked_for!r} has no kernel for {op} on {device} in {dtype}")


def _by_itself(device: str) -> Iterator[str]:
    """The engines to try, in order of preference; one that comes after the one chosen is never imported."""
    return (name for name in ENGINES if (name, device) not in ONLY_WHEN_ASKED and _status(name).available)


# torch.compile cannot look into imports: it calls this once, with arguments that it holds constant, and keeps the name.
# (It is what torch.compiler.assume_constant_result does, which takes a second, as it imports torch._dynamo.)
_choose._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def engine(name: str) -> Engine:
    """The module of an engine."""
    return cast(Engine, importlib.import_module(ENGINES[name]))
