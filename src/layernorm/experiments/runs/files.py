"""Files that are whole or absent: atomic writes, JSON, and the lock that keeps two processes out of one folder."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import RunError, reason

try:
    import fcntl
except ImportError:  # Windows has no flock: there, keeping two processes apart is left to the user
    fcntl = None  # type: ignore[assignment]

MOST = 1 << 30
"""Bytes that a compressed file may unfold to: several times the largest file of any data set here."""

_CHUNK = 1 << 20


def make_folder(path: Path) -> Path:
    """Creates a folder with its parents; an error says why it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot create the folder {path}: {reason(error)}") from error
    return path


def write_atomic(path: Path, data: bytes | bytearray | memoryview) -> None:
    """Replaces a file by new content so that a crash at any moment leaves the old file or the new one, whole.

    The content goes to a temporary file in the same folder, reaches the disk (fsync), and takes the name in one step.
    """
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp's 0600 would hide results from the group
        os.replace(temporary, path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {reason(error)}") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # only where it did not take the name


def remove_leftovers(folder: Path) -> None:
    """Deletes the temporary files of writes that were killed half way. Only for the holder of the folder's lock."""
    for path in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            path.unlink()


def shown(path: Path | str) -> str:
    """A path as text that can be written and printed: what is no UTF-8 in it as \\xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def read_bytes(path: Path) -> bytes:
    """A regular file's bytes: a FIFO or a device, which may have no end, is refused.

    Raises:
        RunError: it cannot be read.
    """
    try:
        if stat.S_IFMT(path.stat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):  # of a folder the system says it
            raise RunError(f"cannot read {path}: it is no regular file")
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read {path}: {reason(error)}") from error


def read_content(path: Path, most: Callable[[bytes], int] = lambda head: MOST) -> bytes:
    """A regular file's bytes, uncompressed if its name ends in .gz.

    Args:
        path: the file.
        most: (the first bytes of the content) -> how many there may be, where the format tells; never above `MOST`.

    Raises:
        RunError: it cannot be read, is no whole gzip file, or unfolds to more.
    """
    content = read_bytes(path)
    if path.suffix != ".gz":
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            parts = [file.read(_CHUNK)]
            limit = min(most(parts[0]), MOST)
            left = limit - len(parts[0])
            while left >= 0 and (part := file.read(_CHUNK)):
                parts.append(part)
                left -= len(part)
    except (OSError, EOFError, zlib.error) as error:
        raise RunError(f"{path} is damaged ({error})") from error
    if left < 0:
        raise RunError(f"{path} is damaged: it unfolds to more than {limit} bytes")
    return b"".join(parts)


def decoded(content: bytes, path: Path, encoding: str = "utf-8") -> str:
    """A file's bytes as text.

    Args:
        path: of the file, for the message.
        encoding: "utf-8", or "utf-8-sig" where a byte order mark may stand before the text.

    Raises:
        RunError: they are not UTF-8.
    """
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise RunError(f"{path} is not UTF-8 text (byte {error.start})") from error


def write_json(path: Path, value: Any) -> None:
    """Writes a value as indented JSON, atomically."""
    write_atomic(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Reads a JSON file; an error names the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"cannot read {path}: {reason(error)}") from error
    except ValueError as error:
        raise RunError(f"{path} is not valid JSON ({error})") from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a folder for this process; a second process is refused. The system drops the lock when the holder dies."""
    path = folder / ".lock"
    try:
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - closed below, it must outlive this statement
    except OSError as error:
        raise RunError(f"cannot write in {folder}: {reason(error)}") from error
    with file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise RunError(f"{folder} is in use by another process ({holder})") from error
        with contextlib.suppress(OSError):  # a full disk must not stop a resume that has nothing to write yet
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
