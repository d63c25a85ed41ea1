"""`ln.portable`, and what torch's tools for modules see: `torch.fx`, `torch.jit.script`, quantisation."""

import warnings

import pytest
import torch

import layernorm as ln
from support.comparing import leaves
from support.networks import KINDS
from support.processes import python
from support.turns import one_in


def new(kind, more, **layers):
    torch.manual_seed(0)
    module = getattr(ln, kind)(3, 4, **layers, **more).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return module


def assert_same(found, expected):
    """The same equations in float64, in another order."""
    torch.testing.assert_close(leaves(found), leaves(expected), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(("network", "more"), one_in(2, KINDS), ids=str)
def test_the_copy_computes_the_same_scripted_or_not(network, more):
    module = new(network, more, num_layers=2, bidirectional=True)
    copy = ln.portable(module)
    scripted = torch.jit.script(copy)
    x, lengths, reset = torch.randn(5, 3, 3).double(), torch.tensor([5, 0, 2]), torch.rand(5, 3) < 0.4
    state = leaves(module(x)[1])
    hx = state[0] if len(state) == 1 else tuple(state)
    for given in (
        (x,),
        (x, hx),
        (x, hx, lengths),
        (x, None, lengths, reset),
        (x, hx, None, reset),
        (x[:, 0],),
        (x[:0],),
    ):
        names = dict(zip(("lengths", "reset"), given[2:], strict=False))
        expected = module(*given[:2], **names)
        assert_same(copy(*given), expected)
        assert_same(scripted(*given), expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint16, torch.uint32, torch.uint64])
def test_lengths_of_any_integer_type(dtype):
    module = new("LSTM", {}, bidirectional=True)
    steps = 300  # more than 8 bits count
    copy, x, lengths = ln.portable(module), torch.randn(steps, 3, 3).double(), torch.tensor([250, 0, 2]).to(dtype)
    for run in (copy, torch.jit.script(copy)):
        assert_same(run(x, None, lengths), module(x, lengths=lengths))


@pytest.mark.parametrize("network", ["RNN", "LSTM", "GRU"])
def test_cells_and_batch_first(network):
    cell = new(f"{network}Cell", {})
    scripted = torch.jit.script(ln.portable(cell))
    x = torch.randn(5, 3).double()
    state = cell(x)
    for given in ((x,), (x, state), (x[0],)):
        assert_same(scripted(*given), cell(*given))
    first = new(network, {}, batch_first=True)
    x, lengths = torch.randn(2, 5, 3).double(), torch.tensor([4, 5])
    given = {"lengths": lengths, "reset": torch.rand(2, 5) < 0.4}
    assert_same(ln.portable(first)(x, **given), first(x, **given))


BAD_CALLS = [
    ({"lengths": torch.tensor([6, 2])}, r"lengths must lie in 0\.\.T"),
    ({"lengths": torch.tensor([-1, 2])}, r"lengths must lie in 0\.\.T"),
    ({"lengths": torch.tensor([5.0, 2.5])}, "lengths of an integer type"),
    ({"lengths": torch.tensor([5, 2, 1])}, r"lengths of size \[2\], got \[3\]"),
    ({"hx": torch.zeros(2, 1, 4)}, r"hidden h of size \[2, 2, 4\], got \[2, 1, 4\]"),
    ({"hx": torch.zeros(3, 2, 4)}, r"hidden h of size \[2, 2, 4\], got \[3, 2, 4\]"),
    ({"reset": torch.full((5, 2), 2)}, "reset to be bool, or to hold only 0 and 1"),
    ({"reset": torch.full((5, 2), 0.5)}, "reset to be bool, or to hold only 0 and 1"),
    ({"reset": torch.full((5, 2), float("nan"))}, "reset to be bool, or to hold only 0 and 1"),
    ({"reset": torch.zeros(5, 1)}, r"reset of size \[5, 2\], got \[5, 1\]"),
]


@pytest.mark.parametrize("scripted", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_a_copy_refuses_what_its_module_refuses(batch_first, scripted):
    module = ln.GRU(3, 4, 2, batch_first=batch_first)
    copy = ln.portable(module)
    copy, x = (
        torch.jit.script(copy) if scripted else copy,
        torch.zeros(2, 5, 3) if batch_first else torch.zeros(5, 2, 3),
    )
    for given, message in BAD_CALLS:
        if "reset" in given and batch_first:
            given, message = {"reset": given["reset"].t()}, message.replace("5, 2", "2, 5").replace("5, 1", "1, 5")
        with pytest.raises((RuntimeError, ValueError)):
            module(x, **given)
        with pytest.raises((RuntimeError, torch.jit.Error), match=message):
            copy(x, **given)
    for bad, given, message in (
        (x[:, 0], {"lengths": torch.tensor([5])}, "lengths needs a batch"),
        (x[None], {}, "Expected input to be 2D or 3D, got 4D"),
    ):
        for call in (module, copy):
            with pytest.raises((RuntimeError, torch.jit.Error, ValueError), match=message):
                call(bad, **given)


@pytest.mark.parametrize("scripted", [False, True])
def test_a_cells_copy_refuses_what_the_cell_refuses(scripted):
    cell = ln.LSTMCell(3, 4)
    copy = torch.jit.script(ln.portable(cell)) if scripted else ln.portable(cell)
    h, short = torch.zeros(2, 4), torch.zeros(1, 4)
    for x, hx, message in (
        (torch.zeros(2, 3), (short, h), r"hidden h of size .2, 4., got .1, 4"),
        (torch.zeros(2, 3), (h, short), r"hidden c of size .2, 4., got .1, 4"),
        (torch.zeros(5, 2, 3), None, "input to be 1D or 2D, got 3D"),
    ):
        for call in (cell, copy):
            with pytest.raises((RuntimeError, torch.jit.Error, ValueError), match=message):
                call(x, hx)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of the number of steps, which a trace fixes
def test_a_trace_of_a_copy_refuses_values_when_it_runs():
    copy, x, lengths, reset = ln.portable(ln.GRU(3, 4)), torch.zeros(5, 2, 3), torch.tensor([5, 2]), torch.zeros(5, 2)
    given = (x, torch.zeros(1, 2, 4), lengths, reset)
    made = torch.jit.trace(copy, given)
    assert_same(made(*given), copy(*given))
    with pytest.raises(torch.jit.Error, match="lengths must lie in"):
        made(*given[:2], lengths + 1, reset)
    with pytest.raises(torch.jit.Error, match="reset to be bool, or to hold only 0 and 1"):
        made(*given[:3], reset + 2)


def test_a_copy_is_exported_with_lengths_and_resets():
    """Their values are not known then, and are not checked."""
    module, given = new("GRU", {}), (torch.randn(3, 2, 3).double(), None, torch.tensor([3, 2]), torch.ones(3, 2))
    program = torch.export.export(ln.portable(module), given)
    assert_same(program.module()(*given), module(*given[:2], lengths=given[2], reset=given[3]))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_layernorm_warns_of_nothing_that_its_caller_has_not_called():
    """PyTorch says that TorchScript is deprecated, once for each of its functions that this test itself calls."""

    def kinds(call):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = call()
        return result, {str(w.message).split("`")[1] for w in caught if "`torch.jit" in str(w.message)}

    copy, found = kinds(lambda: ln.portable(ln.GRU(3, 4)))
    assert not found
    given = torch.zeros(5, 2, 3), torch.zeros(1, 2, 4), torch.tensor([5, 2]), torch.zeros(5, 2)
    assert kinds(lambda: copy(*given))[1] == set()
    assert kinds(lambda: torch.jit.script(copy))[1] <= {"torch.jit.script"}
    assert kinds(lambda: torch.jit.trace(copy, given))[1] <= {"torch.jit.trace", "torch.jit.trace_method"}


class Model(torch.nn.Module):
    """One module of each kind."""

    def __init__(self):
        super().__init__()
        self.lstm, self.gru, self.rnn = ln.LSTM(3, 4, 2), ln.GRU(4, 4), ln.RNN(4, 4)
        self.lstm_cell, self.gru_cell, self.rnn_cell = ln.LSTMCell(4, 4), ln.GRUCell(4, 4), ln.RNNCell(4, 4)
        self.norms = torch.nn.Sequential(ln.LayerNorm(4), ln.RMSNorm(4), ln.BatchNorm(4))

    def forward(self, x):
        x = self.rnn(self.gru(self.lstm(x)[0])[0])[0][-1]
        x = self.lstm_cell(self.gru_cell(self.rnn_cell(x)))[0]
        return self.norms(x)


def test_the_copy_has_the_same_keys_gradients_and_modes():
    torch.manual_seed(0)
    model = Model().double()
    copy = ln.portable(model)
    assert list(copy.state_dict()) == list(model.state_dict())
    ours = (ln.LSTM, ln.GRU, ln.RNN, ln.LSTMCell, ln.GRUCell, ln.RNNCell, ln.LayerNorm, ln.RMSNorm, ln.BatchNorm)
    assert sum(isinstance(part, ours) for part in model.modules()) == len(ours)
    assert not [part for part in copy.modules() if isinstance(part, ours)]
    x = torch.randn(5, 3, 3).double()
    for call in (model, copy):
        call.zero_grad()
        call(x).square().sum().backward()
    for (name, p), (other, q) in zip(model.named_parameters(), copy.named_parameters(), strict=True):
        assert name == other
        assert p is not q
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-9, atol=1e-11)
    other = Model().double()
    copy.load_state_dict(other.state_dict())
    assert_same(copy.eval()(x), other.eval()(x))
    assigned = ln.portable(model)
    assigned.load_state_dict(other.state_dict(), assign=True)
    assert_same(torch.jit.script(assigned.eval())(x), other(x))


def test_what_is_saved_of_the_copy_runs_without_layernorm(tmp_path):
    model, x = Model().eval(), torch.randn(7, 2, 3)
    torch.jit.script(ln.portable(model)).save(tmp_path / "model.pt")
    torch.save((x, model(x).detach()), tmp_path / "expected.pt")
    code = """
import sys, torch
sys.modules["layernorm"] = None
x, expected = torch.load(sys.argv[1] + "/expected.pt")
torch.testing.assert_close(torch.jit.load(sys.argv[1] + "/model.pt")(x), expected, rtol=1e-5, atol=1e-5)
"""
    python(code, tmp_path)


def test_jit_script_says_what_to_do_instead():
    for module in Model().children():
        with pytest.raises(RuntimeError, match=r"torch\.jit\.script\(layernorm\.portable\(model\)\)"):
            torch.jit.script(module)
    model = Model()
    with pytest.raises(RuntimeError, match="cannot compile LSTM, which runs on layernorm's own ops"):
        torch.jit.script(model)
    assert type(model.lstm) is ln.LSTM


@pytest.mark.parametrize("prepare", [lambda model: model, ln.portable], ids=["as it is", "portable"])
def test_fx_records_one_call_of_each_module(prepare):
    """As it does for torch's own modules: they are leaves."""
    model = prepare(Model().eval())
    traced = torch.fx.symbolic_trace(model)
    calls = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    names = ["lstm", "gru", "rnn", "rnn_cell", "gru_cell", "lstm_cell"]
    assert calls == [*names, "norms.0", "norms.1", "norms.2"]
    assert [node.op for node in traced.graph.nodes if node.op == "call_function"].count("call_function") == 5  # getitem
    x = torch.randn(5, 3, 3)
    assert torch.equal(traced(x), model(x))


def test_fx_keeps_the_arguments():
    class Given(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.norm = ln.LSTM(3, 4), ln.LayerNorm(4)

        def forward(self, x, hx, lengths, residual):
            return self.norm(self.lstm(x, hx, lengths=lengths)[0], residual)

    model, x, residual = Given(), torch.randn(5, 2, 3), torch.randn(5, 2, 4)
    hx = (torch.randn(1, 2, 4), torch.randn(1, 2, 4))
    given = (x, hx, torch.tensor([5, 2]), residual)
    for a, b in zip(torch.fx.symbolic_trace(model)(*given), model(*given), strict=True):
        assert torch.equal(a, b)


def test_a_graph_of_fx_is_made_portable():
    model, x = torch.nn.Sequential(ln.LayerNorm(4), ln.RMSNorm(4)), torch.randn(3, 4)
    torch.testing.assert_close(ln.portable(torch.fx.symbolic_trace(model))(x), model(x))


def test_what_cannot_be_copied_is_refused():
    class Mine(ln.GRU):
        pass

    hooked = ln.LSTM(3, 4)
    hooked.register_forward_hook(lambda *_: None)
    hooked_backward = ln.LSTM(3, 4)
    hooked_backward.register_full_backward_hook(lambda *_: None)
    parametrized = ln.LayerNorm(4)
    torch.nn.utils.parametrize.register_parametrization(parametrized, "weight", torch.nn.Softplus())
    dropped = ln.LSTM(3, 4)
    torch.nn.utils.parametrize.register_parametrization(dropped, "weight_hh_l0", torch.nn.Dropout(0.5))
    shadowed = ln.LayerNorm(4)
    shadowed.forward = lambda x: x
    compiled = torch.compile(ln.GRU(3, 4), backend="eager")
    for model, error, message in (
        (dropped, ValueError, r"in training its parametrizations may draw weights; call eval\(\) first"),
        (shadowed, ValueError, "cannot copy the model: a forward was set on the LayerNorm"),
        (torch.nn.Sequential(compiled), TypeError, "cannot copy 0: it is compiled; copy its _orig_mod"),
        (parametrized, ValueError, "LayerNorm has parametrized weights; call .*remove_parametrizations first"),
        ("model", TypeError, r"must be a torch\.nn\.Module, got str"),
        (Mine(3, 4), TypeError, "cannot copy the model: Mine is a subclass"),
        (torch.nn.Sequential(ln.LSTM(3, 4, norm="batch")), ValueError, "cannot copy 0: batch norm in a LSTM"),
        (ln.BatchNorm(3, unbiased=True), ValueError, r"unbiased=True has no plain form in training; call eval\(\)"),
        (ln.GRUCell(3, 4, zoneout=0.1), ValueError, "zoneout=0.1 has no plain form"),
        (ln.LSTM(3, 4, gate_clip=10.0), ValueError, "gate_clip=10.0 has no plain form"),
        (ln.GRU(3, 4, recurrent_dropout=0.1), ValueError, r"recurrent and variational dropout .* call eval\(\)"),
        (hooked, ValueError, "LSTM has hooks on its forward"),
        (hooked_backward, ValueError, "LSTM has hooks on its forward .* or its backward"),
    ):
        with pytest.raises(error, match=message):
            ln.portable(model)
    assert type(ln.portable(ln.BatchNorm(3, unbiased=True).eval())) is torch.nn.BatchNorm1d
    assert torch.equal(ln.portable(dropped.eval()).weight_hh_l0, dropped.weight_hh_l0)


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization:DeprecationWarning", "ignore:torch.quantize_per_tensor")
@pytest.mark.skipif(not torch.backends.quantized.supported_engines, reason="torch without quantised kernels")
def test_quantize_dynamic_leaves_these_modules_alone():
    """docs/deploy.md says so: what is around them is quantised, and what they compute is the same bits."""
    model = torch.nn.Sequential(ln.LayerNorm(3), torch.nn.Linear(3, 3), ln.LSTM(3, 4))
    quantised = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear, torch.nn.LSTM, ln.LSTM, ln.LayerNorm})
    assert [type(part).__module__.split(".")[0] for part in quantised] == ["layernorm", "torch", "layernorm"]
    assert type(quantised[1]) is torch.ao.nn.quantized.dynamic.Linear
    x = torch.randn(5, 2, 3)
    assert torch.equal(quantised[2](x)[0], model[2](x)[0])


def test_a_nonlinearity_that_was_set_later():
    module, x = ln.RNN(3, 4), torch.randn(5, 2, 3)
    module.nonlinearity = "relu"
    torch.testing.assert_close(ln.portable(module)(x)[0], module(x)[0])
