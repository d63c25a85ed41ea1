"""scikit-learn's handwritten digits, in the form of MNIST. They are part of a package and need no folder."""

from __future__ import annotations

import numpy as np

from . import source
from .mnist import Cases, Images

SUMMARY = "1797 handwritten digits of 8 x 8 pixels; part of scikit-learn, nothing to prepare"
"""One line for `layernorm data list`."""


def load_digits() -> Images:
    """Loads scikit-learn's handwritten digits: the last 400 of 1797 are for testing.

    The order is the publisher's, in which a writer's digits follow one another. So most test digits are by writers who
    are not in the training set.
    """
    import torch
    from sklearn import datasets

    bunch = datasets.load_digits()
    images = torch.from_numpy(bunch.data.astype(np.uint8))
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    train, test = (Cases(images[part], labels[part]) for part in (slice(1397), slice(1397, None)))
    parts = {"images": images, "labels": labels}
    digest = source.fingerprint({name: source.sha256(part.numpy().tobytes()) for name, part in parts.items()})
    facts = {"name": "digits", "fingerprint": digest, "original": False, "folder": "scikit-learn"}
    return Images(train, train[:0], test, 16, facts)
