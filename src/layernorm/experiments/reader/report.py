"""The report of experiment 6.2: Figure 2 again, the claim in numbers, one question, our departures from the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..data import cloze
from ..data.cnn import RULES
from ..report import rates
from ..report.comparison import (
    NORMS,
    RATE,
    Block,
    Group,
    Tested,
    arms,
    compare,
    low_to_high,
    over_cases,
    pictures,
    read_tests,
    speed,
    spread,
    view,
)
from ..report.page import Deviation, Figure, Panel, Picture, Report, Style, Table, level
from ..report.variants import departures
from ..runs.folder import Run
from . import page
from .network import Config

CLAIM = (
    "With layer normalization in its LSTMs the attentive reader trains faster and converges to a better validation "
    "result than the baseline and than both variants with batch normalization; initial gains of 1.0 are significantly "
    "better than 0.1 (section 6.2, Figure 2)."
)

PAPER = {"none": "50.3", "batch": "49.5", "batch-everywhere": "50.0"}
"""The lowest validation errors of the paper's Figure 2, in percent, on CNN's questions."""

ERROR = "valid_error"

SENSITIVITY = rates.Measure(ERROR, "validation error", percent=True)

_RULES = [Style("#9a9a9a", dashes) for dashes in ((0, (1, 3)), (0, (4, 3)), (0, (9, 2)))]


def score(run: Run) -> float:
    """The score by which a learning rate is chosen: the lowest validation error."""
    return min(record[ERROR] for record in run.records)


def report(runs: Sequence[Run]) -> Report:
    """The report on runs of `reader`, finished or not."""
    blocks, status = compare(arms(runs), by="corpus", choose=score, told=("gain_init",))
    tested, damaged = read_tests(blocks)
    read = [_read(block) for block in blocks]
    findings = [
        text
        for block in blocks
        for text in (*_reading(block), *_over_questions(block, tested), *rates.at_the_edge(block))
    ]
    return Report(
        title="The attentive reader, Figure 2",
        claim=CLAIM,
        findings=findings,
        status=[*status, *damaged, *(note for _, notes in read for note in notes)],
        figures=[
            *(_figure(block, f"-{number}" if len(blocks) > 1 else "") for number, block in enumerate(blocks, 1)),
            *rates.sensitivity(blocks, SENSITIVITY),
        ],
        tables=[_results(blocks), _rules(blocks), _speed(blocks), _rates(blocks)],
        deviations=_deviations(runs),
        runs=runs,
        pictures=[item for found, _ in read for item in found],
    )


def _best(group: Group) -> list[float]:
    """Each run's lowest validation error, in percent."""
    return [100 * score(run) for run in group]


def _best_at(run: Run) -> float:
    """The update of the lowest validation error, or of the first of several equal ones."""
    errors = [record[ERROR] for record in run.records]
    return run.records[errors.index(min(errors))]["update"]


def _guessed(block: Block) -> dict[str, float]:
    """The validation error of the rules that read nothing."""
    run = next(iter(block.groups.values()))[0]
    given = run.environment["data"].get("guesses", {})
    return {rule: 1 - given[rule] for rule in RULES if rule in given}


def _figure(block: Block, suffix: str) -> Figure:
    curves = block.curves(ERROR, x="update")
    ends = [0.0, max(line.x[-1] for line in curves)]
    lines = [
        level(rule, style, ends, error) for (rule, error), style in zip(_guessed(block).items(), _RULES, strict=False)
    ]
    shown = [*curves, *lines]
    limits = view(shown, 5, margin=0.01, floor=0.0)
    caption = (
        "Validation error, as in the paper's Figure 2, and the negative log-likelihood of the right answer, each norm "
        "at its best learning rate. Grey: answers that need no reading, on the same passages, cut to four sentences. "
        "The axes leave out the highest values of the start."
    )
    nll = block.curves("valid_nll", x="update")
    panels = [
        Panel(block.label, "update", "validation error", shown, percent=True, limits=limits),
        Panel(block.label, "update", "validation NLL, nats", nll, limits=view(nll, 5, margin=0.1)),
    ]
    return Figure(f"figure2{suffix}", caption, [panels])


def _read(block: Block) -> tuple[list[Picture], list[str]]:
    """A question as the baseline and layer norm read it, and a line for each that cannot be shown."""
    groups = [(norm, [run for run in block.groups[norm] if run.done]) for norm in ("none", "layer") if block.has(norm)]
    suffix = f"-{block.mark.strip('()')}" if block.mark else ""
    return pictures(
        groups,
        lambda run, norm: [page.picture(run, f"question-{block.label.split()[0]}-{norm}{suffix}", NORMS[norm])],
        "No question is shown",
    )


def _results(blocks: Sequence[Block]) -> Table:
    rows = []
    for block in blocks:
        for norm, group in block.groups.items():
            tested = [100 * run.result["test_error"] for run in group if run.whole]
            rows.append(
                [
                    block.label,
                    block.name(norm),
                    f"{group[0].config[RATE]:g}",
                    spread(_best(group), 1),
                    spread(tested, 1) if tested else "-",
                    low_to_high([run.records[0]["first_gradient_norm"] for run in group], ".3g"),
                    str(len(group)),
                ]
            )
    rows += [["cnn, paper", NORMS[norm], "8e-05", error, "-", "-", "-"] for norm, error in PAPER.items()]
    return Table(
        "Results",
        ["corpus", "norm", "rate", "valid. error, %", "test error, %", "gradient", "seeds"],
        rows,
        "The lowest validation error, and the test error of the model kept there; mean over seeds (lowest to highest), "
        "each norm at the learning rate with the lowest validation error. Gradient: its norm at update 0, lowest to "
        "highest seed.",
    )


def _rules(blocks: Sequence[Block]) -> Table:
    rows = [[block.label, rule, f"{100 * error:.1f}"] for block in blocks for rule, error in _guessed(block).items()]
    note = "Validation error, in percent, of answers that need no reading; on the cut passages, ties decided at random."
    return Table("Without reading", ["corpus", "answer", "valid. error, %"], rows, note)


def _speed(blocks: Sequence[Block]) -> Table:
    return speed(
        blocks,
        "corpus",
        {
            "best at": lambda block, norm: low_to_high([_best_at(run) for run in block.groups[norm]], ".0f"),
            "to base's": lambda block, norm: block.to_best(norm, ERROR),
            "time": lambda block, norm: block.to_best(norm, ERROR, "time"),
        },
        digits=1,
        note="Best at: the update of the lowest validation error (lowest to highest seed). To base's: the updates "
        "after which the mean error over seeds is at the baseline's lowest, interpolated between evaluations. Time: "
        "these updates times the time of an update, as a share of the baseline's. Time of an update: the median "
        "between two evaluations, of the fastest such stretch, since other work on the machine slows the rest.",
    )


def _rates(blocks: Sequence[Block]) -> Table:
    return rates.table(blocks, "corpus", lambda run: 100 * score(run), "The lowest validation error, %", digits=1)


def _reading(block: Block) -> list[str]:
    """Which norms answer better than the best rule that reads nothing."""
    guessed = _guessed(block)
    if not guessed:
        return []
    rule = min(guessed, key=lambda name: guessed[name])
    goal = 100 * guessed[rule]
    reads = [block.name(norm) for norm, group in block.groups.items() if max(_best(group)) < goal]
    fails = [name for name in (block.name(norm) for norm in block.groups) if name not in reads]
    parts = [
        f"{', '.join(names)} {what}"
        for names, what in ((reads, "with every seed"), (fails, "not with every seed"))
        if names
    ]
    goal_text = f"the best answer without reading ({rule}, {goal:.1f} %)"
    return [f"{block.label.capitalize()}: better than {goal_text}: {'; '.join(parts)}."]


def _over_questions(block: Block, tested: Mapping[Path, Tested]) -> list[str]:
    what = "Test error in percentage points"
    return over_cases(block, ("layer", "none"), tested, "right", lambda right: 100 * (1 - right.mean(0)), what, 1)


def _deviations(runs: Sequence[Run]) -> list[Deviation]:
    data = runs[0].environment["data"]
    found = [
        Deviation(
            "I",
            "Passages are cut to the four sentences that share most words with the question, entities counted twice; "
            "the rule of the original data was never published.",
        ),
        Deviation("I", "Every gate's block of a weight matrix is drawn by itself; the original code draws them alike."),
        Deviation("S", "Batch norm's initial gains are 0.1, layer norm's 1.0 unless a row says otherwise."),
        Deviation(
            "S",
            "Recurrent batch norm counts rows that have ended, standing still with input 0; else the statistics of the "
            "last steps are of one or two rows. Batch norm everywhere leaves padding out of those of the attention.",
        ),
        Deviation("I", "A batch holds passages of like length: pools of 50 batches are sorted by it."),
    ]
    if any(run.config["norm"].startswith("batch") for run in runs):
        kinds = sorted({run.config["bn_eval"] for run in runs})
        text = f"Batch norm is evaluated by the statistics of the {' or the '.join(kinds)}."
        found.append(Deviation("S" if kinds == ["batch"] else "I", text))
    if not data.get("original"):
        count = data.get("questions", {})
        text = (
            f"{count.get('train', 0):,} training and {count.get('valid', 0):,} validation questions in place of CNN's."
        )
        found.append(Deviation("stand-in", text))
    if any(run.config["corpus"] == "books-cloze" for run in runs):
        found.append(
            Deviation(
                "stand-in",
                f"The questions are made from books: a sentence in which a name is missing, after {cloze.CONTEXT} "
                "sentences that have it. Those whose answer the cut loses, or leaves as the only entity, are left out, "
                f"and so are those with more than {cloze.MOST} names, or {cloze.LONGEST} words after the cut. An "
                "author's books are in one split, and no text has a name in it: no entity can be known from another "
                "split.",
            )
        )
    sizes = ("updates", "batch_size", "words", "hidden", RATE, "vocabulary", "evaluate_every")
    names = (*sizes, "initial", "forget_bias", "prior", "dropout", "clip")
    return found + departures(runs, {name: getattr(Config(), name) for name in names})
