"""ONNX: what is exported computes what the module does, with standard operators."""

import re
import subprocess
import sys

import onnx_ir
import onnxruntime
import pytest
import torch

import layernorm as ln
from support.repository import ROOT, loaded

onnx_errors = loaded("benchmarks/onnx_errors.py")

pytestmark = [  # of torch's exporter, of its own code
    pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:# The axis name:UserWarning"),
]


@pytest.fixture(scope="module")
def table():
    """Every formula of every network, with lengths (also of 0), initial states, free T and B."""
    return onnx_errors.compare(onnx_errors.Arrangement(2, 1, True, 5, 16))


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


def test_what_goes_step_by_step_has_the_steps_of_the_export_and_any_batch():
    """Zoneout takes its expectation, batch norm its populations, which some batches have moved."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.zoneout, self.batch = ln.LSTM(5, 8, zoneout=0.2), ln.GRU(5, 8, norm=ln.BatchNormOverTime(max_steps=2))

        def forward(self, x):
            return self.zoneout(x)[0], self.batch(x)[0]

    torch.manual_seed(0)
    model = Model()
    for _ in range(3):
        model(torch.randn(3, 16, 5))
    program = onnx_errors.export(model.eval(), (torch.randn(3, 2, 5),), ({1: "B"},))
    x = torch.randn(3, 7, 5)
    for found, expected in zip(onnx_errors.run(program)(x), model(x), strict=True):
        # a few roundings of sums of 8 numbers of the size of 1, which 3 steps carry on
        torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=2e-6)


def test_batch_norm_in_training_is_refused():
    model = ln.LSTM(3, 4, norm="batch")
    with pytest.raises(RuntimeError, match=r"LSTM: batch norm in training .* call eval\(\)"):
        torch.export.export(model, (torch.randn(5, 2, 3),))


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


def run_program(body, first=""):
    """Runs the body in a process of its own, where nothing has been exported yet and a crash is seen."""
    program = PROGRAM.format(first=first, root=str(ROOT), body=body)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:] or done.returncode


WITHOUT_TABLE = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = torch.nn.Sequential(torch.nn.Linear(3, 3), ln.LayerNorm(3), ln.RMSNorm(3))
        self.lstm = ln.LSTM(3, 4, 2, bidirectional=True)

    def forward(self, x):
        return self.lstm(self.norms(x))[0]

model, x = Model().eval(), torch.randn(9, 4, 3)
shapes = ({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},)
program = torch.export.export(model, (torch.randn(5, 2, 3),), dynamic_shapes=shapes)
for given in (model, program):
    found = onnx_errors.run(onnx_errors.export(given, (torch.randn(5, 2, 3),), shapes))(x)[0]
    torch.testing.assert_close(found, model(x).detach(), rtol=1e-5, atol=1e-5)
"""


@pytest.mark.parametrize("loaded", [False, True])
def test_the_exporter_knows_the_ops_by_itself(loaded):
    """Whether it was used before layernorm is imported, or not yet."""
    before = "torch.onnx.export(torch.nn.Linear(3, 3), (torch.ones(2, 3),), dynamo=True, verbose=False)"
    run_program(WITHOUT_TABLE, before if loaded else "")


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
