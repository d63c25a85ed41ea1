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
MARKS, POINTS, MARK = 4, 220, 30
"""What may be in them: nothing, a line, a cross, a ring. Points of a drawing, and of half of a mark."""
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


def _polygon(generator: torch.Generator, kind: Tensor, points: int) -> Tensor:
    """Draws closed polygons `[M, points, 2]` around 0, from a corner near the top on, in either direction."""
    sides, turns = (torch.tensor(table)[kind].unsqueeze(1) for table in (CORNERS, TURNS))
    shake = 0.15 * noise(generator, 2, len(kind), max(CORNERS)) * (3.0 / sides) ** 2
    start = 0.15 * noise(generator, len(kind), 1) - math.pi / 2
    way = (torch.randint(4, start.shape, generator=generator) > 0) * 2 - 1
    angles = start + 2 * math.pi * turns * way * (torch.arange(max(CORNERS)) + shake[0]) / sides
    corners = (1 + shake[1]).unsqueeze(2) * torch.stack([angles.cos(), angles.sin()], 2)
    along = torch.arange(points).double() / (points - 1) * sides
    first = along.long()
    before, after = (corners.gather(1, ((first + k) % sides).unsqueeze(2).expand(-1, -1, 2)) for k in (0, 1))
    return before + (along - first).unsqueeze(2) * (after - before)


def _line(generator: torch.Generator, count: int, angle: float, points: int) -> Tensor:
    """Draws lines `[M, points, 2]` through 0 at about an angle."""
    angles = angle + 0.2 * noise(generator, count, 1)
    along = torch.arange(points).double() / (points - 1) - 0.5
    return torch.stack([along * angles.cos(), along * angles.sin()], 2)


def load(folder: Path | None) -> Data:
    """Makes drawings: points and codes `[T, M, 3]`, and classes. The code is 2 where a stroke begins, and else 1.

    An outline has nothing in it, a line, a cross or a ring, which is drawn after it. All are irregular, tilted, more or
    less flat, and drawn by a shaky hand. The lowest coordinates of a drawing are 0, and the highest of both is 1.
    """
    generator = data_generator("drawings")
    count = TRAIN + HELD_OUT + TEST
    classes = torch.randint(CLASSES, (count,), generator=generator)
    kind, mark = classes // MARKS, classes % MARKS
    alone, outline = (_polygon(generator, kind, points) for points in (POINTS, POINTS - 2 * MARK))
    cross = [_line(generator, count, angle, MARK) for angle in (math.pi / 4, 3 * math.pi / 4)]
    ring = 0.3 * _polygon(generator, torch.full_like(kind, len(CORNERS) - 1), 2 * MARK)
    marks = torch.stack([_line(generator, count, math.pi / 4, 2 * MARK), torch.cat(cross, 1), ring])
    place = 0.15 * noise(generator, count, 1, 2)
    marked = torch.cat([outline, place + marks[(mark - 1).clamp(min=0), torch.arange(count)]], 1)
    points = torch.where((mark > 0).view(-1, 1, 1), marked, alone)
    tilt, narrow = 0.15 * noise(generator, count), uniform(generator, count, 1, low=0.6)
    x, y = points[:, :, 0], narrow * points[:, :, 1]
    sine, cosine = tilt.sin().unsqueeze(1), tilt.cos().unsqueeze(1)
    points = torch.stack([x * cosine - y * sine, x * sine + y * cosine], 2)
    points = points + 0.006 * noise(generator, *points.shape).cumsum(1)
    points = points - points.amin(1, keepdim=True)
    points = points / points.amax((1, 2), keepdim=True)
    codes = torch.ones(MARKS, POINTS, 1, dtype=torch.float64)
    codes[:, 0] = codes[1:, POINTS - 2 * MARK] = codes[2, POINTS - MARK] = 2
    return as_data("drawings", ink=rounded(torch.cat([points, codes[mark]], 2).transpose(0, 1)), classes=classes)


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    def batch(rows: Tensor) -> tuple[tuple[Tensor], Tensor]:
        return (data["ink"][:, rows],), data["classes"][rows]

    cases = TRAIN, HELD_OUT, TEST
    return batched(Classifier(networks), batch, F.cross_entropy, cases, BATCH, seed, error)


PROGRAM = Program(
    source="https://github.com/bzhang610/GoogleDoodle (main_LSTM.ipynb, utils/models_LSTM.py)",
    settings="Adam 1e-3, dropout 0.1, batch norm of the points, three linear convolutions, two LSTMs, a linear layer, "
    "16 classes. Its LSTMs have a forget bias of 1. Here 48 and 64 units for 128 and 512, a third of the filters, "
    "batch 32 for 64, torch's weights, and made drawings of 220 points for at most 100.",
    network="LSTM",
    metric=Metric("error", "error", percent=True),
    chance=15 / 16,
    margin=0.025,
    optimizer=torch.optim.Adam,
    rate=1e-3,
    updates=250,
    load=load,
    build=build,
    confirms="start",
)
