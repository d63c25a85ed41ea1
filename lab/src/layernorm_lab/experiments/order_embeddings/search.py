"""`layernorm search RUN "a dog runs"`: the test images that a run's network finds for a sentence."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image, UnidentifiedImageError

from ...config import CheckedOptions, option
from ...data import order_embeddings
from ...data.order_embeddings import CAPTIONS, ImagesAndCaptions
from ...data.text import EOS, Sentences
from ...errors import RunError, printable
from ...protocol import Tool
from ...runs.files import names_in, write_atomic
from ...runs.folder import Run
from ...runs.restore import configuration, restore_model, training_data
from .config import Config
from .network import Embedding, build_embedding
from .objective import penalties

PICTURES = (".jpg", ".jpeg", ".png")
"""The endings of picture files."""


@dataclass(frozen=True)
class SearchOptions(CheckedOptions):
    """The options of `layernorm search`."""

    count: int = option(5, "images to show for each sentence", least=1)
    captions: int = option(2, "captions to show for each image, at most 5", least=1, most=CAPTIONS)
    data: Path | None = option(None, "folder with the data set's files (else the one of the run's training)")
    images: Path | None = option(
        None, "folder with the test images as pictures; sorted by name they must be in the order of test.npy"
    )
    out: Path | None = option(None, "with --images: picture to write (else RUN/search.png)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out is not None and self.images is None:
            raise ValueError("--out is for the picture that --images makes: also give --images")


@dataclass(frozen=True)
class FoundImages:
    """The images found for a sentence: their numbers from 0, the best first, and their penalties. `unknown`: the words
    of the sentence that are not in the vocabulary."""

    sentence: str
    unknown: list[str]
    images: list[int]
    penalties: list[float]


def search(model: Embedding, data: ImagesAndCaptions, sentences: Sequence[str], count: int) -> list[FoundImages]:
    """Finds the test images with the lowest penalties for each sentence, which must have a word."""
    split = [tokens(sentence) for sentence in sentences]
    for sentence, words in zip(sentences, split, strict=True):
        if not words:
            raise RunError(f"there is no word in the sentence {sentence!r}")
    vocabulary = data.vocabulary
    rows = Sentences.of([[*vocabulary.ids(words), EOS] for words in split])
    similarity = "order" if model.absolute else "cosine"
    with torch.no_grad():
        points = model.sentences(*rows.batch(torch.arange(len(rows))))
        penalty = penalties(points, model.images(data.test.features), similarity)
    best = penalty.topk(min(count, penalty.shape[1]), largest=False)
    return [
        FoundImages(sentence, [word for word in words if word not in vocabulary], images, values)
        for sentence, words, images, values in zip(
            sentences, split, best.indices.tolist(), best.values.tolist(), strict=True
        )
    ]


def tokens(sentence: str) -> list[str]:
    """Splits a sentence into words in small letters, with punctuation marks as words."""
    return re.findall(r"\w+(?:'\w+)?|[^\w\s]", sentence.lower())


def trained_embedding(run: Run, folder: Path | None) -> tuple[Embedding, ImagesAndCaptions]:
    """Restores a run's kept network, with the data that it was trained on."""
    data = training_data(run, folder, order_embeddings.ORDER_EMBEDDINGS.load)
    network = build_embedding(configuration(Config, run), len(data.vocabulary), data.test.features.shape[1])
    return restore_model(network, run)[0], data


def search_lines(run: Run, sentences: Sequence[str], options: SearchOptions) -> list[str]:
    """Lists the nearest images of each sentence, in at most 80 columns. With pictures, it also writes a sheet."""
    model, data = trained_embedding(run, options.data)
    pictures = None if options.images is None else _pictures(options.images, len(data.test))
    results = search(model, data, sentences, options.count)
    lines = [line for item in results for line in _lines_of_search(item, data, options.captions)]
    if pictures is not None:
        place = options.out or run.path / "search.png"
        write_atomic(place, _sheet(results, pictures, data))
        lines.append(f"wrote {place}")
    return lines


def _lines_of_search(result: FoundImages, data: ImagesAndCaptions, captions: int) -> list[str]:
    unknown = f" (not in the vocabulary: {', '.join(result.unknown)})" if result.unknown else ""
    lines = textwrap.wrap(f"{result.sentence}{unknown}", 80)
    for place, (image, penalty) in enumerate(zip(result.images, result.penalties, strict=True), 1):
        lines.append(f"{place:4}. image {image + 1}, penalty {penalty:.4f}")
        for caption in _captions(data, image)[:captions]:
            lines += textwrap.wrap(caption, 80, initial_indent=" " * 6, subsequent_indent=" " * 8)
    return [*lines, ""]


def _captions(data: ImagesAndCaptions, image: int) -> list[str]:
    return data.test.captions[CAPTIONS * image : CAPTIONS * (image + 1)]


def _pictures(folder: Path, count: int) -> list[Path]:
    """Lists the pictures in a folder, one for each test image."""
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder; give the folder of the test images with --images")
    pictures = [folder / name for name in names_in(folder) if Path(name).suffix.lower() in PICTURES]
    if len(pictures) != count:
        raise RunError(
            f"{folder} has {len(pictures)} pictures ({', '.join(PICTURES)}); expected {count}, one a test image"
        )
    return pictures


def _sheet(results: Sequence[FoundImages], pictures: Sequence[Path], data: ImagesAndCaptions) -> bytes:
    """Draws a row of pictures for each sentence, as PNG."""
    as_it_is: Any = {"fontsize": 6, "parse_math": False}  # a sentence may have dollars
    columns = max(len(item.images) for item in results)
    canvas = Figure(figsize=(2.4 * columns, 2.6 * len(results)), layout="constrained")
    axes = canvas.subplots(len(results), columns, squeeze=False)
    for row, item in zip(axes, results, strict=True):
        for place, image in zip(row, item.images, strict=True):
            try:
                with Image.open(pictures[image]) as picture:
                    picture.thumbnail((320, 320))
                    place.imshow(np.asarray(picture.convert("RGB")))
            except (OSError, UnidentifiedImageError) as error:
                raise RunError(f"{pictures[image]} is no picture that can be read") from error
            place.set_title("\n".join(textwrap.wrap(printable(_captions(data, image)[0]), 34)[:3]), **as_it_is)
            place.set_axis_off()
        row[0].set_title(f"“{printable(item.sentence)}”\n{row[0].get_title()}", loc="left", **as_it_is)
    output = io.BytesIO()
    canvas.savefig(output, format="png", dpi=120)
    return output.getvalue()


TOOL = Tool(
    experiment="order-embeddings",
    texts="SENTENCE",
    options=SearchOptions,
    ask=search_lines,
    examples=(
        'layernorm search RUN "a dog runs" "two people on a beach"',
        'layernorm search RUN "a dog runs" --count 3 --images ~/flickr8k/test_images',
    ),
)
