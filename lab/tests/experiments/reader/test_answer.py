"""`layernorm answer`: a trained reader on `.question` files that it has never seen."""

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from lab_support.command import refused
from lab_support.question_files import question_text, write_questions
from layernorm_lab import cli
from layernorm_lab.data import questions
from layernorm_lab.data.questions import FIRST_ENTITY
from layernorm_lab.experiments.reader import answer, page
from layernorm_lab.runs import folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_questions(tmp_path_factory.mktemp("data") / "questions")


def trained(place, out, *options):
    command = ["run", "reader", "--preset", "smoke", "--threads", "1", "--data", str(place), "--out", str(out)]
    assert cli.main([*command, *options]) == 0
    return next(out.glob("reader-*"))


@pytest.fixture(scope="module")
def run(tmp_path_factory, place):
    options = ["--updates", "4", "--evaluate-every", "2", "--norm", "layer", "--gain-init", "1.0"]
    return trained(place, tmp_path_factory.mktemp("runs"), *options)


@pytest.fixture
def foreign(tmp_path):
    """Three questions of another text: other numbers, an unknown word, the last with more entities than 8."""
    names = {f"@entity{number}": f"Name{number}" for number in range(30, 40)}
    many = "\n".join(f"{entity} has the clock ." for entity in names)
    texts = [
        question_text(
            "@entity31 has the zither .\n@entity30 has the boat .\n@entity31 has the hat .",
            "@placeholder has the boat ?",
            "@entity30",
            {key: names[key] for key in ("@entity30", "@entity31")},
        ),
        question_text(
            "@entity33 has the egg .\n@entity35 has the drum .",
            "@entity33 and @placeholder ?",
            "@entity35",
            {key: names[key] for key in ("@entity33", "@entity35")},
        ),
        question_text(many.replace("clock .\n", "clock "), "@placeholder has the clock ?", "@entity30", names),
    ]
    place = tmp_path / "foreign"
    place.mkdir()
    for number, text in enumerate(texts):
        (place / f"{number}.question").write_text(text)
    return place


def value(said, name):
    return float(next(line for line in said if line.strip().startswith(name)).split()[-1].removesuffix("%"))


def test_the_shares_are_those_of_one_question_at_a_time(run, place, foreign, capsys):
    assert cli.main(["answer", str(run), str(foreign), str(place / "test")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("11 questions")
    assert said[1] == "left out: 1, which have more than 8 entities"
    assert max(map(len, said)) <= 80
    model, _, data, _ = answer.trained_reader(folder.read_run(run), None)
    right, nll, found = [], [], []
    for path in [*sorted(foreign.iterdir())[:2], *sorted((place / "test").iterdir())]:
        item = questions.shortened(questions.read_question_file(path))
        order = list(dict.fromkeys(word for word in (*item.passage, *item.question) if word.startswith("@entity")))
        words = {entity: FIRST_ENTITY + number for number, entity in enumerate(order)}

        def ids(text, words=words):
            known = data.vocabulary.ids(text)
            return torch.tensor([words.get(word, id) for word, id in zip(text, known, strict=True)]).unsqueeze(1)

        passage, question = ids(item.passage), ids(item.question)
        with torch.no_grad():
            logits, _ = model(passage, torch.tensor([len(passage)]), question, torch.tensor([len(question)]))
        target = torch.tensor([words[item.answer]])
        right.append(float(logits.argmax() == target))
        nll.append(F.cross_entropy(logits.double(), target).item())
        found.append(item)
    count = len(right)
    assert count == 11
    assert value(said, "right") == pytest.approx(100 * sum(right) / count, abs=0.05)  # printed with one digit
    assert value(said, "negative") == pytest.approx(sum(nll) / count, abs=1e-3)  # printed with three
    for rule, share in questions.guessed(found).items():
        assert value(said, rule) == pytest.approx(100 * share, abs=0.05)
    assert value(said, "answer lost") == 0
    outside = [word in ("zither", "and") for item in found for word in (*item.passage, *item.question)]
    tests_own = [word == "test" for item in found for word in (*item.passage, *item.question)]
    assert value(said, "words not") == pytest.approx(100 * (sum(outside) + sum(tests_own)) / len(outside), abs=0.05)


def test_entities_are_numbered_as_they_come(foreign):
    first, second, _ = answer.read_shortened(foreign)
    found = answer.renamed(first)
    assert found.passage[0] == "@entity0"
    assert found.answer == "@entity1"
    assert found.names == {"@entity0": "Name31", "@entity1": "Name30"}
    found = answer.renamed(second)
    assert found.question == ["@entity0", "and", "@placeholder", "?"]
    assert found.answer == "@entity1"


def test_questions_are_shown_with_names_and_guesses(run, foreign, tmp_path, capsys):
    picture = tmp_path / "question.png"
    command = ["answer", str(run), str(foreign / "0.question"), str(foreign / "1.question")]
    assert cli.main([*command, "--show", "2", "--out", str(picture)]) == 0
    said = capsys.readouterr().out
    assert "Passage:  Name31 has the zither . Name30 has the boat . Name31 has the hat ." in said
    assert "Question: ____ has the boat ?" in said
    assert "Answer:   Name35" in said
    assert said.count("Network:") == 2
    with Image.open(picture) as image:
        assert image.width == page.WIDTH
    assert cli.main([*command, "--show", "0"]) == 0
    assert "Passage" not in capsys.readouterr().out


def test_what_cannot_be_answered_is_one_line(run, place, foreign, tmp_path, capsys):
    command = ["answer", str(run)]
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, code, message in [
        ([str(foreign / "2.question")], 1, "the network distinguishes at most 8 entities, and every question has more"),
        ([str(empty)], 1, f"{empty} has no .question file"),
        ([str(tmp_path / "none.question")], 1, "cannot read"),
        ([str(foreign), "--show", "0", "--out", "x.png"], 2, "--show must be at least 1 with --out, got 0"),
        ([], 2, "missing: PATH; expected: layernorm answer RUN PATH"),
    ]:
        refused([*command, *arguments], code, message, capsys)
    other = write_questions(tmp_path / "other", seed=1)
    refused([*command, str(foreign), "--data", str(other)], 1, "are not those of the run", capsys)


def test_batch_norm_needs_two_questions(place, foreign, tmp_path, capsys):
    one, two = str(foreign / "0.question"), str(foreign / "1.question")
    command = ["answer", str(trained(place, tmp_path / "runs", "--updates", "1", "--norm", "batch"))]
    refused([*command, one], 1, "statistics from the questions: give two that it can read, got one", capsys)
    assert cli.main([*command, one, two]) == 0
