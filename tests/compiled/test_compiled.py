"""The compiled engine against the reference: first without a compiler, then a few cases through it."""

import re
import sys
import threading

import pytest
import torch
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.testing import CompileCounter
from torch._inductor.utils import run_and_get_code

import layernorm as ln
from layernorm.engines import reference
from layernorm.engines.protocol import Kind
from layernorm.equations.arguments import NormArguments
from layernorm.formula import PRESETS, Recurrence
from support.formula_space import arguments_of, drawn, every_formula, with_changes
from support.processes import python
from support.threads import threads

compiled = pytest.importorskip("layernorm.engines.compiled", exc_type=ImportError)
_compile = sys.modules["layernorm.engines.compiled._compile"]

CLOSE = 1e-12  # float64's 1.1e-16, times a step's sums and the normalisations' conditioning; 1e-14 is typical
NETWORKS = ["LSTM", "GRU", "RNN"]
# T, B, I, H, P. Chunks of 2 and a step that is left over; one chunk; one step; no step; no row; no input.
SHAPES = [(5, 3, 4, 6, 3), (2, 4, 3, 5, 5), (1, 3, 2, 1, 1), (0, 2, 3, 4, 2), (3, 0, 2, 5, 2), (3, 7, 0, 3, 2)]


def problem(recurrence, *sizes, reverse, lengths, reset):
    """Arguments in float64, and gradients of their results."""
    g = torch.Generator().manual_seed(0)
    a = arguments_of(drawn(recurrence, *sizes, lengths, reset, g), recurrence, reverse)
    T, B, P = *a.input.shape[:2], a.state[0].shape[1]
    return a, [torch.randn(size, dtype=torch.float64, generator=g) for size in ((T, B, P), *(s.shape for s in a.state))]


def close(got, expected):
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if a.numel():
            assert (a - b).abs().max() <= CLOSE * (1 + b.abs().max())


def both_ways(engine, a, grads):
    """Results and gradients of the op, and the results of a call that saves nothing."""
    n = 1 + len(a.state)
    found = engine.recurrent_forward(a, True)
    back = engine.recurrent_backward(a, found[n:], grads[0], grads[1:])
    return [*found[:n], *back, *engine.recurrent_forward(a, False)]


def trained(module, x, engine="compiled"):
    """The output of a module, and the gradients of a function of it by input and parameters."""
    x = x.clone().requires_grad_()
    with ln.backends.use(engine):
        output, _ = module(x)
    return [output.detach(), *torch.autograd.grad((output * output.detach().cos()).sum(), [x, *module.parameters()])]


# --- The whole space, without a compiler ---


@pytest.mark.parametrize(
    ("network", "part"),
    [
        pytest.param(network, part, marks=[pytest.mark.long] * (network == "LSTM" and part > 0))
        for network in NETWORKS
        for part in range(5)
    ],
)
def test_every_formula(network, part):
    for recurrence, (*sizes, reverse, lengths, reset) in list(every_formula(network, SHAPES))[part::5]:
        a, grads = problem(recurrence, *sizes, reverse=reverse, lengths=lengths, reset=reset)
        close(both_ways(compiled, a, grads), both_ways(reference, a, grads))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_the_norms(norm, dtype):
    for shape, n, affine, residual in (((4, 2, 3), 2, True, True), ((5, 7), 1, False, False), ((0, 3), 1, True, True)):
        x, y, total, *vectors = (torch.randn(s, dtype=dtype) for s in (shape, shape, shape, *[shape[-n:]] * 2))
        weight, bias = vectors if affine else (None, None)
        a = NormArguments(x, shape[-n:], weight, bias if norm == "layer" else None, 1e-5, norm)
        found = []
        for engine in (reference, compiled):
            results = engine.normalize_forward(a, y if residual else None, True)
            saved = results[2 if residual else 1 :]
            back = engine.normalize_backward(a, saved, total, x if residual else None)
            found.append([*results, *back, *engine.normalize_forward(a, None, False)])
        close(found[1], found[0])


@pytest.mark.parametrize("network", NETWORKS)
def test_what_happens_between_steps(network):
    found = list(every_formula(network, SHAPES))[:: 5 if network == "LSTM" else 3]
    for k, (recurrence, (*sizes, reverse, lengths, reset)) in enumerate(found):
        a, grads = problem(recurrence, *sizes, reverse=reverse, lengths=lengths, reset=reset or k % 3 > 0)
        a = with_changes(a, 1 + k % 15)
        close(both_ways(compiled, a, grads), both_ways(reference, a, grads))


def test_batch_norm_is_refused_and_says_who_computes_it():
    said = "recurrent on cpu in torch.float32: backend 'compiled' not for norm='batch'; '(native|reference)' has one"
    with ln.backends.use("compiled"), pytest.raises(ln.backends.NoKernelError, match=said):
        ln.RNN(3, 4, norm="batch")(torch.randn(5, 3, 3))


def test_derivatives_that_the_reference_computes():
    """Second ones, and those of `torch.func`."""
    module, x = ln.GRU(3, 4).double(), torch.randn(5, 2, 3, dtype=torch.float64)

    def output(x):
        return torch.func.functional_call(module, {}, (x,))[0]

    def twice(x):
        x = x.clone().requires_grad_()
        (d,) = torch.autograd.grad(output(x).sin().sum(), x, create_graph=True)
        return torch.autograd.grad(d.square().sum(), x)[0]

    for derivative in (twice, lambda x: torch.func.jvp(output, (x,), (x,))[1], torch.func.jacrev(output)):
        with ln.backends.use("compiled"):
            found = derivative(x)
        torch.testing.assert_close(found, derivative(x))


# --- What is compiled, and how often ---


@pytest.fixture
def counted(monkeypatch):
    """How many graphs are made since the last time that it was asked."""
    counter = CompileCounter()
    options = {"backend": counter, "fullgraph": True, "dynamic": False}
    monkeypatch.setattr(_compile, "through_compiler", lambda function: torch.compile(function, **options))
    torch._dynamo.reset()

    def graphs():
        found, counter.frame_count = counter.frame_count, 0
        return found

    return graphs


@pytest.mark.compiles
def test_each_kind_of_call_is_compiled_once(counted):
    module = ln.LSTM(3, 4)
    trained(module, torch.randn(4, 5, 3))
    assert counted() == 2  # a chunk forward, and one back
    trained(module, torch.randn(5, 5, 3))
    assert counted() == 2  # the step that is left over
    for T in range(1, 5):
        for B in (2, 6):
            x = torch.randn(T, B, 3)
            torch.testing.assert_close(trained(module, x), trained(module, x, "reference"), rtol=1e-4, atol=1e-5)
    assert counted() == 0
    trained(ln.LSTM(7, 4, bidirectional=True), torch.randn(4, 5, 7))  # only W_ih is of another size
    trained(module.bfloat16(), torch.randn(4, 5, 3).bfloat16())  # in float32
    module.float()
    with ln.backends.use("compiled"):
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                module(torch.randn(4, 5, 3))
        module.requires_grad_(False)(torch.randn(4, 5, 3))
    with torch.autocast("cpu", torch.bfloat16):
        trained(module.requires_grad_(True), torch.randn(4, 5, 3))
    assert counted() == 0
    trained(module, torch.randn(2, 1, 3))
    assert counted() == 2  # one row


@pytest.mark.compiles
def test_many_layers_are_all_compiled(counted):
    """Each has code of its own: torch gives up when it has compiled the same code so often."""
    with torch._dynamo.config.patch(recompile_limit=2), ln.backends.use("compiled"), torch.no_grad():
        for size in range(1, 4):
            ln.RNN(2, size)(torch.randn(2, 3, 2))
    assert counted() == 3


@pytest.mark.compiles
def test_each_number_of_threads_has_code_of_its_own(counted):
    with torch._dynamo.config.patch(recompile_limit=1), ln.backends.use("compiled"), torch.no_grad():
        for number in (1, 2, 1):
            with threads(number):
                ln.RNN(2, 3)(torch.randn(2, 3, 2))
    assert counted() == 2


@pytest.mark.compiles
def test_where_torch_would_compile_no_more_there_is_an_error(counted):
    """Not steps that silently run uncompiled."""
    module, x = ln.RNN(2, 3), torch.randn(2, 3, 2)
    with torch._dynamo.config.patch(recompile_limit=1), ln.backends.use("compiled"), torch.no_grad():
        module(x)
        torch.use_deterministic_algorithms(True)
        try:
            with pytest.raises(FailOnRecompileLimitHit):
                module(x)
        finally:
            torch.use_deterministic_algorithms(False)


@pytest.mark.compiles
def test_inside_a_compiled_model_and_in_several_threads(counted):
    module, x = ln.RNN(3, 4), torch.randn(5, 2, 3)
    expected = trained(module, x)
    assert counted() == 4
    for a, b in zip(trained(torch.compile(module, backend="aot_eager", fullgraph=True), x), expected, strict=True):
        torch.testing.assert_close(a, b)
    found = []
    threads = [threading.Thread(target=lambda: found.append(trained(module, x))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert all(torch.equal(a, b) for other in found for a, b in zip(other, expected, strict=True))
    assert counted() == 0


# --- Through Inductor ---


def counts(code):
    """How many kernels are compiled, how often they are called, and how many products are computed."""
    call = code[code.index("def call(") :]
    called = re.findall(r"^ +cpp_fused\w*\(", call, re.MULTILINE)
    return len(set(called)), len(called), len(re.findall(r"extern_kernels\.\w*mm\(", call))


@pytest.mark.compiles
def test_an_lstm_trains_and_its_kernels_are_few():
    """A step forward is one product and one kernel, the same for every step; a step back as well, each its own."""
    lstm, x = ln.LSTM(3, 17), torch.randn(4, 3, 3)
    expected = trained(lstm, x, "reference")
    found, (forward, backward) = run_and_get_code(trained, lstm, x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert counts(forward) == (1, 2, 2)
    assert counts(backward) == (3, 3, 2)  # the first also has what precedes the steps, the last what follows them
    x = torch.randn(2, 9, 3)
    torch.testing.assert_close(trained(lstm, x), trained(lstm, x, "reference"), rtol=1e-5, atol=1e-5)


@pytest.mark.long  # a packed batch, which is compiled too, is held to the same
@pytest.mark.compiles
def test_an_rnn_with_lengths_and_resets():
    recurrence = Recurrence("RNN", PRESETS["paper"]["RNN"])
    a, grads = problem(recurrence, 2, 3, 4, 6, 6, reverse=True, lengths=True, reset=True)
    close(both_ways(compiled, a, grads), both_ways(reference, a, grads))


@pytest.mark.compiles
def test_a_norm():
    x, weight, bias = (torch.randn(s, requires_grad=True) for s in ((3, 5, 7), (7,), (7,)))
    found = []
    for name in ("reference", "compiled"):
        with ln.backends.use(name):
            y, total = ln.functional.add_layer_norm(x, x.detach(), (7,), weight, bias)
        found.append([y, total, *torch.autograd.grad((y * total).sum(), [x, weight, bias])])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.compiles
def test_numbers_that_are_not_those_in_memory():
    """The negative bit, and torch's zeros without memory, in calls after the one that compiles."""
    x = torch.linspace(-1, 2, 20).reshape(4, 5)
    with ln.backends.use("compiled"):
        expected = ln.functional.layer_norm(-x, (5,))
        assert torch.equal(ln.functional.layer_norm(torch._neg_view(x), (5,)), expected)
        assert not ln.functional.layer_norm(torch._efficientzerotensor((4, 5)), (5,)).any()


@pytest.mark.long
@pytest.mark.compiles
@pytest.mark.parametrize(("name", "network"), [(name, network) for name in PRESETS for network in PRESETS[name]])
def test_every_preset(name, network):
    """The second time with lengths and resets, in an LSTM with a projection and clipped gates, too."""
    for masked in (False, True):
        lstm = {"projected": True, "gate_clip": 0.1} if masked and network == "LSTM" else {}
        recurrence = Recurrence(network, PRESETS[name][network], **lstm)
        a, grads = problem(recurrence, 3, 4, 5, 6, 4 if lstm else 6, reverse=masked, lengths=masked, reset=masked)
        close(both_ways(compiled, a, grads), both_ways(reference, a, grads))


# --- Where it does not run ---


def test_without_a_compiler_it_says_why():
    code = "import layernorm as ln; print(*ln.backends.status())"
    said = python(code, CXX="no-such-c++").stdout
    assert "name='compiled', available=False, reason=\"torch.compile needs a C++ compiler" in said
    assert "no-such-c++" in said


@pytest.mark.skipif(sys.platform == "darwin", reason="torch looks elsewhere there, too")
def test_without_pythons_headers_it_says_why():
    gone = "import sysconfig, torch; sysconfig.get_path = lambda *a, **k: '/no/headers'\n"
    said = python(gone + "import layernorm as ln; print(*ln.backends.status())").stdout
    assert "name='compiled', available=False" in said
    assert "no Python.h in /no/headers" in said


def test_it_supports_what_inductor_has():
    for device, there in (("cpu", True), ("cuda", True), ("meta", False)):
        assert compiled.supports(Kind("recurrent", torch.device(device), torch.float32)).yes is there
    cpu = torch.device("cpu")
    assert compiled.supports(Kind("recurrent", cpu, torch.int64)) == (False, "torch.int64")
    int8 = Recurrence("LSTM", quantized=True)
    assert compiled.supports(Kind("recurrent", cpu, torch.float32, int8)) == (False, "int8 weights")
