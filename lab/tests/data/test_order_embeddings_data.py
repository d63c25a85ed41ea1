"""Captions and features: read as they are, and a damaged or foreign file is one clear line."""

import gzip

import numpy as np
import pytest
import torch

from lab_support.captioned_files import CONTENT, write_captioned
from lab_support.command import refused
from layernorm_lab import cli
from layernorm_lab.data import order_embeddings, source
from layernorm_lab.data.text import EOS, UNKNOWN, Sentences, Vocabulary
from layernorm_lab.errors import RunError


@pytest.fixture
def folder(tmp_path):
    return write_captioned(tmp_path / "data")


def test_images_captions_and_ids_belong_together(folder):
    data = order_embeddings.ORDER_EMBEDDINGS.load(folder)
    for split, count in CONTENT.items():
        part = getattr(data, split)
        assert len(part) == count
        assert torch.equal(part.features, torch.from_numpy(np.load(folder / "images" / "10crop" / f"{split}.npy")))
        assert part.captions == (folder / f"{split}.txt").read_text().splitlines()
        ids, lengths = part.sentences.batch(torch.arange(5 * count))
        for caption, column, length in zip(part.captions, ids.T.tolist(), lengths.tolist(), strict=True):
            words = [data.vocabulary.words[number - 2] for number in column[: length - 1]]
            assert " ".join(words) == caption
            assert set(column[length - 1 :]) == {EOS}
    assert data.facts["images"] == CONTENT
    assert not data.facts["original"]


def test_the_vocabulary_is_of_train_and_the_first_dev_captions(folder, monkeypatch):
    for split in ("val", "test"):
        lines = (folder / f"{split}.txt").read_text().splitlines()
        lines[0] += f" first{split}"
        lines[7] += f" eighth{split}"
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(order_embeddings, "DEV_CAPTIONS", 7)
    data = order_embeddings.ORDER_EMBEDDINGS.load(folder)
    assert [f"{place}{split}" in data.vocabulary for split in ("val", "test") for place in ("first", "eighth")] == [
        True, False, False, False,
    ]  # fmt: skip
    assert UNKNOWN in data.test.sentences.batch(torch.tensor([0]))[0]
    assert UNKNOWN not in data.train.sentences.ids


def test_the_most_frequent_word_has_the_lowest_id():
    vocabulary = Vocabulary.of([["b", "a", "c"], ["c", "b"], ["c"]])
    assert vocabulary.words == ["c", "b", "a"]
    assert vocabulary.ids(["a", "b", "c", "d"]) == [4, 3, 2, UNKNOWN]
    assert len(vocabulary) == 5
    small = Vocabulary.of([["b", "a", "c"], ["c", "b"], ["c"]], size=4)
    assert (small.words, len(small)) == (["c", "b"], 4)


def test_batches_of_sentences():
    sentences = Sentences.of([[5, 0], [6, 7, 8, 0], [0]])
    ids, lengths = sentences.batch(torch.tensor([2, 1, 0, 1]))
    assert ids.T.tolist() == [[0, 0, 0, 0], [6, 7, 8, 0], [5, 0, 0, 0], [6, 7, 8, 0]]
    assert lengths.tolist() == [1, 4, 2, 4]
    ids, lengths = sentences.batch(torch.empty(0, dtype=torch.int64))
    assert (tuple(ids.shape), tuple(lengths.shape)) == ((0, 0), (0,))


def captions(change):
    def damage(folder):
        lines = (folder / "val.txt").read_text().splitlines()
        (folder / "val.txt").write_text("\n".join(change(lines)) + "\n")

    return damage


def content(name, change):
    def damage(folder):
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return damage


def features(change):
    return lambda folder: np.save(folder / TEST, change(np.load(folder / TEST)), allow_pickle=True)


def archive(folder):
    values = np.load(folder / TEST)
    with open(folder / TEST, "wb") as file:
        np.savez(file, values)


TEST = "images/10crop/test.npy"
NO_NUMBERS = "test.npy is damaged or not an .npy file of numbers"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (captions(lambda lines: lines[:-1]), "val.txt has 59 captions and val.npy 12 images; expected 5 captions an"),
        (captions(lambda lines: [*lines[:3], " ", *lines[4:]]), "val.txt has an empty caption in line 4"),
        (content("val.txt", lambda text: b""), "val.txt has an empty caption in line 1"),
        (content("val.txt", lambda text: b"a dog\n\xff\xfe"), "val.txt is not UTF-8 text (byte 6)"),
        (content(TEST, lambda array: array[:-5]), NO_NUMBERS),
        (content(TEST, lambda array: array[:40]), NO_NUMBERS),  # a header alone
        (content(TEST, lambda array: b""), NO_NUMBERS),
        (features(lambda values: np.array([{}])), NO_NUMBERS),  # a pickle
        (archive, "test.npy: expected float32 [images, features], got an archive"),
        (features(np.float64), "test.npy: expected float32 [images, features], got float64 [10, 6]"),
        (features(lambda values: values[None]), "test.npy: expected float32 [images, features], got float32 [1, 10,"),
        (features(lambda values: np.where(np.arange(10)[:, None] == 3, np.float32(np.nan), values)), "image 4 has NaN"),
        (features(lambda values: values[:, :4]), "an image has 6 features in train.npy and 4 in test.npy"),
        (lambda folder: (folder / TEST).unlink(), "lacks images/10crop/test.npy"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(folder, tmp_path, capsys, damage, message):
    damage(folder)
    out = tmp_path / "out"
    command = ["run", "order-embeddings", "--preset", "smoke", "--data", str(folder), "--out", str(out)]
    refused(command, 1, message, capsys)
    assert not out.exists()


def test_prepare_keeps_the_layout(folder, capsys):
    text = folder / "train.txt"
    (folder / "train.txt.gz").write_bytes(gzip.compress(text.read_bytes()))
    text.unlink()
    assert cli.main(["data", "prepare", "order-embeddings", "--source", str(folder)]) == 0
    assert "words: 20" in capsys.readouterr().out
    place = source.cache_folder() / "order-embeddings"
    found = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    assert found == {
        "train.txt.gz", "val.txt", "test.txt", *(f"images/10crop/{name}.npy" for name in ("train", "val", "test"))
    }  # fmt: skip
    prepared = order_embeddings.ORDER_EMBEDDINGS.load(None)
    assert prepared.facts["fingerprint"] == order_embeddings.ORDER_EMBEDDINGS.load(folder).facts["fingerprint"]


def test_a_missing_folder_says_what_to_do():
    with pytest.raises(RunError, match="layernorm data prepare order-embeddings --source DIR"):
        order_embeddings.ORDER_EMBEDDINGS.load(None)
