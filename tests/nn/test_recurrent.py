"""The modules as a user meets them: shapes, options, printing, copying, saving, several processes, bad input."""

import copy
import gc
import pickle
import sys
import warnings

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import layernorm as ln
from layernorm.formula import PRESETS
from support.processes import python

MAKES = [ln.RNN, ln.LSTM, ln.GRU]
PACKED = pack_sequence([torch.randn(3, 3), torch.randn(5, 3)], enforce_sorted=False)
CELLS = [ln.RNNCell, ln.LSTMCell, ln.GRUCell]


def first(state):
    return state[0] if isinstance(state, tuple) else state


@pytest.mark.parametrize("make", MAKES)
def test_initial_values(make):
    torch.manual_seed(0)
    module = make(3, 16, gain_init=0.5)
    for name, p in module.named_parameters():
        if name.startswith("gain"):
            assert (p == 0.5).all()
        elif name.startswith("bias_c"):
            assert (p == 0).all()
        else:
            assert p.abs().max() <= 0.25 < p.abs().max() * 1.5, "U(-1/sqrt(H), 1/sqrt(H))"


@pytest.mark.parametrize("formula", [None, "cell", "sonnet", "kiros", "keras"])
@pytest.mark.parametrize("norm", ["layer", "rms", None])
def test_steps_of_zeros_at_the_start_do_not_blow_the_first_gradient_up(norm, formula):
    """Padding on the left, silence, a dropped word: with biases of 0 each such step multiplied it by some 15,000."""
    torch.manual_seed(0)
    x = torch.randn(30, 8, 28)
    x[:10] = 0
    lstm = ln.LSTM(28, 128, norm=norm, formula=formula or "paper")
    lstm(x)[0].square().mean().backward()
    assert max(p.grad.norm().item() for p in lstm.parameters()) < 2


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize(("steps", "batch"), [(0, 3), (4, 0), (0, 0), (1, 1)])
def test_empty_sequences_and_batches(make, steps, batch):
    module = make(3, 5, 2, bidirectional=True)
    hx = torch.randn(4, batch, 5, requires_grad=True)
    x = torch.randn(steps, batch, 3, requires_grad=True)
    output, final = module(x, (hx, hx) if make is ln.LSTM else hx, lengths=[steps] * batch)
    assert output.shape == (steps, batch, 10)
    assert first(final).shape == (4, batch, 5)
    if steps == 0:
        assert torch.equal(first(final), hx), "no step, so the initial state is the final one"
    (output.sum() + first(final).sum()).backward()
    assert x.grad.shape == x.shape
    assert steps or torch.equal(hx.grad, torch.ones_like(hx))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int64])
def test_lengths_of_any_integer_type(dtype):
    """The number of steps need not fit into it; an array is taken as a list is."""
    module, x = ln.GRU(3, 4), torch.randn(256, 2, 3)
    output, _ = module(x, lengths=torch.tensor([100, 0], dtype=dtype))
    assert torch.equal(output, module(x, lengths=torch.tensor([100, 0]).numpy())[0])
    assert output[99, 0].any()
    assert not output[100:].any()
    assert not output[:, 1].any()


@pytest.mark.parametrize("batch_first", [False, True])
def test_mask_is_lengths_in_another_form(batch_first):
    module, x = ln.GRU(3, 5, batch_first=batch_first), torch.randn(4, 4, 3)  # T = B: the layout is that of the input
    lengths = torch.tensor([4, 0, 2, 3])
    mask = torch.arange(4)[:, None] < lengths
    output, final = module(x, mask=mask.T if batch_first else mask)
    expected, expected_final = module(x, lengths=lengths)
    torch.testing.assert_close(output, expected, rtol=0, atol=0)
    torch.testing.assert_close(final, expected_final, rtol=0, atol=0)
    for wrong, error, message in (
        (mask.flip(0), ValueError, "steps to come first in mask"),
        (mask.long(), TypeError, "expected mask to be a bool Tensor, got torch.int64"),
        (mask[:3], ValueError, r"first two sizes of input \[4, 4, 3\], got \[3, 4\]"),
    ):
        with pytest.raises(error, match=message):
            module(x, mask=wrong.T if batch_first and wrong.shape == (4, 4) else wrong)
    with pytest.raises(ValueError, match="expected one of them, got both"):
        module(x, mask=mask, lengths=lengths)


FORMULAS = [ln.Formula(), ln.Formula(cell="carry", eps=1e-3), *PRESETS["tf1"].values(), *PRESETS["dreamer"].values()]


@pytest.mark.parametrize("formula", FORMULAS)
def test_repr_of_a_formula_shows_what_differs_and_evaluates_to_it(formula):
    text = repr(formula)
    assert eval(text, {"Formula": ln.Formula}) == formula
    assert text.count("=") == len(formula.changed)


def test_repr_of_a_module_with_a_formula_of_its_own_evaluates_to_the_same_network():
    module = ln.LSTM(3, 4, 2, formula=ln.Formula(span="per_gate", eps=1e-3), norm="rms")
    assert repr(module) == "LSTM(3, 4, num_layers=2, norm='rms', formula=Formula(span='per_gate', eps=0.001))"
    other = eval(repr(module), {"LSTM": ln.LSTM, "Formula": ln.Formula})
    assert other.recurrence == module.recurrence
    assert repr(ln.GRU(3, 4, formula=ln.Formula(), eps=0.5)).endswith("formula=Formula(), eps=0.5)")


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (ln.LSTM(3, 4, norm=None), "LSTM(3, 4, norm=None)"),
        (ln.LSTM(3, 4), "LSTM(3, 4, norm='layer', formula='paper', eps=1e-05)"),
        (
            ln.LSTM(3, 4, 2, bidirectional=True, proj_size=2, dropout=0.1, norm="rms", gain_init=0.1),
            "LSTM(3, 4, proj_size=2, num_layers=2, dropout=0.1, bidirectional=True, norm='rms', formula='paper',"
            " eps=1e-05, gain_init=0.1)",
        ),
        (
            ln.RNN(3, 4, nonlinearity="relu", bias=False, norm=None),
            "RNN(3, 4, bias=False, nonlinearity='relu', norm=None)",
        ),
        (ln.GRUCell(3, 4, bias=False, norm=None), "GRUCell(3, 4, bias=False, norm=None)"),
        (ln.LayerNorm(4), "LayerNorm((4,), eps=1e-05, elementwise_affine=True, bias=True)"),
    ],
)
def test_repr(module, text):
    assert repr(module) == text


@pytest.mark.parametrize("make", [*MAKES, *CELLS])
def test_copies_and_pickles(make):
    module = make(3, 4, norm="rms")
    x = torch.randn(2, 3) if make in CELLS else torch.randn(5, 2, 3)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(first(other(x)), first(module(x)), rtol=0, atol=0)
        assert not set(map(id, other.parameters())) & set(map(id, module.parameters()))


def test_moves_between_types_and_devices():
    module = ln.LSTM(3, 4, device="meta", dtype=torch.bfloat16)
    assert module(torch.empty(5, 2, 3, device="meta", dtype=torch.bfloat16))[0].shape == (5, 2, 4)
    module = module.to_empty(device="cpu")
    module.reset_parameters()
    output, (h, c) = module(torch.randn(5, 2, 3, dtype=torch.bfloat16))
    assert output.dtype == h.dtype == c.dtype == torch.bfloat16
    assert module.double()(torch.randn(5, 2, 3, dtype=torch.float64))[0].dtype == torch.float64


def test_mode_is_torchs():
    for name, more in (("LSTM", {}), ("GRU", {}), ("RNN", {}), ("RNN", {"nonlinearity": "relu"})):
        assert getattr(ln, name)(2, 3, **more).mode == getattr(torch.nn, name)(2, 3, **more).mode


def test_flatten_parameters_and_all_weights_are_there():
    module = ln.LSTM(3, 4, 2, bidirectional=True)
    module.flatten_parameters()
    assert [len(w) for w in module.all_weights] == [8] * 4
    assert module.all_weights[3][0] is module.weight_ih_l1_reverse


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("more", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}])
@pytest.mark.parametrize("norm", ["layer", None])
def test_loops_over_the_names_of_torchs_weights(name, more, norm):
    theirs, ours = getattr(torch.nn, name)(3, 4, **more), getattr(ln, name)(3, 4, norm=norm, **more)
    assert list(ours._all_weights) == theirs._all_weights
    for layer in ours._all_weights:  # as programs set the forget gate's bias
        for parameter in filter(lambda name: "bias" in name, layer):
            n = len(getattr(ours, parameter))
            getattr(ours, parameter).data[n // 4 : n // 2].fill_(1.0)
    touched = [n for n, p in ours.named_parameters() if (p == 1).any() and not n.startswith("gain")]
    assert touched == [n for n, _ in theirs.named_parameters() if "bias" in n]


def test_names_of_torchs_weights_are_not_taken_for_the_whole_network():
    with pytest.raises(TypeError, match="A network with only these weights lacks its normalisation"):
        ln.LSTM(3, 4)._all_weights[0]
    assert ln.LSTM(3, 4, norm=None)._all_weights[0][0] == "weight_ih_l0"  # torch's equations


LOST = {
    "the cell is one unit": (ln.LSTM, {"hidden_size": 1}),
    "the candidate is one unit": (ln.GRU, {"hidden_size": 1}),
    "the summed input is one unit": (ln.RNNCell, {"hidden_size": 1}),
    "each gate and the cell is one unit": (ln.LSTMCell, {"hidden_size": 1, "formula": "tf1"}),
    "only the sign of the input is left": (ln.GRU, {"input_size": 1}),
    "with input_size=1": (ln.LSTM, {"input_size": 1, "norm": "rms"}),
}


@pytest.mark.parametrize("said", LOST)
def test_a_size_with_which_a_formula_loses_its_input_warns(said):
    network, arguments = LOST[said]
    with pytest.warns(UserWarning, match=said):
        network(**{"input_size": 3, "hidden_size": 4} | arguments)


@pytest.mark.parametrize(
    ("network", "arguments"),
    [(ln.LSTM, {"formula": "cell"}), (ln.GRU, {"formula": "dreamer"}), (ln.GRU, {"formula": "sum"}), (ln.RNN, {}),
     (ln.LSTM, {"formula": "sum"}), (ln.LSTM, {"norm": None}),
     (ln.LSTM, {"norm": "batch"}), (ln.LSTM, {"norm": "weight", "hidden_size": 1}),
     (ln.LSTM, {"norm": None, "hidden_size": 1})],
)  # fmt: skip
def test_a_size_with_which_a_formula_loses_nothing_does_not_warn(network, arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(**{"input_size": 1, "hidden_size": 4} | arguments)


def test_dropout_with_one_layer_warns_as_torchs_does():
    with pytest.warns(UserWarning, match="dropout") as theirs:
        torch.nn.LSTM(3, 4, dropout=0.5)
    with pytest.warns(UserWarning, match="dropout") as ours:
        ln.LSTM(3, 4, dropout=0.5)
    assert [str(w.message) for w in ours] == [str(w.message) for w in theirs]
    assert ours[0].filename == __file__


def test_positional_arguments_are_torchs():
    assert ln.RNN(3, 4, 2, "relu", False, True).batch_first
    assert ln.LSTM(3, 4, 2, False, True, 0.5, True, 2).proj_size == 2
    assert ln.GRU(3, 4, 2, False, True, 0.5, True).bidirectional
    assert ln.RNNCell(3, 4, False, "relu").recurrence.nonlinearity == "relu"


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"])
def test_constructor_arguments_can_be_read_as_from_torchs(kind):
    theirs, ours = getattr(torch.nn, kind)(3, 4), getattr(ln, kind)(3, 4)
    for name in vars(theirs).keys() - vars(torch.nn.Module()).keys() - {"mode"}:
        if not name.startswith("_"):
            assert getattr(ours, name) == getattr(theirs, name), name


X, GRU, LSTM = torch.randn(5, 2, 3), ln.GRU(3, 4), ln.LSTM(3, 4)
GRU_CELL, LSTM_CELL = ln.GRUCell(3, 4), ln.LSTMCell(3, 4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ln.LSTM(3, 4, norm="lyer"), ValueError, "did you mean 'layer'"),
        (lambda: ln.LSTM(3, 4, norm="LayerNorm"), ValueError, "did you mean 'layer'"),
        (lambda: ln.GRUCell(3, 4, norm="RMS"), ValueError, "did you mean 'rms'"),
        (lambda: ln.LSTM(3, 4, norm="bach"), ValueError, "norm must be one of"),
        (lambda: ln.GRU(3, 4, formula="cell"), ValueError, "defined for LSTM, not for GRU"),
        (lambda: ln.RNN(3, 4, nonlinearity="gelu"), ValueError, "nonlinearity must be one of"),
        (lambda: ln.LSTM(3, 0), ValueError, "hidden_size must be greater than zero, got 0"),
        (lambda: ln.LSTM(-1, 4), ValueError, "input_size must be at least 0, got -1"),
        (lambda: ln.LSTM(3, 4, proj_size=-1), ValueError, "at least 0 and smaller than hidden_size=4, got -1"),
        (lambda: ln.LSTM(3, 4.0), TypeError, "hidden_size should be of type int, got: float"),
        (lambda: ln.LSTM(3, 4, gate_clip="small"), ValueError, "gate_clip must be a number > 0 or None, got 'small'"),
        (lambda: ln.LSTM(3, 4, gate_clip=True), ValueError, "gate_clip must be a number > 0 or None, got True"),
        (lambda: ln.LSTM(3, 4, eps="small"), TypeError, "eps must be a number, got str"),
        (lambda: ln.LSTM(3, 4, eps=True), TypeError, "eps must be a number, got bool"),
        (lambda: ln.LSTM(3, 4, proj_size=4), ValueError, "smaller than hidden_size=4, got 4"),
        (lambda: ln.LSTM(3, 4, dropout=1.5), ValueError, r"range \[0, 1\], got 1.5"),
        (lambda: ln.LSTM(3, 4, dropout=True), ValueError, r"range \[0, 1\], got True"),
        (lambda: ln.LSTM(3, 4, dropout="0.5"), ValueError, r"range \[0, 1\], got '0.5'"),
        (lambda: ln.LSTM(3, 4, proj_size=2.0), TypeError, "proj_size should be of type int, got: float"),
        (lambda: ln.LSTM(3, 4, 1, 0.5), TypeError, "bias should be of type bool, got: float"),
        (lambda: ln.RNN(3, 4, batch_first=1), TypeError, "batch_first should be of type bool, got: int"),
        (lambda: ln.GRU(3, 4, bidirectional="no"), TypeError, "bidirectional should be of type bool, got: str"),
        (lambda: ln.GRUCell(3, 4, "relu"), TypeError, "bias should be of type bool, got: str"),
        (lambda: GRU(torch.randn(5, 2, 4)), RuntimeError, "Expected 3, got 4"),
        (lambda: GRU(torch.randn(5, 2, 3, 3)), ValueError, "Expected input to be 2D or 3D, got 4D"),
        (lambda: GRU(X, torch.zeros(1, 4)), RuntimeError, "hx should also be 3-D but got 2-D"),
        (lambda: GRU(torch.randn(5, 3), torch.zeros(1, 1, 4)), RuntimeError, "hx should also be 2-D but got 3-D"),
        (lambda: GRU(X, torch.zeros(2, 2, 4)), RuntimeError, r"Expected hidden h of size \(1, 2, 4\)"),
        (lambda: LSTM(X, torch.zeros(1, 2, 4)), TypeError, r"hx to be a tuple \(h, c\) of two Tensors, got Tensor"),
        (lambda: LSTM(X, (None, None)), TypeError, r"two Tensors, got tuple of \(NoneType, NoneType\)"),
        (lambda: LSTM(X, [torch.zeros(1, 2, 4)] * 3), TypeError, r"got list of \(Tensor, Tensor, Tensor\)"),
        (lambda: GRU(X, (torch.zeros(1, 2, 4),)), TypeError, r"hx to be a Tensor, got tuple of \(Tensor\)"),
        (lambda: GRU([1.0]), TypeError, "input to be a Tensor or PackedSequence, got list"),
        (lambda: GRU(X, lengths=[6, 1]), RuntimeError, r"lengths must lie in 0..5"),
        (lambda: GRU(X, lengths=[5, None]), TypeError, r"lengths to be a Tensor or a list of ints, got \[5, None\]"),
        (lambda: GRU(X, lengths=5), RuntimeError, r"lengths of shape \[2\], got \[\]"),
        (lambda: GRU(torch.randn(5, 3), lengths=[5]), ValueError, "lengths needs a batch"),
        (
            lambda: GRU(pack_sequence([torch.randn(5, 3)]), lengths=[5]),
            ValueError,
            "a PackedSequence has its own lengths",
        ),
        (
            lambda: GRU(X, reset=torch.full((5, 2), 0.5)),
            RuntimeError,
            "GRU: expected reset to be bool, or to hold only 0 and 1, got torch.float32 with 0.5",
        ),
        (lambda: GRU(X, reset=[[True]]), TypeError, "GRU: expected reset to be a Tensor, got list"),
        (lambda: GRU(PACKED, reset=True), TypeError, "GRU: expected reset to be a Tensor, got bool"),
        (lambda: GRU(PACKED, reset=torch.zeros(5, 1)), RuntimeError, r"reset of shape \[5, 2\], got \[5, 1\]"),
        (lambda: GRU(PACKED, torch.zeros(1, 4)), RuntimeError, r"hidden h of size \(1, 2, 4\), got \[1, 4\]"),
        (lambda: GRU(pack_sequence([torch.randn(5, 4)])), RuntimeError, "Expected 3, got 4"),
        (lambda: GRU(X.double()), RuntimeError, "input of type torch.float32, as the parameters are"),
        (lambda: LSTM_CELL(torch.randn(2, 4)), RuntimeError, "got 4, expected 3"),
        (lambda: LSTM_CELL([1.0]), TypeError, "LSTMCell: expected input to be a Tensor, got list"),
        (lambda: LSTM_CELL(torch.randn(2, 2, 3)), ValueError, "Expected input to be 1D or 2D, got 3D"),
        (lambda: GRU_CELL(torch.randn(2, 3), torch.zeros(1, 4)), RuntimeError, r"Expected hidden h of size \(2, 4\)"),
        (lambda: LSTM_CELL(torch.randn(2, 3), torch.zeros(2, 4)), TypeError, r"\(h, c\) of two Tensors, got Tensor"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def train_in_process(rank, folder):
    """Two processes, half a batch each, must get the gradients of one with the whole batch."""
    # DDP imports it. Imported after the processes have connected, it keeps the connection's threads alive, and these
    # sometimes abort the interpreter at its exit (torch 2.13).
    import torch._dynamo

    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    share_of_a_batch_against_the_whole(rank)
    # Were the module alive until after `destroy_process_group`, its reducer would drop the last reference to the group
    # while it holds the GIL, and wait for a thread of gloo that may be waiting for the GIL (torch 2.13).
    gc.collect()
    torch.distributed.destroy_process_group()


def share_of_a_batch_against_the_whole(rank):
    torch.manual_seed(0)
    module = torch.nn.parallel.DistributedDataParallel(ln.LSTM(3, 4, 2))
    x = torch.randn(5, 4, 3)
    module(x[:, 2 * rank : 2 * rank + 2])[0].square().mean().backward()
    grads = [p.grad.clone() for p in module.module.parameters()]
    module.module.zero_grad()
    module.module(x)[0].square().mean().backward()
    for a, p in zip(grads, module.module.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)


def test_distributed_data_parallel(tmp_path):
    """Forks where a process has computed nothing yet; elsewhere processes that import all."""
    how = {"nprocs": 2, "start_method": "fork" if sys.platform == "linux" else "spawn"}
    call = f"torch.multiprocessing.start_processes({__name__}.train_in_process, ({str(tmp_path)!r},), **{how})"
    python(f"import sys, torch; sys.path[:] = {sys.path}; import {__name__}; {call}")


@pytest.mark.parametrize("norm", [None, "layer"])
def test_gate_clip_cuts_the_derivatives_by_the_summed_inputs(norm):
    """Against a plain loop whose summed inputs have a hook, in float64; what is cut is cut there and nowhere else."""
    torch.manual_seed(0)
    module = ln.LSTM(3, 5, norm=norm, gate_clip=0.05, dtype=torch.float64)
    with torch.no_grad():
        for p in module.parameters():
            p += 0.5 * torch.randn_like(p)
    x = torch.randn(6, 2, 3, dtype=torch.float64)
    p = {name.removesuffix("_l0"): value for name, value in module.named_parameters()}

    def normalised(z, name):
        if norm is None:
            return z + p.get(f"bias_{name}", 0.0)
        return torch.nn.functional.layer_norm(z, z.shape[-1:], p[f"gain_{name}"], p[f"bias_{name}"], 1e-5)

    seen = []

    def cut(d):
        seen.append(d)
        return d.clamp(-0.05, 0.05)

    h = c = x.new_zeros(2, 5)
    outputs = []
    for x_t in x:
        a = normalised(x_t @ p["weight_ih"].T, "ih") + normalised(h @ p["weight_hh"].T, "hh")
        a.register_hook(cut)
        i, f, g, o = a.chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * normalised(c, "c").tanh()
        outputs.append(h)
    weights = torch.randn(6, 2, 5, dtype=torch.float64)
    expected = torch.autograd.grad((torch.stack(outputs) * weights).sum(), list(p.values()))
    found = torch.autograd.grad((module(x)[0] * weights).sum(), list(module.parameters()))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    large = torch.stack(seen).abs() > 0.05
    assert large.any()
    assert not large.all()
    assert "gate_clip=0.05" in repr(module)


def test_whole_modules_are_read_from_a_file_that_is_not_trusted(tmp_path):
    """In another process, whose strings have other hashes."""
    torch.manual_seed(0)
    x, path = torch.randn(5, 3), tmp_path / "modules.pt"
    modules = [
        ln.LSTM(3, 4, 2, bidirectional=True, zoneout=(0.1, 0.2)), ln.GRU(3, 4, formula=ln.Formula(gates="sum")),
        ln.RNNCell(3, 4, norm="rms"), ln.LSTM(3, 4, norm=ln.BatchNormOverTime(max_steps=3)), ln.LayerNorm(3),
        ln.RMSNorm(3), ln.BatchNorm(3),
    ]  # fmt: skip
    torch.save([x, [(module, module.eval()(x)) for module in modules]], path)
    code = """if True:
        import sys, torch, layernorm
        x, pairs = torch.load(sys.argv[1], weights_only=True)
        for module, expected in pairs:
            torch.testing.assert_close(module(x), expected)
            if hasattr(module, "recurrence"):
                assert hash(module.recurrence) == hash(type(module.recurrence).decode(module.recurrence.encoded))
    """
    python(code, path)


def by_backward(lstm, x):
    d = torch.autograd.grad(lstm(x)[0].square().sum(), x, create_graph=True)[0]
    torch.autograd.grad(d.square().sum(), x)


def by_steps(lstm, x):
    step, state, total = lstm.stepper(), None, 0.0
    for frame in x:
        output, state = step(frame, state)
        total = total + output.square().sum()
    d = torch.autograd.grad(total, x, create_graph=True)[0]
    torch.autograd.grad(d.square().sum(), lstm.weight_hh_l0)


def by_hessian(lstm, x):
    torch.func.jacrev(torch.func.grad(lambda x: lstm(x)[0].square().sum()))(x)


def by_forward_mode(lstm, x):
    torch.func.hessian(lambda x: lstm(x)[0].square().sum())(x)


@pytest.mark.parametrize("differentiate", [by_backward, by_steps, by_hessian, by_forward_mode])
def test_second_derivatives_of_cut_derivatives_are_refused(differentiate):
    x = torch.randn(3, 2, 3, requires_grad=True)
    differentiate(ln.LSTM(3, 4), x)
    with pytest.raises(RuntimeError, match=r"second derivatives of an LSTM need gate_clip=None.*got gate_clip=0.05"):
        differentiate(ln.LSTM(3, 4, gate_clip=0.05), x)


def test_a_gate_clip_that_is_no_limit_is_refused():
    for make in (ln.LSTM, ln.LSTMCell):
        with pytest.raises(ValueError, match=r"gate_clip must be a number > 0 or None, got 0"):
            make(3, 5, gate_clip=0)
