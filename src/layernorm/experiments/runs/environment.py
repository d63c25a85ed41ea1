"""The environment of a run: versions, processor, threads, commit. `layernorm doctor` prints the same facts."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = (
    "accelerate", "rich", "matplotlib", "pillow", "pooch", "filelock", "safetensors", "scikit-learn", "scipy",
)  # fmt: skip
"""The optional packages, which the extra `experiments` installs."""


def version(package: str) -> str | None:
    """Looks up an installed package's version; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """Looks up the processor's name, as far as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model\t")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cores() -> int:
    """Counts the processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def commit() -> str | None:
    """Looks up the git commit of the package's source tree, with `+` if the package differs from it. None: it is not in
    git."""
    package = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(package), *arguments], capture_output=True, text=True, check=True, timeout=10
        )
        return done.stdout.strip()

    try:
        root = Path(git("rev-parse", "--show-toplevel"))
        if package != root / "src" / "layernorm":  # an installed package inside somebody else's repository
            return None
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def command_line() -> str:
    """Writes the command as one would type it again."""
    program = Path(sys.argv[0]).name
    if program in ("__main__.py", "-m", "-c"):
        program = "python -m layernorm"
    return " ".join([program, *map(shlex.quote, sys.argv[1:])])


def describe(processes: int = 1, device: str = "cpu") -> dict[str, Any]:
    """Collects the facts that `environment.json` keeps."""
    import torch

    return {
        "layernorm": version("layernorm"),
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        **{name: version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "device": device,
        "gpu": torch.cuda.get_device_name() if device.startswith("cuda") else None,
        "processes": processes,
        "command": command_line(),
    }
