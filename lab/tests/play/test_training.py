"""The page of `layernorm play` that trains: fair to both sides, right by torch's own LSTM, stopped, started again."""

import asyncio
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lab_support.pages import simulated
from layernorm_lab.errors import RunError
from layernorm_lab.play import training
from layernorm_lab.play.training import Training, built
from layernorm_lab.play.worker import WORKER, Worker
from layernorm_lab.protocol import StoppedError
from layernorm_lab.train.batches import Shuffled


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(training, "SEEDS", (0, 1))
    monkeypatch.setattr(training, "UPDATES", 4)
    monkeypatch.setattr(training, "EVERY", 2)


def test_both_sides_start_from_the_same_weights_and_see_the_same_batches():
    for seed in (0, 1):
        plain, layer = (built(norm, seed) for norm in training.NORMS)
        others = dict(layer.model.named_parameters())
        for name, weight in plain.model.named_parameters():
            assert torch.equal(others.pop(name), weight)
        assert all("gain" in name or "norm" in name or "bias" in name for name in others), (
            "only the norm's own are left"
        )
        assert torch.equal(plain.example[0], layer.example[0])
    assert not torch.equal(built("none", 0).example[0], built("none", 1).example[0])


def test_the_curve_without_a_norm_is_that_of_torchs_lstm(monkeypatch):
    monkeypatch.setattr(training, "SEEDS", (0,))
    data = training.load_task("digits", None)
    parts = built("none", 0)
    lstm, scores = nn.LSTM(8, training.UNITS, num_layers=2, batch_first=True), nn.Linear(training.UNITS, 10)
    lstm.load_state_dict(parts.model.lstm.state_dict())
    scores.load_state_dict(parts.model.scores.state_dict())
    rows = Shuffled(1397, 100, 0)
    optimizer = torch.optim.Adam([*lstm.parameters(), *scores.parameters()], lr=0.01)
    errors = []
    for update in range(5):
        if update % 2 == 0:
            guesses = scores(lstm(data["images"][1397:])[0][:, -1]).argmax(1)
            errors.append((guesses != data["labels"][1397:]).double().mean().item())
        batch = rows.share(update)
        optimizer.zero_grad()
        F.cross_entropy(scores(lstm(data["images"][batch])[0][:, -1]), data["labels"][batch]).backward()
        optimizer.step()
    trained = Training(0.01)
    trained.run()
    assert trained.errors["none"] == [errors]
    assert trained.mean("none") == errors
    assert trained.end("none").mean == pytest.approx(sum(errors) / 3)


def test_the_mean_goes_as_far_as_all_seeds_have_come():
    trained = Training(0.01)
    trained.errors["layer"] = [[0.9, 0.5, 0.3], [0.7, 0.1]]
    assert trained.mean("layer") == pytest.approx([0.8, 0.3])
    trained.errors["layer"][1].append(0.2)
    assert trained.end("layer") == pytest.approx((2.7 / 6, 1 / 3, 1.7 / 3))


def test_a_training_ends_at_the_next_update_once_nobody_waits(monkeypatch):
    monkeypatch.setattr(training, "UPDATES", 10**6)
    worker, endless, running = Worker(), Training(0.01), threading.Event()
    monkeypatch.setattr(endless, "mean", None)
    job = worker.submit(lambda: (running.set(), endless.run()))
    assert running.wait(30)
    job.stop()
    with pytest.raises(StoppedError):
        job.future.result(30)
    assert worker.submit(lambda: "next").future.result(30) == "next"


def test_the_page_trains_again_and_again(monkeypatch):
    async def drive(user):
        from nicegui import ui

        user.find("Training").click()
        await user.should_see("Press train")
        (slider,) = (item for item in user.find(ui.slider).elements if item.props["aria-label"] == "learning rate")
        user.find(kind=ui.button, content="train").click()
        await user.should_see("At a learning rate of 0.0025: no norm", retries=100)
        await user.should_not_see("Best of")
        slider.value = "abc"  # what a browser may send: the first rate is shown
        await user.should_see("learning rate 0.0025")
        slider.value = 6
        await user.should_see("learning rate 0.01")
        user.find(kind=ui.button, content="train").click()
        await user.should_see("Best of 2 learning rates: no norm", retries=100)
        await user.should_see("update 4 of 4")
        slider.value = 4
        user.find(kind=ui.button, content="train").click()
        await user.should_see("At a learning rate of 0.0025: no norm", retries=100)  # again: the last one is shown
        await user.should_see("Best of 2 learning rates")
        slider.value = 6
        user.find(kind=ui.button, content="train").click()
        await user.should_see("At a learning rate of 0.01: no norm", retries=100)

        monkeypatch.setattr(training, "UPDATES", 10**6)  # one that does not end by itself
        user.find(kind=ui.button, content="train").click()
        user.find(kind=ui.button, content="train").click()
        await asyncio.sleep(0.3)
        await user.should_not_see("waits")  # the first has made room for the second
        user.find(kind=ui.button, content="stop").click()
        await user.should_see("At a learning rate of 0.01: no norm")

        def fails(norm, seed):
            raise RunError("the digits are gone")

        monkeypatch.setattr(training, "built", fails)
        user.find(kind=ui.button, content="train").click()
        await user.should_see("the digits are gone", retries=100)
        monkeypatch.undo()

    simulated([], drive)


def test_two_browsers_wait_for_each_other_and_a_closed_one_leaves(monkeypatch):
    monkeypatch.setattr(training, "UPDATES", 10**6)

    async def drive(user):
        from nicegui import ui

        user.find("Training").click()
        other, free = threading.Event(), WORKER.submit(lambda: other.wait(60))
        user.find(kind=ui.button, content="train").click()
        await user.should_see("waits for another page")
        other.set()
        assert free.future.result(30)
        await user.should_see(f" of {10**6}", retries=100)
        user.client.delete()
        assert await asyncio.wrap_future(WORKER.submit(lambda: "the next").future) == "the next"

    simulated([], drive)
