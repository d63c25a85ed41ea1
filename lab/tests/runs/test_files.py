"""Files are whole or absent, and a folder belongs to one process."""

import contextlib
import functools
import gzip
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from layernorm_lab.errors import RunError
from layernorm_lab.runs import files


def test_a_write_replaces_the_file_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "file"
    files.write_atomic(path, b"old")
    files.write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_file_that_unfolds_to_fill_the_memory_is_refused(tmp_path):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(bytes(2 * files.SMALL)))
    assert files.UNFOLDED * path.stat().st_size < 2 * files.SMALL
    with pytest.raises(RunError, match=rf"text.gz is damaged: uncompressed it has more than {files.SMALL} bytes"):
        files.read_content(path)
    assert files.read_content(path, lambda head: 2 * files.SMALL) == bytes(2 * files.SMALL)


def test_permissions_follow_the_umask(tmp_path):
    previous = os.umask(0o027)
    try:
        files.write_atomic(tmp_path / "file", b"x")
    finally:
        os.umask(previous)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_failed_write_keeps_the_old_file(tmp_path):
    """A process of its own may write files of 1000 bytes: the system refuses the rest, as a full disk does."""
    resource = pytest.importorskip("resource")  # not on Windows
    path = tmp_path / "file"
    files.write_atomic(path, b"old")
    code = "import pathlib, sys; from layernorm_lab.runs.files import write_atomic; "
    code += "write_atomic(pathlib.Path(sys.argv[1]), bytes(5000))"
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (1000, 1000))
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, timeout=100)
    assert re.search(r"RunError: cannot write .*file: File too large", done.stderr)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_missing_folder_and_a_file_in_its_place_are_named(tmp_path):
    with pytest.raises(RunError, match=r"cannot write .*No such file or directory"):
        files.write_atomic(tmp_path / "nowhere" / "file", b"")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RunError, match=r"cannot create the folder .*file/below"):
        files.make_folder(tmp_path / "file" / "below")


def test_what_is_no_file_is_not_replaced_by_one(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(RunError, match=r"cannot write .*fifo: it is no regular file"):
        files.write_atomic(tmp_path / "fifo", b"x")
    assert [path.is_fifo() for path in tmp_path.iterdir()] == [True]


def test_broken_json_is_named(tmp_path):
    (tmp_path / "broken.json").write_text('{"a": ')
    with pytest.raises(RunError, match=r"broken\.json is not valid JSON"):
        files.read_json(tmp_path / "broken.json")
    with pytest.raises(RunError, match=r"cannot read .*missing\.json"):
        files.read_json(tmp_path / "missing.json")


def test_a_second_holder_is_refused_until_the_first_lets_go(tmp_path):
    refused = pytest.raises(RunError, match=rf"in use by another process \({os.getpid()}\)")
    with files.locked(tmp_path), refused, files.locked(tmp_path):
        pytest.fail("two holders")
    with files.locked(tmp_path):
        pass


def test_a_second_holder_may_wait(tmp_path, capsys):
    held, over = threading.Event(), []

    def hold():
        with files.locked(tmp_path):
            held.set()
            end = time.monotonic() + 60
            while "waiting" not in capsys.readouterr().err and time.monotonic() < end:
                time.sleep(0.01)
            over.append(time.monotonic() < end)

    first = threading.Thread(target=hold)
    first.start()
    held.wait()
    with files.locked(tmp_path, wait=True):
        assert over == [True]
    first.join()


def test_the_byte_that_is_locked_is_left_alone(tmp_path, monkeypatch):
    """On Windows it is an error to read or write it while the lock is held: the number of the holder would be lost."""

    class Lock(contextlib.nullcontext):  # leaves the file as it is
        def acquire(self):
            return self

    monkeypatch.setattr("filelock.FileLock", lambda *_, **__: Lock())
    (tmp_path / ".lock").write_bytes(b"~123456789\n")
    with files.locked(tmp_path):
        assert (tmp_path / ".lock").read_bytes()[:1] == b"~"
        assert files.holder(tmp_path) == os.getpid()


def test_a_lock_without_a_number_has_no_known_holder(tmp_path):
    assert files.holder(tmp_path) is None
    (tmp_path / ".lock").write_bytes(b"")
    assert files.holder(tmp_path) is None


def test_the_lock_of_a_killed_process_ends_though_its_child_lives(tmp_path):
    code = "import os, pathlib, sys, time; from layernorm_lab.runs.files import locked\n"
    code += "with locked(pathlib.Path(sys.argv[1])):\n    child = os.fork() == 0\n"
    code += "    if child:  # which has let go by now\n        print(os.getpid(), flush=True)\n    time.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as killed:
        child = int(killed.stdout.readline())
        try:
            killed.kill()
            assert killed.wait(timeout=100) == -signal.SIGKILL
            with files.locked(tmp_path):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_leftovers_of_killed_writes_go(tmp_path):
    for _ in range(2):
        write_until_killed(tmp_path / "checkpoint.safetensors")
    assert len(list(tmp_path.glob(".checkpoint.safetensors.*.tmp"))) == 2
    mine = [".mynotes.tmp", ".checkpoint.safetensors.mine.tmp", ".other.layernorm-abcdefgh.tmp", "records.jsonl"]
    for name in mine:
        (tmp_path / name).write_bytes(b"whole")
    files.remove_leftovers(tmp_path, ["checkpoint.safetensors", "records.jsonl"])
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(mine)


def write_until_killed(path):
    """A write whose process is killed before the content takes the name."""
    code = "import os, pathlib, signal, sys; from layernorm_lab.runs.files import write_atomic; "
    code += "os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL); "
    code += "write_atomic(pathlib.Path(sys.argv[1]), b'half')"
    assert subprocess.run([sys.executable, "-c", code, str(path)], timeout=100).returncode == -signal.SIGKILL


@pytest.mark.parametrize("kind", ["link", "hard link", "fifo", "folder"])
def test_a_lock_that_is_another_file_is_refused_and_left_alone(tmp_path, kind):
    notes, lock = tmp_path / "notes", tmp_path / "run" / ".lock"
    notes.write_text("mine")
    lock.parent.mkdir()
    make = {"link": os.symlink, "hard link": os.link}.get(kind)
    if make is not None:
        make(notes, lock)
    else:
        {"fifo": os.mkfifo, "folder": os.mkdir}[kind](lock)
    with pytest.raises(RunError, match=r"cannot write in .*run: "), files.locked(lock.parent):
        pytest.fail("held")
    assert notes.read_text() == "mine"
