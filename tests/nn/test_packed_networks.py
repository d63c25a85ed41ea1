"""A `PackedSequence` through whole modules: as with ``lengths``, and as torch's networks take it."""

import copy
import itertools

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import layernorm as ln
from layernorm.nn import _inputs, _layers
from support.turns import one_in

T, B, I, H = 7, 5, 3, 4  # noqa: E741
LENGTHS = torch.tensor([3, 7, 1, 4, 4])
NETWORKS = [("LSTM", {}), ("LSTM", {"proj_size": 2}), ("GRU", {}), ("RNN", {})]


def parts(state):
    return list(state) if isinstance(state, tuple) else [state]


def drawn_state(network, size):
    h = torch.randn(4, B, size, dtype=torch.float64, requires_grad=True)
    return (h, torch.randn(4, B, H, dtype=torch.float64, requires_grad=True)) if network == "LSTM" else h


def results(module, packed, x, hx, reset, reset_hx):
    """Padded output, final state, gradients of everything, and buffers."""
    cuts = {} if reset is None else {"reset": reset, "reset_hx": reset_hx}
    if packed:
        output, final = module(pack_padded_sequence(x, LENGTHS, enforce_sorted=False), hx, **cuts)
        output = pad_packed_sequence(output)[0]
    else:
        output, final = module(x, hx, lengths=LENGTHS, **cuts)
    g = torch.Generator().manual_seed(3)
    found = [output, *parts(final)]
    total = sum((t * torch.randn(t.shape, generator=g, dtype=t.dtype)).sum() for t in found)
    leaves = [x, *parts(hx), *(parts(reset_hx) if reset is not None else []), *module.parameters()]
    return [*found, *torch.autograd.grad(total, leaves), *module.buffers()]


NORMS = ["layer", "rms", "weight", None, "batch", "batch, counting padding"]
CALLS = [(*of, *rest) for of in NETWORKS for rest in itertools.product(NORMS, (False, True), ("native", "reference"))]
MORE = [("GRU", {}, "batch", True, "native")]  # where padding does not count: none of the short ones


@pytest.mark.parametrize(("network", "options", "norm", "cut", "engine"), [*one_in(5, CALLS), *MORE])
def test_as_with_lengths(network, options, norm, cut, engine):
    """Two layers in both directions, then in evaluation. The same network with ``lengths``, by the plain equations, is
    what is true."""
    if engine not in ln.backends.available():
        engine = "reference"
    if norm == "batch, counting padding":
        norm = ln.nn.BatchNormOverTime(count_padding=True)
    module = getattr(ln, network)(I, H, 2, bidirectional=True, norm=norm, dtype=torch.float64, **options)
    x = torch.randn(T, B, I, dtype=torch.float64, requires_grad=True)
    size = options.get("proj_size", H)
    given = x, drawn_state(network, size), torch.rand(T, B) < 0.3 if cut else None, drawn_state(network, size)
    for training in (True, False):
        other = copy.deepcopy(module.train(training))  # in evaluation with what batch norm has learnt
        with ln.backends.use("reference"):
            expected = results(module, False, *given)
        with ln.backends.use(engine):
            got = results(other, True, *given)
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_dropout_between_layers_is_torchs(network):
    """The same seed draws the same masks: of the steps that there are, not of padding."""
    theirs = getattr(torch.nn, network)(I, H, 3, dropout=0.5, bidirectional=True, dtype=torch.float64)
    ours = ln.accelerate(copy.deepcopy(theirs))
    packed = pack_padded_sequence(torch.randn(T, B, I, dtype=torch.float64), LENGTHS, enforce_sorted=False)
    found = []
    for module in (theirs, ours):
        torch.manual_seed(5)
        output, state = module(packed)
        found.append([output.data, *parts(state)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_variational_dropout_is_one_mask_for_each_row():
    """Rows that are sorted already have the masks that they have with ``lengths``."""
    gru = ln.GRU(I, H, 2, dropout=0.5, variational=True, dtype=torch.float64)
    x, lengths = torch.randn(T, B, I, dtype=torch.float64), LENGTHS.sort(descending=True).values
    torch.manual_seed(5)
    expected, h = gru(x, lengths=lengths)
    torch.manual_seed(5)
    output, final = gru(pack_padded_sequence(x, lengths))
    torch.testing.assert_close(pad_packed_sequence(output)[0], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(final, h, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm", ["layer", None, "batch"])
@pytest.mark.parametrize("engine", ["native", "reference"])
def test_what_is_saved_follows_the_steps_that_there_are(engine, norm):
    """One row of 400 steps and 39 of one keep about as much for the backward as 40 rows of 11 steps."""
    if engine not in ln.backends.available():
        engine = "reference"

    def saved(lengths):
        sizes = torch.tensor([sum(n > t for n in lengths) for t in range(max(lengths))])
        packed, kept = PackedSequence(torch.randn(sum(lengths), I), sizes), {}

        def note(tensor):
            kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        torch.manual_seed(0)
        module = ln.LSTM(I, H, norm=norm)
        with ln.backends.use(engine), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            module(packed)
        return sum(kept.values())

    # batch norm has a mean and a variance at each step: of both summed inputs (4 H each) and of the cell
    moments = (400 - 11) * 2 * (4 * H + 4 * H + H) * 4 if norm == "batch" else 0
    # padded to 400 steps it is 33 times as much and more
    assert saved([400] + [1] * 39) - moments <= 2 * saved([11] * 40)


def test_compiled_by_torch():
    """A graph ends where the number of rows is read. The next one holds the op of each direction, and at the second
    number of lines one for any number of them is made."""
    lstm, graphs = ln.LSTM(I, H, bidirectional=True), []

    def counted(graph, _):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    run = torch.compile(lstm, backend=counted)
    for lengths in ([4, 2, 1], [5, 5, 2], [7, 3, 1], [2, 2, 2]):
        packed = pack_padded_sequence(torch.randn(max(lengths), 3, I), torch.tensor(lengths))
        (a, (h, c)), (b, (h2, c2)) = run(packed), lstm(packed)
        for one, other in ((a.data, b.data), (h, h2), (c, c2)):
            torch.testing.assert_close(one, other)
    counts = [sum("layernorm.recurrent" in str(node.target) for node in graph.graph.nodes) for graph in graphs]
    assert counts == [0, 2, 0, 2]


def test_a_batch_of_no_rows():
    empty = PackedSequence(torch.zeros(0, I), torch.zeros(0, dtype=torch.int64))
    output, (h, _) = ln.LSTM(I, H)(empty)
    assert output.data.shape == (0, H)
    assert h.shape == (1, 0, H)


def test_wrong_batch_sizes_are_named():
    with pytest.raises(RuntimeError, match=r"expected batch_sizes that start at 2, .* never rise, and add up to 3"):
        ln.LSTM(I, H)(PackedSequence(torch.zeros(3, I), torch.tensor([2, 2])))


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("network", ["LSTM", "GRU"])
def test_uneven_lengths_are_computed_packed(network, batch_first, monkeypatch):
    """Of 2,000 steps there are 162: the same results as padded, with cuts, in any order of rows."""
    lengths = torch.tensor([40, 1, 100, 3, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1])
    module = getattr(ln, network)(I, H, 2, bidirectional=True, batch_first=batch_first, dtype=torch.float64)
    x = torch.randn(100, 20, I, dtype=torch.float64)
    cuts = torch.rand(100, 20) < 0.1
    given = (x.transpose(0, 1).contiguous(), cuts.T) if batch_first else (x, cuts)
    sizes, run = [], _layers.recurrent
    monkeypatch.setattr(_layers, "recurrent", lambda a: (sizes.append(a.batch_sizes), run(a))[1])
    found = []
    for least in (256, 10**9):
        monkeypatch.setattr(_inputs, "_WORTH_PACKING", least)
        inputs = given[0].clone().requires_grad_()
        output, state = module(inputs, lengths=lengths, reset=given[1])
        gradients = torch.autograd.grad(sum(part.sum() for part in [output, *parts(state)]), [inputs])
        found.append([output, *parts(state), *gradients])
    assert [None if s is None else int(s.sum()) for s in sizes] == [int(lengths.sum())] * 4 + [None] * 4
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (torch.ones(20) * 3, "lengths of an integer type, got torch.float32"),
        (torch.tensor([101] + [1] * 19), r"must lie in 0\.\.100"),
        (torch.tensor([-1] + [1] * 19), r"must lie in 0\.\.100"),
        (torch.ones(19, dtype=torch.int64), r"lengths of shape \[20\], got \[19\]"),
    ],
)
def test_wrong_uneven_lengths(lengths, message):
    with pytest.raises(RuntimeError, match=message):
        ln.GRU(I, H)(torch.zeros(100, 20, I), lengths=lengths)


def test_uneven_lengths_with_rows_of_no_steps():
    lengths = torch.tensor([0, 5, *[1] * 18])
    output, h = ln.GRU(I, H)(torch.randn(100, 20, I), lengths=lengths)
    assert not output[:, 0].any()
    assert not h[0, 0].any()
    assert h[0, 1:].all()


def test_uneven_lengths_without_features():
    """Only the state goes through the steps. torch cannot pack what has no numbers."""
    torch.manual_seed(0)
    lstm, lengths = ln.LSTM(0, 8), torch.full((33,), 2)
    output, (h, _) = lstm(torch.randn(9, 33, 0), lengths=lengths)
    expected, _ = lstm(torch.randn(2, 33, 0))
    torch.testing.assert_close(output[:2], expected)
    torch.testing.assert_close(h[0], expected[-1])
    assert not output[2:].any()


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit")
def test_batch_norm_that_counts_padding_stays_packed_in_evaluation():
    """The population is given, so that rows that have ended change nothing: the call can be traced and compiled."""
    module = ln.LSTM(I, H, norm=ln.BatchNormOverTime(count_padding=True))
    packed = pack_padded_sequence(torch.randn(5, 3, I), torch.tensor([5, 3, 2]))
    module(packed)
    module.eval().requires_grad_(False)

    def call(data, sizes):
        return module(PackedSequence(data, sizes))[0].data

    given = packed.data, packed.batch_sizes
    padded, lengths = pad_packed_sequence(packed)
    expected = pack_padded_sequence(module(padded, lengths=lengths)[0], lengths).data
    traced = torch.jit.trace(call, given)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for run in (call, traced, compiled):
        torch.testing.assert_close(run(*given), expected)


@pytest.mark.parametrize("count_padding", [False, True])
def test_batch_norm_of_a_packed_batch_trains_in_one_graph(count_padding):
    module = ln.GRU(I, H, norm=ln.BatchNormOverTime(count_padding=count_padding))
    other = copy.deepcopy(module)
    packed = pack_padded_sequence(torch.randn(5, 3, I), torch.tensor([5, 3, 2]))
    compiled = torch.compile(
        lambda data: module(PackedSequence(data, packed.batch_sizes))[0].data, fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(compiled(packed.data), other(packed)[0].data)
    torch.testing.assert_close(dict(module.named_buffers()), dict(other.named_buffers()))
