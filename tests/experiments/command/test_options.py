"""Which runs a command asks for, in which order, and what their folders are called."""

import itertools

import pytest

from layernorm.experiments import catalogue
from layernorm.experiments.command.options import parse
from layernorm.experiments.errors import UsageError


def names(name, *arguments):
    experiment = catalogue.find(name)
    return [experiment.run_name(config) for config in parse(experiment, arguments).configs]


def test_all_norms_of_one_seed_come_before_the_next_and_all_seeds_before_the_next_batch_size():
    asked = ["--norm", "none", "layer", "--batch-size", "128", "4", "--seeds", "1", "0"]
    order = itertools.product((128, 4), (1, 0), ("none", "layer"))
    assert names("digits", *asked) == [f"digits-{norm}-b{size}-s{seed}" for size, seed, norm in order]


@pytest.mark.parametrize("name", ["draw", "handwriting"])
def test_without_batch_sizes_seeds_are_outermost(name):
    asked = ["--norm", "none", "layer", "--seeds", "0", "3"]
    assert names(name, *asked) == [f"{name}-{norm}-s{seed}" for seed in (0, 3) for norm in ("none", "layer")]


@pytest.mark.parametrize("name", catalogue.EXPERIMENTS)
def test_no_two_runs_of_a_preset_share_a_folder(name):
    for preset in catalogue.find(name).presets:
        found = names(name, "--preset", preset)
        assert len(set(found)) == len(found) > 1


@pytest.mark.parametrize("name", catalogue.EXPERIMENTS)
def test_a_folder_of_data_is_an_option_where_there_is_one_to_give(name, capsys):
    with pytest.raises(SystemExit):
        parse(catalogue.find(name), ["--help"])
    shown = "--data" in capsys.readouterr().out
    assert shown is not catalogue.find(name).embedded


@pytest.mark.parametrize("arguments", [["--data", "here"], ["--data=here"]])
def test_a_folder_for_data_in_a_package_is_refused(arguments):
    with pytest.raises(UsageError, match="digits has its data from a package, there is no folder to give"):
        parse(catalogue.find("digits"), arguments)
    assert str(parse(catalogue.find("mnist"), arguments).settings.data) == "here"
    assert parse(catalogue.find("digits"), []).settings.data is None
