"""Differential fuzz: networks, cells, steppers and norms with features drawn at random, on every engine, against the
reference equations in float64. Only what is valid is drawn, and every result is a finite number."""

import itertools
import random

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import layernorm as ln
from layernorm import functional
from layernorm.formula import CHOICES, PRESETS, Formula
from support.networks import NETWORKS, as_hx, flat
from support.rounding import assert_as_near_as_the_reference

from .arena import Campaign

CLOSE = 1e-10
"""In float64, relative to 1 and the largest value: the same sums in another order, as tests/native/ has it."""

NARROW = (torch.float32, torch.bfloat16)


def _yes(chance, share=0.5):
    return chance.random() < share


def _formula(chance, kind):
    """A published formula's name, or any formula."""
    if _yes(chance):
        return chance.choice([name for name, found in PRESETS.items() if kind in found])
    gates = chance.choice([*CHOICES["gates"]] if kind == "LSTM" else ["split", "hidden", "sum"])
    cells = ["output", "carry"] if gates is None else CHOICES["cell"]
    inside = _yes(chance)
    return Formula(
        gates=gates,
        span=chance.choice(CHOICES["span"]),
        cell=chance.choice(cells) if kind == "LSTM" else None,
        bias_inside=inside,
        gate_bias=_yes(chance, 0.7),
        cell_bias=_yes(chance, 0.7),
        eps=chance.choice([1e-5, 1e-3]),
        eps_on=chance.choice(CHOICES["eps_on"]),
        forget_bias=0.0 if kind == "RNN" else chance.choice([0.0, 1.0]),
        biases=chance.choice(CHOICES["biases"]),
        bias_again=inside and gates != "hidden" and _yes(chance),
    )


def _norms(dtype, *exact):
    """The norms to draw from; `exact`: others in float64.

    A gain's gradient under weight norm is torch's sum over the weights' gradients, which cancel: their roundings in few
    bits are large beside it.
    """
    return [None, "layer", "layer", "rms", *(["weight", *exact] if dtype == torch.float64 else [])]


def _options(chance, kind, dtype, norms):
    """What networks and cells have in common."""
    norm = chance.choice(norms)
    options = {"norm": norm, "bias": _yes(chance, 0.8), "dtype": dtype}
    if norm in ("layer", "rms"):
        options["formula"] = _formula(chance, kind)
    if kind == "RNN":  # in few bits a sum near 0 may be on either side of relu's corner
        options["nonlinearity"] = chance.choice(["tanh", "relu"] if dtype == torch.float64 else ["tanh"])
    return options


def _network_options(chance, kind, dtype, units, norms):
    options = _options(chance, kind, dtype, norms)
    options["num_layers"] = chance.randint(1, 3)
    if kind == "LSTM" and units > 1 and _yes(chance, 0.3):
        options["proj_size"] = chance.randint(1, units - 1)
    if options["num_layers"] > 1 and _yes(chance, 0.2):
        options["dropout"] = 0.3
    return options


def _units(chance, dtype, most):
    """Hidden units. In few bits several: of two, a normalisation makes little more than a sign, step by step."""
    return chance.randint(1 if dtype == torch.float64 else 8, most)


def _module(kind, inputs, units, options):
    """A module all of whose parameters are random: gains of 1 and biases of 0 would hide mistakes."""
    module = getattr(ln, kind)(inputs, units, **options)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return module


def _with_gradients(results, inputs, again=False):
    """The results, and the gradients of a weighted sum of them; with `again`, gradients of a sum of those instead.

    The weights are small whole numbers, which all types have.
    """

    def gradients(found, graph):
        able = [item for item in found if item.requires_grad]
        weights = [(torch.arange(item.numel()).view(item.shape) % 7 - 3).to(item) for item in able]
        return torch.autograd.grad(able, inputs, weights, create_graph=graph, materialize_grads=True)

    first = gradients(results, again)
    found = [*results, *first, *(gradients(first, False) if again else ())]
    return [item.detach() for item in found]


def _compare(said, dtype, results, *inputs):
    """`results(*inputs)` of every engine here: in float64 by `CLOSE`, in fewer bits by the tolerances of `rounding`.

    The compiled engine is left out: it would take seconds for each.
    """
    engines = [name for name in ln.backends.available() if name not in ("reference", "compiled")]
    assert engines, "there is no engine to compare"
    for engine in engines:
        try:
            with ln.backends.use(engine):
                if dtype != torch.float64:
                    assert_as_near_as_the_reference(results, *inputs, draws=8)
                    continue
                found = results(*inputs)
            with ln.backends.use("reference"):
                expected = results(*inputs)
            for number, (a, b) in enumerate(zip(found, expected, strict=True)):
                assert (a.shape, a.dtype) == (b.shape, b.dtype), f"result {number}: {a.shape}, {a.dtype}"
                error = float((a - b).abs().max() / max(1.0, float(b.abs().max()))) if a.numel() else 0.0
                assert error <= CLOSE, f"result {number}: {error:g}"
        except AssertionError as error:
            raise AssertionError(f"{said}, {engine}: {error}") from error


def network(seed, again=False):
    """A recurrent network with random features, and a random call of it."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    kind = chance.choice(NETWORKS)
    dtype = torch.float64 if again or _yes(chance) else chance.choice(NARROW)
    inputs, units = chance.randint(1, 6 if again else 40), _units(chance, dtype, 6 if again else 40)
    options = _network_options(chance, kind, dtype, units, _norms(dtype, *([] if again else ["batch"])))
    options |= {"batch_first": _yes(chance), "bidirectional": _yes(chance, 0.4)}
    module = _module(kind, inputs, units, options)
    steps, batch = chance.randint(1, 4 if again else 20), chance.randint(1, 9 if again or not _yes(chance, 0.2) else 60)
    if options["norm"] == "batch":
        batch += 3  # of two cases the statistics are one difference, which may be as small as its rounding
        module.train(_yes(chance))
    way = chance.choice(["plain", "plain", "lengths", "packed", "unbatched"][: 4 if options["norm"] == "batch" else 5])
    lengths = torch.randint(int(way == "packed"), steps + 1, (batch,)) if way in ("lengths", "packed") else None
    if lengths is not None and _yes(chance, 0.4):  # a long row among short ones
        lengths[1:].clamp_(max=2)
    if options["norm"] == "batch" and lengths is not None:
        lengths[:4] = steps  # statistics of one case do not exist
    shape = {"unbatched": (steps, inputs)}.get(
        way, (batch, steps, inputs) if module.batch_first else (steps, batch, inputs)
    )
    x = (torch.randn(shape) * chance.choice([0.1, 1.0, 30.0])).to(dtype).requires_grad_()
    longest = int(lengths.max()) if way == "packed" else steps
    places = (steps,) if way == "unbatched" else (batch, longest) if module.batch_first else (longest, batch)
    reset = torch.rand(places) < 0.3 if _yes(chance, 0.3) else None
    rows = module.num_layers * (1 + module.bidirectional)
    sizes = [module.proj_size or units, units][: 1 + (kind == "LSTM")]
    cases = () if way == "unbatched" else (batch,)
    state = [torch.randn(rows, *cases, size).to(dtype).requires_grad_() for size in sizes] if _yes(chance) else []

    def results(module, x, *state):
        if module.norm == "batch":  # a call moves its population's statistics
            before = {name: item.clone() for name, item in module.named_buffers()}
        torch.manual_seed(seed)  # dropout
        given, options = x, {"reset": reset}
        if way == "packed":
            given = pack_padded_sequence(x, lengths, module.batch_first, enforce_sorted=False)
        elif way == "lengths":
            options["lengths"] = lengths
        output, final = module(given, as_hx(state) if state else None, **options)
        output = output.data if isinstance(output, PackedSequence) else output
        found = _with_gradients([output, *flat(final)], [x, *state, *module.parameters()], again)
        if module.norm == "batch":
            found += [item.clone() for item in module.buffers() if item.is_floating_point()]
            for name, item in module.named_buffers():
                item.copy_(before[name])
        return found

    about = f"{steps} steps, batch {batch}, {way}, reset {reset is not None}, state {bool(state)}, {module.training=}"
    _compare(f"{kind}({inputs}, {units}, {options}), {about}", dtype, results, module, x, *state)
    return f"{kind}, {str(dtype).removeprefix('torch.')}"


def stepper(seed):
    """A network step by step is the network over the sequence."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    kind, dtype = chance.choice(NETWORKS), torch.float64 if _yes(chance) else chance.choice(NARROW)
    units = _units(chance, dtype, 40)
    inputs, steps, batch = (chance.randint(1, most) for most in (24, 12, 9))
    options = _network_options(chance, kind, dtype, units, _norms(dtype))
    options.pop("dropout", None)  # drawn layer by layer in the one, step by step in the other
    module = _module(kind, inputs, units, options)
    x = torch.randn(steps, batch, inputs).to(dtype).requires_grad_()
    sizes = [module.proj_size or units, units][: 1 + (kind == "LSTM")]
    state = [torch.randn(module.num_layers, batch, size).to(dtype).requires_grad_() for size in sizes]
    calls = itertools.count()

    def results(module, x, *state):
        if next(calls):
            output, final = module(x, as_hx(state))
        else:
            step = module.stepper()
            here, outputs = as_hx(state), []
            for row in x.unbind():
                output, here = step(row, here)
                outputs.append(output)
            output, final = torch.stack(outputs), step.hx(here)
        return _with_gradients([output, *flat(final)], [x, *state, *module.parameters()])

    _compare(f"{kind}({inputs}, {units}, {options}), {steps} steps, batch {batch}", dtype, results, module, x, *state)
    return f"{kind}, {str(dtype).removeprefix('torch.')}"


def cell(seed):
    """A cell, called several times, or its stepper."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    kind, dtype = chance.choice(NETWORKS), torch.float64 if _yes(chance) else chance.choice(NARROW)
    units = _units(chance, dtype, 40)
    inputs, steps, batch = (chance.randint(1, most) for most in (24, 6, 9))
    options = _options(chance, kind, dtype, _norms(dtype))
    module = _module(f"{kind}Cell", inputs, units, options)
    cases, stepped = chance.choice([(batch,), ()]), _yes(chance)
    x = torch.randn(steps, *cases, inputs).to(dtype).requires_grad_()
    state = [torch.randn(*cases, units).to(dtype).requires_grad_() for _ in range(1 + (kind == "LSTM"))]
    calls = itertools.count()

    def results(module, x, *state):
        take = module.stepper() if stepped and not next(calls) else module
        here, outputs = as_hx(state), []
        for row in x.unbind():
            here = take(row, here)
            outputs += flat(here)
        return _with_gradients(outputs, [x, *state, *module.parameters()])

    _compare(f"{kind}Cell({inputs}, {units}, {options}), {steps} steps, {stepped=}", dtype, results, module, x, *state)
    return f"{kind}Cell, {str(dtype).removeprefix('torch.')}"


def norm(seed, again=False):
    """A norm op, with a residual or without, on a tensor of random shape, type, strides and scale."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    dtype = torch.float64 if again or _yes(chance, 0.3) else chance.choice([*NARROW, torch.float16])
    few = dtype == torch.float16  # whose gradients of gains, sums over rows, end at 65504
    dims = [chance.choice([1, 2, 3, 7, 16] if few else [1, 2, 3, 7, 16, 33]) for _ in range(chance.randint(1, 3))]
    dims.append(chance.randint(1, 9 if again else 300))
    last = chance.randint(1, min(2, len(dims)))
    scale, shift = chance.choice([1e-2, 1.0, 30.0]), chance.choice([0.0, 0.0, 5.0])

    def drawn(size, scale=1.0, shift=0.0):
        return (torch.randn(size, dtype=torch.float64) * scale + shift).to(dtype)

    def placed(x):
        across = len(dims) > 1 and _yes(chance, 0.4)
        return (x.transpose(0, -1).contiguous().transpose(0, -1) if across else x).requires_grad_()

    kind = chance.choice(["layer_norm", "rms_norm"])
    added = _yes(chance, 0.4)
    op = getattr(functional, f"add_{kind}" if added else kind)
    size = tuple(dims[len(dims) - last :])
    inputs = [placed(drawn(dims, scale, shift)) for _ in range(1 + added)]
    affine = {
        name: drawn(size).requires_grad_()
        for name in ("weight", "bias")
        if (name == "weight" or kind == "layer_norm") and _yes(chance, 0.7)
    }
    options = {} if _yes(chance) else {"eps": chance.choice([1e-5, 1e-3])}
    if not options and kind == "rms_norm":  # its own default depends on the type
        options["eps"] = torch.finfo(dtype).eps

    def results(*given):
        x, parameters = given[: len(inputs)], dict(zip(affine, given[len(inputs) :], strict=True))
        return _with_gradients(flat(op(*x, size, **parameters, **options)), list(given), again)

    said = (
        f"{op.__name__} of {dims} over {size}, {dtype}, strides {[x.stride() for x in inputs]}, {[*affine]}, {options}"
    )
    _compare(f"{said}, {scale=}, {shift=}", dtype, results, *inputs, *affine.values())
    return f"{op.__name__}, {str(dtype).removeprefix('torch.')}"


def _second(seed):
    return (network, norm)[seed % 2](seed, again=True)


CAMPAIGNS = {
    "networks": Campaign(network, together=25),
    "steppers": Campaign(stepper, together=25),
    "cells": Campaign(cell, together=25),
    "norms": Campaign(norm, together=25),
    "second": Campaign(_second, together=25),
}
"""`second`: gradients of gradients."""
