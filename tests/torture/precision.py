"""Attacks on numbers in few bits and on accelerated modules: autocast, int8 scales, statistics of other types, and
attributes that are set later."""

import copy
import random
import warnings

import torch
from torch.nn.utils.rnn import pack_padded_sequence

import layernorm as ln
from support.networks import NETWORKS, as_hx

from .arena import Campaign
from .arithmetic import _yes

NARROW = [torch.bfloat16, torch.float16]
TYPES = [torch.float32, torch.float64, *NARROW]


def _torchs(chance):
    """A network or cell of torch's with random options, a call of it, and what it is in words."""
    kind = chance.choice(NETWORKS) + chance.choice(["", "", "Cell"])
    inputs, units = chance.randint(1, 9), chance.randint(2, 12)
    options = {"bias": _yes(chance, 0.8)}
    if kind.startswith("RNN"):
        options["nonlinearity"] = chance.choice(["tanh", "relu"])
    if "Cell" not in kind:
        options |= {"num_layers": chance.randint(1, 2), "bidirectional": _yes(chance), "batch_first": _yes(chance)}
        if kind == "LSTM" and _yes(chance, 0.3):
            options["proj_size"] = chance.randint(1, units - 1)
    return kind, getattr(torch.nn, kind)(inputs, units, **options), f"{kind}({inputs}, {units}, {options})"


def _call(chance, module, input_type, state_type):
    """Arguments of a call: padded, packed or unbatched."""
    cell, batch, steps = not isinstance(module, torch.nn.RNNBase), chance.randint(1, 4), chance.randint(1, 5)
    way = chance.choice(["padded", "unbatched"] if cell else ["padded", "packed", "unbatched"])
    places = () if cell else (batch, steps) if getattr(module, "batch_first", False) else (steps, batch)
    shape = (*(() if cell else (steps,)), *(() if way == "unbatched" else (batch,)), module.input_size)
    x = torch.randn(*places, module.input_size) if way == "packed" else torch.randn(shape)
    if way == "padded" and not cell:
        x = x.reshape(*places, module.input_size)
    x = x.to(input_type)
    rows = () if cell else (module.num_layers * (1 + module.bidirectional),)
    sizes = [getattr(module, "proj_size", 0) or module.hidden_size, module.hidden_size]
    cases = () if way == "unbatched" else (batch,)
    count = 1 + ("LSTM" in type(module).__name__)
    state = None if state_type is None else as_hx([torch.randn(*rows, *cases, n).to(state_type) for n in sizes[:count]])
    if way == "packed":
        lengths = torch.randint(1, steps + 1, (batch,))
        x = pack_padded_sequence(x, lengths, module.batch_first, enforce_sorted=False)
    return x, state


def _results(result):
    """The tensors of a module's result."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, torch.nn.utils.rnn.PackedSequence):
        return [result.data]
    return [t for part in result for t in _results(part)]


def autocast(seed):
    """Under autocast an accelerated module has torch's types, and numbers as near to it as the type allows."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    narrow = chance.choice(NARROW)
    kind, module, said = _torchs(chance)
    types = chance.choice([torch.float32, *NARROW]), chance.choice([None, torch.float32, *NARROW])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x, state = _call(chance, module, *types)
        with torch.autocast("cpu", narrow):
            try:
                expected = _results(module(x, state))
            except RuntimeError:  # oneDNN's LSTM where the processor lacks the type
                return f"{kind}, refused by torch"
            found = _results(ln.accelerate(copy.deepcopy(module))(x, state))
    said = f"{said}, {types}, {narrow}"
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{said}: result {number} is {a.dtype}, torch's {b.dtype}"
        error = float(
            (a.detach().double() - b.detach().double()).abs().max() / max(1.0, float(b.detach().double().abs().max()))
        )
        assert error < 0.15, f"{said}: result {number} differs by {error:g}"  # some steps of some roundings by 2^-8
    return f"{kind}, {str(narrow).removeprefix('torch.')}"


@torch.no_grad()
def int8(seed):
    """Weights of any size and type are off by half a scale at most, also in a copy made narrow."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    kind, dtype = chance.choice(NETWORKS), chance.choice(TYPES)
    module = getattr(ln, kind)(chance.randint(1, 40), chance.randint(2, 20), norm=None, dtype=torch.float64).eval()
    size = 10.0 ** chance.uniform(-4, 3)
    for weight in module.parameters():
        weight.copy_(size * torch.randn_like(weight))
    module, later = module.to(dtype), chance.choice(TYPES)
    quantized = ln.quantize(module, filter_fn=lambda part, name: True).to(later)
    for name in ("weight_ih", "weight_hh"):
        weight = getattr(module, f"{name}_l0").double()
        scale = weight.abs().amax(1, keepdim=True) / 127
        made = getattr(quantized, f"{name}_l0").double() * getattr(quantized, f"{name}_scale_l0").double()[:, None]
        error = float(((made - weight).abs() / scale).max())
        assert error <= 0.5 + 1e-4, f"{kind}, {dtype} to {later}, size {size:g}: off by {error:g} scales"
    assert quantized(torch.randn(3, 2, module.input_size, dtype=later))[0].dtype is later
    return f"{kind}, {str(dtype).removeprefix('torch.')}"


def statistics(seed):
    """Batch norm in evaluation with statistics of any type, forward and backward, every engine near the others."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    kind, dtype, kept = chance.choice(NETWORKS), chance.choice(TYPES), chance.choice(TYPES)
    module = getattr(ln, kind)(chance.randint(1, 6), chance.randint(2, 9), norm="batch", dtype=dtype).eval()
    for name, buffer in list(module.named_buffers()):
        if buffer.is_floating_point():
            module.register_buffer(name, (torch.rand(buffer.shape) + float("var" in name)).to(kept))
    x = torch.randn(chance.randint(1, 6), chance.randint(1, 4), module.input_size).to(dtype).requires_grad_()
    found = []
    for engine in ("native", "reference"):
        with ln.backends.use(engine):
            results = _results(module(x))
            total = sum(result.double().square().sum() for result in results)
            found.append([*results, *torch.autograd.grad(total, [x, *module.parameters()])])
    for number, (a, b) in enumerate(zip(*found, strict=True)):
        error = float(
            (a.detach().double() - b.detach().double()).abs().max() / max(1.0, float(b.detach().double().abs().max()))
        )
        limit = 0.1 if dtype in NARROW else 1e-4 if dtype is torch.float32 else 1e-10
        assert error < limit, f"{kind}, {dtype}, statistics {kept}: result {number} differs by {error:g}"
    return f"{kind}, {str(dtype).removeprefix('torch.')}"


def attributes(seed):
    """An accelerated module after some of torch's attributes were set computes what torch's then does, or refuses."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    _, module, said = _torchs(chance)
    x, state = _call(chance, module, torch.float32, chance.choice([None, torch.float32]))
    accelerated = ln.accelerate(copy.deepcopy(module))
    values = {
        "mode": ["RNN_TANH", "RNN_RELU", "LSTM", "GRU"], "nonlinearity": ["tanh", "relu"], "batch_first": [True, False],
        "num_layers": [1, 2, 3], "bidirectional": [True, False], "bias": [True, False], "dropout": [0.0, 1.0],
        "hidden_size": [module.hidden_size, 3], "input_size": [module.input_size, 3], "proj_size": [0, 1],
        "bias_hh": [None], "bias_hh_l0": [None],
    }  # fmt: skip
    name = chance.choice([name for name in values if hasattr(module, name)])
    value = chance.choice(values[name])
    outcomes = []
    for one in (accelerated, module):
        try:
            setattr(one, name, value)
            outcomes.append(_results(one(x, state)))
        except Exception as error:  # torch has several kinds, AssertionError among them
            outcomes.append(f"{type(error).__name__}: {error}")
    ours, theirs = outcomes
    said = f"{said}, {name} = {value!r}"
    if isinstance(ours, str):
        named = "restore first" in ours or isinstance(theirs, str)
        assert named, f"{said}: {ours}"
        return f"{name}, refused"
    assert not isinstance(theirs, str), f"{said}: computed, torch's {theirs}"
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape, f"{said}: {a.shape}, {b.shape}"
        assert torch.allclose(a, b, atol=1e-5), f"{said}: differs by {(a - b).abs().max():g}"
    return f"{name}, computed"


CAMPAIGNS = {
    "autocast": Campaign(autocast, together=25),
    "int8": Campaign(int8, together=25),
    "statistics": Campaign(statistics, together=25),
    "attributes": Campaign(attributes, together=25),
}
