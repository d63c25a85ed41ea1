"""Table 1 for recurrent networks: which changes of weights, inputs and initial state each formula and norm undoes.

No verdict is written down here: `holds` derives each from the places where the formula normalises. That h feeds back
breaks none of them: while the outputs stay, so does all that reads them.
"""

from dataclasses import dataclass
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.nn.utils.parametrize import is_parametrized

import layernorm as ln
from support.drawing import normal
from support.networks import GATES, MODULE, flat

EPS = 1e-30  # the laws hold without eps; this is below the last digit of any variance drawn here
# Steps enlarge rounding by what they divide by; a change that is none of rounding is of the output's own size.
INVARIANT, CHANGED = 1e-9, 1e-3
T, B, I, H = 3, 5, 3, 4  # noqa: E741

FORMULAS = [
    ("RNN", ln.Formula(gates="sum", cell=None)),
    ("RNN", ln.Formula(gates="split", cell=None)),
    ("RNN", ln.Formula(gates="split", cell=None, bias_inside=True)),
    ("LSTM", ln.Formula()),
    ("LSTM", ln.Formula(gates="hidden", cell=None)),
    ("LSTM", ln.Formula(gates="sum", cell="carry")),
    ("LSTM", ln.Formula(gates="split", span="per_gate", cell=None)),
    ("LSTM", ln.Formula(gates="sum", bias_inside=True)),
    ("LSTM", ln.Formula(gates=None, cell="output")),
    ("GRU", ln.Formula(gates="split", cell=None)),
    ("GRU", ln.Formula(gates="hidden", cell=None)),
    ("GRU", ln.Formula(gates="sum", cell=None)),
    ("GRU", ln.Formula(gates="sum", span="per_gate", cell=None)),
    ("GRU", ln.Formula(gates="sum", cell=None, bias_inside=True)),
    ("GRU", ln.Formula(gates="split", span="all", cell=None)),
    ("GRU", ln.Formula(gates="sum", span="all", cell=None)),
]
SUBJECTS = [(norm, *where) for norm in ("layer", "rms", "batch") for where in FORMULAS]
SUBJECTS += [(norm, network, ln.Formula()) for norm in ("weight", None) for network in MODULE]


# --- Where a formula normalises, and what follows ---


class Site(NamedTuple):
    """One normalisation of summed inputs: its units, and the terms of its sum.

    ``terms``: "ih" for W x, "hh" for U h, "r hh" for r * U h; "bias" for a bias inside, "r bias" for one times r.
    """

    units: frozenset[int]
    terms: frozenset[str]


def spans(network, f):
    """The units that one normalisation runs over."""
    gates = [set(range(gate * H, gate * H + H)) for gate in range(GATES[network])]
    if f.span == "per_gate":
        return gates
    if network == "GRU" and f.span == "joint":
        return [gates[0] | gates[1], gates[2]]
    return [set().union(*gates)]


def sites(network, f):
    found = []
    for span in spans(network, f) if f.gates else []:
        sums = {"split": [{"ih"}, {"hh"}], "hidden": [{"hh"}], "sum": [{"ih", "hh"}]}[f.gates]
        if network == "GRU" and f.gates == "sum" and f.span != "all" and min(span) == 2 * H:
            sums = [{"ih", "r hh"}]
        for terms in sums:
            biases = {"r bias" if "r hh" in terms else "bias"} if f.bias_inside else set()
            found.append(Site(frozenset(span), frozenset(terms | biases)))
    return found


@dataclass(frozen=True)
class Change:
    """What is done to which part.

    ``part``: the matrices "ih", "hh" or "ih hh", the input "x", or the initial state "h".
    ``kind``: "re-scaling" by a number > 0, or "re-centring" by a vector.
    ``where``: of the matrices, "matrix", "gate" (the last one) or "unit" (the first one); of the input, "dataset",
    "step" (the first one) or "case" (the first one); of the state, "dataset" or "case".
    """

    part: str
    kind: str
    where: str

    def __str__(self):
        return f"{self.part}: {self.where} {self.kind}"

    def rows(self, network):
        G = GATES[network]
        units = {"matrix": range(G * H), "gate": range(G * H - H, G * H), "unit": range(1)}
        return sorted(units[self.where])


CHANGES = [Change(part, kind, where) for kind in ("re-scaling", "re-centring") for part, wheres in (
    ("ih", ("matrix", "gate", "unit")),
    ("hh", ("matrix", "gate", "unit")),
    ("ih hh", ("matrix", "gate", "unit")),
    ("x", ("dataset", "step", "case")),
    ("h", ("dataset", "case")),
) for where in wheres]  # fmt: skip


def holds(norm, network, f, change):
    """Whether the output stays: whether each site that sees the change undoes it."""
    if norm in (None, "weight"):  # each row of v has a length of its own, whatever it is multiplied with
        return norm == "weight" and change.kind == "re-scaling" and change.part in ("ih", "hh", "ih hh")
    if f.gates is None or (network == "GRU" and change.part == "h"):  # read by more than the sites: z * h
        return False
    if f.gates == "hidden" and change.part in ("x", "ih", "ih hh"):  # W x is read as it is
        return False
    of_data = change.part in ("x", "h")
    undoes = data_undone if of_data else weights_undone
    return all(undoes(norm, network, site, change) for site in sites(network, f))


def moved(site, change):
    """The site's terms that the change reaches."""
    reads = {"x": {"ih"}, "h": {"hh", "r hh"}, "ih": {"ih"}, "hh": {"hh", "r hh"}}
    return site.terms & set().union(*(reads[part] for part in change.part.split()))


def all_scaled(norm, site, terms):
    """Whether a re-scaling of these terms re-scales the sum; a constant among them is subtracted by batch norm."""
    return not site.terms - terms - ({"bias"} if norm == "batch" else set())


def weights_undone(norm, network, site, change):
    units, terms = site.units & set(change.rows(network)), moved(site, change)
    if not units or not terms:
        return True
    if change.kind == "re-scaling":
        return all_scaled(norm, site, terms) and (norm == "batch" or units == site.units)
    return norm == "layer" and units == site.units and "r hh" not in terms  # the same shift in all units


def data_undone(norm, network, site, change):
    terms = moved(site, change)
    if not terms:
        return True
    whole_batch = change.where != "case"
    if change.kind == "re-scaling":
        return all_scaled(norm, site, terms) and (whole_batch or norm != "batch")
    return norm == "batch" and whole_batch  # the same shift in all cases


# --- The modules ---


@dataclass
class Case:
    seed: int
    scale: float
    bidirectional: bool

    def normal(self, *shape):
        self.seed += 1
        return normal(*shape, seed=self.seed)


cases = st.builds(Case, st.integers(0, 2**20), st.floats(0.1, 0.5) | st.floats(2.0, 10.0), st.booleans())
quick = settings(max_examples=4, deadline=None, derandomize=True, database=None)


def weight(module, name):
    """The parameter that holds a weight: under weight norm, v."""
    if is_parametrized(module, name):
        return module.parametrizations[name].original1
    return getattr(module, name)


def made(norm, network, f, case):
    """A module with random parameters, in training mode; under batch norm a step's statistics are over the rows."""
    eps = {} if norm in (None, "weight") else {"formula": f, "eps": EPS}
    module = MODULE[network](I, H, norm=norm, bidirectional=case.bidirectional, dtype=torch.float64, **eps)
    for name, p in module.named_parameters():
        p.data = (1.0 if "gain" in name or "original0" in name else 0.0) + 0.5 * case.normal(*p.shape)
    return module


def run(module, x, h, c):
    """Output and final state of a module, as one vector."""
    with torch.no_grad():
        output, final = module(x, (h, c) if isinstance(module, ln.LSTM) else h)
    return torch.cat([part.flatten() for part in (output, *flat(final))])


def changed(a, change, index, case):
    """A copy, with what the index means re-scaled or re-centred."""
    a = a.clone()
    a[index] = case.scale * a[index] if change.kind == "re-scaling" else a[index] + case.normal(a.shape[-1])
    return a


def after(module, x, h, c, change, network, case):
    """`run` with the change made; the module is as before."""
    index = {"dataset": ..., "step": 0, "case": (slice(None), 0)}.get(change.where)
    if change.part == "x":
        return run(module, changed(x, change, index, case), h, c)
    if change.part == "h":
        return run(module, x, changed(h, change, index, case), c)
    held = [weight(module, name) for name, _ in weights(module) if name[7:9] in change.part.split()]
    before = [p.data for p in held]
    for p in held:
        p.data = changed(p.data, change, change.rows(network), case)
    found = run(module, x, h, c)
    for p, data in zip(held, before, strict=True):
        p.data = data
    return found


def weights(module):
    """The names of the weights and their values."""
    ends = ("", "_reverse")[: 1 + module.bidirectional]
    return [(name, weight(module, name)) for end in ends for name in (f"weight_ih_l0{end}", f"weight_hh_l0{end}")]


def given_to(module, case):
    D = 1 + module.bidirectional
    return case.normal(T, B, I), case.normal(D, B, H), case.normal(D, B, H)


def label(value):
    if not isinstance(value, ln.Formula):
        return str(value)
    return f"{value.gates}-{value.span}-{value.cell}" + "-inside" * value.bias_inside


@pytest.mark.parametrize(("norm", "network", "f"), SUBJECTS, ids=label)
@quick
@given(case=cases)
def test_verdicts(norm, network, f, case):
    module = made(norm, network, f, case)
    inputs = given_to(module, case)
    before = run(module, *inputs)
    for change in CHANGES:
        now = after(module, *inputs, change, network, case)
        residual = float((now - before).norm() / before.norm())
        expected = holds(norm, network, f, change)
        assert residual < INVARIANT if expected else residual > CHANGED, (str(change), residual)
    torch.testing.assert_close(run(module, *inputs), before, rtol=0, atol=0)


def test_the_derived_verdicts_are_the_papers_where_it_has_them():
    """Table 1's rows for an LSTM, whose sites read W x and U h apart; and what a sum costs."""
    f, names = ln.Formula(), ["ih: matrix re-scaling", "ih: matrix re-centring", "ih: unit re-scaling"]
    names += ["x: dataset re-scaling", "x: dataset re-centring", "x: case re-scaling"]
    by_name = {str(change): change for change in CHANGES}

    def row(norm, network, f):
        return "".join("-I"[holds(norm, network, f, by_name[name])] for name in names)

    table = {"layer": "II-I-I", "rms": "I--I-I", "batch": "I-III-", "weight": "I-I---", None: "------"}
    assert {norm: row(norm, "LSTM", f) for norm in table} == table
    rnn = ln.Formula(gates="sum", cell=None)
    assert [row(norm, "RNN", rnn) for norm in table] == ["-I----", "------", "----I-", "I-I---", "------"]
    both = by_name["ih hh: matrix re-scaling"]
    assert all(holds(norm, "RNN", rnn, both) for norm in ("layer", "rms", "batch", "weight"))


@pytest.mark.parametrize("network", MODULE)
@quick
@given(case=cases)
def test_each_span_may_be_re_centred_and_re_scaled_by_its_own(network, case):
    for _, f in (pair for pair in FORMULAS if pair[0] == network):
        if f.gates != "split" or f.bias_inside:
            continue
        module = made("layer", network, f, case)
        inputs = given_to(module, case)
        before = run(module, *inputs)
        for _, p in weights(module):
            p.data = p.data.clone()
            for number, span in enumerate(spans(network, f)):
                rows = sorted(span)
                p.data[rows] = case.scale ** (number + 1) * p.data[rows] + case.normal(p.shape[1])
        assert float((run(module, *inputs) - before).norm() / before.norm()) < INVARIANT
