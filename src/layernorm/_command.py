"""Whether this process is the command `layernorm`: then `import layernorm` leaves torch out.

Python imports the package before the command's first line runs. The command itself imports what it uses, by the
modules' own names, so that its help does not wait for torch.
"""

from __future__ import annotations

import sys
from pathlib import Path


def _is_running() -> bool:
    """Tells whether the console script or `python -m layernorm` has started this process."""
    if sys.argv[:1] != ["-m"]:
        return Path(*sys.argv[:1]).stem == "layernorm"
    # under `python -m NAME` the program's name is "-m" until the package has been imported
    options = sys.orig_argv
    return "-m" in options and options[options.index("-m") + 1 :][:1] == ["layernorm"]


IS_RUNNING = _is_running()
