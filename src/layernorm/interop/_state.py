"""`from_state` and `to_state`: weights of other libraries' layer-normalised networks, read and written."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..formula import PRESETS, Formula, Network, Recurrence
from ..nn import GRU, LSTM, GRUCell, LSTMCell
from ._libraries import ARGUMENTS, Library, library
from ._prefixes import layers_of, network_of, suggestions, without_index

Prefixes = str | Sequence[str | tuple[str, str]]
Arrays = dict[str, Tensor]

Module = LSTM | GRU | LSTMCell | GRUCell

MODULES: Mapping[str, type[LSTM] | type[GRU]] = {"LSTM": LSTM, "GRU": GRU}
CELLS: Mapping[str, type[LSTMCell] | type[GRUCell]] = {"LSTM": LSTMCell, "GRU": GRUCell}


def from_state(
    state: Mapping[str, Any],
    formula: str,
    *,
    prefixes: Prefixes | None = None,
    eps: float | None = None,
    forget_bias: float | None = None,
    update_bias: float | None = None,
    network: Network | None = None,
    cell: bool = False,
    batch_first: bool = False,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Module:
    """Makes an `LSTM`, `GRU` or cell that computes what another library's network computes with these weights.

    Args:
        state: NumPy arrays or tensors by the library's names (`shapes`), each name after a prefix, and with or without
            TensorFlow's ``:0`` at its end.
        formula: the library's preset: ``"kiros"``, ``"haste"``, ``"torchscript"`` or ``"nemo"``,
            ``"torchaudio"``, ``"keras"`` or ``"tfa"``, ``"tf1"``, ``"sonnet"``, ``"dreamer"``, ``"dreamerv3"`` or
            ``"sheeprl"``.
        prefixes: one for each layer, in a bidirectional network a pair for each. Arrays under other prefixes are not
            read. ``None``: the prefixes are found in the names. Several are layers if they differ in one number that
            counts up. Two are the directions of a layer if they differ in ``fw`` and ``bw``, or ``forward`` and
            ``backward``.
        eps, forget_bias, update_bias: the arguments that the library's network was made with, where it has them.
            ``None``: the library's default. An ``update_bias`` is the negative of a `Formula`'s ``forget_bias``.
        network: ``"LSTM"`` or ``"GRU"``. ``None``: the one whose arrays ``state`` has, under the first of ``prefixes``.
        cell: whether to make an `LSTMCell` or `GRUCell`. It has one layer and direction and no ``batch_first``.
        batch_first: as in `LSTM`.
        device, dtype: those of the module. ``None``: those of the arrays.

    Returns:
        The module. Its sizes, layers and directions follow from the arrays and the prefixes.

    Raises:
        TypeError: ``state`` is no mapping, an array is not of floating-point numbers, or another argument is not of the
            type above.
        ValueError: there is no such library or network; an array is missing, unknown or of a wrong shape; ``eps``,
            ``forget_bias`` or ``update_bias`` is not an argument of that library; a cell is given several prefixes or
            ``batch_first``; the arrays are under several prefixes, and no number in them gives the layers' order; or
            there are arrays of an LSTM and of a GRU, and neither ``network`` nor ``prefixes``. The message names it.

    Example::

        lstm = ln.interop.from_state(haste_lstm.state_dict(), "haste")
        lstm = ln.interop.from_state(nemo, "nemo")  # finds "layers.0.cell.", "layers.1.cell."
        gru_cell = ln.interop.from_state(dreamer, "dreamer", cell=True)
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"from_state: state must be a mapping from names to arrays, got {type(state).__name__}")
    state = without_index(state, formula)
    given = None if prefixes is None else _layers(prefixes)
    prefix = given[0][0] if given else None
    row = network_of(state, formula, prefix) if network is None else library(formula, network)
    layers = given or layers_of(state, row, formula)
    if cell and (batch_first or len(layers) > 1 or len(layers[0]) > 1):
        raise ValueError(
            f"from_state: a cell has one prefix and no batch_first, got prefixes={prefixes or layers!r}, {batch_first=}"
        )
    network = row.network
    described = _described(formula, row, eps=eps, forget_bias=forget_bias, update_bias=update_bias)
    flat, directions = [prefix for pair in layers for prefix in pair], len(layers[0])
    read = [_read_arrays(state, prefix, formula, row) for prefix in flat]
    tensors = [array for arrays in read for array in arrays.values()]
    like = {
        "device": device or tensors[0].device,
        "dtype": dtype or functools.reduce(torch.promote_types, [t.dtype for t in tensors]),
    }
    I, H = _sizes(read[0], row, f"{formula}: {flat[0]}")  # noqa: E741
    named: str | Formula = row.preset if described == PRESETS[row.preset][network] else described
    module: Module
    if cell:
        module = CELLS[network](I, H, formula=named, device="meta")
    else:
        both = directions == 2
        module = MODULES[network](
            I, H, len(layers), batch_first=batch_first, bidirectional=both, formula=named, device="meta"
        )
    ours: Arrays = {}
    for number, (prefix, arrays, suffix) in enumerate(zip(flat, read, module._suffixes, strict=True)):
        size = module._input_sizes[number // directions]
        _check_shapes(arrays, row.shapes(size, H), f"{formula}: {prefix}", f"input size {size}, H = {H}")
        parameters = _to_ours(arrays, row, described, (size, H), like)
        ours |= {name + suffix: value for name, value in parameters.items()}
    module.load_state_dict(ours, assign=True)
    return module


def to_state(module: Module, formula: str | None = None, *, prefixes: Prefixes = "") -> Arrays:
    """Writes the weights of an `LSTM`, `GRU` or cell in another library's layout: the inverse of `from_state`.

    Args:
        module: an `LSTM`, `GRU` or cell whose formula is the library's.
        formula: the library's preset. ``None``: the name that ``module`` was made with.
        prefixes: one for each layer, in a bidirectional network a pair for each.

    Returns:
        Tensors by the library's names. They are copies, on the module's device and of its type. ``eps``,
        ``forget_bias``, ``update_bias`` and Haste's ``zoneout`` are not among them, as they are arguments of the
        library's network: take them from ``module.recurrence.formula``, and ``module.zoneout``. Where only the sum of
        several biases has an effect, one of them has the sum and the others are zeros.

    Raises:
        TypeError: ``module`` is no `LSTM`, `GRU` or cell of one.
        ValueError: there is no such library, or it has no such network; the library's network cannot compute what the
            module computes; or the prefixes are not one for each layer and direction. The message names it.
    """
    if not isinstance(module, Module):
        kind = f"{type(module).__module__}.{type(module).__name__}"
        raise TypeError(f"to_state: module must be a layernorm.LSTM, GRU or a cell of one, got {kind}")
    formula = module.formula if formula is None and isinstance(module.formula, str) else formula
    row, layers = library(formula, module.network), _layers(prefixes)
    assert formula is not None
    _check_module(module, formula, row)
    number = len(module._input_sizes)
    directions = len(module._suffixes) // number
    if [len(pair) for pair in layers] != [directions] * number:
        kind = "pair of prefixes" if directions == 2 else "prefix"
        raise ValueError(f"to_state: prefixes must be one {kind} for each of {number} layers, got {prefixes!r}")
    state: Arrays = {}
    for prefix, suffix in zip([prefix for pair in layers for prefix in pair], module._suffixes, strict=True):
        ours = {name: getattr(module, name + suffix).detach() for name in module.recurrence.parameter_names}
        state |= {prefix + key: array for key, array in _to_theirs(ours, row).items()}
    return state


def shapes(
    formula: str, input_size: int, hidden_size: int, network: Network | None = None
) -> dict[str, tuple[int, ...]]:
    """Lists the names and shapes of a library's arrays for one layer and direction, in the library's order.

    Args:
        formula: the library's preset.
        input_size, hidden_size: I and H.
        network: ``"LSTM"`` or ``"GRU"``. ``None``: the library's only network; for ``"kiros"`` and ``"haste"``, which
            have both, the LSTM.

    Returns:
        The shapes by name.

    Raises:
        ValueError: there is no such library or network, ``input_size`` is no int of 0 or more, or ``hidden_size`` is no
            int of 1 or more.

    Example::

        state = dict(zip(ln.interop.shapes("keras", 28, 128), cell.get_weights()))
    """
    for name, size, least in (("input_size", input_size, 0), ("hidden_size", hidden_size, 1)):
        if not isinstance(size, int) or isinstance(size, bool) or size < least:
            raise ValueError(f"shapes: expected {name} to be an int, {least} or more, got {size!r}")
    return library(formula, network).shapes(input_size, hidden_size)


def _layers(prefixes: Prefixes) -> list[tuple[str, ...]]:
    """Returns the prefixes of each layer's directions."""
    if not isinstance(prefixes, Sequence):
        raise TypeError(f"expected prefixes to be a string or a list of strings, got {type(prefixes).__name__}")
    of_layers = [prefixes] if isinstance(prefixes, str) else list(prefixes)
    layers = [(layer,) if isinstance(layer, str) else tuple(layer) for layer in of_layers]
    flat = [prefix for pair in layers for prefix in pair]
    if not layers or {len(pair) for pair in layers} not in ({1}, {2}) or len(set(flat)) < len(flat):
        raise ValueError(f"prefixes must be one for each layer, or a pair for each, all different, got {prefixes!r}")
    return layers


def _described(formula: str, row: Library, **arguments: float | None) -> Formula:
    """Makes the library's formula with the arguments that its network was made with."""
    preset = PRESETS[row.preset][row.network]
    fields: dict[str, Any] = {}
    for name, value in arguments.items():
        if value is None:
            continue
        field, sign = ARGUMENTS[name]
        if name not in row.free:
            others = [other for other in row.free if ARGUMENTS[other][0] == field]
            has = f"but {others[0]}" if others else f"always {field}={getattr(preset, field)}"
            raise ValueError(f"from_state: {formula!r} {row.network} has no {name}, {has}; got {value!r}")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError(f"from_state: expected {name} to be a number, got {type(value).__name__}")
        fields[field] = sign * value
    return replace(preset, **fields)


def _read_arrays(state: Mapping[str, Any], prefix: str, formula: str, row: Library) -> Arrays:
    """Reads the arrays under a prefix by their names, as tensors."""
    arrays = {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}
    missing = [prefix + key for key, entry in row.entries.items() if key not in arrays and not entry.optional]
    unexpected = [prefix + key for key in arrays if key not in row.entries]
    wrong = [f"missing {missing}"] * bool(missing) + [f"unexpected {unexpected}"] * bool(unexpected)
    if wrong:
        under = f" under {prefix!r}" if prefix else ""
        near = suggestions(state, missing, unexpected, row)
        raise ValueError(f"{formula}: expected {list(row.entries)}{under}; {', '.join(wrong)}{near}")
    return {key: _tensor(arrays[key], f"{formula}: {prefix}{key}") for key in row.entries if key in arrays}


def _tensor(value: Any, what: str) -> Tensor:
    try:
        array = value.detach() if isinstance(value, Tensor) else np.array(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{what}: expected an array, got {type(value).__name__}: {error}") from None
    if not (array.is_floating_point() if isinstance(array, Tensor) else array.dtype.kind == "f"):
        raise TypeError(
            f"{what}: expected an array of floating-point numbers, got {type(value).__name__} of {array.dtype}"
        )
    try:
        tensor = torch.as_tensor(array)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what}: expected an array of a type that torch has, got {array.dtype}: {error}") from None
    if tensor.layout != torch.strided:
        raise TypeError(f"{what}: expected a dense array, got a tensor of {tensor.layout}")
    return tensor


def _sizes(arrays: Arrays, row: Library, what: str) -> tuple[int, int]:
    """Computes I and H, from the shape of the first array, which always holds ``weight_ih``."""
    key, entry = next(iter(row.entries.items()))
    shape, both = tuple(arrays[key].shape), len(entry.parts) > 1
    rows, units = (shape if row.transposed else shape[::-1]) if len(shape) == 2 else (0, 1)
    G = len(row.gates(entry))
    H = units // G
    if units % G or not units or rows < H * both:
        expected = ("I + H" if both else "I", f"{G}H") if row.transposed else (f"{G}H", "I")
        raise ValueError(f"{what}{key}: expected shape ({', '.join(expected)}), got {shape}")
    return rows - H * both, H


def _check_shapes(arrays: Arrays, expected: Mapping[str, tuple[int, ...]], what: str, sizes: str) -> None:
    for key, array in arrays.items():
        if tuple(array.shape) != expected[key]:
            raise ValueError(f"{what}{key}: expected shape {expected[key]} ({sizes}), got {tuple(array.shape)}")


def _check_module(module: Module, formula: str, row: Library) -> None:
    theirs, ours = PRESETS[row.preset][row.network], module.recurrence.formula
    have = {"norm": module.norm, "proj_size": getattr(module, "proj_size", 0)}  # a cell has no projection
    refused = module._zoneouts[1:] if row.preset == "haste" else module._zoneouts  # an argument of Haste's, for h
    have |= {"quantized": module.recurrence.quantized, "zoneout": module.zoneout if any(refused) else 0.0}
    wanted = {"norm": "layer", "proj_size": 0, "quantized": False, "zoneout": 0.0}
    differ: dict[str, Any] = {name: (have[name], value) for name, value in wanted.items() if have[name] != value}
    free = {ARGUMENTS[name][0] for name in row.free}
    for name in theirs.__dataclass_fields__:
        if name not in free and getattr(ours, name) != getattr(theirs, name):
            differ[name] = getattr(ours, name), getattr(theirs, name)
    if differ:
        text = ", ".join(f"{name}={have!r}, not {value!r}" for name, (have, value) in differ.items())
        raise ValueError(f"to_state: the module does not compute what {formula!r} does: it has {text}")


def _to_ours(arrays: Arrays, row: Library, formula: Formula, sizes: tuple[int, int], like: dict[str, Any]) -> Arrays:
    expected = Recurrence(row.network, formula).parameter_shapes(*sizes)
    ours = {name: torch.zeros(shape, **like) for name, shape in expected.items()}
    for key, array in arrays.items():
        for part, rows, view, sign in row.blocks(key, array):
            ours[part.split(" + ")[0]][rows] += sign * view.to(**like)
    return ours


def _to_theirs(ours: Arrays, row: Library) -> Arrays:
    H, I = ours["weight_hh"].shape[1], ours["weight_ih"].shape[1]  # noqa: E741
    state = {key: ours["weight_hh"].new_zeros(shape) for key, shape in row.shapes(I, H).items()}
    written = set()
    for key in sorted(state, key=lambda key: row.entries[key].optional):
        place = row.entries[key].parts, row.entries[key].gates
        if place in written:
            continue
        written.add(place)
        for part, rows, view, sign in row.blocks(key, state[key]):
            for name in part.split(" + "):
                if name in ours:  # a module with bias=False has none
                    view += sign * ours[name][rows]
    return state
