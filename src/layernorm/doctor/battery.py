"""The fixed problems that engines are compared on: what is called, on which sizes and numbers.

A problem gives float64 numbers that the type under test holds exactly, so that an engine and the float64 equations
compute from the same numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import functional, nn
from ..formula import PRESETS, Network

TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

Tensors = dict[str, Tensor]


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounds the tensor to numbers that the type holds, in float64."""
    return tensor.float().to(dtype).double()


@dataclass(frozen=True)
class Norm:
    """A norm op on ``M`` rows of ``N`` numbers. With ``shifted`` the rows' mean is far larger than their deviation."""

    op: str  # "layer_norm" or "rms_norm"
    M: int
    N: int
    residual: bool = False
    shifted: bool = False

    @property
    def short(self) -> str:
        """A name of at most 20 letters, which differs from those of most of the op's other problems."""
        return self.label

    @property
    def label(self) -> str:
        """A name that differs from those of all other problems of the op."""
        return f"{self.M} x {self.N}" + ", residual" * self.residual + ", large mean" * self.shifted

    def terms(self, name: str) -> int:
        """Returns the number of terms in the longest sum that a tensor depends on: over a row, for the gradients of
        weight and bias also over the rows."""
        return max(self.M, self.N) if name in ("d weight", "d bias") else self.N

    def inputs(self, dtype: torch.dtype) -> Tensors:
        """Draws the tensors that the op takes and is differentiated by: numbers of this type, in float64."""
        g, names = _generator(), ["input", *["residual"] * self.residual]
        # 10,000 deviations, or so many that a deviation is still 16 units of the type
        mean = min(1e4, 1 / (16 * torch.finfo(dtype).eps)) * self.shifted
        drawn = {name: mean + torch.randn(self.M, self.N, dtype=torch.float64, generator=g) for name in names}
        drawn["weight"] = torch.randn(self.N, dtype=torch.float64, generator=g)
        if self.op == "layer_norm":
            drawn["bias"] = torch.randn(self.N, dtype=torch.float64, generator=g)
        return {name: rounded(t, dtype) for name, t in drawn.items()}

    def moved(self, inputs: Tensors, relative: Callable[[Tensor], Tensor]) -> Tensors:
        """Changes each number of the inputs by ``relative``, as rounding changes it.

        Layer norm takes the distances from the mean before it rounds. Where the mean is large, these are changed.
        """
        changed = {name: relative(t) for name, t in inputs.items()}
        if self.shifted and self.op == "layer_norm":
            mean = inputs["input"].mean(1, keepdim=True)
            changed["input"] = mean + relative(inputs["input"] - mean)
        return changed

    def call(self, inputs: Tensors) -> Tensors:
        """Returns the op's results by name."""
        op = getattr(functional, f"add_{self.op}" if self.residual else self.op)
        results = op(normalized_shape=(self.N,), eps=1e-5, **inputs)
        return dict(zip(("y", "total"), results, strict=True)) if self.residual else {"y": results}


MODULES: Mapping[Network, Any] = {"RNN": nn.RNN, "LSTM": nn.LSTM, "GRU": nn.GRU}


@dataclass(frozen=True)
class Recurrent:
    """A network over ``T`` steps of ``B`` rows with ``I`` inputs and ``H`` units.

    With ``masked`` it has lengths and resets. Its methods are those of `Norm`.
    """

    network: Network
    norm: str | None
    formula: str
    T: int
    B: int
    I: int  # noqa: E741
    H: int
    proj_size: int = 0
    nonlinearity: str = "tanh"
    reverse: bool = False
    masked: bool = False

    @property
    def op(self) -> str:
        return self.network

    @property
    def short(self) -> str:
        name = {"layer": self.formula, None: "no norm"}.get(self.norm, self.norm)
        return f"{name}" + ", relu" * (self.nonlinearity == "relu") + ", proj." * (self.proj_size > 0)

    @property
    def label(self) -> str:
        words = ["reverse"] * self.reverse + ["lengths and reset"] * self.masked
        return ", ".join([self.short, *words, f"T={self.T} B={self.B} I={self.I} H={self.H}"])

    def terms(self, name: str) -> int:
        """Returns the number of terms in the longest sum: each tensor depends on all of them."""
        return max(self.T * self.B, self.I, self.H)

    @property
    def _keywords(self) -> dict[str, Any]:
        return {"nonlinearity": self.nonlinearity} if self.network == "RNN" else {}

    def _shapes(self) -> dict[str, torch.Size]:
        keywords = self._keywords | ({"proj_size": self.proj_size} if self.network == "LSTM" else {})
        module = MODULES[self.network](self.I, self.H, norm=self.norm, formula=self.formula, device="meta", **keywords)
        return {name.removesuffix("_l0"): p.shape for name, p in module.named_parameters()}

    def inputs(self, dtype: torch.dtype) -> Tensors:
        g = _generator()

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, dtype=torch.float64, generator=g)

        drawn = {"input": draw(self.T, self.B, self.I), "h": draw(self.B, self.proj_size or self.H)}
        if self.network == "LSTM":
            drawn["c"] = draw(self.B, self.H)
        for name, shape in self._shapes().items():
            drawn[name] = draw(*shape) / (shape[-1] ** 0.5 if len(shape) > 1 else 1)
        if self.nonlinearity == "relu" and torch.finfo(dtype).eps > 1e-4:
            self._keep_from_zero(drawn)
        return {name: rounded(t, dtype) for name, t in drawn.items()}

    def _keep_from_zero(self, drawn: Tensors) -> None:
        """Gives large biases, which keep every summed input away from 0.

        Near 0 a rounding would choose between the two derivatives of relu, and both would be correct.
        """
        drawn["bias_ih"] = drawn["bias_hh"] = 3 * drawn["bias_ih"].sign()
        drawn["weight_hh"] *= 0.1
        if "gain" in drawn:
            drawn["gain"] *= 0.5

    def moved(self, inputs: Tensors, relative: Callable[[Tensor], Tensor]) -> Tensors:
        return {name: relative(t) for name, t in inputs.items()}

    def call(self, inputs: Tensors) -> Tensors:
        parameters = dict(inputs)
        x, h = parameters.pop("input"), parameters.pop("h")
        hx = (h, parameters.pop("c")) if self.network == "LSTM" else h
        g, lengths, reset = _generator(1), None, None
        if self.masked:
            lengths = torch.randint(0, self.T + 1, (self.B,), generator=g).to(x.device)
            reset = (torch.rand(self.T, self.B, generator=g) < 0.3).to(x.device)
        output, state = getattr(functional, self.network.lower())(
            x, hx, parameters, norm=self.norm, formula=self.formula, lengths=lengths, reset=reset,
            reverse=self.reverse, **self._keywords,
        )  # fmt: skip
        names = ("output", "final h", "final c") if self.network == "LSTM" else ("output", "final h")
        return dict(zip(names, (output, *(state if isinstance(state, tuple) else (state,))), strict=True))


Problem = Norm | Recurrent


def norms() -> list[Norm]:
    """Returns norm ops on odd and even lengths, one row, many rows, long rows, and large means."""
    sizes = [(7, 3), (300, 64), (5, 257), (1, 1000), (3, 20001)]
    problems = []
    for op, (M, N), residual in itertools.product(("layer_norm", "rms_norm"), sizes, (False, True)):
        problems.append(Norm(op, M, N, residual))
    return [
        *problems,
        *(Norm(op, M, N, shifted=True) for op in ("layer_norm", "rms_norm") for M, N in ((5, 257), (4, 5000))),
    ]


SMALL, ONE_STEP, LARGE, LONG = (5, 6, 7, 33), (1, 2, 20, 48), (10, 40, 40, 160), (32, 16, 128, 128)
"""T, B, I, H. Small: a number of units that does not fill a vector or a block. One step: as a cell is called. Large:
several blocks of rows and units. Long: as networks are timed on a CPU, so that what is compiled serves for both."""


VARIANTS: Mapping[Network, list[dict[str, Any]]] = {
    "RNN": [{"nonlinearity": "relu"}],
    "LSTM": [{"proj_size": 9}],
    "GRU": [],
}
"""For each network, the other constructor arguments that it is also run with."""


def networks(turn: int) -> list[Recurrent]:
    """Returns every network and formula. Directions and masks take turns, from another start for each ``turn``."""
    problems: list[Recurrent] = []
    for network in MODULES:
        formulas: list[tuple[str | None, str]] = [("layer", name) for name in PRESETS if network in PRESETS[name]]
        formulas += [("rms", "paper"), (None, "paper")]
        variants: list[dict[str, Any]] = [{}, *VARIANTS[network]]
        for (i, (norm, formula)), (j, variant) in itertools.product(enumerate(formulas), enumerate(variants)):
            k = i + 2 * j + turn
            problems.append(Recurrent(network, norm, formula, *SMALL, **variant, reverse=k % 2 > 0, masked=k % 4 > 1))
        problems += [Recurrent(network, "layer", "paper", *size) for size in (ONE_STEP, LARGE)]
    return problems


def few() -> list[tuple[Problem, torch.dtype]]:
    """Returns problems for an engine that compiles, which takes it seconds for each kind.

    In the small ones a network goes step by step, in the long ones by many steps at once. For many rows a compiler
    makes other kernels than for few.
    """
    problems: list[tuple[Problem, torch.dtype]] = []
    for dtype in TYPES:
        problems += [(Norm("layer_norm", 300, 64, residual=True), dtype), (Norm("rms_norm", 5, 257), dtype)]
        for network in MODULES:
            keywords: dict[str, Any] = {"proj_size": 9 if network == "LSTM" else 0, "reverse": True, "masked": True}
            problems.append((Recurrent(network, "layer", "paper", *SMALL, **keywords), dtype))
    problems.append((Norm("layer_norm", 16384, 320), torch.float32))
    return problems + [(Recurrent(network, "layer", "paper", *LONG), torch.float32) for network in MODULES]


def battery() -> list[tuple[Problem, torch.dtype]]:
    """Returns every problem in every type, except large means in float64.

    The exact mean is also in float64, so the distances from a large mean would lose digits in it as well.
    """
    problems: list[tuple[Problem, torch.dtype]] = []
    for turn, dtype in enumerate(TYPES):
        problems += [(norm, dtype) for norm in norms() if not (norm.shifted and dtype == torch.float64)]
        problems += [(network, dtype) for network in networks(turn)]
    return problems
