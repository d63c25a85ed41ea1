"""`layernorm run order-embeddings`, its report and `layernorm search`, from the command line on small files."""

import dataclasses
import io
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from lab_support.captioned_files import write_captioned
from lab_support.command import goes_on_and_ends_the_same, refused
from lab_support.runs import change
from layernorm_lab import cli
from layernorm_lab.data import order_embeddings
from layernorm_lab.errors import RunError
from layernorm_lab.experiments.order_embeddings import experiment
from layernorm_lab.experiments.order_embeddings import search as searching
from layernorm_lab.experiments.order_embeddings.config import Config
from layernorm_lab.runs import folder
from layernorm_lab.train import distributed

SMALL = ["--preset", "smoke", "--epochs", "6", "--batch-size", "16", "--evaluate-every", "5", "--threads", "1"]
"""60 images: 3 updates an epoch, evaluations after updates 5, 10, 15 and 18."""

RUN = "order-embeddings-order-layer-lr0.001-s0"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_captioned(tmp_path_factory.mktemp("data") / "captioned")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data):
    out = tmp_path_factory.mktemp("finished")
    command = ["run", "order-embeddings", *SMALL, "--data", str(data), "--out", str(out), "--fold", "4"]
    assert cli.main([*command, "--norm", "none", "layer", "--learning-rate", "1e-3", "1e-2"]) == 0
    return out


def test_a_run_keeps_the_best_model_and_tests_it(finished, data):
    for path in sorted(finished.glob("order-*")):
        run = folder.read_run(path)
        assert [record["update"] for record in run.records] == [5, 10, 15, 18]
        recall = [record["valid_image_recall"] for record in run.records]
        best = run.records[int(np.argmax(recall))]  # the first of equals
        assert run.result["kept_update"] == best["update"]
        for record in run.records:
            parts = [record[f"valid_image_r{count}"] for count in (1, 5, 10)]
            assert record["valid_image_recall"] == pytest.approx(sum(parts))
        # the kept weights are those that were evaluated then, and those that were tested
        model, held = searching.trained_embedding(run, data)
        with torch.no_grad():
            metrics = experiment.recalls(experiment.fold_ranks(model, held.val, 0, 1000, "order")[1], "valid_image")
            tested, tensors = experiment.folds(model, held.test, 4, "order")
        assert {name: best[name] for name in metrics} == metrics
        assert {name: run.result[name] for name in tested} == tested
        assert run.tested()["image_rank"].tolist() == tensors["image_rank"].tolist()
    assert any(folder.read_run(path).result["kept_update"] != 18 for path in finished.glob("order-*")), (
        "else nothing was shown"
    )


def test_an_interrupted_run_goes_on_and_ends_the_same(finished, data, tmp_path):
    command = ["run", "order-embeddings", *SMALL, "--norm", "layer", "--data", str(data), "--out", str(tmp_path)]
    command += ["--fold", "4"]
    goes_on_and_ends_the_same(command, experiment, "fold_ranks", 2, [0, 5], tmp_path / RUN, finished / RUN)


def test_the_report_of_a_sweep(finished, data, capsys):
    assert cli.main(["report", str(finished)]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines()[:-1])) <= 80  # the last is the page's path
    text = (finished / "report" / "report.md").read_text()
    for part in ("Learning rates: ", "48.5", "[stand-in]", "60 training images with 6"):
        assert part in text, part
    assert {path.name for path in (finished / "report").glob("*.png")} == {"figure1.png", "sensitivity.png"}


def test_search_prints_the_nearest_images(finished, data, capsys):
    path = finished / RUN
    capsys.readouterr()
    assert cli.main(["search", str(path), "A dog, runs", "zebra red", "--count", "3", "--captions", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "A dog, runs (not in the vocabulary: ,)"
    assert "zebra red (not in the vocabulary: zebra)" in lines
    # the images are those with the lowest penalties
    model, held = searching.trained_embedding(folder.read_run(path), None)
    words = [*held.vocabulary.ids(["a", "dog", ",", "runs"]), 0]
    with torch.no_grad():
        point = model.sentences(torch.tensor(words).unsqueeze(1), torch.tensor([5]))
        penalty = (point - model.images(held.test.features)).clamp(min=0).square().sum(1)
    nearest = [int(number) for line in lines[1:7] for number in re.findall(r"image (\d+),", line)]
    assert nearest == [number + 1 for number in penalty.argsort().tolist()[:3]]
    assert lines[2].strip() == held.test.captions[5 * (nearest[0] - 1)]


def test_search_shows_pictures(finished, data, tmp_path, capsys):
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number in range(10):
        Image.new("RGB", (30, 20), (25 * number, 0, 0)).save(pictures / f"{number}.png")
    command = ["search", str(finished / RUN), "a dog", "a cat", "--images", str(pictures)]
    command += ["--out", str(tmp_path / "sheet.png")]
    assert cli.main(command) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"wrote {tmp_path / 'sheet.png'}"
    with Image.open(io.BytesIO((tmp_path / "sheet.png").read_bytes())) as sheet:
        colours = {colour for _, colour in sheet.convert("RGB").getcolors(10**6)}
    model, held = searching.trained_embedding(folder.read_run(finished / RUN), None)
    shown = {image for item in searching.search(model, held, ["a dog", "a cat"], 5) for image in item.images}
    found = {number for number in range(1, 10) if (25 * number, 0, 0) in colours}
    assert found == shown - {0}  # black is also the colour of the letters
    (pictures / "9.png").write_bytes(b"no picture")
    (pictures / "10.png").write_bytes(b"nor this")
    refused(command, 1, "has 11 pictures (.jpg, .jpeg, .png); expected 10, one a test image", capsys)
    refused(["search", str(finished / RUN), "a dog", "--out", "here"], 2, "also give --images", capsys)


@pytest.mark.parametrize("sentence", ["a dog for $5_{$", "<b>a dog</b>", "a \x1b[31m dog\x07"])
def test_a_sheet_shows_a_sentence_as_it_is(sentence, tmp_path):
    Image.new("RGB", (30, 20)).save(tmp_path / "one.png")
    held = SimpleNamespace(test=SimpleNamespace(captions=[sentence] * 5))
    found = [searching.FoundImages(sentence, [], [0], [0.0])]
    with Image.open(io.BytesIO(searching._sheet(found, [tmp_path / "one.png"], held))) as sheet:
        assert sheet.width > 30  # drawn: as mathematics it would be an error


def test_wrong_searches_are_one_line(finished, data, tmp_path, capsys):
    run = shutil.copytree(finished / RUN, tmp_path / RUN)
    capsys.readouterr()
    for arguments, code, text in [
        ([str(run), "a dog", "--count", "0"], 2, "--count must be at least 1, got 0"),
        ([str(run), "a dog", "--captions", "6"], 2, "--captions must be at most 5, got 6"),
        ([str(run)], 2, "missing: SENTENCE; expected: layernorm search RUN SENTENCE"),
        ([str(run), " "], 1, "there is no word in the sentence ' '"),
        ([str(tmp_path / "no"), "a dog"], 1, "is not a folder"),
        ([str(run), "a dog", "--images", str(tmp_path / "no")], 1, "is not a folder; give the folder of the test"),
        ([str(run), "a dog", "--data", str(tmp_path)], 1, "lacks train.txt"),
    ]:
        refused(["search", *arguments], code, text, capsys)
    other = write_captioned(tmp_path / "other", seed=1)
    refused(["search", str(run), "a dog", "--data", str(other)], 1, "are not those of the run", capsys)
    change(run / "config.json", experiment="mnist")
    refused(["search", str(run), "a dog"], 1, "holds a run of mnist, not of order-embeddings", capsys)


@pytest.mark.parametrize("similarity", ["order", "cosine"])
@pytest.mark.parametrize("norm", ["weight", "batch", "rms"])
def test_every_norm_and_similarity_learns(data, norm, similarity):
    config = Config(similarity=similarity, norm=norm, learning_rate=1e-2, optimizer="adam", words=8, hidden=16)
    config = dataclasses.replace(config, batch_size=16, decay=0.25)
    task = experiment.order_embeddings_task(
        config, order_embeddings.ORDER_EMBEDDINGS.load(data), distributed.accelerator("cpu", "float32")
    )
    assert task.decay == 0.25
    losses = []
    for update in range(18):
        losses.append(task.mean_loss(task.model, update))
        losses[-1].backward()
        task.before_step(task.model)
        task.optimizer.step()
        task.optimizer.zero_grad()
    assert sum(losses[-3:]) < sum(losses[:3])
    with torch.no_grad():
        metrics = task.evaluate(task.model.eval())
    assert 0 <= metrics["valid_image_r1"] <= metrics["valid_image_r5"] <= metrics["valid_image_r10"] <= 100


def test_search_alone_says_what_is_missing(capsys):
    refused(["search"], 2, "missing: RUN, SENTENCE; expected: layernorm search RUN SENTENCE", capsys)


def test_a_batch_larger_than_the_training_set_is_one_line(data, tmp_path, capsys):
    command = ["run", "order-embeddings", *SMALL, "--data", str(data), "--out", str(tmp_path / "o")]
    command += ["--batch-size", "61"]
    refused(command, 2, "--batch-size must be at most 60, the number of training images, got 61", capsys)
    assert not (tmp_path / "o").exists()


def test_recurrent_batch_norm_is_refused_to_several_processes():
    two = SimpleNamespace(device=torch.device("cpu"), num_processes=2, process_index=0)
    with pytest.raises(RunError, match=r"--norm batch needs the whole batch in one process, .* got 2 processes"):
        experiment.order_embeddings_task(Config(norm="batch"), None, two)
