"""A report speaks of the norms that are among its runs, and says whose figure it draws again."""

import importlib
import re
from pathlib import Path

import pytest

from lab_support.runs import report_of, write_digits
from layernorm_lab.experiments.mnist import report as mnist
from layernorm_lab.report import rendering
from layernorm_lab.report.arms import Said, is_named, said
from layernorm_lab.runs.folder import find_runs

NAMES = ("convnets", "draw", "handwriting", "mnist", "order_embeddings", "reader", "skip_thoughts")
"""The rooms of the experiments of the paper."""


def module(name, part):
    return importlib.import_module(f"layernorm_lab.experiments.{name}.{part}")


@pytest.mark.parametrize(("norms", "speaks"), [(("none", "layer"), False), (("layer", "batch"), True)])
def test_a_report_says_nothing_of_batch_norm_without_it(norms, speaks, tmp_path):
    for norm in norms:
        write_digits(tmp_path, norm, 128, 0, [0.3, 0.2], exact=0.1 if norm == "batch" else None)
    text = rendering.markdown(report_of(tmp_path))
    assert bool(re.search("batch norm|Exact statistics", text)) == speaks


@pytest.mark.parametrize(
    ("norms", "said_by"), [(("none", "layer"), ""), (("none", "batch"), ""), (("layer", "batch"), "6.6")]
)
def test_the_papers_claim_is_there_with_runs_of_its_norms(norms, said_by, tmp_path):
    for norm in norms:
        write_digits(tmp_path, norm, 128, 0, [0.3, 0.2])
    claim = mnist.OUTLINE.report(find_runs([tmp_path]).runs).claim
    assert said_by in claim
    assert bool(claim) == bool(said_by)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_of_a_norm_names_it(name):
    """Of claims and deviations the words and the norms that they are shown with are the same."""
    words = {
        "layer norm": "layer",
        "batch norm": "batch",
        "RMS norm": "rms",
        "weight norm": "weight",
        "group norm": "group",
    }
    for item in module(name, "deviations").DEVIATIONS:
        for word, norm in words.items():
            if re.search(word, f"{item.name} {item.text}", re.IGNORECASE):
                shown = item.where.get("norm", ())
                assert shown, item
                assert all(value.startswith(norm) for value in shown), item
    claim = module(name, "report").CLAIM
    assert claim
    for part in claim:
        assert ("atch norm" in part.text) == any(norm.startswith("batch") for norm in part.norms)
        assert ("baseline" in part.text) == ("none" in part.norms)


@pytest.mark.parametrize("name", NAMES)
def test_a_title_says_that_a_figure_is_the_papers(name):
    source = Path(module(name, "report").__file__).read_text()
    (title,) = {title for title in re.findall(r'title="([^"]*)"', source) if "digits" not in title}
    assert bool(re.search(r"(Figure|Table) \d", title)) == ("of the paper" in title)


def test_sentences_and_names_of_norms():
    parts = ["Always.", Said("Both.", ("layer", "batch*")), Said("Layer.", ("layer",))]
    assert said(parts, {"none"}) == "Always."
    assert said(parts, {"layer"}) == "Always. Layer."
    assert said(parts, {"layer", "batch-hidden"}) == "Always. Both. Layer."
    assert said("Always.", set()) == "Always."
    assert is_named("layer norm, gain a channel", {"layer-shared"})
    assert not is_named("layer norm, gain a channel", {"layer"})
    assert not is_named("layer norm, 1.7M, paper", {"none"})
    assert is_named("original, paper", {"none"})
