"""`layernorm doctor`, and that its check sees what is wrong and says what it did not see."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

import layernorm as ln
from layernorm import isolation
from layernorm.backends import Entry
from layernorm.doctor import battery, check, command, comparison, installation, machine, table, timing
from layernorm.doctor.battery import Norm, Recurrent
from layernorm.doctor.comparison import Case, compare
from layernorm.engines.protocol import Support
from layernorm.formula import PRESETS
from layernorm.isolation import Failure, isolated
from support.processes import python
from support.repository import ROOT

native = pytest.mark.skipif("native" not in ln.backends.available(), reason="breaks the CPU engine")
CASES = 8 * len(ln.backends.available())
LSTM = Recurrent("LSTM", "layer", "paper", *battery.SMALL, reverse=True, masked=True)
NORM = Norm("layer_norm", 5, 20, residual=True)
TINY = [(problem, dtype) for dtype in battery.TYPES for problem in (NORM, LSTM)]


def here(function, items, limit):
    """`isolated` in this process, whose engines a test has changed."""
    for item in items:
        try:
            found = function(item)
        except Exception as error:
            found = Failure(f"{type(error).__name__}: {error}")
        yield item, found


@pytest.fixture
def tiny(monkeypatch):
    """`--check` of a few problems in this process, without times."""
    monkeypatch.setattr(check, "isolated", here)
    monkeypatch.setattr(check, "battery", lambda: TINY)
    monkeypatch.setattr(check, "few", lambda: TINY)
    monkeypatch.setattr(check, "relative_time", lambda row: 1.25)
    ln.backends.choose_for.cache_clear()
    yield
    ln.backends.choose_for.cache_clear()


# --- What is installed ---


def test_versions_and_backends(capsys, monkeypatch):
    monkeypatch.setitem(installation.OPTIONAL, "not-installed", "pip install it")
    monkeypatch.setenv("LAYERNORM_ISA", "avx2")
    assert command.main(["doctor"]) == 0
    text = capsys.readouterr().out
    for word in ("python", "torch", "numpy", *installation.OPTIONAL, "threads", "CUDA", "reference"):
        assert word in text
    assert "not-installed  missing: pip install it" in text
    assert "reference      available" in text
    assert "LAYERNORM_ISA=avx2" in text


def test_a_reader_that_goes_away_is_no_traceback():
    command = [sys.executable, "-u", "-m", "layernorm", "doctor"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_what_runs_where(monkeypatch):
    """An engine that has only some types is named with them."""
    kinds = {torch.float64: "reference"}
    choice = lambda kind: ln.backends.Choice(kinds.get(kind.dtype, "native"), None)  # noqa: E731
    monkeypatch.setattr("layernorm.backends.preferred", choice)
    lines = dict(installation.what_runs_where())
    assert lines["cpu recurrent"] == "native in float32, bfloat16, float16; reference in float64"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("reference", "asked for reference"),
        (
            "nativ",
            "asked for a call fails, unless use() asks for another: LAYERNORM_ENGINE must be one of ['native',",
        ),
    ],
)
def test_an_engine_that_is_asked_for_is_named_or_its_error(name, line):
    done = alone("doctor", code=f"import os; os.environ['LAYERNORM_ENGINE'] = {name!r}")
    assert line in " ".join(done.stdout.split())


def alone(*words, code=""):
    """Runs `python -m layernorm` in a process in which the laboratory and every optional package are missing."""
    missing = {
        "layernorm_lab",
        "onnx",
        "onnxscript",
        "sb3_contrib",
        "torchrl",
        "rich",
        "scipy",
        "matplotlib",
        "sklearn",
    }
    hidden = (
        "import importlib.util, runpy, sys\n"
        f"sys.modules |= dict.fromkeys({missing})\n"
        "find = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, *a: None if name in {missing} else find(name, *a)\n"
        f"{code}\n"
        f"sys.argv = ['layernorm', *{list(words)}]\n"
        "runpy.run_module('layernorm', run_name='__main__', alter_sys=True)\n"
    )
    done = python(hidden, check=False)
    done.stderr = "".join(line for line in done.stderr.splitlines(True) if "triton not found" not in line)  # torch 2.15
    return done


def test_the_library_alone_has_a_doctor():
    done = alone("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert "reference" in done.stdout
    few = (
        "from layernorm.doctor import battery, check\n"
        "check.battery = lambda: [(battery.Norm('rms_norm', 3, 4), battery.TYPES[1])]\n"
        "check.few = lambda: []\n"
        "check.relative_time = lambda row: 1.0\n"
        "check.isolated = lambda function, items, limit: ((item, function(item)) for item in items)\n"
    )
    done = alone("doctor", "--check", code=few)
    assert (done.returncode, done.stderr) == (0, "")
    assert "cases are right" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["run", "digits"],
        *(pytest.param(words, marks=pytest.mark.long) for words in (["doctor", "now"], [], ["--nosuch"])),
    ],
)
def test_the_library_alone_says_how_to_install_the_laboratory(words):
    done = alone(*words)
    assert done.returncode == 2
    assert ("pip install ./lab in layernorm's checkout" in done.stderr) is (words[:1] == ["run"])
    assert "Traceback" not in done.stderr


@pytest.fixture
def checkout(tmp_path):
    """A git repository with a package in the folder that is given; returns the package and its commit."""

    def git(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", *who, "-C", str(tmp_path), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    def place(folder, ignored=""):
        package = tmp_path / folder
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (tmp_path / ".gitignore").write_text(ignored)
        git("init", "--quiet")
        git("add", ".")
        git("commit", "--quiet", "--message", "first")
        return package, git("rev-parse", "--short=12", "HEAD")

    return place


def test_the_commit_is_told_with_a_plus_for_local_changes(checkout):
    package, commit = checkout("src/layernorm")
    assert machine.commit(package) == commit
    (package / "new.py").write_text("")
    assert machine.commit(package) == f"{commit}+"


def test_a_package_installed_inside_another_repository_has_none(checkout):
    package, _ = checkout("venv/lib/layernorm", ignored="venv\n")
    assert machine.commit(package) is None


@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")
def test_an_installed_copy_tells_the_commit_that_it_was_built_from(checkout, tmp_path, monkeypatch, capsys):
    """`pip install .` puts a copy outside of the checkout. CMake's part of it, without a compiler, which takes long."""
    shutil.copy(ROOT / "CMakeLists.txt", tmp_path)
    package, commit = checkout("src/layernorm", ignored="build*\n")

    def install(name):
        build, prefix = tmp_path / f"build-{name}", tmp_path / f"build-{name}" / "installed"
        quiet = {"check": True, "capture_output": True, "env": {**os.environ, "CXX": "no-compiler"}}
        subprocess.run(["cmake", "-S", tmp_path, "-B", build], **quiet)
        subprocess.run(["cmake", "--install", build, "--prefix", prefix], **quiet)
        return machine.commit(prefix / "layernorm")

    assert install("clean") == commit
    (package / "new.py").write_text("")
    assert install("changed") == f"{commit}+"
    shutil.rmtree(tmp_path / ".git")
    assert install("without-git") is None
    assert machine.commit(package) is None
    monkeypatch.setattr(machine, "commit", lambda: "0123456789ab")
    installation.show()
    assert f"layernorm      {machine.version('layernorm')}, commit 0123456789ab\n" in capsys.readouterr().out


# --- The check ---


@native
def test_engines_that_are_right(tiny, capsys):
    assert command.main(["doctor", "--check"]) == 0
    text = capsys.readouterr().out
    assert f"all {CASES} cases are right" in text
    for name in ln.backends.available():
        assert f"{name} on cpu" in text
    for dtype in battery.TYPES:
        assert f"LSTM       {table.type_name(dtype)}" in text
    assert " 1.25  paper" in text
    assert max(map(len, text.splitlines())) <= 80
    without_a_gpu = "triton" not in ln.backends.available()
    assert ("not checked:\n  triton: " if without_a_gpu else "not checked: nothing") in text


def test_a_missing_engine_is_not_checked(tiny, capsys, monkeypatch):
    engines = {"elsewhere": Entry("no_such_engine", "cpu"), "reference": Entry("layernorm.engines.reference", None)}
    monkeypatch.setattr(ln.backends, "ENGINES", engines)
    assert command.main(["doctor", "--check"]) == 0
    text = capsys.readouterr().out
    assert "all 8 cases are right" in text
    assert "not checked:\n  elsewhere: this version of layernorm does not contain it" in text


def swapped(d):
    """The gradients of two gates of an LSTM in each other's place."""
    return torch.cat([d[33:66], d[:33], d[66:]])


BROKEN = {
    "off by 1 %": (lambda d: d * 1.01, battery.TYPES[:2]),  # a 16-bit type holds three or two digits
    "a sign": (torch.neg, battery.TYPES),
    "one NaN": (lambda d: d.index_fill(0, torch.tensor([3]), float("nan")), battery.TYPES),
    "gates swapped": (swapped, battery.TYPES),
}


@native
@pytest.mark.parametrize("how", BROKEN)
def test_a_kernel_that_is_wrong(how, tiny, capsys, monkeypatch):
    """In one gradient, that of weight_hh."""
    change, types = BROKEN[how]
    engine = ln.backends.engine("native")
    backward = engine.recurrent_backward

    def broken(*args, **keywords):
        found = list(backward(*args, **keywords))
        found[4] = change(found[4])
        return found

    monkeypatch.setattr(engine, "recurrent_backward", broken)
    assert command.main(["doctor", "--check"]) == 1
    text, error = capsys.readouterr()
    rows = [line for line in text.splitlines() if line.startswith("LSTM") and "WRONG" in line]
    assert [line.split()[1] for line in rows] == [table.type_name(dtype) for dtype in types]
    for dtype in types:
        assert f"LSTM in {table.type_name(dtype)} by native on cpu" in error
    assert "reference on cpu" not in error
    assert "roundings: d weight_hh" in text
    assert "LSTM in float32 by native on cpu: paper, reverse, lengths and reset" in " ".join(text.split())
    assert "WRONG" not in text.split("reference on cpu")[1].split("wrong:")[0]
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.skipif("compiled" not in ln.backends.available(), reason="breaks the compiled engine")
def test_a_compiler_that_is_wrong(tiny, capsys, monkeypatch):
    """In what it makes of the steps back, with one sign turned."""

    def compiled(function):
        def run(*tensors):
            state, share = function(*tensors)
            return state, share._replace(dzx=-share.dzx)

        return run if function.__name__.startswith("backward_chunk") else function

    monkeypatch.setattr("layernorm.engines.compiled._compile.through_compiler", compiled)
    assert command.main(["doctor", "--check"]) == 1
    text, error = capsys.readouterr()
    for dtype in battery.TYPES:
        assert f"LSTM in {table.type_name(dtype)} by compiled on cpu" in error
    assert "reference on cpu" not in error
    assert "roundings: d input" in text


def test_an_engine_that_compiles_has_fewer_problems():
    few = battery.few()
    assert len(set(few)) == len(few)
    assert len(few) < len(battery.battery()) / 10
    for dtype in battery.TYPES:
        ops = {problem.op for problem, other in few if other == dtype}
        assert ops == {"layer_norm", "rms_norm", *battery.MODULES}
    # On a GPU torch's compiler joins sums over rows and over columns from these sizes on (Inductor's MixOrderReduction)
    norms = [problem for problem, _ in few if isinstance(problem, battery.Norm)]
    assert any(p.M >= 4096 and p.M >= 2 * p.N and p.M * p.N >= 5 * 2**20 for p in norms)


@native
def test_a_wrong_forward_an_exception_and_a_wrong_shape(tiny, capsys, monkeypatch):
    engine = ln.backends.engine("native")
    forward = engine.normalize_forward
    failures = [lambda y: y + 1e-4, None, lambda y: y[:2], lambda y: y]  # by type

    def broken(*args, **keywords):
        y, *rest = forward(*args, **keywords)
        change = failures[battery.TYPES.index(y.dtype)]
        if change is None:
            raise RuntimeError("out of registers")
        return [change(y), *rest]

    monkeypatch.setattr(engine, "normalize_forward", broken)
    assert command.main(["doctor", "--check"]) == 1
    text, error = capsys.readouterr()
    assert f"3 of {CASES} cases are wrong" in error
    text = " ".join(text.split())
    assert "roundings: inference: y " in text
    assert "RuntimeError: out of registers" in text
    assert text.count("RuntimeError: ") == 2  # the other one is torch's own


def test_the_equations_do_not_share_the_hand_derived_backward(monkeypatch):
    """A wrong backward of the reference is seen, too."""
    engine = ln.backends.engine("reference")
    backward = engine.recurrent_backward
    monkeypatch.setattr(engine, "recurrent_backward", lambda *args, **k: [d * 1.01 for d in backward(*args, **k)])
    comparison._expectation.cache_clear()
    for found in compare(Case("reference", "cpu", LSTM, torch.float32)):
        assert (found.share > 1) is found.gradient


@native
def test_what_has_no_kernel_is_not_counted(tiny, capsys, monkeypatch):
    engine = ln.backends.engine("native")
    supports, no = engine.supports, Support(False, "torch.bfloat16")
    monkeypatch.setattr(engine, "supports", lambda kind: no if kind.dtype == torch.bfloat16 else supports(kind))
    assert command.main(["doctor", "--check"]) == 0
    text = capsys.readouterr().out
    assert f"all {CASES - 2} cases are right" in text
    assert "LSTM in bfloat16 by native on cpu: no kernel for 1 cases" in text
    assert text.count("LSTM       bfloat16") == len(ln.backends.available()) - 1


def test_after_a_case_that_hangs_its_op_is_not_asked_again(tiny, capsys, monkeypatch):
    def answer(item):
        return [comparison.Deviation("y", False, 0.5, 1.0)] if isinstance(item, Case) else 1.0

    def hanging(function, items, limit):
        for item in items:
            lstm = function is compare and item.problem is LSTM and item.engine == "reference"
            yield item, Failure("no answer", hung=True) if lstm else answer(item)

    monkeypatch.setattr(check, "isolated", hanging)
    assert command.main(["doctor", "--check"]) == 1
    text, error = capsys.readouterr()
    assert error.endswith("cases are wrong: LSTM in float64 by reference on cpu\n")
    assert "LSTM by reference on cpu: 3 cases after one that gave no answer" in text


def behave(item):
    if item == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if item == "raise":
        raise ValueError("wrong")
    if item == "hang":
        time.sleep(60)
    return os.getpid()


def test_a_process_that_crashes_or_hangs_is_replaced():
    items = ["fine", "raise", "fine", "crash", "fine", "hang"]
    found = [result for _, result in isolated(behave, items, 2.0)]
    assert found[1] == Failure("ValueError: wrong")
    assert found[0] == found[2] != os.getpid()
    assert found[3] == Failure("the process was ended by SIGSEGV")
    assert isinstance(found[4], int)
    assert found[5] == Failure("no answer within 2 s", hung=True)
    assert isolation._describe_exit(3) == "ended with exit code 3"
    assert found[0] != found[4]


def test_the_battery_has_every_network_formula_and_type():
    found = battery.battery()
    assert len(set(found)) == len(found)
    for dtype in battery.TYPES:
        problems = [problem for problem, other in found if other == dtype]
        networks = {(p.network, p.norm, p.formula) for p in problems if isinstance(p, Recurrent)}
        for name, presets in PRESETS.items():
            assert {(network, "layer", name) for network in presets} <= networks
        assert {(network, norm, "paper") for network in battery.MODULES for norm in ("rms", None)} <= networks
        assert {p.op for p in problems if isinstance(p, Norm)} == {"layer_norm", "rms_norm"}
        for network in battery.MODULES:
            kinds = {(p.reverse, p.masked) for p in problems if p.op == network}
            assert len(kinds) == 4


def test_relative_times(monkeypatch):
    monkeypatch.setattr(timing, "NETWORK", {"cpu": (2, 2, 3)})
    monkeypatch.setattr(timing, "NORM", {"cpu": (2, 3)})
    monkeypatch.setattr(timing, "LEAST", 1e-4)
    for op in ("rms_norm", "GRU"):
        assert timing.relative_time(comparison.Row("reference", "cpu", op, torch.float32)) > 0

    def missing(*args, **keywords):
        raise RuntimeError("not implemented for 'Half'")

    monkeypatch.setattr("torch.nn.functional.rms_norm", missing)
    assert timing.relative_time(comparison.Row("reference", "cpu", "rms_norm", torch.float16)) is None


def test_progress_is_lines_where_there_is_no_terminal(capsys, monkeypatch):
    row = comparison.Row("native", "cpu", "GRU", torch.float32)
    monkeypatch.setattr(check, "LINE_SECONDS", 0.0)
    check._Progress(7, "cases").step(row)
    assert capsys.readouterr().err == "cases 1 of 7, 0 s: GRU in float32 by native on cpu\n"
