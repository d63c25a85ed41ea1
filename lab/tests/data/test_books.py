"""Books as numbered words: splits by author, triples that stay within a book, the packed file, wrong files."""

import pytest
import torch
from safetensors.numpy import load

from lab_support.book_files import write_text
from lab_support.data_sets import forget
from layernorm_lab.data import books, novels, source
from layernorm_lab.errors import RunError

LONG = "The dog " + "saw the cat and " * 8 + "left."


@pytest.fixture
def folder(tmp_path):
    return write_text(tmp_path / "text") / "books"


def write(folder, **texts):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def test_words_are_numbered_by_their_count_in_the_training_books(tmp_path):
    texts = {"T_One": "A b b. C c c b.\nA d.", "T_Two": "Z z. Z z.", "T_Three": "Y y. Y."}
    found = books.BOOKS.load(write(tmp_path / "b", **texts))
    train = found.titles[found.split.tolist().index(0)]
    counts = {"T_One": ["b", "c", ".", "a", "d"], "T_Two": ["z", "."], "T_Three": ["y", "."]}[train]
    first = found.words[: len(counts)]
    assert sorted(first) == sorted(counts), "words of the training books come first"
    assert [found.text(number) for number in range(len(found.ends) - 1) if found.book[number] == 0] == (
        ["a b b .", "c c c b .", "a d ."] if found.titles[0] == "T_One" else ["y y .", "y ."]
    )
    ends = found.sentences(4)
    ids, lengths = ends.batch(torch.arange(len(ends)))
    assert (ids[lengths - 1, torch.arange(len(ends))] == 0).all(), "each sentence has its end"
    assert set(ids.flatten().tolist()) == {0, 1, 2, 3}
    assert found.vocabulary(4).words == found.words[:2]


def test_no_author_is_in_two_splits(folder):
    found = books.BOOKS.load(folder)
    assert set(found.split.tolist()) == {0, 1, 2}
    of_author = {}
    for title, split in zip(found.titles, found.split.tolist(), strict=True):
        of_author.setdefault(title.partition("_")[2], set()).add(split)
    assert all(len(splits) == 1 for splits in of_author.values())
    assert found.facts["books"] == {name: found.split.tolist().count(n) for n, name in enumerate(books.SPLITS)}


def test_triples_stay_within_a_book_and_leave_out_long_sentences(tmp_path):
    three = "One dog. Two dogs. Three dogs."
    texts = {"A_A": f"{three}\n{three}", "B_B": f"{three} {LONG} {three}", "C_C": "One. Two."}
    found = books.BOOKS.load(write(tmp_path / "b", **texts))
    middle = sorted(torch.cat([found.triples(split) for split in books.SPLITS]).tolist())
    # A: sentences 0..5, over a paragraph's end too; B: 6..12 with the long one at 9; C: 13 and 14
    assert middle == [1, 2, 3, 4, 7, 11]
    for number, split in enumerate(books.SPLITS):
        for place in found.triples(split).tolist():
            assert len(set(found.book[place - 1 : place + 2].tolist())) == 1
            assert found.split[found.book[place]] == number


def test_the_longest_sentence_of_a_triple_has_29_words(tmp_path):
    def of(count):
        return "The " + "dog " * (count - 2) + "ran."  # with the point, one word more than count

    texts = {"A_A": f"One. {of(28)} Two.", "B_B": f"One. {of(29)} Two.", "C_C": "One. Two. Three."}
    found = books.BOOKS.load(write(tmp_path / "b", **texts))
    assert sorted(torch.cat([found.triples(split) for split in books.SPLITS]).tolist()) == [1, 7]


def test_a_folder_is_packed_once_and_a_damaged_pack_is_made_anew(folder, monkeypatch):
    first = books.BOOKS.load(folder)
    place = source.kept_parse(books.BOOKS, folder)
    forget()
    with monkeypatch.context() as patch:
        patch.setattr(novels, "read_novels", None)
        assert books.BOOKS.load(folder).ids.tolist() == first.ids.tolist()
    place.write_bytes(place.read_bytes()[:-100])
    forget()
    assert books.BOOKS.load(folder).ids.tolist() == first.ids.tolist()
    assert load(place.read_bytes())["ids"].tolist() == first.ids.tolist()
    (folder / "A1_Brown.txt").write_text("Another text. It is short.\n")
    forget()
    assert books.BOOKS.load(folder).facts["fingerprint"] != first.facts["fingerprint"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("E_Empty", b"", "E_Empty.txt is empty"),
        ("E_Latin", "caf\u00e9".encode("latin-1"), r"E_Latin.txt is not UTF-8 text \(byte 3\)"),
        ("E_Zero", b"a\0b", "E_Zero.txt is no text: it holds a zero byte"),
    ],
)
def test_a_wrong_book_is_one_line(folder, name, content, message):
    (folder / f"{name}.txt").write_bytes(content)
    with pytest.raises(RunError, match=message):
        books.BOOKS.load(folder)


def test_too_few_authors_and_no_books_are_one_line(tmp_path):
    with pytest.raises(RunError, match="expected books of at least 3 authors, one for each split, got 2"):
        books.BOOKS.load(write(tmp_path / "b", A_One="A. B.", B_One="A. B.", C_Two="A. B."))
    (tmp_path / "none").mkdir()
    with pytest.raises(
        RunError, match=r"none lacks \*\.txt \(UTF-8, named TITLE_AUTHOR\.txt\) of the data set 'books'"
    ):
        books.BOOKS.load(tmp_path / "none")
