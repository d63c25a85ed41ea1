"""A word model with much dropout, trained by large steps of SGD: the medium model of Zaremba et al. 2014."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from ....report.blocks import Metric
from ..language import language_parts
from ..program import Data, Networks, Parts, Program
from ..text import read_words
from .words import BATCH, STEPS, WordModel, as_text

UNITS = 160


def load(folder: Path | None) -> Data:
    """Reads the words of the last books."""
    return as_text("words of the last books", read_words(folder, 130_000, last=True), tenths=8)


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    model = WordModel(networks, UNITS, drop=0.5)
    for name, parameter in model.named_parameters():
        if "weight" in name:
            nn.init.uniform_(parameter, -0.05, 0.05)
    return language_parts(model, data["text"], BATCH, STEPS, confirms=True)


PROGRAM = Program(
    source="https://github.com/tensorflow/models (tutorials/rnn/ptb/ptb_word_lm.py, MediumConfig)",
    settings="SGD 1 on the loss summed over 35 steps, gradient's norm clipped to 5: of the mean loss 35 and 1/7. 2 "
    "layers, dropout 0.5, weights U(+-0.05), 20 columns. Here 160 units for 650, 2,000 words, and the learning rate "
    "stays.",
    network="LSTM",
    metric=Metric("nll", "NLL, nats a word"),
    chance=7.6,
    margin=0.04,
    optimizer=torch.optim.SGD,
    rate=35.0,
    updates=700,
    load=load,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_norm_(parameters, 5 / 35),
    confirms="line",
)
