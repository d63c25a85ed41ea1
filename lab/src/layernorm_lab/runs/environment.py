"""The environment of a run: versions, CPU, threads, commit. The library's `doctor.machine` looks them up."""

from __future__ import annotations

import platform
import shlex
import sys
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
PACKAGES = (
    "accelerate", "rich", "matplotlib", "pillow", "pooch", "filelock", "safetensors", "scikit-learn", "scipy",
)  # fmt: skip
"""The packages that a run's results may depend on."""


def command_line() -> str:
    """Writes the command as one would type it again."""
    program = Path(sys.argv[0]).name
    if program in ("__main__.py", "-m", "-c"):
        program = "python -m layernorm_lab"
    return " ".join([program, *map(shlex.quote, sys.argv[1:])])


def describe(processes: int = 1, device: str = "cpu") -> dict[str, Any]:
    """Collects the facts that `environment.json` keeps."""
    import torch

    from layernorm.doctor import machine

    commits = [machine.commit(), machine.commit(PACKAGE)]  # equal if library and laboratory are of one checkout
    return {
        "layernorm": machine.version("layernorm"),
        "commit": commits[0]
        if commits[0] == commits[1]
        else f"{commits[0] or 'unknown'}, laboratory {commits[1] or 'unknown'}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": machine.version("numpy"),
        **{name: machine.version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": machine.processor(),
        "cores": machine.cores(),
        "threads": torch.get_num_threads(),
        "device": device,
        "gpu": torch.cuda.get_device_name() if device.startswith("cuda") else None,
        "processes": processes,
        "command": command_line(),
    }
