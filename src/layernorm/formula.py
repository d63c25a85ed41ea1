"""Where the normalisations sit in one step of a recurrent network: data, no arithmetic.

A `Formula` says where they sit, for any network. `PRESETS` has formulas by name, nearly all of them published. A
`Recurrence` is a formula with everything else that determines a layer's equations. It derives, once for every engine,
which parameters stand where (`Places`), which gates are normalised together (`spans`), and the parameters' names and
shapes.
"""

from __future__ import annotations

import difflib
import functools
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Literal, NamedTuple

Network = Literal["RNN", "LSTM", "GRU"]
GATES: Mapping[str, int] = {"RNN": 1, "LSTM": 4, "GRU": 3}
"""G: how many blocks of H units the summed inputs have; torch's order (LSTM i, f, g, o; GRU r, z, n)."""

CACHED = 1024
"""How many kinds of call a cache remembers, the last ones. A search over eps or clips makes new ones without end."""

CHOICES = {
    "gates": ("split", "hidden", "sum", None),
    "span": ("joint", "per_gate", "all"),
    "cell": ("output", "carry", None),
    "eps_on": ("variance", "deviation"),
    "biases": ("both", "input"),
    **dict.fromkeys(("bias_inside", "gate_bias", "cell_bias", "bias_again"), (False, True)),
}


@dataclass(frozen=True, repr=False)
class Formula:
    r"""Where the normalisations of one step sit, in fields that are independent of each other.

    The defaults are the paper's LSTM. Below, ``N(z)`` is the normalisation of a vector (to mean 0 and deviation 1),
    ``W`` is ``weight_ih``, ``U`` is ``weight_hh``, ``x`` the input and ``h`` the previous output. ``LN`` is ``N`` with
    its gain and bias.

    Args:
        gates: how the summed inputs of the gates are normalised. ``"split"``: ``N(W x) * gain_ih + N(U h) * gain_hh``.
            ``"hidden"``: ``W x + N(U h) * gain_hh``, so that the size of the input is kept. ``"sum"``:
            ``N(W x + U h) * gain``; in a GRU the candidate is then ``tanh(N(W_n x + r * U_n h))``. ``None``: they are
            not normalised, and have torch's biases.
        span: what one normalisation runs over. ``"joint"``: the units of all gates together, but in a GRU r and z
            together and n by itself. ``"per_gate"``: each gate's H units. ``"all"``: in a GRU r, z and n together, in
            other networks the same as ``"joint"``. In a GRU with ``gates="sum"`` and ``span="all"`` the candidate is
            ``tanh(r * (N(W x + U h) * gain + bias)_n)``.
        cell: LSTM only. ``"output"``: ``h = o * tanh(LN(c))``, and ``c`` itself is carried on to the next step.
            ``"carry"``: ``LN(c)`` is carried on as well. ``None``: ``c`` is not normalised.
        bias_inside: ``False``: ``bias_ih`` and ``bias_hh`` are added after the normalisations. ``True``: they are added
            to the summed inputs before them, and the normalisations have biases of their own (``norm_bias_*``).
        gate_bias: whether the normalisations of the gates have additive biases.
        cell_bias: LSTM only. Whether the normalisation of the cell has an additive bias.
        eps: a finite number >= 0 that keeps the denominator from zero.
        eps_on: what eps is added to. ``"variance"``: ``(z - mean) / sqrt(var + eps)``. ``"deviation"``:
            ``(z - mean) / (sqrt(var) + eps)``.
        forget_bias: a constant that is added at every step to the summed input of the gate that keeps the old state:
            an LSTM's f, a GRU's z.
        biases: ``"both"``: there are ``bias_ih`` and ``bias_hh``. ``"input"``: there is only ``bias_ih``.
        bias_again: with ``bias_inside``, whether ``bias_ih`` is added once more after the normalisation of ``W x`` or
            of the sum.

    Raises:
        ValueError: a field has a value that is not listed above, ``eps`` is negative, ``eps`` or ``forget_bias`` is not
            finite, or ``bias_again`` comes without ``bias_inside`` or with ``gates="hidden"``.
        TypeError: ``eps`` or ``forget_bias`` is no number.

    Source: the formulas of `PRESETS`, most of them published by the paper or library that is named there.
    """

    gates: Literal["split", "hidden", "sum"] | None = "split"
    span: Literal["joint", "per_gate", "all"] = "joint"
    cell: Literal["output", "carry"] | None = "output"
    bias_inside: bool = False
    gate_bias: bool = True
    cell_bias: bool = True
    eps: float = 1e-5
    eps_on: Literal["variance", "deviation"] = "variance"
    forget_bias: float = 0.0
    biases: Literal["both", "input"] = "both"
    bias_again: bool = False

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"Formula: {name} must be one of {list(allowed)}, got {value!r}")
            object.__setattr__(self, name, allowed[allowed.index(value)])  # equal formulas have one text: True, not 1
        for name in ("eps", "forget_bias"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise TypeError(f"Formula: {name} must be a number, got {type(value).__name__}")
            object.__setattr__(self, name, float(value) + 0.0)  # 0.0, not 0 or -0.0
        if not 0 <= self.eps < math.inf:
            raise ValueError(f"Formula: eps must be a finite number >= 0, got {self.eps!r}")
        if not abs(self.forget_bias) < math.inf:
            raise ValueError(f"Formula: forget_bias must be finite, got {self.forget_bias!r}")
        if self.bias_again and not self.bias_inside:
            raise ValueError("Formula: bias_again=True needs bias_inside=True, got bias_inside=False")
        if self.bias_again and self.gates == "hidden":
            raise ValueError("Formula: bias_again=True needs a norm of W x or of the sum, got gates='hidden'")

    def __repr__(self) -> str:
        """Returns Python code that makes an equal formula: the fields that are not at their defaults."""
        names = [field.name for field in fields(self) if field.name in self.changed]
        return f"Formula({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    @property
    def changed(self) -> frozenset[str]:
        """The names of the fields that are not at their defaults."""
        return frozenset(field.name for field in fields(self) if getattr(self, field.name) != field.default)


PLAIN = Formula(gates=None, cell=None)
"""No normalisation at all: torch's own equations."""

_TWO_AFFINE = Formula(gates="split", cell="carry")

PRESETS: Mapping[str, Mapping[Network, Formula]] = {
    # Eq. 4 (RNN), eqs. 20-22 (LSTM), eqs. 26-28 (GRU).
    "paper": {
        "RNN": Formula(gates="sum", cell=None),
        "LSTM": Formula(gates="split", cell="output"),
        "GRU": Formula(gates="split", cell=None),
    },
    # Eqs. 29-31 (DRAW, section 6.4): only the cell on its way to h.
    "cell": {"LSTM": Formula(gates=None, cell="output")},
    # Nobody's publication: one norm of W x + U h in every network, and nothing else. In an RNN it is the paper's.
    "sum": {network: Formula(gates="sum", cell=None) for network in ("LSTM", "GRU", "RNN")},
    # The authors' own program (lnlstm_layer, lngru_layer): a bias inside LN(W x), which the LSTM adds again outside.
    "kiros": {
        "LSTM": Formula(gates="split", cell="output", bias_inside=True, biases="input", bias_again=True),
        "GRU": Formula(gates="split", cell=None, bias_inside=True, biases="input"),
    },
    # Haste's LayerNormLSTM is LN(W x) + LN(R h) + b, where LN has a gain only. The two biases of "split" add up to b.
    # Haste's LayerNormGRU normalises all 3H units, with a bias on either side, so that r multiplies LN(R h) + its bias.
    "haste": {
        "LSTM": Formula(gates="split", cell="output"),
        "GRU": Formula(gates="split", span="all", cell=None),
    },
    # PyTorch's fastrnns benchmark (LayerNormLSTMCell), also in NVIDIA NeMo.
    "torchscript": {"LSTM": _TWO_AFFINE},
    # The LSTM in the predictor of torchaudio's RNN-T models (_CustomLSTM with layer_norm=True).
    "torchaudio": {"LSTM": Formula(gates="sum", cell="carry", biases="input")},
    # TensorFlow Addons' LayerNormLSTMCell. Its unit forget bias is an initial value of b, not a constant.
    "keras": {"LSTM": replace(_TWO_AFFINE, eps=1e-3)},
    # tf.contrib.rnn.LayerNormBasicLSTMCell.
    "tf1": {"LSTM": Formula(gates="sum", span="per_gate", cell="carry", eps=1e-12, forget_bias=1.0)},
    # Sonnet's LSTM with use_layer_norm=True.
    "sonnet": {"LSTM": Formula(gates="sum", cell=None, forget_bias=1.0)},
    # DreamerV2's GRUCell with norm=True. Its update gate is 1 - z, so that its update_bias=-1 is forget_bias=1 here.
    "dreamer": {
        "GRU": Formula("sum", "all", cell=None, bias_inside=True, biases="input", eps=1e-3, forget_bias=1.0),
    },
    # DreamerV3's, in ports to PyTorch: the same without the bias inside the normalisation.
    "dreamerv3": {"GRU": Formula("sum", "all", cell=None, biases="input", eps=1e-3, forget_bias=1.0)},
}
"""Formulas by name. All but `sum` are published, each for the networks that it was published for."""


def unknown(what: str, given: object, known: list[str]) -> str:
    """Writes the message for a name that is not in a list: the list, the name given, and the nearest known name."""
    near = difflib.get_close_matches(str(given).lower(), known, n=1, cutoff=0.5)
    return f"{what} must be one of {known}, got {given!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def resolve(formula: str | Formula, network: Network, eps: float | None = None) -> Formula:
    """Returns the `Formula` that a constructor's ``formula=`` and ``eps=`` mean for one network.

    Raises:
        TypeError: ``formula`` is neither a name nor a `Formula`, or ``eps`` is no number.
        ValueError: no preset has that name; or the preset is not defined for this network; or the formula normalises
            nothing in it; or it has a ``forget_bias`` and the network is an RNN.
    """
    if isinstance(formula, str):
        if formula not in PRESETS:
            raise ValueError(unknown("formula", formula, sorted(PRESETS)))
        if network not in PRESETS[formula]:
            known = sorted(PRESETS[formula])
            raise ValueError(f"formula {formula!r} is defined for {', '.join(known)}, not for {network}")
        formula = PRESETS[formula][network]
    elif not isinstance(formula, Formula):
        raise TypeError(f"formula must be a preset's name or a Formula, got {type(formula).__name__}")
    if network == "RNN" and formula.forget_bias:
        raise ValueError(f"forget_bias={formula.forget_bias} needs an LSTM or GRU; RNN has no forget gate")
    if network != "LSTM":
        formula = replace(formula, cell=None)
    if formula.gates is None and formula.cell is None:
        raise ValueError(f"the formula normalises nothing in {network}; pass norm=None for a plain network")
    if eps is None:
        return formula
    try:
        number = eps if isinstance(eps, bool) else float(eps)  # `Formula` refuses a bool
    except (TypeError, ValueError):
        raise TypeError(f"eps must be a number, got {type(eps).__name__}") from None
    return replace(formula, eps=number)


QUANTIZED = ("weight_ih", "weight_hh")
"""The weights that are int8 in a quantized network."""


class Place(NamedTuple):
    """A place in one step where a normalisation may sit: ``y = N(z + inside) * gain + outside``.

    The fields are names of parameters, or `None` where there is no such term. ``outside`` names several, whose sum is
    added. Without a gain nothing is normalised: ``y = z + inside + outside``.
    """

    gain: str | None = None
    inside: str | None = None
    outside: tuple[str, ...] = ()


class Places(NamedTuple):
    """The places of one step.

    The summed inputs of the gates are ``both(input(W x) + hidden(U h))``. In an LSTM ``h = o * tanh(cell(c))``.
    """

    input: Place
    hidden: Place
    both: Place
    cell: Place = Place()


class VectorTerms(NamedTuple):
    """`Places` as the kernels take them: for each of eight vectors, the names of the parameters that it is the sum of.

    ``x`` is the side of ``W x``, ``h`` that of ``U h``. Where the sum of both sides is normalised (``both``), its gain
    is in ``gain_x`` and its biases are in ``outside_x`` and ``outside_h``.
    """

    gain_x: tuple[str, ...]
    gain_h: tuple[str, ...]
    inside_x: tuple[str, ...]
    inside_h: tuple[str, ...]
    outside_x: tuple[str, ...]
    outside_h: tuple[str, ...]
    gain_c: tuple[str, ...]
    bias_c: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Recurrence:
    """The equations of one layer in one direction: everything that determines them and is not a tensor.

    Args:
        network: ``"RNN"``, ``"LSTM"`` or ``"GRU"``.
        formula: where the normalisations sit; `PLAIN` for none.
        norm: what a normalisation is: ``"layer"`` (mean and deviation over the units), ``"rms"`` (root mean square over
            the units) or ``"batch"`` (mean and deviation over the training cases).
        bias: whether there are additive biases at all.
        projected: LSTM only. Whether ``h`` is projected by ``weight_hr``.
        nonlinearity: RNN only. ``"tanh"`` or ``"relu"``.
        gate_clip: LSTM only. In the backward pass, the gradients with respect to the gates' summed inputs (before
            sigmoid and tanh) are clipped to ``+-gate_clip``.
        bfloat16_products: float32 only. Whether an engine may round what its products multiply to bfloat16.
        quantized: whether ``weight_ih`` and ``weight_hh`` are int8, with a scale for each row. The vectors that they
            multiply are then also rounded to int8, each with its own scale. There is no gradient.
    """

    network: Network
    formula: Formula = PLAIN
    norm: Literal["layer", "rms", "batch"] = "layer"
    bias: bool = True
    projected: bool = False
    nonlinearity: Literal["tanh", "relu"] = "tanh"
    gate_clip: float = math.inf
    bfloat16_products: bool = False
    quantized: bool = False

    encoded: str = field(init=False, repr=False, compare=False)
    """This recurrence as a string, for an op's schema. `decode` is the inverse."""

    def __post_init__(self) -> None:
        vars(self)["encoded"] = json.dumps({**vars(self), "formula": asdict(self.formula)}, separators=(",", ":"))

    def __hash__(self) -> int:
        return hash(self.encoded)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recurrence) and self.encoded == other.encoded

    @functools.cached_property
    def parameter_names(self) -> tuple[str, ...]:
        """The parameters in the order in which the ops take them: torch's own first, in torch's order."""
        return tuple(self.parameter_shapes(1, 1))

    @property
    def plain(self) -> Recurrence:
        """The same network without normalisation: torch's equations, with those of torch's biases that this one has."""
        formula = Formula(gates=None, cell=None, biases=self.formula.biases, forget_bias=self.formula.forget_bias)
        return replace(self, formula=formula, norm="layer", bias="bias_ih" in self.parameter_names)

    @property
    def gain_names(self) -> tuple[str, ...]:
        """The gains, one for each normalisation."""
        return tuple(place.gain for place in self.places if place.gain is not None)

    @property
    def state_names(self) -> tuple[str, ...]:
        """What is carried from step to step: ``h``, and in an LSTM ``c``."""
        return ("h", "c") if self.network == "LSTM" else ("h",)

    @property
    def places(self) -> Places:
        """Which parameter stands where. A parameter that is named in two places is added in both."""
        f = self.formula
        inside = f.gates is None or f.bias_inside  # whether torch's own biases are inside
        torch_biases = ("bias_ih", "bias_hh" if f.biases == "both" else None)
        x, h = torch_biases if self.bias and (inside or f.gate_bias) else (None, None)
        norm_biases = self.bias and f.bias_inside and f.gate_bias  # the normalisations have biases, too
        again = x if f.bias_again else None
        cell = Place()
        if f.cell is not None:
            cell = Place("gain_c", None, _names("bias_c" if self.bias and f.cell_bias else None))
        if f.gates is None:
            return Places(Place(inside=x), Place(inside=h), Place(), cell)
        if f.gates == "sum":
            if inside:
                outside = _names("norm_bias" if norm_biases else None, again)
                return Places(Place(inside=x), Place(inside=h), Place("gain", None, outside), cell)
            return Places(Place(), Place(), Place("gain", None, _names(x, h)), cell)
        if inside:
            input = Place("gain_ih", x, _names("norm_bias_ih" if norm_biases else None, again))
            hidden = Place("gain_hh", h, _names("norm_bias_hh" if norm_biases else None))
        else:
            input, hidden = Place("gain_ih", None, _names(x)), Place("gain_hh", None, _names(h))
        return Places(input if f.gates == "split" else Place(None, None, _names(x)), hidden, Place(), cell)

    @property
    def vectors(self) -> VectorTerms:
        """`places` as the kernels take them."""
        input, hidden, both, cell = self.places
        gain, first, second = input.gain, input.outside, hidden.outside
        if both.gain is not None:
            gain, first, second = both.gain, both.outside[:1], both.outside[1:]
        sides = (_names(gain), _names(hidden.gain), _names(input.inside), _names(hidden.inside), first, second)
        return VectorTerms(*sides, _names(cell.gain), cell.outside)

    @property
    def added_biases(self) -> tuple[str, ...]:
        """The biases that are added to the gates' summed inputs outside of every normalisation."""
        input, hidden, both, _ = self.places
        places = [both] if both.gain is not None else [input, hidden]
        return _names(*(x for p in places for x in (None if p.gain else p.inside, *p.outside)))

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The first gate and the end (exclusive) of each group of gates that is normalised together."""
        gates = GATES[self.network]
        joint = 2 if self.network == "GRU" else gates  # in a GRU r and z together, n by itself
        step = {"joint": joint, "per_gate": 1, "all": gates}[self.formula.span if self.formula.gates else "joint"]
        return tuple((first, min(first + step, gates)) for first in range(0, gates, step))

    @property
    def loses_size(self) -> bool:
        """Whether W x is normalised by itself, so that all that is left of an input is its direction."""
        inside = self.formula.bias_inside and self.bias
        return self.formula.gates == "split" and not inside and self.norm != "batch"

    def norms_of_one_unit(self, H: int) -> list[str]:
        """Names what is normalised over a single unit in a layer of ``H`` units."""
        if H != 1:
            return []
        gates = self.formula.gates is not None and any(end - first == 1 for first, end in self.spans)
        names = {"RNN": "the summed input", "GRU": "the candidate", "LSTM": "each gate"}
        return [names[self.network]] * gates + ["the cell"] * (self.formula.cell is not None)

    @property
    def reset_multiplies(self) -> Literal["hidden", "product", "sum"] | None:
        """What a GRU's r multiplies in its candidate. `None` in other networks.

        ``"hidden"``: the normalised side of U h. ``"product"``: U h, before the sum is normalised. ``"sum"``: the
        normalised sum, because r, z and n are normalised together and r is not known before that.
        """
        if self.network != "GRU":
            return None
        if self.formula.gates != "sum":
            return "hidden"
        return "sum" if len(self.spans) == 1 else "product"

    def parameter_shapes(self, I: int, H: int, P: int | None = None) -> dict[str, tuple[int, ...]]:  # noqa: E741
        """Returns names and shapes of the parameters: input size ``I``, ``H`` units, projections of size ``P``."""
        units, gates = GATES[self.network] * H, self.places[:3]
        biases = [name for place in gates for name in _names(place.inside, *place.outside)]
        torch_biases = [name for name in ("bias_ih", "bias_hh") if name in biases]
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (units, I), "weight_hh": (units, P or H)}
        shapes |= dict.fromkeys(torch_biases, (units,))
        if self.projected:
            shapes["weight_hr"] = (P or H, H)
        shapes |= {place.gain: (units,) for place in gates if place.gain is not None}
        shapes |= {name: (units,) for name in biases if name not in torch_biases}
        shapes |= dict.fromkeys(_names(self.places.cell.gain, *self.places.cell.outside), (H,))
        if self.quantized:  # last, as `functional` and engines expect it
            shapes |= {f"{name}_scale": (units,) for name in QUANTIZED}
        return shapes

    @staticmethod
    @functools.lru_cache(CACHED)
    def decode(text: str) -> Recurrence:
        fields = json.loads(text)
        return Recurrence(**fields | {"formula": Formula(**fields["formula"])})


def _names(*names: str | None) -> tuple[str, ...]:
    """Returns the names that are not None."""
    return tuple(name for name in names if name is not None)
