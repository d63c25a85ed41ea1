"""Floating point: large means, outliers, constant rows, NaN, low precision, sums over many rows, odd memory layouts.

Values are compared with float64 arithmetic on the same, already rounded, inputs. That result, correctly rounded, is the
best that a type can hold, and its error is the measure of every other error.
"""

import numpy as np
import pytest
import torch

import layernorm as ln
from support import oracle
from support.networks import NETWORKS, PAPER, RUN, as_hx, flat

# What is allowed, and why.
ROUNDINGS = 2.0  # times the largest error of the correctly rounded result: one more rounding, of something intermediate
FLOAT32 = 4.0  # roundings of a row's largest term, in float32: x - mean, times r, times the gain, plus the bias
U32 = 2.0**-24  # float32's unit roundoff: M * U32 * sum |terms| is the bound of a float32 sum of M terms (Higham, 4.4)
LAYOUT = 4.0  # units in the last place of the largest value: another layout may take another order of summation
LAYOUT_OF_SEQUENCE = 4000.0  # likewise, float64 only, through matrix products and 4 steps: 1e-12
SMOOTH = 1e-5  # the difference quotient of t / (|t| * s + eps) at 0 with h = 1e-7 has the error h * s / eps
# Everything else is compared bit by bit: what another row or a second run may not change, stays the same.

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
LOW = [torch.bfloat16, torch.float16]


def exactly(x, gain, bias, dy, eps=1e-5, norm="layer"):
    """Float64: [y, dx, d gain, d bias] of g * N(x) + b, and the magnitudes of what is added up in each: of y and dx the
    largest of every row, of d gain and d bias the sums."""
    x, gain, bias, dy = (a.detach().double().numpy() for a in (x, gain, bias, dy))
    centred = x - x.mean(1, keepdims=True) if norm == "layer" else x
    scale = 1 / np.sqrt((centred**2).mean(1, keepdims=True) + eps)
    unit, dunit = centred * scale, dy * gain
    dx = dunit - unit * (dunit * unit).mean(1, keepdims=True)
    if norm == "layer":
        dx = dx - dunit.mean(1, keepdims=True)
    results = [gain * unit + bias, scale * dx, (dy * unit).sum(0), dy.sum(0)]
    terms = [np.abs(gain * unit) + np.abs(bias)]
    terms.append(scale * (np.abs(dunit) + np.abs(unit * (dunit * unit).mean(1, keepdims=True))))
    return results, [*(t.max(1, keepdims=True) for t in terms), np.abs(dy * unit).sum(0), np.abs(dy).sum(0)]


def layer_norm_and_gradients(x, gain, bias, dy, eps=1e-5):
    """[y, dx, d gain, d bias] of the library; the inputs are tensors without a graph, whose strides stay."""
    leaves = [a.detach().requires_grad_() for a in (x, gain, bias)]
    y = ln.functional.layer_norm(leaves[0], x.shape[1:], *leaves[1:], eps)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


def errors(got, exact):
    """Every error, and the largest that the exact result has when rounded to the type of ``got``."""
    assert torch.isfinite(got).all()
    best = torch.from_numpy(exact).to(got.dtype).double().numpy()
    return np.abs(got.double().numpy() - exact), np.abs(best - exact).max()


def check_rows(got, exact, magnitudes):
    """Of y and dx: float32 is computed in float32, the other types are rounded once from what is nearly exact."""
    for a, e, magnitude in zip(got[:2], exact[:2], magnitudes[:2], strict=True):
        worst, best = errors(a, e)
        assert (worst <= (FLOAT32 * U32 * magnitude if a.dtype == torch.float32 else ROUNDINGS * best)).all()


def problem(x, dtype, parameter_dtype=None, seed=0):
    """x rounded, with random gains, biases and output gradients: (x, gain, bias, dy)."""
    rng = np.random.default_rng(seed)
    x, N = torch.from_numpy(x).to(dtype), x.shape[1]
    gain, bias = (torch.from_numpy(rng.normal(m, 0.3, N)).to(parameter_dtype or dtype) for m in (1, 0))
    return x, gain, bias, torch.from_numpy(rng.normal(0, 1, x.shape)).to(dtype)


def bits(tensors):
    """Copies of the tensors as integers: comparable where there are NaNs, and 0.0 is not -0.0."""
    views = {8: torch.int64, 4: torch.int32, 2: torch.int16}
    return [a.detach().contiguous().view(views[a.element_size()]).clone() for a in tensors]


def same_bits(got, expected):
    for a, b in zip(bits(got), bits(expected), strict=True):
        assert torch.equal(a, b)


# --- Rows that cancel, outliers, low precision: as good as one rounding ---

LENGTHS = [3, 16, 100, 768, 1000, 4096, 5000]
ROWS = 8


def shifted(N, dtype):
    """Rows with |mean| at least 1e4 times the deviation, exactly representable; bfloat16 holds 1e4 and 1e4 + 64."""
    rng = np.random.default_rng(N)
    if dtype == torch.float32:
        noise = rng.normal(0, 1, (ROWS, N))
        return rng.choice([-1.0, 1.0], (ROWS, 1)) * 1.01e4 * noise.std(1, keepdims=True) + noise
    base, step = {torch.bfloat16: (1e4, 64.0), torch.float16: (1024.0, 1.0)}[dtype]
    x = np.full((ROWS, N), base)
    x[np.arange(ROWS), rng.integers(0, N, ROWS)] += step
    return x


def is_shifted(x):
    x = x.double()
    return bool((x.mean(1).abs() >= 0.99e4 * x.std(1, unbiased=False)).all())


def with_outlier(N, dtype):
    x = np.random.default_rng(N).normal(0, 1, (ROWS, N))
    x[np.arange(ROWS), np.arange(ROWS) % N] = 1e4
    return x


def with_large_head(N, dtype):
    """Long rows that begin far from their mean."""
    x = np.random.default_rng(N).normal(0, 1, (ROWS, N))
    x[:, :32] += 1e5
    return x


def plain(N, dtype):
    return np.random.default_rng(N).normal(0.3, 2, (ROWS, N))


def large(N, dtype):
    """In float16 the squares of these are not representable, and neither is their sum."""
    return np.random.default_rng(N).normal(2e4, 1e4, (ROWS, N)).clip(-6e4, 6e4)


CASES = [(rows, N, torch.float32) for rows in (shifted, with_outlier, plain) for N in LENGTHS]
CASES += [(rows, N, dtype) for rows in (with_outlier, plain, large) for N in LENGTHS for dtype in LOW]
CASES += [(with_large_head, 100_000, torch.float32)]
CASES += [(shifted, N, torch.bfloat16) for N in (4096, 5000, 8192)]
CASES += [(shifted, N, torch.float16) for N in (1000, 4096)]


def name(value):
    return value.__name__ if callable(value) else str(value).removeprefix("torch.")


@pytest.mark.parametrize(("rows", "N", "dtype"), CASES, ids=name)
def test_one_rounding_of_the_exact_result(rows, N, dtype):
    x, gain, bias, dy = problem(rows(N, dtype), dtype)
    if rows is shifted:
        assert is_shifted(x)
    exact, magnitudes = exactly(x, gain, bias, dy)
    got = layer_norm_and_gradients(x, gain, bias, dy)
    check_rows(got, exact, magnitudes)
    for a, e, magnitude in zip(got[2:], exact[2:], magnitudes[2:], strict=True):
        worst, best = errors(a, e)
        assert (worst <= ROUNDINGS * best + ROWS * U32 * magnitude).all()


@pytest.mark.parametrize(("rows", "N", "dtype"), [case for case in CASES if case[2] in LOW], ids=name)
def test_low_precision_input_with_float32_gains(rows, N, dtype):
    # Output and dx are of the input's type and held to one rounding. The gains' gradients are float32, and so may the
    # statistics be: the mean is then off by roundings of the size U32 * mean |x| in every row and normalised value, and
    # the deviation by those of a sum of N squares, sqrt(N) * U32 of it if they are added in blocks (Higham, 4.2).
    x, gain, bias, dy = problem(rows(N, dtype), dtype, torch.float32)
    exact, magnitudes = exactly(x, gain, bias, dy)
    got = layer_norm_and_gradients(x, gain, bias, dy)
    assert [a.dtype for a in got] == [dtype, dtype, torch.float32, torch.float32]
    check_rows(got, exact, magnitudes)
    wide = x.double()
    mean_error = ROUNDINGS * U32 * (wide.abs().mean(1) / wide.std(1, unbiased=False)) @ dy.double().abs()
    statistics = [mean_error.numpy() + np.sqrt(N) * U32 * magnitudes[2], 0.0]
    for a, e, magnitude, extra in zip(got[2:], exact[2:], magnitudes[2:], statistics, strict=True):
        worst, best = errors(a, e)
        assert (worst <= ROUNDINGS * best + ROWS * U32 * magnitude + extra).all()


@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=name)
@pytest.mark.parametrize("N", [3, 100, 4096])
def test_rms_norm_is_one_rounding_of_the_exact_result(N, dtype):
    for rows in (with_outlier, plain, large):
        x, gain, bias, dy = problem(rows(N, dtype), dtype)
        exact, magnitudes = exactly(x, gain, torch.zeros_like(bias), dy, norm="rms")
        leaves = [a.clone().requires_grad_() for a in (x, gain)]
        y = ln.functional.rms_norm(leaves[0], (N,), leaves[1], 1e-5)
        dx, dgain = torch.autograd.grad(y, leaves, dy)
        check_rows((y.detach(), dx), exact, magnitudes)
        worst, best = errors(dgain, exact[2])
        assert (worst <= ROUNDINGS * best + ROWS * U32 * magnitudes[2]).all()


@pytest.mark.parametrize("N", [3, 512, 100_000])
def test_a_large_mean_in_float64(N):
    """Rows that are exactly a large number more than others have the others' results, each with its own roundings."""
    x = np.round(np.random.default_rng(6).normal(size=(7, N)) * 2**20) / 2**20
    x, gain, bias, dy = problem(x, torch.float64)
    near = layer_norm_and_gradients(x, gain, bias, dy)
    for mean in (2.0**7, 2.0**14, -(2.0**24)):
        far = layer_norm_and_gradients(x + mean, gain, bias, dy)
        for a, b in zip(far, near, strict=True):
            assert (a - b).abs().max() <= 2 * FLOAT32 * torch.finfo(torch.float64).eps * b.abs().max()


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_magnitudes_whose_squares_and_sums_overflow_float32(norm):
    signs = torch.tensor([1.0, -1.0, -1.0, 1.0] * 25)
    for x in (1e19 * signs, (1e38 * signs).bfloat16(), 3e37 * torch.ones(100, dtype=torch.bfloat16)):
        y = ln.functional.layer_norm(x, (100,)) if norm == "layer" else ln.functional.rms_norm(x, (100,))
        constant = norm == "layer" and bool((x == x[0]).all())
        assert torch.equal(y, torch.zeros_like(x) if constant else x.sign())


# --- Sums over many rows and steps ---


@pytest.mark.parametrize("dtype", LOW, ids=name)
@pytest.mark.parametrize("parameter_dtype", [torch.float32, None], ids=["float32 gains", "gains of the same type"])
def test_gain_and_bias_gradients_of_100_000_rows_are_summed_in_float32(dtype, parameter_dtype):
    # A bfloat16 sum of ones ends at 256, of quarters at 64; a float16 sum of quarters at 512.
    rows, N = 100_000, 8
    rng = np.random.default_rng(1)
    x, gain, bias, _ = problem(rng.normal(0.3, 2, (rows, N)), dtype, parameter_dtype)
    dy = torch.from_numpy(rng.normal(0, 0.01, (rows, N))).to(dtype)
    dy[:, 0] = 0.25
    dy[:, 1] = 0.25 * (x[:, 1].double() - x.double().mean(1)).sign()
    exact, magnitudes = exactly(x, gain, bias, dy)
    assert exact[3][0] == 25_000
    assert exact[2][1] > 15_000
    got = layer_norm_and_gradients(x, gain, bias, dy)
    for a, e, magnitude in zip(got[2:], exact[2:], magnitudes[2:], strict=True):
        worst, best = errors(a, e)
        # Rows are summed in blocks: 1000 roundings are already far more than any of them needs.
        assert (worst <= ROUNDINGS * best + 1000 * U32 * magnitude).all()


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("dtype", LOW, ids=name)
def test_bias_gradients_of_1000_steps_are_summed_in_float32(network, dtype):
    # With every weight and bias 0 all gates are constant, and each step adds the same to a bias's gradient.
    T, H = 1000, 2
    p = {
        k: torch.zeros(shape, dtype=dtype)
        for k, shape in oracle.parameter_shapes(network, PAPER[network], 1, H).items()
    }
    p = {k: (a + ("gain" in k)).requires_grad_() for k, a in p.items()}
    output, _ = RUN[network](torch.ones(T, 1, 1, dtype=dtype), None, p)
    gradients = dict(zip(p, torch.autograd.grad(output, p.values(), torch.ones_like(output)), strict=True))
    # RNN: h = tanh(b). LSTM: h = sigmoid(o) tanh(bias_c). GRU: h = (1 - z) n + z h, whose share halves with every step.
    got = {"RNN": gradients["bias_hh"], "LSTM": gradients.get("bias_c"), "GRU": gradients["bias_ih"][-H:]}[network]
    expected = {"RNN": T, "LSTM": T / 2, "GRU": T - 1}[network]
    exact = np.full(H, float(expected))
    worst, _ = errors(got, exact)
    assert worst.max() <= torch.finfo(dtype).eps * expected


# --- Constant rows ---

CONSTANTS = [0.1, -0.1, 1e4, -3.3e-5, 1 / 3, 7777.7, 0.0, 6e4]


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
@pytest.mark.parametrize("N", [1, 2, 3, 5, 7, 16, 100, 768, 1000, 4097])
def test_constant_rows_give_exactly_the_bias(N, dtype):
    x, gain, bias, dy = problem(np.repeat(np.array(CONSTANTS)[:, None], N, 1), dtype, seed=2)
    y, dx, dgain, dbias = layer_norm_and_gradients(x, gain, bias, dy)
    assert torch.equal(y, bias.expand_as(y))
    assert not ln.functional.layer_norm(x, (N,)).any()
    assert not dgain.any()
    if N == 1:
        assert not dx.any()
    exact, magnitudes = exactly(x - x, gain, bias, dy)
    unit = np.finfo(float).eps  # float64 has no better truth
    sizes = np.abs(exact[1]).max(), magnitudes[3]
    if dtype == torch.float32:
        check_rows((y, dx), exact, magnitudes)
        unit = U32
    else:
        worst, best = errors(dx, exact[1])
        assert worst.max() <= ROUNDINGS * best + ROWS * unit * sizes[0]
    worst, best = errors(dbias, exact[3])
    assert (worst <= ROUNDINGS * best + ROWS * unit * sizes[1]).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
def test_a_row_of_zeros_in_rms_norm(dtype):
    x = torch.zeros(3, 5, dtype=dtype, requires_grad=True)
    y = ln.functional.rms_norm(x, (5,), eps=1e-2)
    assert not y.any()
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert torch.allclose(dx.double(), torch.tensor(10.0, dtype=torch.float64), rtol=torch.finfo(dtype).eps)


def zero_weights(network, f, dtype):
    """No weights, so that every row to normalise is constant, and 0.9 where there are biases inside; the rest random.

    Of 7, 14 or 28 times 0.9 neither float32 nor float64 sums give a mean of 0.9.
    """
    rng = np.random.default_rng(3)
    H = 7
    p = {}
    for key, shape in oracle.parameter_shapes(network, f, 3, H).items():
        values = np.zeros(shape) if "weight" in key else rng.normal("gain" in key, 0.7, shape)
        if key in ("bias_ih", "bias_hh") and (f.bias_inside or network == "LSTM"):
            values = np.full(shape, 0.9 if f.bias_inside else 0.0)
            if network == "GRU" and f.gates == "sum" and key == "bias_hh":
                values = np.zeros(shape)  # the candidate's is multiplied by r, which is no constant row
        if network == "LSTM" and key.startswith("norm_bias"):
            values = np.zeros(shape)  # then c is 0.5^t * c_0, constant to the last bit
        p[key] = torch.from_numpy(values).to(dtype)
    state = tuple(torch.full((2, H), 0.9, dtype=dtype) for _ in range(1 + (network == "LSTM")))
    return torch.from_numpy(rng.normal(0, 1, (3, 2, 3))).to(dtype), state, p


def all_results(network, x, state, p, f, norm="layer", **more):
    """Leaves with gradients, [output, *final state]."""
    leaves = [a.detach().clone().requires_grad_() for a in (x, *state, *p.values())]
    hx = as_hx(leaves[1 : 1 + len(state)])
    parameters = dict(zip(p, leaves[1 + len(state) :], strict=True))
    output, final = RUN[network](leaves[0], hx, parameters, norm=norm, formula=f, **more)
    return leaves, [output, *flat(final)]


CONSTANT_FORMULAS = [
    (network, ln.Formula(gates=gates, cell=cell, span=span, bias_inside=inside, eps_on=eps_on, eps=eps), norm)
    for network, gates, cell, span in [
        ("RNN", "sum", None, "joint"),
        ("RNN", "split", None, "joint"),
        ("LSTM", "split", "output", "joint"),
        ("LSTM", "sum", "carry", "per_gate"),
        ("LSTM", "hidden", None, "joint"),
        ("GRU", "split", None, "joint"),
        ("GRU", "sum", None, "per_gate"),
    ]
    for inside, norm in ((False, "layer"), (True, "layer"), (False, "rms"))  # 0 is rms_norm's only constant row
    for eps_on, eps in (("variance", 1e-12), ("deviation", 1e-6))
]


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
@pytest.mark.parametrize(("network", "f", "norm"), CONSTANT_FORMULAS, ids=lambda v: v if isinstance(v, str) else None)
def test_zero_weights_give_the_biases_and_finite_gradients(network, f, norm, dtype):
    # The smallest eps shows the smallest residue: a mean of 0.9 that is one float32 rounding off would read as 0.06.
    x, state, p = zero_weights(network, f, dtype)
    leaves, results = all_results(network, x, state, p, f, norm)
    # In extended precision where there is one: the rounding of a float64 oracle would be as large as the bound.
    p64 = {k: a.double().numpy().astype(np.longdouble) for k, a in p.items()}
    state64 = [part.double().numpy().astype(np.longdouble) for part in state]
    expected, final = oracle.run(network, x.double().numpy().astype(np.longdouble), state64, p64, f, norm)
    for a, e in zip(results, (expected, *final), strict=True):
        assert np.abs(a.detach().double().numpy() - e).max() <= 4 * torch.finfo(dtype).eps * np.abs(e).max().clip(1)

    if dtype == torch.float16:
        return  # 1 / sqrt(eps) is 1e6: gradients of that size are no float16 numbers
    gradients = torch.autograd.grad(results, leaves, [torch.ones_like(a) for a in results])
    assert all(torch.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("eps_on", ["variance", "deviation"])
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_at_zero_weights_are_those_of_the_formula(network, norm, eps_on):
    f = ln.Formula(gates=PAPER[network].gates, cell=PAPER[network].cell, eps_on=eps_on, eps=0.1)
    x, state, p = zero_weights(network, f, torch.float64)
    leaves, results = all_results(network, x, state, p, f, norm)
    rng = np.random.default_rng(4)
    weights = [rng.normal(0, 1, a.shape) for a in results]
    gradients = torch.autograd.grad(results, leaves, [torch.from_numpy(w) for w in weights])
    values = [a.detach().numpy() for a in leaves]
    direction = [rng.normal(0, 1, a.shape) for a in values]

    def value(s):
        moved = [a + s * d for a, d in zip(values, direction, strict=True)]
        parameters = dict(zip(p, moved[1 + len(state) :], strict=True))
        output, final = oracle.run(network, moved[0], moved[1 : 1 + len(state)], parameters, f, norm)
        return sum((a * w).sum() for a, w in zip((output, *final), weights, strict=True))

    terms = [g.numpy() * d for g, d in zip(gradients, direction, strict=True)]
    h = 1e-7
    difference = (value(h) - value(-h)) / (2 * h)
    assert abs(sum(t.sum() for t in terms) - difference) <= SMOOTH * sum(np.abs(t).sum() for t in terms)


# --- NaN and infinity stay in their row ---

POISON = [float("nan"), float("inf"), float("-inf")]


@pytest.mark.parametrize("poison", POISON)
@pytest.mark.parametrize("dtype", FLOATS, ids=name)
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_a_poisoned_row_leaves_the_other_rows_of_the_op_alone(norm, dtype, poison):
    N, others = 37, [0, 1, 3, 4]
    x, gain, bias, dy = problem(np.random.default_rng(5).normal(0, 1, (5, N)), dtype)
    function, parameters = {
        "layer": (ln.functional.layer_norm, (gain, bias)),
        "rms": (ln.functional.rms_norm, (gain,)),
    }[norm]

    def rows(x, dy):
        x = x.clone().requires_grad_()
        y = function(x, (N,), *parameters)
        return y, torch.autograd.grad(y, x, dy)[0]

    clean = rows(x, dy)
    bad_x, bad_dy = x.clone(), dy.clone()
    bad_x[2, 5] = bad_dy[2, 5] = poison
    for arguments in ((bad_x, dy), (x, bad_dy), (bad_x, bad_dy)):
        got = rows(*arguments)
        same_bits([a[others] for a in got], [a[others] for a in clean])
        assert not torch.isfinite(got[1][2]).all()


def sequence_problem(network, f, dtype=torch.float64, T=4, B=3):
    """Random (x, state, parameters, gradients of output and final state)."""
    rng = np.random.default_rng(6)
    p = {
        key: torch.from_numpy(rng.normal("gain" in key, 0.7, shape)).to(dtype)
        for key, shape in oracle.parameter_shapes(network, f, 3, 4).items()
    }
    state = tuple(torch.from_numpy(rng.normal(0, 0.7, (B, 4))).to(dtype) for _ in range(1 + (network == "LSTM")))
    x = torch.from_numpy(rng.normal(0, 1, (T, B, 3))).to(dtype)
    weights = [torch.from_numpy(rng.normal(0, 1, s)).to(dtype) for s in [(T, B, 4), *[(B, 4)] * len(state)]]
    return x, state, p, weights


POISON_FORMULAS = [(network, PAPER[network], norm) for network in NETWORKS for norm in ("layer", "rms", None)]
POISON_FORMULAS += [("LSTM", ln.Formula(gates="sum", span="per_gate", cell="carry"), "layer")]
POISON_FORMULAS += [("LSTM", ln.Formula(gates=None, cell="output"), "layer"), ("GRU", ln.Formula(gates="sum"), "layer")]


@pytest.mark.parametrize("poison", POISON)
@pytest.mark.parametrize("lengths", [None, [4, 3, 2]], ids=str)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("network", "f", "norm"), POISON_FORMULAS, ids=lambda v: None if isinstance(v, ln.Formula) else v
)
def test_a_poisoned_row_leaves_the_other_rows_of_a_sequence_alone(network, f, norm, reverse, lengths, poison):
    for dtype in (torch.float64, torch.float32):
        plain_f = oracle.PLAIN if norm is None else f
        x, state, p, weights = sequence_problem(network, plain_f, dtype)
        more = {"reverse": reverse, "lengths": None if lengths is None else torch.tensor(lengths)}

        def rows(x, state, network=network, p=p, weights=weights, more=more):
            leaves, results = all_results(network, x, state, p, f, norm, **more)
            return results, torch.autograd.grad(results, leaves[: 1 + len(state)], weights)

        clean = rows(x, state)
        bad_x, bad_state = x.clone(), [part.clone() for part in state]
        bad_x[1, 1, 0] = poison
        for part in bad_state:
            part[1, 0] = poison
        for arguments in ((bad_x, state), (x, bad_state), (bad_x, bad_state)):
            got = rows(*arguments)
            assert not torch.equal(got[1][0][:, 1], clean[1][0][:, 1])
            for b in (0, 2):
                same_bits([a.select(-2, b) for a in got[0]], [a.select(-2, b) for a in clean[0]])
                same_bits([a.select(-2, b) for a in got[1]], [a.select(-2, b) for a in clean[1]])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("network", "f", "norm"), POISON_FORMULAS, ids=lambda v: None if isinstance(v, ln.Formula) else v
)
def test_padding_never_leaks(network, f, norm, reverse):
    # Nothing depends on what is in the padding, neither in the input nor in the gradient of the padded outputs.
    x, state, p, weights = sequence_problem(network, oracle.PLAIN if norm is None else f, T=5)
    lengths = torch.tensor([2, 5, 0])
    padding = torch.arange(5)[:, None] >= lengths
    more = {"lengths": lengths, "reverse": reverse}

    def everything(fill_x, fill_dy):
        leaves, results = all_results(network, x.masked_fill(padding[..., None], fill_x), state, p, f, norm, **more)
        output_weights = weights[0].masked_fill(padding[..., None], fill_dy)
        return [*results, *torch.autograd.grad(results, leaves, [output_weights, *weights[1:]])]

    clean = everything(0.0, 0.0)
    assert not clean[0][padding].any()
    assert not clean[1 + len(state)][padding].any()
    for poison in POISON:
        same_bits(everything(poison, 0.0), clean)
        same_bits(everything(0.0, poison), clean)
        same_bits(everything(poison, poison), clean)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_reset_forgets_even_nan(network, reverse):
    x, state, p, _ = sequence_problem(network, PAPER[network])
    reset = torch.zeros(4, 3, dtype=torch.bool)
    reset[2] = True
    before, after = (slice(2, 4), slice(0, 2)) if reverse else (slice(0, 2), slice(2, 4))
    x[before] = float("nan")
    leaves, (output, *final) = all_results(network, x, state, p, PAPER[network], reset=reset, reverse=reverse)
    zeros = tuple(torch.zeros_like(part) for part in state)
    alone, (expected, *last) = all_results(network, x[after], zeros, p, PAPER[network], reverse=reverse)
    assert torch.isnan(output[before]).all()
    gradient = torch.autograd.grad(output[after].sum(), leaves[0])[0][after]
    expected_gradient = torch.autograd.grad(expected.sum(), alone[0])[0]
    # Not the same bits: products of another number of steps may sum in another order.
    equal_but_for_the_order_of_sums(
        [output[after], *final, gradient], [expected, *last, expected_gradient], LAYOUT_OF_SEQUENCE
    )


# --- Low precision in a sequence ---


@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=name)
@pytest.mark.parametrize("network", NETWORKS)
def test_low_precision_sequences_stay_near_the_exact_ones(network, dtype):
    x, state, p, _ = sequence_problem(network, PAPER[network], dtype)
    _, results = all_results(network, x, state, p, PAPER[network])
    state64, p64 = [part.double().numpy() for part in state], {k: a.double().numpy() for k, a in p.items()}
    expected, final = oracle.run(network, x.double().numpy(), state64, p64, PAPER[network])
    for a, e in zip(results, (expected, *final), strict=True):
        assert a.dtype == dtype
        # A few roundings of values of order one in each of 4 steps.
        assert np.abs(a.detach().double().numpy() - e).max() <= 16 * torch.finfo(dtype).eps


# --- The same bits twice; neighbours; empty; layouts ---


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
def test_same_bits_twice(dtype):
    arguments = problem(plain(300, dtype).repeat(20, 0), dtype)
    same_bits(layer_norm_and_gradients(*arguments), layer_norm_and_gradients(*arguments))
    for network in NETWORKS:
        x, state, p, weights = sequence_problem(network, PAPER[network], dtype, T=9, B=6)
        runs = []
        for _ in range(2):
            leaves, results = all_results(network, x, state, p, PAPER[network])
            runs.append([*results, *torch.autograd.grad(results, leaves, weights)])
        same_bits(*runs)


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
@pytest.mark.parametrize("N", [1, 5, 37, 100, 300])  # with one vector's rest after several, too
def test_a_row_does_not_depend_on_its_neighbours(N, dtype):
    x, gain, bias, dy = problem(np.random.default_rng(7).normal(0, 1, (6, N)), dtype)
    together = layer_norm_and_gradients(x, gain, bias, dy)[:2]
    for m in range(len(x)):
        alone = layer_norm_and_gradients(x[m : m + 1], gain, bias, dy[m : m + 1])[:2]
        same_bits(alone, [a[m : m + 1] for a in together])


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
def test_empty_batch(dtype):
    x, gain, bias, dy = problem(np.zeros((0, 5)), dtype)
    y, dx, dgain, dbias = layer_norm_and_gradients(x, gain, bias, dy)
    assert y.shape == dx.shape == (0, 5)
    assert not dgain.any()
    assert not dbias.any()
    assert ln.functional.rms_norm(x, (5,), gain).shape == (0, 5)
    for network in NETWORKS:
        for T, B in ((0, 3), (4, 0), (0, 0)):
            x, state, p, weights = sequence_problem(network, PAPER[network], dtype, T=T, B=B)
            leaves, results = all_results(network, x, state, p, PAPER[network])
            gradients = torch.autograd.grad(results, leaves, weights)
            assert results[0].shape == (T, B, 4)
            same_bits(results[1:], state)
            same_bits(gradients[1 : 1 + len(state)], weights[1:])
            assert not any(g.any() for g in gradients[1 + len(state) :])


def strided(a):
    """Every second element of a larger tensor, in every dimension, from an odd offset."""
    padded = torch.full([2 * n + 3 for n in a.shape], float("nan")).to(a.dtype)
    view = padded[tuple(slice(1, 2 * n + 1, 2) for n in a.shape)]
    return view.copy_(a)


def transposed(a):
    return a.movedim(0, -1).contiguous().movedim(-1, 0)


def offset(a):
    """Contiguous, but beginning one element into its storage: not aligned to any vector."""
    flat = torch.full((a.numel() + 1,), float("nan")).to(a.dtype)
    return flat[1:].view(a.shape).copy_(a)


def expanded(a):
    """Other values than ``a``: the first training case's, or unit's, for all of them, with stride 0."""
    return a.narrow(max(a.dim() - 2, 0), 0, 1).expand_as(a)


LAYOUTS = [strided, transposed, offset]


def equal_but_for_the_order_of_sums(got, expected, tolerance=LAYOUT):
    for a, b in zip(got, expected, strict=True):
        largest = b.abs().max().item()
        assert torch.allclose(a, b, rtol=0, atol=tolerance * torch.finfo(b.dtype).eps * largest)


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
@pytest.mark.parametrize("layout", LAYOUTS, ids=name)
@pytest.mark.parametrize("N", [5, 64])
def test_layouts_of_the_op(N, layout, dtype):
    x, gain, bias, dy = problem(np.random.default_rng(8).normal(0, 1, (6, N)), dtype)

    def results(arrange):
        leaves = [arrange(a).requires_grad_() for a in (x, gain, bias)]
        y = ln.functional.layer_norm(leaves[0], (N,), *leaves[1:])
        root = ln.functional.rms_norm(leaves[0], (N,), leaves[1])
        return [y, root, *torch.autograd.grad([y, root], leaves, [arrange(dy), arrange(dy)])]

    assert layout is offset or not layout(x).is_contiguous()
    equal_but_for_the_order_of_sums(results(layout), results(torch.clone))


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
def test_expanded_tensors(dtype):
    N = 6
    x, gain, bias, dy = problem(np.random.default_rng(9).normal(0, 1, (1, N)), dtype)
    wide = [a.expand(7, N) for a in (x, dy)]
    one_gain = gain[:1].expand(N)
    got = layer_norm_and_gradients(wide[0], one_gain, bias, wide[1])
    copies = [a.contiguous() for a in (wide[0], one_gain, bias, wide[1])]
    equal_but_for_the_order_of_sums(got, layer_norm_and_gradients(*copies))
    square = x.reshape(N, 1).expand(N, N)  # constant rows with stride 0
    got = layer_norm_and_gradients(square, gain, bias, wide[1][:N])
    assert torch.equal(got[0], bias.expand(N, N))


@pytest.mark.parametrize("layout", [*LAYOUTS, expanded], ids=name)
@pytest.mark.parametrize("network", NETWORKS)
def test_layouts_of_a_sequence(network, layout):
    x, state, p, weights = sequence_problem(network, PAPER[network])
    x, *state = (layout(a) for a in (x, *state))
    p = {k: a if layout is expanded and "weight" in k else layout(a) for k, a in p.items()}
    weights = [layout(a) for a in weights]
    reset, lengths = torch.zeros(3, 4, dtype=torch.bool).T, torch.tensor([4, 0, 1, 0, 3, 0])[::2]
    reset[2, 0] = True

    def results(arrange):
        leaves = [arrange(a).detach().requires_grad_() for a in (x, *state, *p.values())]
        parameters = dict(zip(p, leaves[1 + len(state) :], strict=True))
        hx = as_hx(leaves[1 : 1 + len(state)])
        output, final = RUN[network](leaves[0], hx, parameters, lengths=arrange(lengths), reset=arrange(reset))
        outputs = [output, *flat(final)]
        return [*outputs, *torch.autograd.grad(outputs, leaves, [arrange(w) for w in weights])]

    copies = results(lambda a: a.clone(memory_format=torch.contiguous_format))
    equal_but_for_the_order_of_sums(results(lambda a: a), copies, LAYOUT_OF_SEQUENCE)
