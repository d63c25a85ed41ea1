"""docs/deploy.md and examples/deploy.py do what they say."""

import json
import re
import sys

import onnx_ir
import pytest
import torch

from support.processes import program, python
from support.repository import ROOT, loaded
from support.threads import threads

pytestmark = [  # of torch's exporter, of its own code
    pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:# The axis name:UserWarning"),
]


def blocks():
    """The blocks of Python on the page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8"), re.DOTALL)


def test_every_block_of_the_page_runs(tmp_path, monkeypatch):
    """In their order, in one process; each way out gives the model's output with another B than at export, and all but
    plain operations with another T."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "page"}
    outputs = []
    for block in [block for block in blocks() if "aoti_" not in block]:
        names.pop("output", None)
        exec(compile(block, "docs/deploy.md", "exec"), names)
        if "output" in names:
            outputs.append(torch.as_tensor(names["output"]))
    assert list(map(len, outputs)) == [9, 9, 5, 9], "T of torch.export, ONNX, plain operations and TorchScript"
    expected = names["model"](names["longer"])[0]
    for output in outputs:
        of_module = names["model"](names["longer"][: len(output)])[0]
        # float32: roundings of a layer norm in a layer norm, over 9 steps
        torch.testing.assert_close(output, of_module, rtol=1e-4, atol=1e-5)
    rounded = names["rounded"] - expected.detach().numpy()
    assert 1e-4 < abs(rounded).max() < 0.2, "int8: 7 bits of weights, in an untrained network, whose errors grow"
    nodes = onnx_ir.traversal.RecursiveGraphIterator(onnx_ir.load("model.int8.onnx").graph)
    assert [node.op_type for node in nodes].count("MatMulInteger") == 4, "W x and U h of two directions"


WITHOUT = """
import sys, torch
sys.modules["layernorm"] = None
inputs = torch.load("inputs.pt")
with torch.no_grad():
    torch.save(torch._inductor.aoti_load_package("cell.pt2")(*inputs), "after.pt")
"""


@pytest.mark.long
@pytest.mark.compiles
def test_aotinductor_of_plain_operations_runs_without_layernorm(tmp_path, monkeypatch):
    """The page's blocks, and what they make in a process that cannot import layernorm."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "page"}
    for block in [blocks()[0], *(block for block in blocks() if "aoti_" in block)]:
        exec(compile(block, "docs/deploy.md", "exec"), names)
    inputs = torch.randn(5, 3), (torch.randn(5, 8), torch.randn(5, 8))
    torch.save(inputs, "inputs.pt")
    python(WITHOUT, folder=tmp_path)
    torch.testing.assert_close(tuple(torch.load("after.pt")), names["cell"](*inputs))


@pytest.mark.parametrize(
    "models", [["GRUCell"], pytest.param(["LSTM", "GRU", "RNN", "LSTMCell", "RNNCell"], marks=pytest.mark.long)]
)
def test_the_example_runs_and_finds_no_difference(models):
    """Three ways out, two of them in fresh processes; it fails by itself where a difference is above 1e-5."""
    said = program(ROOT / "examples" / "deploy.py", "--updates", 3, "--models", *models).stdout
    rows = [line for line in said.splitlines() if re.match(r"\| (LSTM|GRU|RNN)", line)]
    assert len(rows) == len(models)
    assert "at most 1e-05 allowed" in said


def test_the_stream_is_the_whole_and_needs_its_state():
    """It fails by itself where chunks differ from the whole, or where a network without its state does not."""
    said = program(ROOT / "examples" / "streaming.py", "--updates", 5).stdout
    assert len(re.findall(r"^\| (?:layernorm|ONNX Runtime|TorchScript) ", said, re.MULTILINE)) == 3
    assert "at most 1e-04 allowed" in said


def test_the_benchmark_of_what_is_deployed(tmp_path, monkeypatch):
    """int8 makes the file small and the score a little wrong; the other ways out do neither."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(sys, "path", list(sys.path))
    arguments = "deployed.py --hidden-size 64 --updates 40 --rounds 1 --json"
    monkeypatch.setattr(sys, "argv", [*arguments.split(), str(tmp_path / "f")])
    with threads(1):  # the benchmark sets their number
        loaded("benchmarks/deployed.py").main()
    rows = {row["name"]: row for row in json.loads((tmp_path / "f").read_text())["rows"]}
    assert rows["ONNX int8, all"]["MB"] < rows["ONNX int8, W x"]["MB"] < rows["ONNX"]["MB"]
    for name, row in rows.items():
        assert row["error"] < (0.5 if "int8" in name else 1e-4), name
