"""The recurrent networks by name: modules, cells and functions, and the formula of the paper."""

import torch

import layernorm as ln
from layernorm.formula import PRESETS

MODULE = {"RNN": ln.RNN, "LSTM": ln.LSTM, "GRU": ln.GRU}
CELL = {"RNN": ln.RNNCell, "LSTM": ln.LSTMCell, "GRU": ln.GRUCell}
RUN = {"RNN": ln.functional.rnn, "LSTM": ln.functional.lstm, "GRU": ln.functional.gru}
NETWORKS = list(MODULE)
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
PAPER = {
    "RNN": ln.Formula(gates="sum", cell=None),
    "LSTM": ln.Formula(gates="split", cell="output"),
    "GRU": ln.Formula(gates="split", cell=None),
}
ENGINES = [name for name in ("native", "reference") if name in ln.backends.available()]
KINDS = [(network, {"formula": formula}) for formula, networks in PRESETS.items() for network in networks]
KINDS += [(network, {"norm": norm}) for network in ("RNN", "LSTM", "GRU") for norm in ("rms", "weight", None)]
KINDS += [
    ("LSTM", {"formula": ln.Formula("sum", "per_gate", "carry", bias_inside=True, eps=0.1, eps_on="deviation")}),
    ("GRU", {"formula": ln.Formula("sum", "per_gate", None), "norm": "rms"}),
    ("LSTM", {"proj_size": 2}),
    ("GRU", {"bias": False}),
    ("RNN", {"nonlinearity": "relu"}),
]
"""Each network with what else its constructor is given: every formula, norm and other variant of the equations."""


def int8(model):
    """A copy with int8 weights in every network, in small ones too."""
    return ln.quantize(model, filter_fn=lambda module, name: True)


def flat(state):
    """The tensors of a state: h, or h and c."""
    return [state] if isinstance(state, torch.Tensor) else list(state)


def as_hx(state):
    """Tensors as a module takes them: one by itself, two as a tuple."""
    return state[0] if len(state) == 1 else tuple(state)
