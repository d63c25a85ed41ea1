"""The paper's claims about its experiments, and what our own runs say about each: docs/claims.md.

A claim is data: its text, where the paper makes it, and which metric of which experiment decides it. The verdict is
computed from summaries of runs (`report.summary`) by the rule of `report.verdicts`. It is never written by hand.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .errors import RunError
from .report import summary
from .report.comparison import Block, Group, arms, compare, reaching
from .report.rates import choosing_seeds, fewest
from .report.verdicts import RATES, SEEDS, counted, standing, too_little
from .runs.files import read_json
from .runs.folder import Run

SHARES = (0.5, 0.75, 0.9, 1.0)
"""The goals of a claim about speed, as shares of the way from the highest first value to the lowest value that all
runs reach."""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper that one norm is ahead of another.

    Attributes:
        text: the claim, in words close to the paper's.
        where: the section, figure or table of the paper.
        experiment: the experiment whose runs decide the claim.
        metric: its name in the records. Lower values are better, unless the name begins with "-".
        ahead, behind: the norm that the claim puts first, and the norm that it is compared with.
        how: what is compared. "end" is the last value, "best" the best value, and "sooner" the number of updates to
            the values that all runs reach.
        chosen: the metric on validation data by which each norm's learning rate is chosen; with None, `metric`.
        only: options that the runs must have, if their norm has them: the baseline has no gain.
        hours: an estimate of the hours that the missing runs take on one core.
        what: the missing runs, in words.
        report: the folder of the report with the figure, among the results of the experiment.
    """

    text: str
    where: str
    experiment: str
    metric: str
    ahead: str
    behind: str
    how: Literal["end", "best", "sooner"]
    hours: float
    what: str
    chosen: str | None = None
    only: dict[str, Any] = field(default_factory=dict)
    report: str = "laptop"


UNDECIDED, WITHOUT = "undecided", "no runs in the summary"
_RUNS = "10 runs, 3 seeds a side at the best of 3 rates,"
_DRAW = "4 runs of 4 epochs of 8 glimpses, both norms at 2 more rates"

CLAIMS = (
    Claim("Layer norm's order embeddings retrieve images better.", "6.1, Table 2", "order-embeddings",
          "-valid_image_recall", "layer", "none", "best", 0.7, f"{_RUNS} of 25 epochs"),
    Claim("Layer norm reaches its best order embeddings sooner.", "6.1, Figure 1", "order-embeddings",
          "-valid_image_recall", "layer", "none", "sooner", 0.7, f"{_RUNS} of 25 epochs"),
    Claim("With layer norm the attentive reader trains faster.", "6.2, Figure 2", "reader", "valid_error", "layer",
          "none", "sooner", 0.5, f"{_RUNS} of 5000 updates"),
    Claim("With layer norm the attentive reader ends at a lower validation error.", "6.2, Figure 2", "reader",
          "valid_error", "layer", "none", "best", 0.5, f"{_RUNS} of 5000 updates"),
    Claim("Skip-thoughts with layer norm train faster.", "6.3, Figure 3", "skip-thoughts", "valid_nll", "layer", "none",
          "sooner", 3.5, f"{_RUNS} of 1500 updates"),
    Claim("DRAW converges faster with layer norm, in the paper almost twice as fast (deviation 0.03).", "6.4, Figure 4",
          "draw", "test_bound", "layer", "none", "sooner", 0.3, _DRAW, chosen="valid_bound", only={"deviation": 0.03}),
    Claim("DRAW ends at a lower bound with layer norm (initial weights of deviation 0.03).", "6.4", "draw",
          "test_bound", "layer", "none", "end", 0.3, _DRAW, chosen="valid_bound", only={"deviation": 0.03}),
    Claim("DRAW converges faster with layer norm, in the paper almost twice as fast (deviation 0.1).", "6.4, Figure 4",
          "draw", "test_bound", "layer", "none", "sooner", 0.6, f"{_RUNS} of 4 epochs of 8 glimpses",
          chosen="valid_bound", only={"deviation": 0.1}),
    Claim("DRAW ends at a lower bound with layer norm (initial weights of deviation 0.1).", "6.4", "draw",
          "test_bound", "layer", "none", "end", 0.6, f"{_RUNS} of 4 epochs of 8 glimpses", chosen="valid_bound",
          only={"deviation": 0.1}),
    Claim("Handwriting synthesis converges much faster with layer norm (initial gain 0.3).", "6.5, Figure 5",
          "handwriting", "valid_nll", "layer-gain", "none", "sooner", 1, f"{_RUNS} of 600 updates",
          only={"gain_init": 0.3}),
    Claim("Handwriting synthesis converges much faster with layer norm (initial gain 1).", "6.5, Figure 5",
          "handwriting", "valid_nll", "layer", "none", "sooner", 1, f"{_RUNS} of 600 updates"),
    Claim("Layer norm converges faster than batch norm at batch size 128.", "6.6, Figure 6", "mnist", "train_nll",
          "layer", "batch", "sooner", 0.3, f"{_RUNS} of 10 epochs", chosen="valid_error", only={"batch_size": 128},
          report="batch-128"),
    Claim("At batch size 4 layer norm generalises better than batch norm.", "6.6, Figure 6", "mnist", "test_error",
          "layer", "batch", "end", 1.5, f"{_RUNS} of 10 epochs", chosen="valid_error", only={"batch_size": 4},
          report="batch-4"),
    Claim("At batch size 4 layer norm generalises better than batch norm with its exact statistics.", "6.6, Figure 6",
          "mnist", "exact_test_error", "layer", "batch", "end", 1.5, f"{_RUNS} of 10 epochs", chosen="valid_error",
          only={"batch_size": 4}, report="batch-4"),
    Claim("Layer norm speeds convolutional networks up over the baseline.", "6.7", "convnets", "train_nll", "layer",
          "none", "sooner", 0.4, f"{_RUNS} of 8 epochs of 10,000 images", chosen="valid_error"),
    Claim("Batch norm outperforms layer norm in convolutional networks.", "6.7", "convnets", "test_error", "batch",
          "layer", "end", 0.4, f"{_RUNS} of 8 epochs of 10,000 images", chosen="valid_error"),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    text: str
    where: str
    ran: str
    verdict: str
    effect: str
    needed: str = ""  # the runs that would decide an undecided claim


def decide(claim: Claim, runs: Sequence[Run]) -> Row:
    """The verdict on a claim from the runs of its experiment, and the effect with its range over seeds."""
    wanted = [run for run in arms(runs) if _meets(run, claim.only) and _has(run, claim)]
    blocks = [block for block in _blocks(claim, wanted) if block.has(claim.ahead, claim.behind)]
    if not blocks:
        return _undecided(claim, WITHOUT if runs else "no summary", "-")
    block = max(blocks, key=lambda block: sum(map(len, block.groups.values())))
    groups = [block.groups[norm] for norm in (claim.ahead, claim.behind)]
    rates = fewest(block, claim.ahead, claim.behind)
    ran = (
        f"{counted(min(map(len, groups)), 'seed')} at the best of {counted(rates, 'rate')}, chosen by "
        f"{counted(choosing_seeds(block, claim.ahead, claim.behind), 'seed')}; {_length(groups)}"
    )
    effect = _effect(claim, block)
    few = too_little(*groups, unit="evaluation", rates=rates)
    if few:
        return _undecided(claim, ran, f"{effect}; {few}")
    return Row(claim.text, claim.where, ran, _verdict(*_compared(claim, groups)), effect)


def _meets(run: Run, options: dict[str, Any]) -> bool:
    """Whether a run has these options; those that it has at all."""
    return all(run.config.get(name, value) == value for name, value in options.items())


def _has(run: Run, claim: Claim) -> bool:
    """Whether a run's records have the metric."""
    return bool(run.records) and _name(run, claim.metric) in run.records[0]


def _name(run: Run, metric: str) -> str:
    """The metric's name in a run's records.

    Only batch norm has exact statistics beside its running averages. The other norms have one value, which is exact.
    """
    name = metric.removeprefix("-")
    return name.removeprefix("exact_") if run.config["norm"] != "batch" else name


def _values(run: Run, metric: str) -> list[float]:
    """The metric's value in each record, with the sign with which lower is better."""
    sign = -1 if metric.startswith("-") else 1
    return [sign * record[_name(run, metric)] for record in run.records]


def _blocks(claim: Claim, runs: Sequence[Run]) -> list[Block]:
    def score(run: Run) -> float:
        by = claim.chosen or claim.metric
        return min(_values(run, by)) if _name(run, by) in run.records[0] else math.nan

    return compare(runs, choose=score)[0] if runs else []


def _length(groups: Sequence[Group]) -> str:
    return f"{min(run.records[-1]['update'] for group in groups for run in group)} updates"


def _compared(claim: Claim, groups: Sequence[Group]) -> tuple[list[list[float]], list[list[float]]]:
    """The values of `claim.ahead` and of `claim.behind` that the rule compares: for each goal the values over seeds."""
    if claim.how != "sooner":
        first, second = ([_ending(claim, run) for run in group] for group in groups)
        return [first], [second]
    runs = [run for group in groups for run in group]
    lines = {id(run): _values(run, claim.metric) for run in runs}
    start = max(line[0] for line in lines.values())
    lowest = max(min(line) for line in lines.values())
    goals = [lowest + (1 - share) * (start - lowest) for share in SHARES]  # the last one is exactly a run's own value
    updates = []
    for group in groups:
        plain = [_plain(run, lines[id(run)]) for run in group]
        updates.append(reaching(goals, plain, "value", "update", interpolated=True))
    return updates[0], updates[1]


def _plain(run: Run, line: Sequence[float]) -> Run:
    """The run with a single metric, named `value`, of which lower is better."""
    records = [{"update": record["update"], "value": value} for record, value in zip(run.records, line, strict=True)]
    return Run(run.path, run.experiment, run.config, run.environment, records, run.done, run.result)


def _ending(claim: Claim, run: Run) -> float:
    line = _values(run, claim.metric)
    return line[-1] if claim.how == "end" else min(line)


def _effect(claim: Claim, block: Block) -> str:
    """The two norms' values in words: mean and range over seeds."""
    sign = -1 if claim.metric.startswith("-") and claim.how != "sooner" else 1
    norms, texts = (claim.ahead, claim.behind), []
    for norm, values in zip(norms, _compared(claim, [block.groups[norm] for norm in norms]), strict=True):
        last = sorted(sign * value for value in values[-1])
        middle = sum(last) / len(last)
        texts.append(f"{block.name(norm)} {middle:.4g} ({last[0]:.4g} to {last[-1]:.4g})")
    what = "updates to the best value that all runs reach" if claim.how == "sooner" else claim.metric.removeprefix("-")
    return f"{what}: {', '.join(texts)}"


def _verdict(first: list[list[float]], second: list[list[float]]) -> str:
    """The verdict by the rule: "holds in part" where some goals are decided for the claim and none against it."""
    ahead, behind, count = standing(first, second)
    if ahead == count:
        return "holds"
    if behind == count:
        return "refuted"
    return "holds in part" if ahead and not behind else "not seen"


def _undecided(claim: Claim, ran: str, why: str) -> Row:
    return Row(claim.text, claim.where, ran, UNDECIDED, why, f"{claim.hours:g} h: {claim.what}")


def page(results: Path) -> str:
    """The text of docs/claims.md.

    Args:
        results: the folder with the summaries: `EXPERIMENT/summary.json` and `theory/claims.json`.

    Raises:
        RunError: the folder does not exist, or a summary cannot be read.
    """
    if not results.is_dir():
        raise RunError(f"{results} is not a folder; give the folder of the summaries with --results")
    decided: list[list[str]] = []
    undecided: list[list[str]] = []
    verdicts = []
    for claim in CLAIMS:
        path = results / claim.experiment / "summary.json"
        row = decide(claim, summary.read(path) if path.exists() else [])
        verdicts.append(row.verdict)
        cells = [row.text, row.where, row.ran, row.needed or row.verdict, row.effect]
        cells.append("-" if row.ran == WITHOUT else _figure(results, claim))
        (undecided if row.verdict == UNDECIDED else decided).append(cells)
    statements, on_theory = [], []
    theory = results / "theory" / "claims.json"
    if theory.exists():
        for item in read_json(theory, "make it again with layernorm geometry --out FOLDER")["claims"]:
            figure = f"theory/{item['name']}.png"
            shown = f"[figure](results/{figure})" if (results / figure).exists() else "-"
            verdict = ("holds" if item["holds"] else "refuted") if item["as_stated"] else UNDECIDED
            on_theory.append(verdict)
            statements.append([item["statement"], item["where"], verdict, item["found"], shown])
    goals = ", ".join(f"{share:.0%}" for share in SHARES)
    ran = ["claim", "in the paper", "what we ran", "verdict", "effect, mean (lowest to highest seed)", "figure"]
    parts = [
        "# The paper's claims, decided by our own runs",
        _filled(
            f"{_counts(verdicts, 'claims about experiments')} {_counts(on_theory, 'statements about theory')} "
            "`layernorm claims` writes this page from the summaries in [results](results/README.md)."
        ),
        "## Decided",
        _filled(
            f"Each norm is trained at {RATES} learning rates or more. The best rate is chosen on validation, by the "
            f"seeds that the rates share. Then {SEEDS} seeds a side are compared. A norm is ahead where its worst seed "
            "beats the other's best. *Holds*: the claim's norm is ahead. *Refuted*: the other one is. Speed is "
            f"compared at several goals: the updates to {goals} of the way to the best value that all runs reach. "
            "There a claim *holds* or is *refuted* if one norm is ahead at all of them, and *holds in part* if the "
            "claim's norm is ahead at some and the other at none. *Not seen*: none of these. The effect shown is that "
            "of the last goal."
        ),
        _table(ran, decided),
        *_open(undecided),
        "## Section 5 and the appendix",
        "`layernorm geometry` computes these. *Refuted*: an exact computation contradicts the statement.",
        _table(["statement", "in the paper", "verdict", "what was found", "figure"], statements),
    ]
    return "\n\n".join(parts) + "\n"


def _open(undecided: Sequence[list[str]]) -> list[str]:
    """The section of the claims that are not decided, if there are any."""
    if not undecided:
        return []
    head = ["claim", "in the paper", "what we ran", "what would decide it", "what we have", "figure"]
    why = _filled(
        "These claims have no summary of runs, or one with too few seeds or learning rates. Where there is no "
        "summary, the figure shows earlier runs, which do not count here. The hours are estimates for one core. "
        "Only these runs are missing."
    )
    return ["## Not decided yet", why, _table(head, undecided)]


def _filled(text: str) -> str:
    return textwrap.fill(text, 120)


def _counts(verdicts: Sequence[str], what: str) -> str:
    """A sentence with the number of claims of each verdict."""
    counts = ", ".join(f"{kind} {count}" for kind, count in sorted(Counter(verdicts).items()))
    return f"{len(verdicts)} {what}: {counts}."


def _table(head: list[str], rows: Sequence[list[str]]) -> str:
    """A table in Markdown, or the word "None." where there are no rows."""
    if not rows:
        return "None."
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _figure(results: Path, claim: Claim) -> str:
    """A link to the report's first figure, or to the experiment's page where there is no figure."""
    place = results / claim.experiment
    figures = sorted((place / claim.report).glob("figure*.png")) + sorted((place / claim.report).glob("curves.png"))
    if figures:
        return f"[figure](results/{figures[0].relative_to(results).as_posix()})"
    return f"[page](results/{claim.experiment}/README.md)" if (place / "README.md").exists() else "-"
