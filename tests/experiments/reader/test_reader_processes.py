"""Two processes train the attentive reader as one does; recurrent batch norm is refused to them."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from layernorm import cli
from layernorm.experiments.data import questions
from layernorm.experiments.errors import RunError
from layernorm.experiments.reader import experiment
from layernorm.experiments.reader.network import Config
from layernorm.experiments.runs import checkpoint, folder
from support.question_files import write_questions
from support.runs import untimed

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "layernorm"]

# batches of 5: the processes' shares differ in size
SMALL = ["run", "reader", "--preset", "smoke", "--updates", "3", "--evaluate-every", "3", "--threads", "1"]
SMALL += ["--dropout", "0", "--norm", "layer", "--gain-init", "1.0", "--batch-size", "5"]


@pytest.mark.long  # train/test_distributed.py and convnets are in the short set
def test_two_processes_give_the_same_metrics(tmp_path):
    command = [*SMALL, "--data", str(write_questions(tmp_path / "data")), "--out"]
    assert cli.main([*command, str(tmp_path / "one")]) == 0
    done = subprocess.run(
        [*TORCHRUN, *command, str(tmp_path / "two")],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    one, two = (tmp_path / number / "reader-layer-g1.0-lr0.001-s0" for number in ("one", "two"))
    (first,), (second,) = untimed(one), untimed(two)
    for name in ("batch_loss", "valid_nll", "first_gradient_norm"):
        # sums over a batch in another order, in float32
        assert second[name] == pytest.approx(first[name], rel=1e-3), name
    trained = [
        checkpoint.under("model", checkpoint.load_checkpoint(path / folder.CHECKPOINT)[0]) for path in (one, two)
    ]
    for name, value in trained[0].items():
        # Adam divides by the root of the second moment: an element that has no gradient but rounding moves by the step
        close = (trained[1][name] - value).abs() <= 1e-4
        assert close.double().mean() > 0.95, name


def test_recurrent_batch_norm_is_refused(tmp_path):
    data = questions.CORPORA["cnn"].load(write_questions(tmp_path))
    two = SimpleNamespace(device=torch.device("cpu"), num_processes=2, process_index=0)
    with pytest.raises(RunError, match=r"--norm batch needs the whole batch in one process, .* got 2 processes"):
        experiment.reader_task(Config(norm="batch", batch_size=4), data, two)
