"""Runs a network on a stream: chunk by chunk, with its state as an input and an output, in three runtimes.

    python examples/streaming.py

The frames look like those of speech: 40 features, 100 frames a second. At each frame a two-layer LSTM names the symbol
that was spoken two frames before. It is trained on short sequences. Then it listens to a longer one in chunks of
different lengths, as they would come from a microphone. After each chunk the caller keeps h and c, and gives them back
with the next chunk. The runtimes are layernorm itself, ONNX Runtime, and TorchScript of `ln.portable`.

The table shows how far the scores of the chunks are from those of the whole sequence in one call. The command fails
where a difference is above 1e-4, or where a network that forgets its state between chunks does as well.

Needs ``pip install '.[onnx]' onnxruntime``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import layernorm as ln

FEATURES, SYMBOLS, DELAY = 40, 8, 2
CHUNKS = (10, 1, 7, 16, 1, 1, 30)
LARGEST = 1e-4

Runtime = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""From frames (T, B, 40) and the state before them to the scores and the state after them."""


class Listener(nn.Module):
    """Scores (T, B, 8) of frames (T, B, 40). The state h and c (2, B, H) goes in and comes out."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.lstm, self.scores = ln.LSTM(FEATURES, hidden_size, 2), nn.Linear(hidden_size, SYMBOLS)

    def forward(self, frames: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        output, (h, c) = self.lstm(frames, (h, c))
        return self.scores(output), h, c

    def silence(self, B: int) -> tuple[Tensor, Tensor]:
        """The state before the first frame."""
        h = torch.zeros(2, B, self.lstm.hidden_size)
        return h, torch.zeros_like(h)


def spoken(T: int, B: int) -> tuple[Tensor, Tensor]:
    """Symbols (T, B), and frames (T, B, 40) in which they are spoken with noise."""
    voice = torch.randn(SYMBOLS, FEATURES, generator=torch.Generator().manual_seed(1))
    symbols = torch.randint(SYMBOLS, (T, B))
    return symbols, voice[symbols] + 0.5 * torch.randn(T, B, FEATURES)


def accuracy(scores: Tensor, symbols: Tensor) -> float:
    return (scores[DELAY:].argmax(-1) == symbols[:-DELAY]).double().mean().item()


def trained(hidden_size: int, updates: int) -> Listener:
    """A listener that has been trained on sequences of 12 frames."""
    torch.manual_seed(0)
    model = Listener(hidden_size)
    optimizer = torch.optim.Adam(model.parameters(), 0.003)
    for _ in range(updates):
        symbols, frames = spoken(12, 32)
        scores, _, _ = model(frames, *model.silence(32))
        optimizer.zero_grad()
        F.cross_entropy(scores[DELAY:].flatten(0, 1), symbols[:-DELAY].flatten()).backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def export_onnx(model: Listener, path: Path) -> None:
    """Writes the network as ONNX, for chunks of any length and any number of rows."""
    T, B = torch.export.Dim("T"), torch.export.Dim("B")
    shapes = {0: T, 1: B}, {1: B}, {1: B}
    names = {"input_names": ["frames", "h", "c"], "output_names": ["scores", "h_after", "c_after"]}
    inputs = torch.randn(5, 2, FEATURES), *model.silence(2)
    program = torch.onnx.export(model, inputs, dynamo=True, dynamic_shapes=shapes, verbose=False, **names)
    assert program is not None
    program.save(path)


def in_onnx_runtime(path: Path) -> Runtime:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(frames: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores, h, c = session.run(None, {"frames": frames.numpy(), "h": h.numpy(), "c": c.numpy()})
        return torch.from_numpy(scores), torch.from_numpy(h), torch.from_numpy(c)

    return run


def listen(run: Runtime, frames: Tensor, h: Tensor, c: Tensor, sizes: Sequence[int]) -> Tensor:
    """Scores of a stream that comes in chunks of these sizes."""
    scores = []
    for chunk in frames.split(list(sizes)):
        of_chunk, h, c = run(chunk, h, c)
        scores.append(of_chunk)
    return torch.cat(scores)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=150)
    model = trained(64, parser.parse_args().updates)
    symbols, frames = spoken(sum(CHUNKS), 4)
    start = model.silence(4)
    whole, _, _ = model(frames, *start)
    runtimes: dict[str, Runtime] = {"layernorm": model}
    with tempfile.TemporaryDirectory() as folder:
        export_onnx(model, Path(folder) / "listener.onnx")
        runtimes["ONNX Runtime"] = in_onnx_runtime(Path(folder) / "listener.onnx")
        torch.jit.script(ln.portable(model)).save(Path(folder) / "listener.pt")
        runtimes["TorchScript"] = torch.jit.load(Path(folder) / "listener.pt")
    runtimes["layernorm, forgets between chunks"] = lambda chunk, h, c: (model(chunk, *start)[0], h, c)
    print(f"chunks of {', '.join(map(str, CHUNKS))} frames, 4 rows")
    print("| runtime | difference from the whole | symbols right |\n|---|---|---|")
    differences = []
    for name, run in runtimes.items():
        scores = listen(run, frames, *start, CHUNKS)
        differences.append((scores - whole).abs().max().item())
        print(f"| {name} | {differences[-1]:.1e} | {accuracy(scores, symbols):.0%} |")
    *carried, forgotten = differences
    worst = torch.tensor(carried).max().item()  # nan, if one is
    print(f"\nlargest difference {worst:.1e}, at most {LARGEST:.0e} allowed")
    return int(not worst <= LARGEST < forgotten)


if __name__ == "__main__":
    sys.exit(main())
