"""`layernorm answer RUN PATH`: a run's reader answers the questions of `.question` files."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ...config import CheckedOptions, option
from ...data import questions
from ...data.cnn import PLACEHOLDER, Question, is_entity
from ...data.questions import FIRST_ENTITY, Questions, Split
from ...data.text import Vocabulary
from ...errors import RunError
from ...protocol import Tool
from ...runs.files import write_atomic
from ...runs.folder import Run
from ...runs.restore import configuration, restore_model, training_data
from . import page
from .config import Config
from .experiment import answer, answered, longest
from .network import Reader, build_reader


@dataclass(frozen=True)
class AnswerOptions(CheckedOptions):
    """The options of `layernorm answer`."""

    show: int = option(1, "number of questions to print with the network's guesses, from the first on", least=0)
    out: Path | None = option(None, "PNG to write: the first question, its passage shaded by the attention")
    data: Path | None = option(None, "folder with the questions of the run's training (else where they were then)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out is not None and not self.show:
            raise ValueError("--show must be at least 1 with --out, got 0")


def trained_reader(run: Run, folder: Path | None) -> tuple[Reader, Config, Questions, int]:
    """Restores a run's network, its configuration, the questions of its training, and the update of its weights."""
    config = configuration(Config, run)
    data = training_data(run, folder, questions.CORPORA[config.corpus].load)
    model, update = restore_model(
        build_reader(config, config.vocabulary or len(data.vocabulary), longest(data.train)), run
    )
    return model, config, data, update


def read_shortened(path: Path) -> list[Question]:
    """Reads the questions of a file, or of a folder of files, with their passages cut as in training."""
    items = questions.read_question_folder(path) if path.is_dir() else [questions.read_question_file(path)]
    return [questions.shortened(item) for item in items]


def renamed(item: Question) -> Question:
    """Numbers the entities of a question from 0 in the order of the text. Training numbers them at random."""
    words = [*item.passage, *item.question, item.answer]
    entities = dict.fromkeys(filter(is_entity, words))
    ids = {entity: f"@entity{number}" for number, entity in enumerate(entities)}

    def named(words: Sequence[str]) -> list[str]:
        return [ids.get(word, word) for word in words]

    return replace(
        item,
        sentences=[named(words) for words in item.sentences],
        question=named(item.question),
        answer=ids[item.answer],
        names={ids[entity]: item.names[entity] for entity in entities},
    )


def answer_lines(run: Run, paths: Sequence[str], options: AnswerOptions) -> list[str]:
    """Lists how many answers of the network and of rules are right, and the first questions' guesses."""
    given = [renamed(item) for path in paths for item in read_shortened(Path(path))]
    model, config, data, update = trained_reader(run, options.data)
    items = [item for item in given if len(item.names) <= data.entities]
    if not items:
        raise RunError(f"the network distinguishes at most {data.entities} entities, and every question has more")
    if config.evaluates_by_batch and len(items) < 2:
        raise RunError(
            "the run's batch norm takes its statistics from the questions: give two that it can read, got one"
        )
    vocabulary = Vocabulary(data.vocabulary.words[: model.words.num_embeddings - FIRST_ENTITY])
    split = Split.of(items, vocabulary)
    with torch.no_grad():
        right, nll = answer(model, split, config)
        pages = _pages(model, config, items[: options.show], split, vocabulary)
    lines = [f"{config.norm}, update {update}: {len(items)} questions"]
    if len(items) < len(given):
        lines.append(f"left out: {len(given) - len(items)}, which have more than {data.entities} entities")
    words = [word for item in items for word in (*item.passage, *item.question)]
    unknown = sum(word not in vocabulary for word in words) / len(words)
    shares = {"right": float(right.double().mean()), **questions.guessed(items)}
    shares |= {"answer lost by the cut": questions.lost(items) / len(items), "words not in the vocabulary": unknown}
    lines += [f"  {name:<36}{share:7.1%}" for name, share in shares.items()]
    lines.append(f"  {'negative log-likelihood, nats':<36}{float(nll.mean()):7.3f}")
    for item in pages:
        lines += ["", *_lines_of_page(item)]
    if options.out is not None:
        write_atomic(options.out, page.draw_page(pages[0]))
        lines += ["", f"wrote {options.out}"]
    return lines


def _pages(
    model: Reader, config: Config, items: Sequence[Question], split: Split, vocabulary: Vocabulary
) -> list[dict[str, Any]]:
    """Makes the pages of the first questions of a split."""
    pages = {}
    for part in answered(model, split, config):
        for number in (row for row in part.rows.tolist() if row < len(items)):
            item = items[number]
            texts = {"passage": item.passage, "question": item.question, "names": item.names}
            pages[number] = page.make_page(texts, item.answer, vocabulary, part.of(number))
    return [pages[number] for number in sorted(pages)]


def _lines_of_page(item: dict[str, Any]) -> list[str]:
    """Writes a page as lines of at most 80 columns."""
    question = " ".join("____" if word == PLACEHOLDER else word for word in item["question"])
    guesses = ", ".join(f"{word} ({p:.0%})" for word, p in item["guesses"])
    parts = {"Passage": " ".join(item["passage"]), "Question": question, "Answer": item["answer"], "Network": guesses}
    lines: list[str] = []
    for name, text in parts.items():
        lines += textwrap.wrap(text, 80, initial_indent=f"{name + ':':<10}", subsequent_indent=" " * 10)
    return lines


TOOL = Tool(
    experiment="reader",
    texts="PATH",
    options=AnswerOptions,
    ask=answer_lines,
    examples=("layernorm answer RUN ~/cnn/questions/test", "layernorm answer RUN 0001.question --out question.png"),
)
