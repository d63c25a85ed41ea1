"""`from_state`, `to_state`: weights of other libraries' layer-normalised networks, as modules here and back.

A library is a row of `LIBRARIES`: its gate order, and for each of its arrays which of our parameters are in it. Reading
and writing go through the same row.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .formula import PRESETS, Formula, Recurrence, unknown
from .nn import LSTM

Prefixes = str | Sequence[str | tuple[str, str]]
Arrays = dict[str, Tensor]

ORDER = "ifgo"
"""Our gates, torch's."""


@dataclass(frozen=True)
class Entry:
    """What one array of a library holds.

    Args:
        parts: our parameters, side by side. ``"a + b"`` is their sum: read, it goes into ``a``, and ``b`` becomes 0.
            Where several arrays hold one parameter, it is their sum; written, it goes into the first that is not
            optional.
        gate: the one gate whose H units the array has; ``""`` for all units.
        optional: whether the array may be missing; it then stands for zeros.
    """

    parts: tuple[str, ...]
    gate: str = ""
    optional: bool = False

    @property
    def weight(self) -> bool:
        return self.parts[0].startswith("weight")


@dataclass(frozen=True)
class Library:
    """How a library lays out one layer and direction of an LSTM.

    Args:
        order: its gates in its order; ``g`` is the candidate, which TensorFlow calls ``j`` or ``c``.
        transposed: whether its weights are (in, 4H), not (4H, in).
        free: fields of the preset's `Formula` that an argument of the library sets.
        entries: its arrays by name.
    """

    order: str
    transposed: bool
    free: tuple[str, ...]
    entries: Mapping[str, Entry]

    def shapes(self, I: int, H: int) -> dict[str, tuple[int, ...]]:  # noqa: E741
        """Names and shapes of the arrays of one layer and direction: input size I, H units."""
        found: dict[str, tuple[int, ...]] = {}
        for key, entry in self.entries.items():
            units = H if entry.gate or entry.parts[0].endswith("_c") else 4 * H
            if entry.weight:
                size = sum({"weight_ih": I, "weight_hh": H}[part] for part in entry.parts)
                found[key] = (size, units) if self.transposed else (units, size)
            else:
                found[key] = (units,) if len(entry.parts) == 1 else (len(entry.parts), units)
        return found

    def blocks(self, key: str, array: Tensor) -> Iterator[tuple[str, slice, Tensor]]:
        """An array as views of H units each, (H, in) or (H,), with the part and the rows of it that they are."""
        entry = self.entries[key]
        if entry.weight:
            matrix = array.T if self.transposed else array
            H = matrix.shape[0] // 4
            sizes = [matrix.shape[1] - H, H] if len(entry.parts) == 2 else [matrix.shape[1]]
            pieces = matrix.split(sizes, 1)
        else:
            pieces = array.unbind() if len(entry.parts) > 1 else (array,)
        for part, piece in zip(entry.parts, pieces, strict=True):
            gates = entry.gate or ("" if part.endswith("_c") else self.order)
            H = len(piece) // (len(gates) or 1)
            if not gates:
                yield part, slice(None), piece
            for k, gate in enumerate(gates):
                row = ORDER.index(gate) * H
                yield part, slice(row, row + H), piece[k * H : (k + 1) * H]


def _entries(**parts: str) -> dict[str, Entry]:
    return {key: Entry((part,)) for key, part in parts.items()}


def _affine(separator: str, gain: str, bias: str, **norms: str) -> dict[str, Entry]:
    """Normalisations by name, with the suffix of our parameters; gain and bias are what the library calls these."""
    return {
        f"{norm}{separator}{theirs}": Entry((f"{ours}_{suffix}",))
        for norm, suffix in norms.items()
        for theirs, ours in ((gain, "gain"), (bias, "bias"))
    }


_TF1_SCOPES = {"input": "i", "transform": "g", "forget": "f", "output": "o"}

LIBRARIES: Mapping[str, Library] = {
    # haste_pytorch.LayerNormLSTM. Its forget_bias is an initial value of bias.
    "haste": Library(
        "igfo",
        transposed=True,
        free=(),
        entries={
            **_entries(kernel="weight_ih", recurrent_kernel="weight_hh", bias="bias_ih + bias_hh"),
            "gamma": Entry(("gain_ih", "gain_hh")),
            **_entries(gamma_h="gain_c", beta_h="bias_c"),
        },
    ),
    # LayerNormLSTMCell of PyTorch's benchmarks/fastrnns and of NVIDIA NeMo; decompose_layernorm=True means eps=0.
    "torchscript": Library(
        "ifgo",
        transposed=False,
        free=("eps",),
        entries={
            **_entries(weight_ih="weight_ih", weight_hh="weight_hh"),
            **_affine(".", "weight", "bias", layernorm_i="ih", layernorm_h="hh", layernorm_c="c"),
        },
    ),
    # tfa.rnn.LayerNormLSTMCell, by the names of its attributes; bias is missing under use_bias=False. It has three
    # biases of which only the sum counts.
    "keras": Library(
        "ifgo",
        transposed=True,
        free=("eps",),
        entries={
            **_entries(kernel="weight_ih", recurrent_kernel="weight_hh"),
            "bias": Entry(("bias_ih",), optional=True),
            **_affine("/", "gamma", "beta", kernel_norm="ih", recurrent_norm="hh", state_norm="c"),
        },
    ),
    # tf.contrib.rnn.LayerNormBasicLSTMCell. Its eps is 1e-3 in float16.
    "tf1": Library(
        "igfo",
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
    "sonnet": Library(
        "igfo",
        transposed=True,
        free=("forget_bias",),
        entries={
            "w_gates": Entry(("weight_ih", "weight_hh")),
            **_entries(b_gates="bias_hh"),
            "layer_norm/gamma": Entry(("gain",)),
            "layer_norm/beta": Entry(("bias_ih",)),
        },
    ),
}
"""The libraries by the name of their preset."""


def from_state(
    state: Mapping[str, Any],
    formula: str,
    *,
    prefixes: Prefixes = "",
    eps: float | None = None,
    forget_bias: float | None = None,
    batch_first: bool = False,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> LSTM:
    """An `LSTM` that computes what another library's network computes with these weights.

    Args:
        state: NumPy arrays or tensors by the library's names (`shapes`), each after a prefix.
        formula: the library's preset: ``"haste"``, ``"torchscript"``, ``"keras"``, ``"tf1"`` or ``"sonnet"``.
        prefixes: one for each layer, in a bidirectional network a pair; what stands under none of them is left alone.
        eps, forget_bias: what the library's network was made with, where it has such an argument and the forget bias is
            added at run time; ``None``: the library's default.
        batch_first: as in `LSTM`.
        device, dtype: of the module; ``None``: as the arrays have them.

    Returns:
        The module; its sizes, layers and directions follow from the arrays and the prefixes.

    Raises:
        TypeError: ``state`` is no mapping, or an array is not of floating-point numbers.
        ValueError: no such library; an array is missing, unknown or of a wrong shape; ``eps`` or ``forget_bias`` is not
            an argument of that library. The message names it.

    Example::

        lstm = ln.interop.from_state(haste_lstm.state_dict(), "haste")
        lstm = ln.interop.from_state(nemo, "torchscript", prefixes=["layers.0.cell.", "layers.1.cell."])
    """
    library = _library(formula)
    if not isinstance(state, Mapping):
        raise TypeError(f"from_state: state must be a mapping from names to arrays, got {type(state).__name__}")
    layers = _layers(prefixes)
    described = _described(formula, library, eps=eps, forget_bias=forget_bias)
    read = [[_read(state, prefix, formula, library) for prefix in pair] for pair in layers]
    every = [array for pair in read for arrays in pair for array in arrays.values()]
    like = {
        "device": device or every[0].device,
        "dtype": dtype or functools.reduce(torch.promote_types, [a.dtype for a in every]),
    }
    I, H = _sizes(read[0][0], library, f"{formula}: {layers[0][0]}")  # noqa: E741
    ours: Arrays = {}
    for layer, pair in enumerate(layers):
        size = I if layer == 0 else len(pair) * H
        for prefix, arrays, direction in zip(pair, read[layer], ("", "_reverse"), strict=False):
            _check_shapes(arrays, library.shapes(size, H), f"{formula}: {prefix}", f"input size {size}, H = {H}")
            parameters = _to_ours(arrays, library, described, (size, H), like)
            ours |= {f"{name}_l{layer}{direction}": value for name, value in parameters.items()}
    named: str | Formula = formula if described == PRESETS[formula]["LSTM"] else described
    module = LSTM(I, H, len(layers), True, batch_first, 0.0, len(layers[0]) == 2, formula=named, device="meta")
    module.load_state_dict(ours, assign=True)
    return module


def to_state(module: LSTM, formula: str | None = None, *, prefixes: Prefixes = "") -> Arrays:
    """The weights of an `LSTM` as another library's network has them: `from_state` backwards.

    Args:
        module: one whose formula is the library's.
        formula: the library's preset; ``None``: the name that ``module`` was made with.
        prefixes: as in `from_state`: one for each layer, in a bidirectional network a pair.

    Returns:
        Tensors by the library's names, copies, on the module's device and of its type. What an argument of the library
        sets, ``eps`` or ``forget_bias``, is not among them: it is ``module.recurrence.formula``'s. Several biases of
        which only the sum counts come back as their sum in one of them, and zeros.

    Raises:
        TypeError: ``module`` is no `LSTM`.
        ValueError: no such library; the module computes what that library cannot; the prefixes are not one for each
            layer and direction. The message names it.
    """
    if not isinstance(module, LSTM):
        given = f"{type(module).__module__}.{type(module).__name__}"
        raise TypeError(f"to_state: module must be a layernorm.LSTM, got {given}")
    formula = module.formula if formula is None and isinstance(module.formula, str) else formula
    library, layers = _library(formula), _layers(prefixes)
    assert formula is not None
    _check_module(module, formula, library)
    directions = 2 if module.bidirectional else 1
    if [len(pair) for pair in layers] != [directions] * module.num_layers:
        kind = "pair of prefixes" if module.bidirectional else "prefix"
        raise ValueError(
            f"to_state: prefixes must be one {kind} for each of {module.num_layers} layers, got {prefixes!r}"
        )
    state: Arrays = {}
    for layer, pair in enumerate(layers):
        for prefix, direction in zip(pair, ("", "_reverse"), strict=False):
            suffix = f"_l{layer}{direction}"
            ours = {name: getattr(module, name + suffix).detach() for name in module.recurrence.parameter_names}
            state |= {prefix + key: array for key, array in _to_theirs(ours, library).items()}
    return state


def shapes(formula: str, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
    """The names and shapes of a library's arrays for one layer and direction, in the library's order.

    Args:
        formula: the library's preset.
        input_size, hidden_size: I and H.

    Raises:
        ValueError: no such library.

    Example::

        state = dict(zip(ln.interop.shapes("keras", 28, 128), cell.get_weights()))
    """
    return _library(formula).shapes(input_size, hidden_size)


def _library(formula: Any) -> Library:
    if formula not in LIBRARIES:
        raise ValueError(unknown("formula", formula, sorted(LIBRARIES)))
    return LIBRARIES[formula]


def _layers(prefixes: Prefixes) -> list[tuple[str, ...]]:
    """The prefixes of each layer's directions."""
    given = [prefixes] if isinstance(prefixes, str) else list(prefixes)
    layers = [(layer,) if isinstance(layer, str) else tuple(layer) for layer in given]
    flat = [prefix for pair in layers for prefix in pair]
    if not layers or {len(pair) for pair in layers} not in ({1}, {2}) or len(set(flat)) < len(flat):
        raise ValueError(f"prefixes must be one for each layer, or a pair for each, all different, got {prefixes!r}")
    return layers


def _described(formula: str, library: Library, **given: float | None) -> Formula:
    """The library's formula with the arguments that its network was made with."""
    preset = PRESETS[formula]["LSTM"]
    for name, value in given.items():
        if value is not None and name not in library.free:
            always = (
                f"always {preset.eps}" if name == "eps" else "an initial value of its biases, not added at run time"
            )
            raise ValueError(f"from_state: {name} is no argument of {formula!r}, where it is {always}; got {value!r}")
    fields: dict[str, Any] = {name: float(value) for name, value in given.items() if value is not None}
    return replace(preset, **fields)


def _read(state: Mapping[str, Any], prefix: str, formula: str, library: Library) -> Arrays:
    """The arrays under a prefix by their names, as tensors."""
    given = {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}
    missing = [prefix + key for key, entry in library.entries.items() if key not in given and not entry.optional]
    unexpected = [prefix + key for key in given if key not in library.entries]
    wrong = [f"missing {missing}"] * bool(missing) + [f"unexpected {unexpected}"] * bool(unexpected)
    if wrong:
        under = f" under {prefix!r}" if prefix else ""
        raise ValueError(f"{formula}: expected {list(library.entries)}{under}; {', '.join(wrong)}")
    return {key: _tensor(given[key], f"{formula}: {prefix}{key}") for key in library.entries if key in given}


def _tensor(value: Any, what: str) -> Tensor:
    array = value.detach() if isinstance(value, Tensor) else np.array(value)
    if not (array.is_floating_point() if isinstance(array, Tensor) else array.dtype.kind == "f"):
        raise TypeError(
            f"{what}: expected an array of floating-point numbers, got {type(value).__name__} of {array.dtype}"
        )
    return torch.as_tensor(array)


def _sizes(arrays: Arrays, library: Library, what: str) -> tuple[int, int]:
    """I and H, which the first array says: it always has `weight_ih`."""
    key, entry = next(iter(library.entries.items()))
    shape, both = tuple(arrays[key].shape), len(entry.parts) > 1
    rows, units = (shape if library.transposed else shape[::-1]) if len(shape) == 2 else (0, 1)
    H = units // 4
    if units % 4 or not units or rows < H * both:
        expected = ("I + H" if both else "I", "4H") if library.transposed else ("4H", "I")
        raise ValueError(f"{what}{key}: expected shape ({', '.join(expected)}), got {shape}")
    return rows - H * both, H


def _check_shapes(arrays: Arrays, expected: Mapping[str, tuple[int, ...]], what: str, sizes: str) -> None:
    for key, array in arrays.items():
        if tuple(array.shape) != expected[key]:
            raise ValueError(f"{what}{key}: expected shape {expected[key]} ({sizes}), got {tuple(array.shape)}")


def _check_module(module: LSTM, formula: str, library: Library) -> None:
    theirs, ours = PRESETS[formula]["LSTM"], module.recurrence.formula
    wanted = {"norm": "layer", "proj_size": 0}
    differ = {name: (getattr(module, name), value) for name, value in wanted.items() if getattr(module, name) != value}
    for name in theirs.__dataclass_fields__:
        if name not in library.free and getattr(ours, name) != getattr(theirs, name):
            differ[name] = getattr(ours, name), getattr(theirs, name)
    if differ:
        text = ", ".join(f"{name}={have!r}, not {value!r}" for name, (have, value) in differ.items())
        raise ValueError(f"to_state: the module does not compute what {formula!r} does: it has {text}")


def _to_ours(
    arrays: Arrays, library: Library, formula: Formula, sizes: tuple[int, int], like: dict[str, Any]
) -> Arrays:
    expected = Recurrence("LSTM", formula).parameter_shapes(*sizes)
    ours = {name: torch.zeros(shape, **like) for name, shape in expected.items()}
    for key, array in arrays.items():
        for part, rows, view in library.blocks(key, array):
            ours[part.split(" + ")[0]][rows] += view.to(**like)
    return ours


def _to_theirs(ours: Arrays, library: Library) -> Arrays:
    H, I = ours["weight_hh"].shape[1], ours["weight_ih"].shape[1]  # noqa: E741
    state = {key: ours["weight_hh"].new_zeros(shape) for key, shape in library.shapes(I, H).items()}
    written = set()
    for key in sorted(state, key=lambda key: library.entries[key].optional):
        place = library.entries[key].parts, library.entries[key].gate
        if place in written:
            continue
        written.add(place)
        for part, rows, view in library.blocks(key, state[key]):
            for name in part.split(" + "):
                if name in ours:  # a module with bias=False has none
                    view += ours[name][rows]
    return state
