"""IAM-OnDB from its official directories: both forms of XML, transcripts by order, what is dropped or refused."""

import tracemalloc

import numpy as np
import pytest

from lab_support.iam_files import FORMS, strokes_path, transcript, transcript_path, write_iam, xml
from layernorm_lab import cli
from layernorm_lab.data import iam, source
from layernorm_lab.errors import RunError

STROKES = [[(10, 20), (13, 18), (13, 25)], [(40, 5)], [(41, 6), (50, 7)]]


@pytest.fixture
def folder(tmp_path):
    return write_iam(tmp_path / "iam")


def prepare(folder, capsys):
    code = cli.main(["data", "prepare", "iam-ondb", "--source", str(folder)])
    return code, capsys.readouterr()


@pytest.mark.parametrize("times", [False, True])
def test_strokes_become_offsets_and_ends(times, tmp_path):
    path = tmp_path / "line.xml"
    path.write_text(xml(STROKES, times))
    expected = [[0, 0, 0], [3, -2, 0], [0, 7, 1], [27, -20, 1], [1, 1, 0], [9, 1, 1]]
    assert iam.read_strokes(path).tolist() == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (xml(STROKES, True)[:-60], "is damaged"),
        (xml(STROKES, False).replace('y="18"', 'z="18"'), "is damaged"),
        (xml(STROKES, False).replace('y="18"', 'y="x"'), "is damaged"),
        ("<html><body>Please log in</body></html>", "is not a line's strokes: its root is 'html'"),
        (xml(STROKES, False).replace("ISO-8859-1", "unheard-of"), "is damaged"),
        (xml(STROKES, False).replace('y="18"', 'y="99999999999"'), "is damaged"),
        (xml(STROKES, False).replace('y="18"', f'y="{2**63}"'), "is damaged"),
        (
            xml(STROKES, False).replace("</Stroke>", "", 1).replace("</StrokeSet>", "</Stroke></StrokeSet>"),
            "is damaged",
        ),
        ("", "is damaged"),
    ],
)
def test_damaged_and_foreign_strokes_are_named(content, message, tmp_path):
    (tmp_path / "line.xml").write_text(content)
    with pytest.raises(RunError, match=f"line.xml {message}"):
        iam.read_strokes(tmp_path / "line.xml")


def test_strokes_around_strokes_are_refused_before_their_points_are_read(tmp_path):
    depth = 1000
    points = '<Point x="1" y="1"/>' * 1000 + "</Stroke>" * depth
    content = f"<WhiteboardCaptureSession>{'<Stroke>' * depth}{points}</WhiteboardCaptureSession>"
    (tmp_path / "line.xml").write_text(content)
    tracemalloc.start()
    try:
        with pytest.raises(RunError, match=r"is damaged \(a Stroke lies inside another\)"):
            iam.read_strokes(tmp_path / "line.xml")
        assert tracemalloc.get_traced_memory()[1] < 100 * len(content), "each point once for every Stroke around it"
    finally:
        tracemalloc.stop()


def test_lines_get_their_texts_lists_and_split(folder):
    found = iam.IAM.load(folder)
    assert [line.name for line in found.lines] == sorted(f"{form}-0{n}" for form in FORMS for n in (1, 2))
    by_name = {line.name: line for line in found.lines}
    assert by_name["a01-000u-02"].text == "Mr. Gaitskell's 7 points"
    assert by_name["b02-050-01"].text == "is to be made"
    assert (found.facts["train"], found.facts["valid"]) == (6, 2)
    assert {line.name[:8] for line in found.lines if line.list == iam.VALID} == {"c03-001z"}
    assert found.facts["dropped"] == "none"
    assert found.facts["original"] is False


def test_offsets_have_mean_0_and_deviation_1_over_training(folder):
    found = iam.IAM.load(folder)
    train = [found.normalised(line) for line in found.lines if line.list != iam.VALID]
    offsets = np.concatenate([points[1:, :2] for points in train])
    np.testing.assert_allclose(offsets.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(offsets.std(0), 1, rtol=1e-6)
    assert all((points[0, :2] == 0).all() for points in train)
    line = found.lines[0]
    np.testing.assert_allclose(
        found.normalised(line)[1:, :2] * found.deviation + found.mean, line.points[1:, :2], atol=1e-4
    )


def test_cleaning_fills_missing_readings_and_removes_over_long_steps():
    points = [[0, 0, 0], [5, 1, 0], [500, -101, 0], [3, 0, 1], [700, 0, 0], [1, 1, 0], [-900, 0, 1], [2, 2, 1]]
    expected = [[0, 0, 0], [5, 1, 0], [166, -34, 0], [167, -34, 0], [167, -33, 0], [3, 0, 1]]
    expected += [[700, 0, 0], [1, 1, 1], [2, 2, 1]]  # between strokes 700 stays; 900 goes, and its stroke ends before
    found = iam.clean(np.array(points, np.int32))
    assert found.dtype == np.int32
    assert found.tolist() == expected
    untouched = np.array([[0, 0, 0], [200, 0, 1], [800, 0, 1]], np.int32)
    assert iam.clean(untouched).tolist() == untouched.tolist()
    assert iam.clean(found[:6]).tolist() == found[:6].tolist()


def test_lines_are_cleaned_unless_asked_for_as_published(folder):
    far = [[(0, 0), (300, 0), (310, 5)], [(1500, 0), (1510, 9)]]
    strokes_path(folder, "a01-000u-01").write_text(xml(far, False))
    raw, cleaned = (iam.load_iam(folder, cleaned=value) for value in (False, True))
    assert raw.lines[0].points.tolist() == [[0, 0, 0], [300, 0, 0], [10, 5, 1], [1190, -5, 0], [10, 9, 1]]
    assert cleaned.lines[0].points.tolist() == [[0, 0, 0], [150, 0, 0], [150, 0, 0], [10, 5, 1], [10, 9, 1]]
    told = "1 steps longer than 200 units inside a stroke filled with readings, 1 longer than 800 removed"
    assert (raw.facts["cleaned"], cleaned.facts["cleaned"]) == ("no", told)
    assert raw.facts["fingerprint"] == cleaned.facts["fingerprint"], "of the lines as published"
    assert raw.deviation[0] > 1.2 * cleaned.deviation[0]


def test_sequences_are_cut_and_padded(folder):
    strokes_path(folder, "a01-000u-01").write_text(xml(STROKES, False))
    rows = iam.IAM.load(folder).sequences(valid=False, points=30)
    assert rows.points.shape == (6, 31, 3)
    assert rows.lengths.tolist() == [5, 30, 30, 30, 30, 30]
    assert (rows.points[0, 6:] == 0).all()
    assert rows.characters.tolist()[:2] == [len("A MOVE to stop"), len("Mr. Gaitskell's 7 points")]
    assert len(iam.IAM.load(folder).sequences(valid=True, points=30)) == 2


def test_the_alphabet_has_57_characters_and_digits_share_one():
    assert len(iam.ALPHABET) == 57
    codes = iam.encode("a7?Z .,'")
    assert codes.tolist() == [31, 0, 0, 30, 1, 2, 3, 4]


def test_dropped_lines_are_counted_by_reason(folder, capsys):
    transcript_path(folder, "a01-000x").unlink()
    transcript_path(folder, "b02-050").write_text(transcript(["one line alone"]))
    strokes_path(folder, "a01-000u-01").write_text(xml(STROKES, True)[:-60])
    for line in ("c03-001z-03", "z09-999-01"):
        path = strokes_path(folder, line)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(xml(STROKES, False))
    transcript_path(folder, "c03-001z").write_text(transcript(["a", "b", "c"]))
    strokes_path(folder, "c03-001z-02").write_text(xml([[(1, 1)]], False))
    code, text = prepare(folder, capsys)
    assert code == 0
    assert "train: 2" in text.out
    assert "valid: 2" in text.out
    for reason in (
        "2 without a transcript", "1 beyond the last line of the transcript", "1 damaged",
        "1 in none of the four lists", "1 with fewer than two points",
    ):  # fmt: skip
        assert reason in text.out


def test_prepared_data_are_found_without_the_directories(folder, capsys):
    before = iam.IAM.load(folder)
    assert prepare(folder, capsys)[0] == 0
    packed = source.cache_folder() / "iam-ondb" / "iam-ondb.safetensors"
    after = iam.IAM.load(None)
    assert after.facts["fingerprint"] == before.facts["fingerprint"]
    assert [line.text for line in after.lines] == [line.text for line in before.lines]
    assert all(np.array_equal(a.points, b.points) for a, b in zip(after.lines, before.lines, strict=True))
    assert cli.main(["data", "list"]) == 0
    assert f"found in {packed.parent}" in " ".join(capsys.readouterr().out.split())
    assert prepare(packed.parent, capsys)[0] == 0, "also from a packed copy"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "testset_v.txt").unlink(), "lacks testset_v.txt (the publisher's folders and lists)"),
        (lambda f: (f / "lineStrokes").rename(f / "strokes"), "lacks lineStrokes ("),
        (lambda f: (f / "trainset.txt").write_text("<html>\n"), "'<html>' is no form's name"),
        (lambda f: (f / "trainset.txt").write_text(""), "trainset.txt is not one of the data set's lists: it is empty"),
        (
            lambda f: [p.write_text("") for p in (f / "lineStrokes").rglob("*.xml")],
            "no line that can be used: 8 damaged",
        ),
        (
            lambda f: [p.unlink() for p in (f / "lineStrokes").glob("c03/*/*")],
            "6 lines for training and 0 for validation",
        ),
        (lambda f: (f / "iam-ondb.safetensors").write_bytes(b"PK no"), "iam-ondb.safetensors is damaged (it is no"),
    ],
)
def test_what_is_missing_or_foreign_is_one_line(change, message, folder, capsys):
    change(folder)
    code, text = prepare(folder, capsys)
    assert code == 1
    assert text.err.count("\n") == 1
    assert message in text.err


def test_without_data_the_command_says_where_to_get_them(capsys):
    for command in (["data", "prepare", "iam-ondb"], ["run", "handwriting"]):
        assert cli.main(command) == 1
        text = capsys.readouterr().err
        assert text.count("\n") == 1
        assert "asks for a registration at https://" in text
        assert "layernorm data prepare iam-ondb --source DIR" in text
