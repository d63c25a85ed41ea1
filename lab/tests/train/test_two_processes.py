"""Two processes train each experiment as one does: the shares of a batch differ in size, and one may be empty."""

import subprocess
import sys
from typing import NamedTuple

import pytest

from lab_support.book_files import write_text
from lab_support.captioned_files import write_captioned
from lab_support.command import in_two_processes
from lab_support.iam_files import write_iam
from lab_support.question_files import write_questions
from lab_support.runs import untimed
from layernorm_lab.runs import checkpoint, folder

# The evaluations of skip-thoughts, in a process without `skip_thoughts/conftest.py`.
QUICK = """
import sys
from layernorm_lab import cli
from layernorm_lab.experiments.skip_thoughts import encoder, evaluation
encoder.FEATURES = 64
evaluation.PENALTIES, evaluation.FOLDS, evaluation.BLOCKS = (1.0,), 2, 1
sys.exit(cli.main(sys.argv[1:]))
"""


class Case(NamedTuple):
    """An experiment: how its files are written, its options, its run's folder, and what must be the same.

    Attributes:
        metrics: of the only record; sums over a batch are taken in another order, in float32.
        rel: how much these may differ.
        near: the share of a weight's elements that are the same.
    """

    write: object
    options: list[str]
    run: str
    metrics: list[str]
    rel: float
    near: float


CASES = {
    "order-embeddings": Case(
        lambda place: write_captioned(place, {"train": 30, "val": 12, "test": 10}),
        ["--epochs", "2", "--batch-size", "7"],
        "order-embeddings-order-layer-lr0.001-s0",
        ["batch_loss", "first_gradient_norm"],
        1e-4,
        0.99,
    ),
    "skip-thoughts": Case(
        write_text,
        ["--updates", "12", "--evaluate-every", "12", "--batch-size", "7"],
        "skip-thoughts-layer-lr0.002-s0",
        ["batch_loss", "first_gradient_norm", "valid_nll"],
        1e-4,
        0.99,
    ),
    "handwriting": Case(
        lambda place: write_iam(place, points=60),
        ["--updates", "2", "--valid-lines", "2"],
        "handwriting-layer-s0",
        ["batch_loss", "first_gradient_norm", "valid_nll"],
        1e-3,
        0.95,
    ),
    "reader": Case(
        write_questions,
        ["--updates", "3", "--evaluate-every", "3", "--dropout", "0", "--gain-init", "1.0", "--batch-size", "5"],
        "reader-layer-g1.0-lr0.001-s0",
        ["batch_loss", "first_gradient_norm", "valid_nll"],
        1e-3,
        0.95,
    ),
}


@pytest.mark.long  # test_distributed.py and convnets are in the short set
@pytest.mark.parametrize("name", CASES)
def test_two_processes_give_the_same_metrics(name, tmp_path):
    case = CASES[name]
    script = tmp_path / "quick.py"
    script.write_text(QUICK)
    command = [str(script), "run", name, "--preset", "smoke", *case.options, "--norm", "layer", "--threads", "1"]
    command += ["--data", str(case.write(tmp_path / "data")), "--out"]
    in_two_processes(*command, str(tmp_path / "two"))
    subprocess.run([sys.executable, *command, str(tmp_path / "one")], capture_output=True, timeout=200, check=True)
    one, two = (tmp_path / place / case.run for place in ("one", "two"))
    (first,), (second,) = untimed(one), untimed(two)
    assert second.keys() == first.keys()
    assert folder.read_run(two).result.keys() == folder.read_run(one).result.keys()
    for metric in case.metrics:
        assert second[metric] == pytest.approx(first[metric], rel=case.rel), metric
    trained = [
        checkpoint.under("model", checkpoint.load_checkpoint(path / folder.CHECKPOINT)[0]) for path in (one, two)
    ]
    for weight, value in trained[0].items():
        # Adam divides by the root of the second moment: an element that has no gradient but rounding moves by the step
        close = (trained[1][weight] - value).abs() <= 1e-4
        assert close.double().mean() > case.near, weight
