"""`audit` on models with a planted fault of the start, and on sound ones: what it says of each."""

import pytest

from support.repository import loaded

models = loaded("benchmarks/audit.py")


@pytest.mark.parametrize("name", models.PLANTED)
def test_a_planted_fault_is_found_and_no_other(name):
    make, words = models.PLANTED[name]
    found = models.made(make)
    assert len(found) == len(words), str(found)
    for finding, expected in zip(found, words, strict=True):
        assert expected in str(finding)
        assert finding.measured != finding.threshold
        assert finding.fix


@pytest.mark.parametrize("name", models.SOUND)
def test_nothing_is_found_in_a_sound_model(name):
    assert models.made(models.SOUND[name]) == []
