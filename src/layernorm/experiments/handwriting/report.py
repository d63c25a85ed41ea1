"""What the runs of experiment 6.5 show: Figure 5 again, its claim in numbers, samples, and where we depart."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import RunError
from ..report.comparison import (
    by_norm,
    curve,
    departures,
    first_reaching,
    seconds_per_update,
    unequal,
    unfinished,
    variants,
)
from ..report.page import STYLES, Curve, Deviation, Figure, Panel, Picture, Report, Table
from ..report.verdicts import order, spread, too_little
from ..runs.folder import CHECKPOINT, Run
from . import pen, samples

NORMS = {"none": "baseline", "layer": "layer norm", "rms": "RMS norm", "weight": "weight norm"}
"""The norms in the order of showing, with their names in figures and tables."""

CLAIM = (
    "Layer normalization comes to a log-likelihood comparable to the baseline's much faster (section 6.5, Figure 5: "
    "between -700 and -900 nats a sequence of 500 points)."
)

SENTENCE = "layer normalization"
"""What the report's samples say."""

METRIC = "valid_nll"

Groups = dict[str, list[Run]]


def report(runs: Sequence[Run]) -> Report:
    """The report on runs of `handwriting`, finished or not."""
    apart = variants(runs, row=("norm",))
    blocks = [(item.mark, groups) for item in apart if (groups := by_norm(item.runs, NORMS))]
    pictures, failed = _pictures(runs)
    return Report(
        title="Handwriting synthesis, Figure 5",
        claim=CLAIM,
        findings=[*(line for mark, groups in blocks for line in _findings(mark, groups)), *_sizes(runs)],
        status=[
            *unfinished(runs),
            *unequal(runs, apart=("norm", "seed")),
            *(f"Rows marked {item.mark}: {item.options}." for item in apart if item.mark),
            *failed,
        ],
        figures=[_figure(blocks)] if blocks else [],
        tables=[_table(blocks)],
        deviations=_deviations(runs),
        runs=runs,
        pictures=pictures,
    )


def _curve(groups: Groups, norm: str, metric: str = METRIC) -> Curve:
    return curve(groups[norm], metric, NORMS[norm], STYLES[norm], x="update")


def _figure(blocks: Sequence[tuple[str, Groups]]) -> Figure:
    rows = []
    for mark, groups in blocks:
        curves = [_curve(groups, norm) for norm in groups]
        label = "validation NLL, nats in 500 points"
        rows.append(
            [
                Panel(f"as in Figure 5 {mark}".strip(), "update", label, curves, log_x=True),
                Panel(f"the same, linear axis {mark}".strip(), "update", label, curves, limits=_view(curves)),
            ]
        )
    caption = (
        "Validation negative log-likelihood against updates (logarithmic axis on the left). Lines: mean over seeds; "
        "bands: lowest to highest seed. The right panel leaves out the first quarter's highest values."
    )
    return Figure("figure5", caption, rows)


def _view(curves: Sequence[Curve]) -> tuple[float, float]:
    """Limits that show what follows the first quarter of the curves."""
    low = min(value for line in curves for value in line.low)
    high = max(value for line in curves for value in line.high[len(line.high) // 4 :])
    margin = 0.08 * (high - low) or 1.0
    return low - margin, high + margin


def _table(blocks: Sequence[tuple[str, Groups]]) -> Table:
    rows = []
    for mark, groups in blocks:
        reference = seconds_per_update(groups["none"]) if "none" in groups else None
        for norm, group in groups.items():
            last = [run.records[-1][METRIC] for run in group]
            seconds = seconds_per_update(group)
            updates = min(run.records[-1]["update"] for run in group)
            rows.append(
                [
                    f"{mark} {updates}".strip(),
                    NORMS[norm],
                    spread(last, 1),
                    spread([min(record[METRIC] for record in run.records) for run in group], 1),
                    _reached(groups, norm),
                    f"{seconds:.2f}",
                    f"{seconds / reference:.2f}" if reference else "-",
                    str(len(group)),
                ]
            )
    return Table(
        "Results",
        ["updates", "norm", "NLL", "best NLL", "to baseline's", "s/update", "ratio", "seeds"],
        rows,
        "NLL: nats in 500 points over the validation lines after the last update, and at the best evaluation: mean "
        "over seeds (lowest to highest). To baseline's: updates until the mean over seeds is at the baseline's best. "
        "Time of an update: the median between two evaluations, of the fastest such span, since other work on the "
        "machine slows the rest; ratio: to the baseline's.",
    )


def _reached(groups: Groups, norm: str) -> str:
    if "none" not in groups:
        return "-"
    update = first_reaching(_curve(groups, norm), min(_curve(groups, "none").mean))
    return "not reached" if update is None else f"{update:g}"


def _findings(mark: str, groups: Groups) -> list[str]:
    """Whether layer norm is ahead: updates to NLLs that all runs reach, and the verdict if there are two seeds."""
    if not {"layer", "none"} <= set(groups):
        return []
    layer, none = groups["layer"], groups["none"]
    lowest = max(min(record[METRIC] for record in run.records) for run in (*layer, *none))
    first = max(run.records[0][METRIC] for run in (*layer, *none))
    goals = [*(first + share * (lowest - first) for share in (0.5, 0.75, 0.9)), lowest]
    ours, theirs = ([[_updates_to(goal, run) for run in group] for goal in goals] for group in (layer, none))
    texts = [f"{goal:.0f}" for goal in goals]
    count = min(len(run.records) for run in (*layer, *none))
    update = layer[0].records[count - 1]["update"]
    ends = {norm: [run.records[count - 1][METRIC] for run in groups[norm]] for norm in ("layer", "none")}
    verdict = too_little(layer, none, unit="evaluation") or order(ours, theirs)
    head = f"Rows {mark}: updates" if mark else "Updates"
    return [
        f"{head} to a validation NLL of {' / '.join(texts)} nats in 500 points (the last is the lowest that all reach; "
        f"lowest to highest seed): layer norm {' / '.join(map(_range, ours))}, baseline "
        f"{' / '.join(map(_range, theirs))}: {verdict}.",
        f"NLL after {update} updates: layer norm {spread(ends['layer'], 1)}, baseline {spread(ends['none'], 1)}: "
        f"{too_little(layer, none, unit='evaluation') or order([ends['layer']], [ends['none']])}.",
        f"The baseline's best, {min(_curve(groups, 'none').mean):.1f}, is reached by the mean of layer norm at update "
        f"{_reached(groups, 'layer')}, by the baseline's at {_reached(groups, 'none')}.",
    ]


def _sizes(runs: Sequence[Run]) -> list[str]:
    """The networks' numbers of parameters."""
    counts = {}
    for run in runs:
        try:
            model = samples.network(run)
        except RunError:
            continue
        counts[NORMS[run.config["norm"]]] = sum(parameter.numel() for parameter in model.parameters())
    text = ", ".join(f"{count:,} ({label})" for label, count in counts.items())
    return [f"Parameters: {text}."] if counts else []


def _updates_to(goal: float, run: Run) -> float:
    return next(record["update"] for record in run.records if record[METRIC] <= goal)


def _range(values: Sequence[float]) -> str:
    return f"{min(values):g}" if min(values) == max(values) else f"{min(values):g}-{max(values):g}"


def _pictures(runs: Sequence[Run]) -> tuple[list[Picture], list[str]]:
    """What the first run of each norm writes at bias 0 and 1, and a line for each that cannot."""
    pictures, failed = [], []
    for norm, label in NORMS.items():
        able = [run for run in runs if run.config["norm"] == norm and (run.path / CHECKPOINT).exists()]
        for run in able[:1]:
            try:
                pictures += _written(run, norm, label)
            except RunError as error:
                failed.append(f"No sample: {error}")
    return pictures, failed


def _written(run: Run, norm: str, label: str) -> list[Picture]:
    model, mean, deviation = samples.trained(run)
    update = run.records[-1]["update"] if run.records else 0
    pictures = []
    for bias in (0.0, 1.0):
        points, finished = samples.write(model, samples.Options(text=SENTENCE, bias=bias))
        end = "stopped by itself" if finished else "cut off, its window had not read to the end"
        caption = (
            f'"{SENTENCE}" written with {label} after {update} updates, seed {run.config["seed"]}, bias {bias:g} '
            f"({len(points)} points, {end})."
        )
        drawn = pen.strokes(points, mean, deviation)
        pictures.append(Picture(f"sample-{norm}-bias{bias:g}", "png", caption, pen.png(drawn, 8)))
    return pictures


def _deviations(runs: Sequence[Run]) -> list[Deviation]:
    config, data = runs[0].config, runs[0].environment["data"]
    found = [
        Deviation("I", f"Adam with step size {config['learning_rate']:g}; the paper names Adam alone."),
        Deviation("I", "57 characters: 52 letters, space, . , ' and one for all others, digits among them."),
        Deviation("I", "A line's first points are used, up to the cut; the first point is given, not predicted."),
        Deviation(
            "I", "Layer norm as in eqs. 20-22, the cell's too; no peepholes. Weights start as torch.nn.LSTM's do."
        ),
        Deviation("I", "The window moves 0.05 characters a point at first (Graves does not tell the initial values)."),
        Deviation("I", "NLL over all points of the validation lines, times 500: shorter lines count by their points."),
        Deviation(
            "I",
            "Derivatives of a sequence's loss are cut as by Graves, to +-100 at the outputs and +-10 at the LSTMs: "
            "there at the inputs of each, not at its gates.",
        ),
    ]
    if not data.get("original"):
        found.append(Deviation("stand-in", "The lines are not those of the published lists (their number differs)."))
    protocol = {"batch_size": 8, "points": 500, "units": 400, "mixtures": 20, "valid_lines": 0}
    return found + departures(runs, protocol)
