"""What the package remembers between calls has a bound."""

import functools
import gc
import tracemalloc

import pytest
import torch

import layernorm as ln

FEW_KEYS = {
    "_nodes", "_status", "_warn_of_missing", "engine", "compiles_for",  # names of engines and devices, or nothing
    "_has_slow_products",  # nothing
    "_capture_stream",  # devices
    "_call_op",  # how many tensors a plan has
    "_accelerated_class",  # a class of the user's, which has to stay the same
    "_compiled",  # torch never frees what it has compiled
}  # fmt: skip
"""The caches without a bound, and by what they are few."""


def caches():
    """Every cache of a function of the library, by the function's name."""
    kind = type(functools.cache(int))
    found = [c for c in gc.get_objects() if type(c) is kind and str(c.__module__).startswith("layernorm.")]
    return {c.__qualname__.rpartition(".")[2]: c for c in found if not c.__module__.startswith("layernorm.doctor")}


def call(number):
    """A network, batch norm and a norm, forward and backward, with an eps that no call had before."""
    eps = 1e-5 + 1e-9 * number
    x, state = torch.randn(2, 2, 2, requires_grad=True), torch.zeros(2, 2)
    weights = {name: torch.randn(2, 2) for name in ("weight_ih", "weight_hh")}
    parameters = weights | {name: torch.ones(2) for name in ("gain", "bias_ih", "bias_hh")}
    output, _ = ln.functional.rnn(x, state, parameters, eps=eps)
    y = ln.functional.layer_norm(x, (2,), eps=eps)
    (output.square().sum() + y.square().sum()).backward()


def test_every_cache_has_a_bound_or_few_keys():
    call(0)
    names = {name for name, cache in caches().items() if cache.cache_info().maxsize is None}
    assert names <= FEW_KEYS
    assert {"decode", "_with_bfloat16_products"} <= caches().keys()


@pytest.mark.long
def test_formulas_without_end_take_no_memory_without_end():
    from layernorm.formula import CACHED

    for number in range(CACHED + 100):
        call(number)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(CACHED + 100, 10_000):
            call(number)
            if number == 2 * CACHED + 200:  # from here on all that is dropped was seen to be taken
                gc.collect()
                before = tracemalloc.get_traced_memory()[0]
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 1 << 20  # caches without a bound kept 4 KB a call, 30 MB
