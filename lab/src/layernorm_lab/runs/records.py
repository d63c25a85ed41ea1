"""Records: one JSON line for each evaluation, with its SHA-256. Resuming drops the lines after the checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import RunError, reason
from .files import ADVICE, parse_values, read_bytes, write_atomic
from .schema import Values, check_numbers, sealed

Record = dict[str, Any]


def append_record(path: Path, record: Record) -> None:
    """Adds one line. It is on the disk when this returns, so a checkpoint never runs ahead of its records."""
    line = _line(record)
    try:
        with open(path, "ab", buffering=0) as file:
            if file.write(line) != len(line):  # a disk that fills up takes part of a line and reports no error
                raise OSError(28, "No space left on device")
            os.fsync(file.fileno())
    except OSError as error:
        raise RunError(f"cannot write {path}: {reason(error)}; the last checkpoint is whole") from error


def read_records(path: Path) -> list[Record]:
    """Reads all records, each of a later update than the one before it. An incomplete last line (after a kill, or on a
    full disk) is left out."""
    if not path.exists():
        return []
    lines = read_bytes(path).split(b"\n")[:-1]  # the part after the last newline is no complete line
    return checked((parse_values(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)), path)


def checked(rows: Iterable[Mapping[str, Any]], path: Path) -> list[Record]:
    """Makes records of what a file has of them. A RunError tells the line of one that is damaged."""
    records: list[Record] = []
    for number, row in enumerate(rows, 1):
        where = f", line {number}"
        try:
            check_numbers(row, whole=("update",))
        except ValueError as error:
            raise RunError(f"{path}{where} {error}; {ADVICE}") from error
        before = records[-1]["update"] if records else 0
        if row["update"] <= before:
            raise RunError(f"{path}{where} is of update {row['update']}, after one of update {before}; {ADVICE}")
        records.append(Values(row, path, where))
    return records


def cut_back(path: Path, update: int) -> list[Record]:
    """Drops the records after an update (the checkpoint's, from which the run resumes) and returns the others."""
    kept = [record for record in read_records(path) if record["update"] <= update]
    content = b"".join(map(_line, kept))
    if not path.exists() or path.read_bytes() != content:
        write_atomic(path, content)
    return kept


def _line(record: Record) -> bytes:
    return (json.dumps(sealed(record)) + "\n").encode()
