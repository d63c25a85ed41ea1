"""Bad arguments: an error that names the argument, what was given and what is expected."""

import numpy as np
import pytest
import torch

import layernorm as ln
from layernorm.functional import gru, layer_norm, lstm, rms_norm, rnn

X = torch.randn(4, 2, 3)
P = {name: p.detach() for name, p in ln.GRUCell(3, 5).named_parameters()}
LSTM = {name: p.detach() for name, p in ln.LSTMCell(3, 5).named_parameters()}
ZEROS = torch.zeros(2, 5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: gru(X[0], None, P), RuntimeError, r"gru: expected input of shape \[T, B, I\], got \[2, 3\]"),
        (lambda: gru(X[..., :2], None, P), RuntimeError, r"expected weight_ih of shape \[15, 2\], got \[15, 3\]"),
        (
            lambda: gru(X.double(), None, P),
            RuntimeError,
            r"expected input of type torch.float32, as the parameters are, got torch.float64",
        ),
        (lambda: gru(X.long(), None, P), RuntimeError, "floating-point type, got torch.int64"),
        (lambda: gru(X, ZEROS[:1], P), RuntimeError, r"expected initial h of shape \[2, 5\], got \[1, 5\]"),
        (lambda: lstm(X, (ZEROS, ZEROS[:, :1]), LSTM), RuntimeError, r"initial c of shape \[2, 5\], got \[2, 1\]"),
        (lambda: gru(X, None, P | {"gain_c": ZEROS}), ValueError, r"missing \[\], unexpected \['gain_c'\]"),
        (lambda: gru(X, None, {k: v for k, v in P.items() if k != "gain_hh"}), ValueError, r"missing \['gain_hh'\]"),
        (
            lambda: gru(X, None, P, norm="layr"),
            ValueError,
            r"\['layer', 'rms', 'batch', 'weight'\] or None, got 'layr'; did you mean 'layer'",
        ),
        (lambda: gru(X, None, P, norm="batch"), ValueError, "norm=.batch. needs a module; use layernorm.GRU"),
        (lambda: gru(X, None, P, formula="cell"), ValueError, "defined for LSTM, not for GRU"),
        (
            lambda: rnn(X, None, {}, nonlinearity="sigmoid"),
            ValueError,
            r"nonlinearity must be one of \['tanh', 'relu'\]",
        ),
        (lambda: gru(X, None, P, lengths=torch.tensor([4])), RuntimeError, r"lengths of shape \[2\], got \[1\]"),
        (
            lambda: gru(X, None, P, lengths=torch.tensor([5, 1])),
            RuntimeError,
            r"lengths must lie in 0..4.*got \[5, 1\]",
        ),
        (lambda: gru(X, None, P, lengths=torch.tensor([-1, 1])), RuntimeError, "lengths must lie in 0..4"),
        (lambda: gru(X, None, P, lengths=torch.tensor([1.0, 1])), RuntimeError, "an integer type, got torch.float32"),
        (
            lambda: gru(X, None, P, reset=torch.zeros(2, 4).bool()),
            RuntimeError,
            r"reset of shape \[4, 2\], got \[2, 4\]",
        ),
        (lambda: gru(X, None, P, reset=torch.full((4, 2), 2)), RuntimeError, "only 0 and 1, got torch.int64 with 2"),
        (lambda: gru(X.to("meta"), None, P), RuntimeError, "on meta, where input is, got cpu"),
        (lambda: gru(X.numpy(), None, P), TypeError, "gru: expected input to be a Tensor, got ndarray"),
        (lambda: gru(X, None, P | {"gain_hh": 1.0}), TypeError, "gru: expected gain_hh to be a Tensor, got float"),
        (lambda: gru(X, None, list(P.values())), TypeError, "expected parameters to be a mapping from names, got list"),
        (lambda: gru(X, (ZEROS,), P), TypeError, "gru: expected initial h to be a Tensor, got tuple"),
        (lambda: gru(X, None, P, lengths=[1, 2]), TypeError, "gru: expected lengths to be a Tensor, got list"),
        (lambda: gru(X, None, P | {"weight_hh": ZEROS[0, 0]}), RuntimeError, r"weight_hh with 2 dimensions, got \[\]"),
        (lambda: lstm(X, ZEROS, LSTM), TypeError, r"lstm: expected hx to be a tuple \(h, c\), got Tensor"),
        (lambda: lstm(X, (ZEROS,), LSTM), TypeError, r"lstm: expected hx to be a tuple \(h, c\), got tuple of 1"),
        (lambda: lstm(X, (ZEROS, None), LSTM), TypeError, "lstm: expected initial c to be a Tensor, got NoneType"),
        (lambda: lstm(X, None, LSTM, eps="small"), TypeError, "eps must be a number, got str"),
        (lambda: layer_norm(X, (3,), eps=None), TypeError, "layer_norm: expected eps to be a number, got NoneType"),
        (lambda: rms_norm(X, (3,), eps="small"), TypeError, "rms_norm: expected eps to be a number, got str"),
        (lambda: layer_norm(X, (4,)), RuntimeError, r"expected input of shape \[\*, 4\], got \[4, 2, 3\]"),
        (lambda: layer_norm(X, ()), RuntimeError, "normalized_shape"),
        (lambda: layer_norm(X[0, 0, 0], (3,)), RuntimeError, r"expected input of shape \[\*, 3\], got \[\]"),
        (lambda: layer_norm(X, (3,), torch.ones(4)), RuntimeError, r"expected weight of shape \[3\], got \[4\]"),
        (
            lambda: layer_norm(X, (3,), torch.ones(3), torch.ones(3, 1)),
            RuntimeError,
            r"bias of shape \[3\], got \[3, 1\]",
        ),
        (lambda: layer_norm(X, (3,), torch.ones(3, device="meta")), RuntimeError, "expected weight on cpu"),
        (lambda: layer_norm(X, (3,), torch.ones(3).int()), RuntimeError, "weight of a floating-point type"),
        (lambda: layer_norm(X.int(), (3,)), RuntimeError, "floating-point type, got torch.int32"),
        (lambda: rms_norm(X, (4,)), RuntimeError, r"rms_norm: given normalized_shape=\[4\]"),
        (
            lambda: rms_norm(X.long(), (3,)),
            RuntimeError,
            "rms_norm: expected input of a floating-point type, got torch.int64",
        ),
        (lambda: layer_norm(None, (3,)), TypeError, "layer_norm: expected input to be a Tensor, got NoneType"),
        (lambda: rms_norm([1.0], (1,)), TypeError, "rms_norm: expected input to be a Tensor, got list"),
        (lambda: layer_norm(X, (3,), 1.0), TypeError, "layer_norm: expected weight to be a Tensor, got float"),
        (lambda: layer_norm(X, 3), TypeError, "expected normalized_shape to be a tuple of ints, got int"),
        (lambda: layer_norm(X, (np.float32(3),)), TypeError, "to be a tuple of ints, got one of float32"),
        (lambda: layer_norm(X, (3.0,)), TypeError, "to be a tuple of ints, got one of float"),
        (lambda: layer_norm(X, [[3]]), TypeError, "to be a tuple of ints, got one of list"),
        (lambda: layer_norm(X, (-1,), torch.ones(3)), RuntimeError, r"given normalized_shape=\[-1\], expected input"),
    ],
)
def test_message(call, error, message):
    layer_norm(X, (3,))  # a size that is equal to one that is known by now is no better for it
    with pytest.raises(error, match=message):
        call()


def test_a_size_may_be_anything_that_is_an_integer():
    size = torch.tensor(3)
    assert torch.equal(layer_norm(X, (size,)), layer_norm(X, (3,)))
    assert torch.equal(layer_norm(X, [np.int64(2), 3]), layer_norm(X, (2, 3)))
    with pytest.raises(RuntimeError, match=r"given normalized_shape=\[4\]"):
        layer_norm(X, (size.fill_(4),))


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_list_that_is_changed_later_changes_no_gradient(create_graph):
    x, sizes, dy = X.clone().requires_grad_(), [3], torch.randn_like(X)
    expected = torch.autograd.grad(layer_norm(x, (3,)), x, dy)[0]
    y = layer_norm(x, sizes)
    sizes.insert(0, 2)
    torch.testing.assert_close(torch.autograd.grad(y, x, dy, create_graph=create_graph)[0], expected)


def test_the_same_under_torch_func():
    with pytest.raises(RuntimeError, match="expected weight_ih"):
        torch.func.vmap(lambda x: gru(x, None, P)[0])(torch.randn(3, 4, 2, 2))
    with pytest.raises(RuntimeError, match="expected input of shape"):
        torch.func.grad(lambda x: layer_norm(x, (4,)).sum())(X)


def test_a_mask_under_vmap():
    module, x, mask = ln.GRU(2, 3), torch.randn(2, 4, 3, 2), torch.ones(2, 4, 3, dtype=torch.bool)
    run = torch.func.vmap(lambda x, mask: module(x, mask=mask)[0])
    torch.testing.assert_close(run(x, mask)[1], module(x[1])[0])
    mask[1, 2, 0] = False
    with pytest.raises(ValueError, match="GRU: expected each row's steps to come first in mask, got a row with a gap"):
        run(x, mask)


@pytest.mark.parametrize("bad", [9, -1])
def test_lengths_out_of_range_under_torch_func(bad):
    """As without it; under vmap of any case, also where lengths are wrapped twice."""
    lengths = torch.tensor([[1, 4, 2], [0, bad, 3]])
    module, x = ln.GRU(2, 3), torch.randn(2, 4, 3, 2)

    def run(x, lengths):
        return module(x, lengths=lengths)[0].sum()

    message = rf"lengths must lie in 0\.\.4, the time steps of the input, got .*{bad}"
    for call in (
        lambda: torch.func.vmap(run)(x, lengths),
        lambda: torch.func.vmap(torch.func.grad(run))(x, lengths),
        lambda: torch.func.grad(run)(x[1], lengths[1]),
        lambda: torch.func.jvp(lambda x: run(x, lengths[1]), (x[1],), (x[1],)),
    ):
        with pytest.raises(RuntimeError, match=message):
            call()
    good = lengths.clamp(0, 4)
    expected = torch.stack([run(x[k], good[k]) for k in range(2)])
    torch.testing.assert_close(torch.func.vmap(run)(x, good), expected)
