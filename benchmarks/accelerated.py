"""Measures how much faster `ln.accelerate` makes torch's networks, and models made of them.

    python benchmarks/accelerated.py networks --threads 1 2
    python benchmarks/accelerated.py grid
    python benchmarks/accelerated.py cells
    python benchmarks/accelerated.py models --threads 1 2 --rounds 5
    python benchmarks/accelerated.py models --json models.json --chart models.png
    python benchmarks/accelerated.py models --redraw models.json --chart models.png

Both sides are the same network with the same weights; one of them is accelerated. They take turns in one process. The
script prints the minima over the rounds in milliseconds, torch's and layernorm's, and layernorm's as a multiple of
torch's. Inference is a call without gradients, training is the call and the gradients of inputs and parameters.

`networks` and `models` first compare both with torch's in float64; layernorm's may be four times as far from it as
torch's. Of the networks these are outputs and gradients, of the models the gradients of a training step.

`networks`: networks and cells by themselves. In `resets` episodes begin inside the sequence: torch's network is called
for each step, with a state of zeros where one begins. The accelerated one is once called in the same loop, and once
with `reset=`. `policy`: one step of a network between linear layers.

`grid`: LSTMs with hidden sizes of 8 to 1,024 and batches of 1 to 256. `cells`: cells on layernorm's engine, and where
accelerated ones call torch's own forward instead (`own`).

`models`: models of the sizes of public programs, with random data. `difference` is the largest difference between the
outputs of both. A training step includes the optimiser.
- tagger: NCRF++, demo.train.config: words 50, characters 50, LSTM 2 x 100, CRF, 10 sentences of 5 to 40 words, packed
- forecaster: PyTorch Forecasting's DeepAR: two LSTM layers of 30, 128 series of 20 to 60 steps, packed
- windows: no program of others: two LSTM layers of 64, 64 windows of 48 steps of 6 features
- decoder: PyTorch's tutorial on translation: GRU of 256, 2,800 words, one sentence of 10 words, a call for each word
- agent: CleanRL's ppo_atari_lstm.py: convolutions, LSTM of 128; inference is a step of 8 games, training 128 steps of 2
- reader: Ben Trevett's sentiment analysis: two bidirectional LSTM layers of 300, 256 words, packed; 8 reviews for 512
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import layernorm as ln
import timing
from layernorm.convert._torchs_faster import faster_cell

Call = Callable[[Any, Any], Any]  # (module, inputs) -> outputs
Row = dict[str, Any]

CASES = {  # name: T, B, I, H, and options of the network
    "B = 1": ((100, 1, 256, 256), {}),
    "B = 8": ((50, 8, 128, 128), {}),
    "B = 64": ((50, 64, 256, 256), {}),
    "packed": ((50, 32, 128, 128), {}),
    "bidirectional, 2 layers": ((50, 16, 128, 128), {"num_layers": 2, "bidirectional": True}),
    "resets, the same loop": ((64, 8, 128, 128), {}),
    "resets, reset=": ((64, 8, 128, 128), {}),
    "one step, B = 1": ((1, 1, 256, 256), {}),
    "one step, B = 64": ((1, 64, 256, 256), {}),
    "cell, B = 1": ((1, 1, 256, 256), {}),
    "cell, B = 8": ((1, 8, 128, 128), {}),
    "cell, B = 64": ((1, 64, 256, 256), {}),
    "cell, B = 256": ((1, 256, 512, 512), {}),
    "2 layers of 40 units": ((72, 32, 40, 40), {"num_layers": 2}),
    "one step, 32 units": ((1, 1, 32, 32), {}),
    "cell, 32 units": ((1, 1, 32, 32), {}),
    "policy, a cell of 64": ((1, 8, 64, 64), {}),
    "policy, one step of 64": ((1, 8, 64, 64), {}),
}


GRID_UNITS = (8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256, 384, 512, 1024)
GRID_ROWS = (1, 8, 16, 32, 64, 128, 256)


def tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [result.data] if isinstance(result, PackedSequence) else [t for part in result for t in tensors(part)]


class Policy(nn.Module):
    """A recurrent policy: a layer below the network, one for the action and one for the value above it."""

    def __init__(self, core: nn.Module, inputs: int, units: int) -> None:
        super().__init__()
        self.below, self.core = nn.Linear(inputs, inputs), core
        self.action, self.value = nn.Linear(units, 4), nn.Linear(units, 1)

    def forward(self, x: Tensor) -> list[Tensor]:
        h = tensors(self.core(self.below(x).relu()))[0]
        return [self.action(h), self.value(h)]


def loop(module: Any, x: Tensor, begins: Tensor) -> Tensor:
    """Runs a network step by step, with a state of zeros where an episode begins."""
    outputs: list[Tensor] = []
    hx: Any = None
    for step, begin in zip(x, begins, strict=True):
        keep = 1.0 - begin.to(x.dtype)[None, :, None]
        hx = hx if hx is None else tuple(keep * part for part in hx) if isinstance(hx, tuple) else keep * hx
        output, hx = module(step[None], hx)
        outputs.append(output)
    return torch.cat(outputs)


def inference(module: Any, call: Call, x: Any) -> Callable[[], Any]:
    def run() -> Any:
        with torch.no_grad():
            return call(module, x)

    return run


def training(module: Any, call: Call, x: Tensor) -> Callable[[], Any]:
    given = x.clone().requires_grad_()

    def run() -> list[Tensor | None]:
        found = tensors(call(module, given))
        torch.autograd.backward(found, [torch.ones_like(t) for t in found])
        gradients = [t.grad for t in (given, *module.parameters())]
        for t in (given, *module.parameters()):
            t.grad = None
        return gradients

    return run


def check(name: str, torchs: Sequence[Any], ours: Sequence[Any], exact: Sequence[Any]) -> None:
    """Ends the script if a layernorm result is farther from float64 than four times torch's error, and some
    roundings."""
    for a, b, right in zip(ours, torchs, exact, strict=True):
        unit, scale = float((b.double() - right).abs().max()), float(right.abs().max())
        if not float((a.double() - right).abs().max()) <= 4 * unit + 1e-6 * max(scale, 1.0):
            raise SystemExit(f"{name}: layernorm's differs from float64 by more than four times what torch's does")


def milliseconds(times: dict[str, float]) -> str:
    return f"{1e3 * times['torch']:.3g}, {1e3 * times['ours']:.3g} | {times['ours'] / times['torch']:.2f}"


def networks(options: Any) -> list[Row]:
    rows: list[Row] = []
    for threads in timing.tables(options):
        print(f"\n{threads} thread(s)\n\n| network | | T, B, I, H | inference: torch, layernorm, ms | | training | |")
        print("|---|---|---|--:|--:|--:|--:|")
        for network in ("LSTM", "GRU", "RNN"):
            for case, (shape, arguments) in CASES.items():
                rows.append({"threads": threads, "network": network, "case": case})
                rows[-1] |= measure(network, case, shape, arguments, options.rounds)
                told = " | ".join(milliseconds(rows[-1][mode]) for mode in ("inference", "training"))
                print(f"| {network} | {case} | {', '.join(map(str, shape))} | {told} |", flush=True)
        print(f"\n{threads} thread(s): layernorm's time as a multiple of torch's, inference and training\n")
        print("| | LSTM | GRU | RNN |\n|---|---|---|---|")
        for case in CASES:
            found = [row for row in rows if row["threads"] == threads and row["case"] == case]
            ratios = ([row[mode]["ours"] / row[mode]["torch"] for mode in ("inference", "training")] for row in found)
            print(f"| {case} | {' | '.join(f'{a:.2f}, {b:.2f}' for a, b in ratios)} |", flush=True)
    return rows


def grid(options: Any) -> list[Row]:
    rows: list[Row] = []
    for threads in timing.tables(options):
        print(f"\n{threads} thread(s)\n\n| T | units | rows | inference | training |\n|--:|--:|--:|--:|--:|")
        for T, units, B in itertools.product((1, 20, 50), GRID_UNITS, GRID_ROWS):
            if T * B * units**2 > 2e9:
                continue
            theirs, x = nn.LSTM(units, units), torch.randn(T, B, units)
            ours = ln.accelerate(copy.deepcopy(theirs))
            row: Row = {"threads": threads, "T": T, "units": units, "rows": B}
            for mode, run in (("inference", inference), ("training", training)):
                sides = {"torch": run(theirs, call_plainly, x), "ours": run(ours, call_plainly, x)}
                row[mode] = timing.minima(sides, options.rounds)
            rows.append(row)
            ratios = [f"{row[mode]['ours'] / row[mode]['torch']:.2f}" for mode in ("inference", "training")]
            print(f"| {T} | {units} | {B} | {' | '.join(ratios)} |", flush=True)
        print("\n| | geometric mean | worst: T, rows, units |\n|---|--:|--:|")
        for mode in ("inference", "training"):
            of = {tuple(row[k] for k in ("T", "rows", "units")): row[mode] for row in rows if row["threads"] == threads}
            found = {shape: times["ours"] / times["torch"] for shape, times in of.items()}
            mean = timing.geometric_mean([*found.values()])
            worst = max(found, key=lambda shape: found[shape])
            print(f"| {mode}, {len(found)} shapes | {mean:.2f} | {found[worst]:.2f}: {', '.join(map(str, worst))} |")
    return rows


def cells(options: Any) -> list[Row]:
    rows: list[Row] = []
    for threads in timing.tables(options):
        print(f"\n{threads} thread(s)\n\n| cell | units | rows | inference | | training | |")
        print("|---|--:|--:|--:|--:|--:|--:|")
        for make, units, B in itertools.product(
            (nn.LSTMCell, nn.GRUCell), (64, 128, 256, 512, 1024), (8, 16, 32, 64, 256)
        ):
            theirs, x = make(units, units), torch.randn(B, units)
            ours, given = ln.accelerate(copy.deepcopy(theirs)), x.clone().requires_grad_()
            row: Row = {"threads": threads, "cell": make.__name__, "units": units, "rows": B}
            found = []
            for mode, run in (("inference", inference), ("training", training)):
                with torch.set_grad_enabled(mode == "training"):
                    row[f"{mode}, own"] = faster_cell(ours, x if mode == "inference" else given)
                sides = {"torch": run(theirs, call_plainly, x), "ours": by_name(run(ours, call_plainly, x))}
                row[mode] = timing.minima(sides, options.rounds)
                found += [f"{row[mode]['ours'] / row[mode]['torch']:.2f}", "own" if row[f"{mode}, own"] else ""]
            rows.append(row)
            print(f"| {make.__name__} | {units} | {B} | {' | '.join(found)} |", flush=True)
    return rows


def call_plainly(module: Any, x: Tensor) -> Any:
    return module(x)


def by_name(run: Callable[[], Any]) -> Callable[[], Any]:
    """Returns the same on layernorm's engine, whatever is faster."""

    def ours() -> Any:
        with ln.backends.use("native"):
            return run()

    return ours


def measure(network: str, case: str, shape: Sequence[int], arguments: dict[str, Any], rounds: int) -> Row:
    T, B, inputs, units = shape
    module = getattr(nn, network + "Cell" * ("cell" in case))(inputs, units, **arguments)
    module = Policy(module, inputs, units) if "policy" in case else module
    x, begins = torch.randn(T, B, inputs), torch.rand(T, B) < 0.05
    x = x[0] if "cell" in case else x
    call: Call = lambda module, x: module(x)  # noqa: E731
    if case == "packed":
        lengths = torch.randint(T // 5, T + 1, (B,))
        call = lambda module, x: module(pack_padded_sequence(x, lengths, enforce_sorted=False))  # noqa: E731
    elif "resets" in case:
        call = lambda module, x: loop(module, x, begins)  # noqa: E731
    our_call: Call = (lambda module, x: module(x, reset=begins)[0]) if case == "resets, reset=" else call
    sides = {"torch": (module, call), "ours": (ln.accelerate(copy.deepcopy(module)), our_call)}
    exact = copy.deepcopy(module).double(), call
    both = *sides.values(), exact
    check(f"{network}, {case}", *(tensors(inference(*side, x.to(next(side[0].parameters()).dtype))()) for side in both))
    check(f"{network}, {case}", *(training(*side, x.to(next(side[0].parameters()).dtype))() for side in both))
    return {
        mode: timing.minima({name: run(*side, x) for name, side in sides.items()}, rounds)
        for mode, run in (("inference", inference), ("training", training))
    }


# Models


class Tagger(nn.Module):
    """Words and their characters' features to scores, and the loss of a conditional random field."""

    def __init__(self, words: int = 5000, tags: int = 12) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(words, 50), nn.LSTM(100, 100, batch_first=True, bidirectional=True)
        self.scores, self.drop = nn.Linear(200, tags), nn.Dropout(0.5)
        self.follows = nn.Parameter(torch.zeros(tags, tags))

    def forward(self, words: Tensor, characters: Tensor, lengths: Tensor) -> Tensor:
        x = self.drop(torch.cat([self.embed(words), characters], 2))
        output = self.lstm(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[0]
        return self.scores(self.drop(pad_packed_sequence(output, batch_first=True)[0]))

    def loss(self, words: Tensor, characters: Tensor, lengths: Tensor, tags: Tensor) -> Tensor:
        scores = self(words, characters, lengths).transpose(0, 1)
        total, right = scores[0], scores[0].gather(1, tags[:1].T).squeeze(1)
        for t in range(1, len(scores)):
            inside = t < lengths
            after = (total.unsqueeze(2) + self.follows).logsumexp(1) + scores[t]
            total = torch.where(inside.unsqueeze(1), after, total)
            of_tags = scores[t].gather(1, tags[t].unsqueeze(1)).squeeze(1) + self.follows[tags[t - 1], tags[t]]
            right = right + torch.where(inside, of_tags, 0.0)
        return (total.logsumexp(1) - right).sum()


class Forecaster(nn.Module):
    """Past values and features of series to the mean and deviation of the next value."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.distribution = nn.LSTM(8, 30, 2, batch_first=True, dropout=0.1), nn.Linear(30, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        output = self.lstm(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[0]
        return self.distribution(pad_packed_sequence(output, batch_first=True)[0])

    def loss(self, x: Tensor, lengths: Tensor, values: Tensor) -> Tensor:
        mean, deviation = self(x, lengths).unbind(2)
        return nn.functional.gaussian_nll_loss(mean, values, nn.functional.softplus(deviation))


class Windows(nn.Module):
    """Windows of a series, all as long, to the value that follows."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.next = nn.LSTM(6, 64, 2, batch_first=True), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.next(self.lstm(x)[0][:, -1])

    def loss(self, x: Tensor, values: Tensor) -> Tensor:
        return nn.functional.mse_loss(self(x), values)


class Decoder(nn.Module):
    """Words of a translation, each from the one before it."""

    def __init__(self, words: int = 2800) -> None:
        super().__init__()
        self.embed, self.gru, self.scores = nn.Embedding(words, 256), nn.GRU(256, 256), nn.Linear(256, words)

    def forward(self, words: Tensor) -> Tensor:
        h, scores = words.new_zeros(1, 1, 256, dtype=self.scores.weight.dtype), []
        for word in words:
            output, h = self.gru(self.embed(word).relu().view(1, 1, -1), h)
            scores.append(self.scores(output[0]).log_softmax(1))
        return torch.cat(scores)

    def loss(self, words: Tensor) -> Tensor:
        return nn.functional.nll_loss(self(words[:-1]), words[1:])


class Agent(nn.Module):
    """Screens of games to an action's scores and a value, with a state of zeros where a game begins."""

    in_one_call = False

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for size in ((1, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1)):
            layers += [nn.Conv2d(*size), nn.ReLU()]
        self.see = nn.Sequential(*layers, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU())
        self.lstm, self.judge = nn.LSTM(512, 128), nn.Linear(128, 5)

    def forward(self, screens: Tensor, begins: Tensor) -> Tensor:
        x = self.see(screens.flatten(0, 1)).unflatten(0, begins.shape)
        return self.judge(self.lstm(x, reset=begins)[0] if self.in_one_call else loop(self.lstm, x, begins))

    def loss(self, screens: Tensor, begins: Tensor) -> Tensor:
        return self(screens, begins).square().mean()


class Reader(nn.Module):
    """Reviews to a class."""

    def __init__(self, words: int = 21_635) -> None:
        super().__init__()
        self.embed, self.drop, self.scores = nn.Embedding(words, 300), nn.Dropout(0.5), nn.Linear(600, 2)
        self.lstm = nn.LSTM(300, 300, 2, batch_first=True, bidirectional=True, dropout=0.5)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.drop(self.embed(words)), lengths, batch_first=True, enforce_sorted=False)
        h = self.lstm(packed)[1][0]
        return self.scores(self.drop(torch.cat([h[-1], h[-2]], 1)))

    def loss(self, words: Tensor, lengths: Tensor, classes: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self(words, lengths), classes)


def lengths_of(rows: int, low: int, high: int) -> Tensor:
    return torch.cat([torch.tensor([high]), torch.randint(low, high + 1, (rows - 1,))])


def cases() -> dict[str, tuple[nn.Module, tuple[Tensor, ...], tuple[Tensor, ...]]]:
    """Makes the models, what inference calls them with, and what their loss is called with."""
    tagged = (torch.randint(5000, (10, 40)), torch.randn(10, 40, 50), lengths_of(10, 5, 40))
    series = (torch.randn(128, 60, 8), lengths_of(128, 20, 60))
    reviews = (torch.randint(21_635, (8, 256)), lengths_of(8, 60, 256))
    windows = torch.randn(64, 48, 6)
    sentence, played = torch.randint(2800, (11,)), (torch.rand(128, 2, 1, 84, 84), torch.rand(128, 2) < 0.02)
    step = (torch.rand(1, 8, 1, 84, 84), torch.rand(1, 8) < 0.02)
    return {
        "tagger": (Tagger(), tagged, (*tagged, torch.randint(12, (40, 10)))),
        "forecaster": (Forecaster(), series, (*series, torch.randn(128, 60))),
        "windows": (Windows(), (windows,), (windows, torch.randn(64, 1))),
        "decoder": (Decoder(), (sentence[:-1],), (sentence,)),
        "agent": (Agent(), step, played),
        "agent, reset=": (Agent(), step, played),
        "reader": (Reader(), reviews, (*reviews, torch.randint(2, (8,)))),
    }


def step_of(model: Any, given: tuple[Tensor, ...]) -> Callable[[], Any]:
    """Returns a training step as a function."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def run() -> None:
        model.loss(*given).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def gradients(model: Any, given: tuple[Tensor, ...]) -> list[Tensor]:
    return list(torch.autograd.grad(model.loss(*given), list(model.parameters())))


def models(options: Any) -> list[Row]:
    rows: list[Row] = []
    for threads in timing.tables(options):
        print(f"\n{threads} thread(s)\n\n| model | difference | inference: torch, layernorm, ms | | training step | |")
        print("|---|--:|--:|--:|--:|--:|")
        for name, (model, given, batch) in cases().items():
            sides = {"torch": model.eval(), "ours": ln.accelerate(copy.deepcopy(model)).eval()}
            sides["ours"].in_one_call = "reset=" in name  # type: ignore[assignment]
            both = *sides.values(), copy.deepcopy(model).double()
            in_types = [
                tuple(t.to(next(m.parameters()).dtype) if t.is_floating_point() else t for t in batch) for m in both
            ]
            check(name, *(gradients(m, typed) for m, typed in zip(both, in_types, strict=True)))
            call: Call = lambda model, given: model(*given)  # noqa: E731
            runs = {side: inference(module, call, given) for side, module in sides.items()}
            row: Row = {"threads": threads, "model": name}
            row["difference"] = float((runs["ours"]() - runs["torch"]()).abs().max())
            row["inference"] = timing.minima(runs, options.rounds)
            steps = {side: step_of(module.train(), batch) for side, module in sides.items()}
            row["training"] = timing.minima(steps, options.rounds)
            told = " | ".join(milliseconds(row[mode]) for mode in ("inference", "training"))
            print(f"| {name} | {row['difference']:.0e} | {told} |", flush=True)
            rows.append(row)
    return rows


JOBS = {
    "tagger": "tagger",
    "forecaster": "uneven series",
    "windows": "windows of a series",
    "decoder": "translator's decoder",
    "agent": "agent",
    "agent, reset=": "agent, with reset=",
    "reader": "reader of reviews",
}
"""What the chart calls the models."""


def chart(path: str, rows: Sequence[Row]) -> None:
    """Bars of how many times as fast a training step is, with the fewest threads; large enough for a small screen."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    threads = min(row["threads"] for row in rows)
    rows = [row for row in rows if row["threads"] == threads]
    factors = {JOBS[row["model"]]: row["training"]["torch"] / row["training"]["ours"] for row in rows}
    names = sorted(factors, key=lambda name: factors[name])
    figure, axis = plt.subplots(figsize=(5, 0.4 * len(names) + 0.8))
    axis.barh(names, [factors[name] for name in names], 0.62, color="#333333")  # black is no norm in every figure
    for place, name in enumerate(names):
        axis.text(factors[name] + 0.06, place, f"{factors[name]:.1f}x", va="center", fontsize=12)
    axis.axvline(1, color="#cc3311", linewidth=1.6)
    axis.set_xlim(0, 1.2 * max(factors.values()))
    axis.set_xticks([1], ["torch.nn"])
    axis.tick_params(axis="both", length=0, labelsize=12)
    axis.spines[["top", "right", "left"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=200)
    print(f"wrote {path}")


def main() -> None:
    parser = timing.parser(__doc__, chart="the training steps of the models")
    parser.add_argument("what", choices=["networks", "grid", "cells", "models"])
    options = timing.parse(parser)
    if options.chart and options.what != "models":
        parser.error("--chart is of the models")
    if options.redraw:
        rows = options.redraw
    else:
        rows = {"networks": networks, "grid": grid, "cells": cells, "models": models}[options.what](options)
        timing.save(options.json, rows)
    if options.chart:
        chart(options.chart, rows)


if __name__ == "__main__":
    main()
