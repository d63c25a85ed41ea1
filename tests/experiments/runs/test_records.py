"""Records survive kills and full disks, and are cut back on resuming."""

import json

import pytest

from layernorm.experiments.errors import RunError
from layernorm.experiments.runs import records


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "records.jsonl"
    for update in (10, 20, 30):
        records.append(path, {"update": update, "loss": update / 7})
    return path


def test_floats_come_back_bit_for_bit(path):
    assert [record["loss"] for record in records.read(path)] == [10 / 7, 20 / 7, 30 / 7]


@pytest.mark.parametrize("half", ["{", '{"update": 40, "lo', '{"update": 40}'])
def test_a_half_written_last_line_is_left_out_and_cut_off(path, half):
    whole = path.read_bytes()
    with open(path, "a") as file:
        file.write(half)  # even a line that is valid JSON: without its newline it may be a part
    assert [record["update"] for record in records.read(path)] == [10, 20, 30]
    records.cut_back(path, 30)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(("update", "left"), [(0, []), (9, []), (10, [10]), (29, [10, 20]), (99, [10, 20, 30])])
def test_cutting_back(path, update, left):
    assert [record["update"] for record in records.cut_back(path, update)] == left
    assert [record["update"] for record in records.read(path)] == left


def test_damage_before_the_last_line_is_an_error(path):
    lines = path.read_text().splitlines()
    lines[1] = lines[1][:5]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RunError, match=r"records\.jsonl, line 2: not valid JSON"):
        records.read(path)


def test_a_full_disk_is_named(tmp_path):
    path = tmp_path / "records.jsonl"
    path.symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"cannot write .*: No space left on device; the last checkpoint is whole"):
        records.append(path, {"update": 1})


def test_no_file_is_no_records(tmp_path):
    assert records.read(tmp_path / "records.jsonl") == []
    assert records.cut_back(tmp_path / "records.jsonl", 5) == []


def test_a_record_is_one_line(path):
    assert [json.loads(line)["update"] for line in path.read_text().splitlines()] == [10, 20, 30]
