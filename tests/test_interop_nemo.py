"""`interop.ln_lstm`: in the place of NeMo's module, against its step in NumPy and against `interop.from_state`."""

import copy
import io

import numpy as np
import pytest
import torch

import layernorm as ln
from support import oracle

I, H, L, T, B = 5, 4, 2, 6, 3  # noqa: E741
VALUE = 1e-12  # float64
NORMS = {"layernorm_i": 4 * H, "layernorm_h": 4 * H, "layernorm_c": H}


def drawn(seed=0):
    """A state dict of NeMo's StackedLSTM, as its source declares it."""
    rng, state = np.random.default_rng(seed), {}
    for layer in range(L):
        shapes = {"weight_ih": (4 * H, H if layer else I), "weight_hh": (4 * H, H)}
        shapes |= {f"{norm}.{part}": (n,) for norm, n in NORMS.items() for part in ("weight", "bias")}
        state |= {
            f"layers.{layer}.cell.{name}": torch.tensor(rng.normal(name.startswith("layernorm"), 0.7, shape))
            for name, shape in shapes.items()
        }
    return state


def loaded():
    module = ln.interop.ln_lstm(I, H, L).double()
    module.load_state_dict(drawn())
    return module


def inputs(seed=1):
    rng = np.random.default_rng(seed)
    states = [tuple(torch.tensor(rng.normal(0, 0.7, (B, H))) for _ in "hc") for _ in range(L)]
    return torch.tensor(rng.normal(0, 1, (T, B, I))), states


def test_it_computes_what_nemos_module_computes():
    x, states = inputs()
    output, after = loaded()(x, states)
    assert isinstance(after, list)
    expected = x.numpy()
    for layer, state in enumerate(states):
        own = {k.split(".cell.")[1]: v.numpy() for k, v in drawn().items() if k.startswith(f"layers.{layer}.")}
        norms = [(own[f"{norm}.weight"], own[f"{norm}.bias"]) for norm in NORMS]

        def step(x, h, c, own=own, norms=norms):
            return oracle.torchscript_lstm_step(x, h, c, own["weight_ih"], own["weight_hh"], *norms)

        expected, final = oracle.sequence(step, expected, [part.numpy() for part in state])
        for ours, theirs in zip(after[layer], final, strict=True):
            np.testing.assert_allclose(ours.detach(), theirs, rtol=0, atol=VALUE)
    np.testing.assert_allclose(output.detach(), expected, rtol=0, atol=VALUE)


def test_it_is_what_interop_reads_with_gradients():
    x, states = inputs()
    read, module = ln.interop.from_state(drawn(), "nemo"), loaded()
    hx = tuple(torch.stack(part) for part in zip(*states, strict=True))
    for given, of_read in ((states, hx), (None, None)):
        output, after = module(x, given)
        expected, final = read(x, of_read)
        assert torch.equal(output, expected)
        assert torch.equal(torch.stack([h for h, _ in after]), final[0])
        assert torch.equal(torch.stack([c for _, c in after]), final[1])
        (output.square().sum() + after[0][1].sum()).backward()
        (expected.square().sum() + final[1][0].sum()).backward()
    for ours, theirs in zip(module.parameters(), read.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_pieces_are_the_whole():
    x, states = inputs()
    module = loaded()
    whole, last = module(x, states)
    outputs = []
    for piece in x.split([1, 3, 2]):
        output, states = module(piece, states)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs), whole)
    torch.testing.assert_close(states, last)


def test_its_state_dict_is_nemos_in_a_model_too():
    state, module = drawn(), loaded()
    model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(9, I), "dec_rnn": module}).double()
    saved = model.state_dict()
    assert set(saved) == {"embed.weight"} | {f"dec_rnn.{name}" for name in state}
    for name, array in state.items():
        assert torch.equal(saved[f"dec_rnn.{name}"], array)
    saved["dec_rnn.layers.1.cell.layernorm_c.bias"].fill_(7)
    assert (module.lstm.bias_c_l1 == 7).all(), "the module's own memory, as of every state dict"
    other = copy.deepcopy(model)
    model.load_state_dict({f"dec_rnn.{name}": a for name, a in drawn(5).items()}, strict=False)
    assert not torch.equal(other["dec_rnn"].lstm.gain_c_l0, module.lstm.gain_c_l0)
    assert torch.equal(module.lstm.gain_c_l0, drawn(5)["layers.0.cell.layernorm_c.weight"])
    with pytest.raises(RuntimeError, match=r"layers\.2\.cell\.weight_ih"):
        module.load_state_dict(drawn() | {"layers.2.cell.weight_ih": torch.zeros(1)})
    with pytest.raises(RuntimeError, match=r"Missing.*lstm\.gain_c_l0"):
        module.load_state_dict({k: v for k, v in drawn().items() if k != "layers.0.cell.layernorm_c.weight"})


def test_it_becomes_torchscript_by_portable():
    x, states = inputs()
    module, file = loaded(), io.BytesIO()
    torch.jit.save(torch.jit.script(ln.portable(module)), file)
    file.seek(0)
    scripted = torch.jit.load(file)
    assert ln.portable(module).state_dict().keys() == module.state_dict().keys()
    torch.testing.assert_close(scripted(x, states), module(x, states))
    torch.testing.assert_close(scripted(x), module(x))


def test_its_initial_values():
    torch.manual_seed(0)
    lstm = ln.interop.ln_lstm(I, H, L, 0.0, 0.5).lstm
    assert all((lstm.get_parameter(f"bias_ih_l{k}")[H : 2 * H] == 0.5).all() for k in range(L))
    assert not torch.cat([lstm.get_parameter(f"bias_hh_l{k}")[H : 2 * H] for k in range(L)]).any()
    bias = ln.interop.ln_lstm(I, H, L, None, 1.0, t_max=50).lstm.bias_ih_l1
    assert torch.equal(bias[:H], -bias[H : 2 * H])
    assert len(set(bias[:H].tolist())) == H


def test_what_it_refuses_and_ignores():
    with pytest.raises(ValueError, match=r"dropout must be None or 0, as in NeMo, got 0\.1"):
        ln.interop.ln_lstm(I, H, L, 0.1)
    with pytest.warns(UserWarning, match=r"weights_init_scale=1\.0 is ignored"):
        ln.interop.ln_lstm(I, H, L, weights_init_scale=1.0)
    with pytest.raises(RuntimeError, match=r"Expected hidden h of size \(2, 3, 4\), got \[1, 3, 4\]"):
        loaded()(inputs()[0], inputs()[1][:1])
