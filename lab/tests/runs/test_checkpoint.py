"""A checkpoint comes back as it was, or says that it is damaged."""

import dataclasses
import json
import random

import pytest
import torch

from layernorm_lab.errors import RunError
from layernorm_lab.runs import checkpoint
from layernorm_lab.train.legacy_adam import LegacyAdam

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
    checkpoint.save_checkpoint(path, TENSORS, HEADER)
    return path


def test_everything_comes_back_bit_for_bit(path):
    tensors, header = checkpoint.load_checkpoint(path)
    assert header == HEADER
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 100, -200, -1])
def test_a_truncated_checkpoint_is_named(path, length):
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(RunError, match=r"checkpoint\.safetensors is damaged .*delete that run's folder"):
        checkpoint.load_checkpoint(path)


def test_one_altered_bit_in_the_data_is_found(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match="does not match its SHA-256"):
        checkpoint.load_checkpoint(path)


def test_every_altered_bit_of_a_runs_header_is_found_or_changes_nothing(tmp_path):
    """The JSON of safetensors with names, types and places, and in it the header of ours."""
    path = tmp_path / "checkpoint.safetensors"
    groups = [{"lr": 0.001, "betas": [0.9, 0.999], "params": [0, 1]}]
    header = checkpoint.Header(checkpoint.State(update=30, records=3, metrics={"nll": 0.7}), groups, processes=1)
    tensors = {"model/weight": torch.randn(5, 3), "optimizer/0.step": torch.tensor(3.0)}
    checkpoint.save_checkpoint(path, tensors, dataclasses.asdict(header))
    whole = path.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    places = [(byte, bit) for byte in range(end) for bit in range(8)]
    refused = 0
    for byte, bit in random.Random(0).sample(places, 600):
        content = bytearray(whole)
        content[byte] ^= 1 << bit
        path.write_bytes(content)
        try:
            found, known = checkpoint.load_run_checkpoint(path)
        except RunError:
            refused += 1
            continue
        assert known == header
        assert all(torch.equal(tensors[name], found[name]) for name in tensors)
        assert checkpoint.read_state(path) == header.state
    assert refused > 550


def test_the_counters_are_read_without_the_tensors_and_compared(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    header = checkpoint.Header(checkpoint.State(update=30, records=3), [], processes=1)
    checkpoint.save_checkpoint(path, TENSORS, dataclasses.asdict(header))
    assert checkpoint.read_state(path) == header.state
    path.write_bytes(path.read_bytes().replace(rb"\"update\": 30", rb"\"update\": 10"))
    assert checkpoint.read_state(path) is None
    with pytest.raises(RunError, match=r"its header, is damaged .* does not match its SHA-256"):
        checkpoint.load_checkpoint(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header: header.pop("processes"), "lacks processes"),
        (lambda header: header.update(more=1), "has the unknown more"),
        (lambda header: header["state"].pop("losses"), "lacks losses"),
        (lambda header: header["state"].update(update="3"), "update is '3', not a whole number"),
        (lambda header: header["state"].update(update=True), "update is True, not a whole number"),
        (lambda header: header["state"].update(metrics={"nll": None}), "metrics is {'nll': None}, not "),
        (lambda header: header.update(state=7), "has 7 where it should have update, "),
    ],
)
def test_a_header_that_is_no_runs_is_refused(tmp_path, change, message):
    header = dataclasses.asdict(checkpoint.Header(checkpoint.State(), [], processes=1))
    change(header)
    checkpoint.save_checkpoint(tmp_path / "c", {}, header)
    with pytest.raises(RunError, match=message):
        checkpoint.load_run_checkpoint(tmp_path / "c")
    assert checkpoint.read_state(tmp_path / "c") is None


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    torch.save({"a": torch.ones(2)}, path)  # a pickle must never be read
    with pytest.raises(RunError, match="damaged or not a checkpoint"):
        checkpoint.load_checkpoint(path)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD, LegacyAdam])
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
    checkpoint.save_checkpoint(tmp_path / "c", everything, {"groups": groups})
    train(model, optimizer, range(3, 6))

    other = torch.nn.Linear(3, 2)
    resumed = kind(other.parameters(), lr=0.5)
    tensors, header = checkpoint.load_checkpoint(tmp_path / "c")
    other.load_state_dict(checkpoint.under("model", tensors))
    checkpoint.restore_optimizer(resumed, checkpoint.under("optimizer", tensors), header["groups"])
    train(other, resumed, range(3, 6))
    assert torch.equal(model.weight, other.weight)
    assert resumed.param_groups[0]["lr"] == 0.01


def other(tensor):
    return lambda tensors, groups: tensors.update({"0.exp_avg": tensor})


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other(torch.zeros(2)), r"has 0\.exp_avg as float32 \[2\], not float32 \[2, 3\]"),
        (other(torch.zeros(2, 3, 1)), r"has 0\.exp_avg as float32 \[2, 3, 1\], not float32 \[2, 3\]"),
        (other(torch.zeros(())), r"has 0\.exp_avg as float32 \[\], not float32 \[2, 3\]"),
        (other(torch.zeros(2, 3, dtype=torch.int64)), r"has 0\.exp_avg as int64 \[2, 3\], not float32"),
        (lambda tensors, groups: tensors.update({"0.step": torch.zeros(1)}), r"has 0\.step as float32 \[1\], not"),
        (lambda tensors, groups: tensors.pop("1.exp_avg_sq"), r"lacks 1\.exp_avg_sq"),
        (lambda tensors, groups: tensors.update({"1.more": torch.zeros(2)}), r"has an unknown 1\.more"),
        (lambda tensors, groups: tensors.update({"2.step": torch.zeros(())}), r"has an unknown 2\.step"),
        (lambda tensors, groups: tensors.update({"x.step": torch.zeros(())}), r"has an unknown x\.step"),
        (lambda tensors, groups: tensors.update({"step": torch.zeros(())}), "has an unknown step"),
        (lambda tensors, groups: groups[0].pop("betas"), "settings lack betas"),
        (lambda tensors, groups: groups[0].update(more=1), "settings have an unknown more"),
        (lambda tensors, groups: groups[0].update(lr="0.01"), "settings have lr as 0.01, not as 0.01"),
        (lambda tensors, groups: groups[0].update(betas=[0.9]), r"settings have betas as \[0.9\], not as"),
        (lambda tensors, groups: groups[0].update(params=[1, 0]), r"settings have params as \[1, 0\], not as \[0, 1\]"),
        (lambda tensors, groups: groups[0].update(params=[0]), r"settings have params as \[0\], not as \[0, 1\]"),
        (lambda tensors, groups: groups.append(dict(groups[0])), "has 2 groups of parameters, not 1"),
        (lambda tensors, groups: groups.clear(), "has 0 groups of parameters, not 1"),
    ],
)
def test_a_state_that_does_not_fit_the_parameters_is_refused_before_it_is_loaded(fused, change, message):
    """Fused Adam reads and writes beyond a state of another size."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    tensors, groups = checkpoint.optimizer_tensors(optimizer)
    tensors, groups = dict(tensors), json.loads(json.dumps(groups))
    resumed = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
    checkpoint.restore_optimizer(resumed, tensors, groups)
    fresh = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
    change(tensors, groups)
    with pytest.raises(ValueError, match=f"the optimiser.*{message}"):
        checkpoint.restore_optimizer(fresh, tensors, groups)
    assert not fresh.state


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.RMSprop(parameters, lr=0.1, centered=True),
        lambda parameters: torch.optim.Adam(parameters, lr=0.1, amsgrad=True),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
        lambda parameters: LegacyAdam(parameters, lr=0.1, fused=True),
    ],
)
def test_the_state_of_every_optimiser_fits_itself_and_looking_changes_nothing(make):
    """With a parameter of every number of dimensions, and one that never has a gradient and so no state."""
    parameters = [torch.nn.Parameter(torch.ones([2] * count)) for count in range(6)]
    optimizer = make([*parameters, torch.nn.Parameter(torch.ones(2))])
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    tensors, groups = checkpoint.optimizer_tensors(optimizer)
    before = json.dumps(groups)
    resumed = make([*parameters, torch.nn.Parameter(torch.ones(2))])
    checkpoint.restore_optimizer(resumed, tensors, json.loads(before))
    again, settings = checkpoint.optimizer_tensors(resumed)
    assert json.dumps(settings) == before
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)
    assert all(bool((parameter != 0).all()) for parameter in parameters)
