"""A checkpoint comes back as it was, or says that it is damaged."""

import pytest
import torch

from layernorm.experiments.errors import RunError
from layernorm.experiments.runs import checkpoint

TENSORS = {
    "model/weight": torch.randn(5, 3),
    "half": torch.randn(4).bfloat16(),
    "scalar": torch.tensor(1.5, dtype=torch.float64),
    "count": torch.tensor(7),
    "bytes": torch.arange(20, dtype=torch.uint8),
    "empty": torch.empty(0, 3),
    "strided": torch.randn(4, 6).t()[::2],
}
HEADER = {"state": {"update": 3, "seconds": 0.1 + 0.2}, "name": "an é"}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, TENSORS, HEADER)
    return path


def test_everything_comes_back_bit_for_bit(path):
    tensors, header = checkpoint.load(path)
    assert header == HEADER
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 100, -200, -1])
def test_a_truncated_checkpoint_is_named(path, length):
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(RunError, match=r"checkpoint\.safetensors is damaged .*--restart"):
        checkpoint.load(path)


def test_one_altered_bit_in_the_data_is_found(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match="does not match its SHA-256"):
        checkpoint.load(path)


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    torch.save({"a": torch.ones(2)}, path)  # a pickle must never be read
    with pytest.raises(RunError, match="damaged or not a checkpoint"):
        checkpoint.load(path)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_an_optimiser_goes_on_as_if_never_interrupted(tmp_path, kind):
    def train(model, optimizer, steps):
        for step in steps:
            (model(torch.full((2, 3), float(step))) ** 2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = kind(model.parameters(), lr=0.01)
    train(model, optimizer, range(3))
    tensors, groups = checkpoint.optimizer_tensors(optimizer)
    everything = {**checkpoint.prefixed("model", model.state_dict()), **checkpoint.prefixed("optimizer", tensors)}
    checkpoint.save(tmp_path / "c", everything, {"groups": groups})
    train(model, optimizer, range(3, 6))

    other = torch.nn.Linear(3, 2)
    resumed = kind(other.parameters(), lr=0.5)
    tensors, header = checkpoint.load(tmp_path / "c")
    other.load_state_dict(checkpoint.under("model", tensors))
    checkpoint.restore_optimizer(resumed, checkpoint.under("optimizer", tensors), header["groups"])
    train(other, resumed, range(3, 6))
    assert torch.equal(model.weight, other.weight)
    assert resumed.param_groups[0]["lr"] == 0.01
