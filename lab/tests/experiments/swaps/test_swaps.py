"""The tasks of `swaps` train in every arm, from the same weights, data and draws, and go on where they stopped."""

import copy
import random
import re
import string

import numpy as np
import pytest
import torch

import layernorm as ln
from lab_support.book_files import write_sentences, write_sick
from lab_support.mnist_files import write_mnist
from layernorm_lab import cli
from layernorm_lab.errors import RunError, UsageError
from layernorm_lab.experiments.swaps import cartpole, experiment
from layernorm_lab.experiments.swaps.claims import CHOICE, CHOOSING_TASKS, CONFIRMING_TASKS, family
from layernorm_lab.experiments.swaps.config import Config
from layernorm_lab.experiments.swaps.made import noise, rounded, uniform
from layernorm_lab.experiments.swaps.network import Maker
from layernorm_lab.experiments.swaps.programs import PROGRAMS
from layernorm_lab.experiments.swaps.tasks import (
    activity,
    authors,
    dates,
    drawings,
    emotions,
    irregular,
    keywords,
    loads,
    maze,
    melody,
    phones,
    pieces,
    pixels,
    punctuation,
    quotes,
    rows,
    sessions,
    tagger,
    traffic,
    translation,
    weather,
    windows,
)  # fmt: skip
from layernorm_lab.experiments.swaps.text import read_authors, read_middle
from layernorm_lab.runs.folder import find_runs
from layernorm_lab.train.batches import NOISE, derive_seed
from layernorm_lab.train.distributed import accelerator
from support.repository import ROOT
from support.turns import one_in

MADE = (dates, melody, keywords, activity, irregular, phones, emotions, drawings, sessions, pixels, rows)

ARMS = {
    "plain": {"norm": "none"},
    "paper": {"formula": "paper"},
    "matched": {"formula": "cell", "start": "match"},
    "rms": {"norm": "rms", "formula": "paper", "start": "0.3", "forget_bias": "1"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small book with names, sentences of two classes, and images."""
    place, chance = tmp_path_factory.mktemp("data"), random.Random(0)

    def word():
        return "".join(chance.choices(string.ascii_lowercase, k=chance.randint(4, 8)))

    words, names = [word() for _ in range(150)], [word().title() for _ in range(100)]
    lines = []
    for _ in range(400):
        sentence = [chance.choice(names) if chance.random() < 0.2 else chance.choice(words) for _ in range(9)]
        lines.append(f"The {' '.join(sentence)}.")
    (place / "books").mkdir()
    (place / "books" / "A_Brown.txt").write_text("\n".join(lines))
    spoken = [f'"{" ".join(chance.choices(words, k=5))}," said {chance.choice(names)}.' for _ in range(200)]
    (place / "books" / "B_White.txt").write_text("\n".join(spoken))
    for name in ("sentences", "sick"):
        (place / name).mkdir()
    write_sentences(place / "sentences", random.Random(1), count=60)
    write_sick(place / "sick", np.random.default_rng(2))
    write_mnist(place / "mnist", train=340, test=40)
    return place


@pytest.fixture(scope="module", autouse=True)
def small_data():
    """Fewer cases in the tasks that confirm."""
    with pytest.MonkeyPatch.context() as patch:
        for task in MADE:
            patch.setattr(task, "TRAIN", 300)
            patch.setattr(task, "TEST", 40)
        for task in (drawings, pixels, rows):
            patch.setattr(task, "HELD_OUT", 40)
        patch.setattr(weather, "HOURS", 180)
        patch.setattr(traffic, "HOURS", 400)
        patch.setattr(loads, "DAYS", 42)
        experiment.load_task.cache_clear()
        yield
    experiment.load_task.cache_clear()


def made(folder, task, seed=0, updates=0, **options):
    """A task with an arm's model, ready to train."""
    config = Config(task=task, seed=seed, updates=updates, **options)
    return experiment.swaps_task(config, experiment.load_task(task, folder), accelerator("cpu", "float32"))


def train(task, first, last):
    """Makes some updates, as the loop makes them."""
    for update in range(first, last):
        task.model.train()
        task.mean_loss(task.model, update).backward()
        if task.before_step:
            task.before_step(task.model)
        task.optimizer.step()
        task.optimizer.zero_grad()


@pytest.mark.parametrize("name", one_in(3, zip(PROGRAMS, strict=True)))
def test_arms_start_from_the_same_weights_and_train(folder, name):
    tasks = {}
    state = torch.get_rng_state()
    for arm, options in ARMS.items():
        tasks[arm] = made(folder, name, updates=2, **options)
        assert torch.equal(torch.get_rng_state(), state)
    plain = dict(tasks["plain"].model.named_parameters())
    assert any("weight_hh" in key for key in plain)
    for arm, task in tasks.items():
        mine = {key: item for key, item in task.model.named_parameters() if not key.startswith("target")}
        for key in mine.keys() & plain.keys():
            if arm == "matched" or not ("bias_ih" in key or "bias_hh" in key):
                assert torch.equal(mine[key], plain[key]), key
        gains = {round(gain, 6) for key, item in mine.items() if "gain" in key for gain in item.tolist()}
        if arm == "matched":
            assert 0 < min(gains) <= max(gains) < 3
            assert 1.0 not in gains
        else:
            assert gains == {"plain": set(), "paper": {1.0}, "rms": {0.3}}[arm]
    others = dict(made(folder, name, seed=1, updates=2, norm="none").model.named_parameters())
    assert any(not torch.equal(others[key], value) for key, value in plain.items())
    torch.manual_seed(0)
    for task in tasks.values():
        train(task, 0, 2)
        task.model.eval()
        with torch.no_grad():
            values = task.evaluate(task.model)
        assert len(values) == 1 + bool(PROGRAMS[name].confirms)
        assert torch.isfinite(torch.tensor([*values.values()])).all()
        assert all(bool(item.isfinite().all()) for item in task.model.parameters())


@pytest.mark.parametrize(
    "name", ["words", "weight_drop", "characters", "ppo", "r2d2", "ptb", "maze", "doors", "catch", "sessions"]
)
def test_a_run_goes_on_where_it_stopped(folder, name):
    """Tasks whose batches are no function of the update alone. PPO is stopped within its use of a rollout."""
    stop, end = (21, 23) if name in ("ppo", "maze", "doors") else (3, 6)
    torch.manual_seed(derive_seed(0, NOISE))
    whole = made(folder, name, updates=end)
    train(whole, 0, stop)
    kept = copy.deepcopy((whole.model.state_dict(), whole.optimizer.state_dict(), torch.get_rng_state()))
    train(whole, stop, end)
    again = made(folder, name, updates=end)
    again.model.load_state_dict(kept[0])
    again.optimizer.load_state_dict(kept[1])
    torch.set_rng_state(kept[2])
    train(again, stop, end)
    for key, value in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[key], value), key


@pytest.mark.parametrize("name", ["adding", "endings", "sentences"])
def test_the_data_do_not_depend_on_what_was_drawn_before(folder, name):
    facts = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        experiment.load_task.cache_clear()
        facts.append(experiment.load_task(name, folder).facts)
    assert facts[0] == facts[1]


def test_options_without_a_meaning_have_one_value():
    assert Config("words", "none", "cell", "match") == Config("words", "none", "paper", "0.1")
    assert Config("translation", formula="cell") == Config("translation", formula="paper")
    assert Config("endings", forget_bias="1") == Config("endings")
    assert Config("words", formula="cell").formula == "cell"
    assert Config("words", "none", eps="1") == Config("words", "none")
    assert [Config(task, formula="sum").formula for task in ("words", "characters", "endings")] == ["sum"] * 3
    with pytest.raises(ValueError, match="--formula none is for --norm none, got --norm layer"):
        Config("words", formula="none")


def test_all_kinds_of_networks_have_tasks():
    kinds = [program.network for program in PROGRAMS.values()]
    assert (len(kinds) >= 10, kinds.count("GRU") >= 2, kinds.count("RNN") >= 1) == (True, True, True)


def test_eight_tasks_or_more_confirm_and_none_of_them_chose():
    assert (len(CHOOSING_TASKS), len(CONFIRMING_TASKS)) == (13, 11)
    assert [family(task) for task in CONFIRMING_TASKS].count("SGD") == 3
    assert {family(task) for task in ("tagger", "words", "endings")} == {"SGD"}
    assert {family(task) for task in ("adding", "speech", "irregular", "ppo")} == {"Adam"}


def test_eps_is_the_formulas_own_or_another():
    for eps, expected in (("own", 1e-5), ("0.1", 0.1), ("1", 1.0)):
        made_by_arm = Maker(Config("words", formula="sum", eps=eps))(3, 4)
        assert made_by_arm.recurrence.formula == ln.Formula(gates="sum", cell=None, eps=expected)


def line_of(item):
    """What a user types for a candidate."""
    words = [f'norm="{item.norm}"'] * (item.norm != "layer")
    words += [f'formula="{item.formula}"'] * (item.formula != "paper")
    words += [f"eps={item.eps}"] * (item.eps != "own")
    words += [f"gain_init={item.start}"] * (item.start not in ("1", "match"))
    words += ["match=(batch,)"] * (item.start == "match")
    return f"ln.convert({', '.join(['model', *words])})"


@pytest.mark.parametrize("item", CHOICE, ids=lambda item: item.name)
def test_the_line_that_a_user_types_makes_the_arm(item):
    """The network of the line beside the one of the runs, whose gains `match` sets on the same batch."""
    torch.manual_seed(0)
    model, batch = torch.nn.LSTM(3, 8), torch.randn(5, 4, 3)
    torch.manual_seed(0)
    ours = Maker(Config("words", item.norm, item.formula, item.start, item.forget_bias, item.eps))(3, 8)
    if item.start == "match":
        ln.match(ours, batch)
    typed = eval(line_of(item), {"ln": ln, "model": model, "batch": batch})
    assert typed.recurrence == ours.recurrence
    assert typed.state_dict().keys() == ours.state_dict().keys()
    for name, value in typed.state_dict().items():
        assert torch.equal(value, ours.state_dict()[name]), name


def test_the_page_has_the_rule_as_it_is():
    """The lines of the choice in their order, the tasks that confirm, and how many must be ahead."""
    page = (ROOT / "docs" / "results" / "swaps" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| `(ln\.convert[^`]+)` \|", page, re.MULTILINE)
    assert rows == [(item.name, line_of(item)) for item in CHOICE]
    table = page.split("| task | optimiser | program | data |")[1].split("\n\n")[0]
    assert re.findall(r"^\| (\w+)[,]", table, re.MULTILINE) == [*CONFIRMING_TASKS]
    of = [family(task) for task in CONFIRMING_TASKS]
    words = " ".join(page.split())
    assert f"on 4 of {of.count('Adam')} with Adam, on 2 of {of.count('SGD')} with SGD" in words


DIGESTS = {
    "dates": "f0e252951375",
    "melody": "ab1f345e8ed6",
    "keywords": "adeabd2f63eb",
    "activity": "415adad06c20",
    "irregular": "ad07cbd59872",
    "weather": "9712963cb156",
    "phones": "e111a9424eae",
    "emotions": "793e00403b59",
    "drawings": "43447a615383",
    "loads": "af302d8cfd31",
    "traffic": "20801ef6a039",
    "sessions": "f5e25d7dcfac",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_made_data_are_the_same_on_every_processor(name):
    """The digests are those of an AMD EPYC (Zen 4) and an Intel Xeon: integers are drawn, results are rounded."""
    experiment.load_task.cache_clear()
    assert experiment.load_task(name, None).facts["fingerprint"][:12] == DIGESTS[name]


def test_made_noise_is_nearly_normal():
    generator = torch.Generator().manual_seed(0)
    drawn = noise(generator, 100_000)
    assert abs(float(drawn.mean())) < 4 / 100_000**0.5  # four standard errors
    assert abs(float(drawn.var()) - 1) < 4 * (2 / 100_000) ** 0.5
    assert 2.5 < float((drawn**4).mean()) < 3.0  # a normal one has 3, the sum of twelve 2.9
    assert float(drawn.abs().max()) <= 6
    even = uniform(generator, 100_000, low=-1, high=3)
    assert (even >= -1).all()
    assert (even < 3).all()
    assert abs(float(even.mean()) - 1) < 4 * (16 / 12 / 100_000) ** 0.5
    values = torch.linspace(-3, 3, 101, dtype=torch.float64) + 1e-5
    assert torch.equal(rounded(values), rounded(values * (1 + 1e-15)))
    assert float((rounded(values).double() - values).abs().max()) <= 0.5 / 1024


def test_dates_are_written_in_four_forms():
    phrases = [" ".join(dates.phrase(21, 5, 6, 1969, form)) for form in range(4)]
    assert phrases[0] == "saturday , the twenty one of july one thousand nine hundred and sixty nine"
    assert phrases[2].startswith("in the year one thousand nine hundred and sixty nine , on saturday , twenty one july")
    assert all(word in dates.WORDS for text in phrases for word in text.split())
    assert len(set(dates.WORDS)) == len(dates.WORDS)


def test_melodies_are_eight_bars_of_events():
    found = [melody.melody(random.Random(seed)) for seed in range(50)]
    assert {len(events) for events in found} == {64}
    assert {event for events in found for event in events} <= set(range(melody.EVENTS))
    held = [events.count(melody.HOLD) / 64 for events in found]
    assert 0.3 < sum(held) / len(held) < 0.9


def test_what_stands_between_quotation_marks_is_tagged():
    words = ["Then", '"', "Come", ",", '"', "he", "said", ".", '"', "Now"]
    assert quotes.tag(words) == (["then", "come", ",", "he", "said", ".", "now"], [0, 1, 1, 0, 0, 0, 1])


def test_a_mark_tags_the_word_before_it():
    words = ["Come", ",", '"', "he", "said", ".", "--", "Mr.", "Ha", "!", ",", "do", "n't", "'"]
    assert punctuation.tag(words) == (["come", "he", "said", "mr.", "ha", "do", "n't"], [1, 0, 2, 0, 2, 0, 0])


def test_rare_words_are_cut_into_letters():
    assert pieces.pieces(["the", "cat", "a"], {"the"}) == ["the", "_c", "-a", "-t", "_a"]


def test_pieces_are_computed_in_bfloat16(folder):
    """The network under autocast, in training and in both evaluations; the loss in float32."""
    task = made(folder, "pieces", norm="none")
    seen = []
    task.model.lstm.register_forward_hook(lambda module, given, results: seen.append(results[0].dtype))
    loss = task.mean_loss(task.model, 0)
    with torch.no_grad():
        task.evaluate(task.model.eval())
    assert seen == [torch.bfloat16] * 3
    assert loss.dtype == torch.float32


def test_windows_of_one_part_have_no_character_of_another():
    train, valid, tested = windows.split(5000)
    for before, after in ((train, valid), (valid, tested)):
        gap = windows.STRIDE * int(after[0] - before[-1])
        assert windows.STEPS + 1 <= gap <= windows.STEPS + 1 + windows.STRIDE * (windows.SPREAD + 1)
    assert int(tested[-1]) < 5000
    assert {int(part.diff().unique()) for part in (valid, tested)} == {windows.SPREAD}


def test_passages_of_an_author_are_parted_by_their_order():
    words = [str(number) for number in range(authors.STEPS * 10 + 7)]
    train, valid, tested = authors.split(words, 10)
    assert train == [words[authors.STEPS * place :][: authors.STEPS] for place in range(8)]
    assert (valid, tested) == ([words[-407:-207]], [words[-207:-7]])


def test_the_authors_with_the_most_text_and_the_middle_book(tmp_path):
    (tmp_path / "books").mkdir()
    for name, text in (("A_Old", "one two"), ("B_New", "three four five. Six."), ("C_Old", "seven eight nine ten"),
                       ("D_Few", "eleven")):  # fmt: skip
        (tmp_path / "books" / f"{name}.txt").write_text(text)
    assert read_authors(tmp_path, 2) == [
        ["one", "two", "seven", "eight", "nine", "ten"],
        ["three", "four", "five", ".", "Six", "."],
    ]
    assert read_middle(tmp_path, 4) == [["seven", "eight", "nine", "ten"]]
    assert read_middle(tmp_path, 5)[1:] == [["eleven"]]


def test_differences_are_kaldis():
    """Of a line the slope and then nothing, away from the ends; of a parabola twice its factor."""
    line = torch.arange(10.0, dtype=torch.float64).view(1, 10, 1)
    assert torch.equal(phones.difference(3 * line)[0, 2:-2, 0], torch.full((6,), 3.0, dtype=torch.float64))
    twice = phones.difference(phones.difference(line**2))
    assert torch.equal(twice[0, 4:-4, 0], torch.full((2,), 2.0, dtype=torch.float64))


def test_phones_follow_each_other_as_they_may():
    drawn = phones.spoken(torch.Generator().manual_seed(0), 500)
    runs = [torch.unique_consecutive(row, return_counts=True) for row in drawn]
    followers = [set() for _ in range(phones.PHONES)]
    for found, _ in runs:
        for one, other in zip(found[:-1].tolist(), found[1:].tolist(), strict=True):
            followers[one].add(other)
    assert max(map(len, followers)) <= phones.FOLLOWERS
    lasting = torch.cat([counts[1:-1] for _, counts in runs])
    assert int(lasting.min()) == phones.SHORTEST
    assert int(lasting.max()) >= phones.LONGEST  # longer where a phone follows itself


class _Walker(torch.nn.Module):
    """Walks to the junction. There it turns to the side of the sign, which it remembers, or always to the left."""

    def __init__(self, remembers):
        super().__init__()
        self.remembers = remembers
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, seen, begins, state=None):
        state = seen[0, :, 0] if state is None else torch.where(begins[0], seen[0, :, 0], state)
        side = state if self.remembers else -torch.ones_like(state)
        action = torch.where(seen[0, :, 3] > 0, (side > 0).long() + 1, 0)
        return torch.nn.functional.one_hot(action, 3).float().log().clamp(min=-50)[None], None, state


def test_the_maze_needs_a_memory():
    assert maze.solved(_Walker(True), 0) == 1.0
    assert 0.35 < maze.solved(_Walker(False), 0) < 0.65  # a half, to four standard errors of 200 mazes
    mazes = torch.tensor([[maze.LONG, 1, 8], [maze.LONG, 1, 8], [3, -1, 3], [3, -1, 3], [2, 1, maze.LONGEST - 1]])
    moved, rewards, ended = maze.moved(mazes, torch.tensor([2, 1, 0, 1, 0]), -torch.ones(5, dtype=torch.int64))
    assert moved.tolist() == [[0, -1, 0], [0, -1, 0], [4, -1, 4], [3, -1, 4], [0, -1, 0]]
    assert rewards.tolist() == pytest.approx([1, -0.1, 0, -0.1, 0])
    assert ended.tolist() == [True, True, False, False, True]


def test_the_field_is_that_of_all_ways():
    """Against the sum over all 3^4 ways to tag a sentence; the best of them is Viterbi's."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(4, 2, 3, generator=generator)
    transitions = torch.randn(3, 3, generator=generator)
    lengths = torch.tensor([4, 2])
    tags = torch.randint(3, (4, 2), generator=generator)
    total = 0.0
    for row, length in enumerate(lengths.tolist()):
        ways = torch.cartesian_prod(*[torch.arange(3)] * length)
        sums = torch.stack([scores[place, row, ways[:, place]] for place in range(length)]).sum(0)
        sums += sum(transitions[ways[:, place], ways[:, place + 1]] for place in range(length - 1))
        best = ways[sums.argmax()]
        assert torch.equal(tagger.best_tags(scores, transitions, lengths)[:length, row], best)
        right = (ways == tags[:length, row]).all(1)
        total += float(sums.logsumexp(0) - sums[right][0])
    assert float(tagger.field_nll(scores, transitions, tags, lengths)) == pytest.approx(total, rel=1e-5)


def test_names_are_found_as_wholes():
    sentence = ["Then", "Mr.", "Harding", "saw", '"', "Oh", "and", "I", "and", "Tom"]
    assert tagger.tag(sentence) == [0, 1, 2, 0, 0, 0, 0, 0, 0, 1]
    tags = torch.tensor([[0, 1, 2, 0, 1], [1, 1, 0, 2, 2]]).T
    assert tagger.name_spans(tags, torch.tensor([4, 5])) == {(0, 1, 3), (1, 0, 1), (1, 1, 2), (1, 3, 5)}


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "zero"), (42, "forty two"), (115, "one hundred and fifteen"), (600_000, "six hundred thousand"),
     (642_009, "six hundred and forty two thousand and nine")],
)  # fmt: skip
def test_numbers_in_words(number, words):
    assert " ".join(translation.in_words(number)) == words


def test_poles_go_on_as_they_were_kept():
    one, other = cartpole.Poles(4, 1), cartpole.Poles(4, 2)
    for step in range(30):
        one.step(torch.full((4,), step % 3 // 2))
    one.keep()
    other.load_state_dict(one.state_dict())
    for poles in (one, other):
        poles.resume(3)
    for step in range(60):
        actions = torch.full((4,), step % 2)
        assert torch.equal(one.step(actions), other.step(actions))
        assert torch.equal(one.seen(), other.seen())


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    with pytest.raises(RunError, match=r"tasks on text need books, files \*.txt, in one of .*; the 99 English novels"):
        experiment.load_task("words", tmp_path)
    several = accelerator("cpu", "float32")
    monkeypatch.setattr(type(several), "num_processes", 2)
    with pytest.raises(UsageError, match="--jobs makes several runs"):
        experiment.swaps_task(Config(), experiment.load_task("adding", None), several)


def test_the_smoke_preset_needs_no_data(tmp_path, capsys):
    assert cli.main(["run", "swaps", "--preset", "smoke", "--task", "forecast", "--out", str(tmp_path)]) == 0
    runs = find_runs([tmp_path]).runs
    assert len(runs) == 3
    assert all(run.done and len(run.records) == 10 for run in runs)
    text = capsys.readouterr().out
    assert "forecast paper, matched" in text
    assert (tmp_path / "report" / "curves.png").exists()
