"""The command line: exit codes, one clear line when something is wrong, and help that helps."""

import json
import os
import resource
import subprocess
import sys

import pytest

from layernorm import cli
from layernorm.experiments import experiment, files
from layernorm.experiments.environment import PACKAGES

QUICK = ["run", "digits", "--epochs", "2", "--hidden", "16", "--norm", "layer", "--batch-size", "128", "--seeds", "0"]
RUN = "digits-layer-b128-s0"


@pytest.fixture
def out(tmp_path):
    """A folder with one finished run."""
    assert cli.main([*QUICK, "--out", str(tmp_path)]) == 0
    return tmp_path


def one_line(capsys):
    """What was said on standard error: exactly one line."""
    text = capsys.readouterr().err
    assert text.count("\n") == 1, text
    assert text.startswith("layernorm: ")
    return text


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["rum"], "'run'"),
        (["run", "digit"], "'digits'"),
        (["run", "minst"], "'mnist'"),
        (["run", "digits", "--preset", "smok"], "'smoke'"),
        (["run", "digits", "--norm", "none", "lyer"], "'layer'"),
        (["run", "digits", "--norm=bach"], "'batch'"),
        (["run", "digits", "--device", "cud"], "'cuda'"),
        (["data", "prepare", "mnits"], "'mnist'"),
    ],
)
def test_unknown_names_suggest_the_nearest(arguments, nearest, capsys):
    assert cli.main(arguments) == 2
    assert f"did you mean {nearest}?" in one_line(capsys)


def test_unknown_options_suggest_the_nearest(capsys):
    assert cli.main(["run", "digits", "--epoch", "2"]) == 2
    assert "--epochs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nothing-like-it"], "there are: digits, mnist"),
        (["run", "--preset", "smoke"], "name comes before its options"),
        (["run", "digits", "--norm"], "--norm needs at least one value"),
        (["run", "digits", "--epochs", "0"], "epochs must be at least 1"),
        (["run", "digits", "--batch-size", "100000"], "batch_size must lie in 1..1200"),
    ],
)
def test_wrong_usage_exits_with_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("config.json"))


@pytest.mark.parametrize("arguments", [[], ["run"], ["report"], ["data"], ["run", "digits", "--epochs", "x"]])
def test_incomplete_commands_exit_with_2(arguments, capsys):
    assert cli.main(arguments) == 2
    assert "".join(capsys.readouterr()).strip()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["run", "--help"],
        ["run", "digits", "--help"],
        ["report", "--help"],
        ["data", "-h"],
        ["doctor", "-h"],
    ],
)
def test_help_exits_with_0(arguments, capsys):
    assert cli.main(arguments) == 0
    text = capsys.readouterr().out
    assert "usage: layernorm" in text
    if arguments[0] != "doctor":
        assert "examples:" in text.lower()
        assert "  layernorm " in text


def test_every_option_of_every_experiment_is_documented():
    for name in experiment.EXPERIMENTS:
        found = experiment.find(name)
        for preset in found.presets.values():
            assert all(field.metadata["doc"] for field in type(preset.config).__dataclass_fields__.values())
            assert set(preset.several) == {field.name for field in experiment.swept(type(preset.config))}


def test_a_run_ends_with_its_table_and_the_reports_path(tmp_path, capsys):
    out = tmp_path
    assert cli.main([*QUICK, "--out", str(out)]) == 0
    text = capsys.readouterr()
    assert "layer norm" in text.out
    assert text.out.splitlines()[-1] == f"report: {out}/report/index.html"
    assert f"[1/1] {RUN}: train NLL" in text.err
    assert (out / "report" / "index.html").exists()
    config = json.loads((out / RUN / "config.json").read_text())
    assert (config["experiment"], config["epochs"], config["norm"]) == ("digits", 2, "layer")
    environment = json.loads((out / RUN / "environment.json").read_text())
    assert len(environment["data"]["fingerprint"]) == 64
    assert environment["starts"][0]["torch"]
    assert len((out / RUN / "records.jsonl").read_text().splitlines()) == 2


def test_a_finished_command_only_prints_its_table_again(out, capsys):
    before = {path.name: path.stat().st_mtime_ns for path in (out / RUN).iterdir() if path.name != ".lock"}
    capsys.readouterr()
    assert cli.main([*QUICK, "--out", str(out)]) == 0
    text = capsys.readouterr()
    assert "done before" in text.err
    assert "layer norm" in text.out
    assert before == {path.name: path.stat().st_mtime_ns for path in (out / RUN).iterdir() if path.name != ".lock"}


def test_another_configuration_in_the_same_folder_is_refused(out, capsys):
    capsys.readouterr()
    assert cli.main([*QUICK, "--out", str(out), "--learning-rate", "0.01"]) == 1
    assert "learning_rate is 0.001 there, 0.01 here" in one_line(capsys)
    assert cli.main([*QUICK, "--out", str(out), "--learning-rate", "0.01", "--restart"]) == 0
    assert json.loads((out / RUN / "config.json").read_text())["learning_rate"] == 0.01


def test_other_data_in_the_same_folder_is_refused(out, capsys):
    (out / RUN / "result.json").unlink()
    path = out / RUN / "environment.json"
    environment = json.loads(path.read_text())
    environment["data"]["fingerprint"] = "another"
    path.write_text(json.dumps(environment))
    capsys.readouterr()
    assert cli.main([*QUICK, "--out", str(out)]) == 1
    assert "fingerprint is another there" in one_line(capsys)


def test_a_damaged_checkpoint_is_named_and_left_alone(out, capsys):
    (out / RUN / "result.json").unlink()
    path = out / RUN / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    capsys.readouterr()
    assert cli.main([*QUICK, "--out", str(out)]) == 1
    assert "checkpoint.safetensors is damaged" in one_line(capsys)
    assert len((out / RUN / "records.jsonl").read_text().splitlines()) == 2
    assert cli.main([*QUICK, "--out", str(out), "--restart"]) == 0


def test_a_folder_that_cannot_be_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main([*QUICK, "--out", str(tmp_path / "file")]) == 1
    assert "cannot create the folder" in one_line(capsys)


def test_a_second_process_is_refused(tmp_path, capsys):
    files.make_folder(tmp_path / RUN)
    with files.locked(tmp_path / RUN):
        assert cli.main([*QUICK, "--out", str(tmp_path)]) == 1
    assert "is in use by another process" in one_line(capsys)


def test_a_full_disk_fails_with_one_line_and_the_run_goes_on_later(tmp_path, capsys):
    command = [*QUICK, "--hidden", "64", "--out", str(tmp_path)]

    def limit():  # on the size of files: the system refuses the write half way; records fit, the checkpoint does not
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    run = [sys.executable, "-m", "layernorm", *command]
    done = subprocess.run(run, preexec_fn=limit, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / RUN).glob(".*.tmp"))
    assert cli.main(command) == 0
    assert len((tmp_path / RUN / "records.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("package", ["accelerate", "tyro", "matplotlib", "safetensors", "sklearn"])
def test_a_missing_package_says_what_to_install(package, tmp_path, monkeypatch, capsys):
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert cli.main([*QUICK, "--out", str(tmp_path)]) == 1
    text = capsys.readouterr().err
    assert text.splitlines()[-1].startswith("layernorm: the package")
    assert "pip install 'layernorm[experiments]'" in text


def test_missing_data_says_what_to_put_where(tmp_path, capsys):
    assert cli.main(["run", "mnist", "--preset", "smoke", "--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert "lacks train-images-idx3-ubyte.gz, " in one_line(capsys)
    assert not (tmp_path / "out").exists()


def test_an_unexpected_error_is_one_line_unless_asked(monkeypatch, capsys):
    def broken(parsed):
        raise KeyError("something")

    monkeypatch.setattr(cli, "_doctor", broken)
    assert cli.main(["doctor"]) == 1
    assert "unexpected KeyError" in one_line(capsys)
    with pytest.raises(KeyError):
        cli.main(["doctor", "--traceback"])


def test_doctor_tells_versions_backends_and_data(capsys, monkeypatch):
    monkeypatch.setattr("layernorm.experiments.environment.PACKAGES", (*PACKAGES, "not-installed"))
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    for word in ("python", "torch", "numpy", *PACKAGES, "threads", "CUDA", "reference", "digits", "mnist"):
        assert word in text
    assert "not-installed missing: pip install" in text
    assert "reference     available" in text


def test_data_list_and_embedded_data(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("LAYERNORM_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cli.main(["data", "list"]) == 0
    assert "not here: layernorm data prepare mnist" in capsys.readouterr().out
    assert cli.main(["data", "prepare", "digits"]) == 0
    assert "nothing to prepare" in capsys.readouterr().out


def test_reports_go_where_they_are_told(out, tmp_path_factory, capsys):
    place = tmp_path_factory.mktemp("elsewhere") / "here"
    assert cli.main(["report", str(out), "--out", str(place)]) == 0
    assert {path.name for path in place.iterdir()} == {"index.html", "report.md", "figure6.png", "figure6.svg"}
    capsys.readouterr()
    assert cli.main(["report", str(place)]) == 1
    assert "there are no runs" in one_line(capsys)
    assert cli.main(["report", str(place / "missing")]) == 1
    assert "is not a folder" in one_line(capsys)


def test_the_commands_modules_are_light():
    """Neither the library nor `layernorm --help` pays for the experiments' packages."""
    heavy = {"accelerate", "tyro", "rich", "matplotlib", "pooch", "safetensors", "sklearn"}
    code = (
        "import sys, layernorm; assert 'layernorm.experiments' not in sys.modules\n"
        f"import layernorm.cli; assert not {heavy} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_python_m_layernorm_is_the_command():
    done = subprocess.run([sys.executable, "-m", "layernorm", "--version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("layernorm ")


@pytest.mark.skipif("LAYERNORM_DATA" not in os.environ, reason="needs the real MNIST")
def test_mnist_itself(tmp_path, capsys):
    command = ["run", "mnist", "--preset", "smoke", "--norm", "layer", "--batch-size", "128", "--epochs", "5"]
    assert cli.main([*command, "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "mnist-layer-b128-s0" / "records.jsonl").read_text().splitlines()[-1])
    assert record["test_error"] < 0.15  # on 2,000 training cases
    assert json.loads((tmp_path / "mnist-layer-b128-s0" / "environment.json").read_text())["data"]["original"] is True
