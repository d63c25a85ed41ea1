"""Where experiment 6.2 departs from the paper."""

from ...data import cloze
from ...report.page import Deviation

BATCH = ("batch", "batch-everywhere")

DEVIATIONS = (
    Deviation(
        "passages",
        "I",
        "cut to the four sentences that share most words with the question, entities counted twice; the rule of the "
        "original data was never published.",
    ),
    Deviation(
        "initial weights",
        "I",
        "every gate's block of a weight matrix is drawn by itself; the original code draws them alike.",
    ),
    Deviation("batch norm's gains", "S", "they start at 0.1.", {"norm": BATCH}),
    Deviation("layer norm's gains", "S", "they start at 1.0 unless a row says otherwise.", {"norm": ["layer"]}),
    Deviation(
        "recurrent batch norm",
        "S",
        "it counts rows that have ended, standing still with input 0; else the statistics of the last steps are of one "
        "or two rows.",
        {"norm": BATCH},
    ),
    Deviation(
        "batch norm everywhere",
        "S",
        "it leaves padding out of the statistics of the attention.",
        {"norm": ["batch-everywhere"]},
    ),
    Deviation("batches", "I", "one holds passages of like length: pools of 50 batches are sorted by it."),
    Deviation("batch norm's evaluation", "S", "by the statistics of the batch.", {"norm": BATCH, "bn_eval": ["batch"]}),
    Deviation(
        "batch norm's evaluation",
        "I",
        "by the statistics of the population; the original takes the batch's.",
        {"norm": BATCH, "bn_eval": ["population"]},
    ),
    Deviation(
        "data",
        "stand-in",
        "{data_questions_train} training and {data_questions_valid} validation questions instead of CNN's.",
    ),
    Deviation(
        "questions",
        "stand-in",
        f"they are made from books: a sentence in which a name is missing, after {cloze.CONTEXT} sentences that have "
        "it. Those whose answer the cut loses, or leaves as the only entity, are left out, and so are those with more "
        f"than {cloze.MOST} names, or {cloze.LONGEST} words after the cut. An author's books are in one split, and no "
        "text has a name in it: no entity can be known from another split.",
        {"corpus": ["books-cloze"]},
    ),
)

APART = ("corpus", "gain_init", "bn_eval")
"""The options of which the paper states several values, or which have a deviation of their own."""
