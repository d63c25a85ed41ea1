"""The command `layernorm`: run an experiment, draw its report, prepare data, look at the installation.

Nothing here imports torch before it is needed, so that help and errors come at once.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import version

from ..errors import Failures, Interrupted, UsageError, error_line, is_first_process, printable, unknown, wrapped


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command `layernorm` with these arguments, or with those of the process. Returns the exit code: 0 done, 1
    failed, 2 wrong usage, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--traceback" in words
    words = [word for word in words if word != "--traceback"]
    with contextlib.suppress(AttributeError):  # results have signs that an old locale cannot print
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    code = _guarded(words, debug)
    try:
        if sys.stdout is not None:  # it was closed before the start
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python would flush once more at its end
        if not code and not isinstance(error, BrokenPipeError):
            _say(f"cannot write to standard output: {error.strerror}")
        return code or 1
    return code


def _guarded(words: list[str], debug: bool) -> int:
    """Runs a command. Every error becomes an exit code and one line, or one line for each failed run."""
    try:
        _dispatch(words)
        return 0
    except SystemExit as end:  # help was printed
        return end.code if isinstance(end.code, int) else 0
    except (Interrupted, KeyboardInterrupt):
        how = "the same command without --restart" if "--restart" in words else "the same command"
        _say(f"interrupted; {how} resumes" if words[:1] == ["run"] else "interrupted")
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `layernorm ... | head`
        return 1
    except Exception as error:
        if debug:
            raise
        for line in error.lines if isinstance(error, Failures) else [error_line(error)]:
            _say(line)
        return 2 if isinstance(error, UsageError) else 1


def _say(message: str) -> None:
    text = f"layernorm: {printable(message)}"
    if sys.stderr.isatty():  # in a file or a pipe a message stays one line
        text = wrapped(text, 2, shutil.get_terminal_size().columns)
        if not is_first_process():
            text = f"\n{text}"  # torchrun's first process may have a bar in this line
    print(text, file=sys.stderr)


def _dispatch(words: list[str]) -> None:
    from . import commands, pages

    pages.help_or_go_on(words, pages.print_commands)
    if words[0] == "--version":
        print(f"layernorm {version('layernorm')}")
        return
    if words[0].startswith("-"):
        raise unknown("option", words[0], ["--help", "--version", "--traceback"])
    if words[0] not in pages.SUMMARIES:
        raise unknown("command", words[0], pages.SUMMARIES)
    commands.COMMANDS[words[0]](words[1:])
