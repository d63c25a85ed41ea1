"""What holds for the norm ops of the GPU engine and for its check. `tests/gpu/test_triton.py` runs this file in a
process of its own, with Triton's interpreter."""

import contextlib
import itertools

import pytest
import torch

import layernorm as ln
from layernorm.engines import reference
from layernorm.engines import triton as engine
from layernorm.engines.triton import _norms as norms
from layernorm.engines.triton._self_check import SelfCheck
from layernorm.equations.arguments import NormArguments, RecurrentArguments
from layernorm.formula import PRESETS, Recurrence
from support import interpreted  # noqa: F401 - mends the interpreter

FLOAT32 = 2.0**-23


@pytest.fixture(autouse=True)
def unchecked(request, monkeypatch):
    """Without the check at the first use, which runs the same kernels, but in its own tests."""
    torch.manual_seed(0)
    if "check" not in request.node.name:
        monkeypatch.setattr(SelfCheck, "passes", lambda *given: True)


def results(of, a, residual, grad, grad_total):
    """All results and gradients."""
    n = 1 if residual is None else 2
    found = of.normalize_forward(a, residual, True)
    normalised = a if residual is None else a._replace(input=found[1])
    return [*found[:n], *of.normalize_backward(normalised, found[n:], grad, grad_total)]


def check(a, residual=None, times=4.0):
    """Within a few roundings of the equations in float64, of the largest number."""
    grad, grad_total = torch.randn_like(a.input), None if residual is None else torch.randn_like(a.input)
    found = results(engine, a, residual, grad, grad_total)
    wide = [None if t is None else t.double() for t in (a.input, a.weight, a.bias, residual, grad, grad_total)]
    exact = a._replace(input=wide[0], weight=wide[1], bias=wide[2])
    expected = results(reference, exact, *wide[3:])
    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        assert x.shape == y.shape
        assert x.dtype in (a.input.dtype, torch.float32)
        if x.numel():
            bound = times * torch.finfo(x.dtype).eps
            assert (x.double() - y).abs().max() <= bound * (1 + y.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.long)])
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize(("M", "N"), [(1, 1), (7, 5), (3, 300)])
def test_forward_and_back(M, N, norm, dtype):
    for has_weight, has_bias, has_residual in itertools.product([False, True], repeat=3):
        x, residual = torch.randn(M, N, dtype=dtype), torch.randn(M, N, dtype=dtype) if has_residual else None
        weight, bias = (torch.randn(N, dtype=dtype) if there else None for there in (has_weight, has_bias))
        check(NormArguments(x, (N,), weight, bias, 1e-5, norm), residual)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_a_row_in_tiles(norm):
    N = 2 * 8192 + 5
    check(NormArguments(torch.randn(9, N), (N,), torch.randn(N), torch.randn(N), 1e-5, norm), torch.randn(9, N))


def test_weights_of_another_type_rows_that_lie_apart_and_several_dimensions():
    x = torch.randn(2, 5, 24, dtype=torch.bfloat16)
    check(NormArguments(x[..., :20], (20,), torch.randn(20), None, 1e-5, "layer"))
    check(NormArguments(x.transpose(1, 2), (24, 5), torch.randn(24, 5), torch.randn(24, 5), 1e-5, "layer"))
    check(NormArguments(torch.randn(20, 6).T, (20,), torch.randn(40)[::2], None, 1e-5, "rms"))


def test_a_large_mean_costs_no_digits_and_a_constant_row_is_the_bias():
    x = torch.randn(4, 512) + 1000
    a = NormArguments(x, (512,), None, None, 1e-5, "layer")
    (y,), (exact,) = engine.normalize_forward(a, None, False), reference.normalize_forward(a, None, False)
    assert (y - exact).abs().max() <= 16 * FLOAT32
    assert (torch.nn.functional.layer_norm(x, (512,)) - exact).abs().max() > 100 * FLOAT32
    bias = torch.randn(512)
    (y,) = engine.normalize_forward(a._replace(input=torch.full((2, 512), 0.1), bias=bias), None, False)
    assert torch.equal(y, bias.expand(2, 512))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_nothing_is_normalised_as_nothing(shape):
    check(NormArguments(torch.randn(shape), shape[1:], torch.randn(shape[1:]), None, 1e-5, "layer"), torch.randn(shape))


def test_modules():
    x = torch.randn(6, 8, requires_grad=True)
    for module in (ln.LayerNorm(8), ln.RMSNorm(8), ln.LayerNorm(8, elementwise_affine=False)):
        found = []
        for name in ("triton", "reference"):
            with ln.backends.use(name):
                y = module(x)
            found.append([y, *torch.autograd.grad(y.square().sum(), [x, *module.parameters()])])
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b)


def test_the_first_use_of_a_kind_is_checked_and_a_wrong_one_is_not_used(monkeypatch):
    a = NormArguments(torch.randn(5, 11), (11,), torch.randn(11), None, 1e-5, "layer")
    expected = results(reference, a, None, a.input, None)

    class Wrong:
        def __getitem__(self, grid):
            return lambda *given, **constants: None

    with monkeypatch.context() as patch:
        patch.setattr(norms, "norm_backward", Wrong())
        with pytest.warns(UserWarning, match=r"wrong about a norm in torch.float32 with \(11,\) numbers on cpu"):
            found = results(engine, a, None, a.input, None)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)
    with pytest.raises(RuntimeError, match="expected weight of shape"):
        engine.normalize_forward(a._replace(input=torch.randn(2, 13), normalized_shape=(13,)), None, False)


def a_call(network="GRU", inputs=3, H=4):
    recurrence = Recurrence(network, PRESETS["paper"][network])
    module = getattr(ln, network)(inputs, H)
    state = [torch.zeros(2, H)] * (2 if network == "LSTM" else 1)
    params = [p.detach() for p in module.parameters()]
    return RecurrentArguments(torch.randn(3, 2, inputs), state, params, recurrence)


@pytest.mark.parametrize("what", ["NaN", "another second call", "no memory", "right"])
def test_a_check_finds(what, monkeypatch):
    calls = 0

    def backward(a, *given):
        nonlocal calls
        calls += 1
        if what == "no memory":
            raise torch.OutOfMemoryError("CUDA out of memory")
        factor = {"NaN": torch.nan, "another second call": 1.0 + 1e-6 * (calls == 2)}.get(what, 1.0)
        return [g * factor for g in reference.recurrent_backward(a, *given)]

    monkeypatch.setattr("layernorm.engines.triton._self_check.keeps_lanes", lambda device: what != "NaN")
    check, a = SelfCheck(), a_call()
    by = reference.recurrent_forward, backward
    expected = {"NaN": "an error of nan", "another second call": "by CUDA graphs, has other results"}.get(what)
    with pytest.warns(UserWarning, match=expected) if expected else contextlib.nullcontext():
        assert check.passes(a, by, "tf32x3", FLOAT32) == (expected is None)
    before = calls
    check.passes(a, by, "tf32x3", FLOAT32)
    assert (calls > before) == (what == "no memory")  # it is tried again
    assert not check._found if what == "no memory" else len(check._found) == 1


def test_checked_layers_without_inputs_and_of_two_units():
    torch.backends.cudnn.rnn.fp32_precision = "ieee"
    for network in ("LSTM", "GRU", "RNN"):
        for a in (a_call(network, 0), a_call(network, 3, 2)):
            assert SelfCheck().passes(a, (engine._recurrent_forward, engine._recurrent_backward), "", FLOAT32)


def test_a_layer_is_checked_too(monkeypatch):
    module, x = ln.GRU(3, 4), torch.randn(2, 3, 3)

    def fail(*given, **constants):
        raise RuntimeError("ptxas: out of registers")

    monkeypatch.setattr("layernorm.engines.triton._lanes.Lane.launch", fail)
    with ln.backends.use("triton"), pytest.warns(UserWarning, match="RuntimeError: ptxas: out of registers"):
        y, _ = module(x)
    with ln.backends.use("triton"):  # once
        torch.testing.assert_close(module(x)[0], y)
    with ln.backends.use("reference"):
        torch.testing.assert_close(module(x)[0], y)


@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_a_stepper_is_checked_too(network, monkeypatch):
    torch.backends.cudnn.rnn.fp32_precision = "ieee"
    module, x = getattr(ln, network)(3, 5, **({"proj_size": 4} if network == "LSTM" else {})), torch.randn(2, 3)

    def fail(*given, **constants):
        raise RuntimeError("at 3:4:\nx = y\nunknown name")

    found = []
    for patched in (True, False):  # what was found for one kind would hold for the other one
        monkeypatch.setattr(engine, "self_check", SelfCheck())
        with monkeypatch.context() as patch, ln.backends.use("triton"):
            warned = contextlib.nullcontext()
            if patched:
                patch.setattr("layernorm.engines.triton._lanes.Lane.launch", fail)
                warned = pytest.warns(UserWarning, match=r"at 3:4: \.\.\. unknown name")
            with warned:
                y, _ = module.stepper()(x)
            found.append([y, *torch.autograd.grad(y.square().sum(), [*module.parameters()])])
    assert len(engine.self_check._found) == 2  # with few rows and with many
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_calls_of_many_rows_are_checked_in_blocks_of_many():
    check, rows = SelfCheck(), []

    def forward(a, save):
        rows.append(a.input.shape[1])
        return reference.recurrent_forward(a, save)

    a = a_call()
    for many in (2, 16, 17, 40):
        state = [torch.zeros(many, 4)]
        wide = RecurrentArguments(torch.randn(3, many, 3), state, a.params, a.recurrence)
        assert check.passes(wide, (forward, reference.recurrent_backward), "", FLOAT32)
    assert rows == [3, 33]


@pytest.mark.parametrize("message", ["CUBLAS_STATUS_ALLOC_FAILED", "operation not permitted when stream is capturing"])
def test_a_check_gives_no_verdict_on_troubles_that_pass(message):
    check = SelfCheck()

    def forward(a, save):
        raise RuntimeError(message)

    assert check.passes(a_call(), (forward, reference.recurrent_backward), "", FLOAT32)
    assert not check._found


def test_what_the_cache_says():
    assert repr(ln.backends.graph_cache()).startswith("<0 graphs for 0 kinds of calls, 0.0 MiB")
