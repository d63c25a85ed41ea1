"""Runs are found in their folders; copies and damaged ones are left out, with the reason."""

import os

import pytest

from lab_support.runs import change, write_digits, write_sweep
from layernorm_lab import cli
from layernorm_lab.errors import RunError
from layernorm_lab.runs import checkpoint
from layernorm_lab.runs.files import write_json
from layernorm_lab.runs.folder import RunFolder, find_runs


@pytest.fixture
def folder(tmp_path):
    return write_sweep(tmp_path)


def test_runs_are_found_by_their_folder_or_the_folder_above(folder):
    assert len(find_runs([folder]).runs) == 18
    one = folder / "digits-layer-b4-s0"
    assert [run.path for run in find_runs([one, one]).runs] == [one]
    (folder / "empty").mkdir()
    with pytest.raises(RunError, match="there are no runs in"):
        find_runs([folder / "empty"])


def test_runs_are_found_one_level_deeper(tmp_path):
    write_digits(tmp_path / "runs" / "digits", "layer", 128, 0, [0.3, 0.2])
    write_digits(tmp_path / "runs" / "again", "layer", 128, 1, [0.3, 0.2])
    (tmp_path / "runs" / "notes.txt").touch()
    found = find_runs([tmp_path / "runs"])
    assert [run.path.parent.name for run in found.runs] == ["again", "digits"]
    assert cli.main(["report", str(tmp_path / "runs")]) == 0
    assert (tmp_path / "runs" / "report" / "index.html").is_file()
    assert len(find_runs([tmp_path / "runs"]).runs) == 2, "the report is no run"
    with pytest.raises(RunError, match="there are no runs in"):
        find_runs([tmp_path])  # two levels


def test_a_copy_of_a_run_is_no_second_seed(tmp_path, capsys):
    write_digits(tmp_path / "a", "layer", 128, 0, [0.3], epochs=2)
    write_digits(tmp_path / "b", "layer", 128, 0, [0.3, 0.2])
    write_digits(tmp_path / "b", "layer", 128, 1, [0.3, 0.2])
    name = "digits-layer-b128-s0"
    found = find_runs([tmp_path / "a", tmp_path / "b"])
    assert [run.path.parent.name for run in found.runs] == ["b", "b"], "the longer one stays"
    assert found.notes == [f"skipped: {tmp_path}/a/{name} has the configuration and seed of {tmp_path}/b/{name}"]
    assert cli.main(["report", str(tmp_path / "b"), str(tmp_path / "a"), "--out", str(tmp_path / "report")]) == 0
    assert "skipped: " in capsys.readouterr().out
    assert "> **skipped: " in (tmp_path / "report" / "report.md").read_text()


def test_of_two_copies_the_finished_one_stays(tmp_path):
    """A run that is killed before its result is written has all records, too."""
    for place in ("a", "b"):
        write_digits(tmp_path / place, "layer", 128, 0, [0.3, 0.2])
    (tmp_path / "a" / "digits-layer-b128-s0" / "result.json").unlink()
    (run,) = find_runs([tmp_path / "a", tmp_path / "b"]).runs
    assert run.done


def test_a_run_that_has_not_begun_is_skipped(tmp_path, capsys):
    """As where it was killed after its first file."""
    write_digits(tmp_path, "layer", 128, 0, [0.3, 0.2])
    write_digits(tmp_path, "layer", 128, 1, [0.3, 0.2])
    for name in ("environment.json", "records.jsonl", "result.json"):
        (tmp_path / "digits-layer-b128-s1" / name).unlink()
    assert len(find_runs([tmp_path]).runs) == 1
    assert cli.main(["report", str(tmp_path), "--summary", str(tmp_path / "summary.json")]) == 0
    assert "has not begun" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["config.json", "records.jsonl", "checkpoint.safetensors", "result.json"])
def test_a_fifo_in_a_runs_folder_is_refused_at_once(tmp_path, name):
    write_digits(tmp_path, "layer", 128, 0, [0.3, 0.2])
    path = tmp_path / "digits-layer-b128-s0"
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)
    if name == "checkpoint.safetensors":  # a report goes on without it
        assert len(find_runs([tmp_path]).runs) == 1
        with pytest.raises(RunError, match=f"cannot read {path / name}: it is no regular file"):
            checkpoint.load_checkpoint(path / name)
    else:
        with pytest.raises(RunError, match=f"cannot read {path / name}: it is no regular file"):
            find_runs([tmp_path])


def digit(name, old, new):
    """Changes one digit of a file."""

    def change_it(run):
        content = (run / name).read_bytes()
        assert content.count(old) == 1
        (run / name).write_bytes(content.replace(old, new))

    return change_it


def replaced(name, values):
    return lambda run: write_json(run / name, values)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (digit("config.json", b'"learning_rate": 0.001', b'"learning_rate": 0.007'), "config.json is damaged"),
        (digit("result.json", b'"update": 40', b'"update": 30'), "result.json is damaged"),
        (digit("environment.json", b'"fingerprint": "abc"', b'"fingerprint": "abd"'), "environment.json is damaged"),
        (digit("records.jsonl", b'"test_error": 0.08', b'"test_error": 0.03'), "records.jsonl, line 2 is damaged"),
        (lambda run: (run / "records.jsonl").write_text("no JSON\n"), "line 1 is not valid"),
        (lambda run: change(run / "result.json", update=50, records=5), "holds 4 records up to update 50 instead of 5"),
        (replaced("config.json", {"norm": "layer"}), "config.json names no experiment"),
        (replaced("config.json", {"experiment": 7}), "config.json names no experiment"),
        (lambda run: (run / "environment.json").unlink(), "is missing, although there is a result.json"),
        (replaced("environment.json", {}), "environment.json lacks data, starts"),
        (replaced("environment.json", {"data": {}, "starts": [], "more": 1}), "environment.json has the unknown more"),
        (replaced("environment.json", {"data": [], "starts": []}), "environment.json has an impossible value: data"),
        (replaced("result.json", {}), "result.json lacks update"),
        (replaced("result.json", {"update": 40, "records": 4, "diverged": "x"}), "diverged is 'x', not a whole number"),
        (replaced("result.json", {"update": 41, "records": 4}), "does not end with update 41, as result.json does"),
        (lambda run: (run / "config.json").write_text('{"experiment": "digits"}'), "config.json is damaged"),
        (lambda run: (run / "config.json").write_text("[1]"), "config.json is damaged"),
        (lambda run: (run / "config.json").write_bytes(b"\xff"), "config.json is not valid JSON"),
        (lambda run: (run / "config.json").write_text("[" * 100_000), "config.json is not valid JSON"),
    ],
)
def test_a_changed_or_foreign_run_is_skipped_with_a_line_that_names_it(folder, damage, message):
    run = folder / "digits-layer-b4-s0"
    damage(run)
    runs, notes = find_runs([folder])
    assert len(runs) == 17
    assert len(notes) == 1
    assert notes[0].startswith(f"skipped: {run}/")
    assert message in notes[0]
    with pytest.raises(RunError, match="digits-layer-b4-s0"):
        find_runs([run])


def test_a_run_that_lost_its_environment_does_not_go_on(folder):
    """Without it nobody knows which data the run was made with."""
    run = folder / "digits-layer-b4-s0"
    for name in ("environment.json", "result.json"):
        (run / name).unlink()
    with pytest.raises(RunError, match=r"environment.json is missing, although there is a records.jsonl; put a whole"):
        RunFolder(run).check_data({"name": "digits", "fingerprint": "abc"})


def test_a_run_without_its_configuration_is_skipped(folder):
    (folder / "digits-layer-b4-s0" / "config.json").unlink()
    runs, (note,) = find_runs([folder])
    assert len(runs) == 17
    assert note.startswith(f"skipped: {folder}/digits-layer-b4-s0 has result.json and records.jsonl but no config")
