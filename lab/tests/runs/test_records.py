"""Records survive kills and full disks, and are cut back on resuming."""

import json

import pytest

from layernorm_lab.errors import RunError
from layernorm_lab.runs import records


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "records.jsonl"
    for update in (10, 20, 30):
        records.append_record(path, {"update": update, "loss": update / 7})
    return path


def test_floats_come_back_bit_for_bit(path):
    assert [record["loss"] for record in records.read_records(path)] == [10 / 7, 20 / 7, 30 / 7]


@pytest.mark.parametrize("half", ["{", '{"update": 40, "lo', '{"update": 40}'])
def test_a_half_written_last_line_is_left_out_and_cut_off(path, half):
    whole = path.read_bytes()
    with open(path, "a") as file:
        file.write(half)  # even a line that is valid JSON: without its newline it may be a part
    assert [record["update"] for record in records.read_records(path)] == [10, 20, 30]
    records.cut_back(path, 30)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(("update", "left"), [(0, []), (9, []), (10, [10]), (29, [10, 20]), (99, [10, 20, 30])])
def test_cutting_back(path, update, left):
    assert [record["update"] for record in records.cut_back(path, update)] == left
    assert [record["update"] for record in records.read_records(path)] == left


def test_damage_before_the_last_line_is_an_error(path):
    lines = path.read_text().splitlines()
    lines[1] = lines[1][:5]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RunError, match=r"records\.jsonl, line 2 is not valid JSON"):
        records.read_records(path)


@pytest.mark.parametrize(("old", "new"), [(b"30", b"31"), (b"4.28", b"4.38"), (b"loss", b"lost")])
def test_a_changed_digit_is_noticed(path, old, new):
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    for look in (lambda: records.read_records(path), lambda: records.cut_back(path, 30)):
        with pytest.raises(
            RunError, match=r"line [123] is damaged .*does not match its SHA-256.*delete that run's folder"
        ):
            look()


@pytest.mark.parametrize("order", [[0, 1, 1, 2], [0, 1, 2, 0], [1, 0, 2]])
def test_doubled_and_exchanged_lines_are_noticed(path, order):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[number] for number in order))
    with pytest.raises(RunError, match=r"line [234] is of update \d0, after one of update \d0; put a whole copy back"):
        records.read_records(path)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"loss": 1.0}, "line 4 lacks update"),
        ({"update": 40.0}, "update is 40.0, not a whole number"),
        ({"update": 40, "loss": "low"}, "loss is 'low', not a number"),
        ({"update": 40, "loss": True}, "loss is True, not a number"),
    ],
)
def test_a_line_that_is_no_record_is_refused(path, record, message):
    records.append_record(path, record)
    with pytest.raises(RunError, match=message):
        records.read_records(path)


def test_a_line_without_its_digest_is_refused(path):
    with open(path, "a") as file:
        file.write('{"update": 40, "loss": 1.0}\n')
    with pytest.raises(RunError, match=r"line 4 is damaged .*another version wrote it"):
        records.read_records(path)


def test_a_full_disk_is_named(tmp_path):
    path = tmp_path / "records.jsonl"
    path.symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"cannot write .*: No space left on device; the last checkpoint is whole"):
        records.append_record(path, {"update": 1})


def test_no_file_is_no_records(tmp_path):
    assert records.read_records(tmp_path / "records.jsonl") == []
    assert records.cut_back(tmp_path / "records.jsonl", 5) == []


def test_a_record_is_one_line(path):
    assert [json.loads(line)["update"] for line in path.read_text().splitlines()] == [10, 20, 30]
