"""`ln.quantize`: what the copy is and has, how far it is from the original, and what it refuses."""

import copy
import io
import pickle
import re

import pytest
import torch
import torch.nn.utils.prune
from torch.nn.utils.parametrize import register_parametrization

import layernorm as ln
from support.networks import ENGINES, MODULE, NETWORKS, int8

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.ao.quantization:DeprecationWarning")


TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def adding(dtype, size):
    """A plain network with relu, whose output is the product; ``size``: of the numbers in its weights."""
    net = ln.RNN(90, 50, norm=None, bias=False, nonlinearity="relu", dtype=torch.float64).eval()
    torch.nn.init.uniform_(net.weight_ih_l0, -size, size)
    return net.to(dtype)


def assert_within_the_bound(net, weight, x):
    """The error of a product is within the bound of the docstring, and the rounding of a result to its type."""
    found, (x, W) = net(x)[0], (x.double(), weight.detach().double())
    s, s_j = x.abs().amax(-1, keepdim=True) / 127, W.abs().amax(1) / 127
    bound = s / 2 * W.abs().sum(1) + s_j / 2 * (x.abs().sum(-1, keepdim=True) + s / 2 * 90)
    exact, half = (x @ W.T).relu(), torch.finfo(found.dtype).eps / 2
    error = (found.double() - exact).abs()
    few = 2.0**-24 if found.dtype is torch.float16 else 0.0  # below 6e-5 float16 has steps of this size
    assert (error <= bound * (1 + 1e-5) + half * (exact + bound) + few).all()
    assert error.max() > 0.01 * bound.min(), "a bound that says something"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("size", [1e-3, 0.1, 20.0])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_error_of_a_product_is_within_the_bound(engine, dtype, size):
    """Scales in 16 bits would make rows of float16 with numbers below 0.0078 zeros, and errors of bfloat16 larger."""
    torch.manual_seed(0)
    net, x = adding(dtype, size), torch.randn(1, 20, 90, dtype=torch.float64).to(dtype)
    with ln.backends.use(engine):
        assert_within_the_bound(int8(net), net.weight_ih_l0, x)


@pytest.mark.parametrize("size", [1e-4, 1e-3, 0.1, 20.0])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_weights_are_rounded_by_half_a_scale_at_most(dtype, size):
    torch.manual_seed(0)
    net = adding(dtype, size)
    quantized, weight = int8(net), net.weight_ih_l0.detach().double()
    exact = weight.abs().amax(1, keepdim=True) / 127
    error = (quantized.weight_ih_l0.double() * quantized.weight_ih_scale_l0.double()[:, None] - weight).abs() / exact
    assert error.max() <= 0.5 + 1e-4  # the scale's rounding, 127 times
    assert quantized.weight_ih_scale_l0.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("narrow", TYPES[:2], ids=str)
def test_scales_stay_wide_when_the_copy_is_made_narrow(engine, narrow):
    """By ``half()``, ``bfloat16()`` or autocast."""
    torch.manual_seed(0)
    net, x = adding(torch.float32, 1e-3), torch.randn(1, 20, 90).to(narrow)
    copies = [copy.deepcopy(int8(net)).to(narrow), int8(net.double()).to(narrow)]
    copies.append(pickle.loads(pickle.dumps(copies[0])))
    for quantized in copies:
        assert quantized.weight_ih_scale_l0.dtype is torch.float32
        with ln.backends.use(engine):
            assert_within_the_bound(quantized, net.weight_ih_l0, x)
    with ln.backends.use(engine), torch.autocast("cpu", narrow):
        assert_within_the_bound(int8(net.float()), net.weight_ih_l0, x)
        plain = int8(ln.LSTM(9, 5, norm=None).eval())
        assert plain(torch.ones(2, 3, 9))[0].dtype is narrow
    assert int8(net).to("meta", narrow).weight_ih_scale_l0.is_meta


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("norm", ["layer", "weight", None])
def test_the_copy_is_near_the_original_and_four_times_smaller(network, norm):
    torch.manual_seed(0)
    net = MODULE[network](64, 64, num_layers=2, norm=norm, batch_first=True)
    model = torch.nn.ModuleDict({"net": net, "head": torch.nn.Linear(64, 3)}).eval()
    before = copy.deepcopy(model.state_dict())
    quantized = int8(model)
    x = torch.randn(3, 5, 64)
    with torch.no_grad():
        (found, state), (expected, expected_state) = quantized["net"](x), model["net"](x)
    assert type(quantized["net"]) is MODULE[network]
    assert 1e-5 < (found - expected).abs().max() < 0.1
    assert torch.is_tensor(state) == torch.is_tensor(expected_state)
    assert torch.equal(quantized["head"].weight, model["head"].weight)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    sizes = [sum(t.nbytes for t in m["net"].state_dict().values()) for m in (model, quantized)]
    assert sizes[0] > 3.4 * sizes[1]
    assert {p.dtype for p in quantized["net"].buffers()} == {torch.int8, torch.float32}
    assert not any(p.requires_grad for p in quantized["net"].parameters())


def are_int8(model):
    """Returns the names of the networks whose weights are int8, by their weights."""
    networks = {name: part for name, part in model.named_modules() if isinstance(part, (ln.RNN, ln.LSTM, ln.GRU))}
    return [name for name, part in networks.items() if part.weight_hh_l0.dtype is torch.int8]


def test_small_networks_stay_as_they_are_unless_asked_for():
    """By the numbers in the weights of a layer, 150,000: below these int8 is not faster."""
    model = torch.nn.ModuleDict({
        "small": ln.LSTM(128, 128),  # 131,072
        "large": ln.LSTM(160, 160),  # 204,800
        "many_inputs": ln.LSTM(1024, 64),  # 278,528
        "few_inputs": ln.GRU(16, 192),  # 119,808
        "gru": ln.GRU(160, 160),  # 153,600
        "just_below": ln.RNN(549, 200, norm=None),  # 149,800
        "just_there": ln.RNN(550, 200, norm=None),  # 150,000
        "mean_of_layers": ln.LSTM(16, 144, num_layers=2),  # 92,160 and 165,888, 129,024 in the mean
        "batch_norm": ln.GRU(16, 16, norm="batch"),  # has no form with int8, and needs none
    }).eval()  # fmt: skip
    quantized, x = ln.quantize(model), torch.randn(3, 1, 128)
    assert are_int8(quantized) == ["large", "many_inputs", "gru", "just_there"]
    assert are_int8(model) == []
    assert torch.equal(quantized["small"](x)[0], model["small"](x)[0])
    quantized["small"](x)[0].sum().backward()  # the copy's networks in floating point train as before
    assert quantized["small"].weight_hh_l0.grad is not None
    asked = []
    chosen = ln.quantize(model, filter_fn=lambda module, name: asked.append((name, type(module))) or name == "small")
    assert are_int8(chosen) == ["small"]
    assert dict(asked) == {name: type(part) for name, part in model.items()}
    shared = torch.nn.Sequential(model["large"], model["large"])
    assert are_int8(ln.quantize(shared)) == ["0"]


def test_a_copy_without_int8_weights_warns_and_says_what_to_do():
    model = torch.nn.Sequential(ln.GRU(3, 4), torch.nn.Linear(4, 4), ln.LSTM(64, 64))
    wanted = (
        "quantize: every network in Sequential stays as it is, because int8 is not faster below 150,000 numbers in the "
        r"weight matrices of a layer; 2, LSTM\(64, 64\), has 32,768. filter_fn=lambda module, name: True makes all int8"
    )
    with pytest.warns(UserWarning, match=wanted):
        ln.quantize(model)
    with pytest.warns(UserWarning, match=r"; the model, LSTM\(64, 64\), has 32,768"):
        ln.quantize(model[2])
    with pytest.warns(UserWarning, match="quantize: filter_fn chose none of the networks in Sequential: '0', '2'"):
        ln.quantize(model, filter_fn=lambda module, name: False)
    with pytest.raises(TypeError, match=r"filter_fn must be a function \(module, name\) -> bool, got True"):
        ln.quantize(model, filter_fn=True)


def test_the_repr_says_int8_where_it_is():
    model = torch.nn.Sequential(ln.GRU(3, 4), ln.LSTM(160, 160, norm=None))
    text = repr(ln.quantize(model))
    assert "(0): GRU(3, 4, norm='layer'" in text
    assert "(1): LSTM(160, 160, norm=None, dtype=torch.int8)" in text
    assert text.count("int8") == 1
    assert "int8" not in repr(model)


def test_the_state_dict_is_saved_and_loaded():
    torch.manual_seed(0)
    trained, other = (int8(ln.GRU(6, 9).eval()) for _ in range(2))
    x = torch.randn(4, 2, 6)
    file = io.BytesIO()
    torch.save(trained.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(x)[0], trained(x)[0])
    assert torch.equal(copy.deepcopy(trained)(x)[0], trained(x)[0])


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("make", [lambda: ln.LSTM(6, 9), lambda: ln.accelerate(torch.nn.LSTM(6, 9))])
def test_weights_with_and_without_scales_are_not_mixed(make, strict):
    """torch would copy -0.3 as the whole number 0, and 127 as the weight 127."""
    plain, x = torch.nn.Sequential(make().eval()), torch.randn(4, 2, 6)
    small = int8(torch.nn.Sequential(make().eval()))
    for network, other, what in [
        (small, plain, "0.weight_ih_l0: expected torch.int8, got torch.float32; load it before quantize"),
        (plain, small, "0.weight_ih_l0: expected a floating-point type, got torch.int8; it is of a network that"),
    ]:
        before = network(x)[0]
        with pytest.raises(RuntimeError, match=re.escape(what)):
            network.load_state_dict(other.state_dict(), strict=strict)
        assert torch.equal(network(x)[0], before)


def test_it_takes_what_the_original_takes():
    """Unbatched and packed sequences, lengths; `torch.export` and `torch.compile`."""
    torch.manual_seed(0)
    net = int8(ln.LSTM(6, 9, bidirectional=True).eval())
    x, lengths = torch.randn(5, 2, 6), torch.tensor([5, 3])
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths)
    expected, _ = net(x, lengths=lengths)
    assert torch.equal(torch.nn.utils.rnn.pad_packed_sequence(net(packed)[0])[0], expected)
    assert torch.equal(net(x[:, 0])[0], net(x)[0][:, 0])
    exported = torch.export.export(net, (x,)).module()
    assert torch.equal(exported(x)[0], net(x)[0])
    assert torch.equal(torch.compile(net, backend="eager", fullgraph=True)(x)[0], net(x)[0])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_cut_restarts_and_zoneout_keeps(engine):
    """As calls of one step each, from the state before it."""
    torch.manual_seed(0)
    net = int8(ln.LSTM(6, 9, zoneout=(0.3, 0.2)).eval())
    x, start = torch.randn(4, 2, 6), (torch.randn(1, 2, 9), torch.randn(1, 2, 9))
    reset = torch.tensor([[0, 0], [0, 1], [1, 0], [0, 0]], dtype=torch.bool)
    with ln.backends.use(engine):
        found, _ = net(x, start, reset=reset, reset_hx=start)
        state, expected = start, []
        for frame, cut in zip(x, reset, strict=True):
            state = tuple(torch.where(cut[:, None], s, old) for s, old in zip(start, state, strict=True))
            output, state = net(frame[None], state)
            expected.append(output)
    torch.testing.assert_close(found, torch.cat(expected))


@pytest.mark.skipif(not torch.backends.quantized.supported_engines, reason="torch without quantised kernels")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_torchs_quantisation_of_the_rest():
    model = torch.nn.ModuleList([ln.LSTM(6, 8), torch.nn.Linear(8, 8)]).eval()
    both = torch.ao.quantization.quantize_dynamic(int8(model), {torch.nn.Linear})
    assert type(both[1]) is torch.ao.nn.quantized.dynamic.Linear
    assert torch.equal(both[0](torch.ones(2, 1, 6))[0], int8(model)[0](torch.ones(2, 1, 6))[0])


def test_a_call_for_gradients_is_refused():
    net, x = int8(ln.LSTM(6, 9).eval()), torch.randn(4, 2, 6)
    wanted = x.clone().requires_grad_()
    with pytest.raises(RuntimeError, match=r"LSTM: .* for inference, got a tensor that requires grad; .*no_grad"):
        net(wanted)
    with pytest.raises(RuntimeError, match="requires grad"):
        net(x, (wanted.new_zeros(1, 2, 9), torch.zeros(1, 2, 9, requires_grad=True)))
    with pytest.raises(RuntimeError, match="requires grad"):
        torch.func.grad(lambda x: net(x)[0].sum())(x)
    with pytest.raises(RuntimeError, match="got a tensor with a tangent"):
        torch.func.jvp(lambda x: net(x)[0], (x,), (x,))
    with torch.no_grad():
        assert torch.equal(net(wanted)[0], net(x)[0])
    with pytest.raises(RuntimeError, match=r"in training mode; call eval\(\) first"):
        net.train()(x)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("how", ["export", "trace"])
def test_a_graph_that_was_exported_refuses_it_too(how, engine):
    """It holds the op, without the module's check. 40 lines are more than the kernels of few rows have room for."""
    net, x = int8(ln.LSTM(6, 9).eval()), torch.randn(40, 1, 6)
    with torch.no_grad():
        graph = torch.export.export(net, (x,)).module() if how == "export" else torch.jit.trace(net, (x,))
    with ln.backends.use(engine):
        assert not graph(x)[0].requires_grad
        with pytest.raises(RuntimeError, match="a quantized network is for inference, got a tensor that requires grad"):
            graph(x.clone().requires_grad_())


def test_what_has_no_form_with_int8_is_refused():
    net = int8(ln.LSTM(6, 9).eval())
    pruned = ln.GRU(3, 4)
    torch.nn.utils.prune.l1_unstructured(pruned, "weight_hh_l0", 0.5)
    dropped, normed = ln.GRU(3, 4), ln.GRU(3, 4, norm="weight")
    for drawn in (dropped, normed):
        register_parametrization(drawn, "weight_hh_l0", torch.nn.Dropout(0.5))
    for model, message in (
        (dropped, r"is in training and has parametrized weights, which it may draw; call eval\(\) first"),
        (normed, r"is in training and has parametrized weights"),
        (net, "the model: the LSTM is quantized already"),
        (torch.nn.Sequential(ln.LSTM(6, 9, norm="batch")), "0: the LSTM has batch norm"),
        (ln.GRU(0, 9), "the GRU has input_size=0"),
        (pruned, "the GRU has computed weights"),
    ):
        with pytest.raises(ValueError, match=f"quantize: cannot copy .*{message}"):
            int8(model)
    with pytest.raises(TypeError, match=r"quantize: model must be a torch\.nn\.Module, got int 3"):
        ln.quantize(3)
    with pytest.warns(UserWarning, match=r"no RNN, LSTM or GRU of layernorm in LSTM; layernorm.accelerate") as warned:
        ln.quantize(torch.nn.LSTM(3, 4))
    assert warned[0].filename == __file__
    assert (int8(dropped.eval()).weight_hh_l0 != 0).float().mean() > 0.9  # of drawn ones half are 0
    int8(ln.GRU(3, 4, norm="weight"))


def test_an_accelerated_network_shows_that_it_has_int8_weights():
    net = ln.accelerate(torch.nn.LSTM(3, 4, batch_first=True))
    assert repr(net) == "AcceleratedLSTM(3, 4, batch_first=True)"
    quantized = int8(net.eval())
    assert repr(quantized) == "AcceleratedLSTM(3, 4, batch_first=True, dtype=torch.int8)"
    kept = {weight.data_ptr() for weight in quantized._flat_weights}  # torch's own list
    assert kept == {tensor.data_ptr() for name, tensor in quantized.state_dict().items() if "scale" not in name}


def test_what_reads_the_weights_refuses_them():
    net, x = int8(ln.LSTM(6, 9).eval()), torch.randn(4, 2, 6)
    with pytest.raises(ValueError, match=r"LSTM\.stepper: a quantized network has none; call the module with one"):
        net.stepper()
    with pytest.raises(ValueError, match="portable: cannot copy the model: a quantized LSTM"):
        ln.portable(net)
    with pytest.raises(ValueError, match="it has quantized=True, not False"):
        ln.interop.to_state(int8(ln.LSTM(6, 9, formula="haste")), "haste")
    broken = copy.deepcopy(net)
    broken.weight_ih_l0 = broken.weight_ih_l0.float()
    with pytest.raises(RuntimeError, match=r"lstm: expected weight_ih of type torch.int8, got torch.float32"):
        broken(x)
    with ln.backends.use("reference"), pytest.raises(RuntimeError, match=r"as input is, got torch\.float32"):
        net(x.double())
