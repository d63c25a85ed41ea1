"""The public API against `oracle`: the paper's equations, every preset's own program, the whole space of formulas.

Everything is float64. Values are compared with the oracle's, gradients with finite differences of the oracle, so that
neither check goes through torch's arithmetic or autograd.
"""

import functools
import itertools
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import layernorm as ln
from support import comparing, oracle
from support.comparing import tensor
from support.networks import CELL, MODULE, NETWORKS, PAPER, RUN, as_hx, flat
from support.turns import one_in

# What is compared, relative to the largest magnitude of what is expected, and why so closely and no closer.
VALUE = 1e-12  # float64's 1.1e-16, times a step's sums and the normalisations' conditioning; 1e-15 is typical
GRADIENT = 1e-9  # the stencil's own error, h^4 / 30 * f^(5) + 1.5 * 1.1e-16 / h * |f| at h = 3e-5, is below 1e-10
STENCIL_H = 3e-5
derivative = functools.partial(comparing.derivative, h=STENCIL_H)

sites = [
    dict(zip(("gates", "span", "bias_inside", "gate_bias"), values, strict=True))
    for values in itertools.product(("split", "hidden", "sum"), ("joint", "per_gate"), (False, True), (False, True))
]
over_all = [site | {"span": "all"} for site in sites if site["span"] == "joint"]
one_bias = [
    site | {"biases": "input", "bias_again": again}
    for site in sites
    if site["span"] == "joint"
    for again in ([False, True] if site["bias_inside"] and site["gates"] != "hidden" else [False])
]
cells = [{"cell": cell, "cell_bias": bias} for cell in ("output", "carry") for bias in (False, True)] + [{"cell": None}]
ends = [{"eps_on": on, "eps": eps} for on, eps in (("variance", 1e-5), ("deviation", 1e-2))]
SPACE = {
    "RNN": [ln.Formula(cell=None, **site, **end) for site in [*sites, *one_bias] for end in ends],
    "GRU": [
        ln.Formula(cell=None, **site, **end, forget_bias=forget_bias)
        for site in [*sites, *over_all, *one_bias]
        for end in ends
        for forget_bias in (0.0, 0.7)
    ],
    "LSTM": [
        ln.Formula(**site, **cell, **end, forget_bias=forget_bias)
        for site in [*sites, {"gates": None}]
        for cell in cells
        for end in ends
        for forget_bias in (0.0, 0.7)
        if site["gates"] or cell["cell"]
    ]
    + [ln.Formula(**site) for site in one_bias],
}
"""Every formula that is not another one in disguise (without a normalisation its fields say nothing)."""


def label(value):
    """A test's name from a formula: the fields in their order."""
    if not isinstance(value, ln.Formula):
        return str(value)
    f = value
    flags = f"{f.bias_inside:d}{f.gate_bias:d}{f.cell_bias:d}"
    return f"{f.gates}-{f.span}-{f.cell}-{flags}-{f.eps_on}-{f.forget_bias}-{f.biases}-{f.bias_again:d}"


def case(network, f=None, norm="layer", *, T=3, B=2, I=3, H=4, P=0, bias=True, seed=0):  # noqa: E741
    """Random input, initial state and parameters, all of order one: (x, state, parameters)."""
    rng = np.random.default_rng([seed, T, B, I, H])
    f = oracle.PLAIN if norm is None else f or PAPER[network]
    parameters = {
        name: rng.normal(1.0 if "gain" in name else 0.0, 0.7, shape)
        for name, shape in sorted(oracle.parameter_shapes(network, f, I, H, P, bias).items())
    }
    state = (rng.normal(0, 0.7, (B, P or H)),) + ((rng.normal(0, 0.7, (B, H)),) if network == "LSTM" else ())
    return rng.normal(0, 1, (T, B, I)), state, parameters


def call(network, x, state, parameters, *, lengths=None, reset=None, **keywords):
    """The public function on tensors or arrays: (output, state as a tuple), tensors."""
    x, *state = (a if isinstance(a, torch.Tensor) else tensor(a) for a in (x, *state))
    parameters = {k: v if isinstance(v, torch.Tensor) else tensor(v) for k, v in parameters.items()}
    lengths = None if lengths is None else torch.tensor(lengths, dtype=torch.int64)
    reset = None if reset is None else torch.tensor(reset)
    output, final = RUN[network](x, as_hx(state), parameters, lengths=lengths, reset=reset, **keywords)
    return output, flat(final)


def close(got, expected, tolerance=VALUE):
    comparing.close_together(got, expected, tolerance)


def detached(output, state):
    return [a.detach() for a in (output, *state)]


def agrees(network, x, state, parameters, *, f=None, norm="layer", **more):
    keywords = {} if f is None or norm is None else {"formula": f}
    got = call(network, x, state, parameters, norm=norm, **keywords, **more)
    expected, final = oracle.run(network, x, state, parameters, f or PAPER[network], norm, **more)
    close(detached(*got), [expected, *final])


# --- The op ---


@pytest.mark.parametrize("shape", [(2, 3, 5), (7,), (4, 1), (3, 64), (0, 4)])
@pytest.mark.parametrize(("gain", "bias"), [(True, True), (True, False), (False, False)])
def test_layer_norm_and_rms_norm_are_the_formula(shape, gain, bias):
    rng = np.random.default_rng(1)
    x, g, b = rng.normal(0.3, 2, shape), rng.normal(1, 0.5, shape[-1]), rng.normal(0, 0.5, shape[-1])
    weight, offset = (tensor(g) if gain else None), (tensor(b) if bias else None)
    rows = x.reshape(-1, shape[-1])
    for eps in (1e-5, 0.1):
        expected = [oracle.layer_norm(row, g if gain else 1.0, b if bias else 0.0, eps) for row in rows]
        got = ln.functional.layer_norm(tensor(x), shape[-1:], weight, offset, eps)
        close([got], [np.reshape(expected, shape)])
        expected = [oracle.rms_norm(row, g if gain else 1.0, 0.0, eps) for row in rows]
        close([ln.functional.rms_norm(tensor(x), shape[-1:], weight, eps)], [np.reshape(expected, shape)])


def test_normalised_shape_of_two_dimensions_is_one_long_row():
    rng = np.random.default_rng(2)
    x, g, b = rng.normal(0, 1, (3, 4, 5)), rng.normal(1, 0.5, (4, 5)), rng.normal(0, 0.5, (4, 5))
    expected = [oracle.layer_norm(row.ravel(), g.ravel(), b.ravel()).reshape(4, 5) for row in x]
    close([ln.functional.layer_norm(tensor(x), (4, 5), tensor(g), tensor(b))], [np.array(expected)])
    module = ln.LayerNorm((4, 5), dtype=torch.float64)
    module.load_state_dict({"weight": tensor(g), "bias": tensor(b)})
    close([module(tensor(x)).detach()], [np.array(expected)])


def test_rms_norm_default_eps_is_the_types():
    x = np.random.default_rng(3).normal(0, 1e-8, (4, 6))
    expected = [oracle.rms_norm(row, eps=np.finfo(np.float64).eps) for row in x]
    close([ln.functional.rms_norm(tensor(x), (6,))], [np.array(expected)])
    close([ln.RMSNorm(6, dtype=torch.float64)(tensor(x)).detach()], [np.array(expected)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rms_norm_default_eps_is_float32s_in_narrow_types(dtype):
    """As torch takes it: the rounding of the type that is computed in. With that of bfloat16, 2^-7, inputs of 0.001
    would hardly be scaled."""
    x = (torch.randn(4, 64, generator=torch.Generator().manual_seed(0)) * 1e-3).to(dtype)
    for found in (ln.functional.rms_norm(x, (64,)), ln.RMSNorm(64, dtype=dtype)(x)):
        # both round once, from float32, to the same number or its neighbour
        torch.testing.assert_close(found, torch.nn.functional.rms_norm(x, (64,)), rtol=torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("shape", [(3, 5), (2, 1), (1, 8)])
def test_gradients_of_the_op_are_those_of_the_formula(norm, shape):
    rng = np.random.default_rng(4)
    arrays = [rng.normal(0.3, 1, shape), rng.normal(1, 0.5, shape[1])] + [rng.normal(0, 1, shape[1])] * (
        norm == "layer"
    )
    weights = rng.normal(0, 1, shape)
    tensors = [tensor(a, grad=True) for a in arrays]
    function = {"layer": ln.functional.layer_norm, "rms": ln.functional.rms_norm}[norm]
    got = torch.autograd.grad(
        (function(tensors[0], shape[1:], *tensors[1:], eps=1e-2) * tensor(weights)).sum(), tensors
    )

    def value(arrays):
        over = {"layer": oracle.layer_norm, "rms": oracle.rms_norm}[norm]
        return sum(weights[m] @ over(arrays[0][m], *arrays[1:], eps=1e-2) for m in range(shape[0]))

    close(got, coordinatewise(value, arrays), GRADIENT)


def coordinatewise(value, arrays):
    """All partial derivatives of ``value(arrays)``, shaped like the arrays."""
    gradients = []
    for k, a in enumerate(arrays):
        gradient = np.zeros_like(a)
        for index in np.ndindex(a.shape):

            def moved(s, k=k, a=a, index=index):
                changed = a.copy()
                changed[index] += s
                return value([*arrays[:k], changed, *arrays[k + 1 :]])

            gradient[index] = derivative(moved)
        gradients.append(gradient)
    return gradients


# --- The paper's equations, as numbered. The paper has no eps. ---


def permuted(a, order, blocks):
    """Rows in blocks, taken in another order; order[k] is where the k-th block is now."""
    return np.concatenate([np.split(np.asarray(a), blocks)[k] for k in order])


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_rnn_is_equation_4(nonlinearity):
    x, (h,), p = case("RNN", H=5)
    f = {"tanh": np.tanh, "relu": lambda z: np.maximum(z, 0)}[nonlinearity]
    b = p["bias_ih"] + p["bias_hh"]
    expected, final = oracle.sequence(
        lambda x, h: (oracle.eq4(x, h, p["weight_ih"], p["weight_hh"], p["gain"], b, f),), x, (h,)
    )
    got = call("RNN", x, (h,), p, eps=0.0, nonlinearity=nonlinearity)
    close(detached(*got), [expected, *final])


def test_lstm_is_equations_20_to_22():
    H = 4
    x, state, p = case("LSTM", H=H)
    extra = np.random.default_rng(5).normal(0, 1, 4 * H)  # eq. 20's own b, on top of the two normalisations' biases
    p["bias_hh"] = p["bias_hh"] + extra

    def of_paper(name):  # i, f, g, o -> f, i, o, g
        return permuted(p[name], (1, 0, 3, 2), 4)

    norms = [(of_paper("gain_hh"), of_paper("bias_hh") - permuted(extra, (1, 0, 3, 2), 4))]
    norms += [(of_paper("gain_ih"), of_paper("bias_ih"))]

    def step(x, h, c):
        b = permuted(extra, (1, 0, 3, 2), 4)
        f, i, o, g = oracle.eq20(x, h, of_paper("weight_hh"), of_paper("weight_ih"), norms, b)
        c = oracle.eq21(f, i, g, c)
        return oracle.eq22(o, c, p["gain_c"], p["bias_c"]), c

    expected, final = oracle.sequence(step, x, state)
    close(detached(*call("LSTM", x, state, p, eps=0.0)), [expected, *final])


def test_gru_is_equations_26_to_28():
    # The paper's z lets the new state in, torch's keeps the old one: sigmoid(-a) = 1 - sigmoid(a). The sign goes to the
    # gains and biases of z, not to its weights, whose share of the joint mean must stay as it is.
    H = 4
    x, state, p = case("GRU", H=H)
    zr, n = permuted(np.arange(3 * H), (1, 0, 2), 3)[: 2 * H], slice(2 * H, None)
    sign = np.repeat([-1.0, 1.0], H)
    norms = {site: (sign * p["gain" + site][zr], sign * p["bias" + site][zr]) for site in ("_hh", "_ih")}
    norms_n = {site: (p["gain" + site][n], p["bias" + site][n]) for site in ("_hh", "_ih")}

    def step(x, h):
        z, r = oracle.eq26(x, h, p["weight_hh"][zr], p["weight_ih"][zr], [norms["_hh"], norms["_ih"]])
        candidate = oracle.eq27(x, h, r, p["weight_ih"][n], p["weight_hh"][n], [norms_n["_ih"], norms_n["_hh"]])
        return (oracle.eq28(z, h, candidate),)

    expected, final = oracle.sequence(step, x, state)
    close(detached(*call("GRU", x, state, p, eps=0.0)), [expected, *final])


def test_formula_cell_is_equations_29_to_31():
    x, state, p = case("LSTM", ln.Formula(gates=None, cell="output"))

    def of_paper(a):  # i, f, g, o -> f, i, o, g
        return permuted(a, (1, 0, 3, 2), 4)

    def step(x, h, c):
        b = of_paper(p["bias_ih"] + p["bias_hh"])
        f, i, o, g = oracle.eq29(x, h, of_paper(p["weight_hh"]), of_paper(p["weight_ih"]), b)
        c = oracle.eq21(f, i, g, c)
        return oracle.eq22(o, c, p["gain_c"], p["bias_c"]), c

    expected, final = oracle.sequence(step, x, state)
    close(detached(*call("LSTM", x, state, p, formula="cell", eps=0.0)), [expected, *final])


# --- The whole space of formulas: values, and the gradient along one random direction of everything at once ---


EVERY = [(network, f, norm) for network in NETWORKS for f in SPACE[network] for norm in ("layer", "rms")]


@pytest.mark.parametrize(("network", "f", "norm"), one_in(3, EVERY), ids=label)
def test_every_formula(network, f, norm):
    for bias, P in [(True, 0), (False, 3)] if network == "LSTM" else [(True, 0), (False, 0)]:
        every_formula_case(network, f, norm, case(network, f, norm, T=2, B=2, I=3, H=4, P=P, bias=bias))


@pytest.mark.parametrize("network", ["RNN", "LSTM"])
def test_over_all_is_joint_where_no_gate_stands_apart(network):
    joint = ln.Formula(gates="split")
    x, state, p = case(network, joint)
    got, expected = (detached(*call(network, x, state, p, formula=replace(joint, span=s))) for s in ("all", "joint"))
    assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("network", NETWORKS)
def test_without_normalisation(network, bias):
    every_formula_case(network, None, None, case(network, norm=None, bias=bias))
    if network == "LSTM":
        every_formula_case(network, None, None, case(network, norm=None, bias=bias, P=3))


@pytest.mark.parametrize("norm", ["layer", "rms", None])
def test_relu(norm):
    f = None if norm is None else PAPER["RNN"]
    every_formula_case("RNN", f, norm, case("RNN", f, norm), nonlinearity="relu")


def every_formula_case(network, f, norm, arrays, **extra):
    x, state, p = arrays
    n = len(state)
    leaves = [tensor(a, grad=True) for a in (x, *state, *p.values())]
    keywords = extra if norm is None else {"formula": f, **extra}
    parameters = dict(zip(p, leaves[1 + n :], strict=True))
    output, final = call(network, leaves[0], leaves[1 : 1 + n], parameters, norm=norm, **keywords)

    def evaluate(x, *rest):
        parameters = dict(zip(p, rest[n:], strict=True))
        output, final = oracle.run(network, x, rest[:n], parameters, f, norm, **extra)
        return [output, *final]

    same_values_and_derivative(evaluate, leaves, [output, *final])


def same_values_and_derivative(evaluate, leaves, results):
    """The results against ``evaluate`` at the leaves, and of a random linear functional of the results its derivative
    along one random direction of all leaves at once: any wrong gradient shows in it."""
    rng = np.random.default_rng(7)
    values = [a.detach().numpy() for a in leaves]
    close([a.detach() for a in results], evaluate(*values))
    weights = [rng.normal(0, 1, a.shape) for a in results]
    direction = [rng.normal(0, 1, a.shape) for a in values]
    gradients = torch.autograd.grad(results, leaves, [tensor(w) for w in weights])

    def value(s):
        moved = evaluate(*(a + s * d for a, d in zip(values, direction, strict=True)))
        return sum((a * w).sum() for a, w in zip(moved, weights, strict=True))

    terms = [g.numpy() * d for g, d in zip(gradients, direction, strict=True)]
    scale = sum(np.abs(t).sum() for t in terms)
    assert abs(sum(t.sum() for t in terms) - derivative(value)) <= GRADIENT * scale


# --- Gradients coordinate by coordinate, through lengths, reset and reverse ---

PER_GATE = {"gates": "split", "span": "per_gate", "bias_inside": True, "eps": 0.1, "eps_on": "deviation"}
HANDFUL = [
    ("RNN", "paper", "layer", 0),
    ("LSTM", "paper", "layer", 0),
    ("GRU", "paper", "layer", 0),
    ("LSTM", "paper", "rms", 0),
    ("GRU", "paper", "rms", 0),
    ("LSTM", "paper", "layer", 2),
    ("LSTM", "cell", "layer", 0),
    ("LSTM", "tf1", "layer", 0),
    ("LSTM", "sonnet", "layer", 0),
    ("LSTM", ln.Formula(cell="carry", **PER_GATE), "layer", 2),
    ("GRU", ln.Formula(cell=None, **PER_GATE), "layer", 0),
    ("GRU", ln.Formula(gates="sum", cell=None, bias_inside=True), "layer", 0),
    ("GRU", "haste", "layer", 0),
    ("LSTM", "kiros", "layer", 2),
    ("GRU", "kiros", "layer", 0),
    ("GRU", "dreamer", "layer", 0),
    ("GRU", "dreamerv3", "layer", 0),
    ("GRU", ln.Formula(gates="sum", span="all", cell=None, bias_inside=True), "layer", 0),
]


def resolved(network, formula):
    return ln.formula.PRESETS[formula][network] if isinstance(formula, str) else formula


BOTH_WAYS = [(*case, reverse) for case in HANDFUL for reverse in (False, True)]


@pytest.mark.parametrize(("network", "formula", "norm", "P", "reverse"), one_in(5, BOTH_WAYS), ids=label)
def test_every_partial_derivative(network, formula, norm, P, reverse):
    f = resolved(network, formula)
    x, state, p = case(network, f, norm, T=3, B=2, I=2, H=3, P=P, seed=8)
    more = {"lengths": [3, 2], "reset": np.array([[0, 0], [0, 1], [1, 0]], bool), "reverse": reverse}
    rng = np.random.default_rng(9)
    values, n = [x, *state, *p.values()], len(state)
    tensors = [tensor(a, grad=True) for a in values]
    parameters = dict(zip(p, tensors[1 + n :], strict=True))
    output, final = call(network, tensors[0], tensors[1 : 1 + n], parameters, norm=norm, formula=f, **more)
    weights = [rng.normal(0, 1, a.shape) for a in (output, *final)]
    scalar = sum((a * tensor(w)).sum() for a, w in zip((output, *final), weights, strict=True))

    def value(arrays):
        parameters = dict(zip(p, arrays[1 + n :], strict=True))
        out, last = oracle.run(network, arrays[0], arrays[1 : 1 + n], parameters, f, norm, **more)
        return sum((a * w).sum() for a, w in zip((out, *last), weights, strict=True))

    close(torch.autograd.grad(scalar, tensors), coordinatewise(value, values), GRADIENT)


# --- Shapes, lengths, reset, reverse ---


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    "sizes",
    [
        {"T": 0},
        {"B": 0},
        {"T": 0, "B": 0},
        {"T": 1},
        {"B": 1},
        {"H": 1},
        {"I": 1},
        {"T": 1, "B": 1, "I": 1, "H": 1},
        {"T": 5, "B": 3, "I": 2, "H": 7},
        {"T": 4, "B": 2, "I": 9, "H": 3},
    ],
    ids=str,
)
def test_shapes(network, sizes, reverse):
    for norm in ("layer", "rms", None):
        x, state, p = case(network, norm=norm, **sizes)
        agrees(network, x, state, p, norm=norm, reverse=reverse)


@st.composite
def sequences(draw):
    """A formula, sizes, and how the sequence is cut: (network, f, norm, arrays, lengths, reset, reverse)."""
    network = draw(st.sampled_from(NETWORKS))
    f = draw(st.sampled_from([PAPER[network], *SPACE[network]]))
    norm = draw(st.sampled_from(["layer", "rms", None]))
    T, B = draw(st.integers(0, 6)), draw(st.integers(0, 4))
    sizes = {"I": draw(st.integers(1, 4)), "H": draw(st.integers(1, 5)), "bias": draw(st.booleans())}
    if network == "LSTM":
        sizes["P"] = draw(st.integers(0, sizes["H"] - 1))
    arrays = case(network, f, norm, T=T, B=B, **sizes, seed=draw(st.integers(0, 999)))
    lengths = draw(st.none() | st.lists(st.integers(0, T), min_size=B, max_size=B))
    bits = draw(st.none() | st.lists(st.booleans(), min_size=T * B, max_size=T * B))
    reset = None if bits is None else np.array(bits, bool).reshape(T, B)
    return network, f, norm, arrays, lengths, reset, draw(st.booleans())


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(sequences())
def test_any_sequence(drawn):
    network, f, norm, arrays, lengths, reset, reverse = drawn
    agrees(network, *arrays, f=f, norm=norm, lengths=lengths, reset=reset, reverse=reverse)


@pytest.mark.parametrize("network", NETWORKS)
def test_no_initial_state_is_zeros(network):
    x, state, p = case(network)
    output, final = oracle.run(network, x, [np.zeros_like(part) for part in state], p, PAPER[network])
    got, last = RUN[network](tensor(x), None, {k: tensor(v) for k, v in p.items()})
    close([got, *flat(last)], [output, *final])


# --- Modules ---


def module_case(network, *, layers=2, bidirectional=True, T=5, B=3, P=0, f=None, norm="layer", **keywords):
    """A module with random parameters, and what the oracle needs for the same: (module, x, state, parameters)."""
    rng = np.random.default_rng(10)
    H, I = 4, 3  # noqa: E741
    if P:
        keywords["proj_size"] = P
    if f is not None:
        keywords["formula"] = f
    module = MODULE[network](I, H, layers, bidirectional=bidirectional, dtype=torch.float64, norm=norm, **keywords)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(tensor(rng.normal("gain" in name, 0.7, parameter.shape)))
    directions = 2 if bidirectional else 1
    values = {k: v.numpy() for k, v in module.state_dict().items()}
    parameters = by_layer_and_direction(values, layers, directions)
    shape = (layers * directions, B)
    state = (rng.normal(0, 0.7, (*shape, P or H)),) + ((rng.normal(0, 0.7, (*shape, H)),) if network == "LSTM" else ())
    return module, rng.normal(0, 1, (T, B, I)), state, parameters


def by_layer_and_direction(values, layers, directions):
    """A module's parameters by their full names -> ``[layer][direction]``, by the names without suffix."""

    def of(ending):
        return {k.removesuffix(ending): v for k, v in values.items() if k.endswith(ending)}

    return [[of(f"_l{layer}{suffix}") for suffix in ("", "_reverse")[:directions]] for layer in range(layers)]


def apply(module, x, state, **more):
    """The module on arrays: [output, *final state]; input and output may be packed."""
    x = x if isinstance(x, PackedSequence) else tensor(x)
    hx = None if state is None else as_hx([tensor(part) for part in state])
    with torch.no_grad():
        output, final = module(x, hx, **more)
    return [output, *flat(final)]


def some_cuts(seed, x):
    return np.random.default_rng(seed).random(x.shape[:2]) < 0.4


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("norm", ["layer", "rms", None])
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (1, True), (2, False), (2, True)])
def test_module(network, norm, layers, bidirectional):
    module, x, state, p = module_case(network, layers=layers, bidirectional=bidirectional, norm=norm)
    f = PAPER[network]
    expected, final = oracle.stack(network, x, state, p, f=f, norm=norm)
    close(apply(module, x, state), [expected, *final])
    zeros = [np.zeros_like(part) for part in state]
    expected, final = oracle.stack(network, x, zeros, p, f=f, norm=norm)
    close(apply(module, x, None), [expected, *final])

    lengths, reset = [2, 5, 0], some_cuts(11, x)
    expected, final = oracle.stack(network, x, state, p, f=f, norm=norm, lengths=lengths, reset=reset)
    for given_lengths in (lengths, torch.tensor(lengths), torch.tensor(lengths, dtype=torch.int32)):
        close(apply(module, x, state, lengths=given_lengths, reset=torch.tensor(reset)), [expected, *final])


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_of_a_module(network):
    module, x, state, p = module_case(network)
    names = [name for name, _ in module.named_parameters()]
    leaves = [tensor(a, grad=True) for a in (x, *state)] + list(module.parameters())
    more = {"lengths": [2, 5, 0], "reset": some_cuts(15, x)}
    n = len(state)
    hx = as_hx(leaves[1 : 1 + n])
    output, final = module(leaves[0], hx, lengths=more["lengths"], reset=torch.tensor(more["reset"]))

    def evaluate(x, *rest):
        values = dict(zip(names, rest[n:], strict=True))
        parameters = by_layer_and_direction(values, len(p), len(p[0]))
        output, final = oracle.stack(network, x, rest[:n], parameters, f=PAPER[network], **more)
        return [output, *final]

    same_values_and_derivative(evaluate, leaves, [output, *flat(final)])


@pytest.mark.parametrize("network", NETWORKS)
def test_module_batch_first_and_unbatched(network):
    module, x, state, p = module_case(network)
    expected, final = oracle.stack(network, x, state, p, f=PAPER[network])
    module.batch_first = True
    close(apply(module, x.swapaxes(0, 1), state), [expected.swapaxes(0, 1), *final])
    lengths, reset = [2, 5, 0], some_cuts(12, x)
    cut, last = oracle.stack(network, x, state, p, f=PAPER[network], lengths=lengths, reset=reset)
    got = apply(module, x.swapaxes(0, 1), state, lengths=lengths, reset=torch.tensor(reset.T))
    close(got, [cut.swapaxes(0, 1), *last])
    for batch_first in (True, False):
        module.batch_first = batch_first
        close(apply(module, x[:, 1], [part[:, 1] for part in state]), [expected[:, 1], *(part[:, 1] for part in final)])


@pytest.mark.parametrize("formula", ["haste", "torchscript", "keras", "tf1", "sonnet", "cell"])
def test_module_of_every_preset_with_projection(formula):
    module, x, state, p = module_case("LSTM", f=formula, P=2)
    expected, final = oracle.stack("LSTM", x, state, p, f=resolved("LSTM", formula))
    close(apply(module, x, state), [expected, *final])


@pytest.mark.parametrize("network", NETWORKS)
def test_module_eps_nonlinearity_and_no_bias(network):
    f = ln.Formula(gates=PAPER[network].gates, cell=PAPER[network].cell, eps=0.3)
    extra = {"nonlinearity": "relu"} if network == "RNN" else {}
    module, x, state, p = module_case(network, eps=0.3, bias=False, **extra)
    assert not [name for name, _ in module.named_parameters() if "bias" in name]
    expected, final = oracle.stack(network, x, state, p, f=f, **extra)
    close(apply(module, x, state), [expected, *final])


@pytest.mark.parametrize("norm", ["layer", "rms", None])
@pytest.mark.parametrize("network", NETWORKS)
def test_cell_is_one_step(network, norm):
    for f in (PAPER[network], SPACE[network][-1]):
        x, state, p = case(network, f, norm, T=1, B=3)
        cell = CELL[network](3, 4, dtype=torch.float64, norm=norm, formula=f)
        cell.load_state_dict({k: tensor(v) for k, v in p.items()})
        zeros = tuple(np.zeros_like(part) for part in state)
        for initial, rows in itertools.product((state, None), (slice(None), 1)):
            hx = None if initial is None else as_hx([tensor(part[rows]) for part in initial])
            with torch.no_grad():
                got = cell(tensor(x[0, rows]), hx)
            _, expected = oracle.run(network, x, initial or zeros, p, f, norm)
            close(flat(got), [part[rows] for part in expected])


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_of_a_cell(network):
    x, state, p = case(network, T=1, B=3)
    cell = CELL[network](3, 4, dtype=torch.float64)
    cell.load_state_dict({k: tensor(v) for k, v in p.items()})
    names, n = [name for name, _ in cell.named_parameters()], len(state)
    leaves = [tensor(a, grad=True) for a in (x[0], *state)] + list(cell.parameters())
    got = cell(leaves[0], as_hx(leaves[1 : 1 + n]))

    def evaluate(x, *rest):
        parameters = dict(zip(names, rest[n:], strict=True))
        return list(oracle.run(network, x[None], rest[:n], parameters, PAPER[network])[1])

    same_values_and_derivative(evaluate, leaves, flat(got))


# --- What lengths, packing and reset are in terms of plain sequences: the module against itself, piece by piece ---


def one_by_one(module, x, state, lengths):
    """Each sequence by itself, cut to its length, the outputs padded with zeros: [output, *final state]."""
    rows = []
    for b, length in enumerate(lengths):
        output, *final = apply(module, x[:length, b], [part[:, b] for part in state])
        padding = torch.zeros(len(x) - length, output.shape[1], dtype=output.dtype)
        rows.append([torch.cat([output, padding]), *final])
    return [torch.stack(parts, dim=1).numpy() for parts in zip(*rows, strict=True)]


@pytest.mark.parametrize("lengths", [[5, 3, 1], [5, 5, 5], [2, 5, 4], [1, 2, 5]], ids=str)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("network", NETWORKS)
def test_lengths_and_packing_are_the_loop_over_sequences(network, bidirectional, lengths):
    module, x, state, _ = module_case(network, bidirectional=bidirectional)
    expected = one_by_one(module, x, state, lengths)
    close(apply(module, x, state, lengths=lengths), expected)

    longest_first = lengths == sorted(lengths, reverse=True)
    for enforce_sorted in [False, True] if longest_first else [False]:
        packed = pack_padded_sequence(tensor(x), torch.tensor(lengths), enforce_sorted=enforce_sorted)
        output, *final = apply(module, packed, state)
        assert isinstance(output, PackedSequence)
        padded, back = pad_packed_sequence(output, total_length=len(x))
        assert back.tolist() == lengths
        close([padded, *final], expected)


@pytest.mark.parametrize("lengths", [None, [7, 4, 2]], ids=str)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("network", NETWORKS)
def test_reset_is_the_loop_over_pieces(network, bidirectional, lengths):
    # Forwards the first piece has the initial state and the last piece the final state; backwards the other way round.
    module, x, state, _ = module_case(network, bidirectional=bidirectional, T=7)
    reset = np.zeros(x.shape[:2], bool)
    for b, cuts in enumerate([(0, 3), (2, 3), (1, 2, 4, 5)]):  # with lengths, the last row's from 2 on are no cuts
        reset[cuts, b] = True
    output, *final = apply(module, x, state, reset=torch.tensor(reset), lengths=lengths)

    expected, last = np.zeros(output.shape), [part.copy() for part in state]
    directions = 2 if bidirectional else 1
    for b in range(x.shape[1]):
        length = len(x) if lengths is None else lengths[b]
        cuts = [0, *(t for t in range(1, length) if reset[t, b]), length]
        pieces = list(itertools.pairwise(cuts))
        for number, (start, end) in enumerate(pieces):
            first = [number == 0 and not reset[0, b], number == len(pieces) - 1]
            final_one = [number == len(pieces) - 1, number == 0]
            initial = [np.zeros_like(part[:, b]) for part in state]
            for d, (part, given_state) in itertools.product(range(directions), zip(initial, state, strict=True)):
                part[d::directions] = given_state[d::directions, b] * first[d]
            piece, *ending = (value.numpy() for value in apply(module, x[start:end, b], initial))
            expected[start:end, b] = piece
            for d, (part, value) in itertools.product(range(directions), zip(last, ending, strict=True)):
                if final_one[d]:
                    part[d::directions, b] = value[d::directions]
    close([output, *final], [expected, *last])
