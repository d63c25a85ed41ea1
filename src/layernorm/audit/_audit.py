"""`audit`: runs a network on a batch and reports, in words, what is badly scaled at its start."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..convert import LayerCall, named_networks, put_back, watch_calls
from ..equations.arguments import NO_CHANGES
from ..nn._normalised import Normalised, check_module
from ._finding import Audit, Finding
from ._finite import first_not_finite
from ._inspected import OF_GAIN, PLACES, inspect
from ._start import first_steps, start_sizes

HALF = 0.5
"""The part of the vectors at one time step that must have a deviation of at most sqrt(eps). A smaller part comes from
single cases, not from how the network starts."""

DOMINANT = 10.0
"""The largest ratio between the deviations of two terms that share a norm. Above it the smaller term has less than 1 %
of the variance, and changes the norm's output by less than a tenth."""

SHARE = 0.9
"""The largest share of one input or unit in the sum of squares under a norm. Above it all the others together have less
than a third (sqrt(0.1)) of the norm's output. With ten units or fewer layer norm leaves no unit a larger share."""

SIZES = 2.0
"""The largest ratio between the deviations of W_ih x, from the tenth to the ninetieth of a hundred cases, where W_ih x
is normalised by itself. In the tasks of `layernorm run swaps` embeddings, one-hot vectors and the outputs of other
layers have 1.1 to 1.7, measured features 1.5 to 11 (docs/log/2026-11-26.md)."""

APART = 1000.0
"""The largest ratio between gradients of parameters of one kind (root mean square over the elements). Above it a step
size that suits the one is 1000 times off for the other. Networks as torch draws them were seen up to 82 on the digits
(batch norm, two layers)."""

UNLIKE = 4.0
"""The largest ratio, either way, between a gain and the size of its vector in the plain network."""

LEAP = 3.0
"""The largest ratio between the first updates of a weight, with the norms and in the plain network. Above it a rate
that suits the plain network is as if raised by as much."""

LARGE = 0.1
"""The part of a weight's length from which on its first update is large. Less does no harm, whatever the ratio."""

_ROUNDING = 1e-5
"""A bias's or gain's gradient relative to the largest gradient in its module. What is smaller is taken for rounding: a
bias before a norm has no effect, and the gradient 0."""


def audit(
    module: torch.nn.Module,
    *batch: Any,
    loss: Callable[[Any], Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Audit:
    r"""Looks for what is badly scaled in a network at the start of training, and says how to fix it.

    It runs one batch forward and backward. If the loss, a gradient or a deviation is infinite or NaN, the one finding
    says where that begins: in a parameter, an input, the output, the loss or the gradients. Else it looks for four
    faults:

    - **A vector without spread under a norm.** At some time step its deviation is at most :math:`\sqrt{\epsilon}` in
      half of the cases or more. The norm then divides by eps rather than by the deviation. Its output is not
      normalised, and its gradient is multiplied by up to :math:`1/\sqrt{\epsilon}`, which is 316 for 1e-5. This is
      measured under the layer, RMS, batch, group and instance norms of torch and of layernorm, and in every place of a
      recurrent formula. A vector that is 0 because an input, or the state before the first step, is 0 does not count,
      as no weight's gradient passes through it.
    - **One term drowns the others under a norm that they share.** In a formula that normalises the sum
      :math:`W_{ih} x + W_{hh} h`, one of the two has more than 10 times the deviation of the other, which then has less
      than 1 % of the variance. Or one input or unit has more than 0.9 of the sum of squares, so that all others
      together have less than a third of the deviation.
    - **The size of an input is lost.** Where :math:`W_{ih} x` is normalised by itself, an input five times as large
      gives nearly the same output, and of one feature only the sign is left. This is said where the deviation of
      :math:`W_{ih} x` is more than twice as large in the ninetieth of a hundred cases as in the tenth, as it is with
      many measured features.
    - **Gradients that differ by orders of magnitude.** Between parameters of one kind (weights, biases or gains of one
      class of modules) they differ more than 1000 times, as root mean squares over the elements. No single learning
      rate suits both.

    With an optimiser it also compares layernorm's recurrent networks with the *plain* ones, which have the same weights
    and no norm. A learning rate that was found for them need not suit networks that start otherwise. Three more faults:

    - **Parameters that the optimiser does not have**, of a network whose others it has. So it is where the optimiser
      was made before `convert`: the gains stay as they are.
    - **A vector of another size than in the plain network.** Its gain is more than 4 times, or less than a quarter of,
      what the vector's deviation is there.
    - **A larger first update.** The optimiser's first update at its rate changes a weight matrix, relative to the
      matrix's length, by more than 0.1, and more than 3 times as much as it would in the plain network. With Adam the
      two are the same, as its first update does not depend on the gradient's size. The optimiser's hooks run, so that
      a clipping of the gradients counts if it is registered with ``optimizer.register_step_pre_hook``.

    A recurrent module is measured without recurrent dropout, zoneout and ``reset_hx``.

    The module runs in the mode that it is in, training or evaluation. When `audit` returns, its parameters, gradients,
    buffers, hooks and mode are as before, and so are the optimiser and torch's random state.

    Args:
        module: any network. Norms and layernorm's recurrent modules inside it are measured, also where they run by
            ``stepper()``.
        batch: the arguments to call it with, ``module(*batch)``.
        loss: ``loss(output) -> ()``. ``None``: the sum of the output's numbers, each times a random number that is the
            same in every call. A plain sum would not do, because the sum of a normalised vector is constant.
        optimizer: the one that the module is going to be trained with. It needs the training's ``loss``.

    Returns:
        `Audit`, a list of `Finding`. It prints as their text, and as nothing where it is empty.

    Raises:
        TypeError: ``module`` is no module, or ``optimizer`` no optimiser.
        ValueError: ``optimizer`` is given without ``loss``, has no parameter of the module's, or no rate
            ``lr``.

    Example::

        print(ln.audit(ln.LSTM(28, 128), torch.randn(50, 32, 28)))

        tagger = ln.convert(tagger)
        optimizer = torch.optim.SGD(tagger.parameters(), lr=0.015)
        print(ln.audit(tagger, words, loss=lambda scores: F.cross_entropy(scores, tags), optimizer=optimizer))

    Source: this library. The faults were met in the experiments of sections 6.4 and 6.5, and on one-feature series.
    """
    check_module("audit", module)
    if optimizer is not None:
        _check_optimizer(module, loss, optimizer)
    spreads: Spreads = {}
    layers: dict[str, list[LayerCall]] = defaultdict(list)
    with put_back(module), torch.inference_mode(False), torch.enable_grad():
        with _watch_norms(module, spreads), watch_calls(module, lambda call: layers[call.name].append(call)):
            output = module(*batch)
        total = _weighted_sum(output) if loss is None else loss(output)
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        grads: tuple[Tensor | None, ...] = ()
        if trained and total.requires_grad:
            grads = torch.autograd.grad(total, [p for _, p in trained], allow_unused=True)
    pairs = zip(trained, grads, strict=False)  # ``grads`` is empty where no parameter asks for a gradient
    gradients = [(name, g.detach()) for (name, _), g in pairs if g is not None]
    results = [total.detach(), *(g for _, g in gradients)]
    if not all(bool(part.isfinite().all()) for part in results):
        return Audit([first_not_finite(module, batch, output, total, gradients)])
    findings = Audit()
    for calls in layers.values():
        findings += _findings_of_layer(calls, spreads)
    findings[:0] = [finding for spread in spreads.values() for finding in spread.findings()]
    findings += _findings_of_gradients(module, gradients)
    if optimizer is not None and loss is not None:
        findings += _findings_of_start(module, batch, loss, optimizer)
    if not all(math.isfinite(finding.measured) for finding in findings):
        return Audit([first_not_finite(module, batch, output, total, gradients)])
    return findings


def _check_optimizer(module: torch.nn.Module, loss: object, optimizer: torch.optim.Optimizer) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"audit: optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if loss is None:
        raise ValueError("audit: an optimizer needs the training's loss, whose gradients it follows; got loss=None")
    parameters = set(module.parameters())
    if not any(p in parameters for group in optimizer.param_groups for p in group["params"]):
        raise ValueError("audit: the optimizer has no parameter of the module's")
    if not all("lr" in group for group in optimizer.param_groups):
        raise ValueError("audit: expected the optimizer's parameter groups to have a rate, lr")


def _weighted_sum(output: Any) -> Tensor:
    """Adds the output's numbers, each times a number drawn from N(0, 1) that is the same in every call."""
    g, total = torch.Generator().manual_seed(0), torch.zeros(())
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            total = total.to(leaf.device) + (leaf * torch.randn(leaf.shape, generator=g).to(leaf)).sum()
    return total


class _Spread:
    """The deviations under one norm: for each step of all its calls one after another, those of R vectors (R,)."""

    def __init__(self, module: str, place: str, limit: float) -> None:
        self.module, self.place, self.limit = module, place, limit
        self.steps: list[Tensor] = []  # deviations of the vectors that count
        self.shares: list[Tensor] = []

    def findings(self) -> Iterator[Finding]:
        flat = [step for step, d in enumerate(self.steps) if len(d) and float((d <= self.limit).float().mean()) >= HALF]
        if flat:
            deviation = float(self.steps[flat[0]].median())
            where = "" if len(self.steps) == 1 else f" at {len(flat)} of {len(self.steps)} steps, the first {flat[0]},"
            yield Finding(
                self.module,
                f"the deviation of {self.place}{where} is {deviation:.1e}, at most sqrt(eps) = {self.limit:.1e}: the "
                f"norm's output is not normalised, and its gradient is multiplied by up to {_factor(self.limit)}",
                deviation, self.limit,
                "Give what is normalised a larger deviation, by larger weights or inputs before it. Where it is 0, "
                "start the biases other than 0, for example from U(-0.05, 0.05). Or take a smaller eps.",
            )  # fmt: skip
        if self.shares:
            share = torch.stack(self.shares).mean(0)
            most = int(share.argmax())
            if float(share[most]) > SHARE:
                yield Finding(
                    self.module,
                    f"unit {most} of {self.place} has {float(share[most]):.1%} of the sum of squares under the norm, "
                    f"and drowns the other {len(share) - 1}",
                    float(share[most]), SHARE,
                    "Bring it to the others' scale before the norm, or keep it out of it.",
                )  # fmt: skip


Spreads = dict[tuple[str, str, int], _Spread]
"""By module, place and number of units, by which a GRU's r and z differ from n in the same place."""


def _factor(limit: float) -> str:
    return f"{1 / limit:.3g}" if limit else "infinity"


@contextlib.contextmanager
def _watch_norms(module: torch.nn.Module, spreads: Spreads) -> Iterator[None]:
    """Notes the deviations that torch's and layernorm's feed-forward norms divide by, inside the ``with``."""
    handles = []
    for name, part in module.named_modules():
        for norm_class, rows_of in _ROWS.items():
            if isinstance(part, norm_class):
                handles.append(part.register_forward_pre_hook(_norm_hook(name, rows_of, spreads), with_kwargs=True))
                break
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Rows(NamedTuple):
    """The input of a feed-forward norm as rows, each of which it divides by its own deviation."""

    z: Tensor  # (R, n), centred unless it is an RMS norm's
    share: bool  # whether the columns are units


def _norm_hook(name: str, rows_of: Callable[[Any, Tensor], _Rows], spreads: Spreads) -> Any:
    @torch.no_grad()
    def hook(part: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
        total = sum(tensors[1:], tensors[0])  # with a residual, input + residual
        total = total.detach().to(torch.promote_types(total.dtype, torch.float32))
        if not total.numel():
            return
        z, is_share = rows_of(part, total)
        eps = torch.finfo(total.dtype).eps if part.eps is None else part.eps
        spread = spreads.setdefault((name, "", 0), _Spread(name, "its input", math.sqrt(eps)))
        spread.steps.append(z.square().mean(1).sqrt())
        if is_share:
            squares = z.square().sum(0)
            spread.shares.append(squares / squares.sum().clamp_min(1e-30))

    return hook


def _centred(z: Tensor) -> Tensor:
    return z - z.mean(1, keepdim=True)


def _batch_norm_rows(part: Any, z: Tensor) -> _Rows:
    """Returns batch norm's rows, one for each channel. In evaluation its deviation is that of the population."""
    if part.training or part.running_var is None:
        return _Rows(_centred(z.transpose(0, 1).flatten(1)), False)
    return _Rows(part.running_var.to(z).sqrt()[:, None], False)


_ROWS: dict[type[torch.nn.Module], Callable[[Any, Tensor], _Rows]] = {
    torch.nn.LayerNorm: lambda part, z: _Rows(_centred(z.flatten(-len(part.normalized_shape)).flatten(0, -2)), True),
    torch.nn.RMSNorm: lambda part, z: _Rows(z.flatten(-len(part.normalized_shape)).flatten(0, -2), True),
    torch.nn.GroupNorm: lambda part, z: _Rows(_centred(z.reshape(len(z) * part.num_groups, -1)), False),
    torch.nn.modules.instancenorm._InstanceNorm: lambda part, z: _Rows(_centred(z.flatten(2).flatten(0, 1)), False),
    torch.nn.modules.batchnorm._BatchNorm: _batch_norm_rows,
}
"""For each norm, the function from its input to the rows that it normalises."""


def _findings_of_layer(calls: list[LayerCall], spreads: Spreads) -> list[Finding]:
    """Notes the deviations in all calls of one recurrent layer, and returns which of its terms drown others."""
    first = calls[0]
    module, name, recurrence = first.module, first.name, first.arguments.recurrence
    formula = recurrence.formula
    if not recurrence.gain_names:
        return []
    inspected = [inspect(call.arguments._replace(changes=NO_CHANGES)) for call in calls]
    limit = math.sqrt(formula.eps) if formula.eps_on == "variance" else formula.eps
    sizes: dict[int, list[Tensor]] = defaultdict(list)  # of W_ih x, by units: in a GRU r and z are apart from n
    apart = {} if len(recurrence.spans) != 2 else {
        (end - begin) * first.arguments.sizes[3]: f" of {' and '.join('rzn'[begin:end])}"
        for begin, end in recurrence.spans
    }  # fmt: skip
    for call in inspected:
        for v in call.vectors:
            place = PLACES[v.place] + apart.get(len(v.share), "")
            spread = spreads.setdefault((name, v.place, len(v.share)), _Spread(name, place, limit))
            spread.steps += [d[counted] for d, counted in zip(v.deviation, v.counted, strict=True)]
            if v.share.numel():
                spread.shares.append(v.share)
            if v.place == "input":
                sizes[len(v.share)].append(v.deviation[v.counted])
    findings = []
    if formula.gates == "sum":
        terms = [(call.from_input, call.from_hidden) for call in inspected if call.from_hidden is not None]
        findings += _findings_of_sum(name, module, terms)
    if formula.gates is not None:
        squares = torch.stack([call.inputs for call in inspected]).sum(0)
        share, most = (squares / squares.sum().clamp_min(1e-30)).max(0)
        if len(squares) > 1 and float(share) > SHARE:
            findings.append(Finding(
                name,
                f"input {int(most)} has {float(share):.1%} of the square of W_ih x, which is normalised, and drowns "
                f"the other {len(squares) - 1}",
                float(share), SHARE,
                "Bring the inputs to one scale, or give this input a path of its own that is not normalised.",
            ))  # fmt: skip
    if recurrence.loses_size:
        inputs = first.arguments.input.shape[-1]
        findings += _findings_of_sizes(name, module, inputs, [torch.cat(p) for p in sizes.values()])
    return findings


def _findings_of_sum(name: str, module: Normalised, terms: list[tuple[Tensor, Tensor]]) -> list[Finding]:
    """Says if one of W_ih x and W_hh h drowns the other, where their sum is normalised."""
    sizes = []
    for which in (0, 1):
        z = torch.cat([term[which].flatten(0, 1) for term in terms]) if terms else torch.zeros(0, 1)
        z = z[(z != 0).any(1)]  # without steps whose state or input is 0
        z = z - z.mean(1, keepdim=True) if module.recurrence.norm == "layer" else z
        sizes.append(float(z.square().mean().sqrt()) if len(z) else 0.0)
    small, large = sorted(sizes)
    if not small or large <= DOMINANT * small:
        return []
    names = ("W_ih x", "W_hh h") if sizes[0] > sizes[1] else ("W_hh h", "W_ih x")
    return [Finding(
        name,
        f"{names[0]} drowns {names[1]} under the norm that they share: deviations {large:.1e} and {small:.1e}",
        large / small, DOMINANT,
        f"Scale the weights of {names[1]} up or those of {names[0]} down, or take a formula that normalises them "
        'separately (gates="split").',
    )]  # fmt: skip


def _findings_of_sizes(name: str, module: Normalised, inputs: int, sizes: list[Tensor]) -> list[Finding]:
    """Says if the deviations of W_ih x, each (N,), which is normalised by itself, differ much between the cases."""
    ratio = 1.0
    for ordered in (of_group.sort().values for of_group in sizes if len(of_group)):
        tenth, ninetieth = ordered[[len(ordered) // 10, 9 * len(ordered) // 10]].tolist()
        ratio = max(ratio, ninetieth / (tenth or 1e-30))
    if ratio <= SIZES:
        return []
    left = "sign" if inputs == 1 else "direction"
    sonnet = ' or, with a forget bias of 1, "sonnet"' if module.network == "LSTM" else ""
    return [Finding(
        name,
        f"W_ih x is normalised by itself, which leaves an input's {left} and takes away its size; this differs "
        f"{ratio:.3g} times between the cases (from the tenth of a hundred to the ninetieth)",
        ratio, SIZES,
        f'Take formula="sum"{sonnet}, which normalises W_ih x + W_hh h together, with gains by '
        "ln.match(module, *batch). Or put an encoder of many units before it.",
    )]  # fmt: skip


def _findings_of_start(
    module: torch.nn.Module, batch: Sequence[Any], loss: Callable[[Any], Tensor], optimizer: torch.optim.Optimizer
) -> Iterator[Finding]:
    """Says where the networks start otherwise than the plain ones, and whether the rate suits them all the same."""
    networks = named_networks(module)
    if not networks:
        return
    given = {p for group in optimizer.param_groups for p in group["params"]}
    for name, network in networks.items():
        trained = [(key, p in given) for key, p in network.named_parameters() if p.requires_grad]
        left = [key for key, is_given in trained if not is_given]
        if 0 < len(left) < len(trained):
            yield Finding(
                name,
                f"the optimizer does not have {', '.join(left)}, which stay as they are",
                len(left), 0,
                "Make the optimizer after layernorm.convert, or give it these with optimizer.add_param_group.",
            )  # fmt: skip
    sizes = list(start_sizes(module, networks, batch))
    if not all(math.isfinite(size.plain) for size in sizes):
        yield Finding("", "the plain network's numbers are not finite", math.inf, UNLIKE, "")
        return
    apart = [size for size in sizes if max(size.gain, size.plain) > UNLIKE * min(size.gain, size.plain)]
    if apart:
        most = max(apart, key=lambda size: abs(math.log(size.gain or 1e-30) - math.log(size.plain)))
        ratio = most.gain / most.plain
        others = f", the farthest of {len(apart)} vectors in {len(sizes)}" if len(apart) > 1 else ""
        yield Finding(
            most.layer,
            f"{PLACES[OF_GAIN[most.gain_name]]} is {ratio:.3g} times as large as in the plain network (its gain is "
            f"{most.gain:.3g}, its deviation there {most.plain:.3g}){others}",
            ratio, UNLIKE,
            "A learning rate that was found for the plain network need not suit this one: try others. With Adam try up "
            "to 4 times the rate, and gains set with ln.match(module, *batch), with which the networks start alike.",
        )  # fmt: skip
    steps = first_steps(module, networks, batch, loss, optimizer)
    if not all(math.isfinite(step.change) and math.isfinite(step.plain) for step in steps):
        yield Finding("", "the first update is not finite", math.inf, LEAP, "")
        return
    leaps = [(s.change / s.plain, s) for s in steps if s.plain > 0 and s.change > max(LEAP * s.plain, LARGE)]
    if leaps:
        ratio, step = max(leaps)
        yield Finding(
            _owner(step.name),
            f"at the rate {step.rate:g} the first update changes {step.name} by {step.change:.2g} of its length, "
            f"{ratio:.3g} times as much as in the plain network",
            ratio, LEAP,
            "Lower the rate, to a quarter for a start.",
        )  # fmt: skip


def _findings_of_gradients(module: torch.nn.Module, grads: list[tuple[str, Tensor]]) -> list[Finding]:
    """Says for which kinds of parameters the gradients differ by orders of magnitude."""
    parts = dict(module.named_modules())
    sizes = {name: float(g.double().square().mean().sqrt()) for name, g in grads if g.numel()}
    largest: dict[str, float] = defaultdict(float)
    for name, size in sizes.items():
        largest[_owner(name)] = max(largest[_owner(name)], size)
    kinds: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for name, g in grads:
        owner, role = _owner(name), _role(name)
        rounding = 0.0 if role == "weight" and g.dim() > 1 else _ROUNDING * largest[owner]
        if sizes.get(name, 0.0) > rounding:  # a gradient of 0 means that the output does not depend on the parameter
            kinds[type(parts[owner]).__name__, role][name] = sizes[name]
    findings = []
    for (class_name, role), of_kind in kinds.items():
        small, large = min(of_kind, key=of_kind.__getitem__), max(of_kind, key=of_kind.__getitem__)
        low, high = of_kind[small], of_kind[large]
        ratio = high / low
        if not ratio <= APART:  # also where it is NaN: float64 cannot hold the squares
            findings.append(Finding(
                _owner(large),
                f"the gradient of {large} is {ratio:.3g} times that of {small}, which is of the same kind "
                f"({class_name}, {role}): {high:.1e} and {low:.1e}, root mean squares over the elements",
                ratio, APART,
                "Scale the initial weights so that gradients keep their size from layer to layer, or put a norm or a "
                "skip connection between them.",
            ))  # fmt: skip
    return findings


def _owner(name: str) -> str:
    """Returns the name of a parameter's module. A parametrized weight belongs to the module whose weight it is."""
    return (
        name.partition("parametrizations.")[0].rstrip(".") if "parametrizations." in name else name.rpartition(".")[0]
    )


def _role(name: str) -> str:
    """Returns a parameter's role: weight, bias or gain. Under weight norm ``original0`` is the gain."""
    leaf = name.rpartition(".")[2]
    return {"original0": "gain", "original1": "weight", "original": "weight"}.get(leaf) or leaf.split("_")[0]
