"""What is found in one recurrent layer: deviations, a term that drowns another, and inputs whose size is lost."""

from __future__ import annotations

import math
from collections import defaultdict

import torch
from torch import Tensor

from ..convert import LayerCall
from ..equations.arguments import NO_CHANGES
from ..nn._normalised import Normalised
from ._finding import Finding
from ._inspected import PLACES, in_one_type, inspect
from ._spread import SHARE, Spread, Spreads

DOMINANT = 10.0
"""The largest ratio between the deviations of two terms that share a norm. Above it the smaller term has less than 1 %
of the variance, and changes the norm's output by less than a tenth."""

SIZES = 2.0
"""The largest ratio between the deviations of W_ih x, from the 10th to the 90th of a hundred cases, where W_ih x
is normalised by itself. In the tasks of `layernorm run swaps` embeddings, one-hot vectors and the outputs of other
layers have 1.1 to 1.7, measured features 1.5 to 11."""


def findings_of_layer(calls: list[LayerCall], spreads: Spreads) -> list[Finding]:
    """Notes the deviations in all calls of one recurrent layer, and returns which of its terms drown others."""
    first = calls[0]
    module, name, recurrence = first.module, first.name, first.arguments.recurrence
    formula = recurrence.formula
    if not recurrence.gain_names:
        return []
    inspected = [inspect(in_one_type(call.arguments)._replace(changes=NO_CHANGES)) for call in calls]
    limit = math.sqrt(formula.eps) if formula.eps_on == "variance" else formula.eps
    sizes: dict[int, list[Tensor]] = defaultdict(list)  # of W_ih x, by units: in a GRU r and z are apart from n
    apart = {} if len(recurrence.spans) != 2 else {
        (end - begin) * first.arguments.sizes[3]: f" of {' and '.join('rzn'[begin:end])}"
        for begin, end in recurrence.spans
    }  # fmt: skip
    for call in inspected:
        for v in call.vectors:
            place = PLACES[v.place] + apart.get(len(v.share), "")
            spread = spreads.setdefault((name, v.place, len(v.share)), Spread(name, place, limit))
            spread.steps += [d[counted] for d, counted in zip(v.deviation, v.counted, strict=True)]
            if v.share.numel():
                spread.shares.append(v.share)
            if v.place == "input":
                sizes[len(v.share)].append(v.deviation[v.counted])
    findings = []
    if formula.gates == "sum":
        terms = [(call.from_input, call.from_hidden) for call in inspected if call.from_hidden is not None]
        findings += _findings_of_sum(name, module, terms)
    if formula.gates in ("split", "sum"):  # W_ih x is normalised
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
        f"W_ih x is normalised by itself, which leaves an input's {left} and removes its size; the size differs "
        f"{ratio:.3g} times between the cases (from the 10th of a hundred to the 90th)",
        ratio, SIZES,
        f'Take formula="sum"{sonnet}, which normalises W_ih x + W_hh h together, with gains by '
        "ln.match(module, *batch). Or put an encoder of many units before it.",
    )]  # fmt: skip
