"""What the language models have in common: streams of text, a state that is carried on, and their loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .program import Parts


def columns(ids: Tensor, count: int) -> Tensor:
    """Cuts a text `[N]` into columns that are read at the same time, `[T, count]`."""
    return ids[: len(ids) // count * count].view(count, -1).T.contiguous()


def language_parts(model: nn.Module, text: Tensor, batch: int, steps: int, confirms: bool = False) -> Parts:
    """Makes what a language model trains.

    Args:
        model: (ids `[T, B]`, a flat tuple of states or None) -> scores `[T, B, V]`, the states, and a penalty that is
            added to the training loss. It gets one more buffer for each state, for a resumed run.
        text: int64 `[N]`. Its last tenth is for validation.
        batch, steps: the columns and the length of a window, at whose start the state is cut off.
        confirms: whether the last tenth is for the test, and the one before it for validation.
    """
    train, end = len(text) * (8 if confirms else 9) // 10, len(text) * 9 // 10 if confirms else len(text)
    held_out, last = columns(text[train:end], 10), columns(text[end:], 10)
    text = columns(text[:train], batch)
    windows = (len(text) - 1) // steps
    with torch.no_grad():
        states = model.to(text.device).eval()(text[:1])[1]
    for place, state in enumerate(states):
        model.register_buffer(f"state_{place}", torch.zeros_like(state))

    def loss(model: Any, update: int) -> Tensor:
        start = update % windows * steps
        carried = [getattr(model, f"state_{place}") for place in range(len(states))]
        if start == 0:
            for state in carried:
                state.zero_()
        # copies: the buffers change before the backward pass
        scores, new, penalty = model(text[start : start + steps], tuple(state.clone() for state in carried))
        for state, value in zip(carried, new, strict=True):
            state.copy_(value.detach())
        return nll(scores, text[start + 1 : start + steps + 1]) + penalty

    def evaluate(model: nn.Module, text: Tensor = held_out) -> float:
        total, state = 0.0, None
        for start in range(0, len(text) - 1, steps):
            ids = text[start : start + steps + 1]
            scores, state, _ = model(ids[:-1], state)
            total += float(nll(scores, ids[1:])) * (len(ids) - 1)
        return total / (len(text) - 1)

    test = (lambda model: evaluate(model, last)) if confirms else None
    return Parts(model, loss, evaluate, (text[:steps],), test=test)


def nll(scores: Tensor, ids: Tensor) -> Tensor:
    """Computes the mean negative log-likelihood of ids `[T, B]` under scores `[T, B, V]`."""
    return F.cross_entropy(scores.flatten(0, 1), ids.flatten())
