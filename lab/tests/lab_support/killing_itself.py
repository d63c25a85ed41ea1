"""The command, which gets a signal at an update, or is killed in the middle of writing a checkpoint."""

import os
import signal
import sys

from torch.optim.optimizer import register_optimizer_step_post_hook

from layernorm_lab import cli


def signalling_itself(name, update, arguments):
    """Runs `layernorm`, which sends itself a signal of this name right after an update; they count from 1. From
    outside, a short training may be over before the signal is there."""
    updates = 0

    def count(*of_step):
        nonlocal updates
        updates += 1
        if updates == update:
            os.kill(os.getpid(), signal.Signals[name])

    register_optimizer_step_post_hook(count)
    sys.exit(cli.main(arguments))


def killing_itself(moment, count, arguments):
    """Runs `layernorm`, which kills itself at a call of a function on a checkpoint's file.

    Args:
        moment: the function of `os`; "fsync-half" is `fsync` after half of the file was lost.
        count: which call, from 1.
    """
    name = moment.removesuffix("-half")
    original, calls = getattr(os, name), 0

    def deadly(*of_call):
        nonlocal calls
        if "checkpoint.safetensors" in str(of_call[-1] if name == "replace" else _path(of_call[0])):
            calls += 1
            if calls == count:
                if moment == "fsync-half":
                    os.ftruncate(of_call[0], 1000)
                os.kill(os.getpid(), signal.SIGKILL)
        return original(*of_call)

    setattr(os, name, deadly)
    cli.main(arguments)


def _path(opened):
    if sys.platform == "darwin":
        import fcntl

        return fcntl.fcntl(opened, fcntl.F_GETPATH, bytes(1024)).rstrip(bytes(1)).decode()
    return os.readlink(f"/proc/self/fd/{opened}")
