"""What torch expects of an op: gradients of every order, compile, export, torch.func, autocast, opcheck."""

import itertools

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import functional_call, grad, hessian, jvp, vmap

import layernorm as ln
from layernorm.equations.arguments import RecurrentArguments
from layernorm.formula import PRESETS, Recurrence, resolve
from support.turns import one_in

NETWORKS = {"RNN": ln.functional.rnn, "LSTM": ln.functional.lstm, "GRU": ln.functional.gru}
CASES = [(network, formula) for formula, of in PRESETS.items() for network in of]
CASES += [("RNN", ln.Formula("split", cell=None)), ("GRU", ln.Formula("sum", cell=None, bias_inside=True))]
CASES += [("LSTM", ln.Formula("sum", "per_gate", "carry", bias_inside=True, eps=0.1, eps_on="deviation"))]
I, H, T, B = 2, 3, 3, 2  # noqa: E741
_SHORT = [*zip(NETWORKS, itertools.cycle(ln.backends.available()))]
ENGINES = [
    pytest.param(*pair, marks=[] if pair in _SHORT else pytest.mark.long)
    for pair in itertools.product(NETWORKS, ln.backends.available())
]
"""Every network on every engine; without the long ones each network on one: an op's registration is one for all."""


def parameters(network, formula, norm="layer", dtype=torch.float64):
    shapes = Recurrence(network, resolve(formula, network), norm).parameter_shapes(I, H)
    g = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, dtype=dtype, generator=g).requires_grad_() for name, shape in shapes.items()}


def flat(network, formula, norm, names, **more):
    """The op as a function of tensors only."""

    def call(x, *tensors):
        states = 2 if network == "LSTM" else 1
        hx = tensors[:2] if states == 2 else tensors[0]
        p = dict(zip(names, tensors[states:], strict=True))
        output, final = NETWORKS[network](x, hx, p, norm=norm, formula=formula, **more)
        return (output, *final) if states == 2 else (output, final)

    return call


def tensors(network, formula, norm="layer"):
    p = parameters(network, formula, norm)
    x = torch.randn(T, B, I, dtype=torch.float64, requires_grad=True)
    state = [torch.randn(B, H, dtype=torch.float64, requires_grad=True) for _ in range(2 if network == "LSTM" else 1)]
    return list(p), (x, *state, *p.values())


@pytest.mark.parametrize(
    ("network", "formula", "norm"), one_in(3, [(*case, norm) for case in CASES for norm in ("layer", "rms")]), ids=str
)
def test_gradcheck_and_gradgradcheck(network, formula, norm):
    names, inputs = tensors(network, formula, norm)
    call = flat(network, formula, norm, names, lengths=torch.tensor([3, 2]), reset=torch.eye(T, B, dtype=torch.bool))
    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


@pytest.mark.parametrize("op", ["layer", "rms"])
def test_gradcheck_of_the_norms(op):
    x, w, b = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((4, 2, 3), (2, 3), (2, 3)))
    if op == "layer":
        call, inputs = lambda *a: ln.functional.layer_norm(a[0], (2, 3), *a[1:]), (x, w, b)
    else:
        call, inputs = lambda *a: ln.functional.rms_norm(a[0], (2, 3), *a[1:]), (x, w)
    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs)


def test_second_derivatives_of_a_weight_norm():
    """By the parametrization that docs/limits.md has in place of torch's weight norm, whose own are wrong."""

    class WeightNorm(torch.nn.Module):
        def forward(self, g, v):
            return g * v / v.norm(dim=1, keepdim=True)

        def right_inverse(self, weight):
            return weight.norm(dim=1, keepdim=True), weight

    network = ln.RNN(I, 2, norm=None, dtype=torch.float64)
    for name in ("weight_ih_l0", "weight_hh_l0"):
        torch.nn.utils.parametrize.register_parametrization(network, name, WeightNorm())
    names, values = zip(*network.named_parameters(), strict=True)
    x = torch.randn(T, B, I, dtype=torch.float64)

    def call(*parameters):
        return torch.func.functional_call(network, dict(zip(names, parameters, strict=True)), (x,))[0]

    assert torch.autograd.gradcheck(call, values)
    assert torch.autograd.gradgradcheck(call, values)


def test_third_derivative():
    x = torch.randn(1, 4, dtype=torch.float64, requires_grad=True)

    def nth(function, n):
        y = function(x).pow(3).sum()
        for _ in range(n):
            (y,) = torch.autograd.grad(y, x, create_graph=True)
            y = y.pow(2).sum()
        return y

    def plain(x):
        u = x - x.mean(-1, keepdim=True)
        return u / (u.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()

    torch.testing.assert_close(nth(lambda x: ln.functional.layer_norm(x, (4,)), 3), nth(plain, 3), rtol=1e-9, atol=0)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of opcheck's own, in torch 2.15
@pytest.mark.parametrize(("network", "backend"), ENGINES)
def test_opcheck_recurrent(network, backend):
    p = parameters(network, "paper")
    recurrence = Recurrence(network, resolve("paper", network)).encoded
    state = [torch.randn(B, H, dtype=torch.float64, requires_grad=True) for _ in range(2 if network == "LSTM" else 1)]
    x = torch.randn(T, B, I, dtype=torch.float64, requires_grad=True)
    lengths, reset, unchanged = torch.tensor([3, 1]), torch.eye(T, B, dtype=torch.bool), ([], None, None, None)
    drop, share = torch.rand(B, H, dtype=torch.float64), torch.rand(T, B, H, dtype=torch.float64)
    changes = [s.detach().clone().requires_grad_() for s in state], drop, share, None
    for chosen, *rest in (
        (backend, *unchanged, None, None, False),
        (None, *unchanged, lengths, reset, True),
        (backend, *changes, lengths, reset, True),
    ):
        args = (x, state, list(p.values()), recurrence, *rest, None, [], False, chosen)
        torch.library.opcheck(torch.ops.layernorm.recurrent.default, args)
    state, params = [s.detach() for s in state], [q.detach() for q in p.values()]
    n = 1 + len(state)
    for steps in (T, 0):
        args = (x.detach()[:steps], state, params, recurrence, *unchanged, None, None, False, None, [], False)
        torch.library.opcheck(torch.ops.layernorm.recurrent_forward.default, (*args, backend))
        found = torch.ops.layernorm.recurrent_forward(*args, backend)
        args = (*args, found[n:], found[0], found[1:n], backend)
        torch.library.opcheck(torch.ops.layernorm.recurrent_backward.default, args)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of opcheck's own, in torch 2.15
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("backend", [name for name in ln.backends.available() if name != "compiled"])
def test_opcheck_batch_norm(network, backend):
    """With the moments of the batch, which are results, and with those that it is given."""
    recurrence = Recurrence(network, resolve("paper", network), norm="batch")
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, requires_grad=True)  # noqa: E731
    x, state = draw(T, 3, I), [draw(3, H) for _ in recurrence.state_names]
    params = [draw(*shape) for shape in recurrence.parameter_shapes(I, H).values()]
    lengths, unchanged = torch.tensor([3, 1, 2]), ([], None, None, None)
    a = RecurrentArguments(x, state, params, recurrence)
    given = [torch.rand_like(m) for m in a.empty_moments()]
    for population, reverse, mask, count_padding in (([], False, lengths, True), (given, True, None, False)):
        kind = (recurrence.encoded, *unchanged, mask, None, reverse, None, population, count_padding)
        torch.library.opcheck(torch.ops.layernorm.recurrent.default, (x, state, params, *kind, backend))
        args = (x.detach(), [s.detach() for s in state], [p.detach() for p in params], *kind)
        torch.library.opcheck(torch.ops.layernorm.recurrent_forward.default, (*args, backend))
        found, n = torch.ops.layernorm.recurrent_forward(*args, backend), 1 + len(state)
        args = (*args, found[n:], found[0], found[1:n], backend)
        torch.library.opcheck(torch.ops.layernorm.recurrent_backward.default, args)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of opcheck's own, in torch 2.15
@pytest.mark.parametrize(("place", "backend"), one_in(5, itertools.product(range(4), ln.backends.available())))
def test_opcheck_normalize(place, backend):
    dtype = torch.bfloat16 if backend == "native" else torch.float32
    x, residual = (torch.randn(4, 2, 3, dtype=dtype, requires_grad=True) for _ in range(2))
    w, b = (torch.randn(2, 3, requires_grad=True) for _ in range(2))
    args = (
        (x, [2, 3], w, b, 1e-5, "layer", None),
        (x, [3], None, None, 1e-5, "layer", None),
        (x, [2, 3], w, None, 1e-5, "rms", None),
        (x, [2, 3], w, b, 1e-5, "layer", residual),
    )[place]
    for chosen in (backend, None):
        torch.library.opcheck(torch.ops.layernorm.normalize.default, (*args, chosen))
    detached = tuple(t.detach() if isinstance(t, torch.Tensor) else t for t in args)
    torch.library.opcheck(torch.ops.layernorm.normalize_forward.default, (*detached, backend))
    y, *saved = torch.ops.layernorm.normalize_forward(*detached, backend)
    total = saved.pop(0) if args[-1] is not None else None
    given = args[0] if total is None else total
    back = (given, *args[1:6], saved, torch.randn_like(y), total, backend)
    back = tuple(t.detach() if isinstance(t, torch.Tensor) else t for t in back)
    torch.library.opcheck(torch.ops.layernorm.normalize_backward.default, back)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("call", ["layer", "rms", *NETWORKS])
def test_outputs_may_be_changed_in_place(call, dtype):
    """As torch's own may, by ReLU(inplace=True) or Dropout(inplace=True) behind a norm."""
    p = parameters(call, "paper", dtype=dtype) if call in NETWORKS else {}
    x = torch.randn(T, B, I, dtype=dtype, requires_grad=True)

    def outputs():
        if call in NETWORKS:
            output, final = NETWORKS[call](x, None, p, reverse=True)
            return [output, *(final if call == "LSTM" else [final])]
        return [ln.functional.layer_norm(x, (I,)) if call == "layer" else ln.functional.rms_norm(x, (I,))]

    expected = torch.autograd.grad(sum((2 * y).relu().sum() for y in outputs()), [x, *p.values()])
    found = torch.autograd.grad(sum(y.mul_(2).relu_().sum() for y in outputs()), [x, *p.values()])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("make", [ln.LSTM, *(pytest.param(make, marks=pytest.mark.long) for make in (ln.GRU, ln.RNN))])
def test_compile_in_one_graph_for_all_lengths_and_batches(make):
    module = make(3, 4, num_layers=2, bidirectional=True)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=counter)
    compiles = []
    for steps, batch in ((5, 2), (7, 3), (9, 4)):
        x = torch.randn(steps, batch, 3)
        results = []
        for call in (module, compiled):
            leaf = x.clone().requires_grad_()
            output, _ = call(leaf)
            output.square().sum().backward()
            results.append([output, leaf.grad, *(p.grad for p in module.parameters())])
            module.zero_grad()
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        compiles.append(counter.frame_count)
    assert compiles == compiles[:1] * 3, "no other graph for another T or B"


def test_compile_of_a_functional_with_lengths():
    torch._dynamo.reset()
    p = {name: t.detach().float() for name, t in parameters("GRU", "paper").items()}
    call = torch.compile(
        lambda x, lengths: ln.functional.gru(x, None, p, lengths=lengths)[0], fullgraph=True, backend="aot_eager"
    )
    x, lengths = torch.randn(5, 2, I), torch.tensor([5, 2])
    torch.testing.assert_close(call(x, lengths), ln.functional.gru(x, None, p, lengths=lengths)[0])
    norm = torch.compile(ln.LayerNorm(4), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(norm(x := torch.randn(2, 4)), ln.LayerNorm(4)(x))


def test_inductor_compiles_it():
    torch._dynamo.reset()
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), ln.LayerNorm(4))
    x = torch.randn(5, 3)
    torch.testing.assert_close(torch.compile(module, fullgraph=True)(x), module(x))


@pytest.mark.parametrize("make", [ln.LSTM, ln.GRU, ln.RNN])
def test_vmap_over_an_ensemble(make):
    modules = [make(3, 4).double() for _ in range(3)]
    stacked = {
        name: torch.stack([dict(m.named_parameters())[name].detach() for m in modules])
        for name, _ in modules[0].named_parameters()
    }
    x = torch.randn(5, 2, 3, dtype=torch.float64)

    def loss(p, x):
        return functional_call(modules[0], p, (x,))[0].square().sum()

    outputs = vmap(lambda p: functional_call(modules[0], p, (x,))[0])(stacked)
    grads = vmap(grad(loss), in_dims=(0, None))(stacked, x)
    for k, module in enumerate(modules):
        y, _ = module(x)
        torch.testing.assert_close(outputs[k], y, rtol=1e-12, atol=1e-14)
        y.square().sum().backward()
        for name, p in module.named_parameters():
            torch.testing.assert_close(grads[name][k], p.grad, rtol=1e-10, atol=1e-12)


def test_torch_func_of_layer_norm():
    x = torch.randn(3, 4, dtype=torch.float64)
    v = torch.randn_like(x)
    ours, theirs = ln.LayerNorm(4).double(), torch.nn.LayerNorm(4).double()
    for a, b in zip(jvp(ours, (x,), (v,)), jvp(theirs, (x,), (v,)), strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(hessian(lambda x: ours(x).pow(3).sum())(x), hessian(lambda x: theirs(x).pow(3).sum())(x))


def test_autocast():
    torch.manual_seed(0)
    module, x = ln.LSTM(3, 4, 2), torch.randn(5, 2, 3, requires_grad=True)
    exact = module.bfloat16()(x.bfloat16())[0]  # autocast computes the same: the weights rounded, the rest in float32
    module.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, (h, c) = module(x)
        normed = ln.LayerNorm(4)(y)
    assert y.dtype == h.dtype == c.dtype == normed.dtype == torch.bfloat16
    torch.testing.assert_close(y, exact, rtol=0, atol=0)
    y.float().sum().backward()
    assert x.grad.dtype == torch.float32
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in module.parameters())


def test_autocast_leaves_float64_and_integers():
    """As torch does: nobody's double precision is lost, and indices are not taken for numbers."""
    module, x = ln.LSTM(3, 4).double(), torch.randn(5, 2, 3, dtype=torch.float64)
    expected = module(x)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module(x)[0], expected)
        with pytest.raises(RuntimeError, match=r"floating-point type, got torch\.int64"):
            ln.LSTM(3, 4)(x.long())
