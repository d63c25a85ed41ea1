"""Drawings told from the points of a pen: convolutions, and two recurrent layers of different sizes."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....report.blocks import Metric
from ..made import noise, rounded, uniform
from ..program import Data, Networks, Parts, Program, as_data, batched, data_generator, error

BATCH, FILTERS, WIDTHS, FIRST, SECOND, HIDDEN, DROP = 32, (16, 24, 32), (5, 5, 3), 48, 64, 48, 0.1
TRAIN, HELD_OUT, TEST = 8000, 400, 1500
CORNERS, TURNS = (3, 4, 5, 24), (1, 1, 2, 1)
"""Corners of the outlines, and how often the pen goes around: a triangle, a square, a star and a circle."""
MARKS, OUTLINE, MARK = 4, 180, 30
"""What may be in them: nothing, a line, a cross, a ring. Points of an outline, and of each stroke of a mark."""
CLASSES = len(CORNERS) * MARKS


class Classifier(nn.Module):
    """Reads points and where strokes begin `[T, B, 3]`, and scores drawings after the last one."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.BatchNorm1d(3)]
        for before, after, width in zip((3, *FILTERS), FILTERS, WIDTHS, strict=False):
            layers += [nn.Conv1d(before, after, width), nn.Dropout(DROP)]
        self.filters, self.drop = nn.Sequential(*layers), nn.Dropout(DROP)
        self.first, self.second = networks(FILTERS[-1], FIRST), networks(FIRST, SECOND)
        self.scores = nn.Sequential(nn.Linear(SECOND, HIDDEN), nn.Dropout(DROP), nn.Linear(HIDDEN, CLASSES))

    def forward(self, ink: Tensor) -> Tensor:
        x = self.filters(ink.permute(1, 2, 0)).permute(2, 0, 1)
        return self.scores(self.drop(self.second(self.drop(self.first(x)[0]))[0][-1]))


def _polygon(generator: torch.Generator, corners: Tensor, turns: Tensor, points: int) -> Tensor:
    """Draws closed polygons `[M, points, 2]` around 0, from any corner on, in any direction."""
    count, most = len(corners), int(corners.max())
    sides = corners.unsqueeze(1)
    shake = 0.15 * noise(generator, 2, count, most) * (3.0 / sides) ** 2
    start = uniform(generator, count, 1, high=2 * math.pi)
    angles = start + 2 * math.pi * turns.unsqueeze(1) * (torch.arange(most) + shake[0]) / sides
    radii = 1 + shake[1]
    vertices = torch.stack([radii * angles.cos(), radii * angles.sin()], 2)
    along = torch.arange(points).double() / (points - 1) * sides
    first = along.long()
    part = (along - first).unsqueeze(2)
    before, after = (vertices.gather(1, ((first + k) % sides).unsqueeze(2).expand(-1, -1, 2)) for k in (0, 1))
    shape = before + part * (after - before)
    back = torch.randint(2, (count, 1, 1), generator=generator) == 1
    return torch.where(back, shape.flip(1), shape)


def _line(generator: torch.Generator, angle: Tensor) -> Tensor:
    """Draws lines `[M, 30, 2]` through 0 at some angles `[M]`, each from one of its ends."""
    angle = angle + math.pi * torch.randint(2, angle.shape, generator=generator)
    along = (torch.arange(MARK).double() / (MARK - 1) - 0.5).unsqueeze(1)
    return along * torch.stack([angle.cos(), angle.sin()], 1).unsqueeze(1)


def load(folder: Path | None) -> Data:
    """Makes drawings: points and codes `[T, M, 3]`, and classes. The code is 2 where a stroke begins, 1 at its other
    points, and 0 in the padding.

    An outline has nothing in it, a line, a cross or a ring, which may be drawn before it. All are irregular, turned,
    narrower or wider, and drawn by a shaky hand. A drawing begins at 0, and its size is 1.
    """
    generator = data_generator("drawings")
    count = TRAIN + HELD_OUT + TEST
    classes = torch.randint(CLASSES, (count,), generator=generator)
    kind, mark = classes // MARKS, classes % MARKS
    outline = _polygon(generator, torch.tensor(CORNERS)[kind], torch.tensor(TURNS)[kind], OUTLINE)
    angle = uniform(generator, count, high=math.pi)
    line, other = _line(generator, angle), _line(generator, angle + math.pi / 2 + 0.2 * noise(generator, count))
    ring = 0.3 * _polygon(generator, torch.full_like(kind, CORNERS[-1]), torch.ones_like(kind), MARK)
    place = 0.15 * noise(generator, count, 1, 2)
    marks = [place + torch.where((mark == 3).view(-1, 1, 1), ring, line), place + other]
    later = (torch.randint(2, (count,), generator=generator) == 1) & (mark > 0)
    orders = [[outline, *marks], [marks[0], outline, marks[1]]]
    points = torch.where(later.view(-1, 1, 1), *(torch.cat(order, 1) for order in reversed(orders)))
    codes = torch.ones(2, points.shape[1], dtype=torch.float64)
    codes[0, [0, OUTLINE, OUTLINE + MARK]] = codes[1, [0, MARK, OUTLINE + MARK]] = 2
    narrow = torch.stack([torch.ones(count).double(), uniform(generator, count, low=0.6)], 1).unsqueeze(1)
    turn = uniform(generator, count, high=2 * math.pi)
    turned = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], 1).view(-1, 2, 2)
    points = (points * narrow) @ turned + 0.006 * noise(generator, *points.shape).cumsum(1)
    lengths = OUTLINE + MARK * torch.tensor([0, 1, 2, 1])[mark]
    inside = (torch.arange(points.shape[1]) < lengths.unsqueeze(1)).unsqueeze(2)
    points = torch.where(inside, points, points[:, :1])  # so that the padding is not the lowest or the highest
    points = points - points.amin(1, keepdim=True)
    points = points / points.amax((1, 2), keepdim=True)
    ink = torch.cat([points, codes[later.long()].unsqueeze(2)], 2) * inside
    return as_data("drawings", ink=rounded(ink.transpose(0, 1)), classes=classes)


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    def batch(rows: Tensor) -> tuple[tuple[Tensor], Tensor]:
        return (data["ink"][:, rows],), data["classes"][rows]

    cases = TRAIN, HELD_OUT, TEST
    return batched(Classifier(networks), batch, F.cross_entropy, cases, BATCH, seed, error)


PROGRAM = Program(
    source="https://github.com/bzhang610/GoogleDoodle (main_LSTM.ipynb, utils/models_LSTM.py)",
    settings="Adam 1e-3, dropout 0.1, batch norm of the points, three linear convolutions, two LSTMs, a linear layer, "
    "16 classes, padding read as points. Its LSTMs have a forget bias of 1. Here 48 and 64 units for 128 and 512, a "
    "third of the filters, batch 32 for 64, torch's weights, and made drawings of 180 to 240 points for at most 100.",
    network="LSTM",
    metric=Metric("error", "error", percent=True),
    chance=15 / 16,
    margin=0.025,
    optimizer=torch.optim.Adam,
    rate=1e-3,
    updates=600,
    load=load,
    build=build,
    confirms=True,
)
