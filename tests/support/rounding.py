"""How far from float64 a recurrent network's results may be in float32 and in 16 bits."""

import copy

import torch

import layernorm as ln

# Times the larger of the reference's own error in that type and of what half a unit in the last place of every input
# changes (the reference's roundings may happen to cancel), and so many units of the largest value beside it. The
# kernels round what a step hands to the next, the reference engine only results.
TIMES, UNITS = 4.0, 8


def moved(t, dtype, generator):
    """In float64, every number by up to half a unit in the last place of its type."""
    t = t.double()
    return t * (1 + (torch.rand(t.shape, dtype=t.dtype, generator=generator) - 0.5) * torch.finfo(dtype).eps)


@torch.no_grad()
def assert_near(name, found, exact, rounded, *near):
    """One result of an engine against the reference engine's: in float64, in the same type, and in float64 of `moved`
    inputs, once or several times."""
    assert found.shape == exact.shape, name
    assert found.dtype == rounded.dtype, name
    if found.numel():
        error = float((found.double() - exact).abs().max())
        unit = max(float((t.double() - exact).abs().max()) for t in (rounded, *near))
        allowed = TIMES * unit + UNITS * torch.finfo(found.dtype).eps * max(float(exact.abs().max()), 1.0)
        assert error <= allowed, (name, error, allowed)


def assert_as_near_as_the_reference(results, *inputs, draws=1):
    """Each of ``results(*inputs)``, which are float32, by `assert_near`; an input is a tensor or a module.

    ``draws``: of moved inputs. What one of them changes varies several times; over thousands of random cases one draw
    is now and then far below the others.
    """
    found, g = results(*inputs), torch.Generator().manual_seed(2)
    kinds = (torch.Tensor.double, lambda t: t, *[lambda t: moved(t, t.dtype, g)] * draws)
    with ln.backends.use("reference"):
        others = [results(*(_changed(one, kind) for one in inputs)) for kind in kinds]
    for k, (a, *expected) in enumerate(zip(found, *others, strict=True)):
        assert_near(k, a, *expected)


def _changed(one, change):
    """A copy with other numbers."""
    if isinstance(one, torch.Tensor):
        return change(one.detach()).requires_grad_()
    one = copy.deepcopy(one)
    for p in one.parameters():
        p.data = change(p.detach())
    return one
