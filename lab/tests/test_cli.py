"""The command line: exit codes, one clear line when something is wrong, and help that helps."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab_support import processes
from lab_support.command import QUICK, RUN, one_line, refused
from layernorm_lab import catalogue, cli
from layernorm_lab.cli import commands, pages
from layernorm_lab.cli import run as run_command
from layernorm_lab.cli.options import parse_run
from layernorm_lab.config import swept
from layernorm_lab.data.mnist import MNIST
from layernorm_lab.runs import files
from layernorm_lab.runs.files import read_json, write_json


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    assert cli.main([*QUICK, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def out(finished, tmp_path):
    """A folder with one finished run, the test's own."""
    return shutil.copytree(finished, tmp_path / "out")


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
    refused(arguments, 2, f"did you mean {nearest}?", capsys)


STARTS = [[str(Path(sys.executable).with_name("layernorm"))], [sys.executable, "-m", "layernorm_lab"]]
"""Both ways to start the command."""


def with_torch(tmp_path, code):
    """An environment in which this code is run where torch is imported."""
    (tmp_path / "torch.py").write_text(code)
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0), (["--version"], 0), (["run", "--help"], 0), (["sample", "--help"], 0), (["data", "list"], 0),
        (["report", "--help"], 0), (["nosuch"], 2), (["run", "nosuch"], 2), (["report", "--nosuch"], 2),
    ],
)  # fmt: skip
def test_help_lists_and_wrong_words_do_without_torch(start, arguments, code, tmp_path):
    environment = with_torch(tmp_path, "raise SystemExit('torch was imported')")
    done = subprocess.run([*start, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert bool(done.stdout) is (code == 0)
    assert done.stderr.count("\n") == (1 if code else 0)


@pytest.mark.parametrize("start", STARTS)
def test_ctrl_c_while_torch_is_imported_is_one_line(start, tmp_path):
    environment = with_torch(tmp_path, "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    done = subprocess.run([*start, "doctor"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "layernorm: interrupted\n"
    program = subprocess.run(
        [sys.executable, "-c", "import layernorm"], env=environment, capture_output=True, text=True
    )
    assert "KeyboardInterrupt" in program.stderr, "a user's own program is left alone"


WRONG = {
    "nosuch": "unknown command 'nosuch'; there are: run, report, data, ",
    "--nosuch": "unknown option '--nosuch'; there are: --help, --version, --traceback",
    "run nosuch": "unknown experiment 'nosuch'; there are: digits, mnist, draw, handwriting",
    "run digits --epoch 2": "unknown option '--epoch'; did you mean '--epochs'?",
    "run digits --nosuch=2": "unknown option '--nosuch'; there are: --help, --preset, --norm, ",
    "run digits spare": "unexpected 'spare'; expected: layernorm run digits [OPTIONS]",
    "run digits --seeds x": "--seeds must be a whole number, got 'x'",
    "run digits --seeds 0 1.5": "--seeds must be a whole number, got '1.5'",
    "run digits --learning-rate 1e": "--learning-rate must be a number, got '1e'",
    "run handwriting --gain-init stead": "--gain-init must be a number or one of steady, got 'stead'",
    "run digits --learning-rate -1e-3": "--learning-rate must be a finite number, greater than 0, got -0.001",
    "run digits --jobs 0": "--jobs must be at least 1, got 0",
    "run digits --jobs": "--jobs needs one value",
    "run digits --preset": "--preset needs one value",
    "run digits --restart=1": "--restart takes no value, got '1'",
    "report": "missing: RUNS; expected: layernorm report RUNS ... [OPTIONS]",
    "report runs --nosuch": "unknown option '--nosuch'; there are: --help, --out, --summary",
    "data nosuch": "unknown action 'nosuch'; there are: list, prepare",
    "search RUN": "missing: SENTENCE; expected: layernorm search RUN SENTENCE ... [OPTIONS]",
    "sample draw": "missing: RUN; expected: layernorm sample draw RUN [OPTIONS]",
    "doctor now": "unexpected 'now'; expected: layernorm doctor [OPTIONS]",
}
"""Wrong words, and the one line that answers them: what was given, and what is expected."""


@pytest.mark.parametrize("words", WRONG)
def test_wrong_words_are_answered_in_one_line(words, capsys):
    refused(words.split(), 2, f"layernorm: {WRONG[words]}", capsys)
    assert not capsys.readouterr().out


PAGES = [
    [],
    *([name] for name in pages.SUMMARIES),
    ["data", "list"],
    ["data", "prepare"],
    *(["run", name] for name in catalogue.EXPERIMENTS),
    *(["sample", name] for name in ("draw", "handwriting")),
]
"""The words before every `--help`."""


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
@pytest.mark.parametrize("columns", ["80", "200"])
def test_every_help_page_looks_alike(words, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert cli.main([*words, "--help"]) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert lines[0].startswith(" ".join(["usage: layernorm", *words]))
    assert max(map(len, lines)) <= 80
    assert not told.err
    assert all(line == line.rstrip() for line in lines)
    examples = lines[lines.index("examples:") + 1 :] if "examples:" in lines else []
    assert len(examples) <= 6
    assert all(line.startswith("  layernorm ") for line in examples)
    assert bool(examples) is (words != ["data", "list"])
    told_options = re.split(r"\n  (?=--)", told.out)[1:]
    assert all(text.count("default") <= 1 for text in told_options if not text.startswith("--preset"))


def test_a_help_page_tells_choices_and_defaults_of_the_preset(capsys):
    assert cli.main(["run", "digits", "--preset", "smoke", "-h"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--norm NAME ... what is normalised:" in text
    assert "[one of none, layer, batch, batch-hidden; default: none layer batch]" in text
    assert "passes over the training set [default: 2]" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--preset", "smoke"], "name comes before its options"),
        (["run", "digits", "--epochs", "0"], "--epochs must be at least 1, got 0"),
        (
            ["run", "digits", "--batch-size", "128", "100000"],
            "--batch-size must be at most 1200, the number of training cases",
        ),
        (
            ["run", "digits", "--train-cases", "1201"],
            "--train-cases must be at most 1200, the number of training cases",
        ),
        (["run", "digits", "--held-out", "1397"], "--held-out must lie in 1..1396 for the data in scikit-learn"),
        (["run", "digits", "--threads", "-1"], "--threads must be at least 0, got -1"),
        (["run", "digits", "--threads", "1000000"], "the CPU cores of this machine, got 1000000"),
        (
            ["run", "digits", "--checkpoint-seconds", "-1"],
            "--checkpoint-seconds must be a finite number, at least 0, got -1",
        ),
        (
            ["run", "digits", "--checkpoint-seconds", "nan"],
            "--checkpoint-seconds must be a finite number, at least 0, got nan",
        ),
    ],
)
def test_wrong_usage_exits_with_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("config.json"))


@pytest.mark.parametrize("arguments", [[], ["run"], ["sample"], ["data"]])
def test_incomplete_commands_exit_with_2(arguments, capsys):
    assert cli.main(arguments) == 2
    assert "".join(capsys.readouterr()).strip()


def test_help_tells_the_data_sets_and_their_files(capsys):
    assert cli.main(["data", "prepare", "--help"]) == 0
    text = capsys.readouterr().out
    for word in ("digits", "nothing to prepare", *MNIST.files):
        assert word in text


def test_errors_are_wrapped_on_a_terminal_alone(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    command = ["run", "mnist", "--data", "a folder whose name is so long that the message does not fit in one line"]
    assert cli.main(command) == 1
    line = one_line(capsys)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.main(command) == 1
    text = capsys.readouterr().err
    assert max(map(len, text.splitlines())) <= 80 < len(line)
    assert " ".join(text.split()) == line.strip()


def test_every_option_of_every_experiment_is_documented():
    for name in catalogue.EXPERIMENTS:
        found = catalogue.find_experiment(name)
        for preset in found.presets.values():
            fields = type(preset.config).__dataclass_fields__.values()
            assert all(field.metadata["doc"] for field in fields)
            told = {field.name for field in fields if field.metadata["in_name"]}
            assert told <= set(preset.sweep) <= {field.name for field in swept(type(preset.config))}


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
    refused(
        [*QUICK, "--out", str(out), "--learning-rate", "0.01"], 1, "--learning-rate is 0.001 there, 0.01 here", capsys
    )
    assert cli.main([*QUICK, "--out", str(out), "--norm", "none", "layer", "--learning-rate", "0.01"]) == 1
    assert "holds another run" in one_line(capsys), "and the runs before it were not made"
    assert cli.main([*QUICK, "--out", str(out), "--learning-rate", "0.01", "--restart"]) == 0
    assert json.loads((out / RUN / "config.json").read_text())["learning_rate"] == 0.01


@pytest.mark.parametrize(
    ("options", "folder"),
    [
        ([], "digits"),
        (["--norm", "layer", "--seeds", "7", "--epochs", "30"], "digits"),
        (["--epochs", "1", "--seeds", "0"], "digits-epochs-1"),
        (["--preset", "smoke", "--learning-rate", "0.01"], "digits-smoke-learning-rate-0.01"),
        (["--hidden", "8", "--precision", "bfloat16"], "digits-hidden-8-bfloat16"),
        (["--hidden", "8", "--out", "elsewhere"], "elsewhere"),
        (["--hidden", "8", "16"], "digits"),
        (["--hidden", "8", "16", "--epochs", "3"], "digits-epochs-3"),
        (["--hidden", "8", "8"], "digits-hidden-8"),
    ],
)
def test_changed_values_have_folders_of_their_own(options, folder):
    """A first try with few epochs is not in the way of the whole experiment."""
    digits = catalogue.find_experiment("digits")
    assert run_command.out_folder(digits, parse_run(digits, options)).name == folder


def test_a_value_that_one_norm_fixes_is_in_the_folders_name():
    """The baseline has a gain of 1 whatever is asked for, and comes first."""
    handwriting = catalogue.find_experiment("handwriting")
    request = parse_run(handwriting, ["--gain-init", "0.3"])
    assert len({config.gain_init for config in request.configs}) == 2
    assert run_command.out_folder(handwriting, request).name == "handwriting-gain-init-0.3"


@pytest.mark.parametrize(("more", "how"), [([], "command"), (["--restart"], "command without --restart")])
def test_an_interruption_says_how_to_go_on(more, how, monkeypatch, capsys):
    """With --restart the same command would begin anew."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_command, "make_runs", interrupted)
    assert cli.main(["run", "digits", *more]) == 130
    assert one_line(capsys) == f"layernorm: interrupted; the same {how} resumes\n"


def test_impossible_values_come_before_what_the_folder_holds(out, capsys):
    capsys.readouterr()
    for option, value in (("--learning-rate", "nan"), ("--train-cases", "5000"), ("--held-out", "5000")):
        refused([*QUICK, "--out", str(out), option, value], 2, f"layernorm: {option} must ", capsys)


def test_other_data_in_the_same_folder_is_refused(out, capsys):
    (out / RUN / "result.json").unlink()
    path = out / RUN / "environment.json"
    environment = read_json(path)
    environment["data"]["fingerprint"] = "another"
    write_json(path, environment)
    refused([*QUICK, "--out", str(out)], 1, "fingerprint is another there", capsys)


def test_a_damaged_checkpoint_is_named_and_left_alone(out, capsys):
    (out / RUN / "result.json").unlink()
    path = out / RUN / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    refused([*QUICK, "--out", str(out)], 1, "checkpoint.safetensors is damaged", capsys)
    assert len((out / RUN / "records.jsonl").read_text().splitlines()) == 2
    assert cli.main([*QUICK, "--out", str(out), "--restart"]) == 0


def cut_last_line(path):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize("lost", ["", "checkpoint.safetensors"])
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("records.jsonl", os.unlink, "records.jsonl holds 0 records up to update 20 instead of 2"),
        ("records.jsonl", cut_last_line, "records.jsonl holds 1 records up to update 20 instead of 2"),
        ("config.json", os.unlink, "has result.json and records.jsonl but no config.json"),
        ("result.json", lambda path: path.write_text("{"), "result.json is not valid JSON"),
    ],
)
def test_a_damaged_finished_run_is_neither_done_nor_shown(out, name, change, message, lost, capsys):
    if lost or name == "config.json":
        (out / RUN / "checkpoint.safetensors").unlink()
    change(out / RUN / name)
    refused([*QUICK, "--out", str(out)], 1, message, capsys)
    assert cli.main(["report", str(out)]) == 1
    assert message in one_line(capsys)


def test_a_folder_that_cannot_be_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    refused([*QUICK, "--out", str(tmp_path / "file")], 1, "cannot create the folder", capsys)


def test_a_second_process_is_refused(tmp_path, capsys):
    files.make_folder(tmp_path / RUN)
    with files.locked(tmp_path / RUN):
        refused([*QUICK, "--out", str(tmp_path)], 1, "is in use by another process", capsys)


def test_a_full_disk_fails_with_one_line_and_the_run_goes_on_later(tmp_path):
    command = [*QUICK, "--hidden", "64", "--out", str(tmp_path)]

    with processes.process(processes.with_small_files, 20_000, command, errors=tmp_path / "said") as process:
        pass  # the system refuses the write half way: records fit, the checkpoint does not
    assert process.exitcode == 1
    said = (tmp_path / "said").read_text()
    assert "cannot write" in said
    assert "Traceback" not in said
    assert not list((tmp_path / RUN).glob(".*.tmp"))
    assert cli.main(command) == 0
    assert len((tmp_path / RUN / "records.jsonl").read_text().splitlines()) == 2


def test_missing_data_says_what_to_put_where(tmp_path, capsys):
    refused(
        ["run", "mnist", "--preset", "smoke", "--data", str(tmp_path), "--out", str(tmp_path / "out")],
        1,
        "lacks train-images-idx3-ubyte.gz, ",
        capsys,
    )
    assert not (tmp_path / "out").exists()


def test_an_unexpected_error_is_one_line_unless_asked(monkeypatch, capsys):
    def broken(parsed):
        raise KeyError("something")

    monkeypatch.setitem(commands.COMMANDS, "doctor", broken)
    refused(["doctor"], 1, "unexpected KeyError", capsys)
    with pytest.raises(KeyError):
        cli.main(["doctor", "--traceback"])


@pytest.fixture
def locked(tmp_path, monkeypatch):
    """A folder that refuses to be read, also by root."""
    folder, listdir = tmp_path / "locked" / "mnist", os.listdir
    folder.mkdir(parents=True)

    def refusing(path="."):
        if str(path).startswith(str(folder.parent)):
            raise PermissionError(13, "Permission denied", str(path))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refusing)
    return folder


def test_unreadable_folders_are_named(locked, monkeypatch, capsys):
    for command in (
        ["report", str(locked)],
        ["data", "prepare", "mnist", "--source", str(locked)],
        ["run", "mnist", "--data", str(locked)],
    ):
        assert cli.main(command) == 1
        assert one_line(capsys) == f"layernorm: cannot read {locked}: Permission denied\n"
    monkeypatch.setenv("LAYERNORM_DATA", str(locked.parent))
    assert cli.main(["report", str(locked.parent.parent)]) == 1
    assert one_line(capsys) == f"layernorm: skipped: cannot read {locked.parent}: Permission denied\n"
    assert cli.main(["data", "list"]) == 0
    assert f"cannot read {locked}: Permission denied" in " ".join(capsys.readouterr().out.split())


def test_other_errors_of_the_system_are_one_line_of_the_same_kind(monkeypatch, capsys):
    def broken(parsed):
        raise PermissionError(13, "Permission denied", "some/file")

    monkeypatch.setitem(commands.COMMANDS, "doctor", broken)
    assert cli.main(["doctor"]) == 1
    assert one_line(capsys) == "layernorm: cannot read some/file: Permission denied\n"


@pytest.mark.parametrize(("name", "message"), [("no", "there is no folder {}"), ("file", "{} is a file, not a folder")])
def test_a_data_folder_that_is_none_is_said_to_be_that(tmp_path, name, message, capsys):
    (tmp_path / "file").write_text("")
    for command in (["data", "prepare", "mnist", "--source"], ["run", "mnist", "--data"]):
        refused([*command, str(tmp_path / name)], 1, message.format(tmp_path / name), capsys)


def test_data_list_and_embedded_data(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("LAYERNORM_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    mnist = tmp_path / "layernorm" / "mnist"
    mnist.mkdir(parents=True)
    (mnist / "train-images-idx3-ubyte").write_text("")
    assert cli.main(["data", "list"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= max(80, len(str(mnist)) + 40)
    text = " ".join(text.split())
    assert (
        f"not here: layernorm data prepare mnist there is no folder {tmp_path}/mnist {mnist} lacks train-labels" in text
    )
    refused(["data", "prepare", "digits", "--source", "here"], 2, "digits does not take --source", capsys)
    assert cli.main(["data", "prepare", "digits"]) == 0
    assert "nothing to prepare" in capsys.readouterr().out


def test_two_pages_are_two_files(tmp_path, capsys):
    page = str(tmp_path / "page.md")
    refused(["claims", "--out", page, "--details", page], 2, "--out and --details must be two files", capsys)


def test_a_folder_is_no_summary_whatever_its_name(out, tmp_path, capsys):
    (tmp_path / "runs.json").symlink_to(out.resolve())
    assert cli.main(["report", str(tmp_path / "runs.json"), "--out", str(tmp_path / "report")]) == 0


def test_reports_go_where_they_are_told(out, tmp_path_factory, capsys):
    place = tmp_path_factory.mktemp("elsewhere") / "here"
    assert cli.main(["report", str(out), "--out", str(place)]) == 0
    assert {path.name for path in place.iterdir()} == {"index.html", "report.md", "figure6.png", "figure6.svg"}
    refused(["report", str(place)], 1, "there are no runs", capsys)
    assert cli.main(["report", str(place / "missing")]) == 1
    assert "is not a folder" in one_line(capsys)


def test_the_commands_modules_are_light():
    """`layernorm --help` does not pay for torch and the experiments' packages."""
    heavy = {"torch", "layernorm", "accelerate", "rich", "matplotlib", "pooch", "safetensors", "sklearn"}
    code = f"import sys, layernorm_lab.cli.pages; assert not {heavy} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_output_that_cannot_be_written_fails_with_one_line():
    """A full disk; where the reader has gone, there is none."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reader, writer = os.pipe()
    os.close(reader)
    for target, message in ((os.open("/dev/full", os.O_WRONLY), "No space left on device"), (writer, "")):
        command = [*STARTS[1], "--version"]
        done = subprocess.run(command, stdout=target, stderr=subprocess.PIPE, text=True, env=environment)
        os.close(target)
        expected = f"layernorm: cannot write to standard output: {message}\n" if message else ""
        assert (done.returncode, done.stderr) == (1, expected)


def test_without_standard_output_the_exit_code_stays():
    for words, code in ((["--version"], 0), (["nonsense"], 2)):
        done = subprocess.run([*STARTS[1], *words], preexec_fn=lambda: os.close(1), stderr=subprocess.PIPE, text=True)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False)


def test_python_m_layernorm_lab_is_the_command():
    done = subprocess.run([sys.executable, "-m", "layernorm_lab", "--version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("layernorm ")


REAL = Path(os.environ.get("LAYERNORM_DATA", ""))  # read before the fixture hides it


@pytest.mark.skipif("LAYERNORM_DATA" not in os.environ, reason="needs the real MNIST")
def test_mnist_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERNORM_DATA", str(REAL))
    command = ["run", "mnist", "--preset", "smoke", "--norm", "layer", "--batch-size", "128", "--epochs", "5"]
    assert cli.main([*command, "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "mnist-layer-b128-s0" / "records.jsonl").read_text().splitlines()[-1])
    assert record["test_error"] < 0.15  # on 2,000 training cases
    assert json.loads((tmp_path / "mnist-layer-b128-s0" / "environment.json").read_text())["data"]["original"] is True
