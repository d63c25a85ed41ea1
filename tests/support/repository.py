"""The repository, and its programs as modules."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def loaded(path):
    """The module of a program, which is found by its name as an imported one is."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module
