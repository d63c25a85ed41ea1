"""`accelerate`: torch's recurrent modules inside a network compute with layernorm's engine; `restore` undoes it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, TypeVar, cast

import torch
from torch.nn.utils.parametrize import is_parametrized

from .. import backends
from ..nn._normalised import check_module
from ._convert import TABLE, bare_like, constructor_arguments, nothing_in
from ._torchs_faster import RULES

_OF_FORWARD = (
    *("check_forward_args", "check_input", "check_hidden_size", "permute_hidden"),
    *("get_expected_hidden_size", "get_expected_cell_size"),
)
"""The methods that the forward of torch's modules calls, and layernorm's does not."""

_STRUCTURE = ("input_size", "hidden_size", "bias", "num_layers", "bidirectional", "proj_size")
"""The attributes that say which parameters there are; a cell has the first three."""

Module = TypeVar("Module", bound=torch.nn.Module)


class Accelerated(torch.nn.Module):
    """The base class that `accelerate` adds to a module's class.

    The module's attributes are torch's own. A call follows ``mode`` of an `RNN` and ``nonlinearity`` of an `RNNCell`,
    as torch's does, and refuses other sizes, layers and directions than those at `accelerate`.

    In the order in which methods are looked up, its class has a user's subclass first, then the forward of layernorm's
    module, then torch's class, and layernorm's last. So a subclass whose own ``forward`` calls torch's calls
    layernorm's.
    """

    _class_before: ClassVar[type[torch.nn.Module]]
    _names_added: list[str]
    _structure: tuple[Any, ...]
    _way_out = "; call layernorm.restore first"

    def __init__(self, *args: Any, **keywords: Any) -> None:
        theirs = _torch_class(type(self))
        own_draws = cast(Any, type(self)).reset_parameters is not theirs.reset_parameters
        with torch.random.fork_rng(devices=[], enabled=own_draws):
            made = theirs(*args, **keywords)  # a subclass calls this from its own constructor
        attributes = _attributes_to_add(made)
        if isinstance(attributes, str):
            raise RuntimeError(f"{type(self).__name__}: a new one cannot be accelerated: {attributes}")
        vars(self).update(vars(made), **attributes)
        if own_draws:
            cast(Any, self).reset_parameters()

    def _follow_attributes(self) -> None:
        """Follows torch's attributes that have an effect in torch's forward.

        Raises:
            RuntimeError: one of the others has been changed.
        """
        if _structure(self) != self._structure:
            changed = dict(zip(_STRUCTURE, zip(self._structure, _structure(self), strict=True), strict=False))
            name, (before, now) = next((name, pair) for name, pair in changed.items() if pair[0] != pair[1])
            raise RuntimeError(
                f"{type(self).__name__}: {name} was {before!r} when it was accelerated, and is {now!r} now; call "
                "layernorm.restore first"
            )
        if isinstance(self, torch.nn.RNN):
            functions = {"RNN_TANH": "tanh", "RNN_RELU": "relu"}
            if self.mode not in functions:
                raise ValueError(f"{type(self).__name__}: expected mode to be one of {[*functions]}, got {self.mode!r}")
            cast(Any, self)._set_nonlinearity(functions[self.mode])
        elif isinstance(self, torch.nn.RNNCell):
            cast(Any, self)._set_nonlinearity(self.nonlinearity)

    def extra_repr(self) -> str:
        return super().extra_repr() + (", dtype=torch.int8" if cast(Any, self).recurrence.quantized else "")

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        made = super().__reduce_ex__(protocol)
        if isinstance(made, str) or len(made) < 3:  # a class that says itself how it is copied
            return cast(Any, made)
        return _make_empty, (self._class_before,), made[2]

    def __prepare_scriptable__(self) -> NoReturn:
        name = type(self).__name__
        raise RuntimeError(f"torch.jit.script cannot compile {name}; call layernorm.restore(model) first")


def accelerate(module: Module) -> Module:
    """Makes every `torch.nn.RNN`, `LSTM`, `GRU` and their cells inside a module compute with layernorm's CPU engine.

    The equations are torch's, as under ``norm=None``: outputs and gradients are equal up to rounding. The modules stay
    the objects that they are, with their parameters, state-dict keys, hooks, attributes, methods and mode. Optimisers
    made before stay valid. Only ``forward`` changes: layernorm's takes the place of torch's. It also takes ``reset``,
    and in a network ``lengths`` and ``mask``. The modules gain ``stepper()``.

    Print the model to see what was accelerated: the class of such a module has "Accelerated" before its name. It is a
    subclass of the class that the module had and of layernorm's. `copy.deepcopy` and pickle keep it.

    Subclasses of torch's modules are also accelerated. Where a subclass has a ``forward`` of its own, its calls of
    ``super().forward`` are.

    Args:
        module: any module, changed in place. It may itself be one of torch's recurrent modules.

    Returns:
        The module.

    Warns:
        UserWarning: names each recurrent module that is left as it is, with the reason. It has parametrized weights; a
            ``forward`` set on the object; a method of its own instead of one that torch's ``forward`` calls; an
            attribute or method with a name that layernorm's module needs; arguments that layernorm's module refuses,
            such as no units; or a device or type that the engine lacks.
            The warning also names each module whose class has its own ``forward``. Where there is nothing to
            accelerate, it says so.

    Raises:
        TypeError: ``module`` is no module.

    Limits: called for one step at a time, an `RNN` can be slower than torch's. Where torch's own forward is faster, it
    is called: that of an `RNNCell`, and of other cells with many rows, except on AMD's CPUs with AVX-512.
    ``ln.backends.use("native")`` always takes layernorm's engine. `torch.compile` does not look inside networks, as
    into torch's own: for one graph take ``convert(model, norm=None)``. An accelerated model that is moved to a GPU
    computes plain torch equations there. `restore` gives torch's modules back. Call it before `convert`, `portable`,
    `torch.jit.script` and dynamic quantization, and before a whole model is saved for a program without layernorm.

    Example::

        model = ln.accelerate(torch.nn.Sequential(torch.nn.LSTM(28, 128)))

    Source: this library.
    """
    check_module("accelerate", module)
    parts = [(name, part) for name, part in module.named_modules() if _torch_class(type(part))]
    left, own = [], []
    added = [{} if isinstance(part, Accelerated) else _attributes_to_add(part) for _, part in parts]
    for (name, part), attributes in zip(parts, added, strict=True):
        own_class = part._class_before if isinstance(part, Accelerated) else type(part)
        title = f"{name or 'the module'} ({own_class.__name__}"
        if isinstance(attributes, str):
            left.append(f"{title}: {attributes})")
            continue
        if attributes:
            _accelerate_one(part, attributes)
        if type(part).forward is not _accelerated_class(_torch_class(type(part))).forward:
            own.append(f"{title})")
    warned = [] if parts else [nothing_in(module)]
    if left:
        warned.append(f"left as they are: {', '.join(left)}")
    if own:
        warned.append(f"accelerated where their own forward calls super().forward: {', '.join(own)}")
    if warned:
        warnings.warn(f"accelerate: {'; '.join(warned)}", stacklevel=2)
    return module


def restore(module: Module) -> Module:
    """Gives the modules that `accelerate` changed their classes back. Parameters, hooks and all else stay as they are.

    Args:
        module: any module, changed in place. Without accelerated modules nothing happens.

    Returns:
        The module.

    Raises:
        TypeError: ``module`` is no module.
        ValueError: an accelerated module has parametrizations, which are part of its class, or int8 weights, which
            torch's cannot use. Nothing has been changed.
    """
    check_module("restore", module)
    parts = {name: part for name, part in module.named_modules() if isinstance(part, Accelerated)}
    parametrized = [name or "the module" for name, part in parts.items() if is_parametrized(part)]
    if parametrized:
        raise ValueError(f"restore: remove the parametrizations first, of {', '.join(parametrized)}")
    quantized = [name or "the module" for name, part in parts.items() if cast(Any, part).recurrence.quantized]
    if quantized:
        raise ValueError(f"restore: int8 weights of {', '.join(quantized)}; restore the model that was quantized")
    for part in parts.values():
        for name in part._names_added:
            vars(part).pop(name, None)
        part.__class__ = part._class_before  # type: ignore[assignment]
    return module


def _structure(part: torch.nn.Module) -> tuple[Any, ...]:
    """Returns a module's attributes of `_STRUCTURE`, as many as it has."""
    found = vars(part)
    return tuple([found.get(name) for name in _STRUCTURE])


def _attributes_to_add(part: torch.nn.Module) -> dict[str, Any] | str:
    """Returns the attributes that one of torch's modules gets when it is accelerated, or why it is not."""
    theirs = _torch_class(type(part))
    ours = TABLE[theirs][0]
    if is_parametrized(part):
        return "parametrized weights"
    changed = [name for name in _OF_FORWARD if getattr(type(part), name, None) is not getattr(theirs, name, None)]
    changed += [name for name in ("forward",) if name in vars(part)]
    if changed:
        return f"its own {', '.join(changed)}"
    with warnings.catch_warnings():  # of arguments, which torch gave when it made the module
        warnings.simplefilter("ignore")
        try:
            new = cast(Any, ours)(**constructor_arguments(part, theirs), device="meta", norm=None)
        except (TypeError, ValueError) as error:  # such as a cell of no units
            return str(error)
        bare = bare_like(part, theirs)
    added = {name: item for name, item in vars(new).items() if name not in vars(bare)}
    needed = {name for name in {*added, *dir(ours)} - {*dir(theirs), *dir(bare)} if not name.startswith("__")}
    clashes = [name for name in needed if hasattr(part, name)]
    if clashes:
        return f"its own {', '.join(sorted(clashes))}"
    for parameter in part.parameters():
        kind = backends.Kind("recurrent", parameter.device, parameter.dtype, new.recurrence)
        choice = backends.preferred(kind)
        worth = choice.engine.is_worth_it(kind)
        if not worth.yes:
            return f"on {parameter.device.type} in {parameter.dtype} the engine is {choice.name!r}: {worth.reason}"
    _accelerated_class(cast(Any, type(part)))  # a class may refuse subclasses: no part has been changed yet
    return added | {"_structure": _structure(part), "_names_added": ["_names_added", "_structure", *added]}


def _accelerate_one(part: torch.nn.Module, attributes: dict[str, Any]) -> None:
    """Accelerates one of torch's modules."""
    vars(part).update(attributes)
    part.__class__ = _accelerated_class(cast(Any, type(part)))


def _torch_class(cls: type) -> Any:
    """Returns the class of `TABLE` that a class is or is derived from, or None."""
    return next((base for base in cls.__mro__ if base in TABLE), None)


@functools.cache
def _accelerated_class(cls: Any) -> type[torch.nn.Module]:
    """Makes the class of accelerated modules that were of class ``cls``."""
    theirs, changed = _torch_class(cls), {"_class_before": cls}
    if cls is not theirs:
        return type(f"Accelerated{cls.__name__}", (cls, _accelerated_class(theirs)), changed)
    ours = TABLE[theirs][0]
    # Where ours has properties torch's networks have attributes. What is no property does not hide them.
    plain = {name: None for name in ("mode", "_all_weights") if isinstance(getattr(ours, name, None), property)}
    bases = (Accelerated, theirs, ours)
    forward = _the_faster(theirs.forward, ours.forward, RULES[theirs]) if theirs in RULES else ours.forward
    # torch.compile runs torch's networks in Python, and looks inside its cells.
    if issubclass(theirs, torch.nn.RNNBase):
        forward = _not_compiled(forward)
    return type(f"Accelerated{cls.__name__}", bases, {"forward": forward, **plain, **changed})


def _the_faster(theirs: Any, ours: Any, rule: Callable[[Any, Any], bool]) -> Any:
    """Returns a ``forward`` that calls torch's own where that is faster."""

    @functools.wraps(ours)
    def forward(self: Any, input: Any, hx: Any = None, **options: Any) -> Any:
        watched = "_take_step" in vars(self)  # `watch_calls` sees layernorm's steps
        if options or watched or not rule(self, input):
            return ours(self, input, hx, **options)
        if _structure(self) != self._structure:
            self._follow_attributes()  # says what has been changed
        return theirs(self, input, hx)

    return forward


def _not_compiled(forward: Any) -> Any:
    """Returns a ``forward`` that `torch.compile` runs in Python, with all that it calls, as it does with torch's own.

    `torch.compiler.disable` says the same, and takes 3 microseconds of each call.
    """

    @functools.wraps(forward)
    def run(*args: Any, **keywords: Any) -> Any:
        return forward(*args, **keywords)

    skip = torch._C._dynamo.eval_frame._FrameAction.SKIP
    strategy = torch._C._dynamo.eval_frame._FrameExecStrategy(skip, skip)
    torch._C._dynamo.eval_frame.set_code_exec_strategy(cast(Any, run).__code__, strategy)
    return run


def _make_empty(cls: Any) -> torch.nn.Module:
    """Makes an accelerated module without its state, which `copy` and `pickle` set."""
    accelerated = _accelerated_class(cls)
    return accelerated.__new__(accelerated)
