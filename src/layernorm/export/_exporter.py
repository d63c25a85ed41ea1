"""`torch.onnx.export` knows layernorm's ops without a ``custom_translation_table``.

The exporter asks onnxscript for the translations of all ops at every export. onnxscript takes seconds to import, so
layernorm does not import it: it adds its own translations right after the exporter has imported onnxscript's. A finder
in `sys.meta_path` notices that import. There is no way without one: neither PyTorch nor onnxscript has an entry point
for other packages' translations, and both import theirs inside the export. The old exporter, ``dynamo=False``, is told
in the same way to refuse the ops.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn


class _Loader:
    """Loads a module as the given loader does, and calls a function afterwards."""

    def __init__(self, loader: Any, then: Callable[[], None]) -> None:
        self.loader, self.then = loader, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        self.then()


class _Finder(MetaPathFinder):
    """Finds the modules in `_AFTER` where Python would, and has the function called after each was run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _AFTER:
            return None
        # Python has asked the finders before this one, which did not find the module
        others = itertools.dropwhile(lambda finder: finder is not self, list(sys.meta_path))
        for finder in itertools.islice(others, 1, None):
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, _AFTER[fullname])  # type: ignore[assignment]
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


def _refuse_with_old_exporter() -> None:
    """Has ``torch.onnx.export(..., dynamo=False)`` say what to do instead, where it is still there."""
    register = getattr(sys.modules["torch.onnx"], "register_custom_op_symbolic", None)
    if register is not None:
        with contextlib.suppress(Exception):  # the old exporter's own error stays then; the import must not fail
            for name in ("normalize", "recurrent"):
                register(f"layernorm::{name}", _refuse, 9)


def _refuse(*arguments: Any, **options: Any) -> NoReturn:
    raise RuntimeError(
        "torch.onnx.export: layernorm's modules need dynamo=True. For the old exporter, dynamo=False, export "
        "layernorm.portable(model), of an accelerated model after layernorm.restore(model)"
    )


_AFTER: Mapping[str, Callable[[], None]] = {
    "onnxscript.function_libs.torch_lib.ops": _register,  # the module of onnxscript's own translations
    "torch.onnx": _refuse_with_old_exporter,
}
"""What is called after the import of a module."""

for _name, _then in _AFTER.items():
    if _name in sys.modules:
        _then()
if not _AFTER.keys() <= sys.modules.keys():
    sys.meta_path.insert(0, _Finder())
