"""Formulas of every kind for the engines' kernels: each field's values beside all others'."""

import dataclasses
import itertools

from layernorm.formula import Formula, Recurrence

FIELDS = [("split", "sum", None), ("joint", "per_gate", "all"), ("output", "carry", None), (False, True), (True, False)]
SPACE = list(itertools.product(*FIELDS, ("variance", "deviation"), ("layer", "rms")))


def every_formula(network, shapes):
    """(`Recurrence`, (T, B, I, H, P, reverse, lengths, reset)), the latter in turns of other lengths."""
    for k, (gates, span, cell, inside, gate_bias, eps_on, norm) in enumerate(SPACE):
        if network != "LSTM" and cell is not None:
            continue
        forget = 0.0 if network == "RNN" else 0.5
        formula = Formula(gates, span, cell, inside, gate_bias, eps=1e-3, eps_on=eps_on, forget_bias=forget)
        if k % 4 == 0:
            formula = dataclasses.replace(formula, biases="input")
        if inside and k % 5 < 3:
            formula = dataclasses.replace(formula, bias_again=True)
        shape = shapes[k % len(shapes)]
        projected = network == "LSTM" and k % 2 == 0 and shape[3] > 1
        recurrence = Recurrence(network, formula, norm, k % 7 > 0, projected, "relu" if k % 2 else "tanh")
        yield recurrence, (*shape, bool(k & 1), bool(k // 3 & 1), bool(k // 5 & 1))
