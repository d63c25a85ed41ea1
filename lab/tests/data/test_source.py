"""Downloads: checked before they are kept, and clear about what to do without a network."""

import dataclasses
import gzip
import hashlib

import pytest

from lab_support.mnist_files import SPELLINGS, write_mnist
from layernorm_lab.data import catalogue, mnist
from layernorm_lab.data import source as sources
from layernorm_lab.errors import RunError


@pytest.fixture
def source(served):
    """MNIST as if the files served here were the published ones."""
    folder, url = served
    write_mnist(folder, spell=SPELLINGS["gzipped"])
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    return dataclasses.replace(mnist.MNIST, url=url, files={name: digests[name] for name in mnist.MNIST.files})


def test_files_are_downloaded_once_with_progress(source, served, capsys):
    folder = sources.locate(source, None)
    for path in served[0].iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()
    assert "downloading train-images-idx3-ubyte.gz: 100 %" in capsys.readouterr().err
    for path in served[0].iterdir():
        path.unlink()
    assert sources.locate(source, None) == folder


def test_a_wrong_checksum_is_named_and_nothing_is_kept(source, served):
    path = served[0] / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(RunError, match=r"t10k-images-idx3-ubyte\.gz has a wrong checksum"):
        sources.locate(source, None)
    kept = sorted(path.name for path in (sources.cache_folder() / "mnist").iterdir())
    assert kept == ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"]


def test_an_interrupted_download_goes_on_with_the_missing_files(source, served):
    path = served[0] / "t10k-images-idx3-ubyte.gz"
    content = path.read_bytes()
    path.write_bytes(content + b"x")
    with pytest.raises(RunError):
        sources.locate(source, None)
    path.write_bytes(content)
    assert not sources.missing(source, sources.locate(source, None))


def test_offline_says_what_to_put_where(source):
    nowhere = dataclasses.replace(source, url="http://127.0.0.1:9/")
    with pytest.raises(RunError) as caught:
        sources.locate(nowhere, None)
    message = str(caught.value)
    assert all(name in message for name in source.files)
    assert str(sources.cache_folder() / "mnist") in message
    assert "--data" in message
    assert "$LAYERNORM_DATA" in message
    with pytest.raises(RunError, match="give it with --source"):
        sources.prepare_source(nowhere, None)


def test_a_missing_page_is_an_error_that_says_so(source):
    with pytest.raises(RunError, match=r"cannot download .*gz \(the server answers 404 File not found\)"):
        sources.locate(dataclasses.replace(source, url=source.url + "missing/"), None)


def test_a_download_that_is_killed_leaves_no_file(source, served, monkeypatch):
    """Killed between two pieces, without any cleaning up: the folder has been looked at from there."""
    seen = []

    def look(bar, count):
        seen.append([path.name for path in (sources.cache_folder() / "mnist").rglob("*") if path.is_file()])

    monkeypatch.setattr(sources._Bar, "update", look)
    sources.locate(source, None)
    names = list(source.files)
    assert all(names[: names.index(found[-1]) + 1] if found else True for found in seen)
    assert {name for found in seen for name in found} <= set(names)


def test_what_a_killed_command_left_goes_with_the_next(source, served):
    leftover = sources.cache_folder() / "mnist" / ".making.killed" / "train-images-idx3-ubyte.gz"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"half")
    folder = sources.locate(source, None)
    assert {path.name for path in folder.iterdir()} == set(source.files)


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte.gz", "train-images-idx3-ubyte"])
def test_a_download_goes_on_only_beside_the_published_files(source, served, name):
    folder = sources.cache_folder() / "mnist"
    folder.mkdir(parents=True)
    write_mnist(folder / "other", seed=1, spell=SPELLINGS["gzipped" if name.endswith(".gz") else "plain"])
    (folder / "other" / name).rename(folder / name)
    with pytest.raises(RunError, match=rf"{name} is not the published train-images-idx3-ubyte\.gz .*; remove it"):
        sources.locate(source, None)
    assert not (folder / "train-labels-idx1-ubyte.gz").exists()
    (folder / name).unlink()
    assert not sources.missing(source, sources.locate(source, None))


@pytest.mark.parametrize("spelling", ["plain", "gzipped"])
def test_a_download_goes_on_beside_the_published_content(source, spelling):
    folder = write_mnist(sources.cache_folder() / "mnist", spell=SPELLINGS["plain"])
    contents = {f"{path.name}.gz": hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    name = "train-images-idx3-ubyte"
    for path in folder.iterdir():
        if path.name != name:
            path.unlink()
        elif spelling == "gzipped":
            (folder / f"{name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
            path.unlink()
    source = dataclasses.replace(source, contents=contents)
    assert not sources.missing(source, sources.locate(source, None))


def test_publishers_are_asked_over_https():
    assert all(source.url is None or source.url.startswith("https://") for source in catalogue.SOURCES.values())
