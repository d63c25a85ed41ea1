"""`convert`: torch's recurrent modules become ours and keep their weights."""

import copy

import pytest
import torch
from torch.nn.utils import parametrizations, prune

import layernorm as ln


class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 3)
        self.encoder = torch.nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True, dropout=0.1)
        self.blocks = torch.nn.ModuleList(
            [torch.nn.GRU(8, 8, batch_first=True), torch.nn.RNN(8, 8, nonlinearity="relu")]
        )
        self.cell = torch.nn.LSTMCell(8, 8, bias=False)
        self.same = self.encoder

    def forward(self, words):
        x, _ = self.encoder(self.embed(words))
        for block in self.blocks:
            x, _ = block(x)
        return self.cell(x[:, -1])[0]


def test_every_recurrent_module_becomes_ours():
    model = Tagger().eval()
    before = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.blocks[0].weight_ih_l0.requires_grad_(False)
    assert ln.convert(model) is model
    kinds = [type(m) for m in model.modules() if type(m).__module__.startswith("layernorm")]
    assert kinds == [ln.LSTM, ln.GRU, ln.RNN, ln.LSTMCell]
    assert model.same is model.encoder
    for name, parameter in before.items():
        assert dict(model.named_parameters())[name] is parameter, "the very same object"
    assert not model.blocks[0].weight_ih_l0.requires_grad
    assert (model.encoder.batch_first, model.encoder.dropout, model.training) == (True, 0.1, False)
    assert not model.encoder.training
    assert model.blocks[1].recurrence.nonlinearity == "relu"
    model(torch.randint(10, (2, 5))).sum().backward()
    optimizer.step()


def test_without_norm_the_function_stays():
    model, words = Tagger().eval(), torch.randint(10, (2, 5))
    expected = model(words)
    torch.testing.assert_close(ln.convert(copy.deepcopy(model), norm=None)(words), expected)
    assert not torch.allclose(ln.convert(model)(words), expected)


def test_a_bare_module():
    theirs = torch.nn.GRU(3, 4, dtype=torch.float64)
    ours = ln.convert(theirs, "rms", eps=1e-3, gain_init=0.1)
    assert type(ours) is ln.GRU
    assert ours.norm == "rms"
    assert ours.eps == 1e-3
    assert ours.weight_ih_l0 is theirs.weight_ih_l0
    assert ours.gain_ih_l0.dtype == torch.float64
    assert (ours.gain_ih_l0 == 0.1).all()


def test_it_draws_no_random_numbers():
    model = Tagger()
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    ln.convert(model)
    assert torch.equal(torch.rand(3), expected)


def test_nothing_changes_when_a_part_cannot_be_converted():
    model = Tagger()
    with pytest.raises(ValueError, match="not for GRU"):
        ln.convert(model, formula="cell")
    assert type(model.encoder) is torch.nn.LSTM


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            lambda m: torch.nn.utils.weight_norm(m, "weight_hh_l0"),
            "weight_hh_l0, forward_pre_hooks, weight_hh_l0_g, weight_hh_l0_v of encoder",
        ),
        (
            lambda m: parametrizations.weight_norm(m, "weight_hh_l0"),
            "weight_hh_l0, .*hooks, parametrizations of encoder",
        ),
        (
            lambda m: prune.l1_unstructured(m, "weight_ih_l1", 0.5),
            "weight_ih_l1, forward_pre_hooks, weight_ih_l1_orig, weight_ih_l1_mask of encoder",
        ),
        (lambda m: m.register_forward_hook(print), "forward_hooks of encoder"),
        (lambda m: m.register_buffer("seen", torch.zeros(1)), "seen of encoder"),
        (lambda m: m.register_parameter("scale", torch.nn.Parameter(torch.ones(1))), "scale of encoder"),
        (lambda m: m.add_module("head", torch.nn.Linear(8, 2)), "head of encoder"),
        (lambda m: setattr(m, "forward", print), "forward of encoder"),
        (lambda m: m.compile(), r"what compile\(\) made of encoder"),
    ],
)
def test_what_could_not_be_kept_is_an_error(change, what):
    """Not a new random weight in the place of one that is computed, nor hooks that are called no more."""
    model = Tagger()
    change(model.encoder)
    with pytest.raises(ValueError, match=rf"cannot keep {what} \(LSTM\); convert first"):
        ln.convert(model)
    assert [type(m) for m in model.blocks] == [torch.nn.GRU, torch.nn.RNN]


def test_a_network_whose_weights_are_no_parameters_is_an_error():
    gru = torch.nn.GRU(3, 4)
    for name in [*gru._parameters]:
        weight = getattr(gru, name).detach()
        delattr(gru, name)
        setattr(gru, name, weight)
    with pytest.raises(ValueError, match=r"cannot keep weight_ih_l0, .* \(GRU\); convert first"):
        ln.convert(gru)


def test_a_formula_without_biases_may_drop_them():
    assert not hasattr(ln.convert(torch.nn.GRU(3, 4), formula=ln.Formula(gate_bias=False)), "bias_ih_l0")


def test_nothing_to_convert_is_said():
    with pytest.warns(UserWarning, match="no RNN, LSTM, GRU or cell of torch.nn in Linear"):
        ln.convert(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("module", [torch.nn.Linear(2, 2), torch.nn.GRU(2, 2)])
def test_wrong_names_are_errors_whatever_there_is_to_convert(module):
    with pytest.raises(ValueError, match="did you mean 'layer'"):
        ln.convert(module, "lyer")
    with pytest.raises(ValueError, match="did you mean 'haste'"):
        ln.convert(module, formula="hase")


def test_what_is_no_module_is_named():
    with pytest.raises(TypeError, match=r"module must be a torch\.nn\.Module, got str 'x'"):
        ln.convert("x")


def test_weight_norm_of_a_row_of_zeros_is_refused_and_nothing_changed():
    model = torch.nn.ModuleList([torch.nn.LSTM(3, 4), torch.nn.GRUCell(3, 4)])
    torch.nn.init.zeros_(model[1].weight_hh[5:6])
    with pytest.raises(ValueError, match=r"weight norm cannot keep weight_hh of 1 \(GRUCell\): row 5 is zero"):
        ln.convert(model, "weight")
    assert [type(m) for m in model] == [torch.nn.LSTM, torch.nn.GRUCell]


def test_weight_norm_has_the_gains_that_are_given_and_no_numbers_on_meta():
    gru = ln.convert(torch.nn.GRU(3, 4), "weight", gain_init=0.25)
    for side in ("ih", "hh"):
        gains = gru.get_parameter(f"parametrizations.weight_{side}_l0.original0")
        assert torch.equal(gains, torch.full((12, 1), 0.25))
    assert ln.convert(torch.nn.GRU(3, 4, device="meta"), "weight").weight_ih_l0.is_meta


@pytest.mark.parametrize("norm", ["layer", "weight"])
def test_what_is_frozen_stays_frozen(norm):
    lstm = torch.nn.LSTM(3, 4)
    lstm.weight_ih_l0.requires_grad_(False)
    ours = ln.convert(lstm, norm)
    trained = {name for name, p in ours.named_parameters() if p.requires_grad}
    frozen = {name for name, p in ours.named_parameters() if not p.requires_grad}
    assert any("weight_hh_l0" in name for name in trained)
    assert frozen
    assert all("weight_ih_l0" in name for name in frozen)
    assert not any("weight_ih_l0" in name for name in trained)


@pytest.mark.parametrize("gain_init", ["1", float("nan"), True, {"gain_hh": "steady"}, {"gain_hh": None}])
def test_gain_init_is_a_number_a_start_or_a_mapping(gain_init):
    for norm in ("layer", "batch", "weight"):
        with pytest.raises(ValueError, match="gain_init should be a finite number, 'match', 'steady', None or"):
            ln.LSTM(3, 4, norm=norm, gain_init=gain_init)


def test_subclasses_are_left_alone_and_named():
    class Mine(torch.nn.LSTM):
        pass

    model = torch.nn.ModuleList([Mine(3, 4), torch.nn.GRU(3, 4)])
    with pytest.warns(UserWarning, match=r"^convert: not changed, as subclasses of torch's modules: 0 \(Mine\)$"):
        ln.convert(model)
    assert [type(m) for m in model] == [Mine, ln.GRU]
    with pytest.warns(UserWarning, match=r"^convert: not changed, as subclasses .* modules: the module \(Mine\)$"):
        ln.convert(model[0])


class LongerTagger(Tagger):
    """Takes two steps with its cell; W_hh h of the first is 0 and has no size."""

    def forward(self, words):
        x, _ = self.encoder(self.embed(words))
        return self.cell(x[:, 1], self.cell(x[:, 0]))[0] + sum(block(x)[0].sum() for block in self.blocks)


def test_match_is_convert_and_then_match():
    words = torch.randint(10, (2, 5))
    model = LongerTagger().eval()
    one, two = ln.convert(copy.deepcopy(model), match=(words,)), ln.convert(copy.deepcopy(model))
    ln.match(two, words)
    for (name, p), q in zip(one.named_parameters(), two.parameters(), strict=True):
        assert torch.equal(p, q), name
    bare = ln.convert(torch.nn.GRU(3, 4), match=[torch.randn(5, 2, 3)])
    assert not (bare.gain_ih_l0 == 1).any()


def test_only_what_is_converted_is_matched():
    model = torch.nn.ModuleDict({"old": ln.GRU(3, 4), "new": torch.nn.GRU(3, 4)})
    model.forward = lambda x: (model["old"](x), model["new"](x))
    ln.convert(model, match=(torch.randn(5, 2, 3),))
    assert (model["old"].gain_ih_l0 == 1).all()
    assert not (model["new"].gain_ih_l0 == 1).any()


@pytest.mark.parametrize(
    ("match", "norm", "error", "message"),
    [
        (torch.zeros(2, 5), "layer", TypeError, "expected match to be a tuple of the inputs, got Tensor"),
        (torch.nn.utils.rnn.pack_sequence([torch.zeros(2, 3)]), "layer", TypeError, "tuple of the inputs, got Packed"),
        ((torch.zeros(2, 5, 7),), "layer", RuntimeError, "scalar types"),
        ((torch.zeros(2, 1, dtype=torch.long),), "layer", ValueError, "gain_hh of encoder, layer 0 multiplies never"),
        ((torch.zeros(2, 5, dtype=torch.long),), None, ValueError, "match: Tagger has no recurrent network"),
        ((torch.zeros(2, 5, dtype=torch.long),), "weight", ValueError, "match: Tagger has no recurrent network"),
    ],
)
def test_the_model_is_as_before_when_it_cannot_be_matched(match, norm, error, message):
    model = Tagger()
    parts, state = list(model.named_modules()), copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=message):
        ln.convert(model, norm, match=match)
    assert list(model.named_modules()) == parts
    torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)


def test_a_model_without_forward_says_what_to_do_and_is_left_alone():
    model = torch.nn.ModuleDict({"lstm": torch.nn.LSTM(3, 4)})
    with pytest.raises(TypeError, match=r"ModuleDict has none; set model.forward .* or take gain_init='match'"):
        ln.convert(model, match=(torch.randn(5, 2, 3),))
    assert type(model["lstm"]) is torch.nn.LSTM
    model.forward = lambda x: model["lstm"](x)
    assert (ln.convert(model, match=(torch.randn(5, 2, 3),))["lstm"].gain_ih_l0 != 1).all()


def test_the_constructors_other_keywords():
    theirs = torch.nn.LSTM(3, 4, 2)
    weight = theirs.weight_hh_l1
    more = {"zoneout": (0.1, 0.2), "recurrent_dropout": 0.3, "variational": True, "gate_clip": 5.0}
    ours = ln.convert(torch.nn.Sequential(theirs), forget_bias=1.5, **more)[0]
    expected = ln.LSTM(3, 4, 2, forget_bias=1.5, **more)
    assert repr(ours) == repr(expected)
    assert ours.weight_hh_l1 is weight
    for layer in "01":
        biases = [getattr(ours, f"bias_{side}_l{layer}") for side in ("ih", "hh")]
        assert torch.equal(sum(biases)[4:8], torch.full((4,), 1.5))
        assert (biases[0][:4] != 0).all(), "the other gates keep theirs"


def test_a_keyword_that_a_network_lacks_is_refused_and_a_failed_match_puts_the_biases_back():
    model = torch.nn.ModuleList([torch.nn.LSTM(3, 4), torch.nn.LSTMCell(3, 4)])
    with pytest.raises(TypeError, match="LSTMCell has no recurrent_dropout"):
        ln.convert(model, recurrent_dropout=0.1)
    with pytest.raises(TypeError, match="RNN has no forget_bias"):
        ln.convert(torch.nn.RNN(3, 4), forget_bias=1.0)
    lstm = torch.nn.Sequential(torch.nn.LSTM(3, 4))
    before = lstm[0].bias_ih_l0.clone()
    with pytest.raises((RuntimeError, ValueError)):
        ln.convert(lstm, forget_bias=1.0, match=(torch.zeros(5, 2, 7),))
    assert type(lstm[0]) is torch.nn.LSTM
    assert torch.equal(lstm[0].bias_ih_l0, before)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_that_was_scripted_once():
    model = torch.nn.Sequential(torch.nn.GRU(3, 4))
    torch.jit.script(model)
    assert type(ln.convert(model)[0]) is ln.GRU
