"""A report as data: what an experiment says of its figures and tables. Most of a report is the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..runs.folder import Run
from .arms import Said, said
from .blocks import Block, Metric, compare
from .conclusion import conclude
from .curves import curves, sensitivity
from .deviations import deviations
from .judge import Claim
from .page import Deviation, Figure, Picture, Report, Table
from .tables import Column, Paper, learning_rates, results, update_times


class Curves(NamedTuple):
    """A figure of metrics against "epoch" or "update". Its caption begins with `about`."""

    name: str
    about: str
    metrics: Sequence[Metric]
    x: str = "epoch"


class Results(NamedTuple):
    """A table of results: its columns, what a reader must know of them, and rows to compare with. Of sentences and rows
    about norms a report has those on norms among its runs."""

    columns: Sequence[Column]
    note: str | Sequence[str | Said]
    others: Paper = ()
    title: str = "Results"


@dataclass(frozen=True)
class Extra:
    """What a report has beside the parts that all have: `first` stands before the other tables, `tables` after them."""

    findings: Sequence[str] = ()
    status: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    first: Sequence[Table] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()


@dataclass(frozen=True)
class Outline:
    """The report of an experiment.

    Attributes:
        title: the heading.
        claim: the paper's claim, in its words or close to them, with the norms that each sentence is about; empty if
            the data are not of its kind.
        config: the configuration that has the paper's values.
        curves: the figures. The runs that the last one shows are those of the tables of results.
        results: the tables of results.
        chosen: the metric on validation data by which learning rates are compared.
        digits: the digits of its values in the table of learning rates.
        concluded: the metric on test data that the report's first sentence compares; None: `chosen`.
        also: further metrics in the figure of learning rates.
        deviations: where the experiment departs from the paper.
        apart: the options that the paper does not state, or states several values of.
        whose: whose the values of ``config`` are, where the paper names none.
        prefixes: of metrics that make an arm of their own, such as `exact_`.
        extra: (the blocks of runs) -> what only this experiment has.
    """

    title: str
    claim: Sequence[Said]
    config: Any
    curves: Sequence[Curves]
    results: Sequence[Results]
    chosen: Metric
    digits: int = 2
    concluded: Metric | None = None
    also: Sequence[Metric] = ()
    deviations: Sequence[Deviation] = ()
    apart: Sequence[str] = ()
    whose: str = "the paper's protocol"
    prefixes: Sequence[str] = ()
    extra: Callable[[Sequence[Block]], Extra] = field(default=lambda blocks: Extra())

    def report(self, runs: Sequence[Run], claims: Sequence[Claim] = ()) -> Report:
        """Writes the report on some runs, finished or not. The pilots of the claims choose the learning rates shown."""
        blocks, status = compare(runs, claims, self.prefixes)
        extra = self.extra(blocks)
        shown = self.curves[-1].metrics
        figures = [
            figure for item in self.curves for figure in curves(item.name, item.about, blocks, item.metrics, item.x)
        ]
        return Report(
            title=self.title,
            conclusion=conclude(blocks, self.concluded or self.chosen, self.digits),
            claim=said(self.claim, {run.config["norm"] for run in runs}),
            findings=[*extra.findings],
            status=[*status, *extra.status],
            figures=[*figures, *sensitivity(blocks, self.chosen, *self.also), *extra.figures],
            tables=[
                *extra.first,
                *(results(blocks, shown, *item) for item in self.results),
                *learning_rates(blocks, self.chosen, self.digits),
                update_times(blocks),
                *extra.tables,
            ],
            deviations=deviations(runs, self.deviations, self.config, self.apart, self.whose),
            runs=runs,
            pictures=extra.pictures,
        )
