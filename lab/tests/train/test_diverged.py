"""A run whose loss or weights are no longer finite is over, says so, and does not hold up the others."""

import dataclasses
import math

import numpy as np
import pytest

from lab_support.command import QUICK, RUN
from lab_support.runs import untimed
from lab_support.toy import resumed, toy, train
from layernorm_lab import catalogue, cli
from layernorm_lab.errors import Interrupted, RunError
from layernorm_lab.runs import checkpoint, folder
from layernorm_lab.runs.folder import RunFolder
from layernorm_lab.runs.restore import restore_model


def failing(update, value=math.nan, **changes):
    """The toy task, evaluated every 8 updates, whose loss is not finite from an update on."""
    task = dataclasses.replace(toy(), **changes)
    loss = dataclasses.replace(task).mean_loss
    task.loss = lambda model, now: (loss(model, now) * (value if now >= update else 1), 1)
    return task


def tensors(path):
    return {name: tensor.numpy() for name, tensor in checkpoint.load_checkpoint(path / folder.CHECKPOINT)[0].items()}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("first", "at", "records"), [(0, 8, []), (15, 16, [8]), (20, 24, [8, 16]), (36, 37, [8, 16, 24, 32])]
)
def test_it_ends_at_the_next_evaluation(tmp_path, value, first, at, records):
    train(tmp_path / "run", failing(first, value))
    run = folder.read_run(tmp_path / "run")
    assert (run.done, run.diverged, run.result["update"]) == (True, at, at)
    assert [record["update"] for record in run.records] == records
    assert all(math.isfinite(record["value"]) for record in run.records)


def test_a_run_that_reaches_its_end_has_not_diverged(tmp_path):
    train(tmp_path / "run")
    run = folder.read_run(tmp_path / "run")
    assert run.diverged is None
    assert "diverged" not in run.result


def test_the_last_step_can_spoil_the_weights_after_a_finite_loss(tmp_path):
    task = toy(updates=16)

    def spoil(model):
        if int(model[1].num_batches_tracked) == 16:
            model[0].weight.grad[0, 0] = math.nan

    train(tmp_path / "run", dataclasses.replace(task, before_step=spoil))
    run = folder.read_run(tmp_path / "run")
    assert run.diverged == 16
    assert [record["update"] for record in run.records] == [8]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_metric_that_is_not_finite_ends_it_too(tmp_path, value):
    task, values = toy(), iter([1.0, 2.0, value])
    train(tmp_path / "run", dataclasses.replace(task, evaluate=lambda model: {"value": next(values)}))
    run = folder.read_run(tmp_path / "run")
    assert (run.done, run.diverged) == (True, 24)
    assert [record["update"] for record in run.records] == [8, 16]
    assert run.result["value"] == 2.0


@pytest.mark.parametrize("keep", [None, "value"])
def test_nothing_is_tested_and_only_kept_weights_are_restored(tmp_path, keep):
    def test(model):
        raise AssertionError("tested")

    train(tmp_path / "run", failing(20, keep=keep, test=test))
    run = folder.read_run(tmp_path / "run")
    assert run.tested() == {}
    assert "kept_update" not in run.result
    if keep is None:
        with pytest.raises(RunError, match="run diverged at update 24: it left no weights to use"):
            restore_model(toy().model, run)
        return
    model, update = restore_model(toy().model, run)
    assert update == max(run.records, key=lambda record: record["value"])["update"]
    assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())


@pytest.mark.parametrize("stop", [1, 8, 16])
def test_interrupted_it_ends_the_same(tmp_path, stop):
    train(tmp_path / "whole", failing(20))
    resumed(tmp_path / "broken", stop, lambda: failing(20))
    compare(tmp_path / "broken", tmp_path / "whole")


def test_killed_before_its_result_it_ends_the_same(tmp_path, monkeypatch):
    def kill(place, result):
        raise Interrupted

    train(tmp_path / "whole", failing(20))
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", kill)
        with pytest.raises(Interrupted):
            train(tmp_path / "broken", failing(20))
    assert not RunFolder(tmp_path / "broken").done
    train(tmp_path / "broken", failing(20))
    compare(tmp_path / "broken", tmp_path / "whole")


def compare(broken, whole):
    results = [{**folder.read_run(path).result, "seconds": 0} for path in (broken, whole)]
    assert results[0] == results[1]
    assert results[0]["diverged"] == 24
    assert untimed(broken) == untimed(whole)
    np.testing.assert_equal(tensors(broken), tensors(whole))  # for which nan is nan


@pytest.fixture
def diverging(monkeypatch):
    """Has the runs of `digits` with these norms diverge in their second epoch."""
    original = catalogue.find_experiment("digits")

    def arrange(*norms):
        def task(config, data, accelerator):
            made = original.task(config, data, accelerator)
            if config.norm in norms:
                loss = dataclasses.replace(made).mean_loss
                first = made.updates_per_epoch + 2
                made.loss = lambda model, update: (loss(model, update) * (math.nan if update >= first else 1), 1)
            return made

        monkeypatch.setattr(catalogue, "find_experiment", lambda name: dataclasses.replace(original, task=task))

    return arrange


def at(path):
    return folder.read_run(path).diverged


def test_the_next_runs_of_a_sweep_go_on(tmp_path, diverging, capsys):
    diverging("none")
    command = [*QUICK, "--norm", "none", "layer", "--out", str(tmp_path)]
    assert cli.main(command) == 0
    update = at(tmp_path / "digits-none-b128-s0")
    assert update is not None
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"[1/2] digits-none-b128-s0: diverged at update {update}, ")
    assert second.startswith("[2/2] digits-layer-b128-s0: train NLL")
    assert folder.read_run(tmp_path / RUN).diverged is None
    text = (tmp_path / "report" / "report.md").read_text()
    assert f"Diverged: 1 of 2 runs (digits-none-b128-s0 at update {update})." in text
    assert cli.main(command) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(f": diverged before, at update {update}")
    assert second.endswith(": done before")


def test_a_single_run_that_diverges_is_an_error_after_its_report(tmp_path, diverging, capsys):
    diverging("layer")
    for word in ("diverged at", "diverged before"):
        assert cli.main([*QUICK, "--out", str(tmp_path)]) == 1
        progress, error = capsys.readouterr().err.splitlines()
        assert word in progress
        end = "the training loss, a weight or a metric is not finite; try a lower --learning-rate"
        assert error == f"layernorm: {RUN} diverged at update {at(tmp_path / RUN)}: {end}"
        assert (tmp_path / "report" / "report.md").exists()


def test_a_sweep_of_which_nothing_is_left_is_an_error(tmp_path, diverging, capsys):
    diverging("none", "layer")
    assert cli.main([*QUICK, "--norm", "none", "layer", "--out", str(tmp_path)]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    update = at(tmp_path / RUN)
    assert error.startswith(f"layernorm: digits-none-b128-s0 diverged at update {update} (as did all 2 runs): the ")


@pytest.mark.parametrize("norm", ["layer", *(pytest.param(norm, marks=pytest.mark.long) for norm in ("none", "batch"))])
def test_far_too_high_a_rate_diverges_before_the_first_record(tmp_path, norm, capsys):
    command = [*QUICK, "--norm", norm, "--learning-rate", "1e38", "--out", str(tmp_path)]
    assert cli.main(command) == 1
    assert f"digits-{norm}-b128-s0 diverged at update" in capsys.readouterr().err.splitlines()[-1]
    run = folder.read_run(tmp_path / f"digits-{norm}-b128-s0")
    assert run.records == []
    assert "Diverged: 1 of 1 runs" in (tmp_path / "report" / "report.md").read_text()
