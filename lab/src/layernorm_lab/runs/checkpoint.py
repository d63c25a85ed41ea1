"""Checkpoints: tensors and a JSON header in one safetensors file. Nothing is pickled, so reading executes no code.

The header holds the SHA-256 of the tensors (`_tensors_digest`), and its own (`schema.sealed`). `load_checkpoint`
compares the first, `files.parse_json` the second, in whatever is read.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor

from ..errors import RunError, reason
from .files import ADVICE, check_regular, parse_json, write_atomic
from .schema import filled, sealed

Tensors = dict[str, Tensor]


@dataclass
class State:
    """The counters of a run being trained."""

    update: int = 0
    records: int = 0
    seconds: float = 0.0  # of wall time, over all starts
    train_seconds: float = 0.0  # of these, in updates
    losses: int = 0  # updates in the running training loss
    first_gradient_norm: float | None = None  # of update 0, before anything is clipped; None: it is not finite
    kept_update: int = 0  # the update after which the kept model was evaluated; 0: none is kept yet
    kept_score: float = 0.0  # its value of the metric that `Task.keep` names
    diverged: int | None = None  # the update whose evaluation showed that the run had diverged
    metrics: dict[str, float] = field(default_factory=dict)  # of the last evaluation


@dataclass
class Header:
    """The part of a run's checkpoint that is not tensors: counters, the optimiser's settings, number of processes."""

    state: State
    groups: list[dict[str, Any]]
    processes: int


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Writes tensors, on any device, and JSON values as a checkpoint, atomically: a failure leaves the previous one
    complete."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {"header": json.dumps(sealed({"values": header, "tensors": _tensors_digest(whole)}))}
    try:
        write_atomic(path, serialise(whole, metadata=metadata))
    except RunError as error:
        kept = "; the previous checkpoint is whole" if path.exists() else ""
        raise RunError(f"{error}{kept}") from error


def load_checkpoint(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """Reads a checkpoint: the tensors by name, on the CPU, and the header. A changed file is a RunError."""
    tensors, header = _read_checkpoint(path)
    if _tensors_digest(tensors) != header["tensors"]:
        raise RunError(f"{path} is damaged (its content does not match its SHA-256); {ADVICE}")
    return tensors, header["values"]


def load_run_checkpoint(path: Path) -> tuple[Tensors, Header]:
    """Reads the checkpoint of a run, and checks that the header has everything it should have."""
    tensors, header = load_checkpoint(path)
    try:
        return tensors, filled(Header, header)
    except ValueError as error:
        raise RunError(f"{path} {error}; {ADVICE}") from error


def read_state(path: Path) -> State | None:
    """Reads a checkpoint's counters without its tensors. None: there is no readable checkpoint of a run."""
    try:
        return filled(Header, _read_checkpoint(path, only_header=True)[1]["values"]).state
    except (RunError, ValueError):
        return None


def _read_checkpoint(path: Path, only_header: bool = False) -> tuple[Tensors, dict[str, Any]]:
    """Reads a file's tensors and its checked header, which has `values` and, as `tensors`, the digest of the
    tensors."""
    tensors: Tensors = {}
    check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {})["header"]
            if not only_header:
                # cloned: tensors that map the file would change or vanish with it
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - no mapping
    except OSError as error:
        raise RunError(f"cannot read {path}: {reason(error)}") from error
    except (SafetensorError, ValueError, KeyError) as error:
        raise RunError(f"{path} is damaged or not a checkpoint ({error}); {ADVICE}") from error
    header = parse_json(text.encode(), f"{path}, its header,")
    if header.keys() != {"values", "tensors"}:
        raise RunError(f"{path} has no whole header; {ADVICE}")
    return tensors, header


def check_alike(what: str, expected: Mapping[str, Tensor], read: Mapping[str, Tensor]) -> None:
    """Raises a ValueError if tensors from a file differ in name, shape or type from those that they will replace.
    `what` names them in the message."""
    for has, names in (("lacks", expected.keys() - read.keys()), ("has an unknown", read.keys() - expected.keys())):
        if names:
            raise ValueError(f"{what} {has} {min(names)}")
    for name, tensor in expected.items():
        if (read[name].shape, read[name].dtype) != (tensor.shape, tensor.dtype):
            raise ValueError(f"{what} has {name} as {_type_and_shape(read[name])}, not {_type_and_shape(tensor)}")


def _type_and_shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> tuple[Tensors, list[dict[str, Any]]]:
    """Returns an optimiser's state as named tensors, and its settings (learning rate and so on) as JSON values."""
    state = optimizer.state_dict()
    tensors = {
        f"{index}.{name}": torch.as_tensor(value)
        for index, values in state["state"].items()
        for name, value in values.items()
    }
    return tensors, json.loads(json.dumps(state["param_groups"]))  # tuples become lists, as in a file


def _check_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], groups: list[dict]) -> None:
    """Raises ValueError if a state and settings differ from those that an optimiser has for its parameters."""
    _, own = optimizer_tensors(optimizer)
    if len(groups) != len(own):
        raise ValueError(f"the optimiser has {len(groups)} groups of parameters, not {len(own)}")
    for there, here in zip(groups, own, strict=True):
        for name in dict.fromkeys([*here, *there]):
            if name not in there or name not in here:
                raise ValueError(f"the optimiser's settings {'lack' if name in here else 'have an unknown'} {name}")
            if _types(there[name]) != _types(here[name]) or (name == "params" and there[name] != here[name]):
                raise ValueError(f"the optimiser's settings have {name} as {there[name]}, not as {here[name]}")
    # a parameter that never had a gradient has no state
    begun = {key.split(".", 1)[0] for key in tensors}
    expected = {key: tensor for key, tensor in _after_a_step(optimizer).items() if key.split(".", 1)[0] in begun}
    check_alike("the optimiser's state", expected, tensors)


def _types(value: Any) -> Any:
    return [_types(item) for item in value] if isinstance(value, list) else type(value)


def _after_a_step(optimizer: torch.optim.Optimizer) -> Tensors:
    """Makes the state that an optimiser has after a step, as tensors on the device `meta`. A copy takes a step over
    parameters of one element each, which shows its state's names and types."""
    probe = copy.copy(optimizer)
    probe.state = defaultdict(dict)
    probe.param_groups = []
    real = []
    for group in optimizer.param_groups:
        small = [torch.zeros(1, 1, 1, 1, 1, dtype=item.dtype, device=item.device) for item in group["params"]]
        for item in small:
            item.grad = torch.zeros_like(item)
        probe.param_groups.append({**group, "params": small})
        real += group["params"]
    probe.step()
    state = {}
    for key, tensor in optimizer_tensors(probe)[0].items():
        shape = real[int(key.split(".", 1)[0])].shape if tensor.dim() == 5 else tensor.shape
        state[key] = torch.empty(shape, dtype=tensor.dtype, device="meta")
    return state


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], groups: list[dict]) -> None:
    """Loads into an optimiser what `optimizer_tensors` returned. If that is of another one, it is a ValueError, and
    nothing is loaded."""
    _check_optimizer(optimizer, tensors, groups)
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    groups = [{k: tuple(v) if k == "betas" else v for k, v in group.items()} for group in groups]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Returns the same tensors under `prefix/name`."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Returns the tensors under `prefix/`, without the prefix."""
    return {name[len(prefix) + 1 :]: t for name, t in tensors.items() if name.startswith(f"{prefix}/")}


def _tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        # reshape(-1) first: a 0-d tensor cannot be viewed as bytes
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # a buffer
    return digest.hexdigest()
