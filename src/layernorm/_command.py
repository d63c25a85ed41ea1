"""Makes Ctrl-C print one line and no traceback while the command `layernorm` is still being imported.

Python imports the package, and with it torch, before the command's first line runs. The package imports this module
first. In a user's own program it does nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType


def _ended(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    print("layernorm: interrupted", file=sys.stderr)
    raise SystemExit(130)


# Under `python -m layernorm` the program's name is "-m" until the package has been imported.
if Path(sys.argv[0]).stem == "layernorm" or (sys.argv[0] == "-m" and "layernorm" in sys.orig_argv):
    sys.excepthook = _ended
