"""Questions as ids: what the packed file keeps, its fingerprint, and what is said of missing and damaged files."""

import numpy as np
import torch

from lab_support.command import one_line, refused
from lab_support.question_files import COUNTS, write_questions
from layernorm_lab import cli
from layernorm_lab.data import questions, source
from layernorm_lab.data.text import UNKNOWN


def words(data, sentences, number):
    ids = sentences.ids[sentences.ends[number] : sentences.ends[number + 1]]
    return ["?" if id == UNKNOWN else data.vocabulary.words[id - 2] for id in ids.tolist()]


def test_every_split_holds_its_own_questions_and_no_others(tmp_path):
    data = questions.CORPORA["cnn"].load(write_questions(tmp_path / "data"))
    assert data.facts["questions"] == {"train": 40, "valid": 12, "test": 9}
    assert data.entities == 8
    assert data.vocabulary.words[:9] == [*(f"@entity{number}" for number in range(8)), "@placeholder"]
    # the words that tell the splits apart are known from training alone
    for split, count in (("train", 40), ("valid", 12), ("test", 9)):
        part = getattr(data, split)
        own = {word for number in range(count) for word in words(data, part.passages, number)}
        assert ("training" in own) == (split == "train")
        assert ("?" in own) == (split != "train")
    files = sorted((tmp_path / "data" / "training").iterdir())
    for number, path in enumerate(files):
        _, passage, question, answer, _ = path.read_text().strip().split("\n\n")
        kept = " ".join(words(data, data.train.passages, number))
        assert [line for line in passage.split("\n") if line in kept][:1]
        assert len(kept.split(" . ")) <= 4
        assert words(data, data.train.questions, number) == question.split()
        assert data.vocabulary.words[data.train.answers[number] - 2] == answer
    assert data.readable[3]["passage"][-2] == "validation"


def test_the_packed_file_stands_for_the_folders(tmp_path):
    folder = write_questions(tmp_path / "data")
    first = questions.CORPORA["cnn"].load(folder)
    place, facts = source.prepare_source(questions.CNN, folder)
    assert [path.name for path in place.iterdir()] == [questions.PACKED]
    second = questions.CORPORA["cnn"].load(None)
    assert second.facts["fingerprint"] == first.facts["fingerprint"] == facts["fingerprint"]
    assert torch.equal(first.valid.passages.ids, second.valid.passages.ids)


def test_the_first_questions_and_the_most_frequent_words(tmp_path):
    data = questions.CORPORA["cnn"].load(write_questions(tmp_path / "data"))
    part = data.train.first(3)
    assert len(part) == len(part.passages) == 3
    assert len(data.train.first(0)) == len(data.train.first(99)) == 40
    limited = part.limited(12)
    assert limited.passages.ids.max() < 12
    same = part.passages.ids < 12
    assert torch.equal(limited.passages.ids[same], part.passages.ids[same])
    assert (limited.passages.ids[~same] == UNKNOWN).all()
    assert np.any(~same.numpy())


def test_wrong_folders_are_one_line(tmp_path, capsys):
    folder = write_questions(tmp_path / "data")
    (folder / "test" / "000.question").write_text("nothing")
    refused(
        ["data", "prepare", "cnn", "--source", str(folder)],
        1,
        "000.question has 1 parts separated by empty lines",
        capsys,
    )
    (folder / "validation").rename(folder / "else")
    refused(
        ["data", "prepare", "cnn", "--source", str(folder)], 1, "lacks validation (folders of .question files)", capsys
    )
    (folder / "validation").mkdir()
    refused(["data", "prepare", "cnn", "--source", str(folder)], 1, "validation has no .question file", capsys)
    assert cli.main(["run", "reader", "--preset", "paper"]) == 1
    assert "layernorm data prepare cnn --source DIR" in one_line(capsys)
    assert sum(COUNTS.values()) == 61
