"""CIFAR-10: read exactly from its files or their archive, and refused in one line if it is anything else."""

import dataclasses
import gzip
import hashlib
import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from lab_support.cifar_files import FOLDER, NAMES, archive_of, random_rows, write_cifar
from lab_support.data_sets import forget
from layernorm_lab.data import cifar10, source
from layernorm_lab.errors import RunError

REAL = Path(os.environ.get("LAYERNORM_DATA", "")) / "cifar10"  # read before the fixture hides it


def test_the_cases_are_the_rows(tmp_path):
    data = cifar10.CIFAR10.load(write_cifar(tmp_path / "data")).holding_out(4)
    rows = np.concatenate([random_rows(6, number) for number in range(5)])
    labels, pixels = rows[:, 0], rows[:, 1:]
    assert [len(data.train), len(data.valid), len(data.test)] == [26, 4, 20]
    assert torch.equal(torch.cat([data.train.labels, data.valid.labels]), torch.from_numpy(labels.astype(np.int64)))
    images = torch.cat([data.train.images, data.valid.images])
    assert images.shape == (30, 3, 32, 32)
    for case, colour, row, column in ((0, 0, 0, 0), (29, 2, 31, 31), (7, 1, 3, 30)):
        assert images[case, colour, row, column] == pixels[case, 1024 * colour + 32 * row + column]
    assert data.facts["original"] is False


def test_every_form_is_the_same_data(tmp_path):
    """In a folder of their own, beside it, as the archive, and as `prepare` packs them."""
    flat = write_cifar(tmp_path / "flat")
    forms = [flat, write_cifar(tmp_path / "nested" / FOLDER).parent, tmp_path / "archive"]
    forms[2].mkdir()
    archive_of(flat, forms[2] / cifar10.ARCHIVE)
    for origin in forms[1:]:
        prepared, facts = source.prepare_source(cifar10.CIFAR10, origin)
        assert (facts["train"], facts["test"]) == (30, 20)
        assert {path.name for path in prepared.iterdir()} == {cifar10.PACKED}
        forms.append(prepared)
    found = []
    for folder in (*forms, None):
        forget()
        found.append(cifar10.CIFAR10.load(folder).holding_out(1))
    for data in found[1:]:
        assert data.facts["fingerprint"] == found[0].facts["fingerprint"]
        assert torch.equal(data.train.images, found[0].train.images)
        assert torch.equal(data.test.labels, found[0].test.labels)


@pytest.fixture
def published(served, tmp_path, monkeypatch):
    """The data set as if the archive served here were the publisher's."""
    folder, url = served
    path = archive_of(write_cifar(tmp_path / "data"), folder / cifar10.ARCHIVE)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    other = dataclasses.replace(cifar10.CIFAR10, url=url, files={cifar10.ARCHIVE: digest})
    monkeypatch.setattr(cifar10, "CIFAR10", other)
    monkeypatch.setattr(cifar10, "_SHA256", digest)
    return path


def test_the_archive_is_downloaded_checked_and_known_as_the_original(published):
    data = cifar10.CIFAR10.load(None).holding_out(1)
    assert data.facts["original"] is True
    assert torch.equal(data.test.labels, torch.from_numpy(random_rows(20, 5)[:, 0].astype(np.int64)))
    published.unlink()
    forget()
    assert cifar10.CIFAR10.load(None).holding_out(1).facts == data.facts


def with_label(content, row, label):
    changed = bytearray(content)
    changed[3073 * row] = label
    return bytes(changed)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("data_batch_3.bin", lambda content: b"", "data_batch_3.bin has 0 bytes; a file of CIFAR-10 has 3073 for each"),
        ("data_batch_1.bin", lambda content: content[:-1], "data_batch_1.bin has 18437 bytes; a file of CIFAR-10 has"),
        ("test_batch.bin", lambda content: content + b"\n", "test_batch.bin has 61461 bytes"),
        ("data_batch_5.bin", lambda content: b"<html>not found</html>", "data_batch_5.bin has 22 bytes"),
        ("test_batch.bin", lambda content: with_label(content, 7, 10), "test_batch.bin: the label of image 8 is 10;"),
        # CIFAR-100's rows have two labels: 3074 bytes
        ("data_batch_2.bin", lambda content: bytes(3074 * 2), "data_batch_2.bin has 6148 bytes"),
    ],
)
def test_files_of_another_form_are_refused(tmp_path, name, change, message):
    folder = write_cifar(tmp_path / "data")
    path = folder / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(RunError) as caught:
        cifar10.CIFAR10.load(folder).holding_out(1)
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_files_are_named(tmp_path):
    folder = write_cifar(tmp_path / "data")
    (folder / "data_batch_4.bin").unlink()
    with pytest.raises(RunError, match=r"data_batch_4\.bin: No such file"):
        cifar10.CIFAR10.load(folder).holding_out(1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"lacks cifar-10-binary\.tar\.gz \(or its six \.bin files\)"):
        cifar10.CIFAR10.load(tmp_path / "empty").holding_out(1)


def damaged(archive):
    content = archive.read_bytes()
    archive.write_bytes(content[: len(content) // 2])


def altered(archive):
    content = bytearray(archive.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 100] = bytes(100)
    archive.write_bytes(content)


def no_tar(archive):
    archive.write_bytes(gzip.compress(b"no tar archive" * 100))


def backwards(archive):
    """The size in the first header is -1024. Who goes on behind it reads it again, for ever (CVE-2025-8194)."""
    content = bytearray(gzip.decompress(archive.read_bytes()))
    content[124:136] = (-1024).to_bytes(12, "big", signed=True)
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])
    archive.write_bytes(gzip.compress(content))


def lacking(archive):
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo(f"{FOLDER}/{NAMES[0]}")
        member.size = 3073
        tar.addfile(member, io.BytesIO(bytes(3073)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damaged, r"cifar-10-binary\.tar\.gz is damaged \("),
        (altered, r"cifar-10-binary\.tar\.gz is damaged \("),
        (lambda archive: archive.write_bytes(b"<html>"), r"cifar-10-binary\.tar\.gz is damaged \("),
        (no_tar, r"cifar-10-binary\.tar\.gz is damaged or no tar archive \("),
        (backwards, r"cifar-10-binary\.tar\.gz is damaged or no tar archive \(.* has -1024 bytes\)"),
        (lacking, r"cifar-10-binary\.tar\.gz lacks data_batch_2\.bin, .*test_batch\.bin$"),
    ],
)
def test_archives_that_are_not_whole_are_refused(tmp_path, change, message):
    (tmp_path / "archive").mkdir()
    change(archive_of(write_cifar(tmp_path / "data"), tmp_path / "archive" / cifar10.ARCHIVE))
    with pytest.raises(RunError, match=message):
        cifar10.CIFAR10.load(tmp_path / "archive").holding_out(1)


@pytest.mark.skipif(source.lack(cifar10.CIFAR10, REAL) is not None, reason="needs the files of CIFAR-10")
def test_real_files_hold_ten_classes_of_equal_size():
    data = cifar10.CIFAR10.load(REAL).holding_out(5000)
    assert [len(data.train), len(data.valid), len(data.test)] == [45_000, 5000, 10_000]
    assert torch.bincount(torch.cat([data.train.labels, data.valid.labels])).tolist() == [5000] * 10
