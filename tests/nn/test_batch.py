"""Recurrent batch normalisation (`norm="batch"`) against `oracle_batch`; values, gradients, population, evaluation."""

import contextlib
import copy
import dataclasses
import functools
import itertools
import pickle

import numpy as np
import pytest
import torch

import layernorm as ln
from support import comparing, oracle_batch
from support.comparing import tensor
from support.networks import ENGINES, MODULE, NETWORKS, as_hx, flat
from support.turns import one_in

# Relative to the largest magnitude of what is expected. A variance over few rows may be small: what it divides by
# enlarges float64's 1.1e-16, and the next step's statistics enlarge that again; 1e-13 is typical.
VALUE = 1e-10
GRADIENT = 1e-8  # the stencil's own error, h^4 / 30 * f^(5) + 1.5 * 1.1e-16 / h * |f|; 1e-10 is typical
STENCIL_H = 1e-4
SMOOTH = 0.1  # eps of the gradients' tests: BN of two rows is +-1, a step where the two are equal

I, H = 2, 3  # noqa: E741
derivative = functools.partial(comparing.derivative, h=STENCIL_H)
BUFFERS = ("running_", "num_batches_tracked")

CASES = [
    ("RNN", "paper", {}),
    ("RNN", "paper", {"nonlinearity": "relu"}),
    ("RNN", ln.Formula(gates="split"), {}),
    ("LSTM", ln.Formula(gates="hidden", cell=None), {}),
    ("GRU", ln.Formula(gates="hidden"), {}),
    ("LSTM", "paper", {}),
    ("LSTM", "paper", {"proj_size": 2}),
    ("LSTM", "paper", {"bias": False}),
    ("LSTM", "cell", {}),
    ("LSTM", "kiros", {}),
    ("LSTM", "torchscript", {}),
    ("LSTM", "sonnet", {}),
    ("LSTM", "tf1", {"eps": 1e-5}),
    ("LSTM", ln.Formula(gates=None, cell="carry", cell_bias=False), {}),
    ("LSTM", ln.Formula(gates="sum", bias_inside=True, eps_on="deviation", eps=1e-2), {}),
    ("GRU", "paper", {}),
    ("GRU", "haste", {}),
    ("GRU", ln.Formula(gates="sum"), {}),
    ("GRU", ln.Formula(gates="sum", bias_inside=True), {}),
    ("GRU", ln.Formula(gates="sum", span="all"), {}),
]

SETTINGS = [field.name for field in dataclasses.fields(ln.BatchNormOverTime)]


def made(network, formula="paper", *, seed=0, layers=1, bidirectional=False, **more):
    """A module in float64 with random parameters, in training mode."""
    norm = ln.BatchNormOverTime(**{name: more.pop(name) for name in SETTINGS if name in more})
    module = MODULE[network](
        I, H, layers, norm=norm, formula=formula, bidirectional=bidirectional, dtype=torch.float64, **more
    )
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(tensor(rng.normal(name.startswith("gain"), 0.6, parameter.shape)))
    return module


def batch(module, *, T=4, B=4, seed=1, lengths=None):
    """Random input and initial state: (x, state, lengths) as arrays."""
    rng = np.random.default_rng([seed, T, B])
    rows = module.num_layers * (1 + module.bidirectional)
    sizes = [module.proj_size or H] + [H] * isinstance(module, ln.LSTM)
    return rng.normal(0, 1, (T, B, I)), [rng.normal(0, 0.7, (rows, B, size)) for size in sizes], lengths


def apply(module, x, state, lengths=None):
    """The module on arrays or tensors: [output, *final state]."""
    x, *state = (a if isinstance(a, torch.Tensor) else tensor(a) for a in (x, *state))
    output, final = module(x, as_hx(state), lengths=lengths)
    return [output, *flat(final)]


def expected(module, x, state, lengths=None):
    """The same by the oracle, in the module's mode: ([output, *final state], what the population learns)."""
    values = {name: value.numpy() for name, value in module.state_dict().items()}
    parameters, populations = split(module, values)
    f = module.recurrence.formula
    network = next(name for name in NETWORKS if isinstance(module, MODULE[name]))
    output, final, learnt = oracle_batch.stack(
        network, x, state, parameters, f, lengths=lengths, populations=None if module.training else populations,
        count_padding=module.over_time.count_padding, nonlinearity=module.recurrence.nonlinearity,
    )  # fmt: skip
    return [output, *final], learnt


def split(module, values):
    """A state dict's parameters and buffers, each as ``[layer][direction]``, by names without suffix."""
    endings = [
        [f"_l{layer}{d}" for d in ("", "_reverse")[: 1 + module.bidirectional]] for layer in range(module.num_layers)
    ]

    def of(ending, buffers):
        found = {k.removesuffix(ending): v for k, v in values.items() if k.endswith(ending)}
        return {k: v.copy() for k, v in found.items() if k.startswith(BUFFERS) == buffers}

    return tuple([[of(ending, b) for ending in layer] for layer in endings] for b in (False, True))


def close(got, expected, tolerance=VALUE):
    comparing.close(got, expected, tolerance, floor=1e-3)


def trains(module, x, state, lengths=None):
    """One batch in training: outputs and population are the oracle's."""
    _, before = split(module, {k: v.numpy() for k, v in module.state_dict().items()})
    values, learnt = expected(module, x, state, lengths)
    close(apply(module, x, state, lengths), values)
    _, after = split(module, {k: v.numpy() for k, v in module.state_dict().items()})
    for layer, directions in enumerate(before):
        for d, population in enumerate(directions):
            now = oracle_batch.learn(population, learnt[layer][d], module.over_time.momentum)
            assert now.keys() == after[layer][d].keys()
            close([after[layer][d][k] for k in now], list(now.values()))


def evaluates(module, x, state, lengths=None):
    """In evaluation: outputs are the oracle's, and the population stays."""
    module.eval()
    before = copy.deepcopy(module.state_dict())
    close(apply(module, x, state, lengths), expected(module, x, state, lengths)[0])
    assert all(torch.equal(a, b) for a, b in zip(before.values(), module.state_dict().values(), strict=True))
    module.train()


RAGGED = [
    [4, 4, 2, 3],  # in any order
    [4, 2, 1, 2],  # one row at the last two steps
    [1, 4, 0, 1],  # a row without a step, and one row from step 1 on
]
PADDING = [(False, None), *itertools.product((False, True), RAGGED)]
"""Whether padding counts, and the lengths."""
TRAINED = [(*case, *padding, engine) for case in CASES for padding in PADDING for engine in (None, "reference")]


@pytest.mark.parametrize(("network", "formula", "more", "count_padding", "lengths", "engine"), one_in(5, TRAINED))
def test_training_then_evaluation(network, formula, more, count_padding, lengths, engine):
    with ln.backends.use(engine) if engine else contextlib.nullcontext():
        trains_then_evaluates(network, formula, more, count_padding, lengths)


def trains_then_evaluates(network, formula, more, count_padding, lengths):
    module = made(network, formula, max_steps=6, count_padding=count_padding, **more)
    trains(module, *batch(module, lengths=lengths))
    trains(module, *batch(module, T=2, B=3, seed=2))
    evaluates(module, *batch(module, seed=3, lengths=lengths))


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("count_padding", "lengths"), PADDING, ids=str)
def test_layers_and_directions(network, count_padding, lengths):
    module = made(network, layers=2, bidirectional=True, max_steps=6, count_padding=count_padding)
    trains(module, *batch(module, lengths=lengths))
    evaluates(module, *batch(module, seed=3, lengths=lengths))


@pytest.mark.parametrize("momentum", [0.1, 0.6, 1.0, None])
def test_population_after_many_batches(momentum):
    """The first batches are averaged, and steps that fewer batches have are averaged by themselves."""
    module = made("LSTM", momentum=momentum, max_steps=5)
    for seed, (T, B, lengths) in enumerate(
        [(3, 4, None), (2, 2, None), (5, 3, [5, 5, 1]), (4, 5, [1, 4, 2, 0, 3]), (7, 2, None), (1, 3, None)]
    ):
        trains(module, *batch(module, T=T, B=B, seed=seed, lengths=lengths))
    assert module.num_batches_tracked_l0.tolist() == [6, 5, 4, 2, 2]
    evaluates(module, *batch(module, T=8))


def test_the_first_batch_replaces_the_initial_statistics():
    module = made("RNN", momentum=0.1, bias=False)
    x, state, _ = batch(module, T=1)
    apply(module, x, state)
    a = x[0] @ module.weight_ih_l0.detach().numpy().T + state[0][0] @ module.weight_hh_l0.detach().numpy().T
    close([module.running_mean_l0[0], module.running_var_l0[0]], [a.mean(0), a.var(0, ddof=1)])
    assert torch.equal(module.running_mean_l0[1:], torch.zeros(99, H))
    assert torch.equal(module.running_var_l0[1:], torch.ones(99, H))


@pytest.mark.parametrize("network", NETWORKS)
def test_longer_than_max_steps_and_longer_than_seen(network):
    module = made(network, max_steps=3)
    evaluates(module, *batch(module, T=2))  # nothing learnt: mean 0, variance 1
    trains(module, *batch(module, T=2))
    evaluates(module, *batch(module, T=5))  # the second row serves for the third and later steps
    trains(module, *batch(module, T=6))  # step 3 and later normalise, but are not kept
    evaluates(module, *batch(module, T=7, lengths=[7, 1, 5, 3]))


@pytest.mark.parametrize("network", NETWORKS)
def test_evaluation_of_the_only_batch_is_training_but_for_the_unbiased_variance(network):
    """So a gain that is larger by sqrt(n / (n - 1)) gives the training outputs back (without eps)."""
    module = made(network, eps=1e-30, bidirectional=True)
    x, state, _ = batch(module, B=5)
    training = apply(module, x, state)
    with torch.no_grad():
        for name, p in module.named_parameters():
            if name.startswith("gain"):
                p.mul_((5 / 4) ** 0.5)
    close(apply(module.eval(), x, state), training, 1e-8)


@pytest.mark.parametrize("network", NETWORKS)
def test_each_step_has_its_own_statistics(network):
    """What one step's inputs are scaled and shifted by does not reach the output."""
    module = made(network, eps=1e-30)
    x, state, _ = batch(module)
    scale, shift = np.array([1.0, 5, 0.2, 40])[:, None, None], np.array([3.0, -1, 7, 0])[:, None, None]
    if network == "RNN":
        scale = 1.0  # one normalisation of W x + U h: only a shift is taken away
    close(apply(module, scale * x + shift, state), apply(module, x, state), 1e-8)


# --- Gradients ---


def scalar(values, weights):
    return sum((a * w).sum() for a, w in zip(values, weights, strict=True))


MASKED = [(False, None), *itertools.product((False, True), ([1, 3, 2, 3], [3, 1, 0, 1]))]
DIFFERENTIATED = [(*case, *rest) for case, rest in itertools.product(CASES, MASKED)]


@pytest.mark.parametrize(("network", "formula", "more", "count_padding", "lengths"), one_in(4, DIFFERENTIATED))
def test_gradients_along_random_directions(network, formula, more, count_padding, lengths):
    """Of every tensor by itself, against finite differences of the oracle, and the reference's."""
    module = made(network, formula, bidirectional=True, count_padding=count_padding, **more | {"eps": SMOOTH})
    x, state, _ = batch(module, T=3)
    rng = np.random.default_rng(5)
    inputs = [tensor(a, grad=True) for a in (x, *state)]
    got = apply(module, *inputs[:1], inputs[1:], lengths)
    weights = [rng.normal(0, 1, a.shape) for a in got]
    names, parameters = zip(*module.named_parameters(), strict=True)
    gradients = torch.autograd.grad(scalar(got, map(tensor, weights)), [*inputs, *parameters])
    with ln.backends.use("reference"):
        again = apply(module, *inputs[:1], inputs[1:], lengths)
        close(gradients, torch.autograd.grad(scalar(again, map(tensor, weights)), [*inputs, *parameters]))
    arrays = [x, *state, *(p.detach().numpy().copy() for p in parameters)]
    if module.recurrence.nonlinearity == "relu":
        assert np.abs(got[0].detach().numpy()).max() > 0, "not all at rest"

    def value(arrays):
        values = dict(zip(names, arrays[len(inputs) :], strict=True))
        output, final, _ = oracle_batch.stack(
            network, arrays[0], arrays[1 : len(inputs)], split(module, values)[0], module.recurrence.formula,
            lengths=lengths, count_padding=count_padding, nonlinearity=module.recurrence.nonlinearity,
        )  # fmt: skip
        return scalar((output, *final), weights)

    found, true = [], []
    for k, gradient in enumerate(gradients):
        direction = rng.normal(0, 1, gradient.shape)
        found.append((gradient.numpy() * direction).sum())
        true.append(derivative(lambda s, k=k, d=direction: value([*arrays[:k], arrays[k] + s * d, *arrays[k + 1 :]])))
    close([np.array(found)], [np.array(true)], GRADIENT)


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_in_evaluation(network):
    """The population is a constant there: rows add up."""
    module = made(network)
    trains(module, *batch(module))
    module.eval()
    x, state, _ = batch(module, B=3, seed=4)
    inputs = [tensor(a, grad=True) for a in (x, *state)]
    assert torch.autograd.gradcheck(lambda x, *state: tuple(apply(module, x, state)), inputs)
    together = torch.autograd.grad(apply(module, inputs[0], inputs[1:])[0].square().sum(), inputs)
    for b in range(3):
        alone = [a.detach()[:, b : b + 1].requires_grad_() for a in inputs]
        found = torch.autograd.grad(apply(module, alone[0], alone[1:])[0].square().sum(), alone)
        torch.testing.assert_close([a[:, b : b + 1] for a in together], list(found), rtol=1e-10, atol=1e-12)


# --- Lengths ---


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("count_padding", [False, True])
def test_what_padding_holds_does_not_matter(network, count_padding):
    module = made(network, layers=2, bidirectional=True, count_padding=count_padding)
    x, state, _ = batch(module)
    lengths = [4, 2, 0, 3]
    spoilt = x.copy()
    for b, length in enumerate(lengths):
        spoilt[length:, b] = np.nan
    other = copy.deepcopy(module)
    for training in (True, False):
        module.train(training)
        other.train(training)
        xs = [tensor(a, grad=True) for a in (x, spoilt)]
        a, b = apply(module, xs[0], state, lengths), apply(other, xs[1], state, lengths)
        assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True))
        for m, values in ((module, a), (other, b)):
            m.zero_grad()
            sum(v.sum() for v in values).backward()
        assert torch.equal(xs[0].grad, xs[1].grad)
        assert all(torch.equal(p.grad, q.grad) for p, q in zip(module.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(p, q) for p, q in zip(module.buffers(), other.buffers(), strict=True))


@pytest.mark.parametrize("network", NETWORKS)
def test_more_padding_and_rows_without_a_step_do_not_matter(network):
    """Where padding does not count; and the state of a row without a step is its initial one."""
    module = made(network, layers=2, bidirectional=True)
    x, state, _ = batch(module)
    other = copy.deepcopy(module)
    lengths = [3, 0, 4, 2]
    a = apply(module, np.concatenate([x, x]), state, lengths)
    here = [0, 2, 3]
    b = apply(other, x[:, here], [part[:, here] for part in state], [3, 4, 2])
    close([a[0][:4, here]], [b[0].detach().numpy()])
    close([part[:, here] for part in a[1:]], [part.detach().numpy() for part in b[1:]])
    close([part[:, 1] for part in a[1:]], [part[:, 1] for part in state])
    close(module.buffers(), [value.numpy() for value in other.buffers()])


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("count_padding", [False, True])
def test_time_beyond_the_longest_row_does_not_matter(network, count_padding):
    """A packed sequence has none of it."""
    module = made(network, layers=2, bidirectional=True, count_padding=count_padding)
    x, state, _ = batch(module)
    other, lengths = copy.deepcopy(module), [3, 1, 4, 2]
    a, b = apply(module, np.concatenate([x, x]), state, lengths), apply(other, x, state, lengths)
    close([a[0][:4], *a[1:]], b)
    close(module.buffers(), [value.numpy() for value in other.buffers()])


# --- The module ---


@pytest.mark.parametrize("network", NETWORKS)
def test_one_row_is_evaluated_as_in_a_batch(network):
    module = made(network, layers=2, bidirectional=True)
    trains(module, *batch(module))
    module.eval()
    x, state, _ = batch(module, seed=6)
    one = [a.detach().numpy() for a in apply(module, x[:, :1], [part[:, :1] for part in state])]
    close([a[:, :1] for a in apply(module, x, state)], one)
    output, _ = module(tensor(x[:, 0]))  # unbatched
    close([output], [module(tensor(x[:, :1]))[0][:, 0].detach().numpy()])


@pytest.mark.parametrize("network", NETWORKS)
def test_names_shapes_and_initial_values(network):
    module = MODULE[network](I, H, 2, bidirectional=True, norm=ln.BatchNormOverTime(max_steps=7))
    buffers, units = dict(module.named_buffers()), {"RNN": 1, "LSTM": 4, "GRU": 3}[network] * H
    sites = {"RNN": {"": units}, "LSTM": {"_ih": units, "_hh": units, "_c": H}, "GRU": {"_ih": units, "_hh": units}}
    for suffix in ("l0", "l0_reverse", "l1", "l1_reverse"):
        for site, n in sites[network].items():
            assert torch.equal(buffers.pop(f"running_mean{site}_{suffix}"), torch.zeros(7, n))
            assert torch.equal(buffers.pop(f"running_var{site}_{suffix}"), torch.ones(7, n))
        assert buffers.pop(f"num_batches_tracked_{suffix}").tolist() == [0] * 7
    assert not buffers
    plain = MODULE[network](I, H, 2, bidirectional=True)
    assert [(k, p.shape) for k, p in module.named_parameters()] == [(k, p.shape) for k, p in plain.named_parameters()]
    for name, p in module.named_parameters():
        if name.startswith("gain"):
            assert torch.equal(p, torch.full_like(p, 0.1))
        if name.startswith("bias"):
            assert p.any() == (not name.startswith("bias_c"))
    for norm, given, gain in (("batch", 0.7, 0.7), ("layer", None, 1.0), ("rms", None, 1.0)):
        module = MODULE[network](I, H, norm=norm, gain_init=given)
        assert all((p == gain).all() for name, p in module.named_parameters() if name.startswith("gain"))


@pytest.mark.parametrize("network", NETWORKS)
def test_saved_and_copied(network):
    module = made(network, layers=2, bidirectional=True, max_steps=5)
    trains(module, *batch(module))
    x, state, _ = batch(module, T=6, seed=7)
    fresh = made(network, layers=2, bidirectional=True, max_steps=5, seed=9)
    fresh.load_state_dict(module.state_dict())
    copies = [fresh, copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
    trained = [copy.deepcopy(part) for part in (module, *copies)]
    for twin in copies:
        for a, b in zip(apply(twin.eval(), x, state), apply(module.eval(), x, state), strict=True):
            assert torch.equal(a, b)
    for twin in trained:
        apply(twin.train(), x, state)
    for twin in trained[1:]:
        for a, b in zip(twin.state_dict().values(), trained[0].state_dict().values(), strict=True):
            assert torch.equal(a, b)
    assert not torch.equal(trained[0].num_batches_tracked_l0, module.num_batches_tracked_l0), "a copy is its own"


@pytest.mark.parametrize("network", NETWORKS)
def test_float32_is_float64_to_its_digits(network):
    module = made(network)
    x, state, _ = batch(module, B=8)
    narrow = copy.deepcopy(module).float()
    a = apply(narrow, *(torch.tensor(v).float() for v in (x,)), [torch.tensor(part).float() for part in state])
    assert a[0].dtype == torch.float32
    b = apply(module, x, state)
    close(a, b, 1e-3)
    assert narrow.num_batches_tracked_l0.dtype == module.num_batches_tracked_l0.dtype == torch.int64


WIDER_AND_NARROWER = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize(
    ("kept", "dtype", "network"), one_in(5, itertools.product(WIDER_AND_NARROWER, WIDER_AND_NARROWER, NETWORKS))
)
def test_statistics_in_any_type_beside_a_network_in_any_type(network, dtype, kept):
    """In evaluation, with gradients, on every engine, against the same numbers in float64."""
    narrow = made(network, "paper", layers=2, bidirectional=True).to(dtype).eval()
    g = torch.Generator().manual_seed(5)
    for name, buffer in narrow.named_buffers():
        if buffer.is_floating_point():
            drawn = torch.rand(buffer.shape, generator=g, dtype=torch.float64) + float("var" in name)
            narrow.register_buffer(name, drawn.to(kept))
        else:
            buffer.fill_(1)
    exact = copy.deepcopy(narrow).double()
    x = torch.randn(3, 4, I, generator=g).to(dtype)

    def results(module, x):
        x = x.requires_grad_()
        output, final = module(x)
        found = [output, *flat(final)]
        gradients = torch.autograd.grad(found, [x, *module.parameters()], [torch.ones_like(f) for f in found])
        return [*(f.detach() for f in found), *gradients]

    expected = results(exact, x.double())
    # In 16 bits h and results alone are rounded, by half an eps each; 0.6 are typical. In float32 and float64 all sums
    # are; 5 and 12 are typical.
    tolerance = (4 if dtype.itemsize == 2 else 32) * torch.finfo(dtype).eps
    for engine in ENGINES:
        with ln.backends.use(engine):
            found = results(narrow, x)
        assert all(part.dtype is dtype for part in found)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=0, atol=tolerance * max(1.0, float(b.abs().max())))


@pytest.mark.parametrize("network", NETWORKS)
def test_training_one_row_is_an_error(network):
    module = made(network)
    before = copy.deepcopy(module.state_dict())
    x, state, _ = batch(module, B=1)
    with pytest.raises(ValueError, match="batch"):
        apply(module, x, state)
    with pytest.raises(ValueError, match="batch"):
        module(tensor(x[:, 0]))
    x, state, _ = batch(module, B=3)
    with pytest.raises(ValueError, match="batch"):
        apply(module, x, state, [0, 4, 0])
    assert all(torch.equal(a, b) for a, b in zip(before.values(), module.state_dict().values(), strict=True))
    module.eval()
    assert apply(module, x, state, [0, 4, 0])[0].isfinite().all()


@pytest.mark.parametrize("network", NETWORKS)
def test_errors(network):
    for norm in ("batch", ln.BatchNormOverTime()):
        with pytest.raises(ValueError, match="batch"):
            getattr(ln, f"{network}Cell")(I, H, norm=norm)


@pytest.mark.parametrize(
    ("setting", "value", "error"),
    [
        ("max_steps", 0, ValueError),
        ("max_steps", -1, ValueError),
        ("max_steps", 2.0, TypeError),
        ("momentum", 1.5, ValueError),
        ("momentum", "0.1", ValueError),
        ("count_padding", 1, TypeError),
    ],
)
def test_settings_that_have_no_meaning(setting, value, error):
    with pytest.raises(error, match=setting):
        ln.BatchNormOverTime(**{setting: value})


def test_settings_are_shown():
    assert repr(ln.GRU(3, 4, norm="batch")) == "GRU(3, 4, norm='batch', formula='paper', eps=1e-05)"
    shown = repr(ln.GRU(3, 4, norm=ln.BatchNormOverTime(max_steps=7)))
    assert "norm=BatchNormOverTime(max_steps=7, momentum=0.1, count_padding=False)" in shown


def test_compiles_with_lengths_and_refuses_them_when_run():
    module = made("RNN")
    x, state, _ = batch(module, T=2)
    other = copy.deepcopy(module)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")

    def call(lengths):
        return compiled(tensor(x), tensor(state[0]), lengths=torch.tensor(lengths))

    close(call([2, 1, 0, 2]), apply(module, x, state, [2, 1, 0, 2]))
    close(list(other.buffers()), list(module.buffers()))
    with pytest.raises(RuntimeError, match=r"lengths must lie in 0\.\.2"):
        call([2, 3, 0, 2])
    with pytest.raises(ValueError, match="expected two training cases or more under batch norm"):
        call([2, 0, 0, 0])
