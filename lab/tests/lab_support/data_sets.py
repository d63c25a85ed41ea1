"""The data sets: how small files of each are written, and how what was read is forgotten."""

from collections.abc import Callable
from typing import NamedTuple

from layernorm_lab.data import iam
from layernorm_lab.data.catalogue import SOURCES
from layernorm_lab.data.source import Source

from .binarized_files import write_binarized
from .book_files import write_text
from .captioned_files import write_captioned
from .cifar_files import write_cifar
from .iam_files import write_iam
from .mnist_files import write_mnist
from .question_files import write_questions


def forget():
    """Has every data set read its files anew."""
    for read in (iam.read_iam, *(data.read for data in SOURCES.values())):  # lines of IAM-OnDB are remembered twice
        read.cache_clear()


class DataSet(NamedTuple):
    """A data set: (folder, seed) -> the folder of its files; its source."""

    write: Callable
    source: Source


def _text(part):
    return lambda folder, seed=0: write_text(folder, seed) / part


WRITERS = {
    "binarized-mnist": write_binarized,
    "books": _text("books"),
    "cifar10": write_cifar,
    "cnn": write_questions,
    "iam-ondb": write_iam,
    "mnist": write_mnist,
    "order-embeddings": write_captioned,
    "sentences": _text("sentences"),
    "sick": _text("sick"),
}
SETS = {name: DataSet(write, SOURCES[name]) for name, write in WRITERS.items()}
