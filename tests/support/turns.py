"""Of the many arguments of a test some for the short set."""

import pytest


def one_in(n, cases):
    """These arguments, of which each n-th is short and the rest `long`. Where they are a product and n has no factor in
    common with the lengths of its columns, each value comes beside many of the others."""
    return [pytest.param(*case, marks=[pytest.mark.long] if k % n else []) for k, case in enumerate(cases)]
