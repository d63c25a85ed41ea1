"""Files that attack their parsers: bombs, sizes beyond 64 bits, FIFOs, devices, names that are no UTF-8."""

import gzip
import io
import os
import tarfile
import tracemalloc
import zlib

import numpy as np
import pytest

from lab_support.book_files import write_text
from lab_support.captioned_files import write_captioned
from lab_support.cifar_files import NAMES, write_cifar
from lab_support.data_sets import forget
from lab_support.iam_files import write_iam, xml
from lab_support.mnist_files import idx_bytes
from lab_support.question_files import write_books
from layernorm_lab import cli
from layernorm_lab.data import books, cifar10, cloze, iam, idx, novels, order_embeddings, source
from layernorm_lab.errors import RunError
from layernorm_lab.runs import files


def zeros_gzipped(head, count):
    """A small gzip file that unfolds to a head and so many zeros."""
    file = io.BytesIO()
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1) as packed:
        packed.write(head)
        for _ in range(count >> 20):
            packed.write(bytes(1 << 20))
    return file.getvalue()


def test_a_gzip_unfolds_to_no_more_than_its_header_announces(tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(zeros_gzipped(idx_bytes(np.zeros((2, 28, 28))), 200 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(RunError, match=r"images\.gz is damaged: uncompressed it has more than 1584 bytes"):
            idx.read_idx(path, 3)
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
    finally:
        tracemalloc.stop()


def test_a_gzip_unfolds_to_no_more_than_any_data_set_has(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST", 5 << 20)
    path = tmp_path / "text.gz"
    path.write_bytes(zeros_gzipped(b"", 20 << 20))
    with pytest.raises(RunError, match=r"text\.gz is damaged: uncompressed it has more than 5242880 bytes"):
        files.read_content(path)
    path.write_bytes(gzip.compress(b"a") + gzip.compress(b"b"))
    assert files.read_content(path) == b"ab", "members one after the other"


def test_sizes_of_idx_are_counted_beyond_64_bits(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(bytes((0, 0, 8, 3)) + np.array([1 << 31, 1 << 31, 4], ">u4").tobytes())
    with pytest.raises(RunError, match=rf"its header announces {1 << 64} bytes of data, there are 0"):
        idx.read_idx(path, 3)


@pytest.mark.parametrize("places", [(2**63 - 1, -(2**63)), (2**31 + 5, 2**31 + 6), (-(2**40), -(2**40))])
def test_coordinates_are_checked_before_they_wrap_around(places, tmp_path):
    path = tmp_path / "line.xml"
    path.write_text(xml([[(0, places[0]), (0, places[1])]], False))
    with pytest.raises(RunError, match=r"line\.xml is damaged \(a coordinate is"):
        iam.read_strokes(path)


def test_a_sparse_file_in_an_archive_is_no_file(tmp_path):
    """GNU tar's form of a file of zeros: a terabyte in a kilobyte."""
    (tmp_path / "data").mkdir()
    with tarfile.open(tmp_path / "data" / cifar10.ARCHIVE, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for name in NAMES:
            member = tarfile.TarInfo(name)
            member.pax_headers = {"GNU.sparse.size": str(1 << 40), "GNU.sparse.map": "0,0"}
            tar.addfile(member, io.BytesIO())
    with pytest.raises(RunError, match=r"lacks data_batch_1\.bin"):
        cifar10.CIFAR10.load(tmp_path / "data").holding_out(1)


@pytest.mark.parametrize("shape", [(1 << 60, 1 << 3), (1 << 40, 64), (1 << 70, 4)])
def test_features_of_an_impossible_size_are_refused(shape, tmp_path):
    folder = write_captioned(tmp_path / "data")
    path = folder / "images" / "10crop" / "val.npy"
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    path.write_bytes(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + bytes(16))
    with pytest.raises(RunError, match=r"val\.npy is damaged or not an \.npy file of numbers"):
        order_embeddings.ORDER_EMBEDDINGS.load(folder)


def read_strokes(path):
    return iam.read_strokes(path.rename(path.with_suffix(".xml")))


@pytest.mark.parametrize(
    "read", [files.read_content, novels.read_novel, lambda path: idx.read_idx(path, 3), read_strokes]
)
def test_fifos_and_devices_are_refused(read, tmp_path):
    (tmp_path / "device").symlink_to("/dev/null")
    with pytest.raises(RunError, match=r"cannot read .*: it is no regular file"):
        read(tmp_path / "device")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(RunError, match=r"cannot read .*: it is no regular file"):
        read(tmp_path / "fifo")


def test_a_damaged_block_in_a_whole_gzip_is_named(tmp_path):
    content = bytearray(gzip.compress(np.random.default_rng(0).bytes(4000)))
    content[10] |= 0b110  # a kind of block that does not exist
    (tmp_path / "file.gz").write_bytes(content)
    with pytest.raises(zlib.error):
        gzip.decompress(content)
    with pytest.raises(RunError, match=r"file\.gz is damaged \("):
        files.read_content(tmp_path / "file.gz")


ODD = os.fsdecode(b"caf\xe9")


def test_folders_and_books_may_have_names_that_are_no_utf_8(tmp_path, capsys, monkeypatch):
    folder = write_text(tmp_path / ODD) / "books"
    (folder / "A1_Brown.txt").rename(folder / f"{ODD}_{ODD}.txt")
    found = books.BOOKS.load(folder)
    assert r"caf\xe9_caf\xe9" in found.titles
    assert found.facts["folder"].encode().endswith(rb"caf\xe9/books")
    _, facts = source.prepare_source(books.BOOKS, folder)
    forget()
    assert books.BOOKS.load(None).facts["fingerprint"] == facts["fingerprint"] == found.facts["fingerprint"]
    asked = write_books(tmp_path / ODD / "asked")
    (asked / "B0_Ash.txt").rename(asked / f"B0_{ODD}.txt")
    assert cli.main(["data", "prepare", "books-cloze", "--source", str(asked)]) == 0
    assert any("caf" in name for name, _ in cloze.make_questions(asked))
    monkeypatch.setenv("LAYERNORM_DATA", str(tmp_path / ODD))
    capsys.readouterr()
    assert cli.main(["data", "list"]) == 0
    assert r"caf\xe9/books" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("write", "load"), [(write_iam, iam.IAM.load), (write_cifar, lambda f: cifar10.CIFAR10.load(f).holding_out(1))]
)
def test_every_loader_tells_its_folder_in_utf_8(write, load, tmp_path):
    assert load(write(tmp_path / ODD)).facts["folder"].encode().endswith(rb"caf\xe9")
