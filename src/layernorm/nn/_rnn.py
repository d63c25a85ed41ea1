"""`RNN`: torch's `torch.nn.RNN` with layer normalisation, and its cell."""

from __future__ import annotations

import torch
from torch import Tensor

from ..formula import Formula
from ._cell import RecurrentCell
from ._recurrent import Recurrent


class RNN(Recurrent[Tensor]):
    r"""A recurrent network with layer normalisation, eq. 4.

    .. math::
        h_t = f(\mathrm{LN}(W_{ih} x_t + W_{hh} h_{t-1};\; gain,\; bias_{ih} + bias_{hh})),
        \qquad f = \tanh \text{ or relu}

    Takes the place of `torch.nn.RNN`: the same arguments, inputs, outputs and state-dict keys, plus the gains, so that
    a `torch.nn.RNN` state dict loads with ``strict=False``.

    Args:
        input_size, hidden_size, num_layers, nonlinearity, bias, batch_first, dropout, bidirectional, device, dtype:
            as `torch.nn.RNN`.
        norm: ``"layer"``; ``"rms"``, the root mean square instead of mean and deviation; ``"batch"``, over the training
            cases at each time step (Cooijmans et al. 2016); ``"weight"``, of the weight matrices' rows (Salimans,
            Kingma 2016); ``None``, torch's equations.
        formula: where the normalisations sit: a preset's name (`layernorm.formula.PRESETS`) or a `layernorm.Formula`.
        eps: overrides the formula's (1e-5 in ``"paper"``).
        gain_init: the initial value of every gain; ``None``: 1, under batch norm 0.1, and under weight norm the norm of
            the weight that torch draws.
        max_steps, momentum, count_padding: of batch norm. In training it normalises by the batch's statistics, and the
            population's, buffers ``running_mean_*`` and ``running_var_*`` with a row for each of ``max_steps`` time
            steps, move towards them by ``momentum`` (by 1 over the number of batches while that is larger, and for
            ``None`` always). In evaluation it normalises by these; steps beyond the last row trained use that. With
            ``lengths``, rows that have ended count (input 0, state standing still) or not.
        recurrent_dropout: a dropout of the h that ``W_hh`` reads, in training, with one mask for all time steps of a
            sequence, as Keras has it (Gal, Ghahramani 2016).
        zoneout: the probability that a unit keeps its old value in a step (Krueger et al. 2016), as Haste has it. In
            training it is drawn for each unit, row and step; in evaluation the new state is the expectation,
            ``zoneout * old + (1 - zoneout) * new``.
        variational: whether ``dropout``, between layers, has one mask for all time steps (Gal, Ghahramani 2016).

    ``zoneout``, ``recurrent_dropout`` in training and ``reset_hx`` take the steps one by one, with Python between them:
    in training about 5 times the time of one call for the whole sequence, in inference about 20 times, less in large
    networks (``benchmarks/between_steps.py``).

    Parameters of a layer and direction, suffix ``_l{k}`` or ``_l{k}_reverse``: ``weight_ih (H, I)``,
    ``weight_hh (H, H)``, ``bias_ih``, ``bias_hh``, ``gain (H)``.
    The biases belong to the normalisations and start at 0.

    Example::

        rnn = ln.RNN(28, 128)
        output, h_n = rnn(torch.randn(50, 32, 28))  # (T, B, I) -> (T, B, H), (1, B, H)

    Source: Ba, Kiros, Hinton, "Layer Normalization", 2016, arXiv:1607.06450, eq. 4.
    """

    network = "RNN"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        norm: str | None = "layer",
        formula: str | Formula = "paper",
        eps: float | None = None,
        gain_init: float | None = None,
        max_steps: int = 100,
        momentum: float | None = 0.1,
        count_padding: bool = False,
        recurrent_dropout: float = 0.0,
        zoneout: float = 0.0,
        variational: bool = False,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers=num_layers, bias=bias, batch_first=batch_first, dropout=dropout,
            bidirectional=bidirectional, nonlinearity=nonlinearity, device=device, dtype=dtype, norm=norm,
            formula=formula, eps=eps, gain_init=gain_init, max_steps=max_steps, momentum=momentum,
            count_padding=count_padding,
            recurrent_dropout=recurrent_dropout, zoneout=zoneout, variational=variational,
        )  # fmt: skip
        self.nonlinearity = nonlinearity


class RNNCell(RecurrentCell[Tensor]):
    r"""One step of `RNN`; takes the place of `torch.nn.RNNCell`: the same arguments, shapes and state-dict keys, plus
    the gains.

    Args:
        input_size, hidden_size, bias, nonlinearity, device, dtype: as `torch.nn.RNNCell`.
        norm, formula, eps, gain_init: without ``"batch"`` as in `RNN`.
        zoneout: as in `RNN`. Recurrent dropout has one mask a sequence, of which a cell knows nothing.

    Shapes: input ``(B, I)`` or ``(I,)``; state and result ``(B, H)`` or ``(H,)``.
    """

    network = "RNN"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        norm: str | None = "layer",
        formula: str | Formula = "paper",
        eps: float | None = None,
        gain_init: float | None = None,
        zoneout: float = 0.0,
    ) -> None:
        super().__init__(
            input_size, hidden_size, bias=bias, nonlinearity=nonlinearity, device=device, dtype=dtype, norm=norm,
            formula=formula, eps=eps, gain_init=gain_init, zoneout=zoneout,
        )  # fmt: skip
        self.nonlinearity = nonlinearity
