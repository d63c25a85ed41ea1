"""The examples as modules."""

import sys

import pytest

from support.repository import loaded


@pytest.fixture(scope="module")
def example(request):
    """That of a file of tests: its FILE."""
    file = request.module.FILE
    yield loaded(file)
    del sys.modules[file.stem]
