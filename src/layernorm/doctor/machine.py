"""What this machine and installation are: versions, commit, CPU, cores. It imports nothing of the package."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path


def version(package: str) -> str | None:
    """Looks up an installed package's version; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """Looks up the CPU's name, as far as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model\t")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    if sys.platform == "darwin":  # platform.processor() is "arm" there
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """Counts the CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


PACKAGE = Path(__file__).resolve().parents[1]


def commit(package: Path = PACKAGE) -> str | None:
    """Looks up the git commit of a package's source tree, with `+` if the package differs from it. Of an installed copy
    it is the one that the build wrote into its folder. None: there is neither."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(package), *arguments], capture_output=True, text=True, check=True, timeout=10
        )
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # else it is installed inside somebody else's repository
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        file = package / "commit.txt"
        return file.read_text(encoding="utf-8").strip() if file.is_file() else None
