"""Attacks on ONNX files, portable copies, and steppers whose modules change under them."""

import logging
import random
import warnings

import torch

import layernorm as ln
from support.networks import NETWORKS, as_hx, flat

from .arena import Campaign
from .arithmetic import _module, _network_options, _norms, _units, _yes

ROUNDINGS = 1000
"""Of a number, in its type, by which results may differ: both sides round in another order, and a norm of a short
vector multiplies what was rounded before it. What is stale is off by a tenth of the result or more."""


def _assert_near(said, found, expected):
    """Compares lists of tensors: NaN where NaN is, otherwise near in the coarser of float32 and their type."""
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a.shape == b.shape, f"{said}: result {number} has shape {tuple(a.shape)}, not {tuple(b.shape)}"
        eps = max(torch.finfo(b.dtype).eps, torch.finfo(torch.float32).eps)
        a, b = a.detach().double(), b.detach().double()
        assert torch.equal(a.isnan(), b.isnan()), f"{said}: result {number} is NaN in other places"
        error = float((a - b).abs().nan_to_num().max()) if b.numel() else 0.0
        size = max(1.0, float(b.abs().nan_to_num().max())) if b.numel() else 1.0
        assert error <= ROUNDINGS * eps * size, f"{said}: result {number} differs by {error:g}"


def _small_network(chance, dtype, norms):
    """A network for one call of few steps, in words too."""
    kind = chance.choice(NETWORKS)
    units = _units(chance, torch.float32, 12)
    options = _network_options(chance, kind, dtype, units, norms)
    options |= {"num_layers": chance.randint(1, 2), "batch_first": _yes(chance), "bidirectional": _yes(chance, 0.4)}
    options.pop("dropout", None)
    inputs = chance.randint(1, 6)
    return f"{kind}({inputs}, {units}, {options})", _module(kind, inputs, units, options).eval()


def _quiet():
    """Hears no more from torch's exporter."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message="# The axis name")


def export(seed):
    """A network or norm op as ONNX, for any T and B, run on other sizes than it was exported with; rows may be 0."""
    import onnxruntime

    chance = random.Random(seed)
    torch.manual_seed(seed)
    dtype = chance.choice([torch.float32, torch.float32, torch.float64, torch.float16])
    eps = chance.choice([0.0, 1e-12, 1e-8, 1e-5, None])
    if _yes(chance, 0.3):
        kind, options = chance.choice([ln.LayerNorm, ln.RMSNorm]), {} if eps is None else {"eps": eps}
        module, said = kind(5, dtype=dtype, **options).eval(), f"{kind.__name__}(5, {options}), {dtype}"
        shape, batch = (7, 5), 0
    else:
        said, module = _small_network(chance, dtype, [None, "layer", "layer", "rms"])
        shape, batch = (3, 2, module.input_size), 0 if module.batch_first else 1
    free = {place: torch.export.Dim("BT"[place != batch], min=1) for place in range(len(shape) - 1)}
    program = torch.onnx.export(
        module, (torch.randn(shape).to(dtype),), dynamo=True, verbose=False, dynamic_shapes=(free,)
    )
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    x = torch.randn(*(chance.randint(1, 9) for _ in shape[:-1]), shape[-1])
    x = (x * (torch.rand(x.shape[:-1]) < 0.7)[..., None]).to(dtype)  # rows of zeros
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    results = module(x)
    expected = [results] if isinstance(results, torch.Tensor) else [results[0], *flat(results[1])]
    _assert_near(said, [torch.from_numpy(item) for item in found], expected)
    return f"{type(module).__name__}, {str(dtype).removeprefix('torch.')}"


def portable(seed):
    """A portable copy computes what its module does, and refuses what that refuses."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    said, module = _small_network(chance, torch.float32, _norms(torch.float32))
    copy = ln.portable(module)
    if _yes(chance, 0.3):
        copy = torch.jit.script(copy)
    steps, batch = chance.randint(1, 6), chance.randint(1, 4)
    x = torch.randn((batch, steps, module.input_size) if module.batch_first else (steps, batch, module.input_size))
    rows = module.num_layers * (1 + module.bidirectional)
    sizes = [module.proj_size or module.hidden_size, module.hidden_size][: len(module._state_names)]
    lengths = torch.randint(0, steps + 1, (batch,))
    reset = torch.rand(x.shape[:2]) < 0.3
    wrong = chance.choice([None, "length", "negative length", "type of lengths", "rows of hx", "batch of hx", "reset"])
    if wrong == "length":
        lengths[0] = steps + chance.randint(1, 3)
    elif wrong == "negative length":
        lengths[-1] = -1
    elif wrong == "type of lengths":
        lengths = lengths + 0.5
    elif wrong == "rows of hx":
        rows += 1
    elif wrong == "reset":
        reset = chance.choice([reset[:, :-1], reset[None], reset.float() + 2, reset * float("nan")])
    state = as_hx([torch.randn(rows, batch + (wrong == "batch of hx"), size) for size in sizes])
    given = {"lengths": lengths} if _yes(chance) or "length" in (wrong or "") else {}
    given |= {"reset": reset} if _yes(chance) or wrong == "reset" else {}
    outcomes = []
    for taker in (module, copy):
        try:
            output, final = taker(x, state, **given)
            outcomes.append([output, *flat(final)])
        except (ValueError, TypeError, RuntimeError, IndexError, torch.jit.Error) as error:
            outcomes.append(str(error))
    expected, found = outcomes
    refused = [isinstance(outcome, str) for outcome in outcomes]
    assert refused[0] == refused[1], f"{said}, {wrong}: the module {expected!s:.200}, the copy {found!s:.200}"
    if not refused[0]:
        _assert_near(said, found, expected)
    return f"{wrong or 'right'}, {'refused' if refused[0] else 'computed'}"


def _assign(module, chance):
    module.load_state_dict({name: 1.5 * value for name, value in module.state_dict().items()}, assign=True)


def _replace(module, chance):
    name = chance.choice([name for name, _ in module.named_parameters()])
    setattr(module, name, torch.nn.Parameter(torch.randn_like(getattr(module, name))))


@torch.no_grad()
def _update(module, chance):
    for parameter in module.parameters():
        parameter += 0.1 * torch.randn_like(parameter)


def _freeze(module, chance):
    module.requires_grad_(_yes(chance))


CHANGES = {
    "assign": _assign,
    "replace": _replace,
    "update": _update,
    "freeze": _freeze,
    "double": lambda module, chance: module.double(),
    "float": lambda module, chance: module.float(),
    "train": lambda module, chance: module.train(_yes(chance)),
    "nothing": lambda module, chance: None,
}
"""What may happen to a module between two steps."""


def changing(seed):
    """A stepper computes, at every step, what its module computes for that step as it is now, with its gradients."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    kind, units, inputs = chance.choice(NETWORKS), chance.randint(8, 20), chance.randint(1, 9)
    options = _network_options(chance, kind, torch.float32, units, [None, "layer", "rms"])
    options.pop("dropout", None)
    module = _module(kind, inputs, units, options)
    with torch.set_grad_enabled(_yes(chance)):
        step = module.stepper()
    sizes = [module.proj_size or units, units][: len(module._state_names)]
    done = []
    for _ in range(chance.randint(2, 6)):
        change = chance.choice(sorted(CHANGES))
        CHANGES[change](module, chance)
        done.append(change)
        said, dtype, batch = (
            f"{kind}({inputs}, {units}, {options}), {done}",
            module.weight_ih_l0.dtype,
            chance.randint(1, 4),
        )
        x = torch.randn(batch, inputs, dtype=dtype, requires_grad=True)
        hx = as_hx([torch.randn(module.num_layers, batch, size, dtype=dtype) for size in sizes])
        with torch.set_grad_enabled(_yes(chance, 0.7)):
            output, state = step(x, hx)
            expected, final = module(x[None], hx)
        found, expected = [output, *flat(step.hx(state))], [expected[0], *flat(final)]
        assert [a.requires_grad for a in found] == [b.requires_grad for b in expected], f"{said}: requires_grad"
        _assert_near(said, [item.detach() for item in found], expected)
        if output.requires_grad:
            inputs_of = [x, *(p for p in module.parameters() if p.requires_grad)]
            gradients = [torch.autograd.grad(sum(o.square().sum() for o in outputs if o.requires_grad), inputs_of,
                                             allow_unused=True, materialize_grads=True)
                         for outputs in (found, expected)]  # fmt: skip
            _assert_near(f"{said}, gradients", *gradients)
    return done[-1]


CAMPAIGNS = {
    "exports": Campaign(export, together=5, before=_quiet),
    "portable": Campaign(portable, together=25),
    "changes": Campaign(changing, together=25),
}
