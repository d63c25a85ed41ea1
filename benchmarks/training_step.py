"""What each norm adds to a training update of experiments 6.1, 6.2, 6.3 and 6.7, at the size of a preset.

    python benchmarks/training_step.py order-embeddings [--preset laptop] [--norms none layer] [--threads 1]
    python benchmarks/training_step.py convnets --norms none layer batch weight
    python benchmarks/training_step.py reader --norms none layer batch batch-everywhere
    python benchmarks/training_step.py skip-thoughts

The networks take turns in one process (none, layer, none, ...) on random data of the real data's form. Printed is the
minimum over the rounds of the time of one update (forward, backward, clipping, optimiser), and its ratio to the
network without normalisation.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from layernorm.experiments import catalogue
from layernorm.experiments.data.books import Books
from layernorm.experiments.data.mnist import Cases, Images
from layernorm.experiments.data.order_embeddings import CAPTIONS, Captioned, ImagesAndCaptions
from layernorm.experiments.data.questions import FIRST_ENTITY, Questions, Split
from layernorm.experiments.data.text import Sentences, Vocabulary
from layernorm.experiments.protocol import Task
from layernorm.experiments.train import distributed
from timing import environment, minima, save

LENGTHS = torch.tensor([7, 9, 10, 11, 12, 13, 14, 16, 20])
"""Words of a caption with its end, as they are spread in Flickr8k."""


def captioned(images: int = 1024, features: int = 1280, words: int = 7373) -> ImagesAndCaptions:
    """Random images with random captions."""
    lengths = LENGTHS[torch.randint(len(LENGTHS), (CAPTIONS * images,))].tolist()
    rows = [torch.randint(2, words, (length,)).tolist() for length in lengths]
    part = Captioned(torch.rand(images, features), [""] * len(rows), Sentences.of(rows))
    return ImagesAndCaptions(part, part, part, Vocabulary(map(str, range(words - 2))), {})


def pictures(count: int = 1000) -> Images:
    """Random images of CIFAR-10's form."""
    images = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8)
    cases = Cases(images, torch.randint(10, (count,)))
    return Images(cases, cases, cases, 255, {})


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
    """What training skip-thoughts takes of its data: books alone."""

    books: Books


def books(sentences: int = 20_000, words: int = 20_000, length: int = 14) -> Text:
    """A random book, its sentences all of the novels' mean length."""
    ids = torch.randint(2, words, (sentences * length,), dtype=torch.int32)
    ends, book = length * torch.arange(sentences + 1), torch.zeros(sentences, dtype=torch.int64)
    return Text(Books(list(map(str, range(words - 2))), ids, ends, book, torch.zeros(1, dtype=torch.int64), [""], {}))


DATA: dict[str, Callable[[], Any]] = {
    "order-embeddings": captioned,
    "convnets": pictures,
    "reader": questions,
    "skip-thoughts": books,
}


def update(task: Task) -> Callable[[], None]:
    """One training update as a function, each time on the next batch."""
    made = [0]

    def run() -> None:
        task.loss(task.model, made[0]).backward()
        if task.before_step is not None:
            task.before_step(task.model)
        task.optimizer.step()
        task.optimizer.zero_grad()
        made[0] += 1

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=sorted(DATA))
    parser.add_argument("--preset", default="laptop", help="whose sizes (default: laptop)")
    parser.add_argument("--norms", nargs="+", default=["none", "layer"], help="none first (default: none layer)")
    parser.add_argument("--threads", type=int, default=1, help="processor threads (default: 1)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each network (default: 5)")
    parser.add_argument("--json", metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    experiment = catalogue.find(options.experiment)
    config, data = experiment.presets[options.preset].config, DATA[options.experiment]()
    config = dataclasses.replace(config, **({"train_cases": 0} if hasattr(config, "train_cases") else {}))
    accelerator = distributed.accelerator("cpu", "float32")
    runs = {
        norm: update(experiment.task(dataclasses.replace(config, norm=norm), data, accelerator))
        for norm in options.norms
    }
    best = minima(runs, options.rounds, least=0.5)  # half a second: batches differ in length
    print(f"{options.experiment}, preset {options.preset}, {options.threads} thread(s), {environment()}")
    print(f"{'norm':<16}{'update, ms':>12}{'ratio':>8}")
    for norm, seconds in best.items():
        print(f"{norm:<16}{1e3 * seconds:>12.1f}{seconds / best[options.norms[0]]:>8.2f}")
    save(options.json, [{"norm": norm, "update": seconds} for norm, seconds in best.items()])


if __name__ == "__main__":
    main()
