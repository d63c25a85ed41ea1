"""Experiment 6.3: skip-thoughts, Table 3 and Figure 3. Layer norm in encoder and decoders, or none."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...config import check_most
from ...data import books, sentences, sick, source
from ...data.books import Books
from ...data.sentences import Classified
from ...data.sick import Sick
from ...data.text import Sentences
from ...errors import UsageError
from ...protocol import Experiment, Preset
from ...report.judge import PILOT_SEEDS
from ...train.batches import OneLength
from ...train.task import Accelerator, Loss, Task, Tested, clip_to
from . import claims, report
from .config import Config
from .encoder import Encode, Encoder
from .evaluation import classification, relatedness
from .network import SkipThoughts, build_skip_thoughts

CHUNK = 128
"""The number of triples that are evaluated together."""

LEAST = 10
"""The fewest sentences of a class for the classification tasks: their folds must have both classes to learn from."""


@dataclass(frozen=True)
class Data:
    """The books, and the data that the encoder is evaluated on."""

    books: Books
    sick: Sick
    classified: Classified

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """The facts of all three data sets, with one fingerprint made of theirs."""
        parts = {part.facts["name"]: part.facts for part in (self.books, self.sick, self.classified)}
        fingerprints = {name: facts["fingerprint"] for name, facts in parts.items()}
        return {
            **self.books.facts,
            "fingerprint": source.fingerprint(fingerprints),
            "original": False,
            "triples": {split: len(self.books.triples(split)) for split in books.SPLITS},
            "fingerprints": fingerprints,
            "folders": {name: facts["folder"] for name, facts in parts.items()},
        }


@functools.lru_cache(maxsize=1)  # one command asks for every run
def load_text(data: Path | None) -> Data:
    """Loads the three data sets from the folders `books`, `sick` and `sentences` in a folder. None: they are looked
    for."""
    first, second, third = (None if data is None else data / name for name in ("books", "sick", "sentences"))
    return Data(books.BOOKS.load(first), sick.SICK.load(second), sentences.SENTENCES.load(third))


def check_skip_thoughts(config: Config, data: Data) -> None:
    """Checks that there are enough triples for a batch, enough words for the vocabulary, and what an evaluation asks
    for."""
    triples = data.facts["triples"]
    check_most(config, "batch_size", triples["train"], "training triples")
    check_most(config, "vocabulary", len(data.books.words) + 2, "words of the books")
    for split in ("valid", "test"):
        if not triples[split]:
            short = f"three sentences in a row of at most {books.LONGEST} words"
            raise UsageError(f"the books of the {split} split have no {short}")
    if config.tasks_every:
        check_classes(data.classified)


def check_classes(classified: Classified) -> None:
    """Checks that each classification task has enough sentences of both classes."""
    for name, labelled in classified.sets.items():
        few = int(np.bincount(labelled.classes, minlength=2).min())
        if few < LEAST:
            raise UsageError(f"{name} has {few} sentences of a class, the classification tasks need {LEAST}")


def skip_thoughts_task(config: Config, data: Data, accelerator: Accelerator) -> Task:
    """Makes one run: the network, its optimiser and the decoders' loss."""
    device = accelerator.device
    rows = data.books.sentences(config.vocabulary)
    middle = data.books.triples("train")
    order = OneLength.of(rows.lengths[middle], config, accelerator)
    model = build_skip_thoughts(config, config.vocabulary)
    valid, held = (evenly_spread(data.books.triples(split), config.held_out_triples) for split in ("valid", "test"))
    last: dict[int, Tested] = {}  # the last evaluation, by its update; the test at the end uses it again

    def loss(model: nn.Module, update: int) -> Loss:
        return model(*triple(rows, middle[order.share(update)], device)), None

    def evaluate(model: nn.Module) -> dict[str, float]:
        assert isinstance(model, SkipThoughts)
        update = int(task.optimizer.state[model.output.bias]["step"])
        metrics = {"valid_nll": held_out(model, rows, valid)}
        if with_tasks(config, update):
            encoder = Encoder(model, data.books.vocabulary(config.vocabulary))
            last.clear()
            last[update] = scores(encoder.last_states, data, config.fast_eval)
            metrics |= last[update][0]
        return metrics

    def test(model: nn.Module) -> Tested:
        assert isinstance(model, SkipThoughts)
        nll = {"test_nll": held_out(model, rows, held)}
        if not config.tasks_every:
            return nll, {}
        rest = encoders(model, config, data)
        encode = rest.pop("trained")
        trained, tensors = last.get(config.updates) or scores(encode, data, config.fast_eval)
        by_row = {"trained": trained} | {name: scores(item, data, config.fast_eval)[0] for name, item in rest.items()}
        metrics = {f"{row}_{name}": value for row, part in by_row.items() for name, value in part.items()}
        return {**nll, **metrics}, tensors

    shown = {"sick_pearson": "SICK r {:.3f}", "valid_nll": "valid. nats a word {:.2f}"}
    task = Task.of(config, order, model, loss, evaluate, shown=shown, before_step=clip_to(config.clip), test=test)
    return task


def with_tasks(config: Config, update: int) -> bool:
    """Tells whether the evaluation after an update includes SICK and the classification tasks."""
    every = config.tasks_every * config.evaluate_every
    return every > 0 and (update % every == 0 or update == config.updates)


def triple(rows: Sentences, middle: Tensor, device: torch.device) -> tuple[Tensor, tuple, tuple]:
    """Makes the inputs of the network: sentences of one length, and for each of them the next and the previous one."""
    sentence, following, before = (tuple(item.to(device) for item in rows.batch(middle + step)) for step in (0, 1, -1))
    return sentence[0], following, before


def evenly_spread(items: Tensor, count: int) -> Tensor:
    """Takes `count` of some items, evenly spread. For 0, or more than there are: all items."""
    return items[torch.linspace(0, len(items) - 1, count).long()] if 0 < count < len(items) else items


def held_out(model: SkipThoughts, rows: Sentences, middle: Tensor) -> float:
    """Computes the decoders' mean negative log-likelihood of a word, in nats. A sentence's end counts as a word."""
    device = model.words.weight.device
    total, words = 0.0, int((rows.lengths[middle - 1] + rows.lengths[middle + 1]).sum())
    lengths = rows.lengths[middle]
    for length in lengths.unique():
        for part in middle[lengths == length].split(CHUNK):
            total += float(model(*triple(rows, part, device)))
    return total / words


def scores(encode: Encode, data: Data, fast: bool) -> Tested:
    """Computes the measures of SICK and of the classification tasks, and tensors with one value for every test case."""
    metrics, errors = relatedness(encode, data.sick)
    accuracies, right = classification(encode, data.classified.sets, fast)
    return metrics | accuracies, {"sick": errors, **right}


ROWS = ("trained", "untrained", "bag", "random_bag")
"""The encoders that are evaluated: the trained one, the initial one, and the means of their embeddings."""


def encoders(model: SkipThoughts, config: Config, data: Data) -> dict[str, Encode]:
    """Makes the four of `ROWS`."""
    vocabulary = data.books.vocabulary(config.vocabulary)
    trained = Encoder(model, vocabulary)
    start = Encoder(build_skip_thoughts(config, config.vocabulary).to(model.words.weight.device).eval(), vocabulary)
    return dict(zip(ROWS, (trained.last_states, start.last_states, trained.bags, start.bags), strict=True))


_NORMS = ("none", "layer")

EXPERIMENT = Experiment(
    name="skip-thoughts",
    examples=(
        "layernorm run skip-thoughts --data ~/text",
        "layernorm run skip-thoughts --preset paper --data ~/text --fast-eval",
        "layernorm encode RUN sentences.txt --out vectors.npy",
    ),
    presets={
        "laptop": Preset(
            "800 updates with 400 units and 5,000 words, without the tasks; two seeds and four learning rates",
            claims.LAPTOP,
            {"norm": _NORMS, "learning_rate": claims.TRIAL.rates, "seed": PILOT_SEEDS},
        ),
        "smoke": Preset(
            "20 updates with 8 units and 30 words",
            Config(
                updates=20, batch_size=8, vocabulary=30, words=6, hidden=8, evaluate_every=10, fast_eval=True,
                held_out_triples=0,
            ),
            {"norm": _NORMS, "learning_rate": (2e-3,), "seed": (0,)},
        ),
        "paper": Preset(
            "the paper's protocol: 2400 units, 1,000,000 updates; three seeds",
            Config(),
            {"norm": _NORMS, "learning_rate": (2e-4,), "seed": (0, 1, 2)},
        ),
    },
    load=lambda config, data: load_text(data),
    check=check_skip_thoughts,
    task=skip_thoughts_task,
    report=report.OUTLINE.report,
    claims=claims.CLAIMS,
)  # fmt: skip
