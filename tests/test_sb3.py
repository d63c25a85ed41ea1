"""sb3-contrib's RecurrentPPO with our policies: its own numbers without a norm, and one call a sequence with one."""

import pytest
import torch

import layernorm as ln

sb3_contrib = pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed")
from gymnasium import spaces  # noqa: E402 - stable-baselines3 needs it
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy  # noqa: E402
from stable_baselines3.common.envs import FakeImageEnv, SimpleMultiObsEnv  # noqa: E402

import layernorm.sb3  # noqa: E402


@pytest.fixture(autouse=True)
def logs(monkeypatch, tmp_path):
    """sb3-contrib keeps a folder of logs for each model, by default in the system's folder for temporary files."""
    monkeypatch.setenv("SB3_LOGDIR", str(tmp_path))


def trained(policy, env="CartPole-v1", steps=96, **keywords):
    """RecurrentPPO after three updates, in whose minibatches episodes start."""
    model = sb3_contrib.RecurrentPPO(
        policy, env, n_steps=32, batch_size=16, n_epochs=2, seed=0, device="cpu", policy_kwargs=keywords
    )
    return model.learn(steps)


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"n_lstm_layers": 2},
        {"shared_lstm": True, "enable_critic_lstm": False},
        {"enable_critic_lstm": False, "share_features_extractor": False},
    ],
    ids=str,
)
def test_without_a_norm_training_gives_the_weights_that_sb3_contribs_policy_gets(keywords):
    keywords["lstm_hidden_size"] = 8
    theirs = trained("MlpLstmPolicy", **keywords).policy.state_dict()
    ours = trained(layernorm.sb3.MlpLstmPolicy, **keywords).policy.state_dict()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)  # twelve steps of Adam grow roundings of 1e-7


@pytest.mark.parametrize("norm", [None, "layer"])
def test_a_sequence_in_one_call_is_sb3_contribs_loop(norm):
    """The same network in both, in float64, with its gradients."""
    T, B, I, H = 9, 3, 4, 6  # noqa: E741
    lstm = ln.LSTM(I, H, 2, norm=norm, dtype=torch.float64)
    x = torch.randn(B * T, I, dtype=torch.float64, requires_grad=True)
    states = tuple(torch.randn(2, B, H, dtype=torch.float64, requires_grad=True) for _ in "hc")
    starts = (torch.rand(B * T) < 0.3).float()
    starts[0] = 1.0
    found = []
    for policy in (layernorm.sb3.MlpLstmPolicy, RecurrentActorCriticPolicy):
        output, final = policy._process_sequence(x, states, starts, lstm)
        results = [output, *final]
        loss = sum((part * part.cos()).sum() for part in results)
        found.append([*results, *torch.autograd.grad(loss, [x, *states, *lstm.parameters()])])
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-11)


def test_gains_are_trained_and_a_saved_model_goes_on(tmp_path):
    model = trained(layernorm.sb3.MlpLstmPolicy, lstm_hidden_size=8, norm="layer", formula="paper")
    gains = {name: p for name, p in model.policy.named_parameters() if "gain" in name}
    assert len(gains) == 6
    assert all((gain != 1.0).any() for gain in gains.values())
    model.save(tmp_path / "model")
    again = sb3_contrib.RecurrentPPO.load(tmp_path / "model", env=model.get_env(), device="cpu")
    assert again.policy.lstm_actor.formula == "paper"
    torch.testing.assert_close(again.policy.state_dict(), model.policy.state_dict(), rtol=0, atol=0)
    again.learn(32)


def test_an_agent_that_sb3_contrib_saved_goes_on(tmp_path):
    model = trained("MlpLstmPolicy", lstm_hidden_size=8)
    model.save(tmp_path / "model")
    policy_class = {"policy_class": layernorm.sb3.MlpLstmPolicy}
    again = sb3_contrib.RecurrentPPO.load(tmp_path / "model", env=model.get_env(), custom_objects=policy_class)
    assert isinstance(again.policy.lstm_actor, ln.LSTM)
    torch.testing.assert_close(again.policy.state_dict(), model.policy.state_dict(), rtol=0, atol=0)
    again.learn(32)


@pytest.mark.parametrize(
    ("policy", "env"),
    [
        ("CnnLstmPolicy", lambda: FakeImageEnv(screen_height=40, screen_width=40, n_channels=1)),
        ("MultiInputLstmPolicy", lambda: SimpleMultiObsEnv(random_start=False)),
    ],
)
def test_the_other_policies(policy, env):
    keywords = {"features_extractor_kwargs": {"features_dim": 16}} if policy == "CnnLstmPolicy" else {}
    model = trained(getattr(layernorm.sb3, policy), env(), steps=32, lstm_hidden_size=8, **keywords)
    assert isinstance(model.policy.lstm_actor, ln.LSTM)
    assert isinstance(model.policy.lstm_critic, ln.LSTM)


@pytest.mark.parametrize("arguments", [{}, {"norm": "layer"}, {"norm": "rms", "formula": "torchscript"}], ids=str)
def test_a_policys_own_file_has_its_norm_and_formula(tmp_path, arguments):
    box = spaces.Box(-1, 1, (3,))
    policy = layernorm.sb3.MlpLstmPolicy(box, box, lambda _: 1e-3, **arguments)
    policy.save(tmp_path / "policy")
    again = layernorm.sb3.MlpLstmPolicy.load(tmp_path / "policy", device="cpu")
    assert again.lstm_critic.norm == arguments.get("norm")
    assert again.lstm_actor.formula == arguments.get("formula", "cell")


@pytest.mark.parametrize("arguments", [{"formula": "sum"}, {"gain_init": 0.3}], ids=str)
def test_what_belongs_to_a_norm_is_refused_without_one(arguments):
    box = spaces.Box(-1, 1, (3,))
    with pytest.raises(ValueError, match=r"MlpLstmPolicy: \w+=.* needs a norm, such as norm='layer', got norm=None"):
        layernorm.sb3.MlpLstmPolicy(box, box, lambda _: 1e-3, **arguments)


@pytest.mark.parametrize("norm", ["batch", ln.BatchNormOverTime(max_steps=3)], ids=str)
def test_batch_norm_is_refused(norm):
    """A policy plays step by step, each of which would have the statistics of a sequence's first."""
    box = spaces.Box(-1, 1, (3,))
    with pytest.raises(ValueError, match=r"MlpLstmPolicy: batch norm .* got norm=.*[bB]atch"):
        layernorm.sb3.MlpLstmPolicy(box, box, lambda _: 1e-3, norm=norm)


@pytest.mark.parametrize("start", [0.3, "match"])
def test_the_start_of_the_gains(start):
    """As `layernorm.convert` has it; "match" needs no data."""
    spaces_of = (spaces.Box(-1, 1, (3,)), spaces.Discrete(2), lambda _: 1e-3)
    torch.manual_seed(0)
    policy = layernorm.sb3.MlpLstmPolicy(*spaces_of, norm="layer", formula="sum", gain_init=start, lstm_hidden_size=16)
    for lstm in (policy.lstm_actor, policy.lstm_critic):
        expected = ln.convert(torch.nn.LSTM(3, 16), formula="sum", gain_init=start)
        assert torch.equal(lstm.gain_l0, expected.gain_l0)
        assert (lstm.gain_l0 < 0.5).all()


@pytest.mark.parametrize("norm", [None, "layer"])
def test_a_forget_bias(norm):
    spaces_of = (spaces.Box(-1, 1, (3,)), spaces.Discrete(2), lambda _: 1e-3)
    policy = layernorm.sb3.MlpLstmPolicy(*spaces_of, norm=norm, forget_bias=1.0, lstm_hidden_size=16)
    for lstm in (policy.lstm_actor, policy.lstm_critic):
        assert torch.equal((lstm.bias_ih_l0 + lstm.bias_hh_l0)[16:32], torch.ones(16))


def test_a_wrong_norm_is_refused():
    box = spaces.Box(-1, 1, (3,))
    with pytest.raises(ValueError, match="layr"):
        layernorm.sb3.MlpLstmPolicy(box, box, lambda _: 1e-3, norm="layr")


def test_a_loaded_policy_keeps_its_start(tmp_path):
    start, spaces_of = {"gain_hh": 0.25}, (spaces.Box(-1, 1, (3,)), spaces.Discrete(2), lambda _: 1e-3)
    arguments = {"norm": "layer", "formula": "paper", "gain_init": start, "forget_bias": 1.0}
    policy = layernorm.sb3.MlpLstmPolicy(*spaces_of, **arguments)
    policy.save(tmp_path / "policy.zip")
    loaded = layernorm.sb3.MlpLstmPolicy.load(tmp_path / "policy.zip")
    assert (loaded.lstm_actor.gain_init, loaded.lstm_actor.forget_bias) == (start, 1.0)
