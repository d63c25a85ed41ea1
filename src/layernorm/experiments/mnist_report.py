"""What the runs of experiment 6.6 show: Figure 6 again, its claim in numbers, and where we depart from the paper."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from .report import (
    Curve,
    Deviation,
    Figure,
    Panel,
    Report,
    Table,
    curve,
    first_reaching,
    seconds_per_update,
    unequal,
    unfinished,
)
from .run_folder import Run

NORMS = {"none": "baseline", "layer": "layer norm", "batch": "batch norm"}
"""The norms in the order of showing, with their names in figures and tables."""

CLAIM = (
    "Layer normalization is robust to the batch size and converges faster than batch normalization applied to all "
    "layers (section 6.6, Figure 6)."
)

Group = list[Run]


def report(runs: Sequence[Run]) -> Report:
    """The report on runs of `mnist` or `digits`, finished or not."""
    sizes = sorted({run.config["batch_size"] for run in runs}, reverse=True)
    table = {size: groups for size in sizes if (groups := _groups(runs, size))}
    name = runs[0].experiment
    return Report(
        title="Permutation-invariant MNIST, Figure 6" if name == "mnist" else "Figure 6 on scikit-learn's digits",
        claim=CLAIM,
        findings=[*_convergence(table), *_robustness(table)],
        status=[*unfinished(runs), *unequal(runs, apart=("norm", "batch_size", "seed"))],
        figures=[_figure(table)] if table else [],
        tables=[_results(table), _speed(table)],
        deviations=_deviations(runs),
        runs=runs,
    )


def _groups(runs: Sequence[Run], size: int) -> dict[str, Group]:
    """The runs of a batch size that have records, by norm."""
    at_size = [run for run in runs if run.config["batch_size"] == size and run.records]
    groups = {norm: [run for run in at_size if run.config["norm"] == norm] for norm in NORMS}
    return {norm: group for norm, group in groups.items() if group}


def _curve(groups: dict[str, Group], norm: str, metric: str) -> Curve:
    return curve(groups[norm], metric, NORMS[norm], norm)


def _figure(table: dict[int, dict[str, Group]]) -> Figure:
    rows = []
    for size, groups in table.items():
        title = f"batch size {size}"
        nll = [_curve(groups, norm, "train_nll") for norm in groups]
        error = [_curve(groups, norm, "test_error") for norm in groups]
        rows.append(
            [
                Panel(title, "epoch", "training NLL, nats", nll, log=True),
                Panel(title, "epoch", "test error", error, percent=True, limits=_view(error)),
            ]
        )
    caption = (
        "Training negative log-likelihood (logarithmic axis) and test error after each epoch. Lines: mean over seeds; "
        "bands: lowest to highest seed. The test error's axis leaves out the highest values of the first epochs."
    )
    return Figure("figure6", caption, rows)


def _view(curves: list[Curve]) -> tuple[float, float]:
    """Limits that show what follows the first fifth of the curves, where the differences are."""
    late = [value for line in curves for value in line.high[len(line.high) // 5 :]]
    low = min(value for line in curves for value in line.low)
    high = max(late)
    margin = 0.08 * (high - low) or 0.01
    return max(0.0, low - margin), high + margin


def _results(table: dict[int, dict[str, Group]]) -> Table:
    rows = []
    for size, groups in table.items():
        for norm, group in groups.items():
            final = [100 * run.records[-1]["test_error"] for run in group]
            chosen = [100 * min(run.records, key=lambda record: record["valid_error"])["test_error"] for run in group]
            nll = statistics.fmean(run.records[-1]["train_nll"] for run in group)
            done = min(run.records[-1]["epoch"] for run in group)
            epochs = f"{done:g}" if all(run.done for run in group) else f"{done:g} of {group[0].config['epochs']}"
            rows.append(
                [str(size), NORMS[norm], _spread(final), _spread(chosen), f"{nll:.1e}", str(len(group)), epochs]
            )
    return Table(
        "Results",
        ["batch", "norm", "test error, %", "at best valid., %", "train NLL", "seeds", "epochs"],
        rows,
        "Test error after the last epoch, and at the epoch with the lowest validation error (the first of equals): "
        "mean over seeds (lowest to highest). Train NLL: nats a case over the whole training set after the last epoch.",
    )


def _speed(table: dict[int, dict[str, Group]]) -> Table:
    rows = []
    for size, groups in table.items():
        reference = seconds_per_update(groups["none"]) if "none" in groups else None
        for norm, group in groups.items():
            seconds = seconds_per_update(group)
            ratio = f"{seconds / reference:.2f}" if reference else "-"
            reached = [_reached(groups, norm, metric) for metric in ("test_error", "train_nll")]
            rows.append([str(size), NORMS[norm], *reached, f"{1000 * seconds:.2f}", ratio])
    return Table(
        "Speed",
        ["batch", "norm", "epochs to test error", "epochs to train NLL", "ms/update", "x baseline"],
        rows,
        "Epochs until the mean over seeds reaches the baseline's best test error and best training NLL. Time of an "
        "update: the median within an epoch, of the fastest epoch, since other work on the machine slows the rest.",
    )


def _reached(groups: dict[str, Group], norm: str, metric: str) -> str:
    if "none" not in groups:
        return "-"
    epoch = first_reaching(_curve(groups, norm, metric), min(_curve(groups, "none", metric).mean))
    return "not reached" if epoch is None else f"{epoch:g}"


def _spread(values: list[float]) -> str:
    mean = f"{statistics.fmean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.2f}-{max(values):.2f})"


def _convergence(table: dict[int, dict[str, Group]]) -> list[str]:
    """Whether LN trains faster than BN: the epochs to every power of ten, and to the lowest NLL, that both reach."""
    findings = []
    for size, groups in table.items():
        if not {"layer", "batch"} <= set(groups):
            continue
        layer, batch = (_curve(groups, norm, "train_nll") for norm in ("layer", "batch"))
        lowest = max(min(layer.mean), min(batch.mean))
        goals = [10.0**power for power in range(-1, -8, -1) if 10.0**power > lowest] + [lowest]
        first, second = ([first_reaching(line, goal) or 0.0 for goal in goals] for line in (layer, batch))
        ahead = sum(a < b for a, b in zip(first, second, strict=True))
        behind = sum(a > b for a, b in zip(first, second, strict=True))
        verdict = "neither is ahead throughout" if ahead and behind else _verdict(ahead > 0)
        if not (ahead or behind):
            verdict = "a tie"
        findings.append(
            f"Batch size {size}, epochs to a training NLL of {_list(f'{goal:.2g}' for goal in goals)} (the last is the "
            f"lowest that both reach): layer norm {_list(f'{epoch:g}' for epoch in first)}, batch norm "
            f"{_list(f'{epoch:g}' for epoch in second)}: {verdict}."
        )
    return findings


def _robustness(table: dict[int, dict[str, Group]]) -> list[str]:
    """How the final test error changes from the largest batch size to the smallest."""
    if len(table) < 2:
        return []
    large, small = max(table), min(table)
    changes, texts = {}, []
    for norm in NORMS:
        if norm in table[large] and norm in table[small]:
            ends = [_curve(table[size], norm, "test_error").mean[-1] for size in (large, small)]
            changes[norm] = ends[1] - ends[0]
            texts.append(f"{NORMS[norm]} {100 * ends[0]:.2f} % to {100 * ends[1]:.2f} %")
    if not {"layer", "batch"} <= set(changes):
        return []
    less = changes["layer"] < changes["batch"]
    return [
        f"From batch size {large} to {small} the final test error goes: {', '.join(texts)}. Layer norm loses "
        f"{'less' if less else 'no less'} than batch norm: {_verdict(less)}."
    ]


def _verdict(holds: bool) -> str:
    return "as the paper claims" if holds else "against the paper's claim"


def _list(texts: Iterable[str]) -> str:
    return " / ".join(texts)


def _deviations(runs: Sequence[Run]) -> list[Deviation]:
    config, data = runs[0].config, runs[0].environment["data"]
    sizes = {run.config["batch_size"] for run in runs}
    found = [
        Deviation("I", "ReLU in the hidden layers; the paper does not name the activation."),
        Deviation("I", f"Adam with step size {config['learning_rate']:g}; the paper does not name the optimiser."),
        Deviation("I", "Weights and biases start as torch.nn.Linear's do; one seed starts all norms alike."),
        Deviation("I", "Batch norm is evaluated with running averages of momentum 0.1 over the training batches."),
    ]
    biased = {size for size in sizes if size > config["unbiased_up_to"]}
    if biased:
        limit = config["unbiased_up_to"]
        text = f"Batch norm divides by M - 1 up to batch size {limit} as in the paper; above it by M, left open there."
        found.append(Deviation("I", text))
    if runs[0].experiment == "digits":
        text = (
            f"scikit-learn's 1797 digits of 8 x 8 pixels ({1397 - config['held_out']} for training, "
            f"{config['held_out']} held out, 400 for testing) in place of MNIST, "
            f"and {config['hidden']} hidden units in place of 1000."
        )
        found.append(Deviation("stand-in", text))
    elif not data.get("original"):
        found.append(Deviation("stand-in", "The data files' content is not the original MNIST's (other SHA-256)."))
    found.extend(_departures(runs))
    return found


def _departures(runs: Sequence[Run]) -> list[Deviation]:
    """Options that differ from the paper's protocol."""
    config, mnist = runs[0].config, runs[0].experiment == "mnist"
    protocol = {"epochs": 60, **({"hidden": 1000, "held_out": 5000, "train_cases": 0} if mnist else {})}
    found = [
        Deviation("I", f"{name} is {config[name]}; the paper's protocol has {value or 'all'}.")
        for name, value in protocol.items()
        if config[name] != value
    ]
    if config.get("precision") != "float32":
        found.append(Deviation("I", f"Mixed precision: {config['precision']}."))
    return found
