"""Which PyTorch layernorm runs on, and what it says to another one."""

import ast
import re
import sys
from operator import attrgetter
from pathlib import Path

import pytest
import torch

import layernorm
from layernorm import _torch
from support.processes import python
from support.repository import ROOT, loaded

SOURCES = sorted(Path(layernorm.__file__).parent.rglob("*.py"))


def private_names(path):
    """The names that a file reaches from `torch` and that have a part with a leading underscore."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names, found = {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
            names |= {alias.asname or "torch": alias.name if alias.asname else "torch" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    found |= set(names.values())
    for node in ast.walk(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts, node = [node.attr, *parts], node.value
        if parts and isinstance(node, ast.Name) and node.id in names:
            found.add(".".join([names[node.id], *parts]))
    return {name for name in found if re.match(r"torch\.(.*\.)?_[^_]", name)}


def test_the_private_names_are_those_that_the_sources_use():
    used = set().union(*(private_names(path) for path in SOURCES if path.name != "_torch.py"))
    longest = {name for name in used if not any(other.startswith(f"{name}.") for other in used)}
    assert longest == set(_torch.NEEDED) | set(_torch.LATER)


def test_each_private_name_is_there():
    import torch._dynamo
    import torch._inductor.codegen.common

    for name in (*_torch.NEEDED, *_torch.LATER):
        attrgetter(name.removeprefix("torch."))(torch)


@pytest.mark.parametrize("found", ["2.11.0", "2.9.1+cu128", "1.13.1"])
def test_an_older_pytorch_is_refused_in_words(monkeypatch, found):
    monkeypatch.setattr(torch, "__version__", found)
    with pytest.raises(ImportError, match=rf"needs PyTorch {_torch.OLDEST} or newer, and found {re.escape(found)}"):
        _torch.check()


@pytest.mark.parametrize("found", [f"{_torch.OLDEST}.0", "2.100.0a0+gitabc", "3.0.0", "unknown"])
def test_another_one_is_taken(monkeypatch, found):
    monkeypatch.setattr(torch, "__version__", found)
    _torch.check()


def test_a_name_that_is_missing_is_named(monkeypatch):
    monkeypatch.delattr(torch._C, "_is_tracing")
    with pytest.raises(ImportError, match=r"uses torch\._C\._is_tracing, which PyTorch .* does not have \(for: "):
        _torch.check()


@pytest.mark.parametrize("module", ["layernorm", "layernorm.formula", "layernorm.nn"])
def test_the_import_is_refused(module):
    code = f"import torch; torch.__version__ = '2.11.0'; import {module}"
    done = python(code, check=False)
    message = "ImportError: layernorm needs PyTorch 2.12 or newer, and found 2.11.0: pip install 'torch>=2.12'"
    assert done.stderr.splitlines()[-1] == message


def test_the_oldest_version_is_the_same_everywhere():
    """pip's requirement, the pages, and the versions of the nightly workflow."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.findall(r'"torch>=([\d.]+)"', project) == [_torch.OLDEST]
    for page in ("README.md", "docs/install.md"):
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert re.findall(r"PyTorch ([\d.]+\d) or newer", text) == [_torch.OLDEST], page
    assert f"torch>={_torch.OLDEST})" in (ROOT / "constraints.txt").read_text(encoding="utf-8")
    nightly = (ROOT / ".github" / "workflows" / "torch.yml").read_text(encoding="utf-8")
    assert f'"{_torch.OLDEST}.0"' in nightly


def test_the_table_of_what_ran(tmp_path, monkeypatch, capsys):
    """`benchmarks/torch_versions.py`: every test in one area, counted as pytest wrote it."""
    cases = [
        ("tests.compiled.test_compiled", "test_a", ""),
        ("tests.functional.test_torch_features", "test_inductor_compiles_it", "<failure/>"),
        ("tests.functional.test_torch_features", "test_autocast", ""),
        ("tests.nn.test_norms", "test_b", "<skipped/>"),
        ("tests.equations.test_backward", "test_d", ""),
        ("lab.tests.experiments.mnist.test_mnist", "test_c", "<error/>"),
    ]
    written = "".join(f'<testcase classname="{file}" name="{name}">{inside}</testcase>' for file, name, inside in cases)
    file = tmp_path / "torch-2.12.0-python-3.11.xml"
    file.write_text(f"<testsuites><testsuite>{written}</testsuite></testsuites>")
    monkeypatch.setattr(sys, "argv", ["torch_versions.py", str(file)])
    loaded("benchmarks/torch_versions.py").main()
    heads, _, row = (line.strip("|").split("|") for line in capsys.readouterr().out.splitlines())
    found = {head.strip(): cell.strip() for head, cell in zip(heads, row, strict=True) if cell.strip()}
    assert found == {
        "run": "torch-2.12.0-python-3.11",
        "compile": "1, 1 failed",
        "engines": "1",
        "networks": "1",
        "norms": "0",
        "the rest": "0, 1 failed",
    }
