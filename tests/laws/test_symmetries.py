"""Laws of recurrent networks that hold for every norm: order of units, rows and time; who depends on whom."""

import pytest
import torch

import layernorm as ln
from support.drawing import normal
from support.networks import GATES, MODULE, NETWORKS, as_hx, flat

T, B, I, H = 4, 5, 3, 4  # noqa: E741
NORMS = ["layer", "rms", "batch", "weight", None]
LENGTHS = [None, [4, 2, 4, 1, 3]]

every = pytest.mark.parametrize(("network", "norm"), [(n, norm) for n in NETWORKS for norm in NORMS])
lengths_or_not = pytest.mark.parametrize("lengths", LENGTHS, ids=["full", "lengths"])
MODES = [(n, norm, training) for n in NETWORKS for norm in NORMS for training in (True, False)[: 1 + (norm == "batch")]]
every_mode = pytest.mark.parametrize(("network", "norm", "training"), MODES)
"""Of batch norm training and evaluation; the others do the same in both."""


def made(network, norm, **more):
    """A module with random parameters, under batch norm with a population of a batch."""
    module = MODULE[network](I, H, norm=norm, dtype=torch.float64, **more)
    for seed, (name, p) in enumerate(module.named_parameters()):
        p.data = (1.0 if "gain" in name or "original0" in name else 0.0) + 0.5 * normal(*p.shape, seed=seed)
    if norm == "batch":
        module(normal(T, B, I, seed=90))
    return module


def given(module, seed=100):
    D = 1 + module.bidirectional
    x, h, c = normal(T, B, I, seed=seed), normal(D, B, H, seed=seed + 1), normal(D, B, H, seed=seed + 2)
    return x, ((h, c) if isinstance(module, ln.LSTM) else (h,))


def run(module, x, state, lengths=None):
    """(output, final state as a tuple)"""
    with torch.no_grad():
        output, final = module(x, as_hx(state), lengths=lengths)
    return output, flat(final)


def same(got, expected):
    torch.testing.assert_close([got[0], *got[1]], [expected[0], *expected[1]], rtol=1e-9, atol=1e-9)


def differ(a, b):
    assert float((a - b).norm() / b.norm()) > 1e-3


@every_mode
def test_the_order_of_units_is_free(network, norm, training):
    module = made(network, norm).train(training)
    other = made(network, norm).train(training)
    order = torch.tensor([2, 0, 3, 1])
    everywhere = torch.cat([order + gate * H for gate in range(GATES[network])])

    def reordered(name, a):
        units = order if name.endswith("_c_l0") else everywhere
        if name.startswith("num_batches"):
            return a
        if name.startswith("running"):
            return a[:, units]
        a = a[units]
        return a[:, order] if "weight_hh" in name and a.shape[1] == H else a

    other.load_state_dict({name: reordered(name, a) for name, a in module.state_dict().items()})
    x, state = given(module)
    output, final = run(module, x, state)
    same(run(other, x, tuple(s[..., order] for s in state)), (output[..., order], tuple(s[..., order] for s in final)))
    differ(output[..., order], output)


@every_mode
@lengths_or_not
def test_the_order_of_rows_is_free(network, norm, training, lengths):
    module = made(network, norm, bidirectional=True).train(training)
    x, state = given(module)
    order = torch.tensor([3, 0, 4, 1, 2])
    output, final = run(module, x, state, lengths)
    moved = None if lengths is None else [lengths[b] for b in order]
    got = run(module, x[:, order], tuple(s[:, order] for s in state), moved)
    same(got, (output[:, order], tuple(s[:, order] for s in final)))


@every_mode
@lengths_or_not
def test_a_row_depends_on_its_neighbours_in_training_under_batch_norm_only(network, norm, training, lengths):
    module = made(network, norm, bidirectional=True).train(training)
    x, state = given(module)
    other = x.clone()
    other[:, 1:] = normal(T, B - 1, I, seed=7)
    a, b = (run(module, values, state, lengths)[0][:, 0] for values in (x, other))
    if norm == "batch" and training:
        differ(a, b)
    else:
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@every_mode
@lengths_or_not
def test_the_reverse_direction_is_forward_on_what_is_reversed(network, norm, training, lengths):
    """With lengths each row is reversed by itself; batch norm's steps are counted as they are taken."""
    both, one = made(network, norm, bidirectional=True), made(network, norm)
    one.load_state_dict({k.replace("_reverse", ""): v for k, v in both.state_dict().items() if "_reverse" in k})
    x, state = given(both)

    def flipped(a):
        ends = [T] * B if lengths is None else lengths
        return torch.stack([torch.cat([a[:end, b].flip(0), a[end:, b]]) for b, end in enumerate(ends)], 1)

    output, final = run(both.train(training), x, state, lengths)
    got, last = run(one.train(training), flipped(x), tuple(s[1:] for s in state), lengths)
    same((flipped(got), last), (output[..., H:], tuple(s[1:] for s in final)))
    for name, value in one.named_buffers():
        torch.testing.assert_close(both.get_buffer(name + "_reverse"), value, rtol=1e-9, atol=1e-9)
    differ(got, output[..., H:])


@every_mode
def test_two_calls_are_one_but_under_batch_norm_whose_steps_are_counted(network, norm, training):
    module = made(network, norm).train(training)
    x, state = given(module)
    output, final = run(module, x, state)
    first, between = run(module, x[:2], state)
    second, last = run(module, x[2:], between)
    if norm == "batch" and not training:
        differ(second, output[2:])
    else:  # in training batch norm has no memory: a step's statistics are the batch's
        same((torch.cat([first, second]), last), (output, final))


@every
def test_only_the_sum_of_the_biases_matters_but_in_the_grus_candidate(network, norm):
    module = made(network, norm)
    x, state = given(module)
    before = run(module, x, state)
    shift = normal(GATES[network] * H, seed=8)
    candidate = shift.clone()
    if network == "GRU":
        shift[2 * H :], candidate[: 2 * H] = 0, 0
    for moved, kept in ((shift, True), (candidate, network != "GRU")):
        module.bias_ih_l0.data += moved
        module.bias_hh_l0.data -= moved
        now = run(module, x, state)
        same(now, before) if kept else differ(now[0], before[0])


@every
def test_gains_and_weights_may_turn_their_sign_together(network, norm):
    """N(-z) = -N(z) for every norm; where nothing multiplies afterwards the output changes."""
    module = made(network, norm)
    x, state = given(module)
    before = run(module, x, state)
    for name, p in module.named_parameters():
        if "weight_ih" in name or "weight_hh" in name or (name.startswith("gain") and "_c_" not in name):
            p.data = -p.data
    now = run(module, x, state)
    same(now, before) if norm is not None else differ(now[0], before[0])
