"""Compares one engine on one problem with the plain equations in float64, which autograd differentiates."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .. import backends
from .battery import Problem, Tensors, rounded

TIMES = 6
"""How many yardsticks an engine may be off. In an LSTM it rounds about 36 numbers for each unit and step that the
float64 equations do not round: products, statistics, gates and their gradients. Each rounding changes the result by
about one yardstick, and 36 independent ones by 6."""

DRAWS = 3
"""How often the inputs are moved. The largest change counts."""


class Row(NamedTuple):
    """A row of the table: an op in one type of number, by one engine on one type of device."""

    engine: str
    device: str
    op: str
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.op} in {type_name(self.dtype)} by {self.engine} on {self.device}"


def type_name(dtype: torch.dtype) -> str:
    """Returns the type's name without torch: ``float32``."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Case:
    """One problem for one engine on one type of device."""

    engine: str
    device: str
    problem: Problem
    dtype: torch.dtype

    @property
    def row(self) -> Row:
        """The row of the table that this case belongs to."""
        return Row(self.engine, self.device, self.problem.op, self.dtype)


class Deviation(NamedTuple):
    """How far a result or a gradient is from the exact one, and how far it may be, in roundings.

    A rounding is ``eps`` of the type times the largest magnitude in the exact tensor. It is the largest because the
    numbers of a tensor come from the same sums: a small number has the absolute error of the large ones beside it.
    """

    name: str
    gradient: bool
    roundings: float
    allowed: float

    @property
    def share(self) -> float:
        """The deviation as a share of what is allowed. It is infinite for a NaN."""
        return self.roundings / self.allowed if self.roundings < float("inf") else float("inf")


class Expectation(NamedTuple):
    """A problem in one type: its numbers, the exact results and gradients, and how far each of these may deviate."""

    inputs: Tensors
    grads: Tensors
    exact: Tensors
    allowed: dict[str, float]


def compare(case: Case) -> list[Deviation] | None:
    """Computes the deviations of every result, with and without gradients recorded, and of every gradient.

    On a GPU float32 is computed in float32, not in TF32. None: the engine has no kernel for the case.

    Raises:
        Exception: what the engine raises, or a result has another shape or type than the exact one.
    """
    torch.backends.cudnn.allow_tf32 = False
    expected = _expectation(case.problem, case.dtype)
    try:
        computed = _by_engine(case, expected)
    except backends.NoKernelError:
        return None
    deviations = []
    for label, tensor in computed:
        name = label.removeprefix("inference: ")
        exact = expected.exact[name]
        if (tensor.shape, tensor.dtype) != (exact.shape, case.dtype):
            got = f"{tensor.dtype} {list(tensor.shape)}"
            raise RuntimeError(f"{label}: expected {case.dtype} {list(exact.shape)}, got {got}")
        roundings = _roundings(tensor.detach().cpu().double(), exact, case.dtype)
        deviations.append(Deviation(label, name.startswith("d "), roundings, expected.allowed[name]))
    return deviations


def _by_engine(case: Case, expected: Expectation) -> list[tuple[str, Tensor]]:
    leaves = {name: t.to(case.device, case.dtype).requires_grad_() for name, t in expected.inputs.items()}
    with backends.use(case.engine):
        with torch.no_grad():
            inference = case.problem.call(leaves)
        results = case.problem.call(leaves)
        grads = [expected.grads[name].to(case.device, case.dtype) for name in results]
        d_leaves = torch.autograd.grad(list(results.values()), list(leaves.values()), grads)
    return [
        *((f"inference: {name}", t) for name, t in inference.items()),
        *results.items(),
        *((f"d {name}", t) for name, t in zip(leaves, d_leaves, strict=True)),
    ]


def _roundings(computed: Tensor, exact: Tensor, dtype: torch.dtype) -> float:
    error, largest = (computed - exact).abs().max().item(), exact.abs().max().item()
    return error / (torch.finfo(dtype).eps * largest) if error else 0.0


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Runs on one thread: on a busy CPU, many threads of small operations wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.lru_cache(1)  # cases come engine by engine for one problem
@_one_thread()
def _expectation(problem: Problem, dtype: torch.dtype) -> Expectation:
    """Computes how far each tensor may deviate: `TIMES` the yardstick, and the rounding of the tensor itself.

    The yardstick is the larger of two changes, in roundings, which are about the same for every type:
    - the change from moving every input and every arriving gradient by up to half a unit in the last place;
    - the change from computing the same equations in float32. It is the larger one where large terms cancel.

    A sum of n terms in sequence makes an error of about sqrt(n) / 2 roundings more. The 16-bit types are summed in
    float32, whose roundings do not count there.
    """
    g = torch.Generator().manual_seed(2)
    inputs = problem.inputs(dtype)
    exact, grads = _equations(
        problem, inputs, lambda t: rounded(torch.randn(t.shape, dtype=torch.float64, generator=g), dtype)
    )

    def move(tensor: Tensor) -> Tensor:
        half = torch.rand(tensor.shape, dtype=torch.float64, generator=g) - 0.5
        return tensor * (1 + half * torch.finfo(dtype).eps)

    changed = []
    for _ in range(DRAWS):
        moved = {name: move(t) for name, t in grads.items()}
        changed.append((_equations(problem, problem.moved(inputs, move), moved)[0], dtype))
    single = [{name: t.float() for name, t in tensors.items()} for tensors in (inputs, grads)]
    changed.append((_equations(problem, *single)[0], torch.float32))
    allowed = {}
    for name, tensor in exact.items():
        sums = 0.5 * problem.terms(name) ** 0.5 if dtype.itemsize > 2 else 0.0
        yardstick = max(_roundings(other[name].double(), tensor, unit) for other, unit in changed)
        allowed[name] = 1 + sums + TIMES * yardstick
    return Expectation(inputs, grads, exact, allowed)


def _equations(
    problem: Problem, inputs: Tensors, grads: Tensors | Callable[[Tensor], Tensor]
) -> tuple[Tensors, Tensors]:
    """Computes results and gradients of the plain equations. Returns also the gradients that arrived at the results.

    Inside a transform of `torch.func` the plain equations compute every op. ``grads`` may be a function that makes the
    arriving gradients from the results.
    """

    def results(*leaves: Tensor) -> Tensors:
        return problem.call(dict(zip(inputs, leaves, strict=True)))

    exact, vjp = torch.func.vjp(results, *inputs.values())  # type: ignore[misc]
    if not isinstance(grads, dict):
        grads = {name: grads(t) for name, t in exact.items()}
    return exact | {f"d {name}": t for name, t in zip(inputs, vjp(grads), strict=True)}, grads
