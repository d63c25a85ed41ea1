"""The feed-forward modules against torch's, and batch norm with the unbiased variance against its equation."""

import pytest
import torch

import layernorm as ln


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"elementwise_affine": False}, {"eps": 0.1}])
@pytest.mark.parametrize("shape", [(7,), (2, 7)])
def test_layer_norm_is_torchs(shape, options):
    theirs, ours = (module(shape, dtype=torch.float64, **options) for module in (torch.nn.LayerNorm, ln.LayerNorm))
    compare(theirs, ours, torch.randn(5, 3, 2, 7, dtype=torch.float64))


@pytest.mark.parametrize("options", [{}, {"elementwise_affine": False}, {"eps": 0.1}])
def test_rms_norm_is_torchs(options):
    theirs, ours = (module((2, 7), dtype=torch.float64, **options) for module in (torch.nn.RMSNorm, ln.RMSNorm))
    compare(theirs, ours, torch.randn(5, 3, 2, 7, dtype=torch.float64))


def compare(theirs, ours, x):
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(torch.randn_like(p))
    ours.load_state_dict(theirs.state_dict())
    results = []
    for module in (ours, theirs):
        leaf = x.clone().requires_grad_()
        y = module(leaf)
        results.append([y, *torch.autograd.grad(y.pow(3).sum(), [leaf, *module.parameters()])])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("momentum", [0.3, None])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2)])
def test_unbiased_batch_norm(shape, momentum, affine):
    ours = ln.BatchNorm(3, momentum=momentum, affine=affine, dtype=torch.float64, unbiased=True)
    theirs = ln.BatchNorm(3, momentum=momentum, affine=affine, dtype=torch.float64)
    if affine:
        with torch.no_grad():
            ours.weight.normal_()
            ours.bias.normal_()
        theirs.load_state_dict(ours.state_dict())
    for _ in range(3):
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        dims = [0] if x.dim() == 2 else [0, 2]
        mean, var = x.mean(dims, keepdim=True), x.var(dims, correction=1, keepdim=True)
        expected = (x - mean) / (var + 1e-5).sqrt()
        if affine:
            tail = (1,) * (x.dim() - 2)
            expected = expected * ours.weight.view(-1, *tail) + ours.bias.view(-1, *tail)
        y = ours(x)
        torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
        g = torch.randn_like(y)
        for a, b in zip(*(torch.autograd.grad(o, x, g) for o in (y, expected)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
        theirs(x)
        for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
            torch.testing.assert_close(a, b)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


@pytest.mark.parametrize("unbiased", [False, True])
def test_statistics_that_are_not_tracked_any_more_stay(unbiased):
    norm, x = ln.BatchNorm(3, unbiased=unbiased), torch.randn(4, 3)
    expected = norm(x)
    before = [buffer.clone() for buffer in norm.buffers()]
    norm.track_running_stats = False
    assert torch.equal(norm(x), expected)
    for now, then in zip(norm.buffers(), before, strict=True):
        assert torch.equal(now, then)


def test_batch_norm_refuses_a_single_case():
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        ln.BatchNorm(3, unbiased=True)(torch.randn(1, 3))
    with pytest.raises(ValueError, match="expected 2D or 3D input"):
        ln.BatchNorm(3, unbiased=True)(torch.randn(4))


@pytest.mark.parametrize("affine", [True, False])
def test_unbiased_batch_norm_under_autocast_and_without_cases(affine):
    norm = ln.BatchNorm(3, affine=affine, unbiased=True)
    x = torch.randn(4, 3).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(x).dtype == torch.bfloat16
    one_rounding = 2.0**-7  # of bfloat16, near 1
    torch.testing.assert_close(norm(x).float(), norm(x.float()), atol=one_rounding, rtol=one_rounding)
    assert norm(torch.randn(0, 3)).shape == (0, 3)
