"""Two processes train the attentive reader as one does; recurrent batch norm is refused to them."""

import os
import subprocess
import sys

import pytest

from layernorm.experiments.runs import checkpoint, folder
from support.question_files import write_questions
from support.runs import untimed

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]


def started(start, place, *options):
    command = ["run", "reader", "--preset", "smoke", "--updates", "3", "--evaluate-every", "3", "--threads", "1"]
    return subprocess.run(
        [*start, "-m", "layernorm", *command, "--dropout", "0", "--data", str(place / "data"), *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip


def test_two_processes_give_the_same_metrics(tmp_path):
    write_questions(tmp_path / "data")
    # batches of 5: the processes' shares differ in size
    options = ["--norm", "layer", "--gain-init", "1.0", "--batch-size", "5"]
    for number, start in (("one", [sys.executable]), ("two", TORCHRUN)):
        done = started(start, tmp_path, *options, "--out", str(tmp_path / number))
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
    one, two = (tmp_path / number / "reader-layer-g1.0-lr0.001-s0" for number in ("one", "two"))
    (first,), (second,) = untimed(one), untimed(two)
    for name in ("batch_loss", "valid_nll", "first_gradient_norm"):
        # sums over a batch in another order, in float32
        assert second[name] == pytest.approx(first[name], rel=1e-3), name
    trained = [checkpoint.under("model", checkpoint.load(path / folder.CHECKPOINT)[0]) for path in (one, two)]
    for name, value in trained[0].items():
        # Adam divides by the root of the second moment: an element that has no gradient but rounding moves by the step
        close = (trained[1][name] - value).abs() <= 1e-4
        assert close.double().mean() > 0.95, name


def test_recurrent_batch_norm_is_refused(tmp_path):
    write_questions(tmp_path / "data")
    done = started(TORCHRUN, tmp_path, "--norm", "batch", "--out", str(tmp_path / "out"))
    assert done.returncode != 0
    assert "--norm batch needs the whole batch in one process, for its statistics; got 2 processes" in done.stderr
    assert not list((tmp_path / "out").glob("reader-*/records.jsonl"))
