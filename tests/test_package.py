"""The package as tools look at it: its public names, its mark for type checkers."""

import fnmatch
import re
from pathlib import Path

import layernorm as ln

ROOT = Path(__file__).parents[1]


def test_dir_lists_the_public_names_alone():
    networks = ["GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNCell"]
    norms = ["BatchNorm", "LayerNorm", "RMSNorm"]
    modules = ["backends", "formula", "functional", "geometry", "interop", "nn"]
    expected = {*networks, *norms, *modules, "Formula", "convert", "__version__"}
    assert expected <= set(dir(ln))
    assert all(name == "__version__" or not name.startswith("_") for name in dir(ln))
    assert not {"engine", "plain", "reference", "schedule", "native", "TYPE_CHECKING"} & set(dir(ln))
    assert all(getattr(ln, name) is not None for name in dir(ln))


def test_every_name_that_the_package_exports_is_listed():
    source = Path(ln.__file__).read_text(encoding="utf-8")
    assert set(re.findall(r"import ([A-Za-z]\w*) as \1$", source, re.MULTILINE)) <= set(dir(ln))


def test_the_mark_for_type_checkers_is_in_the_wheel():
    mark = Path(ln.__file__).with_name("py.typed")
    assert mark.is_file()
    excluded = re.search(r"^wheel\.exclude = \[(.*)\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert not any(fnmatch.fnmatch(mark.name, pattern.strip(' "*')) for pattern in excluded.group(1).split(","))
