"""`layernorm run skip-thoughts` and the commands that ask its encoder, from the command line on small files."""

import random
import shutil
import types

import numpy as np
import pytest
import torch

from lab_support.book_files import write_sentences, write_text
from lab_support.command import goes_on_and_ends_the_same, one_line, refused
from layernorm_lab import cli
from layernorm_lab.data import books
from layernorm_lab.errors import UsageError
from layernorm_lab.experiments.skip_thoughts import experiment, trained
from layernorm_lab.experiments.skip_thoughts.config import Config
from layernorm_lab.runs import folder

SMALL = ["--preset", "smoke", "--updates", "10", "--evaluate-every", "4", "--tasks-every", "2", "--threads", "1"]
"""Evaluations after updates 4, 8 and 10, the tasks after 8 and 10."""

RUN = "skip-thoughts-layer-lr0.002-s0"

TASKS = {"sick_pearson", "sick_spearman", "sick_mse", "sick_trial_pearson", "mr", "cr", "subj", "mpqa"}


@pytest.fixture(autouse=True, scope="module")
def _no_expansion():
    """Half of the words are outside the vocabulary of 30: their embeddings are 0."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment.Encoder, "_expansion", lambda self, words: torch.zeros(len(words), 6))
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("data") / "text")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data):
    out = tmp_path_factory.mktemp("finished")
    command = ["run", "skip-thoughts", *SMALL, "--data", str(data), "--out", str(out)]
    assert cli.main([*command, "--norm", "none", "layer"]) == 0
    return out


def test_a_run_is_evaluated_as_it_trains_and_tested_at_the_end(finished):
    for path in sorted(finished.glob("skip-*")):
        run = folder.read_run(path)
        assert [record["update"] for record in run.records] == [4, 8, 10]
        assert [record.keys() >= TASKS for record in run.records] == [False, True, True]
        assert not TASKS & run.records[0].keys()
        assert run.records[0]["first_gradient_norm"] > 0
        for name in TASKS:
            assert run.result[f"trained_{name}"] == run.records[-1][name]
            assert {f"{row}_{name}" for row in experiment.ROWS} <= run.result.keys()
        assert run.result["test_nll"] > 0
        tensors = run.tested()
        assert float(tensors["sick"].mean()) == pytest.approx(run.result["trained_sick_mse"], rel=1e-5)
        assert {name: 100 * float(tensors[name].double().mean()) for name in ("mr", "mpqa")} == pytest.approx(
            {name: run.result[f"trained_{name}"] for name in ("mr", "mpqa")}
        )


def test_an_interrupted_run_goes_on_and_ends_the_same(finished, data, tmp_path):
    command = ["run", "skip-thoughts", *SMALL, "--norm", "layer", "--data", str(data), "--out", str(tmp_path)]
    goes_on_and_ends_the_same(command, experiment, "held_out", 2, [0, 4], tmp_path / RUN, finished / RUN)


def test_without_its_tasks_a_run_records_the_books_alone(finished, data, tmp_path, monkeypatch):
    """It trains as the run with them does, and the tasks are not computed at all."""
    monkeypatch.setattr(experiment, "scores", lambda *_: pytest.fail("the tasks were computed"))
    command = ["run", "skip-thoughts", *SMALL, "--tasks-every", "0", "--data", str(data), "--out", str(tmp_path)]
    assert cli.main([*command, "--norm", "none", "layer"]) == 0
    for norm in ("none", "layer"):
        run, whole = (folder.read_run(place / f"skip-thoughts-{norm}-lr0.002-s0") for place in (tmp_path, finished))
        assert [record.keys() for record in run.records] == [record.keys() - TASKS for record in whole.records]
        assert [record["valid_nll"] for record in run.records] == [record["valid_nll"] for record in whole.records]
        assert run.result["test_nll"] == whole.result["test_nll"]
        of_tasks = TASKS | {f"{row}_{name}" for row in experiment.ROWS for name in TASKS}
        assert run.result.keys() == whole.result.keys() - of_tasks
        assert not run.tested()
    text = (tmp_path / "report" / "report.md").read_text()
    assert "## Table 3" not in text
    assert {path.name for path in (tmp_path / "report").glob("*.png")} == {"nll.png"}


def test_batches_are_of_one_length_and_of_training_books_alone(data):
    config = Config(vocabulary=40, words=6, hidden=8, batch_size=8, updates=60, decay=0.25)
    found = experiment.load_text(data)
    seen = []

    class Recording(torch.nn.Module):
        def forward(self, sentence, following, before):
            seen.append((sentence, *following, *before))
            return torch.zeros(())

    accelerator = types.SimpleNamespace(device=torch.device("cpu"), process_index=0, num_processes=1)
    task = experiment.skip_thoughts_task(config, found, accelerator)
    assert task.decay == 0.25
    for update in range(task.updates_per_epoch):
        task.mean_loss(Recording(), update)
    rows = found.books.sentences(40)
    sentence = lambda number: rows.ids[rows.ends[number] : rows.ends[number + 1]].tolist()  # noqa: E731
    middle = found.books.triples("train").tolist()
    expected = sorted([sentence(number + step) for step in (0, 1, -1)] for number in middle)
    got = []
    for ids, after, after_lengths, before, before_lengths in seen:
        for column in range(ids.shape[1]):
            own = ids[:, column].tolist()
            assert own.index(0) == len(own) - 1, "no padding: the sentences of a batch are of one length"
            one, other = after[: after_lengths[column], column], before[: before_lengths[column], column]
            got.append([own, one.tolist(), other.tolist()])
    assert sorted(got) == expected
    train = {number for number, split in enumerate(found.books.split.tolist()) if split == 0}
    assert {int(found.books.book[number + step]) for number in middle for step in (-1, 0, 1)} <= train


def test_the_held_out_loss_is_that_of_its_triples(data):
    config = Config(vocabulary=40, words=6, hidden=8)
    found = experiment.load_text(data)
    model, rows = experiment.build_skip_thoughts(config, 40), found.books.sentences(40)
    middle = found.books.triples("valid")[:9]
    with torch.no_grad():
        alone = [float(model(*experiment.triple(rows, middle[k : k + 1], torch.device("cpu")))) for k in range(9)]
        words = sum(int(rows.lengths[number + step]) for number in middle.tolist() for step in (-1, 1))
        # other batches, other order of summation in float32
        assert experiment.held_out(model, rows, middle) == pytest.approx(sum(alone) / words, rel=1e-5)
    assert experiment.evenly_spread(torch.arange(10), 4).tolist() == [0, 3, 6, 9]
    assert experiment.evenly_spread(torch.arange(10), 11).tolist() == list(range(10))
    assert experiment.evenly_spread(torch.arange(10), 0).tolist() == list(range(10))


def test_encode_writes_the_vectors_of_a_files_sentences(finished, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("The old dog saw the cat.\n\ufeffA zebra!\nThe old dog saw the cat.\n")
    out = tmp_path / "vectors.npy"
    assert cli.main(["encode", str(finished / RUN), str(tmp_path / "text.txt"), "--out", str(out)]) == 0
    assert "3 sentences, 8 numbers each (update 10;" in capsys.readouterr().out
    vectors = np.load(out)
    assert vectors.dtype == np.float32
    assert vectors.shape == (3, 8)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)  # float32
    assert (vectors[0] == vectors[2]).all()
    encoder, _, _, _ = trained.trained_encoder(folder.read_run(finished / RUN), None)
    expected = encoder.last_states([books.tokens("The old dog saw the cat.")], False)
    np.testing.assert_allclose(vectors[0], expected[0].numpy(), rtol=1e-5, atol=1e-6)


def test_encode_does_not_write_over_its_sentences(finished, tmp_path, capsys):
    path = tmp_path / "text.txt"
    path.write_text("A dog.\n")
    assert cli.main(["encode", str(finished / RUN), str(path), "--out", str(path)]) == 2
    assert "is the file of sentences itself" in capsys.readouterr().err
    assert cli.main(["encode", str(finished / RUN), str(tmp_path / "none.txt"), "--out", str(path)]) == 1
    assert "none.txt" in capsys.readouterr().err
    assert path.read_text() == "A dog.\n"


def test_neighbours_prints_the_nearest_sentences_of_the_training_books(finished, capsys):
    run = folder.read_run(finished / RUN)
    encoder, _, found, _ = trained.trained_encoder(run, None)
    number = int(found.triples("train")[3])
    text = found.text(number)
    assert cli.main(["neighbours", str(finished / RUN), text.capitalize(), "--count", "2", "--among", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == text.capitalize()
    assert lines[1] == f"  1.000  {text}"
    assert max(map(len, lines)) <= 80
    texts = list(dict.fromkeys(found.text(k) for k in range(len(found.book)) if found.split[found.book[k]] == 0))
    near = encoder.last_states([t.split() for t in texts], False) @ encoder.last_states([text.split()], False)[0]
    second = near.topk(2)
    assert lines[2] == f"{float(second.values[1]):7.3f}  {texts[int(second.indices[1])]}"


def test_evaluate_prints_what_the_runs_test_found(finished, capsys):
    result = folder.read_run(finished / RUN).result
    for row in ("trained", "bag"):
        assert cli.main(["evaluate", str(finished / RUN), "--fast-eval", "--row", row]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"{row}, layer, update 10; C by 3 inner folds (--fast-eval)"
        assert lines[1].split() == ["SICK", "pearson", f"{result[f'{row}_sick_pearson']:.3f}"]
        assert lines[-1].split() == ["MPQA", f"{result[f'{row}_mpqa']:.1f}", "%"]
        assert len(lines) == 8


def test_wrong_questions_are_one_line(finished, data, tmp_path, capsys):
    run = str(finished / RUN)
    files = {"good": b"a dog\n", "empty": b"\n", "gap": b"a dog\n\na cat\n", "latin": "caf\u00e9".encode("latin-1")}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    place = {name: str(tmp_path / name) for name in files}
    for arguments, code, text in [
        (["encode", run], 2, "missing: FILE; expected: layernorm encode RUN FILE"),
        (["encode", run, place["good"], place["gap"]], 2, "give one file of sentences, got 2"),
        (["encode", run, place["empty"]], 1, "is empty: expected one sentence a line"),
        (["encode", run, place["gap"]], 1, "gap: line 2 has no word in it: ''"),
        (["encode", run, place["latin"]], 1, "is not UTF-8 text (byte 3)"),
        (["encode", run, str(tmp_path / "no")], 1, "cannot read"),
        (["encode", run, place["good"], "--out", str(tmp_path / "no" / "v.npy")], 1, "cannot write"),
        (["encode", str(tmp_path / "no"), place["good"]], 1, "is not a folder"),
        (["neighbours", run, "..."[:0] or " "], 1, "sentence 1 has no word in it: ' '"),
        (["neighbours", run, "a dog", "--count", "0"], 2, "--count must be at least 1, got 0"),
        (["evaluate", run, "--data", str(tmp_path)], 1, "there is no folder"),
    ]:
        refused(arguments, code, text, capsys)
    other = write_text(tmp_path / "other", seed=1)
    refused(["encode", run, place["good"], "--data", str(other)], 1, "the books in", capsys)
    shutil.copytree(data / "books", tmp_path / "mixed" / "books")
    shutil.copytree(other / "sick", tmp_path / "mixed" / "sick")
    shutil.copytree(data / "sentences", tmp_path / "mixed" / "sentences")
    refused(["evaluate", run, "--data", str(tmp_path / "mixed")], 1, "the sick in", capsys)


def test_sizes_that_do_not_fit_the_data_are_one_line(data, tmp_path, capsys):
    for option, value, text in [
        ("--batch-size", "100000", "training triples"),
        ("--vocabulary", "500", "words of the books"),
    ]:
        command = ["run", "skip-thoughts", *SMALL, "--data", str(data), "--out", str(tmp_path / "o"), option, value]
        assert cli.main(command) == 2
        said = one_line(capsys)
        assert f"{option} must be at most" in said
        assert text in said
    assert not (tmp_path / "o").exists()


def test_what_an_evaluation_asks_for_is_looked_at_before_training(data, tmp_path, capsys):
    few = tmp_path / "few"
    shutil.copytree(data, few)
    write_sentences(few / "sentences", random.Random(0), count=7)
    command = ["run", "skip-thoughts", *SMALL, "--data", str(few), "--out", str(tmp_path / "o")]
    assert cli.main(command) == 2
    assert "mr has 7 sentences of a class, the classification tasks need 10" in one_line(capsys)
    assert not (tmp_path / "o").exists()
    assert cli.main([*command, "--tasks-every", "0", "--norm", "layer", "--updates", "1"]) == 0
    capsys.readouterr()
    (run,) = (tmp_path / "o").glob("skip-thoughts-*")
    refused(["evaluate", str(run), "--data", str(few)], 2, "mr has 7 sentences of a class", capsys)
    facts = {"triples": {"train": 100, "valid": 9, "test": 0}}
    lacking = types.SimpleNamespace(facts=facts, books=types.SimpleNamespace(words=range(1000)))
    with pytest.raises(UsageError, match="the test split have no three sentences"):
        experiment.check_skip_thoughts(Config(batch_size=8, vocabulary=30), lacking)


def test_the_report_of_the_runs(finished, capsys):
    assert cli.main(["report", str(finished)]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines()[:-1])) <= 80  # the last is the page's path
    assert "\u2026" not in said, "a cell that does not fit"
    text = (finished / "report" / "report.md").read_text()
    for part in ("Learning rates: ", ".858", "[stand-in]", "hashed character n-grams"):
        assert part in text, part
    assert {path.name for path in (finished / "report").glob("*.png")} == {"figure3.png", "nll.png"}


@pytest.mark.parametrize("norm", ["none", "rms", "weight"])
def test_every_norm_learns(data, norm):
    config = Config(norm=norm, learning_rate=1e-2, vocabulary=40, words=6, hidden=8, batch_size=8, updates=60)
    accelerator = types.SimpleNamespace(device=torch.device("cpu"), process_index=0, num_processes=1)
    task = experiment.skip_thoughts_task(config, experiment.load_text(data), accelerator)
    rows, middle = (item := experiment.load_text(data).books).sentences(40), item.triples("valid")
    with torch.no_grad():
        before = experiment.held_out(task.model, rows, middle)
    for update in range(40):
        task.mean_loss(task.model, update).backward()
        task.before_step(task.model)
        # the whole gradient is cut to the norm 5; its elements are float32
        total = torch.nn.utils.get_total_norm([item.grad for item in task.model.parameters()])
        assert float(total) <= 5 * (1 + 1e-5)
        task.optimizer.step()
        task.optimizer.zero_grad()
    with torch.no_grad():
        assert experiment.held_out(task.model, rows, middle) < before - 0.3
