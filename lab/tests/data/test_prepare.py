"""`data prepare` takes nothing away from its source, whatever that is, and leaves a whole data set or the older one."""

import os
import shutil
from pathlib import Path

import pytest

from lab_support.data_sets import SETS, forget
from lab_support.mnist_files import NAMES, SPELLINGS, write_mnist
from lab_support.question_files import write_books
from layernorm_lab.data import mnist, questions, source
from layernorm_lab.errors import RunError


def contents(folder):
    """What a reader finds in a folder, through links."""
    paths = (Path(place) / name for place, _, names in os.walk(folder, followlinks=True) for name in names)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def prepare_leaves(data, origin):
    """Prepares twice, as two commands; the source is what it was, and the cache holds it."""
    before = contents(origin)
    for _ in range(2):
        forget()
        folder, facts = source.prepare_source(data, origin)
        assert contents(origin) == before
    assert folder == source.cache_folder() / data.name
    assert data.read(folder).facts["fingerprint"] == facts["fingerprint"]


def cached():
    return source.cache_folder() / "mnist"


def itself(tmp_path):
    return write_mnist(cached())


def link_to_the_cache(tmp_path):
    write_mnist(cached())
    (tmp_path / "link").symlink_to(cached())
    return tmp_path / "link"


def cache_is_a_link(tmp_path):
    folder = write_mnist(tmp_path / "elsewhere")
    source.cache_folder().mkdir(parents=True)
    cached().symlink_to(folder)
    return folder


def links_to_its_files(tmp_path):
    write_mnist(cached())
    (tmp_path / "links").mkdir()
    for name in NAMES:
        (tmp_path / "links" / SPELLINGS["dotted"](name)).symlink_to(cached() / name)
    return tmp_path / "links"


def hard_links_to_its_files(tmp_path):
    write_mnist(cached(), spell=SPELLINGS["gzipped"])
    (tmp_path / "links").mkdir()
    for name in NAMES:
        os.link(cached() / f"{name}.gz", tmp_path / "links" / f"{name}.gz")
    return tmp_path / "links"


def read_only(tmp_path):
    folder = write_mnist(tmp_path / "source")
    for path in folder.iterdir():
        path.chmod(0o400)
    folder.chmod(0o500)
    return folder


ODD = [itself, link_to_the_cache, cache_is_a_link, links_to_its_files, hard_links_to_its_files, read_only]


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_source_keeps_its_files(odd, tmp_path):
    prepare_leaves(mnist.MNIST, odd(tmp_path))


@pytest.mark.parametrize("name", ["order-embeddings", "iam-ondb", "cifar10"])
def test_the_cache_as_source_is_already_there(name):
    prepare_leaves(SETS[name].source, SETS[name].write(source.cache_folder() / name))


@pytest.mark.parametrize("name", SETS)
def test_prepared_data_are_found_and_are_those_of_the_files(name, tmp_path):
    write, data = SETS[name]
    folder = write(tmp_path / "files")
    first = data.load(folder).facts["fingerprint"]
    assert source.prepare_source(data, folder)[1]["fingerprint"] == first
    forget()
    assert data.load(None).facts["fingerprint"] == first
    assert data.load(write(tmp_path / "other", seed=1)).facts["fingerprint"] != first


def test_a_cache_of_links_as_source_is_already_there(tmp_path):
    write_mnist(tmp_path / "source")
    cached().mkdir(parents=True)
    for file in (tmp_path / "source").iterdir():
        (cached() / file.name).symlink_to(file)
    prepare_leaves(mnist.MNIST, cached())
    assert all(file.is_symlink() for file in cached().iterdir())


def test_links_to_some_of_the_caches_files_are_refused(tmp_path):
    origin = links_to_its_files(tmp_path)
    name = SPELLINGS["dotted"](NAMES[0])
    content = (origin / name).read_bytes()
    (origin / name).unlink()
    (origin / name).write_bytes(content)
    before = contents(origin)
    with pytest.raises(
        RunError, match=r"lies in the cache itself, in .*mnist: expected a folder with files of its own$"
    ):
        source.prepare_source(mnist.MNIST, origin)
    assert contents(origin) == before


def test_books_that_lie_where_questions_are_made_are_kept():
    origin = write_books(source.cache_folder() / "books-cloze" / source.MADE)
    before = contents(origin)
    with pytest.raises(RunError, match="lies in the cache itself"):
        source.prepare_source(questions.BOOKS_CLOZE, origin)
    assert contents(origin) == before


class Killed(BaseException):
    pass


@pytest.mark.parametrize("operation", range(40))
def test_killed_at_any_file_operation_it_loses_nothing(operation, tmp_path, monkeypatch):
    """As if the process ended before its n-th change of a file: nothing after that, not even cleaning up, is done."""
    origin = write_mnist(tmp_path / "source", train=50)
    write_mnist(cached(), train=40, spell=SPELLINGS["gzipped"])
    before, count = contents(origin), 0

    def before_operation(name, real):
        def call(*arguments, **options):
            nonlocal count
            count += 1
            if count > operation:
                raise Killed(name)
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for module, name in ((os, "replace"), (os, "unlink"), (os, "rename"), (os, "mkdir"), (os, "fsync")):
            patch.setattr(module, name, before_operation(name, getattr(module, name)))
        patch.setattr(shutil, "rmtree", before_operation("rmtree", shutil.rmtree))
        try:
            source.prepare_source(mnist.MNIST, origin)
        except Killed:
            pass
        else:
            assert operation >= count
    assert contents(origin) == before
    forget()
    assert source.prepare_source(mnist.MNIST, origin)[1]["train"] == 50
    forget()
    assert len(mnist.MNIST.load(None).holding_out(1).train) == 49
    assert {path.name for path in cached().iterdir()} == set(NAMES)


def test_two_commands_at_once_are_kept_apart(tmp_path):
    folder = write_mnist(tmp_path / "source")
    held = source._beside(mnist.MNIST, source.make_folder(cached()))
    with held, pytest.raises(RunError, match="in use by another process"):
        source.prepare_source(mnist.MNIST, folder)
