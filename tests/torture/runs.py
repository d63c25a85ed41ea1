"""Attacks on runs: killed at any file operation, every file of theirs damaged, two commands in one folder."""

import functools
import json
import random
import shutil
import tempfile
from pathlib import Path

from layernorm.experiments.runs import checkpoint, folder

from .arena import Process, command, place

QUICK = ["run", "digits", "--epochs", "2", "--norm", "layer", "--batch-size", "128", "--seeds", "0", "--threads", "1"]
OFTEN = ["--checkpoint-seconds", "0"]
RUN = "digits-layer-b128-s0"
SIZES = (8, 12)
"""Hidden units: two configurations that have one folder."""


def told(path):
    """What a run tells, without its times: its records and its result."""
    run = folder.read(path / RUN)
    return json.dumps([[_timeless(record) for record in run.records], _timeless(run.result)])


def made(path):
    """What a run made: what it tells, and its weights' bytes."""
    tensors, _ = checkpoint.load(path / RUN / folder.CHECKPOINT)
    return told(path), {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def _timeless(values):
    return {name: value for name, value in values.items() if "seconds" not in name}


def train(path, size, **how):
    """The command that trains, in a process of its own."""
    return Process(functools.partial(command, *QUICK, *OFTEN, "--hidden", size, "--out", path, within=path, **how))


_FOLDERS = []


def _kept():
    """An empty folder for as long as this process lives; the processes that it makes leave it alone."""
    _FOLDERS.append(tempfile.TemporaryDirectory(prefix="torture-"))
    return Path(_FOLDERS[-1].name)


@functools.cache
def whole(size):
    """A finished run: its folder, what it made, and its file operations. One for all cases of a process."""
    path = _kept()
    ended = train(path, size).wait()
    assert ended.trouble is None, ended.trouble
    said, operations = ended.value
    assert said.status == 0, said.error
    return path, made(path), operations


def kill(seed):
    """A run that is killed up to three times, anywhere, goes on and ends as an unbroken one does."""
    chance = random.Random(seed)
    _, expected, operations = whole(SIZES[0])
    with place() as path:
        kills = [chance.randint(1, operations) for _ in range(chance.randint(1, 3))]
        for at in kills:
            train(path, SIZES[0], kill_at=at).wait()
        ended = train(path, SIZES[0]).wait()
        assert ended.trouble is None, f"killed at {kills}: {ended.trouble}"
        said, _ = ended.value
        assert said.status == 0, f"killed at {kills}: {said.error}"
        assert made(path) == expected, f"killed at {kills}: another result"
        assert not [item.name for item in (path / RUN).iterdir() if item.suffix == ".tmp"], "temporary files stayed"


def _flip(content, chance):
    at = chance.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]


def _digit(content, chance):
    places = [at for at, byte in enumerate(content) if chr(byte).isdigit()]
    at = chance.choice(places or [0])
    return content[:at] + str(chance.randrange(10)).encode() + content[at + 1 :]


def _lines(content, chance):
    rows = content.splitlines(keepends=True)
    one = chance.randrange(len(rows))
    other = chance.choice([[rows[one]] * 2, [], [rows[one][: len(rows[one]) // 2]], [b"\n", rows[one]]])
    return b"".join([*rows[:one], *other, *rows[one + 1 :]])


CHANGES = {
    "flip": _flip,
    "digit": _digit,
    "lines": _lines,
    "cut": lambda content, chance: content[: chance.randrange(len(content))],
    "zeros": lambda content, chance: content[: len(content) // 2] + bytes(len(content) - len(content) // 2),
    "more": lambda content, chance: content + chance.randbytes(chance.randint(1, 40)),
    "noise": lambda content, chance: chance.randbytes(chance.randint(0, 200)),
    "header": lambda content, chance: _flip(content[:600], chance) + content[600:],
}
"""Ways to damage a file."""


@functools.cache
def half(size):
    """A run that was killed in its middle, of a process."""
    _, _, operations = whole(size)
    path = _kept()
    train(path, size, kill_at=operations // 2).wait()
    return path


def damage(seed):
    """A run with one damaged file: each command refuses it in one line, or ends as if nothing had been."""
    chance = random.Random(seed)
    finished = chance.random() < 0.5
    source, expected = (whole(SIZES[0])[0] if finished else half(SIZES[0])), whole(SIZES[0])[1]
    with place() as path:
        shutil.copytree(source, path, dirs_exist_ok=True)
        names = (folder.CONFIG, folder.RECORDS, folder.CHECKPOINT, folder.RESULT)
        file = chance.choice([item for item in sorted((path / RUN).iterdir()) if item.name in names])
        way = chance.choice(sorted(CHANGES))
        before = file.read_bytes()
        if not before:
            return
        after = CHANGES[way](before, chance)
        file.write_bytes(after)
        about = f"{file.name} of a {'finished' if finished else 'half'} run, {way}"
        ended = train(path, SIZES[0]).wait()
        assert ended.trouble is None, f"{about}: {ended.trouble}"
        said, _ = ended.value
        assert said.status == 0 or said.refused, f"{about}: exit {said.status}, {said.error}"
        if said.status == 0 and finished:  # "done before": the weights were not looked at
            assert told(path) == expected[0], f"{about}: silently another result"
        elif said.status == 0:
            assert made(path) == expected, f"{about}: silently another result"


def race(seed):
    """Two commands for one folder at once: what is there in the end is one command's, and the other says so."""
    chance = random.Random(seed)
    sizes = [SIZES[0], chance.choice(SIZES)]
    with place() as path:
        if chance.random() < 0.5:  # something is there already
            train(path, sizes[0], kill_at=chance.randint(1, whole(SIZES[0])[2])).wait()
        ended = [process.wait() for process in [train(path, size) for size in sizes]]
        for item in ended:
            assert item.trouble is None, f"units {sizes}: {item.trouble}"
        said = [item.value[0] for item in ended]
        about = f"units {sizes}, exits {[item.status for item in said]}: {[item.error for item in said]}"
        assert all(item.status == 0 or item.refused for item in said), about
        there = json.loads((path / RUN / folder.CONFIG).read_text())["hidden"]
        assert all(item.refused for item, size in zip(said, sizes, strict=True) if size != there), about
        if any(item.status == 0 for item in said):
            assert made(path) == whole(there)[1], f"{about}: another result"


CAMPAIGNS = {"kills": kill, "damage": damage, "races": race}
