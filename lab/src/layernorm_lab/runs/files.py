"""Files that are whole or absent: atomic writes, JSON, and the lock that keeps two processes out of one folder."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import json
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import RunError, failing, printable, reason
from .schema import check_values, sealed, unsealed

MOST = 1 << 30
"""Bytes that a compressed file may unfold to: several times the largest file of any data set here."""

UNFOLDED, SMALL = 100, 1 << 24
"""How many times its own size a compressed file may unfold to, if that is more than `SMALL` bytes. Images and texts
unfold to 3 to 20 times their size, a file that was made to fill the memory to 1000."""

_CHUNK = 1 << 20

_LOCKED = 1
"""The number of bytes at the beginning of ``.lock`` that are locked. On Windows nothing else can read or write them.
Behind them stands a line with the number of the process that holds the lock."""

ADVICE = "put a whole copy back, or delete that run's folder and give its command again"
"""The advice in an error about a damaged file of a run."""

_OURS = "layernorm-"
"""Part of the name of a temporary file, after the name of the file that it will become."""


def make_folder(path: Path) -> Path:
    """Creates a folder with its parents. The error says why it cannot be created."""
    with failing(f"create the folder {path}"):
        path.mkdir(parents=True, exist_ok=True)
    return path


def write_atomic(path: Path, data: bytes | bytearray | memoryview) -> None:
    """Replaces a file by new content so that a crash at any moment leaves either the old file or the new one.

    The content goes to a temporary file in the same folder, reaches the disk (fsync), and takes the name in one step.
    What is there and no file, such as /dev/null, is not replaced.
    """
    temporary = None
    try:
        with failing(f"write {path}"):
            if path.exists() and not (path.is_file() or path.is_dir()):  # of a folder the system says it
                raise OSError(errno.EINVAL, "it is no regular file")
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.{_OURS}", suffix=".tmp")
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~_umask())  # mkstemp's 0600 would hide results from the group
            os.replace(temporary, path)
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # it is still there only if it was not renamed


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Deletes the temporary files of killed writes of the files with these names. Only the holder of the folder's lock
    may call it."""
    for name in names:
        for path in folder.glob(f".{name}.{_OURS}*.tmp"):
            with contextlib.suppress(OSError):
                path.unlink()


def path_text(path: Path | str) -> str:
    """Writes a path as text that can be printed. Bytes that are not UTF-8 become \\xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def names_in(folder: Path, missing_ok: bool = False) -> list[str]:
    """Lists the names in a folder, sorted. With ``missing_ok``, what is missing or no folder has none."""
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        if missing_ok and isinstance(error, (FileNotFoundError, NotADirectoryError)):
            return []
        raise RunError(f"cannot read {folder}: {reason(error)}") from error


def check_regular(path: Path) -> None:
    """Refuses a FIFO or a device, which may have no end, with a RunError."""
    with failing(f"read {path}"):
        kind = stat.S_IFMT(path.stat().st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR):  # reading a folder gives the system's own error
        raise RunError(f"cannot read {path}: it is no regular file")


def read_bytes(path: Path) -> bytes:
    """Reads a regular file's bytes."""
    check_regular(path)
    with failing(f"read {path}"):
        return path.read_bytes()


def read_content(path: Path, most: Callable[[bytes], int] | None = None) -> bytes:
    """Reads a regular file's bytes, uncompressed if its name ends in .gz. `most`: (the first bytes of the content) ->
    the largest number of bytes by the format; by default `UNFOLDED` times the file's size. It is limited to `MOST`."""
    content = read_bytes(path)
    if path.suffix != ".gz":
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            parts = [file.read(_CHUNK)]
            limit = min(most(parts[0]) if most else max(UNFOLDED * len(content), SMALL), MOST)
            left = limit - len(parts[0])
            while left >= 0 and (part := file.read(_CHUNK)):
                parts.append(part)
                left -= len(part)
    except (OSError, EOFError, zlib.error) as error:
        raise RunError(f"{path} is damaged ({error})") from error
    if left < 0:
        raise RunError(f"{path} is damaged: uncompressed it has more than {limit} bytes")
    return b"".join(parts)


def decoded(content: bytes, path: Path, encoding: str = "utf-8") -> str:
    """Decodes UTF-8. With the encoding "utf-8-sig" a byte order mark may stand before the text."""
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise RunError(f"{path} is not UTF-8 text (byte {error.start})") from error


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes values as indented JSON with their SHA-256, atomically."""
    write_atomic(path, (json.dumps(sealed(values), indent=2, ensure_ascii=False) + "\n").encode())


def parse_json(text: bytes, place: str, advice: str = ADVICE) -> dict[str, Any]:
    """Reads a JSON text that was written with its SHA-256, and compares that. The error names its place, and has the
    advice."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{place} is not valid JSON ({error}); {advice}") from error
    try:
        return unsealed(values)
    except ValueError as error:
        raise RunError(f"{place} is damaged ({error}); {advice}") from error


def parse_values(text: bytes, place: str, advice: str = ADVICE) -> dict[str, Any]:
    """Does what `parse_json` does, and refuses numbers that cannot be drawn and texts that cannot be printed."""
    values = parse_json(text, place, advice)
    try:
        check_values(values)
    except ValueError as error:
        raise RunError(f"{place} {error}; {advice}") from error
    return values


def read_json(path: Path, advice: str = ADVICE) -> dict[str, Any]:
    """Reads what `write_json` wrote. An error names the file and what can be done."""
    return parse_values(read_bytes(path), str(path), advice)


@contextlib.contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[None]:
    """Locks a folder for this process. A second one is refused, or waits. The lock ends when the process does."""
    from filelock import FileLock, Timeout

    path = folder / ".lock"
    if os.path.lexists(path) and (not stat.S_ISREG(path.lstat().st_mode) or path.lstat().st_nlink > 1):
        # this process's number would be written into somebody's file, or into a FIFO
        raise RunError(f"cannot write in {folder}: {path.name} is a link or no regular file")
    lock = FileLock(path, blocking=False, fallback_to_soft=False)
    try:
        held = lock.acquire()
    except Timeout as error:
        used = f"{folder} is in use by another process ({holder(folder) or 'unknown'})"
        if not wait:
            raise RunError(f"{used}; let it end, or stop it, and give this command again") from error
        print(f"{printable(used)}; waiting for it", file=sys.stderr, flush=True)
        held = lock.acquire(blocking=True)
    except OSError as error:
        raise RunError(f"cannot write in {folder}: {reason(error)}") from error
    with held:
        # A full disk must not stop a resume that has nothing to write yet.
        with contextlib.suppress(OSError), open(path, "r+b", buffering=0) as file:
            file.seek(_LOCKED)
            file.write(f"{os.getpid()}\n".encode())
        yield


def holder(folder: Path) -> int | None:
    """Returns the number of the process that last locked a folder; None if it cannot be read."""
    try:
        with open(folder / ".lock", "rb", buffering=0) as file:
            file.seek(_LOCKED)
            return int(file.read(20).partition(b"\n")[0])
    except (OSError, ValueError):
        return None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
