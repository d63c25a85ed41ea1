"""What single tasks of `swaps` are made of: agents' worlds, series, sessions and drawings."""

import itertools
import random

import pytest
import torch

from layernorm_lab.experiments.swaps import experiment
from layernorm_lab.experiments.swaps.config import Config
from layernorm_lab.experiments.swaps.network import Maker
from layernorm_lab.experiments.swaps.tasks import catch, doors, drawings, loads, sessions, traffic
from layernorm_lab.train.batches import derive_seed


@pytest.fixture(scope="module", autouse=True)
def small_data():
    """Fewer sessions, drawings and days."""
    with pytest.MonkeyPatch.context() as patch:
        for task in (sessions, drawings):
            patch.setattr(task, "TRAIN", 300)
            patch.setattr(task, "TEST", 40)
        patch.setattr(drawings, "HELD_OUT", 40)
        patch.setattr(loads, "DAYS", 42)
        experiment.load_task.cache_clear()
        yield
    experiment.load_task.cache_clear()


class _Opener(torch.nn.Module):
    """Goes to the left until a door is there, then to the right, then back. It opens doors that are red, and blue ones
    after a red one, which it remembers, or all of them."""

    def __init__(self, remembers):
        super().__init__()
        self.remembers = remembers
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, seen, begins, state=None):
        left, right, red, blue = seen[0].bool().unbind(1)
        way, opened = torch.zeros(2, len(left), dtype=torch.int64) if state is None else state
        way = torch.where(left, 1, torch.where(right, 0, way))
        due = (red & (opened == 0)) | (blue & ((opened == 1) | (not self.remembers)))
        opened = opened | (red & due).long()
        action = torch.where(due, 2, way)
        return torch.nn.functional.one_hot(action, 3).float().log().clamp(min=-50)[None], None, (way, opened)


def test_the_doors_need_a_memory():
    assert doors.solved(_Opener(True), 0) == 1.0
    assert 0.4 < doors.solved(_Opener(False), 0) < 0.6  # a half, to four standard errors of 400 rooms
    end, last = doors.WIDE - 1, doors.LONGEST - 1
    rooms = torch.tensor([[end, 0, 1, 9], [end, 0, 0, 9], [0, 0, 0, 2], [0, 1, 0, 3], [2, 0, 1, last], [1, 1, 1, 5]])
    new = torch.tensor([[3, 1]] * 6)
    moved, rewards, ended = doors.moved(rooms, torch.tensor([2, 2, 2, 0, 1, 2]), new)
    again = [3, 1, 0, 0]
    assert moved.tolist() == [again, again, [0, 0, 1, 3], [0, 1, 0, 4], again, [1, 1, 1, 6]]
    assert rewards.tolist() == pytest.approx([1 - 0.9 * 10 / doors.LONGEST, 0, 0, 0, 0, 0])
    assert ended.tolist() == [True, True, False, False, True, False]
    assert torch.equal(doors.seen_of(rooms[:2]), doors.seen_of(rooms[:2] - torch.tensor([0, 0, 0, 1])))


@pytest.mark.parametrize(("odd", "first"), [(False, [*range(0, 128, 4)]), (True, [*range(2, 124, 4)])])
def test_windows_hold_each_step_once(odd, first):
    found = doors.windows(odd, torch.Generator().manual_seed(0)).T.tolist()
    assert sorted(found) == [[step, room] for step in first for room in range(doors.ROOMS)]
    assert found != sorted(found)


class _Catcher(torch.nn.Module):
    """Goes to where it saw the ball, which it remembers, or to where it sees one."""

    def __init__(self, remembers):
        super().__init__()
        self.remembers = remembers
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, seen, begins, state=None):
        balls, paddle = seen[0, :, : catch.WIDE], seen[0, :, catch.WIDE :].argmax(1)
        goal = torch.where(balls.sum(1) > 0, balls.argmax(1), state if self.remembers and state is not None else paddle)
        action = torch.where(goal > paddle, 2, torch.where(goal < paddle, 1, 0))
        return torch.nn.functional.one_hot(action, 3).float().log().clamp(min=-50)[None], None, goal


def test_the_ball_is_caught_from_memory():
    assert catch.caught(_Catcher(True), 0) == 1.0
    assert 0.34 < catch.caught(_Catcher(False), 0) < 0.52  # three columns of seven, to four standard errors of 500
    last = catch.HIGH - 1
    balls = torch.tensor([[0, 0, 3], [1, 6, 0], [2, 3, 6], [last, 3, 2], [last, 2, 3]])
    moved, rewards, ended = catch.moved(balls, torch.tensor([0, 1, 2, 2, 2]), torch.tensor([5] * 5))
    assert moved.tolist() == [[1, 0, 3], [2, 6, 0], [3, 3, 6], [0, 5, 3], [0, 5, 3]]
    assert rewards.tolist() == [0, 0, 0, 1, -1]
    assert ended.tolist() == [False, False, False, True, True]
    assert catch.seen_of(balls)[:, : catch.WIDE].sum(1).tolist() == [1, 0, 0, 0, 0]


class _Last(torch.nn.Module):
    """Forecasts the load of the hour before, which is the last one known."""

    def forward(self, x, customers, states=None):
        return x[..., 0], torch.ones_like(x[..., 0]), states


def test_the_next_day_is_forecast_from_its_own_means():
    """A forecast of the hour before stays at the last load that is known, of the hour before the day."""
    data = experiment.load_task("loads", None)
    parts = loads.build(data, Maker(Config("loads", "none")), 0, 1)
    days = loads.DAYS - 7
    for evaluate, first in ((parts.evaluate, days - 14), (parts.test, days - 7)):
        off, size = 0.0, 0.0
        for day in range(first, first + 7):
            window = data["loads"][24 * day : 24 * day + 192]
            window = window / (1 + window[:167].mean(0))
            off += float((window[168:] - window[167]).abs().sum())
            size += float(window[168:].sum())
        assert evaluate(_Last()) == pytest.approx(off / size, rel=1e-5)


def test_the_second_gru_reads_the_same_hour_of_each_day():
    class Network(torch.nn.Module):
        def forward(self, x):
            read.append(x)
            return x, torch.zeros(1, x.shape[1], traffic.UNITS if len(read) == 1 else traffic.SKIPPING)

    read = []
    model = traffic.Forecaster(lambda *sizes: Network()).eval()
    assert model(torch.rand(168, 2, traffic.ROADS)).shape == (2, traffic.ROADS)
    weeks, days = read
    assert (len(weeks), days.shape[:2]) == (163, (6, 24 * 2))
    for hour in range(24):
        for case in range(2):
            assert torch.equal(days[:, 2 * hour + case], weeks[19 + hour :: 24, case])


def test_sessions_stand_in_columns():
    data = experiment.load_task("sessions", None)
    found, wanted = [], random.Random(derive_seed(*b"sessions"))
    for items, right, begins in zip(*(data[name].T.tolist() for name in ("items", "next", "begins")), strict=True):
        starts = [place for place, begin in enumerate(begins) if begin]
        found += [[*items[start:end], right[end - 1]] for start, end in itertools.pairwise(starts)]
        assert all(begin or item == before for item, before, begin in zip(items[1:], right, begins[1:], strict=False))
    following = sessions.make_next(wanted)
    made = [sessions.session(wanted, following) for _ in range(sessions.TRAIN)]
    assert len(found) > sessions.TRAIN - 2 * sessions.BATCH  # the last ones of the columns may be cut off
    assert all(item in made for item in found)


def test_the_state_of_sessions_is_carried_on():
    """The second step from the first one's state, and from zeros."""
    parts = sessions.build(experiment.load_task("sessions", None), Maker(Config("sessions", "none")), 0, 1)
    with torch.no_grad():
        states = []
        for steps in ((0, 1), (1,)):
            parts.model.state.zero_()
            for step in steps:
                parts.loss(parts.model, step)
            states.append(parts.model.state.clone())
    alike = (states[0] == states[1]).all(2)
    assert 0 < alike.sum() < sessions.BATCH / 2  # sessions that begin with this step


def test_the_reciprocal_rank_counts_the_first_twenty():
    class Model(torch.nn.Module):
        """Scores the next number highest, then all others in their order."""

        def forward(self, items, begins):
            after = torch.nn.functional.one_hot((items + 1) % sessions.ITEMS, sessions.ITEMS)
            return after - torch.arange(sessions.ITEMS) / sessions.ITEMS / 2, None

    def rank(item, after):
        best = (item + 1) % sessions.ITEMS
        return 1 if after == best else after + 1 + (after < best)

    data = experiment.load_task("sessions", None)
    parts = sessions.build(data, Maker(Config("sessions", "none")), 0, 1)
    for evaluate, name in ((parts.evaluate, "held_out"), (parts.test, "test")):
        pairs = [pair for row in data[name].T.tolist() for pair in itertools.pairwise(row) if pair[1] >= 0]
        ranks = [rank(*pair) for pair in pairs]
        assert evaluate(Model()) == pytest.approx(sum(1 / k for k in ranks if k <= sessions.FIRST) / len(ranks))


def test_drawings_have_an_outline_and_marks():
    """As many strokes as the mark has and one, in a box with a longer side of 1. A mark is smaller than its outline."""
    data = experiment.load_task("drawings", None)
    ink, mark = data["ink"], data["classes"] % drawings.MARKS
    strokes = torch.tensor([1, 2, 3, 2])[mark]
    assert torch.equal((ink[:, :, 2] == 2).sum(0), strokes)
    assert torch.equal((ink[:, :, 2] == 1).sum(0), drawings.POINTS - strokes)
    assert (ink[0, :, 2] == 2).all()
    assert ((ink[:, :, :2].amax((0, 2)) - 1).abs() < 1e-3).all()
    assert (ink[:, :, :2].amin(0).abs() < 1e-3).all()
    parts = ink[:, mark > 0, :2].split([drawings.POINTS - 2 * drawings.MARK, 2 * drawings.MARK])
    outline, inner = ((part.amax(0) - part.amin(0)).amax(1) for part in parts)
    assert (inner < outline).all()
