"""Measures what each norm adds to a training update of an experiment, where its time goes, and the first gradient.

    python benchmarks/training_step.py mnist --norms none layer torch batch --set batch-size 128 4 --rounds 15
    python benchmarks/training_step.py reader --norms none layer batch batch-everywhere
    python benchmarks/training_step.py draw --preset paper --set glimpses 8 --profile
    python benchmarks/training_step.py handwriting --preset paper --lowest
    python benchmarks/training_step.py --first-gradients
    python benchmarks/training_step.py handwriting --first-gradients --set gain-init 0.3

The networks take turns in one process (none, layer, none, ...), each turn with a new network on the same random data of
the real data's form. The script prints the minimum over the rounds of the time of one update (forward, backward,
clipping, optimiser), and its ratio to the first norm. The norm "torch" is "layer" with torch.nn.LayerNorm instead of
layernorm's.

With --first-gradients nothing is timed: the script prints the norm of the whole gradient at update 0, before anything
is clipped, and the largest over the smallest. The data are the real ones, which it finds as `layernorm run` does; it
names an experiment whose data are not there.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import layernorm as ln
import timing
from layernorm_lab import catalogue
from layernorm_lab.data.binarized_mnist import PIXELS, Binarized
from layernorm_lab.data.books import Books
from layernorm_lab.data.iam import Sequences
from layernorm_lab.data.mnist import Cases, Images
from layernorm_lab.data.order_embeddings import CAPTIONS, Captioned, ImagesAndCaptions
from layernorm_lab.data.questions import FIRST_ENTITY, Questions, Split
from layernorm_lab.data.text import Sentences, Vocabulary
from layernorm_lab.errors import RunError, UsageError
from layernorm_lab.experiments.handwriting.network import one_hot
from layernorm_lab.protocol import Experiment
from layernorm_lab.train import distributed
from layernorm_lab.train.batches import NOISE, derive_seed
from layernorm_lab.train.task import Task

Run = Callable[[], None]

LENGTHS = torch.tensor([7, 9, 10, 11, 12, 13, 14, 16, 20])
"""Words of a caption with its end, as they are spread in Flickr8k."""


def captioned(images: int = 1024, features: int = 1280, words: int = 7373) -> ImagesAndCaptions:
    """Random images with random captions."""
    lengths = LENGTHS[torch.randint(len(LENGTHS), (CAPTIONS * images,))].tolist()
    rows = [torch.randint(2, words, (length,)).tolist() for length in lengths]
    part = Captioned(torch.rand(images, features), [""] * len(rows), Sentences.of(rows))
    return ImagesAndCaptions(part, part, part, Vocabulary(map(str, range(words - 2))), {})


def pictures(*shape: int) -> Images:
    """Random images with one of ten labels each."""
    cases = Cases(torch.randint(256, (1000, *shape), dtype=torch.uint8), torch.randint(10, (1000,)))
    return Images(cases, cases, cases, 255, {})


def binarized() -> Binarized:
    """Random binary images, as bright as the digits."""
    images = (torch.rand(1000, PIXELS) < 0.13).byte()
    return Binarized(images, images, images, {})


class Handwriting:
    """Random lines of handwriting, all of one length."""

    def sequences(self, valid: bool, points: int, count: int = 64, characters: int = 30) -> Sequences:
        drawn = torch.randn(count, points + 1, 3)
        drawn[..., 2] = (drawn[..., 2] > 2).float()
        text = torch.randint(57, (count, characters), dtype=torch.uint8)
        return Sequences(drawn, torch.full((count,), points), text, torch.full((count,), characters))


def questions(words: int = 5000, passage: int = 92, asked: int = 19, entities: int = 10) -> Questions:
    """Random questions about passages, all of one length: books-cloze's means."""
    count = 4000
    read, ask = (
        Sentences(torch.randint(FIRST_ENTITY, words, (count * size,)), size * torch.arange(count + 1))
        for size in (passage, asked)
    )
    split = Split(read, ask, torch.randint(FIRST_ENTITY, FIRST_ENTITY + entities, (count,)))
    return Questions(split, split, split, Vocabulary(map(str, range(words - 2))), entities, [], {})


@dataclass(frozen=True)
class Text:
    """What training skip-thoughts takes of its data: only books."""

    books: Books


def books(sentences: int = 20_000, words: int = 20_000, length: int = 14) -> Text:
    """A random book, its sentences all of the novels' mean length."""
    ids = torch.randint(2, words, (sentences * length,), dtype=torch.int32)
    ends, book = length * torch.arange(sentences + 1), torch.zeros(sentences, dtype=torch.int64)
    return Text(Books(list(map(str, range(words - 2))), ids, ends, book, torch.zeros(1, dtype=torch.int64), [""], {}))


DATA: dict[str, Callable[[], Any]] = {
    "digits": lambda: pictures(64),
    "mnist": lambda: pictures(784),
    "draw": binarized,
    "handwriting": Handwriting,
    "order-embeddings": captioned,
    "reader": questions,
    "skip-thoughts": books,
    "convnets": lambda: pictures(3, 32, 32),
}


def configured(experiment: Experiment, options: argparse.Namespace) -> Iterator[tuple[str, Callable[[str], Any]]]:
    """Yields for each combination of the values that are set its name, and from a norm to the configuration."""
    if options.preset not in experiment.presets:
        raise SystemExit(f"{experiment.name} has no preset {options.preset}; it has {', '.join(experiment.presets)}")
    preset = experiment.presets[options.preset]
    first = {name: values[0] for name, values in preset.sweep.items()}
    told = {name.replace("-", "_"): values for name, *values in options.set}
    if unknown := sorted(set(told) - set(vars(preset.config))):
        raise SystemExit(f"{experiment.name} has no option {', '.join(unknown)}; it has {', '.join(first)} and others")
    norms = ("torch", *typing.get_args(typing.get_type_hints(type(preset.config))["norm"]))
    if unknown := sorted({*(options.norms or ())} - {*norms}):
        raise SystemExit(f"{experiment.name} has no norm {', '.join(unknown)}; it has {', '.join(norms)}")
    try:
        typed = {name: [type(getattr(preset.config, name))(v) for v in values] for name, values in told.items()}
    except ValueError as error:
        raise SystemExit(f"--set: {error}") from None
    if bare := [name for name, values in typed.items() if not values]:
        raise SystemExit(f"--set {bare[0]} needs a value")
    for combination in itertools.product(*typed.values()):
        changes = dict(zip(typed, combination, strict=True))
        title = ", ".join([experiment.name, *(f"{name} {value}" for name, value in changes.items())])
        yield (
            title,
            lambda norm, changes=changes: dataclasses.replace(preset.config, **{**first, **changes, "norm": norm}),
        )


def task_of(experiment: Experiment, config: Any, data: Any) -> Task:
    return experiment.task(config, data, distributed.accelerator("cpu", "float32"))


# The time of an update


def random_task(experiment: Experiment, config_of: Callable[[str], Any], norm: str, data: Any) -> Task:
    """Makes a new network of a norm, on random data."""
    config = config_of("layer" if norm == "torch" else norm)
    if hasattr(config, "train_cases"):
        config = dataclasses.replace(config, train_cases=0)
    task = task_of(experiment, config, data)
    for module in task.model.modules():
        if norm == "torch" and isinstance(module, ln.LayerNorm):
            module.__class__ = torch.nn.LayerNorm  # which keeps the parameters that the optimiser has
    return task


def update(task: Task) -> Run:
    """Returns one training update as a function, each time on the next batch."""
    numbers = itertools.count()

    def run() -> None:
        task.mean_loss(task.model, next(numbers)).backward()
        if task.before_step is not None:
            task.before_step(task.model)
        task.optimizer.step()
        task.optimizer.zero_grad()

    return run


def lowest(task: Task, lines: Sequences) -> Run:
    """Returns forward and backward of handwriting's lowest layer and its window as a function."""
    points = lines.points[:, :-1].transpose(0, 1).contiguous()
    codes = one_hot(lines.text, lines.characters, points.dtype)

    def run() -> None:
        h, reading = task.model.lowest(points, codes)  # type: ignore[operator]
        (h.sum() + reading.sum()).backward()

    return run


def minima(makers: dict[str, Callable[[], Run]], rounds: int, least: float = 0.5) -> dict[str, float]:
    """Returns the seconds of an update of each norm.

    Each turn begins with a new network, because where its memory lies makes up to a fifth. All turns make the same
    updates, because batches differ in length: as many as take ``least`` seconds.
    """
    best = dict.fromkeys(makers, math.inf)
    count = 1 + int(least / max(timing.seconds(next(iter(makers.values()))(), 2), 1e-6))
    for _ in range(rounds):
        for name, make in makers.items():
            run = make()
            timing.seconds(run, 2 + count // 4)  # warm-up
            best[name] = min(best[name], timing.seconds(run, count))
    return best


def profiled(run: Run, rows: int = 16, updates: int = 5) -> None:
    """Prints the operations of some updates, by their own time."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as record:
        timing.seconds(run, updates)
    events = sorted(record.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    print(f"{'operation':<40}{'share':>8}{'ms/update':>11}{'calls/update':>14}")
    for event in events[:rows]:
        own = event.self_cpu_time_total
        print(f"{event.key[:39]:<40}{own / total:>8.1%}{own / 1e3 / updates:>11.2f}{event.count / updates:>14.0f}")


def times(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Prints a table for each experiment and each combination of the values that are set."""
    rows, norms = [], options.norms or ["none", "layer"]
    for experiment in options.experiments:
        data = DATA[experiment.name]()
        for title, config_of in configured(experiment, options):

            def make(norm: str, experiment: Any = experiment, data: Any = data, config_of: Any = config_of) -> Run:
                task = random_task(experiment, config_of, norm, data)
                if not options.lowest:
                    return update(task)
                config = config_of("none")
                return lowest(task, data.sequences(False, config.points, config.batch_size))

            best = minima({norm: lambda norm=norm: make(norm) for norm in norms}, options.rounds)
            what = "lowest layer" if options.lowest else "update"
            print(f"\n{title}, preset {options.preset}, {torch.get_num_threads()} thread(s)")
            print(f"{'norm':<20}{f'{what}, ms':>18}{'ratio':>8}")
            for norm, seconds in best.items():
                print(f"{norm:<20}{1e3 * seconds:>18.2f}{seconds / best[norms[0]]:>8.2f}", flush=True)
                rows.append({"what": title, "threads": torch.get_num_threads(), "norm": norm, what: seconds})
            for norm in norms if options.profile else ():
                print(f"\n{title}, {norm}")
                profiled(make(norm))
    return rows


# The first gradient


def gradient(experiment: Experiment, config: Any) -> float:
    """Returns the norm of the whole gradient at update 0, on the real data."""
    task = task_of(experiment, config, experiment.load(config, None))
    torch.manual_seed(derive_seed(config.seed, NOISE, 0))
    task.model.train()
    task.mean_loss(task.model, 0).backward()
    return float(torch.nn.utils.get_total_norm([p.grad for p in task.model.parameters() if p.grad is not None]))


def first_gradients(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Prints a row for each experiment: the gradient's norm at update 0 of all its norms."""
    print("| experiment | gradient's norm at update 0 | largest over smallest |\n| :-- | :-- | --: |")
    rows = []
    for experiment in options.experiments:
        for title, config_of in configured(experiment, options):
            norms = options.norms or experiment.presets[options.preset].sweep["norm"]
            try:
                found = {norm: gradient(experiment, config_of(norm)) for norm in norms}
            except RunError as error:
                print(f"| {title} | no data: {str(error).splitlines()[0]} | - |", flush=True)
                continue
            told = ", ".join(f"{norm} {value:.3g}" for norm, value in found.items())
            print(f"| {title} | {told} | {max(found.values()) / min(found.values()):.1f} |", flush=True)
            rows.append({"what": title, **found})
    return rows


def main() -> None:
    parser = timing.parser(__doc__, rounds=5)
    parser.add_argument("experiments", nargs="*", help=f"(default: all) {', '.join(catalogue.EXPERIMENTS)}")
    parser.add_argument("--preset", default="laptop", help="whose sizes (default: laptop)")
    parser.add_argument("--norms", nargs="+", help="(default: none layer; of --first-gradients the preset's)")
    parser.add_argument(
        "--set",
        nargs="+",
        action="append",
        default=[],
        metavar=("OPTION", "VALUE"),
        help="an option of `layernorm run EXPERIMENT` and its values, one table each",
    )
    parser.add_argument("--lowest", action="store_true", help="of handwriting only the lowest layer with its window")
    parser.add_argument("--profile", action="store_true", help="also print where the time goes")
    parser.add_argument("--first-gradients", action="store_true", help="print the norms of the first gradients instead")
    options = parser.parse_args()
    if options.lowest and options.experiments != ["handwriting"]:
        parser.error("--lowest is only for handwriting")
    try:
        options.experiments = list(map(catalogue.find_experiment, options.experiments or catalogue.EXPERIMENTS))
    except UsageError as error:
        parser.error(str(error))
    rows = []
    for _ in timing.tables(options):
        rows += first_gradients(options) if options.first_gradients else times(options)
    timing.save(options.json, rows)


if __name__ == "__main__":
    main()
