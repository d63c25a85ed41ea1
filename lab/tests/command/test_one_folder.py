"""A run's folder belongs to one command, whatever another does between its looks at it."""

import json

import pytest

from lab_support.command import QUICK, RUN, refused
from layernorm_lab import cli
from layernorm_lab.runs import folder


@pytest.fixture
def between(monkeypatch):
    """Has something happen once, after a command has looked at a run's folder and before it holds it."""

    def arrange(happening):
        original = folder.make_folder

        def make_folder(path):
            monkeypatch.setattr(folder, "make_folder", original)
            happening()
            return original(path)

        monkeypatch.setattr(folder, "make_folder", make_folder)

    return arrange


def state(path):
    return {item.name: item.read_bytes() for item in path.iterdir() if item.name != ".lock"}


@pytest.mark.parametrize("broken_off", [False, True])
def test_another_commands_run_is_not_continued(tmp_path, between, capsys, broken_off):
    def other():
        assert cli.main([*QUICK, "--learning-rate", "0.01", "--out", str(tmp_path)]) == 0
        if broken_off:
            (tmp_path / RUN / folder.RESULT).unlink()
        found.update(state(tmp_path / RUN))
        capsys.readouterr()

    found = {}
    between(other)
    refused([*QUICK, "--out", str(tmp_path)], 1, "holds another run: --learning-rate is 0.01 there, 0.001 here", capsys)
    assert found
    assert state(tmp_path / RUN) == found


def test_what_differs_is_named_by_its_flag(tmp_path, capsys):
    command = ["run", "swaps", "--task", "adding", "--norm", "none", "--updates", "1", "--out", str(tmp_path)]
    assert cli.main([*command, "--seeds", "0", "--rate-multiple", "1"]) == 0
    (path,) = tmp_path.glob("swaps-*")
    capsys.readouterr()
    refused([*command, "--seeds", "0", "--rate-multiple", "2"], 1, "--rate-multiple is 1.0 there, 2.0 here", capsys)
    path.rename(path.with_name(path.name.replace("s0", "s1")))
    refused([*command, "--seeds", "1", "--rate-multiple", "1"], 1, "--seeds is 0 there, 1 here", capsys)


def test_a_run_that_another_command_has_finished_is_not_made_again(tmp_path, between, capsys):
    def same():
        assert cli.main([*QUICK, "--out", str(tmp_path)]) == 0
        found.update(state(tmp_path / RUN))
        capsys.readouterr()

    found = {}
    between(same)
    assert cli.main([*QUICK, "--out", str(tmp_path)]) == 0
    assert "done before" in capsys.readouterr().err
    assert found
    assert state(tmp_path / RUN) == found
    starts = json.loads(found[folder.ENVIRONMENT])["starts"]
    assert [start["update"] for start in starts] == [0]
