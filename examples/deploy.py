"""Trains small taggers, exports them to other processes in three ways, and compares what they compute there.

    python examples/deploy.py
    python examples/deploy.py --models LSTM LSTMCell

- `torch.export`: the program is loaded in a new process where layernorm has no CPU engine.
- ONNX: the model is run by ONNX Runtime.
- TorchScript of `ln.portable`: the model is loaded in a new process where layernorm cannot be imported.

At each step a tagger names the symbol two steps before. The taggers are two-layer bidirectional networks on sequences
with lengths, and cells that take one step per call. All are exported with other numbers of steps and rows than they
run with. The table shows the largest difference in a tag's score. The command fails where one is above 1e-5.

Needs ``pip install '.[onnx]' onnxruntime``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import layernorm as ln

SYMBOLS, H = 8, 32
LARGEST = 1e-5
T_FREE, B_FREE = torch.export.Dim("T"), torch.export.Dim("B")


class Tagger(nn.Module):
    """Scores for each step of sequences (T, B) of symbols with lengths (B,)."""

    def __init__(self, network: type[nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, H)
        self.network = network(H, H, num_layers=2, bidirectional=True)
        self.norm, self.scores = ln.LayerNorm(2 * H), nn.Linear(2 * H, SYMBOLS)

    def forward(self, symbols: Tensor, lengths: Tensor) -> Tensor:
        output, _ = self.network(self.embedding(symbols), lengths=lengths)
        return self.scores(self.norm(output))

    def loss(self, symbols: Tensor) -> Tensor:
        lengths = torch.full((symbols.shape[1],), len(symbols))
        return F.cross_entropy(self(symbols, lengths)[2:].flatten(0, 1), symbols[:-2].flatten())

    def inputs(self, T: int, B: int) -> tuple[Tensor, ...]:
        return torch.randint(SYMBOLS, (T, B)), torch.randint(1, T + 1, (B,))

    shapes = ({0: T_FREE, 1: B_FREE}, {0: B_FREE})


class StepTagger(nn.Module):
    """A tagger that takes one step per call: from symbols (B,) and the state before the step to the scores and the
    state after it."""

    state_size = H

    def __init__(self, cell: type[nn.Module]) -> None:
        super().__init__()
        self.embedding, self.cell = nn.Embedding(SYMBOLS, H), cell(H, H)
        self.norm, self.scores = ln.RMSNorm(H), nn.Linear(H, SYMBOLS)

    def forward(self, symbols: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = self.cell(self.embedding(symbols), h)
        return self.scores(self.norm(h)), h

    def loss(self, symbols: Tensor) -> Tensor:
        state, scores = torch.zeros(symbols.shape[1], self.state_size), []
        for step in symbols:
            score, state = self(step, state)
            scores.append(score)
        return F.cross_entropy(torch.cat(scores[2:]), symbols[:-2].flatten())

    def inputs(self, T: int, B: int) -> tuple[Tensor, ...]:
        return torch.randint(SYMBOLS, (B,)), torch.randn(B, self.state_size)

    shapes = ({0: B_FREE}, {0: B_FREE})


class LSTMStepTagger(StepTagger):
    """A step tagger whose state is one tensor, h and c concatenated along its last dimension."""

    state_size = 2 * H

    def forward(self, symbols: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        before = h.chunk(2, 1)
        h, c = self.cell(self.embedding(symbols), (before[0], before[1]))
        return self.scores(self.norm(h)), torch.cat([h, c], 1)


def taggers() -> dict[str, Any]:
    """The taggers, by the name of the network or cell that they contain."""
    torch.manual_seed(0)
    models: dict[str, Any] = {make.__name__: Tagger(make) for make in (ln.LSTM, ln.GRU, ln.RNN)}
    models["LSTMCell"] = LSTMStepTagger(ln.LSTMCell)
    return models | {make.__name__: StepTagger(make) for make in (ln.GRUCell, ln.RNNCell)}


def train(model: Any, updates: int) -> tuple[float, float]:
    """Trains a model; returns its first and its last loss."""
    optimizer, losses = torch.optim.Adam(model.parameters(), 0.01), []
    for _ in range(updates):
        loss = model.loss(torch.randint(SYMBOLS, (12, 32)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[0], losses[-1]


ELSEWHERE = """
import sys, torch
folder, how = sys.argv[1:]
if how == "pt2":
    import layernorm
    assert "native" not in layernorm.backends.available()
else:
    sys.modules["layernorm"] = None
    assert not hasattr(torch.ops.layernorm, "recurrent")
for name, inputs in torch.load(f"{folder}/inputs.pt").items():
    path = f"{folder}/{name}.{how}"
    model = torch.export.load(path).module() if how == "pt2" else torch.jit.load(path)
    output = model(*inputs)
    torch.save(output[0] if isinstance(output, tuple) else output, f"{path}.scores")
"""


def elsewhere(folder: Path, how: str) -> None:
    """Runs all saved models of one kind in a new process, without the CPU engine."""
    environment = {**os.environ, "LAYERNORM_ISA": "none"}
    subprocess.run([sys.executable, "-c", ELSEWHERE, folder, how], env=environment, check=True)


def in_onnx_runtime(program: Any, inputs: tuple[Tensor, ...]) -> Tensor:
    """The scores that ONNX Runtime computes with an exported program."""
    model = torch.onnx.export(program, dynamo=True, verbose=False)
    assert model is not None
    session = onnxruntime.InferenceSession(model.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [argument.name for argument in session.get_inputs()]
    return torch.from_numpy(session.run(None, {n: t.numpy() for n, t in zip(names, inputs, strict=True)})[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--models", nargs="+", choices=[*taggers()], default=[*taggers()], help="which of the taggers")
    options = parser.parse_args()
    models = {name: model for name, model in taggers().items() if name in options.models}
    inputs, losses, onnx = {}, {}, {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, model in models.items():
            losses[name] = train(model, options.updates)
            model.eval()
            program = torch.export.export(model, model.inputs(6, 3), dynamic_shapes=model.shapes)
            torch.export.save(program, folder / f"{name}.pt2")
            torch.jit.script(ln.portable(model)).save(folder / f"{name}.pt")
            inputs[name] = model.inputs(17, 5)
            onnx[name] = in_onnx_runtime(program, inputs[name])
        torch.save(inputs, folder / "inputs.pt")
        scores: dict[str, dict[str, Tensor]] = {"ONNX Runtime": onnx}
        for how, title in (("pt2", "torch.export, no engine"), ("pt", "TorchScript, no layernorm")):
            elsewhere(folder, how)
            scores[title] = {name: torch.load(folder / f"{name}.{how}.scores") for name in models}
    print("| model | loss | " + " | ".join(scores) + " |\n|---|---|" + "---|" * len(scores))
    found: list[float] = []
    for name, model in models.items():
        with torch.no_grad():
            expected = model(*inputs[name])
        expected = expected[0] if isinstance(expected, tuple) else expected
        errors = [(of[name] - expected).abs().max().item() for of in scores.values()]
        found += errors
        print(
            f"| {name} | {losses[name][0]:.2f} -> {losses[name][1]:.2f} | "
            + " | ".join(f"{e:.1e}" for e in errors)
            + " |"
        )
    worst = torch.tensor(found).max().item()  # nan, if one is
    print(f"\nlargest difference {worst:.1e}, at most {LARGEST:.0e} allowed")
    return int(not worst <= LARGEST)


if __name__ == "__main__":
    sys.exit(main())
