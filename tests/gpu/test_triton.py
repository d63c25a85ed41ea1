"""The GPU engine without a GPU: its kernels run by Triton's interpreter, in processes of their own."""

import os
import re
import subprocess
import sys

import pytest

import layernorm as ln
from support.repository import ROOT

pytest.importorskip("triton")


def interpreted(*arguments):
    """What a new process prints, in which Triton interprets. A fork would have what Triton had made before."""
    paths = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    run = subprocess.run([sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.parametrize(
    "what",
    [["RNN-float16-500", "LSTM-float32-125", "LSTM-bfloat16-500", "GRU-tf32-83"]]
    + [
        pytest.param([f"{network}-{kind}"], marks=pytest.mark.long)
        for network in ("RNN", "LSTM", "GRU")
        for kind in ("float32-1", "tf32-15", "bfloat16-15", "float16-15")
    ],
)
def test_every_formula_packed_or_not_forward_and_back(what):
    for line in interpreted("-m", "support.through_triton", *what).splitlines():
        count, worst, replays = line.split()
        assert int(count) >= 3
        assert int(replays) > int(count)
        assert float(worst) <= 5


@pytest.mark.parametrize("which", ["not long", pytest.param("long", marks=pytest.mark.long)])
def test_what_holds_for_graphs_lanes_and_norms(which):
    laws = (ROOT / "tests/support" / f"{name}_laws.py" for name in ("lane", "norm"))
    interpreted("-m", "pytest", "-q", "-m", which, *laws)


def test_a_module_runs_on_it_and_a_refusal_says_why():
    said = interpreted(
        "-c",
        """if True:
        import torch, layernorm as ln
        torch.manual_seed(0)
        torch.backends.cudnn.rnn.fp32_precision = "ieee"
        lstm, x = ln.LSTM(4, 6, num_layers=2, bidirectional=True), torch.randn(5, 3, 4, requires_grad=True)
        found = []
        for name in ("triton", "reference"):
            with ln.backends.use(name):
                y, _ = lstm(x)
            found.append([y, *torch.autograd.grad(y.square().sum(), [x, *lstm.parameters()])])
        for a, b in zip(*found):
            assert (a - b).abs().max() <= 1e-5 * (1 + b.abs().max())
        assert ln.backends.choose("recurrent", x).name != "triton"
        for wrong in (ln.LSTM(4, 6, norm="batch"), ln.LSTM(4, 6).double()):
            try:
                with ln.backends.use("triton"):
                    wrong(x.to(wrong.weight_ih_l0.dtype))
            except ln.backends.NoKernelError as error:
                print(error)
    """,
    )
    reasons = ["norm='batch'", "torch.float64"]
    for line, reason in zip(said.splitlines(), reasons, strict=True):
        assert f"backend 'triton' not for {reason}; " in line


@pytest.mark.parametrize(
    "options",
    [["--arch", "90", "--units", "64", "--widths", "16384"], pytest.param([], marks=pytest.mark.long)],
    ids=["one", "every"],
)
def test_compiled_for_a_gpu_nothing_spills_and_products_take_tensor_cores(options):
    table = subprocess.run(
        [sys.executable, ROOT / "benchmarks/gpu_kernels.py", *options], capture_output=True, text=True
    )
    assert table.returncode == 0, table.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.stdout.splitlines() if "/ " in line][1:]
    assert len(rows) >= 15
    for name, _, _, *cells in rows:
        for cell in cells:
            registers, spilled, shared = (int(number.replace(",", "")) for number in re.findall(r"[\d,]+", cell))
            assert registers <= 255
            assert spilled == 0
            assert shared <= 48 * 1024  # what every program may have without asking
            assert cell.endswith("T") == name.startswith("product")


@pytest.mark.long
def test_the_script_for_a_gpu_runs_dry():
    said = subprocess.run([sys.executable, ROOT / "benchmarks/on_gpu.py", "--dry"], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert "its time is over" not in said.stdout
    for line in ("right: LSTM TF32", "node: float16", "network: GRU bfloat16", "norm: 4 x 64 float32", "] end"):
        assert line in said.stdout


@pytest.mark.skipif("triton" in ln.backends.available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    (reason,) = [engine.reason for engine in ln.backends.status() if engine.name == "triton"]
    assert reason.startswith("there is no GPU of CUDA")
    with pytest.raises(RuntimeError, match="backend 'triton' is not available: there is no GPU of CUDA"):
        ln.backends.graph_cache()
