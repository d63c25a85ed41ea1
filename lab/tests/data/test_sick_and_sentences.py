"""SICK and the four classification sets are read as published, and wrong files are one line."""

import pytest

from lab_support.book_files import write_text
from layernorm_lab.data import sentences, sick
from layernorm_lab.errors import RunError


@pytest.fixture
def folder(tmp_path):
    return write_text(tmp_path / "text")


def test_sick_is_read(folder):
    path = folder / "sick" / "SICK_test_annotated.txt"
    lines = path.read_text().splitlines()
    path.write_bytes("\r\n".join([*lines, ""]).encode())  # as published
    data = sick.SICK.load(folder / "sick")
    assert (len(data.train), len(data.trial), len(data.test)) == (60, 20, 30)
    _, first, second, score, _ = lines[1].split("\t")
    assert (data.test.first[0], data.test.second[0], data.test.scores[0]) == (first, second, float(score))
    assert data.facts["original"] is False


HEAD = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no file of SICK: expected the columns pair_ID"),
        (b"1\ta dog\ta cat\t3.5\tNEUTRAL\n", "is no file of SICK"),
        (HEAD.encode(), "has no pairs"),
        (f"{HEAD}1\ta dog\ta cat\t3.5\n".encode(), "line 2: expected 5 columns separated by tabs, got 4"),
        (f"{HEAD}1\ta dog\ta cat\t5.5\tNEUTRAL\n".encode(), "line 2: expected a score from 1 to 5, got '5.5'"),
        (f"{HEAD}1\ta dog\ta cat\tnan\tNEUTRAL\n".encode(), "expected a score from 1 to 5, got 'nan'"),
        (f"{HEAD}1\ta dog\t \t3.5\tNEUTRAL\n".encode(), "line 2: a sentence is empty"),
        (f"{HEAD}1\ta caf\u00e9\ta cat\t3.5\tNEUTRAL\n".encode("latin-1"), "is not UTF-8 text"),
    ],
)
def test_a_wrong_file_of_sick_is_one_line(folder, content, message):
    (folder / "sick" / "SICK_trial.txt").write_bytes(content)
    with pytest.raises(RunError, match=message) as caught:
        sick.SICK.load(folder / "sick")
    assert "SICK_trial.txt" in str(caught.value)


def test_the_sentences_are_read_as_latin_1_line_by_line(folder):
    # 0x85 ends a line for Python, but not in these files; CR has a blank line
    (folder / "sentences" / "custrev.pos").write_bytes(b"a fine \x85 player\n\ncaf\xe9 .\n")
    data = sentences.SENTENCES.load(folder / "sentences")
    assert data.sets["cr"].texts[:2] == ["a fine \x85 player", "caf\u00e9 ."]
    assert data.sets["cr"].classes.tolist() == [1] * 2 + [0] * 25
    assert data.facts["sentences"] == {"mr": 50, "cr": 27, "subj": 50, "mpqa": 50}


@pytest.mark.parametrize(
    ("content", "message"), [(b"\n \n", "mpqa.neg has no sentence"), (b"a\0b", "mpqa.neg is no text: it holds a zero")]
)
def test_a_wrong_file_of_sentences_is_one_line(folder, content, message):
    (folder / "sentences" / "mpqa.neg").write_bytes(content)
    with pytest.raises(RunError, match=message):
        sentences.SENTENCES.load(folder / "sentences")


@pytest.mark.parametrize("data", [sick.SICK, sentences.SENTENCES], ids=lambda data: data.name)
def test_a_missing_file_is_named(folder, data):
    next((folder / data.name).iterdir()).unlink()
    with pytest.raises(RunError, match=f"lacks .* of the data set '{data.name}'"):
        data.load(folder / data.name)
