"""Attacks on data: every kind of file damaged before it is prepared, and odd sources that must stay as they are."""

import functools
import hashlib
import os
import random
import shutil
from pathlib import Path

from support import binarized_files, book_files, captioned_files, cifar_files, iam_files, mnist_files, question_files

from .arena import Process, command, place
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


WRITERS = {
    "mnist": mnist_files.write_mnist,
    "binarized-mnist": binarized_files.write_binarized,
    "iam-ondb": _split(iam_files.write_iam),
    "order-embeddings": _split(captioned_files.write_captioned),
    "cifar10": _split(cifar_files.write_cifar),
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
    files = [item for item in sorted(places) if item.is_file()]
    return {str(item.relative_to(folder)): hashlib.sha256(item.read_bytes()).hexdigest() for item in files}


def parse(seed):
    """A data set with one damaged file is prepared, or refused in one line."""
    chance = random.Random(seed)
    name = chance.choice(sorted(WRITERS))
    with place() as path:
        source = path / "source"
        WRITERS[name](source)
        file = chance.choice([item for item in sorted(source.rglob("*")) if item.is_file()])
        way = chance.choice(sorted(CHANGES))
        content = file.read_bytes()
        if content:
            file.write_bytes(CHANGES[way](content, chance))
        before = contents(source)
        ended = prepare(name, source, path / "cache").wait()
        about = f"{name}, {file.name}, {way}"
        assert ended.trouble is None, f"{about}: {ended.trouble}"
        said, _ = ended.value
        assert said.status == 0 or said.refused, f"{about}: exit {said.status}, {said.error}"
        assert contents(source) == before, f"{about}: the source is another"


def _linked(source, path):
    """The cache's own folder, and what is in it links to the source."""
    path.mkdir(parents=True)
    for item in source.iterdir():
        (path / item.name).symlink_to(item)


def keep(seed):
    """Preparing never changes its source: links, the cache itself, a read-only folder, a kill at any file operation."""
    chance = random.Random(seed)
    name = chance.choice(sorted(WRITERS))
    with place() as path:
        source, cache = path / "source", path / "cache"
        WRITERS[name](source)
        given, before = source, contents(source)
        kind = chance.choice(["plain", "link", "cache", "linked cache", "read-only", "link in cache"])
        held = cache / "layernorm" / name
        if kind == "link":
            given = path / "link"
            given.symlink_to(source, target_is_directory=True)
        elif kind in ("cache", "linked cache", "link in cache"):
            held.parent.mkdir(parents=True)
            if kind == "cache":
                shutil.copytree(source, held)
                source = given = held
            elif kind == "linked cache":
                held.symlink_to(source, target_is_directory=True)
                given = chance.choice([source, held])
            else:
                _linked(source, held)
                given = chance.choice([source, held])
        elif kind == "read-only":
            for item in [source, *source.rglob("*")]:
                item.chmod(0o500 if item.is_dir() else 0o400)
        ended = prepare(
            name, given, cache, within=path, kill_at=chance.choice([None, None, chance.randint(1, 60)])
        ).wait()
        about = f"{name} from {kind}"
        assert ended.trouble in (None, "ended by SIGKILL"), f"{about}: {ended.trouble}"
        if ended.trouble is None:
            said, _ = ended.value
            assert said.status == 0 or said.refused, f"{about}: exit {said.status}, {said.error}"
        after = contents(source)
        lost = {item for item, digest in before.items() if after.get(item) != digest}
        assert not lost, f"{about}{', killed' if ended.trouble else ''}: lost or changed {sorted(lost)[:3]}"
        if os.path.lexists(given):
            assert all(contents(given).get(item) == digest for item, digest in before.items()), f"{about}: given lost"


CAMPAIGNS = {"parsers": parse, "sources": keep}
