"""The claims of section 5: what is measured is what independent sums expect, and their renderings say all of them."""

import re

import pytest
import torch

from layernorm import geometry as geo
from layernorm_lab.theory.claims import CLAIMS as ALL
from layernorm_lab.theory.claims import SPECTRUM
from layernorm_lab.theory.measured import Data

DATA = Data(torch.rand(40, 64, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 10)
CLAIMS = {claim.name: claim for claim in ALL}


@pytest.fixture(scope="module")
def found():
    return {name: claim.measure(0, DATA) for name, claim in CLAIMS.items()}


def column(measured, name):
    """A column by the first two of its row."""
    at = list(measured.columns).index(name)
    return {row[:2]: row[at] for row in measured.rows}


def test_every_claim_is_as_stated_and_its_table_is_whole(found):
    assert all(measured.as_stated for measured in found.values())
    assert {name for name, claim in CLAIMS.items() if not claim.holds} == {"blocks", "curvature", "prediction"}
    for claim in (*ALL, SPECTRUM):
        assert all(hasattr(geo, name) for name in claim.functions)
    for measured in found.values():
        assert {len(row) for row in measured.rows} == {len(measured.columns)}


@pytest.mark.long
def test_the_same_seed_gives_the_same_numbers(found):
    for name in ("fisher", "prediction"):
        assert CLAIMS[name].measure(0, DATA).rows == found[name].rows
        assert CLAIMS[name].measure(1, DATA).rows != found[name].rows


def test_kl_goes_to_its_quadratic_form_with_order_one(found):
    orders = column(found["quadratic"], "order")
    assert orders.pop(("gaussian", "none")) == "exact"
    assert len(orders) == 19
    assert all(order == pytest.approx(1, abs=0.05) for order in orders.values())
    assert all(1e-7 < off < 1e-3 for key, off in column(found["quadratic"], "1e-04").items() if key in orders)


def test_the_gap_of_eq_13_is_the_shared_statistics(found):
    exponents = column(found["blocks"], "exponent")
    for (family, norm), exponent in exponents.items():
        if norm in ("layer", "rms"):
            assert -0.7 < exponent < -0.2, (family, norm)
        else:
            assert exponent == "exact"


def test_in_the_spectral_norm_the_gap_of_eq_13_stays(found):
    """Under the Gaussian's layer norm, where the Frobenius norm's falls by a half with each column."""
    frobenius, spectral = (
        [column(found["blocks"], f"{name}{H}")["gaussian", "layer"] for H in (4, 16, 64)]
        for name in ("H = ", "2-norm, ")
    )
    assert frobenius[2] < 0.4 * frobenius[0]
    assert min(spectral) > 0.25
    assert "of the largest eigenvalue at H = 64" in found["blocks"].found


def test_the_cross_blocks_of_independent_outputs_are_0(found):
    assert "the paper's, are 0e+00 of the matrix under batch and weight norm" in found["curvature"].found


def test_curvature_falls_as_the_sigmas_say(found):
    own, cross = (column(found["curvature"], f"exp. {block}") for block in ("F_ii", "F_ij"))
    assert all(value == pytest.approx(-2, abs=1e-9) for value in own.values())
    expected = {("w_i", "batch"): -1, ("w_i", "weight"): -1, ("W", "layer"): -2, ("W", "rms"): -2}
    assert cross == pytest.approx(expected, abs=1e-9)


def test_training_turns_long_weights_less(found):
    """Also with other data than the digits: it is the norm's doing."""
    angle = column(found["training"], "first angle")
    for norm in ("batch", "weight", "layer", "rms"):
        assert angle["1", norm] / angle["8", norm] == pytest.approx(64, rel=0.05)  # the arc tangent's third order
    assert angle["1", "none"] / angle["8", "none"] < 10
    by_adam = column(found["training"], "Adam's")
    for norm in ("batch", "weight", "layer", "rms", "none"):
        assert by_adam["1", norm] / by_adam["8", norm] == pytest.approx(8, rel=0.1), "Adam's step has one length"
    grew = column(found["training"], "grew with")
    assert {said for (_, norm), said in grew.items() if norm != "none"} == {"every step"}


def test_gains_under_weight_norm_are_the_standard_models(found):
    stated = {"batch": 0, "layer": 0, "rms": 0, "weight": 2, "none": 2}
    exponents = {key[1]: value for key, value in column(found["gain"], "exponent").items()}
    assert exponents == pytest.approx(stated, abs=1e-9)
    for scale in ("1e-3", "1", "1e3"):
        values = {key[1]: value for key, value in column(found["gain"], scale).items()}
        assert values["weight"] == pytest.approx(values["none"], rel=1e-12)


def test_eq_32_by_hand(found):
    """Four Gaussian outputs, a step of 1 in each gain, z of mean square 1: 4/2 both ways."""
    ratio = column(found["prediction"], "ratio")
    assert column(found["prediction"], "ds^2")["gaussian", "batch"] == pytest.approx(2, rel=1e-12)
    assert ratio["gaussian", "batch"] == pytest.approx(1, rel=1e-12)
    assert all(abs(value - 1) > 0.01 for key, value in ratio.items() if key[0] != "gaussian")
    assert ratio["categorical", "batch"] == 0  # the same step in every gain
    low, high = map(float, re.search(r"random steps ([\d.]+) to ([\d.]+)", found["prediction"].found).groups())
    assert 0.5 < low < high < 3  # no other direction goes to 0


def test_power_iteration_is_the_dense_matrixs(found):
    assert max(column(found["deep"], "off").values()) < 1e-6
    assert max(column(found["deep"], "blocks").values()) < 1e-12


def test_a_layers_eigenvalue_as_spectrum_finds_it():
    """The claim's own network is large; here its product on one layer of a small one, against the dense matrix."""
    g = torch.Generator().manual_seed(0)
    W = {k: torch.randn(4, 4, generator=g, dtype=torch.float64) for k in "ab"}
    X = torch.randn(9, 4, generator=g, dtype=torch.float64)

    def model(p, x):
        return torch.relu(geo.normalized(p["a"], x, "layer")) @ W["b"].T

    own = {"a": W["a"]}
    found = geo.power_iteration(lambda v: geo.fisher_vector_product(model, own, v, X, "categorical"), own, generator=g)
    expected = torch.linalg.eigvalsh(geo.fisher(model, own, X, "categorical"))[-1]
    assert found.value == pytest.approx(float(expected), rel=1e-6)
