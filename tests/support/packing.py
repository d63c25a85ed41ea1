"""A padded call of a recurrent op, and the same call packed, by plain loops over times and rows."""

import torch

from layernorm.equations.arguments import RecurrentArguments

from .formula_space import drawn, drawn_changes, in_types


def lengths_of(T, B, seed=0):
    """Falling lengths from 1 to T, the first of them T."""
    drawn = torch.randint(1, T + 1, (B,), generator=torch.Generator().manual_seed(seed))
    return [T, *sorted(drawn.tolist(), reverse=True)[1:]][:B]


def take_lines(x, lengths):
    """(T, B, *) -> (lines, *)."""
    lines = [x[t, b] for t in range(len(x)) for b in range(len(lengths)) if t < lengths[b]]
    return torch.stack(lines) if lines else x.new_zeros(0, *x.shape[2:])


def both_calls(recurrence, T, B, I, H, P, reverse, reset, kind=0, seed=0):  # noqa: E741
    """The two calls, in float64, and the lengths. ``kind``: what happens between steps, as in `drawn_changes`."""
    x, state, params, _, cuts = drawn(recurrence, T, B, I, H, P, False, reset)
    changes, lengths = drawn_changes(recurrence, T, B, H, P, kind), lengths_of(T, B, seed)
    padded = RecurrentArguments(x, state, params, recurrence, changes, torch.tensor(lengths), cuts, reverse)
    kept = [k if k is None else k[0] if k.numel() == 1 else take_lines(k, lengths) for k in changes.kept]
    packed = padded._replace(
        input=take_lines(x, lengths),
        lengths=None,
        reset=None if cuts is None else take_lines(cuts, lengths),
        changes=changes._replace(kept=kept),
        batch_sizes=torch.tensor([sum(n > t for n in lengths) for t in range(T)], dtype=torch.int64),
    )
    return padded, packed, lengths


def in_type(a, dtype):
    """A call with its numbers in this type."""
    return a._replace(
        input=a.input.to(dtype),
        state=[s.to(dtype) for s in a.state],
        params=[p.to(dtype) for p in a.params],
        changes=in_types(a.changes, dtype, torch.promote_types(dtype, torch.float32)),
    )


def forward_and_backward(engine, a, grads):
    """Output, final state and all gradients of a call, from these gradients of output and state."""
    n = 1 + len(a.state)
    found = engine.recurrent_forward(a, True)
    expected = [(t.shape, t.dtype) for t in engine.recurrent_saved(a)]
    assert [(t.shape, t.dtype) for t in found[n:]] == expected
    inference = engine.recurrent_forward(a, False)
    assert all(map(torch.equal, found[:n], inference))
    return [*found[:n], *engine.recurrent_backward(a, found[n:], grads[0], grads[1:])]


def compare(engine, padded, packed, lengths, close=1e-10):
    """A packed call on an engine against the equations of the padded one, in float64, with every gradient."""
    from layernorm.engines import reference

    g = torch.Generator().manual_seed(1)
    results = reference.recurrent_forward(padded, False)
    grads = [torch.randn(r.shape, dtype=r.dtype, generator=g) for r in results]
    expected = forward_and_backward(reference, padded, grads)
    got = forward_and_backward(engine, packed, [take_lines(grads[0], lengths), *grads[1:]])
    input = 1 + len(padded.state)
    for place, (a, b) in enumerate(zip(got, expected, strict=True)):
        b = take_lines(b, lengths) if place in (0, input) else b
        assert a.shape == b.shape, place
        if a.numel():
            error = float((a - b).abs().max() / (1 + b.abs().max()))
            assert error < close, (place, error)
