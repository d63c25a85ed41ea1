"""Another number of threads for a while."""

import contextlib

import torch


@contextlib.contextmanager
def threads(number):
    """Inside, torch has so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
