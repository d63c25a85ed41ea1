"""ONNX: what is exported computes what the module does, with standard operators."""

import functools
import importlib.machinery
import importlib.util
import itertools
import re
import sys
import warnings

import onnx_ir
import onnxruntime
import pytest
import torch

import layernorm as ln
from support.networks import as_hx
from support.processes import python
from support.repository import ROOT, loaded

onnx_errors = loaded("benchmarks/onnx_errors.py")

pytestmark = [  # of torch's exporter, of its own code
    pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:# The axis name:UserWarning"),
]


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.long)])
def table(request):
    """Every formula of every network, with lengths (also of 0), initial states, free T and B; one direction or two."""
    return onnx_errors.compare(onnx_errors.Arrangement(request.param, 1, True, 5, 16))


def test_every_network_and_formula_is_as_near_to_the_truth_as_the_module(table):
    """Both round in float32, in another order: a few times the module's error, and as much as one rounding of a state
    grows by in the steps that follow."""
    assert len(table) > 25
    for row in table:
        assert row.onnx_truth <= 4 * row.module_truth + 1e-6, row


def kinds_of_nodes(program):
    return sorted({node.op_type for node in onnx_ir.traversal.RecursiveGraphIterator(program.model.graph)})


def test_the_graph_does_not_grow_with_the_steps():
    """One Scan a layer and direction, with one step inside."""
    few, many = onnx_errors.sizes_of_graphs()
    assert few == many


def test_cells_norms_and_a_plain_network_are_standard_operators():
    """LayerNormalization, RMSNormalization (opset 23), a cell with LayerNormalization in one step, ONNX's own LSTM."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.rms, self.cell = ln.LayerNorm((2, 3)), ln.RMSNorm(6), ln.GRUCell(6, 6)
            self.plain, self.bare = ln.LSTM(6, 6, norm=None), ln.RMSNorm(6, elementwise_affine=False)
            self.narrow = ln.LSTM(6, 6).half()
            for p in self.parameters():
                torch.nn.init.normal_(p)

        def forward(self, x, residual):
            y, total = self.layer(x, residual)
            z = self.bare(self.rms(y.flatten(1)))
            return total, self.cell(z), self.plain(z[None])[0], self.narrow(z[None].half())[0]

    torch.manual_seed(0)
    model, x, residual = Model().eval(), torch.randn(4, 2, 3), torch.randn(4, 2, 3)
    for opset, rms in ((None, []), (23, ["RMSNormalization"])):
        batch = torch.export.Dim("B")
        program = torch.onnx.export(
            model, (x, residual), dynamo=True, verbose=False, opset_version=opset,
            dynamic_shapes=({0: batch}, {0: batch}),
        )  # fmt: skip
        expected = {"LSTM", "LayerNormalization", "Scan", *rms}
        assert expected <= set(kinds_of_nodes(program))
        assert ("RMSNormalization" in kinds_of_nodes(program)) is bool(rms)
        session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
        given = [torch.randn(7, 2, 3), torch.randn(7, 2, 3)]
        names = [i.name for i in session.get_inputs()]
        found = session.run(None, {name: t.numpy() for name, t in zip(names, given, strict=True)})
        for a, b in zip(found, model(*given), strict=True):
            # sums of 6 numbers of the size of 3, in another order; float16 is computed in float32 and rounded once
            rtol, atol = (2**-10, 1e-6) if b.dtype == torch.float16 else (1e-5, 2e-6)
            torch.testing.assert_close(torch.from_numpy(a), b.detach(), rtol=rtol, atol=atol)


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.long)])
def test_batch_norm_takes_any_number_of_steps_and_rows(whole):
    """It takes its populations, which some batches have moved, in each direction by a row's own steps."""
    torch.manual_seed(0)
    per_gate = ln.Formula("sum", "per_gate", None, eps_on="deviation", eps=1e-2)
    kinds = [(ln.LSTM, False, "paper"), (ln.GRU, True, per_gate), (ln.RNN, False, "paper")]
    if whole:
        kinds = list(itertools.product((ln.LSTM, ln.GRU, ln.RNN), (True,), ("paper", per_gate)))
    networks = [
        network(5, 8, bidirectional=both, norm=ln.BatchNormOverTime(max_steps=4), formula=formula)
        for network, both, formula in kinds
    ]
    with torch.no_grad():
        for network in 3 * networks:
            network(torch.randn(5, 16, 5), lengths=torch.randint(2, 6, (16,)))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.networks = torch.nn.ModuleList(networks)

        def forward(self, x, lengths):
            return [self.networks[0](x)[0], *(network(x, lengths=lengths)[0] for network in self.networks)]

    given = torch.randn(3, 2, 5), torch.tensor([3, 1])
    program = onnx_errors.export(Model().eval(), given, ({0: "T", 1: "B"}, {0: "B"}))
    assert "Scan" in kinds_of_nodes(program)
    x, lengths = torch.randn(6, 4, 5), torch.tensor([6, 1, 4, 0])
    for found, expected in zip(onnx_errors.run(program)(x, lengths), Model().eval()(x, lengths), strict=True):
        # a few roundings of sums of 8 numbers of the size of 1, divided by deviations of 0.3 and more, in 6 steps
        torch.testing.assert_close(found, expected.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "network", [ln.LSTM, *(pytest.param(network, marks=pytest.mark.long) for network in (ln.GRU, ln.RNN))]
)
def test_zoneout_and_restarts_take_any_number_of_steps_and_rows(network):
    """Zoneout takes its expectation, of h and in an LSTM of c."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            more = {"proj_size": 3, "zoneout": (0.2, 0.4)} if network is ln.LSTM else {"zoneout": 0.2}
            self.network = network(5, 8, bidirectional=True, **more)
            sizes = (3, 8) if network is ln.LSTM else (8,)
            self.start = torch.nn.ParameterList([torch.randn(2, 1, size) for size in sizes])

        def forward(self, x, reset):
            return self.network(x, reset=reset, reset_hx=as_hx(list(self.start)))[0]

    torch.manual_seed(0)
    model = Model().eval()
    program = onnx_errors.export(model, (torch.randn(3, 2, 5), torch.rand(3, 2) < 0.5), ({0: "T", 1: "B"},) * 2)
    x, reset = torch.randn(6, 7, 5), torch.rand(6, 7) < 0.4
    torch.testing.assert_close(
        onnx_errors.run(program)(x, None, reset)[0], model(x, reset).detach(), rtol=1e-5, atol=2e-6
    )


def test_what_zoneout_would_draw_is_refused():
    expected = r"zoneout in training draws .* call eval\(\)"
    with pytest.warns(UserWarning, match="in training mode"), pytest.raises(Exception, match=expected):
        torch.onnx.export(ln.GRU(3, 4, zoneout=0.1), (torch.randn(5, 2, 3),), dynamo=True)


def test_batch_norm_in_training_is_refused():
    model = ln.LSTM(3, 4, norm="batch")
    with pytest.raises(RuntimeError, match=r"LSTM: batch norm in training .* call eval\(\)"):
        torch.export.export(model, (torch.randn(5, 2, 3),))


class Packing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = ln.GRU(3, 4)

    def forward(self, x, lengths):
        return self.gru(torch.nn.utils.rnn.pack_padded_sequence(x, lengths))[0].data


@pytest.mark.parametrize("export", [torch.export.export, functools.partial(torch.onnx.export, dynamo=True)])
def test_a_model_that_packs_is_told_what_to_do(export):
    """Where torch.export follows the packing at all, which it does without its strict mode."""
    wanted = r"GRU: pack_padded_sequence cannot be exported; call the module .* lengths= instead of packing"
    with pytest.raises(RuntimeError, match=wanted):
        export(Packing().eval(), (torch.randn(5, 2, 3), torch.tensor([5, 3])))


def test_without_the_packages_the_message_says_what_to_install(monkeypatch):
    for name in ("layernorm.export.onnx", "onnx_ir"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "onnx_ir", None)
    with pytest.raises(ImportError, match=re.escape("pip install '.[onnx]' in layernorm's checkout")):
        ln.__getattr__("onnx")


class Several(torch.nn.Module):
    """Modules on the same input; the output of each."""

    def __init__(self, *modules):
        super().__init__()
        self.parts = torch.nn.ModuleList(modules)

    def forward(self, x):
        found = [part(x) for part in self.parts]
        return [y if isinstance(y, torch.Tensor) else y[0] for y in found]


@pytest.mark.parametrize(
    ("opset", "dtype"),
    [
        (18, torch.float64),
        *(pytest.param(opset, torch.float32, marks=pytest.mark.long) for opset in (18, 23)),
    ],
)
def test_the_smallest_eps_counts_where_a_row_is_zero(opset, dtype):
    """An optimiser of the exporter takes a number up to 1e-8 for 0. eps 0 is nan, as in the module."""
    torch.manual_seed(0)
    modules = []
    for eps in (0.0, 1e-12, 1e-8, None):
        given = {} if eps is None else {"eps": eps}
        deviation = ln.Formula("sum", "per_gate", "carry", eps_on="deviation", **given)
        modules += [ln.LayerNorm(3, **given), ln.RMSNorm(3, **given), ln.GRU(3, 4, eps=eps)]
        modules += [ln.LSTM(3, 4, norm="rms", eps=eps), ln.LSTM(3, 4, norm="rms", formula=deviation)]
        modules += [ln.LSTM(3, 4, formula=deviation)]
    model, x = Several(*modules).to(dtype).eval(), torch.randn(4, 3, 3, dtype=dtype)
    x[:, 0] = x[2] = 0
    program = torch.onnx.export(model, (x,), dynamo=True, verbose=False, opset_version=opset)
    # sums of 3 or 4 numbers in another order; float64 has the eps in float64, too
    rtol, atol = (1e-5, 1e-5) if dtype == torch.float32 else (1e-13, 1e-13)
    for found, expected in zip(onnx_errors.run(program)(x), model(x), strict=True):
        torch.testing.assert_close(found, expected.detach(), rtol=rtol, atol=atol, equal_nan=True)


def test_float64_without_a_norm():
    """ONNX Runtime has RNN, LSTM and GRU in float32 only."""
    torch.manual_seed(0)
    rest = {"norm": None, "num_layers": 2, "bidirectional": True}
    model = Several(ln.LSTM(3, 4, **rest), ln.GRU(3, 4, **rest), ln.RNN(3, 4, **rest)).double().eval()
    program = onnx_errors.export(model, (torch.randn(3, 2, 3, dtype=torch.float64),), ({0: "T", 1: "B"},))
    assert "Scan" in kinds_of_nodes(program)
    x = torch.randn(5, 4, 3, dtype=torch.float64)
    for found, expected in zip(onnx_errors.run(program)(x), model(x), strict=True):
        torch.testing.assert_close(found, expected.detach(), rtol=1e-13, atol=1e-14)


PROGRAM = """
import sys, warnings
import torch
{first}
import layernorm as ln
warnings.simplefilter("ignore")
sys.path.insert(0, {root!r})
from benchmarks import onnx_errors
torch.manual_seed(0)
{body}
"""


def run_program(body, *arguments, first=""):
    """Runs the body in a process of its own, where nothing has been exported yet and a crash is seen."""
    python(PROGRAM.format(first=first, root=str(ROOT), body=body), *arguments)


NARROW = """
class Narrow(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.dtype, self.norm, arguments = dtype, ln.LayerNorm(3), {"batch_first": True}
        self.networks = torch.nn.ModuleList(kind(3, 4, **arguments) for kind in (ln.RNN, ln.LSTM, ln.GRU))
        self.plain, self.forwards = ln.LSTM(3, 4, norm=None, batch_first=True), ln.GRU(3, 4)
        self.to(dtype)

    def forward(self, x):
        y, total = self.norm(x.to(self.dtype), x.to(self.dtype))
        sequences = [network(z)[0] for network in (*self.networks, self.plain) for z in (x.to(self.dtype), y)]
        sequences += [self.forwards(x.to(self.dtype).transpose(0, 1).contiguous())[0], y, total]
        return [sequence.float() for sequence in sequences]

model = Narrow(dtype).eval()
program = onnx_errors.export(model, (torch.randn(2, 5, 3),), ({0: "B", 1: "T"},))
x = torch.randn(3, 7, 3)
found, expected = onnx_errors.run(program)(x), model(x)
# ONNX computes in float32; the module's products are of 16 bits, and 7 steps carry their roundings on
for a, b in zip(found, expected, strict=True):
    torch.testing.assert_close(a, b.detach(), rtol=0, atol=16 * torch.finfo(dtype).eps)
"""


RESTARTS = """
dtype = getattr(torch, sys.argv[1])

class Restarts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.network, self.start = ln.RNN(3, 4), torch.nn.Parameter(torch.randn(1, 1, 4))

    def forward(self, x, reset):
        starts = (self.start, torch.cat([x[:1], x[:1, :, :1]], -1).to(self.start.dtype))  # for all rows, for each
        x = x.to(self.start.dtype)
        return [self.network(x, reset=reset, reset_hx=start)[0].float() for start in starts]

model = Restarts().to(dtype).eval()
x, reset = torch.randn(5, 3, 3), torch.rand(5, 3) < 0.5
program = onnx_errors.export(model, (torch.randn(5, 2, 3), torch.rand(5, 2) < 0.5), ({1: "B"},) * 2)
found, expected = onnx_errors.run(program)(x, None, reset), model(x, reset)
for a, b in zip(found, expected, strict=True):  # as in `NARROW`
    torch.testing.assert_close(a, b.detach(), rtol=0, atol=16 * torch.finfo(dtype).eps)
"""


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.long)])
def test_16_bits_load_and_run(dtype):
    """ONNX Runtime 1.31 has no Expand of bfloat16, and crashes where it loads Transpose, Cast and MatMul in a row."""
    run_program(RESTARTS + NARROW, dtype)


WITHOUT_TABLE = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = torch.nn.Sequential(torch.nn.Linear(3, 3), ln.LayerNorm(3), ln.RMSNorm(3))
        self.lstm = ln.LSTM(3, 4)

    def forward(self, x):
        return self.lstm(self.norms(x))[0]

model, x = Model().eval(), torch.randn(9, 4, 3)
shapes = ({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},)
program = torch.export.export(model, (torch.randn(5, 2, 3),), dynamic_shapes=shapes)
for given in (model, program):
    found = onnx_errors.run(onnx_errors.export(given, (torch.randn(5, 2, 3),), shapes))(x)[0]
    torch.testing.assert_close(found, model(x).detach(), rtol=1e-5, atol=1e-5)
"""


@pytest.mark.parametrize("loaded", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_exporter_knows_the_ops_by_itself(loaded):
    """Whether it was used before layernorm is imported, or not yet."""
    before = "torch.onnx.export(torch.nn.Linear(3, 3), (torch.ones(2, 3),), dynamo=True, verbose=False)"
    run_program(WITHOUT_TABLE, first=before if loaded else "")


class Archive:
    """Finds and loads every module, with one loader, as zipimport does; the finder of a frozen program is like it."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.loaded = True


def test_the_translations_come_from_whichever_finder_has_them(monkeypatch):
    from layernorm.export import _exporter

    registered = []
    finders = [_exporter._Finder(), _exporter._Finder(), Archive()]  # two, as after a reload
    monkeypatch.setattr(sys, "meta_path", finders)
    monkeypatch.setattr(_exporter, "_AFTER", {"translations": lambda: registered.append(True)})
    for finder, name in ((finders[0], "translations"), (finders[2], "another")):
        spec = finder.find_spec(name, None)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert module.loaded
        assert len(registered) == 2, "both finders, and nothing for another module of the same loader"
    monkeypatch.setattr(sys, "meta_path", finders[:1])
    assert finders[0].find_spec("translations", None) is None


@pytest.mark.parametrize("make", [lambda: ln.LayerNorm(3), lambda: ln.LSTM(3, 4), lambda: torch.nn.LSTM(3, 4)])
def test_the_old_exporter_says_what_to_do(make, tmp_path):
    model, x, path = torch.nn.Sequential(make()).eval(), torch.randn(5, 2, 3), str(tmp_path / "model.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a network of ours is left as it is
        ln.accelerate(model)
    export = functools.partial(torch.onnx.export, args=(x,), f=path, dynamo=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this exporter and TorchScript are deprecated
        with pytest.raises(RuntimeError, match=r"need dynamo=True. For the old .* layernorm.portable\(model\)"):
            export(model)
        export(ln.portable(ln.restore(model)))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    expected = model(x) if isinstance(model[0], ln.LayerNorm) else model(x)[0]
    torch.testing.assert_close(torch.from_numpy(found), expected.detach(), rtol=1e-5, atol=1e-5)


def test_where_the_ops_cannot_be_registered_a_warning_says_what_to_pass(monkeypatch):
    from layernorm.export import _exporter

    monkeypatch.setitem(sys.modules, "onnxscript.function_libs.torch_lib.registration", None)
    with pytest.warns(UserWarning, match=re.escape("custom_translation_table=layernorm.onnx.translations()")):
        _exporter._register()


def test_the_table_can_still_be_given():
    model, x = Several(ln.RMSNorm(3)).eval(), torch.randn(2, 3)
    table = ln.onnx.translations()
    program = torch.onnx.export(model, (x,), dynamo=True, verbose=False, custom_translation_table=table)
    torch.testing.assert_close(onnx_errors.run(program)(x)[0], model(x)[0].detach())
