"""Measures what it costs to digest and compare files, and to check tensors: checkpoints, a cache, an update.

    python benchmarks/reliability.py [--rounds 15] [--against PYTHON]

The script prints minima over rounds in milliseconds: a checkpoint of 36 MB (three million parameters with Adam's state)
written and read; packed handwriting of 12,179 lines of 500 to 900 points read from the cache; an update of experiment
6.6 on the digits, 100 hidden units, batch size 128; a forward and backward pass of a small LSTM. `--against` names the
interpreter of another version's virtual environment: both take turns, each in a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

PARAMETERS = 3_000_000
LINES = 12_179
ROWS = ("checkpoint written", "checkpoint read", "handwriting read", "digits, an update", "LSTM, there and back")


def _checkpoint(folder: Path) -> tuple[Callable[[], object], Callable[[], object]]:
    from layernorm_lab.runs import checkpoint

    tensors = {f"{part}/{k}": torch.randn(PARAMETERS // 6) for part in ("model", "m", "v") for k in range(6)}
    path = folder / "checkpoint.safetensors"
    return lambda: checkpoint.save_checkpoint(path, tensors, {"update": 1}), lambda: checkpoint.load_checkpoint(path)


def _handwriting(folder: Path) -> Callable[[], object]:
    from layernorm_lab.data import iam

    random = np.random.default_rng(0)
    lines = []
    for number in range(LINES):
        points = random.integers(-30, 40, (int(random.integers(500, 900)), 3)).astype(np.int32)
        points[0, :2], points[:, 2] = 0, points[:, 2] > 35
        points[-1, 2] = 1  # the pen goes up at the end
        name = f"{chr(97 + number // 1000)}{number // 10 % 100:02}-{number % 1000:03}-{1 + number // 1000:02}"
        lines.append(iam.Line(name, number % 4, points, "A MOVE to stop Mr. Gaitskell's"))
    iam._parse = lambda folder: (lines, Counter())  # type: ignore[assignment]
    (folder / str(iam.IAM.packed)).write_bytes(iam.pack_iam(folder))
    read = iam.read_iam.__wrapped__
    as_published = [False] * (read.__code__.co_argcount - 1)  # `cleaned`, where this version cleans lines
    return lambda: read(folder, *as_published)


def _update() -> Callable[[], object]:
    from layernorm_lab.experiments.mnist.config import Config
    from layernorm_lab.experiments.mnist.network import build_mlp

    model = build_mlp(Config(norm="layer", batch_size=128, hidden=100), inputs=64)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    images, labels = torch.rand(128, 64), torch.randint(10, (128,))

    def run() -> None:
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def _network() -> Callable[[], object]:
    import layernorm as ln

    model, x = ln.LSTM(16, 16), torch.randn(4, 2, 16)
    return lambda: model(x)[0].sum().backward()


def _seconds(run: Callable[[], object]) -> float:
    """Of a call; of a short one the mean of a few hundred."""
    start = time.perf_counter()
    run()
    once = time.perf_counter() - start
    if once > 0.01:
        return once
    start = time.perf_counter()
    for _ in range(200):
        run()
    return (time.perf_counter() - start) / 200


def work() -> None:
    """Answers each line on standard input with the times of one round."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        runs = (*_checkpoint(Path(name)), _handwriting(Path(name)), _update(), _network())
        for run in runs:
            run()
        for _ in sys.stdin:
            print(json.dumps([_seconds(run) for run in runs]), flush=True)


@contextlib.contextmanager
def _worker(python: str) -> Iterator[Callable[[], list[float]]]:
    """A process that measures a round at a time."""
    command = [python, __file__, "--work"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def measure() -> list[float]:
            process.stdin.write("\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield measure
        process.stdin.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="turns of each (default: 15)")
    parser.add_argument("--against", metavar="PYTHON", help="the interpreter of another version's environment")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return
    pythons = {"here": sys.executable, **({"there": options.against} if options.against else {})}
    best = {name: [math.inf] * len(ROWS) for name in pythons}
    with contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(_worker(python)) for name, python in pythons.items()}
        for _ in range(options.rounds):
            for name, measure in workers.items():
                best[name] = [min(pair) for pair in zip(best[name], measure(), strict=True)]
    print(f"{'milliseconds':<24}" + "".join(f"{name:>10}" for name in best))
    for number, row in enumerate(ROWS):
        print(f"{row:<24}" + "".join(f"{1e3 * times[number]:>10.3f}" for times in best.values()))


if __name__ == "__main__":
    main()
