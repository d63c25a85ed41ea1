"""Experiment 6.5: its loss, and the command from a run to its report and samples, on a small directory."""

import math
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import layernorm as ln
from lab_support.iam_files import write_iam
from lab_support.runs import outcome, untimed
from layernorm_lab import cli
from layernorm_lab.data.iam import IAM, Sequences, find_line
from layernorm_lab.errors import Interrupted
from layernorm_lab.experiments.handwriting import experiment, samples
from layernorm_lab.experiments.handwriting.config import Config
from layernorm_lab.experiments.handwriting.experiment import nats
from layernorm_lab.experiments.handwriting.network import build_synthesis
from layernorm_lab.runs.files import read_json, write_json
from layernorm_lab.train import loop

SMOKE = ["run", "handwriting", "--preset", "smoke"]


@pytest.fixture(scope="module")
def iam(tmp_path_factory):
    return write_iam(tmp_path_factory.mktemp("iam"), points=60)


@pytest.fixture(scope="module")
def trained(iam, tmp_path_factory):
    """The smoke preset's runs."""
    out = tmp_path_factory.mktemp("trained")
    assert cli.main([*SMOKE, "--valid-lines", "2", "--data", str(iam), "--out", str(out)]) == 0
    return out


def test_the_protocol_of_the_paper():
    config = experiment.EXPERIMENT.presets["paper"].config
    assert (config.batch_size, config.points, config.units, config.mixtures) == (8, 500, 400, 20)
    model = build_synthesis(Config(units=8))
    assert model.lstm2.formula == model.lstm1.formula == "paper"
    assert isinstance(model.lstm3, ln.LSTM)


@pytest.mark.parametrize("norm", ["none", "layer"])
def test_padding_never_counts(norm):
    """Neither in points nor in the text, nor what other lines are in the batch."""
    config = Config(norm=norm, units=6, mixtures=2)
    model = build_synthesis(config).double()
    random = torch.Generator().manual_seed(0)
    points = torch.randn(2, 9, 3, generator=random, dtype=torch.float64)
    points[..., 2] = (points[..., 2] > 1).double()
    text = torch.randint(57, (2, 7), generator=random, dtype=torch.uint8)
    lengths, characters = torch.tensor([8, 3]), torch.tensor([7, 4])
    lines = Sequences(points, lengths, text, characters)
    found = nats(model, lines)
    other = Sequences(points.clone(), lengths, text.clone(), characters)
    other.points[1, 4:] = 1e30
    other.text[1, 4:] = 9
    torch.testing.assert_close(nats(model, other), found, rtol=0, atol=0)
    alone = nats(model, Sequences(points[1:, :4], lengths[1:], text[1:, :4], characters[1:]))
    # one row goes through other kernels than two
    torch.testing.assert_close(alone, found[1:], rtol=1e-8, atol=0)
    gradients = []
    for given in (lines, other):
        model.zero_grad()
        nats(model, given).sum().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_a_process_without_a_line_of_the_last_batch_adds_nothing(iam):
    """6 lines in batches of 5: the second of two processes gets none of the last line, and must have gradients."""
    lines = IAM.load(iam)
    shares = []
    for rank in (0, 1):
        accelerator = SimpleNamespace(device=torch.device("cpu"), process_index=rank, num_processes=2)
        config = Config(units=4, mixtures=1, points=9, batch_size=5, decay=0.25)
        task = experiment.handwriting_task(config, lines, accelerator)
        assert task.decay == 0.25
        total, count = task.loss(task.model, 1)
        total.backward()
        shares.append((count, total.item(), max(float(p.grad.abs().max()) for p in task.model.parameters())))
    assert shares[0][0] == 1
    assert min(shares[0]) > 0
    assert shares[1] == (0, 0.0, 0.0)


def test_smoke_runs_through_and_reports(trained):
    for norm in ("none", "layer"):
        run = trained / f"handwriting-{norm}-s0"
        assert [record["update"] for record in untimed(run)] == [2, 4]
        assert all(math.isfinite(record["valid_nll"]) for record in untimed(run))
    names = {path.name for path in (trained / "report").iterdir()}
    pictures = {f"sample-{norm}-bias{bias}.png" for norm in ("none", "layer") for bias in (0, 1)}
    assert names == {"index.html", "report.md", "figure5.png", "figure5.svg"} | pictures
    text = (trained / "report" / "report.md").read_text()
    assert "Verdict:" not in text, "the runs belong to no trial"
    assert "Parameters: " in text
    assert "![" in text
    assert "data:image/png;base64," in (trained / "report" / "index.html").read_text()


def test_a_killed_run_goes_on_with_the_same_numbers(trained, iam, tmp_path, monkeypatch):
    command = [*SMOKE, "--valid-lines", "2", "--data", str(iam), "--out", str(tmp_path), "--norm", "layer"]
    evaluate = loop.Fit._evaluate

    def stop(fit):
        evaluate(fit)
        fit._save()
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(loop.Fit, "_evaluate", stop)
        assert cli.main(command) == 130
    assert len(untimed(tmp_path / "handwriting-layer-s0")) == 1
    assert cli.main(command) == 0
    assert outcome(tmp_path / "handwriting-layer-s0") == outcome(trained / "handwriting-layer-s0")


def test_sampling_writes_three_whole_files(trained, iam, tmp_path, capsys):
    run = trained / "handwriting-layer-s0"
    capsys.readouterr()
    command = ["sample", "handwriting", str(run), "--text", "Hi 7!", "--points", "30", "--out", str(tmp_path)]
    assert cli.main([*command, "--bias", "1"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wrote ")]
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == sorted(f"hi-7-bias1-seed0{end}" for end in (".svg", ".png", "-moving.svg"))
    assert sorted(lines) == [f"wrote {tmp_path / name}" for name in written]
    assert cli.main([*command, "--prime", "a01-000u-02", "--data", str(iam)]) == 0
    assert (tmp_path / "hi-7-a01-000u-02-bias0-seed0.png").exists()
    assert cli.main(["sample", "handwriting", str(run), "--text", "x", "--points", "5"]) == 0
    assert len(list((run / "samples").iterdir())) == 3


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--text", ""], 2, "--text must not be empty"),
        (["--text", "  "], 2, "--text must not be empty"),
        ([], 2, "--text must not be empty"),
        (["--text", "café"], 2, "--text has the unknown character 'é'; printable ASCII is known"),
        (["--text", "a\nb"], 2, "--text has the unknown character '\\n'"),
        (["--text", "ab" * 101], 2, "--text must have at most 200 characters, got 202"),
        (["--text", "a", "--points", "10001"], 2, "--points must be at most 10000, got 10001"),
        (["--text", "a", "--bias", "-1"], 2, "--bias must be a finite number, at least 0, got -1"),
        (["--text", "a", "--prime", "a01-000u-09"], 1, "has no line 'a01-000u-09'; lines are named like 'a01-000u-01'"),
    ],
)
def test_what_cannot_be_written_is_one_line(options, code, message, trained, iam, capsys):
    capsys.readouterr()
    run = str(trained / "handwriting-layer-s0")
    assert cli.main(["sample", "handwriting", run, "--data", str(iam), *options]) == code
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert message in text


def test_impossible_configurations_are_refused(iam, capsys):
    for options, message in (
        (["--batch-size", "7"], "--batch-size must be at most 6, the number of lines, got 7"),
        (["--valid-lines", "3"], "--valid-lines must be at most 2, the number of lines, got 3"),
        (["--points", "0"], "--points must be at least 1, got 0"),
    ):
        assert cli.main([*SMOKE, "--data", str(iam), *options]) == 2
        assert message in capsys.readouterr().err


def test_the_priming_line_is_scaled_as_the_run_was(trained, iam, tmp_path, monkeypatch):
    """A data set with other lines has another mean and deviation."""
    run = tmp_path / "run"
    shutil.copytree(trained / "handwriting-layer-s0", run)
    environment = read_json(run / "environment.json")
    environment["data"] |= {"mean": [1.0, 2.0], "deviation": [3.0, 4.0]}
    write_json(run / "environment.json", environment)
    given = []
    monkeypatch.setattr(
        samples, "write_text", lambda *arguments: given.append(arguments[2]) or (np.zeros((1, 3)), True)
    )
    command = ["sample", "handwriting", str(run), "--text", "a", "--prime", "a01-000u-02", "--data", str(iam)]
    assert cli.main([*command, "--out", str(tmp_path / "out")]) == 0
    line = find_line(IAM.load(iam), "a01-000u-02")
    expected = (line.points[1:, :2] - np.array([1.0, 2.0])) / np.array([3.0, 4.0])
    np.testing.assert_allclose(given[0][1:, :2], expected, rtol=1e-6)
