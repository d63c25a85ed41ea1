"""The norm kernels of the CPU engine against the reference: every type, any shape, layout and parameter."""

import ctypes
import itertools
import mmap

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import layernorm as ln
from layernorm.engines import reference
from layernorm.equations.arguments import NormArguments
from support.threads import threads

native = pytest.importorskip("layernorm.engines.native", exc_type=ImportError)
pytestmark = pytest.mark.usefixtures("instruction_set")

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
# What is allowed: the reference computes in float64, the kernels all but float64 in float32; then both round.
ULPS = {torch.float64: 0, torch.float32: 1, torch.bfloat16: 1, torch.float16: 1}
# Of rows of numbers of size 1, 300 at most: float32's and float64's units times 64.
STATISTICS = {torch.float64: 2e-14, torch.float32: 8e-6, torch.bfloat16: 8e-6, torch.float16: 8e-6}
SUMS = 64  # units of the type that is computed in, for sums of up to 300 numbers


def both(x, residual, N, weight, bias, norm, dy, dtotal, save=True):
    found = []
    for engine in (native, reference):
        a = NormArguments(x, (N,), weight, bias, 1e-5, norm)
        y, *rest = engine.normalize_forward(a, residual, True)
        total = x if residual is None else rest.pop(0)
        back = engine.normalize_backward(a._replace(input=total), rest, dy, dtotal)
        statistics = [row for saved in rest for row in torch.atleast_2d(saved)]  # mean, not of rms, and 1 / deviation
        found.append([y, total, *statistics, *back])
    return found


def close(a, b, computed_in=torch.float64):
    a, b = a.detach(), b.detach()
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    if not a.numel():
        return
    size = max(1.0, float(b.abs().max()))  # 1: a gradient may be the difference of numbers of that size
    allowed = ULPS[b.dtype] * torch.finfo(b.dtype).eps + SUMS * torch.finfo(computed_in).eps
    assert float((a.double() - b.double()).abs().max()) <= allowed * size


def problem(M, N, dtype, parameter_dtype, seed=0):
    g = torch.Generator().manual_seed(seed)
    x, residual, dy, dtotal = (torch.randn(M, N, generator=g).to(dtype) for _ in range(4))
    weight, bias = (torch.randn(N, generator=g).to(parameter_dtype) for _ in range(2))
    return x, residual, dy, dtotal, weight, bias


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    M=st.integers(0, 40), N=st.integers(0, 300), dtype=st.sampled_from(FLOATS), parameters=st.sampled_from(FLOATS),
    affine=st.sampled_from(["both", "gain", "bias", "none"]), norm=st.sampled_from(["layer", "rms"]),
    with_residual=st.booleans(), seed=st.integers(0, 9),
)  # fmt: skip
def test_any_shape(M, N, dtype, parameters, affine, norm, with_residual, seed):
    x, residual, dy, dtotal, weight, bias = problem(M, N, dtype, parameters, seed)
    weight, bias = weight if affine in ("both", "gain") else None, bias if affine in ("both", "bias") else None
    residual, dtotal = (residual, dtotal) if with_residual else (None, None)
    for a, b in zip(*both(x, residual, N, weight, bias, norm, dy, dtotal), strict=True):
        if a.shape[:1] == (M,) and a.dtype == torch.float64 and a.dim() == 1:  # statistics: in the kernel's own type
            torch.testing.assert_close(a, b, rtol=STATISTICS[dtype], atol=STATISTICS[dtype], equal_nan=True)
        else:
            close(a, b, torch.float32 if dtype.itemsize <= 4 else torch.float64)


def test_sizes_at_which_threads_and_groups_share_the_work():
    for (M, N), dtype in itertools.product([(1000, 257), (3, 100_000), (70_000, 5)], FLOATS):
        for a, b in zip(*both(*sharing(M, N, dtype)), strict=True):
            if a.dim() == 2 or a.shape[0] == N:  # rows; sums over rows
                close(a, b, torch.float32 if dtype.itemsize <= 4 else torch.float64)


def test_results_that_go_past_the_caches_have_the_bits_of_their_rows():
    """8 MB and more are written so, if each row fills whole vectors; one thread's part is read by another."""
    x, _, dy, _, weight, bias = problem(2100, 1024, torch.float32, torch.float32)
    with threads(2):
        found = output_and_gradient(x, weight, bias, dy)
    parts = [output_and_gradient(x, weight, bias, dy) for x, dy in zip(x.split(300), dy.split(300), strict=True)]
    for whole, rows in zip(found, zip(*parts, strict=True), strict=True):
        assert torch.equal(whole, torch.cat(rows))
    a = NormArguments(x, (1024,), weight, bias, 1e-5, "layer")
    y, *saved = reference.normalize_forward(a, None, True)
    close(found[0], y, torch.float32)
    close(found[1], reference.normalize_backward(a, saved, dy, None)[0], torch.float32)


def output_and_gradient(x, weight, bias, dy):
    x = x.clone().requires_grad_()
    y = ln.functional.layer_norm(x, x.shape[1:], weight, bias)
    return y.detach(), *torch.autograd.grad(y, x, dy)


def test_parameters_are_not_read_beyond_their_end():
    """A gain of the type that is computed in is read where it lies: here before memory that nobody may read."""
    libc = ctypes.CDLL(None, use_errno=True)
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    try:
        assert libc.mprotect(ctypes.c_void_p(start + page), page, 0) == 0, ctypes.get_errno()
        for N in (1, 7, 16, 37, 93):
            gain = torch.frombuffer(memory, dtype=torch.float32, count=N, offset=page - 4 * N)
            gain.fill_(2.0)
            x, dy = torch.randn(5, N), torch.randn(5, N)
            (y, dx), (once, dx_once) = (output_and_gradient(x, g, None, dy) for g in (gain, torch.ones(N)))
            torch.testing.assert_close(y, 2 * once)
            torch.testing.assert_close(dx, 2 * dx_once)
    finally:
        libc.mprotect(ctypes.c_void_p(start + page), page, mmap.PROT_READ | mmap.PROT_WRITE)


def sharing(M, N, dtype):
    x, _, dy, _, weight, bias = problem(M, N, dtype, dtype)
    return x, None, N, weight, bias, "layer", dy, None


@pytest.mark.parametrize("dtype", FLOATS)
def test_bits_do_not_depend_on_threads(dtype):
    found = []
    for number in (1, 2, 3):
        with threads(number):
            found.append(both(*sharing(999, 300, dtype))[0])
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_16_bit_number_goes_there_and_back(dtype):
    """Normalising rows of one gives the bias: every bit pattern, as a bias, comes out as it is; and as a sum."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    zeros = torch.zeros_like(every)
    y, total = ln.functional.add_layer_norm(every[:, None], zeros[:, None], (1,), None, zeros[:1])
    finite = torch.isfinite(every)
    assert torch.equal(total[:, 0][finite], (every + zeros)[finite])
    assert total[:, 0].isnan().equal(every.isnan())
    assert torch.equal(y[finite], torch.zeros_like(y[finite]))
    bias = every[finite]
    y = ln.functional.layer_norm(torch.ones(1, len(bias), dtype=dtype), (len(bias),), None, bias)
    assert torch.equal(y[0], bias)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_to_16_bits_is_to_nearest_even(dtype):
    """Of every kind of float32: ties, subnormals, numbers too large."""
    g = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (200_000,), generator=g, dtype=torch.int64).to(torch.int32)
    ties = (bits & ~0x1FFF) | 0x1000 if dtype == torch.float16 else (bits & ~0xFFFF) | 0x8000
    numbers = torch.cat([bits, ties]).view(torch.float32)
    numbers = numbers[torch.isfinite(numbers)]
    bias = torch.cat([numbers, torch.tensor([65519.9, 65520.0, 5.96e-8, 2.98e-8, 2.99e-8, 6.1e-5])])
    for part in (bias, *bias.split(1000)):  # long rows are stored by other code
        y = ln.functional.layer_norm(torch.ones(1, len(part), dtype=dtype), (len(part),), None, part)
        assert torch.equal(y[0].view(torch.int16), part.to(dtype).view(torch.int16))


@pytest.mark.parametrize("dtype", FLOATS)
def test_add_layer_norm_is_layer_norm_of_the_sum(dtype):
    x, residual, dy, dtotal, weight, bias = (t.requires_grad_() for t in problem(7, 33, dtype, dtype))
    inputs = (x, residual, weight, bias)
    y, total = ln.functional.add_layer_norm(x, residual, (33,), weight, bias)
    s = x + residual
    z = ln.functional.layer_norm(s, (33,), weight, bias)
    assert torch.equal(total, s)
    assert torch.equal(y, z)
    got = torch.autograd.grad([y, total], inputs, [dy, dtotal])
    for a, b in zip(got, torch.autograd.grad([z, s], inputs, [dy, dtotal]), strict=True):
        close(a, b)
    assert torch.equal(got[0], got[1])
    y, total = ln.functional.add_rms_norm(x, residual, (33,), weight)
    assert torch.equal(y, ln.functional.rms_norm(s, (33,), weight))
    # only one of the two results is used
    for k in (0, 1):
        y, total = ln.functional.add_layer_norm(x, residual, (33,), weight, bias)
        used = (x, residual) if k else inputs
        a = torch.autograd.grad((y, total)[k], used, dy)
        s = x + residual
        b = torch.autograd.grad((ln.functional.layer_norm(s, (33,), weight, bias), s)[k], used, dy)
        for one, other in zip(a, b, strict=True):
            close(one, other)


def test_add_layer_norm_differentiates_twice_and_maps():
    x, residual, _, _, weight, bias = (t.requires_grad_() for t in problem(3, 5, torch.float64, torch.float64))
    call = ln.functional.add_layer_norm
    assert torch.autograd.gradcheck(lambda *a: call(a[0], a[1], (5,), *a[2:]), (x, residual, weight, bias))
    assert torch.autograd.gradgradcheck(lambda *a: call(a[0], a[1], (5,), *a[2:]), (x, residual, weight, bias))
    s = x + residual
    both = [call(x, residual, (5,), weight, bias), (torch.nn.functional.layer_norm(s, (5,), weight, bias), s)]
    inputs = (x, residual, weight, bias)
    found, expected = (
        torch.autograd.grad(y.pow(3).sum() + total.pow(3).sum(), inputs, create_graph=True) for y, total in both
    )
    torch.testing.assert_close(found, expected)  # with a graph the first gradients are computed in another way
    y, total = torch.func.vmap(lambda a, b: call(a, b, (5,), weight, bias))(x, residual)
    expected, s = call(x, residual, (5,), weight, bias)
    torch.testing.assert_close((y, total), (expected, s))


def test_the_residual_must_be_like_the_input():
    x = torch.randn(2, 3)
    for wrong, word in ((torch.randn(2, 4), "shape"), (torch.randn(2, 3).double(), "dtype"), (x.to("meta"), "device")):
        with pytest.raises(RuntimeError, match=f"expected residual of {word}"):
            ln.functional.add_layer_norm(x, wrong, (3,))
    with pytest.raises(TypeError, match="residual to be a Tensor, got NoneType"):
        ln.functional.add_rms_norm(x, None, (3,))


def test_modules_take_a_residual():
    x, residual = torch.randn(2, 5), torch.randn(2, 5)
    for module in (ln.LayerNorm(5), ln.RMSNorm(5)):
        y, total = module(x, residual)
        assert torch.equal(total, x + residual)
        assert torch.equal(y, module(total))
