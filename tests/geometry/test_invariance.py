"""Table 1, measured."""

import pytest
import torch

import layernorm as ln
from layernorm import geometry as geo

# Table 1 as printed: I = invariant, - = no. RMS norm and none are not in it: theirs follow from the equations.
TABLE_1 = {"batch": "I-III-", "weight": "I-I---", "layer": "II-I-I", "rms": "I--I-I", None: "------"}
ROUNDING = 1e-13  # of float64: about 1e-15 a sum, times the cancellation of a re-centring by up to 100


def layer(H=7, I=4, B=9, seed=3):  # noqa: E741
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(s, generator=g, dtype=torch.float64) for s in ((H, I), (B, I), (H,), (H,)))


def test_all_verdicts_are_the_papers():
    found: dict = {}
    for v in geo.invariance_table():
        found[v.norm] = found.get(v.norm, "") + ("I" if v.invariant else "-")
        assert v.residual < ROUNDING or v.residual > 0.1, "between rounding and a change of the output's own size"
        assert not v.differs
        assert (v.paper is None) == (v.norm in ("rms", None))
    assert found == TABLE_1


@pytest.mark.parametrize("norm", TABLE_1)
@pytest.mark.parametrize("delta", [1e-3, 0.5, 100.0])
def test_verdicts_hold_for_other_layers_and_scales(norm, delta):
    W, X, gain, bias = layer()
    for mark, name in zip(TABLE_1[norm], geo.TRANSFORMS, strict=True):
        # a re-centring of W beside delta W cancels shift/delta of a's digits
        tolerance = ROUNDING * max(1, 1 / delta)
        residual = geo.invariance(norm, name, W, X, gain=gain, bias=bias, delta=delta)
        assert residual < tolerance if mark == "I" else residual > 1e-3, (name, residual)


@pytest.mark.parametrize("norm", ["batch", "weight", "layer", "rms"])
def test_a_bias_before_the_norm_costs_all_but_batch_norm_its_re_scalings(norm):
    W, X, inside, _ = layer()
    for name in ("weight matrix re-scaling", "dataset re-scaling"):
        if norm == "weight" and name == "dataset re-scaling":
            continue  # no invariance to lose
        assert geo.invariance(norm, name, W, X) < ROUNDING
        residual = geo.invariance(norm, name, W, X, bias_inside=inside)
        assert residual < ROUNDING if norm == "batch" else residual > 0.05


def test_eps_breaks_a_re_scaling_by_half_of_eps_over_the_variance():
    W, X, _, _ = layer(B=1)
    variance = float((X @ W.T).var(unbiased=False))
    for eps in (1e-5, 1e-4):
        residual = geo.invariance("layer", "dataset re-scaling", W, X, eps=eps, delta=2.0)
        expected = eps / variance / 2 * (1 - 1 / 4)
        assert residual == pytest.approx(expected, rel=10 * eps / variance)  # the next order of eps
    assert any(v.differs for v in geo.invariance_table(eps=1e-5))


def test_no_norm_is_invariant_to_re_centring_a_single_case():
    W, X, _, _ = layer(B=1)
    for norm in ("weight", "layer", "rms", None):
        assert geo.invariance(norm, geo.CASE_RECENTRING, W, X) > 0.1
    W, X, _, _ = layer()
    assert geo.invariance("batch", geo.CASE_RECENTRING, W, X) > 0.1
    W[:, 0] = 0.7  # but where w_i^T shift is the same for all units, layer norm takes it away
    shift = torch.tensor([5.0, 0, 0, 0])
    assert geo.invariance("layer", geo.CASE_RECENTRING, W, X, shift=shift) < ROUNDING
    assert geo.invariance("rms", geo.CASE_RECENTRING, W, X, shift=shift) > 0.1


def test_a_negative_scale_turns_the_outputs_sign():
    W, X, _, _ = layer()
    mirror = geo.Transform("mirror", "x' = -x", lambda W, X, delta, shift: (W, -X))
    for norm in TABLE_1:
        assert geo.invariance(norm, mirror, W, X) == pytest.approx(2, rel=1e-14)


def test_the_residual_is_the_outputs_relative_change_with_gain_and_bias():
    W, X, gain, bias = layer()
    y, moved = (torch.nn.functional.layer_norm(x @ W.T, (7,), gain, bias, 0.0) for x in (X, X + 2))
    found = geo.invariance("layer", "dataset re-centring", W, X, gain=gain, bias=bias, shift=torch.full((4,), 2.0))
    assert found == pytest.approx(float((moved - y).norm() / y.norm()), rel=1e-12)  # rounding


@pytest.mark.parametrize("eps", [1e-12, 1e-3])  # torch refuses 0
def test_the_norms_are_torchs(eps):
    W, X, _, _ = layer()
    a = X @ W.T
    expected = {
        "layer": torch.nn.functional.layer_norm(a, (7,), eps=eps),
        "rms": torch.nn.functional.rms_norm(a, (7,), eps=eps),
        "batch": torch.nn.functional.batch_norm(a, None, None, training=True, eps=eps),
        "weight": X @ (W / (W.square().sum(1, keepdim=True) + eps).sqrt()).T,
        None: a,
    }
    for norm, y in expected.items():
        torch.testing.assert_close(geo.normalized(W, X, norm, eps), y, rtol=1e-13, atol=1e-13)  # rounding


def test_the_transforms_are_table_1s_and_leave_their_arguments_alone():
    W, X, _, _ = layer()
    shift = torch.arange(1.0, 5).double()
    changed = {name: t.apply(W.clone(), X.clone(), 3.0, shift) for name, t in geo.TRANSFORMS.items()}
    first = torch.ones(9, 1, dtype=torch.float64)
    first[0] = 3
    expected = [(3 * W, X), (3 * W + shift, X), (first[:7] * W, X), (W, 3 * X), (W, X + shift), (W, first * X)]
    for (name, (w, x)), (w2, x2) in zip(changed.items(), expected, strict=True):
        assert w.equal(w2), name
        assert x.equal(x2), name
    before = W.clone(), X.clone()
    for name in geo.TRANSFORMS:
        geo.invariance("layer", name, W, X)
    assert W.equal(before[0])
    assert X.equal(before[1])


def test_the_text_shows_a_verdict_that_differs():
    wrong = geo.Verdict("layer", "dataset re-scaling", 0.3, True)
    right = geo.Verdict("rms", "dataset re-scaling", 1e-16, None)
    assert wrong.differs
    text = geo.invariance_text([right, wrong]).splitlines()
    assert text[1].split() == ["rms", "dataset", "re-scaling", "1.0e-16", "invariant", "-"]
    assert text[2].split() == ["layer", "dataset", "re-scaling", "3.0e-01", "no", "invariant", "DIFFERS"]
    assert max(map(len, text)) <= 80


def test_geometry_is_part_of_the_library():
    assert ln.geometry is geo
    with pytest.raises(AttributeError, match="'layernorm' has no attribute 'topology'"):
        _ = ln.topology


@pytest.mark.parametrize(("residual", "differs"), [(1e-15, (False, True)), (1e-6, (True, True)), (0.5, (True, False))])
def test_a_residual_between_rounding_and_a_change_is_no_verdict(residual, differs):
    verdicts = [geo.Verdict("layer", "dataset re-scaling", residual, paper) for paper in (True, False)]
    assert tuple(v.differs for v in verdicts) == differs
    assert not geo.Verdict("rms", "dataset re-scaling", residual, None).differs
    assert verdicts[0].measured == {1e-15: "invariant", 1e-6: "neither", 0.5: "no"}[residual]
