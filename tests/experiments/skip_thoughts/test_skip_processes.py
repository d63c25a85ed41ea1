"""Two processes train skip-thoughts as one does."""

import os
import subprocess
import sys

import pytest

from layernorm.experiments.runs import checkpoint, folder
from support.book_files import write_text
from support.runs import untimed

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]

QUICK = """
import sys
from layernorm import cli
from layernorm.experiments.skip_thoughts import encoder, evaluation
encoder.FEATURES = 64
evaluation.PENALTIES, evaluation.FOLDS, evaluation.BLOCKS = (1.0,), 2, 1
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.long  # train/test_distributed.py and convnets are in the short set
def test_two_processes_give_the_same_metrics(tmp_path):
    data = write_text(tmp_path / "data")
    script = tmp_path / "quick.py"
    script.write_text(QUICK)
    # batches of 7 and smaller ones where a length ends: the processes' shares differ in size, and one may have none
    options = ["--preset", "smoke", "--updates", "12", "--evaluate-every", "12", "--batch-size", "7", "--norm", "layer"]
    command = ["run", "skip-thoughts", *options, "--threads", "1", "--data", str(data), "--out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for number, start in (("one", [sys.executable]), ("two", TORCHRUN)):
        done = subprocess.run(
            [*start, str(script), *command, str(tmp_path / number)],
            env=environment, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
    one, two = (tmp_path / number / "skip-thoughts-layer-lr0.002-s0" for number in ("one", "two"))
    (first,), (second,) = untimed(one), untimed(two)
    for name in ("batch_loss", "first_gradient_norm", "valid_nll"):
        # sums over a batch in another order, in float32, after 12 updates
        assert second[name] == pytest.approx(first[name], rel=1e-4), name
    trained = [
        checkpoint.under("model", checkpoint.load_checkpoint(path / folder.CHECKPOINT)[0]) for path in (one, two)
    ]
    for name, value in trained[0].items():
        # Adam divides by the root of the second moment: an element that has no gradient but rounding moves by the step
        close = (trained[1][name] - value).abs() <= 1e-4
        assert close.double().mean() > 0.99, name
