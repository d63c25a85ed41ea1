"""`layernorm run convnets` and its report, from the command line on small files."""

import math
import shutil

import pytest
import torch
from torch import nn

from lab_support.cifar_files import write_cifar
from lab_support.command import goes_on_and_ends_the_same, in_two_processes, one_line, refused
from layernorm_lab import cli
from layernorm_lab.data import cifar10
from layernorm_lab.data.mnist import Cases
from layernorm_lab.experiments.convnets import claims, experiment
from layernorm_lab.experiments.convnets.config import Config
from layernorm_lab.experiments.convnets.experiment import EXPERIMENT, scaled
from layernorm_lab.report.judge import PILOT_SEEDS
from layernorm_lab.runs import folder
from layernorm_lab.train import distributed

SMALL = ["run", "convnets", "--preset", "smoke", "--threads", "1"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_cifar(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data):
    out = tmp_path_factory.mktemp("finished")
    assert cli.main([*SMALL, "--data", str(data), "--out", str(out)]) == 0
    return out


def test_a_run_records_every_part_and_keeps_its_test(finished):
    for norm in ("none", "layer", "batch", "weight"):
        run = folder.read_run(finished / f"convnets-{norm}-lr0.003-s0")
        assert run.done
        assert [record["update"] for record in run.records] == [2, 4]
        parts = {f"{part}_{what}" for part in ("train", "valid", "test") for what in ("nll", "error")}
        assert all(parts <= set(record) for record in run.records)
        assert run.records[0]["first_gradient_norm"] > 0
        tested = run.tested()
        assert run.result["all_test_error"] == pytest.approx(1 - float(tested["correct"].double().mean()), rel=1e-12)
        assert len(tested["correct"]) == 20
        assert len(tested) == 1 + 2 * 9 * 3
    start = [folder.read_run(finished / f"convnets-{norm}-lr0.003-s0").tested() for norm in ("none", "weight")]
    # weight norm starts as the same function; its weights g v / |v| are rounded, which can switch a unit or two
    torch.testing.assert_close(start[0]["start.9.profile"], start[1]["start.9.profile"], rtol=1e-2, atol=1e-2)
    # batch norm's running statistics are those of no data then, and with them it would be the network without a norm
    batch = folder.read_run(finished / "convnets-batch-lr0.003-s0").tested()
    assert (batch["start.9.profile"] - start[0]["start.9.profile"]).abs().max() > 0.05
    assert "units at the border" in (finished / "report" / "index.html").read_text()
    assert {path.name for path in (finished / "report").glob("*.png")} == {
        "curves.png", "border.png", "distances.png"
    }  # fmt: skip


def test_an_interrupted_run_goes_on_and_ends_the_same(finished, data, tmp_path):
    """With dropout and noise, whose generator the checkpoint keeps."""
    command = [*SMALL, "--norm", "weight", "--data", str(data), "--out", str(tmp_path)]
    run = "convnets-weight-lr0.003-s0"
    goes_on_and_ends_the_same(command, experiment, "nll_and_answers", 5, [0, 2], tmp_path / run, finished / run)


def test_the_loss_is_the_mean_over_the_batch_and_evaluation_is_of_the_first_images(data):
    images = cifar10.CIFAR10.load(data).holding_out(5)
    config = Config(norm="none", width=4, batch_size=25, epochs=2, held_out=5, evaluate_cases=10, dropout=0, noise=0)
    task = experiment.convnets_task(config, images, distributed.accelerator("cpu", "float32"))
    task.model.eval()
    with torch.no_grad():
        logits = task.model(scaled(images.train.images)).double()
        loss = float(task.mean_loss(task.model, 0))  # one batch holds every image
        metrics = task.evaluate(task.model)
    assert loss == pytest.approx(float(nn.functional.cross_entropy(logits, images.train.labels)), rel=1e-5)
    first = nn.functional.cross_entropy(logits[:10], images.train.labels[:10])
    assert metrics["train_nll"] == pytest.approx(float(first), rel=1e-5)
    assert metrics["train_error"] == float((logits[:10].argmax(1) != images.train.labels[:10]).double().mean())
    assert (task.updates, task.decay) == (2, 0.5)
    assert [group["lr"] for group in task.optimizer.param_groups] == [3e-3]


def test_small_losses_keep_their_digits():
    """-log softmax of a logit that leads by 20 is 9 e^-20 = 1.86e-8; float32 would round it to zero."""

    class Certain(nn.Module):
        def forward(self, images):
            return 20 * nn.functional.one_hot(torch.zeros(len(images), dtype=torch.int64), 10).float()

    cases = Cases(torch.zeros(3, 3, 32, 32, dtype=torch.uint8), torch.tensor([0, 0, 0]))
    nll, right = experiment.nll_and_answers(Certain(), cases)
    assert math.isclose(nll, math.log1p(9 * math.exp(-20)), rel_tol=1e-6)
    assert right.all()


@pytest.mark.long
def test_two_processes_give_the_metrics_of_one(data, tmp_path):
    """Batches of 5, of which one process has 3 and the other 2; batch norm sees all of them."""
    options = ["--norm", "batch", "layer", "--batch-size", "5", "--dropout", "0", "--noise", "0", "--data", str(data)]
    in_two_processes("-m", "layernorm", *SMALL, *options, "--out", str(tmp_path / "two"))
    assert cli.main([*SMALL, *options, "--out", str(tmp_path / "one")]) == 0
    for norm in ("batch", "layer"):
        one, two = (folder.read_run(tmp_path / place / f"convnets-{norm}-lr0.003-s0") for place in ("one", "two"))
        assert len(one.records) == len(two.records) == 2
        for ours, theirs in zip(one.records, two.records, strict=True):
            for metric in ("batch_loss", "train_nll", "valid_nll", "test_nll"):
                # the sums over a batch are taken in another order, and Adam's first steps amplify that
                assert theirs[metric] == pytest.approx(ours[metric], rel=2e-3), (norm, metric)
        # at update 0 nothing has been amplified
        assert two.records[0]["first_gradient_norm"] == pytest.approx(one.records[0]["first_gradient_norm"], rel=1e-4)


def test_wrong_files_and_sizes_are_one_line(data, tmp_path, capsys):
    command = [*SMALL, "--out", str(tmp_path / "out"), "--data"]
    refused(
        [*command, str(data), "--train-cases", "26"],
        2,
        "--train-cases must be at most 25, the number of training images, got 26",
        capsys,
    )
    assert cli.main([*command, str(data), "--batch-size", "21"]) == 2
    assert "--batch-size must be at most 20, the number of training images, got 21" in one_line(capsys)
    refused([*command, str(data), "--held-out", "30"], 2, "--held-out must lie in 1..29", capsys)
    other = shutil.copytree(data, tmp_path / "data")
    (other / "data_batch_2.bin").write_bytes(bytes(784))
    refused(
        [*command, str(other)], 1, "data_batch_2.bin has 784 bytes; a file of CIFAR-10 has 3073 for each image", capsys
    )
    assert cli.main([*command, str(tmp_path / "nowhere")]) == 1
    assert "there is no folder" in one_line(capsys)
    assert not (tmp_path / "out").exists()


def test_presets():
    """The protocol of Salimans and Kingma, and what a laptop can do of it."""
    paper, laptop = EXPERIMENT.presets["paper"], EXPERIMENT.presets["laptop"]
    config = paper.config
    assert (config.epochs, config.batch_size, config.width, config.learning_rate) == (200, 100, 96, 3e-3)
    assert (config.dropout, config.noise, config.train_cases) == (0.5, 0.15, 0)
    assert config.decay == 0.5
    assert len(paper.sweep["seed"]) == 3
    assert len(paper.sweep["learning_rate"]) >= 3
    assert {"none", "layer", "layer-shared", "batch", "weight"} <= set(paper.sweep["norm"])
    assert EXPERIMENT.default_preset == "laptop"
    assert laptop.sweep["seed"] == PILOT_SEEDS
    for trial in (claims.SHORT, claims.SHARED):
        assert laptop.sweep["learning_rate"] == trial.rates
        assert {name: getattr(laptop.config, name) for name in trial.options} == trial.options
    assert {arm.norm for claim in claims.CLAIMS for arm in claim.arms} == set(laptop.sweep["norm"])
