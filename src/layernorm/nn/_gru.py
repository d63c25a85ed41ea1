"""`GRU`: torch's `torch.nn.GRU` with layer normalisation, and its cell."""

from __future__ import annotations

import torch
from torch import Tensor

from ..formula import Formula
from ._cell import RecurrentCell
from ._recurrent import Recurrent


class GRU(Recurrent[Tensor]):
    r"""A gated recurrent unit network with layer normalisation, eqs. 26-28 (z keeps the old state, as in torch).

    .. math::
        (r, z) &= \sigma(\mathrm{LN}(W_{rz} x_t) + \mathrm{LN}(U_{rz} h_{t-1})) \\
        n &= \tanh(\mathrm{LN}(W_n x_t) + r\, \mathrm{LN}(U_n h_{t-1})) \\
        h_t &= (1 - z)\, n + z\, h_{t-1}

    Takes the place of `torch.nn.GRU`: the same arguments, inputs, outputs and state-dict keys, plus the gains, so that
    a `torch.nn.GRU` state dict loads with ``strict=False``.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as
            `torch.nn.GRU`.
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
        forget_bias: the initial value of the learnable bias of z, the gate that keeps the old state; ``None``: as the
            other biases. Of the biases that are added to that gate the first has it (``bias_ih``, where that is added
            after the normalisations or without one; otherwise ``norm_bias`` or ``norm_bias_ih``), the others are 0
            there, so that their sum is exactly this. It is trained, as Keras's unit forget bias and Haste's
            ``forget_bias``; a formula's ``forget_bias`` is a constant, added at every step beside it.
        recurrent_dropout: a dropout of the h that ``W_hh`` reads, in training, with one mask for all time steps of a
            sequence, as Keras has it (Gal, Ghahramani 2016).
        zoneout: the probability that a unit keeps its old value in a step (Krueger et al. 2016), as Haste has it. In
            training it is drawn for each unit, row and step; in evaluation the new state is the expectation,
            ``zoneout * old + (1 - zoneout) * new``.
        variational: whether ``dropout``, between layers, has one mask for all time steps (Gal, Ghahramani 2016).

    ``zoneout`` and ``reset_hx`` take the steps one by one, with Python between them: about twice the time of one call
    for the whole sequence. ``recurrent_dropout`` in training is computed by plain equations, in about 6 times that time
    (``benchmarks/between_steps.py``).

    Parameters of a layer and direction, suffix ``_l{k}`` or ``_l{k}_reverse``: ``weight_ih (3H, I)``, ``weight_hh
    (3H, H)``, ``bias_ih``, ``bias_hh``, ``gain_ih``, ``gain_hh (3H)``. Gates are in torch's order r, z, n.
    The biases belong to the normalisations and start at 0.

    Example::

        gru = ln.GRU(28, 128)
        output, h_n = gru(torch.randn(50, 32, 28))  # (T, B, I) -> (T, B, H), (1, B, H)

    Source: Ba, Kiros, Hinton, "Layer Normalization", 2016, arXiv:1607.06450, eqs. 26-28.
    """

    network = "GRU"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
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
        forget_bias: float | None = None,
        recurrent_dropout: float = 0.0,
        zoneout: float = 0.0,
        variational: bool = False,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers=num_layers, bias=bias, batch_first=batch_first, dropout=dropout,
            bidirectional=bidirectional, device=device, dtype=dtype, norm=norm, formula=formula, eps=eps,
            gain_init=gain_init, max_steps=max_steps, momentum=momentum, count_padding=count_padding,
            recurrent_dropout=recurrent_dropout, zoneout=zoneout, variational=variational, forget_bias=forget_bias,
        )  # fmt: skip


class GRUCell(RecurrentCell[Tensor]):
    r"""One step of `GRU`; takes the place of `torch.nn.GRUCell`: the same arguments, shapes and state-dict keys, plus
    the gains.

    Args:
        input_size, hidden_size, bias, device, dtype: as `torch.nn.GRUCell`.
        norm, formula, eps, gain_init: without ``"batch"`` as in `GRU`.
        forget_bias, zoneout: as in `GRU`. Recurrent dropout has one mask a sequence, of which a cell knows nothing.

    Shapes: input ``(B, I)`` or ``(I,)``; state and result ``(B, H)`` or ``(H,)``.
    """

    network = "GRU"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        norm: str | None = "layer",
        formula: str | Formula = "paper",
        eps: float | None = None,
        gain_init: float | None = None,
        forget_bias: float | None = None,
        zoneout: float = 0.0,
    ) -> None:
        super().__init__(
            input_size, hidden_size, bias=bias, device=device, dtype=dtype, norm=norm, formula=formula, eps=eps,
            gain_init=gain_init, zoneout=zoneout, forget_bias=forget_bias,
        )  # fmt: skip
