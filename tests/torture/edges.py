"""Attacks on what stands beside the networks: audits, populations computed anew, the device `meta`, caches."""

import copy
import math
import random

import torch
from torch.utils._pytree import tree_leaves

import layernorm as ln
from support.networks import NETWORKS

from .arena import Campaign

NORMS = ["layer", "rms", "batch", "weight", None]


def _drawn(seed, norms):
    """What to draw from, and a random network with an input for it, in float64."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    norm, size, units = chance.choice(norms), chance.randint(2, 5), chance.randint(2, 6)
    options = {"norm": norm, "bidirectional": chance.random() < 0.5, "dtype": torch.float64}
    options["eps"] = 10 ** -chance.uniform(1, 6)  # a formula that no case before had
    network = getattr(ln, chance.choice(NETWORKS))(size, units, chance.randint(1, 2), **options)
    return chance, network, torch.randn(chance.randint(1, 6), chance.randint(2, 6), size, dtype=torch.float64)


def audited(seed):
    """A number that is not finite is planted: the audit's one finding names its place."""
    chance, network, x = _drawn(seed, NORMS[:3])
    named = [*network.named_parameters(), *((n, b) for n, b in network.named_buffers() if n.startswith("running_"))]
    if network.eval() and chance.random() < 0.5:
        named = [("batch[0]", x)]
    name, tensor = chance.choice(named)
    value = chance.choice([math.nan, math.inf, -math.inf])
    with torch.no_grad():
        tensor.view(-1)[chance.randrange(min(tensor.numel(), 2))] = value
    found = [finding.what for finding in ln.audit(network, x)]
    is_said = len(found) == 1 and f"of {name} are not finite" in found[0]
    # what is infinite may leave all results finite, where a gate saturates
    assert is_said or (math.isinf(value) and "finite" not in str(found)), f"{network}: {value} in {name}: {found}"
    return "an audit, " + ("an input" if name == "batch[0]" else "a parameter or population")


def population(seed):
    """A population computed anew is that of a new network with the same weights that saw the batches once."""
    chance, network, _ = _drawn(seed, ["batch"])
    sizes = [(chance.randint(1, 6), chance.randint(2, 6)) for _ in range(chance.randint(1, 4))]
    given = [torch.randn(T, B, network.input_size, dtype=torch.float64) for T, B in sizes]
    again = copy.deepcopy(network)
    again.over_time = ln.BatchNormOverTime(momentum=None)
    again.reset_running_stats()
    for x in given:
        again(x)
    network(torch.randn(3, 4, network.input_size, dtype=torch.float64))
    ln.update_bn(given, network)
    for (name, new), expected in zip(network.named_buffers(), again.buffers(), strict=True):
        assert torch.equal(new, expected), f"{network}, batches {sizes}: {name}"
    return "a population anew"


def on_meta(seed):
    """Where `meta` is the default device, a network on the CPU computes what it computes elsewhere."""
    chance, network, x = _drawn(seed, NORMS)
    T, B = x.shape[:2]
    keywords = chance.choice([{}, {"lengths": [T] * B}, {"reset": torch.rand(T, B) < 0.3}])
    found = []
    for device in ("cpu", "meta"):
        part = copy.deepcopy(network)
        with torch.device(device):
            results = tree_leaves(part(x, **keywords))
            sum(result.square().sum() for result in results).backward()
        found.append([*results, *(p.grad for p in part.parameters()), *part.buffers()])
    for a, b in zip(*found, strict=True):
        # as in `arithmetic`; the statistics of two rows grow roundings
        assert torch.allclose(a.double(), b.double(), rtol=1e-8, atol=1e-8), f"{network}, {[*keywords]}"
    return "meta as the default device"


def edge(seed):
    return (audited, population, on_meta)[seed % 3](seed)


CAMPAIGNS = {"edges": Campaign(edge, together=25)}
