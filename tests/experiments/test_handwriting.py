"""The numerics of 6.5: density, window, scan, masks, parameter count; and the command, on a small directory."""

import json
import math
import shutil
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from handwriting_files import write_iam
from scipy.stats import multivariate_normal

import layernorm as ln
from layernorm import cli
from layernorm.experiments import experiment, handwriting, mixture, pen
from layernorm.experiments import handwriting_data as data
from layernorm.experiments import handwriting_sampling as sampling
from layernorm.experiments.errors import RunError
from layernorm.experiments.handwriting_network import Synthesis, clipped, one_hot
from layernorm.experiments.handwriting_scan import Cell, scan, window_step

NORMS = (None, "layer", "rms", "weight")


def small(norm, spread=0.3, **sizes):
    """A tiny network in float64 whose every parameter matters."""
    torch.manual_seed(3)
    model = Synthesis(norm, units=5, mixtures=2, components=3, pace=0.5, **sizes).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += spread * torch.randn_like(parameter)
    return model


def case(T=6, B=2, U=4):
    """Points, texts of which one is shorter, and points to predict."""
    random = torch.Generator().manual_seed(1)
    points = torch.randn(T + 1, B, 3, generator=random, dtype=torch.float64)
    points[..., 2] = (points[..., 2] > 0).double()
    text = torch.randint(57, (B, U), generator=random)
    return points[:-1], text, torch.tensor([U, U - 2]), points[1:]


# The density.


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_the_density_is_scipys(scale):
    random = np.random.default_rng(0)
    y, points = random.normal(0, scale, (5, 1 + 6 * 4)), random.normal(0, 2, (5, 3))
    points[:, 2] = [0, 1, 1, 0, 1]
    found = mixture.log_density(torch.from_numpy(y), torch.from_numpy(points))
    for row, point, value in zip(y, points, found, strict=True):
        pi, mu1, mu2, s1, s2, rho = row[1:].reshape(6, 4)
        weights = np.exp(pi) / np.exp(pi).sum()
        s1, s2, rho = np.exp(s1), np.exp(s2), np.tanh(rho)
        density = 0.0
        for j in range(4):
            across = rho[j] * s1[j] * s2[j]
            gaussian = multivariate_normal([mu1[j], mu2[j]], [[s1[j] ** 2, across], [across, s2[j] ** 2]])
            density += weights[j] * gaussian.pdf(point[:2])
        end = 1 / (1 + math.exp(row[0]))
        assert float(value) == pytest.approx(math.log(density) + math.log(end if point[2] else 1 - end), rel=1e-9)


def test_the_density_integrates_to_one():
    y = torch.tensor([0.3, 0.1, -0.4, 0.2, 1.0, 0.0, -0.5, -0.3, 0.2, 0.1, -0.6, 0.8, -1.2], dtype=torch.float64)
    axis = torch.linspace(-12, 12, 481, dtype=torch.float64)
    grid = torch.stack([*torch.meshgrid(axis, axis, indexing="ij")], -1)
    total = 0.0
    for end in (0.0, 1.0):
        points = torch.cat([grid, torch.full((*grid.shape[:2], 1), end, dtype=torch.float64)], -1)
        total += float(mixture.log_density(y, points).exp().sum()) * 0.05**2
    assert total == pytest.approx(1, rel=1e-6)


def test_the_density_is_finite_far_out_and_at_the_edge():
    y = torch.zeros(1 + 6)
    y[6] = 20.0  # rho is 1 in float32
    for point in ([30.0, 30.0, 0.0], [1e4, 1e4, 1.0]):
        assert torch.isfinite(mixture.log_density(y, torch.tensor(point)))
    assert mixture.log_density(torch.zeros(7), torch.tensor([0.0, 0.0, 1.0])) == pytest.approx(
        -math.log(2 * math.pi) - math.log(2)
    )


@pytest.mark.parametrize("extreme", [-1e3, -50.0, 50.0, 1e3])
@pytest.mark.parametrize("number", range(6, 13))  # of the second component's six, and of the first one's rho
def test_no_component_makes_a_loss_or_a_gradient_infinite(number, extreme):
    y = torch.zeros(1 + 6 * 2)
    y[number] = extreme
    y.requires_grad_()
    value = mixture.log_density(y, torch.tensor([0.5, -0.3, 1.0]))
    assert torch.isfinite(value)
    assert torch.autograd.grad(value, y)[0].isfinite().all()
    drawn = mixture.draw(y.detach(), 0.0, torch.Generator().manual_seed(0))
    assert drawn.isfinite().all()


@pytest.mark.parametrize("bias", [50.0, 1e6, 1e300])
def test_a_large_bias_draws_the_most_probable_components_mean(bias):
    y = torch.tensor([5.0, 0.2, 0.1, -1.0, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    drawn = mixture.draw(y, bias, torch.Generator().manual_seed(0))
    assert drawn[:2].tolist() == [-1.0, 2.0]


def test_drawn_points_have_the_mixtures_moments():
    y = torch.tensor([1.0, 0.0, 0.5, 2.0, math.log(0.5), math.log(2.0), 0.7])
    random = torch.Generator().manual_seed(0)
    drawn = torch.stack([mixture.draw(y, 0.0, random) for _ in range(4000)])
    assert drawn[:, 0].mean() == pytest.approx(0.5, abs=0.03)
    assert drawn[:, 1].mean() == pytest.approx(2.0, abs=0.12)
    assert float(torch.corrcoef(drawn[:, :2].T)[0, 1]) == pytest.approx(math.tanh(0.7), abs=0.04)
    assert drawn[:, 2].mean() == pytest.approx(1 / (1 + math.e), abs=0.03)
    neat = torch.stack([mixture.draw(y, 2.0, random) for _ in range(1000)])
    assert neat[:, 0].std() == pytest.approx(0.5 * math.exp(-2), rel=0.1)


# The window and the lowest layer.


def test_the_window_is_a_slow_loop():
    B, K, U = 2, 3, 4
    random = torch.Generator().manual_seed(0)
    p = torch.randn(B, 3 * K, generator=random, dtype=torch.float64)
    kappa = torch.rand(B, K, generator=random, dtype=torch.float64)
    codes = one_hot(torch.randint(57, (B, U), generator=random), torch.tensor([4, 2]), torch.float64)
    phi, reading, moved = window_step(p, kappa, codes)
    for b in range(B):
        expected = np.zeros(57)
        for u in range(1, U + 2):
            weight = 0.0
            for k in range(K):
                alpha, beta, way = (math.exp(float(p[b, k + K * part])) for part in range(3))
                place = float(kappa[b, k]) + way
                assert float(moved[b, k]) == pytest.approx(place)
                weight += alpha * math.exp(-beta * (place - u) ** 2)
            assert float(phi[b, u - 1]) == pytest.approx(weight)
            if u <= U:
                expected += weight * codes[b, u - 1].numpy()
        np.testing.assert_allclose(reading[b], expected)


@pytest.mark.parametrize("norm", NORMS)
def test_the_whole_sequence_is_the_steps_in_value_and_gradient(norm):
    model = small(norm)
    points, text, characters, after = case()
    whole = model(points, text, characters)
    state, codes, steps = model.start(2), one_hot(text, characters, torch.float64), []
    for point in points:
        y, _, state = model.step(point, codes, state)
        steps.append(y)
    # the same sums in another order, in float64
    torch.testing.assert_close(whole, torch.stack(steps), rtol=1e-10, atol=1e-12)
    found, expected = (
        torch.autograd.grad(0.01 * mixture.log_density(y, after).sum(), list(model.parameters()))
        for y in (whole, torch.stack(steps))
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("norm", [None, "layer", "rms"])
def test_the_scans_backward_by_differences(norm):
    model = small(norm)
    points, text, characters, _ = case(T=3)
    codes = one_hot(text, characters, torch.float64)
    *tensors, eps, centred = Cell.of(model.lstm1)
    given = [tensor for tensor in tensors if tensor is not None]

    def run(window_weight, window_bias, *inner):
        rest = iter(inner)
        cell = Cell(*(None if tensor is None else next(rest) for tensor in tensors), eps, centred)
        return scan(cell, window_weight, window_bias, points, codes, math.inf)

    # fast mode: along random directions; the test above compares every element
    assert torch.autograd.gradcheck(run, (model.window.weight, model.window.bias, *given), fast_mode=True)


def test_the_loss_by_differences():
    after = case(T=3)[-1]
    y = 0.5 * torch.randn(3, 2, 13, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda y: mixture.log_density(y, after), y.requires_grad_())


def test_derivatives_are_cut():
    x = torch.zeros(3, requires_grad=True)
    (clipped(x * 1.0, 2.0) * torch.tensor([1.0, -5.0, 7.0])).sum().backward()
    assert x.grad.tolist() == [1.0, -2.0, 2.0]
    model = small("layer")
    points, text, characters, _ = case()
    codes = one_hot(text, characters, torch.float64)

    def gradient(limit):
        h, w = scan(Cell.of(model.lstm1), model.window.weight, model.window.bias, points, codes, limit)
        return torch.autograd.grad(w[-1].sum() + 0 * h.sum(), model.lstm1.weight_hh)[0]

    assert not torch.allclose(gradient(1e-3), gradient(math.inf)), "between the points, too"


@pytest.mark.parametrize("norm", ["none", "layer"])
def test_padding_never_counts(norm):
    """Neither in points nor in the text, nor what other lines are in the batch."""
    config = handwriting.Config(norm=norm, units=6, mixtures=2)
    model = handwriting.build(config).double()
    random = torch.Generator().manual_seed(0)
    points = torch.randn(2, 9, 3, generator=random, dtype=torch.float64)
    points[..., 2] = (points[..., 2] > 1).double()
    text = torch.randint(57, (2, 7), generator=random, dtype=torch.uint8)
    lengths, characters = torch.tensor([8, 3]), torch.tensor([7, 4])
    lines = data.Sequences(points, lengths, text, characters)
    found = handwriting.nats(model, lines)
    other = data.Sequences(points.clone(), lengths, text.clone(), characters)
    other.points[1, 4:] = 1e30
    other.text[1, 4:] = 9
    torch.testing.assert_close(handwriting.nats(model, other), found, rtol=0, atol=0)
    alone = handwriting.nats(model, data.Sequences(points[1:, :4], lengths[1:], text[1:, :4], characters[1:]))
    # one row goes through other kernels than two
    torch.testing.assert_close(alone, found[1:], rtol=1e-8, atol=0)
    gradients = []
    for given in (lines, other):
        model.zero_grad()
        handwriting.nats(model, given).sum().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_a_process_without_a_line_of_the_last_batch_adds_nothing(iam):
    """6 lines in batches of 5: the second of two processes gets none of the last line, and must have gradients."""
    lines = data.load(iam)
    shares = []
    for rank in (0, 1):
        accelerator = SimpleNamespace(device=torch.device("cpu"), process_index=rank, num_processes=2)
        config = handwriting.Config(units=4, mixtures=1, points=9, batch_size=5)
        task = handwriting.task(config, lines, accelerator)
        loss = task.loss(task.model, 1)
        loss.backward()
        shares.append((loss.item(), max(float(p.grad.abs().max()) for p in task.model.parameters())))
    assert min(shares[0]) > 0
    assert shares[1] == (0.0, 0.0)


# The network.


@pytest.mark.parametrize(("norm", "count"), [("none", 3_654_951), ("layer", 3_666_951)])
def test_the_network_has_3_65_million_parameters(norm, count):
    model = handwriting.build(handwriting.Config(norm=norm))
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert model.output.out_features == 121
    assert model.window.out_features == 30


def test_one_seed_gives_every_norm_the_same_weights():
    none, layer = (handwriting.build(handwriting.Config(norm=norm, units=8)) for norm in ("none", "layer"))
    for name, parameter in none.named_parameters():
        if "weight" in name:
            assert torch.equal(parameter, layer.get_parameter(name)), name


def test_the_protocol_of_the_paper():
    config = handwriting.EXPERIMENT.presets["paper"].config
    assert (config.batch_size, config.points, config.units, config.mixtures) == (8, 500, 400, 20)
    model = handwriting.build(handwriting.Config(units=8))
    assert model.lstm2.formula == model.lstm1.formula == "paper"
    assert isinstance(model.lstm3, ln.LSTM)


# Writing.


def test_writing_stops_when_the_window_has_read_the_text():
    torch.manual_seed(0)
    model = Synthesis(None, units=6, mixtures=2, pace=0.5).eval()  # half a character a point
    points, finished = sampling.write(model, sampling.Options(text="hello there"))
    assert finished
    assert 11 < len(points) < 60
    again, _ = sampling.write(model, sampling.Options(text="hello there"))
    assert np.array_equal(points, again), "one seed writes one thing"
    other, _ = sampling.write(model, sampling.Options(text="hello there", seed=1))
    assert len(points) != len(other) or not np.array_equal(points, other)
    points, finished = sampling.write(model, sampling.Options(text="hello there", points=7))
    assert (len(points), finished) == (7, False)


def test_a_window_that_runs_past_the_text_at_once_stops():
    """Its weights are all 0 in float32 then, the one of the place after the text among them."""
    torch.manual_seed(0)
    model = Synthesis(None, units=6, mixtures=2, pace=50.0).eval()
    points, finished = sampling.write(model, sampling.Options(text="hi"))
    assert (len(points), finished) == (0, True)


def test_a_diverged_network_is_named():
    model = Synthesis(None, units=6, mixtures=2).eval()
    torch.nn.init.constant_(model.output.bias, math.nan)
    with pytest.raises(RunError, match="its training has diverged"):
        sampling.write(model, sampling.Options(text="hi"))


def test_the_priming_line_is_scaled_as_the_run_was(trained, iam, tmp_path, monkeypatch):
    """A data set with other lines has another mean and deviation."""
    run = tmp_path / "run"
    shutil.copytree(trained / "handwriting-layer-s0", run)
    environment = json.loads((run / "environment.json").read_text())
    environment["data"] |= {"mean": [1.0, 2.0], "deviation": [3.0, 4.0]}
    (run / "environment.json").write_text(json.dumps(environment))
    given = []
    monkeypatch.setattr(sampling, "write", lambda *arguments: given.append(arguments[2]) or (np.zeros((1, 3)), True))
    command = ["sample", "handwriting", str(run), "--text", "a", "--prime", "a01-000u-02", "--data", str(iam)]
    assert cli.main([*command, "--out", str(tmp_path / "out")]) == 0
    line = data.find_line(data.load(iam), "a01-000u-02")
    expected = (line.points[1:, :2] - np.array([1.0, 2.0])) / np.array([3.0, 4.0])
    np.testing.assert_allclose(given[0][1:, :2], expected, rtol=1e-6)


def test_pictures_are_whole():
    drawn = pen.strokes(np.array([[1, 0, 0], [0, 1, 1], [2, 0, 1], [1, 1, 0]]), np.zeros(2), np.array([10.0, 20.0]))
    assert [stroke.tolist() for stroke in drawn] == [[[10, 0], [10, 20]], [[30, 20]], [[40, 40]]]
    for content in (pen.svg(drawn, "a < b"), pen.moving_svg(drawn, "a < b")):
        root = ElementTree.fromstring(content)
        assert root[0].text == "a < b"
        assert len(root[1]) == 3
        assert b"script" not in content
    assert pen.png(drawn).startswith(b"\x89PNG")
    assert pen.png([]).startswith(b"\x89PNG"), "nothing written is an empty picture"


# The command.

SMOKE = ["run", "handwriting", "--preset", "smoke"]


@pytest.fixture(scope="module")
def iam(tmp_path_factory):
    return write_iam(tmp_path_factory.mktemp("iam"), points=60)


@pytest.fixture(scope="module")
def trained(iam, tmp_path_factory):
    """The smoke preset's runs."""
    out = tmp_path_factory.mktemp("trained")
    assert cli.main([*SMOKE, "--valid-lines", "2", "--data", str(iam), "--out", str(out)]) == 0
    return out


def records(path):
    return [json.loads(line) for line in (path / "records.jsonl").read_text().splitlines()]


def test_smoke_runs_through_and_reports(trained):
    for norm in ("none", "layer"):
        run = trained / f"handwriting-{norm}-s0"
        assert [record["update"] for record in records(run)] == [2, 4]
        assert all(math.isfinite(record["valid_nll"]) for record in records(run))
    names = {path.name for path in (trained / "report").iterdir()}
    pictures = {f"sample-{norm}-bias{bias}.png" for norm in ("none", "layer") for bias in (0, 1)}
    assert names == {"index.html", "report.md", "figure5.png", "figure5.svg"} | pictures
    text = (trained / "report" / "report.md").read_text()
    assert "no verdict from one seed" in text
    assert "![" in text
    assert "data:image/png;base64," in (trained / "report" / "index.html").read_text()


def test_a_killed_run_goes_on_with_the_same_numbers(trained, iam, tmp_path, monkeypatch):
    from layernorm.experiments import training
    from layernorm.experiments.errors import Interrupted

    command = [*SMOKE, "--valid-lines", "2", "--data", str(iam), "--out", str(tmp_path), "--norm", "layer"]
    evaluate = training.Fit._evaluate

    def stop(fit):
        evaluate(fit)
        fit._save()
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(training.Fit, "_evaluate", stop)
        assert cli.main(command) == 130
    assert len(records(tmp_path / "handwriting-layer-s0")) == 1
    assert cli.main(command) == 0
    found, whole = records(tmp_path / "handwriting-layer-s0"), records(trained / "handwriting-layer-s0")
    for one, other in zip(found, whole, strict=True):
        assert one["valid_nll"] == other["valid_nll"]
        assert one["batch_loss"] == other["batch_loss"]


def test_sampling_writes_three_whole_files(trained, iam, tmp_path, capsys):
    run = trained / "handwriting-layer-s0"
    capsys.readouterr()
    command = ["sample", "handwriting", str(run), "--text", "Hi 7!", "--points", "30", "--out", str(tmp_path)]
    assert cli.main([*command, "--bias", "1"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wrote ")]
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == sorted(f"hi-7-bias1-seed0{end}" for end in (".svg", ".png", "-moving.svg"))
    assert sorted(lines) == [f"wrote {tmp_path / name}" for name in written]
    assert cli.main([*command, "--prime", "a01-000u-02", "--data", str(iam)]) == 0
    assert (tmp_path / "hi-7-a01-000u-02-bias0-seed0.png").exists()
    assert cli.main(["sample", "handwriting", str(run), "--text", "x", "--points", "5"]) == 0
    assert len(list((run / "samples").iterdir())) == 3


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--text", ""], 2, "--text must say what to write, got nothing"),
        (["--text", "  "], 2, "--text must say what to write, got nothing"),
        ([], 2, "--text must say what to write, got nothing"),
        (["--text", "café"], 2, "--text has the unknown character 'é'; printable ASCII is known"),
        (["--text", "a\nb"], 2, "--text has the unknown character '\\n'"),
        (["--text", "a", "--bias", "-1"], 2, "--bias must be a finite number, at least 0, got -1"),
        (["--text", "a", "--prime", "a01-000u-09"], 1, "has no line 'a01-000u-09'; lines are named like 'a01-000u-01'"),
    ],
)
def test_what_cannot_be_written_is_one_line(options, code, message, trained, iam, capsys):
    capsys.readouterr()
    run = str(trained / "handwriting-layer-s0")
    assert cli.main(["sample", "handwriting", run, "--data", str(iam), *options]) == code
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert message in text


def test_impossible_configurations_are_refused(iam, capsys):
    for options, message in (
        (["--batch-size", "7"], "--batch-size must be at most 6, all lines, got 7"),
        (["--valid-lines", "3"], "--valid-lines must be at most 2, all lines, got 3"),
        (["--points", "0"], "--points must be at least 1, got 0"),
    ):
        assert cli.main([*SMOKE, "--data", str(iam), *options]) == 2
        assert message in capsys.readouterr().err


def test_the_experiment_is_listed():
    assert "handwriting" in experiment.EXPERIMENTS
    assert experiment.find("handwriting").sampler is not None
