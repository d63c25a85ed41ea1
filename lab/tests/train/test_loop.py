"""The loop: evaluations when due, and a run that resumes bit for bit from wherever it was stopped."""

import functools
import json
import shutil

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from lab_support.runs import outcome, untimed
from lab_support.toy import FACTS, resumed, stopped, toy, train
from layernorm_lab.errors import RunError
from layernorm_lab.runs import checkpoint, folder, records
from layernorm_lab.runs.folder import RunFolder
from layernorm_lab.train import loop
from layernorm_lab.train.progress import Progress


def test_evaluations_come_when_due_and_at_the_end(tmp_path):
    train(tmp_path / "run")
    run = folder.read_run(tmp_path / "run")
    assert [record["update"] for record in run.records] == [8, 16, 24, 32, 37]
    assert [record["epoch"] for record in run.records] == [0.8, 1.6, 2.4, 3.2, 3.7]
    assert [record["examples"] for record in run.records] == [48, 96, 144, 192, 222]
    assert run.done


def test_the_batch_loss_is_the_mean_since_the_last_evaluation(tmp_path):
    task = toy(updates=6, evaluate_every=3, loss=lambda model, update: (model[0].weight.sum() * 0 + 6 * update, 6))
    train(tmp_path / "run", task)
    assert [record["batch_loss"] for record in untimed(tmp_path / "run")] == [1.0, 4.0]


@pytest.mark.parametrize(("updates", "evaluate_every"), [(1, 8), (16, 8), (10, 25), (25, 25), (30, 25)])
def test_an_interrupted_run_resumes_bit_for_bit(tmp_path, updates, evaluate_every):
    make = functools.partial(toy, evaluate_every=evaluate_every)
    train(tmp_path / "whole", make())
    resumed(tmp_path / "broken", updates, make)
    assert outcome(tmp_path / "broken") == outcome(tmp_path / "whole")


def test_interrupted_at_its_end_a_run_is_done_and_no_other_begins(tmp_path):
    stopped(tmp_path / "run", 37)
    run = folder.read_run(tmp_path / "run")
    assert run.done
    assert run.records[-1]["update"] == 37


def test_records_after_the_checkpoint_are_made_again(tmp_path):
    train(tmp_path / "whole")
    stopped(tmp_path / "broken")
    records.append_record(tmp_path / "broken" / "records.jsonl", {"update": 32, "value": 0})  # as if killed after it
    with open(tmp_path / "broken" / "records.jsonl", "a") as file:
        file.write('{"upd')
    train(tmp_path / "broken")
    assert untimed(tmp_path / "broken") == untimed(tmp_path / "whole")


def test_a_run_that_was_killed_before_it_noted_its_environment_begins(tmp_path):
    train(tmp_path / "whole")
    begun = tmp_path / "begun"
    begun.mkdir()
    shutil.copy(tmp_path / "whole" / "config.json", begun)
    (begun / "records.jsonl").touch()  # made before environment.json
    assert not folder.read_run(begun).done
    train(begun)
    assert outcome(begun) == outcome(tmp_path / "whole")


def test_lost_records_are_noticed(tmp_path):
    stopped(tmp_path / "run")
    (tmp_path / "run" / "records.jsonl").write_text("")
    with pytest.raises(RunError, match="holds 0 records up to update 24 instead of 3"):
        train(tmp_path / "run")


def test_starts_are_noted(tmp_path):
    stopped(tmp_path / "run")
    train(tmp_path / "run")
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert [start["update"] for start in environment["starts"]] == [0, 24]
    assert environment["data"] == FACTS


def test_gradients_can_be_changed_before_the_step(tmp_path):
    def zero(model):
        for parameter in model.parameters():
            parameter.grad.zero_()

    task = toy(before_step=zero)
    before = [parameter.clone() for parameter in task.model.parameters()]
    train(tmp_path / "run", task)
    assert all(torch.equal(a, b) for a, b in zip(before, task.model.parameters(), strict=True))


def test_a_first_gradient_whose_norm_is_not_finite_ends_the_run(tmp_path):
    """Each number of it is finite, so that clipping saves all weights."""
    task = toy(before_step=lambda model: nn.utils.clip_grad_value_(model.parameters(), 1))
    loss = task.loss
    task.loss = lambda model, update: (loss(model, update)[0] * (1e30 if update == 0 else 1), 6)
    train(tmp_path / "run", task)
    run = folder.read_run(tmp_path / "run")
    assert run.diverged == 8
    assert checkpoint.read_state(run.checkpoint()).first_gradient_norm is None


def test_tiny_numbers_are_taken_for_zero_while_a_run_is_made(tmp_path):
    def half() -> float:
        return (torch.tensor([1.5e-38]) * 0.5).item()

    supported = torch.set_flush_denormal(True)
    torch.set_flush_denormal(False)
    seen = []
    train(tmp_path / "run", toy(before_step=lambda model: seen.append(half())))
    assert set(seen) == ({0.0} if supported else {half()})
    assert half() != 0


def test_another_number_of_processes_is_refused(tmp_path, monkeypatch):
    stopped(tmp_path / "run")
    monkeypatch.setattr(Accelerator, "num_processes", 2)
    monkeypatch.setattr(torch.distributed, "broadcast", lambda *arguments: None)
    with pytest.raises(RunError, match="was begun by 1 process, and this command has 2 processes"):
        train(tmp_path / "run")


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    stopped(tmp_path / "run")
    other = toy()
    other.model = nn.Linear(4, 1)
    other.optimizer = torch.optim.Adam(other.model.parameters())
    with pytest.raises(RunError, match="does not fit this model"):
        train(tmp_path / "run", other)


def without(name):
    return lambda tensors: tensors.pop(name)


def with_(name, tensor):
    return lambda tensors: tensors.update({name: tensor})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("model/0.weight"), "the model lacks 0.weight"),
        (with_("model/more", torch.zeros(1)), "the model has an unknown more"),
        (
            with_("model/0.weight", torch.zeros(8, 5)),
            r"0.weight as float32 \[8, 5\], not float32 \[8, 4\]",
        ),
        (with_("model/0.weight", torch.zeros(8, 4).double()), "the model has 0.weight as float64"),
        (with_("kept/0.weight", torch.zeros(8, 4)), "the kept model has an unknown 0.weight"),
        (with_("optimizer/0.exp_avg", torch.zeros(2)), r"the optimiser's state has 0.exp_avg as float32 \[2\]"),
        (without("loss_sum"), "the training loss lacks loss_sum"),
        (with_("loss_sum", torch.zeros(2)), "the training loss has loss_sum as"),
        (without("generator/cpu.0"), "no state of the generator cpu.0"),
        (with_("generator/cpu.0", torch.zeros(7, dtype=torch.uint8)), "no state of the generator cpu.0"),
        (with_("generator/cpu.0", torch.zeros(5056)), "no state of the generator cpu.0"),
        (with_("generator/cpu.0", torch.full((5056,), 255, dtype=torch.uint8)), "no state of the generator cpu.0"),
    ],
)
def test_a_whole_checkpoint_that_does_not_fit_is_refused_before_anything_is_loaded(tmp_path, change, message):
    stopped(tmp_path / "run")
    path = tmp_path / "run" / folder.CHECKPOINT
    tensors, header = checkpoint.load_checkpoint(path)
    change(tensors)
    checkpoint.save_checkpoint(path, tensors, header)
    task = toy()
    before = {name: tensor.clone() for name, tensor in task.model.state_dict().items()}
    with pytest.raises(RunError, match=f"checkpoint.safetensors does not fit this model .*{message}"):
        train(tmp_path / "run", task)
    assert all(torch.equal(tensor, before[name]) for name, tensor in task.model.state_dict().items())
    assert not task.optimizer.state


def test_checkpoints_come_by_the_clock(tmp_path, monkeypatch):
    saved = []
    original = checkpoint.save_checkpoint

    def save(path, tensors, header):
        saved.append(header["state"]["update"])
        original(path, tensors, header)

    monkeypatch.setattr(checkpoint, "save_checkpoint", save)
    monkeypatch.setattr(loop, "BLOCK_SECONDS", float("inf"))  # whatever else the machine does
    train(tmp_path / "often", checkpoint_seconds=0)
    assert saved == [8, 16, 24, 32, 37]
    saved.clear()
    train(tmp_path / "once")
    assert saved == [37]


class Seen(Progress):
    """Keeps the updates that a display hears of."""

    def __init__(self):
        self.updates = []

    def update(self, state, task):
        self.updates.append(state.update)


def test_a_display_hears_of_slow_updates_one_by_one_and_the_run_is_the_same(tmp_path, monkeypatch):
    quick, slow = Seen(), Seen()
    monkeypatch.setattr(loop, "BLOCK_SECONDS", float("inf"))
    train(tmp_path / "quick", toy(evaluate_every=25), quick)
    assert quick.updates == [0, 10, 20, 25, 35, 37]
    monkeypatch.setattr(loop, "BLOCK_SECONDS", -1.0)  # every update is slower
    train(tmp_path / "slow", toy(evaluate_every=25), slow)
    assert slow.updates == [*range(38)]
    assert outcome(tmp_path / "slow") == outcome(tmp_path / "quick")


def test_reading_a_folder_that_never_started(tmp_path):
    place = RunFolder(tmp_path / "run")
    with place.open():
        place.start({"experiment": "toy", "norm": "layer"})
    run = folder.read_run(tmp_path / "run")
    assert (run.records, run.done, run.config) == ([], False, {"norm": "layer"})
