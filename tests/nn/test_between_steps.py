"""Zoneout, recurrent and variational dropout, restarts from a learned state.

The equations in float64 are `oracle.run_between`; gradients are compared with its derivatives along random directions,
one an array, so that neither check goes through torch's arithmetic or autograd.
"""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

import layernorm as ln
from layernorm.equations.arguments import RecurrentArguments, StateChanges
from layernorm.formula import PLAIN, PRESETS, Recurrence
from layernorm.functional._recurrent import recurrent
from layernorm.nn import _layers, _stepper
from support import comparing, oracle
from support.comparing import tensor
from support.networks import ENGINES, NETWORKS, as_hx, flat
from support.turns import one_in

T, B, I, H = 4, 3, 2, 3  # noqa: E741
VALUE = 1e-12  # float64's 1.1e-16, times a step's sums and the normalisations' conditioning
GRADIENT = 1e-8  # the stencil's error: h^4 / 30 of the fifth derivative, 1.5 * 1.1e-16 / h of the value, h = 3e-5
SETTINGS = [(network, name, "layer", 0) for name in PRESETS for network in PRESETS[name]]
SETTINGS += [(network, None, None, 0) for network in NETWORKS] + [("LSTM", "paper", "rms", 2)]


def close(got, expected, tolerance=VALUE):
    comparing.close([got], [expected], tolerance, floor=1.0)


def drawn(network, f, P):
    """Arrays of order one: x, state, restart, parameters."""
    rng = np.random.default_rng(3)
    shapes = oracle.parameter_shapes(network, f, I, H, P)
    names = Recurrence(network, f, projected=P > 0).parameter_names
    parameters = {name: rng.normal("gain" in name, 0.7, shapes[name]) for name in names}
    sizes = (P or H, H)[: 2 if network == "LSTM" else 1]
    state, restart = ([rng.normal(0, 0.7, (B, size)) for size in sizes] for _ in range(2))
    return rng, rng.normal(0, 1, (T, B, I)), state, restart, parameters, sizes


BOTH_WAYS = [(*setting, reverse, engine) for setting in SETTINGS for reverse in (False, True) for engine in ENGINES]


@pytest.mark.parametrize(("network", "name", "norm", "P", "reverse", "engine"), one_in(5, BOTH_WAYS))
def test_everything_between_steps_is_the_slow_loop(network, name, norm, P, reverse, engine):
    f = PLAIN if name is None else PRESETS[name][network]
    rng, x, state, restart, p, sizes = drawn(network, f, P)
    lengths, reset = [4, 2, 3], rng.random((T, B)) < 0.4
    dropout = (rng.random((B, sizes[0])) < 0.7) / 0.7
    kept = [rng.integers(0, 2, (T, B, size)).astype(float) for size in sizes]
    kept[0][:] += 0.3 * (kept[0] == 0)  # also what evaluation has
    more = {"lengths": lengths, "reset": reset, "reverse": reverse, "dropout": dropout, "kept": kept}
    values, n = [x, *state, *restart, *p.values()], len(state)
    leaves = [tensor(a, grad=True) for a in values]
    recurrence = Recurrence(network, f, norm or "layer", projected=P > 0)
    between = StateChanges(leaves[1 + n : 1 + 2 * n], tensor(dropout), tuple(map(tensor, kept)))
    with ln.backends.use(engine):
        state, params, masks = leaves[1 : 1 + n], leaves[1 + 2 * n :], (torch.tensor(lengths), tensor(reset))
        a = RecurrentArguments(leaves[0], state, params, recurrence, between, *masks, reverse)
        output, final, _ = recurrent(a)
        results = [output, *final]
        weights = [rng.normal(0, 1, r.shape) for r in results]
        gradients = torch.autograd.grad(
            sum((r * tensor(w)).sum() for r, w in zip(results, weights, strict=True)), leaves
        )

    def computed(arrays):
        parameters = dict(zip(p, arrays[1 + 2 * n :], strict=True))
        given = (network, arrays[0], arrays[1 : 1 + n], parameters, f, norm)
        output, final = oracle.run_between(*given, restart=arrays[1 + n : 1 + 2 * n], **more)
        return [output, *final]

    def value(arrays):
        return sum((r * w).sum() for r, w in zip(computed(arrays), weights, strict=True))

    for got, expected in zip(results, computed(values), strict=True):
        close(got, expected)
    for k, gradient in enumerate(gradients):
        along = rng.normal(0, 1, values[k].shape)

        def at(s, k=k, along=along):
            return value([a + s * along if j == k else a for j, a in enumerate(values)])

        close((gradient.numpy() * along).sum(), comparing.derivative(at, h=3e-5), GRADIENT)


def module_of(network, layers=2, bidirectional=False, **keywords):
    """In float64, every parameter random: gains of 1 and biases of 0 would hide mistakes."""
    torch.manual_seed(1)
    module = getattr(ln, network)(I, H, layers, bidirectional=bidirectional, dtype=torch.float64, **keywords)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return module


def arrays_of(module, k):
    """The parameters of one layer and direction, for `oracle`."""
    suffix = module._suffixes[k]
    return {name: getattr(module, name + suffix).detach().numpy() for name in module.recurrence.parameter_names}


def recorded(monkeypatch):
    """The `StateChanges`s of the calls to come."""
    found, true = [], _layers.recurrent

    def wrapper(a):
        found.append(a.changes)
        return true(a)

    monkeypatch.setattr(_layers, "recurrent", wrapper)
    return found


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_modules_zoneout_and_recurrent_dropout(network, training, monkeypatch):
    """In training the module is the loop with the masks that it has drawn, in evaluation with the expectations."""
    rows, time = 200, 3
    zoneout = (0.25, 0.75) if network == "LSTM" else 0.25
    module = module_of(network, 1, zoneout=zoneout, recurrent_dropout=0.4).train(training)
    found, x = recorded(monkeypatch), torch.randn(time, rows, I, dtype=torch.float64)
    output, final = module(x)
    (between,) = found
    shares = zoneout if isinstance(zoneout, tuple) else (zoneout,)
    kept = [np.broadcast_to(part.numpy(), (time, rows, H)) for part in between.kept]
    dropout = np.ones((rows, H)) if between.dropout is None else between.dropout.numpy()
    for part, share in zip(kept, shares, strict=True):
        assert set(np.unique(part)) == ({0.0, 1.0} if training else {share})
        assert abs(part.mean() - share) < 5 * np.sqrt(share * (1 - share) / part.size), "five deviations"
    if training:
        close(np.unique(dropout), [0, 1 / 0.6])
        assert abs((dropout == 0).mean() - 0.4) < 5 * np.sqrt(0.24 / dropout.size), "five deviations"
    else:
        assert between.dropout is None
    zeros = [np.zeros((rows, H))] * len(shares)
    f, cut = module.recurrence.formula, np.zeros((time, rows), bool)
    more = {"lengths": None, "reset": cut, "reverse": False, "restart": zeros, "dropout": dropout, "kept": kept}
    expected, last = oracle.run_between(network, x.numpy(), zeros, arrays_of(module, 0), f, "layer", **more)
    close(output, expected)
    for got, part in zip(flat(final), last, strict=True):
        close(got[0], part)


def test_a_zoneout_that_is_set_later_counts_and_eps_cannot_be_set():
    for module in (ln.GRU(I, H), ln.GRUCell(I, H)):
        x, hx = torch.randn(B, I), torch.randn(B, H)
        x, hx = (x, hx) if isinstance(module, ln.GRUCell) else (x[None], hx[None])
        module.zoneout = 1.0
        assert "zoneout=1.0" in repr(module)
        final = module(x, hx) if isinstance(module, ln.GRUCell) else module(x, hx)[1]
        assert torch.equal(final, hx)
        with pytest.raises(ValueError, match=r"zoneout should be a number in range \[0, 1\], got 2"):
            module.zoneout = 2
        with pytest.raises(AttributeError, match="eps"):
            module.eps = 1.0
        assert (module.zoneout, module.eps) == (1.0, 1e-5)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_zoneout_of_one_keeps_the_initial_state_and_of_zero_changes_nothing(network):
    x = torch.randn(T, B, I, dtype=torch.float64)
    _, hx = module_of(network)(x)
    hx = torch.randn_like(hx) if network != "LSTM" else tuple(map(torch.randn_like, hx))
    module = module_of(network, zoneout=(1, 1.0) if network == "LSTM" else 1)
    for training in (True, False):
        output, final = module.train(training)(x, hx)
        assert all(torch.equal(a, b) for a, b in zip(flat(final), flat(hx), strict=True))
        assert torch.equal(output, flat(hx)[0][1].expand_as(output))
    assert torch.equal(module_of(network, zoneout=0.0)(x, hx)[0], module_of(network)(x, hx)[0])


def chosen_from(output):
    """How many numbers the tensors have that parts are chosen from on the way to ``output``: so long are the gradients
    of the choices."""
    seen, left, total = set(), [output.grad_fn], 0
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [before for before, _ in node.next_functions]
            if node.name() in ("SelectBackward0", "SliceBackward0"):
                total += math.prod(node._saved_self_sym_sizes)
    return total


@pytest.mark.parametrize("options", [{"norm": "batch"}, {"zoneout": 0.1}, {"recurrent_dropout": 0.1}])
@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_a_steps_gradient_is_not_as_long_as_all_steps(network, options):
    module = getattr(ln, network)(3, 4, **options)
    short, long = (chosen_from(module(torch.randn(T, 2, 3, requires_grad=True))[0]) for T in (10, 20))
    assert long <= 2 * short, "it may grow with T, not with its square"


@pytest.mark.parametrize("packed", [False, True])
def test_a_mask_of_one_element_is_a_mask(packed):
    """With one projected unit, one row and one step, as for c there are H of them."""
    module, x = ln.LSTM(3, 2, proj_size=1, zoneout=(0.3, 0.3), dtype=torch.float64), torch.randn(1, 1, 3).double()
    found = []
    for engine in ENGINES:
        torch.manual_seed(0)
        module.zero_grad()
        with ln.backends.use(engine):
            output, final = module(pack_sequence([x[0]]) if packed else x)
            (output.data.sum() + sum(part.sum() for part in final)).backward()
        found.append([output.data.detach(), *(p.grad for p in module.parameters())])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


def test_one_number_is_the_zoneout_of_h_alone():
    found = [module_of("LSTM", zoneout=z).eval()(torch.ones(T, B, I, dtype=torch.float64))[0] for z in (0.3, (0.3, 0))]
    assert torch.equal(*found)


def test_each_layer_direction_and_call_draws_for_itself(monkeypatch):
    found, x = recorded(monkeypatch), torch.randn(T, 50, I, dtype=torch.float64)
    module = module_of("GRU", 2, True, zoneout=0.5, recurrent_dropout=0.5)
    module(x), module(x)
    assert len(found) == 8
    for parts in ([b.dropout for b in found], [b.kept[0] for b in found]):
        assert not any(torch.equal(a, b) for k, a in enumerate(parts) for b in parts[:k])


@pytest.mark.parametrize("bidirectional", [False, True])
def test_variational_dropout_is_one_mask_for_all_steps(bidirectional):
    module = module_of("LSTM", 2, bidirectional, dropout=0.5, variational=True)
    D, x = 1 + bidirectional, torch.randn(T, B, I, dtype=torch.float64)
    first = ln.LSTM(I, H, bidirectional=bidirectional, dtype=torch.float64)
    second = ln.LSTM(D * H, H, bidirectional=bidirectional, dtype=torch.float64)
    values = module.state_dict()
    first.load_state_dict({k: v for k, v in values.items() if "_l0" in k})
    second.load_state_dict({k.replace("_l1", "_l0"): v for k, v in values.items() if "_l1" in k})
    torch.manual_seed(5)
    output, _ = module(x)
    torch.manual_seed(5)
    mask = torch.nn.functional.dropout(torch.ones(B, D * H, dtype=torch.float64), 0.5)
    assert len(mask.unique()) == 2
    assert torch.equal(output, second(first(x)[0] * mask)[0])
    assert torch.equal(module.eval()(x)[0], second(first(x)[0])[0])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_stepper_is_the_module(network, training, monkeypatch):
    """With the same masks for both; what zoneout draws in training is tested by its mean, below."""

    def mask(share, rows, like):
        return torch.linspace(0, 2, rows[0] * rows[1], dtype=torch.float64).reshape(rows) * (share < 1)

    for file in (_layers, _stepper):
        monkeypatch.setattr(file, "drop_mask", mask)
    zoneout = 0.0 if training else (0.2, 0.6) if network == "LSTM" else 0.2
    more = {"recurrent_dropout": 0.3, "dropout": 0.4, "variational": True, "zoneout": zoneout}
    module = module_of(network, **more).train(training)
    x = torch.randn(T, B, I, dtype=torch.float64, requires_grad=True)
    reset = torch.rand(T, B) < 0.4
    start = [torch.randn(2, 1, H, dtype=torch.float64, requires_grad=True) for _ in module._state_names]
    hx = as_hx(start)
    step, state, outputs = module.stepper(), None, []
    for t in range(T):
        output, state = step(x[t], state, reset=reset[t].to(torch.uint8), reset_hx=hx)
        outputs.append(output)
    found = [[torch.stack(outputs), *flat(step.hx(state))]]
    output, final = module(x, reset=reset, reset_hx=hx)
    found.append([output, *flat(final)])
    for got, expected in zip(*found, strict=True):
        close(got, expected)
    leaves = [x, *start, *module.parameters()]
    grads = [torch.autograd.grad(sum((r * r.cos()).sum() for r in results), leaves) for results in found]
    for got, expected in zip(*grads, strict=True):
        close(got, expected, 1e-10)  # sums over steps in another order


@pytest.mark.parametrize("network", NETWORKS)
def test_zoneout_of_cells_and_steppers(network):
    """In evaluation a cell is the module's step; in training each unit has its old value or the cell's new one."""
    module = module_of(network, 1, zoneout=(0.2, 0.6) if network == "LSTM" else 0.2)
    cell = getattr(ln, network + "Cell")(I, H, dtype=torch.float64, zoneout=module.zoneout)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in module.state_dict().items()})
    x, state = torch.randn(T, 400, I, dtype=torch.float64), None
    output, _ = module.eval()(x)
    for t in range(T):
        state = cell.eval()(x[t], state)
        close(flat(state)[0], output[t])
    plain = getattr(ln, network + "Cell")(I, H, dtype=torch.float64)
    plain.load_state_dict(cell.state_dict())
    new, shares = flat(plain(x[0], state)), (0.2, 0.6)
    with torch.no_grad():
        step = module.train().stepper()
        found = [flat(cell.train()(x[0], state)), step(x[0], [flat(state)])[1][0]]
    for drawn in found:
        for old, fresh, got, share in zip(flat(state), new, drawn, shares, strict=False):
            kept = got == old
            close(torch.where(kept, fresh, got), fresh)
            assert abs(kept.double().mean() - share) < 5 * np.sqrt(share * (1 - share) / kept.numel()), (
                "five deviations"
            )


@pytest.mark.parametrize("network", NETWORKS)
def test_drop_connect_is_a_parametrization(network):
    """docs/formulas.md: dropout of the recurrent weights, as Haste has it; one mask for a call."""
    module, plain = module_of(network, 1), module_of(network, 1)
    torch.nn.utils.parametrize.register_parametrization(module, "weight_hh_l0", torch.nn.Dropout(0.3))
    x = torch.randn(T, B, I, dtype=torch.float64)
    torch.manual_seed(2)
    output, _ = module(x)
    torch.manual_seed(2)
    with torch.no_grad():
        plain.weight_hh_l0.copy_(torch.nn.functional.dropout(plain.weight_hh_l0, 0.3))
    assert torch.equal(output, plain(x)[0])
    assert not torch.equal(output, module(x)[0])


# --- reset ---


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_reset_is_bool_or_numbers_that_are_0_or_1(network, dtype):
    module, x = module_of(network, bidirectional=True), torch.randn(T, B, I, dtype=torch.float64)
    reset = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0], [1, 0, 1]])
    expected, last = module(x, reset=reset.bool())
    output, final = module(x, reset=reset.to(dtype))
    assert torch.equal(output, expected)
    assert all(map(torch.equal, flat(final), flat(last)))
    parameters = {name: torch.tensor(a) for name, a in arrays_of(module, 0).items()}
    run = getattr(ln.functional, network.lower())
    assert torch.equal(
        run(x, None, parameters, reset=reset.to(dtype))[0], run(x, None, parameters, reset=reset.bool())[0]
    )


@pytest.mark.parametrize("packed", [False, True])
def test_a_square_reset_is_in_the_order_of_the_input(packed):
    """T = B: the shape does not tell which is which."""
    time_first, batch_first = module_of("GRU"), module_of("GRU", batch_first=True)
    x, reset = torch.randn(T, T, I, dtype=torch.float64), torch.rand(T, T) < 0.4
    expected = time_first(x, reset=reset)[0]
    if packed:
        whole = pack_padded_sequence(x, torch.full((T,), T))
        found = pad_packed_sequence(batch_first(whole, reset=reset.T)[0])[0]
    else:
        found = batch_first(x.transpose(0, 1), reset=reset.T)[0].transpose(0, 1)
    assert torch.equal(found, expected)


def test_a_reset_of_another_order_is_refused():
    x = torch.randn(2, 5, I, dtype=torch.float64)
    for batch_first, expected in (
        (True, r"\[2, 5\] \(batch first, as the input\), got \[5, 2\]"),
        (False, r"\[2, 5\], got"),
    ):
        with pytest.raises(RuntimeError, match=expected):
            module_of("RNN", batch_first=batch_first)(x, reset=torch.zeros(5, 2))


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_reset_without_a_batch(batch_first):
    module = module_of("LSTM", batch_first=batch_first)
    x, reset = torch.randn(T, I, dtype=torch.float64), torch.tensor([False, False, True, False])
    start = tuple(torch.randn(2, H, dtype=torch.float64) for _ in "hc")
    expected = torch.cat([module(x[:2])[0], module(x[2:], start)[0]])
    close(module(x, reset=reset, reset_hx=start)[0], expected)


@pytest.mark.parametrize("norm", ["layer", None, "batch"])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_restart_is_a_new_sequence_with_that_initial_state(network, norm):
    """One learned state for all rows, with its gradient; batch norm by its population, which counts steps from the
    row's beginning, and has one row here."""
    module = module_of(network, norm=ln.BatchNormOverTime(max_steps=1) if norm == "batch" else norm).eval()
    x = torch.randn(T, B, I, dtype=torch.float64, requires_grad=True)
    start = [torch.randn(2, 1, H, dtype=torch.float64, requires_grad=True) for _ in module._state_names]
    hx, whole = (as_hx(part) for part in (start, [s.expand(-1, B, -1) for s in start]))
    reset = torch.zeros(T, B)
    reset[2] = 1
    first, (second, final) = module(x[:2])[0], module(x[2:], whole)
    found, last = module(x, reset=reset, reset_hx=hx)
    both = ([torch.cat([first, second]), *flat(final)], [found, *flat(last)])
    grads = [torch.autograd.grad(sum((r * r.cos()).sum() for r in results), [x, *start]) for results in both]
    for expected, got in ((*pair,) for kind in (both, grads) for pair in zip(*kind, strict=True)):
        close(got.detach(), expected.detach(), 1e-10)  # sums over rows in another order


@pytest.mark.parametrize("network", NETWORKS)
def test_a_cells_reset(network):
    cell = getattr(ln, network + "Cell")(I, H, dtype=torch.float64)
    x = torch.randn(B, I, dtype=torch.float64)
    hx, start = ([torch.randn(rows, H, dtype=torch.float64) for _ in cell._state_names] for rows in (B, 1))
    state, restart = (as_hx(part) for part in (hx, start))
    for step in (cell, cell.stepper()):
        for given, new in ((None, [torch.zeros(1, H, dtype=torch.float64)] * len(hx)), (restart, start)):
            got = flat(step(x, state, reset=torch.tensor([0, 1, 0]), reset_hx=given))
            from_new, kept = flat(cell(x[1:2], as_hx(new))), flat(cell(x, state))
            for part, fresh, old in zip(got, from_new, kept, strict=True):
                close(part, torch.stack([old[0], fresh[0], old[2]]))
        row = as_hx([s[0] for s in hx])
        one = flat(step(x[0], row, reset=torch.tensor(True)))
        for part, fresh in zip(one, flat(cell(x[0])), strict=True):
            close(part, fresh)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m, x: m(x, reset_hx=torch.zeros(2, 1, H)), ValueError, "GRU: reset_hx .* needs reset, got None"),
        (
            lambda m, x: m(x, reset=MASK, reset_hx=torch.zeros(2, 2, H)),
            RuntimeError,
            r"h of reset_hx of size \(2, 3, 3\)",
        ),
        (lambda m, x: m(x, reset=MASK, reset_hx=(x, x)), TypeError, "expected reset_hx to be a Tensor, got tuple"),
        (lambda m, x: m(x, reset=MASK * 2), RuntimeError, "GRU: expected reset to be bool, or to hold only 0 and 1"),
        (lambda m, x: m(x, reset=MASK * float("nan")), RuntimeError, "only 0 and 1, got torch.float32 with nan"),
        (lambda m, x: m.stepper()(x[0], reset=MASK), RuntimeError, r"GRU.stepper: expected reset of shape \[3\]"),
        (lambda m, x: m.stepper()(x[0], reset_hx=[[x], [x]]), ValueError, "GRU.stepper: reset_hx .* needs reset"),
        (lambda m, x: m.stepper()(x[0], reset=MASK[0], reset_hx=(x, x)), TypeError, "expected reset_hx to be a Tensor"),
        (
            lambda m, x: m.stepper()(x[0], reset=MASK[0], reset_hx=[[x[0]], [x[0]]]),
            RuntimeError,
            r"GRU.stepper: expected h of reset_hx of size \[3, 3\], or with 1 instead of the batch, got \[3, 2\]",
        ),
        (lambda m, x: ln.GRUCell(I, H)(x[0], reset=[True]), TypeError, "GRUCell: expected reset to be a Tensor"),
        (lambda m, x: ln.GRUCell(I, H)(x[0], reset_hx=x), ValueError, "GRUCell: reset_hx .* needs reset"),
        (lambda m, x: ln.LSTM(I, H, zoneout=1.5), ValueError, r"\[0, 1\] or a pair of them for \(h, c\), got 1.5"),
        (lambda m, x: ln.LSTM(I, H, zoneout=(0.1, True)), ValueError, r"got \(0.1, True\)"),
        (lambda m, x: ln.GRU(I, H, zoneout=(0.1, 0.1)), ValueError, r"number in range \[0, 1\], got \(0.1, 0.1\)"),
        (lambda m, x: ln.RNN(I, H, recurrent_dropout=-1), ValueError, "recurrent_dropout should be a number in range"),
        (lambda m, x: ln.RNN(I, H, variational=1), TypeError, "variational should be of type bool, got: int"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call(ln.GRU(I, H, 2), torch.zeros(T, B, I))


MASK = torch.ones(T, B)


def test_compiles_and_refuses_wrong_masks_when_run():
    torch._dynamo.reset()
    module = module_of("LSTM", 1, zoneout=0.2).eval()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    x, reset = torch.randn(2, B, I, dtype=torch.float64), torch.tensor([[0, 0, 0], [1, 0, 1]])
    start = tuple(torch.randn(1, 1, H, dtype=torch.float64) for _ in "hc")
    expected = module(x, reset=reset, reset_hx=start)
    found = compiled(x, reset=reset, reset_hx=start)
    close(found[0], expected[0])
    with pytest.raises(RuntimeError, match="LSTM: expected reset to be bool"):
        compiled(x, reset=reset * 2, reset_hx=start)


def test_16_bits_are_computed_in_float32():
    """The state is rounded at the end, not at every step: as the sequence in one call."""
    module, x = ln.LSTM(I, 64, dtype=torch.bfloat16), torch.randn(30, B, I, dtype=torch.bfloat16)
    nowhere, zeros = torch.zeros(30, B, dtype=torch.bool), torch.zeros(1, B, 64, dtype=torch.bfloat16)
    more = {"reset": nowhere, "reset_hx": (zeros, zeros)}
    assert torch.equal(module(x, **more)[0], module(x)[0])
    with ln.backends.use("reference"):
        output, _ = module(x, **more)
    wide = ln.LSTM(I, 64)
    wide.load_state_dict(module.state_dict())
    exact = wide(x.float())[0]
    # half a unit in the last place of bfloat16, and float32's errors; a state that is rounded at every step fails
    assert ((output.float() - exact).abs() <= exact.abs() * 2**-8 + 1e-5).all()
    assert output.dtype == torch.bfloat16


def test_second_derivatives():
    module = ln.GRU(1, 2, dtype=torch.float64, zoneout=0.3, recurrent_dropout=0.5).eval()
    x = torch.randn(2, 1, 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: module(x)[0], x, fast_mode=True)


# --- forget_bias ---

GATE = slice(H, 2 * H)


@pytest.mark.parametrize("norm", ["layer", "rms", "batch", "weight", None])
@pytest.mark.parametrize(("network", "name"), [(n, name) for name in PRESETS for n in PRESETS[name] if n != "RNN"])
def test_forget_bias_is_what_the_gate_starts_with(network, name, norm):
    """With weights and gains of 0 a normalisation gives its bias alone, and the gate is the derivative of the new state
    by the old one, of c in an LSTM."""
    module = getattr(ln, network)(I, H, 2, norm=norm, formula=name, forget_bias=1.5, dtype=torch.float64).eval()
    places = module.recurrence.places
    inside = {place.inside for place in places if place.gain or places.both.gain}
    inside -= {name for place in places for name in place.outside}
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            kind = key.partition("_l")[0]
            is_weight = "weight" in key and not key.endswith("original1")  # under weight norm the directions
            if is_weight or kind in inside or kind in ("gain", "gain_ih", "gain_hh"):
                parameter.zero_()
    for suffix in module._suffixes:
        biases = [p for key, p in module.named_parameters() if "bias" in key and "bias_c" not in key and suffix in key]
        assert (sum(biases)[GATE] == 1.5).all()
    if module.recurrence.formula.cell == "carry":  # the state is normalised: no derivative tells the gate
        return
    x = torch.zeros(1, 1, I, dtype=torch.float64)
    hx = [torch.randn(2, 1, H, dtype=torch.float64, requires_grad=True) for _ in module._state_names]
    _, final = module(x, as_hx(hx))
    (derivative,) = torch.autograd.grad(flat(final)[-1].sum(), hx[-1])
    total = 1.5 + module.recurrence.formula.forget_bias
    close(derivative, np.full((2, 1, H), 1 / (1 + np.exp(-total))))


@pytest.mark.parametrize("make", [ln.LSTM, ln.GRU, ln.LSTMCell, ln.GRUCell])
def test_forget_bias_stays(make):
    torch.manual_seed(0)
    module = make(I, H, norm=None, forget_bias=2)
    torch.manual_seed(0)
    plain = make(I, H, norm=None)
    assert repr(module) == repr(plain)[:-1] + ", forget_bias=2)"
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        copied.reset_parameters()
        biases = [p[GATE] for name, p in copied.named_parameters() if "bias" in name]
        assert torch.equal(sum(biases), torch.full((H,), 2.0))
    for (name, mine), theirs in zip(module.named_parameters(), plain.parameters(), strict=True):
        same = mine == theirs
        assert same.all() if "weight" in name else (same[:H].all() and same[2 * H :].all()), "nothing else is changed"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ln.LSTM(I, H, bias=False, forget_bias=1), ValueError, "needs a bias in the gates, got bias=False"),
        (lambda: ln.GRUCell(I, H, bias=False, forget_bias=1), ValueError, "needs a bias in the gates"),
        (
            lambda: ln.LSTM(I, H, formula=ln.Formula(gate_bias=False), forget_bias=1),
            ValueError,
            "the formula adds none",
        ),
        (lambda: ln.LSTM(I, H, forget_bias=float("nan")), ValueError, "finite number or None, got nan"),
        (lambda: ln.LSTM(I, H, forget_bias=True), ValueError, "finite number or None, got True"),
        (lambda: ln.RNN(I, H, forget_bias=1), TypeError, "forget_bias"),
    ],
)
def test_where_there_is_no_forget_bias(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_repr_says_what_is_between_steps():
    module = ln.LSTM(I, H, 2, dropout=0.5, variational=True, recurrent_dropout=0.1, zoneout=(0.1, 0.2), norm=None)
    expected = "num_layers=2, dropout=0.5, recurrent_dropout=0.1, variational=True, norm=None, zoneout=(0.1, 0.2)"
    assert repr(module) == f"LSTM(2, 3, {expected})"
