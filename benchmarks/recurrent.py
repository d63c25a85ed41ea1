"""Times layer-normalised recurrent networks against torch's without layer norm, and against other ways to write them.

    python benchmarks/recurrent.py --threads 1 2 --json recurrent.json --chart recurrent.png
    python benchmarks/recurrent.py --networks LSTM --peers loop compile --rounds 5
    python benchmarks/recurrent.py --networks LSTM --type bfloat16 --peers
    python benchmarks/recurrent.py --networks LSTM --products bfloat16 --peers
    python benchmarks/recurrent.py --peers batch --shapes 0 4 7 --clock processor
    python benchmarks/recurrent.py --networks LSTM --peers --size 48 30 250 260 --engines reference compiled/4 compiled
    python benchmarks/recurrent.py --memory
    python benchmarks/recurrent.py --device cuda --peers loop graph --engines reference+graph compiled compiled+graph

All sides take turns in one process. The script prints the minima over the rounds in milliseconds and their ratios to
`torch.nn`'s network, for inference (one call without gradients) and training (forward and backward to the input and all
parameters). Before they are timed, outputs and gradients of layernorm's networks, of a loop and of graphs of them are
compared with the equations in float64. With ``--type bfloat16`` all numbers are of that type; `float32` is then
layernorm's network in float32. With ``--products bfloat16`` torch's switches let both sides make float32 products of
numbers rounded to bfloat16.

`floor` is the time of only the matrix products, by torch.mm on the same shapes: W_ih x as one product, W_hh h as T.
Peers: `loop`, a Python loop over torch's layer_norm; `compile`, the same with torch.compile over the step; `batch`,
layernorm's network with batch norm (inference in evaluation mode); `jax`, its lax.scan, where it is installed; `graph`,
torch's network as a CUDA graph.

``--engines`` also runs layernorm's network on other engines; `compiled/4` is the compiled engine with chunks of 4
steps, and `compiled+graph` replays its calls as CUDA graphs. The seconds of the first call of each mode, which
compiles, and those of the capture, are printed above the rows of a shape.

With ``--device cuda`` everything lies on the GPU, and torch's networks are cuDNN's. A time begins and ends when the GPU
has nothing left to do, so that launches count. Both sides compute products of float32 in float32; with ``--products
tf32`` both in TF32, which cuDNN's networks use unless they are told otherwise.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import layernorm as ln
import packed
import timing

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
TIMES = 4.0  # an error may be so many times that of a Python loop over the equations in the same type
GRID = [  # T, B, I, H
    (50, 32, 256, 256), (100, 8, 384, 384), (30, 128, 512, 512), (200, 1, 256, 256), (64, 128, 256, 256),
    (30, 64, 640, 1024), (64, 256, 128, 128), (500, 8, 403, 400), (37, 5, 93, 300), (1, 1, 64, 64), (16, 4, 17, 33),
]  # fmt: skip
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PEERS = ["loop", "compile", "batch", "jax", "graph"]
DEEP = [(50, 32, 256, 256), (37, 5, 93, 300)]  # two layers, bidirectional
LARGE = (64, 128, 256, 256)  # whose memory is measured
CHUNK = 8  # of the compiled engine


class Loop(nn.Module):
    """The paper's equations as most people write them: a Python loop, `F.layer_norm` in it."""

    def __init__(self, network: str, module: Any, compiled: bool = False) -> None:
        super().__init__()
        self.network, self.module = network, module
        step = getattr(self, network.lower())
        self.step = torch.compile(step, dynamic=False) if compiled else step

    def norm(self, z: Tensor, gain: str, bias: str) -> Tensor:
        p = self.module
        return F.layer_norm(z, z.shape[-1:], getattr(p, gain), getattr(p, bias), 1e-5)

    def lstm(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        z = self.norm(x, "gain_ih_l0", "bias_ih_l0")
        z = z + self.norm(h @ self.module.weight_hh_l0.T, "gain_hh_l0", "bias_hh_l0")
        i, f, g, o = z.chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * self.norm(c, "gain_c_l0", "bias_c_l0").tanh(), c

    def gru(self, x: Tensor, h: Tensor) -> tuple[Tensor]:
        p, H, u = self.module, h.shape[-1], h @ self.module.weight_hh_l0.T
        parts = []
        for z, side in ((x, "ih"), (u, "hh")):
            gain, bias = getattr(p, f"gain_{side}_l0"), getattr(p, f"bias_{side}_l0")
            for a, b in ((0, 2 * H), (2 * H, 3 * H)):
                parts.append(F.layer_norm(z[:, a:b], (b - a,), gain[a:b], bias[a:b], 1e-5))
        r, z = (parts[0] + parts[2]).sigmoid().chunk(2, -1)
        n = (parts[1] + r * parts[3]).tanh()
        return (n + z * (h - n),)

    def rnn(self, x: Tensor, h: Tensor) -> tuple[Tensor]:
        p = self.module
        z = F.layer_norm(x + h @ p.weight_hh_l0.T, h.shape[-1:], p.gain_l0, p.bias_ih_l0 + p.bias_hh_l0, 1e-5)
        return (z.tanh(),)

    def forward(self, input: Tensor) -> tuple[Tensor, None]:
        zx = input @ self.module.weight_ih_l0.T
        state = (zx.new_zeros(input.shape[1], self.module.hidden_size),) * (2 if self.network == "LSTM" else 1)
        output = []
        for x in zx.unbind():
            state = self.step(x, *state)
            output.append(state[0])
        return torch.stack(output), None


class On(nn.Module):
    """A layernorm network on an engine: ``reference``, or ``compiled/4`` with chunks of 4 steps."""

    def __init__(self, engine: str, module: Any) -> None:
        super().__init__()
        self.engine, _, self.chunk = engine.partition("/")
        self.module = module

    def forward(self, x: Tensor) -> Any:
        if self.engine == "compiled":
            from layernorm.engines.compiled import _compile

            _compile.CHUNK = int(self.chunk or CHUNK)
        with ln.backends.use(self.engine):
            return self.module(x)


class Graph(nn.Module):
    """The calls of a network as CUDA graphs: one without gradients, and a forward with its backward."""

    def __init__(self, network: nn.Module, x: Tensor) -> None:
        super().__init__()
        self.x, self.alone = x.clone(), torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(3):  # what a first call makes, such as cuBLAS's memory, is made before
                network(self.x)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.no_grad(), torch.cuda.graph(self.alone):
            self.results = network(self.x)
        own = copy.deepcopy(network)
        for module in own.modules():
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()  # a copy of cuDNN's has lost its order, and would restore it in every call
        self.both = torch.cuda.make_graphed_callables(own, (x.clone().requires_grad_(),))

    def forward(self, x: Tensor) -> Any:
        if torch.is_grad_enabled():
            return self.both(x)
        self.x.copy_(x)
        self.alone.replay()
        return self.results


def compare(network: str, sides: dict[str, Any], x: Tensor) -> None:
    """Compares every layer-normalised side with the equations in float64, over the first 20 steps: the output, without
    gradients and with them, and the gradients of the input and of all parameters.

    Few steps, because a layer-normalised LSTM spreads a rounding error further at every step. The measure is the larger
    error of two others in the type of ``x``: the Python loop, and the equations. That of only one can be small by luck.
    """
    module = sides["layer norm"]
    d = torch.randn(min(20, len(x)), x.shape[1], module.hidden_size).to(x.dtype)
    wide = copy.deepcopy(module).double()
    with ln.backends.use("reference"):
        exact = results(wide, x.double(), d.double())
        equations = results(module, x, d)
    units = [1e-6 * float(e.abs().max()) for e in exact]
    for rounded in (equations, results(Loop(network, module), x, d)):
        units = [max(float((a - e).abs().max()), unit) for a, e, unit in zip(rounded, exact, units, strict=True)]
    for name, side in sides.items():
        if name in ("torch", "graph"):
            continue
        for a, e, unit in zip(results(side, x, d), exact, units, strict=True):
            error = float((a - e).abs().max())
            if not error <= TIMES * unit:
                raise SystemExit(f"{network} {name}: error {error:.1e}, that of plain torch in {x.dtype} is {unit:.1e}")


def results(side: Any, x: Tensor, d: Tensor) -> list[Tensor]:
    """Computes the first steps' output twice, without gradients and with them, and the gradients that ``d`` gives."""
    with torch.no_grad():
        alone = side(x)[0][: len(d)].clone()
    given = x.clone().requires_grad_()
    leaves = [given, *side.parameters()]
    output = side(given)[0][: len(d)]
    return [alone, output.detach().clone(), *(t.clone() for t in torch.autograd.grad(output, leaves, d))]


def inference(side: Any, x: Tensor) -> Callable[[], Any]:
    """Returns one call without gradients, as a function."""

    def run() -> Any:
        with torch.no_grad():
            return side(x)

    return run


def training(side: Any, x: Tensor, d: Tensor) -> Callable[[], Any]:
    """Returns forward and backward to the input and all parameters, as a function."""
    given = x.clone().requires_grad_()

    def run() -> None:
        torch.autograd.backward(side(given)[0], d)
        for t in (given, *side.parameters()):
            t.grad = None

    return run


def scan(module: Any) -> Callable[[Tensor], Any]:
    """JAX's lax.scan over the LSTM's equations."""
    import jax
    import jax.numpy as jnp

    p = {name: jnp.asarray(value.detach().numpy()) for name, value in module.named_parameters()}

    def norm(z: Any, gain: Any, bias: Any) -> Any:
        z = z - z.mean(-1, keepdims=True)
        return z * jax.lax.rsqrt((z * z).mean(-1, keepdims=True) + 1e-5) * gain + bias

    def run(p: Any, input: Any) -> Any:
        def step(state: Any, zx: Any) -> Any:
            h, c = state
            z = zx + norm(h @ p["weight_hh_l0"].T, p["gain_hh_l0"], p["bias_hh_l0"])
            i, f, g, o = jnp.split(z, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(norm(c, p["gain_c_l0"], p["bias_c_l0"]))
            return (h, c), h

        zero = jnp.zeros((input.shape[1], p["weight_hh_l0"].shape[1]))
        zx = norm(input @ p["weight_ih_l0"].T, p["gain_ih_l0"], p["bias_ih_l0"])
        return jax.lax.scan(step, (zero, zero), zx)[1]

    forward = jax.jit(run)
    backward = jax.jit(jax.grad(lambda p, x, d: (run(p, x) * d).sum(), argnums=(0, 1)))
    return lambda x, d=None: jax.block_until_ready(
        forward(p, jnp.asarray(x.numpy())) if d is None else backward(p, jnp.asarray(x.numpy()), jnp.asarray(d.numpy()))
    )


def floor(network: str, shape: tuple[int, ...], dtype: torch.dtype, times: int) -> Callable[[], Any]:
    (T, B, inputs, H), units = shape, GATES[network] * shape[3]
    sizes = (T * B, inputs), (B, H), (inputs, units), (H, units)
    x, h, w_ih, w_hh = (torch.randn(*s).to(dtype) for s in sizes)
    zx, zh = torch.empty(T * B, units, dtype=dtype), torch.empty(B, units, dtype=dtype)

    def run() -> None:
        for _ in range(times):
            torch.mm(x, w_ih, out=zx)
            for _ in range(T):
                torch.mm(h, w_hh, out=zh)

    return run


def measure(
    network: str, shape: tuple[int, ...], dtype: torch.dtype, peers: list[str], engines: list[str], rounds: int
) -> dict[str, dict[str, float]]:
    """Seconds by mode and side for one layer in one direction."""
    T, B, inputs, H = shape
    x, d = torch.randn(T, B, inputs).to(dtype), torch.randn(T, B, H).to(dtype)
    libraries = {"torch": nn, "layer norm": ln}
    sides: dict[str, Any] = {name: getattr(m, network)(inputs, H, dtype=dtype) for name, m in libraries.items()}
    if "loop" in peers:
        sides["loop"] = Loop(network, sides["layer norm"])
    if "compile" in peers:
        torch._dynamo.reset()
        sides["compile"] = Loop(network, sides["layer norm"], compiled=True)
    if "graph" in peers:
        sides["graph"] = Graph(sides["torch"], x)
    for engine in engines:
        name, _, graph = engine.partition("+")
        side: nn.Module = On(name, sides["layer norm"])
        first = [timing.seconds(run, 1) for run in (inference(side, x), training(side, x, d))]
        if graph:
            start = timing.clock()
            side = Graph(side, x)
            first.append(timing.clock() - start)
        print(f"first calls of {engine}: " + ", ".join(f"{seconds:.1f} s" for seconds in first), flush=True)
        sides[engine] = side
    compare(network, sides, x)
    runs = {name: inference(side, x) for name, side in sides.items()}
    train = {name: training(side, x, d) for name, side in sides.items()}
    if dtype is not torch.float32:
        wide = copy.deepcopy(sides["layer norm"]).float()
        runs["float32"], train["float32"] = inference(wide, x.float()), training(wide, x.float(), d.float())
    if "batch" in peers and B > 1:
        batch = getattr(ln, network)(inputs, H, dtype=dtype, norm="batch")
        batch(x)  # else evaluation has no statistics
        runs["batch"], train["batch"] = inference(copy.deepcopy(batch).eval(), x), training(batch, x, d)
    if "jax" in peers and network == "LSTM":
        found = scan(sides["layer norm"])
        runs["jax"], train["jax"] = (lambda: found(x)), (lambda: found(x, d))
    found_inference = timing.minima({**runs, "floor": floor(network, shape, dtype, 1)}, rounds)
    with torch.no_grad():
        products = timing.minima({"floor": floor(network, shape, dtype, 3)}, rounds)
    return {"inference": found_inference, "training": {**timing.minima(train, rounds), **products}}


def others(networks: list[str], dtype: torch.dtype, rounds: int) -> list[tuple[str, dict[str, float]]]:
    """Two bidirectional layers, and the cells at B = 1."""
    found = []
    for network in networks:
        for shape in DEEP:
            T, B, inputs, H = shape
            x, d = torch.randn(T, B, inputs).to(dtype), torch.randn(T, B, 2 * H).to(dtype)
            sides = {
                "torch": getattr(nn, network)(inputs, H, 2, bidirectional=True, dtype=dtype),
                "layer norm": getattr(ln, network)(inputs, H, 2, bidirectional=True, dtype=dtype),
            }
            for mode, run in (("inference", inference), ("training", lambda s, x, d=d: training(s, x, d))):
                runs = {name: run(side, x) for name, side in sides.items()}
                found.append((f"{network} 2 layers, 2 directions {shape} {mode}", timing.minima(runs, rounds)))
    for network in networks:
        for size in (64, 256):
            x = torch.randn(1, size).to(dtype)
            cells = {"torch": getattr(nn, f"{network}Cell")(size, size, dtype=dtype), "layer norm": None}
            cells["layer norm"] = getattr(ln, f"{network}Cell")(size, size, dtype=dtype)
            runs = {name: inference(cell, x) for name, cell in cells.items()}
            found.append((f"{network}Cell B=1 {size} inference", timing.minima(runs, rounds)))
    return found


def table(
    threads: int,
    networks: list[str],
    dtype: torch.dtype,
    peers: list[str],
    engines: list[str],
    shapes: Sequence[tuple[int, ...]],
    rounds: int,
) -> list[dict[str, Any]]:
    wide = [] if dtype is torch.float32 else ["float32"]
    names = [*wide, *(n for n in PEERS if n in peers), *engines, "floor"]
    rows = []
    for network in networks:
        print(
            f"\n{network}, {str(dtype)[6:]}, {threads} thread(s): milliseconds (ratio to torch.nn's without layer norm)"
        )
        header = f"{'T, B, I, H':<20}{'mode':<11}{'torch':>9}{'layer norm':>17}"
        print(header + "".join(f"{name:>17}" for name in names), flush=True)
        ratios: dict[str, list[float]] = {"inference": [], "training": []}
        for shape in shapes:
            for mode, found in measure(network, shape, dtype, peers, engines, rounds).items():
                base = found["torch"]
                line = f"{', '.join(map(str, shape)):<20}{mode:<11}{base * 1e3:9.3f}"
                for name in ("layer norm", *names):
                    cell = f"{found[name] * 1e3:.3f} ({found[name] / base:.2f})" if name in found else "-"
                    line += f"{cell:>17}"
                print(line, flush=True)
                ratios[mode].append(found["layer norm"] / base)
                rows.append({"threads": threads, "network": network, "shape": shape, "mode": mode, "seconds": found})
        for mode, values in ratios.items():
            print(f"geometric mean, {mode}: {timing.geometric_mean(values):.2f}, largest {max(values):.2f}")
    if engines:
        return rows
    print(f"\nother calls, {threads} thread(s)")
    for what, found in others(networks, dtype, rounds):
        ratio = found["layer norm"] / found["torch"]
        print(f"{what:<62}{found['torch'] * 1e3:9.3f}{found['layer norm'] * 1e3:9.3f} ({ratio:.2f})", flush=True)
        rows.append({"threads": threads, "what": what, "seconds": found})
    return rows


def chart(path: str, rows: Sequence[dict[str, Any]]) -> None:
    """Bars of the ratios with the most threads: a column for each network, a line for each mode."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from layernorm_lab.report.page import STYLES

    threads = max(row["threads"] for row in rows)
    rows = [row for row in rows if row["threads"] == threads and "network" in row]
    networks = [network for network in GATES if any(row["network"] == network for row in rows)]
    figure, axes = plt.subplots(2, len(networks), figsize=(4.2 * len(networks), 6.4), squeeze=False, sharey=True)
    looks = {
        "layer norm": ("layernorm, with layer norm", STYLES["layer"].colour),
        "loop": ("Python loop with layer norm", "#bdbdbd"),
        "compile": ("compile", "#8a8a8a"),
        "jax": ("jax", "#5c5c5c"),
    }
    for line, mode in zip(axes, ("inference", "training"), strict=True):
        for axis, network in zip(line, networks, strict=True):
            chosen = [row for row in rows if (row["network"], row["mode"]) == (network, mode)]
            names = [name for name in looks if any(name in row["seconds"] for row in chosen)]
            for k, name in enumerate(names):
                at = [i + (k - (len(names) - 1) / 2) * 0.8 / len(names) for i in range(len(chosen))]
                values = [row["seconds"][name] / row["seconds"]["torch"] for row in chosen]
                label, colour = looks[name]
                axis.bar(at, values, 0.8 / len(names), label=label, color=colour)
            axis.axhline(1, color="black", linewidth=1)
            axis.set_yscale("log", base=2)
            axis.set_yticks([0.25, 0.5, 1, 2, 4, 8], ["¼", "½", "1", "2", "4", "8"])
            labels = [",".join(map(str, row["shape"])) for row in chosen] if mode == "training" else [""] * len(chosen)
            axis.set_xticks(range(len(chosen)), labels, rotation=45, ha="right", fontsize=8)
            axis.set_title(f"{network}, {mode}", fontsize=10)
            axis.grid(axis="y", alpha=0.3)
            axis.spines[["top", "right"]].set_visible(False)
            axis.tick_params(labelleft=True)
        line[0].set_ylabel("time / torch.nn's\nwithout layer norm")
    for axis in axes[-1]:
        axis.set_xlabel("T, B, I, H")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="upper center", ncols=4, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.96))
    figure.savefig(path, dpi=120)
    print(f"wrote {path}")


def memory(network: str, side: str, shape: tuple[int, ...]) -> int:
    """KiB by which three training steps raise the peak of a process of their own."""
    T, B, inputs, H = shape
    module = getattr(nn if side == "torch" else ln, network)(inputs, H)
    small = training(module, torch.randn(2, 2, inputs), torch.randn(2, 2, H))
    small()
    before = timing.peak()
    run = training(module, torch.randn(T, B, inputs), torch.randn(T, B, H))
    for _ in range(3):
        run()
    return timing.peak() - before


def memory_table(networks: Sequence[str]) -> None:
    """Prints the memory peak of training, each side in a process of its own."""
    for network in networks:
        found = {}
        for side in ("torch", "layer norm"):
            command = [sys.executable, __file__, "--peak", network, side]
            found[side] = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        ratio = found["layer norm"] / found["torch"]
        print(f"{network} training {LARGE}: {found['torch']} KiB, layer norm {found['layer norm']} KiB ({ratio:.2f})")


def main() -> int:
    parser = timing.parser(__doc__, chart="the ratios")
    parser.add_argument("--networks", nargs="+", choices=list(GATES), default=list(GATES), help="(default: all)")
    parser.add_argument("--type", choices=list(TYPES), default="float32", help="of every number (default: float32)")
    parser.add_argument(
        "--products", choices=["bfloat16", "tf32"], help="float32: let both sides round what products multiply"
    )
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=["loop"], help="further sides (default: loop)")
    parser.add_argument(
        "--shapes", type=int, nargs="+", choices=range(len(GRID)), default=range(len(GRID)), help="places in the grid"
    )
    parser.add_argument("--size", type=int, nargs=4, help="T, B, I, H instead of the grid")
    parser.add_argument("--engines", nargs="+", default=[], help="other engines, `compiled/N` with chunks of N steps")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where to compute (default: cpu)")
    parser.add_argument("--memory", action="store_true", help="measure the memory peak of training on the CPU, no time")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    options = timing.parse(parser)
    if options.peak:
        print(memory(*options.peak, LARGE))
        return 0
    if options.memory:
        if options.chart or options.json:
            parser.error("--chart and --json are of times")
        memory_table(options.networks)
        packed.memory_table(options.networks, packed.BATCHES)
        return 0
    if options.redraw:
        chart(options.chart, options.redraw)
        return 0
    if "jax" in options.peers and importlib.util.find_spec("jax") is None:
        print("jax is not installed, and left out")
        options.peers.remove("jax")
    for engine in options.engines:
        name, _, kind = engine.partition("+")
        if name.partition("/")[0] not in ln.backends.available() or kind not in ("", "graph"):
            parser.error(f"--engines {engine}: there is {', '.join(ln.backends.available())}, and each with +graph")
    if options.device == "cuda":
        if not torch.cuda.is_available():
            parser.error(f"--device cuda: PyTorch {torch.__version__} finds no GPU")
        torch.set_default_device("cuda")
        options.clock = "gpu"
    elif "graph" in options.peers or options.products == "tf32" or any("+graph" in e for e in options.engines):
        parser.error("graphs and --products tf32 are of --device cuda")
    torch.backends.cudnn.rnn.fp32_precision = "tf32" if options.products == "tf32" else "ieee"
    if options.products:
        if options.type != "float32":
            parser.error(f"--products {options.products} is of float32, not of --type {options.type}")
        if options.products == "bfloat16" and options.device == "cuda":
            parser.error("--products bfloat16 is of a CPU: cuDNN has no such networks")
        torch.set_float32_matmul_precision({"bfloat16": "medium", "tf32": "high"}[options.products])
        torch.backends.mkldnn.rnn.fp32_precision = {"bfloat16": "bf16", "tf32": "none"}[options.products]
    shapes = [tuple(options.size)] if options.size else [GRID[k] for k in options.shapes]
    sides = TYPES[options.type], options.peers, options.engines
    rows = []
    for threads in timing.tables(options):
        rows += table(threads, options.networks, *sides, shapes, options.rounds)
    timing.save(options.json, rows)
    if options.chart:
        chart(options.chart, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
