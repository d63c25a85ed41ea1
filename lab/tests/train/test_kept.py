"""The model that is kept, the test at the end, and the gradient's norm at the start, in runs broken off anywhere."""

import dataclasses
import json

import pytest
import torch

from lab_support.runs import outcome, untimed
from lab_support.toy import stopped, toy, train
from layernorm_lab.errors import Interrupted, RunError
from layernorm_lab.runs import checkpoint, folder
from layernorm_lab.runs.folder import RunFolder
from layernorm_lab.runs.restore import restore_model

SCORES = {8: 1.0, 16: 3.0, 24: 2.0, 32: 3.0, 37: 0.0}
"""The best evaluation is that of update 16; that of 32 is its equal."""


def scored(scores=SCORES, **changes):
    """A task with these values of the metric `score` by update, and the weights at each evaluation."""
    seen = {}

    def evaluate(model):
        update = int(model[1].num_batches_tracked)  # batch norm counts the updates
        seen[update] = weights(model)
        return {"score": scores[update]}

    return dataclasses.replace(toy(), evaluate=evaluate, **changes), seen


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test(model):
    """Metrics and a tensor that tell the weights; in training mode the dropout would change them."""
    output = model(torch.ones(3, 4))
    return {"final": output.sum().item()}, {"outputs": output, "weight": model[0].weight}


test.__test__ = False  # not one of pytest's


def kept(path):
    return checkpoint.under("kept", checkpoint.load_checkpoint(path / folder.CHECKPOINT)[0])


def ends_as_a_whole_run(place):
    """Goes on with the run `broken`, which then has the records, weights, result and test of an unbroken one."""
    for name in ("broken", "whole"):
        train(place / name, scored(keep="score", test=test)[0])
    assert outcome(place / "broken") == outcome(place / "whole")
    broken, whole = (folder.read_run(place / name) for name in ("broken", "whole"))
    assert {**broken.result, "seconds": 0} == {**whole.result, "seconds": 0}
    assert same(broken.tested(), whole.tested())


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        (SCORES, 16),
        ({8: 5.0, 16: 4.0, 24: 3.0, 32: 2.0, 37: 1.0}, 8),
        ({8: -5.0, 16: -4.0, 24: -3.0, 32: -2.0, 37: -1.0}, 37),
        ({8: 0.0, 16: 0.0, 24: 0.0, 32: 0.0, 37: 0.0}, 8),
    ],
)
def test_the_kept_model_is_that_of_the_best_evaluation_the_first_of_equals(tmp_path, scores, best):
    tested = []
    task, seen = scored(scores, keep="score", test=lambda model: tested.append(weights(model)) or ({}, {}))
    train(tmp_path / "run", task)
    assert list(seen) == [8, 16, 24, 32, 37]
    assert same(kept(tmp_path / "run"), seen[best])
    assert len(tested) == 1
    assert same(tested[0], seen[best])
    assert folder.read_run(tmp_path / "run").result["kept_update"] == best


def test_without_a_metric_to_keep_by_the_last_model_is_tested(tmp_path):
    tested = []
    task, seen = scored(test=lambda model: tested.append(weights(model)) or ({}, {}))
    train(tmp_path / "run", task)
    assert same(tested[0], seen[37])
    assert not kept(tmp_path / "run")
    assert "kept_update" not in folder.read_run(tmp_path / "run").result


def test_the_test_comes_in_evaluation_mode_and_its_finds_stay_with_the_run(tmp_path):
    task, _ = scored(keep="score", test=test)
    train(tmp_path / "run", task)
    run = folder.read_run(tmp_path / "run")
    model, update = restore_model(toy().model, run)
    assert update == 16
    expected, tensors = test(model)
    assert run.result["final"] == expected["final"]
    assert same(run.tested(), tensors)
    assert "final" not in run.records[-1]


def test_without_a_test_there_are_no_tensors(tmp_path):
    train(tmp_path / "run")
    assert folder.read_run(tmp_path / "run").tested() == {}
    assert not (tmp_path / "run" / folder.TEST).exists()


@pytest.mark.parametrize("stop", [1, 16, 20, 30])
def test_an_interrupted_run_keeps_and_tests_the_same(tmp_path, stop):
    stopped(tmp_path / "broken", stop, scored(keep="score", test=test)[0])
    assert not (tmp_path / "broken" / folder.TEST).exists()
    ends_as_a_whole_run(tmp_path)


def test_a_run_that_was_killed_in_its_test_is_tested_again(tmp_path):
    def killed(model):
        raise Interrupted

    with pytest.raises(Interrupted):
        train(tmp_path / "broken", scored(keep="score", test=killed)[0])
    assert not RunFolder(tmp_path / "broken").done
    ends_as_a_whole_run(tmp_path)


def test_beginning_again_forgets_what_the_test_found(tmp_path):
    train(tmp_path / "run", scored(test=test)[0])
    place = RunFolder(tmp_path / "run")
    assert (tmp_path / "run" / folder.TEST).exists()
    with place.open():
        place.clear()
    assert not (tmp_path / "run" / folder.TEST).exists()


def test_a_damaged_file_of_the_test_is_one_clear_error(tmp_path):
    train(tmp_path / "run", scored(test=test)[0])
    path = tmp_path / "run" / folder.TEST
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        RunError, match=r"test\.safetensors is damaged .* delete that run's folder and give its command again$"
    ):
        folder.read_run(tmp_path / "run").tested()


@pytest.mark.parametrize(("keep", "update"), [("score", 16), (None, 24)])
def test_restoring_gives_the_kept_weights_or_the_newest(tmp_path, keep, update):
    task, seen = scored(keep=keep)
    stopped(tmp_path / "run", 24, task)
    model, found = restore_model(toy().model, folder.read_run(tmp_path / "run"))
    assert found == update
    assert same(model.state_dict(), seen[update])
    assert not model.training


def slopes(model, update):
    """A loss whose gradient has the norm 5 at update 0, and 50 later."""
    return (3 * model[0].weight[0, 0] + 4 * model[4].bias.sum()) * (10 if update else 1), 1


def cut(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)


@pytest.mark.parametrize("stop", [None, 1, 20])
def test_records_have_the_gradients_norm_before_clipping(tmp_path, stop):
    def task():
        return toy(evaluate_every=15, loss=slopes, before_step=cut)

    if stop is not None:
        stopped(tmp_path / "run", stop, task())
    train(tmp_path / "run", task())
    first, *others = untimed(tmp_path / "run")
    assert first["first_gradient_norm"] == 5.0  # of 3, 4 and zeros: exact in float32
    assert [record["gradient_norm"] for record in (first, *others)] == [50.0, 50.0, 50.0]  # of the update before each
    assert not any("first_gradient_norm" in record for record in others)
    assert "first_gradient_norm" not in json.loads((tmp_path / "run" / folder.RESULT).read_text())
