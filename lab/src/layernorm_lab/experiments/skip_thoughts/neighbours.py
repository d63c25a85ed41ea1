"""`layernorm neighbours RUN "a sentence"`: the sentences of the training books whose vectors are nearest."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...config import CheckedOptions, option
from ...data.books import LONGEST
from ...protocol import Tool
from ...runs.folder import Run
from .experiment import evenly_spread
from .trained import sentence_words, trained_encoder


@dataclass(frozen=True)
class NeighboursOptions(CheckedOptions):
    """The options of `layernorm neighbours`."""

    count: int = option(5, "nearest sentences to print for each sentence", least=1)
    among: int = option(20_000, "sentences of the training books to search, evenly spread (0: all)", least=0)
    data: Path | None = option(None, "folder that has the folder `books` (else the one of the run's training)")


def neighbour_lines(run: Run, sentences: Sequence[str], options: NeighboursOptions) -> list[str]:
    """Lists the nearest sentences by the cosine, in lines of at most 80 columns."""
    rows = sentence_words(list(sentences), "sentence")
    encoder, _, books, _ = trained_encoder(run, options.data)
    lengths = books.ends.diff()
    numbers = ((books.split[books.book] == 0) & (lengths <= LONGEST)).nonzero().squeeze(1)
    numbers = evenly_spread(numbers, options.among)
    texts = list(dict.fromkeys(books.text(number) for number in numbers.tolist()))
    near = encoder.last_states(rows, False) @ encoder.last_states([text.split() for text in texts], False).T
    nearest = near.topk(min(options.count, len(texts)))
    lines = []
    for sentence, places, cosines in zip(sentences, nearest.indices.tolist(), nearest.values.tolist(), strict=True):
        lines += textwrap.wrap(sentence, 80)
        for place, cosine in zip(places, cosines, strict=True):
            lines += textwrap.wrap(texts[place], 80, initial_indent=f"{cosine:7.3f}  ", subsequent_indent=" " * 9)
        lines.append("")
    return lines


TOOL = Tool(
    experiment="skip-thoughts",
    texts="SENTENCE",
    options=NeighboursOptions,
    ask=neighbour_lines,
    examples=('layernorm neighbours RUN "he opened the door" --count 3',),
)
