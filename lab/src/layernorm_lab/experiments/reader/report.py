"""The report of experiment 6.2: Figure 2 again, what needs no reading, and one question."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ...data.cnn import RULES
from ...report.arms import NORMS, Arm, Said
from ...report.blocks import Block, Metric
from ...report.judge import Claim
from ...report.outline import Curves, Extra, Outline, Results
from ...report.page import Picture, Report
from ...report.pictures import pictures
from ...report.tables import Column, low_to_high
from ...runs.folder import Run
from . import page
from .claims import LAYER, NONE
from .config import Config
from .deviations import APART, DEVIATIONS

CLAIM = (
    Said(
        "With layer normalization in its LSTMs the attentive reader trains faster and converges to a better validation "
        "result than the baseline (section 6.2, Figure 2).",
        ("layer", "none"),
    ),
    Said("It also does so against both variants with batch normalization.", ("layer", "batch*")),
    Said("Initial gains of 1.0 are significantly better than 0.1.", ("layer",)),
)

PAPER = {"none": "50.3", "batch": "49.5", "batch-everywhere": "50.0"}
"""The lowest validation errors of the paper's Figure 2, in percent, on CNN's questions."""

ERROR = Metric("valid_error", "validation error", percent=True)
NLL = Metric("valid_nll", "validation NLL, nats", chosen=ERROR.name)

VALID = "valid. error, %"
COLUMNS = (
    Column(VALID, ERROR.name, "lowest", scale=100, digits=1),
    Column("test error, %", "test_error", "test", scale=100, digits=1),
    Column("gradient", "first_gradient_norm", "first", digits=3, text=low_to_high),
)


ABOUT = (
    "Validation error, as in the paper's Figure 2, and the negative log-likelihood of the right answer. Grey: "
    "answers that need no reading, on the same passages, cut to four sentences."
)
NOTE = (
    "The lowest validation error, and the test error of the model kept there. Without reading: answers of rules, "
    "on the cut passages, ties decided at random. Gradient: its norm at update 0, lowest to highest seed."
)


def report_reader(runs: Sequence[Run], claims: Sequence[Claim]) -> Report:
    """Writes the report on runs of `reader`, finished or not. Rules that read nothing are levels in its figure."""
    given = runs[0].environment["data"].get("guesses", {})
    guessed = {rule: 1 - given[rule] for rule in RULES if rule in given}
    error = dataclasses.replace(ERROR, levels=guessed)
    others = [("without reading", rule, {VALID: f"{100 * value:.1f}"}) for rule, value in guessed.items()]
    others += [("cnn, paper", NORMS[norm], {"rate": "8e-05", VALID: value}) for norm, value in PAPER.items()]

    def extra(blocks: Sequence[Block]) -> Extra:
        read, notes = pictures(blocks, error, _show, "No question is shown")
        return Extra([line for block in blocks for line in _reading(block, guessed)], notes, pictures=read)

    return Outline(
        title="The attentive reader, Figure 2 of the paper",
        claim=CLAIM,
        config=Config(),
        curves=[Curves("figure2", ABOUT, (error, NLL), "update")],
        results=[Results(COLUMNS, NOTE, others)],
        chosen=ERROR,
        digits=1,
        deviations=DEVIATIONS,
        apart=APART,
        extra=extra,
    ).report(runs, claims)


def _show(run: Run, arm: Arm, name: str) -> list[Picture]:
    """Draws a question as the baseline or layer norm reads it."""
    return [page.picture(run, f"question-{name}", arm.name)] if run.done and arm.key in (NONE.key, LAYER.key) else []


def _reading(block: Block, guessed: dict[str, float]) -> list[str]:
    """Says which norms answer better than the best rule that reads nothing. Of the others nothing can be claimed."""
    if not guessed:
        return []
    rule = min(guessed, key=lambda name: guessed[name])
    shown = block.shown(ERROR)
    reads = {arm: all(ERROR.best(run, ERROR.name) < guessed[rule] for run in item.runs) for arm, item in shown.items()}
    parts = [
        f"{', '.join(arm.name for arm in reads if reads[arm] == able)} {what}"
        for able, what in ((True, "with every seed"), (False, "not with every seed"))
        if able in reads.values()
    ]
    goal = f"the best answer without reading ({rule}, {100 * guessed[rule]:.1f} %)"
    return [f"{block.title + ': b' if block.title else 'B'}etter than {goal}: {'; '.join(parts)}."]
