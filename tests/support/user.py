"""A user's program, to be read by type checkers (`make lint`) and never run: what they know of each public function."""

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from typing_extensions import assert_type

import layernorm as ln

State = tuple[Tensor, Tensor]
Layers = list[list[Tensor]]

x = torch.randn(5, 2, 3)
packed = torch.nn.utils.rnn.pack_sequence([x[:, 0]])
lengths = torch.tensor([5, 3])

# Networks: a tensor gives a tensor, a packed sequence a packed sequence; the state is h, in an LSTM (h, c).
lstm = ln.LSTM(3, 4, num_layers=2, norm="rms", formula=ln.Formula(span="per_gate"))
assert_type(lstm(x), tuple[Tensor, State])
assert_type(lstm(x, lengths=lengths, reset=torch.zeros(5, 2, dtype=torch.bool)), tuple[Tensor, State])
assert_type(lstm.forward(x, (x, x)), tuple[Tensor, State])
assert_type(lstm(packed), tuple[PackedSequence, State])
assert_type(lstm(packed, reset=x, reset_hx=(x, x)), tuple[PackedSequence, State])
assert_type(ln.GRU(3, 4)(x), tuple[Tensor, Tensor])
assert_type(ln.GRU(3, 4)(packed, x), tuple[PackedSequence, Tensor])
assert_type(ln.RNN(3, 4)(x, x, lengths=[5, 3]), tuple[Tensor, Tensor])
assert_type(ln.RNN(3, 4)(packed), tuple[PackedSequence, Tensor])


def of_either(input: Tensor | PackedSequence) -> tuple[Tensor | PackedSequence, State]:
    return lstm(input)


# Steps.
step = lstm.stepper()
assert_type(step(x[0]), tuple[Tensor, Layers])
assert_type(step(x[0], (x, x)), tuple[Tensor, Layers])
assert_type(ln.GRU(3, 4).stepper()(x[0], x), tuple[Tensor, Layers])
assert_type(step.hx(step(x[0])[1]), State)
assert_type(ln.GRU(3, 4).stepper().hx([[x]]), Tensor)

# Cells.
assert_type(ln.LSTMCell(3, 4)(x[0]), State)
assert_type(ln.LSTMCell(3, 4)(x[0], (x[0], x[0])), State)
assert_type(ln.LSTMCell(3, 4).stepper()(x[0], reset=lengths), State)
assert_type(ln.GRUCell(3, 4)(x[0]), Tensor)
assert_type(ln.RNNCell(3, 4).stepper()(x[0], x[0]), Tensor)

# Norms.
assert_type(ln.LayerNorm(3)(x), Tensor)
assert_type(ln.LayerNorm(3)(x, x), tuple[Tensor, Tensor])
assert_type(ln.RMSNorm(3)(x, residual=x), tuple[Tensor, Tensor])
assert_type(ln.BatchNorm(3, unbiased=True)(x), Tensor)

# convert: one of torch's modules becomes ours, anything else is what it was.
assert_type(ln.convert(torch.nn.LSTM(3, 4)), ln.LSTM)
assert_type(ln.convert(torch.nn.GRUCell(3, 4), "rms", eps=1e-3), ln.GRUCell)
assert_type(ln.convert(torch.nn.RNN(3, 4), None), ln.RNN)
assert_type(ln.convert(torch.nn.Sequential(torch.nn.LSTM(3, 4))), torch.nn.Sequential)

# accelerate and restore: the module is the same object.
assert_type(ln.accelerate(torch.nn.LSTM(3, 4)), torch.nn.LSTM)
assert_type(ln.restore(torch.nn.Sequential()), torch.nn.Sequential)

# match: the gains of each layer by name; the start of torch's network without inputs.
assert_type(ln.convert(torch.nn.LSTM(3, 4), match=(x,)), ln.LSTM)
assert_type(ln.match(lstm, x, lengths=lengths)[0].gains, dict[str, tuple[float, ...]])
ln.GRU(3, 4, gain_init="match")
ln.LSTM(3, 4, gain_init="matched")  # type: ignore[arg-type]

# Functions.
weights = dict(lstm.named_parameters())
assert_type(ln.functional.layer_norm(x, [3]), Tensor)
assert_type(ln.functional.rms_norm(x, (3,), eps=None), Tensor)
assert_type(ln.functional.add_layer_norm(x, x, [3]), tuple[Tensor, Tensor])
assert_type(ln.functional.lstm(x, None, weights), tuple[Tensor, State])
assert_type(ln.functional.gru(x, x[0], weights), tuple[Tensor, Tensor])
assert_type(ln.functional.rnn(x, x[0], weights, nonlinearity="relu"), tuple[Tensor, Tensor])

# What a checker must find: each line is an error, and an ignored line without one is an error, too.
ln.GRU(3, 4)(x, (x, x))  # type: ignore[call-overload]
ln.LSTM(3, 4)(x, x)  # type: ignore[call-overload]
ln.LSTM(3, 4)(packed, lengths=lengths)  # type: ignore[call-overload]
ln.LSTMCell(3, 4)(x, x)  # type: ignore[arg-type]
ln.convert(torch.nn.LSTM(3, 4), epsilon=1.0)  # type: ignore[call-overload]
ln.LSTM("3", 4)  # type: ignore[arg-type]
ln.LSTM(3, 4).stepper()(x, x)  # type: ignore[arg-type]
assert_type(ln.backends.available(), list[str])
ln.portabel(lstm)  # type: ignore[attr-defined]
