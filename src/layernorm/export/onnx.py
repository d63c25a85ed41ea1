"""ONNX: layernorm's ops as standard operators, for `torch.onnx.export`.

    program = torch.onnx.export(model, args, dynamo=True)

`layernorm.export._exporter` makes these translations known to the exporter.

A norm op becomes ``LayerNormalization`` or ``RMSNormalization``. A recurrent layer in one direction becomes one
``Scan``, whose body is one step. Without normalisation it becomes ONNX's own ``RNN``, ``LSTM`` or ``GRU``. T and B may
be dynamic, by the ``dynamic_shapes`` of `torch.onnx.export`. In float64 everything is plain operators: the epsilon of
ONNX's norms is a float32, and ONNX Runtime has no recurrent network in float64.

This module needs the packages ``onnx`` and ``onnxscript`` (``pip install '.[onnx]'`` in layernorm's checkout).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from ..equations.arguments import StateChanges
from ..formula import GATES, PLAIN, Formula, Place, Recurrence
from ..functional._recurrent import RECURRENT

try:
    import onnx_ir as ir
    import onnxscript.evaluator
except ImportError as error:
    raise ImportError(
        f"layernorm.onnx needs onnx and onnxscript, pip install '.[onnx]' in layernorm's checkout: {error}"
    ) from error

Values = list[ir.Value]


def translations() -> dict[Any, Callable[..., Any]]:
    """Returns each op with the function that translates it, for ``custom_translation_table`` of `torch.onnx.export`.

    The exporter knows them without that. Where they could not be registered, a warning asks for this table.

    Raises:
        ImportError: ``layernorm.export.onnx`` is imported where the packages onnx or onnxscript are missing.

    Example::

        torch.onnx.export(model, args, "model.onnx", dynamo=True, custom_translation_table=ln.onnx.translations())
    """
    return {torch.ops.layernorm.normalize.default: _normalize, torch.ops.layernorm.recurrent.default: _recurrent}


class Nodes:
    """The nodes of one ONNX graph while it is built.

    ``n("Add", x, 1.0)`` appends a node and returns its output. A float becomes a constant of type ``dtype``, a list of
    integers a vector of int64. None is an input that is left out.

    Args:
        dtype: the type of the graph's numbers.
        opset: the version of the operators.
        around: for the body of a ``Scan``, the graph around it. The constants go there, and no name may be in both.
    """

    def __init__(self, dtype: ir.DataType, opset: int, around: Nodes | None = None) -> None:
        self.dtype, self.opset, self.tape = dtype, opset, ir.tape.Tape()
        self.constants = around or self
        self.names = (f"one step/{k}" if around else None for k in itertools.count())

    def __call__(self, op_type: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        values = [value if value is None else self._value(value) for value in inputs]
        results = [ir.Value(name=next(self.names)) for _ in range(outputs)]
        self.tape.op_multi_out(op_type, values, attributes, outputs=results, version=self.opset)
        return results[0] if outputs == 1 else results

    def _value(self, value: Any) -> ir.Value:
        if isinstance(value, ir.Value):
            return value
        array = np.array(value, self.dtype.numpy() if isinstance(value, float) else np.int64)
        return self.constants("Constant", value=ir.tensor(array))

    def cast(self, value: ir.Value, dtype: ir.DataType | None = None) -> ir.Value:
        """Casts the value to ``dtype``, by default the type of the graph's numbers."""
        dtype = dtype or self.dtype
        if value.dtype == dtype:
            return value
        cast = self("Cast", value, to=int(dtype))
        cast.dtype, cast.shape = dtype, value.shape
        return cast

    def round(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Casts a result, which has the type of the graph's numbers, to the type that an op returns."""
        return value if self.dtype == dtype else self("Cast", value, to=int(dtype))

    def sum(self, *terms: ir.Value | None) -> Any:
        """Adds the terms that are not None; None if there is none."""
        present = [term for term in terms if term is not None]
        total = present[0] if present else None
        for term in present[1:]:
            total = self("Add", total, term)
        return total

    def split(self, value: ir.Value, sizes: Sequence[int]) -> Values:
        """Splits the value into parts of these sizes along the last axis."""
        return [value] if len(sizes) == 1 else self("Split", value, list(sizes), outputs=len(sizes), axis=-1)

    def normalised(
        self, z: ir.Value, norm: str, formula: Formula, gain: Any, bias: ir.Value | None, dims: int = 1
    ) -> ir.Value:
        """Computes ``N(z) * gain + bias`` over the last dimensions."""
        if formula.eps_on == "variance" and self.dtype == ir.DataType.FLOAT:  # the attribute is a float32
            attributes: dict[str, Any] = {"axis": -dims, "epsilon": self._eps(formula)}
            if norm == "layer":
                return self("LayerNormalization", z, gain, bias, **attributes)
            if self.opset >= 23:
                return self.sum(self("RMSNormalization", z, gain, **attributes), bias)
        axes = list(range(-dims, 0))
        u = self("Sub", z, self("ReduceMean", z, axes)) if norm == "layer" else z
        deviation = self.deviation(self("ReduceMean", self("Mul", u, u), axes), formula)
        return self.sum(self("Mul", self("Div", u, deviation), gain), bias)

    def deviation(self, square: ir.Value, formula: Formula) -> Any:
        """Computes what a norm divides by, of a variance or a mean square.

        eps is added by ``Sum``: the exporter's optimiser takes an ``Add`` of 1e-8 or less for one of 0 and drops it.
        """
        if formula.eps_on == "variance":
            return self("Sqrt", self("Sum", square, self._eps(formula)))
        return self("Sum", self("Sqrt", square), self._eps(formula))

    def _eps(self, formula: Formula) -> float:
        """Returns eps. One that is too small for ``dtype`` becomes its smallest number: so rows of zeros stay zeros."""
        return max(formula.eps, float(np.finfo(self.dtype.numpy()).tiny)) if formula.eps else 0.0


def _new_nodes(*values: ir.Value | None) -> tuple[Nodes, list[ir.Node]]:
    """Makes `Nodes` for the op that torch translates now, and returns the list that torch takes them from at the end.

    Their type is the widest of the values' types, and at least float32.
    """
    recorder: Any = onnxscript.evaluator.default()
    types = [value.dtype for value in values if value is not None and value.dtype is not None]
    dtype = max([ir.DataType.FLOAT, *types], key=lambda dtype: dtype.bitwidth)
    return Nodes(dtype, recorder.opset.version), recorder.nodes


# --- the norm ops ---


# The arguments of both ops are without annotations, because onnxscript's registry reads those as ONNX types.
def _normalize(input, normalized_shape, weight, bias, eps, norm, residual, backend):
    n, nodes = _new_nodes(input, weight, bias)
    total = input
    if residual is not None:  # in the graph's type, since ONNX Runtime adds no bfloat16
        total = n.round(n("Add", n.cast(input), n.cast(residual)), input.dtype)
    gain = n("Expand", 1.0, list(normalized_shape)) if weight is None else n.cast(weight)
    bias = None if bias is None else n.cast(bias)
    x = total if input.dtype == n.dtype else n("Cast", total, to=int(n.dtype))
    y = n.round(n.normalised(x, norm, Formula(eps=eps), gain, bias, len(normalized_shape)), input.dtype)
    nodes.extend(n.tape.nodes)
    return [y] if residual is None else [y, total]


# --- recurrent layers ---


class Terms(NamedTuple):
    """A `Place` for the units of one span: ``y = N(z + inside) * gain + outside``, without a gain ``z + inside +
    outside``. Under batch norm ``(z + inside - mean) * gain + outside``."""

    gain: ir.Value | None  # under batch norm divided by the deviation, of every step
    inside: ir.Value | None
    outside: ir.Value | None
    mean: ir.Value | None  # of batch norm, of every step


def _units(p: Mapping[str, ir.Value]) -> int:
    """Returns G * H."""
    return cast(Any, p["weight_hh"].shape)[0]


class Layer:
    """The equations of one layer in one direction, as in `layernorm.equations`.

    The summed inputs are lists of parts, one for each of ``recurrence.spans``. What does not depend on the state is
    computed once, in the graph around the ``Scan``, and the body refers to it.

    Args:
        n: the graph around the ``Scan``.
        recurrence: the equations.
        params: in the order of ``recurrence.parameter_names``.
        moments: of batch norm, mean and variance of each gain, (T, 1 or B, n).
    """

    def __init__(self, n: Nodes, recurrence: Recurrence, params: Values, moments: Values) -> None:
        self.recurrence = recurrence
        pairs = zip(moments[::2], moments[1::2], strict=True)
        self.moments = dict(zip(recurrence.gain_names, pairs, strict=False))
        self.p = dict(zip(recurrence.parameter_names, params, strict=True))
        self.H = _units(self.p) // GATES[recurrence.network]
        self.sizes = [(last - first) * self.H for first, last in recurrence.spans]
        self.weights = {
            name: n("Transpose", value, perm=[1, 0]) for name, value in self.p.items() if name.startswith("weight")
        }
        input, hidden, both, cell = recurrence.places
        self.input, self.hidden, self.both = (self._terms(n, place, self.sizes) for place in (input, hidden, both))
        (self.cell,) = self._terms(n, cell, [self.H])

    def _terms(self, n: Nodes, place: Place, sizes: list[int]) -> list[Terms]:
        """Returns the parameters of a place, for each part."""
        vectors = [[place.gain], [place.inside], place.outside]
        sums = [n.sum(*(self.p[name] for name in names if name is not None)) for names in vectors]
        mean = None
        if place.gain in self.moments:
            mean, variance = self.moments[place.gain]
            sums[0] = n("Div", sums[0], n.deviation(variance, self.recurrence.formula))
        sums.append(mean)
        ends = list(itertools.accumulate(sizes))

        def part(vector: ir.Value | None, k: int) -> Any:
            whole = vector is None or len(sizes) == 1
            return vector if whole else n("Slice", vector, [ends[k] - sizes[k]], [ends[k]], [-1])

        return [Terms(*(part(vector, k) for vector in sums)) for k in range(len(sizes))]

    def apply_place(self, n: Nodes, terms: Terms, z: ir.Value) -> ir.Value:
        """Computes ``N(z + inside) * gain + outside`` at one place."""
        z = n.sum(z, terms.inside)
        if terms.gain is None:
            return n.sum(z, terms.outside)
        if terms.mean is not None:
            return n.sum(n("Mul", n("Sub", z, terms.mean), terms.gain), terms.outside)
        return n.normalised(z, self.recurrence.norm, self.recurrence.formula, terms.gain, terms.outside)

    def summed_inputs(self, n: Nodes, terms: list[Terms], x: ir.Value, weight: str) -> Values:
        """Computes one of the two sides of the summed inputs, W x or U h."""
        parts = n.split(n("MatMul", x, self.weights[weight]), self.sizes)
        return [self.apply_place(n, term, part) for term, part in zip(terms, parts, strict=True)]

    def gates(self, n: Nodes, parts: Values) -> Values:
        """Splits the parts of the summed inputs into H units for each gate."""
        sizes = zip(parts, self.sizes, strict=False)
        return [gate for part, size in sizes for gate in n.split(part, [self.H] * (size // self.H))]

    def step(self, n: Nodes, x: Values, state: Values, dropout: ir.Value | None) -> Values:
        """Computes the state after a step. ``x`` is the input side of that step, ``dropout`` a factor of the h that
        W_hh reads."""
        h = state[0] if dropout is None else n("Mul", state[0], dropout)
        hidden = self.summed_inputs(n, self.hidden, h, "weight_hh")
        return {"RNN": self._rnn, "LSTM": self._lstm, "GRU": self._gru}[self.recurrence.network](n, x, hidden, state)

    def _add_sides(self, n: Nodes, x: Values, hidden: Values) -> Values:
        terms = zip(self.both, x, hidden, strict=False)
        return [self.apply_place(n, both, n("Add", x_part, h_part)) for both, x_part, h_part in terms]

    def _forget_gate(self, n: Nodes, a: ir.Value) -> ir.Value:
        """Computes the sigmoid of the gate that keeps the old state, with its constant bias."""
        bias = self.recurrence.formula.forget_bias
        return n("Sigmoid", n("Add", a, bias) if bias else a)

    def _rnn(self, n: Nodes, x: Values, hidden: Values, state: Values) -> Values:
        (a,) = self._add_sides(n, x, hidden)
        return [n("Relu" if self.recurrence.nonlinearity == "relu" else "Tanh", a)]

    def _lstm(self, n: Nodes, x: Values, hidden: Values, state: Values) -> Values:
        i, f, g, o = self.gates(n, self._add_sides(n, x, hidden))
        c = n("Add", n("Mul", self._forget_gate(n, f), state[1]), n("Mul", n("Sigmoid", i), n("Tanh", g)))
        normalised = self.apply_place(n, self.cell, c)
        h = n("Mul", n("Sigmoid", o), n("Tanh", normalised))
        if self.recurrence.projected:
            h = n("MatMul", h, self.weights["weight_hr"])
        return [h, normalised if self.recurrence.formula.cell == "carry" else c]

    def _gru(self, n: Nodes, x: Values, hidden: Values, state: Values) -> Values:
        if self.recurrence.reset_multiplies == "sum":
            r, z, a = self.gates(n, self._add_sides(n, x, hidden))
            a = n("Mul", n("Sigmoid", r), a)
        elif len(self.sizes) == 1:  # r multiplies the candidate's part of one normalisation over all gates
            (x_r, x_z, x_n), (h_r, h_z, h_n) = self.gates(n, x), self.gates(n, hidden)
            r, z = n("Add", x_r, h_r), n("Add", x_z, h_z)
            a = n("Add", x_n, n("Mul", n("Sigmoid", r), h_n))
        else:
            r, z = self.gates(n, self._add_sides(n, x[:-1], hidden[:-1]))
            a = n("Add", x[-1], n("Mul", n("Sigmoid", r), hidden[-1]))
            a = self.apply_place(n, self.both[-1], a)
        z = self._forget_gate(n, z)
        return [n("Add", n("Mul", n("Sub", 1.0, z), n("Tanh", a)), n("Mul", z, state[0]))]


def _recurrent(
    input, state, params, recurrence, restart, dropout, kept_h, kept_c, lengths, reset, reverse, batch_sizes,
    population, count_padding, backend,
):  # fmt: skip
    # The exporter reads this signature, and warns of one that takes any number.
    flat = input, state, params, recurrence, restart, dropout, kept_h, kept_c, lengths, reset, reverse, batch_sizes
    a, _ = RECURRENT.engine_arguments((*flat, population, count_padding, backend))
    n, nodes = _new_nodes(a.input)
    network, changes = a.recurrence.network, a.changes
    kept: Any = [k if k is None else _one_share(n, k) for k in changes.kept]
    if a.recurrence.quantized:
        raise ValueError(f"{network}: a quantized network cannot be exported to ONNX; export it before")
    if a.batch_sizes is not None:
        raise ValueError(f"{network}: a PackedSequence cannot be exported to ONNX; call it with lengths=")
    if a.finds_moments and a.recurrence.gain_names:
        raise ValueError(f"{network}: batch norm in training cannot be exported to ONNX; call eval() on it")
    x, dtype = n.cast(a.input), a.input.dtype
    if x is not a.input:  # ONNX Runtime 1.31 fuses Transpose, Cast and MatMul and crashes; so they are not in a row
        x = n("Sum", x)
    starts: Any
    state, params, starts = ([n.cast(t) for t in tensors] for tensors in (a.state, a.params, changes.restart))
    factor: Any = None if changes.dropout is None else n.cast(changes.dropout)
    a = a._replace(input=x, state=state, params=params, changes=StateChanges(starts, factor, kept))
    unchanged = a.reset is None and factor is None and not any(kept)
    has_operator = a.recurrence.formula == PLAIN and not a.recurrence.projected and unchanged
    if has_operator and n.dtype == ir.DataType.FLOAT:  # ONNX Runtime has them in no wider type
        outputs = _onnx_op(n, a)
    else:
        outputs = _scan(n, a, _moments_of_times(n, x, [n.cast(m) for m in a.population], a.lengths, a.reverse))
    outputs = [n.round(value, dtype) for value in outputs]
    nodes.extend(n.tape.nodes)
    return outputs


def _one_share(n: Nodes, kept: ir.Value) -> ir.Value:
    """Returns the share of zoneout, (1, 1).

    Raises:
        RuntimeError: there is one for each step, row and unit.
    """
    if list(cast(Any, kept.shape)) != [1, 1, 1]:
        raise RuntimeError("zoneout in training draws numbers for every step; call eval() on the module first")
    return cast(ir.Value, n("Squeeze", n.cast(kept), [0]))


def _scan(n: Nodes, a: Any, moments: Values) -> Values:
    """Returns [output, *final state] by a ``Scan`` over the steps, in the reverse direction from the last to the first.

    With ``lengths`` a row keeps its state after its end, and in the reverse direction before its start. ``a`` are the
    arguments, of values instead of tensors.
    """
    x, initial, r, changes, reverse = a.input, a.state, a.recurrence, a.changes, a.reverse
    layer = Layer(n, r, a.params, moments)
    from_input = layer.summed_inputs(n, layer.input, x, "weight_ih")
    active, cut = _masks(n, x, a.lengths, a.reset, reverse)
    masks = [mask for mask in (active, cut) if mask is not None]

    b = Nodes(n.dtype, n.opset, n)
    states = [_step_input(f"one step/{name}", n.dtype) for name in r.state_names]
    parts = [_step_input(f"one step/x{k}", n.dtype) for k in range(len(from_input))]
    moving: Values = []  # what batch norm has at each step, in the graph around
    of_step: Values = []

    def at_step(terms: Terms) -> Terms:
        if terms.mean is None:
            return terms
        moving.extend([cast(ir.Value, terms.gain), terms.mean])
        of_step.extend(_step_input(f"one step/{name}{len(moving)}", n.dtype) for name in ("scale", "mean"))
        return terms._replace(gain=of_step[-2], mean=of_step[-1])

    layer.hidden, layer.both = [*map(at_step, layer.hidden)], [*map(at_step, layer.both)]
    layer.cell = at_step(layer.cell)
    bits = [_step_input(f"one step/mask{k}", ir.DataType.BOOL) for k in range(len(masks))]
    restart: Sequence[Any] = changes.restart or [0.0] * len(states)
    before = states if cut is None else [b("Where", bits[-1], *pair) for pair in zip(restart, states, strict=True)]
    after = layer.step(b, parts, before, changes.dropout)
    shares = changes.kept or [None] * len(states)
    after = [_zoneout(b, *part) for part in zip(shares, before, after, strict=True)]
    if active is None:
        output = b("Identity", after[0])  # a body may not return a value twice
    else:
        output = b("Where", bits[0], after[0], 0.0)
        after = [b("Where", bits[0], new, old) for new, old in zip(after, states, strict=True)]
    body = ir.Graph([*states, *parts, *of_step, *bits], [*after, output], nodes=b.tape.nodes, name="one_step")
    steps = [*from_input, *moving, *masks]
    *final, outputs = n(
        "Scan",
        *initial,
        *steps,
        outputs=len(initial) + 1,
        body=body,
        num_scan_inputs=len(steps),
        scan_input_directions=[int(reverse)] * len(steps),
        scan_output_directions=[int(reverse)],
    )
    return [outputs, *final]


def _zoneout(n: Nodes, kept: ir.Value | None, old: ir.Value, new: ir.Value) -> ir.Value:
    """Computes one part of the state after a step: ``kept * old + (1 - kept) * new``; None: ``new``."""
    return new if kept is None else n("Add", n("Mul", kept, old), n("Mul", n("Sub", 1.0, kept), new))


def _step_input(name: str, dtype: ir.DataType) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype))


def _times(n: Nodes, x: ir.Value) -> Any:
    """Returns 0, 1... T - 1, (T, 1)."""
    T = n("Squeeze", n("Shape", x, start=0, end=1), [0])
    return n("Unsqueeze", n("Range", n("Squeeze", [0], [0]), T, n("Squeeze", [1], [0])), [1])


def _moments_of_times(n: Nodes, x: ir.Value, population: Values, lengths: Any, reverse: bool) -> Values:
    """Returns batch norm's moments by times, (T, 1, n), from those of a row's first, second... step, (T, n).

    In the reverse direction with ``lengths`` each row has its own, (T, B, n).
    """
    if not (population and reverse):
        return [n("Unsqueeze", moment, [1]) for moment in population]
    last = n("Shape", x, start=0, end=1) if lengths is None else n.cast(lengths, ir.DataType.INT64)
    steps = n("Max", n("Sub", n("Sub", last, [1]), _times(n, x)), [0])
    return [n("Gather", moment, steps, axis=0) for moment in population]


def _masks(n: Nodes, x: ir.Value, lengths: Any, reset: Any, reverse: bool) -> tuple[Any, Any]:
    """Returns which rows take a step at each time (None: all) and which start from zeros (None: no row); (T, B, 1)."""
    active, cut = None, reset if reset is None else n.cast(reset, ir.DataType.BOOL)
    if lengths is not None:
        active = n("Less", _times(n, x), n.cast(lengths, ir.DataType.INT64))
        cut = None if cut is None else n("And", cut, active)
    if cut is not None and reverse:  # the reverse direction meets a cut between t-1 and t after its step at t
        later, first = n("Slice", cut, [1], [2**62], [0]), n("Slice", cut, [0], [1], [0])
        cut = n("Concat", later, n("And", first, n("Not", first)), axis=0)
    return tuple(None if mask is None else n("Unsqueeze", mask, [-1]) for mask in (active, cut))  # type: ignore[return-value]


ORDER = {"RNN": (0,), "LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2)}
"""The order of ONNX's gates among torch's."""


def _onnx_op(n: Nodes, a: Any) -> Values:
    """Returns [output, *final state] by ONNX's own operator."""
    r, p = a.recurrence, dict(zip(a.recurrence.parameter_names, a.params, strict=True))
    H = _units(p) // GATES[r.network]

    units = [k * H + unit for k in ORDER[r.network] for unit in range(H)]

    def ordered(name: str) -> ir.Value:
        return n("Gather", p[name], units, axis=0)

    W, R = (n("Unsqueeze", ordered(name), [0]) for name in ("weight_ih", "weight_hh"))
    B = None
    if r.bias:
        B = n("Unsqueeze", n("Concat", ordered("bias_ih"), ordered("bias_hh"), axis=0), [0])
    steps = None if a.lengths is None else n.cast(a.lengths, ir.DataType.INT32)
    attributes: dict[str, Any] = {"hidden_size": H, "direction": "reverse" if a.reverse else "forward"}
    if r.network == "RNN":
        attributes["activations"] = [r.nonlinearity.capitalize()]
    if r.network == "GRU":
        attributes["linear_before_reset"] = 1
    state = [n("Unsqueeze", s, [0]) for s in a.state]
    output, *final = n(r.network, a.input, W, R, B, steps, *state, outputs=1 + len(state), **attributes)
    final = [n("Squeeze", s, [0]) for s in final]
    if steps is not None:  # for a row without a step ONNX Runtime returns zeros, not the initial state
        empty = n("Unsqueeze", n("Equal", steps, n("Cast", [0], to=int(ir.DataType.INT32))), [-1])
        final = [n("Where", empty, before, after) for before, after in zip(a.state, final, strict=True)]
    return [n("Squeeze", output, [1]), *final]
