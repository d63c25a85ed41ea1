"""The gradients of one batch: how they differ between parameters, and in 16 bits from float32."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves, tree_map_only

from ..convert import put_back
from ._finding import Finding
from ._trial import replaced, steady_gains

APART = 1000.0
"""The largest ratio between gradients of parameters of one kind (root mean square over the elements). Above it a step
size that suits the one is 1000 times off for the other. Networks as torch draws them were seen up to 82 on the digits
(batch norm, two layers)."""

WRONG = 0.1
"""The largest distance of a recurrent network's gradient in 16 bits from that in float32, relative to its length. In
bfloat16, 30 and 120 steps of noise, torch's networks, layernorm's under every formula, and LSTMs with recurrent gains
of 0.1 to 0.6 have 0.003 to 0.02, LSTMs with gains of 1 have 0.1 to 9."""

FAR = 0.5
"""The same for other networks. Perceptrons and convolutions of ten layers with a norm have up to 0.25, and are trained
so. Twenty convolutions with batch norm and without a skip connection have 0.8."""

_ROUNDING = 1e-5
"""A bias's or gain's gradient relative to the largest gradient in its module. What is smaller is taken for rounding: a
bias before a norm has no effect, and the gradient 0."""


class Pass(NamedTuple):
    """One batch forward and backward."""

    output: Any
    total: Tensor
    gradients: list[tuple[str, Tensor]]  # of the parameters that have one, by name; a sparse one is coalesced


def run(
    module: torch.nn.Module,
    batch: Sequence[Any],
    loss: Callable[[Any], Tensor] | None,
    watches: Sequence[contextlib.AbstractContextManager[Any]] = (),
    scale: float = 1.0,
) -> Pass:
    """Runs a batch forward, watched, and backward, and puts back what that changes. No parameter gets a gradient."""
    with put_back(module), torch.enable_grad():
        with contextlib.ExitStack() as stack:
            for watch in watches:
                stack.enter_context(watch)
            output = module(*batch)
        total = _weighted_sum(output) if loss is None else loss(output)
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        grads: tuple[Tensor | None, ...] = ()
        if trained and total.requires_grad:
            grads = torch.autograd.grad(
                total * scale if scale != 1 else total, [p for _, p in trained], allow_unused=True
            )
    pairs = zip(trained, grads, strict=False)  # ``grads`` is empty where no parameter asks for a gradient
    return Pass(output, total.detach(), [(name, _coalesced(g.detach())) for (name, _), g in pairs if g is not None])


def _weighted_sum(output: Any) -> Tensor:
    """Adds the output's numbers, each times a number drawn from N(0, 1) that is the same in every call."""
    g, total = torch.Generator().manual_seed(0), torch.zeros(())
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            leaf = leaf.to(torch.promote_types(leaf.dtype, torch.float32))
            total = total.to(leaf.device) + (leaf * torch.randn(leaf.shape, generator=g).to(leaf)).sum()
    return total


def _coalesced(g: Tensor) -> Tensor:
    return g.coalesce() if g.is_sparse else g


def numbers(g: Tensor) -> Tensor:
    """Returns the numbers of a gradient, of a sparse one those that are not 0."""
    return g.values() if g.is_sparse else g


def findings_of_gradients(
    module: torch.nn.Module, grads: list[tuple[str, Tensor]], over_time: float = 1.0
) -> list[Finding]:
    """Says for which kinds of parameters the gradients differ by orders of magnitude.

    That recurrent layers make a gradient grow over time, ``over_time`` times, is a fault of its own, and not blamed on
    depth: the ratio must be as many times larger.
    """
    parts = dict(module.named_modules())
    sizes = {name: float((numbers(g).double().square().sum() / g.numel()).sqrt()) for name, g in grads if g.numel()}
    largest: dict[str, float] = defaultdict(float)
    for name, size in sizes.items():
        largest[owner_of(name)] = max(largest[owner_of(name)], size)
    kinds: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for name, g in grads:
        owner, role = owner_of(name), _role(name)
        rounding = 0.0 if role == "weight" and g.dim() > 1 else _ROUNDING * largest[owner]
        if sizes.get(name, 0.0) > rounding:  # a gradient of 0 means that the output does not depend on the parameter
            kinds[type(parts[owner]).__name__, role][name] = sizes[name]
    findings = []
    for (class_name, role), of_kind in kinds.items():
        small, large = min(of_kind, key=of_kind.__getitem__), max(of_kind, key=of_kind.__getitem__)
        low, high = of_kind[small], of_kind[large]
        ratio = high / low
        if not ratio <= APART * over_time:  # also where it is NaN: float64 cannot hold the squares
            findings.append(Finding(
                owner_of(large),
                f"the gradient of {large} is {ratio:.3g} times that of {small}, which is of the same kind "
                f"({class_name}, {role}): {high:.1e} and {low:.1e}, root mean squares over the elements",
                ratio, APART * over_time,
                "Scale the initial weights so that gradients keep their size from layer to layer, or put a norm or a "
                "skip connection between them.",
            ))  # fmt: skip
    return findings


def findings_of_16_bits(
    module: torch.nn.Module, batch: Sequence[Any], loss: Callable[[Any], Tensor] | None, over_time: float
) -> Iterator[Finding]:
    """Says whether 16 bits, of the weights or by autocast, take the gradient far from float32's."""
    dtype = _type_of_16_bits(module)
    error = None if dtype is None else _error_of_16_bits(module, batch, loss, dtype)
    if dtype is None or error is None or error <= WRONG:
        return
    fix = "Train in float32, or keep the part that needs it out of autocast."
    if over_time > 1:
        fix = "What makes the gradient grow over time makes rounding errors grow as well: mend that first."
    mended = math.inf
    if gains := steady_gains(module):
        with replaced(module, gains):
            mended = _error_of_16_bits(module, batch, loss, dtype) or math.inf
    if mended <= WRONG:
        fix = (
            f"The start is the cause: with a smaller gain_hh it would be {mended:.2g}. Make the network with "
            'gain_init="steady", or train this one in float32.'
        )
    elif error <= FAR:
        return
    kind = str(dtype).removeprefix("torch.")
    yield Finding(
        "", f"in {kind} the gradient is {error:.2g} of its own length away from that in float32", error, WRONG, fix
    )


def _type_of_16_bits(module: torch.nn.Module) -> torch.dtype | None:
    """Returns the type of 16 bits that a module is computed in, by its parameters or by autocast around the call."""
    for p in module.parameters():
        if p.is_floating_point() and p.dtype.itemsize == 2:
            return p.dtype
        kind = p.device.type
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            return torch.get_autocast_dtype(kind)
    return None


def _error_of_16_bits(
    module: torch.nn.Module, batch: Sequence[Any], loss: Callable[[Any], Tensor] | None, dtype: torch.dtype
) -> float | None:
    """Computes how far the gradient of all parameters is from float32's, relative to its length.

    None: the module does not run in float32, or its gradient is 0 or not finite.
    """
    # float16 has no small numbers, so that the loss is scaled, as `torch.amp.GradScaler` does
    for scale in (2.0**16, 2.0**8, 1.0) if dtype == torch.float16 else (1.0,):
        low = run(module, batch, loss, scale=scale).gradients
        if all(bool(numbers(g).isfinite().all()) for _, g in low):
            break
    wide = {t: _as_float32(t) for t in [*module.parameters(), *module.buffers()]}
    kinds = {p.device.type for p in module.parameters() if torch.amp.is_autocast_available(p.device.type)}
    try:
        with contextlib.ExitStack() as stack:
            for kind in kinds:
                stack.enter_context(torch.autocast(kind, enabled=False))
            stack.enter_context(replaced(module, wide))
            exact = dict(
                run(module, tree_map_only((Tensor, PackedSequence), _as_float32, tuple(batch)), loss).gradients
            )
    except (RuntimeError, TypeError):  # it names its type somewhere
        return None
    square = sum(float(numbers(g).double().square().sum()) for g in exact.values())
    away = sum(
        float(numbers(_coalesced(g.double() / scale - exact[name].double())).square().sum())
        for name, g in low
        if name in exact
    )
    return (away / square) ** 0.5 if 0 < square < float("inf") and away < float("inf") else None


def _as_float32(leaf: Any) -> Any:
    """Returns a tensor or packed sequence of 16 bits in float32, and everything else as it is."""
    data = leaf.data if isinstance(leaf, PackedSequence) else leaf
    if not isinstance(data, Tensor) or not data.is_floating_point() or data.dtype.itemsize != 2:
        return leaf
    if isinstance(leaf, torch.nn.Parameter):
        return torch.nn.Parameter(leaf.detach().float(), leaf.requires_grad)
    return leaf.to(torch.float32)


def owner_of(name: str) -> str:
    """Returns the name of a parameter's module. A parametrized weight belongs to the module whose weight it is."""
    return (
        name.partition("parametrizations.")[0].rstrip(".") if "parametrizations." in name else name.rpartition(".")[0]
    )


def _role(name: str) -> str:
    """Returns a parameter's role: weight, bias or gain. Under weight norm ``original0`` is the gain."""
    leaf = name.rpartition(".")[2]
    return {"original0": "gain", "original1": "weight", "original": "weight"}.get(leaf) or leaf.split("_")[0]
