"""The choice of the engine."""

import dataclasses
import re
import sys
import threading
import warnings

import pytest
import torch

import layernorm as ln
from layernorm.backends import Entry
from layernorm.engines.protocol import Kind, Support
from layernorm.formula import Recurrence
from support.processes import python

REFERENCE = Entry("layernorm.engines.reference", None)


@pytest.fixture(autouse=True)
def forget_choices():
    """What was chosen among other engines."""
    caches = (ln.backends.choose_for, ln.backends.engine)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def test_reference_is_always_there():
    assert "reference" in ln.backends.available()
    assert [engine.name for engine in ln.backends.status()] == list(ln.backends.ENGINES)


def test_a_missing_engine_is_an_error_and_says_why():
    missing = [engine for engine in ln.backends.status() if not engine.available]
    for engine in missing:
        assert engine.reason
        with (
            pytest.raises(RuntimeError, match=f"backend '{engine.name}' is not available: .*available: "),
            ln.backends.use(engine.name),
        ):
            pass


def test_an_unknown_engine_suggests_the_nearest():
    with pytest.raises(TypeError, match="expected the name of a backend, got NoneType"), ln.backends.use(None):
        pass
    with pytest.raises(ValueError, match="did you mean 'reference'"), ln.backends.use("referense"):
        pass


def of_process(name, code):
    """What a program prints where LAYERNORM_ENGINE asks for this engine, or its last line of error."""
    code = f"import torch, layernorm as ln\nx = torch.ones(2, 3)\n{code}"
    run = python(code, check=False, LAYERNORM_ENGINE=name)
    return run.stdout.strip() or run.stderr.strip().splitlines()[-1]


def test_an_engine_for_the_whole_process():
    choose = "print(ln.backends.choose('normalize', x).name)"
    threaded = f"import threading\nt = threading.Thread(target=lambda: {choose})\nt.start()\nt.join()"
    assert of_process("reference", f"{choose}\n{threaded}") == "reference\nreference"
    use = f"with ln.backends.use('reference'): {choose}"
    assert of_process("no-such-engine", use) == "reference"


def test_an_engine_for_the_whole_process_that_there_is_not():
    call = "ln.functional.layer_norm(x, [3])"
    names = list(ln.backends.ENGINES)
    assert of_process("referense", call) == (
        f"ValueError: LAYERNORM_ENGINE must be one of {names}, got 'referense'; did you mean 'reference'?"
    )
    missing = "ln.backends.ENGINES['reference'] = ln.backends.Entry('no_such_module', None)\n"
    assert of_process("reference", missing + call).startswith(
        "RuntimeError: backend 'reference' is not available: this version of layernorm does not contain it; available: "
    )


def test_an_engine_that_must_be_asked_for_is_never_chosen_by_itself(monkeypatch):
    monkeypatch.setattr(ln.backends, "ENGINES", {"second": Entry("x", None, by_itself=False), "reference": REFERENCE})
    assert ln.backends.choose("normalize", torch.zeros(1)).name == "reference"


def test_use_holds_inside_and_ends_outside(monkeypatch):
    """A made-up engine is called inside ``use`` and nowhere else, forward and backward."""
    from layernorm.engines import reference

    calls = []

    class Engine:
        FORMULA_FIELDS = frozenset[str]()
        supports = staticmethod(lambda kind: Support(kind.dtype == torch.float32, f"{kind.dtype}"))
        normalize_saved = staticmethod(reference.normalize_saved)

        @staticmethod
        def normalize_forward(*args):
            calls.append("forward")
            return reference.normalize_forward(*args)

        @staticmethod
        def normalize_backward(*args):
            calls.append("backward")
            return reference.normalize_backward(*args)

    monkeypatch.setitem(ln.backends.ENGINES, "made-up", Entry("made_up", "nowhere"))
    monkeypatch.setitem(__import__("sys").modules, "made_up", Engine)
    status = ln.backends._status
    made_up = ln.backends.Status("made-up", True, "")
    monkeypatch.setattr(ln.backends, "_status", lambda name: made_up if name == "made-up" else status(name))
    x = torch.randn(2, 3, requires_grad=True)
    ln.functional.layer_norm(x, (3,)).sum().backward()
    assert calls == []
    with ln.backends.use("made-up"):
        y = ln.functional.layer_norm(x, (3,))
        other = "native" if "native" in ln.backends.available() else "reference"
        said = "no kernel for normalize on cpu in torch.float64: backend 'made-up' not for torch.float64; "
        said += f"'{other}' has one"
        with pytest.raises(ln.backends.NoKernelError, match=re.escape(said)):
            ln.functional.layer_norm(x.double(), (3,))
    y.sum().backward()  # on the engine of its forward
    assert calls == ["forward", "backward"]


@pytest.mark.skipif("native" not in ln.backends.available(), reason="asks the CPU engine")
def test_what_has_no_kernel_is_the_references(monkeypatch):
    x = torch.zeros(1)
    for presets in ln.formula.PRESETS.values():
        for network, formula in presets.items():
            equations = Recurrence(network, formula)
            assert ln.backends.choose("recurrent", x, equations).name == "native"
            batch = Recurrence(network, formula, norm="batch")
            assert ln.backends.choose("recurrent", x, batch).name == "native"
    unknown = dataclasses.replace(equations, formula=dataclasses.replace(formula, eps=0.5))
    monkeypatch.setattr(ln.backends.engine("native"), "FORMULA_FIELDS", frozenset())
    assert ln.backends.choose("recurrent", x, unknown).name == "reference"
    said = "no kernel for recurrent on cpu in torch.float32: backend 'native' not for a formula with "
    with ln.backends.use("native"), pytest.raises(RuntimeError, match=said):
        ln.backends.choose("recurrent", x, unknown)


def test_what_no_engine_computes_is_an_error_with_each_reason(monkeypatch):
    for name in ("native", "reference"):
        if name in ln.backends.available():
            monkeypatch.setattr(ln.backends.engine(name), "FORMULA_FIELDS", frozenset())
    with pytest.raises(ln.backends.NoKernelError, match=r"backend 'reference' not for a formula with cell, eps$"):
        ln.GRU(3, 4, eps=0.123)(torch.randn(5, 2, 3))


def test_a_folder_or_a_module_that_fails_is_passed_over(monkeypatch, tmp_path):
    """Neither what a build left behind nor an engine that does not run here may stop the ops."""
    (tmp_path / "left_behind").mkdir()
    (tmp_path / "fails.py").write_text("raise ImportError('this machine has no such instructions')")
    monkeypatch.syspath_prepend(tmp_path)
    engines = {"left behind": Entry("left_behind", "cpu"), "fails": Entry("fails", "cpu"), "reference": REFERENCE}
    monkeypatch.setattr(ln.backends, "ENGINES", engines)
    assert ln.backends.available() == ["reference"]
    assert [engine.reason for engine in ln.backends.status()[:2]] == [
        "this version of layernorm does not contain it",
        "this machine has no such instructions",
    ]
    assert ln.functional.layer_norm(torch.randn(2, 3), (3,)).shape == (2, 3)
    assert ln.GRU(3, 4)(torch.randn(5, 2, 3))[0].shape == (5, 2, 4)


def test_compile_keeps_the_choice_between_engines(monkeypatch, tmp_path):
    """In one graph although the choice looks at modules, and made again when ``use`` asks for another engine."""
    source = """
from layernorm.engines.reference import *
calls = []
from layernorm.engines.protocol import Support
def supports(kind):
    return Support((kind.op, kind.device.type) == ("recurrent", "cpu"))
def recurrent_forward(*args):
    from layernorm.engines import reference
    calls.append(args[0].input.shape)
    return reference.recurrent_forward(*args)
"""
    (tmp_path / "second_engine.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    engines = {"second": Entry("second_engine", "cpu"), "reference": REFERENCE}
    monkeypatch.setattr(ln.backends, "ENGINES", engines)
    calls = ln.backends.engine("second").calls
    torch._dynamo.reset()
    module, x = ln.LSTM(3, 4), torch.randn(5, 2, 3)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x)[0], module(x)[0])
    assert len(calls) == 2
    with ln.backends.use("reference"):
        compiled(x)
    assert len(calls) == 2
    compiled(x)
    assert len(calls) == 3
    program = torch.export.export(module, (x,), strict=True)
    op = torch.ops.layernorm.recurrent.default
    assert len(program.graph.find_nodes(op="call_function", target=op)) == 1


def test_engines_after_the_one_chosen_are_not_imported(monkeypatch, tmp_path):
    (tmp_path / "later_engine.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(ln.backends, "ENGINES", {"reference": REFERENCE, "later": Entry("later_engine", None)})
    assert ln.functional.layer_norm(torch.randn(2, 3), (3,)).shape == (2, 3)
    assert "later_engine" not in sys.modules


@pytest.mark.parametrize("op", ["normalize", "recurrent", "steps"])
def test_tensors_on_a_gpu_are_computed_by_the_reference(op):
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        assert ln.backends.preferred(Kind(op, torch.device("cuda", 0), dtype)).name == "reference"


def test_a_missing_engine_that_could_be_here_is_told_once(monkeypatch):
    engines = {"absent": Entry("no_such_engine", "cpu"), "reference": REFERENCE}
    monkeypatch.setattr(ln.backends, "ENGINES", engines)
    x = torch.randn(2, 3)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with ln.backends.use("reference"):  # asked for: nothing to be told
            ln.functional.layer_norm(x, [3])
        assert not found
        ln.functional.layer_norm(x, [3])
        ln.functional.layer_norm(x.double(), [3])
    assert len(found) == 1
    told = str(found[0].message)
    assert told.startswith(
        "layernorm computes with plain torch equations, several times slower than its engine 'absent'"
    )
    assert told.endswith("which cannot run here: this version of layernorm does not contain it")


@pytest.mark.skipif("native" not in ln.backends.available(), reason="asks the CPU engine")
def test_what_one_thread_uses_no_other_does():
    """Also where two threads leave in another order than they entered; nothing is left behind."""
    x, first_in, second_in = torch.zeros(1), threading.Event(), threading.Event()
    chosen = {}

    def second():
        first_in.wait()
        chosen["second before"] = ln.backends.choose("normalize", x).name
        with ln.backends.use("native"):
            second_in.set()
            first.join()
            chosen["second"] = ln.backends.choose("normalize", x).name

    def enter_first():
        with ln.backends.use("reference"):
            first_in.set()
            second_in.wait()
            chosen["first"] = ln.backends.choose("normalize", x).name

    first, other = threading.Thread(target=enter_first), threading.Thread(target=second)
    first.start()
    other.start()
    other.join()
    assert chosen == {"second before": "native", "first": "reference", "second": "native"}
    assert ln.backends.choose("normalize", x).name == "native"


def test_threads_that_enter_and_leave_at_once(monkeypatch):
    """A thread takes away its own entry, wherever the interpreter changes between threads."""
    monkeypatch.setitem(ln.backends.ENGINES, "other", REFERENCE)
    interval, faults = sys.getswitchinterval(), []

    def enter_and_leave(name):
        try:
            for _ in range(10_000):
                with ln.backends.use(name):
                    pass
        except Exception as error:
            faults.append(error)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=enter_and_leave, args=(name,)) for name in ("reference", "other") * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not faults
    assert not ln.backends._in_use


@pytest.mark.skipif("native" not in ln.backends.available(), reason="asks the CPU engine")
def test_a_graph_takes_the_engine_that_was_asked_for_last():
    asked = torch.compile(lambda x: (x + 1, ln.backends.asked_for_in_graph()), backend="eager", fullgraph=True)
    use, x = ln.backends.use, torch.zeros(1)
    taken = [asked(x)[1]]
    with use("native"):
        with use("reference"):
            with use("native"):
                taken.append(asked(x)[1])
            taken.append(asked(x)[1])
        taken.append(asked(x)[1])
    assert [*taken, asked(x)[1]] == [None, "native", "reference", "native", None]
