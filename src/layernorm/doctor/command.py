"""`python -m layernorm doctor`, which needs no laboratory."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .check import WrongEngineError, check
from .installation import OPTIONAL, show


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments, or with those of the process. Returns the exit code: 0 all is right, 1 an
    engine is wrong, 130 interrupted. Wrong usage ends the process with 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    laboratory = OPTIONAL["layernorm-lab"]
    parser = argparse.ArgumentParser(
        "python -m layernorm",
        epilog=f"The experiments and their reports are a package of their own: {laboratory}",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    doctor = commands.add_parser("doctor", help="print the versions and engines found here, and why one is missing")
    doctor.add_argument(
        "--check", action="store_true",
        help="compare the results and gradients of every engine that runs here with the equations in float64, and its "
        "time with torch's; takes some minutes; exits with 1 if an engine is wrong",
    )  # fmt: skip
    if words and not words[0].startswith("-") and words[0] != "doctor":
        parser.error(f"{words[0]!r} is no command of the library; layernorm has those of the laboratory: {laboratory}")
    parsed = parser.parse_args(words)
    try:
        check() if parsed.check else show()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has gone, as in `python -m layernorm doctor | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        return 1
    except WrongEngineError as error:
        print(f"layernorm: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("layernorm: interrupted", file=sys.stderr)
        return 130
    return 0
