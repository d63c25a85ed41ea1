"""Speech-like frames transcribed with CTC: three bidirectional layers."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....report.blocks import Metric
from ..program import Data, Networks, Parts, Program, as_data, batched, data_generator

BATCH, UNITS, BANDS, PHONES = 20, 64, 20, 20
TRAIN, TEST, SPOKEN, LONGEST = 3000, 300, 6, 7
"""Phones in an utterance, and the most frames of a phone."""


class Listener(nn.Module):
    """Reads frames `[T, B, 20]` and returns log-probabilities of the phones and of the blank, 0, `[T, B, 21]`."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.lstm = networks(BANDS, UNITS, num_layers=3, bidirectional=True, dropout=0.1)
        self.scores = nn.Linear(2 * UNITS, PHONES + 1)

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        return self.scores(self.lstm(frames, lengths=lengths)[0]).log_softmax(2)


def load(folder: Path | None) -> Data:
    """Makes utterances, frames `[T, M, 20]` with lengths `[M]` and phones `[M, 6]`. A phone is two peaks in the bands;
    phones last 3 to 7 frames and run into each other; each utterance has its own loudness and shift, and noise."""
    generator = data_generator("speech")
    count = TRAIN + TEST
    bands = torch.arange(float(BANDS))
    peaks = BANDS * torch.rand(PHONES, 2, 1, generator=generator)
    phones = torch.randint(PHONES, (count, SPOKEN), generator=generator)
    lasting = torch.randint(3, LONGEST + 1, (count, SPOKEN), generator=generator)
    ends = lasting.cumsum(1)
    frame = torch.arange(SPOKEN * LONGEST)
    spoken = torch.searchsorted(ends, frame.expand(count, -1).contiguous(), right=True).clamp(max=SPOKEN - 1)
    shift = torch.randn(count, 1, 1, generator=generator)
    places = peaks[phones.gather(1, spoken)].squeeze(3)  # [M, T, 2]
    places = F.avg_pool1d(places.transpose(1, 2), 3, 1, 1, count_include_pad=False).transpose(1, 2) + shift
    loud = 1 + 0.3 * torch.randn(count, 1, 1, generator=generator)
    frames = loud * torch.exp(-((bands - places.unsqueeze(3)) ** 2) / 4).sum(2)
    frames += 0.2 * torch.randn(frames.shape, generator=generator)
    lengths = ends[:, -1]
    frames *= (frame < lengths.unsqueeze(1)).unsqueeze(2)
    return as_data("speech-like frames", frames=frames.transpose(0, 1), lengths=lengths, phones=phones + 1)


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    def batch(rows: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        lengths = data["lengths"][rows]
        return (data["frames"][:, rows], lengths), (data["phones"][rows], lengths)

    def ctc(chances: Tensor, right: tuple[Tensor, Tensor]) -> Tensor:
        phones, lengths = right
        return F.ctc_loss(chances, phones, lengths, torch.full_like(lengths, SPOKEN))

    return batched(Listener(networks), batch, ctc, (TRAIN, TEST), BATCH, seed)


PROGRAM = Program(
    source="https://www.assemblyai.com/blog/end-to-end-speech-recognition-pytorch",
    settings="AdamW 5e-4, batch 20, dropout 0.1, bidirectional layers, CTC. Here 3 LSTM layers of 64 units for 5 GRU "
    "layers of 512 behind convolutions, and the learning rate stays as it is.",
    network="LSTM",
    metric=Metric("ctc", "CTC loss, nats a phone"),
    chance=3.0,
    margin=0.03,
    optimizer=torch.optim.AdamW,
    rate=5e-4,
    updates=1100,
    load=load,
    build=build,
)
