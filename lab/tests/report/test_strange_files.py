"""Files of a stranger, whose seals are right: a value that no run has is refused by the file's name and its own."""

import copy
import json
import math

import pytest

from lab_support.command import refused
from lab_support.runs import change, write_digits
from layernorm_lab.cli.report import make_report
from layernorm_lab.errors import RunError, UsageError
from layernorm_lab.report import summary
from layernorm_lab.runs.files import read_json
from layernorm_lab.runs.folder import find_runs
from layernorm_lab.runs.schema import sealed

STRANGE = ([], {}, None, True, math.nan, -math.inf, 1e308, 10**400, 2**70, 2.5, -1, "", "a\0b", "\ud800")


def places(value, before=()):
    """The places of all values in a JSON value, as tuples of names and numbers."""
    for name, item in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        yield (*before, name)
        yield from places(item, (*before, name))


def with_value(values, place, value):
    """JSON values with another one at a place."""
    changed = inner = copy.deepcopy(values)
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    return changed


def write(path, values):
    """A file with a right seal, and with what UTF-8 has no bytes for as an escape."""
    path.write_text(json.dumps(sealed(values)))


@pytest.fixture
def runs(tmp_path):
    for norm in ("none", "layer"):
        write_digits(tmp_path / "runs", norm, 128, 0, [0.3])
    return tmp_path / "runs"


def test_every_strange_value_in_a_summary_is_taken_or_refused(runs, tmp_path):
    path = tmp_path / "summary.json"
    summary.write_summary(path, find_runs([runs]).runs)
    whole = read_json(path)
    refusals = set()
    for place in places(whole):
        for value in STRANGE:
            write(path, with_value(whole, place, value))
            try:
                make_report([path])
            except (RunError, UsageError) as error:
                refusals.add((place, str(error)))
    assert len({place for place, _ in refusals}) > 30
    assert [text for _, text in refusals if path.name not in text and "digits-" not in text] == []


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("config", {"precision": []}, "precision is [], not one of float32, bfloat16"),
        ("config", {"learning_rate": 10**400}, "learning_rate is a number of 401 digits, not a finite number"),
        ("config", {"norm": "layer\0"}, "norm is 'layer\\x00', with a control character or no Unicode"),
        ("environment", {"data": {"name": "\ud800"}}, "data.name is '\\ud800', with a control character or no Unicode"),
        ("environment", {"starts": [{"command": "x", "update": "1"}]}, "update of a start is '1', not a whole number"),
        ("environment", {"starts": [{"command": 1}]}, "command of a start is 1, not a text"),
        ("result", {"test_error": math.nan}, "test_error is nan, not a finite number of at most 1e+100"),
    ],
)
def test_a_strange_value_in_a_run_is_named(runs, file, values, message, capsys):
    path = runs / "digits-layer-b128-s0" / f"{file}.json"
    write(path, {**read_json(path), **values})
    refused(["report", str(path.parent)], 1, f"{path} has an impossible value: {message}", capsys)


@pytest.mark.parametrize("value", [math.inf, 1e308, "0.3", None])
def test_a_strange_metric_is_named(runs, value, capsys):
    path = runs / "digits-layer-b128-s0" / "records.jsonl"
    record = {name: item for name, item in json.loads(path.read_text()).items() if name != "sha256"}
    path.write_text(json.dumps(sealed({**record, "test_error": value})) + "\n")
    refused(
        ["report", str(path.parent)], 1, f"{path}, line 1 has an impossible value: test_error is {value!r}, not", capsys
    )


def test_columns_of_several_lengths(runs, tmp_path, capsys):
    path = tmp_path / "summary.json"
    summary.write_summary(path, find_runs([runs]).runs)
    whole = read_json(path)
    whole["runs"][0]["records"]["epoch"] = []
    change(path, runs=whole["runs"])
    refused(["report", str(path)], 1, "the records of digits-layer-b128-s0 have columns of several lengths", capsys)
