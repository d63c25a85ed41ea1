"""A page that shows one validation question: the passage shaded by the attention, the answer, three guesses."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from ...data.cnn import PLACEHOLDER
from ...data.questions import FIRST_ENTITY, Questions, Split
from ...data.text import Vocabulary
from ...errors import RunError
from ...report.page import Picture
from ...runs.folder import Run

LENGTHS = (40, 90)
"""The numbers of words of a passage that is good to show."""

GUESSES = 3
"""The number of the network's guesses that are shown."""

WIDTH, MARGIN, SIZE, LINE = 1200, 30, 24, 40
"""The picture's sizes in pixels: its width, the margin, the height of a letter and of a line."""

_INK, _SOFT, _SHADE, _PAPER = (26, 26, 26), (92, 92, 92), (255, 159, 64), (255, 255, 255)

_CLOSE = {",", ".", "!", "?", ";", ":", ")", "n't", "'s", "'m", "'d", "'ll", "'re", "'ve"}
"""The marks that have no space before them."""


def choose(split: Split) -> int:
    """Chooses the question to show: the first whose passage has a length of `LENGTHS`, else the first of all."""
    lengths = split.passages.lengths
    good = ((lengths >= LENGTHS[0]) & (lengths <= LENGTHS[1])).nonzero()
    return int(good[0]) if len(good) else 0


def kept(data: Questions, number: int, said: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Makes the tensor `page`, uint8, a JSON text from which a validation question can be shown without the data set.
    `said` are its logits `[V]` and its attention `[T]`, padded."""
    answer = data.vocabulary.words[int(data.valid.answers[number]) - FIRST_ENTITY]
    text = json.dumps(make_page(data.readable[number], answer, data.vocabulary, said))
    return {"page": torch.from_numpy(np.frombuffer(text.encode(), np.uint8).copy())}


def make_page(
    item: Mapping[str, Any], answer: str, vocabulary: Vocabulary, said: tuple[Tensor, Tensor]
) -> dict[str, Any]:
    """Makes a page: the words of the passage and the question, and the answer, with names instead of entities if no two
    of these have the same name; a number of attention for each word of the passage; guesses with their probabilities,
    the best first. `item` is one of `Questions.readable`, and `said` as in `kept`."""
    names = item["names"] if len(set(item["names"].values())) == len(item["names"]) else {}
    words = [names.get(word, word) for word in item["passage"]]
    best = said[0].double().softmax(0).topk(min(GUESSES, len(said[0])))
    known = vocabulary.words
    guesses = [known[id - FIRST_ENTITY] if id >= FIRST_ENTITY else "(none)" for id in best.indices.tolist()]
    return {
        "passage": words,
        "attention": said[1][: len(words)].tolist(),
        "question": [names.get(word, word) for word in item["question"]],
        "answer": names.get(answer, answer),
        "guesses": [[names.get(word, word), p] for word, p in zip(guesses, best.values.tolist(), strict=True)],
    }


def picture(run: Run, name: str, label: str) -> Picture:
    """Draws the page of a finished run, with the name of the file and that of the network for the caption."""
    tensors = run.tested()
    if "page" not in tensors:
        raise RunError(f"the run in {run.path} has not been tested yet")
    page = json.loads(tensors["page"].numpy().tobytes())
    caption = (
        f"The {label} reads the first validation question of a middle length. The darker a word, the more attention "
        "it has; names are put back in place of the entities. Below it the answer, and the network's first guesses "
        "with their probabilities."
    )
    return Picture(name, "png", caption, draw_page(page))


def draw_page(page: dict[str, Any]) -> bytes:
    """Draws a page as PNG."""
    from matplotlib import get_data_path

    font = ImageFont.truetype(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", SIZE)
    height = 0
    for _ in range(2):  # the first time only to find its height
        image = Image.new("RGB", (WIDTH, height + MARGIN), _PAPER)
        height = MARGIN
        for paragraph in _paragraphs(page):
            height = _write(ImageDraw.Draw(image), font, paragraph, height)
    output = io.BytesIO()
    image.save(output, "png", optimize=True)
    return output.getvalue()


def _paragraphs(page: dict[str, Any]) -> list[list[tuple[str, float, bool]]]:
    """Splits the page's text into words, each with its shade from 0 to 1 and whether it is grey."""
    highest = max(page["attention"])
    passage = [(word, weight / highest, False) for word, weight in zip(page["passage"], page["attention"], strict=True)]
    question = [("____" if word == PLACEHOLDER else word, 0.0, False) for word in page["question"]]
    guesses = ", ".join(f"{word} ({p:.0%})" for word, p in page["guesses"])
    lines = [("Question:", question), ("Answer:", [(page["answer"], 0.0, False)])]
    lines.append(("Network:", [(word, 0.0, False) for word in guesses.split()]))
    darkest = [(word, 0.0, True) for word in f"Darkest: {highest:.0%} of the attention.".split()]
    return [passage, darkest, *([(head, 0.0, True), *words] for head, words in lines)]


def _write(
    pen: ImageDraw.ImageDraw, font: ImageFont.FreeTypeFont, words: list[tuple[str, float, bool]], top: int
) -> int:
    """Writes a paragraph and returns where the next one begins."""
    space, x = font.getlength(" "), float(MARGIN)
    for number, (word, shade, soft) in enumerate(words):
        width = font.getlength(word)
        x += space if number and word not in _CLOSE else 0
        if x + width > WIDTH - MARGIN:
            x, top = float(MARGIN), top + LINE
        if shade > 0:
            colour = tuple(round(a + shade * (b - a)) for a, b in zip(_PAPER, _SHADE, strict=True))
            pen.rectangle((x - 2, top - 3, x + width + 2, top + SIZE + 7), fill=colour)
        pen.text((x, top), word, font=font, fill=_SOFT if soft else _INK)
        x += width
    return top + LINE + 14
