"""A network step by step is the network over the sequence: values, every gradient, and what a step refuses."""

import concurrent.futures
import copy
import gc
import itertools
import pickle
import weakref

import pytest
import torch
from torch.nn.utils import prune
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import layernorm as ln
from layernorm.formula import PRESETS, Formula
from support.networks import ENGINES, as_hx, flat

pytestmark = pytest.mark.usefixtures("empty_is_nan")

T, B, I, H = 5, 3, 4, 6  # noqa: E741
PUBLISHED = [(network, name) for name, row in PRESETS.items() for network in row]
TYPICAL = [("RNN", {}), ("LSTM", {"proj_size": 3}), ("LSTM", {"num_layers": 2}), ("GRU", {"bias": False})]
# float64: the same equations, sums in another order
CLOSE = {"rtol": 1e-10, "atol": 1e-11}


def stepped(module, x, hx):
    """The module over x, step by step."""
    step, state, outputs = module.stepper(), hx, []
    for x_t in x.unbind():
        output, state = step(x_t, state)
        outputs.append(output)
    return torch.stack(outputs), step.hx(state)


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
    given = as_hx(hx)
    found = []
    for run in (lambda: module(x, given), lambda: stepped(module, x, given)):
        output, final = run()
        results = [output, *flat(final)]
        g = torch.Generator().manual_seed(1)
        weights = [torch.randn(r.shape, dtype=r.dtype, generator=g) for r in results]
        loss = sum((r * w).sum() for r, w in zip(results, weights, strict=True))
        found.append([*results, *torch.autograd.grad(loss, [x, *hx, *module.parameters()])])
    torch.testing.assert_close(found[1], found[0], **CLOSE)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("network", "formula"), PUBLISHED)
def test_every_published_formula(network, formula, engine):
    with ln.backends.use(engine):
        compare(random_module(network, formula=formula))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("norm", [None, "layer"])
def test_derivatives_cut_at_the_gates(norm, engine):
    with ln.backends.use(engine):
        compare(random_module("LSTM", norm=norm, gate_clip=0.1))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("norm", [None, "rms", "weight"])
@pytest.mark.parametrize(("network", "keywords"), TYPICAL)
def test_every_norm_layers_and_projections(network, keywords, norm, engine):
    with ln.backends.use(engine):
        compare(random_module(network, norm=norm, **keywords))


@pytest.mark.parametrize("engine", ENGINES)
def test_formulas_whose_parameters_stand_in_two_places(engine):
    with ln.backends.use(engine):
        for gates, span in (("split", "per_gate"), ("hidden", "joint"), ("sum", "joint"), ("sum", "all")):
            again = gates != "hidden"
            formula = Formula(gates, span, bias_inside=True, bias_again=again, eps_on="deviation", forget_bias=0.5)
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
        torch.testing.assert_close(found[1], found[0], **CLOSE)


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


@pytest.mark.parametrize("make", [lambda: ln.LSTM(I + H, H, num_layers=2), lambda: ln.GRUCell(I + H, H)])
def test_a_model_that_feeds_back_is_exported_for_any_number_of_rows(make):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = make()

        def forward(self, x):
            step, state, output, outputs = self.network.stepper(), None, x.new_zeros(x.shape[1], H), []
            for x_t in x:
                found = step(torch.cat([x_t, output], 1), state)
                output, state = found if isinstance(found, tuple) else (found, found)
                outputs.append(output)
            return torch.stack(outputs)

    model = Model().eval()
    program = torch.export.export(model, (torch.randn(3, 2, I),), dynamic_shapes=({1: torch.export.Dim("B")},))
    assert sum("layernorm.recurrent" in str(node.target) for node in program.graph.nodes) >= 3
    x = torch.randn(3, 5, I)
    torch.testing.assert_close(program.module()(x), model(x))


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
        torch.testing.assert_close(got, expected, **CLOSE)
    part = torch.autograd.grad(output[1].sum(), parameters)
    torch.testing.assert_close(part, torch.autograd.grad(module(x[:2])[0][1].sum(), parameters), **CLOSE)


def test_second_derivatives():
    module = random_module("LSTM")
    x = torch.randn(3, B, I, dtype=torch.float64, requires_grad=True)
    found = []
    for run in (lambda: module(x)[0], lambda: stepped(module, x, None)[0]):
        first = torch.autograd.grad(run().square().sum(), [x, *module.parameters()], create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in first), [x, *module.parameters()]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-8, atol=1e-9)  # sums of squares of sums


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
    """As the sequence's op: computed in float32, in a network of 16 bits rounded where a result leaves the step."""
    module, x = ln.LSTM(I, H).bfloat16(), torch.randn(T, B, I).bfloat16()
    output, _ = stepped(module, x, None)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, module(x)[0], rtol=0.05, atol=0.02)  # h is rounded at every step: 2^-9 each
    module = ln.LSTM(I, H)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = stepped(module, x.float(), None)
        assert output.dtype == torch.float32  # as of a cell: test_autocast.py
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
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)  # float32; bfloat16 is off by 4e-3


def test_hooks_may_not_spoil_what_was_saved():
    module, x = ln.LSTM(I, H), torch.randn(T, B, I)
    for spoil in (lambda t: t.half(), lambda t: t[:1], lambda t: t.to("meta")):
        with torch.autograd.graph.saved_tensors_hooks(spoil, lambda t: t):
            output, _ = stepped(module, x, None)
        with pytest.raises(RuntimeError, match=r"expected|sizes|shape|dtype|device"):
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
    torch.testing.assert_close(*(torch.autograd.grad(f(x).sum(), parameters) for f in (compiled, run)))


def test_dropout_between_layers_is_the_modules():
    module = random_module("GRU", num_layers=2, dropout=1.0)
    x = torch.randn(T, B, I, dtype=torch.float64)
    torch.testing.assert_close(stepped(module, x, None)[0], module(x)[0], **CLOSE)  # nothing reaches the second layer
    module.eval()
    torch.testing.assert_close(stepped(module, x, None)[0], module(x)[0], **CLOSE)


def test_dropout_between_layers_drops_its_share_and_scales_the_rest():
    """The second layer hands on what it is given, which is above 0."""
    units, p = 500, 0.4
    module = ln.RNN(I, units, num_layers=2, nonlinearity="relu", norm=None, dropout=p)
    with torch.no_grad():
        for name, value in module.named_parameters():
            value.copy_(torch.eye(units) if name == "weight_ih_l1" else torch.zeros_like(value))
        module.bias_ih_l0.copy_(1 + torch.rand(units))
    step, masks = module.stepper(), []
    for _ in range(4):
        dropped, _ = step(torch.randn(B, I))
        masks.append(dropped == 0)
        torch.testing.assert_close(dropped, (module.bias_ih_l0 / (1 - p)).expand(B, -1).masked_fill(masks[-1], 0))
        assert abs(masks[-1].double().mean() - p) < 5 * (p * (1 - p) / masks[-1].numel()) ** 0.5
    assert all(not torch.equal(*pair) for pair in itertools.combinations(masks, 2))


MAKES = [
    lambda **more: ln.LSTM(I, H, num_layers=2, **more),
    lambda **more: ln.LSTMCell(I, H, **more),
    lambda **more: ln.GRU(I, H, norm="weight", **more),
]


def first_h(module, step=None):
    """The h after one step, by a stepper or by the module."""
    x = torch.ones(B, I, dtype=next(module.parameters()).dtype)
    if step is not None or isinstance(module, ln.LSTMCell):
        return (step or module)(x)[0]
    return module(x[None])[0][0]


def compare_step(module, step, other=None, **tolerance):
    """Compares a stepper with its module, or with another stepper."""
    found = []
    for h in (first_h(module, step), first_h(module, other)):
        trained = [p for p in module.parameters() if p.requires_grad]
        found.append([h, *torch.autograd.grad(h.float().square().sum(), trained)])
    torch.testing.assert_close(*found, **tolerance)


def load(module):
    state = {name: torch.rand_like(value) for name, value in module.state_dict().items()}
    module.load_state_dict(state, assign=True)


def replace(module):
    for part in module.modules():
        for name, p in list(part.named_parameters(recurse=False)):
            setattr(part, name, torch.nn.Parameter(p.detach().clone() + 0.5))


def add_in_place(module):
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.5)


def set_data(module):
    for p in module.parameters():
        p.data = p.data + 0.5


def compute_a_gain(module):
    """Computes a parameter from another one."""
    name = next(name for name, _ in module.named_parameters() if name.startswith(("gain", "bias")))
    torch.nn.utils.parametrize.register_parametrization(module, name, torch.nn.Softplus())


CHANGES = [load, replace, add_in_place, set_data, compute_a_gain, torch.nn.Module.double, torch.nn.Module.bfloat16]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("make", MAKES)
def test_a_step_after_a_change_is_the_modules(make, change, engine):
    with ln.backends.use(engine):
        module = make()
        step = module.stepper()
        before = first_h(module, step)
        change(module)
        compare_step(module, step)
        if change not in (torch.nn.Module.double, torch.nn.Module.bfloat16):
            assert not torch.allclose(before, first_h(module))


@pytest.mark.parametrize("make", MAKES)
def test_parameters_that_are_trained_later_or_no_more(make):
    module = make().requires_grad_(False)
    step = module.stepper()
    first_h(module, step)
    for number, p in enumerate(module.parameters()):
        p.requires_grad_(number % 2 == 0)
    compare_step(module, step)
    for p in module.parameters():
        p.requires_grad_(not p.requires_grad)
    compare_step(module, step)


@pytest.mark.parametrize("where", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
@pytest.mark.parametrize("make", MAKES)
def test_a_stepper_made_in_another_mode(make, where):
    module = make()
    with where():
        step = module.stepper()
        first_h(module, step)
    compare_step(module, step)
    step = module.stepper()
    first_h(module, step)
    with torch.autocast("cpu", torch.bfloat16):
        compare_step(module, step, module.stepper(), rtol=0, atol=0)  # a padded LSTM has other types there


@pytest.mark.parametrize("make", MAKES)
def test_parameters_made_in_inference_mode(make):
    """They have no versions."""
    with torch.inference_mode():
        module = make()
        step = module.stepper()
        for _ in range(2):
            torch.testing.assert_close(first_h(module, step), first_h(module))
            add_in_place(module)


@pytest.mark.parametrize("make", MAKES[:2])
def test_a_gradient_of_parameters_that_have_been_changed_is_refused(make):
    """It would be of other weights."""
    module = make()
    h = first_h(module, module.stepper())
    add_in_place(module)
    with pytest.raises(RuntimeError, match="parameters have been changed"):
        h.sum().backward()


@pytest.mark.parametrize("make", MAKES)
def test_gradients_are_added_up_over_several_backwards(make):
    """Each frees the graph of the weights that weight norm computes, as also of casts."""
    module, x = make(), torch.ones(B, I)
    step = module.stepper()
    for _ in range(2):
        compare_step(module, step)
        with torch.autocast("cpu", torch.bfloat16):
            step(x)[0].sum().backward()
    freed = weakref.ref(step._prepared.last)
    del step
    assert freed() is None


class Dropped(torch.nn.Module):
    def forward(self, weight):
        return torch.nn.functional.dropout(weight, 0.5, self.training)


@pytest.mark.parametrize("make", [ln.LSTM, ln.LSTMCell])
def test_weights_that_are_no_longer_computed(make):
    module = make(I, H, norm="weight", bias=False)  # all its parameters are those of parametrizations
    step = module.stepper()
    first_h(module, step)
    for name in list(module.parametrizations):
        torch.nn.utils.parametrize.remove_parametrizations(module, name)
    add_in_place(module)
    compare_step(module, step)


def test_a_parametrization_in_another_mode():
    module = ln.LSTM(I, H)
    torch.nn.utils.parametrize.register_parametrization(module, "weight_ih_l0", Dropped())
    step = module.stepper()
    dropped = first_h(module, step)
    assert torch.equal(first_h(module, step), dropped), "one draw for all steps"
    module.eval()
    torch.testing.assert_close(first_h(module, step), first_h(module))


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("make", MAKES)
def test_a_graph_around_a_stepper_sees_changes(make, used):
    module = make()
    step = module.stepper()
    torch._dynamo.reset()
    compiled = torch.compile(lambda: first_h(module, step), backend="eager", fullgraph=True)
    if used:
        first_h(module, step)
    for change in (lambda module: None, replace, add_in_place):
        change(module)
        torch.testing.assert_close(compiled(), first_h(module))
        compare_step(module, step, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [{"recurrent_dropout": 0.5}, {"dropout": 0.5, "variational": True}])
def test_each_batch_size_has_masks_of_its_own(options):
    module = ln.LSTM(I, 40, num_layers=2, **options)
    step, rows = module.stepper(), torch.ones(2, I)
    state = step(rows[:1])[1]
    step(rows[:1], state)
    masks = len(step._masks)
    _, state = step(rows)
    output, _ = step(rows, state)
    assert len(step._masks) == 2 * masks
    assert not torch.equal(*output), "two rows of one input differ only in their masks"


def test_a_mask_stays_where_autocast_makes_the_state_narrow():
    rnn, x, hx = ln.RNN(I, 40, recurrent_dropout=0.5), torch.randn(2, I), torch.randn(1, 2, 40)
    with torch.autocast("cpu", torch.bfloat16):
        step = rnn.stepper()
        _, state = step(x, hx)
        step(x, state)
    assert state[0][0].dtype == torch.bfloat16
    assert len(step._masks) == 1


def test_a_gradient_is_of_the_weights_that_the_step_had():
    """Not of what lies in their memory later, which may not even be there."""
    module, x = ln.LSTM(I, H), torch.randn(B, I)
    expected = torch.autograd.grad(module(x[None])[0].sum(), list(module.parameters()))
    output, _ = module.stepper()(x)
    for p in module.parameters():
        p.data = torch.full_like(p, float("nan"))  # torch does not count this as a change
    got = torch.autograd.grad(output.sum(), list(module.parameters()))
    torch.testing.assert_close(got, expected)
    module = ln.LSTM(64, 256)
    output, _ = module.stepper()(torch.randn(3, 64))
    module.share_memory()  # moves the weights
    output.sum().backward()


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_a_stepper_is_not_copied(copied):
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copied(ln.LSTM(I, H).stepper())


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_a_dispatch_mode_around_the_backward_sees_its_operations():
    """Plain equations are taken, for all steps or for those inside the mode."""
    module, x = ln.GRU(I, H), torch.randn(T, B, I)
    parameters = list(module.parameters())
    expected = torch.autograd.grad(stepped(module, x, None)[0].sum(), parameters)
    output, _ = stepped(module, x, None)
    with Seen() as mode:
        got = torch.autograd.grad(output.sum(), parameters)
    assert any("aten.mm" in name or "aten.addmm" in name for name in mode.names)
    torch.testing.assert_close(got, expected)


def test_a_stepper_is_freed_without_the_garbage_collector():
    module = ln.GRU(I, H)
    gc.collect()
    gc.disable()
    try:
        step = module.stepper()
        output, state = step(torch.randn(B, I))
        alive = weakref.ref(step._prepared.last.layers[0])
        output.sum().backward()
        del step, output, state
        assert alive() is None
    finally:
        gc.enable()


def test_threads_that_share_a_stepper_lose_no_gradient():
    module = ln.RNN(1, 1)

    def one(step):
        return [g is None for g in torch.autograd.grad(step(torch.ones(1, 1))[0], list(module.parameters()))]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(50):
            step = module.stepper()
            assert not any(any(missing) for missing in pool.map(one, [step] * 8))


def test_an_optimizer_that_steps_in_the_backward():
    """The upper layer's parameters change while the lower one's gradients, which are of the old ones, are to come."""
    module, x = ln.LSTM(I, H, num_layers=2), torch.randn(T, B, I)
    gradients = torch.autograd.grad(module(x)[0].square().sum(), list(module.parameters()))
    for p in module.parameters():
        optimizer = torch.optim.SGD([p], lr=0.1)
        p.register_post_accumulate_grad_hook(lambda p, optimizer=optimizer: optimizer.step())
    expected = [p - 0.1 * gradient for p, gradient in zip(module.parameters(), gradients, strict=True)]
    stepped(module, x, None)[0].square().sum().backward()
    torch.testing.assert_close(list(module.parameters()), expected)


@pytest.mark.parametrize(
    "add",
    [
        lambda m: prune.l1_unstructured(m, next(n for n in m._parameters if n.startswith("weight_hh")), 0.5),
        lambda m: m.register_forward_hook(lambda *_: None),
        lambda m: m.register_full_backward_hook(lambda *_: None),
        lambda m: m.register_full_backward_pre_hook(lambda *_: None),
    ],
)
@pytest.mark.parametrize("make", MAKES[:2])
def test_hooks_are_refused(make, add):
    module = make()
    step = module.stepper()
    first_h(module, step)
    add(module)
    for call in (module.stepper, lambda: first_h(module, step)):
        with pytest.raises(ValueError, match="no step runs the hooks on the forward"):
            call()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_backward_that_failed_keeps_nothing(engine):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise ValueError("on purpose")

    with ln.backends.use(engine):
        module = ln.LSTM(I, H)
        step, x = module.stepper(), torch.ones(B, I)
        _, state = step(x)
        output, _ = step(Fails.apply(x.requires_grad_()), state)
        for _ in range(3):
            with pytest.raises(ValueError, match="on purpose"):
                output.sum().backward(retain_graph=True)
        (passes, _) = step._prepared.last.layers[0].stand_in
        assert not passes.by_task


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ln.LSTM(I, H, bidirectional=True).stepper(), ValueError, "bidirectional network needs the whole"),
        (lambda: ln.GRU(I, H, norm="batch").stepper(), ValueError, "batch norm has statistics of whole sequences"),
        (lambda: ln.LSTM(I, H).stepper()(torch.zeros(B, 7)), ValueError, r"shape \[B, 4\], got \[3, 7\]"),
        (lambda: ln.LSTM(I, H).stepper()(torch.zeros(T, B, I)), ValueError, r"shape \[B, 4\], got \[5, 3, 4\]"),
        (lambda: ln.LSTM(I, H).stepper()([0.0]), TypeError, "input to be a Tensor, got list"),
        (lambda: ln.GRU(I, H).stepper()(torch.zeros(B, I), []), ValueError, "state to have 1 layers, got 0"),
        (lambda: ln.GRU(I, H).stepper()(torch.zeros(B, I), torch.zeros(B, H)), ValueError, r"1 layers.* \[\[3, 6\]\]"),
        (
            lambda: ln.LSTM(I, H, 2).stepper()(torch.zeros(B, I), (torch.zeros(2, B, H), torch.zeros(1, B, H))),
            ValueError,
            r"2 layers.* got \[\[2, 3, 6\], \[1, 3, 6\]\]",
        ),
        (lambda: ln.GRU(I, H).stepper()(torch.zeros(B, I), 3), TypeError, "for each layer; got int"),
        (lambda: ln.GRU(I, H).stepper()(torch.zeros(B, I), [[None]]), TypeError, r"got list of \(list\)"),
        (lambda: ln.LSTM(I, H).stepper().hx(None), TypeError, r"expected state to be a tuple \(h, c\).* got NoneType"),
        (
            lambda: ln.GRU(I, H).stepper()(torch.zeros(B, I), [[torch.zeros(B, 7)]]),
            RuntimeError,
            r"initial h of shape \[3, 6\], got \[3, 7\]",
        ),
        (lambda: ln.LSTM(I, H).stepper()(torch.zeros(B, I), torch.zeros(1, B, H)), TypeError, r"be a tuple \(h, c\)"),
        (lambda: ln.GRUCell(I, H).stepper()(torch.zeros(B, 7)), RuntimeError, "got 7, expected 4"),
        (lambda: ln.GRU(I, H).stepper()(torch.zeros(B, I).double()), RuntimeError, "as the parameters are"),
    ],
)  # fmt: skip
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("batch", [1, B])
def test_an_input_whose_rows_lie_apart(engine, batch):
    """A step of one time of a batch-first input, which is not copied, is a step of a copy."""
    module, x = random_module("LSTM"), torch.randn(batch, T, I + 3, dtype=torch.float64, requires_grad=True)
    found = []
    for rows in (x[:, 2, 1 : 1 + I], x[:, 2, 1 : 1 + I].contiguous()):
        with ln.backends.use(engine):
            step = module.stepper()
            output, state = step(rows, None)
            _, c = step.hx(state)
            found.append([output, *torch.autograd.grad(output.sum() + c.sum(), [x, *module.parameters()])])
    torch.testing.assert_close(*found, **CLOSE)


MASKS = [
    {"dropout": 0.5, "recurrent_dropout": 0.5}, {"recurrent_dropout": 0.5, "zoneout": (0.2, 0.1)},
    {"dropout": 0.5, "variational": True, "zoneout": 0.2}, {"recurrent_dropout": 0.5},
]  # fmt: skip


@pytest.mark.parametrize("options", MASKS)
def test_steps_that_checkpoint_makes_again_draw_the_same(options):
    lstm, x = ln.LSTM(I, H, 2, dtype=torch.float64, **options), torch.randn(T, B, I, dtype=torch.float64)
    results = []
    for again in (False, True):
        torch.manual_seed(3)
        step, state, outputs = lstm.stepper(), None, []
        for frame in x:
            args = (frame, state)
            output, state = checkpoint(step, *args, use_reentrant=False) if again else step(*args)
            outputs.append(output)
        loss = torch.stack(outputs).square().sum()
        results.append([*outputs, *torch.autograd.grad(loss, list(lstm.parameters()))])
    torch.testing.assert_close(*results, **CLOSE)


def test_nothing_of_torch_funcs_tensors_stays():
    gru, x = ln.GRU(I, H), torch.randn(B, I)
    step = gru.stepper()
    with torch.autocast("cpu", torch.bfloat16):
        torch.func.grad(lambda x: step(x)[0].sum())(x)
        step(x)[0].sum().backward()
    assert all(p.grad is not None for p in gru.parameters())
