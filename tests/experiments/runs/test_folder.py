"""Runs are found in their folders; copies and damaged ones are left out, with the reason."""

import pytest

from layernorm import cli
from layernorm.experiments.errors import RunError
from layernorm.experiments.runs.folder import find
from support.runs import write_digits, write_sweep


@pytest.fixture
def folder(tmp_path):
    return write_sweep(tmp_path)


def test_runs_are_found_by_their_folder_or_the_folder_above(folder):
    assert len(find([folder]).runs) == 18
    one = folder / "digits-layer-b4-s0"
    assert [run.path for run in find([one, one]).runs] == [one]
    (folder / "empty").mkdir()
    with pytest.raises(RunError, match="there are no runs in"):
        find([folder / "empty"])


def test_a_copy_of_a_run_is_no_second_seed(tmp_path, capsys):
    write_digits(tmp_path / "a", "layer", 128, 0, [0.3], epochs=2)
    write_digits(tmp_path / "b", "layer", 128, 0, [0.3, 0.2])
    write_digits(tmp_path / "b", "layer", 128, 1, [0.3, 0.2])
    name = "digits-layer-b128-s0"
    found = find([tmp_path / "a", tmp_path / "b"])
    assert [run.path.parent.name for run in found.runs] == ["b", "b"], "the longer one stays"
    assert found.notes == [f"skipped: {tmp_path}/a/{name} has the configuration and seed of {tmp_path}/b/{name}"]
    assert cli.main(["report", str(tmp_path / "b"), str(tmp_path / "a"), "--out", str(tmp_path / "report")]) == 0
    assert "skipped: " in capsys.readouterr().out
    assert "> **skipped: " in (tmp_path / "report" / "report.md").read_text()


def test_damaged_runs_are_skipped_with_the_reason(folder):
    (folder / "digits-layer-b4-s0" / "config.json").unlink()
    (folder / "digits-layer-b4-s1" / "records.jsonl").write_text("no JSON\n")
    (folder / "digits-none-b4-s0" / "result.json").write_text('{"update": 50}')
    found = find([folder])
    assert len(found.runs) == 15
    reasons = (
        "b4-s0 has result.json and records.jsonl but no config",
        "line 1: not valid",
        "holds 4 records up to update 50 but not the last",
    )
    for note, text in zip(found.notes, reasons, strict=True):
        assert note.startswith(f"skipped: {folder}/digits-")
        assert text in note
