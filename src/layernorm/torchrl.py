"""TorchRL's `LSTMModule` and `GRUModule`, whose rollouts are one call of a layernorm network. Needs torchrl.

from layernorm.torchrl import LSTMModule
module = LSTMModule(lstm=ln.LSTM(4, 64, batch_first=True), in_key="observation", out_key="embed")
"""

from __future__ import annotations

from typing import Any, cast

import torch
from tensordict.nn import TensorDictModuleBase, dispatch
from torchrl import modules

from .nn import GRU, LSTM


class _OneCall(TensorDictModuleBase):
    """In recurrent mode passes ``is_init`` as ``reset``, where TorchRL cuts each row into episodes and pads these."""

    _network: tuple[str, type[LSTM] | type[GRU]]

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        name, ours = self._network
        if not isinstance(given := getattr(self, name), ours):
            kind = f"{type(given).__module__}.{type(given).__name__}"
            raise TypeError(f"{type(self).__name__}: expected {name}= to be a layernorm.{ours.__name__}, got {kind}")
        if given.norm == "batch":
            raise ValueError(
                f"{type(self).__name__}: batch norm has statistics for each time step, and a policy is called for one "
                f"step at a time, whose number it does not know; got {name}={given!r}"
            )

    @dispatch
    def forward(self, tensordict: Any) -> Any:
        """Runs the network over the steps (..., T) of a tensordict; without recurrent mode, over single steps."""
        if not cast(Any, self).recurrent_mode or not tensordict.ndim:
            return cast(Any, super()).forward(tensordict)
        rows = tensordict.reshape(-1, tensordict.shape[-1])
        x, *given = (rows.get(key, None) for key in self.in_keys if key != "is_init")
        states = tuple(state[:, 0].transpose(0, 1) for state in given if state is not None)  # each (L, B, size)
        network = getattr(self, self._network[0])
        hx = network._hx_from(states) if states else None
        output, final = network(x, hx, reset=rows["is_init"].squeeze(-1))
        results = [output]
        for part in network._state_from(final):
            last = part.transpose(0, 1).unsqueeze(1)  # (B, 1, L, size)
            results.append(torch.cat([last.new_zeros(len(last), x.shape[1] - 1, *last.shape[2:]), last], 1))
        for key, value in zip(self.out_keys, results, strict=True):
            tensordict.set(key, value.reshape(*tensordict.shape, *value.shape[2:]))
        return tensordict


class LSTMModule(_OneCall, modules.LSTMModule):
    """TorchRL's ``LSTMModule`` around a `layernorm.LSTM`: a rollout is one call, with ``is_init`` as ``reset``.

    An episode that begins inside a row starts from the zero state, as it does when the policy is run step by step. A
    row's first step starts from the stored state, unless ``is_init`` is true there. The outputs are those of TorchRL's
    module where the stored states at the starts of episodes are zeros, as its primers make them. The states among the
    outputs are those after a row's last step; at all other steps they are zeros. TorchRL's module also has those after
    the last step of each episode inside a row.

    Args:
        args, keywords: as in TorchRL, with ``lstm=ln.LSTM(..., batch_first=True)``. ``recurrent_backend`` has no
            effect.

    Raises:
        TypeError: ``lstm`` is no `layernorm.LSTM`.
        ValueError: it has batch norm.
    """

    _network = "lstm", LSTM


class GRUModule(_OneCall, modules.GRUModule):
    """TorchRL's ``GRUModule`` around ``gru=ln.GRU(..., batch_first=True)``, changed as in `LSTMModule`."""

    _network = "gru", GRU
