"""The report of experiment 6.1: Figure 1 and Table 2 again."""

from __future__ import annotations

from ...report.arms import Said
from ...report.blocks import Metric
from ...report.outline import Curves, Outline, Results
from ...report.tables import Column, mean, mean_and_range
from .config import Config
from .deviations import APART, DEVIATIONS

CLAIM = (
    Said(
        "With layer normalization in the GRU, order embeddings reach their best validation model in 60 % of the "
        "baseline's time, and retrieve better (section 6.1, Table 2, Figure 1).",
        ("layer", "none"),
    ),
)

PAPER = {
    # similarity, norm: caption retrieval, then image retrieval: R@1, R@5, R@10, mean rank
    ("cosine, paper", "baseline"): (("45.4", "-", "88.7", "5.8"), ("36.3", "-", "85.8", "9.0")),
    ("order, paper", "baseline"): (("46.6", "79.3", "89.1", "5.2"), ("37.8", "73.6", "85.7", "7.9")),
    ("order, paper", "layer norm"): (("48.5", "80.6", "89.8", "5.1"), ("38.9", "74.3", "86.3", "7.6")),
}
"""The paper's Table 2, on COCO."""

SIDES = {"caption": "Captions found for an image", "image": "Images found for a caption"}
"""The two directions, with their names in metrics and tables."""

RECALL = Metric("valid_image_recall", "R@1 + R@5 + R@10, images found", rising=True)
METRICS = (
    RECALL,
    *(
        Metric(f"valid_image_r{count}", f"R@{count}, images found, %", chosen=RECALL.name, rising=True)
        for count in (1, 5, 10)
    ),
)


ABOUT = (
    "How often the right image is among the first 1, 5 and 10 on validation, as in the paper's Figure 1, and the "
    "sum of the three, by which the model is kept."
)
NOTE = (
    "The kept model on the test images: R@K is the percentage with the right one among the first K; mean r: the "
    "mean rank, from 1. Averaged over folds. The paper's rows are on COCO: compare the direction."
)


def _recalls(side: str) -> Results:
    """Describes the paper's Table 2 in one direction."""
    names = {"R@1": "r1", "R@5": "r5", "R@10": "r10", "mean r": "mean_rank"}
    columns = [
        Column(head, f"test_{side}_{name}", "test", digits=1, text=mean_and_range if head == "R@10" else mean)
        for head, name in names.items()
    ]
    place = list(SIDES).index(side)
    paper = [(label, norm, dict(zip(names, cells[place], strict=True))) for (label, norm), cells in PAPER.items()]
    return Results(columns, NOTE, paper, SIDES[side])


OUTLINE = Outline(
    title="Order embeddings, Table 2 and Figure 1 of the paper",
    claim=CLAIM,
    config=Config(),
    curves=[Curves("figure1", ABOUT, METRICS, "update")],
    results=[_recalls(side) for side in SIDES],
    chosen=RECALL,
    digits=1,
    deviations=DEVIATIONS,
    apart=APART,
)
