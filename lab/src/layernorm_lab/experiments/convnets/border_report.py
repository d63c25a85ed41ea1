"""The part of the report about units near the border, which section 6.7 gives as the reason for its claim."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from ...errors import RunError
from ...report.arms import Arm
from ...report.blocks import Block, Metric, heading
from ...report.curves import banded
from ...report.judge import capital
from ...report.outline import Extra
from ...report.page import STYLES, Curve, Figure, Panel, Table

LAYERS = range(1, 10)
"""The convolutions whose units are measured."""

RARELY = 0.5
"""Units at the border are "rarely turned on" if they are on less than this times as often as those of the centre."""

ON, MEAN, DEVIATION = 0, 1, 2
BORDER, CENTRE = 0, 1
DISTANCE, CHANNEL = 0, 1
"""The rows and columns of the tensors that `border.Statistics` gives."""


Tested = Mapping[str, Tensor]
"""The tensors that the test of one run saved, by name."""

Groups = Mapping[Arm, Sequence[Tested]]
"""The tests of each arm's runs; an arm without one is left out."""


def measured(blocks: Sequence[Block], metric: Metric) -> Extra:
    """Reports what the tests of the runs say that the panels of a metric show."""
    figures: list[Figure] = []
    tables: list[Table] = []
    damaged = []
    for block in blocks:
        groups: dict[Arm, list[Tested]] = {}
        for arm, run in ((arm, run) for arm, shown in block.shown(metric).items() for run in shown.runs):
            try:
                test = run.tested()
            except RunError as error:
                damaged.append(f"No test: {error}")
                continue
            if test:
                groups.setdefault(arm, []).append(test)
        if groups:
            figures += _figures(block, groups)
            tables += _tables(block, groups)
    return Extra(status=damaged, figures=figures, tables=tables)


def _figures(block: Block, groups: Groups) -> list[Figure]:
    """Draws the border against the centre in every layer, and units by their distance from the border."""
    rows = []
    for when, title in (("end", "trained"), ("start", "at the start")):
        on, mean, deviation = (_by_layer(groups, when, value) for value in (_ratio(ON), _shift, _ratio(DEVIATION)))
        title = ", ".join(filter(None, [title, block.title]))
        rows.append(
            [
                Panel(title, "convolution", "share on, border / centre", on, limits=_from_0(on)),
                Panel(title, "convolution", "shift of the mean, in deviations", mean),
                Panel(title, "convolution", "deviation, border / centre", deviation, limits=_from_0(deviation)),
            ]
        )
    distances = [
        [
            Panel(
                f"convolution {layer}",
                "distance from the border",
                "share of units on",
                _by_distance(groups, layer),
                percent=True,
                limits=(0.0, 1.0),
            )
            for layer in LAYERS[first : first + 3]
        ]
        for first in (0, 3, 6)
    ]
    said = [_sentences(block, arm, runs) for arm, runs in groups.items()]
    place = f"-{block.label.replace(', ', '-')}" if block.label else ""
    return [
        Figure(
            f"border{place}",
            "Units at the border of their map (distance 0) against those of the centre (inner half of the distances), "
            "over the first test images, in the trained networks and at the start. A unit is on where its summed input "
            "is above 0. The shift of the mean is border less centre, in deviations of the centre.",
            rows,
            says=[border for border, _ in said],
        ),
        Figure(
            f"distances{place}",
            "Share of the units that are on, by the number of positions between them and the border of their map, in "
            "the trained networks.",
            distances,
            says=[apart for _, apart in said],
        ),
    ]


def _tables(block: Block, groups: Groups) -> list[Table]:
    """Tabulates how often border units are on compared with the centre's, and where the variance between units comes
    from."""
    ratio, on, between = _ratio(ON), [], []
    for arm, runs in groups.items():
        values = [statistics.fmean(ratio(run, "end", layer) for run in runs) for layer in LAYERS]
        on.append([block.label, arm.name, *(f"{value:.2f}" for value in values)])
        parts = [[100 * _explained(runs, layer, part) for part in (DISTANCE, CHANNEL)] for layer in LAYERS]
        between.append([block.label, arm.name, *(f"{distance:.0f} / {channel:.0f}" for distance, channel in parts)])
    columns = [heading([block]), "norm", *map(str, LAYERS)]
    return [
        Table(
            "Units at the border",
            columns,
            on,
            "How many times as often as units of the centre a unit at the border is on, by convolution, in the trained "
            "networks; mean over seeds.",
        ),
        Table(
            "What tells units of a layer apart",
            columns,
            between,
            "Of the variance between a layer's units in how often they are on: percent that lies between distances "
            "from the border / between channels; trained networks, mean over seeds.",
        ),
    ]


def _sentences(block: Block, arm: Arm, runs: Sequence[Tested]) -> tuple[str, str]:
    """Says of a norm whether units at the border are rarely turned on, and what tells units of a layer apart."""
    ratio = _ratio(ON)
    # for each layer, the seed that contradicts the claim most
    ratios = {layer: max(ratio(run, "end", layer) for run in runs) for layer in LAYERS}
    lowest = min(ratios, key=lambda layer: ratios[layer])
    most = max(LAYERS, key=lambda layer: _explained(runs, layer, DISTANCE))
    shares = [_explained(runs, most, part) for part in (DISTANCE, CHANNEL)]
    fewer = sum(value < 1 for value in ratios.values())
    deviations = [statistics.fmean(_ratio(DEVIATION)(run, "end", layer) for run in runs) for layer in LAYERS]
    seen = "rarely turned on" if ratios[lowest] < RARELY else "not rarely turned on"
    about = capital(", ".join(filter(None, [block.title, arm.name])))
    return (
        f"{about}: units at the border are {seen}, if rarely means less than {RARELY:g} times as often as the "
        f"centre's: at the least {ratios[lowest]:.2f} times as often (convolution {lowest}, highest seed). They are on "
        f"less often in {fewer} of {len(LAYERS)} convolutions in every seed. Their deviation is {min(deviations):.2f} "
        f"to {max(deviations):.2f} times the centre's.",
        f"{about}: the distance from the border explains at most {100 * shares[DISTANCE]:.0f} % of the variance "
        f"between units of a layer in how often they are on (convolution {most}; channels explain "
        f"{100 * shares[CHANNEL]:.0f} % there).",
    )


def _from_0(curves: Sequence[Curve]) -> tuple[float, float]:
    """Limits of an axis of ratios: 0, which the paper's reason speaks of, and a little above 1 and all values."""
    return 0.0, 1.1 * max(1.0, *(value for line in curves for value in line.high))


Value = Callable[[Tested, str, int], float]
"""(a run's test, "start" or "end", layer) -> a number."""


def _ratio(row: int) -> Value:
    def value(run: Tested, when: str, layer: int) -> float:
        contrast = run[f"{when}.{layer}.contrast"][row]
        return float(contrast[BORDER] / contrast[CENTRE]) if contrast[CENTRE] else 1.0

    return value


def _shift(run: Tested, when: str, layer: int) -> float:
    contrast = run[f"{when}.{layer}.contrast"]
    spread = contrast[DEVIATION, CENTRE]
    return float((contrast[MEAN, BORDER] - contrast[MEAN, CENTRE]) / spread) if spread else 0.0


def _explained(runs: Sequence[Tested], layer: int, part: int) -> float:
    return statistics.fmean(float(run[f"end.{layer}.explained"][part]) for run in runs)


def _by_layer(groups: Groups, when: str, value: Value) -> list[Curve]:
    return [
        banded(arm.name, STYLES[arm.key], LAYERS, [[value(run, when, layer) for run in runs] for layer in LAYERS])
        for arm, runs in groups.items()
    ]


def _by_distance(groups: Groups, layer: int) -> list[Curve]:
    curves = []
    for arm, runs in groups.items():
        columns = [[float(value) for value in run[f"end.{layer}.profile"][ON]] for run in runs]
        curves.append(banded(arm.name, STYLES[arm.key], range(len(columns[0])), list(zip(*columns, strict=True))))
    return curves
