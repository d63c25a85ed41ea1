"""Shows how a lead changes in the course of a training: compares two arms of stored runs at several updates and goals.

    python benchmarks/lead.py draw --set epochs=60 --arms layer:0.002 none:0.002 --metric test_bound \\
        --updates 782 1955 3910 7820 23460
    python benchmarks/lead.py draw --set epochs=60 --arms layer:0.002 none:0.002 --metric valid_bound \\
        --goals 149.8 95 92
    python benchmarks/lead.py mnist --set epochs=60 batch_size=128 --arms layer:0.00025 none:0.0005 \\
        --metric valid_error --goals 0.02274 --last 3

An arm is a norm at a learning rate, and a goal is a value of the metric. A seed with a run in each arm is a pair, but
for a pilot's seeds. A line is the mean over pairs with the 95 % interval of Student's t, and each pair's own number, in
the order of the seeds: how much lower the first arm is at an update, on the straight line between evaluations; or how
many times as fast it reaches a goal, the geometric mean. A run that does not reach a goal counts with its last update,
and the line says how many there are. `--last N` compares means over the last N evaluations. The metric is one of the
runs' records, of which lower is better. The last line counts the evaluations at which the mean of each arm is the lower
one. Summaries are read from docs/results. The script needs SciPy.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from layernorm_lab.report.judge import PILOT_SEEDS
from layernorm_lab.report.judge.measure import first_reaching
from layernorm_lab.report.summary import read_summary

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", help="a folder of docs/results with a summary.json.gz")
    parser.add_argument("--arms", nargs=2, required=True, type=arm_of, metavar="NORM:RATE")
    parser.add_argument("--metric", required=True)
    parser.add_argument("--set", nargs="*", default=[], metavar="OPTION=VALUE", help="options that the runs have")
    parser.add_argument("--updates", type=float, nargs="*", default=[])
    parser.add_argument("--goals", type=float, nargs="*", default=[])
    parser.add_argument("--last", type=int, nargs="*", default=[], metavar="N")
    args = parser.parse_args()
    first, second = (curves_of(args, *arm) for arm in args.arms)
    named = [f"{norm}:{rate:g}" for norm, rate in args.arms]
    seeds = sorted(first.keys() & second.keys())
    if len(seeds) < 2:
        parser.error(f"needs two pairs of runs or more, got {len(seeds)}: {named[0]} has the seeds "
                     f"{sorted(first)}, {named[1]} {sorted(second)}")  # fmt: skip
    pairs = [(first[seed], second[seed]) for seed in seeds]
    print(f"{args.experiment}, {args.metric}: {named[0]} against {named[1]}, seeds {seeds}")
    longest = min(line[-1, 0] for pair in pairs for line in pair)
    if args.updates and max(args.updates) > longest:
        parser.error(f"--updates must be at most {longest:g}, the shortest run's, got {max(args.updates):g}")
    if args.last and min(args.last) < 1:
        parser.error(f"--last must be at least 1, got {min(args.last)}")
    for update in args.updates:
        show(f"after {update:g} updates", [tuple(np.interp(update, *line.T) for line in pair) for pair in pairs])
    for last in args.last:
        show(f"mean of the last {last}", [tuple(line[-last:, 1].mean() for line in pair) for pair in pairs])
    for goal in args.goals:
        reached = [tuple(first_reaching(line, goal) for line in pair) for pair in pairs]
        ends = [tuple(line[-1, 0] for line in pair) for pair in pairs]
        logs = np.log([[at or end for at, end in zip(*both, strict=True)] for both in zip(reached, ends, strict=True)])
        effect, means = np.exp(interval(logs[:, 1] - logs[:, 0])), np.exp(logs.mean(0))
        missed = [sum(pair[k] is None for pair in reached) for k in (0, 1)]
        print(f"  to {goal:g}: {means[0]:.0f} and {means[1]:.0f} updates, {effect[0]:.2f} times as fast "
              f"({effect[1]:.2f} to {effect[2]:.2f}); never there: {missed[0]} and {missed[1]}; "
              f"each {' '.join(f'{each:.2f}' for each in np.exp(logs[:, 1] - logs[:, 0]))}")  # fmt: skip
    updates = np.unique(np.concatenate([line[:, 0] for pair in pairs for line in pair]))
    means = [np.mean([np.interp(updates, *pair[k].T) for pair in pairs], 0) for k in (0, 1)]
    print(f"  of {len(updates)} evaluations the mean of {named[0]} is lower at {(means[0] < means[1]).sum()}, "
          f"of {named[1]} at {(means[0] > means[1]).sum()}")  # fmt: skip


def curves_of(args: argparse.Namespace, norm: str, rate: float) -> dict[int, np.ndarray]:
    """For each seed the updates and the values of a run."""
    options = {"norm": norm, "learning_rate": rate}
    options |= {name: value_of(text) for name, _, text in (item.partition("=") for item in args.set)}
    curves: dict[int, np.ndarray] = {}
    path = ROOT / "docs/results" / args.experiment / "summary.json.gz"
    if not path.exists():
        raise SystemExit(
            f"an experiment must be a folder of docs/results with a summary.json.gz, got {args.experiment!r}"
        )
    for run in read_summary(path):
        if any(run.config.get(name) != value for name, value in options.items()):
            continue
        seed = run.config["seed"]
        if seed in PILOT_SEEDS or not run.done or run.diverged is not None:
            continue
        if seed in curves:
            raise SystemExit(f"two runs of {norm}:{rate:g} have the seed {seed}: --set must say by what they differ")
        if args.metric not in run.records[-1]:
            raise SystemExit(f"--metric must be one of {', '.join(run.records[-1])}, got {args.metric!r}")
        curves[seed] = np.array([(record["update"], record[args.metric]) for record in run.records])
    return curves


def arm_of(text: str) -> tuple[str, float]:
    norm, _, rate = text.partition(":")
    try:
        return norm, float(rate)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected NORM:RATE, such as layer:0.002, got {text!r}") from None


def value_of(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def interval(differences: np.ndarray) -> np.ndarray:
    """The mean and the ends of its 95 % interval."""
    half = stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences)
    return differences.mean() + np.array([0, -half, half])


def show(where: str, values: list[tuple[float, ...]]) -> None:
    first, second = np.array(values).T
    effect, each = interval(second - first), " ".join(f"{pair:.2g}" for pair in second - first)
    print(f"  {where}: {first.mean():.4g} and {second.mean():.4g}, lower by {effect[0]:.3g} "
          f"({effect[1]:.3g} to {effect[2]:.3g}); each {each}")  # fmt: skip


if __name__ == "__main__":
    main()
