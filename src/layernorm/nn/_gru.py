"""`GRU`: torch's `torch.nn.GRU` with layer normalisation, and its cell."""

from __future__ import annotations

import torch
from torch import Tensor

from ..formula import Formula
from ._cell import RecurrentCell
from ._gains import GainInit
from ._population import Norm
from ._recurrent import Recurrent


class GRU(Recurrent[Tensor]):
    r"""A gated recurrent unit network with layer normalisation, eqs. 26-28 (z keeps the old state, as in torch).

    .. math::
        (r, z) &= \sigma(\mathrm{LN}(W_{rz} x_t) + \mathrm{LN}(U_{rz} h_{t-1})) \\
        n &= \tanh(\mathrm{LN}(W_n x_t) + r\, \mathrm{LN}(U_n h_{t-1})) \\
        h_t &= (1 - z)\, n + z\, h_{t-1}

    Takes the place of `torch.nn.GRU`: the same arguments, inputs, outputs and state-dict keys, plus the gains. A
    `torch.nn.GRU` state dict loads with ``strict=False``.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as
            `torch.nn.GRU`.
        norm: the kind of normalisation. ``"layer"``: by mean and deviation over the units, as in the paper. ``"rms"``:
            by the root mean square over the units. ``"batch"``: by mean and deviation over the training cases at each
            time step (Cooijmans et al. 2016); a `BatchNormOverTime` instead of the name has its settings.
            ``"weight"``: the rows of the weight matrices are normalised instead of the summed inputs (Salimans, Kingma
            2016). ``None``: torch's equations, without normalisation.
        formula: where the normalisations sit: a preset's name (`layernorm.formula.PRESETS`) or a `layernorm.Formula`.
        eps: overrides the formula's ``eps``, which keeps the denominators from zero (1e-5 in ``"paper"``).
        gain_init: the initial values of the gains. ``None``: 1; under batch norm 0.1 (Cooijmans et al.); under weight
            norm the norm of each weight row as torch draws it. A number is for every gain. A mapping has values for
            some gains by name, such as ``{"gain_hh": 0.3}``; the others start as with ``None``. ``"steady"``: gradients
            do not grow over time. The gain of ``W_hh h`` is 0.6, and all others are 1. It needs a formula that
            normalises ``W_hh h`` by itself. ``"match"``, for all gains or in a mapping: the network starts with vectors
            of the same size as the plain network, which normalises nothing. Each gain is the mean of what its
            normalisation would divide by there. It is computed for inputs from N(0, 1) that are independent over
            features and time, without dropout and zoneout. For such inputs `layernorm.match` measures the same within
            5 % in the lowest layer, and within 15 % above it, in the mean over draws of 64 units and more. For other
            inputs use `layernorm.match`.
        forget_bias: the initial value of the learnable bias of z, the gate that keeps the old state. ``None``: the
            same as for the other biases. Where several biases are added to this gate, the first of them gets the value
            and the others start at 0, so that their sum is exactly this. The first is ``bias_ih``, or ``norm_bias`` or
            ``norm_bias_ih`` where ``bias_ih`` is inside a normalisation. The bias is trained, as Keras's unit forget
            bias and Haste's ``forget_bias`` are. A formula's ``forget_bias`` is a constant that is added as well.
        recurrent_dropout: the dropout probability, in training, of the h that ``W_hh`` reads. One mask is drawn for all
            time steps of a sequence, as in Keras (Gal, Ghahramani 2016).
        zoneout: the probability that a unit keeps its old value in a step (Krueger et al. 2016), as in Haste. In
            training it is drawn for each unit, case and step. In evaluation the new state is the expectation,
            ``zoneout * old + (1 - zoneout) * new``.
        variational: whether ``dropout``, which acts between layers, has one mask for all time steps (Gal, Ghahramani
            2016).

    Raises:
        ValueError, TypeError: an argument has no meaning for this network. The message names it.

    With ``formula="paper"`` each layer and direction has these parameters, with the suffix ``_l{k}`` or
    ``_l{k}_reverse``: ``weight_ih (3H, I)``, ``weight_hh (3H, H)``, ``bias_ih``, ``bias_hh``, ``gain_ih``,
    ``gain_hh (3H)``. I is the input size and H the hidden size. Gates are in torch's order r, z, n. The biases belong
    to the normalisations, and start as torch draws them.

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
        norm: Norm = "layer",
        formula: str | Formula = "paper",
        eps: float | None = None,
        gain_init: GainInit = None,
        forget_bias: float | None = None,
        recurrent_dropout: float = 0.0,
        zoneout: float = 0.0,
        variational: bool = False,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers=num_layers, bias=bias, batch_first=batch_first, dropout=dropout,
            bidirectional=bidirectional, device=device, dtype=dtype, norm=norm, formula=formula, eps=eps,
            gain_init=gain_init,
            recurrent_dropout=recurrent_dropout, zoneout=zoneout, variational=variational, forget_bias=forget_bias,
        )  # fmt: skip


class GRUCell(RecurrentCell[Tensor]):
    r"""One step of `GRU`.

    Takes the place of `torch.nn.GRUCell`: the same arguments, shapes and state-dict keys, plus the gains.

    Args:
        input_size, hidden_size, bias, device, dtype: as `torch.nn.GRUCell`.
        norm, formula, eps, gain_init: as in `GRU`. ``norm="batch"`` is refused: a cell does not know the time step.
        forget_bias, zoneout: as in `GRU`. There is no recurrent dropout: its mask belongs to a sequence, which a cell
            does not know.

    Shapes: the input is ``(B, I)`` or ``(I,)``. State and result are ``(B, H)`` or ``(H,)``.

    Raises:
        ValueError, TypeError: an argument has no meaning for this cell. The message names it.
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
        gain_init: GainInit = None,
        forget_bias: float | None = None,
        zoneout: float = 0.0,
    ) -> None:
        super().__init__(
            input_size, hidden_size, bias=bias, device=device, dtype=dtype, norm=norm, formula=formula, eps=eps,
            gain_init=gain_init, zoneout=zoneout, forget_bias=forget_bias,
        )  # fmt: skip
