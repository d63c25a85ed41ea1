"""`torch.onnx.export` knows layernorm's ops without a ``custom_translation_table``.

The exporter asks onnxscript for the translations of all ops at every export. onnxscript takes seconds to import, so
layernorm does not import it: it adds its own translations right after the exporter has imported onnxscript's.
"""

from __future__ import annotations

import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

_TRANSLATIONS = "onnxscript.function_libs.torch_lib.ops"
"""The module that registers onnxscript's translations, which the first export imports."""


class _AfterTranslations(MetaPathFinder):
    """Finds the module of onnxscript's translations as Python does, and calls `_register` after it was run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _TRANSLATIONS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        loader = None if spec is None else spec.loader
        if loader is None:
            return None
        run = loader.exec_module

        def run_and_register(module: ModuleType) -> None:
            run(module)
            _register()

        loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


def _register() -> None:
    """Adds layernorm's translations to onnxscript's registry. Where that fails it says what to do instead."""
    try:
        from onnxscript.function_libs.torch_lib.registration import default_registry, torch_op

        from .onnx import translations

        for op, function in translations().items():
            if op.name() not in default_registry:
                torch_op(op.name(), trace_only=True)(function)
    except Exception as error:
        warnings.warn(
            "layernorm could not tell torch.onnx.export of its ops; pass "
            f"custom_translation_table=layernorm.onnx.translations() to it ({type(error).__name__}: {error})",
            stacklevel=2,
        )


if _TRANSLATIONS in sys.modules:
    _register()
else:
    sys.meta_path.insert(0, _AfterTranslations())
