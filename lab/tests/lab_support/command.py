"""The command, run on next to nothing, interrupted, and what it says."""

import os
import subprocess
import sys

import pytest

from layernorm_lab import cli
from layernorm_lab.runs import folder
from layernorm_lab.runs.files import read_json

from .runs import outcome

QUICK = ["run", "digits", "--epochs", "2", "--hidden", "16", "--norm", "layer", "--batch-size", "128", "--seeds", "0"]
RUN = "digits-layer-b128-s0"
"""The run's folder."""


def one_line(capsys):
    """What was said on standard error: exactly one line."""
    text = capsys.readouterr().err
    assert text.count("\n") == 1, text
    assert text.startswith("layernorm: ")
    return text


def interrupted(command, module, name, call):
    """Runs a command until a function's call of this number, where Ctrl-C is pressed, and then anew to its end.

    Args:
        command: the arguments of `layernorm`.
        module, name: the function, as the command finds it.
        call: from 1.
    """
    function, calls = getattr(module, name), []

    def counted(*arguments):
        calls.append(0)
        if len(calls) == call:
            raise KeyboardInterrupt
        return function(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, counted)
        assert cli.main([*command, "--checkpoint-seconds", "0"]) == 130
    assert cli.main(command) == 0


def goes_on_and_ends_the_same(command, module, name, call, updates, run, whole):
    """Interrupts a command, which begins anew at the second of these updates and makes the run `whole`."""
    interrupted(command, module, name, call)
    starts = read_json(run / folder.ENVIRONMENT)["starts"]
    assert [start["update"] for start in starts] == updates
    assert outcome(run) == outcome(whole)
    ours, theirs = folder.read_run(run), folder.read_run(whole)
    assert {**ours.result, "seconds": 0} == {**theirs.result, "seconds": 0}
    assert {name: tensor.tolist() for name, tensor in ours.tested().items()} == {
        name: tensor.tolist() for name, tensor in theirs.tested().items()
    }


def refused(command, code, message, capsys):
    """Runs a command that ends with this code and one line, which the message is a part of; returns the line."""
    capsys.readouterr()
    assert cli.main(command) == code, command
    line = one_line(capsys)
    assert message in line
    return line


def in_two_processes(*arguments):
    """Runs `torchrun` with these arguments, which neither fails nor warns; returns what it printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return done.stdout
