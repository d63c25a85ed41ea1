"""A trained synthesis network writes a text: `layernorm sample handwriting`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ...config import CheckedOptions, option
from ...data import iam
from ...errors import RunError
from ...protocol import Drawn, Sampler, go_on
from ...report.page import Picture
from ...runs import restore
from ...runs.folder import Run
from ...train.batches import NOISE, derive_seed
from . import mixture, pen
from .config import Config
from .network import Synthesis, build_synthesis, one_hot

LONGEST = 200
"""The most characters of a text, about three training lines. The time grows with the length."""


@dataclass(frozen=True)
class TextOptions(CheckedOptions):
    """What to write, and how."""

    text: str = option("", "text to write; for the network all digits, and signs other than . , ', are one character")
    bias: float = option(0.0, "0 writes as people do, 1 and more writes neater, nearer to the most probable", least=0)
    prime: str = option("", "write in the hand of this line of the data set, such as a01-020x-01")
    seed: int = option(0, "seed of the random draws", least=0)
    points: int = option(0, "stop after this many points (0: 100, and 40 for each character)", least=0, most=10_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_text(self.text)


def check_text(text: str) -> None:
    """Refuses a text that is empty, too long, or not printable ASCII, of which the transcripts consist. Characters
    outside the network's alphabet, such as digits, were one "non-letter" in training, and are so here."""
    if not text.strip():
        raise ValueError("--text must not be empty")
    if len(text) > LONGEST:
        raise ValueError(f"--text must have at most {LONGEST} characters, got {len(text)}")
    for character in text:
        if not " " <= character <= "~":
            raise ValueError(f"--text has the unknown character {character!r}; printable ASCII is known")


def draw_text(run: Run, options: TextOptions, folder: Path | None) -> Drawn:
    """Draws a text as an SVG in which the pen moves, as an SVG that stands still, and as a PNG. The data set is looked
    for, in the folder, only for `prime`."""
    model, mean, deviation = trained_synthesis(run)
    prime = prime_text = None
    if options.prime:
        data = iam.load_iam(folder, cleaned=run.config["lines"] == "cleaned")
        line = iam.find_line(data, options.prime)
        # scaled by the deviations of the network's training, even if this data set has others
        prime, prime_text = replace(data, mean=mean, deviation=deviation).normalised(line), line.text
    points, finished = write_text(model, options, prime, prime_text or "")
    notes = []
    if not len(points):
        notes.append("nothing is written: the window was at the text's end before the first point")
    if not finished:
        notes.append(f"stopped at {len(points)} points: the window has not read to the text's end")
    strokes = pen.strokes(points, mean, deviation)
    start = re.sub(r"[^a-z0-9]+", "-", options.text.lower()).strip("-")[:40] or "text"
    primed = f"-{options.prime}" if options.prime else ""
    stem = f"{start}{primed}-bias{options.bias:g}-seed{options.seed}"
    caption = f'"{options.text}", bias {options.bias:g}, seed {options.seed}, {len(points)} points'
    return Drawn(
        [
            Picture(f"{stem}-moving", "svg", f"{caption}, as the pen moves.", pen.moving_svg(strokes, options.text)),
            Picture(stem, "svg", f"{caption}.", pen.svg(strokes, options.text)),
            Picture(stem, "png", f"{caption}.", pen.png(strokes, pen.scale(strokes))),
        ],
        notes,
    )


def trained_synthesis(run: Run) -> tuple[Synthesis, np.ndarray, np.ndarray]:
    """Restores a run's network with its newest weights, and the mean and deviation of the offsets that it was trained
    on."""
    model, _ = restore.restore_model(network(run), run)
    facts = run.environment["data"]
    if "mean" not in facts or "deviation" not in facts:
        raise RunError(f"{run.path} lacks the offsets' mean and deviation (environment.json)")
    return model, np.array(facts["mean"]), np.array(facts["deviation"])


def network(run: Run) -> Synthesis:
    """Builds a run's network as it was before the first update."""
    return build_synthesis(restore.configuration(Config, run))


@torch.no_grad()
def write_text(
    model: Synthesis, options: TextOptions, prime: np.ndarray | None = None, prime_text: str = ""
) -> tuple[np.ndarray, bool]:
    """Lets the network write until its window has read the text and the pen is lifted.

    Graves stops where the window has read the text. That cuts the last letter: the window is ahead of the pen. The
    network, in evaluation mode and on the CPU, continues the normalised points `prime` `(N, 3)`, of the text
    `prime_text`, as if it had written them. Returns the points after these, `(n, 3)`, and whether the window reached
    the text's end, where phi(t, U + 1) is the largest.
    """
    whole = f"{prime_text} {options.text}" if prime is not None else options.text
    text = torch.from_numpy(iam.encode(whole))[None]
    codes = one_hot(text, torch.tensor([len(whole)]), model.output.bias.dtype)
    generator = torch.Generator().manual_seed(derive_seed(options.seed, NOISE))
    state = model.start(1)
    point = torch.zeros(1, 3)
    if prime is not None:
        for row in torch.from_numpy(prime)[:-1, None]:
            _, _, state = model.step(row, codes, state)
        point = torch.from_numpy(prime)[-1:]
    limit = options.points or 100 + 40 * len(options.text)
    written: list[np.ndarray] = []
    read = False
    for _ in range(limit):
        go_on()
        y, phi, state = model.step(point, codes, state)
        # if all components are past U + 1, phi(t, U + 1) is the largest, although in float32 every phi may be 0
        read = read or int(phi.argmax()) == len(whole) or float(state.kappa.min()) > len(whole) + 1
        if read and (not written or written[-1][2]):
            break
        if not y.isfinite().all():
            raise RunError(f"the network's output is not finite after {len(written)} points: its training has diverged")
        point = mixture.draw_point(y[0], options.bias, generator)[None]
        written.append(point[0].numpy())
    return np.array(written, np.float64).reshape(len(written), 3), read


SAMPLER = Sampler(
    options=TextOptions,
    draw=draw_text,
    examples=(
        "layernorm sample handwriting RUN --text 'Layer normalization'",
        "layernorm sample handwriting RUN --text 'more of the same' --bias 1",
        "layernorm sample handwriting RUN --text 'in her hand' --prime a01-020x-01",
    ),
)
