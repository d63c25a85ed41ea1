"""With norm=None and the same state dict: torch's modules, in float64 to 1e-12, outputs and all gradients."""

import itertools

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import layernorm as ln
from support.turns import one_in

EXACT = {"rtol": 1e-12, "atol": 1e-12}
I, H, T, B = 3, 5, 6, 4  # noqa: E741

KINDS = [("RNN", {"nonlinearity": "tanh"}), ("RNN", {"nonlinearity": "relu"}), ("GRU", {}), ("LSTM", {})]
KINDS += [("LSTM", {"proj_size": 2})]
INPUTS = ["padded", "packed", "packed unsorted", "unbatched"]


def pair(kind, **options):
    """torch's module, and ours with its weights."""
    theirs = getattr(torch.nn, kind)(I, H, dtype=torch.float64, **options)
    ours = getattr(ln, kind)(I, H, dtype=torch.float64, norm=None, **options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def inputs(form, batch_first, generator):
    if form == "unbatched":
        return torch.randn(T, I, dtype=torch.float64, generator=generator), None
    x = torch.randn(*((B, T) if batch_first else (T, B)), I, dtype=torch.float64, generator=generator)
    return x, {"padded": None, "packed": [6, 4, 4, 1], "packed unsorted": [2, 6, 1, 4]}[form]


def run(module, x, hx, lengths):
    """Padded output and final state, with the gradients of a fixed functional of both."""
    x = x.clone().requires_grad_()
    leaves = [x]
    if hx is not None:
        hx = [s.clone().requires_grad_() for s in hx]
        leaves += hx
        hx = tuple(hx) if len(hx) == 2 else hx[0]
    data = x
    if lengths is not None:
        ordered = lengths == sorted(lengths, reverse=True)
        data = pack_padded_sequence(x, torch.tensor(lengths), batch_first=module.batch_first, enforce_sorted=ordered)
    output, final = module(data, hx)
    if lengths is not None:
        packed, (output, _) = output, pad_packed_sequence(output, batch_first=module.batch_first)
        for a, b in ((packed.sorted_indices, data.sorted_indices), (packed.unsorted_indices, data.unsorted_indices)):
            assert (a is None) == (b is None)
            assert a is None or torch.equal(a, b)
    found = [output, *(final if isinstance(final, tuple) else [final])]
    generator = torch.Generator().manual_seed(5)
    total = sum((t * torch.randn(t.shape, dtype=t.dtype, generator=generator)).sum() for t in found)
    return found, torch.autograd.grad(total, [*leaves, *module.parameters()])


CASES = [(*kind, layers, form) for kind in KINDS for layers in (1, 2, 3) for form in INPUTS]


@pytest.mark.parametrize(("kind", "more", "layers", "form"), one_in(7, CASES), ids=str)
def test_equal_to_torch(kind, more, layers, form):
    generator = torch.Generator().manual_seed(layers)
    for bidirectional, batch_first, bias, initial in itertools.product((False, True), repeat=4):
        options = {"num_layers": layers, "bidirectional": bidirectional, "batch_first": batch_first, "bias": bias}
        theirs, ours = pair(kind, **options, **more)
        x, lengths = inputs(form, batch_first, generator)
        hx = None
        if initial:
            rows = layers * (2 if bidirectional else 1)
            shape = (rows,) if form == "unbatched" else (rows, B)
            sizes = (more.get("proj_size", H), H) if kind == "LSTM" else (H,)
            hx = [torch.randn(*shape, size, dtype=torch.float64, generator=generator) for size in sizes]
        (found, grads), (expected, expected_grads) = run(ours, x, hx, lengths), run(theirs, x, hx, lengths)
        torch.testing.assert_close([*found, *grads], [*expected, *expected_grads], **EXACT)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(("kind", "more"), KINDS[:4], ids=str)
def test_cells_equal_torch(kind, more, batched, bias):
    theirs = getattr(torch.nn, f"{kind}Cell")(I, H, bias=bias, dtype=torch.float64, **more)
    ours = getattr(ln, f"{kind}Cell")(I, H, bias=bias, dtype=torch.float64, norm=None, **more)
    ours.load_state_dict(theirs.state_dict())
    lead = (B,) if batched else ()
    x, h, c = (torch.randn(*lead, n, dtype=torch.float64, requires_grad=True) for n in (I, H, H))
    for hx in (None, (h, c) if kind == "LSTM" else h):
        results = []
        for module in (ours, theirs):
            found = module(x, hx)
            found = found if isinstance(found, tuple) else (found,)
            leaves = [x, *([] if hx is None else hx if isinstance(hx, tuple) else [hx]), *module.parameters()]
            results.append([*found, *torch.autograd.grad(sum(t.square().sum() for t in found), leaves)])
        torch.testing.assert_close(*results, **EXACT)


@pytest.mark.parametrize(("kind", "more"), KINDS, ids=str)
def test_one_seed_gives_the_same_initial_values(kind, more):
    torch.manual_seed(3)
    theirs = getattr(torch.nn, kind)(I, H, 2, **more).state_dict()
    for norm in (None, "layer", "rms"):
        torch.manual_seed(3)
        ours = getattr(ln, kind)(I, H, 2, norm=norm, **more).state_dict()
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value, rtol=0, atol=0)


def test_dropout_between_layers_as_torch():
    theirs, ours = pair("LSTM", num_layers=3, dropout=0.5)
    x = torch.randn(T, B, I, dtype=torch.float64)
    torch.manual_seed(7)
    expected = theirs(x)[0]
    torch.manual_seed(7)
    torch.testing.assert_close(ours(x)[0], expected, **EXACT)
    assert not torch.equal(ours(x)[0], expected), "another draw"
    torch.testing.assert_close(ours.eval()(x)[0], theirs.eval()(x)[0], **EXACT)


@pytest.mark.parametrize(("kind", "more"), KINDS, ids=str)
def test_a_torch_state_dict_loads_with_only_the_gains_missing(kind, more):
    theirs = getattr(torch.nn, kind)(I, H, 2, bidirectional=True, **more)
    ours = getattr(ln, kind)(I, H, 2, bidirectional=True, **more)
    missing, unexpected = ours.load_state_dict(theirs.state_dict(), strict=False)
    stems = {"RNN": ["gain"], "GRU": ["gain_ih", "gain_hh"], "LSTM": ["gain_ih", "gain_hh", "gain_c", "bias_c"]}[kind]
    suffixes = [f"_l{layer}{direction}" for layer in (0, 1) for direction in ("", "_reverse")]
    assert unexpected == []
    assert sorted(missing) == sorted(stem + suffix for stem in stems for suffix in suffixes)
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)
