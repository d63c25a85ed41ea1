"""The pages of the paper's claims: docs/claims.md, a line a claim, and docs/results/verdicts.md with all details.

The claims are data of the experiments (`Experiment.claims`), and the verdicts are the judge's (`report.judge`), from
summaries of runs (`report.summary`). Nothing here decides anything.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import catalogue
from .errors import RunError
from .report import summary
from .report.judge import (
    EQUAL,
    PILOT_SEEDS,
    SEEDS,
    UNDECIDED,
    Ruling,
    capital,
    chance,
    counted,
    counts,
    decide,
    simulated_error,
)
from .report.page import Table
from .runs.files import read_json
from .runs.folder import Run

EXPERIMENTS = ("order-embeddings", "reader", "skip-thoughts", "draw", "handwriting", "mnist", "convnets")
"""The experiments on the page, in the order of the paper's sections."""

OURS = "ours"
"""`Claim.where` of claims that the paper does not make."""


def rulings(results: Path) -> dict[str, list[Ruling]]:
    """Rules on every claim, by experiment, from the summaries `EXPERIMENT/summary.json.gz` in a folder."""
    return _ruled(_runs(results))


def _ruled(runs: Mapping[str, Sequence[Run]]) -> dict[str, list[Ruling]]:
    return {name: decide(catalogue.find_experiment(name).claims, runs[name]) for name in EXPERIMENTS}


def _runs(results: Path) -> dict[str, list[Run]]:
    """Reads the runs in the summaries of a folder, by experiment; none where there is no summary."""
    paths = {name: results / name / "summary.json.gz" for name in EXPERIMENTS}
    if not any(path.exists() for path in [*paths.values(), results / "theory" / "claims.json"]):
        lacks = "has no EXPERIMENT/summary.json.gz" if results.is_dir() else "is not a folder"
        raise RunError(
            f"{results} {lacks}; the claims are decided by the summaries of our runs, which are committed in "
            "layernorm's checkout as docs/results: run this there, or give that folder with --results"
        )
    found = {name: summary.read_summary(path) if path.exists() else [] for name, path in paths.items()}
    for name, runs in found.items():
        if runs and runs[0].experiment != name:
            raise RunError(f"{paths[name]} is a summary of {runs[0].experiment}, expected one of {name}")
    return found


def claims_tables(results: Path) -> list[Table]:
    """Makes the tables that a terminal shows: each claim in words, its verdict, the effect with its interval."""
    main, ours, choices, begun = _sections(rulings(results))
    tables = [
        ("The paper's claims about experiments", main, _counts(counts(_all(main)), "claims")),
        ("Claims of ours: over the whole grid of learning rates", ours, ""),
        ("The paper's claims with another choice where the paper leaves it open", choices, ""),
        ("Trials that are planned, or have begun: not counted above", begun, ""),
    ]
    found = [_claims_of(title, _all(items), note) for title, items, note in tables if _all(items)]
    rows, verdicts = _statements(results)
    if rows:
        note = f"{_counts(verdicts, 'statements')} Refuted: an exact computation contradicts the statement."
        statements = [[statement, verdict, where] for statement, where, verdict, *_ in rows]
        columns = ["claim", "verdict", "in the paper"]
        found.append(Table("Section 5 and the appendix, measured by layernorm geometry", columns, statements, note))
    return found


def _claims_of(title: str, items: Sequence[Ruling], note: str) -> Table:
    rows = []
    for item in items:
        claim = item.claim
        known = len(item.pairs) > 1
        effect = claim.measure.compared(item.effect, *item.interval) if known else f"lacking: {', '.join(item.lacking)}"
        text = f"{claim.text.removesuffix('.')}, with {claim.choice}." if claim.choice else claim.text
        rows.append([text, _verdict_cell(item).replace("*", ""), capital(effect).replace(" (", "\n(")])
    return Table(title, ["claim", "verdict", "effect (95 % interval)"], rows, note)


def _sections(by_experiment: Mapping[str, Sequence[Ruling]]) -> list[dict[str, list[Ruling]]]:
    """Divides the rulings into those on the paper's claims, on ours, on other choices, and those of trials begun."""
    return [
        {name: [item for item in items if _section(item) == section] for name, items in by_experiment.items()}
        for section in ("paper", OURS, "choice", "begun")
    ]


def claims_page(results: Path) -> str:
    """Writes the text of docs/claims.md from a folder with the summaries and `theory/claims.json`: a line a claim."""
    by_experiment = rulings(results)
    main, ours, choices, begun = _sections(by_experiment)
    drawn = [item for item in _all(main) if not item.claim.said]
    _, verdicts = _statements(results)
    parts = [
        "# The paper's claims, decided by our own runs",
        _filled(
            f"{_counts(counts(_all(main)), 'claims about experiments')} A verdict is about the norm that the claim "
            f"names first. {_counts(verdicts, 'statements about [theory](theory.md)')}"
        ),
        *([_about_drawn(_all(main), drawn)] if drawn else []),
        _short_table(results, main),
        _filled(
            "The first value is that of the norm that the claim names first. Errors are in %, bounds in nats, recalls "
            "of 300. Speeds count updates, not time: in ConvNets an update takes about 1.3 times as long with layer "
            "norm as without. The last column is the share of the paper's updates; for ConvNets it names none."
        ),
        _filled(
            "*Ahead* and *behind*: the difference is clear at the level of 5 %, which the claims of one trial share. "
            "*Equal*: the interval lies inside a margin that was set before. *Undecided*: anything else."
        ),
        "## How a claim is decided",
        _filled(
            "Each norm gets the learning rate that was best for it in a pilot, or, of two, in the pairs. Both are "
            "trained with five or more other seeds. Two runs with one seed have the same initial weights and the same "
            "batches; they are a pair. "
            "The effect is the mean difference of the pairs with its 95 % interval. The newer trials follow [a rule "
            "that was written before their runs](results/trials.md#the-rule), the others [an earlier "
            "one](results/verdicts.md#how-a-claim-was-decided-before). `layernorm claims` decides from the [stored "
            "runs](results/README.md). `python benchmarks/verdicts.py` computes every verdict again by other means."
        ),
        "## What else was compared",
        "\n".join(
            f"- {textwrap.fill(point, 118, subsequent_indent='  ')}"
            for point in (
                "[Every verdict in full](results/verdicts.md): values, learning rates, goals, margins and checks.",
                "[What section 6 says, sentence by sentence](results/statements.md), also what no claim decides.",
                f"[Over all learning rates](results/verdicts.md#claims-of-ours), which the paper does not claim: "
                f"{_named_counts(_all(ours))}.",
                f"[With another choice](results/verdicts.md#what-depends-on-a-choice) where the paper leaves it open: "
                f"{_named_counts(_all(choices))}.",
                *([f"[Unfinished](results/trials.md#what-goes-on), and not counted: {_unfinished(begun)}."]
                  if _all(begun) else []),
            )
        ),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _about_drawn(items: Sequence[Ruling], drawn: Sequence[Ruling]) -> str:
    """Counts the claims that the paper makes in words by themselves."""
    said = [item for item in items if item.claim.said]
    return _filled(
        f"The paper makes {len(drawn)} of these claims by a curve only: section 6.6 draws the network without a norm, "
        "but its text and caption name only batch norm. Without them there are "
        f"{_counts(counts(said), 'claims')}"
    )


def _short_table(results: Path, by_experiment: Mapping[str, Sequence[Ruling]]) -> str:
    head = ["claim", "in the paper", "verdict", "values", "effect (95 % interval)", "pairs", "updates"]
    rows = []
    for name, items in by_experiment.items():
        for item in items:
            claim, measure = item.claim, item.claim.measure
            text = f"[{claim.text.removesuffix('.')}](results/{name}/README.md)"
            where = claim.where if claim.said else f"{claim.where}, a curve only"
            verdict = _verdict_cell(item) + (f" within {measure.margin_text}" if item.verdict == EQUAL else "")
            if len(item.pairs) < 2:
                rows.append([text, where, verdict, "-", "-", "-", "-"])
                continue
            ahead, behind = (measure.shown(mean) for mean in item.means)
            share = claim.trial.of_the_paper.removesuffix(" of the paper's")
            rows.append([text, where, verdict, f"{ahead}, {behind}", item.compared, str(len(item.seeds)), share])
    return _markdown_rows(head, rows)


def _named_counts(items: Sequence[Ruling]) -> str:
    return ", ".join(f"{verdict} {count}" for verdict, count in counts(items).items())


def _unfinished(by_experiment: Mapping[str, Sequence[Ruling]]) -> str:
    return ", ".join(f"{counted(len(items), 'claim')} of {name}" for name, items in by_experiment.items() if items)


def details_page(results: Path) -> str:
    """Writes the text of docs/results/verdicts.md, whose folder has the summaries and `theory/claims.json`."""
    runs = _runs(results)
    by_experiment = _ruled(runs)
    main, ours, choices, begun = _sections(by_experiment)
    statements, _ = _statements(results)
    table = functools.partial(_claims_table, results, runs)
    parts = [
        "# Every verdict in full",
        _filled(
            "[The claims in short](../claims.md). `layernorm claims` writes both pages from the summaries in this "
            "folder. A verdict is about the norm that the claim names first."
        ),
        "## The paper's claims about experiments",
        table(main),
        "## Claims of ours",
        _filled(
            "Does layer norm do better over the whole grid of learning rates, as for a user who tries only one? The "
            "height of the curve of best values against the logarithm of the rate is averaged over the grid, so that "
            "the rates at its two ends count half. No rate is chosen, so all seeds count. But the grid is a choice: "
            "DRAW's and MNIST's were widened after pilots, whose seeds count here."
        ),
        table(ours),
        "## What depends on a choice",
        "The same claims with another choice where the paper and the original code leave it open, or against them.",
        table(choices),
        *(_begun(table(begun)) if _all(begun) else []),
        "## How a claim was decided before",
        *_rule(),
        "## Section 5 and the appendix",
        "`layernorm geometry` computes these. *Refuted*: an exact computation contradicts the statement.",
        _markdown_rows(["statement", "in the paper", "verdict", "what was found", "figure"], statements),
    ]
    return "\n\n".join(parts) + "\n"


def _section(ruling: Ruling) -> str:
    if ruling.claim.trial.plan and ruling.open:
        return "begun"
    if ruling.claim.where == OURS:
        return OURS
    return "choice" if ruling.claim.choice else "paper"


def _all(by_experiment: Mapping[str, Sequence[Ruling]]) -> list[Ruling]:
    return [item for items in by_experiment.values() for item in items]


def _claims_table(
    results: Path, runs: Mapping[str, Sequence[Run]], by_experiment: Mapping[str, Sequence[Ruling]]
) -> str:
    rows = []
    for name, items in by_experiment.items():
        for item in items:
            claim = item.claim
            figure = f"{name}/{claim.figure}"
            drawn = claim.figure and (results / figure).exists()
            link = f"[figure]({figure})" if drawn else f"[page]({name}/README.md)"
            text = claim.text + (f" *With {claim.choice}.*" if claim.choice else "")
            ran = item.ran + ("; rule of 2026-11-25" if claim.trial.plan and not claim.over_rates else "")
            error = simulated_error(claim, runs[name])
            ran += "" if error is None else f"; simulated error {100 * error:.0f} %"
            where = claim.where if claim.said else f"{claim.where}, a curve only"
            rows.append([text, where, _verdict_cell(item), item.effect_text, ran, link])
    return _markdown_rows(["claim", "in the paper", "verdict", "effect (95 % interval)", "what we ran", "figure"], rows)


def _verdict_cell(ruling: Ruling) -> str:
    """Writes the verdict with the norm that it is about."""
    verdict = ruling.verdict
    return f"**{verdict}**" if verdict in (UNDECIDED, EQUAL) else f"{ruling.claim.ahead.name} **{verdict}**"


def _begun(table: str) -> list[str]:
    """Writes the section of the trials that have not come to their end."""
    about = (
        "Written down before their runs, with the rule of 2026-11-25 ([both](trials.md)). Claims of these "
        "trials that are decided already stand above and are counted; those here are not. [What goes "
        "on](trials.md#what-goes-on) has the commands of the runs that they lack. Other claims that are undecided "
        "lack no run: their trials are over, and seeds that are added after a look at the result would make wrong "
        "verdicts more frequent than the rule says."
    )
    return ["## Trials that are planned, or have begun", _filled(about), table]


def _rule() -> list[str]:
    head = (
        "Trials that began on 2026-11-25 or later follow [the rule on the page of the trials](trials.md), and "
        "say so in the table. All others followed this one:"
    )
    pilot = " and ".join(map(str, PILOT_SEEDS))
    points = [
        f"**Pilot.** Each norm is trained at the same number of learning rates, in factors of 2, with the seeds "
        f"{pilot}. Its best rate in the claim's own measure, never on test data, must lie inside the "
        "grid. The pilot's seeds are then left out.",
        "**Goals** of claims about speed are fixed after the pilot and before the runs that are compared.",
        f"**Runs.** At least {SEEDS} other seeds, in float32, on one data set. One seed gives both norms the same "
        "initial weights and the same batches, so that seeds are pairs. All have the trial's number of updates.",
        "**Effect.** The mean difference over the pairs, with the 95 % interval of Student's t. Of updates, the mean "
        "logarithm of the ratio. A run that does not reach a goal counts with its last update, and one that is there "
        "at its first evaluation with that one; the table counts both.",
        "**Verdict**, of the norm that the claim puts first. *Equal*: the interval lies inside the margin, which the "
        "table names. *Ahead* or *behind*: otherwise, if the difference is not 0 at the level of 5 %, by Holm's "
        "procedure over all claims that one trial decides. *Undecided*: anything else.",
        "**Check.** For claims at best rates the table has the effect once more, with each seed's rates chosen by the "
        "other seeds, where the pilot's runs are as long as the pairs'. It decides nothing.",
    ]
    return [
        _filled(head),
        "\n".join(f"- {textwrap.fill(point, 118, subsequent_indent='  ')}" for point in points),
        _filled(
            "If two norms do not differ at the rates that are compared, a trial gives one of its claims a wrong "
            "*ahead* or *behind* with a chance of 5 %. The rates are chosen by runs with noise, too, so that equal "
            "norms may be compared at rates that are not equally good. Two equal norms were simulated 2,000 times for "
            "each claim, with the curve over the rates and the noise of its second norm, each choosing its rate by its "
            "own pilot. The share of wrong verdicts is the table's *simulated error*."
        ),
        _filled(
            f"By this rule, with {SEEDS} pairs a difference of 1, 2 and 3 standard deviations (of the pairs' "
            f"differences) is seen with a chance of {_chances(SEEDS)} where it is a trial's only claim, with 10 pairs "
            f"of {_chances(10)}. "
            "So *undecided* says nothing against a difference of one standard deviation."
        ),
    ]


def _chances(pairs: int) -> str:
    return ", ".join(f"{100 * chance(size, pairs):.0f} %" for size in (1, 2, 3))


def _statements(results: Path) -> tuple[list[list[str]], dict[str, int]]:
    """Makes the rows of the statements about theory, and how often there is each verdict."""
    theory = results / "theory" / "claims.json"
    rows: list[list[str]] = []
    verdicts: dict[str, int] = {}
    if not theory.exists():
        return rows, verdicts
    for item in read_json(theory, "make it again with layernorm geometry --out FOLDER")["claims"]:
        figure = f"theory/{item['name']}.png"
        shown = f"[figure]({figure})" if (results / figure).exists() else "-"
        verdict = ("holds" if item["holds"] else "refuted") if item["as_stated"] else UNDECIDED
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
        rows.append([item["statement"], item["where"], verdict, item["found"], shown])
    return rows, verdicts


def _counts(by_verdict: Mapping[str, int], what: str) -> str:
    """Writes a sentence with the number of claims of each verdict."""
    each = ", ".join(f"{verdict} {count}" for verdict, count in by_verdict.items())
    return f"{sum(by_verdict.values())} {what}: {each}."


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False)


def _markdown_rows(head: list[str], rows: Sequence[list[str]]) -> str:
    """Writes a table in Markdown, or the word "None." where there are no rows."""
    if not rows:
        return "None."
    lines = [head, ["---"] * len(head), *([capital(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
