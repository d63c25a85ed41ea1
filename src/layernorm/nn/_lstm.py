"""`LSTM`: torch's `torch.nn.LSTM` with layer normalisation, and its cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn.utils.rnn import PackedSequence

from ..formula import Formula
from ._cell import RecurrentCell
from ._leaving import recorded
from ._recurrent import Recurrent

State = tuple[Tensor, Tensor]
"""h and c."""


class LSTM(Recurrent[State]):
    r"""A long short-term memory network with layer normalisation, eqs. 20-22.

    .. math::
        (i, f, g, o) &= \mathrm{LN}(W_{hh} h_{t-1}; gain_{hh}, bias_{hh})
            + \mathrm{LN}(W_{ih} x_t; gain_{ih}, bias_{ih}) \\
        c_t &= \sigma(f)\, c_{t-1} + \sigma(i) \tanh(g) \\
        h_t &= \sigma(o) \tanh(\mathrm{LN}(c_t; gain_c, bias_c))

    Takes the place of `torch.nn.LSTM`: the same arguments, inputs, outputs and state-dict keys, plus the gains, so that
    a `torch.nn.LSTM` state dict loads with ``strict=False``.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype:
            as `torch.nn.LSTM`.
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
        forget_bias: the initial value of the learnable bias of f, the gate that keeps the old state; ``None``: as the
            other biases. Of the biases that are added to that gate the first has it (``bias_ih``, where that is added
            after the normalisations or without one; otherwise ``norm_bias`` or ``norm_bias_ih``), the others are 0
            there, so that their sum is exactly this. It is trained, as Keras's unit forget bias and Haste's
            ``forget_bias``; a formula's ``forget_bias`` is a constant, added at every step beside it.
        recurrent_dropout: a dropout of the h that ``W_hh`` reads, in training, with one mask for all time steps of a
            sequence, as Keras has it (Gal, Ghahramani 2016).
        zoneout: the probability that a unit keeps its old value in a step (Krueger et al. 2016): a number for h alone,
            as Haste has it, or a pair for h and c. In training it is drawn for each unit, row and step; in evaluation
            the new state is the expectation, ``zoneout * old + (1 - zoneout) * new``.
        variational: whether ``dropout``, between layers, has one mask for all time steps (Gal, Ghahramani 2016).
        gate_clip: on the way back the derivatives by the gates' summed inputs, before sigmoid and tanh, are cut to
            ``+-gate_clip`` (Graves 2013, section 2.1); ``None``: they are not.

    ``zoneout``, ``recurrent_dropout`` in training, ``return_cells`` and ``reset_hx`` take the steps one by one, with
    Python between them: about twice the time of one call for the whole sequence (``benchmarks/between_steps.py``).

    Parameters of a layer and direction, suffix ``_l{k}`` or ``_l{k}_reverse``: ``weight_ih (4H, I)``, ``weight_hh
    (4H, P)``, ``bias_ih``, ``bias_hh``, ``gain_ih``, ``gain_hh (4H)``, ``gain_c``, ``bias_c (H)``, and with projections
    ``weight_hr (P, H)``. Gates are in torch's order i, f, g, o.
    The biases belong to the normalisations and start at 0.

    Example::

        lstm = ln.LSTM(28, 128)
        output, (h_n, c_n) = lstm(torch.randn(50, 32, 28))  # (T, B, I) -> (T, B, H), (1, B, H)

    Source: Ba, Kiros, Hinton, "Layer Normalization", 2016, arXiv:1607.06450, eqs. 20-22.
    """

    network = "LSTM"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
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
        zoneout: float | tuple[float, float] = 0.0,
        variational: bool = False,
        gate_clip: float | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers=num_layers, bias=bias, batch_first=batch_first, dropout=dropout,
            bidirectional=bidirectional, proj_size=proj_size, device=device, dtype=dtype, norm=norm, formula=formula,
            eps=eps, gain_init=gain_init, max_steps=max_steps, momentum=momentum, count_padding=count_padding,
            recurrent_dropout=recurrent_dropout, zoneout=zoneout, variational=variational, forget_bias=forget_bias,
            gate_clip=gate_clip,
        )  # fmt: skip

    @overload
    def forward(
        self,
        input: Tensor,
        hx: State | None = None,
        *,
        lengths: Tensor | list[int] | None = None,
        reset: Tensor | None = None,
        reset_hx: State | None = None,
        mask: Tensor | None = None,
        return_cells: Literal[False] = False,
    ) -> tuple[Tensor, State]: ...
    @overload
    def forward(
        self,
        input: PackedSequence,
        hx: State | None = None,
        *,
        reset: Tensor | None = None,
        reset_hx: State | None = None,
        return_cells: Literal[False] = False,
    ) -> tuple[PackedSequence, State]: ...
    @overload
    def forward(
        self,
        input: Tensor,
        hx: State | None = None,
        *,
        lengths: Tensor | list[int] | None = None,
        reset: Tensor | None = None,
        reset_hx: State | None = None,
        mask: Tensor | None = None,
        return_cells: Literal[True],
    ) -> tuple[Tensor, State, Tensor]: ...
    @overload
    def forward(
        self,
        input: PackedSequence,
        hx: State | None = None,
        *,
        reset: Tensor | None = None,
        reset_hx: State | None = None,
        return_cells: Literal[True],
    ) -> tuple[PackedSequence, State, PackedSequence]: ...
    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: State | None = None,
        *,
        lengths: Tensor | list[int] | None = None,
        reset: Tensor | None = None,
        reset_hx: State | None = None,
        mask: Tensor | None = None,
        return_cells: bool = False,
    ) -> Any:
        """Runs the sequence, as `RNN.forward` says.

        Args:
            return_cells: whether to return the last layer's c after every step, too, ``(T, B, D * H)``, of ``input``'s
                kind and order as the output is, with its gradients. It is the c that is carried on.

        Returns:
            output, ``(h, c)``, with ``return_cells`` a third part, the cells.
        """
        if isinstance(input, Proxy):
            more = {
                "lengths": lengths,
                "reset": reset,
                "reset_hx": reset_hx,
                "return_cells": return_cells,
                "mask": mask,
            }
            return recorded(self, input, hx, **more)
        if mask is not None:
            lengths = self._lengths_of(mask, input, lengths)
        output, state = self._run(input, hx, lengths, reset, reset_hx, return_cells)
        if not return_cells:
            return output, self._hx_from(state)
        whole = output.data if isinstance(output, PackedSequence) else output
        D = len(self._directions)
        parts = whole.split([D * self._output_size, D * self.hidden_size], -1)
        kinds = [PackedSequence(part, *output[1:]) if isinstance(output, PackedSequence) else part for part in parts]
        return kinds[0], self._hx_from(state), kinds[1]

    if TYPE_CHECKING:

        @overload
        def __call__(
            self,
            input: Tensor,
            hx: State | None = None,
            *,
            lengths: Tensor | list[int] | None = None,
            reset: Tensor | None = None,
            reset_hx: State | None = None,
            mask: Tensor | None = None,
            return_cells: Literal[False] = False,
        ) -> tuple[Tensor, State]: ...
        @overload
        def __call__(
            self,
            input: PackedSequence,
            hx: State | None = None,
            *,
            reset: Tensor | None = None,
            reset_hx: State | None = None,
            return_cells: Literal[False] = False,
        ) -> tuple[PackedSequence, State]: ...
        @overload
        def __call__(
            self,
            input: Tensor,
            hx: State | None = None,
            *,
            lengths: Tensor | list[int] | None = None,
            reset: Tensor | None = None,
            reset_hx: State | None = None,
            mask: Tensor | None = None,
            return_cells: Literal[True],
        ) -> tuple[Tensor, State, Tensor]: ...
        @overload
        def __call__(
            self,
            input: PackedSequence,
            hx: State | None = None,
            *,
            reset: Tensor | None = None,
            reset_hx: State | None = None,
            return_cells: Literal[True],
        ) -> tuple[PackedSequence, State, PackedSequence]: ...
        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


class LSTMCell(RecurrentCell[State]):
    r"""One step of `LSTM`; takes the place of `torch.nn.LSTMCell`: the same arguments, shapes and state-dict keys, plus
    the gains.

    Args:
        input_size, hidden_size, bias, device, dtype: as `torch.nn.LSTMCell`.
        norm, formula, eps, gain_init, gate_clip: without ``"batch"`` as in `LSTM`.
        forget_bias, zoneout: as in `LSTM`. Recurrent dropout has one mask a sequence, of which a cell knows nothing.

    Shapes: input ``(B, I)`` or ``(I,)``; state and result ``(B, H)`` or ``(H,)``, ``h`` and ``c``.
    """

    network = "LSTM"

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
        zoneout: float | tuple[float, float] = 0.0,
        gate_clip: float | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, bias=bias, device=device, dtype=dtype, norm=norm, formula=formula, eps=eps,
            gain_init=gain_init, zoneout=zoneout, forget_bias=forget_bias, gate_clip=gate_clip,
        )  # fmt: skip
