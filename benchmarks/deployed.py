"""A trained network as it is deployed: size of the file, error, symbols right and time, for each way out.

    python benchmarks/deployed.py                # layernorm, ONNX Runtime in float32 and int8, TorchScript
    python benchmarks/deployed.py --aot          # also AOTInductor, which compiles for a minute or more

The network is the listener of examples/streaming.py with more units: an LSTM of two layers and a linear layer, trained
there. int8 is ONNX Runtime's ``quantize_dynamic``: the weights of the products are int8, and the inputs of each product
are rounded when it runs. "W x": only the products with the layers' inputs. "all": also those with the state, which are
inside the graph's Scan.

Errors are the largest of a score, over 100 frames of 16 rows, against the module. Times are minima of calls for one
row: 100 frames in one call, and 10 frames with the state from the call before. AOTInductor has only 10 frames a call.
Needs ``pip install '.[onnx]' onnxruntime``.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from functools import partial
from pathlib import Path

import onnxruntime
import torch
from onnxruntime.quantization import quantize_dynamic
from torch import Tensor

import layernorm as ln
import timing

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from streaming import FEATURES, Listener, Runtime, accuracy, export_onnx, in_onnx_runtime, listen, spoken, trained

CHUNK = 10


def aot(model: torch.nn.Module, path: Path, *state: Tensor, plain: bool = False) -> Runtime:
    """Compiles a network for chunks of 10 frames of any number of rows. ``plain``: without layernorm's ops."""
    B = torch.export.Dim("B")
    inputs = torch.randn(CHUNK, 2, FEATURES), *state
    program = torch.export.export(model, inputs, dynamic_shapes=({1: B}, {1: B}, {1: B}))
    if plain:
        program = program.run_decompositions(ln.decompositions())
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    return torch._inductor.aoti_load_package(str(path))


def ways_out(model: Listener, folder: Path, with_aot: bool) -> dict[str, tuple[Path, Runtime]]:
    """The files of a network, and what runs them."""
    found: dict[str, tuple[Path, Runtime]] = {}
    weights = folder / "weights.pt"
    torch.save(model.state_dict(), weights)
    found["layernorm"] = weights, model
    onnx = folder / "float32.onnx"
    export_onnx(model, onnx)
    found["ONNX"] = onnx, in_onnx_runtime(onnx)
    logging.disable(logging.WARNING)  # ONNX Runtime advises to simplify the graph first
    for name, inside_scan in (("ONNX int8, W x", False), ("ONNX int8, all", True)):
        quantized = folder / f"{name}.onnx"
        quantize_dynamic(onnx, quantized, extra_options={"EnableSubgraph": inside_scan})
        found[name] = quantized, in_onnx_runtime(quantized)
    script = folder / "portable.pt"
    torch.jit.script(ln.portable(model)).save(script)
    found["TorchScript"] = script, torch.jit.load(script)
    if with_aot:
        state = model.silence(2)
        found["AOTInductor"] = folder / "own.pt2", aot(model, folder / "own.pt2", *state)
        path = folder / "plain.pt2"
        found["AOTInductor, plain operations"] = path, aot(model, path, *state, plain=True)
    return found


def main() -> None:
    parser = timing.parser(__doc__)
    parser.add_argument("--hidden-size", type=int, default=320, help="units of each layer (default: 320)")
    parser.add_argument("--updates", type=int, default=150, help="updates of the training (default: 150)")
    parser.add_argument("--aot", action="store_true", help="also AOTInductor")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    model = trained(options.hidden_size, options.updates)
    symbols, frames = spoken(100, 16)
    exact, _, _ = model(frames, *model.silence(16))
    with tempfile.TemporaryDirectory() as folder:
        for threads in timing.tables(options):
            ways = ways_out(model, Path(folder), options.aot)
            network = f"LSTM({FEATURES}, {options.hidden_size}, 2)"
            print(f"\n{threads} threads, {network}, onnxruntime {onnxruntime.__version__}")
            start, one = model.silence(1), frames[:, :1].contiguous()
            runs = {name: partial(run, one[:CHUNK].contiguous(), *start) for name, (_, run) in ways.items()}
            chunk = timing.minima(runs, options.rounds)
            runs = {name: partial(run, one, *start) for name, (_, run) in ways.items() if "AOT" not in name}
            whole = timing.minima(runs, options.rounds)
            print("| | file, MB | error | symbols right | 100 frames, ms | 10 frames, ms |\n|---|---|---|---|---|---|")
            for name, (path, run) in ways.items():
                scores = listen(run, frames, *model.silence(16), [CHUNK] * 10)
                row = {
                    "name": name,
                    "MB": path.stat().st_size / 1e6,
                    "error": (scores - exact).abs().max().item(),
                    "right": accuracy(scores, symbols),
                    "100 frames": whole.get(name),
                    "10 frames": chunk[name],
                }
                rows.append({"threads": threads, **row})
                of_whole = f"{1e3 * whole[name]:.2f}" if name in whole else ""
                print(
                    f"| {name} | {row['MB']:.1f} | {row['error']:.1e} | {row['right']:.1%} | {of_whole} | "
                    f"{1e3 * chunk[name]:.2f} |"
                )
    print(f"scores have the deviation {exact.std():.1f}")
    timing.save(options.json, rows)


if __name__ == "__main__":
    main()
