"""Tests of data sets look at no data of this machine."""

import pytest

from layernorm.experiments.data.binarized_mnist import read_binarized_mnist
from layernorm.experiments.data.cifar10 import read_cifar10
from layernorm.experiments.data.iam import read_iam
from layernorm.experiments.data.mnist import read_mnist


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    for read in (read_mnist, read_binarized_mnist, read_cifar10, read_iam):
        read.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LAYERNORM_DATA", raising=False)
