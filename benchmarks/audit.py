"""Prints what `ln.audit` says of networks that start with a planted fault, and of sound ones, and how long it takes.

    python benchmarks/audit.py
    python benchmarks/audit.py --only "gains of 1" autocast
    python benchmarks/audit.py time

For each model of `PLANTED` and `SOUND` it prints the findings, and with `--growth` how the gradient of every recurrent
layer grows or shrinks over time. `time` prints the time of an audit, in training steps of the same model.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import layernorm as ln
from layernorm.audit import Audit

STEPS, CASES, INPUTS, UNITS = 200, 8, 40, 64


class Audited(NamedTuple):
    """What an audit is called with."""

    module: nn.Module
    batch: tuple[Any, ...]
    loss: Callable[[Any], Tensor] | None = None
    optimizer: Any = None
    autocast: torch.dtype | None = None


def noise(steps: int = STEPS, inputs: int = INPUTS) -> Tensor:
    """Inputs that differ from step to step as much as they can."""
    return torch.randn(steps, CASES, inputs)


@torch.no_grad()
def scaled(module: nn.Module, name: str, factor: float) -> nn.Module:
    """Multiplies the parameters whose names begin so, in all parts of a module, and returns it."""
    for key, parameter in module.named_parameters():
        if key.rpartition(".")[2].startswith(name):
            parameter.mul_(factor)
    return module


def lstm(recurrent_gain: float = 1.0, inputs: int = INPUTS, **options: Any) -> nn.Module:
    """The default LSTM, with another gain of the recurrent norm."""
    return scaled(ln.LSTM(inputs, UNITS, **options), "gain_hh", recurrent_gain)


class Loop(nn.Module):
    """A cell, or the stepper of a network, called step by step."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        step: Any = self.cell.stepper() if isinstance(self.cell, ln.LSTM) else self.cell
        state, h = None, None
        for row in x:
            found = step(row, state)
            h, state = found if isinstance(self.cell, ln.LSTM) else (found[0], found)
        return h


class Classifier(nn.Module):
    """A recurrent network and a layer on its last output."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.out = network, nn.Linear(UNITS, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.network(x)[0][-1])


def loss(scores: Tensor) -> Tensor:
    """The cross entropy of ten classes, which the cases have one after another."""
    return nn.functional.cross_entropy(scores, torch.arange(len(scores)) % 10)


def packed() -> Any:
    """Noise of 50 to 200 steps."""
    return nn.utils.rnn.pack_padded_sequence(noise(), torch.linspace(STEPS, 50, CASES).int())


def late_convert() -> Audited:
    """An optimiser that was made before `convert`."""
    model = Classifier(nn.LSTM(INPUTS, UNITS))
    before = torch.optim.Adam(model.parameters())
    ln.convert(model, gain_init="match")
    return Audited(model, (noise(),), loss, before)


def with_optimizer(network: nn.Module, make: Any, steps: int = STEPS, **options: Any) -> Audited:
    """A classifier with its loss and optimiser."""
    model = Classifier(network)
    return Audited(model, (noise(steps),), loss, make(model.parameters(), **options))


def words(sparse: bool) -> Audited:
    """Embeddings with sparse gradients, which SparseAdam updates, and a network, which Adam does."""
    table, network = nn.Embedding(1000, INPUTS, sparse=sparse), Classifier(nn.LSTM(INPUTS, UNITS))
    optimizers = (torch.optim.SparseAdam(table.parameters()), torch.optim.Adam(network.parameters()))
    return Audited(nn.Sequential(table, network), (torch.randint(1000, (STEPS, CASES)),), loss, optimizers)


def perceptron(layers: int, activation: type[nn.Module]) -> Audited:
    """A perceptron as torch draws it."""
    parts = [part for _ in range(layers) for part in (nn.Linear(INPUTS, INPUTS), activation())]
    return Audited(nn.Sequential(*parts), (noise()[0],))


def attention() -> Audited:
    """A transformer's encoder, with dropout."""
    layer = nn.TransformerEncoderLayer(INPUTS, 4, 128, batch_first=True)
    return Audited(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (noise(20),))


def plain(network: type[nn.Module] = nn.LSTM, **options: Any) -> Audited:
    """One of torch's networks as torch draws it."""
    return Audited(network(INPUTS, UNITS, **options), (noise(),))


def features() -> Tensor:
    """Three measured features, whose common size differs from step to step."""
    return torch.randn(STEPS, CASES, 1).exp() * torch.randn(STEPS, CASES, 3)


BF16 = torch.bfloat16
RECURRENT = "the norm of W_hh h has a gain of 1 (gain_hh)"
PLANTED: dict[str, tuple[Callable[[], Audited], tuple[str, ...]]] = {
    # name: what makes it, and words of each finding
    "gains of 1": (lambda: Audited(lstm(), (noise(),)), (RECURRENT,)),
    "gains of 1, two layers": (lambda: Audited(lstm(num_layers=2), (noise(),)), (RECURRENT,)),
    "gains of 1, both directions": (lambda: Audited(lstm(bidirectional=True), (noise(),)), (RECURRENT,)),
    "gains of 1, projected": (lambda: Audited(lstm(proj_size=32), (noise(),)), (RECURRENT,)),
    "gains of 1, packed": (lambda: Audited(lstm(), (packed(),)), (RECURRENT,)),
    "gains of 1, a cell": (lambda: Audited(Loop(ln.LSTMCell(INPUTS, UNITS)), (noise(),)), (RECURRENT,)),
    "gains of 1, a stepper": (lambda: Audited(Loop(lstm()), (noise(),)), (RECURRENT,)),
    "gains of 1, 3,000 steps: infinite": (lambda: Audited(lstm(), (noise(3000)[:, :2],)), (RECURRENT,)),
    "RMS norm, gains of 1": (lambda: Audited(lstm(norm="rms"), (noise(),)), (RECURRENT,)),
    "GRU, recurrent gain of 2": (
        lambda: Audited(scaled(ln.GRU(INPUTS, UNITS), "gain_hh", 2), (noise(),)),
        ("W_hh h has a gain of 2 (gain_hh)",),
    ),
    "large gain of the cell": (
        lambda: Audited(scaled(lstm(formula="cell"), "gain_c", 30), (noise(),)),
        ("the norm of c has a gain of 30 (gain_c)",),
    ),
    "large gain of the sum": (
        lambda: Audited(scaled(lstm(formula="sum", inputs=10), "gain", 3), (noise(inputs=10),)),
        ("W_ih x + W_hh h has a gain of 3 (gain)",),
    ),
    "one norm of the sum, few inputs": (
        lambda: Audited(ln.RNN(3, 256), (noise(inputs=3),)),
        ("W_ih x + W_hh h has a gain of 1 (gain)",),
    ),
    "large weights, ReLU": (
        lambda: Audited(scaled(nn.RNN(INPUTS, UNITS, nonlinearity="relu"), "weight_hh", 3), (noise(),)),
        ("because weight_hh is large",),
    ),
    "large weights, LSTM": (
        lambda: Audited(scaled(nn.LSTM(INPUTS, UNITS), "weight_hh", 8), (noise(),)),
        ("because weight_hh is large",),
    ),
    "autocast": (
        lambda: Audited(lstm(), (noise(),), autocast=BF16),
        (RECURRENT, "in bfloat16 the gradient is"),
    ),
    "autocast, short": (lambda: Audited(lstm(), (noise(30),), autocast=BF16), ("in bfloat16 the gradient is",)),
    "large eps": (lambda: Audited(lstm(0.3, eps=1.0), (noise(30),)), ("at most sqrt(eps)",) * 3),
    "an input's size": (lambda: Audited(lstm(0.3, inputs=3), (features(),)), ("removes its size",)),
    "convert after the optimiser": (late_convert, ("the optimizer does not have",)),
    "SGD at a plain network's learning rate": (
        lambda: with_optimizer(lstm(), torch.optim.SGD, steps=20, lr=20.0),
        ("as large as in the plain network", "The start is the cause, not the learning rate"),
    ),
    "depth": (lambda: perceptron(8, nn.Sigmoid), ("times that of 0.weight", "times that of 0.bias")),
}
SOUND: dict[str, Callable[[], Audited]] = {
    "torch's LSTM": plain,
    "torch's LSTM, two layers, both directions": lambda: plain(num_layers=2, bidirectional=True),
    "torch's GRU": lambda: plain(nn.GRU),
    "torch's RNN": lambda: plain(nn.RNN),
    "torch's RNN, ReLU": lambda: plain(nn.RNN, nonlinearity="relu"),
    "torch's LSTM, packed": lambda: Audited(nn.LSTM(INPUTS, UNITS), (packed(),)),
    "torch's GRU, autocast": lambda: plain(nn.GRU)._replace(autocast=BF16),  # its LSTM needs AVX-512 for that
    "recurrent gain of 0.3": lambda: Audited(lstm(0.3), (noise(),)),
    "recurrent gain of 0.1": lambda: Audited(lstm(0.1), (noise(),)),
    "recurrent gain of 0.3, two layers, both directions": lambda: Audited(
        lstm(0.3, num_layers=2, bidirectional=True), (noise(),)
    ),
    "recurrent gain of 0.3, packed": lambda: Audited(lstm(0.3), (packed(),)),
    "recurrent gain of 0.3, a cell": lambda: Audited(
        Loop(scaled(ln.LSTMCell(INPUTS, UNITS), "gain_hh", 0.3)), (noise(),)
    ),
    "recurrent gain of 0.3, autocast": lambda: Audited(lstm(0.3), (noise(),), autocast=BF16),
    "recurrent gain of 0.3, float16": lambda: Audited(lstm(0.3).half(), (noise().half(),)),
    "matched gains": lambda: Audited(lstm(gain_init="match"), (noise(),)),
    "GRU, gains of 1": lambda: Audited(ln.GRU(INPUTS, UNITS), (noise(),)),
    "RNN, gain of 1": lambda: Audited(ln.RNN(INPUTS, UNITS), (noise(),)),
    "norm of the cell": lambda: Audited(lstm(formula="cell"), (noise(),)),
    "RMS norm, recurrent gain of 0.3": lambda: Audited(lstm(0.3, norm="rms"), (noise(),)),
    "batch norm": lambda: Audited(lstm(norm="batch"), (noise(30),)),
    "weight norm": lambda: Audited(lstm(norm="weight"), (noise(),)),
    "no norm": lambda: Audited(lstm(norm=None), (noise(),)),
    "accelerated": lambda: Audited(ln.accelerate(nn.LSTM(INPUTS, UNITS)), (noise(),)),
    "sparse gradients, two optimisers": lambda: words(sparse=True),
    "a transformer's encoder": attention,
    "a transformer's encoder, autocast": lambda: attention()._replace(autocast=BF16),
    "a perceptron": lambda: perceptron(3, nn.ReLU),
}


def made(make: Callable[[], Audited]) -> Audit:
    """Makes a model, the same every time, and audits it."""
    torch.manual_seed(0)
    given = make()
    with torch.autocast("cpu", given.autocast) if given.autocast else contextlib.nullcontext():
        return ln.audit(given.module, *given.batch, loss=given.loss, optimizer=given.optimizer)


def show(name: str, found: Audit, growth: bool) -> None:
    """Prints what was found in one model."""
    print(f"\n## {name}\n\n{found or 'nothing'}", *(found.growth if growth else ()), sep="\n", flush=True)


def times(rounds: int) -> None:
    """Prints the time of an audit in training steps of the same model."""
    from timing import minima

    x = torch.randn(200, 16, 100)
    for name, module in {
        "LSTM, gains of 1": ln.LSTM(100, 128),
        "LSTM, recurrent gain of 0.3": scaled(ln.LSTM(100, 128), "gain_hh", 0.3),
        "LSTM, no norm": ln.LSTM(100, 128, norm=None),
        "torch's LSTM": nn.LSTM(100, 128),
    }.items():

        def step(module: nn.Module = module) -> None:
            module(x)[0].sum().backward()

        def audit(module: nn.Module = module) -> None:
            ln.audit(module, x)

        found = minima({"step": step, "audit": audit}, rounds)
        print(f"{name:<28} {found['audit'] / found['step']:>6.1f} steps, {found['audit']:.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["models", "time"], default="models")
    parser.add_argument("--only", nargs="+", default=[""], help="models whose name has one of these words")
    parser.add_argument("--growth", action="store_true", help="also print the gradient over time of each layer")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.what == "time":
        times(arguments.rounds)
        return
    models = {name: make for name, (make, _) in PLANTED.items()} | SOUND
    for name, make in models.items():
        if any(word in name for word in arguments.only):
            show(name, made(make), arguments.growth)


if __name__ == "__main__":
    main()
