"""Formulas of every kind for the engines' kernels: each field's values beside all others'."""

import dataclasses
import itertools

import torch

from layernorm.equations.arguments import NO_CHANGES, RecurrentArguments, StateChanges
from layernorm.formula import Formula, Recurrence

FIELDS = [
    ("split", "sum", None, "hidden"), ("joint", "per_gate", "all"), ("output", "carry", None), (False, True),
    (True, False),
]  # fmt: skip
SPACE = list(itertools.product(*FIELDS, ("variance", "deviation"), ("layer", "rms")))


def every_formula(network, shapes):
    """(`Recurrence`, (T, B, I, H, P, reverse, lengths, reset)), the latter in turns of other lengths.

    A formula comes once: of those that differ only in a field without effect, the first.
    """
    seen = set()
    for k, (gates, span, cell, inside, gate_bias, eps_on, norm) in enumerate(SPACE):
        if network != "LSTM" and cell is not None:
            continue
        forget = 0.0 if network == "RNN" else 0.5
        formula = Formula(gates, span, cell, inside, gate_bias, eps=1e-3, eps_on=eps_on, forget_bias=forget)
        if k % 3 == 0:
            formula = dataclasses.replace(formula, biases="input")
        if inside and k % 5 < 3 and gates != "hidden":
            formula = dataclasses.replace(formula, bias_again=True)
        nonlinearity = "relu" if network == "RNN" and (k // 2 + k // 8) % 2 else "tanh"
        recurrence = Recurrence(network, formula, norm, k % 7 > 0, nonlinearity=nonlinearity)
        how = (norm, eps_on) if recurrence.gain_names else None
        meaning = (how, recurrence.places, recurrence.spans, recurrence.reset_multiplies, nonlinearity)
        if meaning in seen:
            continue
        n = len(seen)  # norm and eps_on alternate, so that nothing else may alternate with them
        seen.add(meaning)
        shape = shapes[n % len(shapes)]
        projected = network == "LSTM" and n // 4 % 2 == 0 and shape[3] > 1
        recurrence = dataclasses.replace(recurrence, projected=projected)
        yield recurrence, (*shape, bool(n // 2 & 1), bool(n // 3 & 1), bool(n // 5 & 1))


def drawn(recurrence, T, B, I, H, P, lengths, reset, generator=None):  # noqa: E741
    """Input, state, parameters, lengths and reset of a call, in float64."""
    generator = torch.Generator().manual_seed(0) if generator is None else generator

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    P = P if recurrence.projected else H
    state = [draw(B, size) for size in ((P, H) if recurrence.network == "LSTM" else (H,))]
    params = [draw(*s) / (s[-1] ** 0.5 if len(s) > 1 else 1) for s in recurrence.parameter_shapes(I, H, P).values()]
    masks = (
        torch.randint(0, T + 1, (B,), generator=generator) if lengths else None,
        torch.rand(T, B, generator=generator) < 0.3 if reset else None,
    )
    return draw(T, B, I), state, params, *masks


def arguments_of(drawn, recurrence, reverse=False, changes=NO_CHANGES):
    """A call with what `drawn` returns."""
    x, state, params, lengths, reset = drawn
    return RecurrentArguments(x, state, params, recurrence, changes, lengths, reset, reverse)


def drawn_changes(recurrence, T, B, H, P, kind, generator=None):
    """What happens between steps, in float64: ``kind`` is a number whose four bits ask for restarts, dropout, drawn
    zoneout and, with it, one number in place of what is drawn; of an LSTM every third has no zoneout of h or of c."""
    generator = torch.Generator().manual_seed(2) if generator is None else generator
    sizes = (P if recurrence.projected else H, H)[: len(recurrence.state_names)]

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    shares = []
    for k, size in enumerate(sizes if kind & 4 else ()):
        drawn = (draw(T, B, size) < -0.5).double()
        absent = len(sizes) == 2 and kind % 3 == k
        shares.append(None if absent else torch.full((1, 1, 1), 0.3, dtype=torch.float64) if kind & 8 else drawn)
    dropout = (draw(B, sizes[0]) < 0.5).double() * 1.4
    return StateChanges(
        [draw(B, size) for size in sizes] if kind & 1 else (), dropout if kind & 2 else None, tuple(shares)
    )


def in_types(changes, dtype, compute_type):
    """The same changes, restarts and what multiplies the state in these types."""
    restart, dropout, kept = changes
    return StateChanges(
        [r.to(dtype) for r in restart],
        None if dropout is None else dropout.to(compute_type),
        tuple(None if k is None else k.to(compute_type) for k in kept),
    )


def with_changes(arguments, kind):
    """The arguments of a call with what happens between its steps."""
    T, B, _, H, P = arguments.sizes
    return arguments._replace(changes=drawn_changes(arguments.recurrence, T, B, H, P, kind)) if kind else arguments
