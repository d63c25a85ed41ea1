"""`convert`: torch's recurrent modules inside a network become layernorm's, with their weights."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast, overload

import torch
from torch.nn.utils.parametrize import type_before_parametrizations as own_class

from ..formula import Formula
from ..functional._networks import describe
from ..nn._gains import GainInit, check_gain_init
from ..nn._gru import GRU, GRUCell
from ..nn._lstm import LSTM, LSTMCell
from ..nn._normalised import Normalised, check_module
from ..nn._population import Norm, norm_name
from ..nn._rnn import RNN, RNNCell
from ._match import match_networks, named_networks

if TYPE_CHECKING:
    from typing_extensions import Unpack

TABLE: dict[type[torch.nn.Module], tuple[type[Normalised], tuple[str, ...]]] = {
    # torch's module: ours, and the constructor arguments to read off
    torch.nn.RNN: (RNN, ("num_layers", "nonlinearity", "bias", "batch_first", "dropout", "bidirectional")),
    torch.nn.LSTM: (LSTM, ("num_layers", "bias", "batch_first", "dropout", "bidirectional", "proj_size")),
    torch.nn.GRU: (GRU, ("num_layers", "bias", "batch_first", "dropout", "bidirectional")),
    torch.nn.RNNCell: (RNNCell, ("bias", "nonlinearity")),
    torch.nn.LSTMCell: (LSTMCell, ("bias",)),
    torch.nn.GRUCell: (GRUCell, ("bias",)),
}


class Options(TypedDict, total=False):
    """The keywords of `convert`."""

    formula: str | Formula
    eps: float | None
    gain_init: GainInit
    forget_bias: float | None
    zoneout: float | tuple[float, float]
    recurrent_dropout: float
    variational: bool
    gate_clip: float | None
    match: Sequence[Any] | None


Other = TypeVar("Other", bound=torch.nn.Module)


@overload
def convert(module: torch.nn.RNN, norm: Norm = "layer", **options: Unpack[Options]) -> RNN: ...
@overload
def convert(module: torch.nn.LSTM, norm: Norm = "layer", **options: Unpack[Options]) -> LSTM: ...
@overload
def convert(module: torch.nn.GRU, norm: Norm = "layer", **options: Unpack[Options]) -> GRU: ...
@overload
def convert(module: torch.nn.RNNCell, norm: Norm = "layer", **options: Unpack[Options]) -> RNNCell: ...
@overload
def convert(module: torch.nn.LSTMCell, norm: Norm = "layer", **options: Unpack[Options]) -> LSTMCell: ...
@overload
def convert(module: torch.nn.GRUCell, norm: Norm = "layer", **options: Unpack[Options]) -> GRUCell: ...
@overload
def convert(module: Other, norm: Norm = "layer", **options: Unpack[Options]) -> Other: ...
def convert(
    module: torch.nn.Module,
    norm: Norm = "layer",
    *,
    formula: str | Formula = "paper",
    eps: float | None = None,
    gain_init: GainInit = None,
    forget_bias: float | None = None,
    zoneout: float | tuple[float, float] = 0.0,
    recurrent_dropout: float = 0.0,
    variational: bool = False,
    gate_clip: float | None = None,
    match: Sequence[Any] | None = None,
) -> torch.nn.Module:
    """Swaps every `torch.nn.RNN`, `LSTM`, `GRU` and their cells inside a module for layernorm's, keeping the weights.

    Parameters that both have stay the same objects, so that ties, optimisers and ``requires_grad`` stay valid. Under
    ``norm="weight"`` the weights are computed, and their directions are copies. The gains and the cell's bias are new,
    on the same device and of the same type. Subclasses of torch's modules stay as they are, with a warning, because
    what they add could not be kept.

    The network then computes another function, so it has to be trained again. With ``match`` it starts closer to
    torch's network: each gain is the size that the vector under its norm has there.

    Args:
        module: any module. It is changed in place, unless it is itself one of torch's recurrent modules.
        norm, formula, eps, gain_init, zoneout, recurrent_dropout, variational, gate_clip: as in `LSTM`.
        forget_bias: as in `LSTM`; it is written into the biases of the gate that keeps the old state. ``None``: all
            biases are kept.
        match: a tuple of the inputs that the module is called with. After the swap the gains of the new modules are set
            as `layernorm.match` sets them; if ``gain_init`` is a mapping, only those that are ``"match"`` in it. To
            call the module with keywords, or to see the gains, use `layernorm.match` instead. ``None``: the gains are
            ``gain_init``.

    Returns:
        The module, or the new one that takes its place.

    Raises:
        TypeError: ``module`` is no module, ``match`` is no tuple or list, one of the networks does not have an argument
            that is given, or a constructor raises it.
        ValueError: a constructor raises it, or a module has something that could not be kept. This is a hook; a weight
            that is computed (weight norm and other parametrizations, pruning); a parameter, buffer, submodule,
            ``forward`` or other attribute that a new module of torch's class does not have; or, for weight norm, a row
            of zeros. With ``match``, `layernorm.match` raises it.

    After an error nothing has been changed, whatever the call with ``match`` raised.

    Example::

        model = ln.convert(torch.nn.Sequential(torch.nn.LSTM(28, 128)))
    """
    check_module("convert", module)
    if match is not None and type(match) not in (tuple, list):  # a packed sequence is a subclass of tuple
        raise TypeError(f"convert: expected match to be a tuple of the inputs, got {type(match).__name__}")
    check_gain_init(gain_init)
    measured = gain_init.values() if isinstance(gain_init, Mapping) else [gain_init]
    if match is not None and gain_init is not None and "match" not in measured:
        raise ValueError(
            f"convert: match measures the gains that gain_init={gain_init!r} sets; expected gain_init to be None, "
            "'match' or a mapping with 'match' for the gains to be measured"
        )
    keywords: dict[str, Any] = {"norm": norm, "formula": formula, "eps": eps, "gain_init": gain_init}
    more: dict[str, tuple[Any, Any]] = {  # and what the constructors have by themselves
        "forget_bias": (forget_bias, None),
        "zoneout": (zoneout, 0.0),
        "recurrent_dropout": (recurrent_dropout, 0.0),
        "variational": (variational, False),
        "gate_clip": (gate_clip, None),
    }
    keywords |= {name: value for name, (value, default) in more.items() if value != default}
    replacements = {
        id(old): _convert_one(name or "the module", old, keywords)
        for name, old in module.named_modules()
        if own_class(old) in TABLE
    }
    if not replacements:
        describe("LSTM", norm_name(norm), formula, eps, bias=True)  # refuses a wrong name here, too
    _warn_of_unconverted(module, converted=bool(replacements))
    children = [
        (parent, name, child)
        for parent in list(module.modules())
        for name, child in parent._modules.items()
        if id(child) in replacements
    ]
    for parent, name, child in children:
        parent._modules[name] = replacements[id(child)]
    converted = replacements.get(id(module), module)
    biases = [(part, part.clone()) for new in replacements.values() for part in new._forget_biases()]
    for replacement in replacements.values():
        replacement._set_forget_bias()
    if match is not None:
        try:
            new = {name: part for name, part in named_networks(converted).items() if part in replacements.values()}
            match_networks(converted, new, match, {}, "match" if gain_init is None else gain_init)
        except BaseException:
            for parent, name, child in children:
                parent._modules[name] = child
            for part, before in biases:
                part.copy_(before)
            raise
    return converted


def nothing_in(module: torch.nn.Module) -> str:
    """Says that a module has nothing of torch's to change."""
    scripted = any(isinstance(part, torch.jit.ScriptModule) for part in module.modules())
    text = f"no RNN, LSTM, GRU or cell of torch.nn in {type(module).__name__}"
    if ours := sorted({own_class(part).__name__ for part in module.modules() if isinstance(part, Normalised)}):
        text += f"; already layernorm's: {', '.join(ours)}"
    return text + ("; what torch.jit has scripted or traced cannot be changed" if scripted else "")


def _warn_of_unconverted(module: torch.nn.Module, converted: bool) -> None:
    """Warns of what a caller may have expected to be converted and was not."""
    accelerated, subclasses = list[str](), list[str]()
    for name, part in module.named_modules():
        before = getattr(part, "_class_before", None)
        if before is not None:
            accelerated.append(f"{name or 'the module'} ({before.__name__})")
        elif issubclass(own_class(part), tuple(TABLE)) and own_class(part) not in TABLE:
            subclasses.append(f"{name or 'the module'} ({own_class(part).__name__})")
    warned = [] if converted or accelerated or subclasses else [nothing_in(module)]
    if accelerated:
        warned.append(f"not changed, as accelerated; call layernorm.restore(model) first: {', '.join(accelerated)}")
    if subclasses:
        warned.append(f"not changed, as subclasses of torch's modules: {', '.join(subclasses)}")
    if warned:
        warnings.warn(f"convert: {'; '.join(warned)}", stacklevel=3)


def _lost_names(old: torch.nn.Module, bare: torch.nn.Module) -> list[str]:
    """Returns the names of what a module has and a new one of its class has not, and of parameters that it has lost.

    A weight that is no parameter any more is computed.
    """
    computed = [name for name in bare._parameters if name not in old._parameters]
    parts: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...]
    parts = ((old._parameters, bare._parameters), (old._buffers, bare._buffers), (old._modules, bare._modules))
    added = [name for of_old, of_bare in parts for name in of_old if name not in of_bare]
    hooks = [name.strip("_") for name, registered in vars(old).items() if name.endswith("_hooks") and registered]
    attributes = ["what compile() made" if name == "_compiled_call_impl" else name
                  for name in vars(old) if name not in vars(bare) and not name.startswith("__")]  # fmt: skip
    return list(dict.fromkeys([*computed, *hooks, *added, *attributes]))


def constructor_arguments(old: torch.nn.Module, theirs: type[torch.nn.Module]) -> dict[str, Any]:
    """Returns the arguments that a module of torch's was made with, without device and type.

    An RNN computes what ``mode`` says.
    """
    found = {name: getattr(old, name) for name in ("input_size", "hidden_size", *TABLE[theirs][1])}
    found["bias"] = bool(found["bias"])  # torch's cells take whatever is true
    if issubclass(theirs, torch.nn.RNN):
        found["nonlinearity"] = str(old.mode).removeprefix("RNN_").lower()
    return found


def bare_like(old: torch.nn.Module, theirs: type[torch.nn.Module]) -> torch.nn.Module:
    """Makes a new module of torch's class with the same arguments, without memory."""
    return cast(Any, theirs)(**constructor_arguments(old, theirs), device="meta")


def _convert_one(name: str, old: torch.nn.Module, keywords: dict[str, Any]) -> Normalised:
    theirs = own_class(old)
    ours, title = TABLE[theirs][0], f"{name} ({theirs.__name__})"
    unknown = [name for name in keywords if name not in inspect.signature(ours).parameters]
    if unknown:
        raise TypeError(
            f"convert: {ours.__name__} has no {', '.join(unknown)}; convert the networks that have it one by one"
        )
    lost = _lost_names(old, bare_like(old, theirs))
    if lost:
        raise ValueError(
            f"convert: cannot keep {', '.join(lost)} of {title}; convert first, then add what torch's module does not "
            "have"
        )
    like = next(old.parameters())
    with torch.random.fork_rng(devices=[like.device] if like.is_cuda else []):
        try:
            new = ours(**constructor_arguments(old, theirs), device=like.device, dtype=like.dtype, **keywords)
        except ValueError as error:
            raise ValueError(f"convert: {title}: {error}") from error
    for key, parameter in old._parameters.items():
        if key in new._parameters:
            new._parameters[key] = parameter
        elif parameter is not None and hasattr(new, key):  # weight norm computes it
            zero = [] if parameter.is_meta else (parameter == 0).all(1).nonzero().flatten().tolist()
            if zero:
                raise ValueError(
                    f"convert: weight norm cannot keep {key} of {title}: row {zero[0]} is zero, which has no direction"
                )
            setattr(new, key, parameter.detach())
            new._set_gain(key)
            for original in new.get_submodule(f"parametrizations.{key}").parameters():
                original.requires_grad_(parameter.requires_grad)
    return new.train(old.training)
