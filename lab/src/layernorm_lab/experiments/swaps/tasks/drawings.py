"""Drawings told from the strokes of a pen: convolutions, and three bidirectional layers."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....report.blocks import Metric
from ..made import noise, rounded, uniform
from ..program import Data, Networks, Parts, Program, as_data, batched, data_generator, error

BATCH, UNITS, FILTERS, WIDTHS, DROP = 8, 48, (24, 32, 48), (5, 5, 3), 0.3
TRAIN, HELD_OUT, TEST = 8000, 400, 1000
CORNERS, MARKS, OUTLINE, MARK = (3, 4, 5, 24), 4, 180, 30
"""Corners of the outlines; what may be in them: nothing, a line, a cross, a ring. Points of an outline and a stroke."""
CLASSES = len(CORNERS) * MARKS


class Classifier(nn.Module):
    """Reads offsets and the ends of strokes `[T, B, 3]`, and scores drawings by the sum of all outputs."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.filters = nn.ModuleList(
            nn.Conv1d(before, after, width, padding="same")
            for before, after, width in zip((3, *FILTERS), FILTERS, WIDTHS, strict=False)
        )
        self.drop = nn.Dropout(DROP)
        self.lstm = networks(FILTERS[-1], UNITS, num_layers=3, bidirectional=True, dropout=DROP)
        self.scores = nn.Linear(2 * UNITS, CLASSES)

    def forward(self, ink: Tensor, lengths: Tensor) -> Tensor:
        x = ink.permute(1, 2, 0)
        for place, conv in enumerate(self.filters):
            x = conv(self.drop(x) if place else x)
        outputs = self.drop(self.lstm(x.permute(2, 0, 1), lengths=lengths)[0])
        inside = torch.arange(len(ink), device=ink.device).unsqueeze(1) < lengths
        return self.scores((outputs * inside.unsqueeze(2)).sum(0))


def _polygon(generator: torch.Generator, corners: Tensor, points: int, irregular: float) -> Tensor:
    """Draws closed polygons `[M, points, 2]` around 0, from any corner on, in any direction."""
    count, most = len(corners), int(corners.max())
    sides = corners.unsqueeze(1)
    shake = irregular * noise(generator, 2, count, most) * (3.0 / sides).clamp(max=1) ** 2
    angles = 2 * math.pi * (torch.arange(most) + shake[0]) / sides + uniform(generator, count, 1, high=2 * math.pi)
    radii = 1 + shake[1]
    vertices = torch.stack([radii * angles.cos(), radii * angles.sin()], 2)
    along = torch.arange(points).double() / (points - 1) * sides
    first = along.long()
    part = (along - first).unsqueeze(2)
    start, end = (vertices.gather(1, ((first + k) % sides).unsqueeze(2).expand(-1, -1, 2)) for k in (0, 1))
    shape = start + part * (end - start)
    back = torch.randint(2, (count, 1, 1), generator=generator) == 1
    return torch.where(back, shape.flip(1), shape)


def _line(generator: torch.Generator, angle: Tensor) -> Tensor:
    """Draws lines `[M, 30, 2]` through 0 at some angles `[M]`, each from one of its ends."""
    angle = angle + math.pi * torch.randint(2, angle.shape, generator=generator)
    along = (torch.arange(MARK).double() / (MARK - 1) - 0.5).unsqueeze(1)
    return along * torch.stack([angle.cos(), angle.sin()], 1).unsqueeze(1)


def load(folder: Path | None) -> Data:
    """Makes drawings: offsets and ends of strokes `[T, M, 3]`, their lengths, and classes.

    An outline of three, four, five or 24 irregular corners has nothing in it, a line, a cross or a ring, which may be
    drawn before it. It is as wide as it is or less, turned, and drawn by a shaky hand. The size of a drawing is 1;
    offsets are divided by 0.02, which is about their size.
    """
    generator = data_generator("drawings")
    count = TRAIN + HELD_OUT + TEST
    classes = torch.randint(CLASSES, (count,), generator=generator)
    corners, mark = torch.tensor(CORNERS)[classes // MARKS], classes % MARKS
    outline = _polygon(generator, corners, OUTLINE, 0.15)
    angle = uniform(generator, count, high=math.pi)
    line, other = _line(generator, angle), _line(generator, angle + math.pi / 2 + 0.2 * noise(generator, count))
    ring = 0.3 * _polygon(generator, torch.full((count,), CORNERS[-1]), MARK, 0.15)
    place = 0.15 * noise(generator, count, 1, 2)
    marks = [place + torch.where((mark == 3).view(-1, 1, 1), ring, line), place + other]
    later = (torch.randint(2, (count,), generator=generator) == 1) & (mark > 0)
    ends = torch.zeros(3, OUTLINE + 2 * MARK)
    orders = [[outline, *marks], [marks[0], outline, marks[1]]]
    for row, strokes in enumerate(orders):
        ends[row, torch.tensor([stroke.shape[1] for stroke in strokes]).cumsum(0) - 1] = 1
    points = torch.where(later.view(-1, 1, 1), *(torch.cat(order, 1) for order in reversed(orders)))
    narrow = torch.stack([torch.ones(count).double(), uniform(generator, count, low=0.6)], 1).unsqueeze(1)
    turn = uniform(generator, count, high=2 * math.pi)
    turned = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], 1).view(-1, 2, 2)
    points = (points * narrow) @ turned
    points = points + 0.006 * noise(generator, *points.shape).cumsum(1)
    lengths = OUTLINE + MARK * torch.tensor([0, 1, 2, 1])[mark]
    inside = (torch.arange(points.shape[1]) < lengths.unsqueeze(1)).unsqueeze(2)
    points = torch.where(inside, points, points[:, :1])
    points = points / (points.amax((1, 2), keepdim=True) - points.amin((1, 2), keepdim=True))
    offsets = points.diff(dim=1, prepend=points[:, :1]) * inside
    ink = torch.cat([offsets / 0.02, (ends[later.long()].unsqueeze(2) * inside)], 2)
    return as_data("drawings", ink=rounded(ink.transpose(0, 1)), lengths=lengths, classes=classes)


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    def batch(rows: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        return (data["ink"][:, rows], data["lengths"][rows]), data["classes"][rows]

    cases = TRAIN, HELD_OUT, TEST
    return batched(Classifier(networks), batch, F.cross_entropy, cases, BATCH, seed, error)


PROGRAM = Program(
    source="https://github.com/tensorflow/models (tutorials/rnn/quickdraw/train_model.py)",
    settings="Adam 1e-4, batch 8, gradient's norm clipped to 9, dropout 0.3, three linear convolutions, three "
    "bidirectional layers, the sum of all outputs. Its cells have a forget bias of 1. Here 48 units for 128, half of "
    "the filters, torch's weights, and made drawings of 180 to 240 points, whose offsets are divided by 0.02.",
    network="LSTM",
    metric=Metric("error", "error", percent=True),
    chance=15 / 16,
    margin=0.025,
    optimizer=torch.optim.Adam,
    rate=1e-4,
    updates=1000,
    load=load,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_norm_(parameters, 9.0),
    confirms=True,
)
