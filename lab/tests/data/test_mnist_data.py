"""The four idx files: found under every spelling, checked, told apart from the original."""

import os
from pathlib import Path

import numpy as np
import pytest

from lab_support.mnist_files import NAMES, SPELLINGS, idx_bytes, write_mnist
from layernorm_lab.data import catalogue, digits, idx, mnist, source
from layernorm_lab.errors import RunError, UsageError


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_gives_the_same_data(tmp_path, spelling):
    data = mnist.MNIST.load(write_mnist(tmp_path / "a", spell=SPELLINGS[spelling])).holding_out(5)
    plain = mnist.MNIST.load(write_mnist(tmp_path / "b")).holding_out(5)
    assert data.facts["fingerprint"] == plain.facts["fingerprint"]
    assert data.train.images.equal(plain.train.images)


def test_split_and_form(tmp_path):
    folder = write_mnist(tmp_path)
    raw, _ = idx.read_idx(folder / NAMES[0], 3)
    data = mnist.MNIST.load(folder).holding_out(8)
    assert (len(data.train), len(data.valid), len(data.test)) == (22, 8, 10)
    assert data.train.images.numpy().tolist() == raw[:22].reshape(22, -1).tolist()
    assert data.valid.images.numpy().tolist() == raw[22:].reshape(8, -1).tolist()
    assert data.facts["original"] is False


def damaged(folder, name, change):
    path = folder / name
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:-1], "its header announces 23520 bytes of data, there are 23519"),
        (lambda content: content + b"x", "there are 23521"),
        (lambda content: content[:10], "damaged or not an idx file"),
        (lambda content: b"", "damaged or not an idx file"),
        (lambda content: b"\1" + content[1:], "damaged or not an idx file"),
        (lambda content: content[:3] + b"\1" + content[4:], "damaged or not an idx file"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, change, message):
    folder = write_mnist(tmp_path)
    damaged(folder, NAMES[0], change)
    with pytest.raises(RunError, match=f"{NAMES[0]}.*{message}"):
        mnist.MNIST.load(folder).holding_out(5)


@pytest.mark.parametrize("change", [lambda c: c[:-20], lambda c: b"no gzip", lambda c: c[:30] + b"\0\0" + c[32:]])
def test_a_damaged_gzip_is_named(tmp_path, change):
    folder = write_mnist(tmp_path, spell=SPELLINGS["gzipped"])
    damaged(folder, NAMES[0] + ".gz", change)
    with pytest.raises(RunError, match=rf"{NAMES[0]}\.gz is damaged"):
        mnist.MNIST.load(folder).holding_out(5)


def test_labels_must_be_digits_and_go_with_the_images(tmp_path):
    folder = write_mnist(tmp_path)
    (folder / NAMES[3]).write_bytes(idx_bytes(np.full(10, 10)))
    with pytest.raises(RunError, match="a label is 10"):
        mnist.MNIST.load(folder).holding_out(5)
    (folder / NAMES[3]).write_bytes(idx_bytes(np.zeros(9)))
    with pytest.raises(RunError, match="10 images do not go with 9 labels"):
        mnist.MNIST.load(folder).holding_out(5)


def test_images_to_train_and_to_test_are_of_one_size(tmp_path):
    folder = write_mnist(tmp_path)
    side = idx.read_idx(folder / NAMES[0], 3)[0].shape[1]
    (folder / NAMES[2]).write_bytes(idx_bytes(np.zeros((10, 5, 3))))
    with pytest.raises(RunError, match=rf"one size, got {side} x {side} to train and 5 x 3 to test"):
        mnist.MNIST.load(folder)


@pytest.mark.parametrize("held_out", [0, 30, 31])
def test_held_out_must_leave_something(tmp_path, held_out):
    with pytest.raises(UsageError, match=rf"--held-out must lie in 1\.\.29 for the data in .*, got {held_out}"):
        mnist.MNIST.load(write_mnist(tmp_path)).holding_out(held_out)


def test_a_folder_that_lacks_a_file_is_named_with_the_file(tmp_path):
    folder = write_mnist(tmp_path)
    (folder / NAMES[2]).unlink()
    with pytest.raises(RunError, match=rf"{tmp_path} lacks {NAMES[2]}\.gz"):
        mnist.MNIST.load(folder).holding_out(5)


def test_the_folder_is_known_from_anywhere(tmp_path, monkeypatch):
    folder = write_mnist(tmp_path / "mnist")
    monkeypatch.chdir(tmp_path)
    assert mnist.MNIST.load(Path("mnist")).facts["folder"] == str(folder)


def test_the_given_folder_comes_before_the_environments_before_the_cache(tmp_path, monkeypatch):
    write_mnist(source.cache_folder() / "mnist", train=21)
    assert len(mnist.MNIST.load(None).holding_out(1).train) == 20
    write_mnist(tmp_path / "data" / "mnist", train=22)
    monkeypatch.setenv("LAYERNORM_DATA", str(tmp_path / "data"))
    assert len(mnist.MNIST.load(None).holding_out(1).train) == 21
    assert len(mnist.MNIST.load(write_mnist(tmp_path / "given", train=23)).holding_out(1).train) == 22


def test_preparing_from_a_folder_checks_before_it_copies(tmp_path):
    folder = write_mnist(tmp_path / "source")
    damaged(folder, NAMES[0], lambda content: content[:-1])
    with pytest.raises(RunError, match="is damaged"):
        source.prepare_source(mnist.MNIST, folder)
    assert not (source.cache_folder() / "mnist").exists()


def test_unknown_data_sets_suggest_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'mnist'"):
        catalogue.find_source("minst")


def test_digits_are_split_without_overlap():
    data = digits.load_digits().holding_out(197)
    assert (len(data.train), len(data.valid), len(data.test)) == (1200, 197, 400)
    assert data.train.images.max() == data.white == 16
    with pytest.raises(UsageError, match="--held-out"):
        digits.load_digits().holding_out(1397)


@pytest.mark.skipif("LAYERNORM_DATA" not in os.environ, reason="needs the real MNIST")
def test_the_real_files_are_the_original():
    data = mnist.MNIST.load(REAL / "mnist").holding_out(5000)
    assert data.facts["original"] is True
    assert (len(data.train), len(data.valid), len(data.test)) == (55_000, 5_000, 10_000)
    # the classes' counts of the published test set
    assert np.bincount(data.test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


REAL = Path(os.environ.get("LAYERNORM_DATA", ""))  # read before the fixture hides it
