"""A data set of a few published files: where it is looked for, how it is put there, and how it is recognised.

Each data set is one `Source`: `load` finds its folder and reads the files. An embedded data set has no source.
"""

from __future__ import annotations

import ast
import contextlib
import fnmatch
import functools
import hashlib
import inspect
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import RunError, failing
from ..runs.files import locked, make_folder, names_in, path_text, read_bytes, read_content, write_atomic
from .packed import ENDING, Packed, open_packed, read_packed
from .progress import PercentDone, followed

if TYPE_CHECKING:
    from ..runs.restore import HasFacts

Dataset = TypeVar("Dataset", bound="HasFacts")

VARIABLE = "LAYERNORM_DATA"
"""The environment variable that names a folder with one folder for each data set."""


def plain_or_gzipped(name: str) -> tuple[str, ...]:
    """Lists the names of a file that may be compressed."""
    return name, f"{name}.gz"


@dataclass(frozen=True)
class Source(Generic[Dataset]):
    """A published data set.

    Attributes:
        name: the name of the data set and of its folder.
        summary: one line for `layernorm data list`.
        files: every file's name, as used in messages, and its published SHA-256. Without an address an entry may be a
            folder or a pattern (`*.txt`), and has no SHA-256.
        contents: the SHA-256 of the uncompressed content of files that are published compressed.
        read: reads the data set in a folder, and raises RunError if it is damaged. The last folder is remembered, as
            `load` reads it for every run of a command.
        url: the address of the files. None: they must be put in place by hand.
        spellings: (file's name) -> the names under which it may be found.
        form: what `files` are, for messages.
        packed: the name of a file that contains all of them in parsed form. `prepare` makes it.
        pack: (folder with `files`) -> the content of `packed`.
        terms: where to get the files that must be put in place by hand.
        make: (folder with the data that the data set is made from) -> (path, text) of every file. None: its files are
            published.
        made_from: what that folder contains, for messages.
    """

    name: str
    summary: str
    files: Mapping[str, str]
    read: Callable[[Path], Dataset]
    url: str | None = None
    contents: Mapping[str, str] = field(default_factory=dict)
    spellings: Callable[[str], tuple[str, ...]] = plain_or_gzipped
    form: str = "plain or gzipped"
    packed: str | None = None
    pack: Callable[[Path], bytes] | None = None
    terms: str = ""
    make: Callable[[Path], Iterable[tuple[str, str]]] | None = None
    made_from: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "read", functools.lru_cache(maxsize=1)(self.read))

    def load(self, data: Path | None) -> Dataset:
        """Reads the data set from the given folder. None: it is looked for, and downloaded if it is not found."""
        return self.read(locate(self, data))


def cache_folder() -> Path:
    """Returns the folder for downloads: the system's cache folder for `layernorm`."""
    import pooch

    return Path(pooch.os_cache("layernorm"))


def places(source: Source, data: Path | None) -> list[Path]:
    """Lists the folders in which a data set is looked for, in this order."""
    if data is not None:
        return [data]
    root = os.environ.get(VARIABLE)
    return [*([Path(root) / source.name] if root else []), cache_folder() / source.name]


def find_file(source: Source, folder: Path, name: str) -> Path | None:
    """Finds a data set's file in a folder, under any of its spellings, which may be paths or patterns."""
    names = names_in(folder, missing_ok=True)
    spellings = [other for other in source.spellings(name) if fnmatch.filter(names, other.partition("/")[0])]
    matches = (path for other in spellings for path in sorted(folder.glob(other)))
    return next(matches, None)


def required_file(source: Source, folder: Path, name: str) -> Path:
    """Finds a data set's file in a folder that must have it."""
    path = find_file(source, folder, name)
    if path is None:
        raise RunError(f"{folder} lacks {name}")
    return path


class PublishedFiles:
    """Reads the files of a data set in a folder, and notes the SHA-256 of each uncompressed content in `digests`."""

    def __init__(self, source: Source, folder: Path) -> None:
        self.source, self.folder = source, folder
        self.digests: dict[str, str] = {}

    def content(self, name: str) -> tuple[bytes, Path]:
        """Reads a file, and returns its uncompressed content and its path."""
        path = required_file(self.source, self.folder, name)
        content = read_content(path)
        self.digests[name] = sha256(content)
        return content, path

    def facts(self, **more: Any) -> dict[str, Any]:
        """Makes the facts of a data set that was read from these files."""
        return facts_of(self.source, self.folder, fingerprint(self.digests), **more)


def facts_of(source: Source, folder: Path, fingerprint: str, **more: Any) -> dict[str, Any]:
    """Makes the facts of a data set for records and reports: those of every data set, and ``more``."""
    return {"name": source.name, "fingerprint": fingerprint, **more, "folder": path_text(folder.absolute())}


def missing(source: Source, folder: Path) -> list[str]:
    """Lists the files that a folder lacks."""
    return [name for name in source.files if find_file(source, folder, name) is None]


def lack(source: Source, folder: Path) -> str | None:
    """Says what a folder lacks of a data set, in words. None: it has all files, or the packed one."""
    if packed_in(source, folder) is not None:
        return None
    absent = missing(source, folder)
    if not absent:
        return None
    if not folder.is_dir():
        return f"{folder} is a file, not a folder" if folder.exists() else f"there is no folder {folder}"
    return f"{folder} lacks {', '.join(absent)} ({source.form}) of the data set {source.name!r}"


def packed_in(source: Source, folder: Path) -> Path | None:
    """Finds the packed file in a folder; None if there is none."""
    path = folder / source.packed if source.packed else None
    return path if path is not None and path.is_file() else None


def packed_form(source: Source, folder: Path) -> bytes:
    """Reads the packed form of a data set from the folder, or makes it from the files, which is slow, and keeps it in
    the cache (`kept_parse`)."""
    path = packed_in(source, folder)
    if path is not None:
        return read_bytes(path)
    assert source.pack is not None
    place = kept_parse(source, folder)
    with contextlib.suppress(RunError, ValueError):  # if it is missing or damaged, it is made again
        content = read_bytes(place)
        open_packed(content)
        return content
    content = source.pack(folder)
    with contextlib.suppress(RunError):  # if the cache cannot be written, the files are parsed again next time
        write_atomic(make_folder(place.parent) / place.name, content)
    return content


def parsed(source: Source, folder: Path, form: Mapping[str, str]) -> tuple[Packed, Path]:
    """Reads a data set in parsed form, whose arrays must be as in `form` (`read_packed`). Also returns the path for
    errors about it."""
    path = packed_in(source, folder) or folder
    return read_packed(packed_form(source, folder), path, source.name, form), path


def kept_parse(source: Source, folder: Path) -> Path:
    """Names the place in the cache of the packed form of a folder's files, by the SHA-256 of them all and of the
    modules that parse them. Times and sizes would be quicker to compare, but an archive that is unpacked over another
    may leave both unchanged."""
    files = [file for path in _published(source, folder) for file in _files(path)]
    digests = {
        path_text(path.relative_to(folder)): _digest(path) for path in followed(files, f"looking at {source.name}")
    }
    return cache_folder() / "parsed" / source.name / f"{fingerprint(digests | parsers(source))}{ENDING}"


def parsers(source: Source) -> dict[str, str]:
    """Hashes the module that reads a data set, and each module in this folder that it needs: a changed one may parse
    the same files into something else."""
    paths, new = set(), {Path(inspect.getfile(inspect.unwrap(source.read)))}
    while new:
        paths |= new
        new = {imported for path in new for imported in _imported(path)} - paths
    return {f"parser {path.name}": _digest(path) for path in paths}


def _imported(path: Path) -> Iterator[Path]:
    """Finds the modules in the folder of a module that it imports: `from . import a, b` or `from .a import f`."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            for name in [node.module] if node.module else [alias.name for alias in node.names]:
                yield path.with_name(f"{name}.py")


def _published(source: Source, folder: Path) -> list[Path]:
    """Lists everything in a folder that is one of the data set's files or folders, under any spelling."""
    names = [spelling for name in source.files for spelling in source.spellings(name)]
    return sorted({path for name in names for path in folder.glob(name)})


def _files(path: Path) -> list[Path]:
    """Lists the file itself, or all files in a folder. Links to folders are followed, but never in a circle."""
    if not path.is_dir():
        return [path]
    paths, seen = [], set()
    for folder, inside, names in os.walk(path, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            inside.clear()
            continue
        seen.add(real)
        paths += [Path(folder) / name for name in names]
    return sorted(paths)


def _digest(path: Path) -> str:
    """Hashes a file. An unreadable one is an empty text: the parser decides whether that is an error."""
    try:
        return sha256(read_bytes(path))
    except RunError:
        return ""


def locate(source: Source, data: Path | None, option: str = "--data") -> Path:
    """Finds the folder with a data set's files: the given one, the environment's, the cache, or the cache after a
    download. The error names `option`, by which the user could give a folder, and says what to put where."""
    for folder in places(source, data):
        lacking = lack(source, folder)
        if lacking is None:
            return folder
        started = len(missing(source, folder)) < len(source.files) and folder != cache_folder() / source.name
        if started or data is not None:  # in the cache, a download is continued
            raise RunError(lacking)
    return download(source, option)


def download(source: Source, option: str) -> Path:
    """Downloads the files of a data set that the cache lacks.

    A file gets its name when it is complete and has the published SHA-256. Files that are there already are checked
    first, so that a data set never mixes two versions.
    """
    import pooch

    if source.url is None:
        raise RunError(_by_hand(source, cache_folder() / source.name, option))
    folder = make_folder(cache_folder() / source.name)
    pooch.get_logger().setLevel("WARNING")
    with _beside(source, folder, wait=True) as new:
        for name, digest in source.files.items():
            path = find_file(source, folder, name)
            if path is None:
                write_atomic(new / name, _fetched(source, name, digest, folder, option))
                _take_place(new / name, folder / name)
            elif not {digest, source.contents.get(name)} & {sha256(read_bytes(path)), sha256(read_content(path))}:
                raise RunError(
                    f"{path} is not the published {name} (another SHA-256); remove it to download the published file"
                )
    return folder


def _fetched(source: Source, name: str, digest: str, folder: Path, option: str) -> bytes:
    """Downloads a file into memory, so that a download that is killed leaves nothing behind."""
    import pooch
    import requests

    address, content = f"{source.url}{name}", io.BytesIO()
    try:
        pooch.HTTPDownloader(progressbar=_Bar(name), timeout=30)(address, content, None)
    except OSError as error:  # all errors of requests are OSErrors
        answer = error.response if isinstance(error, requests.HTTPError) else None
        why = f"the server answers {answer.status_code} {answer.reason}" if answer is not None else "no connection"
        raise RunError(f"cannot download {address} ({why}). {_by_hand(source, folder, option)}") from error
    if sha256(content.getvalue()) != digest:
        raise RunError(f"{address} has a wrong checksum; it was not kept. Try again later")
    return content.getvalue()


def prepare_source(source: Source, origin: Path | None) -> tuple[Path, dict[str, Any]]:
    """Puts a data set into the cache, from a folder or by downloading it, and checks it.

    Nothing in the folder is changed. Everything is read, checked and written next to the cache's files before the first
    of these is replaced. If the folder's files are those of the cache, nothing is replaced; if only some are, it is an
    error. Returns the cache's folder, and the facts of the data set.
    """
    if origin is None:
        folder = locate(source, None, "--source")
        return folder, source.read(folder).facts
    folder = cache_folder() / source.name
    lacking = lack(source, origin)
    if lacking is not None and source.make is None:
        raise RunError(lacking)
    used = _used(source, origin)
    ends = Path(os.path.realpath(folder))
    inside = [path for path in used if any(place.is_relative_to(ends) for place in _places_of(path, origin))]
    if inside and lacking is None and len(inside) == len(used) and lack(source, folder) is None:
        return folder, source.read(folder).facts
    if inside:
        raise RunError(f"{inside[0]} lies in the cache itself, in {folder}: expected a folder with files of its own")
    facts = source.read(origin).facts if lacking is None else {}
    names = [source.packed] if source.packed else [str(path.relative_to(origin)) for path in used]
    with _beside(source, make_folder(folder)) as new:
        if source.make is not None and lacking is not None:
            facts = _write_made_files(source, source.make(origin), new)
            if (folder / MADE).exists():
                _take_place(folder / MADE, new / "older")
            names.append(MADE)
        elif source.packed:
            write_atomic(new / source.packed, packed_form(source, origin))
            if packed_in(source, origin) is None:
                kept_parse(source, origin).unlink(missing_ok=True)  # it would be a second copy
        else:
            for name in names:
                write_atomic(make_folder((new / name).parent) / Path(name).name, read_bytes(origin / name))
            for other in (other for name in source.files for other in source.spellings(name)):
                (folder / other).unlink(missing_ok=True)  # an older copy under this name would be found first
        for name in reversed(names):
            _take_place(new / name, folder / name)
    return folder, facts


def _places_of(path: Path, origin: Path) -> list[Path]:
    """Lists the places of a path below a folder: its own, and where it leads to by links."""
    return [Path(os.path.realpath(origin)) / path.relative_to(origin), Path(os.path.realpath(path))]


MADE = "questions"
"""The folder, inside that of the cache, for files that are made from others."""


def _used(source: Source, origin: Path) -> list[Path]:
    """Lists the files that `prepare` reads in a folder: the packed file, the published ones, or those to make others
    from."""
    path = packed_in(source, origin)
    files = [path] if path is not None else [find_file(source, origin, name) for name in source.files]
    used = [path for path in files if path is not None]
    return used if len(used) == len(files) else [origin, *origin.glob("*")]


def _write_made_files(source: Source, texts: Iterable[tuple[str, str]], new: Path) -> dict[str, Any]:
    """Writes the files of a data set that is made from others into a folder, packs them, and returns their facts."""
    made = make_folder(new / MADE)
    with failing(f"write in {made}"):
        for name, text in texts:
            make_folder((made / name).parent)
            (made / name).write_text(text, encoding="utf-8")
    facts = source.read(made).facts
    write_atomic(new / str(source.packed), packed_form(source, made))
    kept_parse(source, made).unlink(missing_ok=True)  # it would be a second copy
    return facts


@contextlib.contextmanager
def _beside(source: Source, folder: Path, wait: bool = False) -> Iterator[Path]:
    """Makes a folder inside that of the cache, only for this process: another one is refused, or waits. Removes
    leftovers of killed processes."""
    with locked(make_folder(cache_folder() / f".{source.name}"), wait):
        for leftover in folder.glob(".making.*"):
            shutil.rmtree(leftover, ignore_errors=True)
        with failing(f"write in {folder}"):
            new = Path(tempfile.mkdtemp(dir=folder, prefix=".making."))
        try:
            yield new
        finally:
            shutil.rmtree(new, ignore_errors=True)


def _take_place(path: Path, place: Path) -> None:
    """Gives a file or a folder its name, in one step."""
    with failing(f"write {place}"):
        os.replace(path, make_folder(place.parent) / place.name)


def sha256(content: bytes) -> str:
    """Hashes a file's content, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def fingerprint(digests: Mapping[str, str]) -> str:
    """Makes one SHA-256 of those of a set of files, each of the uncompressed content."""
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _by_hand(source: Source, folder: Path, option: str) -> str:
    if source.make is not None:
        return (
            f"the data set {source.name!r} is not here: it is made from {source.made_from}. Make it with: layernorm "
            f"data prepare {source.name} --source DIR, the folder with them; or give a folder of it with {option}"
        )
    if source.url is None:
        return (
            f"the data set {source.name!r} is not here: {source.terms}. Then: layernorm data prepare {source.name} "
            f"--source DIR, the folder with {', '.join(source.files)}; or give that folder with {option}"
        )
    return (
        f"Put {', '.join(source.files)} ({source.form}) into {folder}, or into a folder of your own "
        f"and give it with {option}, or into a folder named {source.name} under ${VARIABLE}"
    )


class _Bar:
    """A download's progress, in the form that pooch asks for."""

    def __init__(self, name: str) -> None:
        self.total, self.done, self.progress = 0, 0, PercentDone(f"downloading {name}")

    def update(self, count: int) -> None:
        self.done = min(self.done + count, self.total)  # pooch counts whole chunks
        percent = 100 * self.done // self.total if self.total else 0
        self.progress.show(percent, f" of {self.total / 1e6:.1f} MB")

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        self.progress.close()
