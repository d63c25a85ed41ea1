"""How other libraries lay out the weights of their layer-normalised networks: data, one row for each network.

Reading and writing go through the same row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from ..formula import Network, unknown

ORDER: Mapping[str, str] = {"LSTM": "ifgo", "GRU": "rzn"}
"""The gates in layernorm's order, which is torch's."""

ARGUMENTS: Mapping[str, tuple[str, int]] = {
    "eps": ("eps", 1),
    "forget_bias": ("forget_bias", 1),
    "update_bias": ("forget_bias", -1),
}
"""Arguments that a library's network may have, each with the field of `Formula` that it sets and its sign there."""


@dataclass(frozen=True)
class Entry:
    """What one array of a library holds.

    Args:
        parts: layernorm's parameters, side by side. ``"a + b"`` is a sum: when it is read, it goes into ``a``, and
            ``b`` becomes 0. Where several arrays hold one parameter, the parameter is their sum. When it is written, it
            goes into the first of these arrays that is not optional.
        gates: the gates whose units the array has; ``""`` for all.
        optional: whether the array may be missing. It is then zeros.
        negated: the gates whose units have the opposite sign in the array.
    """

    parts: tuple[str, ...]
    gates: str = ""
    optional: bool = False
    negated: str = ""

    @property
    def weight(self) -> bool:
        return self.parts[0].startswith("weight")


@dataclass(frozen=True)
class Library:
    """How a library lays out one layer and direction of a network.

    Args:
        preset, network: the preset's name and ``"LSTM"`` or ``"GRU"``.
        order: the gates in the library's order, by torch's letters. ``g`` (in TensorFlow ``j`` or ``c``) and ``n`` are
            the candidates.
        transposed: whether the library's weights are (in, G*H), not (G*H, in).
        entries: the library's arrays by name.
        free: which of `ARGUMENTS` the library has.
        name: the library's name, where another library's weights have that of the preset.
    """

    preset: str
    network: Network
    order: str
    transposed: bool
    entries: Mapping[str, Entry]
    free: tuple[str, ...] = ()
    name: str = ""

    def gates(self, entry: Entry) -> str:
        """Returns the gates of an array in the library's order; none where the array belongs to the cell."""
        return "" if entry.parts[0].endswith("_c") else entry.gates or self.order

    def shapes(self, I: int, H: int) -> dict[str, tuple[int, ...]]:  # noqa: E741
        """Names and shapes of the arrays of one layer and direction: input size I, H units."""
        shapes: dict[str, tuple[int, ...]] = {}
        for key, entry in self.entries.items():
            units = H if entry.parts[0].endswith("_c") else len(self.gates(entry)) * H
            if entry.weight:
                size = sum({"weight_ih": I, "weight_hh": H}[part] for part in entry.parts)
                shapes[key] = (size, units) if self.transposed else (units, size)
            else:
                shapes[key] = (units,) if len(entry.parts) == 1 else (len(entry.parts), units)
        return shapes

    def blocks(self, key: str, array: Tensor) -> Iterator[tuple[str, slice, Tensor, int]]:
        """Splits an array into views of H units each, (H, in) or (H,): the part, its rows, the view of these, and its
        sign."""
        entry = self.entries[key]
        if entry.weight:
            matrix = array.T if self.transposed else array
            H, size = matrix.shape[0] // len(self.gates(entry)), matrix.shape[1]
            columns = {"weight_ih": size - H, "weight_hh": H} if len(entry.parts) == 2 else {entry.parts[0]: size}
            pieces = matrix.split([columns[part] for part in entry.parts], 1)
        else:
            pieces = array.unbind() if len(entry.parts) > 1 else (array,)
        for part, piece in zip(entry.parts, pieces, strict=True):
            gates = self.gates(entry)
            H = len(piece) // (len(gates) or 1)
            if not gates:
                yield part, slice(None), piece, 1
            for k, gate in enumerate(gates):
                row = ORDER[self.network].index(gate) * H
                yield part, slice(row, row + H), piece[k * H : (k + 1) * H], -1 if gate in entry.negated else 1


def _entries(**parts: str) -> dict[str, Entry]:
    return {key: Entry((part,)) for key, part in parts.items()}


def _affine(separator: str, gain: str, bias: str, **norms: str) -> dict[str, Entry]:
    """Makes the entries of normalisations. ``norms`` gives for each of the library's names the suffix of layernorm's
    parameters; ``gain`` and ``bias`` are the library's words for these."""
    return {
        f"{norm}{separator}{theirs}": Entry((f"{ours}_{suffix}",))
        for norm, suffix in norms.items()
        for theirs, ours in ((gain, "gain"), (bias, "bias"))
    }


_TF1_SCOPES = {"input": "i", "transform": "g", "forget": "f", "output": "o"}

LIBRARIES = (
    # The authors' Theano program: lnlstm_layer, lngru_layer.
    Library(
        *("kiros", "LSTM", "ifog"),
        transposed=True,
        entries=_entries(
            W="weight_ih",
            b="bias_ih",
            U="weight_hh",
            b1="norm_bias_ih",
            b2="norm_bias_hh",
            b3="bias_c",
            s1="gain_ih",
            s2="gain_hh",
            s3="gain_c",
        ),
    ),
    Library(
        *("kiros", "GRU", "rzn"),
        transposed=True,
        entries={
            key: Entry((part,), gates)
            for gates, row in (
                ("rz", {"W": "weight_ih", "b": "bias_ih", "U": "weight_hh"}),
                ("n", {"Wx": "weight_ih", "bx": "bias_ih", "Ux": "weight_hh"}),
                ("rz", {"b1": "norm_bias_ih", "b3": "norm_bias_hh", "s1": "gain_ih", "s3": "gain_hh"}),
                ("n", {"b2": "norm_bias_ih", "b4": "norm_bias_hh", "s2": "gain_ih", "s4": "gain_hh"}),
            )
            for key, part in row.items()
        },
    ),
    # haste_pytorch.LayerNormLSTM. Its forget_bias is an initial value of bias.
    Library(
        *("haste", "LSTM", "igfo"),
        transposed=True,
        entries={
            **_entries(kernel="weight_ih", recurrent_kernel="weight_hh", bias="bias_ih + bias_hh"),
            "gamma": Entry(("gain_ih", "gain_hh")),
            **_entries(gamma_h="gain_c", beta_h="bias_c"),
        },
    ),
    # haste_pytorch.LayerNormGRU.
    Library(
        *("haste", "GRU", "zrn"),
        transposed=True,
        entries={
            **_entries(kernel="weight_ih", recurrent_kernel="weight_hh", bias="bias_ih", recurrent_bias="bias_hh"),
            "gamma": Entry(("gain_ih", "gain_hh")),
        },
    ),
    # LayerNormLSTMCell of PyTorch's benchmarks/fastrnns and of NVIDIA NeMo. decompose_layernorm=True means eps=0.
    Library(
        *("torchscript", "LSTM", "ifgo"),
        transposed=False,
        free=("eps",),
        entries={
            **_entries(weight_ih="weight_ih", weight_hh="weight_hh"),
            **_affine(".", "weight", "bias", layernorm_i="ih", layernorm_h="hh", layernorm_c="c"),
        },
    ),
    # _CustomLSTM(layer_norm=True) of torchaudio.models.rnnt.
    Library(
        *("torchaudio", "LSTM", "ifgo"),
        transposed=False,
        free=("eps",),
        entries={
            "x2g.weight": Entry(("weight_ih",)),
            "p2g.weight": Entry(("weight_hh",)),
            "g_norm.weight": Entry(("gain",)),
            "g_norm.bias": Entry(("bias_ih",)),
            **_affine(".", "weight", "bias", c_norm="c"),
        },
    ),
    # tfa.rnn.LayerNormLSTMCell, by the names of its attributes. Under use_bias=False it has no bias. Only the sum of
    # its three biases has an effect.
    Library(
        *("keras", "LSTM", "ifgo"),
        transposed=True,
        free=("eps",),
        entries={
            **_entries(kernel="weight_ih", recurrent_kernel="weight_hh"),
            "bias": Entry(("bias_ih",), optional=True),
            **_affine("/", "gamma", "beta", kernel_norm="ih", recurrent_norm="hh", state_norm="c"),
        },
    ),
    # tf.contrib.rnn.LayerNormBasicLSTMCell. Its eps is 1e-3 in float16.
    Library(
        *("tf1", "LSTM", "igfo"),
        transposed=True,
        free=("eps", "forget_bias"),
        entries={
            "kernel": Entry(("weight_ih", "weight_hh")),
            **{f"{scope}/gamma": Entry(("gain",), gate) for scope, gate in _TF1_SCOPES.items()},
            **{f"{scope}/beta": Entry(("bias_ih + bias_hh",), gate) for scope, gate in _TF1_SCOPES.items()},
            **_affine("/", "gamma", "beta", state="c"),
        },
    ),
    # Sonnet 1's snt.LSTM(use_layer_norm=True).
    Library(
        *("sonnet", "LSTM", "igfo"),
        transposed=True,
        free=("forget_bias",),
        entries={
            "w_gates": Entry(("weight_ih", "weight_hh")),
            "b_gates": Entry(("bias_hh",)),
            "layer_norm/gamma": Entry(("gain",)),
            "layer_norm/beta": Entry(("bias_ih",)),
        },
    ),
    # DreamerV2's GRUCell(norm=True), by the names of its Dense's and LayerNormalization's variables. Its update gate is
    # sigmoid(a + update_bias), and z = 1 - update = sigmoid(-a - update_bias): z's gain and bias change sign. Its
    # weights do not, as its summed inputs are normalised together with those of the other gates.
    Library(
        *("dreamer", "GRU", "rnz"),
        transposed=True,
        free=("update_bias",),
        entries={
            "kernel": Entry(("weight_ih", "weight_hh")),
            "bias": Entry(("bias_ih",)),
            "gamma": Entry(("gain",), negated="z"),
            "beta": Entry(("norm_bias",), negated="z"),
        },
    ),
    # GRUCell of dreamerv3-torch (github.com/NM512/dreamerv3-torch), and LayerNormGRUCell of sheeprl's DreamerV3
    # (github.com/Eclectic-Sheep/sheeprl), which multiplies [h, x] and has no update_bias. Signs as in DreamerV2.
    Library(
        *("dreamerv3", "GRU", "rnz"),
        transposed=False,
        free=("update_bias",),
        entries={
            "GRU_linear.weight": Entry(("weight_ih", "weight_hh")),
            "GRU_norm.weight": Entry(("gain",), negated="z"),
            "GRU_norm.bias": Entry(("bias_ih",), negated="z"),
        },
    ),
    Library(
        *("dreamerv3", "GRU", "rnz"),
        transposed=False,
        name="sheeprl",
        entries={
            "linear.weight": Entry(("weight_hh", "weight_ih")),
            "layer_norm.weight": Entry(("gain",), negated="z"),
            "layer_norm.bias": Entry(("bias_ih",), negated="z"),
        },
    ),
)


ALIASES: Mapping[str, str] = {"nemo": "torchscript", "tfa": "keras"}
"""Names of libraries that have the preset of another library."""


def library(name: object, network: str | None) -> Library:
    """Finds the row of a library's network; None is the library's first. The ValueError for none says which there
    are."""
    rows = rows_of(name)
    if not rows:
        raise ValueError(unknown("formula", name, sorted({row.name or row.preset for row in LIBRARIES} | set(ALIASES))))
    if network is None:
        return next(iter(rows.values()))
    if not isinstance(network, str) or network not in rows:
        raise ValueError(f"{name!r} has weights of {' and '.join(rows)}, not of {network}")
    return rows[network]


def rows_of(name: object) -> dict[str, Library]:
    """Returns the rows of a library, by network."""
    name = ALIASES.get(name, name) if isinstance(name, str) else name
    return {row.network: row for row in LIBRARIES if (row.name or row.preset) == name}
