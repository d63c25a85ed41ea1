"""Checkpoints: tensors and a JSON header in one safetensors file. Nothing is pickled: reading executes nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import RunError, reason
from .files import write_atomic

Tensors = dict[str, Tensor]


def save(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Writes a checkpoint atomically: a failure leaves the previous one whole.

    Args:
        path: where to.
        tensors: what to keep, by name, on any device.
        header: JSON values to keep beside them.

    Raises:
        RunError: the file cannot be written (the disk is full, the folder is gone).
    """
    from safetensors.torch import save as serialise

    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {"header": json.dumps(header), "sha256": _digest(whole)}
    try:
        write_atomic(path, serialise(whole, metadata=metadata))
    except RunError as error:
        kept = "; the previous checkpoint is whole" if path.exists() else ""
        raise RunError(f"{error}{kept}") from error


def load(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """Reads a checkpoint and checks that it is whole.

    Returns:
        the tensors by name, on the CPU, and the header.

    Raises:
        RunError: the file is truncated, altered or not a checkpoint.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # cloned: tensors that map the file would change or vanish with it
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a mapping
        header = json.loads(metadata["header"])
        whole = _digest(tensors) == metadata["sha256"]
    except OSError as error:
        raise RunError(f"cannot read {path}: {reason(error)}") from error
    except (SafetensorError, ValueError, KeyError) as error:
        raise RunError(f"{path} is damaged or not a checkpoint ({error}); {_ADVICE}") from error
    if not whole:
        raise RunError(f"{path} is damaged (its content does not match its SHA-256); {_ADVICE}")
    return tensors, header


def header(path: Path) -> dict[str, Any]:
    """A checkpoint's header alone, its tensors left unread; empty if there is no readable checkpoint."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return json.loads((file.metadata() or {})["header"])
    except (OSError, SafetensorError, ValueError, KeyError):
        return {}


_ADVICE = "put a whole copy back, or begin that run again with --restart"


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> tuple[Tensors, list[dict[str, Any]]]:
    """An optimiser's state as named tensors, and its settings (learning rate and so on) as JSON values."""
    state = optimizer.state_dict()
    tensors = {
        f"{index}.{name}": torch.as_tensor(value)
        for index, values in state["state"].items()
        for name, value in values.items()
    }
    return tensors, state["param_groups"]


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], groups: list[dict]) -> None:
    """Puts back what `optimizer_tensors` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    groups = [{k: tuple(v) if k == "betas" else v for k, v in group.items()} for group in groups]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """The same tensors under `prefix/name`."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """The tensors under `prefix/`, without the prefix."""
    return {name[len(prefix) + 1 :]: t for name, t in tensors.items() if name.startswith(f"{prefix}/")}


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        # reshape(-1) first: a 0-d tensor cannot be viewed as bytes
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
