"""Two processes train the order embedding as one does: the loss is over the pairs of the whole batch."""

import os
import subprocess
import sys

import pytest

from layernorm.experiments.order_embeddings import experiment
from layernorm.experiments.runs import checkpoint, folder
from support.captioned_files import write_captioned
from support.runs import untimed

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]

RUN = "order-embeddings-order-layer-lr0.001-s0"


@pytest.mark.long  # train/test_distributed.py and convnets are in the short set
def test_two_processes_give_the_same_metrics(tmp_path):
    data = write_captioned(tmp_path / "data", {"train": 30, "val": 12, "test": 10})
    # batches of 7: the processes' shares differ in size
    options = ["--preset", "smoke", "--epochs", "2", "--batch-size", "7", "--norm", "layer", "--threads", "1"]
    command = ["run", "order-embeddings", *options, "--data", str(data), "--out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for number, start in (("one", [sys.executable]), ("two", TORCHRUN)):
        done = subprocess.run(
            [*start, "-m", "layernorm", *command, str(tmp_path / number)],
            env=environment, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
    one, two = (tmp_path / number / RUN for number in ("one", "two"))
    (first,), (second,) = untimed(one), untimed(two)
    for name in ("batch_loss", "first_gradient_norm"):
        # sums over a batch's pairs in another order, in float32, after 8 updates
        assert second[name] == pytest.approx(first[name], rel=1e-4), name
    trained = [
        checkpoint.under("model", checkpoint.load_checkpoint(path / folder.CHECKPOINT)[0]) for path in (one, two)
    ]
    for name, value in trained[0].items():
        # Adam divides by the root of the second moment: an element that has no gradient but rounding moves by the step
        close = (trained[1][name] - value).abs() <= 1e-4
        assert close.double().mean() > 0.99, name
    assert folder.read_run(two).result["test_folds"] == 1
    assert experiment.KEPT_BY in second
