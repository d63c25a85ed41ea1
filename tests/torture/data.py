"""Attacks on data: every kind of file damaged before it is prepared, and odd sources that must stay as they are."""

import functools
import gzip
import hashlib
import io
import os
import random
import shutil
import tarfile
from pathlib import Path

from lab_support import (
    binarized_files,
    book_files,
    captioned_files,
    cifar_files,
    iam_files,
    mnist_files,
    question_files,
)
from layernorm_lab.data import catalogue
from layernorm_lab.errors import RunError

from .arena import Campaign, Process, command, place, ready
from .runs import CHANGES


def _split(write):
    """A writer that makes its folder first."""

    def made(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write(folder)

    return made


def _text(name):
    def made(folder):
        book_files.write_text(folder.parent / "all")
        shutil.copytree(folder.parent / "all" / name, folder)

    return made


def _archive(folder):
    folder.mkdir(parents=True, exist_ok=True)
    cifar_files.archive_of(cifar_files.write_cifar(folder.parent / "unpacked"), folder / "cifar-10-binary.tar.gz")


WRITERS = {
    "mnist": mnist_files.write_mnist,
    "binarized-mnist": binarized_files.write_binarized,
    "iam-ondb": _split(iam_files.write_iam),
    "order-embeddings": _split(captioned_files.write_captioned),
    "cifar10": _archive,
    "cnn": question_files.write_questions,
    "books-cloze": question_files.write_books,
    "books": _text("books"),
    "sick": _text("sick"),
    "sentences": _text("sentences"),
}
"""Small data sets, by the name that `layernorm data prepare` has for them."""


def prepare(name, source, cache, **how):
    """The command that prepares a data set, in a process of its own."""
    return Process(functools.partial(command, "data", "prepare", name, "--source", source, cache=cache, **how))


def contents(folder):
    """The SHA-256 of every file below a folder, links followed."""
    places = [Path(root) / name for root, _, names in os.walk(folder, followlinks=True) for name in names]
    files = [item for item in sorted(places) if item.is_file()]  # no FIFO, no device
    return {str(item.relative_to(folder)): hashlib.sha256(item.read_bytes()).hexdigest() for item in files}


def _bomb(file, chance):
    if file.suffix != ".gz":
        file.write_bytes(CHANGES["more"](file.read_bytes(), chance))
        return
    with gzip.open(file, "ab", 1) as archive:
        archive.write(bytes(1 << 26))


def _tar_header(file, chance):
    """Gives one number of one member of an archive another value, negative ones too, under a right checksum."""
    if ".tar" not in file.suffixes:
        file.write_bytes(CHANGES["more"](file.read_bytes(), chance))
        return
    content = bytearray(gzip.decompress(file.read_bytes()))
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        header = chance.choice(archive.getmembers()).offset
    place, size = chance.choice([(100, 8), (124, 12), (136, 12), (156, 1)])  # mode, size, time, kind
    number = chance.choice([-1, -512, -(2**40), 0, 1, 2**33, 2**62])
    value = number.to_bytes(size, "big", signed=True) if size > 8 else bytes(chance.randbytes(size))
    content[header + place : header + place + size] = value
    if size > 8:
        content[header + place] = 0xFF if number < 0 else 0x80  # as a binary number
    content[header + 148 : header + 156] = b" " * 8
    content[header + 148 : header + 156] = b"%06o\0 " % sum(content[header : header + 512])
    file.write_bytes(gzip.compress(content, 1))


def _fifo(file, chance):
    file.unlink()
    os.mkfifo(file)


def _device(file, chance):
    file.unlink()
    file.symlink_to("/dev/zero")


def _damaged(change, file, chance):
    content = file.read_bytes()
    file.write_bytes(change(content, chance) if content else b"")


WAYS = {
    **{name: functools.partial(_damaged, change) for name, change in CHANGES.items()},
    "bomb": _bomb,
    "tar header": _tar_header,
    "FIFO": _fifo,
    "device": _device,
}
"""Ways to spoil a file of a data set."""


def parse(seed):
    """A data set with one spoilt file is prepared, or refused in one line."""
    chance = random.Random(seed)
    name = chance.choice(sorted(WRITERS))
    with place() as path:
        source = path / "source"
        WRITERS[name](source)
        file = chance.choice([item for item in sorted(source.rglob("*")) if item.is_file()])
        way = chance.choice(sorted(WAYS))
        WAYS[way](file, chance)
        before = contents(source)
        said, _ = command("data", "prepare", name, "--source", source, cache=path / "cache")
        about = f"{name}, {file.name}, {way}"
        assert said.status == 0 or said.refused, f"{about}: exit {said.status}, {said.error}"
        assert contents(source) == before, f"{about}: the source is another"
    return f"{way}, {'refused' if said.status else 'prepared'}"


def cached(seed):
    """A packed data set whose file in the cache is damaged: it is refused, or read as it was."""
    chance = random.Random(seed)
    source = chance.choice(PACKED)
    with place() as path:
        WRITERS[source.name](path / "source")
        said, _ = command("data", "prepare", source.name, "--source", path / "source", cache=path / "cache")
        assert said.status == 0, said.error
        held = path / "cache" / "layernorm" / source.name
        expected = _facts(source, held)
        shutil.copytree(held, path / "other")
        (file,) = (item for item in (path / "other").rglob("*") if item.name == source.packed)
        way = chance.choice(sorted(CHANGES))
        before = file.read_bytes()
        file.write_bytes(CHANGES[way](before, chance))
        try:
            found = _facts(source, path / "other")
        except RunError:
            return f"{way}, refused"
        assert file.read_bytes() == before, f"{source.name}, {way}: damage was not noticed"
        assert found == expected, f"{source.name}: other facts of the same file"
    return f"{way}, nothing changed"


def _facts(source, folder):
    return {name: value for name, value in source.read(folder).facts.items() if name != "folder"}


def _linked(source, path):
    """The cache's own folder, and what is in it links to the source."""
    path.mkdir(parents=True)
    for item in source.iterdir():
        (path / item.name).symlink_to(item)


KINDS = ("plain", "link", "cache", "linked cache", "link in cache", "read-only")
"""What a source may be."""


def _given(kind, path, source, held, chance):
    """Makes a source of that kind, and returns the folder whose files must stay, and the folder to give."""
    if kind == "link":
        (path / "link").symlink_to(source, target_is_directory=True)
        return source, path / "link"
    if kind == "read-only":
        for item in [source, *source.rglob("*")]:
            item.chmod(0o500 if item.is_dir() else 0o400)
        return source, source
    if kind == "plain":
        return source, source
    held.parent.mkdir(parents=True)
    if kind == "cache":
        shutil.copytree(source, held)
        return held, held
    if kind == "linked cache":
        held.symlink_to(source, target_is_directory=True)
    else:
        _linked(source, held)
    return source, chance.choice([source, held])


def _prepared(name, kind, chance, kill_at=None):
    """Prepares a data set from a source of that kind, compares the source with what it was, and counts the file
    operations, of which None are known if the command was killed."""
    with place() as path:
        source, cache = path / "source", path / "cache"
        WRITERS[name](source)
        before = contents(source)
        source, given = _given(kind, path, source, cache / "layernorm" / name, chance)
        ended = prepare(name, given, cache, within=path, kill_at=kill_at).wait()
        about = f"{name} from {kind}, killed at {kill_at}"
        assert ended.trouble in (None, "ended by SIGKILL"), f"{about}: {ended.trouble}"
        if ended.trouble is None:
            said, _ = ended.value
            assert said.status == 0 or said.refused, f"{about}: exit {said.status}, {said.error}"
        after = contents(source)
        lost = {item for item, digest in before.items() if after.get(item) != digest}
        assert not lost, f"{about}: lost or changed {sorted(lost)[:3]}"
        if os.path.lexists(given):
            assert all(contents(given).get(item) == digest for item, digest in before.items()), f"{about}: given lost"
        return None if ended.trouble else ended.value[1]


def keep(seed):
    """Preparing never changes its source: links, the cache itself, a read-only folder; killed anywhere, or not."""
    chance = random.Random(seed)
    name, kind = chance.choice(sorted(WRITERS)), KINDS[seed % len(KINDS)]
    at = chance.choice([None, chance.randint(1, 60)])
    killed = _prepared(name, kind, chance, at) is None
    return f"{kind}, {'killed' if killed else 'to the end'}, 0 files lost"


def keep_always(seed):
    """The same, killed at every file operation of the command in turn."""
    chance = random.Random(seed)
    pairs = [(name, kind) for kind in KINDS for name in sorted(WRITERS)]
    name, kind = pairs[seed * 7 % len(pairs)]  # 7 has no divisor in common with their number: each comes
    operations = _prepared(name, kind, chance)
    for at in range(1, operations + 1):
        _prepared(name, kind, chance, at)
    return f"{kind}, killed at each operation, 0 files lost"


PACKED = [item for item in map(catalogue.find_source, sorted(WRITERS)) if item.packed]

CAMPAIGNS = {
    "caches": Campaign(cached, together=10, before=ready),
    "parsers": Campaign(parse, together=10, before=ready),
    "sources": Campaign(keep, before=ready),
    "operations": Campaign(keep_always, before=ready),
}
