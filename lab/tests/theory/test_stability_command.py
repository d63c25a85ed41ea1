"""`layernorm stability`: what it measures is what the networks do one by one, and every rendering says it."""

import json
import math
from dataclasses import fields

import pytest
import torch

from lab_support.iam_files import write_iam
from layernorm import geometry
from layernorm_lab import cli
from layernorm_lab.errors import RunError
from layernorm_lab.theory import stability, trained
from layernorm_lab.theory.stability import Setting, Stability, Study
from support.repository import ROOT

RESULTS = ROOT / "docs" / "results" / "theory" / "stability" / "stability.json"


@pytest.fixture(scope="module")
def short():
    """Few steps, as the number of them is not what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stability, "WARMUP", 4)
        patch.setattr(stability, "STEPS", 10)
        patch.setattr(stability, "CASES", 2)
        yield


@pytest.fixture(scope="module")
def study(short):
    return stability.measure_settings("GRU", 6, [0, 1])


def test_networks_side_by_side_are_each_of_them_alone(study):
    """All networks of a norm are measured as cases of one: here each by itself, by the module's own calls."""
    inputs = {"digits": stability.stream(14, 2), "noise": stability.noise(14, 2)}
    for setting in (
        Setting(None, None, 10.0),
        Setting("layer", 0.3, 0.1),
        Setting("weight", 1.0, 30.0),
        Setting("layer", 1.0, recurrent=0.3, biases="torch's", inputs="noise"),
    ):
        driving = inputs[setting.inputs]
        module = stability.build_recurrent("GRU", 6, setting, seed=1)
        step, state = geometry.dynamics(module, 2)
        g = torch.Generator().manual_seed(0)
        start, back = (torch.randn(2, 6, generator=g, dtype=torch.float64) for _ in range(2))
        exponent = geometry.lyapunov(step, state, driving, warmup=4, tangents=start[:, :, None]).exponents
        found = study.measured[setting][1]
        assert found.exponent == pytest.approx(float(exponent), abs=1e-12)
        _, h = module(driving[:4])
        logs = geometry.gradient_by_lag(step, h[0].detach(), driving[4:], cotangents=back)
        expected = ((logs - logs[0]).mean(1) / math.log(10))[::5].tolist()
        assert found.gradient == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("norm", stability.NORMS)
def test_nothing_but_norm_scale_and_gain_differs(norm):
    """At gain 1 and scale 10 the weights are 10 times those without a norm; under weight norm rows of length 1."""
    plain = stability.build_recurrent("LSTM", 5, Setting(None, None, 1.0), seed=3)
    module = stability.build_recurrent("LSTM", 5, Setting(norm, 1.0 if norm else None, 10.0), seed=3)
    for name in ("weight_ih_l0", "weight_hh_l0"):
        weight, drawn = getattr(module, name), getattr(plain, name)
        expected = drawn / drawn.norm(dim=1, keepdim=True) if norm == "weight" else 10 * drawn
        assert weight.detach().numpy() == pytest.approx(expected.detach().numpy(), abs=1e-12)
    biases = [p for name, p in module.named_parameters() if name.startswith("bias")]
    assert biases
    assert not any(p.any() for p in biases)


def test_the_scale_is_not_seen_under_weight_norm(study):
    first, *others = (study.exponents(Setting("weight", 0.3, scale)) for scale in stability.SCALES)
    for other in others:
        assert other == pytest.approx(first, abs=1e-12)


def made_study(**exponents):
    """Every setting's exponents by norm, the same for each gain and scale."""
    found = {s: [Stability(e, [0.0, 10 * e]) for e in exponents[s.norm or "none"]] for s in stability.SETTINGS}
    return Study("LSTM", 3, [0, 1, 2], 10, found, {})


def test_what_is_seen_is_said_as_it_is():
    made = made_study(none=[0.3, 0.5, 0.4], layer=[-0.1, 0.0, 0.1], rms=[-0.9, -0.8, -0.7], weight=[0.2, 0.4, 0.6])
    beside = {norm: stability._beside(made, Setting(norm, 1.0, 1.0)) for norm in ("layer", "rms", "weight")}
    assert beside == {"layer": "lower, closer", "rms": "lower, farther", "weight": "-, -"}
    text = " ".join(stability.findings(made))
    assert "none +0.300..+0.500 to +0.300..+0.500 (spread 0.000)" in text
    assert "x0.1 lower, closer (gain 0.1, 0.3, 1); x1 lower, closer (gain 0.1, 0.3, 1)" in text
    assert "-0.100..+0.100 at gain 0.3" in text


def study_of(numbers):
    """The study that wrote these numbers."""
    names, measured, predicted = [field.name for field in fields(Setting)], {}, {}
    for row in numbers["rows"]:
        setting = Setting(**{name: row[name] for name in names})
        measured[setting] = [Stability(*of_seed) for of_seed in zip(row["exponents"], row["gradients"], strict=True)]
        if row["predicted"] is not None:
            predicted[setting] = row["predicted"]
    return Study(numbers["network"], numbers["units"], numbers["seeds"], numbers["steps"], measured, predicted)


def test_a_start_is_gains_by_site_and_biases():
    module = stability.build_recurrent("LSTM", 5, Setting("layer", 1.0, recurrent=0.3, biases="torch's"), seed=3)
    gains = {name: set(p.tolist()) for name, p in module.named_parameters() if name.startswith("gain")}
    assert gains == {"gain_ih_l0": {1.0}, "gain_hh_l0": {0.3}, "gain_c_l0": {1.0}}
    torch.manual_seed(3)
    drawn = torch.nn.LSTM(8, 5, dtype=torch.float64)
    assert torch.equal(module.bias_hh_l0, drawn.bias_hh_l0)


def test_every_start_is_predicted(study):
    assert list(study.predicted) == stability.STARTS
    setting = Setting("layer", 1.0, recurrent=0.3, biases="torch's", inputs="noise")
    module, g = stability.build_recurrent("GRU", 6, setting, seed=0), torch.Generator().manual_seed(0)
    found = geometry.predicted_exponent(module, stability.noise(14, 2), warmup=4, generator=g)
    assert study.predicted[setting] == float(found.exponents)


def test_an_rnn_has_no_gain_of_its_own_for_the_state(short):
    starts = stability.measure_settings("RNN", 4, [0]).predicted
    assert starts
    assert {setting.recurrent for setting in starts} == {None}


def test_the_command_prints_and_writes_its_numbers(short, study, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(stability, "measure_settings", lambda network, units, seeds: study)
    assert cli.main(["stability", "--network", "GRU", "--units", "6", "--seeds", "0", "1", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Largest Lyapunov exponent a step")
    assert max(map(len, said.splitlines()[:-1])) <= 80
    assert {path.name for path in tmp_path.iterdir()} == {
        "index.html", "report.md", "stability.png", "stability.svg", "starts.png", "starts.svg", "stability.json",
    }  # fmt: skip
    assert said.endswith(f"\npage: {tmp_path}/index.html\n")
    numbers = json.loads((tmp_path / "stability.json").read_text())
    assert (numbers["network"], numbers["units"], numbers["seeds"]) == ("GRU", 6, [0, 1])
    assert study_of(numbers).numbers() == {name: numbers[name] for name in study.numbers()}
    for finding in stability.findings(study) + stability.findings_of_starts(study):
        assert finding in " ".join(said.split())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--units", "0"], 2, "--units must lie in 1..4096, got 0"),
        (["--network", "LSMT"], 2, "did you mean 'LSTM'? there are: LSTM, GRU, RNN"),
        (["--network", "gru"], 2, "did you mean 'GRU'?"),
        (["--seeds", "-1"], 2, "--seeds must lie in 0..2147483647, got -1"),
        (["run", "--seeds", "1"], 2, "--seeds cannot be set for RUNS, which have their own"),
        (["--data", "."], 2, "--data needs RUNS"),
        (["nowhere"], 1, "nowhere is not a folder"),
        (["--out", "file"], 1, "cannot create the folder file: "),
        ([str(ROOT / "docs" / "results" / "draw" / "summary.json.gz")], 1, "has no checkpoint yet"),
    ],
)
def test_what_cannot_be_is_said_before_the_work(arguments, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(stability, "measure_settings", lambda *_: pytest.fail("measured"))
    assert cli.main(["stability", *arguments]) == code
    assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of the handwriting network, whose lowest LSTM is run by a stepper."""
    place = tmp_path_factory.mktemp("runs")
    data = write_iam(place / "iam")
    small = ["--units", "8", "--mixtures", "2", "--points", "40", "--batch-size", "2", "--updates", "2"]
    command = [
        "run",
        "handwriting",
        "--data",
        str(data),
        *small,
        "--evaluate-every",
        "2",
        "--valid-lines",
        "2",
        "--norm",
        "none",
        "layer",
        "--learning-rate",
        "0.001",
    ]
    assert cli.main([*command, "--seeds", "0", "--out", str(place / "out")]) == 0
    return place / "out"


def test_runs_are_measured_at_the_start_and_as_trained(short, runs, tmp_path, capsys):
    capsys.readouterr()
    assert cli.main(["stability", str(runs), "--out", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    layers = json.loads((tmp_path / "stability.json").read_text())["layers"]
    assert {(layer["norm"], layer["name"], layer["update"]) for layer in layers} == {
        (norm, name, update) for norm in ("none", "layer") for name in ("lstm1", "lstm2", "lstm3") for update in (0, 2)
    }
    assert "lstm1, norm layer, 1 run: the exponent is" in said
    assert (tmp_path / "stability.png").exists()
    by_key = {(layer["norm"], layer["name"], layer["update"]): layer["exponents"] for layer in layers}
    assert by_key["layer", "lstm2", 0] != by_key["layer", "lstm2", 2], "the checkpoint's weights are other ones"
    assert all(math.isfinite(e) for exponents in by_key.values() for e in exponents)


def test_a_run_that_cannot_be_measured_is_skipped(short, runs, tmp_path, monkeypatch, capsys):
    measure = trained.measure_run

    def but_one(experiment, run, data):
        if run.config["norm"] == "none":
            raise RunError(f"the run in {run.path} diverged and left no weights")
        return measure(experiment, run, data)

    monkeypatch.setattr(trained, "measure_run", but_one)
    capsys.readouterr()
    assert cli.main(["stability", str(runs)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "lstm1, norm layer, 1 run: the exponent is" in said
    assert "diverged and left no weights" in said


def test_an_exponent_that_is_not_finite_is_no_number_in_json():
    """That of a network whose state does not depend on the one before."""
    dead = {setting: [Stability(-math.inf, [0.0, -math.inf, 1.0])] for setting in stability.SETTINGS}
    study = Study("RNN", 1, [0], 10, dead, {})
    rows = json.loads(json.dumps(study.numbers(), allow_nan=False))["rows"]
    assert (rows[0]["exponents"], rows[0]["gradients"]) == ([None], [[0.0, None, 1.0]])
    assert "none -inf to -inf (spread -)" in stability.findings(study)[0]


def test_a_run_without_recurrent_layers_is_refused(tmp_path, capsys):
    command = ["run", "digits", "--epochs", "1", "--hidden", "8", "--norm", "layer", "--batch-size", "128"]
    assert cli.main([*command, "--seeds", "0", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert cli.main(["stability", str(tmp_path)]) == 1
    assert "has no recurrent layer to measure\n" in capsys.readouterr().err


def test_the_docs_say_what_the_command_found():
    """docs/theory.md quotes the sentences and the table that the committed numbers make, word for word."""
    study = study_of(json.loads(RESULTS.read_text()))
    assert (study.network, study.units, len(study.seeds)) == ("LSTM", 400, 3)
    text = " ".join((ROOT / "docs" / "theory.md").read_text(encoding="utf-8").split())
    for finding in stability.findings(study) + stability.findings_of_starts(study):
        assert finding in text
    by_scale, *_, starts = stability.report_study(study).tables
    for row in by_scale.rows + [[row[0], *row[2:]] for row in starts.rows if row[1] == "torch's"]:
        assert f"| {' | '.join(row)} |" in text
    for name in ("stability", "starts"):
        assert f"results/theory/stability/{name}.png" in text
        assert RESULTS.with_name(f"{name}.png").stat().st_size < 105_000
