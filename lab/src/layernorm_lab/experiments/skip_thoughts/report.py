"""The report of experiment 6.3: Figure 3 and Table 3 again."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence

from ...data.sentences import FILES
from ...report.arms import Said, is_named, said
from ...report.blocks import Block, Group, Metric, heading
from ...report.outline import Curves, Extra, Outline, Results
from ...report.page import Table
from ...report.tables import Column, mean, mean_and_range
from .config import Config
from .deviations import APART, DEVIATIONS

CLAIM = (
    Said(
        "With layer normalization in encoder and decoders, skip-thoughts learn faster than the baseline, and their "
        "vectors give better final results, on SICK, MR, CR, SUBJ and MPQA (section 6.3, Table 3, Figure 3).",
        ("layer", "none"),
    ),
)

PAPER = {
    # model: r, rho, MSE, then MR, CR, SUBJ, MPQA
    "original, paper": (".848", ".778", ".287", "75.5", "79.3", "92.1", "86.9"),
    "baseline, paper": (".842", ".767", ".298", "77.3", "81.8", "92.6", "87.9"),
    "layer norm, paper": (".854", ".785", ".277", "79.5", "82.6", "93.4", "89.0"),
    "layer norm, 1.7M, paper": (".858", ".788", ".270", "79.4", "83.1", "93.7", "89.3"),
}
"""The paper's Table 3, on BookCorpus."""

EVALUATIONS = {"trained": "", "untrained": ", untrained", "bag": ", bag", "random_bag": ", random bag"}
"""The evaluations of a finished run, each with its text after the norm's name in a table's row."""

NLL = Metric("valid_nll", "validation NLL, nats a word")
TASKS = {"sick_pearson": "SICK, Pearson's r", "sick_mse": "SICK, MSE", **{name: f"{name.upper()}, %" for name in FILES}}
FIGURE3 = tuple(Metric(name, label, chosen=NLL.name, sparse=True) for name, label in TASKS.items())
COLUMNS = (Column("NLL", NLL.name, digits=3), Column("test NLL", "test_nll", "test", digits=3))


TASKS_ABOUT = "The encoder on SICK and on four classification tasks in training."
BOOKS_ABOUT = "The decoders' negative log-likelihood of a word in the validation books."
NOTE = (
    "The decoders' negative log-likelihood, in nats a word, after the last update: in the validation books, and of "
    "finished runs in the test books."
)


RELATEDNESS_NOTE = (
    "After the last update: Pearson's r with its lowest and highest seed, means of the others. Untrained: the encoder "
    "before the first update. Bag: the mean of the trained embeddings; random bag: of those before the first update.",
    Said("Both are layer-normalised in layer norm's rows.", ("layer",)),
    "Of an encoder that is not above its random bag nothing can be claimed.",
    Said("1.7M: so many updates.", ("layer",)),
    "The paper's encoders are trained on BookCorpus: compare the direction.",
)


def _norms(blocks: Sequence[Block]) -> set[str]:
    return {arm.norm for block in blocks for arm in block.arms}


def _paper(norms: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Returns the rows of the paper on these norms, and that of the original."""
    return {model: values for model, values in PAPER.items() if is_named(model, norms)}


def _table_3(blocks: Sequence[Block]) -> Extra:
    tested = _tested(blocks)
    return Extra(first=[_relatedness(blocks, tested), _classification(blocks, tested)] if tested else [])


def _tested(blocks: Sequence[Block]) -> list[tuple[list[str], Group, str]]:
    """Returns the rows of Table 3: their first cells, the runs that were tested on the tasks, and the evaluation."""
    rows = []
    for evaluation, text in EVALUATIONS.items():
        for block in blocks:
            for arm, shown in block.shown(NLL).items():
                runs = [run for run in shown.runs if run.whole and run.config["tasks_every"]]
                if runs:
                    rows.append(([block.label or "here", f"{arm.name}{text}"], runs, evaluation))
    return rows


def _relatedness(blocks: Sequence[Block], tested: Sequence[tuple[list[str], Group, str]]) -> Table:
    rows = []
    for head, runs, evaluation in tested:
        r, rho, mse = ([run.result[f"{evaluation}_sick_{name}"] for run in runs]
                       for name in ("pearson", "spearman", "mse"))  # fmt: skip
        rows.append([*head, mean_and_range(r, 3), mean(rho, 3), mean(mse, 3), str(len(runs))])
    norms = _norms(blocks)
    rows += [["2400 units", model, *values[:3], "-"] for model, values in _paper(norms).items()]
    return Table(
        "Table 3: SICK",
        [heading(blocks), "model", "r", "rho", "MSE", "seeds"],
        rows,
        said(RELATEDNESS_NOTE, norms),
    )


def _classification(blocks: Sequence[Block], tested: Sequence[tuple[list[str], Group, str]]) -> Table:
    rows = []
    for head, runs, evaluation in tested:
        columns = [[run.result[f"{evaluation}_{name}"] for run in runs] for name in FILES]
        means = [statistics.fmean(values) for values in zip(*columns, strict=True)]
        cells = [*(mean(column, 1) for column in columns), mean_and_range(means, 1)]
        rows.append([*head, *cells, str(len(runs))])
    for model, values in _paper(_norms(blocks)).items():
        rows.append(["2400 units", model, *values[3:], mean([float(value) for value in values[3:]], 1), "-"])
    return Table(
        "Table 3: classification",
        [heading(blocks), "model", *(name.upper() for name in FILES), "mean", "seeds"],
        rows,
        "Accuracy in percent, means over seeds; the mean of the four with its lowest and highest seed. Rows as above.",
    )


OUTLINE = Outline(
    title="Skip-thoughts, Table 3 and Figure 3 of the paper",
    claim=CLAIM,
    config=Config(),
    curves=[Curves("figure3", TASKS_ABOUT, FIGURE3, "update"), Curves("nll", BOOKS_ABOUT, [NLL], "update")],
    results=[Results(COLUMNS, NOTE)],
    chosen=NLL,
    digits=3,
    deviations=DEVIATIONS,
    apart=APART,
    extra=_table_3,
)
