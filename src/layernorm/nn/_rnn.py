"""`RNN`: torch's `torch.nn.RNN` with layer normalisation, and its cell."""

from __future__ import annotations

import torch
from torch import Tensor

from ..formula import Formula
from ._cell import RecurrentCell
from ._gains import GainInit
from ._population import Norm
from ._recurrent import Recurrent


class RNN(Recurrent[Tensor]):
    r"""A recurrent network with layer normalisation, eq. 4.

    .. math::
        h_t = f(\mathrm{LN}(W_{ih} x_t + W_{hh} h_{t-1};\; gain,\; bias_{ih} + bias_{hh})),
        \qquad f = \tanh \text{ or relu}

    Takes the place of `torch.nn.RNN`: the same arguments, inputs, outputs and state-dict keys, plus the gains. A
    `torch.nn.RNN` state dict loads with ``strict=False``.

    Args:
        input_size, hidden_size, num_layers, nonlinearity, bias, batch_first, dropout, bidirectional, device, dtype:
            as `torch.nn.RNN`.
        norm: the kind of normalisation. ``"layer"``: by mean and deviation over the units, as in the paper. ``"rms"``:
            by the root mean square over the units. ``"batch"``: by mean and deviation over the training cases at each
            time step (Cooijmans et al. 2016); a `BatchNormOverTime` instead of the name has its settings.
            ``"weight"``: the rows of the weight matrices are normalised instead of the summed inputs (Salimans, Kingma
            2016). ``None``: torch's equations, without normalisation.
        formula: where the normalisations sit: a preset's name (`layernorm.formula.PRESETS`) or a `layernorm.Formula`.
        eps: overrides the formula's ``eps``, which keeps the denominators from zero (1e-5 in ``"paper"``).
        gain_init: the initial values of the gains. ``None``: 1; under batch norm 0.1 (Cooijmans et al.); under weight
            norm the norm of each weight row as torch draws it. A number is for every gain. A mapping has values for
            some gains by name; the others start as with ``None``. ``"steady"``: as in `LSTM`; the paper's RNN, which
            has one norm of ``W_ih x + W_hh h``, is refused. ``"match"``, for all gains or in a mapping: the network
            starts with vectors of the same size as the plain network, which normalises nothing. Each gain is the mean
            of what its normalisation would divide by there. It is computed for inputs from N(0, 1) that are independent
            over features and time, without dropout and zoneout. For such inputs `layernorm.match` measures the same
            within 5 % in the lowest layer, and within 15 % above it, in the mean over draws of 64 units and more. For
            other inputs use `layernorm.match`.
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
    ``_l{k}_reverse``: ``weight_ih (H, I)``, ``weight_hh (H, H)``, ``bias_ih``, ``bias_hh``, ``gain (H)``. I is the
    input size and H the hidden size. The biases belong to the normalisations, and start as torch draws them.

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
        norm: Norm = "layer",
        formula: str | Formula = "paper",
        eps: float | None = None,
        gain_init: GainInit = None,
        recurrent_dropout: float = 0.0,
        zoneout: float = 0.0,
        variational: bool = False,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers=num_layers, bias=bias, batch_first=batch_first, dropout=dropout,
            bidirectional=bidirectional, nonlinearity=nonlinearity, device=device, dtype=dtype, norm=norm,
            formula=formula, eps=eps, gain_init=gain_init,
            recurrent_dropout=recurrent_dropout, zoneout=zoneout, variational=variational,
        )  # fmt: skip
        self.nonlinearity = nonlinearity

    def _follow_attributes(self) -> None:
        self._set_nonlinearity(self.nonlinearity)


class RNNCell(RecurrentCell[Tensor]):
    r"""One step of `RNN`.

    Takes the place of `torch.nn.RNNCell`: the same arguments, shapes and state-dict keys, plus the gains.

    Args:
        input_size, hidden_size, bias, nonlinearity, device, dtype: as `torch.nn.RNNCell`.
        norm, formula, eps, gain_init: as in `RNN`. ``norm="batch"`` is refused: a cell does not know the time step.
        zoneout: as in `RNN`. There is no recurrent dropout: its mask belongs to a sequence, which a cell
            does not know.

    Shapes: the input is ``(B, I)`` or ``(I,)``. State and result are ``(B, H)`` or ``(H,)``.

    Raises:
        ValueError, TypeError: an argument has no meaning for this cell. The message names it.
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
        gain_init: GainInit = None,
        zoneout: float = 0.0,
    ) -> None:
        super().__init__(
            input_size, hidden_size, bias=bias, nonlinearity=nonlinearity, device=device, dtype=dtype, norm=norm,
            formula=formula, eps=eps, gain_init=gain_init, zoneout=zoneout,
        )  # fmt: skip
        self.nonlinearity = nonlinearity

    def _follow_attributes(self) -> None:
        self._set_nonlinearity(self.nonlinearity)
