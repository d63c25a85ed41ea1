"""`accelerate`: torch's recurrent modules compute with our engine, and stay what they are; `restore` undoes it."""

import abc
import copy
import io
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import layernorm as ln
from layernorm.convert import _torchs_faster as torchs_faster
from layernorm.convert._accelerate import Accelerated
from support.networks import flat

pytestmark = pytest.mark.skipif("native" not in ln.backends.available(), reason="nothing is accelerated without it")

I, H, T, B = 3, 5, 7, 4  # noqa: E741
NETWORKS = [
    (torch.nn.LSTM, {}),
    (torch.nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True, "proj_size": 2}),
    (torch.nn.LSTM, {"bias": False, "bidirectional": True}),
    (torch.nn.GRU, {"num_layers": 2, "bidirectional": True}),
    (torch.nn.GRU, {"batch_first": True, "bias": False}),
    (torch.nn.RNN, {"num_layers": 2, "nonlinearity": "relu"}),
    (torch.nn.RNN, {"bidirectional": True, "batch_first": True}),
]
CELLS = [(torch.nn.LSTMCell, {}), (torch.nn.GRUCell, {"bias": False}), (torch.nn.RNNCell, {"nonlinearity": "relu"})]
EPS = torch.finfo(torch.float32).eps


class Orthogonal(torch.nn.LSTM):
    """A subclass as programs have them: it sets weights and has a method and an attribute, and torch's forward."""

    def __init__(self, *args, **keywords):
        super().__init__(*args, **keywords)
        self.calls = 0
        torch.nn.init.orthogonal_(self.weight_hh_l0)

    def zero_state(self, rows):
        self.calls += 1
        return (torch.zeros(1, rows, self.hidden_size),) * 2


class Square(torch.nn.GRU):
    def __init__(self, size, scale=2):
        super().__init__(size, size)
        self.scale = scale


class OwnForward(abc.ABC, torch.nn.GRU):
    def forward(self, input, hx=None, scale=2):
        return super().forward(scale * input, hx)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.LSTM(I, H, 2, bidirectional=True, dropout=0.5)
        self.decoder = self.again = Orthogonal(2 * H, H)
        self.cell = torch.nn.GRUCell(H, H)

    def forward(self, x):
        x, _ = self.encoder(x)
        x, _ = self.decoder(x, self.decoder.zero_state(x.shape[1]))
        return self.cell(self.again(torch.cat([x, x], 2))[0][-1])


def tensors(result):
    if isinstance(result, torch.Tensor):
        return [result]
    return [result.data] if isinstance(result, PackedSequence) else [t for part in result for t in tensors(part)]


def results(module, x, lengths=None):
    """Outputs, final states, and the gradients of a fixed sum of them."""
    x = x.to(next(module.parameters()).dtype).requires_grad_()
    given = x
    if lengths is not None:
        given = pack_padded_sequence(x, lengths, batch_first=module.batch_first, enforce_sorted=False)
    found = tensors(module(given))
    total = sum((t * torch.arange(t.numel()).view_as(t).sin()).sum() for t in found)
    return found + list(torch.autograd.grad(total, [x, *module.parameters()]))


def assert_equal_to_rounding(found, exact):
    """The matrix products are of at most 10 numbers, and T steps hand their roundings on."""
    for a, b in zip(found, (t.detach() for t in exact), strict=True):
        torch.testing.assert_close(a.detach().double(), b, rtol=0, atol=4 * T * EPS * max(1.0, float(b.abs().max())))


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(
    ("kind", "options", "form"),
    [(*network, form) for network in NETWORKS for form in ("padded", "packed", "unbatched", "step")]
    + [(*cell, form) for cell in CELLS for form in ("padded", "unbatched")],
    ids=lambda item: getattr(item, "__name__", str(item)),
)
def test_outputs_and_gradients_are_torchs_in_float64(kind, options, form):
    torch.manual_seed(0)
    module = kind(I, H, **options)
    exact = copy.deepcopy(module).double()
    state, parameters = list(module.state_dict()), list(module.parameters())
    assert ln.accelerate(module) is module
    assert isinstance(module, kind)
    assert isinstance(module, getattr(ln, kind.__name__))
    assert list(module.state_dict()) == state
    assert all(a is b for a, b in zip(module.parameters(), parameters, strict=True))
    cell = (kind, options) in CELLS
    x = torch.randn(B, T, I) if options.get("batch_first") else torch.randn(1 if form == "step" else T, B, I)
    for _ in range(cell + (form == "unbatched")):
        x = x[0]
    lengths = torch.tensor([2, 7, 1, 4]) if form == "packed" else None
    assert_equal_to_rounding(results(module, x, lengths), results(exact, x, lengths))


def test_a_model_with_a_shared_module_and_a_subclass():
    model, x = Model(), torch.randn(T, B, I)
    model.encoder.weight_ih_l0.requires_grad_(False)
    before, parts = repr(model), dict(model.named_modules())
    torch.manual_seed(1)
    expected = model(x)
    assert ln.accelerate(model) is model
    names = [type(part).__name__ for part in model.children()]
    assert names == ["AcceleratedLSTM", "AcceleratedOrthogonal", "AcceleratedGRUCell"]
    assert all(dict(model.named_modules())[name] is part for name, part in parts.items())
    torch.manual_seed(1)
    torch.testing.assert_close(model(x), expected)  # the dropout's draws, too
    assert model.decoder.calls == 2, "its method and its attribute"
    assert not torch.equal(model(x), model(x)), "in training"
    model.eval()
    assert torch.equal(model(x), model(x))
    ln.accelerate(model)  # once more is nothing
    assert ln.restore(ln.restore(model)) is model
    assert repr(model) == before
    assert [set(vars(part)) for part in model.children()] == [set(vars(part)) for part in Model().children()]
    assert not model.encoder.training
    assert not model.encoder.weight_ih_l0.requires_grad


def test_an_optimiser_goes_on_across_both_swaps():
    """Two steps accelerated and one after `restore` are three of torch's."""
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.GRU(I, H)), torch.randn(T, B, I)
    plain = copy.deepcopy(model)
    for trained, changes in ((model, (lambda m: m, ln.accelerate, ln.restore)), (plain, (lambda m: m,) * 3)):
        optimizer = torch.optim.Adam(trained.parameters(), lr=0.01)
        for change in changes:
            change(trained)(x)[0].square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    assert not torch.allclose(model[0].weight_hh_l0, torch.nn.GRU(I, H).weight_hh_l0, atol=1e-2)


def test_hooks_pruning_and_computed_weights_stay_in_force():
    gru, x, seen = torch.nn.GRU(I, H), torch.randn(T, B, I, requires_grad=True), []
    prune.random_unstructured(gru, "weight_hh_l0", 0.5)
    gru.register_forward_hook(lambda module, given, result: seen.append(module))
    gru.register_full_backward_hook(lambda module, *grads: seen.append(module))
    expected = gru(x)[0]
    ln.accelerate(gru)
    torch.testing.assert_close(gru(x)[0], expected)
    gru(x)[0].sum().backward()
    assert (gru.weight_hh_l0_orig.grad[gru.weight_hh_l0_mask == 0] == 0).all()
    assert seen == [gru] * 4
    gru.weight_hh_l0 = 0 * gru.weight_hh_l0  # as weight drop does before each call
    gru._forward_pre_hooks.clear()
    expected = gru(x)[0]
    torch.testing.assert_close(ln.restore(gru)(x)[0], expected)
    assert len(seen) == 6


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("of", [torch.nn.LSTM, torch.nn.GRUCell, Orthogonal])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), saved_and_loaded])
def test_copies_are_accelerated_and_can_be_restored(of, copied):
    module, x = ln.accelerate(of(I, H)), torch.randn(2, I) if of is torch.nn.GRUCell else torch.randn(T, B, I)
    new = copied(module)
    assert type(new) is type(module)
    assert next(new.parameters()) is not next(module.parameters())
    for a, b in zip(tensors(new(x)), tensors(module(x)), strict=True):
        assert torch.equal(a, b)
    assert type(ln.restore(new)) is of
    assert isinstance(module, Accelerated)
    torch.testing.assert_close(tensors(new(x)), tensors(module(x)))


def test_what_is_changed_between_lasts_after_restore():
    lstm, x = ln.accelerate(torch.nn.LSTM(I, H)), torch.randn(T, B, I)
    lstm.load_state_dict({name: torch.ones_like(p) for name, p in lstm.state_dict().items()}, assign=True)
    lstm.double().flatten_parameters()
    lstm.note, lstm.batch_first = "kept", True
    expected = lstm(x.double())[0]
    torch.testing.assert_close(ln.restore(lstm)(x.double())[0], expected)
    assert type(lstm) is torch.nn.LSTM
    assert lstm.note == "kept"


def test_an_own_forward_stays_and_calls_ours_in_the_place_of_torchs():
    model, x = torch.nn.Sequential(OwnForward(I, H)), torch.randn(T, B, I)
    expected = model[0](x, scale=3)
    warned = r"^accelerate: accelerated where their own forward calls super\(\).forward: 0 \(OwnForward\)$"
    with pytest.warns(UserWarning, match=warned):
        ln.accelerate(model)
    assert super(OwnForward, model[0]).forward.__func__.__wrapped__ is ln.GRU.forward
    torch.testing.assert_close(copy.deepcopy(model)[0](x, scale=3), expected)
    assert type(ln.restore(model)[0]) is OwnForward


class OwnPermutation(torch.nn.LSTM):
    def permute_hidden(self, hx, permutation):
        return hx


class OwnName(torch.nn.GRU):
    def stepper(self):
        return "mine"


def with_forward(module):
    module.forward = lambda x: (x, None)
    return module


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: OwnPermutation(I, H), "OwnPermutation: its own permute_hidden"),
        (lambda: with_forward(torch.nn.RNN(I, H)), "RNN: its own forward"),
        (lambda: OwnName(I, H), "OwnName: its own stepper"),
        (lambda: parametrizations.weight_norm(torch.nn.LSTM(I, H), "weight_hh_l0"), "LSTM: parametrized weights"),
        (
            lambda: torch.nn.LSTMCell(I, H, device="meta"),
            "LSTMCell: on meta in torch.float32 the engine is 'reference': plain operations take longer than PyTorch's",
        ),
    ],
)
def test_what_is_left_is_named_with_the_reason(make, reason):
    model = torch.nn.ModuleDict({"left": make(), "gru": torch.nn.GRU(I, H)})
    kind = type(model["left"])
    with pytest.warns(UserWarning, match=r"^accelerate: left as they are: left \(\w*" + reason):
        ln.accelerate(model)
    assert type(model["left"]) is kind
    assert isinstance(model["gru"], Accelerated)
    with pytest.warns(UserWarning, match=r"left as they are: the module \("):
        assert type(ln.accelerate(model["left"])) is kind


def test_nothing_to_accelerate_is_said_and_wrong_arguments_are_errors():
    with pytest.warns(UserWarning, match="no RNN, LSTM, GRU or cell of torch.nn in Linear"):
        ln.accelerate(torch.nn.Linear(2, 2))
    with pytest.warns(UserWarning, match="in Sequential; already layernorm's: GRU, LSTM$"):
        ln.accelerate(torch.nn.Sequential(ln.LSTM(2, 2), ln.GRU(2, 2)))
    with pytest.warns(UserWarning, match="Sequential; what torch.jit has scripted or traced cannot be changed$"):
        ln.accelerate(torch.nn.Sequential(torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2))))
    for function in (ln.accelerate, ln.restore):
        with pytest.raises(TypeError, match=r"module must be a torch\.nn\.Module, got str 'x'"):
            function("x")


def test_a_parametrization_added_later_computes_and_is_removed_before_restore():
    model, x = torch.nn.Sequential(ln.accelerate(torch.nn.GRU(I, H))), torch.randn(T, B, I)
    expected = model(x)[0]
    parametrizations.weight_norm(model[0], "weight_hh_l0")
    torch.testing.assert_close(model(x)[0], expected)
    with pytest.raises(ValueError, match="remove the parametrizations first, of 0"):
        ln.restore(model)
    torch.nn.utils.parametrize.remove_parametrizations(model[0], "weight_hh_l0")
    assert type(ln.restore(model)[0]) is torch.nn.GRU
    torch.testing.assert_close(model(x)[0], expected)


def test_int8_weights_are_not_torchs():
    """`restore` would leave a network whose every call fails."""
    model = torch.nn.Sequential(ln.accelerate(torch.nn.LSTM(I, H)))
    small = ln.quantize(model.eval(), filter_fn=lambda module, name: True)
    with pytest.raises(ValueError, match="restore: int8 weights of 0; restore the model that was quantized"):
        ln.restore(small)
    assert small(torch.randn(T, B, I))[0].shape == (T, B, H)
    assert type(ln.restore(model)[0]) is torch.nn.LSTM


MODULES = [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN, torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell]


@pytest.mark.parametrize("kind", MODULES)
def test_torchs_attributes_can_be_set_and_are_plain(kind):
    """To what they are, as libraries do which copy a module attribute by attribute."""
    module = kind(I, H)
    before = dict(vars(module))
    ln.accelerate(module)
    for name, value in before.items():
        setattr(module, name, value)
        assert getattr(module, name) is value, name
    assert {name: vars(module)[name] for name in before} == before
    x = torch.randn(T, B, I) if hasattr(module, "mode") else torch.randn(B, I)
    exact = copy.deepcopy(ln.restore(copy.deepcopy(module))).double()
    assert_equal_to_rounding(results(module, x), results(exact, x))


def stateless(module):
    """A copy as the library `higher` makes it: a subclass, whose attributes are set one by one, with other weights."""

    class Functional(type(module)):
        def __init__(self):
            torch.nn.Module.__init__(self)

        def __setattr__(self, name, value):
            object.__setattr__(self, name, value)

    made = Functional()
    for name, value in vars(module).items():
        if name not in vars(made):
            setattr(made, name, value)
    object.__setattr__(made, "_parameters", {name: 2 * p for name, p in module._parameters.items()})
    if hasattr(made, "_flat_weights_names"):
        made._flat_weights = [made._parameters[name] for name in made._flat_weights_names]
        made._flat_weight_refs = [None] * len(made._flat_weights)
    return made


@pytest.mark.parametrize("kind", MODULES)
def test_a_copy_made_attribute_by_attribute(kind):
    """Its gradients reach the weights that it was made from, also those of gradients."""
    module, x = kind(I, H).double(), torch.randn(T, B, I, dtype=torch.float64)
    x = x if hasattr(module, "mode") else x[0]
    found = []
    for changed in (module, ln.accelerate(copy.deepcopy(module))):
        total = sum(t.square().sum() for t in tensors(stateless(changed)(x)))
        first = torch.autograd.grad(total, list(changed.parameters()), create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), list(changed.parameters()))
        found.append([total, *first, *second])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_a_function_that_is_set_later_is_computed():
    rnn, cell, x = torch.nn.RNN(I, H), torch.nn.RNNCell(I, H), torch.randn(T, B, I)
    rnn.mode, cell.nonlinearity = "RNN_RELU", "relu"
    expected, expected_cell = rnn(x)[0], cell(x[0])
    rnn.mode, cell.nonlinearity = "RNN_TANH", "tanh"
    steppers = [ln.accelerate(rnn).stepper(), ln.accelerate(cell).stepper()]
    assert (rnn(x)[0] < 0).any()
    torch.testing.assert_close(steppers[0](x[0])[0], rnn(x)[0][0])
    torch.testing.assert_close(steppers[1](x[0]), cell(x[0]))
    rnn.mode, cell.nonlinearity = "RNN_RELU", "relu"
    torch.testing.assert_close(rnn(x)[0], expected)
    torch.testing.assert_close(cell(x[0]), expected_cell)
    torch.testing.assert_close(steppers[0](x[0])[0], expected[0])
    torch.testing.assert_close(steppers[1](x[0]), expected_cell)
    torch.testing.assert_close(ln.restore(rnn)(x)[0], expected)
    torch.testing.assert_close(ln.convert(copy.deepcopy(rnn), norm=None)(x)[0], expected)
    rnn.nonlinearity = "tanh"  # which torch's network does not look at
    torch.testing.assert_close(ln.accelerate(rnn)(x)[0], rnn(x)[0])
    torch.testing.assert_close(rnn(x)[0], expected)
    cell.nonlinearity, rnn.mode = "sine", "RNN_SINE"
    with pytest.raises(
        ValueError, match=r"AcceleratedRNNCell: expected nonlinearity to be 'tanh' or 'relu', got 'sine'"
    ):
        cell(x[0], reset=torch.zeros(B))
    with pytest.raises(RuntimeError, match="Unknown nonlinearity: sine"):
        cell(x[0])  # torch's own
    with pytest.raises(ValueError, match=r"AcceleratedRNN: expected mode to be one of .*, got 'RNN_SINE'"):
        rnn(x)


def test_what_torch_takes_and_layernorm_refuses_is_left():
    model = torch.nn.Sequential(torch.nn.LSTMCell(I, 0), torch.nn.LSTM(I, H))
    with pytest.warns(
        UserWarning, match=r"left as they are: 0 \(LSTMCell: hidden_size must be greater than zero, got 0"
    ):
        ln.accelerate(model)
    assert [isinstance(part, Accelerated) for part in model] == [False, True]


def test_numbers_of_numpy():
    """As a product of shapes is one."""
    lstm = torch.nn.LSTM(I, H, np.int64(2), dropout=0.5).eval()
    cell, x = torch.nn.GRUCell(np.int64(I), np.int64(H)), torch.randn(T, B, I)
    lstm.dropout = np.float32(0.25)
    expected = lstm(x)[0], cell(x[0])
    for change in (ln.accelerate, ln.restore, lambda part: ln.convert(part, norm=None)):
        torch.testing.assert_close((change(lstm)(x)[0], change(cell)(x[0])), expected)


def test_a_class_that_says_how_it_is_copied():
    class Own(torch.nn.GRU):
        def __reduce__(self):
            return Own, (self.input_size, self.hidden_size)

    assert isinstance(copy.deepcopy(ln.accelerate(Own(I, H))), Own)


STRUCTURE = {"input_size": I + 1, "hidden_size": H + 1, "bias": False}
OF_NETWORKS = {"num_layers": 2, "bidirectional": True, "proj_size": 2}
TAKES_EFFECT = {"batch_first": True, "dropout": 0.5}
LIKEWISE = {"mode", "nonlinearity", "training"}


@pytest.mark.parametrize("kind", MODULES)
def test_every_attribute_of_torchs_has_its_effect_or_is_refused(kind):
    module = kind(I, H)
    cell = not hasattr(module, "mode")
    refused = STRUCTURE if cell else {**STRUCTURE, **OF_NETWORKS}
    public = {name for name in vars(module) if not name.startswith("_")} - LIKEWISE
    assert public == set(refused) | (set() if cell else set(TAKES_EFFECT)), "torch has other attributes"
    x = torch.randn(B, I) if cell else torch.randn(T, B, I)
    for name, value in refused.items():
        accelerated = ln.accelerate(copy.deepcopy(module))
        step, before = accelerated.stepper(), getattr(accelerated, name)
        setattr(accelerated, name, value)
        said = rf"{name} was {before} when it was accelerated, and is {value} now; call layernorm.restore first"
        for call in (accelerated, step, lambda x, made=accelerated: made.stepper()(x)):
            with pytest.raises((RuntimeError, ValueError), match=f"{said}|a bidirectional network needs"):
                call(x if cell or call is accelerated else x[0])
        setattr(accelerated, name, before)
        accelerated(x)
    if not cell:
        accelerated, torchs = ln.accelerate(kind(I, H, 2)), kind(I, H, 2)
        torchs.load_state_dict(accelerated.state_dict())
        for one in (accelerated, torchs):
            one.batch_first, one.dropout = True, 1.0  # every number between the layers is dropped
        for a, b in zip(tensors(accelerated(x)), tensors(torchs(x)), strict=True):
            torch.testing.assert_close(a, b)


def test_a_parameter_that_is_none_is_named():
    cell, gru, x = ln.accelerate(torch.nn.GRUCell(I, H)), ln.accelerate(torch.nn.GRU(I, H)), torch.randn(T, B, I)
    cell.bias_hh = gru.bias_hh_l0 = None
    with pytest.raises(RuntimeError, match=r"AcceleratedGRUCell: expected bias_hh to be a Tensor, got None; .*restore"):
        cell(x[0])
    with pytest.raises(RuntimeError, match=r"AcceleratedGRU: expected bias_hh_l0 to be a Tensor, got None; .*restore"):
        gru(x)
    ours = ln.GRUCell(I, H)
    ours.bias_hh = None
    with pytest.raises(RuntimeError, match=r"^GRUCell: expected bias_hh to be a Tensor, got None$"):
        ours(x[0])
    assert ln.restore(cell)(x[0]).shape == (B, H)


def test_our_own_function_that_is_set_later_is_computed():
    for module, x in (
        (ln.RNN(I, H, norm=None), torch.randn(T, B, I)),
        (ln.RNNCell(I, H, norm=None), torch.randn(B, I)),
    ):
        module.nonlinearity = "relu"
        other = type(module)(I, H, norm=None, nonlinearity="relu")
        other.load_state_dict(module.state_dict())
        torch.testing.assert_close(tensors(module(x)), tensors(other(x)))


def test_a_second_call_names_the_class_that_a_user_wrote():
    model = torch.nn.Sequential(OwnForward(I, H))
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"^accelerate: accelerated where .* super\(\).forward: 0 \(OwnForward\)$"):
            ln.accelerate(model)


def test_other_tools_say_to_restore_first():
    model = ln.accelerate(torch.nn.Sequential(torch.nn.GRU(I, H)))
    with pytest.raises(RuntimeError, match=r"cannot compile AcceleratedGRU; call layernorm.restore\(model\) first"):
        torch.jit.script(model)
    with pytest.warns(
        UserWarning, match=r"not changed, as accelerated; call layernorm.restore\(model\) first: 0 \(GRU\)$"
    ):
        ln.convert(model)
    with pytest.raises(TypeError, match=r"portable: cannot copy 0: it is accelerated; call layernorm.restore\(model\)"):
        ln.portable(model)
    assert type(ln.convert(ln.restore(model))[0]) is ln.GRU


def test_the_extras_of_our_modules():
    """`reset`, `lengths` and `stepper` of an accelerated module, against torch's in a loop."""
    torch.manual_seed(0)
    lstm, x, reset = torch.nn.LSTM(I, H), torch.randn(T, B, I), torch.rand(T, B) < 0.3
    state, outputs = (torch.zeros(1, B, H),) * 2, []
    for step, cut in zip(x, reset, strict=True):
        state = tuple(torch.where(cut[:, None], 0, part) for part in state)
        output, state = lstm(step[None], state)
        outputs.append(output)
    ln.accelerate(lstm)
    torch.testing.assert_close(lstm(x, reset=reset)[0], torch.cat(outputs))
    torch.testing.assert_close(lstm.stepper()(x[0])[0], lstm(x)[0][0])
    assert (lstm(x, lengths=[2, 7, 1, 4])[0][2:, 0] == 0).all()


def test_torchs_cells_take_a_number_for_bias():
    """As Tacotron 2 has it: ``LSTMCell(..., ..., 1)``."""
    for make in (lambda: torch.nn.LSTMCell(I, H, 1), lambda: torch.nn.GRUCell(I, H, 0)):
        cell, x = make(), torch.randn(B, I)
        expected = tensors(cell(x))
        torch.testing.assert_close(tensors(ln.convert(copy.deepcopy(cell), norm=None)(x)), expected)
        torch.testing.assert_close(tensors(ln.accelerate(cell)(x)), expected)


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}])
@pytest.mark.parametrize("enforce_sorted", [True, False])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_traced_model_that_packs_takes_other_batches(options, enforce_sorted):
    class Packs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = torch.nn.GRU(I, H, **options)

        def forward(self, x, lengths):
            return self.gru(pack_padded_sequence(x, lengths, enforce_sorted=enforce_sorted))[0].data

    model = Packs()
    cases = [(torch.randn(len(n), T, I).transpose(0, 1), torch.tensor(n)) for n in ([7, 5], [7, 7, 6, 1, 1], [7])]
    expected = [model(*case) for case in cases]
    traced = torch.jit.trace(ln.accelerate(model), cases[0])
    torch.testing.assert_close([traced(*case) for case in cases], expected)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch.compile looks at it where a graph begins again
def test_torch_compile_does_not_look_inside():
    """As into torch's own: one break in the graph, and nothing of ours is compiled, whatever is called."""
    graphs = []

    def counted(graph, _):
        graphs.append(graph)
        return graph.forward

    model = torch.nn.Sequential(ln.accelerate(torch.nn.LSTM(I, H, 2, bidirectional=True)))
    compiled = torch.compile(lambda x: model(x)[0].relu() + 1, backend=counted)
    for mode in (True, False):
        model.train(mode)
        for steps in (T, T + 1, T + 2):
            x = torch.randn(steps, B, I)
            torch.testing.assert_close(compiled(x), model(x)[0].relu() + 1)
    operations = {str(node.target) for graph in graphs for node in graph.graph.nodes if node.op.startswith("call_")}
    assert not [target for target in operations if "layernorm" in target]
    assert {"relu", "<built-in function add>"} <= operations, "what is around it is compiled"
    exported = torch.export.export(model.eval(), (x,)).module()
    torch.testing.assert_close(exported(x)[0], model(x)[0])


def test_a_cell_is_part_of_a_graph_as_torchs_is():
    cell, x = ln.accelerate(torch.nn.GRUCell(I, H)), torch.randn(B, I)
    compiled = torch.compile(lambda x: cell(x).relu() + 1, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), cell(x).relu() + 1)


@pytest.mark.parametrize("make", [torch.nn.LSTMCell, torch.nn.GRUCell])
def test_a_large_cell_is_part_of_a_graph_and_traced_without_a_warning(make):
    """So large that its rule asks for the CPU, which neither torch.compile nor torch.jit.trace can follow."""
    cell, x = ln.accelerate(make(I, 128)), torch.randn(32, I)
    expected = cell(x)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(cell, backend="eager", fullgraph=True)(x), expected)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")  # layernorm.nn's own are ignored by their place
        torch.testing.assert_close(torch.jit.trace(cell, (x,))(x), expected)
    assert [item.filename for item in found if "layernorm/convert" in item.filename] == []


def test_fx_records_accelerated_modules_as_one_call():
    for make in (torch.nn.RNNCell, torch.nn.LSTMCell, torch.nn.GRU):
        model, x = torch.nn.Sequential(ln.accelerate(make(I, H))), torch.randn(5, I)
        graph = torch.fx.symbolic_trace(model)
        assert [node.op for node in graph.graph.nodes] == ["placeholder", "call_module", "output"]
        for found, expected in zip(flat(graph(x)), flat(model(x)), strict=True):
            torch.testing.assert_close(found, expected)


def test_a_stepper_refuses_a_forward_of_the_users_own():
    with pytest.warns(UserWarning, match="own forward"):
        module = ln.accelerate(OwnForward(I, H))
    with pytest.raises(ValueError, match="no step runs the forward of AcceleratedOwnForward, which is not layernorm's"):
        module.stepper()
    assert ln.accelerate(Orthogonal(I, H)).stepper()(torch.zeros(B, I))[0].shape == (B, H)


def test_the_class_of_an_accelerated_module_makes_another():
    """As programs do that build a copy from a module's class and sizes."""
    old = ln.accelerate(Orthogonal(I, H, batch_first=True))
    new, x = type(old)(old.input_size, old.hidden_size, batch_first=True), torch.randn(B, T, I)
    new.load_state_dict(old.state_dict())
    torch.testing.assert_close(new(x), old(x))
    assert new.zero_state(2)[0].shape == (1, 2, H)
    assert type(ln.restore(new)) is Orthogonal
    square = type(ln.accelerate(Square(H)))(H)
    assert square(torch.zeros(T, B, H))[0].shape == (T, B, H)
    assert square.scale == 2
    with pytest.raises(
        RuntimeError,
        match="AcceleratedLSTM: a new one cannot be accelerated: on meta in",
    ):
        type(ln.accelerate(torch.nn.LSTM(I, H)))(I, H, device="meta")


class Drawn(torch.nn.LSTM):
    """A subclass with initial values of its own."""

    def reset_parameters(self):
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter)


def test_the_class_of_an_accelerated_module_draws_as_its_subclass_does():
    torch.manual_seed(0)
    theirs = Drawn(I, H)
    cls = type(ln.accelerate(Drawn(I, H)))
    torch.manual_seed(0)
    for new, old in zip(cls(I, H).parameters(), theirs.parameters(), strict=True):
        assert torch.equal(new, old)


def test_a_class_that_refuses_subclasses_leaves_the_whole_model_as_it_is():
    class Tagged(torch.nn.LSTM):
        def __init_subclass__(cls, *, tag):
            cls.tag = tag

    model = torch.nn.Sequential(torch.nn.GRU(I, H), Tagged(I, H))
    with pytest.raises(TypeError, match="tag"):
        ln.accelerate(model)
    assert [type(part) for part in model] == [torch.nn.GRU, Tagged]
    assert not hasattr(model[1], "_structure")


@pytest.fixture
def intel(monkeypatch):
    """As on a processor of Intel's."""
    monkeypatch.setattr(torchs_faster, "_has_slow_products", lambda: False)


@pytest.mark.parametrize(
    ("make", "rows", "units", "in_training", "in_inference"),
    [
        (torch.nn.RNNCell, 1, H, True, True),
        (torch.nn.LSTMCell, 15, 256, False, False),
        (torch.nn.LSTMCell, 16, 128, True, False),
        (torch.nn.LSTMCell, 20, 192, True, True),
        (torch.nn.GRUCell, 32, 512, True, False),
        (torch.nn.GRUCell, 33, 512, True, True),
        (torch.nn.GRUCell, 31, 64, False, False),
        (torch.nn.GRUCell, 64, 64, True, False),
    ],
)
def test_the_rule_of_cells(intel, make, rows, units, in_training, in_inference):
    theirs = make(I, units)
    ours, x = ln.accelerate(copy.deepcopy(theirs)), torch.randn(rows, I)
    rule = torchs_faster.RULES[make]
    assert rule(ours, x) == in_training
    with torch.no_grad():
        assert rule(ours, x) == in_inference
    found = [module(x) for module in (theirs, ours)]
    torch.testing.assert_close(found[1], found[0])
    assert in_training == all(torch.equal(a, b) for a, b in zip(*map(flat, found), strict=True))
    torch._dynamo.reset()
    compiled = torch.compile(ours, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), found[0])
    hx = [torch.randn(rows, theirs.hidden_size) for _ in range(2)]
    state = tuple(hx) if make is torch.nn.LSTMCell else hx[0]
    torch.testing.assert_close(ours(x, state, reset=torch.ones(rows)), found[0])


def test_transforms_and_exports_of_an_accelerated_lstm():
    ours, x = ln.accelerate(torch.nn.LSTM(I, H)), torch.randn(40, 40, I)
    values = {name: p.detach() for name, p in ours.named_parameters()}
    expected = ours(x)[0]
    each = torch.func.vmap(lambda x: ours(x)[0])(torch.stack([x, x.flip(1)]))
    torch.testing.assert_close(each, torch.stack([expected, expected.flip(1)]))
    gradients = torch.func.grad(lambda v: torch.func.functional_call(ours, v, (x,))[0].sum())(values)
    true = torch.autograd.grad(expected.sum(), list(ours.parameters()))
    torch.testing.assert_close(gradients, dict(zip(values, true, strict=True)))
    program = torch.export.export(ours, (x,), strict=False)
    assert any("layernorm" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(x)[0], expected)
    cut = torch.zeros(40, 40)
    cut[3] = 1
    assert not torch.equal(ours(x, reset=cut)[0], ours(x)[0])
