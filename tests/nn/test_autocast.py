"""Under autocast on a CPU: the types of outputs and states are torch's, as the table in docs/recipes.md has them, and a
state loses nothing that torch's keeps."""

import copy
import itertools
import math

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import layernorm as ln
from support.networks import CELL, ENGINES, MODULE, as_hx, flat
from support.repository import ROOT
from support.turns import one_in

T, B, I, H = 5, 4, 3, 6  # noqa: E741
NARROW = [torch.bfloat16, torch.float16]


def table():
    """The rows of the table: names of networks, and the types by the columns (input, state)."""
    lines = (ROOT / "docs/recipes.md").read_text().splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith("| under autocast"))
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            return rows
        name, *types = (part.strip() for part in line.strip("|").split("|"))
        rows.append((name, types))
    raise AssertionError("the table has no end")


COLUMNS = [("float32", None), ("bfloat16", None), ("bfloat16", "float32"), ("float32", "bfloat16")]
NETWORKS = {
    "`RNN`, `RNNCell`": [("RNN", {}, False), ("RNNCell", {}, False), ("RNN", {}, True)],
    "`GRU`, `GRUCell`": [("GRU", {}, False), ("GRUCell", {}, False), ("GRU", {}, True)],
    "`LSTMCell`, `LSTM` of a `PackedSequence`": [("LSTMCell", {}, False), ("LSTM", {}, True)],
    "`LSTM` with `proj_size`: output and h": [("LSTM", {"proj_size": 2}, False), ("LSTM", {"proj_size": 2}, True)],
    "`LSTM` with `proj_size`: c": [("LSTM", {"proj_size": 2}, False), ("LSTM", {"proj_size": 2}, True)],
    "`LSTM`, padded": [("LSTM", {}, False)],
}


def call(module, input_type, state_type, packed=False):
    """Output, if there is one, and state."""
    cell = isinstance(module, torch.nn.RNNCellBase | ln.RNNCell | ln.GRUCell | ln.LSTMCell)
    x = torch.randn(*((B, I) if cell else (T, B, I))).to(input_type)
    state = None
    if state_type is not None:
        sizes = [getattr(module, "proj_size", 0) or H, H] if "LSTM" in type(module).__name__ else [H]
        state = as_hx([torch.zeros(*(() if cell else (1,)), B, size, dtype=state_type) for size in sizes])
    result = module(pack_padded_sequence(x, torch.tensor([5, 4, 3, 1])) if packed else x, state)
    if cell:
        return flat(result)
    return [result[0].data if isinstance(result[0], PackedSequence) else result[0], *flat(result[1])]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("narrow", NARROW, ids=str)
def test_types_are_those_of_the_table_and_torchs(narrow, grad):
    rows, compared = table(), 0
    assert [name for name, _ in rows] == list(NETWORKS)
    types = {"float32": torch.float32, "bfloat16": narrow, None: None}
    for name, expected in rows:
        for (input_name, state_name), written in zip(COLUMNS, expected, strict=True):
            for kind, options, packed in NETWORKS[name]:
                theirs = getattr(torch.nn, kind)(I, H, **options)
                modules = [theirs, ln.accelerate(copy.deepcopy(theirs)), getattr(ln, kind)(I, H, **options)]
                if name == "`LSTM`, padded" and not torchs_lstm_runs(narrow, input_name, grad):
                    del modules[0]
                found = []
                for module in modules:
                    with torch.autocast("cpu", narrow), torch.set_grad_enabled(grad):
                        results = [t.dtype for t in call(module, types[input_name], types[state_name], packed)]
                    parts = results[-1:] if name.endswith(": c") else results[:2] if name.endswith("and h") else results
                    found.append(set(parts))
                due = found[0] if written == "see below" else {types[written]}
                for module, own in zip(modules, found, strict=True):
                    assert own == due, (kind, options, packed, input_name, state_name, module)
                    compared += 1
    assert compared > 100


def torchs_lstm_runs(narrow, input_name, grad):
    """With inputs in float32 oneDNN fails where the processor lacks the type, and in float16 with gradients."""
    supported = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}[narrow]
    runs = bool(getattr(torch.ops.mkldnn, supported)()) and not (grad and narrow is torch.float16)
    return runs or input_name != "float32"


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # of the context manager itself
@pytest.mark.parametrize("narrow", NARROW, ids=str)
@pytest.mark.parametrize("input_type", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("state_type", [None, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_an_lstm_without_onednn_is_torchs(narrow, input_type, state_type):
    theirs = torch.nn.LSTM(I, H)
    with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", narrow):
        expected = [t.dtype for t in call(theirs, input_type, state_type)]
        assert [t.dtype for t in call(ln.accelerate(theirs), input_type, state_type)] == expected


def accumulating(kind, dtype=torch.float32):
    """A cell of torch's whose state moves by a little at each step, whatever the input."""
    cell = getattr(torch.nn, kind)(1, 1, dtype=dtype)
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.zero_()
        if kind == "LSTMCell":  # c + 0.02
            cell.bias_ih.copy_(torch.tensor([20.0, 20.0, math.atanh(0.02), 20.0]))
        else:  # 0.0025 of what is missing from 1
            cell.bias_ih.copy_(torch.tensor([0.0, 6.0, 20.0]))
    return cell


def ours(kind, dtype=torch.float32):
    """The same cell as ours: accelerated, as a module, its stepper, and the stepper of the network."""
    theirs = accumulating(kind, dtype)
    module = getattr(ln, kind)(1, 1, norm=None, dtype=dtype)
    module.load_state_dict(theirs.state_dict())
    network = getattr(ln, kind.removesuffix("Cell"))(1, 1, norm=None, dtype=dtype)
    network.load_state_dict({f"{name}_l0": value for name, value in theirs.state_dict().items()})
    step = network.stepper()

    def stepped(x, hx):
        return as_hx(step(x, hx if hx is None else [list(flat(hx))])[1][0])

    return [ln.accelerate(theirs), module, module.stepper(), stepped]


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "narrow", "engine"), one_in(3, itertools.product(["LSTMCell", "GRUCell"], NARROW, ENGINES))
)
def test_a_state_keeps_what_small_steps_add(kind, narrow, engine):
    """In bfloat16 c would stop at 8.5 and h at 0.6: a step is less than half of the distance to the next number."""
    x, steps = torch.ones(1, 1), 600
    exact, state = accumulating(kind, torch.float64), None
    for _ in range(steps):
        state = exact(x.double(), state)
    truth = flat(state)[-1].item()
    assert truth > (11.0 if kind == "LSTMCell" else 0.75)
    for take in ours(kind):
        state = None
        with ln.backends.use(engine), torch.autocast("cpu", narrow):
            for _ in range(steps):
                state = take(x, state)
        assert flat(state)[-1].numpy().item() == pytest.approx(truth, rel=0.01)  # numpy has no bfloat16


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("narrow", NARROW, ids=str)
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM", "RNNCell", "GRUCell", "LSTMCell"])
def test_gradients_are_as_near_to_float64_as_torchs(kind, narrow, engine):
    torch.manual_seed(0)
    theirs, x = getattr(torch.nn, kind)(24, 32), torch.randn(6, 9, 24)

    def gradients(module, x):
        results, state = [], None
        if "Cell" in kind:
            for row in x.unbind():
                state = module(row, state)
                results += flat(state)
        else:  # not padded, and not of one length, which torch takes for it: see `torchs_lstm_runs`
            output, state = module(pack_padded_sequence(x, torch.tensor([6] * 8 + [5])))
            results += [output.data, *flat(state)]
        return torch.autograd.grad(sum(r.to(x.dtype).square().sum() for r in results), list(module.parameters()))

    exact = gradients(copy.deepcopy(theirs).double(), x.double())
    found = []
    for module in (copy.deepcopy(theirs), ln.accelerate(copy.deepcopy(theirs))):
        with ln.backends.use(engine), torch.autocast("cpu", narrow):
            found.append(gradients(module, x))
    for torchs, own, e in zip(*found, exact, strict=True):
        assert own.dtype is torch.float32
        errors = [(g.double() - e).norm() / e.norm() for g in (torchs, own)]
        assert errors[1] <= 1.5 * errors[0] + 1e-3, errors  # half an eps of bfloat16 is 4e-3
        assert errors[1] < 0.02


@pytest.mark.parametrize("kind", ["LSTM", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("GRU", "RNN"))])
def test_a_graph_has_the_same_types_and_numbers(kind):
    torch.manual_seed(0)
    cell = CELL[kind](I, H)
    for module, x in ((MODULE[kind](I, H), torch.randn(T, B, I)), (cell, torch.randn(B, I))):
        compiled = torch.compile(module, backend="eager", fullgraph=True)
        with torch.autocast("cpu", torch.bfloat16):
            found, expected = compiled(x), module(x)
            if module is not cell:
                found, expected = (found[0], *flat(found[1])), (expected[0], *flat(expected[1]))
            for a, b in zip(flat(found), flat(expected), strict=True):
                assert a.dtype is b.dtype
                torch.testing.assert_close(a, b)
