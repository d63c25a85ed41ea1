"""Phones told frame by frame from cepstra: four bidirectional layers."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....report.blocks import Metric
from ..made import noise, rounded, uniform
from ..program import Data, Networks, Parts, Program, as_data, batched, data_generator, error

BATCH, UNITS, LAYERS, STEPS, CEPSTRA, PHONES = 8, 96, 4, 100, 13, 24
TRAIN, TEST = 1500, 250
FOLLOWERS, SHORTEST, LONGEST = 6, 4, 12
"""Phones that may follow a phone, and the fewest and most frames of a phone."""


class Listener(nn.Module):
    """Reads cepstra with their two differences, `[T, B, 39]`, and scores the phones of each frame, `[T, B, 24]`."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.lstm = networks(3 * CEPSTRA, UNITS, num_layers=LAYERS, bidirectional=True, dropout=0.2)
        for name, weight in self.lstm.named_parameters():
            if "weight_hh" in name:
                nn.init.orthogonal_(weight)
        self.scores = nn.Linear(2 * UNITS, PHONES)

    def forward(self, frames: Tensor) -> Tensor:
        return self.scores(self.lstm(frames)[0])


def spoken(generator: torch.Generator, count: int) -> Tensor:
    """Draws the phone of each frame, int64 `[M, T]`. Six phones may follow a phone, and each lasts 4 to 12 frames."""
    follows = torch.randint(PHONES, (PHONES, FOLLOWERS), generator=generator)
    phone = torch.randint(PHONES, (count,), generator=generator)
    phones = [phone]
    for _ in range(STEPS // SHORTEST):
        phone = follows[phone, torch.randint(FOLLOWERS, (count,), generator=generator)]
        phones.append(phone)
    lasting = torch.randint(SHORTEST, LONGEST + 1, (count, len(phones)), generator=generator)
    place = torch.searchsorted(lasting.cumsum(1), torch.arange(STEPS).expand(count, -1).contiguous(), right=True)
    return torch.stack(phones, 1).gather(1, place)


def difference(features: Tensor) -> Tensor:
    """Computes Kaldi's differences over time, `sum_n n (x[t + n] - x[t - n]) / 10` for n of 1 and 2, of `[M, T, D]`."""
    first, last = features[:, :1], features[:, -1:]
    padded = torch.cat([first, first, features, last, last], 1)
    return (padded[:, 3:-1] - padded[:, 1:-3] + 2 * (padded[:, 4:] - padded[:, :-4])) / 10


def load(folder: Path | None) -> Data:
    """Makes utterances, frames `[T, M, 39]`, and the phone of each frame, int64 `[T, M]`.

    A phone is a place in 13 cepstra; neighbours run into each other. Each utterance has a speaker with a strength in
    each cepstrum, a noise that changes slowly, and one that is new in every frame. The mean of an utterance is taken
    away, differences are added, and every feature has mean 0 and deviation 1 over all data, as in the program.
    """
    generator = data_generator("phones")
    count = TRAIN + 2 * TEST
    places = noise(generator, PHONES, CEPSTRA)
    phones = spoken(generator, count)
    smooth = F.avg_pool1d(places[phones].transpose(1, 2), 5, 1, 2, count_include_pad=False).transpose(1, 2)
    speaker = uniform(generator, count, 1, CEPSTRA, low=0.5, high=1.5)
    slow = F.avg_pool1d(noise(generator, count, CEPSTRA, STEPS + 14), 15, 1).transpose(1, 2)
    cepstra = speaker * smooth + 3.0 * slow + 1.6 * noise(generator, count, STEPS, CEPSTRA)
    cepstra = cepstra - cepstra.mean(1, keepdim=True)
    once = difference(cepstra)
    features = torch.cat([cepstra, once, difference(once)], 2).transpose(0, 1)
    features = features - features.mean((0, 1))
    features = features / features.square().mean((0, 1)).sqrt()
    return as_data("phones in cepstra", frames=rounded(features), phones=phones.T.contiguous())


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    def batch(rows: Tensor) -> tuple[tuple[Tensor], Tensor]:
        return (data["frames"][:, rows],), data["phones"][:, rows].flatten()

    def loss(scores: Tensor, phones: Tensor) -> Tensor:
        return F.cross_entropy(scores.flatten(0, 1), phones)

    def wrong(scores: Tensor, phones: Tensor) -> Tensor:
        return error(scores.flatten(0, 1), phones)

    return batched(Listener(networks), batch, loss, (TRAIN, TEST, TEST), BATCH, seed, wrong)


PROGRAM = Program(
    source="https://github.com/mravanelli/pytorch-kaldi (cfg/TIMIT_baselines/TIMIT_LSTM_fmllr_cudnn.cfg)",
    settings="RMSprop 0.0016, alpha 0.95, eps 1e-8, 4 bidirectional layers, dropout 0.2, W_hh orthogonal, batch 8, 100 "
    "frames, with which the program begins. Here 96 units for 550, torch's biases for 0, one output for two (the "
    "phones only), the learning rate stays, and made cepstra.",
    network="LSTM",
    metric=Metric("error", "frame error", percent=True),
    chance=(PHONES - 1) / PHONES,
    margin=0.015,
    optimizer=functools.partial(torch.optim.RMSprop, alpha=0.95, eps=1e-8),
    rate=0.0016,
    updates=400,
    load=load,
    build=build,
    confirms="start",
)
