"""The persistent kernels compile for an H100, without one: W_hh stays on chip, nothing is loaded early, few spills.

The patterns are one version of Triton's machine code; test_recurrent_compilation.py tests that the kernels compile.
"""

import contextlib
import importlib
import io
import math
import re

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is not installed: no kernel was compiled")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from layernorm.formula import GATES, PLAIN, PRESETS, Recurrence  # noqa: E402

pytestmark = pytest.mark.long
H100 = GPUTarget("cuda", 90, 32)
MULTIPROCESSORS, SHARED = 132, 232448
# Bytes of a thread, of the 1020 of its 255 registers, under Triton 3.6; under 3.7 half of it. None are weights.
SPILLED = 192
OPTIONS = ["num_warps", "num_stages", "enable_fp_fusion", "launch_cooperative_grid"]
TYPES = {"first": "i32", "T": "i32", "B": "i32", "ring": "i32", "eps": "fp32", "forget_bias": "fp32"}
TYPES |= {"words_ptr": "*i64", "counter_ptr": "*i32"}
SINGLE = ["h0_ptr", "c0_ptr", "cs_ptr", "dh_ptr", "dc_ptr", "dn_ptr", "dh0_ptr", "dc0_ptr"]  # always float32
ALIGNED = [["tt.divisibility", 16]]
PAPER = PRESETS["paper"]


@pytest.fixture
def gpu(engine):
    """The launchers."""
    return importlib.import_module("layernorm.gpu._persistent")


def arguments(gpu, recurrence, x):
    """The types of the arguments, by name; None: not there."""
    tuples = importlib.import_module("layernorm.gpu._layer")
    f, single = recurrence.formula, "*fp32"
    lstm, layer = recurrence.network == "LSTM", recurrence.norm == "layer"
    split, gates = single if f.gates == "split" else None, single if f.gates else None
    c, cell = single if lstm else None, single if f.cell else None
    absent = [] if lstm else ["c0_ptr", "cs_ptr", "dc_ptr", "dc0_ptr"]
    absent += [] if cell else ["dn_ptr"]
    absent += [] if gates else ["q_ptr"]
    return dict.fromkeys(absent) | {
        "v": tuples.Vectors(split, gates, None, None, None if f.gates == "sum" else single, single, cell, cell),
        "statistics": tuples.RowStatistics(*[gates if layer else None] * 2, split),
        "hidden": tuples.RowStatistics(*[gates if layer else None] * 2, gates),
        "cell": tuples.RowStatistics(*[cell if layer else None] * 2, cell),
        "masks": tuples.StepMasks("*i32", "*u8"),
        "kept": gpu.Kept(single, c, x, x, c),
    }


@pytest.fixture
def compiled(gpu, monkeypatch, tmp_path):
    """(PTX, TTGIR, bytes that a thread spills) of a kernel as it is launched."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton.knobs.nvidia, "dump_ptxas_log", True)

    def call(kernel, recurrence, H, B, dtype):
        sizes = GATES[recurrence.network], dtype.itemsize, gpu._resident(dtype)
        launch = gpu._launch.persistent(H, B, *sizes, MULTIPROCESSORS, SHARED)
        constants = gpu.constants(recurrence, launch, H, dtype)
        options = {name: constants.pop(name) for name in OPTIONS}
        x = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}[dtype]
        given = arguments(gpu, recurrence, x)
        signature, values, attributes = {}, {}, {}
        for k, name in enumerate(kernel.arg_names):
            kind = given.get(name, TYPES.get(name, "*fp32" if name in SINGLE else x))
            signature[name] = kind
            if name in constants or (name in given and kind is None):
                signature[name], values[(k,)] = "constexpr", constants.get(name)
            elif isinstance(kind, tuple):
                signature[name] = type(kind)(*("constexpr" if one is None else one for one in kind))
                values |= {(k, i): None for i, one in enumerate(kind) if one is None}
                attributes |= {(k, i): ALIGNED for i, one in enumerate(kind) if one is not None}
            elif kind.startswith("*"):
                attributes[(k,)] = ALIGNED
        log = io.StringIO()
        with contextlib.redirect_stdout(log):
            source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=attributes)
            found = triton.compile(source, target=H100, options=options)
        assert found.metadata.shared <= gpu._launch.shared_memory(launch, H, *sizes)
        assert found.metadata.launch_cooperative_grid
        return found.asm["ptx"], found.asm["ttgir"], int(re.search(r"(\d+) bytes spill stores", log.getvalue())[1])

    return call


def copies(ttgir):
    """In how many threads each of the words is that a program waits for."""
    layouts = dict(re.findall(r"^#(\w+) = #ttg\.blocked<\{(.*)\}>", ttgir, re.MULTILINE))
    found = set()
    for *shape, layout in re.findall(r"tt\.load .*isVolatile = true.*tensor<(\d+)x(\d+)x!tt\.ptr<i64>, #(\w+)>", ttgir):
        sizes = [[int(n) for n in size.split(",")] for size in re.findall(r"\[([\d, ]*)\]", layouts[layout])[:3]]
        found |= {math.prod(max(1, math.prod(k) // int(n)) for n, *k in zip(shape, *sizes, strict=True))}
    return found


def check(found, chunks, factors, spilled_at_most=SPILLED):
    """``chunks`` of the operand in a step, each for as many ``factors``."""
    ptx, ttgir, spilled = found
    assert spilled <= spilled_at_most
    assert not re.search(r"\.f64\b", ptx)
    assert "cp.async" not in ptx
    before, loop = ttgir.split("scf.for", 1)
    tiles = r"tt\.load .*tensor<\d+x\d+x\d+x!tt\.ptr"
    assert len(re.findall(tiles, before)) == chunks * factors  # the weights, once
    inside = [line for line in loop.splitlines() if re.search(tiles, line)]
    assert len(inside) == chunks  # the operand alone, past the cache of the multiprocessor
    assert all("cacheModifier = cg" in line for line in inside)
    assert loop.count("ttg.local_alloc") == chunks  # and the weights are in shared memory by then
    assert "mma.sync" in ptx
    assert copies(ttgir) <= {1}
    words = {
        "release": r"\batom\.global\.gpu\.release\.add\.u32",
        "acquire": r"\bld\.global\.gpu\.acquire\.b32",
        "exchanged": r"\bld\.global\.cg\b",
        "told": r"\batom\.global\.gpu\.relaxed\.exch\.b64",
        "heard": r"\bld\.volatile\.global\.(?:v\d\.)?b64",
    }
    matches = re.finditer("|".join(f"(?P<{word}>{pattern})" for word, pattern in words.items()), ptx)
    return " ".join(match.lastgroup for match in matches)


SIZES = [(256, 128), (512, 16), (1024, 64)]


@pytest.mark.parametrize(("H", "B"), SIZES)
def test_forward(H, B, gpu, compiled):
    found = compiled(gpu._persistent_kernels._forward, Recurrence("LSTM", PAPER["LSTM"]), H, B, torch.bfloat16)
    order = check(found, -(-H // 512), 4)
    # squares of the hidden side; mean and squares of the cell
    sums = "told( heard)+( told){2}( heard)+"
    assert re.search(f"release acquire( exchanged)+ {sums}", f"{order} {order}"), order


@pytest.mark.parametrize(("H", "B"), SIZES)
def test_backward(H, B, gpu, compiled):
    found = compiled(gpu._persistent_kernels._backward, Recurrence("LSTM", PAPER["LSTM"]), H, B, torch.bfloat16)
    order = check(found, 4 * -(-H // 512), 1)
    # the sum that goes with da, told a step before; two of the cell; the next one that goes with da
    assert re.search("acquire( exchanged)+( heard)+( told){2}( heard)+ told release", f"{order} {order}"), order


@pytest.mark.parametrize("H", [1, 64])
@pytest.mark.parametrize("network", ["LSTM", "GRU"])
def test_few_units(network, H, gpu, compiled):
    """Whose sums are fewer words than a program has threads: even so, no word is loaded by two of them."""
    for kernel in (gpu._persistent_kernels._forward, gpu._persistent_kernels._backward):
        _, ttgir, _ = compiled(kernel, Recurrence(network, PAPER[network]), H, 16, torch.bfloat16)
        assert copies(ttgir) == {1}


@pytest.mark.parametrize(("network", "precision"), [("LSTM", "tf32x3"), ("LSTM", "tf32"), ("GRU", "tf32x3")])
def test_float32(network, precision, gpu, compiled, monkeypatch):
    monkeypatch.setattr(gpu, "precision", lambda dtype: precision)
    r = Recurrence(network, PAPER[network])
    found = compiled(gpu._persistent_kernels._forward, r, 512, 16, torch.float32)
    check(found, 1, GATES[network])
    found = compiled(gpu._persistent_kernels._backward, r, 512, 16, torch.float32)
    check(found, GATES[network], 1)


def test_float32_with_64_rows(gpu, compiled, monkeypatch):
    """The most that there is at once: numbers of all rows are in every warp."""
    monkeypatch.setattr(gpu, "precision", lambda dtype: "tf32")
    r = Recurrence("LSTM", PAPER["LSTM"])
    check(compiled(gpu._persistent_kernels._forward, r, 512, 128, torch.float32), 1, 4)
    check(compiled(gpu._persistent_kernels._backward, r, 512, 128, torch.float32), 4, 1, spilled_at_most=800)


@pytest.mark.parametrize("recurrence", [
    Recurrence("RNN", PAPER["RNN"], "rms"), Recurrence("GRU", PAPER["GRU"]), Recurrence("LSTM", PLAIN),
])  # fmt: skip
def test_other_networks(recurrence, gpu, compiled):
    chunks = GATES[recurrence.network]
    for kernel, order in (
        (gpu._persistent_kernels._forward, (1, chunks)),
        (gpu._persistent_kernels._backward, (chunks, 1)),
    ):
        found = check(compiled(kernel, recurrence, 512, 16, torch.bfloat16), *order)
        assert ("told" in found) == (recurrence.formula.gates is not None)
