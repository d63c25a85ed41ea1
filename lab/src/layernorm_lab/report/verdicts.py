"""Puts the judge's verdicts into a report: in plain words above the figures that show them, in all detail below."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..runs.folder import Run
from .curves import SENSITIVITY
from .judge import RULE, RULE_OVER_RATES, Claim, Ruling, capital, reported
from .page import Figure, Report


def with_verdicts(report: Report, claims: Sequence[Claim], runs: Sequence[Run]) -> Report:
    """Returns the report with the verdicts on its runs."""
    rulings, others = reported(claims, runs)
    placed: dict[str, list[Ruling]] = {}
    for ruling in rulings:
        placed.setdefault(_place(ruling, report.figures), []).append(ruling)
    figures = [_judged(figure, placed[figure.name]) if figure.name in placed else figure for figure in report.figures]
    return dataclasses.replace(
        report,
        figures=figures,
        findings=[*(ruling.plain for ruling in placed.get("", [])), *filter(None, [others]), *report.findings],
        verdicts=[
            f"{ruling.claim.text} Verdict: {ruling.verdict}. {capital(ruling.ran)}. {capital(ruling.effect_text)}."
            for ruling in rulings
        ],
    )


def _place(ruling: Ruling, figures: Sequence[Figure]) -> str:
    """Names the figure that shows what was compared: the one of all rates, or the one with the metric, else the first.
    The name is empty if there is no figure."""
    if ruling.claim.over_rates:
        able = [figure for figure in figures if figure.name == SENSITIVITY]
    else:
        able = [figure for figure in figures if ruling.claim.measure.metric in figure.metrics]
    return next((figure.name for figure in (*able, *figures)), "")


def _judged(figure: Figure, rulings: Sequence[Ruling]) -> Figure:
    rule = RULE_OVER_RATES if all(ruling.claim.over_rates for ruling in rulings) else RULE
    return dataclasses.replace(figure, says=[*(ruling.plain for ruling in rulings), *figure.says], rule=rule)
