"""The report of experiment 6.3: Figure 3 and Table 3 again, the claim in numbers, and our departures from the paper."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..data.sentences import FILES
from ..report import rates
from ..report.comparison import NORMS, RATE, Block, Group, Tested, compare, curve, over_cases, read_tests, speed, spread
from ..report.page import STYLES, Curve, Deviation, Figure, Panel, Report, Table
from ..report.variants import departures
from ..runs.folder import Run
from ..runs.records import Record
from .evaluation import BLOCK, BLOCKS
from .network import Config

CLAIM = (
    "With layer normalization in encoder and decoders, skip-thoughts learn faster than the baseline, and their vectors "
    "give better final results, on SICK, MR, CR, SUBJ and MPQA (section 6.3, Table 3, Figure 3)."
)

PAPER = {
    # model: r, rho, MSE, then MR, CR, SUBJ, MPQA
    "original, paper": (".848", ".778", ".287", "75.5", "79.3", "92.1", "86.9"),
    "baseline, paper": (".842", ".767", ".298", "77.3", "81.8", "92.6", "87.9"),
    "layer norm, paper": (".854", ".785", ".277", "79.5", "82.6", "93.4", "89.0"),
    "layer norm, 1.7M, paper": (".858", ".788", ".270", "79.4", "83.1", "93.7", "89.3"),
}
"""The paper's Table 3, on BookCorpus."""

SICK = {"sick_pearson": "SICK, Pearson's r", "sick_spearman": "SICK, Spearman's rho", "sick_mse": "SICK, MSE"}

ROWS = {"trained": "", "untrained": ", untrained", "bag": ", bag", "random_bag": ", random bag"}
"""The evaluations of a finished run, each with its text after the norm's name in a table's row."""

NLL = "valid_nll"
"""The decoders' negative log-likelihood on the validation books, by which learning rates are chosen."""

SENSITIVITY = rates.Measure(NLL, "validation NLL, nats a word")


def score(run: Run) -> float:
    """The score by which a learning rate is chosen."""
    return run.records[-1][NLL]


def report(runs: Sequence[Run]) -> Report:
    """The report on runs of `skip-thoughts`, finished or not."""
    blocks, status = compare(runs, by="hidden", choose=score)
    tested, damaged = read_tests(blocks)
    findings = [
        text
        for block in blocks
        for text in (*_over_pairs(block, tested), *_above_the_bag(block), *rates.at_the_edge(block))
    ]
    return Report(
        title="Skip-thoughts, Table 3 and Figure 3",
        claim=CLAIM,
        findings=findings,
        status=[*status, *damaged],
        figures=[
            *(figure for number, block in enumerate(blocks, 1) for figure in _figures(block, number, len(blocks))),
            *rates.sensitivity(blocks, SENSITIVITY, title="{} units"),
        ],
        tables=[
            *([_relatedness(blocks), _classification(blocks)] if _rows(blocks) else []),
            _speed(blocks),
            _rates(blocks),
        ],
        deviations=_deviations(runs),
        runs=runs,
    )


def _figures(block: Block, number: int, count: int) -> list[Figure]:
    name = "" if count == 1 else f"-{number}"
    learning = [Panel("held-out books", "update", "nats a word", block.curves(NLL, x="update"))]
    about = (
        "The decoders' negative log-likelihood of a word in the validation books, each norm at its best learning rate."
    )
    books = Figure(f"nll{name}", about, [learning])
    if not _curves(block, "sick_pearson"):
        return [books]
    panels = [
        Panel(text, "update", text.partition(", ")[2], _curves(block, metric))
        for metric, text in SICK.items()
        if metric != "sick_spearman"
    ]
    panels += [Panel(metric.upper(), "update", "accuracy, %", _curves(block, metric)) for metric in FILES]
    caption = (
        f"{block.label} units: the encoder on SICK and on four classification tasks in training, each norm at its best "
        "learning rate."
    )
    return [Figure(f"figure3{name}", caption, [panels[:3], panels[3:]]), books]


def _curves(block: Block, metric: str) -> list[Curve]:
    """A metric of the tasks over seeds, at the evaluations that included the tasks."""
    found = []
    for norm, group in block.groups.items():
        able = [
            dataclasses.replace(run, records=[record for record in run.records if _evaluated(run, record)])
            for run in group
        ]
        if all(run.records for run in able):
            found.append(curve(able, metric, NORMS[norm], STYLES[norm], x="update"))
    return found


def _evaluated(run: Run, record: Record) -> bool:
    every = run.config["tasks_every"] * run.config["evaluate_every"]
    return every > 0 and (record["update"] % every == 0 or record["update"] == run.config["updates"])


def _relatedness(blocks: Sequence[Block]) -> Table:
    rows = []
    for head, group, row in _rows(blocks):
        values = {metric: [run.result[f"{row}_{metric}"] for run in group] for metric in SICK}
        nll = f"{statistics.fmean(run.result['test_nll'] for run in group):.3f}" if row == "trained" else "-"
        means = [f"{statistics.fmean(values[metric]):.3f}" for metric in ("sick_spearman", "sick_mse")]
        rows.append([*head, spread(values["sick_pearson"], 3), *means, nll, str(len(group))])
    rows += [["2400", model, *values[:3], "-", "-"] for model, values in PAPER.items()]
    return Table(
        "Table 3: SICK",
        ["units", "model", "r", "rho", "MSE", "test NLL", "seeds"],
        rows,
        "After the last update, each norm at its best learning rate: Pearson's r with its lowest and highest seed, "
        "means of the others. Untrained: the encoder before the first update. Bag: the mean of the trained embeddings; "
        "random bag: of those before the first update; both layer-normalised in layer norm's rows. Test NLL: nats a "
        "word in the test books. 1.7M: so many updates. The paper's encoders are trained on BookCorpus: compare the "
        "direction.",
    )


def _classification(blocks: Sequence[Block]) -> Table:
    rows = []
    for head, group, row in _rows(blocks):
        means = [f"{statistics.fmean(run.result[f'{row}_{metric}'] for run in group):.1f}" for metric in FILES]
        rows.append([*head, *means, spread([_mean_accuracy(run, row) for run in group], 1), str(len(group))])
    rows += [
        ["2400", model, *values[3:], f"{statistics.fmean(map(float, values[3:])):.1f}", "-"]
        for model, values in PAPER.items()
    ]
    fast = {run.config["fast_eval"] for block in blocks for group in block.groups.values() for run in group}
    folds = " or ".join("3 (--fast-eval)" if quick else "10" for quick in sorted(fast))
    return Table(
        "Table 3: classification",
        ["units", "model", *(metric.upper() for metric in FILES), "mean", "seeds"],
        rows,
        f"Accuracy in percent, means over seeds; the mean of the four with its lowest and highest seed. C was chosen "
        f"by {folds} inner folds. Rows as above.",
    )


def _rows(blocks: Sequence[Block]) -> list[tuple[list[str], Group, str]]:
    """The rows of both tables: the first cells, the runs that are finished and tested, and the row of `ROWS`."""
    found = []
    for row, text in ROWS.items():
        for block in blocks:
            for norm, group in block.groups.items():
                done = _tested(group)
                if done:
                    found.append(([block.label, f"{NORMS[norm]}{text}"], done, row))
    return found


def _mean_accuracy(run: Run, row: str = "trained") -> float:
    return statistics.fmean(run.result[f"{row}_{metric}"] for metric in FILES)


def _speed(blocks: Sequence[Block]) -> Table:
    return speed(
        blocks,
        "units",
        {
            "rate": lambda block, norm: f"{block.groups[norm][0].config[RATE]:g}",
            "to base's": lambda block, norm: block.to_best(norm, NLL),
            "time": lambda block, norm: block.to_best(norm, NLL, "time"),
        },
        digits=0,
        note="Rate: the learning rate, each norm's best on the validation books. To base's: the updates after which "
        "the mean validation NLL over seeds is at the baseline's best, interpolated. Time: these updates times the "
        "time of an update, as a share of the baseline's. Time of an update: the median between two evaluations, of "
        "the fastest such stretch, since other work on the machine slows the rest. The paper found no significant "
        "difference in the time of an update.",
    )


def _rates(blocks: Sequence[Block]) -> Table:
    return rates.table(blocks, "units", score, "Validation NLL after the last update, nats a word", digits=3)


def _tested(group: Group) -> Group:
    """The runs that are finished and were tested on the tasks."""
    return [run for run in group if run.whole and run.config["tasks_every"]]


def _over_pairs(block: Block, tested: Mapping[Path, Tested]) -> list[str]:
    return over_cases(block, ("layer", "none"), tested, "sick", lambda errors: errors.mean(0), "MSE on SICK", 3)


def _above_the_bag(block: Block) -> list[str]:
    """How far SICK's correlation is above that of random embeddings. If it is not, the comparison means little."""
    found = []
    for norm, group in block.groups.items():
        done = _tested(group)
        if done:
            pairs = [(run.result["trained_sick_pearson"], run.result["random_bag_sick_pearson"]) for run in done]
            ahead = all(own > bag for own, bag in pairs)
            own, bag = (spread(list(side), 3) for side in zip(*pairs, strict=True))
            what = "above" if ahead else "not above"
            found.append(f"{NORMS[norm].capitalize()} on SICK is {what} the bag of random embeddings: r {own}, {bag}.")
    return found


def _deviations(runs: Sequence[Run]) -> list[Deviation]:
    config, data = runs[0].config, runs[0].environment["data"]
    triples, held = data.get("triples", {}), data.get("books", {})
    found = [
        Deviation(
            "stand-in",
            f"{held.get('train', 0)} books with {triples.get('train', 0):,} triples of sentences below 30 words in "
            f"place of BookCorpus; {held.get('valid', 0)} and {held.get('test', 0)} books of other authors held out.",
        ),
        Deviation("S", "The loss is summed over words, sentences and both decoders; the gradient is cut to a norm."),
        Deviation(
            "S",
            "The norm 5 and batches of 64 are the original code's; the original paper of 2015 has 10 and 128. Batches "
            "are of one encoder length, the lengths in shuffled cycles.",
        ),
        Deviation("S", "SICK's sentences are encoded with their end, those of the classification tasks without."),
        Deviation(
            "I",
            "Words outside the vocabulary get embeddings by ridge regression from hashed character n-grams (2 to 5 "
            "characters); the original regresses from word2vec vectors.",
        ),
        Deviation(
            "I",
            "The softmax regression on SICK starts from 0; its Adam has torch's step size, 0.001. A trial correlation "
            f"that stops rising ends it, and at the latest the end of {BLOCKS} blocks of {BLOCK} epochs.",
        ),
        Deviation("I", "Sentences, words and contractions are told apart by rules of ours, in small letters."),
    ]
    if config["optimizer"] == "legacy_adam":
        found.insert(
            1, Deviation("S", "Adam with the original code's correction terms, which leave out the bias correction.")
        )
    if any(run.config["fast_eval"] for run in runs):
        text = "C of the classification tasks is chosen by 3 inner folds (--fast-eval); the protocol has 10."
        found.append(Deviation("I", text))
    names = ("updates", "batch_size", "vocabulary", "words", "hidden", RATE, "optimizer", "clip", "evaluate_every")
    return found + departures(runs, {name: getattr(Config(), name) for name in names})
