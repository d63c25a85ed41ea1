"""Differential fuzz: networks and norms with features drawn at random, on every engine, against float64 equations."""

import random

import torch

import layernorm as ln
from layernorm import functional
from layernorm.formula import PRESETS

CLOSE = 1e-9
"""Float64 on two engines: sums in another order, through up to 20 steps, each of which may double an error. Relative to
1 and the largest value."""

TIMES, UNITS = 8.0, 64.0
"""In float32 and 16 bits: times the reference engine's own error in that type, and units of the largest value."""


def network(seed):
    """A recurrent module with random features, and random calls of it: results and gradients of both engines."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    kind = chance.choice(["RNN", "LSTM", "GRU"])
    norm = chance.choice([None, "layer", "layer", "rms", "weight", "batch"])
    inputs, units = chance.randint(1, 24), chance.randint(1, 40)
    options = {
        "num_layers": chance.randint(1, 3),
        "bias": chance.random() < 0.8,
        "batch_first": chance.random() < 0.5,
        "bidirectional": chance.random() < 0.4,
        "norm": norm,
    }
    if kind == "LSTM" and units > 1 and chance.random() < 0.3:
        options["proj_size"] = chance.randint(1, units - 1)
    if kind == "RNN":
        options["nonlinearity"] = chance.choice(["tanh", "relu"])
    if norm in ("layer", "rms"):
        names = [name for name, found in PRESETS.items() if kind in found]
        options["formula"] = chance.choice(names)
    steps, batch = chance.randint(1, 20), chance.randint(1, 9)
    said = f"{kind}({inputs}, {units}, {options}), {steps} steps, batch {batch}"
    try:
        module = getattr(ln, kind)(inputs, units, **options)
    except (ValueError, TypeError):
        return  # a combination that is refused
    module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    shape = (batch, steps, inputs) if module.batch_first else (steps, batch, inputs)
    x = torch.randn(shape, dtype=torch.float64) * chance.choice([0.01, 1.0, 30.0])
    lengths = torch.randint(1, steps + 1, (batch,)) if chance.random() < 0.4 else None

    def results(engine):
        given = x.clone().requires_grad_()
        with ln.backends.use(engine):
            output, state = module(given, lengths=lengths) if lengths is not None else module(given)
        state = state if isinstance(state, tuple) else (state,)
        loss = sum((item * (1 + torch.arange(item.numel()).view(item.shape) % 7)).sum() for item in (output, *state))
        parameters = [item for item in module.parameters() if item.requires_grad]
        gradients = torch.autograd.grad(loss, [given, *parameters], allow_unused=True)
        return [item.detach() for item in (output, *state, *gradients) if item is not None]

    if norm == "batch":
        module.eval()
    truth = results("reference")
    for engine in [name for name in ln.backends.available() if name not in ("reference", "triton")]:
        for number, (a, b) in enumerate(zip(results(engine), truth, strict=True)):
            assert a.shape == b.shape, f"{said}: shapes of result {number}"
            error = float((a - b).abs().max() / (1 + b.abs().max())) if a.numel() else 0.0
            assert error < CLOSE or ((a.isnan() == b.isnan()).all() and b.isnan().any()), (
                f"{said}: result {number}: {error:g}"
            )


def norm(seed):
    """A norm op on a tensor of random shape, type, strides and scale, with its gradients."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    dims = [chance.choice([1, 2, 3, 7, 16, 33]) for _ in range(chance.randint(1, 3))] + [chance.randint(1, 300)]
    last = chance.randint(1, min(2, len(dims)))
    dtype = chance.choice([torch.float64, torch.float32, torch.bfloat16, torch.float16])
    scale, shift = chance.choice([1e-2, 1.0, 30.0]), chance.choice([0.0, 0.0, 5.0])
    x = (torch.randn(dims, dtype=torch.float64) * scale + shift).to(dtype)
    if len(dims) > 1 and chance.random() < 0.4:
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    op = chance.choice(["layer_norm", "rms_norm"])
    size = x.shape[len(dims) - last :]
    weight = torch.randn(size, dtype=torch.float64).to(dtype) if chance.random() < 0.7 else None
    bias = torch.randn(size, dtype=torch.float64).to(dtype) if op == "layer_norm" and chance.random() < 0.7 else None
    said = f"{op} of {tuple(x.shape)} over {tuple(size)}, {dtype}, strides {x.stride()}, seed {seed}"

    def results(engine, kind):
        given = [None if item is None else item.detach().to(kind).requires_grad_() for item in (x, weight, bias)]
        with ln.backends.use(engine):
            extra = given[1:] if op == "layer_norm" else given[1:2]
            found = getattr(functional, op)(given[0], tuple(size), *extra)
        loss = (found.double() * torch.linspace(-1, 2, found.numel(), dtype=torch.float64).view(found.shape)).sum()
        return [found.detach(), *torch.autograd.grad(loss, [item for item in given if item is not None])]

    exact, own = results("reference", torch.float64), results("reference", dtype)
    for engine in [name for name in ln.backends.available() if name not in ("reference", "triton")]:
        for number, (a, b, c) in enumerate(zip(results(engine, dtype), own, exact, strict=True)):
            assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{said}: result {number}: {a.shape} {a.dtype}"
            error, theirs = (float((item.double() - c).abs().max()) for item in (a, b))
            unit = CLOSE if dtype == torch.float64 else UNITS * torch.finfo(dtype).eps
            allowed = TIMES * theirs + unit * max(float(c.abs().max()), 1.0)
            assert error <= allowed, f"{said}: result {number}: {error:g}, allowed {allowed:g}"


CAMPAIGNS = {"networks": network, "norms": norm}
