"""Section 5 of the paper and its appendix as a report: measurements of all claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from layernorm import geometry

from ..data import digits
from ..report.page import STYLES, Curve, Figure, Panel, Report, Style, Table
from ..runs import environment
from ..runs.files import write_json
from .claims import CLAIMS, SPECTRUM, Claim
from .measured import Data, Measured

ABOUT = (
    "Normalisation makes a model's output invariant to re-scalings of its weights and inputs, and the metric of its "
    "parameters, the Fisher matrix, tells what that does to learning: long weights learn slowly, and gains learn alike "
    "whatever the scale of the inputs (section 5 and appendix)."
)

CASES = 300  # of the digits, for the claims that need real data: a step of gradient descent is then a millisecond


class Finding(NamedTuple):
    """A claim and its measurement."""

    claim: Claim
    measured: Measured


def measure_claims(seed: int, spectrum: bool) -> list[Finding]:
    """Measures every claim, with one thread, as a second one would only wait for such small layers, and the spectrum of
    the large network on all threads."""
    cases = digits.load_digits().train[:CASES]
    data = Data(cases.images.flatten(1) / 16, cases.labels)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        findings = [Finding(claim, claim.measure(seed, data)) for claim in CLAIMS]
    finally:
        torch.set_num_threads(threads)
    return findings + ([Finding(SPECTRUM, SPECTRUM.measure(seed, data))] if spectrum else [])


def not_as_documented(findings: Sequence[Finding]) -> list[str]:
    """Returns the names of the claims whose numbers do not agree with their verdicts and conditions."""
    return [claim.name for claim, measured in findings if not measured.as_stated]


def write_claims(findings: Sequence[Finding], path: Path) -> None:
    """Writes each claim with its result, as JSON."""
    names = ("name", "where", "statement", "holds")
    claims = [
        {**{name: getattr(claim, name) for name in names}, "as_stated": measured.as_stated, "found": measured.found}
        for claim, measured in findings
    ]
    write_json(path, {"claims": claims})


def report_claims(findings: Sequence[Finding]) -> Report:
    """Reports the claims: first a table of all claims, then for each a sentence, its table and its figure."""
    return Report(
        title="The geometry of normalised models, measured",
        claim=ABOUT,
        findings=[_sentence(number, item) for number, item in enumerate(findings, 1)],
        status=[
            f"Not measured as docs/theory.md says: {', '.join(names)}."
            for names in [not_as_documented(findings)]
            if names
        ],
        figures=[_claim_figure(item) for item in findings if item.measured.series],
        tables=[_verdicts(findings), *(_measured_table(item.measured) for item in findings)],
        start=environment.describe(),
    )


def report_invariance(verdicts: Sequence[geometry.Verdict], sentence: str) -> Report:
    """Reports only Table 1, for some eps."""
    paper = {True: "invariant", False: "no", None: "-"}
    rows = [
        [v.norm or "none", v.transform, f"{v.residual:.1e}", v.measured, paper[v.paper] + " DIFFERS" * v.differs]
        for v in verdicts
    ]
    return Report(
        title="Table 1, measured",
        claim=CLAIMS[0].statement,
        findings=[sentence],
        tables=[Table("Invariances", ["norm", "transform", "relative change", "measured", "paper"], rows)],
        start=environment.describe(),
    )


def _claim_verdict(item: Finding) -> tuple[str, str]:
    """Returns the verdict in words, and what a sentence says after it."""
    if not item.measured.as_stated:
        return "WAS NOT MEASURED AS DOCUMENTED", ""
    if item.claim.holds:
        return "holds", ""
    return "does not hold", f" as the paper states it; see docs/theory.md#{item.claim.name}"


def counted_claims(findings: Sequence[Finding]) -> str:
    """Says how many claims hold and how many do not, of claims that were all measured as documented."""
    known = sum(not claim.holds for claim, _ in findings)
    return (
        f"all {len(findings)} claims were measured as docs/theory.md says: {len(findings) - known} hold,\n"
        f"{known} are known not to hold as the paper states them"
    )


def _verdicts(findings: Sequence[Finding]) -> Table:
    rows = []
    for number, item in enumerate(findings, 1):
        verdict, more = _claim_verdict(item)
        claim = f"{number}. {item.claim.name.capitalize()} ({item.claim.where})"
        rows.append([verdict, f"{claim}{more}: {item.measured.found}"])
    return Table("The claims of section 5 and the appendix", ["verdict", "claim, and what was measured"], rows)


def _sentence(number: int, item: Finding) -> str:
    claim, measured = item
    verdict = "".join(_claim_verdict(item))
    return (
        f"{number}. {claim.name.capitalize()} ({claim.where}): {verdict}. Claim: {claim.statement} "
        f"Measured with {', '.join(claim.functions)}: {measured.found}. Condition: {claim.condition}"
    )


def _measured_table(measured: Measured) -> Table:
    rows = [
        [
            cell if isinstance(cell, str) else f"{cell:{form}}"
            for cell, form in zip(row, measured.columns.values(), strict=True)
        ]
        for row in measured.rows
    ]
    return Table(measured.title, list(measured.columns), rows, measured.note)


class _Axes(NamedTuple):
    """The axes of a claim's figure."""

    x_label: str
    y_label: str
    columns: int
    caption: str
    log_x: bool = True
    log: bool = True


_AXES = {
    "quadratic": _Axes(
        "length of the step", "|KL / ds^2 - 1|", 2,
        "How far the KL divergence is from half the quadratic form of the Fisher matrix, against the length of the "
        "step. For the Gaussian without a norm it is exact.",
    ),
    "blocks": _Axes(
        "H", "||F_blocks - F|| / ||F||", 2,
        "How far eq. 13's blocks are from the Fisher matrix under layer and RMS norm, against the width of the layer.",
    ),
    "curvature": _Axes(
        "norm of the weights, over the first", "curvature, over the first", 2,
        "Curvature against the norm of the weights, the output unchanged. Under batch and weight norm w_i grows, under "
        "layer and RMS norm the whole matrix, whose two lines are one, as are the first two.",
    ),
    "training": _Axes(
        "step", "", 2,
        "Gradient descent on digits from weights of four norms: under a norm the angle of "
        "the first step falls with the square of the norm, and the weights grow; without one it falls far more slowly.",
        log_x=False,
    ),
    "gain": _Axes(
        "scale of the inputs", "ds^2", 1,
        "ds^2 of a step along the gains against the scale of the inputs: batch, layer and RMS norm are one "
        "line, weight "
        "norm and none the other.",
    ),
}  # fmt: skip

_STYLES = {
    **STYLES,
    "start 1x": Style("#E69F00", "solid"),
    "start 2x": Style("#56B4E9", (0, (5, 1.6))),
    "start 4x": Style("#0072B2", (0, (5, 1.4, 1, 1.4))),
    "start 8x": Style("#000000", (0, (1, 1.2))),
}
"""By a line's label: a norm, or the norm of the weights at the start over that of the first."""


def _claim_figure(item: Finding) -> Figure:
    """Draws the claim's lines by panel, in rows."""
    axes = _AXES[item.claim.name]
    panels: dict[str, list[Curve]] = {}
    for line in item.measured.series:
        panels.setdefault(line.panel, []).append(Curve(line.label, _STYLES[line.label], line.x, line.y, line.y, line.y))
    drawn = []
    for title, curves in panels.items():
        title, _, y_label = title.partition(": ")
        log = axes.log and not y_label.startswith("norm")  # the norm hardly grows, so its axis is linear
        drawn.append(Panel(title, axes.x_label, y_label or axes.y_label, curves, log, axes.log_x))
    rows = [drawn[start : start + axes.columns] for start in range(0, len(drawn), axes.columns)]
    says = f"{item.claim.statement} This {''.join(_claim_verdict(item))}."
    rule = f"The rule: {item.claim.condition}"
    return Figure(item.claim.name, axes.caption, rows, says=[says], rule=rule)
