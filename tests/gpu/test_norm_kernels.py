"""The norm kernels against the reference in float64 on the same, already rounded, numbers; rows by themselves, by bits.

Under Triton's interpreter float32 is cut off to bfloat16, where a GPU rounds to the nearest: twice the error.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layernorm import reference
from layernorm.engine import NormArguments

gpu = pytest.importorskip("layernorm.gpu", exc_type=ImportError)
launch = gpu._norms._launch

FLOATS = [torch.float32, torch.bfloat16, torch.float16]
# What is allowed, in unit roundoffs (half of eps) of the largest value. Float32: y is the last of about five roundings
# (the mean's rest, the deviation's sum and root, two products, a sum), dx of a few more. 16 bits: one, of the float32.
UNITS = {torch.float32: 8.0, torch.bfloat16: 2.5 if gpu.INTERPRETED else 1.25, torch.float16: 1.25}
U32 = 2.0**-24  # M * U32 * sum |terms| bounds a float32 sum of M terms (Higham, 4.4)


def problem(M, N, dtype, device, parameter_dtype=None, seed=0):
    """x, residual, dy, dtotal (M, N), weight, bias (N)"""
    g = torch.Generator().manual_seed(seed)
    rows = [torch.randn(M, N, generator=g).to(dtype).to(device) for _ in range(4)]
    return [*rows, *(torch.randn(N, generator=g).to(parameter_dtype or dtype).to(device) for _ in range(2))]


def run(x, residual, dy, dtotal, weight, bias, norm="layer", eps=1e-5):
    """y, total, dx, and the parameters' gradients, of the engine."""
    a = NormArguments(x, [x.shape[-1]], weight, bias, eps, norm)
    y, *rest = gpu.normalize_forward(a, residual, True)
    total = x if residual is None else rest.pop(0)
    announced = gpu.normalize_saved(a)
    assert [(s.shape, s.dtype) for s in rest] == [(s.shape, s.dtype) for s in announced]
    return [y, total, *gpu.normalize_backward(a._replace(input=total), rest, dy, dtotal)]


def normalized(x):
    """Without gain and bias."""
    return gpu.normalize_forward(NormArguments(x, [x.shape[-1]], None, None, 1e-5, "layer"), None, False)[0]


def exactly(total, dy, dtotal, weight, bias, norm="layer", eps=1e-5):
    """In float64 y, dx, the parameters' gradients; and the largest |r * d|, whose differences dx is made of."""
    total, dy, dtotal, weight, bias = (
        None if t is None else t.detach().cpu().double() for t in (total, dy, dtotal, weight, bias)
    )
    a = NormArguments(total, [total.shape[-1]], weight, bias, eps, norm)
    y, *saved = reference.normalize_forward(a, None, True)
    d = saved[-1][:, None] * (dy if weight is None else dy * weight)
    largest = d.abs().max().item() if d.numel() else 0.0
    return [y, *reference.normalize_backward(a, saved, dy, dtotal)], largest


def close(got, exact, units, extra=0.0, size=1.0):
    """Within so many unit roundoffs of the largest value, or of a larger size."""
    assert got.shape == exact.shape
    if got.numel():
        size = max(size, exact.abs().max().item())
        error = (got.detach().cpu().double() - exact).abs().max().item()
        assert error <= units * torch.finfo(got.dtype).eps / 2 * size + extra


def compare(problem, norm="layer", eps=1e-5):
    x, residual, dy, dtotal, weight, bias = problem
    y, total, dx, *gradients = run(*problem, norm, eps)
    if residual is not None:
        close(total, x.cpu().double() + residual.cpu().double(), UNITS[x.dtype])
    (exact_y, exact_dx, *exact), largest = exactly(total, dy, dtotal, weight, bias, norm, eps)
    close(y, exact_y, UNITS[x.dtype])
    close(dx, exact_dx, UNITS[x.dtype], size=largest if x.dtype == torch.float32 else 1.0)
    magnitude = dy.cpu().double().abs().sum(0).max().item() * 10 if x.numel() else 0.0  # |z_hat| is below 10 here
    assert len(gradients) == (weight is not None) + (bias is not None)
    for p, a, e in zip([p for p in (weight, bias) if p is not None], gradients, exact, strict=True):
        assert a.dtype == p.dtype
        close(a, e, UNITS.get(p.dtype, 8.0), x.shape[0] * U32 * magnitude)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    M=st.integers(0, 40), N=st.integers(0, 300), dtype=st.sampled_from(FLOATS),
    parameters=st.sampled_from([*FLOATS, torch.float64]), affine=st.sampled_from(["both", "gain", "bias", "none"]),
    norm=st.sampled_from(["layer", "rms"]), with_residual=st.booleans(), seed=st.integers(0, 9),
)  # fmt: skip
def test_any_shape(M, N, dtype, parameters, affine, norm, with_residual, seed, device):
    x, residual, dy, dtotal, weight, bias = problem(M, N, dtype, device, parameters, seed)
    weight, bias = weight if affine in ("both", "gain") else None, bias if affine in ("both", "bias") else None
    compare((x, residual, dy, dtotal, weight, bias) if with_residual else (x, None, dy, None, weight, bias), norm)


@pytest.mark.parametrize(("M", "N", "norm"), [(5, 512, "rms"), (5, 513, "layer"), (2, 1030, "rms"), (1, 8200, "layer")])
def test_sizes_at_which_another_launch_is_chosen(M, N, norm, device):
    compare(problem(M, N, torch.float32, device), norm)


@pytest.fixture(params=["whole rows", "chunks"])
def rows_or_chunks(request, monkeypatch):
    """Both ways of taking a row, at small sizes: in chunks of 32 columns."""
    if request.param == "chunks":
        chunks = launch.Launch(rows=1, columns=32, warps=1)
        monkeypatch.setattr(launch, "forward", lambda N: chunks)
        monkeypatch.setattr(launch, "backward", lambda N: chunks)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("M", "N"), [(5, 33), (1, 100), (20, 1)])
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.usefixtures("rows_or_chunks")
def test_whole_rows_and_chunks(norm, M, N, dtype, device):
    compare(problem(M, N, dtype, device), norm)
    x, _, dy, _, weight, bias = problem(M, N, dtype, device)
    for parameters in ((None, bias), (weight, None)):
        compare((x, None, dy, None, *parameters), norm)


@pytest.mark.usefixtures("rows_or_chunks")
def test_layouts(device):
    """Rows and parameters that lie otherwise in memory give what contiguous ones give."""

    def strided(a):
        padded = torch.full([2 * n + 3 for n in a.shape], float("nan"), device=device, dtype=a.dtype)
        return padded[tuple(slice(1, 2 * n + 1, 2) for n in a.shape)].copy_(a)

    def apart(a):
        padded = torch.full([*a.shape[:-1], a.shape[-1] + 5], float("nan"), device=device, dtype=a.dtype)
        return padded[..., 2:-3].copy_(a)

    def transposed(a):
        return a.movedim(0, -1).contiguous().movedim(-1, 0)

    def offset(a):
        flat = torch.full((a.numel() + 1,), float("nan"), device=device, dtype=a.dtype)
        return flat[1:].view(a.shape).copy_(a)

    def negated(a):
        return torch._neg_view(-a)

    for dtype in (torch.float32, torch.float16):
        tensors = problem(3, 48, dtype, device)
        expected = run(*tensors)
        for layout in (strided, apart, transposed, offset, negated):
            for a, b in zip(run(*map(layout, tensors)), expected, strict=True):
                close(a, b.cpu().double(), 2 * UNITS[dtype])
    x, _, dy, _, weight, bias = problem(1, 48, torch.float32, device)
    wide = (x.expand(7, 48), None, dy.expand(7, 48), None, weight[:1].expand(48), bias)
    for a, b in zip(run(*wide), run(*(t if t is None else t.contiguous() for t in wide)), strict=True):
        assert torch.equal(a, b)


def test_more_dimensions(device):
    x, residual, dy, dtotal, weight, bias = problem(6, 20, torch.float32, device)
    expected = run(x, residual, dy, dtotal, weight, bias)
    x, residual, dy, dtotal = (t.view(2, 3, 4, 5) for t in (x, residual, dy, dtotal))
    weight, bias = weight.view(4, 5), bias.view(4, 5)
    a = NormArguments(x, [4, 5], weight, bias, 1e-5, "layer")
    y, total, *saved = gpu.normalize_forward(a, residual, True)
    back = gpu.normalize_backward(a._replace(input=total), saved, dy, dtotal)
    for a, b in zip([y, total, *back], expected, strict=True):
        assert torch.equal(a.flatten(), b.flatten())
    assert y.shape == x.shape
    assert back[1].shape == weight.shape


# --- Accuracy where sums cancel ---


@pytest.mark.usefixtures("rows_or_chunks")
def test_a_mean_far_larger_than_the_deviation(device):
    """float32 rounds the mean by 1e4 * U32 of the deviation; what is left of that must be below a few roundings."""
    for N in (33, 100):
        x, _, dy, _, weight, bias = problem(4, N, torch.float32, device)
        compare((x + torch.tensor([[1e4], [-3e4], [1e5], [0.0]], device=device), None, dy, None, weight, bias))


@pytest.mark.usefixtures("rows_or_chunks")
def test_an_outlier(device):
    for N in (33, 100):
        x, _, dy, _, weight, bias = problem(4, N, torch.float32, device)
        x[torch.arange(4), torch.tensor([0, 1, N // 2, N - 1])] = 1e4
        y = normalized(x)
        (exact, *_), _ = exactly(x, dy, None, None, None)
        assert ((y.cpu().double() - exact).abs() <= 8 * U32 * (exact.abs() + 1e4 * U32)).all()
        compare((x, None, dy, None, weight, bias))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.usefixtures("rows_or_chunks")
def test_constant_rows_give_exactly_the_bias(dtype, device):
    constants = torch.tensor([0.1, -0.1, 1e4, -3.3e-5, 1 / 3, 7777.7, 0.0, 6e4])[:, None]
    for N in (1, 3, 16, 100):
        _, _, dy, _, weight, bias = problem(8, N, dtype, device)
        x = constants.expand(8, N).to(dtype).to(device)
        y, _, dx, dweight, _ = run(x, None, dy, None, weight, bias)
        assert torch.equal(y, bias.expand_as(y))
        assert not normalized(x).any()
        assert not dweight.any()
        assert dx.isfinite().all()
        if N == 1:
            assert not dx.any()


@pytest.mark.parametrize("N", [16385, 65536])
def test_a_long_constant_row(N, device):
    x = torch.tensor([[0.1], [7777.7]], device=device).expand(2, N).contiguous()
    assert not normalized(x).any()


def test_a_row_of_zeros_in_rms_norm(device):
    x, dy = torch.zeros(3, 5, device=device), torch.ones(3, 5, device=device)
    y, _, dx = run(x, None, dy, None, None, None, "rms", 1e-2)
    assert not y.any()
    assert torch.allclose(dx, torch.full_like(dx, 10.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_many_rows_are_summed_in_float32(dtype, device):
    """A bfloat16 sum of quarters ends at 64, a float16 sum at 512."""
    M, N = 8_000, 8
    x, _, _, _, weight, bias = problem(M, N, dtype, device, torch.float32)
    dy = torch.full_like(x, 0.25)
    *_, dbias = run(x, None, dy, None, weight, bias)
    assert torch.equal(dbias, torch.full_like(bias, M / 4))


# --- Rows by themselves ---


def rows_of(results):
    """y, total and dx: what there is a row of."""
    return results[:3]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.usefixtures("rows_or_chunks")
def test_bits_of_a_row_do_not_depend_on_the_number_of_rows(dtype, device):
    for N in (7, 48):
        *rows, weight, bias = problem(7, N, dtype, device)
        expected = rows_of(run(*rows, weight, bias))
        for first, last in ((0, 1), (2, 7)):
            got = rows_of(run(*(t[first:last] for t in rows), weight, bias))
            assert all(torch.equal(a, b[first:last]) for a, b in zip(got, expected, strict=True))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of the interpreter
@pytest.mark.parametrize(("bad", "norm"), [(float("nan"), "layer"), (float("inf"), "layer"), (float("-inf"), "rms")])
@pytest.mark.usefixtures("rows_or_chunks")
def test_a_nan_or_inf_stays_in_its_row(bad, norm, device):
    for N in (5, 40):
        *rows, weight, bias = problem(5, N, torch.float32, device)
        clean = rows_of(run(*rows, weight, bias, norm))
        for k in range(4):
            spoilt = [t.clone() for t in rows]
            spoilt[k][3, 1] = bad
            got = rows_of(run(*spoilt, weight, bias, norm))
            others = [0, 1, 2, 4]
            assert all(torch.equal(a[others], b[others]) for a, b in zip(got, clean, strict=True))
            if k < 2:
                assert got[0][3].isnan().any()


@pytest.mark.usefixtures("rows_or_chunks")
def test_a_second_call_gives_the_same_bits(device):
    tensors = problem(9, 48, torch.float32, device)
    assert all(torch.equal(a, b) for a, b in zip(run(*tensors), run(*tensors), strict=True))
