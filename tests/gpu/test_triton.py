"""The GPU engine without a GPU: its kernels run by Triton's interpreter, in processes of their own."""

import os
import subprocess
import sys

import pytest

import layernorm as ln
from support.repository import ROOT

pytest.importorskip("triton")


def interpreted(*arguments):
    """What a new process prints, in which Triton interprets. A fork would have what Triton had made before."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT / "tests")}
    run = subprocess.run([sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.parametrize(
    ("network", "type_name", "every", "least"),
    [("RNN", "float16", 80, 6), ("LSTM", "float32", 100, 6), ("LSTM", "bfloat16", 200, 6), ("GRU", "tf32", 100, 6)]
    + [
        pytest.param(network, type_name, every, 20, marks=pytest.mark.long)
        for network in ("RNN", "LSTM", "GRU")
        for type_name, every in (("float32", 1), ("tf32", 15), ("bfloat16", 15), ("float16", 15))
    ],
)
def test_every_formula_packed_or_not_forward_and_back(network, type_name, every, least):
    count, worst, replays = interpreted("-m", "support.through_triton", network, every, type_name).split()
    assert int(count) >= least
    assert int(replays) > int(count)
    assert float(worst) <= 5


def test_what_holds_for_graphs_and_lanes():
    interpreted("-m", "pytest", "-q", *(ROOT / "tests/support" / f"{name}_laws.py" for name in ("lane", "norm")))


def test_a_module_runs_on_it_and_a_refusal_says_why():
    said = interpreted(
        "-c",
        """if True:
        import torch, layernorm as ln
        torch.manual_seed(0)
        lstm, x = ln.LSTM(4, 6, num_layers=2, bidirectional=True), torch.randn(5, 3, 4, requires_grad=True)
        found = []
        for name in ("triton", "reference"):
            with ln.backends.use(name):
                y, _ = lstm(x)
            found.append([y, *torch.autograd.grad(y.square().sum(), [x, *lstm.parameters()])])
        for a, b in zip(*found):
            assert (a - b).abs().max() <= 1e-5 * (1 + b.abs().max())
        assert ln.backends.choose("recurrent", x).name != "triton"
        for wrong in (ln.LSTM(4, 6, proj_size=2), ln.LSTM(4, 6, norm="batch"), ln.LSTM(4, 6).double()):
            try:
                with ln.backends.use("triton"):
                    wrong(x.to(wrong.weight_ih_l0.dtype))
            except ln.backends.NoKernelError as error:
                print(error)
    """,
    )
    reasons = ["projections", "norm='batch'", "torch.float64"]
    for line, reason in zip(said.splitlines(), reasons, strict=True):
        assert f"backend 'triton' not for {reason}; " in line


@pytest.mark.skipif("triton" in ln.backends.available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    (reason,) = [engine.reason for engine in ln.backends.status() if engine.name == "triton"]
    assert reason.startswith("there is no GPU of CUDA")
