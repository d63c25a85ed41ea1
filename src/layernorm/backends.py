"""Which engines exist here, and the choice between them.

An engine is a module with the functions of `layernorm.engines.protocol.Engine`. Where it cannot run, importing it
raises ImportError, and the message says why. A new engine is one more row of `ENGINES`.

    with ln.backends.use("reference"):
        output, hx = lstm(input)

The environment variable LAYERNORM_ENGINE asks for an engine in the whole process.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import importlib.util
import os
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch

from .engines.protocol import Engine, Support
from .engines.protocol import Kind as Kind
from .formula import CACHED, Recurrence, unknown


class Entry(NamedTuple):
    """An engine that may exist here: its module, and for which tensors it is tried.

    Attributes:
        module: the module's name. It is imported when an op first tries the engine.
        device: where no engine is asked for, an op tries this one for tensors on this type of device; None: on every
            type. It is passed over where it cannot run.
        by_itself: whether an op tries this one where no engine is asked for.
    """

    module: str
    device: str | None
    by_itself: bool = True


ENGINES = {
    # in order of preference
    "native": Entry("layernorm.engines.native", "cpu"),
    # No GPU has run it yet: by itself once `doctor --check` has passed on one.
    "triton": Entry("layernorm.engines.triton", "cuda", by_itself=False),
    "reference": Entry("layernorm.engines.reference", None),
    "compiled": Entry("layernorm.engines.compiled", None, by_itself=False),
}

_of_process = os.environ.get("LAYERNORM_ENGINE") or None
_asked_for: contextvars.ContextVar[str | None] = contextvars.ContextVar("layernorm_backend", default=_of_process)
asked_for = _asked_for.get
"""The engine asked for with `use` in this thread, or with LAYERNORM_ENGINE, or None."""
# The engines that `use` asks for in any thread, each with its call's own mark. torch.compile cannot read a context
# variable, but it notices a change of this list, and compiles again.
_in_use: list[tuple[str, object]] = []


class Choice(NamedTuple):
    """The engine of a call."""

    name: str
    engine: Engine


class NoKernelError(RuntimeError):
    """Raised where the engine that was asked for has no kernel for this op, device, type or formula."""


class Status(NamedTuple):
    """Whether an engine runs here."""

    name: str
    available: bool
    reason: str  # why it does not run; "" where it does


@functools.cache
def _status(name: str) -> Status:
    module = ENGINES[name].module
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:  # a folder without an __init__.py has a spec, but no origin
        return Status(name, False, "this version of layernorm does not contain it")
    try:
        importlib.import_module(module)
    except ImportError as error:
        return Status(name, False, str(error))
    return Status(name, True, "")


def status() -> list[Status]:
    """Returns a `Status` (``name``, ``available``, ``reason``) for each engine, in order of preference."""
    return [_status(name) for name in ENGINES]


def available() -> list[str]:
    """Returns the names of the engines that run here, in order of preference."""
    return [engine.name for engine in status() if engine.available]


def graph_cache() -> Any:
    """Returns the CUDA graphs that the engine ``"triton"`` keeps.

    Their text says how many there are, ``nbytes`` how much memory their buffers take, and ``clear()`` drops them.

    Raises:
        RuntimeError: the engine does not run here.
    """
    return engine("triton").graph_cache  # type: ignore[attr-defined]


@contextlib.contextmanager
def use(name: str) -> Iterator[None]:
    """Runs every op inside the ``with`` on one engine, only in this thread.

    Code that `torch.compile` has compiled uses the engine that any thread asked for last.

    Args:
        name: the engine's name, such as ``"native"`` or ``"reference"``. `status` lists them.

    Raises:
        TypeError: ``name`` is no string.
        ValueError: there is no engine of that name.
        RuntimeError: the engine does not run here. Inside the ``with``, an op for which the engine has no kernel raises
            `NoKernelError`.
    """
    if not isinstance(name, str):
        raise TypeError(f"use: expected the name of a backend, got {type(name).__name__}")
    engine(name)
    before = _asked_for.get()
    _asked_for.set(name)
    _in_use.append(this := (name, object()))
    try:
        yield
    finally:
        _in_use.remove(this)
        _asked_for.set(before)


def supports(name: str, kind: Kind) -> Support:
    """Says whether an engine that runs here computes a kind of call, with the fields that its formula sets."""
    module = engine(name)
    fields = frozenset() if kind.recurrence is None else kind.recurrence.formula.changed - module.FORMULA_FIELDS
    return Support(False, f"a formula with {', '.join(sorted(fields))}") if fields else module.supports(kind)


def choose(
    op: str,
    tensor: torch.Tensor,
    recurrence: Recurrence | None = None,
    widths: tuple[int, ...] = (),
    backend: str | None = None,
) -> Choice:
    """Chooses the engine for one call: ``backend``, or the one that `use` asks for, or the first that supports it.

    The reference engine supports every call.
    """
    if tensor.is_cpu:
        return choose_for(op, CPU, tensor.dtype, backend or asked_for(), recurrence)
    return choose_for(op, tensor.device, tensor.dtype, backend or asked_for(), recurrence, widths)


CPU = torch.device("cpu")  # a tensor's `device` is a new object each time, and takes ten times as long as `is_cpu`


@functools.lru_cache(CACHED)
def choose_for(
    op: str,
    device: torch.device,
    dtype: torch.dtype,
    asked_for: str | None,
    recurrence: Recurrence | None,
    widths: tuple[int, ...] = (),
) -> Choice:
    """Chooses as `choose` does, by what its choice depends on.

    Raises:
        NoKernelError: the engine that was asked for does not compute this.
    """
    kind = Kind(op, device, dtype, recurrence, widths)
    reasons = {}
    for name in (asked_for,) if asked_for else _engines_to_try(device.type):
        found = supports(name, kind)
        if found.yes:
            return Choice(name, engine(name))
        reasons[name] = found.reason
    told = "; ".join(f"backend {name!r} not for {reason}" for name, reason in reasons.items())
    other = f"; {preferred(kind).name!r} has one" if asked_for else ""
    raise NoKernelError(f"no kernel for {op} on {device} in {dtype}: {told}{other}")


def preferred(kind: Kind) -> Choice:
    """Returns the engine that calls of this kind run on where none is asked for."""
    return choose_for(kind.op, kind.device, kind.dtype, None, kind.recurrence, kind.widths)


def asked_for_in_graph() -> str | None:
    """Returns the engine that `use` asks for while `torch.compile` makes a graph.

    None: the engine is chosen when the graph runs. This is always so where a graph is exported.
    """
    if _in_use and torch.compiler.is_compiling() and not torch.compiler.is_exporting():
        return _in_use[-1][0]
    return None


@functools.cache
def _warn_of_missing(name: str) -> None:
    """Warns, once in a process, that a faster engine cannot run here."""
    text = f"layernorm computes with plain torch equations, several times slower than its engine {name!r}"
    warnings.warn(f"{text}, which cannot run here: {_status(name).reason}", stacklevel=2)


def _engines_to_try(device: str) -> Iterator[str]:
    """Yields the engines to try, in order of preference. Those after the one chosen are never imported."""
    for name, engine in ENGINES.items():
        if engine.by_itself and engine.device in (device, None):
            if _status(name).available:
                yield name
            else:
                _warn_of_missing(name)


@functools.cache
def engine(name: str) -> Engine:
    """Returns the module of an engine.

    Raises:
        ValueError, RuntimeError: as `use`.
    """
    if name not in ENGINES:
        raise ValueError(unknown("LAYERNORM_ENGINE" if name == _of_process else "backend", name, list(ENGINES)))
    if not _status(name).available:
        raise RuntimeError(f"backend {name!r} is not available: {_status(name).reason}; available: {available()}")
    return cast(Engine, importlib.import_module(ENGINES[name].module))
