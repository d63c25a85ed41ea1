"""Drawings of a trained DRAW network: a sheet of digits, and the canvas over the glimpses with the write window."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from PIL.Image import Image as Picture

from ...config import CheckedOptions, option
from ...protocol import Drawn, Sampler
from ...report import page
from ...runs import restore
from ...runs.folder import Run
from ...train.batches import derive_seed
from .config import Config
from .network import Drawing, build_draw

SCALE = 3
"""The number of screen pixels along a side of an image's pixel."""

GAP = 2
"""The number of screen pixels between two images, and around all images."""

_PAPER, _WINDOW = 96, (228, 26, 28)  # the gaps' grey; the window's red


@dataclass(frozen=True)
class DigitOptions(CheckedOptions):
    """Options of `layernorm sample draw`."""

    count: int = option(100, "digits to draw", least=1, most=1000)
    seed: int = option(0, "seed of the noise that they are drawn from", least=0)


def digit_pictures(run: Run, options: DigitOptions, folder: Path | None) -> Drawn:
    """Draws a GIF of how the first 25 digits come about, and a PNG of all digits."""
    drawing = draw_digits(run, options.count, options.seed)
    first = Drawing(drawing.canvas[:, :25], drawing.window[:, :25])
    glimpses = f"The canvas over {len(drawing.canvas)} glimpses, then the finished digits."
    return Drawn(
        [
            page.Picture("canvas", "gif", f"{glimpses} Red: the square that the write grid spans.", animation(first)),
            page.Picture(
                "digits", "png", f"{options.count} digits, seed {options.seed}; grey is a probability.", sheet(drawing)
            ),
        ]
    )


def draw_digits(run: Run, count: int, seed: int) -> Drawing:
    """Draws digits by a run's newest checkpoint."""
    config = restore.configuration(Config, run)
    model, _ = restore.restore_model(build_draw(config), run)
    generator = torch.Generator().manual_seed(derive_seed(seed))
    return model.draw(torch.randn(config.glimpses, count, config.latent, generator=generator))


def sheet(drawing: Drawing) -> bytes:
    """Draws the finished digits, each pixel as bright as it is probable, as a PNG."""
    return _png(_tiled(_grey(drawing.canvas[-1]), 10))


def strip(drawing: Drawing) -> bytes:
    """Draws the canvas at eight of the glimpses with the write window, a row for each digit, as a PNG."""
    steps = np.unique(np.linspace(0, len(drawing.canvas) - 1, 8).round().astype(int))
    frames = [_windowed(drawing, int(step)) for step in steps]
    count = drawing.canvas.shape[1]
    return _png(_tiled([frames[column][row] for row in range(count) for column in range(len(frames))], len(frames)))


def animation(drawing: Drawing, columns: int = 5) -> bytes:
    """Draws the canvas over the glimpses with the write window, as a GIF of four seconds. It begins with the finished
    images for two seconds, which is what a program shows that does not move pictures."""
    pages = [_tiled(_grey(drawing.canvas[-1]), columns)]
    pages += [_tiled(_windowed(drawing, step), columns) for step in range(len(drawing.canvas))]
    palette = Image.new("P", (1, 1))
    palette.putpalette([level for grey in range(0, 256, 8) for level in (grey, grey, grey)] + [*_WINDOW])
    frames = [page.quantize(palette=palette, dither=Image.Dither.NONE) for page in pages]
    duration = [2000] + [max(20, round(4000 / len(drawing.canvas)))] * len(drawing.canvas)
    file = io.BytesIO()
    frames[0].save(
        file, "GIF", save_all=True, append_images=frames[1:], duration=duration, loop=0, optimize=False, disposal=1
    )
    return file.getvalue()


def _grey(canvas: torch.Tensor) -> list[Picture]:
    """Probabilities `[M, A, A]` as images on the screen's scale."""
    levels = canvas.mul(255).round().byte().cpu().numpy()
    size = (SCALE * levels.shape[2], SCALE * levels.shape[1])
    return [Image.fromarray(level).resize(size, Image.Resampling.NEAREST).convert("RGB") for level in levels]


def _windowed(drawing: Drawing, step: int) -> list[Picture]:
    """Draws the canvases at a glimpse with the square that its grid spans. The wider the filters, the thicker the
    line."""
    images = _grey(drawing.canvas[step])
    for image, place in zip(images, drawing.window[step].tolist(), strict=True):
        x, y, side, deviation = place
        # pixel 1 reaches from 0 to SCALE on the screen; nothing beyond these bounds is visible
        corners = [SCALE * (centre - 0.5 + sign * side / 2) for sign in (-1, 1) for centre in (x, y)]
        corners = [min(max(corner, -1e4), 1e4) for corner in corners]
        width = min(max(1, round(deviation)), 3 * SCALE)
        ImageDraw.Draw(image).rectangle(corners, outline=_WINDOW, width=width)
    return images


def _tiled(images: Sequence[Picture], columns: int) -> Picture:
    """Images of one size in rows."""
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    width, height = images[0].width + GAP, images[0].height + GAP
    page = Image.new("RGB", (columns * width + GAP, rows * height + GAP), (_PAPER,) * 3)
    for position, image in enumerate(images):
        page.paste(image, (GAP + position % columns * width, GAP + position // columns * height))
    return page


def _png(image: Picture) -> bytes:
    file = io.BytesIO()
    grey = image.convert("L")
    same = grey.convert("RGB").tobytes() == image.tobytes()
    (grey if same else image).save(file, "PNG", optimize=True)
    return file.getvalue()


SAMPLER = Sampler(
    options=DigitOptions,
    draw=digit_pictures,
    examples=(
        "layernorm sample draw runs/draw/draw-layer-lr0.0005-s0",
        "layernorm sample draw runs/draw/draw-layer-lr0.0005-s0 --count 25 --out digits",
    ),
)
