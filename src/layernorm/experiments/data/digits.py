"""scikit-learn's handwritten digits, in the form of MNIST. They are part of a package and need no folder."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from ..errors import UsageError
from . import source
from .mnist import Cases, Images

SUMMARY = "1797 handwritten digits of 8 x 8 pixels; part of scikit-learn, nothing to prepare"
"""One line for `layernorm data list`."""


def load(held_out: int) -> Images:
    """Loads scikit-learn's handwritten digits: the last 400 of 1797 for testing, `held_out` before them for validation.

    The order is the publisher's, in which a writer's digits follow one another. So most test digits are by writers who
    are not in the training set.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.data.astype(np.uint8))
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    everything = Cases(images, labels)
    if not 0 < held_out < 1397:
        raise UsageError(f"--held-out must lie in 1..1396, got {held_out}")
    digest = source.fingerprint({"images": _sha256(images.numpy()), "labels": _sha256(labels.numpy())})
    facts = {"name": "digits", "fingerprint": digest, "original": False, "folder": "scikit-learn"}
    first, last = 1397 - held_out, 1397
    return Images(everything[:first], everything[first:last], everything[last:], 16, facts)


def _sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
