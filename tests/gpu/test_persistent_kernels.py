"""The persistent kernels against the reference equations in float64, step by step; one program, and several at once.

The input side is given: W_ih x is x, W_ih the identity.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

gpu = pytest.importorskip("layernorm.gpu", exc_type=ImportError)

from triton.runtime import interpreter  # noqa: E402

from layernorm.engine import RecurrentArguments  # noqa: E402
from layernorm.formula import GATES, PLAIN, PRESETS, Recurrence  # noqa: E402
from layernorm.gpu import _persistent, _persistent_kernels  # noqa: E402
from layernorm.gpu._launch import Persistent  # noqa: E402
from layernorm.gpu._layer import LayerTensors  # noqa: E402
from layernorm.reference import _recurrent as reference  # noqa: E402

if gpu.INTERPRETED:
    import side_by_side

PAPER = PRESETS["paper"]
# Of the largest value there is. Float32: some ten roundings a step, and of sums of H terms. bfloat16: the weights, once
# more where they are centred, h and da as operands, what is saved; 2^-9 each, or twice that under the interpreter.
ERROR = {torch.float32: 64 * 2.0**-24, torch.bfloat16: 0.03, torch.float16: 0.004}


@pytest.fixture(autouse=True)
def poisoned():
    """What is allocated holds NaN: whatever is not written shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def one_program(H, B):
    """For each group of 16 rows: they never wait for one another."""
    return Persistent(max(16, 1 << (H - 1).bit_length()), 16, 1, -(-B // 16), 16, 2)


def several_programs(H, B):
    """The last slice of 33 units is one unit."""
    return Persistent(16, 16, -(-H // 16), -(-B // 16), 16, 2)


def two_launches(H, B):
    """Three groups of 16 rows: two in the first launch, one in the second."""
    return replace(one_program(H, B), launches=2)


class SideBySide:
    """A kernel that is launched in processes."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *args, **kwargs: side_by_side.run(self.kernel, grid, *args, jitter=3e-5, **kwargs)


@pytest.fixture
def at_once(monkeypatch):
    """Programs wait for one another: under the interpreter in processes side by side."""
    if gpu.INTERPRETED:
        for name in ("_forward", "_backward"):
            monkeypatch.setattr(_persistent_kernels, name, SideBySide(getattr(_persistent_kernels, name)))


@pytest.fixture
def products_by_element(monkeypatch):
    """Products in which a row's bits depend on that row alone. In a library's they depend on the processor, on how many
    rows there are and on its place among them: in torch's, which makes q of `Recalled`, and in NumPy's, which
    is the interpreter's tl.dot."""

    def product(a, b, total):
        for k in range(a.shape[-1]):
            total = total + a[..., k, None] * b[..., k, None, :]
        return total

    def dot(self, a, b, total, *_):
        return interpreter.TensorHandle(product(a.data, b.data, total.data), total.dtype.scalar)

    monkeypatch.setattr(torch, "mm", lambda a, b, out: out.copy_(product(a, b, torch.zeros_like(out))))
    if gpu.INTERPRETED:
        monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)


def problem(recurrence, dtype, device, T=3, B=5, H=33, ragged=True, seed=0):
    """A call's tensors: lengths 0 to T and cuts if it is ragged."""
    g = torch.Generator().manual_seed(seed)
    G, states = GATES[recurrence.network], len(recurrence.state_names)

    def normal(*shape):
        return torch.randn(shape, generator=g).to(device)

    params = {name: normal(*shape) for name, shape in recurrence.parameter_shapes(1, H).items()}
    params["weight_hh"] = (params["weight_hh"] * H**-0.5).to(dtype)
    params["weight_ih"] = torch.eye(G * H, device=device)
    lengths = (T - torch.arange(B) * 2 % (T + 1)).to(device) if ragged else None
    cut = (torch.rand(T, B, generator=g) < 0.3).to(device) if ragged else None
    return SimpleNamespace(
        recurrence=recurrence, params=params, lengths=lengths, cut=cut, zx=normal(T, B, G * H).to(dtype),
        state=[normal(B, H) for _ in range(states)], dy=normal(T, B, H).to(dtype),
        d_state=[normal(B, H) for _ in range(states)],
    )  # fmt: skip


def rows(p, chosen):
    """Some of the batch's rows."""
    part = SimpleNamespace(**vars(p))
    for name in ("zx", "dy", "cut"):
        setattr(part, name, None if getattr(p, name) is None else getattr(p, name)[:, chosen].contiguous())
    part.lengths = None if p.lengths is None else p.lengths[chosen]
    part.state, part.d_state = ([s[chosen].contiguous() for s in states] for states in (p.state, p.d_state))
    return part


def forward(p, launch, save=True):
    params = [p.params[name] for name in p.recurrence.parameter_names]
    layer = LayerTensors(RecurrentArguments(p.zx, p.state, params, p.lengths, p.cut, p.recurrence, False))
    return layer, _persistent.forward(layer, p.zx, save, launch(layer.H, layer.B))


def run(p, launch):
    """By name all that forward and backward find."""
    layer, found = forward(p, launch)
    recalled, arriving = _persistent.recall(layer, found.saved), layer.arriving(p.d_state)
    back = _persistent.steps_back(layer, found.saved, recalled, p.dy, arriving, launch(layer.H, layer.B))
    h, c = [*found.final, None][:2]
    results = {"output": found.output, "h": h, "c": c, "hs": found.saved.hs, "da": back.da}
    results |= {"dn": back.dn, "dh0": back.h0, "dc0": back.c0}
    return {name: value for name, value in results.items() if value is not None}


def exactly(p):
    """The same in float64: the reference's steps, one by one."""
    r, T = p.recurrence, len(p.zx)
    zx, dy = p.zx.double(), p.dy.double()
    params = [p.params[name].double() for name in r.parameter_names]
    state = [s.double() for s in p.state]
    output, *rest = reference.recurrent_forward(RecurrentArguments(zx, state, params, p.lengths, p.cut, r, False), True)
    final, saved = rest[: len(state)], rest[len(state) :]
    plan = reference.schedule(T, p.lengths, p.cut, False)
    network = reference.network_of(dict(zip(r.parameter_names, params, strict=True)), r)
    before = tuple(saved if plan.cut is None else (torch.where(plan.cut, 0.0, s) for s in saved))
    activations = network.activations(zx, before)
    d, steps = [s.double() for s in p.d_state], []
    for t in reversed(range(T)):
        active = plan.active[t] if plan.active is not None else torch.ones_like(d[0][:, :1], dtype=torch.bool)
        after = [torch.where(active, x, 0.0) for x in (d[0] + dy[t], *d[1:])]
        previous, parts = network.step_backward(t, after, before, activations)
        previous = reference._zero_where(plan.cut, t, previous)
        d = [torch.where(active, new, old) for new, old in zip(previous, d, strict=True)]
        steps.append(in_blocks(r, parts, activations.r[t] if r.network == "GRU" else None))
    da, *dn = (torch.stack(part[::-1]) for part in zip(*steps, strict=True))
    exact = {"output": output, "h": final[0], "hs": before[0], "da": da, "dh0": d[0]}
    if r.network == "LSTM":
        exact |= {"c": final[1], "dc0": d[1]}
    return exact | ({"dn": dn[0]} if r.formula.cell is not None else {})


def in_blocks(r, parts, reset):
    """(da,), in an LSTM (da, dn): for a GRU r, z, n as the hidden side sees it, n as the input side does."""
    if r.network == "LSTM":
        return parts[0], parts[3]
    if r.network == "RNN":
        return parts[:1]
    if len(parts) == 4:  # all three under one normalisation
        return (torch.cat([parts[0], parts[1].chunk(3, -1)[2]], -1),)
    return (torch.cat([parts[0], parts[3] * reset, parts[3]], -1),)


def compare(p, launch):
    found, exact = run(p, launch), exactly(p)
    assert found.keys() == exact.keys()
    for name, expected in exact.items():
        error = (found[name].double() - expected).abs().max().item()
        assert error <= ERROR[p.zx.dtype] * max(1.0, expected.abs().max().item()), (name, error)
    return found


def same(a, b):
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


RECURRENCES = [
    *(Recurrence(network, PAPER[network], norm) for network in PAPER for norm in ("layer", "rms")),
    *(Recurrence(network, PLAIN) for network in PAPER),
    Recurrence("LSTM", PRESETS["cell"]["LSTM"]),
    Recurrence("LSTM", PRESETS["haste"]["LSTM"], bias=False),
    Recurrence("LSTM", PRESETS["sonnet"]["LSTM"]),
    Recurrence("LSTM", replace(PAPER["LSTM"], span="per_gate", forget_bias=1.0)),
    Recurrence("GRU", PRESETS["haste"]["GRU"], bias=False),
    Recurrence("GRU", replace(PAPER["GRU"], span="per_gate", forget_bias=-1.0)),
    Recurrence("RNN", PAPER["RNN"], nonlinearity="relu"),
    Recurrence("RNN", replace(PAPER["RNN"], gates="split"), bias=False),
]


@pytest.mark.parametrize("recurrence", RECURRENCES, ids=lambda r: f"{r.network}-{r.formula.gates}-{r.norm}")
def test_every_formula(recurrence, device):
    assert _persistent.covers(recurrence)
    compare(problem(recurrence, torch.float32, device), one_program)


@pytest.mark.parametrize("network", PAPER)
def test_rows_of_one_length(network, device):
    compare(problem(Recurrence(network, PAPER[network]), torch.float32, device, ragged=False), one_program)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("network", PAPER)
def test_16_bits(network, dtype, device):
    compare(problem(Recurrence(network, PAPER[network]), dtype, device), one_program)


@pytest.mark.parametrize(("T", "B", "H"), [(1, 1, 1), (2, 33, 7), (3, 2, 64), (0, 2, 5)])
def test_sizes(T, B, H, device):
    p = problem(Recurrence("LSTM", PAPER["LSTM"]), torch.float32, device, T, B, H, ragged=T > 1)
    if T:
        compare(p, one_program)
    else:
        _, found = forward(p, one_program)
        assert torch.equal(found.final[0], p.state[0])
        assert torch.equal(found.final[1], p.state[1])


@pytest.mark.parametrize("depth", [32, 64])
def test_an_operand_in_several_chunks(depth, device):
    """Two or three of them ahead, of 3 to 10 in all."""
    p = problem(Recurrence("LSTM", PAPER["LSTM"]), torch.bfloat16, device, T=2, H=150)
    units, pieces = (256, 1) if gpu.INTERPRETED else (16, 10)  # the weights of 256 units fit no multiprocessor
    compare(p, lambda H, B: Persistent(units, 32 if depth == 32 else 16, pieces, 1, depth, 2))


@pytest.mark.parametrize("network", PAPER)
def test_several_launches_are_one_sequence(network, device):
    p = problem(Recurrence(network, PAPER[network]), torch.float32, device, B=35)
    same(run(p, two_launches), run(p, one_program))


@pytest.mark.parametrize("network", PAPER)
def test_nothing_saved_is_the_same(network, device):
    p = problem(Recurrence(network, PAPER[network]), torch.float32, device, T=5)
    (_, found), (_, bare) = forward(p, one_program), forward(p, one_program, save=False)
    assert torch.equal(found.output, bare.output)
    assert torch.equal(found.final[0], bare.final[0])
    assert bare.saved is None


@pytest.mark.parametrize("network", PAPER)
@pytest.mark.usefixtures("products_by_element")
def test_a_row_by_itself_has_the_same_bits(network, device):
    p = problem(Recurrence(network, PAPER[network]), torch.float32, device, B=18)
    expected = run(p, one_program)
    for chosen in (slice(2, 3), slice(15, 18)):
        for name, part in run(rows(p, chosen), one_program).items():
            assert torch.equal(part, expected[name][..., chosen, :]), name


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of the interpreter
@pytest.mark.parametrize("name", ["zx", "dy"])
@pytest.mark.parametrize("network", PAPER)
def test_a_nan_stays_in_its_row(network, name, device):
    p = problem(Recurrence(network, PAPER[network]), torch.float32, device, ragged=False)
    clean = run(p, one_program)
    getattr(p, name)[1, 3, 2] = float("nan")
    spoilt, others = run(p, one_program), [0, 1, 2, 4]
    assert spoilt["da"][:, 3].isnan().any()
    for key, value in spoilt.items():
        assert torch.equal(value[..., others, :], clean[key][..., others, :]), key


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("network", PAPER)
def test_what_padding_holds_does_not_count(network, device):
    p = problem(Recurrence(network, PAPER[network]), torch.float32, device)
    clean = run(p, one_program)
    beyond = torch.arange(len(p.zx), device=device)[:, None] >= p.lengths
    p.zx[beyond] = float("nan")
    p.dy[beyond] = float("nan")
    same(run(p, one_program), clean)
    assert not clean["da"][beyond].any()
    assert not clean["output"][beyond].any()


def test_equal_rows_of_the_weights_give_exactly_nothing(device):
    """LN(W h) of a constant is 0, whatever h: W is centred in float64."""
    p = problem(Recurrence("LSTM", PAPER["LSTM"]), torch.float32, device, ragged=False)
    p.params["weight_hh"] = p.params["weight_hh"][:1].expand_as(p.params["weight_hh"]).contiguous()
    expected = forward(p, one_program)[1].output
    p.params["weight_hh"].zero_()
    assert torch.equal(forward(p, one_program)[1].output, expected)


def test_a_cell_whose_mean_is_large(device):
    """c is 1000 + a deviation of 1, exactly: an E[c^2] - E[c]^2 in float32 would have an error of 6e-2. The
    mean, too, is a float32: a few units in the last place, 6e-5, of 1000."""
    p = problem(Recurrence("LSTM", PAPER["LSTM"]), torch.float32, device, T=1, ragged=False)
    p.params["gain_ih"].zero_()
    p.params["gain_hh"].zero_()
    p.params["bias_ih"].fill_(60.0)  # every gate is 1: c is c0 + 1
    p.state[1].copy_((p.state[1] * 256).round() / 256 + 1000.0)
    found, exact = run(p, one_program), exactly(p)
    assert (found["output"].double() - exact["output"]).abs().max() < 2e-4


# --- Several programs ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recurrence", RECURRENCES[::2], ids=lambda r: f"{r.network}-{r.formula.gates}-{r.norm}")
@pytest.mark.usefixtures("at_once")
def test_programs_share_out_the_units(recurrence, dtype, device):
    compare(problem(recurrence, dtype, device), several_programs)


@pytest.mark.parametrize("network", PAPER)
@pytest.mark.usefixtures("at_once", "products_by_element")
def test_groups_of_rows_and_runs_have_the_same_bits(network, device):
    """Two groups of three programs, twice; a row in another group."""
    p = problem(Recurrence(network, PAPER[network]), torch.float32, device, B=17)
    found = compare(p, several_programs)
    same(run(p, several_programs), found)
    for name, part in run(rows(p, slice(14, 17)), several_programs).items():
        assert torch.equal(part, found[name][..., 14:17, :]), name


# --- What is covered, and what fits ---


def test_what_has_no_equations_here():
    lstm, gru = PAPER["LSTM"], PAPER["GRU"]
    assert not _persistent.covers(Recurrence("LSTM", lstm, projected=True))
    assert not _persistent.covers(Recurrence("LSTM", lstm, "batch"))
    assert not _persistent.covers(Recurrence("LSTM", replace(lstm, eps_on="deviation")))
    assert not _persistent.covers(Recurrence("GRU", replace(gru, gates="sum")))
    for name in ("kiros", "torchscript", "keras", "tf1"):
        assert not _persistent.covers(Recurrence("LSTM", PRESETS[name]["LSTM"]))


@pytest.mark.skipif(not gpu.INTERPRETED, reason="of an H100's sizes")
def test_what_fits(monkeypatch):
    def fits(H, B, dtype, network="LSTM"):
        return _persistent.fitting(Recurrence(network, PAPER[network]), H, B, dtype, torch.device("cpu"))

    assert fits(256, 32, torch.bfloat16) == Persistent(8, 16, 32, 2, 32, 8)
    assert fits(256, 128, torch.bfloat16).rows == 32
    assert fits(1024, 64, torch.float16).pieces == 128
    assert fits(1024, 65, torch.bfloat16) == Persistent(8, 64, 128, 2, 64, 8, launches=2)
    assert fits(1024, 128, torch.bfloat16).grids == [(0, 128), (1, 128)]
    assert fits(1024, 129, torch.bfloat16) is None
    assert fits(256, 500, torch.bfloat16).grids == [(0, 128), (4, 128)]
    assert fits(512, 32, torch.float32)
    assert fits(1024, 16, torch.float32) is None
    monkeypatch.setattr(_persistent, "precision", lambda dtype: "tf32")
    assert fits(1024, 16, torch.float32)
    assert fits(1024, 64, torch.float32) == Persistent(8, 32, 128, 2, 64, 8, launches=2)  # 64 rows have no room
    assert fits(1100, 16, torch.bfloat16).units == 16
    assert fits(5000, 16, torch.bfloat16) is None


@pytest.mark.parametrize(("asked", "expected"), [("highest", "tf32x3"), ("high", "tf32")])
def test_float32_is_as_precise_as_asked_for(asked, expected):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(asked)
    try:
        assert _persistent.precision(torch.float32) == expected
        assert _persistent.precision(torch.bfloat16) == "tf32"
    finally:
        torch.set_float32_matmul_precision(before)
