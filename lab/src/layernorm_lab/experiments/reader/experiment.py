"""Experiment 6.2: the attentive reader, Figure 2. Layer norm in its LSTMs against none and two kinds of batch norm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from layernorm.nn import LSTM, BatchNorm

from ...config import check_most
from ...data.questions import CORPORA, FIRST_ENTITY, Questions, Split
from ...protocol import Experiment, Preset
from ...report.judge import PILOT_SEEDS
from ...train.batches import ORDER, Bucketed, derive_seed
from ...train.distributed import check_whole_batch
from ...train.task import Accelerator, Loss, Task, Tested
from . import claims, page, report
from .config import Config
from .network import Reader, answer_loss, build_reader, clip

KEPT_BY = "valid_accuracy"
"""The metric of the kept model."""


class Batch(NamedTuple):
    """A batch of questions: the inputs of the network, and the answers `[B]`."""

    passage: Tensor
    lengths: Tensor
    question: Tensor
    asked: Tensor
    answers: Tensor

    @classmethod
    def of(cls, split: Split, rows: Tensor, ids: Tensor | None = None) -> Batch:
        """Makes a batch of the questions `rows` of a split. `ids`, int64 `[V]`: the new id for each id, in passage,
        question and answer. None: they stay as they are."""
        passage, lengths = split.passages.batch(rows)
        question, asked = split.questions.batch(rows)
        answers = split.answers[rows]
        if ids is not None:
            passage, question, answers = ids[passage], ids[question], ids[answers]
        return cls(passage, lengths, question, asked, answers)

    def to(self, device: torch.device) -> Batch:
        """Moves the batch to a device."""
        return Batch(*(item.to(device) for item in self))


def renaming(seed: int, update: int, entities: int, vocabulary: int) -> Tensor:
    """Draws the ids of the words of a training batch, int64 `[vocabulary]`: all entities are permuted, and the other
    words stay."""
    generator = torch.Generator().manual_seed(derive_seed(seed, ORDER, update, FIRST_ENTITY))
    ids = torch.arange(vocabulary)
    ids[FIRST_ENTITY : FIRST_ENTITY + entities] = FIRST_ENTITY + torch.randperm(entities, generator=generator)
    return ids


def check_reader(config: Config, data: Questions) -> None:
    """Checks that there are enough questions and words, and that the vocabulary holds all entities."""
    check_most(config, "batch_size", len(data.train), "training questions")
    check_most(config, "evaluate_cases", len(data.valid), "validation questions")
    check_most(config, "vocabulary", len(data.vocabulary), "words")
    least = FIRST_ENTITY + data.entities + 1  # the placeholder
    if 0 < config.vocabulary < least:
        raise ValueError(f"--vocabulary must be at least {least}, to hold all entities, got {config.vocabulary}")
    if config.evaluates_by_batch:
        looked_at = min(config.evaluate_cases or len(data.valid), len(data.valid), len(data.test))
        if looked_at < 2:
            raise ValueError(
                f"--norm {config.norm} with --bn-eval batch needs two questions or more in each evaluation, got one "
                "(--evaluate-cases, or a data set with one question for validation or test)"
            )


def reader_task(config: Config, data: Questions, accelerator: Accelerator) -> Task:
    """Makes one run: the network, its optimiser, and the loss of a batch whose entities are renamed.

    Raises:
        RunError: several processes train with recurrent batch norm.
    """
    check_whole_batch(config.norm, accelerator.num_processes)
    device = accelerator.device
    vocabulary = config.vocabulary or len(data.vocabulary)
    train, valid, test = (split.limited(vocabulary) for split in (data.train, data.valid, data.test))
    looked_at = valid.first(config.evaluate_cases)
    order = Bucketed.of(train.passages.lengths, config, accelerator)
    shares = answer_shares(train.answers, data.entities, vocabulary) if config.prior else None
    model = build_reader(config, vocabulary, longest(data.train), shares)

    def loss(model: nn.Module, update: int) -> Loss:
        rows = order.share(update)
        ids = renaming(config.seed, update, data.entities, vocabulary)
        batch = Batch.of(train, rows, ids).to(device)
        logits, _ = model(*batch[:4])
        return answer_loss(logits, batch.answers).sum(), len(rows)

    def evaluate(model: nn.Module) -> dict[str, float]:
        right, nll = answer(model, looked_at, config)
        accuracy = float(right.double().mean())
        return {"valid_error": 1 - accuracy, "valid_nll": float(nll.mean()), KEPT_BY: accuracy}

    def final(model: nn.Module) -> Tested:
        right, nll = answer(model, test, config)
        number = page.choose(valid)
        shown = next(part for part in answered(model, valid, config) if number in part.rows)
        return (
            {"test_error": 1 - float(right.double().mean()), "test_nll": float(nll.mean())},
            {"right": right.to(torch.uint8), **page.kept(data, number, shown.of(number))},
        )

    shown = {"batch_loss": "loss {:.2f}", "valid_error": "valid. error {:.1%}"}
    return Task.of(
        config,
        order,
        model,
        loss,
        evaluate,
        shown=shown,
        before_step=lambda model: clip(model, config.clip),
        keep=KEPT_BY,
        test=final,
    )


def answer_shares(answers: Tensor, entities: int, vocabulary: int) -> Tensor:
    """Computes how often each word is an answer, `[vocabulary]`, with the sum 1. One is added to every count, and all
    entities get the same share."""
    counts = 1.0 + torch.bincount(answers, minlength=vocabulary)
    renamed = slice(FIRST_ENTITY, FIRST_ENTITY + entities)  # every training batch permutes them
    counts[renamed] = counts[renamed].mean()
    return counts / counts.sum()


def longest(split: Split) -> tuple[int, int]:
    """Counts the words of the longest passage and of the longest question."""
    return int(split.passages.lengths.max()), int(split.questions.lengths.max())


class Answered(NamedTuple):
    """A network's answers to some questions.

    Attributes:
        rows: int64 `[B]`, the numbers of the questions.
        answers: int64 `[B]`, the right answers.
        logits, attention: as `Reader` returns them.
    """

    rows: Tensor
    answers: Tensor
    logits: Tensor
    attention: Tensor

    def of(self, number: int) -> tuple[Tensor, Tensor]:
        """Returns the logits `[V]` and the attention `[T]` of one question."""
        place = int((self.rows == number).nonzero())
        return self.logits[place], self.attention[:, place]


def answered(model: nn.Module, split: Split, config: Config) -> Iterator[Answered]:
    """Answers a split's questions, in mini-batches of similar length and almost equal size."""
    assert isinstance(model, Reader)
    device = model.attention.device
    batches = min(-(-len(split) // config.batch_size), max(1, len(split) // 2))  # batch norm needs two questions
    with batch_statistics(model) if config.bn_eval == "batch" else contextlib.nullcontext():
        for rows in split.passages.lengths.argsort(stable=True).tensor_split(batches):
            batch = Batch.of(split, rows).to(device)
            yield Answered(rows, batch.answers, *model(*batch[:4]))


def answer(model: nn.Module, split: Split, config: Config) -> tuple[Tensor, Tensor]:
    """Tells whether each answer is right, bool `[M]`, and the right one's negative log-likelihood, float64 `[M]`."""
    right = torch.empty(len(split), dtype=torch.bool)
    nll = torch.empty(len(split), dtype=torch.float64)
    for part in answered(model, split, config):
        right[part.rows] = (part.logits.argmax(1) == part.answers).cpu()
        nll[part.rows] = nn.functional.cross_entropy(part.logits.double(), part.answers, reduction="none").cpu()
    return right, nll


@contextlib.contextmanager
def batch_statistics(model: nn.Module) -> Iterator[None]:
    """Lets batch norms in evaluation normalise by the current batch. Their population statistics do not change."""
    norms = [
        item
        for item in model.modules()
        if isinstance(item, BatchNorm) or (isinstance(item, LSTM) and item.norm == "batch")
    ]
    before = [(buffer, buffer.clone()) for item in norms for buffer in item.buffers()]
    try:
        for item in norms:
            item.train()
        yield
    finally:
        for item in norms:
            item.eval()
        for buffer, value in before:
            buffer.copy_(value)


_NORMS = ("none", "layer", "batch", "batch-everywhere")

EXPERIMENT = Experiment(
    name="reader",
    examples=(
        "layernorm data prepare books-cloze --source ~/books",
        "layernorm run reader",
        "layernorm run reader --norm none layer --gain-init 1.0 0.1 --seeds 0",
        "layernorm run reader --preset paper --data ~/cnn/questions",
    ),
    presets={
        "laptop": Preset(
            "5000 updates with 64 units on questions from books; two seeds and four learning rates",
            claims.laptop(),
            {"norm": ("none", "layer"), "gain_init": (1.0,), "learning_rate": claims.MAIN.rates, "seed": PILOT_SEEDS},
        ),
        "smoke": Preset(
            "20 updates with 8 units",
            Config(corpus="books-cloze", updates=20, batch_size=4, words=8, hidden=8, evaluate_every=10),
            {"norm": _NORMS, "gain_init": (1.0, 0.1), "learning_rate": (1e-3,), "seed": (0,)},
        ),
        "paper": Preset(
            "the paper's protocol: CNN's questions, 240 units; three seeds",
            Config(),
            {"norm": _NORMS, "gain_init": (1.0, 0.1), "learning_rate": (8e-5,), "seed": (0, 1, 2)},
        ),
    },
    load=lambda config, data: CORPORA[config.corpus].load(data),
    check=check_reader,
    task=reader_task,
    report=report.report_reader,
    claims=claims.CLAIMS,
)  # fmt: skip
