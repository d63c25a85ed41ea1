"""Plain books: who wrote them, where paragraphs, sentences and words end, and files that are no books."""

import pytest

from layernorm_lab.data import novels
from layernorm_lab.errors import RunError

TEXT = "CHAPTER I.\n“Oh!” said Mr. Brown. “It’s late.” He didn’t stop; J. K. Smith did.\nNo. He—well—went…\n"


def test_a_book_has_author_paragraphs_sentences_and_words(tmp_path):
    (tmp_path / "ENG1_Brown.txt").write_text(TEXT, encoding="utf-8")
    (book,) = novels.read_novels(tmp_path)
    assert (book.title, book.author) == ("ENG1_Brown", "Brown")
    assert [novels.split_sentences(paragraph) for paragraph in book.paragraphs] == [
        ["CHAPTER I."],
        ['"Oh!" said Mr. Brown.', '"It\'s late."', "He didn't stop; J. K. Smith did."],
        ["No.", "He—well—went..."],
    ]
    assert novels.split_words("He didn't stop Mr. Brown's 1,000 well-known o'clock's...") == [
        *("He", "did", "n't", "stop", "Mr.", "Brown", "'s", "1,000", "well-known", "o'clock", "'s", "..."),
    ]


def test_a_paragraph_of_initials_is_read_in_one_pass():
    """600 kB, for which a search through the sentence so far at each of its parts takes half an hour."""
    assert novels.split_sentences("A. " * 200_000 + "No.") == ["A. " * 200_000 + "No."]


def test_empty_lines_part_paragraphs_that_run_over_several_lines(tmp_path):
    (tmp_path / "book.txt").write_text("Title: A\nAuthor: Ann Other\n\nOne line\nand one more.\n\n\nLast.\n")
    (book,) = novels.read_novels(tmp_path)
    assert book.author == "Ann Other"
    assert book.paragraphs[1:] == ["One line and one more.", "Last."]


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "is empty"), (b"caf\xe9", "is not UTF-8"), (b"a\0b", "zero byte")]
)
def test_a_file_that_is_no_book_is_named(tmp_path, content, message):
    (tmp_path / "book.txt").write_bytes(content)
    with pytest.raises(RunError, match=rf"book.txt .*{message}"):
        novels.read_novels(tmp_path)


def test_a_folder_without_books_is_named(tmp_path):
    with pytest.raises(RunError, match="has no book"):
        novels.read_novels(tmp_path)
    with pytest.raises(RunError, match=r"cannot read .*absent"):
        novels.read_novels(tmp_path / "absent")
