"""Evaluations that take no time."""

import pytest

from layernorm_lab.experiments.skip_thoughts import encoder, evaluation, experiment


@pytest.fixture(autouse=True, scope="module")
def _quick():
    """Has fewer folds, values of C, blocks and features."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "PENALTIES", (1.0,))
        patch.setattr(evaluation, "FOLDS", 2)
        patch.setattr(evaluation, "BLOCKS", 1)
        patch.setattr(encoder, "FEATURES", 64)
        yield


@pytest.fixture(autouse=True)
def _fresh():
    experiment.load_text.cache_clear()
