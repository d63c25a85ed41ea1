"""Binarised MNIST: read exactly, and refused in one line if it is anything else."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from lab_support.binarized_files import NAMES, random_rows, write_binarized
from lab_support.data_sets import forget
from layernorm_lab.data import binarized_mnist as images
from layernorm_lab.data import source
from layernorm_lab.errors import RunError

REAL = Path(os.environ.get("LAYERNORM_DATA", "")) / "binarized-mnist"  # read before the fixture hides it


def test_the_rows_are_the_files(tmp_path):
    data = images.BINARIZED_MNIST.load(write_binarized(tmp_path / "data"))
    for number, split in enumerate(NAMES):
        expected = random_rows(len(getattr(data, split)), number)
        assert torch.equal(getattr(data, split), torch.from_numpy(expected))
    assert [len(data.train), len(data.valid), len(data.test)] == [12, 5, 7]
    assert data.facts["original"] is False


def test_gzipped_files_are_the_same_data(tmp_path):
    plain = images.BINARIZED_MNIST.load(write_binarized(tmp_path / "plain"))
    folder = write_binarized(tmp_path / "gzipped")
    for name in NAMES.values():
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
        (folder / name).unlink()
    forget()
    zipped = images.BINARIZED_MNIST.load(folder)
    assert zipped.facts["fingerprint"] == plain.facts["fingerprint"]
    assert torch.equal(zipped.train, plain.train)


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert len(images.BINARIZED_MNIST.load(write_binarized(tmp_path / "data")).train) == 12


def changed(row, old, new):
    def change(content):
        start = row * 1568
        return content[:start] + content[start:].replace(old, new, 1)

    return change


@pytest.mark.parametrize(
    ("change", "row"),
    [
        (lambda content: content[:-1], 12),  # the last newline
        (lambda content: content[: 3 * 1568 + 700], 4),  # cut short within a row
        (lambda content: content + b"0 1\n", 13),
        (lambda content: b"", 1),
        (lambda content: b"<html>not found</html>", 1),
        (changed(2, b"1", b"2"), 3),
        (changed(5, b"0 ", b"0,"), 6),
        (changed(5, b"0 0", b"0  "), 6),
        (changed(0, b"\n", b" "), 1),
        (lambda content: content.replace(b"\n", b"\r\n"), 1),
    ],
)
def test_files_of_another_form_are_refused_with_the_row(tmp_path, change, row):
    folder = write_binarized(tmp_path / "data")
    path = folder / NAMES["train"]
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(RunError, match=rf"{NAMES['train']} is damaged or no file of binary images: row {row} is not"):
        images.BINARIZED_MNIST.load(folder)


def test_missing_files_and_damaged_gzip_are_named(tmp_path):
    folder = write_binarized(tmp_path / "data")
    (folder / NAMES["test"]).unlink()
    with pytest.raises(RunError, match=rf"lacks {NAMES['test']} "):
        images.BINARIZED_MNIST.load(folder)
    (folder / f"{NAMES['test']}.gz").write_bytes(gzip.compress(b"x" * 100)[:-5])
    with pytest.raises(RunError, match=rf"{NAMES['test']}\.gz is damaged"):
        images.BINARIZED_MNIST.load(folder)


def test_prepare_checks_and_tells(tmp_path):
    folder, facts = source.prepare_source(images.BINARIZED_MNIST, write_binarized(tmp_path / "data"))
    assert (facts["train"], facts["valid"], facts["test"]) == (12, 5, 7)
    assert [path.name for path in folder.iterdir()] == ["binarized-mnist.safetensors"]
    forget()
    assert len(images.BINARIZED_MNIST.load(None).test) == 7


@pytest.mark.skipif(not REAL.is_dir(), reason="needs the real binarised MNIST")
def test_the_real_files_are_the_published_ones():
    data = images.BINARIZED_MNIST.load(REAL)
    assert data.facts["original"] is True
    assert [len(data.train), len(data.valid), len(data.test)] == [50_000, 10_000, 10_000]
    assert np.isclose(float(data.train.float().mean()), 0.1306, atol=1e-4)
