"""Tensors that are not dense: an error that names the argument."""

import pytest
import torch

import layernorm as ln
from support.networks import ENGINES

MAKES = [torch.Tensor.to_sparse, torch.Tensor.to_mkldnn]
CALLS = {
    "layer_norm: expected input": lambda bad: ln.LayerNorm(4)(bad(torch.randn(3, 4))),
    "rms_norm: expected input": lambda bad: ln.RMSNorm(4)(bad(torch.randn(3, 4))),
    "layer_norm: expected residual": lambda bad: ln.LayerNorm(4)(torch.randn(3, 4), bad(torch.randn(3, 4))),
    "layer_norm: expected weight": lambda bad: ln.functional.layer_norm(torch.randn(3, 4), (4,), bad(torch.randn(4))),
    "LSTM: expected input": lambda bad: ln.LSTM(4, 5)(bad(torch.randn(3, 4))),
    "LSTM: expected input's data": lambda bad: ln.LSTM(4, 5)(
        torch.nn.utils.rnn.PackedSequence(bad(torch.randn(3, 4)), torch.tensor([2, 1]))
    ),
    "GRU: expected hx": lambda bad: ln.GRU(4, 5)(torch.randn(6, 3, 4), bad(torch.randn(1, 3, 5))),
    "LSTMCell: expected input": lambda bad: ln.LSTMCell(4, 5)(bad(torch.randn(3, 4))),
    "GRU.stepper: expected input": lambda bad: ln.GRU(4, 5).stepper()(bad(torch.randn(3, 4))),
    "gru: expected initial h": lambda bad: ln.GRU(4, 5).stepper()(torch.randn(3, 4), [[bad(torch.randn(3, 5))]]),
    "LSTM: expected reset": lambda bad: ln.LSTM(4, 5)(torch.randn(6, 3, 4), reset=bad(torch.ones(6, 3))),
    "LSTM.stepper: expected h of reset_hx": lambda bad: ln.LSTM(4, 5).stepper()(
        torch.randn(3, 4), reset=torch.ones(3), reset_hx=[[bad(torch.randn(3, 5)), torch.randn(3, 5)]]
    ),
    "gru: expected weight_hh": lambda bad: ln.functional.gru(
        torch.randn(6, 3, 4), None, {"weight_ih": torch.randn(15, 4), "weight_hh": bad(torch.randn(15, 5))}, norm=None
    ),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bad", MAKES)
@pytest.mark.parametrize("message", CALLS)
def test_a_tensor_that_is_not_dense_is_refused_by_name(message, bad, engine):
    with ln.backends.use(engine), pytest.raises(RuntimeError, match=f"{message} to be dense"):
        CALLS[message](bad)


def test_a_mask_that_is_not_dense_is_refused_by_name():
    mask = torch.ones(6, 3, dtype=torch.bool).to_sparse()
    with pytest.raises(RuntimeError, match="LSTM: expected mask to be dense"):
        ln.LSTM(4, 5)(torch.randn(6, 3, 4), mask=mask)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.parametrize("message", [name for name in CALLS if "_norm" in name or "input" in name])
def test_a_nested_tensor_is_refused_by_name(message, layout):
    with pytest.raises(RuntimeError, match=f"{message} to be dense, got a nested tensor"):
        CALLS[message](lambda tensor: torch.nested.nested_tensor([tensor, tensor], layout=layout))
