"""Packed files carry the SHA-256 of their content: a change in one is noticed, and what they hold is checked."""

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from lab_support.data_sets import SETS, forget
from lab_support.iam_files import write_iam
from layernorm_lab.data import iam, packed, source
from layernorm_lab.data.catalogue import SOURCES
from layernorm_lab.errors import RunError

FINGERPRINTS = {  # by which runs that are finished know the files
    "iam-ondb": "83c9885914bcbc40013b75838309f7fe77c8db6912639124c53dbeb3c4a942f2",
    "books": "c2e9caee5dd5b428b73b5119e93fe475b1aac3fa216002c7240b96205237696d",
    "cnn": "44bc90991df366f7e06b7b2a5c593965d4b34049b4b2e61ceb403a851be94578",
    "binarized-mnist": "5ab0bbf0023f12c3b3ad8faca41f9ff1d5d9dc2c5b67691d215e101f11500b67",
    "cifar10": "1dacea1f7220764ec1c069c660a945b5a7e9f06b44870eac61d030d8e0c3fd66",
}


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_a_packed_file_has_the_files_fingerprint_and_no_other_byte(name, tmp_path):
    write, data = SETS[name]
    folder, facts = source.prepare_source(data, write(tmp_path / "files"))
    forget()
    assert data.read(folder).facts["fingerprint"] == facts["fingerprint"] == FINGERPRINTS[name]
    path = source.packed_in(data, folder)
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    random = np.random.default_rng(0)
    places = [*random.integers(8, 8 + size, 10), *random.integers(8 + size, len(content), 30), len(content) - 1]
    for place in places:
        changed = bytearray(content)
        changed[place] ^= 1 << int(random.integers(8))
        path.write_bytes(changed)
        forget()
        with pytest.raises(RunError, match=rf"{path.name} is damaged \(.*layernorm data prepare {name} --source DIR"):
            data.read(folder)


@pytest.mark.parametrize("name", ["iam-ondb", "books", "cnn"])
def test_a_folder_is_parsed_once_and_again_when_a_byte_changes(name, tmp_path):
    write, data = SETS[name]
    folder = write(tmp_path / "files")
    calls = []
    counted = replace(data, pack=lambda folder: calls.append(folder) or data.pack(folder))
    first = source.packed_form(counted, folder)
    assert source.packed_form(counted, folder) == first
    assert source.kept_parse(data, folder).read_bytes() == first
    assert len(calls) == 1
    assert data.read(folder).facts["fingerprint"] == FINGERPRINTS[name], "as `data prepare` has it"

    changed = next(path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".xml")
    times = changed.stat()
    changed.write_bytes(changed.read_bytes().swapcase())
    os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))  # its size and time stay
    forget()
    with contextlib.suppress(RunError):  # the changed file may be refused, as it would be without a cache
        assert source.packed_form(counted, folder) != first
    assert len(calls) == 2


EDITS = {
    # data set: modules whose edit changes how its files are read, and modules that its reader does not import
    "iam-ondb": (["iam", "packed", "source", "progress"], ["books", "text", "mnist", "catalogue"]),
    "books": (["books", "novels", "text", "packed"], ["iam", "cnn", "questions", "catalogue"]),
    "cnn": (["questions", "cloze", "novels", "cnn", "text"], ["books", "iam", "sick"]),
    "binarized-mnist": (["binarized_mnist", "packed"], ["iam", "mnist"]),
    "cifar10": (["cifar10", "mnist", "idx"], ["binarized_mnist", "digits", "text"]),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_of_a_module_discards_the_data_that_it_has_read_and_no_others(name, tmp_path):
    write, data = SETS[name]
    folder = write(tmp_path / "files")
    before = source.kept_parse(data, folder)
    for discards in (True, False):
        for module in EDITS[name][not discards]:
            with pytest.MonkeyPatch.context() as patch:
                edit(module, patch)
                assert (source.kept_parse(data, folder) != before) is discards, module
    assert source.kept_parse(data, folder) == before


def edit(module, patch):
    """Gives the file of a module another SHA-256, as an edit would."""
    digest_of = source._digest
    patch.setattr(source, "_digest", lambda path: "new" if path.name == f"{module}.py" else digest_of(path))


def test_parsers_are_the_modules_that_python_loads_for_a_reader():
    """Each reader is imported anew, without the other modules of its folder."""
    modules = {data.read.__module__ for data in SOURCES.values()}
    code = "import importlib, sys, torch, numpy\nfor reader in sys.argv[1:]:\n"
    code += "    for name in [name for name in sys.modules if name.startswith('layernorm_lab.data')]:\n"
    code += "        del sys.modules[name]\n"
    code += "    importlib.import_module(reader)\n"
    code += "    print(reader, *(name for name in sys.modules if name.startswith('layernorm_lab.data.')))"
    command = [sys.executable, "-c", code, *sorted(modules)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    loaded = {reader: {name.rpartition(".")[2] for name in names} for reader, *names in map(str.split, lines)}
    for data in SOURCES.values():
        found = {name.removeprefix("parser ").removesuffix(".py") for name in source.parsers(data)}
        assert found == loaded[data.read.__module__], data.name


def test_a_damaged_or_forbidden_cache_costs_a_parse_and_no_more(tmp_path):
    write, data = SETS["iam-ondb"]
    folder = write(tmp_path / "files")
    first = source.packed_form(data, folder)
    place = source.kept_parse(data, folder)
    for damage in (first[:-5], b"", b"x" * 100):
        place.write_bytes(damage)
        assert source.packed_form(data, folder) == first == place.read_bytes()
    place.unlink()
    place.parent.rmdir()
    place.parent.write_text("no folder")
    assert source.packed_form(data, folder) == first


def test_a_folder_of_links_is_looked_at_whole_and_never_for_ever(tmp_path):
    write, data = SETS["iam-ondb"]
    folder = write(tmp_path / "files")
    (tmp_path / "elsewhere").mkdir()
    strokes = next(folder.rglob("lineStrokes"))
    (tmp_path / "elsewhere" / "moved").mkdir()
    inner = next(path for path in sorted(strokes.iterdir()) if path.is_dir())
    inner.rename(tmp_path / "elsewhere" / "moved" / inner.name)
    inner.symlink_to(tmp_path / "elsewhere" / "moved" / inner.name)
    (strokes / "circle").symlink_to(strokes)
    before = source.kept_parse(data, folder)
    file = next(path for path in sorted(inner.resolve().rglob("*.xml")))
    file.write_bytes(file.read_bytes() + b" ")
    assert source.kept_parse(data, folder) != before


def test_preparing_leaves_no_second_copy(tmp_path):
    write, data = SETS["iam-ondb"]
    folder = write(tmp_path / "files")
    source.prepare_source(data, folder)
    assert not list((source.cache_folder() / "parsed").rglob("*.safetensors"))


def with_lengths(arrays, change):
    arrays["lengths"] = arrays["lengths"] + np.array([change, -change] + [0] * (len(arrays["lengths"]) - 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda a, b: a.update(points=a["points"][:, :2]),
            r"expected points to be int32 \[N, 3\], got int32 \[480, 2\]",
        ),
        (lambda a, b: a.update(points=a["points"].astype(np.int64)), r"got int64 \[480, 3\]"),
        (lambda a, b: a.update(lists=a["lists"][1:]), r"expected lengths to be int64 \[L\], got int64 \[8\]"),
        (lambda a, b: a.pop("lengths"), "got nothing"),
        (lambda a, b: with_lengths(a, 100), "its lines are not those of IAM-OnDB"),
        (lambda a, b: b["names"].__setitem__(0, "../../a01-000u-01"), "its lines are not those of IAM-OnDB"),
        (lambda a, b: b["texts"].pop(), "its lines are not those of IAM-OnDB"),
        (lambda a, b: b.pop("texts"), "is damaged .it lacks texts."),
        (lambda a, b: a["points"].__setitem__((0, 2), 7), "its lines are not those of IAM-OnDB"),
        (lambda a, b: a["lists"].__setitem__(0, 4), "its lines are not those of IAM-OnDB"),
    ],
)
def test_a_packed_file_of_a_right_digest_and_a_wrong_form_is_refused(change, message, tmp_path):
    content = iam.pack_iam(write_iam(tmp_path / "files"))
    kept = packed.read_packed(content, tmp_path, "iam-ondb", iam._ARRAYS)
    arrays = {name: array.copy() for name, array in kept.arrays.items()}
    about = json.loads(json.dumps(kept.about))
    change(arrays, about)
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "iam-ondb.safetensors").write_bytes(packed.packed_content(arrays, about))
    with pytest.raises(RunError, match=message):
        iam.IAM.load(tmp_path / "packed")


def test_original_lines_are_known_by_their_content(tmp_path, monkeypatch):
    folder = write_iam(tmp_path / "files")
    fingerprint = iam.IAM.load(folder).facts["fingerprint"]
    monkeypatch.setattr(iam, "_PUBLISHED", fingerprint)
    forget()
    assert iam.IAM.load(folder).facts["original"] is True
    forget()
    assert iam.IAM.load(write_iam(tmp_path / "other", seed=1)).facts["original"] is False
