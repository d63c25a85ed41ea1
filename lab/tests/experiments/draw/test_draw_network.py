"""DRAW's equations against slow loops in float64, its loss against closed forms, Monte Carlo and differences."""

import math

import pytest
import torch
from torch.distributions import Bernoulli, Normal, kl_divergence

import layernorm as ln
from layernorm_lab.experiments.draw import network
from layernorm_lab.experiments.draw.config import Config
from layernorm_lab.experiments.draw.network import DRAW, Attention, Grids, build_draw, read_glimpse, write_patch

A, R, N, H = 28, 2, 5, 3

# g~x, g~y, log s2, log d~, log gamma, for reading and for writing
PLACES = {
    "inside": ([0.1, -0.2, -0.5, -1.0, 0.3], [-0.3, 0.2, -1.0, -0.7, -0.4]),
    "at the border": ([0.9, -1.0, 0.0, -0.5, 0.1], [-0.95, 1.0, 0.2, -0.3, 0.2]),
    "over the border": ([0.0, 0.0, 0.0, 1.0, 0.0], [0.3, -0.3, 0.5, 0.8, 0.5]),
    "just outside": ([1.5, -1.4, 0.5, -1.0, 0.0], [1.3, 1.3, 1.0, -2.0, -0.2]),
}
FAR = {
    "far outside": ([40.0, -30.0, -4.0, -1.0, 0.0], [-25.0, 60.0, -6.0, -1.0, 0.0]),
    "no width": ([0.11, 0.0, -300.0, -1.0, 0.0], [0.0, 0.13, -1e4, -1.0, 0.0]),
    "endless": ([0.0, 0.0, 300.0, 300.0, 50.0], [1e6, 1e6, 1e4, 1e4, 1e4]),
}


def attention_at(place, batch=2):
    """Attention whose numbers are these whatever h is, but for a small part that depends on h; and h."""
    torch.manual_seed(0)
    attention = Attention(H, R, N, A).double()
    with torch.no_grad():
        attention.linear.weight.normal_(0, 0.02)
        attention.linear.bias[:10] = torch.tensor([*place[0], *place[1]], dtype=torch.float64)
        attention.linear.bias[10:].normal_()
    return attention, torch.randn(batch, H, dtype=torch.float64)


def numbers_of(attention, h, row):
    values = (attention.linear(h)[row]).tolist()
    return values[:5], values[5:10], values[10:]


def slow_filters(g_tilde, log_s2, log_d, count):
    """F [count][A] of the module's docstring, and whether every row's Gaussians can be told from zero."""
    g, d, s2 = (A + 1) / 2 * (g_tilde + 1), (A - 1) / (count - 1) * math.exp(log_d), math.exp(log_s2)
    rows = []
    for i in range(1, count + 1):
        mu = g + (i - count / 2 - 0.5) * d
        row = [math.exp(-((a - mu) ** 2) / (2 * s2)) for a in range(1, A + 1)]
        rows.append([value / sum(row) for value in row])
    return rows


def slow_read(numbers, image):
    gx, gy, log_s2, log_d, log_gamma = numbers
    along_x, along_y = slow_filters(gx, log_s2, log_d, R), slow_filters(gy, log_s2, log_d, R)
    return [
        math.exp(log_gamma)
        * sum(along_y[i][b] * image[b][a] * along_x[j][a] for b in range(A) for a in range(A))
        for i in range(R)
        for j in range(R)
    ]  # fmt: skip


def slow_write(numbers, patch):
    gx, gy, log_s2, log_d, log_gamma = numbers
    along_x, along_y = slow_filters(gx, log_s2, log_d, N), slow_filters(gy, log_s2, log_d, N)
    return [
        [
            sum(along_y[i][b] * patch[N * i + j] * along_x[j][a] for i in range(N) for j in range(N))
            / math.exp(log_gamma)
            for a in range(A)
        ]
        for b in range(A)
    ]


@pytest.mark.parametrize("place", PLACES)
def test_reading_and_writing_are_the_slow_loops(place):
    attention, h = attention_at(PLACES[place])
    grids = attention(h, attention.rows())
    x, drawn = torch.rand(2, 2, A, A, dtype=torch.float64)
    canvas = torch.randn(2, A, A, dtype=torch.float64)
    glimpse, after = read_glimpse(grids, R, x, drawn), write_patch(grids, N, canvas)
    for row in range(2):
        reading, writing, patch = numbers_of(attention, h, row)
        expected = slow_read(reading, x[row].tolist()) + slow_read(reading, (x - drawn)[row].tolist())
        # float64: sums of 784 products of numbers near 1
        assert glimpse[row].tolist() == pytest.approx(expected, rel=1e-10, abs=1e-12)
        painted = canvas[row] + torch.tensor(slow_write(writing, patch), dtype=torch.float64)
        torch.testing.assert_close(after[row], painted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("place", [*PLACES, *FAR])
def test_rows_of_the_filterbanks_sum_to_one(place, dtype):
    attention, h = attention_at({**PLACES, **FAR}[place])
    filters = attention.to(dtype)(h.to(dtype), attention.rows()).filters
    assert filters.shape == (2, 2, R + N, A)
    assert (filters >= 0).all()
    torch.testing.assert_close(filters.sum(3), torch.ones(2, 2, R + N, dtype=dtype), rtol=1e-6, atol=0)


@pytest.mark.parametrize("place", FAR)
def test_where_all_gaussians_of_a_row_underflow_the_row_is_its_nearest_pixel(place):
    attention, h = attention_at(FAR[place])
    attention, h = attention.float(), h.float()
    grids = attention(h, attention.rows())
    if place == "far outside":  # reading: beyond x = A, before y = 1; writing the other way round
        numbers = attention.linear(h).tolist()
        with pytest.raises(ZeroDivisionError):
            slow_filters(numbers[0][0], numbers[0][2], numbers[0][3], R)
        nearest = grids.filters.argmax(3)
        assert nearest[:, 0, :R].eq(A - 1).all()
        assert nearest[:, 1, :R].eq(0).all()
        assert nearest[:, 0, R:].eq(0).all()
        assert nearest[:, 1, R:].eq(A - 1).all()
    x = torch.rand(2, A, A)
    result = read_glimpse(grids, R, x, x / 2).sum() + write_patch(grids, N, x).sum()
    assert result.isfinite()
    gradients = torch.autograd.grad(result, list(attention.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_the_grid_is_centred_and_spans_the_image_at_zero():
    """With all five numbers 0 the outer filters sit on pixels 1 and A: the index i runs from 1."""
    attention, h = attention_at(([0.0] * 5, [0.0] * 5))
    torch.nn.init.zeros_(attention.linear.weight)
    filters = attention(h, attention.rows()).filters[0, 0]
    places = torch.arange(1, A + 1, dtype=torch.float64)
    assert filters[:R].argmax(1).tolist() == [0, A - 1]
    means = filters @ places
    torch.testing.assert_close(means[R:] + means[R:].flip(0), torch.full((N,), A + 1.0, dtype=torch.float64))
    assert means[R + N // 2].item() == pytest.approx((A + 1) / 2)
    x, y, side, deviation = attention.window(h)[0].tolist()
    assert (x, y, side, deviation) == pytest.approx((14.5, 14.5, 27, 1))


def test_the_kl_part_is_the_closed_form_and_monte_carlo():
    torch.manual_seed(1)
    T, B, L = 3, 4, 5
    mu, log_sigma = torch.randn(T, B, L).double(), 0.5 * torch.randn(T, B, L).double()
    ours = network.kl(torch.cat([mu, log_sigma], 2))
    posterior, prior = Normal(mu, log_sigma.exp()), Normal(torch.zeros_like(mu), torch.ones_like(mu))
    torch.testing.assert_close(ours, kl_divergence(posterior, prior).sum((0, 2)), rtol=1e-12, atol=0)
    z = posterior.sample((20_000,))
    draws = (posterior.log_prob(z) - prior.log_prob(z)).sum((1, 3))
    error = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - ours).abs() < 4 * error).all()


def test_the_kl_part_is_zero_at_the_prior_and_keeps_small_values():
    assert network.kl(torch.zeros(3, 2, 8)).tolist() == [0.0, 0.0]
    small = torch.tensor([1e-3, 1e-3]).view(1, 1, 2)  # mu^2 / 2 + log sigma^2 to third order
    assert network.kl(small).item() == pytest.approx(0.5e-6 + 1e-6, rel=2e-3)


def test_the_reconstruction_part_is_bernoulli():
    torch.manual_seed(2)
    canvas, x = 3 * torch.randn(2, A, A).double(), torch.rand(2, A, A).round().double()
    expected = -Bernoulli(logits=canvas).log_prob(x).sum((1, 2))
    torch.testing.assert_close(network.reconstruction(canvas, x), expected, rtol=1e-12, atol=0)


def tiny(norm, side=4):
    torch.manual_seed(3)
    model = DRAW(norm, hidden=3, latent=2, read_size=2, write_size=3, side=side).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0, 0.3)
    return model


@pytest.mark.parametrize("norm", [None, "layer", "rms"])
def test_the_bound_against_a_slow_loop(norm):
    """The module's docstring, step by step, with the cells as modules and the images one by one."""
    T, side = 3, 4
    model = tiny(norm, side)
    x, noise = torch.rand(2, side * side).round().double(), torch.randn(T, 2, 2).double()
    parts = model(x, noise)
    rows = model.attention.rows()
    for case in range(2):
        image = x[case].view(1, side, side)
        canvas, kl = torch.zeros_like(image), 0.0
        zero = torch.zeros(1, 3).double()
        encoder = decoder = (zero, zero)
        for t in range(T):
            error = image - canvas.sigmoid()
            grids = model.attention(decoder[0], rows)
            along_x, along_y = grids.filters[0, 0, :2], grids.filters[0, 1, :2]
            glimpse = [grids.intensity[0, 0] * (along_y @ seen[0] @ along_x.T).flatten() for seen in (image, error)]
            encoder = model.encoder(torch.cat([*glimpse, decoder[0][0]]).unsqueeze(0), encoder)
            mu, log_sigma = model.posterior(encoder[0]).chunk(2, 1)
            sigma = log_sigma.exp()
            kl += 0.5 * (mu**2 + sigma**2 - (sigma**2).log() - 1).sum().item()
            decoder = model.decoder(mu + sigma * noise[t, case], decoder)
            grids = model.attention(decoder[0], rows)
            along_x, along_y = grids.filters[0, 0, 2:], grids.filters[0, 1, 2:]
            canvas = canvas + grids.intensity[0, 1] * (along_y.T @ grids.patch[0] @ along_x)
        p = canvas.sigmoid()
        nll = -(image * p.log() + (1 - image) * (1 - p).log()).sum().item()
        assert parts.kl[case].item() == pytest.approx(kl, rel=1e-10)
        assert parts.reconstruction[case].item() == pytest.approx(nll, rel=1e-10)


def test_the_bound_is_summed_in_float32_under_autocast():
    x, noise = torch.rand(2, 16).round(), torch.randn(2, 2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        parts = tiny("layer").float()(x, noise)
    assert parts.kl.dtype == parts.reconstruction.dtype == torch.float32


@pytest.mark.parametrize("norm", [None, "layer"])
def test_gradients_of_the_bound(norm):
    model = tiny(norm)
    x, noise = torch.rand(2, 16).round().double(), torch.randn(2, 2, 2).double()
    names = [name for name, _ in model.named_parameters()]

    def bound(*parameters):
        parts = torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (x, noise))
        return parts.kl.sum() + parts.reconstruction.sum()

    parameters = tuple(parameter.detach().clone().requires_grad_() for parameter in model.parameters())
    assert torch.autograd.gradcheck(bound, parameters)


def test_drawing_is_the_decoder_run_from_the_prior():
    model, T = tiny("layer"), 3
    noise = torch.randn(T, 2, 2).double()
    drawing = model.draw(noise)
    assert drawing.canvas.shape == (T, 2, 4, 4)
    assert drawing.window.shape == (T, 2, 4)
    zero = torch.zeros(2, 3).double()
    decoder, canvas = (zero, zero), torch.zeros(2, 4, 4).double()
    for t in range(T):
        decoder = model.decoder(noise[t], decoder)
        canvas = write_patch(model.attention(decoder[0], model.attention.rows()), 3, canvas)
        torch.testing.assert_close(drawing.canvas[t], canvas.sigmoid())


def test_the_protocol():
    config = Config()
    assert (config.glimpses, config.hidden, config.latent, config.read_size, config.write_size) == (64, 256, 100, 2, 5)
    assert (config.batch_size, config.learning_rate, config.epochs, config.clip) == (128, 1e-3, 200, 10.0)
    model = build_draw(config)
    assert tuple(model.encoder.weight_ih.shape) == (1024, 8 + 256)
    assert tuple(model.decoder.weight_ih.shape) == (1024, 100)
    assert isinstance(model.encoder, ln.LSTMCell)
    assert model.encoder.recurrence.formula == model.decoder.recurrence.formula == ln.formula.PRESETS["cell"]["LSTM"]
    assert Grids._fields == ("filters", "intensity", "patch")


def test_one_seed_gives_every_norm_the_same_weights():
    state = torch.get_rng_state()
    weights = {}
    for norm in ("none", "layer", "rms"):
        model = build_draw(Config(norm=norm, seed=3, glimpses=2, hidden=64, deviation=0.1))
        weights[norm] = torch.cat([p.flatten() for name, p in model.named_parameters() if ".weight" in name])
        others = {name: p for name, p in model.named_parameters() if ".weight" not in name}
        assert all(p.eq(1.0 if ".gain" in name else 0.0).all() for name, p in others.items())
        assert any(".gain" in name for name in others) == (norm != "none")
    assert torch.equal(weights["none"], weights["layer"])
    assert torch.equal(weights["none"], weights["rms"])
    assert weights["none"].std().item() == pytest.approx(0.1, rel=0.02), "N(0, 0.01)"
    assert torch.equal(torch.get_rng_state(), state)


def test_the_default_keeps_torchs_weights_and_biases_of_0_for_every_norm():
    models = {norm: build_draw(Config(norm=norm, glimpses=2, hidden=64)) for norm in ("none", "layer")}
    for name, parameter in models["none"].named_parameters():
        assert torch.equal(parameter, models["layer"].get_parameter(name)), name
        if "bias" in name:
            assert not parameter.any(), name
    bound = models["layer"].encoder.weight_hh.abs().max().item()
    assert bound == pytest.approx(1 / 64**0.5, rel=1e-2), "U(+-1 / sqrt(H))"


def test_the_authors_cell_has_weights_and_biases_by_each_maps_inputs():
    models = {norm: build_draw(Config(norm=norm, glimpses=2, hidden=64, initial="source"))
              for norm in ("none", "layer", "weight")}  # fmt: skip
    for layer, kind, inputs in (("decoder", "_ih", 100), ("decoder", "_hh", 64), ("encoder", "_ih", 72),
                                ("posterior", "", 64), ("attention.linear", "", 64)):  # fmt: skip
        for name in (f"weight{kind}", f"bias{kind}"):
            values = {norm: getattr(model.get_submodule(layer), name) for norm, model in models.items()}
            torch.testing.assert_close(values["none"], values["weight"], rtol=1e-6, atol=1e-9)
            assert torch.equal(values["none"], values["layer"]), (layer, name)
            assert values["none"].abs().max().item() == pytest.approx(inputs**-0.5, rel=0.1), "U(+-1 / sqrt(inputs))"
    assert not models["layer"].decoder.bias_c.any(), "the norm's own bias is 0"
    with pytest.raises(ValueError, match="--deviation takes the place of --initial source"):
        Config(initial="source", deviation=0.1)


def test_weight_norm_starts_as_the_network_without():
    x, noise = torch.rand(2, 784).round(), torch.randn(2, 2, 100)
    bounds = []
    for norm in ("none", "weight"):
        model = build_draw(Config(norm=norm, seed=3, glimpses=2, hidden=64))
        parts = model(x, noise)
        bounds.append((parts.kl + parts.reconstruction).detach())
        (parts.kl + parts.reconstruction).sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
    torch.testing.assert_close(*bounds, rtol=1e-5, atol=0)  # direction and length multiply to the same weights
