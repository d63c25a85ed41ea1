"""Of the many arguments of a test some for the short set."""

import itertools

import pytest


def one_in(n, *columns):
    """The product of the columns as a test's arguments, of which each n-th is short and the rest `long`. With an n that
    has no factor in common with the columns' lengths each value of a column comes beside many of the others."""
    return [
        pytest.param(*values, marks=[pytest.mark.long] if k % n else [])
        for k, values in enumerate(itertools.product(*columns))
    ]
