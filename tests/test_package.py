"""The package as tools look at it: its public names, its mark for type checkers."""

import fnmatch
import re
from pathlib import Path

import pytest
import yaml

import layernorm as ln
from support.repository import ROOT


def test_dir_lists_the_public_names_alone():
    networks = ["GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNCell"]
    norms = ["BatchNorm", "LayerNorm", "RMSNorm"]
    modules = ["backends", "formula", "functional", "geometry", "interop", "nn"]
    expected = {*networks, *norms, *modules, "Formula", "accelerate", "restore", "convert", "match", "__version__"}
    assert expected <= set(dir(ln))
    assert all(name == "__version__" or not name.startswith("_") for name in dir(ln))
    assert not {"engines", "TYPE_CHECKING"} & set(dir(ln))
    assert all(getattr(ln, name) is not None for name in dir(ln))


def test_every_name_that_the_package_exports_is_listed():
    source = Path(ln.__file__).read_text(encoding="utf-8")
    assert set(re.findall(r"import ([A-Za-z]\w*) as \1$", source, re.MULTILINE)) <= set(dir(ln))


def test_the_mark_for_type_checkers_is_in_the_wheel():
    mark = Path(ln.__file__).with_name("py.typed")
    assert mark.is_file()
    excluded = re.search(r"^wheel\.exclude = \[(.*)\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert not any(fnmatch.fnmatch(mark.name, pattern.strip(' "*')) for pattern in excluded.group(1).split(","))


@pytest.mark.parametrize("name", ["test.yml", "wheels.yml"])
def test_the_workflows_run_on_linux_arm_macos_and_windows(name):
    """Each is YAML with jobs; the matrix of the first one and a job of its own cover the systems."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))
    assert all(job["steps"] for job in workflow["jobs"].values())
    (first, *others) = workflow["jobs"].values()
    named = [*first["strategy"]["matrix"]["system"], *(job["runs-on"] for job in others)]
    assert {re.sub(r"-[\d.]+", "", system) for system in named} == {"ubuntu", "ubuntu-arm", "macos", "windows"}


def test_the_version_is_the_same_everywhere():
    pages = [(ROOT / folder / "pyproject.toml").read_text(encoding="utf-8") for folder in (".", "lab")]
    found = [version for page in pages for version in re.findall(r'^version = "(.*)"', page, re.M)]
    assert found == [ln.__version__] * 2
    assert f'"layernorm=={ln.__version__}"' in pages[1]


def test_the_picture_of_the_houses_has_every_room():
    """benchmarks/houses.py draws it from the imports."""
    said = re.findall(r">([\w ]+)</text>", (ROOT / "docs" / "houses.svg").read_text(encoding="utf-8"))
    for house in (ROOT / "src" / "layernorm", ROOT / "lab" / "src" / "layernorm_lab"):
        rooms = {path.stem for path in house.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
        assert rooms - {"__init__", "__main__"} <= set(said)


def test_only_a_tag_is_published_and_only_what_was_built_and_tested():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text(encoding="utf-8"))
    jobs = workflow["jobs"]
    publish = jobs.pop("publish")
    assert publish["if"] == "github.event_name == 'push' && startsWith(github.ref, 'refs/tags/v')"
    assert set(publish["needs"]) == set(jobs)
    assert publish["permissions"] == {"id-token": "write"}
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow[True]["push"] == {"tags": ["v*"]}  # YAML 1.1 reads `on` as true


def test_every_list_of_pythons_is_the_same():
    """pyproject.toml's classifiers and wheels, the oldest Python that it and mypy name, and the workflow's matrix."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    classifiers = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    assert [f"cp{version.replace('.', '')}" for version in classifiers] == re.findall(r'"(cp3\d+)-\*"', project)
    assert re.findall(r'^(?:requires-python = ">=|python_version = ")(.*)"', project, re.M) == [classifiers[0]] * 2
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == classifiers
