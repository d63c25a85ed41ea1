"""Questions out of books: what is asked, whose names are hidden, which split a book is in, and where the set lies."""

import pytest

from lab_support.command import one_line, refused
from lab_support.data_sets import forget
from lab_support.question_files import NAMES, write_books
from layernorm_lab import cli
from layernorm_lab.data import cloze, cnn, novels, questions, source
from layernorm_lab.errors import RunError


def book(title="B", author=None, lines=()):
    return novels.Novel(title, author, list(lines), "")


def test_a_question_hides_a_name_that_its_passage_has(tmp_path):
    found = list(cloze.make_questions(write_books(tmp_path)))
    assert len(found) > 40
    for name, text in found:
        item = cnn.parse_question(text.encode(), tmp_path / name)
        assert len(item.sentences) == cloze.CONTEXT
        kept = [word for sentence in cnn.cut(item.sentences, item.question) for word in sentence]
        assert item.answer in kept
        assert item.answer not in item.question
        told = text.rpartition("\n\n")[0]
        assert not any(person in told or person.lower() in told.split() for person in NAMES)
        assert set(item.names.values()) <= set(NAMES)
        number = int(name.rpartition("-")[2].partition(".")[0])
        assert number >= cloze.CONTEXT
        assert len(kept) <= cloze.LONGEST
        # put back, it is the sentence of the book
        lines = (tmp_path / f"{name.split('/')[1].rpartition('-')[0]}.txt").read_text().split("\n")
        words = [item.names.get(item.answer if word == "@placeholder" else word, word) for word in item.question]
        assert " ".join(words).lower() == lines[number].lower().replace(".", " .")
    assert dict(found) == dict(cloze.make_questions(tmp_path)), "made again they are the same"


def test_names_are_capitalised_inside_sentences_and_seldom_small():
    text = "Then Rose and May rose. A rose, a rose. He saw Mr. Pip and Miss IV. Never did Joe go. So did Joe. He is "
    text += "lonely. Bob is Lonely."
    sentences = [novels.split_words(sentence) for sentence in novels.split_sentences(text)]
    assert cloze.names_of(sentences) == {"Pip", "Joe"}


def test_all_books_of_an_author_are_in_one_split():
    books = [book(f"{author}{number}", author) for author in "ABCDEFGHIJ" for number in range(3)] + [book("alone")]
    split_of = cloze.splits(books)
    for author in "ABCDEFGHIJ":
        assert len({split_of[f"{author}{number}"] for number in range(3)}) == 1
    counts = [list(split_of.values()).count(split) for split in ("training", "validation", "test")]
    assert sum(counts) == 31
    assert min(counts) >= 3
    assert counts[0] > 15
    assert cloze.splits(books[::-1]) == split_of


def test_prepared_from_books_it_is_found_by_runs(tmp_path, capsys):
    folder = write_books(tmp_path / "books")
    leftover = source.cache_folder() / "books-cloze" / ".making.killed"
    leftover.mkdir(parents=True)
    assert cli.main(["data", "prepare", "books-cloze", "--source", str(folder)]) == 0
    said = capsys.readouterr().out
    assert f"ready in {source.cache_folder() / 'books-cloze'}" in said
    assert not leftover.exists()
    assert not list((source.cache_folder() / "parsed").rglob("*.safetensors")), "one copy is enough"
    data = questions.CORPORA["books-cloze"].load(None)
    names = {path.stem.rpartition("_")[2] for path in (source.cache_folder() / "books-cloze").rglob("*.question")}
    assert {name.rpartition("-")[0] for name in names} == {"Ash", "Birch", "Cedar", "Dill"}
    # the folder of files, read as CNN's are, is the same data set
    again = questions.CORPORA["cnn"].load(source.cache_folder() / "books-cloze" / "questions")
    assert again.facts["fingerprint"] == data.facts["fingerprint"]
    assert cli.main(["data", "prepare", "books-cloze", "--source", str(folder)]) == 0  # in place of the older ones
    assert {path.name for path in (source.cache_folder() / "books-cloze").iterdir()} == {"questions", questions.PACKED}


def test_wrong_books_are_one_line_and_leave_what_was_there(tmp_path, capsys):
    folder = write_books(tmp_path / "books")
    assert cli.main(["data", "prepare", "books-cloze", "--source", str(folder)]) == 0
    before = questions.CORPORA["books-cloze"].load(None).facts["fingerprint"]
    capsys.readouterr()
    (folder / "B0_Ash.txt").write_bytes(b"caf\xe9")
    refused(["data", "prepare", "books-cloze", "--source", str(folder)], 1, "B0_Ash.txt is not UTF-8 text", capsys)
    assert cli.main(["data", "prepare", "books-cloze", "--source", str(tmp_path)]) == 1
    assert "has no book" in one_line(capsys)
    forget()
    assert questions.CORPORA["books-cloze"].load(None).facts["fingerprint"] == before
    with pytest.raises(RunError, match=r"at least 3 authors.* got 2"):
        list(cloze.make_questions(write_books(tmp_path / "few", authors=("Ash", "Birch"))))
    with pytest.raises(RunError, match="give no question for training"):
        list(cloze.make_questions(write_books(tmp_path / "short", sentences=5)))
