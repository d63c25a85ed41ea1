"""`layernorm sample`: what every experiment's sampling shares, and every way in which it is asked for wrongly."""

import shutil

import pytest

from lab_support.command import QUICK, refused
from layernorm_lab import cli
from layernorm_lab.runs.files import read_json, write_json


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A run of another experiment."""
    out = tmp_path_factory.mktemp("digits")
    assert cli.main([*QUICK, "--out", str(out)]) == 0
    return out / "digits-layer-b128-s0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["handwritten", "RUN"], "unknown experiment 'handwritten'; did you mean 'handwriting'?"),
        (["digits", "RUN"], "digits has nothing to sample; experiments that have: "),
        (["--text", "a"], "the experiment's name comes before its options"),
        (["handwriting"], "missing: RUN; expected: layernorm sample handwriting RUN [OPTIONS]"),
    ],
)
def test_wrong_usage_exits_with_2(arguments, message, capsys):
    refused(["sample", *arguments], 2, message, capsys)


def test_a_folder_that_is_no_run_of_it_is_refused(digits, tmp_path, capsys):
    for folder, message in (
        (tmp_path / "none", "is not a folder; give the folder of one run"),
        (tmp_path, "there is no run in"),
        (digits, "holds a run of digits, not of handwriting"),
    ):
        refused(["sample", "handwriting", str(folder), "--text", "a"], 1, message, capsys)


def test_a_run_without_or_with_a_damaged_checkpoint_is_refused(digits, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(digits, run)
    config = read_json(run / "config.json")
    checkpoint = run / "checkpoint.safetensors"
    whole = checkpoint.read_bytes()
    handwriting = {"experiment": "handwriting", "norm": "none", "seed": 0, "updates": 1, "batch_size": 4, "points": 5}
    handwriting |= {
        "units": 4,
        "mixtures": 2,
        "learning_rate": 0.1,
        "decay": 0.0,
        "evaluate_every": 1,
        "valid_lines": 0,
    }
    handwriting |= {"precision": "float32", "gain_init": 1.0, "forget_bias": 0.0, "clip": "gates", "lines": "cleaned"}
    (run / "records.jsonl").unlink()
    (run / "result.json").unlink()
    for values, content, message in (
        (handwriting, None, "has no checkpoint yet"),
        (handwriting, b"", "is damaged or not a checkpoint"),
        (handwriting, whole[:-50], "is damaged or not a checkpoint"),
        (handwriting | {"norm": "bogus"}, b"x", "has an impossible value: norm is 'bogus', not one of none, layer, "),
        (
            config | {"experiment": "handwriting"},
            b"x",
            "config.json lacks updates, points, units, mixtures, ",
        ),
    ):
        write_json(run / "config.json", values)
        checkpoint.unlink(missing_ok=True)
        if content is not None:
            checkpoint.write_bytes(content)
        refused(["sample", "handwriting", str(run), "--text", "a"], 1, message, capsys)
