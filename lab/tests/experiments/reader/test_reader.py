"""`layernorm run reader` from the command line on small files: entities renamed, evaluation, resuming, the report."""

import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from lab_support.command import goes_on_and_ends_the_same, refused
from lab_support.question_files import write_books, write_questions
from layernorm_lab import cli
from layernorm_lab.data import cnn, questions
from layernorm_lab.data.questions import FIRST_ENTITY
from layernorm_lab.errors import RunError
from layernorm_lab.experiments.reader import experiment, page
from layernorm_lab.experiments.reader.config import Config
from layernorm_lab.experiments.reader.network import build_reader
from layernorm_lab.runs import folder
from layernorm_lab.runs.restore import configuration, restore_model
from layernorm_lab.train import distributed

SMALL = ["--preset", "smoke", "--updates", "6", "--evaluate-every", "2", "--threads", "1"]

RUN = "reader-layer-g1.0-lr0.001-s0"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_questions(tmp_path_factory.mktemp("data") / "questions")


@pytest.fixture
def data(place):
    return questions.CORPORA["books-cloze"].load(place)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, place):
    out = tmp_path_factory.mktemp("finished")
    assert cli.main(["run", "reader", *SMALL, "--data", str(place), "--out", str(out)]) == 0
    return out


def config(**changes):
    return Config(**{"words": 6, "hidden": 6, "batch_size": 4, "learning_rate": 1e-2, "evaluate_every": 5, **changes})


def task_of(data, **changes):
    torch.manual_seed(0)
    return experiment.reader_task(config(**changes), data, distributed.accelerator("cpu", "float32"))


def test_every_variant_is_run_once_in_one_command(finished):
    names = sorted(path.name for path in finished.glob("reader-*"))
    assert names == sorted(
        f"reader-{variant}-lr0.001-s0"
        for variant in ("none-g1.0", "layer-g1.0", "layer-g0.1", "batch-g0.1", "batch-everywhere-g0.1")
    )
    for name in names:
        run = folder.read_run(finished / name)
        assert [record["update"] for record in run.records] == [2, 4, 6]
        errors = [record["valid_error"] for record in run.records]
        assert run.result["kept_update"] == run.records[int(np.argmin(errors))]["update"]  # the first of equals
        assert run.records[0]["first_gradient_norm"] > 0
        for record in run.records:
            assert record["valid_accuracy"] == pytest.approx(1 - record["valid_error"])
        assert len(run.tested()["right"]) == 9
        assert run.result["test_error"] == pytest.approx(1 - float(run.tested()["right"].double().mean()))


def test_entities_are_renamed_in_passage_question_and_answer_together(data):
    """The loss of an update is that of a batch renamed by hand; with one of the three left out it is another."""
    task = task_of(data, dropout=0.0, decay=0.25)
    assert task.decay == 0.25
    update = 3
    ids = experiment.renaming(0, update, data.entities, len(data.vocabulary))
    rows = experiment.Bucketed(data.train.passages.lengths, 4, 0).share(update)
    last = FIRST_ENTITY + data.entities
    assert sorted(ids[FIRST_ENTITY:last].tolist()) == list(range(FIRST_ENTITY, last))
    assert torch.equal(ids[last:], torch.arange(last, len(ids)))
    assert torch.equal(ids[:FIRST_ENTITY], torch.arange(FIRST_ENTITY))
    assert not torch.equal(ids, experiment.renaming(0, update + 1, data.entities, len(ids)))
    with torch.no_grad():  # weights that tell entities apart
        for parameter in task.model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    # questions that name an entity, so that leaving the question out shows
    named = experiment.Split(data.train.passages, data.train.passages, data.train.answers)

    def loss(split, left_out=()):
        passage, lengths, question, asked, answers = experiment.Batch.of(split, rows)
        parts = {"passage": passage, "question": question, "answers": answers}
        for name, part in parts.items():
            if name not in left_out:
                for place in range(part.numel()):
                    part.view(-1)[place] = ids[part.view(-1)[place]]
        logits, _ = task.model(passage, lengths, question, asked)
        return experiment.answer_loss(logits, answers).mean().item()

    # float32, one more mean
    assert task.mean_loss(task.model, update).item() == pytest.approx(loss(data.train), rel=1e-5)
    batch = experiment.Batch.of(named, rows, ids)
    found = experiment.answer_loss(task.model(*batch[:4])[0], batch.answers).mean().item()
    assert found == pytest.approx(loss(named), rel=1e-5)
    for part in ("passage", "question", "answers"):
        assert abs(loss(named, left_out=[part]) - found) > 1e-3, part


def test_the_prior_counts_answers_and_holds_entities_equal():
    answers = torch.tensor([FIRST_ENTITY, FIRST_ENTITY, FIRST_ENTITY + 1, 7])
    shares = experiment.answer_shares(answers, entities=3, vocabulary=9)
    # entities have 3 answers and 3 ones more, word 7 two counts, the other five of the 9 words one
    expected = torch.ones(9)
    expected[FIRST_ENTITY : FIRST_ENTITY + 3] = 2
    expected[7] = 2
    torch.testing.assert_close(shares, expected / 13)


def test_a_prior_starts_with_the_loss_of_a_guess_among_entities(data):
    with torch.no_grad():
        tasks = [task_of(data, prior=on) for on in (False, True)]
        without, prior = (float(task.mean_loss(task.model, 0)) for task in tasks)
    assert without == pytest.approx(np.log(len(data.vocabulary)), rel=0.05)
    share = experiment.answer_shares(data.train.answers, data.entities, len(data.vocabulary))[FIRST_ENTITY]
    assert prior == pytest.approx(-np.log(float(share)), rel=0.05)


def test_validation_names_no_entity_anew_and_reads_every_question_alone(data):
    task = task_of(data, evaluate_cases=7)
    model = task.model.eval()
    right = nll = 0.0
    with torch.no_grad():
        metrics = task.evaluate(model)
        for number in range(7):
            passage, question = (
                part.ids[part.ends[number] : part.ends[number + 1]].unsqueeze(1)
                for part in (data.valid.passages, data.valid.questions)
            )
            lengths = [torch.tensor([len(item)]) for item in (passage, question)]
            logits, _ = model(passage, lengths[0], question, lengths[1])
            nll += F.cross_entropy(logits.double(), data.valid.answers[number : number + 1]).item() / 7
            right += float(logits.argmax() == data.valid.answers[number]) / 7
    assert metrics["valid_accuracy"] == pytest.approx(right)
    assert metrics["valid_error"] == pytest.approx(1 - right)
    assert metrics["valid_nll"] == pytest.approx(nll, rel=1e-5)  # float32, other shapes


@pytest.mark.parametrize("norm", ["batch", "batch-everywhere"])
def test_batch_norm_is_evaluated_by_the_batch_or_by_the_population(data, norm):
    tasks = {kind: task_of(data, norm=norm, bn_eval=kind) for kind in ("batch", "population")}
    found = {}
    for kind, task in tasks.items():
        for update in range(3):
            task.mean_loss(task.model, update).backward()
            task.optimizer.step()
            task.optimizer.zero_grad()
        before = {name: value.clone() for name, value in task.model.state_dict().items()}
        model = task.model.eval()
        with torch.no_grad():
            found[kind] = task.evaluate(model)["valid_nll"]
            split, rows = data.valid, data.valid.passages.lengths.argsort(stable=True).tensor_split(3)
            nll = 0.0
            for part in rows:
                batch = experiment.Batch.of(split, part)
                for module in model.modules():  # by hand: the batch's statistics are those of training
                    module.train(
                        kind == "batch" and ("Norm" in type(module).__name__ or type(module).__name__ == "LSTM")
                    )
                logits, _ = model(*batch[:4])
                nll += F.cross_entropy(logits.double(), batch.answers, reduction="sum").item() / len(split)
            model.load_state_dict(before)
            assert found[kind] == pytest.approx(nll, rel=1e-5)
        model.eval()
        with torch.no_grad():
            task.evaluate(model)
        after = model.state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items()), "what is known of the population"
        assert not any(module.training for module in model.modules())
    assert found["batch"] != found["population"]


def test_an_interrupted_run_goes_on_and_ends_the_same(finished, place, tmp_path):
    command = ["run", "reader", *SMALL, "--norm", "layer", "--gain-init", "1.0", "--data", str(place)]
    command += ["--out", str(tmp_path)]
    goes_on_and_ends_the_same(command, experiment, "answer", 2, [0, 2], tmp_path / RUN, finished / RUN)


def test_the_page_holds_what_the_kept_network_says(finished, place, data):
    run = folder.read_run(finished / RUN)
    kept = configuration(Config, run)
    model, _ = restore_model(build_reader(kept, len(data.vocabulary), experiment.longest(data.train)), run)
    number = page.choose(data.valid)
    shown = json.loads(run.tested()["page"].numpy().tobytes())
    with torch.no_grad():
        part = next(part for part in experiment.answered(model, data.valid, kept) if number in part.rows)
    logits, attention = part.of(number)
    names = data.readable[number]["names"]
    assert shown["passage"] == [names.get(word, word) for word in data.readable[number]["passage"]]
    assert shown["attention"] == attention[: len(shown["passage"])].tolist()
    assert sum(shown["attention"]) == pytest.approx(1, rel=1e-5)  # float32
    best = logits.double().softmax(0).topk(3)
    words = ["(none)", "(none)", *data.vocabulary.words]
    assert [word for word, _ in shown["guesses"]] == [names.get(words[id], words[id]) for id in best.indices]
    assert [p for _, p in shown["guesses"]] == best.values.tolist()
    assert shown["answer"] == names[words[data.valid.answers[number]]]
    assert "@placeholder" in shown["question"]


def test_the_darkest_word_of_the_picture_has_most_attention():
    text = {"passage": ["one", "two", "."], "attention": [0.1, 0.7, 0.2], "question": ["@placeholder"]}
    content = page.draw_page({**text, "answer": "two", "guesses": [["two", 0.7], ["one", 0.2], ["that", 0.1]]})
    with Image.open(io.BytesIO(content)) as image:
        assert image.width == page.WIDTH
        colours = np.asarray(image.convert("RGB")).reshape(-1, 3)
    dark = (colours == page._SHADE).all(1).sum()
    shades = [tuple(round(255 + share * (b - 255)) for b in page._SHADE) for share in (1 / 7, 2 / 7)]
    assert dark > 100
    assert all((colours == shade).all(1).sum() > 20 for shade in shades)


def test_the_report_of_a_sweep(finished, capsys):
    capsys.readouterr()
    assert cli.main(["report", str(finished)]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines()[:-1])) <= 80  # the last is the page's path
    text = (finished / "report" / "report.md").read_text()
    for part in ("Learning rates: ", "50.3", "batch norm everywhere", "[stand-in]"):
        assert part in text, part
    assert {path.name for path in (finished / "report").glob("*.png")} == {
        "figure2.png", "question-none.png", "question-layer.png",
    }  # fmt: skip
    assert "question-layer" in text
    assert "data:image/png" in (finished / "report" / "index.html").read_text()


def test_from_books_to_a_run(tmp_path):
    books = write_books(tmp_path / "books")
    assert cli.main(["data", "prepare", "books-cloze", "--source", str(books)]) == 0
    command = ["run", "reader", *SMALL, "--norm", "none", "--updates", "2", "--out", str(tmp_path / "out")]
    assert cli.main(command) == 0
    run = folder.read_run(tmp_path / "out" / "reader-none-g1.0-lr0.001-s0")
    assert run.environment["data"]["questions"]["valid"] > 0
    assert set(run.environment["data"]["guesses"]) == set(cnn.RULES)


def test_wrong_options_are_one_line(place, tmp_path, capsys):
    command = ["run", "reader", *SMALL, "--data", str(place), "--out", str(tmp_path / "out")]
    for options, message in [
        (["--batch-size", "41"], "--batch-size must be at most 40, the number of training questions, got 41"),
        (["--evaluate-cases", "13"], "--evaluate-cases must be at most 12, the number of validation questions, got 13"),
        (["--vocabulary", "10"], "--vocabulary must be at least 11, to hold all entities, got 10"),
        (["--vocabulary", "99"], "--vocabulary must be at most"),
        (["--dropout", "1"], "--dropout must be less than 1, got 1.0"),
    ]:
        refused([*command, *options], 2, message, capsys)
    assert not (tmp_path / "out").exists()


def test_recurrent_batch_norm_is_refused_to_several_processes(data):
    two = SimpleNamespace(device=torch.device("cpu"), num_processes=2, process_index=0)
    with pytest.raises(RunError, match=r"--norm batch needs the whole batch in one process, .* got 2 processes"):
        experiment.reader_task(Config(norm="batch", batch_size=4), data, two)


def test_no_evaluation_under_batch_norm_is_of_one_question(data):
    """Of three questions in batches of two, one would be left, which has no variance."""
    config = Config(norm="batch", batch_size=2, hidden=8, words=8)
    one = SimpleNamespace(device=torch.device("cpu"), num_processes=1, process_index=0)
    model = experiment.reader_task(config, data, one).model
    split = data.valid.first(3)
    sizes = [len(part.rows) for part in experiment.answered(model.eval(), split, config)]
    assert sum(sizes) == 3
    assert min(sizes) > 1
    with pytest.raises(ValueError, match="needs two questions or more in each evaluation, got one"):
        experiment.check_reader(Config(norm="batch", batch_size=2, evaluate_cases=1), data)
    experiment.check_reader(Config(norm="batch", batch_size=2, evaluate_cases=1, bn_eval="population"), data)
