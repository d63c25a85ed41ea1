"""The kernels are tested in every instruction set that runs here, or in the one that LAYERNORM_ISA asks for."""

import pytest

from support.instruction_sets import SETS, start


@pytest.fixture(autouse=True)
def uninitialised(empty_is_nan):
    """In the tests of this folder memory begins as NaN."""


@pytest.fixture(scope="module", params=SETS)
def instruction_set(request):
    start(request.param)
    yield request.param
    start(SETS[-1])
