"""Captions and features: read as they are, and a damaged or foreign file is one clear line."""

import gzip

import numpy as np
import pytest
import torch

from layernorm import cli
from layernorm.experiments.data import order_embeddings, source
from layernorm.experiments.data.text import EOS, UNKNOWN, Sentences, Vocabulary
from layernorm.experiments.errors import RunError
from support.captioned_files import CONTENT, write_captioned
from support.command import one_line


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    order_embeddings.read_order_embeddings.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LAYERNORM_DATA", raising=False)


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


def change(kind, folder):
    """Damages the data in one way."""
    arrays = folder / "images" / "10crop"
    text, array = folder / "val.txt", arrays / "test.npy"
    lines, values = text.read_text().splitlines(), np.load(array)
    if kind == "a caption too few":
        text.write_text("\n".join(lines[:-1]) + "\n")
    elif kind == "an empty caption":
        text.write_text("\n".join([*lines[:3], " ", *lines[4:]]) + "\n")
    elif kind == "an empty file":
        text.write_text("")
    elif kind == "no text":
        text.write_bytes(b"a dog\n\xff\xfe")
    elif kind == "truncated":
        array.write_bytes(array.read_bytes()[:-5])
    elif kind == "only a header":
        array.write_bytes(array.read_bytes()[:40])
    elif kind == "an empty array file":
        array.write_bytes(b"")
    elif kind == "a pickle":
        np.save(array, np.array([{}]), allow_pickle=True)
    elif kind == "an archive":
        with open(array, "wb") as file:
            np.savez(file, values)
    elif kind == "float64":
        np.save(array, values.astype(np.float64))
    elif kind == "three dimensions":
        np.save(array, values[None])
    elif kind == "not a number":
        values[3, 2] = np.nan
        np.save(array, values)
    elif kind == "other features":
        np.save(array, values[:, :4])
    elif kind == "missing":
        array.unlink()


DAMAGED = {
    "a caption too few": "val.txt has 59 captions and val.npy 12 images; expected 5 captions an image, 60",
    "an empty caption": "val.txt has an empty caption in line 4",
    "an empty file": "val.txt has an empty caption in line 1",
    "no text": "val.txt is not UTF-8 text (byte 6)",
    "truncated": "test.npy is damaged or not an .npy file of numbers",
    "only a header": "test.npy is damaged or not an .npy file of numbers",
    "an empty array file": "test.npy is damaged or not an .npy file of numbers",
    "a pickle": "test.npy is damaged or not an .npy file of numbers",
    "an archive": "test.npy: expected float32 [images, features], got an archive",
    "float64": "test.npy: expected float32 [images, features], got float64 [10, 6]",
    "three dimensions": "test.npy: expected float32 [images, features], got float32 [1, 10, 6]",
    "not a number": "test.npy: image 4 has NaN or infinity in it",
    "other features": "an image has 6 features in train.npy and 4 in test.npy",
    "missing": "lacks images/10crop/test.npy",
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_what_is_wrong_is_said_in_one_line(folder, tmp_path, capsys, kind):
    change(kind, folder)
    out = tmp_path / "out"
    command = ["run", "order-embeddings", "--preset", "smoke", "--data", str(folder), "--out", str(out)]
    assert cli.main(command) == 1
    assert DAMAGED[kind] in one_line(capsys)
    assert not out.exists()


def test_prepare_keeps_the_layout(folder, tmp_path, capsys):
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


def test_a_missing_folder_says_what_to_do(tmp_path):
    with pytest.raises(RunError, match="layernorm data prepare order-embeddings --source DIR"):
        order_embeddings.ORDER_EMBEDDINGS.load(None)
