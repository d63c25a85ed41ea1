"""Attacks on runs: killed at any file operation, every file of theirs damaged, two commands in one folder."""

import functools
import json
import math
import random
import shutil
import tempfile
import time
from pathlib import Path

import torch

from layernorm_lab.runs import checkpoint, folder, records
from layernorm_lab.runs.files import read_json, write_json

from .arena import Campaign, Process, command, place, ready

QUICK = ["run", "digits", "--epochs", "2", "--norm", "layer", "--batch-size", "128", "--seeds", "0", "--threads", "1"]
OFTEN = ["--checkpoint-seconds", "0"]
RUN = "digits-layer-b128-s0"
SIZES = (8, 12)
"""Hidden units: two configurations that have one folder."""


def told(path):
    """What a run tells, without its times: its records and its result."""
    run = folder.read_run(path / RUN)
    return json.dumps([[_timeless(record) for record in run.records], _timeless(run.result)])


def made(path):
    """What a run made: what it tells, and its weights' bytes."""
    tensors, _ = checkpoint.load_checkpoint(path / RUN / folder.CHECKPOINT)
    return told(path), {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def _timeless(values):
    return {name: value for name, value in values.items() if "seconds" not in name}


def training(path, size):
    """The command that trains."""
    return (*QUICK, *OFTEN, "--hidden", size, "--out", path)


def train(path, size, after=0.0, **how):
    """It in a process of its own, which waits for so many seconds first."""

    def wait_and_train():
        time.sleep(after)
        return command(*training(path, size), within=path, **how)

    return Process(wait_and_train)


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
    """A run that is killed goes on and ends as an unbroken one does: at its every file operation in turn, then up to
    three times, anywhere."""
    chance = random.Random(seed)
    _, expected, operations = whole(SIZES[0])
    each = seed < operations
    kills = [seed + 1] if each else [chance.randint(1, operations) for _ in range(chance.randint(1, 3))]
    with place() as path:
        for at in kills:
            train(path, SIZES[0], kill_at=at).wait()
        ended = train(path, SIZES[0]).wait()
        assert ended.trouble is None, f"killed at {kills}: {ended.trouble}"
        said, _ = ended.value
        assert said.status == 0, f"killed at {kills}: {said.error}"
        assert made(path) == expected, f"killed at {kills}: another result"
        assert not [item.name for item in (path / RUN).iterdir() if item.suffix == ".tmp"], "temporary files stayed"
    return f"at each of {operations} file operations" if each else f"anywhere, {len(kills)} times"


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
}
"""Ways to damage a file."""


def _in_header(way):
    """That way within the header of a safetensors file alone, its length included."""

    def changed(content, chance):
        end = 8 + int.from_bytes(content[:8], "little")
        return way(content[:end], chance) + content[end:]

    return changed


IN_CHECKPOINT = {
    **{name: way for name, way in CHANGES.items() if name != "lines"},
    "header flip": _in_header(_flip),
    "header digit": _in_header(_digit),
    "header cut": _in_header(CHANGES["cut"]),
}
"""Ways to damage a checkpoint."""


@functools.cache
def half(size):
    """A run that was killed in its middle, of a process."""
    _, _, operations = whole(size)
    path = _kept()
    train(path, size, kill_at=operations // 2).wait()
    return path


def _without(values, chance):
    """One of the values, at any depth, is missing, has another name, or is a strange one."""
    inner = [name for name, item in values.items() if isinstance(item, dict) and item]
    if inner and chance.random() < 0.5:
        name = chance.choice(inner)
        return {**values, name: _without(values[name], chance)}
    lost = chance.choice(list(values))
    other = chance.choice([{}, {f"{lost}x": values[lost]}, {lost: chance.choice(STRANGE)}])
    return {name: item for name, item in values.items() if name != lost} | other


STRANGE = ([], {}, None, True, math.nan, 1e308, 10**400, 2.5, -1, "", "a\0b")
"""Values that no run has, or that are not where they belong."""


def _resealed(path, chance):
    """Writes a file again, lacking a value, as the package writes it: with a right SHA-256."""
    if path.name != folder.RECORDS:
        write_json(path, _without(read_json(path), chance))
        return
    lines = records.read_records(path)
    chosen = {chance.randrange(len(lines))} if chance.random() < 0.5 else range(len(lines))
    same = chance.random()
    path.unlink()
    for number, line in enumerate(lines):
        records.append_record(path, _without(line, random.Random(same)) if number in chosen else line)


def _checked(about, path, finished, whole_again):
    """What the command that trains and the report's say of a run that was changed: "refused" or "as before".

    Args:
        whole_again: whether a run that ends must be as if nothing had been.
    """
    expected = whole(SIZES[0])[1]
    said, _ = command(*training(path, SIZES[0]))
    assert said.status == 0 or said.refused, f"{about}: exit {said.status}, {said.error}"
    told_of, _ = command("report", path)
    assert told_of.status == 0 or told_of.refused, f"{about}, report: exit {told_of.status}, {told_of.error}"
    if said.status == 0 and whole_again:
        # a finished run was "done before": its weights were not looked at
        same = told(path) == expected[0] if finished else made(path) == expected
        assert same, f"{about}: silently another result"
    return "as before" if said.status == 0 else "refused"


def damage(seed):
    """A run with one damaged file: each command refuses it in one line, or ends as if nothing had been."""
    chance = random.Random(seed)
    finished = chance.random() < 0.5
    source = whole(SIZES[0])[0] if finished else half(SIZES[0])
    with place() as path:
        shutil.copytree(source, path, dirs_exist_ok=True)
        names = (folder.CONFIG, folder.ENVIRONMENT, folder.RECORDS, folder.RESULT)
        there = [item for item in sorted((path / RUN).iterdir()) if item.name in names and item.read_bytes()]
        file, way = chance.choice(there), chance.choice([*sorted(CHANGES), "resealed"])
        about = f"{file.name} of a {'finished' if finished else 'half'} run, {way}"
        if way == "resealed":
            _resealed(file, chance)
        else:
            file.write_bytes(CHANGES[way](file.read_bytes(), chance))
        # the environment tells what the results were made with, and is no part of them
        return f"{file.name}, {_checked(about, path, finished, way != 'resealed' and file.name != folder.ENVIRONMENT)}"


def _other_form(tensors, chance):
    """The tensors, one of them of another shape or type, missing, renamed or twice."""
    name = chance.choice(sorted(tensors))
    tensor = tensors[name]
    change = chance.choice(["shape", "type", "missing", "renamed", "twice"])
    rest = {key: item for key, item in tensors.items() if key != name}
    if change == "shape":
        return {**rest, name: tensor.new_zeros((*tensor.shape[:-1], tensor.numel() + 3))}
    if change == "type":
        return {**rest, name: tensor.to(chance.choice([item for item in _TYPES if item != tensor.dtype]))}
    if change == "missing":
        return rest
    return {**rest, f"{name}x": tensor.clone(), **({name: tensor} if change == "twice" else {})}


_TYPES = (torch.float32, torch.float64, torch.int64, torch.uint8)


def checkpoints(seed):
    """A damaged checkpoint is refused in one line, or the run ends bit for bit as it would have; one that is whole but
    of another form is refused."""
    chance = random.Random(seed)
    finished = chance.random() < 0.1
    source = whole(SIZES[0])[0] if finished else half(SIZES[0])
    with place() as path:
        shutil.copytree(source, path, dirs_exist_ok=True)
        file, way = path / RUN / folder.CHECKPOINT, chance.choice([*sorted(IN_CHECKPOINT), "resealed"])
        if way == "resealed":
            tensors, header = checkpoint.load_checkpoint(file)
            checkpoint.save_checkpoint(file, _other_form(tensors, chance), header)
        else:
            file.write_bytes(IN_CHECKPOINT[way](file.read_bytes(), chance))
        found = _checked(f"checkpoint of a {'finished' if finished else 'half'} run, {way}", path, finished, True)
        assert way != "resealed" or finished or found == "refused", "a checkpoint of another form was taken"
        return f"{way}, {found}"


def race(seed):
    """Two commands for one folder at once: exactly one goes on, and the other says why it does not, or that the run is
    done."""
    chance = random.Random(seed)
    sizes = [SIZES[0], chance.choice(SIZES)]
    begun = chance.random() < 0.5
    with place() as path:
        if begun:  # something is there already
            train(path, sizes[0], kill_at=chance.randint(1, whole(SIZES[0])[2] // 2)).wait()
        starts = [0.0, chance.choice([0.0, 0.003, 0.03])]
        chance.shuffle(starts)
        both = [train(path, size, start) for size, start in zip(sizes, starts, strict=True)]
        ended = [process.wait() for process in both]
        for item in ended:
            assert item.trouble is None, f"units {sizes}: {item.trouble}"
        said = [item.value[0] for item in ended]
        about = f"units {sizes}, exits {[item.status for item in said]}: {[item.error for item in said]}"
        assert all(item.status == 0 or item.refused for item in said), about
        trained = [item for item in said if item.status == 0 and "done before" not in item.error]
        assert len(trained) == 1, about
        there = json.loads((path / RUN / folder.CONFIG).read_text())["hidden"]
        assert said[sizes.index(there)] in trained or sizes[0] == sizes[1], about
        assert made(path) == whole(there)[1], f"{about}: another result"
    alike = "one configuration" if sizes[0] == sizes[1] else "two configurations"
    return f"{alike}, {'the other refused' if any(item.refused for item in said) else 'the other found it done'}"


def _before():
    ready()
    for size in SIZES:
        whole(size)
    half(SIZES[0])


CAMPAIGNS = {
    "kills": Campaign(kill, before=_before),
    "checkpoints": Campaign(checkpoints, together=10, before=_before),
    "damage": Campaign(damage, together=10, before=_before),
    "races": Campaign(race, before=_before),
}
