"""A network step by step is the network over the sequence: values, every gradient, and what a step refuses."""

import pytest
import torch

import layernorm as ln
from layernorm.formula import PRESETS, Formula

T, B, I, H = 5, 3, 4, 6  # noqa: E741
ENGINES = [name for name in ("native", "reference") if name in ln.backends.available()]
PUBLISHED = [(network, name) for name, row in PRESETS.items() for network in row]
TYPICAL = [("RNN", {}), ("LSTM", {"proj_size": 3}), ("LSTM", {"num_layers": 2}), ("GRU", {"bias": False})]
# float64: the same equations, sums in another order
CLOSE = {"rtol": 1e-10, "atol": 1e-11}


def stepped(module, x, hx):
    """The module over x, step by step."""
    step = module.stepper()
    state = None if hx is None else step.state(hx)
    outputs = []
    for x_t in x.unbind():
        output, state = step(x_t, state)
        outputs.append(output)
    return torch.stack(outputs), step.hx(state)


def flat(hx):
    return [hx] if isinstance(hx, torch.Tensor) else list(hx)


def random_module(network, **keywords):
    """In float64, every parameter random: gains of 1 and biases of 0 would hide mistakes."""
    module = getattr(ln, network)(I, H, dtype=torch.float64, **keywords)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return module


def compare(module, batch=B):
    x = torch.randn(T, batch, I, dtype=torch.float64, requires_grad=True)
    _, hx = module(x)
    hx = [torch.randn_like(part).requires_grad_() for part in flat(hx)]
    given = hx[0] if len(hx) == 1 else tuple(hx)
    found = []
    for run in (lambda: module(x, given), lambda: stepped(module, x, given)):
        output, final = run()
        results = [output, *flat(final)]
        g = torch.Generator().manual_seed(1)
        weights = [torch.randn(r.shape, dtype=r.dtype, generator=g) for r in results]
        loss = sum((r * w).sum() for r, w in zip(results, weights, strict=True))
        found.append([*results, *torch.autograd.grad(loss, [x, *hx, *module.parameters()])])
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("network", "formula"), PUBLISHED)
def test_every_published_formula(network, formula, engine):
    with ln.backends.use(engine):
        compare(random_module(network, formula=formula))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("norm", [None, "rms", "weight"])
@pytest.mark.parametrize(("network", "keywords"), TYPICAL)
def test_every_norm_layers_and_projections(network, keywords, norm, engine):
    with ln.backends.use(engine):
        compare(random_module(network, norm=norm, **keywords))


@pytest.mark.parametrize("engine", ENGINES)
def test_formulas_whose_parameters_stand_in_two_places(engine):
    with ln.backends.use(engine):
        for gates, span in (("split", "per_gate"), ("sum", "joint"), ("sum", "all")):
            formula = Formula(gates, span, bias_inside=True, bias_again=True, eps_on="deviation", forget_bias=0.5)
            compare(random_module("LSTM", formula=formula))
            compare(random_module("GRU", formula=formula))


@pytest.mark.parametrize("batch", [0, 1, 40])
def test_any_batch(batch):
    compare(random_module("LSTM"), batch)


@pytest.mark.parametrize("network", ["RNN", "LSTM", "GRU"])
def test_a_cells_stepper_is_the_cell(network):
    cell = getattr(ln, network + "Cell")(I, H, dtype=torch.float64)
    for shape in ((T, B, I), (T, I)):  # also without a batch
        x = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        found = []
        for step in (cell, cell.stepper()):
            hx = None
            for x_t in x.unbind():
                hx = step(x_t, hx)
            parts = flat(hx)
            loss = sum((part * part.cos()).sum() for part in parts)
            found.append([*parts, *torch.autograd.grad(loss, [x, *cell.parameters()])])
        for expected, got in zip(*found, strict=True):
            torch.testing.assert_close(got, expected, **CLOSE)


def test_a_network_that_feeds_back():
    """What no call for a sequence can do: the next input is made of the output. By differences."""
    module = random_module("LSTM")
    back = torch.randn(I, H, dtype=torch.float64)

    def run(x, *parameters):
        given = dict(zip(names, parameters, strict=True))
        copy = ln.LSTM(I, H, dtype=torch.float64)
        for name in names:
            del copy._parameters[name]
            setattr(copy, name, given[name])
        step, state, output = copy.stepper(), None, None
        for _ in range(4):
            x_t = x if output is None else x + output @ back.T
            output, state = step(x_t, state)
        return output, *flat(step.hx(state))

    names = [name for name, _ in module.named_parameters()]
    x = torch.randn(2, I, dtype=torch.float64, requires_grad=True)
    # along random directions; the tests above compare every element
    assert torch.autograd.gradcheck(run, (x, *module.parameters()), fast_mode=True)


def test_a_graph_is_gone_through_twice_or_in_part():
    module = random_module("GRU")
    x = torch.randn(T, B, I, dtype=torch.float64, requires_grad=True)
    output, _ = stepped(module, x, None)
    parameters = list(module.parameters())
    expected = torch.autograd.grad(module(x)[0].square().sum(), [x, *parameters])
    only_x = torch.autograd.grad(output.square().sum(), x, retain_graph=True)
    torch.testing.assert_close(only_x[0], expected[0], **CLOSE)
    for _ in range(2):  # what the first left behind would come twice
        got = torch.autograd.grad(output.square().sum(), [x, *parameters], retain_graph=True)
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b, **CLOSE)
    part = torch.autograd.grad(output[1].sum(), parameters)
    for a, b in zip(part, torch.autograd.grad(module(x[:2])[0][1].sum(), parameters), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


def test_second_derivatives():
    module = random_module("LSTM")
    x = torch.randn(3, B, I, dtype=torch.float64, requires_grad=True)
    found = []
    for run in (lambda: module(x)[0], lambda: stepped(module, x, None)[0]):
        first = torch.autograd.grad(run().square().sum(), [x, *module.parameters()], create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in first), [x, *module.parameters()]))
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-9)  # sums of squares of sums


def test_without_gradients_and_under_inference_mode():
    module = random_module("LSTM", num_layers=2)
    x = torch.randn(T, B, I, dtype=torch.float64)
    expected, _ = module(x)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            output, _ = stepped(module, x, None)
            assert not output.requires_grad
        torch.testing.assert_close(output, expected.detach(), **CLOSE)
    module.requires_grad_(False)
    assert not stepped(module, x, None)[0].requires_grad


def test_16_bits_and_autocast():
    """As the sequence's op: computed in float32, rounded where a result leaves the step."""
    module, x = ln.LSTM(I, H).bfloat16(), torch.randn(T, B, I).bfloat16()
    output, _ = stepped(module, x, None)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, module(x)[0], rtol=0.05, atol=0.02)  # h is rounded at every step: 2^-9 each
    module = ln.LSTM(I, H)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = stepped(module, x.float(), None)
        assert output.dtype == module(x.float())[0].dtype == torch.bfloat16
    output.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in module.parameters())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_backward_under_autocast(engine):
    """Autocast would take the products inside for the user's own, and round them to 8 bits."""
    with ln.backends.use(engine):
        module, x = ln.LSTM(I, H, proj_size=2), torch.randn(T, B, I)
        expected = torch.autograd.grad(stepped(module, x, None)[0].sum(), list(module.parameters()))
        output, _ = stepped(module, x, None)
        with torch.autocast("cpu", torch.bfloat16):
            got = torch.autograd.grad(output.sum(), list(module.parameters()))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)  # float32; bfloat16 is off by 4e-3


def test_hooks_may_not_spoil_what_was_saved():
    module, x = ln.LSTM(I, H), torch.randn(T, B, I)
    for spoil in (lambda t: t.half(), lambda t: t[:1]):
        with torch.autograd.graph.saved_tensors_hooks(spoil, lambda t: t):
            output, _ = stepped(module, x, None)
        with pytest.raises(RuntimeError, match=r"expected|sizes|shape|dtype"):
            output.sum().backward()


def test_vmap_takes_plain_steps():
    module = random_module("GRU")
    x = torch.randn(2, T, B, I, dtype=torch.float64)
    got = torch.func.vmap(lambda x: stepped(module, x, None)[0])(x)
    torch.testing.assert_close(got, torch.stack([module(part)[0] for part in x]), **CLOSE)


@pytest.mark.parametrize("make", [lambda: ln.LSTM(I, H), lambda: ln.LSTMCell(I, H)])
def test_compiles_to_one_graph(make):
    module, x = make(), torch.randn(3, B, I)

    def run(x):
        step, state = module.stepper(), None
        for x_t in x.unbind():
            found = step(x_t, state)
            state = found[1] if isinstance(module, ln.LSTM) else found
        return found[0]

    torch._dynamo.reset()
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), run(x))
    parameters = list(module.parameters())
    pairs = zip(*(torch.autograd.grad(f(x).sum(), parameters) for f in (compiled, run)), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b)


def test_dropout_between_layers_is_the_modules():
    module = random_module("GRU", num_layers=2, dropout=1.0)
    x = torch.randn(T, B, I, dtype=torch.float64)
    torch.testing.assert_close(stepped(module, x, None)[0], module(x)[0], **CLOSE)  # nothing reaches the second layer
    module.eval()
    torch.testing.assert_close(stepped(module, x, None)[0], module(x)[0], **CLOSE)


@pytest.mark.parametrize("make", [lambda: ln.LSTM(I, H), lambda: ln.LSTMCell(I, H), lambda: ln.GRU(I, H, norm="rms")])
def test_changed_parameters_are_refused(make):
    """Before a step, and before a gradient that would be of other weights."""
    module, x = make(), torch.randn(B, I)
    step = module.stepper()
    first = step(x)
    with torch.no_grad():
        next(module.parameters()).mul_(2)
    with pytest.raises(RuntimeError, match="parameters have been changed since the stepper was made"):
        step(x)
    leaf = first[0] if isinstance(first, tuple) else first
    with pytest.raises(RuntimeError, match="parameters have been changed"):
        leaf.sum().backward()
    module.stepper()(x)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ln.LSTM(I, H, bidirectional=True).stepper(), ValueError, "bidirectional network needs the whole"),
        (lambda: ln.GRU(I, H, norm="batch").stepper(), ValueError, "batch norm has statistics of whole sequences"),
        (lambda: ln.LSTM(I, H).stepper()(torch.zeros(B, 7)), ValueError, r"shape \[B, 4\], got \[3, 7\]"),
        (lambda: ln.LSTM(I, H).stepper()(torch.zeros(T, B, I)), ValueError, r"shape \[B, 4\], got \[5, 3, 4\]"),
        (lambda: ln.LSTM(I, H).stepper()([0.0]), TypeError, "input to be a Tensor, got list"),
        (lambda: ln.GRU(I, H).stepper()(torch.zeros(B, I), []), ValueError, "state to have 1 layers, got 0"),
        (
            lambda: ln.GRU(I, H).stepper()(torch.zeros(B, I), [[torch.zeros(B, 7)]]),
            RuntimeError,
            r"initial h of shape \[3, 6\], got \[3, 7\]",
        ),
        (lambda: ln.LSTM(I, H).stepper().state(torch.zeros(1, B, H)), TypeError, r"expected hx to be a tuple \(h, c\)"),
        (lambda: ln.LSTM(I, H).stepper().state(None), TypeError, "expected hx to be a state, got None"),
        (lambda: ln.GRUCell(I, H).stepper()(torch.zeros(B, 7)), RuntimeError, "got 7, expected 4"),
        (lambda: ln.GRU(I, H).stepper()(torch.zeros(B, I).double()), RuntimeError, "of type torch.float64"),
    ],
)  # fmt: skip
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
