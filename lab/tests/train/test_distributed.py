"""Two processes compute what one computes."""

import json
import socket

import pytest
import torch

from lab_support import plain_descent, processes
from lab_support.runs import outcome
from layernorm_lab import cli
from layernorm_lab.errors import RunError
from layernorm_lab.runs import checkpoint, folder
from layernorm_lab.train import distributed

# 50 cases: the last batch of an epoch has 2 cases, and shares of 3 and 2 cases occur
RUNS = ["--norm", "layer", "batch", "--batch-size", "6"]
ALL_RUNS = ["--norm", "none", "layer", "batch", "--batch-size", "6", "4"]
COMMAND = ["run", "digits", "--seeds", "0"]
COMMAND += ["--train-cases", "50", "--epochs", "2", "--hidden", "16", "--threads", "1"]


def last_records(out):
    return {path.parent.name: path.read_text().splitlines() for path in sorted(out.glob("*/records.jsonl"))}


def in_two(function, argument, said):
    """Calls a function in two processes, with what torchrun sets; they print into a file."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    of_both = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    first, second = ({**of_both, "RANK": rank, "LOCAL_RANK": rank} for rank in "01")
    rest = {"output": said, "errors": said}
    with (
        processes.process(function, argument, environment=first, **rest) as one,
        processes.process(function, argument, environment=second, **rest) as other,
    ):
        pass
    assert (one.exitcode, other.exitcode) == (0, 0), said.read_text()


@pytest.mark.parametrize(("runs", "count"), [(RUNS, 2), pytest.param(ALL_RUNS, 6, marks=pytest.mark.long)])
def test_two_processes_give_the_same_metrics_and_write_once(runs, count, tmp_path, capsys):
    in_two(processes.run_command, [*COMMAND, *runs, "--out", str(tmp_path / "two")], tmp_path / "said")
    said = (tmp_path / "said").read_text()
    assert said.count("report: ") == 1
    assert "Warning" not in said
    assert cli.main([*COMMAND, *runs, "--out", str(tmp_path / "one")]) == 0

    one, two = last_records(tmp_path / "one"), last_records(tmp_path / "two")
    assert len(one) == count
    assert one.keys() == two.keys()
    for name in one:
        assert len(one[name]) == len(two[name]) == 2
        first, second = json.loads(one[name][-1]), json.loads(two[name][-1])
        for metric in ("batch_loss", "train_nll", "valid_nll", "test_nll"):
            # the sums over a batch are taken in another order; the rest is the same
            assert second[metric] == pytest.approx(first[metric], rel=2e-3), (name, metric)
        starts = [json.loads(found[name][0])["first_gradient_norm"] for found in (one, two)]
        assert starts[1] == pytest.approx(starts[0], rel=1e-4), name  # float32 sums in another order
        assert abs(second["test_error"] - first["test_error"]) <= 0.01

    # a run that one process left unfinished is not continued by two
    run = tmp_path / "two" / "digits-layer-b6-s0"
    (run / "result.json").unlink()
    assert cli.main([*COMMAND, *runs, "--out", str(tmp_path / "two")]) == 1
    assert "was begun by 2 processes, and this command has 1 process; use torchrun" in capsys.readouterr().err


def test_gradients_are_those_of_the_global_mean(tmp_path):
    """Under plain gradient descent, which unlike Adam feels the gradients' scale, and with an empty share."""
    in_two(plain_descent.train_and_disconnect, tmp_path / "two", tmp_path / "said")
    plain_descent.train(tmp_path / "one")
    one, two = (checkpoint.load_checkpoint(tmp_path / name / "checkpoint.safetensors")[0] for name in ("one", "two"))
    names = [name for name in one if name.startswith("model/")]
    assert any(name.endswith("running_var") for name in names)
    for name in names:
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-6)


def test_two_processes_go_on_bit_for_bit(tmp_path):
    in_two(plain_descent.train_and_disconnect, tmp_path / "whole", tmp_path / "said")
    in_two(plain_descent.train_in_two_parts, tmp_path / "broken", tmp_path / "said")
    assert len(folder.read_run(tmp_path / "broken").environment["starts"]) == 2
    assert outcome(tmp_path / "broken") == outcome(tmp_path / "whole")


@pytest.mark.parametrize(
    ("text", "raised", "message"),
    [
        (
            "[/gloo/gloo/transport/tcp/pair.cc:538] Read error",
            RunError,
            "another process of this run has ended; the same",
        ),
        ("size mismatch", RuntimeError, "size mismatch"),
    ],
)
def test_the_end_of_another_process_is_named(text, raised, message):
    with pytest.raises(raised, match=message), distributed.processes_ended():
        raise RuntimeError(text)
