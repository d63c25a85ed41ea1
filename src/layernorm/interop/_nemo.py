"""`ln_lstm`: NVIDIA NeMo's layer-normalised LSTM on layernorm's engine, to put in its place.

TorchScript reads annotations as types, so this file does without ``from __future__ import annotations``.
"""

import re
import warnings
from typing import Any, Optional

import torch
from torch import Tensor

from ..nn import LSTM
from ..nn.init import chrono_
from ._libraries import library


class NemoLSTM(torch.nn.Module):
    """What `ln_lstm` makes: an `LSTM` with the states and the state-dict keys of NeMo's ``StackedLSTM``.

    Attributes:
        lstm: the `LSTM`, of the formula ``"torchscript"``.
    """

    def __init__(self, lstm: LSTM) -> None:
        super().__init__()
        self.lstm = lstm
        self.register_state_dict_post_hook(_give_their_names)
        self.register_load_state_dict_pre_hook(_give_our_names)

    def forward(
        self,
        input: Tensor,
        states: Optional[list[tuple[Tensor, Tensor]]] = None,  # noqa: UP045 -- TorchScript
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Runs the sequence.

        Args:
            input: ``(T, B, I)``.
            states: ``(h, c)`` for each layer, each ``(B, H)``. ``None``: zeros.

        Returns:
            output ``(T, B, H)``, and the states after it, like ``states``.

        Raises:
            RuntimeError, ValueError, TypeError: as `LSTM`.
        """
        hx: Optional[tuple[Tensor, Tensor]] = None  # noqa: UP045
        if states is not None:
            hx = torch.stack([state[0] for state in states]), torch.stack([state[1] for state in states])
        output, (h, c) = self.lstm(input, hx)
        return output, [(h[layer], c[layer]) for layer in range(len(h))]


def ln_lstm(
    input_size: int,
    hidden_size: int,
    num_layers: int,
    dropout: float | None = None,
    forget_gate_bias: float | None = 1.0,
    t_max: float | None = None,
    weights_init_scale: float | None = None,
    hidden_hidden_bias_scale: float | None = None,
) -> NemoLSTM:
    """Makes a module that takes the place of what NVIDIA NeMo's ``ln_lstm`` returns: same arguments, inputs, states and
    state-dict keys.

    Args:
        input_size, hidden_size, num_layers: I, H and the number of layers.
        dropout: ``None`` or 0, as NeMo refuses any other.
        forget_gate_bias: the initial value of the forget gates' bias. ``None``: it is drawn as the other biases are.
        t_max: the argument of chrono initialisation (`layernorm.nn.init.chrono_`), instead of ``forget_gate_bias``.
            NeMo warns that its module does not have it.
        weights_init_scale, hidden_hidden_bias_scale: ignored with a warning, as in NeMo.

    Returns:
        The module. New weights start as those of `LSTM`: gains are 1, where NeMo draws them from U(-1/sqrt(H),
        1/sqrt(H)). `torch.jit.script` takes ``ln.portable`` of the module.

    Raises:
        ValueError, TypeError: an argument is not as above. The message names it.

    Example::

        lstm = ln.interop.ln_lstm(640, 640, 2)
        lstm.load_state_dict(model.decoder.prediction["dec_rnn"].state_dict())
        model.decoder.prediction["dec_rnn"] = lstm
    """
    if dropout:
        raise ValueError(f"ln_lstm: dropout must be None or 0, as in NeMo, got {dropout!r}")
    scales = {"weights_init_scale": weights_init_scale, "hidden_hidden_bias_scale": hidden_hidden_bias_scale}
    for name, scale in scales.items():
        if scale is not None:
            warnings.warn(f"ln_lstm: {name}={scale!r} is ignored, as in NeMo", stacklevel=2)
    lstm = LSTM(input_size, hidden_size, num_layers, formula="torchscript", forget_bias=forget_gate_bias)
    return NemoLSTM(lstm if t_max is None else chrono_(lstm, t_max))


def _their_names() -> dict[str, str]:
    """NeMo's name of each of layernorm's parameters; each array is one parameter."""
    return {entry.parts[0]: name for name, entry in library("nemo", "LSTM").entries.items()}


def _give_their_names(_module: Any, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    names = _their_names()
    for key in list(state):
        found = re.fullmatch(rf"{re.escape(prefix)}lstm\.(\w+)_l(\d+)", key)
        if found and found[1] in names:
            state[f"{prefix}layers.{found[2]}.cell.{names[found[1]]}"] = state.pop(key)


def _give_our_names(module: Any, state: dict[str, Any], prefix: str, *_more: Any) -> None:
    names = {theirs: ours for ours, theirs in _their_names().items()}
    for key in list(state):
        found = re.fullmatch(rf"{re.escape(prefix)}layers\.(\d+)\.cell\.(.+)", key)
        ours = f"{names[found[2]]}_l{found[1]}" if found and found[2] in names else ""
        if hasattr(module.lstm, ours):  # others are named as they came in torch's error
            state[f"{prefix}lstm.{ours}"] = state.pop(key)
