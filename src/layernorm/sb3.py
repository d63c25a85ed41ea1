"""Policies for sb3-contrib's `RecurrentPPO`: each sequence is one call of a `layernorm.LSTM`. Needs sb3-contrib.

import layernorm.sb3
model = RecurrentPPO(layernorm.sb3.MlpLstmPolicy, env)
"""

from __future__ import annotations

from typing import Any

from sb3_contrib.common.recurrent.policies import (
    RecurrentActorCriticCnnPolicy,
    RecurrentActorCriticPolicy,
    RecurrentMultiInputActorCriticPolicy,
)
from torch.optim import Optimizer

from .convert import convert
from .formula import Formula
from .nn import Norm
from .nn._gains import GainInit
from .nn._population import norm_name


class MlpLstmPolicy(RecurrentActorCriticPolicy):
    """sb3-contrib's ``MlpLstmPolicy`` with `layernorm.LSTM` for actor and critic.

    sb3-contrib runs a sequence step by step where an episode starts inside it, which happens in nearly every minibatch.
    This policy passes the starts of episodes as ``reset``, so that the sequence is one call. Without a norm it computes
    what sb3-contrib's policy computes, up to rounding: one seed gives the same weights, before and after training.

    Args:
        args, keywords: as in sb3-contrib.
        norm, formula, gain_init, forget_bias: as in `layernorm.LSTM`, but without a norm by default. With a norm the
            default formula is ``"cell"``, which normalises only the cell: these policies have no encoder by default,
            and layer norm of ``W x`` would hide the size of an observation.

    Raises:
        TypeError, ValueError: `layernorm.convert` raises it, for example for an unknown norm.
        ValueError: ``norm`` is batch norm, or ``formula`` or ``gain_init`` is given without a norm.
    """

    optimizer: Optimizer

    def __init__(
        self,
        *args: Any,
        norm: Norm = None,
        formula: str | Formula | None = None,
        gain_init: GainInit = None,
        forget_bias: float | None = None,
        **keywords: Any,
    ) -> None:
        if norm_name(norm) == "batch":
            raise ValueError(
                f"{type(self).__name__}: batch norm has statistics for each time step, and a policy is called for one "
                f"step at a time, whose number it does not know; got norm={norm!r}"
            )
        for name, value in (("formula", formula), ("gain_init", gain_init)):
            if norm is None and value is not None:
                who = type(self).__name__
                raise ValueError(f"{who}: {name}={value!r} needs a norm, such as norm='layer', got norm=None")
        formula = "cell" if formula is None else formula
        super().__init__(*args, **keywords)
        for name in ("lstm_actor", "lstm_critic"):
            if (lstm := getattr(self, name)) is not None:
                setattr(self, name, convert(lstm, norm, formula=formula, gain_init=gain_init, forget_bias=forget_bias))
        rate = self.optimizer.param_groups[0]["lr"]  # a new optimizer, with the gains, too
        self.optimizer = self.optimizer_class(self.parameters(), lr=rate, **self.optimizer_kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        lstm = self.lstm_actor
        ours = {"forget_bias": lstm.forget_bias}
        if lstm.norm:
            ours |= {"norm": lstm.norm, "formula": lstm.formula, "gain_init": lstm.gain_init}
        return {**super()._get_constructor_parameters(), **ours}

    @staticmethod
    def _process_sequence(features: Any, lstm_states: Any, episode_starts: Any, lstm: Any) -> Any:
        """Runs sequences: features (B * T, I), states (L, B, H), starts (B * T,) -> (B * T, H), states."""
        B = lstm_states[0].shape[1]
        x = features.reshape(B, -1, lstm.input_size).swapaxes(0, 1)
        output, states = lstm(x, lstm_states, reset=episode_starts.reshape(B, -1).swapaxes(0, 1).bool())
        return output.swapaxes(0, 1).flatten(end_dim=1), states


class CnnLstmPolicy(MlpLstmPolicy, RecurrentActorCriticCnnPolicy):
    """sb3-contrib's ``CnnLstmPolicy``, changed as in `MlpLstmPolicy`."""


class MultiInputLstmPolicy(MlpLstmPolicy, RecurrentMultiInputActorCriticPolicy):
    """sb3-contrib's ``MultiInputLstmPolicy``, changed as in `MlpLstmPolicy`."""
