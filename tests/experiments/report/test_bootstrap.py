"""The paired bootstrap against what can be written down in closed form."""

import numpy as np
import pytest

from layernorm.experiments.report.bootstrap import Difference, paired


def test_one_case_and_equal_cases_leave_no_doubt():
    assert paired(np.array([3.0]), np.array([1.0])) == Difference(2.0, 2.0, 2.0)
    assert paired(np.array([3, 4, 5]), np.array([1, 2, 3])) == Difference(2.0, 2.0, 2.0)


def test_two_cases():
    """The means over resampled differences 0 and 1 are 0, 1/2 and 1 with chances 1/4, 1/2 and 1/4."""
    assert paired(np.array([1.0, 3.0]), np.array([1.0, 2.0])) == Difference(0.5, 0.0, 1.0)


@pytest.mark.parametrize("draws", [10_000, 9_700])
def test_the_interval_of_a_mean(draws):
    """Of 400 even differences the mean is normal: 1.96 standard errors to both sides."""
    difference = np.linspace(-1.0, 2.0, 400)
    second = np.random.default_rng(0).normal(size=400)
    found = paired(second + difference, second, draws)
    error = difference.std() / np.sqrt(400)
    # a quantile at 2.5 % of 10,000 normal draws has a standard deviation of 0.027; four times that
    expected = (0.5 - 1.96 * error, 0.5 + 1.96 * error)
    assert found.mean == pytest.approx(0.5, abs=1e-12)  # of float64
    assert (found.low, found.high) == pytest.approx(expected, abs=4 * 0.027 * error)


def test_models_that_find_the_same_cases_hard_are_told_apart_sooner():
    random = np.random.default_rng(1)
    difficulty = random.normal(size=1000)
    first = difficulty + 0.1 * random.normal(size=1000) + 0.05
    second = difficulty + 0.1 * random.normal(size=1000)
    alike, apart = paired(first, second), paired(first, random.permutation(second))
    # deviations of a difference: sqrt(2) 0.1 and sqrt(2 + 0.02), a tenth; the rest is for the draws
    assert alike.high - alike.low < 0.12 * (apart.high - apart.low)
    assert alike.low > 0
    assert apart.low < 0 < apart.high
    assert alike.mean == pytest.approx(apart.mean, abs=1e-12)


def test_the_same_seed_gives_the_same_interval():
    first, second = np.random.default_rng(2).normal(size=(2, 50))
    assert paired(first, second) == paired(first, second)
    assert paired(first, second) != paired(first, second, seed=1)
    swapped = paired(second, first)
    assert (swapped.mean, swapped.low, swapped.high) == pytest.approx(
        (-paired(first, second).mean, -paired(first, second).high, -paired(first, second).low), abs=1e-12
    )


def test_a_difference_in_words():
    assert Difference(0.21, -0.1, 0.3).text() == "0.21 (95 %: -0.10 to 0.30)"
    assert Difference(0.21, -0.1, 0.3).text(1) == "0.2 (95 %: -0.1 to 0.3)"


@pytest.mark.parametrize(("first", "second"), [((3,), (4,)), ((0,), (0,)), ((2, 3), (2, 3)), ((), ())])
def test_what_is_no_pair_of_models_is_refused(first, second):
    with pytest.raises(ValueError, match=r"expected two arrays \[M\] with M > 0, got shapes"):
        paired(np.zeros(first), np.zeros(second))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_case_without_a_value_is_refused(bad):
    with pytest.raises(ValueError, match="1 of 3 differences are not finite"):
        paired(np.array([1.0, bad, 2.0]), np.zeros(3))
