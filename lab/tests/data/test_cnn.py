"""Files of questions: what is read from them, what is wrong with them, how a passage is cut, and answers by rules."""

import re
from pathlib import Path

import pytest

from lab_support.question_files import question_text
from layernorm_lab.data import cnn
from layernorm_lab.errors import RunError

NAMES = {"@entity1": "Ann", "@entity12": "Bob: the second"}
PATH = Path("some/a.question")


def text(passage="@entity1 saw a dog . @entity12 saw two !", question="who is @placeholder ?", answer="@entity1"):
    return question_text(passage, question, answer, NAMES)


def test_a_file_is_read():
    item = cnn.parse_question(text().encode(), PATH)
    assert item.sentences == [["@entity1", "saw", "a", "dog", "."], ["@entity12", "saw", "two", "!"]]
    assert item.question == ["who", "is", "@placeholder", "?"]
    assert (item.answer, item.names) == ("@entity1", NAMES)
    assert item.passage == ["@entity1", "saw", "a", "dog", ".", "@entity12", "saw", "two", "!"]


def test_lines_of_a_passage_are_sentences_and_windows_line_ends_are_read():
    item = cnn.parse_question(text("a . b\n@entity1 c").replace("\n", "\r\n").encode(), PATH)
    assert item.sentences == [["a", ".", "b"], ["@entity1", "c"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n\n ", "is empty"),
        (text().encode()[:80], "has 4 parts separated by empty lines; expected 5: address, passage, question"),
        (text().encode()[:-20], "expected @entityN:name in each line of its last part, got '@entit'"),
        (text().encode("utf-8") + b"@entity3:caf\xe9", "is not UTF-8 text (byte"),
        (text(question="who is it ?").encode(), "has no @placeholder in its question"),
        (text().replace("@entity1", "@entity01").encode(), "expected @entityN:name in each line of its last part"),
        (text().replace("@entity1", "@entity\u0661").encode(), "expected @entityN:name in each line of its last part"),
        (text(answer="@entity2").encode(), "the answer '@entity2' is not among its entities"),
        (text(answer="Ann").encode(), "the answer 'Ann' is not among its entities"),
        (text(passage="@entity3 ran .").encode(), "@entity3 is in its text, but not among its entities"),
        (text(passage="").encode(), "has"),
        (b"%PDF-1.4\n" + bytes(range(1, 100)), "has 1 parts"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(content, message):
    with pytest.raises(RunError, match=re.escape(message)) as caught:
        cnn.parse_question(content, PATH)
    assert str(caught.value).startswith(str(PATH))
    assert "\n" not in str(caught.value)


def test_the_sentences_that_share_most_words_are_kept_in_their_order():
    question = ["the", "dog", "of", "@entity1", "saw", "@placeholder", ",", "the", "cat", ",", "twice", "."]
    sentences = [
        ["dog", "dog", "dog", "."],  # 1: a word counts once, a mark not at all
        ["the", "cat", "saw"],  # 3
        ["@entity1", "ran"],  # 2: an entity counts twice
        ["@placeholder", ",", "."],  # 0
        ["the", "dog", "of", "@entity1"],  # 5
        ["twice", "of"],  # 2
        ["cat", "twice"],  # 2, and comes after the four
    ]
    assert cnn.cut(sentences, question) == [sentences[number] for number in (1, 2, 4, 5)]
    assert cnn.cut(sentences[:2], question) == sentences[:2]


def test_answers_by_rules():
    passage = [["@entity1", "@entity1", "@entity2", "@entity3", "@entity3"]]
    item = cnn.Question(passage, ["@entity1", "and", "@placeholder"], "@entity3", {})
    assert cnn.guesses(item) == pytest.approx([1 / 3, 1 / 2, 1.0])  # two are as frequent; one is in the question
    item = cnn.Question(passage, ["@placeholder"], "@entity9", {})
    assert cnn.guesses(item) == [0, 0, 0]
