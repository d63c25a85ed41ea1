"""What leaves the process: exported and traced graphs name no engine, and run where they are loaded."""

import io

import pytest
import torch

import layernorm as ln
from layernorm.backends import Entry
from support.processes import python

OURS = {torch.ops.layernorm.recurrent.default, torch.ops.layernorm.normalize.default}


class Tagger(torch.nn.Module):
    """One of each op, trained or not."""

    def __init__(self):
        super().__init__()
        self.recurrent, self.norm = ln.LSTM(3, 4, bidirectional=True), ln.LayerNorm(8)

    def forward(self, x):
        return self.norm(self.recurrent(x)[0])


@pytest.fixture
def only_the_reference(monkeypatch):
    """From the call on the process has no other engine; returns the names of the ops that this one has run."""
    calls = []

    def forget():
        for cache in (ln.backends.choose_for, ln.backends.engine):
            cache.cache_clear()

    def lose_the_others():
        monkeypatch.setattr(ln.backends, "ENGINES", {"reference": Entry("layernorm.engines.reference", None)})
        forget()
        engine = ln.backends.engine("reference")
        for name in ("recurrent_forward", "normalize_forward"):
            run = getattr(engine, name)
            monkeypatch.setattr(engine, name, lambda *args, name=name, run=run: calls.append(name) or run(*args))
        return calls

    yield lose_the_others
    monkeypatch.undo()
    forget()


def saved(program):
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_graph_names_no_engine(strict, only_the_reference):
    """Also where it was made inside ``use``, and of a module with gradients; it runs on the engine that is there."""
    module, x = Tagger(), torch.randn(5, 2, 3)
    with ln.backends.use(ln.backends.available()[0]):
        program = torch.export.export(module, (x,), strict=strict)
    nodes = [node for node in program.graph.nodes if node.target in OURS]
    assert len(nodes) == 3
    for node in nodes:
        assert not [arg for arg in node.args if arg in ln.backends.ENGINES]
    expected = module(x)
    calls = only_the_reference()
    found = saved(program).module()(x)
    assert calls == ["recurrent_forward", "recurrent_forward", "normalize_forward"]
    torch.testing.assert_close(found, expected)


def test_a_loaded_graph_has_gradients():
    module, x = Tagger().double(), torch.randn(5, 2, 3, dtype=torch.float64)
    loaded = saved(torch.export.export(module, (x,))).module()
    results = []
    for call in (module, loaded):
        leaf = x.clone().requires_grad_()
        call(leaf).square().sum().backward()
        results.append([leaf.grad, *(p.grad for _, p in sorted(call.named_parameters()))])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # pytest forgets layernorm's own filter
@pytest.mark.parametrize("make", [ln.LSTM, ln.GRU, ln.RNN])
def test_a_traced_module_runs_with_other_sizes(make, tmp_path):
    """As it stands: torch's own comparison of two traces passes, and T and B are free."""
    module = make(3, 4, num_layers=2, bidirectional=True)
    traced = torch.jit.trace(module, torch.randn(5, 2, 3))
    torch.jit.save(traced, tmp_path / "traced.pt")
    loaded = torch.jit.load(tmp_path / "traced.pt")
    x = torch.randn(8, 3, 3)
    torch.testing.assert_close(loaded(x), module(x), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_without_layernorm_the_message_names_the_op(tmp_path):
    """torch's message; the op's name is the name of the package to import."""
    torch.export.save(torch.export.export(Tagger(), (torch.randn(5, 2, 3),)), tmp_path / "tagger.pt2")
    torch.jit.save(torch.jit.trace(Tagger(), torch.randn(5, 2, 3)), tmp_path / "tagger.pt")
    code = """
import sys, torch
for load, name in ((torch.export.load, "tagger.pt2"), (torch.jit.load, "tagger.pt")):
    try:
        load(f"{sys.argv[1]}/{name}")
    except RuntimeError as error:
        print(error, file=sys.stderr)
    else:
        raise AssertionError(name)
"""
    said = python(code, tmp_path).stderr
    assert "torch.ops.layernorm.recurrent.default" in said
    assert "layernorm::recurrent" in said
