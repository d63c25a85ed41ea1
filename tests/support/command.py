"""The command, run on next to nothing, interrupted, and what it says."""

import pytest

from layernorm import cli

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
