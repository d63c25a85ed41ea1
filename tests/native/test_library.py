"""The CPU engine as a library in a process: threads, forks, memory, arguments that make no sense, and its absence."""

import concurrent.futures
import contextlib
import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import layernorm as ln
from layernorm.formula import PRESETS, Recurrence
from support.compiler import COMPILER
from support.processes import python
from support.threads import threads

pytest.importorskip("layernorm.engines.native", exc_type=ImportError)
from layernorm.engines.native import _library


def train(module, x):
    output, _ = module(x)
    return [output, *torch.autograd.grad(output.sum(), list(module.parameters()))]


def test_ten_threads_call_one_module():
    module, norm = ln.LSTM(9, 13, num_layers=2, bidirectional=True), ln.LayerNorm(13)
    inputs = [torch.randn(7, 5, 9) for _ in range(10)]
    alone = [[*train(module, x), norm(x[..., :1].expand(7, 5, 13))] for x in inputs]
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        for _ in range(5):
            found = pool.map(lambda x: [*train(module, x), norm(x[..., :1].expand(7, 5, 13))], inputs)
            for a, b in zip(alone, found, strict=True):
                assert all(map(torch.equal, a, b))


def test_without_threads_one_does_all():
    module, norm = ln.LSTM(96, 128), ln.LayerNorm(512)
    x, rows = torch.randn(5, 32, 96), torch.randn(256, 512)
    calls = []

    @ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 3, ctypes.c_void_p, ctypes.c_void_p)
    def refuse(*_):
        calls.append(1)
        return 1

    name = _library.ISA.encode()
    with threads(2):
        expected = [*train(module, x), norm(rows)]
        try:
            _library.LIBRARY.layernorm_start(ctypes.cast(refuse, ctypes.c_void_p), name)
            found = [*train(module, x), norm(rows)]
        finally:
            _library.LIBRARY.layernorm_start(ctypes.cast(_library.TORCH.torch_parallel_for, ctypes.c_void_p), name)
    assert calls
    assert all(map(torch.equal, expected, found))


@pytest.mark.parametrize("program", ["threads", "each_set"])
def test_the_programs_without_python_compile(program):
    """`make sanitize` and `make test-arm` run them."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    here = Path(__file__).parent
    folders = [f"-I{folder}" for folder in (here, here.parents[1] / "src/layernorm/engines/native")]
    flags = ["-std=c++17", "-fsyntax-only", "-Wno-psabi", "-DLAYERNORM_ISA=baseline"]
    subprocess.run([COMPILER, *flags, *folders, str(here / f"{program}.cpp")], check=True)


class _Outputs(torch.utils.data.Dataset):
    """What a module that was used in the parent gives in a worker."""

    def __init__(self, module, x):
        self.module, self.x = module, x

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return [t.detach().numpy() for t in train(self.module, self.x)]


@pytest.mark.skipif(sys.platform != "linux", reason="no fork on Windows; on macOS libraries do not survive one")
def test_fork_after_use():
    """In a worker of DataLoader the parent's threads are gone, and with them the memory that they kept."""
    module, x = ln.GRU(9, 13), torch.randn(70, 40, 9)
    before = train(module, x)
    workers = {"num_workers": 1, "multiprocessing_context": "fork", "timeout": 60, "collate_fn": lambda cases: cases[0]}
    for found in torch.utils.data.DataLoader(_Outputs(module, x), batch_size=1, **workers):
        for a, b in zip(before, found, strict=True):
            assert torch.equal(a, torch.from_numpy(b))


LEAK = """
import gc, resource, sys, torch, layernorm as ln
lstm, norm, x = ln.LSTM(4, 6), ln.LayerNorm(6), torch.randn(3, 2, 4)
def calls(n):
    for _ in range(n):
        norm(lstm(x)[0]).sum().backward()
    gc.collect()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)  # KiB
before = calls(500)
print(calls(10_000) - before)
"""


@pytest.mark.long
def test_ten_thousand_calls_leak_nothing():
    """In a process of its own, whose peak no other test has raised."""
    pytest.importorskip("resource")  # not on Windows
    grown = int(python(LEAK).stdout)
    assert grown < 4096, f"{grown} KiB: more than 0.4 KiB a call"


# --- arguments ---

WRONG = [
    lambda t: t[:-1],
    lambda t: t[..., :-1],
    lambda t: t.double(),
    lambda t: t.long(),
    lambda t: t.to("meta"),
    lambda t: t[None],
    lambda t: t.flatten(),
    lambda t: t.new_empty(0),
    lambda t: t.bfloat16(),
    lambda t: t.bool(),
]
RIGHT = [  # the same numbers in another layout
    lambda t: t.clone(),
    lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]],
    lambda t: torch.stack([t, t], -1)[..., 0],
    lambda t: t.mT.contiguous().mT if t.dim() > 1 else t,
]


def attempt(call, tensors, which, how, spoilt, fits):
    """One tensor spoilt: an error unless it fits; one on "meta" may make the call one about shapes alone. In another
    layout: the same result."""

    def changed(tensor):
        return [*tensors[:which], tensor, *tensors[which + 1 :]]

    expected = call(tensors)
    if spoilt.device.type == "meta":
        with contextlib.suppress(RuntimeError, NotImplementedError):
            call(changed(spoilt))
    elif fits:
        call(changed(spoilt))
    else:
        with pytest.raises((RuntimeError, NotImplementedError)):
            call(changed(spoilt))
    for a, b in zip(expected, call(changed(RIGHT[how % len(RIGHT)](tensors[which]))), strict=True):
        assert torch.equal(a, b)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    network=st.sampled_from(["LSTM", "GRU", "RNN"]), which=st.integers(0, 36), how=st.integers(0, len(WRONG) - 1),
    backward=st.booleans(), cuts=st.booleans(), changed=st.booleans(), packed=st.booleans(),
)  # fmt: skip
def test_no_wrong_argument_reaches_the_recurrent_kernels(network, which, how, backward, cuts, changed, packed):
    """Any one tensor of the op spoilt: an error in Python, never a crash; in another layout: the same result."""
    r = Recurrence(network, PRESETS["paper"][network])
    T, B, I, H = 5, 4, 3, 6  # noqa: E741
    state = [torch.randn(B, H) for _ in r.state_names]
    params = [torch.randn(*s) for s in r.parameter_shapes(I, H, H).values()]
    sizes = torch.tensor([4, 3, 2, 1, 1]) if packed else None
    lines = (int(sizes.sum()),) if packed else (T, B)
    lengths = torch.tensor([5, 0, 3, 2]) if cuts and not packed else None
    reset = torch.rand(lines) < 0.2 if cuts else None
    rows, shares = [torch.randn(B, H) for _ in state], [torch.rand(*lines, H) for _ in state]
    restart, kept = (rows, shares) if changed else ([], [])
    dropout, kept = torch.rand(B, H) if changed else None, [*kept, None, None][:2]
    rest = r.encoded, restart, dropout, *kept, lengths, reset, False, sizes, [], False
    found = torch.ops.layernorm.recurrent_forward(torch.randn(*lines, I), state, params, *rest, "native")
    n = 1 + len(state)
    tensors = [torch.randn(*lines, I), *state, *params, *restart, dropout, *kept, lengths, reset, sizes]
    if backward:
        tensors += [*found[n:], *found[:n]]
    which %= len(tensors)
    if tensors[which] is None:
        return

    def call(tensors):
        rest = iter(tensors)
        take = lambda k: [next(rest) for _ in range(k)]  # noqa: E731
        args = (next(rest), take(len(state)), take(len(params)), r.encoded, take(len(restart)), *take(5))
        args = (*args, False, next(rest), [], False)
        if not backward:
            return torch.ops.layernorm.recurrent_forward(*args, "native")
        saved, grads = take(len(found) - n), take(n)
        arriving = (grads[0], grads[1:])
        return torch.ops.layernorm.recurrent_backward(*args, saved, *arriving, "native")

    spoilt = WRONG[how](tensors[which])
    same = spoilt.shape == tensors[which].shape and spoilt.dtype == tensors[which].dtype
    if tensors[which] is lengths and spoilt.shape == lengths.shape:  # any integers
        same = spoilt.dtype in (torch.int64, torch.int32)
    if which == 0 and not (backward or cuts or changed or packed) and spoilt.dim() == 3:  # any number of steps
        same = spoilt.shape[1:] == (B, I) and spoilt.dtype == torch.float32
    attempt(call, tensors, which, how, spoilt, same)


@pytest.mark.parametrize("lengths", [[6, 1, 1, 1], [-1, 1, 1, 1], [2**40, 0, 0, 0]])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_lengths_out_of_range(lengths, dtype):
    if max(lengths) >= 2**31 and dtype == torch.int32:
        lengths = [2**31 - 1, 0, 0, 0]
    with pytest.raises(RuntimeError, match=r"lengths must lie in 0\.\.5"):
        ln.LSTM(3, 4)(torch.randn(5, 4, 3), lengths=torch.tensor(lengths, dtype=dtype))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(which=st.integers(0, 9), how=st.integers(0, len(WRONG) - 1), backward=st.booleans(), add=st.booleans())
def test_no_wrong_argument_reaches_the_norm_kernels(which, how, backward, add):
    x, residual, gain, bias = torch.randn(5, 6), torch.randn(5, 6) if add else None, torch.randn(6), torch.randn(6)
    y, *saved = torch.ops.layernorm.normalize_forward(x, [6], gain, bias, 1e-5, "layer", residual, "native")
    total = saved.pop(0) if add else None
    tensors = [y, total, x, gain, bias, *saved] if backward else [x, residual, gain, bias]

    def call(t):
        if backward:
            arguments = (t[2], [6], t[3], t[4], 1e-5, "layer")
            return torch.ops.layernorm.normalize_backward(*arguments, t[5:], t[0], t[1], "native")
        return torch.ops.layernorm.normalize_forward(t[0], [6], *t[2:], 1e-5, "layer", t[1], "native")

    which %= len(tensors)
    if tensors[which] is None:
        return
    spoilt = WRONG[how](tensors[which])
    same = spoilt.shape == tensors[which].shape and spoilt.dtype == tensors[which].dtype
    if tensors[which] is gain or tensors[which] is bias:  # of any floating type
        same = spoilt.shape == gain.shape and spoilt.dtype.is_floating_point
    if not backward and not add and which == 0:  # any rows of this length
        same = spoilt.dim() > 0 and spoilt.shape[-1] == 6 and spoilt.dtype.is_floating_point
    attempt(call, tensors, which, how, spoilt, same)


# --- what once got through ---


def lstm_parameters(H, P, dtype=torch.float64):
    shapes = Recurrence("LSTM", PRESETS["paper"]["LSTM"], projected=True).parameter_shapes(3, H, P)
    return {name: torch.randn(*shape, dtype=dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize(("H", "P"), [(16, 65), (16, 200), (2, 500), (5, 5)])
def test_projections_larger_than_the_hidden_size(H, P):
    p, x = lstm_parameters(H, P), torch.randn(7, 4, 3, dtype=torch.float64)
    found = ln.functional.lstm(x, None, p)[0]
    with ln.backends.use("reference"):
        torch.testing.assert_close(found, ln.functional.lstm(x, None, p)[0], rtol=1e-9, atol=1e-9)


def test_hidden_sizes_that_do_not_fit():
    x = torch.randn(5, 3, 3)
    empty = {"weight_ih": (0, 3), "weight_hh": (0, 0), "bias_ih": (0,), "bias_hh": (0,), "gain": (0,)}
    with pytest.raises(RuntimeError, match="hidden size of at least 1"):
        ln.functional.rnn(x, None, {name: torch.zeros(*shape, requires_grad=True) for name, shape in empty.items()})
    p = dict(ln.LSTMCell(3, 8).named_parameters())
    with pytest.raises(RuntimeError, match=r"expected (initial h|weight_hh) of shape"):
        ln.functional.lstm(x, None, {**p, "weight_hh": torch.randn(32, 1)})
    p = dict(ln.GRUCell(3, 8).named_parameters())
    with pytest.raises(ValueError, match=r"unexpected \['weight_hr'\]"):
        ln.functional.gru(x, None, {**p, "weight_hr": torch.randn(8, 8)})


def test_numbers_that_are_stored_negated():
    x = torch._neg_view(torch.randn(5, 4, 3))
    assert x.is_neg()
    for module in (ln.LSTM(3, 4), ln.LayerNorm(3), ln.RMSNorm(3), ln.GRU(3, 4, norm=None)):
        first = lambda y: y[0] if isinstance(y, tuple) else y  # noqa: E731
        assert torch.equal(first(module(x)), first(module(x.resolve_neg())))
    weight = torch._neg_view(torch.randn(3))
    y = torch.randn(2, 3)
    assert torch.equal(
        ln.functional.layer_norm(y, (3,), weight), ln.functional.layer_norm(y, (3,), weight.resolve_neg())
    )


@pytest.mark.parametrize("make", [lambda: ln.LSTM(4, 64), lambda: ln.LayerNorm(4)])
def test_hooks_may_not_spoil_what_was_saved(make):
    module, x = make(), torch.randn(50, 30, 4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.half() if t.is_floating_point() else t, lambda t: t):
        output = module(x)
    with pytest.raises(RuntimeError, match="expected"):
        (output[0] if isinstance(output, tuple) else output).sum().backward()


def test_a_graph_traced_without_gradients_has_them_later():
    x = torch.randn(3, 2, 4, requires_grad=True)
    traced = torch.jit.trace(ln.LayerNorm(4).requires_grad_(False), torch.randn(3, 2, 4))
    lstm = ln.LSTM(4, 8)
    with torch.no_grad():
        exported = torch.export.export(lstm, (torch.randn(3, 2, 4),)).module()
    for call, module in ((traced, ln.LayerNorm(4)), (lambda x: exported(x)[0], lambda x: lstm(x)[0])):
        (a,), (b,) = torch.autograd.grad(call(x).square().sum(), x), torch.autograd.grad(module(x).square().sum(), x)
        torch.testing.assert_close(a, b)


def test_squares_that_overflow():
    """As the reference: zeros where numbers are too large, finite gradients, no NaN."""
    x = torch.full((3, 5), 2e37, dtype=torch.bfloat16, requires_grad=True)
    assert torch.isfinite(
        torch.autograd.grad(ln.functional.layer_norm(x, (5,)), x, torch.randn(3, 5).bfloat16())[0]
    ).all()
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    x[1, 0, 0] = 1e300
    assert torch.isfinite(ln.LSTM(3, 5).double()(x)[0]).all()


@pytest.mark.parametrize("backend", ln.backends.available())
def test_batch_norm_takes_no_steps_one_by_one(backend):
    r = Recurrence("GRU", PRESETS["paper"]["GRU"], norm="batch")
    params = [torch.randn(*shape) for shape in r.parameter_shapes(3, 4, 4).values()]
    with pytest.raises(RuntimeError, match="batch norm has moments for each time step"):
        ln.backends.engine(backend).prepare(params, r).forward(torch.randn(2, 3), [torch.randn(2, 4)], None, False)


# --- without it ---


def test_without_the_library_everything_runs_on_the_reference(tmp_path):
    """A package that was installed where there is no compiler."""
    source = Path(ln.__file__).parent
    shutil.copytree(source, tmp_path / "layernorm", ignore=shutil.ignore_patterns("*.so", "*.dll", "__pycache__"))
    script = """
import sys
sys.path.insert(0, sys.argv[1])
sys.meta_path = [f for f in sys.meta_path if "editable" not in type(f).__module__ + repr(f).lower()]
import torch, layernorm as ln
assert ln.__file__.startswith(sys.argv[1]), ln.__file__
assert "native" not in ln.backends.available(), ln.backends.status()
assert "C++17 compiler" in ln.backends.status()[0].reason
output, _ = ln.LSTM(3, 4)(torch.randn(5, 2, 3))
ln.LayerNorm(4)(output).sum().backward()
"""
    lines = python(script, tmp_path).stderr.splitlines()
    (told,) = [line for line in lines if "layernorm computes with plain torch equations" in line]
    assert "install a C++17 compiler and then layernorm again (pip install" in told


def test_an_instruction_set_that_does_not_exist_is_named():
    script = (
        "import layernorm as ln; print(ln.backends.status()[0])\n"
        "try: import layernorm.engines.native\n"
        "except ImportError as error: print('again:', error)"
    )
    said = python(script, LAYERNORM_ISA="altivec").stdout
    assert "LAYERNORM_ISA='altivec'" in said
    assert "available=False" in said
    assert "again: LAYERNORM_ISA='altivec'" in said, "an import that is tried again says the same"
