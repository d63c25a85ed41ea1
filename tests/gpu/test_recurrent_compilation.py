"""What the engine launches for a recurrent network compiles for an H100: the host code runs, its kernels do not."""

import contextlib
import io
import re

import pytest
import torch

from layernorm.engine import RecurrentArguments
from layernorm.formula import PLAIN, PRESETS, Formula, Recurrence

triton = pytest.importorskip("triton", reason="Triton is not installed: no kernel was compiled")

from triton.backends.compiler import GPUTarget  # noqa: E402

SPILLED = 32  # bytes of a thread step by step: some addresses, not a block of gates


class H100:
    """What Triton asks a driver before it compiles."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


@pytest.fixture
def gpu(engine, monkeypatch):
    monkeypatch.setattr(triton.runtime.driver, "_active", H100())
    return engine


@pytest.fixture
def launched(gpu, monkeypatch, tmp_path):
    """(kernel's name, PTX, bytes that a thread spills) of all that is launched from now on and was not before."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton.knobs.nvidia, "dump_ptxas_log", True)
    found = []

    def instead(kernel, grid):
        def launch(*arguments, **keywords):
            log = io.StringIO()
            with contextlib.redirect_stdout(log):
                compiled = kernel.warmup(*arguments, grid=grid, **keywords)
            if spilled := re.search(r"(\d+) bytes spill stores", log.getvalue()):
                found.append((kernel.__name__, compiled.asm["ptx"], int(spilled[1])))

        return launch

    monkeypatch.setattr(triton.runtime.JITFunction, "__getitem__", instead)
    return found


def check(launched, spilled=SPILLED):
    assert launched
    for name, ptx, bytes_spilled in launched:
        assert bytes_spilled <= spilled, name
        assert not re.search(r"\.f64\b", ptx), name
        if not name.startswith("_"):  # not a norm's, nor one that has a barrier
            assert "atom." not in ptx, name


def run(gpu, recurrence, H, dtype, masks=False, projected=None):
    """Forward and backward of one row, two steps: nothing is computed, but the host's products."""
    T, B, P = 2, 1, projected or H
    x = torch.zeros(T, B, 16, dtype=dtype)
    state = [torch.zeros(B, size, dtype=dtype) for size in ((P, H) if recurrence.network == "LSTM" else (H,))]
    params = [torch.zeros(shape, dtype=dtype) for shape in recurrence.parameter_shapes(16, H, P).values()]
    lengths, reset = (torch.tensor([1]), torch.zeros(T, B, dtype=torch.bool)) if masks else (None, None)
    a = RecurrentArguments(x, state, params, lengths, reset, recurrence, False)
    saved = gpu.recurrent_forward(a, True)[1 + len(state) :]
    gpu.recurrent_backward(a, saved, None, [None] * len(state))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_the_papers(network, dtype, gpu, launched):
    """No block of gates leaves the registers, up to 1024 units."""
    run(gpu, Recurrence(network, PRESETS["paper"][network]), 1024, dtype)
    check(launched)
    assert len(launched) >= 2  # forward and backward


@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_in_one_launch(network, gpu, launched, monkeypatch):
    """As the host launches them; test_persistent_compilation.py looks into the kernels."""
    persistent = gpu._persistent

    def launch(layer):
        return persistent.fitting(layer.recurrence, layer.H, layer.B, layer.dtype, layer.device)

    monkeypatch.setattr(persistent, "launch", launch)
    formulas = [PRESETS["paper"][network], PLAIN]
    for formula in formulas:
        run(gpu, Recurrence(network, formula), 256, torch.bfloat16, masks=formula is PLAIN)
    names = [name for name, *_ in launched]
    assert names.count("_forward") == names.count("_backward") == 2
    check(launched, spilled=192)


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
