"""Our networks in TorchRL's `LSTMModule` and `GRUModule`, and in ours: numbers, gradients, training."""

import pytest
import torch

import layernorm as ln

torchrl = pytest.importorskip("torchrl.modules", reason="torchrl is not installed")
from tensordict import TensorDict  # noqa: E402 - a part of torchrl

import layernorm.torchrl  # noqa: E402

MODULES = pytest.mark.parametrize("modules", [torchrl, layernorm.torchrl], ids=["theirs", "ours"])

B, T, H = 3, 7, 5
ENDS = torch.tensor([[0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 1, 1, 0]], dtype=torch.bool)
"""(B, T): where a trajectory begins anew within a row."""


def module_of(name, modules=torchrl, **keywords):
    """A module of TorchRL's kind around a network of ours, and the network."""
    network = getattr(ln, name)(4, H, 2, batch_first=True, **keywords)
    states = ["h", "c"][: 2 if name == "LSTM" else 1]
    keys = {"in_keys": ["observation", *states], "out_keys": ["embed", *(("next", state) for state in states)]}
    module = getattr(modules, f"{name}Module")(**{name.lower(): network}, **keys)
    return module, network, states


def rollout(network, states):
    """Trajectories as a collector stores them: every step with the state before it."""
    x = torch.randn(B, T, 4)
    zeros = {state: torch.zeros(B, T, network.num_layers, H) for state in states}
    return TensorDict({"observation": x, "is_init": ENDS[..., None], **zeros}, batch_size=[B, T])


@MODULES
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_rollouts_and_training_see_the_same_network(name, modules):
    module, network, states = module_of(name, modules)
    data = rollout(network, states)
    with torchrl.set_recurrent_mode(True):
        whole = module(data.clone())["embed"]
    expected, _ = ln_by_reset(network, data["observation"])
    torch.testing.assert_close(whole, expected)

    steps, state = [], {name: torch.zeros(B, network.num_layers, H) for name in states}
    for t in range(T):  # as a collector goes
        step = TensorDict({"observation": data["observation"][:, t], "is_init": ENDS[:, t, None], **state}, [B])
        step = module(step)
        steps.append(step["embed"])
        state = {name: step["next", name] for name in states}
    torch.testing.assert_close(torch.stack(steps, 1), whole)


def ln_by_reset(network, x):
    """The same by our own ``reset``, time first."""
    network.batch_first = False
    try:
        output, final = network(x.transpose(0, 1), reset=ENDS.T)
    finally:
        network.batch_first = True
    return output.transpose(0, 1), final


@MODULES
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_training_moves_every_parameter_and_learns(name, modules):
    module, network, states = module_of(name, modules)
    data = rollout(network, states)
    target = torch.randn(B, T, H).tanh() * 0.5
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    optimizer, losses = torch.optim.Adam(module.parameters(), 0.02), []
    for _ in range(30):
        with torchrl.set_recurrent_mode(True):
            loss = (module(data.clone())["embed"] - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all((p != before[name]).any() for name, p in network.named_parameters())


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_primer_and_state_dict(name):
    module, network, states = module_of(name)
    primer = module.make_tensordict_primer()
    assert {key: tuple(spec.shape) for key, spec in primer.primers.items()} == dict.fromkeys(states, (2, H))
    assert set(module.state_dict()) == {f"{name.lower()}.{key}" for key in network.state_dict()}


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_a_backend_that_would_leave_out_the_normalisation_is_refused(name):
    module, network, states = module_of(name)
    module.recurrent_backend = "scan"  # as an argument it warms torch's compiler up, which takes seconds
    with torchrl.set_recurrent_mode(True), pytest.raises(TypeError, match="recurrent_backend='pad'"):
        module(rollout(network, states))


@pytest.mark.parametrize("shape", [(T,), (B, T), (2, B, T)], ids=str)
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_one_call_gives_the_outputs_and_gradients_of_torchrls_module(name, shape):
    """From a stored state other than zero, in float64; the state after a row's last step, too."""
    theirs, network, states = module_of(name, dtype=torch.float64)
    ours, _, _ = module_of(name, layernorm.torchrl)
    setattr(ours, name.lower(), network)
    begins = torch.rand(*shape, 1) < 0.3
    begins[..., 0, :] = False
    stored = {state: torch.randn(*shape, 2, H, dtype=torch.float64) for state in states}
    stored = {state: part.where(~begins[..., None], 0.0).requires_grad_() for state, part in stored.items()}
    x = torch.randn(*shape, 4, dtype=torch.float64, requires_grad=True)
    found = []
    for module in (theirs, ours):
        data = TensorDict({"observation": x, "is_init": begins, **stored}, shape)
        with torchrl.set_recurrent_mode(True):
            data = module(data)
        results = [data["embed"], *(data["next", state][..., -1, :, :] for state in states)]
        loss = sum((part * part.cos()).sum() for part in results)
        found.append([*results, *torch.autograd.grad(loss, [x, *network.parameters(), *stored.values()])])
        # Inside a row TorchRL's has gradients for the stored zeros that an episode begins from, ours has not.
        found[-1][-len(states) :] = [gradient[..., 0, :, :] for gradient in found[-1][-len(states) :]]
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-11)


def test_what_our_module_refuses():
    keys = {"in_key": "observation", "out_key": "embed"}
    with pytest.raises(TypeError, match=r"lstm= to be a layernorm.LSTM, got torch\.nn\.modules\.rnn\.LSTM"):
        layernorm.torchrl.LSTMModule(input_size=4, hidden_size=H, **keys)
    with pytest.raises(TypeError, match=r"gru= to be a layernorm.GRU, got layernorm.*LSTM"):
        layernorm.torchrl.GRUModule(gru=ln.LSTM(4, H, batch_first=True), **keys)
    with pytest.raises(ValueError, match=r"GRUModule: batch norm .* got gru=GRU\(4, 5, .*norm='batch'"):
        layernorm.torchrl.GRUModule(gru=ln.GRU(4, H, batch_first=True, norm="batch"), **keys)
