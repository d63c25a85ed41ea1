"""What the engine launches for a recurrent network compiles for an H100: the host code runs, its kernels are caught."""

import contextlib
import importlib
import io
import re
import sys

import pytest
import torch

from layernorm.formula import PLAIN, PRESETS, Formula, Recurrence

triton = pytest.importorskip("triton", reason="Triton is not installed: no kernel was compiled")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

H100 = GPUTarget("cuda", 90, 32)
SPILLED = 32  # bytes of a thread: some addresses, not a block of gates
TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
TYPES |= {torch.int32: "*i32", torch.uint8: "*u8"}
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion", "launch_cooperative_grid")


@pytest.fixture(scope="module")
def gpu():
    """The engine, which is imported only where there is a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        yield importlib.import_module("layernorm.gpu")
    for name in [name for name in sys.modules if name.startswith("layernorm.gpu")]:
        del sys.modules[name]


@pytest.fixture
def launched(gpu, monkeypatch, tmp_path):
    """{kernel's name and what it is compiled for: (kernel, arguments, keywords)} of all launches since."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton.knobs.nvidia, "dump_ptxas_log", True)
    found = {}

    def catch(kernel, grid):
        def call(*arguments, **keywords):
            found[kernel.__name__, str(described(kernel, arguments, keywords)[1:])] = kernel, arguments, keywords

        return call

    monkeypatch.setattr(triton.runtime.JITFunction, "__getitem__", catch)
    return found


def described(kernel, arguments, keywords):
    """The types of a launch's arguments, the constants among them, and what is divisible by 16, as Triton sees them."""
    options = {name: keywords[name] for name in OPTIONS if name in keywords}
    given = dict(zip(kernel.arg_names, arguments, strict=False)) | {
        name: value for name, value in keywords.items() if name not in options
    }
    constants, divisible = {}, {}

    def type_of(path, name, value):
        if isinstance(value, tuple):
            return type(value)(*(type_of((*path, k), name, v) for k, v in enumerate(value)))
        if value is None or name in keywords:
            constants[path] = value
            return "constexpr"
        if isinstance(value, torch.Tensor):
            divisible[path] = [["tt.divisibility", 16]]
            return TYPES[value.dtype]
        if isinstance(value, float):
            return "fp32"
        if value % 16 == 0 and name == "H":
            divisible[path] = [["tt.divisibility", 16]]
        return "i32"

    types = {name: type_of((k,), name, given[name]) for k, name in enumerate(kernel.arg_names)}
    return options, types, constants, divisible


def check(launched):
    assert launched
    for kernel, arguments, keywords in launched.values():
        options, types, constants, divisible = described(kernel, arguments, keywords)
        source = ASTSource(fn=kernel, signature=types, constexprs=constants, attrs=divisible)
        log = io.StringIO()
        with contextlib.redirect_stdout(log):
            ptx = triton.compile(source, target=H100, options=options).asm["ptx"]
        assert int(re.search(r"(\d+) bytes spill stores", log.getvalue())[1]) <= SPILLED, kernel.__name__
        assert not re.search(r"\.f64\b", ptx), kernel.__name__
        assert "atom." not in ptx, kernel.__name__


def run(gpu, recurrence, H, dtype, masks=False, projected=None):
    """Forward and backward of one row, two steps: nothing is computed, but the host's products."""
    T, B, P = 2, 1, projected or H
    x = torch.zeros(T, B, 16, dtype=dtype)
    state = [torch.zeros(B, size, dtype=dtype) for size in ((P, H) if recurrence.network == "LSTM" else (H,))]
    params = [torch.zeros(shape, dtype=dtype) for shape in recurrence.parameter_shapes(16, H, P).values()]
    lengths, reset = (torch.tensor([1]), torch.zeros(T, B, dtype=torch.bool)) if masks else (None, None)
    arguments = (x, state, params, lengths, reset)
    saved = gpu.recurrent_forward(*arguments, recurrence, False, True)[1 + len(state) :]
    gpu.recurrent_backward(*arguments, saved, None, [None] * len(state), recurrence, False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_the_papers(network, dtype, gpu, launched):
    """No block of gates leaves the registers, up to 1024 units."""
    run(gpu, Recurrence(network, PRESETS["paper"][network]), 1024, dtype)
    check(launched)


VARIANTS = [
    Formula("sum", "per_gate", "carry", forget_bias=1.0), Formula("split", "per_gate", None, eps_on="deviation"),
    Formula("sum", "all", "output", bias_inside=True),
    Formula("split", "all", "carry", bias_inside=True, bias_again=True), Formula(None, "joint", "output"), PLAIN,
]  # fmt: skip


@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_other_formulas(network, gpu, launched):
    """What compiles other code: each of a formula's choices, masks, projections, relu, rms, no biases."""
    for k, formula in enumerate(VARIANTS):
        projected = network == "LSTM" and k % 2 == 0
        norm, nonlinearity = "rms" if k % 3 == 1 else "layer", "relu" if k % 2 else "tanh"
        recurrence = Recurrence(network, formula, norm, k != 3, projected, nonlinearity)
        run(gpu, recurrence, 32, torch.float16, masks=k % 3 == 0, projected=16 if projected else None)
    check(launched)
