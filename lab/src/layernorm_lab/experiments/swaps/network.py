"""The recurrent networks that an arm makes: alike in everything but the norm."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from layernorm import nn as networks
from layernorm.formula import Network

from .config import FORMULAS, RECURRENT, Config
from .programs import PROGRAMS

_KINDS: dict[Network, Any] = {"LSTM": networks.LSTM, "GRU": networks.GRU, "RNN": networks.RNN}


class Maker:
    """Makes recurrent networks as an arm says. All arms of a seed start from the same weights and biases."""

    def __init__(self, config: Config) -> None:
        self.config, self.kind = config, _KINDS[PROGRAMS[config.task].network]

    def __call__(self, input_size: int, hidden_size: int, **options: Any) -> nn.Module:
        """Makes a network with the options of torch's."""
        config = self.config
        if config.forget_bias != "torch":
            options["forget_bias"] = float(config.forget_bias)
        if config.norm == "none":
            return self.kind(input_size, hidden_size, norm=None, **options)
        start = config.start
        options["gain_init"] = 1.0 if start == "match" else float(start.removeprefix(RECURRENT))
        if start.startswith(RECURRENT):
            options["gain_init"] = {"gain_hh": options["gain_init"]}
        if config.eps != "own":
            options["eps"] = float(config.eps)
        with warnings.catch_warnings():
            # the library warns of one input; the task `forecast` has one on purpose
            warnings.filterwarnings("ignore", message=".*input_size=1")
            formula = FORMULAS[config.formula][PROGRAMS[config.task].network]
            return self.kind(input_size, hidden_size, norm=config.norm, formula=formula, **options)
