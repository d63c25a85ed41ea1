"""Images as feature vectors with five captions each, in the layout of the order-embeddings code.

`{train,val,test}.txt` have five tokenised captions for each image, one in each line, in the order of the images.
`images/10crop/{train,val,test}.npy` have the images' features, float32 `[N, F]`.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import RunError
from ..runs.files import decoded
from . import source
from .text import EOS, Sentences, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

CAPTIONS = 5
"""The number of captions for each image."""

DEV_CAPTIONS = 5000
"""The vocabulary is made of all training captions and the first so many validation captions."""

_SPLITS = ("train", "val", "test")

_PAPER = (113_287, 4096)
"""The paper's training images (COCO) and their features (VGG-19, ten crops)."""


@dataclass(frozen=True)
class Captioned:
    """Images with captions.

    Attributes:
        features: float32 `[N, F]`.
        captions: the `5 N` captions as text, five for each image.
        sentences: the captions as ids, each with its end.
    """

    features: Tensor
    captions: list[str]
    sentences: Sentences

    def __len__(self) -> int:
        return len(self.features)


@dataclass(frozen=True)
class ImagesAndCaptions:
    """The three splits, their vocabulary, and facts for records and reports."""

    train: Captioned
    val: Captioned
    test: Captioned
    vocabulary: Vocabulary
    facts: dict[str, Any]


def read_order_embeddings(folder: Path) -> ImagesAndCaptions:
    """Reads the files in a folder. Captions and images must match in number."""
    files = source.PublishedFiles(ORDER_EMBEDDINGS, folder)
    captions = {split: _captions(*files.content(f"{split}.txt")) for split in _SPLITS}
    features = {split: _features(*files.content(f"images/10crop/{split}.npy")) for split in _SPLITS}
    for split in _SPLITS:
        count, images = len(captions[split]), len(features[split])
        if count != CAPTIONS * images:
            raise RunError(
                f"{folder}: {split}.txt has {count} captions and {split}.npy {images} images; "
                f"expected {CAPTIONS} captions an image, {CAPTIONS * images}"
            )
        if features[split].shape[1] != features["train"].shape[1]:
            widths = [features[name].shape[1] for name in ("train", split)]
            raise RunError(f"{folder}: an image has {widths[0]} features in train.npy and {widths[1]} in {split}.npy")
    known = [*captions["train"], *captions["val"][:DEV_CAPTIONS]]
    vocabulary = Vocabulary.of(map(str.split, known))
    splits = {split: _captioned(features[split], captions[split], vocabulary) for split in _SPLITS}
    images, width = features["train"].shape
    facts = files.facts(
        original=(images, width) == _PAPER,
        images={split: len(features[split]) for split in _SPLITS},
        features=width,
        words=len(vocabulary),
    )
    return ImagesAndCaptions(**splits, vocabulary=vocabulary, facts=facts)


def _captioned(features: np.ndarray, captions: list[str], vocabulary: Vocabulary) -> Captioned:
    import torch

    rows = [[*vocabulary.ids(caption.split()), EOS] for caption in captions]
    return Captioned(torch.from_numpy(features), captions, Sentences.of(rows))


def _captions(content: bytes, path: Path) -> list[str]:
    lines = decoded(content, path, "utf-8-sig").removesuffix("\n").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise RunError(f"{path} has an empty caption in line {number}")
    return lines


def _features(content: bytes, path: Path) -> np.ndarray:
    try:
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # numpy's reader of headers raises many kinds
        raise RunError(f"{path} is damaged or not an .npy file of numbers ({error})") from error
    if not isinstance(array, np.ndarray) or array.dtype != np.float32 or array.ndim != 2 or not array.size:
        kind = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else "an archive"
        raise RunError(f"{path}: expected float32 [images, features], got {kind}")
    if not np.isfinite(array).all():
        raise RunError(f"{path}: image {int((~np.isfinite(array)).any(axis=1).argmax()) + 1} has NaN or infinity in it")
    return array


ORDER_EMBEDDINGS = source.Source(
    name="order-embeddings",
    summary="images as feature vectors, with five captions each",
    files={f"{split}.txt": "" for split in _SPLITS} | {f"images/10crop/{split}.npy": "" for split in _SPLITS},
    read=read_order_embeddings,
    spellings=lambda name: source.plain_or_gzipped(name) if name.endswith(".txt") else (name,),
    form="captions as text, features as float32 .npy",
    terms=(
        "COCO's captions with VGG-19 features are at https://github.com/ivendrov/order-embedding, and any other images "
        "with five captions each can be put into the same layout"
    ),
)
