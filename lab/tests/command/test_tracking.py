"""`--track`: a tracker has what the records have."""

import pytest

from lab_support.command import refused
from lab_support.runs import outcome
from layernorm_lab import cli
from layernorm_lab.runs import folder

COMMAND = ["run", "digits", "--hidden", "16", "--norm", "none", "--batch-size", "128", "--epochs", "3"]


def scalars(place):
    """Reads the last value of each series of TensorBoard's files at each update."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(place)).Reload()
    return {name: {item.step: item.value for item in events.Scalars(name)} for name in events.Tags()["scalars"]}


def test_tensorboard_has_the_records_of_each_run(tmp_path):
    """In this process and on workers. The records and weights are those of runs without a tracker."""
    track = ["--track", "tensorboard"]
    assert cli.main([*COMMAND, "--seeds", "0", "--out", str(tmp_path / "here"), *track]) == 0
    assert cli.main([*COMMAND, "--seeds", "0", "1", "--out", str(tmp_path / "workers"), "--jobs", "2", *track]) == 0
    assert cli.main([*COMMAND, "--seeds", "1", "--out", str(tmp_path / "plain")]) == 0
    name = "digits-none-b128-s0"
    assert outcome(tmp_path / "here" / name) == outcome(tmp_path / "workers" / name)
    assert outcome(tmp_path / "plain" / f"{name[:-1]}1") == outcome(tmp_path / "workers" / f"{name[:-1]}1")
    for place in ("here", "workers"):
        there = scalars(tmp_path / place / "tensorboard" / name)
        for record in folder.read_run(tmp_path / place / name).records:
            values = {key: there[key][record["update"]] for key in record}
            assert values == pytest.approx(record, rel=1e-6)  # events are float32
        assert list((tmp_path / place / "tensorboard" / name).rglob("hparams.yml"))


def test_a_tracker_that_is_not_installed_is_named(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused([*COMMAND, "--track", "wandb"], 2, "--track wandb needs a package: pip install wandb", capsys)


def test_a_tracker_that_does_not_start_ends_the_run_before_it_trains(tmp_path, capsys):
    (tmp_path / "tensorboard").write_text("in the way")
    command = [*COMMAND, "--seeds", "0", "--out", str(tmp_path), "--track", "tensorboard"]
    assert cli.main(command) == 1
    assert "layernorm: tensorboard does not start" in capsys.readouterr().err
    assert not (tmp_path / "digits-none-b128-s0" / folder.RECORDS).exists()
