"""The data sets: how small files of each are written and loaded, and how what was read is forgotten."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from layernorm.experiments.data import (
    binarized_mnist,
    books,
    cifar10,
    iam,
    mnist,
    order_embeddings,
    questions,
    sentences,
    sick,
)
from layernorm.experiments.data.source import Source

from .binarized_files import write_binarized
from .book_files import write_text
from .captioned_files import write_captioned
from .cifar_files import write_cifar
from .iam_files import write_iam
from .mnist_files import write_mnist
from .question_files import write_questions

MODULES = (binarized_mnist, books, cifar10, iam, mnist, order_embeddings, questions, sentences, sick)


def forget():
    """Has every data set read its files anew."""
    for module in MODULES:
        module._read.cache_clear()
    questions._packed.cache_clear()
    iam._pack.cache_clear()


class DataSet(NamedTuple):
    """A data set: (folder, seed) -> the folder of its files; its source; (folder or None) -> its data."""

    write: Callable
    source: Source
    load: Callable


def _text(part):
    return lambda folder, seed=0: write_text(folder, seed) / part


SETS = {
    "binarized-mnist": DataSet(write_binarized, binarized_mnist.BINARIZED_MNIST, binarized_mnist.load),
    "books": DataSet(_text("books"), books.BOOKS, books.load),
    "cifar10": DataSet(write_cifar, cifar10.CIFAR10, partial(cifar10.load, held_out=1)),
    "cnn": DataSet(write_questions, questions.CNN, partial(questions.load, "cnn")),
    "iam-ondb": DataSet(write_iam, iam.IAM, iam.load),
    "mnist": DataSet(write_mnist, mnist.MNIST, partial(mnist.load, held_out=1)),
    "order-embeddings": DataSet(write_captioned, order_embeddings.ORDER_EMBEDDINGS, order_embeddings.load),
    "sentences": DataSet(_text("sentences"), sentences.SENTENCES, sentences.load),
    "sick": DataSet(_text("sick"), sick.SICK, sick.load),
}
