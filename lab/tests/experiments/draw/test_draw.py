"""`layernorm run draw`, its report and `layernorm sample draw`, from the command line on small files."""

import io
import math
import shutil

import pytest
import torch
from PIL import Image

from lab_support.binarized_files import NAMES, write_binarized
from lab_support.command import goes_on_and_ends_the_same, one_line, refused
from layernorm_lab import cli
from layernorm_lab.data import binarized_mnist
from layernorm_lab.errors import RunError
from layernorm_lab.experiments.draw import experiment, samples
from layernorm_lab.experiments.draw.config import Config
from layernorm_lab.experiments.draw.network import build_draw
from layernorm_lab.runs import folder
from layernorm_lab.train import distributed
from layernorm_lab.train.batches import EVALUATION, derive_seed

SMALL = ["--preset", "smoke", "--batch-size", "20", "--evaluate-every", "4", "--threads", "1"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_binarized(tmp_path_factory.mktemp("data"), train=190, test=30)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data):
    out = tmp_path_factory.mktemp("finished")
    assert cli.main(["run", "draw", *SMALL, "--data", str(data), "--out", str(out)]) == 0
    return out


def test_a_run_records_the_bound_and_its_parts(finished):
    for norm in ("none", "layer"):
        run = folder.read_run(finished / f"draw-{norm}-s0")
        assert run.done
        assert [record["update"] for record in run.records] == [4, 8, 10]
        for record in run.records:
            assert record["test_bound"] == pytest.approx(record["test_kl"] + record["test_reconstruction"], rel=1e-12)
            assert record["test_kl"] > 0
            assert record["valid_bound"] != record["test_bound"]
            assert record["gradient_norm"] > 0
        assert run.records[-1]["examples"] == 190
    page = (finished / "report" / "index.html").read_text()
    assert "Verdict:" not in page, "the runs belong to no trial"
    assert {path.name for path in (finished / "report").glob("*.png")} == {
        "figure4.png", "digits-none.png", "digits-layer.png", "canvas-none.png", "canvas-layer.png"
    }  # fmt: skip


def test_an_interrupted_run_goes_on_and_ends_the_same(finished, data, tmp_path, capsys):
    command = ["run", "draw", *SMALL, "--norm", "layer", "--data", str(data), "--out", str(tmp_path)]
    run = "draw-layer-s0"
    # two measures an evaluation
    goes_on_and_ends_the_same(command, experiment, "measure_bound", 3, [0, 4], tmp_path / run, finished / run)
    assert "the same command resumes" in capsys.readouterr().err


def test_the_loss_is_the_mean_bound_and_evaluation_takes_all_cases(data):
    images = binarized_mnist.BINARIZED_MNIST.load(data)
    config = Config(glimpses=2, hidden=8, latent=4, batch_size=190, decay=0.25)
    task = experiment.draw_task(config, images, distributed.accelerator("cpu", "float32"))
    assert task.decay == 0.25
    torch.manual_seed(5)
    with torch.no_grad():
        loss = float(task.mean_loss(task.model, 0))  # one batch holds every case, in an order of its own
        torch.manual_seed(5)
        noise = torch.randn(2, 190, 4)
        order = torch.randperm(190, generator=torch.Generator().manual_seed(derive_seed(0, 2, 0)))
        parts = task.model(images.train[order].float(), noise)
        metrics, again = task.evaluate(task.model), task.evaluate(task.model)
        generator = torch.Generator().manual_seed(derive_seed(0, EVALUATION))
        whole = task.model(images.test.float(), torch.randn(2, 30, 4, generator=generator))
    assert loss == pytest.approx(float((parts.kl + parts.reconstruction).mean()), rel=1e-6)
    assert metrics == again, "the same noise in every evaluation"
    assert metrics["test_bound"] == pytest.approx(float((whole.kl + whole.reconstruction).mean()), rel=1e-6)
    assert metrics["test_kl"] == pytest.approx(float(whole.kl.mean()), rel=1e-6)
    with torch.no_grad():
        noise = torch.randn(2, len(images.valid), 4, generator=generator.manual_seed(derive_seed(0, EVALUATION)))
        valid = task.model(images.valid.float(), noise)
    assert metrics["valid_bound"] == pytest.approx(float((valid.kl + valid.reconstruction).mean()), rel=1e-6)
    assert math.isclose(metrics["test_kl"] + metrics["test_reconstruction"], metrics["test_bound"])


def test_gradients_are_cut_to_the_norm(data):
    images = binarized_mnist.BINARIZED_MNIST.load(data)
    config = Config(glimpses=2, hidden=8, clip=0.5, batch_size=20)
    task = experiment.draw_task(config, images, distributed.accelerator("cpu", "float32"))
    task.mean_loss(task.model, 0).backward()
    task.before_step(task.model)
    norm = torch.cat([p.grad.flatten() for p in task.model.parameters()]).norm().item()
    assert norm == pytest.approx(0.5, rel=1e-4)


def test_samples_are_whole_files(finished, tmp_path, capsys):
    out = tmp_path / "samples"
    command = ["sample", "draw", str(finished / "draw-layer-s0"), "--count", "12", "--out", str(out)]
    assert cli.main(command) == 0
    assert capsys.readouterr().out.splitlines() == [f"wrote {out}/canvas.gif", f"wrote {out}/digits.png"]
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    with Image.open(io.BytesIO(first["digits.png"])) as sheet:
        assert sheet.size == (10 * 86 + 2, 2 * 86 + 2)
        sheet.load()
    with Image.open(io.BytesIO(first["canvas.gif"])) as movie:
        assert movie.n_frames == 3  # two glimpses, and the digits without the window
        assert movie.size == (5 * 86 + 2, 3 * 86 + 2)
        for frame in range(movie.n_frames):
            movie.seek(frame)
            movie.load()
    assert cli.main(command) == 0
    assert first == {path.name: path.read_bytes() for path in out.iterdir()}, "one seed, one sheet"
    assert cli.main([*command, "--seed", "1"]) == 0
    assert first["digits.png"] != (out / "digits.png").read_bytes()


def test_what_cannot_be_sampled_is_one_line(finished, tmp_path, capsys):
    run = shutil.copytree(finished / "draw-layer-s0", tmp_path / "draw-layer-s0")
    refused(["sample", "draw", str(run), "--count", "0"], 2, "--count must be at least 1, got 0", capsys)
    assert cli.main(["sample", "draw", str(run), "--count", "1001"]) == 2
    assert "--count must be at most 1000, got 1001" in one_line(capsys)
    assert not list(tmp_path.rglob("*.png"))


def test_wrong_files_and_sizes_are_one_line(data, tmp_path, capsys):
    command = ["run", "draw", "--preset", "smoke", "--out", str(tmp_path / "out"), "--data"]
    refused(
        [*command, str(data), "--batch-size", "191"],
        2,
        "--batch-size must be at most 190, the number of training cases, got 191",
        capsys,
    )
    folder = shutil.copytree(data, tmp_path / "data")
    (folder / NAMES["test"]).write_bytes(b"0 1 0\n")
    refused(
        [*command, str(folder)], 1, "binarized_mnist_test.amat is damaged or no file of binary images: row 1", capsys
    )
    (folder / NAMES["test"]).unlink()
    refused([*command, str(folder)], 1, "lacks binarized_mnist_test.amat (plain or gzipped)", capsys)
    assert not (tmp_path / "out").exists()


def test_samples_need_a_network_that_fits(finished):
    run = folder.read_run(finished / "draw-layer-s0")
    run.config["hidden"] = 17
    with pytest.raises(RunError, match="does not fit this model"):
        samples.draw_digits(run, 2, 0)
    assert build_draw(Config(hidden=16)).posterior.out_features == 2 * 100
