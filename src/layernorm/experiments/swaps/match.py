"""The matched start: each gain is the size that the plain network has in its place. It stands in for `ln.match`."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from ...nn._recurrent import Recurrent


@torch.no_grad()
def match(model: nn.Module, *inputs: Any) -> None:
    """Sets the gains of all recurrent networks to the mean deviations found when the plain equations run on inputs."""
    hooks = [
        module.register_forward_pre_hook(functools.partial(_match_network), with_kwargs=True)
        for module in model.modules()
        if isinstance(module, Recurrent) and module.recurrence.gain_names
    ]
    model(*inputs)
    for hook in hooks:
        hook.remove()


def _match_network(module: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Matches one network to the input of its call. Upper layers see what the plain layers below would give them."""
    x, lengths = args[0], keywords.get("lengths")
    if isinstance(x, PackedSequence):
        x, lengths = pad_packed_sequence(x)
    elif module.batch_first:
        x = x.transpose(0, 1)
    lengths = torch.full((x.shape[1],), len(x)) if lengths is None else lengths
    hx = args[1] if len(args) > 1 else None
    states = () if hx is None else hx if isinstance(hx, tuple) else (hx,)
    for layer in range(module.num_layers):
        outputs = []
        for way, end in enumerate(module._directions):
            state = [item[layer * len(module._directions) + way] for item in states]
            suffix = f"_l{layer}{end}"
            steps = _reversed(x, lengths) if end else x
            output = _match_layer(module, suffix, steps, lengths, state)
            outputs.append(_reversed(output, lengths) if end else output)
        x = torch.cat(outputs, 2)


def _reversed(x: Tensor, lengths: Tensor) -> Tensor:
    steps = torch.arange(len(x)).unsqueeze(1)
    order = torch.where(steps < lengths, lengths - 1 - steps, steps)
    return x.gather(0, order.unsqueeze(2).expand_as(x).to(x.device))


def _match_layer(module: Any, suffix: str, x: Tensor, lengths: Tensor, state: list[Tensor]) -> Tensor:
    """Runs the plain equations of a layer, notes the sizes at every place with a gain, and sets the gains."""
    recurrence, units = module.recurrence, module.hidden_size
    part = {name: getattr(module, name + suffix) for name in recurrence.parameter_names}
    bias_x, bias_h = (part.get(name, x.new_zeros(())) for name in ("bias_ih", "bias_hh"))
    inside = recurrence.formula.bias_inside
    found: dict[tuple[str, int, int], list[Tensor]] = {}

    def note(gain: str, values: Tensor, step: int, first: int, last: int) -> None:
        values = values[..., first:last]
        size = values.square().mean(-1).sqrt() if module.norm == "rms" else values.std(-1, correction=0)
        found.setdefault((gain, first, last), []).append(size[(lengths > step).to(size.device) & (size > 0)])

    spans = [(first * units, last * units) for first, last in recurrence.spans]
    h, c = (*state, *state)[:2] if state else (x.new_zeros(x.shape[1], units),) * 2
    output = []
    for step, item in enumerate(x):
        sum_x, sum_h = item @ part["weight_ih"].T, h @ part["weight_hh"].T
        wx, uh = sum_x + bias_x, sum_h + bias_h
        both = wx + uh
        if recurrence.network == "GRU":
            r, z = both[:, : 2 * units].sigmoid().chunk(2, 1)
            both = torch.cat([both[:, : 2 * units], wx[:, 2 * units :] + r * uh[:, 2 * units :]], 1)
            n = both[:, 2 * units :].tanh()
            new = (1 - z) * n + z * h
        elif recurrence.network == "LSTM":
            i, f, g, o = both.chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            new = o.sigmoid() * c.tanh()
        else:
            new = both.tanh()
        for span in spans:
            places = {"gain_ih": wx if inside else sum_x, "gain_hh": uh if inside else sum_h, "gain": both}
            for gain in part.keys() & places.keys():
                note(gain, places[gain], step, *span)
        if "gain_c" in part:
            note("gain_c", c, step, 0, units)
        h = new
        output.append(h)
    for (gain, first, last), sizes in found.items():
        part[gain][first:last] = torch.cat(sizes).mean()
    return torch.stack(output)
