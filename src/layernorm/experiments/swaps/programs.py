"""The tasks by name, in the order in which they are shown. A new one is a file and a line."""

from __future__ import annotations

from .program import Program
from .tasks import (
    adding,
    characters,
    digits,
    forecast,
    names,
    ppo,
    r2d2,
    sentences,
    speech,
    tagger,
    translation,
    weight_drop,
    words,
)

PROGRAMS: dict[str, Program] = {
    module.PROGRAM.name: module.PROGRAM
    for module in (
        words, weight_drop, characters, names, tagger, sentences, translation, speech, digits, forecast, adding, ppo,
        r2d2,
    )
}  # fmt: skip
