"""The command, run on next to nothing, and what it says."""

QUICK = ["run", "digits", "--epochs", "2", "--hidden", "16", "--norm", "layer", "--batch-size", "128", "--seeds", "0"]
RUN = "digits-layer-b128-s0"
"""The run's folder."""


def one_line(capsys):
    """What was said on standard error: exactly one line."""
    text = capsys.readouterr().err
    assert text.count("\n") == 1, text
    assert text.startswith("layernorm: ")
    return text
