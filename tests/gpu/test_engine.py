"""The GPU engine behind the public ops: chosen where it should be, differentiated, compiled, and its errors."""

from contextvars import ContextVar

import pytest
import torch

import layernorm as ln
from rounding import assert_as_near_as_the_reference

gpu = pytest.importorskip("layernorm.gpu", exc_type=ImportError)

on_gpu = pytest.mark.skipif(gpu.INTERPRETED, reason="needs a GPU")
FLOATS = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def asked_for():
    with ln.backends.use("triton"):
        yield


def problem(device, M=6, N=20, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    shapes = [(M, N), (M, N), (N,), (N,)]
    return [torch.randn(shape, generator=g).to(dtype).to(device).requires_grad_() for shape in shapes]


def test_it_is_there():
    assert "triton" in ln.backends.available()
    assert gpu.ISA.startswith("Triton ")


@pytest.mark.skipif(not gpu.INTERPRETED, reason="about the interpreter")
def test_the_interpreter_is_never_chosen_by_itself(monkeypatch):
    """Not on the CPU, and not where the CPU engine is missing."""
    x = torch.zeros(2, 3)
    assert ln.backends.choose("normalize", x) == "triton"
    monkeypatch.setattr(ln.backends, "_asked_for", ContextVar("nothing", default=None))
    assert ln.backends.choose("normalize", x) != "triton"
    monkeypatch.delitem(ln.backends.ENGINES, "native")
    ln.backends._first.cache_clear()
    assert ln.backends.choose("normalize", x) == "reference"
    ln.backends._first.cache_clear()


@on_gpu
def test_a_gpu_tensor_takes_it_only_when_asked(monkeypatch):
    monkeypatch.setattr(ln.backends, "_asked_for", ContextVar("nothing", default=None))
    for switch, taken in (("0", "reference"), ("1", "triton")):
        monkeypatch.setenv("LAYERNORM_GPU", switch)
        ln.backends.switched_on.cache_clear()
        ln.backends._first.cache_clear()
        assert ln.backends.choose("normalize", torch.zeros(1, device="cuda")) == taken
        assert ln.backends.choose("normalize", torch.zeros(1, device="cuda").double()) == "reference"
    monkeypatch.undo()
    ln.backends.switched_on.cache_clear()
    ln.backends._first.cache_clear()


def test_what_it_has_no_kernel_for_is_an_error(device):
    with pytest.raises(RuntimeError, match=r"backend 'triton' has no kernel for normalize on .* in torch\.float64"):
        ln.functional.layer_norm(torch.zeros(2, 3, device=device).double(), (3,))
    with pytest.raises(RuntimeError, match=r"backend 'triton' has no kernel for recurrent on .* in torch\.float64"):
        ln.LSTM(3, 4, device=device).double()(torch.zeros(1, 1, 3, device=device).double())


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_ops_and_their_gradients(dtype, device):
    """Against the reference engine: both round float64 or float32 once or a few times."""
    x, residual, weight, bias = problem(device, dtype=dtype)

    def results():
        y, total = ln.functional.add_layer_norm(x, residual, (20,), weight, bias)
        root, _ = ln.functional.add_rms_norm(x, residual, (20,), weight)
        plain = ln.functional.layer_norm(x, (20,), weight, bias)
        loss = sum((t.float() * t.float().cos()).sum() for t in (y, total, root, plain))
        return [y, total, root, plain, *torch.autograd.grad(loss, (x, residual, weight, bias))]

    got = results()
    with ln.backends.use("reference"):
        expected = results()
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        size = b.abs().max().item()
        assert (a - b).abs().max().item() <= (8 if dtype == torch.float32 else 4) * torch.finfo(dtype).eps * size


def test_one_of_the_two_results_is_used(device):
    x, residual, weight, bias = problem(device)
    for k, inputs in ((0, (x, residual, weight, bias)), (1, (x, residual))):
        used = ln.functional.add_layer_norm(x, residual, (20,), weight, bias)[k]
        got = torch.autograd.grad(used, inputs, torch.ones_like(used))
        with ln.backends.use("reference"):
            used = ln.functional.add_layer_norm(x, residual, (20,), weight, bias)[k]
            expected = torch.autograd.grad(used, inputs, torch.ones_like(used))
        torch.testing.assert_close(got, expected)


def test_second_derivatives_are_the_references(device):
    def second(x, weight, bias):
        y = ln.functional.layer_norm(x, (20,), weight, bias)
        (dx,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
        return torch.autograd.grad((dx**2).sum(), (x, weight))

    x, _, weight, bias = problem(device)
    assert_as_near_as_the_reference(second, x, weight, bias)


def test_torch_compile_sees_one_op(device):
    """Forward and backward in whole graphs, for more than one number of rows."""
    module = ln.LayerNorm(20, device=device)
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for M in (6, 9):
        x = problem(device, M)[0]
        y, z = compiled(x), module(x)
        assert torch.equal(y, z)
        dy = torch.randn_like(y)
        for a, b in zip(*(torch.autograd.grad(t, (x, *module.parameters()), dy) for t in (y, z)), strict=True):
            assert torch.equal(a, b)
    program = torch.export.export(module, (problem(device)[0],), strict=True)
    assert len(program.graph.find_nodes(op="call_function", target=torch.ops.layernorm.normalize.default)) == 1


def test_opcheck(device):
    """What torch expects of an op: schema, fake, gradient, compiled gradient."""
    x, residual, weight, bias = problem(device, 4, 6)
    for args in (
        (x, [6], weight, bias, 1e-5, "layer", None),
        (x, [6], weight, None, 1e-5, "rms", None),
        (x, [6], None, None, 1e-5, "layer", residual),
    ):
        torch.library.opcheck(torch.ops.layernorm.normalize.default, (*args, "triton"))
        y, *saved = (t.detach() for t in torch.ops.layernorm.normalize_forward(*args, "triton"))
        total = x if args[-1] is None else saved.pop(0)
        back = (total, *args[1:-1], saved, torch.randn_like(y), None, "triton")
        back = tuple(t.detach() if isinstance(t, torch.Tensor) else t for t in back)
        torch.library.opcheck(torch.ops.layernorm.normalize_backward.default, back)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (2, 0, 5)])
def test_nothing_to_normalise(shape, device):
    x = torch.zeros(shape, device=device, requires_grad=True)
    weight = torch.ones(shape[-1], device=device, requires_grad=True)
    y, total = ln.functional.add_layer_norm(x, x, shape[-1:], weight)
    assert y.shape == total.shape == shape
    dx, dweight = torch.autograd.grad(y, (x, weight), torch.zeros_like(y))
    assert dx.shape == shape
    assert not dweight.any()


def test_spoilt_saved_statistics_are_an_error(device):
    x = problem(device)[0]

    def spoil(saved):
        return saved[:3] if saved.shape == (6,) else saved

    with torch.autograd.graph.saved_tensors_hooks(spoil, lambda t: t):
        y = ln.functional.layer_norm(x, (20,))
    with pytest.raises(RuntimeError, match=r"expected saved statistics torch\.float32 \[6\], .*, got "):
        y.sum().backward()


def test_wrong_arguments_are_errors(device):
    x = torch.zeros(2, 3, device=device)
    with pytest.raises(RuntimeError, match="given normalized_shape"):
        ln.functional.layer_norm(x, (4,))
    with pytest.raises(RuntimeError, match="expected weight of shape"):
        ln.functional.layer_norm(x, (3,), torch.ones(2, device=device))


# --- Recurrent networks ---


def recurrent(network, device, **keywords):
    torch.manual_seed(0)
    module = getattr(ln, network)(5, 6, device=device, **keywords)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn(p.shape).to(device) * 0.2)
    return module


@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_a_network_as_it_is_used(network, device):
    """Two layers, two directions, packed rows: output, final state and every gradient are the reference's."""

    def results(module, x):
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 1, 3]), enforce_sorted=False)
        output, hx = module(packed)
        hx = hx if isinstance(hx, tuple) else (hx,)
        loss = sum((t * t.cos()).sum() for t in (output.data, *hx))
        return [output.data, *hx, *torch.autograd.grad(loss, (x, *module.parameters()))]

    module = recurrent(network, device, num_layers=2, bidirectional=True)
    assert_as_near_as_the_reference(results, module, torch.randn(4, 3, 5).to(device).requires_grad_())


def test_a_cell_and_projections(device):
    def results(cell, module, x):
        h, c = cell(x[0])
        output, hx = module(x)
        loss = sum((t * t.cos()).sum() for t in (h, c, output, *hx))
        return [h, c, output, *hx, *torch.autograd.grad(loss, (*cell.parameters(), *module.parameters()))]

    cell, module = recurrent("LSTMCell", device), recurrent("LSTM", device, proj_size=2)
    assert_as_near_as_the_reference(results, cell, module, torch.randn(3, 2, 5).to(device))


def test_second_derivatives_of_a_network_are_the_references(device):
    def second(module, x):
        (dx,) = torch.autograd.grad((module(x)[0] ** 3).sum(), x, create_graph=True)
        return torch.autograd.grad((dx**2).sum(), (x, module.weight_hh_l0))

    module = recurrent("GRU", device)
    assert_as_near_as_the_reference(second, module, torch.randn(2, 2, 5).to(device).requires_grad_())


def test_a_compiled_network_is_one_graph(device):
    module = recurrent("LSTM", device)
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for T, B in ((3, 2), (2, 4)):
        x = torch.randn(T, B, 5).to(device)
        y, z = compiled(x)[0], module(x)[0]
        assert torch.equal(y, z)
        for a, b in zip(*(torch.autograd.grad(t.sum(), tuple(module.parameters())) for t in (y, z)), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype, device):
    module, x = recurrent("GRU", device), torch.randn(3, 2, 5).to(device)
    with torch.autocast(device, dtype):
        output, _ = module(x)
    assert output.dtype == dtype
    output.sum().backward()
    assert module.weight_hh_l0.grad.dtype == torch.float32
    torch.testing.assert_close(output.float(), module(x)[0], rtol=0.05, atol=0.05)


def test_a_backward_under_autocast_is_its_forwards(device):
    """Which was in float32: its products are no user's own, which autocast would round."""
    module, x = recurrent("LSTM", device), torch.randn(3, 2, 5).to(device)
    expected = torch.autograd.grad(module(x)[0].sum(), tuple(module.parameters()))
    output = module(x)[0].sum()
    with torch.autocast(device, torch.bfloat16):
        found = torch.autograd.grad(output, tuple(module.parameters()))
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_results_can_be_changed_in_place(bidirectional, device):
    module, x = recurrent("LSTM", device, bidirectional=bidirectional), torch.randn(3, 2, 5).to(device).requires_grad_()
    output, (h, c) = module(x)
    (output.mul_(2).sum() + h.mul_(3).sum() + c.mul_(4).sum()).backward()
    twice = x.grad.clone()
    output, (h, c) = module(x)
    (expected,) = torch.autograd.grad(2 * output.sum() + 3 * h.sum() + 4 * c.sum(), x)
    torch.testing.assert_close(twice, expected)


def test_opcheck_of_the_recurrent_ops(device):
    for network in ("LSTM", "GRU"):
        module = recurrent(network, device)
        params = [p.detach().requires_grad_() for p in module.parameters()]
        recurrence, names = ln.functional._recurrent._encode(network, "layer", "paper", None, True, False, "tanh")
        assert len(names) == len(params)
        x = torch.randn(3, 2, 5).to(device).requires_grad_()
        state = [torch.randn(2, 6).to(device) for _ in range(2 if network == "LSTM" else 1)]
        params = [
            dict(zip([n.removesuffix("_l0") for n, _ in module.named_parameters()], params, strict=True))[n]
            for n in names
        ]
        args = (x, state, params, torch.tensor([3, 2]).to(device), None, recurrence, False, "triton")
        torch.library.opcheck(torch.ops.layernorm.recurrent.default, args)


# --- On a GPU only: none of these has ever run ---


@on_gpu
def test_a_cuda_graph_replays_it():
    x, residual, weight, bias = (t.detach() for t in problem("cuda", 64, 512))

    def call():
        leaves = [t.requires_grad_() for t in (x, weight, bias)]
        y, _ = ln.functional.add_layer_norm(leaves[0], residual, (512,), *leaves[1:])
        return [y, *torch.autograd.grad(y, leaves, torch.ones_like(y))]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()  # compiles
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
    graph.replay()
    assert all(map(torch.equal, captured, call()))


@on_gpu
def test_a_side_stream_is_used():
    x = torch.randn(4096, 4096, device="cuda")
    expected = ln.functional.layer_norm(x * 2, (4096,))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        got = ln.functional.layer_norm(x * 2, (4096,))
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(got, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_tensors_device_is_used_and_not_the_current_one():
    x = torch.randn(4, 64, device="cuda:1")
    y = ln.functional.layer_norm(x, (64,))
    torch.testing.assert_close(y.cpu(), torch.nn.functional.layer_norm(x.cpu(), (64,)))


@on_gpu
def test_more_than_2_to_the_31_elements():
    M, N = 2**17 + 3, 2**14
    if torch.cuda.mem_get_info()[0] < 6 * 2 * M * N:
        pytest.skip("needs 26 GB of free GPU memory")
    x = torch.randn(8, N, device="cuda", dtype=torch.bfloat16).repeat(-(-M // 8), 1)[:M]
    y = ln.functional.layer_norm(x, (N,))
    assert torch.equal(y[-8:], ln.functional.layer_norm(x[-8:], (N,)))


@on_gpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("T", "B", "H"), [(32, 16, 256), (20, 128, 512), (12, 64, 1024), (40, 1, 384), (200, 9, 40)])
@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_networks_of_real_sizes(network, T, B, H, dtype):
    """Many programs at once: near float64, and ten times the same bits, since a race would move them."""
    torch.manual_seed(0)
    module, exact = (getattr(ln, network)(H, H, device="cuda", dtype=d) for d in (dtype, torch.float64))
    exact.load_state_dict(module.state_dict())
    x, d = (torch.randn(T, B, H, device="cuda", dtype=dtype) for _ in range(2))

    def results(module, x, d):
        x = x.clone().requires_grad_()
        output, _ = module(x)
        return [output.detach(), *torch.autograd.grad(output, (x, *module.parameters()), d)]

    found = results(module, x, d)
    for _ in range(9):
        assert all(map(torch.equal, results(module, x, d), found))
    with ln.backends.use("reference"):
        expected = results(exact, x.double(), d.double())
    allowed = {torch.float32: 1e-4, torch.bfloat16: 8e-2, torch.float16: 1e-2}[dtype]
    for a, b in zip(found, expected, strict=True):
        assert (a.double() - b).norm() <= allowed * b.norm()


@on_gpu
@pytest.mark.parametrize("network", ["LSTM", "GRU"])
def test_a_cuda_graph_replays_a_network(network):
    module, x = recurrent(network, "cuda"), torch.randn(6, 3, 5, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        module(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        captured, _ = module(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    with torch.no_grad():
        assert torch.equal(captured, module(x)[0])
