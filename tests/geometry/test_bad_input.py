"""Bad input to `layernorm.geometry`: an error that names the argument, what was given and what is expected."""

import pytest
import torch

from layernorm import geometry as geo
from support.drawing import normal

NAN = float("nan")
W, B, G, X, D = normal(4, 3), normal(4, seed=1), normal(4, seed=2), normal(6, 3, seed=3), normal(4, seed=4)
P = {"weight": W, "bias": B, "gain": G}
MODEL = geo.normalized_glm("layer")
LAYER = {  # every function of a layer, as ``f(weight, inputs, norm, eps)``
    "invariance": lambda W, X, norm, eps: geo.invariance(norm, "dataset re-scaling", W, X, bias=B, eps=eps),
    "fisher_normalized": lambda W, X, norm, eps: geo.fisher_normalized(W, B, G, X, "poisson", norm, eps=eps),
    "exact": lambda W, X, norm, eps: geo.fisher_normalized(W, B, G, X, "poisson", norm, form="exact", eps=eps),
    "block_form_gap": lambda W, X, norm, eps: geo.block_form_gap(W, B, G, X, "poisson", norm, eps=eps),
    "curvature_ratio": lambda W, X, norm, eps: geo.curvature_ratio(W, B, G, X, "poisson", norm, 2.0, eps=eps),
    "gain_metric": lambda W, X, norm, eps: geo.gain_metric(W, B, G, X, "poisson", norm, D, eps=eps),
}
MODELS = {  # every function of a model, as ``f(model, parameters, delta, inputs)``
    "kl": lambda m, p, d, x: geo.kl(m, p, d, x, "poisson"),
    "quadratic_form": lambda m, p, d, x: geo.quadratic_form(m, p, d, x, "poisson"),
    "fisher_vector_product": lambda m, p, d, x: geo.fisher_vector_product(m, p, d, x, "poisson"),
    "fisher": lambda m, p, d, x: geo.fisher(m, p, x, "poisson"),
    "fisher_hessian": lambda m, p, d, x: geo.fisher_hessian(m, p, x, "poisson"),
    "fisher_monte_carlo": lambda m, p, d, x: geo.fisher_monte_carlo(m, p, x, "poisson", 10),
    "neuron_blocks": lambda m, p, d, x: geo.neuron_blocks(m, p, x, "poisson", "weight"),
}


def flat_direction():
    """Rank-deficient data: all cases in a plane beside the origin, and a unit at a right angle to the plane."""
    weights = W.clone()
    weights[2] = torch.tensor([1.0, 2.0, -2.0])
    inputs = X - (X @ weights[2])[:, None] * weights[2] / 9 + weights[2]
    return weights, inputs


ZERO = {
    "equal cases": ("batch", W, X[:1].expand(6, 3), "unit 0"),
    "a unit without weights": ("batch", torch.cat([W[:3], 0 * W[:1]]), X, "unit 3"),
    "a unit at a right angle to the data": ("batch", *flat_direction(), "unit 2"),
    "no weights, weight norm": ("weight", torch.cat([W[:3], 0 * W[:1]]), X, "unit 3"),
    "equal units": ("layer", W[:1].expand(4, 3), X, "case 0"),
    "a case of zeros": ("layer", W, torch.cat([X[:2], 0 * X[:1]]), "case 2"),
    "a case of zeros, rms": ("rms", W, torch.cat([X[:2], 0 * X[:1]]), "case 2"),
}


@pytest.mark.parametrize("function", LAYER)
@pytest.mark.parametrize("case", ZERO)
def test_a_sigma_of_zero_is_refused_and_eps_allows_it(function, case):
    norm, weight, inputs, which = ZERO[case]
    message = f"sigma under norm='{norm}' is zero up to rounding for {which}: give an eps > 0"
    with pytest.raises(ValueError, match=message):
        LAYER[function](weight, inputs, norm, 0.0)
    if function != "curvature_ratio":  # a curvature may be zero there
        LAYER[function](weight, inputs, norm, 1e-3)


def test_rank_deficient_data_give_rank_deficient_matrices():
    """Not an error: two different cases span a plane in (x, 1), so each unit's block has rank 2."""
    F = geo.fisher_glm(W, B, X[:2].repeat(3, 1), "gaussian")
    assert torch.linalg.matrix_rank(F, hermitian=True) == 4 * 2


def test_batch_norms_sigma_of_nearly_equal_cases_keeps_its_digits():
    """The deviation is a millionth of the mean; w^T covariance w would have lost half of its digits."""
    weights, inputs = flat_direction()
    inputs = inputs + 1e-6 * normal(6, 1, seed=8) * weights[2]
    blocks = geo.fisher_normalized(weights, B, G, inputs, "gaussian", "batch")
    exact = geo.fisher_normalized(weights, B, G, inputs, "gaussian", "batch", form="exact")
    torch.testing.assert_close(blocks, exact, rtol=1e-7, atol=1e-7 * float(exact.abs().max()))


@pytest.mark.parametrize("function", LAYER)
def test_too_few_cases_or_units_and_other_norms(function):
    with pytest.raises(ValueError, match=r"batch norm needs two cases or more, got inputs of shape \(1, 3\)"):
        LAYER[function](W, X[:1], "batch", 0.0)
    with pytest.raises(ValueError, match=r"expected norm to be one of .* got 'bath'"):
        LAYER[function](W, X, "bath", 0.0)
    for eps in (-1.0, NAN):
        with pytest.raises(ValueError, match="expected eps to be finite and >= 0, got"):
            LAYER[function](W, X, "batch", eps)
    with pytest.raises(ValueError, match="expected weight to be finite"):
        LAYER[function](W * NAN, X, "batch", 0.0)


BAD_MODELS = {
    "NaN inputs": (MODEL, P, P, X * NAN, ValueError, "the result is not finite: parameters, step or inputs are not"),
    "NaN weight": (MODEL, {**P, "weight": W * NAN}, P, X, ValueError, "the result is not finite"),
    "overflow": (lambda p, x: 1e4 * x @ p["weight"].T, P, P, X, ValueError, "or the family overflows"),
    "no cases": (lambda p, x: x @ p["weight"].T, P, P, X[:0], ValueError, r"\(B, H\), not empty, got \(0, 4\)"),
    "no dict": (MODEL, [W], [W], X, TypeError, "expected parameters to be a dict of tensors, got list"),
    "a module": (MODEL, torch.nn.Linear(3, 4), P, X, TypeError, "expected parameters .* got Linear"),
    "no parameters": (MODEL, {}, {}, X, ValueError, "expected parameters .* got an empty one"),
    "integers": (MODEL, {**P, "bias": B.long()}, P, X, TypeError, r"parameters\['bias'\] .* got torch.int64"),
    "lists": (MODEL, {**P, "bias": [1.0]}, P, X, TypeError, r"parameters\['bias'\] to be a Tensor .* got list"),
}


@pytest.mark.parametrize("function", MODELS)
@pytest.mark.parametrize("case", BAD_MODELS)
def test_models(function, case):
    *arguments, error, message = BAD_MODELS[case]
    with pytest.raises(error, match=message):
        MODELS[function](*arguments)


@pytest.mark.parametrize("function", ["kl", "quadratic_form", "fisher_vector_product"])
def test_steps(function):
    for delta, error, message in (
        ({**P, "bias": B.float()}, TypeError, r"\['bias'\] of type torch.float64, got torch.float32"),
        ({**P, "bias": B * NAN}, ValueError, "not finite: parameters, step or inputs"),
        ([B], TypeError, "to be a dict of tensors, got list"),
    ):
        with pytest.raises(error, match=message):
            MODELS[function](MODEL, P, delta, X)


def square(w):
    return w.square().sum()


def same(v):
    return v


def nowhere(v):
    return {name: tensor * NAN for name, tensor in v.items()}


def product(vector):
    return geo.fisher_vector_product(MODEL, P, vector, X, "gaussian")


def exact(weight, form):
    return geo.fisher_normalized(weight, B, G, X, "gaussian", "layer", form=form)


def ratio(norm, scale, **more):
    return geo.curvature_ratio(W, B, G, X, "gaussian", norm, scale, **more)


def by_scale(scales, family="gaussian"):
    return geo.gain_metric_by_scale(W, B, G, X, family, D, scales)


SCALED = "dataset re-scaling"


def table(transform=SCALED, *layer, **more):
    return geo.invariance("layer", transform, *layer, **more)


WIDE = {"weight": torch.zeros(100, 100), "bias": torch.zeros(100)}
OTHERS = [
    # Fisher matrices
    (lambda: geo.kl(MODEL, P, {"bias": B}, X, "gaussian"), ValueError, r"\['bias', 'gain', 'weight'\], got \['bias'\]"),
    (lambda: product({**P, "gain": B[:3]}), ValueError, r"vector\['gain'\] of shape \(4,\), got \(3,\)"),
    (lambda: geo.fisher(lambda p, x: x.sum(), P, X, "gaussian"), ValueError, r"\(B, H\), not empty, got \(\)"),
    (lambda: geo.fisher_monte_carlo(MODEL, P, X, "gaussian", 1), ValueError, "samples to be 2 or more, got 1"),
    (lambda: geo.fisher_glm(W, B[:2], X, "gaussian"), ValueError, r"bias of shape \(4\), not empty, got \(2,\)"),
    (lambda: geo.fisher_glm(W, B, X, "gamma"), ValueError, "a Family or one of gaussian, .*, got 'gamma'"),
    (lambda: geo.gaussian(0.0), ValueError, "expected variance to be finite and > 0, got 0"),
    (lambda: exact(W, "half"), ValueError, "expected form to be 'blocks' or 'exact', got 'half'"),
    (lambda: exact(W[:3], "exact"), ValueError, r"bias of shape \(3\), not empty, got \(4,\)"),
    (lambda: geo.fisher_normalized(W, B, G[:3], X, "gaussian", "layer"), ValueError, r"gain of shape \(4\), not empty"),
    (
        lambda: geo.fisher_normalized(WIDE["weight"], WIDE["bias"], WIDE["bias"], WIDE["weight"], "gaussian", None),
        ValueError,
        "use fisher_vector_product with normalized_glm, which never forms it",
    ),
    (lambda: geo.normalized_glm("group"), ValueError, "expected norm to be one of .* got 'group'"),
    # curvature
    (lambda: ratio(None, 2.0), ValueError, "without one the output changes"),
    (lambda: ratio("batch", 2.0, unit=4), ValueError, "expected unit to be one of 0 to 3, got 4"),
    (lambda: ratio("batch", 0.0), ValueError, "expected scale to be finite and > 0, got 0"),
    (lambda: by_scale([-1.0]), ValueError, "expected scales to be finite and > 0, got -1"),
    (lambda: by_scale([1e4], "poisson"), ValueError, "not finite: a deviation is zero or the family overflows"),
    (lambda: geo.gain_metric(W, B, G, X, "gaussian", "layer", D[:3]), ValueError, r"delta of shape \(4\), .* \(3,\)"),
    (lambda: geo.step_angles(square, W, 1.0, 0), ValueError, "expected steps to be 1 or more, got 0"),
    # the largest eigenvalue
    (lambda: geo.neuron_blocks(MODEL, P, X, "gaussian", "gains"), ValueError, r"one of \['weight', .*\], got 'gains'"),
    (lambda: geo.power_iteration(dict, P, iterations=0), ValueError, "iterations to be 1 or more, got 0"),
    (lambda: geo.power_iteration(dict, P, tolerance=0.0), ValueError, "tolerance to be finite and > 0, got 0"),
    (lambda: geo.power_iteration(dict, {}), ValueError, "got an empty one"),
    (lambda: geo.power_iteration(lambda v: {}, P), ValueError, r"product\(v\) to be a dict of tensors, got an empty"),
    (lambda: geo.power_iteration(nowhere, P), ValueError, r"product\(v\) to be finite"),
    # Table 1
    (lambda: table("shearing"), ValueError, "expected transform to be a Transform or one of .*, got 'shearing'"),
    (lambda: table(SCALED, W), ValueError, "weight and inputs, or neither"),
    (lambda: table(SCALED, W, X[:, :2]), ValueError, r"inputs of shape \(B, 3\).*\(6, 2"),
    (lambda: table(SCALED, W[:1], X), ValueError, "layer norm needs two units"),
    (lambda: table(SCALED, W[:0], X), ValueError, "not empty"),
    (lambda: table(delta=-1.0), ValueError, "delta to be finite and > 0, got -1"),
    (lambda: table(delta="3"), TypeError, "expected delta to be a number, got str"),
    (lambda: table(gain=torch.ones(3)), ValueError, r"gain of shape \(6\).*got \(3,\)"),
    (lambda: table(gain=[1.0]), TypeError, "expected gain to be a Tensor, got list"),
    (lambda: table(gain=torch.ones(6).long()), TypeError, r"gain of a floating-point type, got torch\.int64"),
    (lambda: table(bias=torch.full((6,), NAN)), ValueError, "bias to be finite"),
    (lambda: table(shift=torch.ones(2)), ValueError, r"shift of shape \(5\)"),
    # others
    (lambda: geo.fisher_glm(W, B, X, ["gaussian"]), ValueError, "expected family to be a Family or one of"),
    (lambda: geo.fisher_glm(1e4 * W, B, X, "poisson"), ValueError, "the family overflows"),
    (lambda: geo.invariance("layer", ["x"]), ValueError, "expected transform to be a Transform or one of"),
    (lambda: geo.invariance("layer", "dataset re-scaling", W, X, gain=0 * G), ValueError, "of gain and bias, is zero"),
    (lambda: geo.normalized(W.tolist(), X, None), TypeError, "expected weight to be a Tensor, got list"),
    (lambda: geo.normalized(W.long(), X, None), TypeError, "expected weight of a floating-point type"),
    (lambda: geo.normalized(W, X[:, :2], "rms"), ValueError, r"inputs of shape \(B, 3\), not empty, got \(6, 2\)"),
    (lambda: geo.normalized(W, X, "layer", -1.0), ValueError, "expected eps to be finite and >= 0, got -1.0"),
    (lambda: geo.normalized(W, X, "layer", 0.0, B[:1]), ValueError, r"bias_inside of shape \(4\), .* got \(1,\)"),
    (lambda: geo.curvature_ratio(W, B, 0 * G, X, "gaussian", "batch", 2.0), ValueError, "of unit 0, .* is zero"),
    (lambda: geo.curvature_ratio(W, B, G, X, "gaussian", "rms", 2.0, unit=1.5), TypeError, "unit to be an int, got"),
    (lambda: geo.block_form_gap(W[:1], B[:1], G[:1], X, "categorical", None), ValueError, "Fisher matrix is zero"),
    (lambda: geo.gain_metric_by_scale(W, B, G, X, "gaussian", D, []), ValueError, "scales to be numbers, got none"),
    (lambda: geo.step_angles(square, W, 0.1, 1.5), TypeError, "expected steps to be an int, got float"),
    (lambda: geo.step_angles(square, torch.cat([W, 0 * W]), 0.1), ValueError, "step 0 has no angle for unit 4"),
    (lambda: geo.step_angles(square, W, 0.5), ValueError, "its weights are zero or not finite"),
    (lambda: geo.fisher_monte_carlo(MODEL, P, X, "gaussian", 2.5), TypeError, "samples to be an int, got float"),
    (lambda: geo.neuron_blocks(MODEL, P, X, "gaussian", ["weight"]), ValueError, "expected name to be one of"),
    (lambda: geo.power_iteration(same, P, iterations=1.5), TypeError, "iterations to be an int, got float"),
    (lambda: geo.power_iteration(same, [W]), TypeError, "expected parameters to be a dict of tensors, got list"),
    (lambda: geo.power_iteration(lambda v: W, P), TypeError, r"expected product\(v\) to be a dict .* got Tensor"),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(OTHERS)))
def test_others(index):
    call, error, message = OTHERS[index]
    with pytest.raises(error, match=message):
        call()
