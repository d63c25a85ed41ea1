"""int8 weights in the CPU engine: the sums are whole numbers, the same bits on every instruction set."""

import pytest
import torch

import layernorm as ln
from support.networks import int8
from support.threads import threads

pytest.importorskip("layernorm.engines.native", exc_type=ImportError)

pytestmark = pytest.mark.usefixtures("instruction_set")

TYPES = [torch.float32, torch.float64]


def rounded(x):
    """Whole numbers and the scale of each row, as `quantize` says."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.where(scale >= torch.finfo(x.dtype).tiny, x * (1 / scale), 0.0).round().long(), scale


def product(x, weight):
    """x W^T of numbers rounded to int8, with sums in int64."""
    (a, of_a), (w, of_w) = rounded(x), rounded(weight)
    return (a @ w.T).to(x.dtype) * (of_a * of_w.T)


def adding(I, H, dtype):  # noqa: E741
    """A network whose output is relu(W_ih x + W_hh h), for both signs of every row of the weights."""
    net = ln.RNN(I, 2 * H, norm=None, bias=False, nonlinearity="relu", dtype=dtype).eval()
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(torch.cat([rows := torch.randn(H, weight.shape[1], dtype=dtype), -rows]))
    return net


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    ("T", "B", "I", "H"), [(1, 1, 64, 8), (1, 1, 1, 1), (3, 1, 130, 33), (5, 9, 63, 5), (2, 37, 65, 16), (1, 4, 200, 7)]
)
def test_the_products_are_those_of_int64(T, B, I, H, dtype):  # noqa: E741
    """To the last bit: lengths around the vectors', rows around the tiles', more rows than are rounded at a time."""
    torch.manual_seed(0)
    net = adding(I, H, dtype)
    quantized, zeros = int8(net), torch.zeros(1, B, 2 * H, dtype=dtype)
    x = torch.randn(T, B, I, dtype=dtype) * torch.logspace(-30, 30, T * B, dtype=dtype).view(T, B, 1)
    for t in range(T):
        output, _ = quantized(x[t : t + 1], zeros)
        assert torch.equal(output[0], product(x[t], net.weight_ih_l0).relu())
    h = torch.randn(1, B, 2 * H, dtype=dtype)
    output, _ = quantized(torch.zeros(1, B, I, dtype=dtype), h)
    assert torch.equal(output[0], product(h[0], net.weight_hh_l0).relu())
    if T > 1:  # the products of all steps together are those of each
        steps = [quantized(x[t : t + 1], zeros)[0] for t in range(T)]
        net.weight_hh_l0.data.zero_()
        assert torch.equal(int8(net)(x)[0], torch.cat(steps))


def test_the_largest_sums_fit():
    """127 * 127 as often as 32 bits hold it; one more is refused."""
    most = 133_144
    net = ln.RNN(most, 1, norm=None, bias=False, nonlinearity="relu").eval()
    torch.nn.init.constant_(net.weight_ih_l0, 0.5)
    output, _ = int8(net)(torch.ones(1, 1, most))
    assert output.item() == pytest.approx(0.5 * most, rel=1e-6)
    output, _ = int8(net)(-torch.ones(1, 1, most))
    assert output.item() == 0.0
    with pytest.raises(ValueError, match="more than 133144 inputs or units"):
        int8(ln.RNN(most + 1, 1, norm=None))


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_a_number_that_is_not_finite_reaches_its_own_row_alone(wrong):
    net = int8(ln.LSTM(40, 24).eval())
    x = torch.randn(4, 3, 40)
    expected, _ = net(x)
    x[1, 1, 17] = wrong
    output, _ = net(x)
    assert output[1:, 1].isnan().all()
    output[1:, 1] = expected[1:, 1]
    assert torch.equal(output, expected)
    weight = ln.LSTM(40, 24, norm=None).eval()
    weight.weight_ih_l0.data[0, 3] = wrong  # of the input gate's first unit
    assert int8(weight)(torch.ones(1, 1, 40))[0].isnan().squeeze().tolist() == [True] + [False] * 23


@pytest.mark.parametrize("dtype", [*TYPES, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("network", "options"), [("LSTM", {}), ("LSTM", {"proj_size": 11}), ("GRU", {}), ("RNN", {})], ids=str
)
@pytest.mark.parametrize("norm", ["layer", "rms", None])
def test_networks_compute_what_the_reference_does(network, options, norm, dtype):
    """Over lengths and cuts, in both directions. Where a last bit turns over a rounding to int8, an output is off by a
    step of these: in half of all draws none does in float64."""
    torch.manual_seed(1)
    net = int8(getattr(ln, network)(33, 21, num_layers=2, bidirectional=True, norm=norm, dtype=dtype, **options).eval())
    x, lengths, reset = torch.randn(6, 4, 33, dtype=dtype), torch.tensor([6, 0, 2, 5]), torch.rand(6, 4) < 0.3
    found, state = net(x, lengths=lengths, reset=reset)
    with ln.backends.use("reference"):
        expected, expected_state = net(x, lengths=lengths, reset=reset)
    tolerance = 1e-12 if dtype == torch.float64 else 0.05
    for a, b in zip([found, *state], [expected, *expected_state], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


def test_threads_give_the_same_bits():
    torch.manual_seed(2)
    net, x = int8(ln.LSTM(300, 260).eval()), torch.randn(3, 1, 300)
    found = []
    for number in (1, 2, 3):
        with threads(number):
            found.append(net(x)[0])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_halves_are_rounded_to_even(dtype):
    """As by `torch.round`. Of a row whose largest number is 1, one of 0.5 is 63.5 steps."""
    torch.manual_seed(3)
    net = int8(ln.RNN(4, 16, norm=None, dtype=dtype).eval())
    x = torch.tensor([1, 0.5, -0.5, 0.25], dtype=dtype).view(1, 1, 4)
    found, _ = net(x)
    with ln.backends.use("reference"):
        expected, _ = net(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)  # a step of int8 is 2.6e-3
