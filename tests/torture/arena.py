"""Where an attack's cases happen: processes of their own, so that a crash or a hang is a result too."""

import contextlib
import functools
import gc
import io
import os
import pickle
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

LIMIT = 180.0
"""Seconds after which a process counts as hanging."""


class Campaign(NamedTuple):
    """An attack.

    Attributes:
        case: (seed) -> of what kind the case was, in words; AssertionError if the attack succeeded.
        together: so many cases share a process; 0: each makes processes of its own.
        before: what the first case needs, made once and seen by all processes.
    """

    case: Callable[[int], str]
    together: int = 0
    before: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        value: what the function returned.
        trouble: why there is no value: what it raised, the signal that ended it, or that it hung; None if there is one.
    """

    value: object = None
    trouble: str | None = None


class Process:
    """A function in a forked process, begun at once.

    Args:
        function: without arguments; what it returns must pickle.
    """

    def __init__(self, function):
        self._there, here = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(here)
            return
        os.close(self._there)
        try:
            ended = Ended(function())
        except BaseException:  # an attack may raise anything
            ended = Ended(trouble=traceback.format_exc())
        with os.fdopen(here, "wb") as pipe:
            pickle.dump(ended, pipe)
        sys.stdout.flush()
        os._exit(0)

    def wait(self, limit=LIMIT):
        """How it ended, at the latest after so many seconds."""
        ready, _, _ = select.select([self._there], [], [], limit)
        if not ready:
            os.kill(self.pid, signal.SIGKILL)
        with os.fdopen(self._there, "rb") as pipe:
            content = pipe.read()
        _, status = os.waitpid(self.pid, 0)
        if not ready:
            return Ended(trouble=f"hung for {limit:g} s")
        if not content:
            return Ended(trouble=f"ended by {signal.Signals(os.WTERMSIG(status)).name}")
        return pickle.loads(content)  # from our own child


@contextlib.contextmanager
def place():
    """An empty folder, gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="torture-"))
    try:
        yield path
    finally:
        for folder in [path, *(item for item in path.rglob("*") if item.is_dir() and not item.is_symlink())]:
            folder.chmod(0o700)
        shutil.rmtree(path)


@dataclass(frozen=True)
class Said:
    """What a command did: its exit status and its standard error."""

    status: int
    error: str

    @property
    def refused(self):
        """Whether it ended with 1 and, after lines of progress, exactly one that says why in the program's words."""
        lines = self.error.splitlines()
        complaints = [line for line in lines if not line.startswith("[")]
        ours = bool(lines) and lines[-1].startswith("layernorm: ") and "layernorm: unexpected" not in lines[-1]
        return self.status == 1 and len(complaints) == 1 and ours


@functools.cache
def ready():
    """Makes commands cheap in the processes that are made from here on.

    All that they import is imported, and what stays is no work for the garbage collector. The digits are parsed once.
    Figures are not drawn: that is most of a command's work, and looks at nothing that an attack could change.
    """
    import sklearn.datasets

    from layernorm_lab.report import figures

    sklearn.datasets.load_digits = functools.cache(sklearn.datasets.load_digits)
    figures.draw_figure = lambda *_, **__: b""
    with place() as path:
        command("run", "digits", "--epochs", "1", "--norm", "layer", "--hidden", "4", "--seeds", "0", "--out", path)
    gc.freeze()


def command(*arguments, cache=None, kill_at=None, within=None):
    """Runs `layernorm` with these arguments in this process.

    Args:
        cache: the folder of prepared data sets.
        kill_at: the process kills itself at so many-th file operation under `within`, from 1.
        within: a folder.

    Returns:
        what it did, and how many file operations were under `within`.
    """
    from layernorm_lab import cli

    if cache is not None:
        os.environ["XDG_CACHE_HOME"] = str(cache)
    count = [0]
    operations = {"open", "os.rename", "os.remove", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}

    def watch(event, found):
        if event in operations and str(found[0]).startswith(str(within)):
            count[0] += 1
            if count[0] == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    if within is not None:
        sys.addaudithook(watch)
    error = io.StringIO()
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
        status = cli.main([str(argument) for argument in arguments])
    return Said(status, error.getvalue()), count[0]
