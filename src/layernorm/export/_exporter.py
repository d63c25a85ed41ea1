"""`torch.onnx.export` knows layernorm's ops without a ``custom_translation_table``.

The exporter asks onnxscript for the translations of all ops at every export. onnxscript takes seconds to import, so
layernorm does not import it: it adds its own translations right after the exporter has imported onnxscript's. A finder
in `sys.meta_path` notices that import. There is no way without one: neither PyTorch nor onnxscript has an entry point
for other packages' translations, and both import theirs inside the export.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_TRANSLATIONS = "onnxscript.function_libs.torch_lib.ops"
"""The module that registers onnxscript's translations, which the first export imports."""


class _RegisteringLoader:
    """Loads a module as the given loader does, and calls `_register` afterwards."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        _register()


class _AfterTranslations(MetaPathFinder):
    """Finds the module of onnxscript's translations where Python would, and has `_register` called after it was run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _TRANSLATIONS:
            return None
        # Python has asked the finders before this one, which did not find the module
        others = itertools.dropwhile(lambda finder: finder is not self, list(sys.meta_path))
        for finder in itertools.islice(others, 1, None):
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _RegisteringLoader(spec.loader)  # type: ignore[assignment]
                return spec
        return None


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
