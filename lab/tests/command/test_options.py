"""Which runs a command asks for, in which order, and what their folders are called."""

import dataclasses
import itertools

import pytest

from layernorm_lab import catalogue
from layernorm_lab.cli.options import parse_run
from layernorm_lab.config import flag
from layernorm_lab.errors import UsageError


def names(name, *arguments):
    experiment = catalogue.find_experiment(name)
    request = parse_run(experiment, arguments)
    return [experiment.run_name(config, request.swept_options) for config in request.configs]


def test_all_norms_of_one_seed_come_before_the_next_and_all_seeds_before_the_next_batch_size():
    asked = ["--norm", "none", "layer", "--batch-size", "128", "4", "--seeds", "1", "0"]
    order = itertools.product((128, 4), (1, 0), ("none", "layer"))
    assert names("digits", *asked) == [f"digits-{norm}-b{size}-s{seed}" for size, seed, norm in order]


@pytest.mark.parametrize("name", ["draw", "handwriting"])
def test_without_batch_sizes_seeds_are_outermost(name):
    asked = ["--norm", "none", "layer", "--seeds", "0", "3", "--learning-rate", "0.001"]
    assert names(name, *asked) == [f"{name}-{norm}-s{seed}" for seed in (0, 3) for norm in ("none", "layer")]


@pytest.mark.parametrize("name", catalogue.EXPERIMENTS)
def test_every_experiment_has_the_same_presets(name):
    last = "trial" if name == "swaps" else "paper"
    assert list(catalogue.find_experiment(name).presets) == ["laptop", "smoke", last]


@pytest.mark.parametrize("name", catalogue.EXPERIMENTS)
def test_every_experiment_has_the_options_that_runs_are_compared_by(name):
    for preset in catalogue.find_experiment(name).presets.values():
        assert {"norm", "learning_rate", "seed"} <= vars(preset.config).keys()


@pytest.mark.parametrize("name", catalogue.EXPERIMENTS)
def test_no_two_runs_of_a_preset_share_a_folder(name):
    for preset in catalogue.find_experiment(name).presets:
        found = names(name, "--preset", preset)
        assert len(set(found)) == len(found) > 1


def test_names_tell_each_number_of_which_several_values_are_given():
    asked = ["--norm", "layer", "--seeds", "0", "--batch-size", "4", "--hidden", "8", "16"]
    assert names("digits", *asked) == ["digits-layer-b4-hidden8-s0", "digits-layer-b4-hidden16-s0"]
    assert names("digits", *asked, "--hidden", "8") == ["digits-layer-b4-s0"]
    rates = ["--norm", "layer", "--seeds", "0", "--learning-rate", "0.001", "0.1"]
    for name in ("draw", "handwriting"):
        assert names(name, *rates) == [f"{name}-layer-lr0.001-s0", f"{name}-layer-lr0.1-s0"]
    found = names("draw", *rates, "--deviation", "0.03", "0.1")
    assert found == [f"draw-layer-lr{rate}-deviation{wide}-s0" for rate in (0.001, 0.1) for wide in (0.03, 0.1)]


@pytest.mark.parametrize("name", catalogue.EXPERIMENTS)
def test_every_number_takes_several_values(name):
    experiment = catalogue.find_experiment(name)
    config = experiment.presets[list(experiment.presets)[-1]].config
    of_task = {"--task": "adding"} if name == "swaps" else {}  # some have a decay of their own
    single = [
        part for option, value in {"--norm": "layer", "--seeds": "0", **of_task}.items() for part in (option, value)
    ]
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if type(value) in (int, float):
            values = {value + 1, value + 2} if type(value) is int else {0.125, 0.25}
            asked = ["--preset", list(experiment.presets)[-1], *single, flag(item), *map(str, values)]
            request = parse_run(experiment, asked)
            found = {getattr(config, item.name) for config in request.configs}
            assert found == values, item.name
            paths = {experiment.run_name(config, request.swept_options) for config in request.configs}
            assert len(paths) == len(request.configs), item.name


def test_a_number_without_a_value_or_one_out_of_range_among_several_is_refused():
    digits = catalogue.find_experiment("digits")
    with pytest.raises(UsageError, match="--hidden needs at least one value"):
        parse_run(digits, ["--hidden"])
    with pytest.raises(UsageError, match="--learning-rate must be a finite number, greater than 0, got"):
        parse_run(digits, ["--learning-rate", "0.1", "0"])


def test_a_number_that_no_file_of_a_run_may_have_is_refused():
    with pytest.raises(
        UsageError, match=r"--seeds must be a finite number of at most 9.0072e\+15, got 9007199254740993"
    ):
        parse_run(catalogue.find_experiment("digits"), ["--seeds", str(2**53 + 1)])
    with pytest.raises(UsageError, match=r"--clip must be a finite number of at most 1e\+100, got 1e\+200"):
        parse_run(catalogue.find_experiment("draw"), ["--clip", "1e200"])


def test_a_decay_of_a_program_is_not_shortened():
    configs = parse_run(catalogue.find_experiment("swaps"), ["--task", "maze", "adding", "--decay", "0.1"]).configs
    assert {(config.task, config.decay) for config in configs} == {("maze", 0.0), ("adding", 0.1)}


def test_a_scheduler_may_have_more_cores(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    digits = catalogue.find_experiment("digits")
    with pytest.raises(UsageError, match="--threads must be at most 2, the CPU cores of this machine, got 3"):
        parse_run(digits, ["--threads", "3"])
    assert parse_run(digits, ["--threads", "3", "--on", "slurm"]).settings.threads == 3


@pytest.mark.parametrize("name", catalogue.EXPERIMENTS)
def test_every_experiment_has_a_decay_which_is_a_share(name):
    experiment = catalogue.find_experiment(name)
    config = experiment.presets[experiment.default_preset].config
    assert config.decay == (0.5 if name == "convnets" else 0.0)
    assert {item.decay for item in parse_run(experiment, ["--decay", "0", "1"]).configs} == {0.0, 1.0}
    for value, message in (("-0.1", "a finite number, at least 0, got -0.1"), ("1.1", "at most 1, got 1.1")):
        with pytest.raises(UsageError, match=f"--decay must be {message}"):
            parse_run(experiment, ["--decay", value])


def test_flags_and_choices_keep_one_value():
    reader = catalogue.find_experiment("reader")
    with pytest.raises(UsageError, match="--out must be a path, got ''"):  # an unset variable of a shell
        parse_run(reader, ["--out", ""])
    with pytest.raises(UsageError, match="unexpected 'torch'"):
        parse_run(reader, ["--initial", "source", "torch"])
    paper = ["--preset", "paper"]
    assert {config.prior for config in parse_run(reader, paper).configs} == {False}
    assert {config.prior for config in parse_run(reader, [*paper, "--prior"]).configs} == {True}
    assert {config.prior for config in parse_run(reader, []).configs} == {True}, "as the preset has it"
    assert {config.prior for config in parse_run(reader, ["--no-prior"]).configs} == {False}


@pytest.mark.parametrize("name", catalogue.EXPERIMENTS)
def test_without_options_a_preset_is_taken_as_it_is(name):
    """Whatever is not swept has the preset's value in every run."""
    experiment = catalogue.find_experiment(name)
    for preset_name, preset in experiment.presets.items():
        for config in parse_run(experiment, ["--preset", preset_name]).configs:
            same = {item.name for item in dataclasses.fields(config)} - set(preset.sweep)
            made = dataclasses.replace(preset.config, **{name: getattr(config, name) for name in preset.sweep})
            assert {name: getattr(config, name) for name in same} == {name: getattr(made, name) for name in same}


@pytest.mark.parametrize("name", catalogue.EXPERIMENTS)
def test_a_folder_of_data_is_an_option_where_there_is_one_to_give(name, capsys):
    with pytest.raises(SystemExit):
        parse_run(catalogue.find_experiment(name), ["--help"])
    shown = "--data" in capsys.readouterr().out
    assert shown is not catalogue.find_experiment(name).embedded


@pytest.mark.parametrize("arguments", [["--data", "here"], ["--data=here"]])
def test_a_folder_for_data_in_a_package_is_refused(arguments):
    with pytest.raises(UsageError, match="digits does not take --data: its data need no folder"):
        parse_run(catalogue.find_experiment("digits"), arguments)
    assert str(parse_run(catalogue.find_experiment("mnist"), arguments).settings.data) == "here"
    assert parse_run(catalogue.find_experiment("digits"), []).settings.data is None
