"""Runs as files: written without training, reported on, and read for what must not depend on interruptions."""

import dataclasses

from layernorm_lab import catalogue
from layernorm_lab.experiments.draw import config as draw_config
from layernorm_lab.experiments.draw import network as draw
from layernorm_lab.experiments.handwriting import config as handwriting_config
from layernorm_lab.experiments.handwriting import network as handwriting
from layernorm_lab.experiments.mnist.digits import Config as Digits
from layernorm_lab.report import rendering
from layernorm_lab.runs import checkpoint, folder
from layernorm_lab.runs import records as recorded
from layernorm_lab.runs.files import read_json, write_json


def write_run(path, experiment, config, facts, records, done=True, diverged=None):
    """A run's folder with these records.

    Args:
        path: of the folder.
        experiment: its name.
        config: the configuration as a dict.
        facts: of the data set.
        records: one dict an evaluation, without `seconds`.
        done: whether the run has reached its end.
        diverged: the update at which it was found to have diverged, which is an end, too.
    """
    path.mkdir(parents=True)
    write_json(path / folder.CONFIG, {"experiment": experiment, **config, "precision": "float32"})
    start = {"update": 0, "command": f"layernorm run {experiment}", "torch": "2.13.0", "processor": "A <fast> one"}
    write_json(path / folder.ENVIRONMENT, {"data": facts, "starts": [start]})
    for record in records:
        recorded.append_record(path / folder.RECORDS, {"seconds": 60.0, **record})
    if done or diverged:
        write_result(path, **({"diverged": diverged} if diverged else {}))


def write_result(path, **values):
    """The result of a run whose records are written, with these values beside those that every result has."""
    lines = recorded.read_records(path / folder.RECORDS)
    update = lines[-1]["update"] if lines else values.get("diverged", 0)
    write_json(path / folder.RESULT, {"update": update, "records": len(lines), "seconds": 60.0, **values})


def change(path, **values):
    """Other values in a JSON file of a run, as if it had been written with them."""
    write_json(path, {**read_json(path), **values})


def write_digits(
    place, norm, batch_size, seed, curve, epochs=None, diverged=None, first_gradient_norm=1.0, exact=None, **changes
):
    """A run of `digits` whose test error is `curve`, training NLL an eighth, validation error twice it; with exact
    statistics the test error alone is lower, by `exact`."""
    config = {**vars(Digits(norm=norm, batch_size=batch_size, seed=seed, epochs=epochs or len(curve))), **changes}
    records = [
        {
            "update": 10 * epoch, "epoch": float(epoch), "seconds_per_update": 0.001 * batch_size,
            "test_error": error, "train_nll": error / 8, "valid_error": 2 * error,
            **({"first_gradient_norm": first_gradient_norm} if epoch == 1 else {}),
            **({"exact_test_error": error - exact, "exact_valid_error": 2 * error, "exact_train_nll": error / 8}
               if exact else {}),
        }
        for epoch, error in enumerate(curve, 1)
    ]  # fmt: skip
    facts = {"name": "digits", "fingerprint": "abc", "original": False}
    path = place / f"digits-{norm}-b{batch_size}-s{seed}"
    write_run(path, "digits", config, facts, records, done=len(curve) == config["epochs"], diverged=diverged)


def write_sweep(place):
    """Finished runs of `digits`: three norms, two batch sizes, three seeds; 18 in all."""
    for size, drop in ((128, 0.0), (4, 0.01)):
        for seed in (0, 1, 2):
            up = 0.005 * seed
            write_digits(place, "none", size, seed, [0.30 + up, 0.20 + up, 0.12 + up, 0.10 + up])
            write_digits(place, "layer", size, seed, [0.20 + up, 0.08 + up, 0.06 + up, 0.07 + up])
            write_digits(place, "batch", size, seed, [0.25 + up, 0.14 + up, 0.11 + up, 0.09 + drop * 5 + up])
    return place


def report_of(*places):
    """The report on the runs in some folders."""
    runs = folder.find_runs(list(places)).runs
    experiment = catalogue.find_experiment(runs[0].experiment)
    return experiment.report(runs, experiment.claims)


def shown(report, capsys):
    """What a report says in Markdown; on the terminal it fits 80 columns, and no cell is cut."""
    rendering.print_report(report)
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert "…" not in said, "a cell that does not fit"
    return rendering.markdown(report)


def untimed(path):
    """A run's records without the times in them."""
    lines = recorded.read_records(path / folder.RECORDS)
    return [{k: v for k, v in line.items() if "seconds" not in k} for line in lines]


def outcome(path):
    """Everything of a run that must not depend on interruptions: its records and its last weights."""
    tensors, _ = checkpoint.load_checkpoint(path / folder.CHECKPOINT)
    return untimed(path), {name: tensor.tolist() for name, tensor in tensors.items()}


def write_start(path, experiment, config, build, facts):
    """A run's folder with a checkpoint before the first update.

    Args:
        path: of the folder.
        experiment: its name.
        config: the configuration, a dataclass.
        build: makes the network from it.
        facts: of the data set.
    """
    write_run(path, experiment, vars(config), facts, [], done=False)
    tensors = checkpoint.prefixed("model", build(config).state_dict())
    header = checkpoint.Header(checkpoint.State(), [], 1)
    checkpoint.save_checkpoint(path / folder.CHECKPOINT, tensors, dataclasses.asdict(header))
    return path


def write_drawing_runs(place):
    """Runs of small networks that write and draw, before their first update."""
    facts = {"name": "made up", "fingerprint": "abc", "original": False, "mean": [8.0, 0.0], "deviation": [40.0, 30.0]}
    writes = handwriting_config.Config(norm="layer", units=8, mixtures=2)
    draws = draw_config.Config(norm="layer", glimpses=3, hidden=8, latent=4)
    return [
        write_start(place / "handwriting-layer-s0", "handwriting", writes, handwriting.build_synthesis, facts),
        write_start(place / "draw-layer-s0", "draw", draws, draw.build_draw, facts),
    ]
