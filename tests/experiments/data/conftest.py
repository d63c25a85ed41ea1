"""Tests of data sets look at no data of this machine."""

import pytest

from layernorm.experiments.data import binarized_mnist, cifar10, iam, mnist


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    for module in (mnist, binarized_mnist, cifar10, iam):
        module._read.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LAYERNORM_DATA", raising=False)
