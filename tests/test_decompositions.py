"""`ln.decompositions`: programs of plain PyTorch operations compute what the modules do."""

import functools

import pytest
import torch

import layernorm as ln
from support.comparing import leaves
from support.networks import NETWORKS, int8
from support.processes import python
from support.repository import loaded

onnx_errors = loaded("benchmarks/onnx_errors.py")

pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning")  # torch.export's own
T, B, I, H = 3, 3, 3, 4  # noqa: E741
BATCH = torch.export.Dim("B")


def drawn(module, dtype=torch.float64):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return module.eval().to(dtype)


def plain(module, args, kwargs=None, **options):
    """The program of a module, of which every operation is PyTorch's own."""
    program = torch.export.export(module, args, kwargs, **options).run_decompositions(ln.decompositions())
    assert names_of_ops(program) <= {"aten"}
    return program.module()


def names_of_ops(program):
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    return {target.namespace for target in targets if isinstance(target, torch._ops.OpOverload)}


def assert_same(found, expected, dtype=torch.float64):
    """In float64 the same equations in another order; in float32 a few roundings of each of the steps."""
    tolerance = 1e-10 if dtype is torch.float64 else 2e-5
    torch.testing.assert_close(leaves(found), leaves(expected), rtol=tolerance, atol=tolerance)


def arguments(module, T, B):
    """Input, initial states, and lengths and reset by name."""
    x = torch.randn(T, B, I).double()
    masks = {"lengths": torch.randint(T + 1, (B,)), "reset": torch.rand(T, B) < 0.4}
    with torch.no_grad():
        return (x, module(x.flip(1))[1]), masks


def test_every_network_and_formula():
    """In one program. Two steps: one from an initial state, and one from what it left."""
    torch.manual_seed(0)
    a = onnx_errors.Arrangement(1, 1, True, I, H)
    rows = onnx_errors.rows_of(a)
    model, (x, lengths, reset) = onnx_errors.Together(rows, a).eval().double(), onnx_errors.inputs(2, B, I)
    args = x.double(), lengths, reset
    for kind, found, expected in zip(rows, plain(model, args)(*args), model(*args), strict=True):
        for one, right in zip(found, expected, strict=True):
            message = functools.partial("{}: {}".format, kind)
            torch.testing.assert_close(one, right, rtol=1e-10, atol=1e-10, msg=message)


@pytest.mark.parametrize("network", ["LSTM", *(pytest.param(name, marks=pytest.mark.long) for name in ("GRU", "RNN"))])
def test_both_directions_with_other_sizes_of_the_batch(network):
    module = drawn(getattr(ln, network)(I, H, bidirectional=True))
    state = ({1: BATCH}, {1: BATCH}) if network == "LSTM" else {1: BATCH}
    shapes = {"input": {1: BATCH}, "hx": state, "lengths": {0: BATCH}, "reset": {1: BATCH}}
    args, masks = arguments(module, T, B)
    program = plain(module, args, masks, dynamic_shapes=shapes)
    for batch in (B, 5):
        args, masks = arguments(module, T, batch)
        assert_same(program(*args, **masks), module(*args, **masks))


class Model(torch.nn.Module):
    """Layers, batch norm, zoneout, cells, and the norms with a residual."""

    def __init__(self):
        super().__init__()
        self.first, self.second = ln.LSTM(I, H, 2, zoneout=0.2), ln.GRU(H, H, norm="batch")
        self.cells = torch.nn.ModuleList([ln.LSTMCell(H, H), ln.GRUCell(H, H), ln.RNNCell(H, H)])
        self.layer, self.rms, self.batch = ln.LayerNorm((H,)), ln.RMSNorm(H), ln.BatchNorm(H)
        self.bare = ln.LayerNorm(H, elementwise_affine=False)

    def forward(self, x, restart):
        x, _ = self.first(x, reset=torch.ones_like(x[..., 0]), reset_hx=restart)
        x, _ = self.second(x)
        x = x[-1]
        for cell in self.cells:
            after = cell(x)
            x = after[0] if isinstance(after, tuple) else after
        x, total = self.layer(x, x.flip(0))
        return self.batch(self.bare(self.rms(x))), total


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.long)])
def test_norms_cells_layers_and_what_happens_between_steps(dtype):
    model = Model().to(dtype)
    with torch.no_grad():  # statistics for the batch norms
        for _ in range(3):
            model(torch.randn(T, 8, I, dtype=dtype), (torch.randn(2, 8, H, dtype=dtype),) * 2)
    model = drawn(model, dtype)
    args = torch.randn(T, B, I, dtype=dtype), (torch.randn(2, B, H, dtype=dtype), torch.randn(2, B, H, dtype=dtype))
    assert_same(plain(model, args)(*args), model(*args), dtype)


@pytest.mark.parametrize("network", NETWORKS)
def test_an_int8_network_in_float32(network):
    module, x = int8(drawn(getattr(ln, network)(I, H), torch.float32)), torch.randn(T, B, I)
    assert_same(plain(module, (x,))(x), module(x), torch.float32)


def test_gradients_go_through_plain_operations():
    module, x = drawn(ln.LSTM(I, H)), torch.randn(T, B, I).double()
    program = plain(module, (x,))
    for call in (module, program):
        call(x)[0].square().sum().backward()
    for name, p in module.named_parameters():
        assert_same(program.get_parameter(name).grad, p.grad)


def test_all_at_once_with_the_table_of_pytorch():
    """Of PyTorch's own ops then only those of Core ATen are left, which has no `linear` and no `unbind`."""
    module, x = torch.nn.Sequential(torch.nn.Linear(I, I), drawn(ln.GRU(I, H), torch.float32)), torch.randn(T, B, I)
    core = torch.export.default_decompositions()
    core.update(ln.decompositions())
    program = torch.export.export(module, (x,)).run_decompositions(core)
    assert names_of_ops(program) == {"aten"}
    found = {node.target for node in program.graph.nodes}
    assert not found & {torch.ops.aten.linear.default, torch.ops.aten.unbind.int}
    assert_same(program.module()(x), module(x), torch.float32)


def test_there_is_one_for_every_op():
    """Those that an exported graph can hold: it has neither what computes gradients nor what saves for them."""
    ours = {name.split("::")[1] for name in torch._C._dispatch_get_all_op_names() if name.startswith("layernorm::")}
    ours = {name for name in ours if not name.endswith(("_forward", "_backward"))}
    assert {op.name() for op in ln.decompositions()} == {f"layernorm::{name}" for name in ours}


def test_a_program_refuses_lengths_when_it_runs():
    module, x, lengths = drawn(ln.GRU(I, H)), torch.zeros(T, B, I).double(), torch.tensor([T, 2, 0])
    program = plain(module, (x,), {"lengths": lengths})
    for wrong in (lengths + 1, lengths - 1):
        with pytest.raises(RuntimeError, match=r"lengths must lie in 0\.\.T"):
            program(x, lengths=wrong)


@pytest.mark.parametrize("kind", ["batch norm", "mask"])
def test_a_program_takes_any_number_of_steps(kind):
    """Of `torch.export`, as the graphs of ONNX do."""

    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = ln.GRU(I, H, norm="batch" if kind == "batch norm" else "layer")

        def forward(self, x, mask):
            return self.network(x, mask=mask)[0] if kind == "mask" else self.network(x)[0]

    def given(steps, batch):
        lengths = torch.arange(batch) % steps + 1
        return torch.randn(steps, batch, I), torch.arange(steps)[:, None] < lengths

    model = Masked()
    with torch.no_grad():
        model(*given(T, 8))
    shapes = {0: torch.export.Dim("T"), 1: BATCH}
    program = torch.export.export(model.eval(), given(T, B), dynamic_shapes=(shapes, shapes)).module()
    for sizes in ((T, B), (T + 4, B + 2)):
        args = given(*sizes)
        assert_same(program(*args), model(*args), torch.float32)
    if kind == "mask":
        x, mask = given(T, B)
        with pytest.raises(RuntimeError, match="expected each row's steps to come first in mask"):
            program(x, ~mask)


def test_steps_without_end_are_refused():
    program = torch.export.export(ln.LSTM(I, H), (torch.zeros(T, B, I),), dynamic_shapes=({0: torch.export.Dim("T")},))
    with pytest.raises(
        ValueError, match=r"lstm: .* the number of time steps must be fixed; export the model without a"
    ):
        program.run_decompositions(ln.decompositions())


def test_a_saved_program_runs_without_layernorm(tmp_path):
    module, x = drawn(ln.LSTM(I, H, bidirectional=True), torch.float32), torch.randn(T, B, I)
    program = torch.export.export(module, (x,)).run_decompositions(ln.decompositions())
    torch.export.save(program, tmp_path / "model.pt2")
    torch.save((x, module(x)[0].detach()), tmp_path / "expected.pt")
    code = """
import sys, torch
sys.modules["layernorm"] = None
x, expected = torch.load(sys.argv[1] + "/expected.pt")
found = torch.export.load(sys.argv[1] + "/model.pt2").module()(x)[0]
torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)
"""
    python(code, tmp_path)


def test_a_packed_sequence_is_refused():
    """An exported graph cannot hold one; a program that was made otherwise says what to give instead."""
    x, sizes = torch.zeros(4, I), torch.tensor([3, 1])
    module = ln.RNN(I, H)
    params = [module.get_parameter(f"{name}_l0") for name in module.recurrence.parameter_names]
    rest = (module.recurrence.encoded, [], None, None, None, None, None, False, sizes, [], False, None)
    recurrent = ln.decompositions()[torch.ops.layernorm.recurrent.default]
    with pytest.raises(
        ValueError, match="RNN: a PackedSequence has no plain operations; call the module with lengths="
    ):
        recurrent(x, [torch.zeros(3, H)], params, *rest)
