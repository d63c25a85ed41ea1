"""`interop`: what other libraries' weights compute here, against `oracle`'s NumPy programs of those libraries."""

import copy

import numpy as np
import pytest
import torch

import layernorm as ln
from layernorm.formula import PRESETS
from layernorm.interop._libraries import LIBRARIES
from support import oracle
from support.networks import CELL, MODULE, as_hx, flat

VALUE = 1e-12  # float64's 1.1e-16, times a step's sums and the normalisations' conditioning; 1e-15 is typical
I, H = 3, 4  # noqa: E741
SCOPES = ("input", "transform", "forget", "output", "state")


# One step of each library, written for its arrays' names: the names and shapes are the library's, not interop's.


def kiros(a, x, h, c):
    return oracle.kiros_lstm_step(x, h, c, **a)


def haste(a, x, h, c):
    return oracle.haste_lstm_step(x, h, c, **a)


def torchscript(a, x, h, c):
    norms = [(a[f"layernorm_{k}.weight"], a[f"layernorm_{k}.bias"]) for k in "ihc"]
    return oracle.torchscript_lstm_step(x, h, c, a["weight_ih"], a["weight_hh"], *norms)


def torchaudio(a, x, h, c):
    norms = [(a[f"{k}_norm.weight"], a[f"{k}_norm.bias"]) for k in "gc"]
    return oracle.torchaudio_lstm_step(x, h, c, a["x2g.weight"], a["p2g.weight"], *norms)


def keras(a, x, h, c):
    norms = [(a[f"{k}_norm/gamma"], a[f"{k}_norm/beta"]) for k in ("kernel", "recurrent", "state")]
    return oracle.keras_lstm_step(x, h, c, a["kernel"], a["recurrent_kernel"], a.get("bias", np.zeros(4 * H)), *norms)


def tf1(a, x, h, c):
    norms = {scope: (a[f"{scope}/gamma"], a[f"{scope}/beta"]) for scope in SCOPES}
    return oracle.tf1_lstm_step(x, h, c, a["kernel"], norms)


def sonnet(a, x, h, c):
    norm = (a["layer_norm/gamma"], a["layer_norm/beta"])
    return oracle.sonnet_lstm_step(x, h, c, a["w_gates"], a["b_gates"], norm)


def dreamerv3(x, h, **a):
    return oracle.dreamerv3_gru_step(x, h, a["GRU_linear.weight"], a["GRU_norm.weight"], a["GRU_norm.bias"])


def sheeprl(x, h, **a):
    """The same, of [h, x]."""
    weight = np.roll(a["linear.weight"], -H, axis=1)
    return oracle.dreamerv3_gru_step(x, h, weight, a["layer_norm.weight"], a["layer_norm.bias"])


PROGRAMS = {
    "kiros": kiros,
    "haste": haste,
    "torchscript": torchscript,
    "torchaudio": torchaudio,
    "keras": keras,
    "tf1": tf1,
    "sonnet": sonnet,
}


GRUS = {
    "haste": (
        oracle.haste_gru_step,
        {"kernel": (I, 3 * H), "recurrent_kernel": (H, 3 * H), "bias": (3 * H,), "recurrent_bias": (3 * H,)}
        | {"gamma": (2, 3 * H)},
    ),
    "kiros": (
        oracle.kiros_gru_step,
        {"W": (I, 2 * H), "b": (2 * H,), "U": (H, 2 * H), "Wx": (I, H), "bx": (H,), "Ux": (H, H)}
        | {f"{kind}{k}": (n * H,) for kind in "bs" for k, n in zip((1, 2, 3, 4), (2, 1, 2, 1), strict=True)},
    ),
    "dreamer": (
        oracle.dreamer_gru_step,
        {"kernel": (I + H, 3 * H), "bias": (3 * H,), "gamma": (3 * H,), "beta": (3 * H,)},
    ),
    "dreamerv3": (
        dreamerv3,
        {"GRU_linear.weight": (3 * H, I + H), "GRU_norm.weight": (3 * H,), "GRU_norm.bias": (3 * H,)},
    ),
    "sheeprl": (
        sheeprl,
        {"linear.weight": (3 * H, I + H), "layer_norm.weight": (3 * H,), "layer_norm.bias": (3 * H,)},
    ),
}
PRESET = {library: library for library in (*PROGRAMS, *GRUS)} | {"sheeprl": "dreamerv3"}
BOTH = [*(("LSTM", library) for library in PROGRAMS), *(("GRU", library) for library in GRUS)]


def theirs(library, size=I):
    """The shapes of a library's arrays, as its source declares them; Keras's in the order of `get_weights`."""
    four = 4 * H
    if library == "kiros":
        vectors = {name: (H if name in ("b3", "s3") else four,) for name in ("b", "b1", "b2", "b3", "s1", "s2", "s3")}
        return {"W": (size, four), "U": (H, four)} | vectors
    if library == "haste":
        matrices = {"kernel": (size, four), "recurrent_kernel": (H, four)}
        return matrices | {"bias": (four,), "gamma": (2, four), "gamma_h": (H,), "beta_h": (H,)}
    if library == "torchscript":
        norms = {"layernorm_i": four, "layernorm_h": four, "layernorm_c": H}
        vectors = {f"{k}.{part}": (n,) for k, n in norms.items() for part in ("weight", "bias")}
        return {"weight_ih": (four, size), "weight_hh": (four, H)} | vectors
    if library == "torchaudio":
        vectors = {f"{k}_norm.{part}": (n,) for k, n in (("g", four), ("c", H)) for part in ("weight", "bias")}
        return {"x2g.weight": (four, size), "p2g.weight": (four, H)} | vectors
    if library == "keras":
        norms = {"kernel_norm": four, "recurrent_norm": four, "state_norm": H}
        vectors = {f"{k}/{part}": (n,) for k, n in norms.items() for part in ("gamma", "beta")}
        return {"kernel": (size, four), "recurrent_kernel": (H, four), "bias": (four,)} | vectors
    if library == "tf1":
        norms = {f"{scope}/{part}": (H,) for scope in SCOPES for part in ("gamma", "beta")}
        return {"kernel": (size + H, four)} | norms
    norm = {f"layer_norm/{part}": (four,) for part in ("gamma", "beta")}
    return {"w_gates": (size + H, four), "b_gates": (four,)} | norm


def drawn(library, seed=0, size=I):
    """Random weights; gains around 1, everything else around 0."""
    rng = np.random.default_rng(seed)
    gains = ("gamma", "gamma_h", "weight", "s1", "s2", "s3")
    return {
        key: rng.normal(key.replace(".", "/").split("/")[-1] in gains, 0.7, shape)
        for key, shape in theirs(library, size).items()
    }


def drawn_gru(library, rng):
    return {key: rng.normal(key[0] in "gs", 0.7, shape) for key, shape in GRUS[library][1].items()}


def weights_of(network, library):
    return drawn(library) if network == "LSTM" else drawn_gru(library, np.random.default_rng(4))


def shapes_of(network, library):
    return theirs(library) if network == "LSTM" else GRUS[library][1]


def inputs(T=5, B=2, parts=1, seed=9, network="LSTM"):
    rng = np.random.default_rng(seed)
    state = tuple(rng.normal(0, 0.7, (parts, B, H)) for _ in "hc")
    return rng.normal(0, 1, (T, B, I)), state[: 2 if network == "LSTM" else 1]


def same(got, expected):
    np.testing.assert_allclose(got.detach().numpy(), expected, rtol=0, atol=VALUE * max(1, np.abs(expected).max()))


def close(module, x, state, output, final):
    got, last = module(torch.tensor(x), as_hx([torch.tensor(part) for part in state]))
    for ours, expected in zip((got, *flat(last)), (output, *final), strict=True):
        same(ours, expected)


def closes_to_program(module, network, library, arrays, x, state):
    """The module gives what the library's program gives with these arrays."""

    def step(x, *state):
        if network == "LSTM":
            return PROGRAMS[library](arrays, x, *state)
        return GRUS[library][0](x, *state, **arrays)

    output, final = oracle.sequence(step, x, [part[0] for part in state])
    close(module, x, state, output, [part[None] for part in final])


def equal(got, expected):
    assert set(got) == set(expected)
    for key, array in expected.items():
        assert np.array_equal(got[key].numpy(), array), key


def test_every_published_preset_has_a_row_and_a_program():
    rows = {(row.preset, row.network) for row in LIBRARIES}
    names = {(row.name or row.preset, row.network) for row in LIBRARIES}
    own = {"paper", "cell", "sum"}  # two are the paper's, and nobody published sum; every other one is a library's
    assert rows == {(name, network) for name, of in PRESETS.items() for network in of if name not in own}
    assert names == {(library, network) for network, library in BOTH}


@pytest.mark.parametrize(("network", "library"), BOTH)
def test_the_shapes_are_the_librarys(network, library):
    found, expected = ln.interop.shapes(library, I, H, network), shapes_of(network, library)
    assert found == expected
    if library in ("keras", "dreamer"):
        assert list(found) == list(expected), "the order of get_weights"


@pytest.mark.parametrize(("network", "library"), BOTH)
def test_it_computes_what_the_library_computes(network, library):
    arrays, (x, state) = weights_of(network, library), inputs(network=network)
    module = ln.interop.from_state(arrays, library)
    found = (type(module), module.formula, module.input_size, module.hidden_size)
    assert found == (MODULE[network], PRESET[library], I, H)
    closes_to_program(module, network, library, arrays, x, state)


@pytest.mark.parametrize(("network", "library"), BOTH)
def test_the_way_back_gives_the_same_arrays(network, library):
    arrays = weights_of(network, library)
    if library == "keras":  # a sum of three biases, of which we keep two
        arrays["bias"][:] = 0
    equal(ln.interop.to_state(ln.interop.from_state(arrays, library), library), arrays)


@pytest.mark.parametrize(("network", "library"), BOTH)
def test_the_way_there_and_back_gives_the_same_module(network, library):
    """Also biases that the library has not, of which only the sum is used."""
    module = MODULE[network](I, H, formula=PRESET[library], dtype=torch.float64)
    rng = np.random.default_rng(3)
    for parameter in module.parameters():
        parameter.data.copy_(torch.tensor(rng.normal(0.5, 0.7, parameter.shape)))
    again = ln.interop.from_state(ln.interop.to_state(module, library), library)
    x, state = inputs(network=network)
    output, final = module(torch.tensor(x), as_hx([torch.tensor(part) for part in state]))
    close(again, x, state, output.detach().numpy(), [part.detach().numpy() for part in flat(final)])
    if network == "GRU" or library not in ("haste", "tf1"):  # these LSTMs have one bias
        equal(again.state_dict(), numpy(module))


@pytest.mark.parametrize("library", GRUS)
def test_two_layers_of_a_gru(library):
    rng = np.random.default_rng(4)
    shapes, arrays = shapes_of("GRU", library), drawn_gru(library, rng)
    two = {f"{k}.{key}": a for k in range(2) for key, a in arrays.items()}
    for key, shape in ln.interop.shapes(library, H, H, "GRU").items():
        if shape != shapes[key]:
            two[f"1.{key}"] = rng.normal(0, 0.7, shape)
    again = ln.interop.from_state(two, library, prefixes=["0.", "1."])
    equal(ln.interop.to_state(again, library, prefixes=["0.", "1."]), two)


@pytest.mark.parametrize(("library", "bias"), [("dreamer", "beta"), ("dreamerv3", "GRU_norm.bias")])
@pytest.mark.parametrize("given", [-1, 0, 0.4])
def test_dreamers_update_bias(library, bias, given):
    """It is as much in the norm's bias."""
    arrays = weights_of("GRU", library)
    beta = arrays[bias] + np.repeat([0, 0, given + 1.0], H)
    module = ln.interop.from_state(arrays, library, update_bias=given)
    assert str(module.recurrence.formula.forget_bias) == str(float(-given) if given else 0.0)
    closes_to_program(module, "GRU", library, arrays | {bias: beta}, *inputs(network="GRU"))
    equal(ln.interop.to_state(module, library), arrays)


@pytest.mark.parametrize(("network", "library"), BOTH)
def test_a_cell_is_the_modules_step(network, library):
    arrays = weights_of(network, library)
    module = ln.interop.from_state(arrays, library)
    cell = ln.interop.from_state({f"a/{k}": v for k, v in arrays.items()}, library, cell=True, prefixes="a/")
    assert (type(cell), cell.formula) == (CELL[network], PRESET[library])
    x, hx = inputs(network=network)
    x, hx = torch.tensor(x), [torch.tensor(part) for part in hx]
    output, _ = module(x, as_hx(hx))
    state = as_hx([part[0] for part in hx])
    for t in range(len(x)):
        state = cell(x[t], state)
        same(flat(state)[0], output[t].detach().numpy())
    expected = ln.interop.to_state(module)
    equal(ln.interop.to_state(cell), {key: value.numpy() for key, value in expected.items()})
    assert set(ln.interop.to_state(cell, library, prefixes="b.")) == {f"b.{key}" for key in arrays}
    equal(cell.state_dict(), {key.removesuffix("_l0"): value.numpy() for key, value in module.state_dict().items()})


def test_a_cell_takes_the_librarys_own_arguments():
    cell = ln.interop.from_state(drawn("tf1"), "tf1", cell=True, eps=1e-3, forget_bias=0.3, dtype=torch.float32)
    formula = cell.recurrence.formula
    assert (formula.eps, formula.forget_bias, cell.weight_ih.dtype) == (1e-3, 0.3, torch.float32)


def test_the_biases_of_keras_are_one_sum():
    arrays = drawn("keras")
    got = ln.interop.to_state(ln.interop.from_state(arrays, "keras"))
    same(got["kernel_norm/beta"], arrays["kernel_norm/beta"] + arrays["bias"])
    assert not got["bias"].any()
    assert np.array_equal(got["recurrent_norm/beta"].numpy(), arrays["recurrent_norm/beta"])
    del arrays["bias"]  # use_bias=False
    got = ln.interop.to_state(ln.interop.from_state(arrays, "keras"))
    equal({key: got[key] for key in arrays}, arrays)


@pytest.mark.parametrize("library", PROGRAMS)
@pytest.mark.parametrize("pairs", [False, True])
def test_layers_and_directions_by_prefix(library, pairs):
    D = 1 + pairs
    prefixes = [tuple(f"layers.{n}.{d}." for d in range(D)) if pairs else f"layers.{n}." for n in range(2)]
    flat = [prefix for layer in prefixes for prefix in ([layer] if isinstance(layer, str) else layer)]
    parts = [drawn(library, seed, I if seed < D else D * H) for seed in range(2 * D)]
    state = {prefix + key: a for prefix, part in zip(flat, parts, strict=True) for key, a in part.items()}
    x, hx = inputs(parts=2 * D)
    y, finals = x, []
    for k in range(0, 2 * D, D):
        runs = [
            oracle.sequence(
                lambda x, h, c, a=parts[k + d]: PROGRAMS[library](a, x, h, c), y, [p[k + d] for p in hx], reverse=d == 1
            )
            for d in range(D)
        ]
        y = np.concatenate([output for output, _ in runs], 2)
        finals += [final for _, final in runs]
    module = ln.interop.from_state(state | {"embedding": np.arange(3)}, library, prefixes=prefixes)
    close(module, x, hx, y, [np.stack(part) for part in zip(*finals, strict=True)])
    if library != "keras":
        got = ln.interop.to_state(module, prefixes=prefixes)
        equal({key: got[key] for key in state}, state)


@pytest.mark.parametrize(
    ("library", "given"),
    [
        ("torchscript", {"eps": 0.0}),
        ("keras", {"eps": 0.1}),
        ("tf1", {"forget_bias": 0.3}),
        ("sonnet", {"forget_bias": 0}),
    ],
)
def test_the_librarys_own_arguments(library, given, monkeypatch):
    """eps in the oracle is a default argument; a forget bias is as much in the bias."""
    arrays, (x, state) = drawn(library), inputs()
    used = copy.deepcopy(arrays)
    if "eps" in given:
        plain = oracle.layer_norm
        monkeypatch.setattr(oracle, "layer_norm", lambda z, gain, bias, eps=0: plain(z, gain, bias, given["eps"]))
    else:
        biases = {"tf1": ("forget/beta", slice(None)), "sonnet": ("b_gates", slice(2 * H, 3 * H))}
        key, rows = biases[library]
        used[key][rows] += given["forget_bias"] - 1.0
    module = ln.interop.from_state(arrays, library, **given)
    closes_to_program(module, "LSTM", library, used, x, state)
    got = ln.interop.to_state(module, library)
    if library != "keras":
        equal({key: got[key] for key in arrays}, arrays)


def test_types_devices_and_generator():
    arrays = {key: torch.tensor(a, dtype=torch.bfloat16, requires_grad=True) for key, a in drawn("haste").items()}
    before = torch.get_rng_state()
    module = ln.interop.from_state(arrays, "haste")
    assert torch.equal(torch.get_rng_state(), before), "it draws no random numbers"
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}
    assert all(p.requires_grad and p.is_leaf and p.is_contiguous() for p in module.parameters())
    assert ln.interop.from_state(arrays, "haste", dtype=torch.float64, batch_first=True).batch_first
    arrays["bias"] = arrays["bias"].float()
    assert ln.interop.from_state(arrays, "haste").weight_ih_l0.dtype == torch.float32, "nothing is rounded"
    assert ln.interop.from_state(arrays, "haste", device="meta").gain_c_l0.device.type == "meta"


@pytest.mark.parametrize("library", PROGRAMS)
def test_nothing_is_shared(library):
    arrays = {key: torch.tensor(a) for key, a in drawn(library).items()}
    module = ln.interop.from_state(arrays, library)
    before = copy.deepcopy(module.state_dict())
    for array in [*arrays.values(), *ln.interop.to_state(module).values()]:
        assert not array.requires_grad
        array.fill_(7)
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key])


def test_a_module_without_biases_has_zeros_there():
    module = ln.LSTM(I, H, bias=False, formula="haste")
    got = ln.interop.to_state(module)
    assert not got["bias"].any()
    assert not got["beta_h"].any()


def test_a_formula_counts_by_what_it_says():
    module = ln.LSTM(I, H, formula=ln.Formula(gates="split", cell="output"))
    assert set(ln.interop.to_state(module, "haste")) == set(theirs("haste"))
    with pytest.raises(ValueError, match=r"formula must be one of .* got None"):
        ln.interop.to_state(module)
    with pytest.raises(ValueError, match="got 'paper'"):
        ln.interop.to_state(ln.LSTM(I, H))


def changed(library, **arrays):
    given = drawn(library) | arrays
    return {key: a for key, a in given.items() if a is not None}


def both_networks():
    """Haste's LSTM under "a." and its GRU under "b."."""
    networks = {"a.": weights_of("LSTM", "haste"), "b.": weights_of("GRU", "haste")}
    return {prefix + key: array for prefix, arrays in networks.items() for key, array in arrays.items()}


def test_the_prefix_says_which_network_it_is():
    assert type(ln.interop.from_state(both_networks(), "haste", prefixes="a.")) is ln.LSTM
    assert type(ln.interop.from_state(both_networks(), "haste", prefixes="b.")) is ln.GRU
    assert type(ln.interop.from_state(both_networks(), "haste", network="GRU")) is ln.GRU
    assert ln.interop.shapes("dreamerv3", I, H) == shapes_of("GRU", "dreamerv3")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda f: f({}, "hase"), ValueError, r"formula must be one of .*got 'hase'; did you mean 'haste'"),
        (lambda f: f({}, "sonnet", network="GRU"), ValueError, "'sonnet' has weights of LSTM, not of GRU"),
        (
            lambda f: f(changed("haste"), "haste", network="GRU"),
            ValueError,
            r"haste: expected .*; missing \['recurrent_bias'\], unexpected \['gamma_h', 'beta_h'\]",
        ),
        (lambda f: f([1], "haste"), TypeError, "state must be a mapping from names to arrays, got list"),
        (lambda f: f(changed("haste", gamma_h=None), "haste"), ValueError, r"haste: .*; missing \['gamma_h'\]"),
        (lambda f: f(changed("keras", x=0.0), "keras"), ValueError, r"keras: expected .*; unexpected \['x'\]"),
        (
            lambda f: f(changed("haste"), "haste", prefixes="cell/"),
            ValueError,
            r"haste: expected .* under 'cell/'; missing \['cell/kernel', .*'cell/beta_h'\]",
        ),
        (
            lambda f: f(changed("haste", gamma=np.zeros((4 * H, 2))), "haste"),
            ValueError,
            r"haste: gamma: expected shape \(2, 16\) \(input size 3, H = 4\), got \(16, 2\)",
        ),
        (
            lambda f: f(changed("haste", kernel=np.zeros((4 * H, I))), "haste"),
            ValueError,
            r"haste: kernel: expected shape \(I, 4H\), got \(16, 3\)",
        ),
        (
            lambda f: f(changed("torchscript", weight_ih=np.zeros((3, 16))), "torchscript"),
            ValueError,
            r"torchscript: weight_ih: expected shape \(4H, I\), got \(3, 16\)",
        ),
        (
            lambda f: f(changed("tf1", kernel=np.zeros((3, 16))), "tf1"),
            ValueError,
            r"tf1: kernel: expected shape \(I \+ H, 4H\), got \(3, 16\)",
        ),
        (
            lambda f: f(changed("sonnet", w_gates=np.zeros(16)), "sonnet"),
            ValueError,
            r"sonnet: w_gates: expected shape \(I \+ H, 4H\), got \(16,\)",
        ),
        (
            lambda f: f(changed("haste", bias=np.zeros(16, int)), "haste"),
            TypeError,
            "haste: bias: expected an array of floating-point numbers, got ndarray of int64",
        ),
        (
            lambda f: f(changed("haste", bias=torch.zeros(16, dtype=torch.int32)), "haste"),
            TypeError,
            r"haste: bias: expected .* got Tensor of torch.int32",
        ),
        (lambda f: f(changed("haste", gamma=[[1.0], [1.0, 2.0]]), "haste"), TypeError, "haste: gamma: expected an arr"),
        (
            lambda f: f(changed("haste", gamma=np.zeros((2, 16), ">f4")), "haste"),
            TypeError,
            "haste: gamma: expected an array of a type that torch has, got >f4",
        ),
        (
            lambda f: f(changed("haste", gamma=torch.zeros(2, 16).to_sparse()), "haste"),
            TypeError,
            "haste: gamma: expected a dense array, got a tensor of torch.sparse_coo",
        ),
        (lambda f: f({0: np.zeros(3)}, "haste"), TypeError, "haste: expected the arrays' names to be strings, got 0"),
        (
            lambda f: f(changed("haste"), "haste", forget_bias=1.0),
            ValueError,
            "'haste' LSTM has no forget_bias, always forget_bias=0.0; got 1.0",
        ),
        (lambda f: f(changed("sonnet"), "sonnet", eps=0.1), ValueError, "has no eps, always eps=1e-05; got 0.1"),
        (
            lambda f: f({}, "dreamer", forget_bias=1.0),
            ValueError,
            "'dreamer' GRU has no forget_bias, but update_bias; got 1.0",
        ),
        (
            lambda f: f({}, "tf1", update_bias=-1),
            ValueError,
            "'tf1' LSTM has no update_bias, but forget_bias; got -1",
        ),
        (lambda f: f({}, "dreamer", network="LSTM"), ValueError, "'dreamer' has weights of GRU, not of LSTM"),
        (
            lambda f: f(both_networks(), "haste"),
            ValueError,
            "haste: there are arrays of GRU and of LSTM; pass network= or prefixes=",
        ),
        (
            lambda f: f(weights_of("GRU", "sheeprl"), "sheeprl", update_bias=0),
            ValueError,
            "'sheeprl' GRU has no update_bias, always forget_bias=1.0; got 0",
        ),
        (
            lambda f: f(changed("haste"), "haste", cell=True, prefixes=["a", "b"]),
            ValueError,
            r"a cell has one prefix and no batch_first, got prefixes=\['a', 'b'\], batch_first=False",
        ),
        (lambda f: f(changed("haste"), "haste", cell=True, prefixes=[("a", "b")]), ValueError, "a cell has one prefix"),
        (lambda f: f(changed("haste"), "haste", cell=True, batch_first=True), ValueError, "batch_first=True"),
        (lambda f: f({}, "haste", prefixes=3), TypeError, "expected prefixes to be a string or a list of strings"),
        (lambda f: f({}, "haste", network=["GRU"]), ValueError, r"has weights of LSTM and GRU, not of \['GRU'\]"),
        (lambda f: f({}, "tf1", eps="1"), TypeError, "from_state: expected eps to be a number, got str"),
        (lambda f: f({}, "tf1", forget_bias=float("nan")), ValueError, "forget_bias must be finite, got nan"),
        (lambda f: ln.interop.shapes("haste", 3, 0), ValueError, "hidden_size to be an int, 1 or more, got 0"),
        (lambda f: ln.interop.shapes("haste", 3.5, 4), ValueError, "input_size to be an int, 0 or more, got 3.5"),
        (lambda f: f({}, "haste", prefixes=[]), ValueError, r"prefixes must be one for each layer.* got \[\]"),
        (lambda f: f({}, "haste", prefixes=["a", ("b", "c")]), ValueError, "prefixes must be one for each layer"),
        (lambda f: f({}, "haste", prefixes=["a", "a"]), ValueError, "all different"),
        (lambda f: f({}, "haste", prefixes=[("a", "b", "c")]), ValueError, "or a pair for each"),
    ],
)  # fmt: skip
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(ln.interop.from_state)


@pytest.mark.parametrize(
    ("module", "given", "error", "message"),
    [
        (torch.nn.LSTM(2, 2), {}, TypeError, r"layernorm\.LSTM, GRU or a cell of one, got torch\.nn\..*LSTM"),
        (ln.LSTM(2, 2), {"formula": "keras"}, ValueError, "'keras' does: it has cell='output', not 'carry'"),
        (ln.LSTM(2, 2, formula="haste", eps=0.1), {}, ValueError, "eps=0.1, not 1e-05"),
        (ln.LSTM(2, 2, formula="haste", norm="rms"), {}, ValueError, "norm='rms', not 'layer'"),
        (ln.LSTM(2, 2, norm=None), {"formula": "haste"}, ValueError, "norm=None, not 'layer'"),
        (ln.LSTM(2, 3, proj_size=2, formula="haste"), {}, ValueError, "proj_size=2, not 0"),
        (ln.GRU(2, 2), {"formula": "haste"}, ValueError, "span='joint', not 'all'"),
        (ln.LSTM(2, 2, 2, formula="haste"), {}, ValueError, "one prefix for each of 2 layers, got ''"),
        (
            ln.LSTM(2, 2, bidirectional=True, formula="haste"),
            {"prefixes": ["a"]},
            ValueError,
            "one pair of prefixes for each of 1 layers",
        ),
        (ln.LSTMCell(2, 2), {"formula": "keras"}, ValueError, "'keras' does: it has cell='output', not 'carry'"),
        (ln.LSTMCell(2, 2, formula="haste", norm="rms"), {}, ValueError, "norm='rms', not 'layer'"),
        (ln.GRUCell(2, 2, formula="dreamer"), {"prefixes": ["a", "b"]}, ValueError, "one prefix for each of 1 layers"),
        (ln.GRUCell(2, 2, formula="dreamer"), {"prefixes": [("a", "b")]}, ValueError, "one prefix for each of 1"),
        (ln.RNNCell(2, 2), {"formula": "haste"}, TypeError, r"got layernorm\..*RNNCell"),
        (ln.LSTM(2, 2, formula="keras", zoneout=0.4), {}, ValueError, "zoneout=0.4, not 0.0"),
        (ln.LSTMCell(2, 2, formula="haste", zoneout=(0.0, 0.1)), {}, ValueError, r"zoneout=\(0.0, 0.1\), not 0.0"),
    ],
)
def test_what_is_refused_on_the_way_back(module, given, error, message):
    with pytest.raises(error, match=message):
        ln.interop.to_state(module, **given)


# --- What is found without being told ---


def renamed(library, seeds, names, size=I):
    """Arrays of several layers under prefixes; those above the first one have ``size`` inputs."""
    return {
        name + key: a
        for k, (seed, name) in enumerate(zip(seeds, names, strict=True))
        for key, a in drawn(library, seed, I if k == 0 else size).items()
    }


@pytest.mark.parametrize("library", PROGRAMS)
@pytest.mark.parametrize(
    "names",
    [
        ["rnn/lstm/"],
        ["lnlstm_"],
        [f"layers.{k}.cell." for k in range(11)],  # also in the order of numbers, not of letters
        ["m.3.rnn_1.", "m.3.rnn_2."],
    ],
    ids=len,
)
def test_it_finds_layers_by_itself(library, names):
    state = renamed(library, range(len(names)), names, H) | {"embedding.weight": np.zeros((5, 3))}
    shuffled = {key + ":0": state[key] for key in sorted(state, reverse=True)}
    expected = ln.interop.from_state(state, library, prefixes=names)
    for given in (state, shuffled):
        equal(ln.interop.from_state(given, library).state_dict(), numpy(expected))


def numpy(module):
    return {key: value.numpy() for key, value in module.state_dict().items()}


@pytest.mark.parametrize(("first", "second"), [("fw", "bw"), ("forward", "backward")])
def test_it_finds_directions_by_itself(first, second):
    pairs = [(f"stack_{k}/{first}/", f"stack_{k}/{second}/") for k in range(2)]
    parts = [drawn("tf1", k, I if k < 2 else 2 * H) for k in range(4)]
    flat = [name for pair in pairs for name in pair]
    state = {name + key: a for name, part in zip(flat, parts, strict=True) for key, a in part.items()}
    expected = ln.interop.from_state(state, "tf1", prefixes=pairs)
    found = ln.interop.from_state(state, "tf1")
    assert found.bidirectional
    assert found.num_layers == 2
    equal(found.state_dict(), numpy(expected))


@pytest.mark.parametrize(
    "names", [["encoder.", "decoder."], ["layers.0.", "layers.2."], ["a.0.b.0.", "a.1.b.1."], ["0.x.", "1.y."]], ids=str
)
def test_what_may_be_several_networks_is_not_stacked(names):
    """Of equal sizes, so that it would fit."""
    state = renamed("haste", range(2), names, I)
    with pytest.raises(ValueError, match=r"haste: its arrays are under each of .*; pass the layers' as prefixes="):
        ln.interop.from_state(state, "haste")
    for name in names:
        assert ln.interop.from_state(state, "haste", prefixes=name).hidden_size == H


@pytest.mark.parametrize(
    ("library", "names", "key"),
    [
        ("torchscript", ["layers.0.cell.", "layers.1.cell."], "layernorm_c.weight"),
        ("haste", ["layers.0.", "layers.1.", "layers.2."], "kernel"),
        ("tf1", ["fw/", "bw/"], "kernel"),
        ("tf1", ["backward/", "forward/"], "kernel"),
    ],
)
@pytest.mark.parametrize("renamed_to", [None, "other"])
def test_a_layer_or_direction_that_lacks_an_array_is_not_left_out(library, names, key, renamed_to):
    size = I if library == "tf1" else H
    for name in names:
        state = renamed(library, range(len(names)), names, size)
        array = state.pop(name + key)
        state.update({} if renamed_to is None else {name + renamed_to: array})
        with pytest.raises(ValueError, match=rf"missing \['{name}{key}'\], beside .* under '{name}'; to leave it out"):
            ln.interop.from_state(state, library)
        kept = next(other for other in names if other != name)
        assert ln.interop.from_state(state, library, prefixes=kept).hidden_size == H


def test_what_is_no_layer_is_left_out():
    """The library's other network, and a module that has an array of the same name."""
    lstm = renamed("haste", [0], ["rnns.0."])
    gru = ln.interop.to_state(ln.GRU(I, H, formula="haste"), prefixes=["rnns.1."])
    for network, cell in (("LSTM", ln.LSTM), ("GRU", ln.GRU)):
        assert type(ln.interop.from_state({**lstm, **gru}, "haste", network=network)) is cell
    linear = {"rnns.1.bias": np.ones(3)}
    assert ln.interop.from_state({**lstm, **linear}, "haste").num_layers == 1


@pytest.mark.parametrize(("alias", "preset"), [("nemo", "torchscript"), ("tfa", "keras")])
def test_aliases(alias, preset):
    arrays = drawn(preset)
    module = ln.interop.from_state(arrays, alias)
    assert module.formula == preset, "the aliases are of weights, not of formulas"
    assert ln.interop.shapes(alias, I, H) == ln.interop.shapes(preset, I, H)
    equal(ln.interop.to_state(module, alias), {k: v.numpy() for k, v in ln.interop.to_state(module).items()})
    assert ln.interop.from_state(arrays, alias, eps=0.1).recurrence.formula.eps == 0.1
    with pytest.raises(ValueError, match=f"formula must be one of .* got '{alias}'"):
        ln.LSTM(I, H, formula=alias)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f(drawn("keras"), "tfaa"), "did you mean 'tfa'"),
        (lambda f: f(drawn("keras"), "nemmo"), "did you mean 'nemo'"),
        (
            lambda f: f(changed("haste", gamma_h=None, gama_h=np.zeros(H)), "haste"),
            "did you mean 'gama_h' as 'gamma_h'",
        ),
        (lambda f: f(renamed("haste", [0], ["a.b."]), "haste", prefixes="a."), r"; they are under \['a.b.'\]"),
        (
            lambda f: f(weights_of("GRU", "haste"), "haste", network="LSTM"),
            "they are those of a GRU: network='GRU'",
        ),
        (
            lambda f: f({k: v for k, v in renamed("haste", [0], ["a."]).items() if k != "a.gamma"} | {"b": 0}, "haste"),
            r"under 'a.'; missing \['a.gamma'\]$",
        ),
        (
            lambda f: f(drawn("haste") | {"bias:0": np.zeros(4 * H)}, "haste"),
            "one array of a name, got 'bias' and 'bias:0'",
        ),
        (lambda f: f(renamed("haste", range(2), ["0.", "1."], H), "haste", cell=True), "a cell has one prefix"),
    ],
)
def test_errors_suggest(call, message):
    with pytest.raises(ValueError, match=message):
        call(ln.interop.from_state)
