"""docs/deploy.md and examples/deploy.py do what they say."""

import re
import subprocess
import sys

import pytest
import torch

from support.repository import ROOT


@pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning", "ignore:# The axis name:UserWarning")
def test_every_block_of_the_page_runs(tmp_path, monkeypatch):
    """In their order, in one process; each way out gives the model's output, with other T and B than at export."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8"), re.DOTALL)
    names: dict = {"__name__": "page"}
    outputs = []
    for block in blocks:
        names.pop("output", None)
        exec(compile(block, "docs/deploy.md", "exec"), names)
        if "output" in names:
            outputs.append(torch.as_tensor(names["output"]))
    assert len(outputs) == 3, "torch.export, ONNX and TorchScript"
    expected = names["model"](names["longer"])[0]
    for output in outputs:
        # float32: roundings of a layer norm in a layer norm, over 9 steps
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)


def test_the_example_runs_and_finds_no_difference():
    """Three ways out, two of them in fresh processes; it fails by itself where a difference is above 1e-5."""
    command = [sys.executable, "-W", "ignore", ROOT / "examples" / "deploy.py", "--updates", "3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [line for line in done.stdout.splitlines() if re.match(r"\| (LSTM|GRU|RNN)", line)]
    assert len(rows) == 6
    assert "at most 1e-05 allowed" in done.stdout
