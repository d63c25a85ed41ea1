"""The tasks by name."""

from __future__ import annotations

import importlib
from typing import get_args

from .program import Program, TaskName

PROGRAMS: dict[TaskName, Program] = {
    name: importlib.import_module(f".tasks.{name}", __package__).PROGRAM for name in get_args(TaskName)
}
