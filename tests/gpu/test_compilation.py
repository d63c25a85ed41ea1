"""Every kernel compiles for an H100, without one: rows stay in registers, nothing became float64 on the way."""

import contextlib
import importlib
import io
import itertools
import re

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed: no kernel was compiled")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

SPILLED = 16  # bytes of a thread: an address may be put aside, a row would be hundreds
H100 = GPUTarget("cuda", 90, 32)
OPTIONS = ["num_warps", "enable_fp_fusion", "num_stages", "launch_cooperative_grid"]
TYPES = {"M": "i32", "N": "i32", "R": "i32", "eps": "fp32", "counter_ptr": "*i32"}
SINGLE = ["mean_ptr", "rest_ptr", "r_ptr", "d_gain_ptr", "d_bias_ptr", "parts_ptr"]  # always float32


@pytest.fixture
def norms(engine):
    return engine._norms


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """(PTX, bytes that a thread spills) of a kernel on tensors of a type; rows ``aligned`` to 16 elements or not."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton.knobs.nvidia, "dump_ptxas_log", True)

    def call(kernel, dtype, aligned, tile, **constants):
        tile = dict(tile)
        options = {name: tile.pop(name) for name in OPTIONS if name in tile}
        constants |= tile
        signature, values, attributes = {}, {}, {}
        for k, name in enumerate(kernel.arg_names):
            pointer = name.endswith("_ptr")
            signature[name] = TYPES.get(name, ("*fp32" if name in SINGLE else f"*{dtype}") if pointer else "i32")
            if name in constants:
                signature[name], values[(k,)] = "constexpr", constants[name]
            elif pointer or (aligned and name not in ("M", "R", "eps")):
                attributes[(k,)] = [["tt.divisibility", 16]]
        log = io.StringIO()
        with contextlib.redirect_stdout(log):
            source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=attributes)
            found = triton.compile(source, target=H100, options=options)
        return found.asm["ptx"], int(re.search(r"(\d+) bytes spill stores", log.getvalue())[1])

    return call


def check(found):
    ptx, spilled = found
    assert spilled <= SPILLED
    assert not re.search(r"\.f64\b", ptx)
    assert "atom." not in ptx


KERNELS = list(itertools.product([1, 200, 512, 4096, 8192, 16384, 65536], ["fp32", "bf16"]))  # N, type


@pytest.mark.parametrize(("N", "dtype"), KERNELS)
def test_forward(N, dtype, norms, compiled):
    launch = norms._launch.forward(N)
    kernel = norms._forward_long if launch.columns < N else norms._forward_rows
    unit = {"N": 1, "x_m": 1, "residual_m": 1} if N == 1 else {}  # Triton takes a 1 for a constant
    found = compiled(kernel, dtype, N % 16 == 0, launch.arguments, LAYER=True, **unit)
    check(found)
    if N % 16 == 0:  # what memory speed needs: 16 bytes a thread at a time
        assert "ld.global.v4.b32" in found[0]
        assert "st.global.v4.b32" in found[0]


@pytest.mark.parametrize(("N", "dtype"), KERNELS)
def test_backward(N, dtype, norms, compiled):
    launch = norms._launch.backward(N)
    kernel = norms._backward_long if launch.columns < N else norms._backward_rows
    unit = {"N": 1, "x_m": 1, "dy_m": 1, "d_total_m": 1} if N == 1 else {}
    check(compiled(kernel, dtype, N % 16 == 0, launch.arguments, **unit))


def test_what_is_not_there_is_left_out(norms, compiled):
    """RMS norm without gain and residual, nothing saved; and its backward."""
    absent = dict.fromkeys(["gain_ptr", "mean_ptr", "rest_ptr"])
    forward = absent | dict.fromkeys(["residual_ptr", "bias_ptr", "total_ptr", "r_ptr"]) | {"LAYER": False}
    check(compiled(norms._forward_rows, "fp16", True, norms._launch.forward(1024).arguments, **forward))
    backward = absent | dict.fromkeys(["d_total_ptr", "d_gain_ptr", "d_bias_ptr"])
    check(compiled(norms._backward_rows, "fp16", True, norms._launch.backward(1024).arguments, **backward))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_sums_over_rows(dtype, norms, compiled):
    check(compiled(norms._backward_long_parameters, dtype, True, norms._launch.PARAMETERS_LONG.arguments))
    check(compiled(norms._column_sum, dtype, True, norms._launch.COLUMN_SUM.arguments))


@pytest.mark.long  # the pattern is one version of Triton's machine code; test_side_by_side.py tests what it does
def test_the_grid_barrier(norms, compiled):
    """In a loop over steps one thread adds with release and waits by loads that acquire, at the GPU's scope, between
    barriers of the program's threads; what is exchanged is loaded anew in each step, past L1, after the barrier."""
    ring = importlib.import_module("ring").ring
    options = {"num_warps": 4, "enable_fp_fusion": True, "num_stages": 1, "launch_cooperative_grid": True}
    ptx, spilled = compiled(ring, "fp32", True, options, T=1000, SIZE=1024, VISITS=2)
    assert spilled <= SPILLED
    (one,) = set(re.findall(r"@(%p\d+) +(?:atom|ld)\.global\.gpu\.", ptx))
    assert re.search(rf"setp\.eq\.b32\s+{one}, %r\d+, 0;", ptx)  # the thread whose number is 0
    words = {
        "release": rf"@{one} +atom\.global\.gpu\.release\.add\.u32",
        "acquire": rf"@{one} +ld\.global\.gpu\.acquire\.b32",
        "exchanged": r"\bld\.global\.cg\.v4\.b32",
        "load": r"\bld\.global\.v4\.b32",
        "store": r"\bst\.global\.v4\.b32",
        "threads": r"\bbar\.sync",
        "label": r"\$L__BB\w+:",
        "jump": r"@!?%p\d+ +bra",
        "other": r"\b(?:ld|st|atom|red|cp)\.(?!param|shared)",
    }
    found = re.finditer("|".join(f"(?P<{word}>{pattern})" for word, pattern in words.items()), ptx)
    visit = "threads release label( threads)+ acquire( threads)+ jump threads"
    loop = f"label( store)+ {visit}( exchanged)+ {visit} jump"
    order = " ".join(match.lastgroup for match in found)
    assert re.fullmatch(f"(load )+{loop}( store)+", order), order
