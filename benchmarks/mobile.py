"""Makes files for phones of `ln.portable` copies, with ExecuTorch and LiteRT, and compares their outputs with the
modules'.

    python benchmarks/mobile.py executorch    # pip install executorch
    python benchmarks/mobile.py litert        # pip install litert-torch

Run each in an environment of its own.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import layernorm as ln

T, B, I, H = 20, 1, 40, 128  # noqa: E741


def executorch(model: nn.Module, x: Tensor, path: Path) -> Callable[[Tensor], Sequence[Tensor]]:
    """Writes a file of ExecuTorch, and returns what runs it."""
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime

    program = to_edge_transform_and_lower(torch.export.export(model, (x,))).to_executorch()
    path.write_bytes(program.buffer)
    method = Runtime.get().load_program(path).load_method("forward")
    return lambda given: method.execute([given])


def litert(model: nn.Module, x: Tensor, path: Path) -> Callable[[Tensor], Sequence[Tensor]]:
    """The same with LiteRT."""
    import litert_torch
    from ai_edge_litert.interpreter import Interpreter

    litert_torch.convert(model, (x,)).export(str(path))
    interpreter = Interpreter(str(path))
    interpreter.allocate_tensors()

    def run(given: Tensor) -> list[Tensor]:
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], given.numpy())
        interpreter.invoke()
        return [torch.from_numpy(interpreter.get_tensor(o["index"])) for o in interpreter.get_output_details()]

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runtime", choices=["executorch", "litert"])
    runtime = parser.parse_args().runtime
    make, package = {"executorch": (executorch, "executorch"), "litert": (litert, "litert-torch")}[runtime]
    torch.manual_seed(0)
    x, other = torch.randn(T, B, I), torch.randn(T, B, I)
    print(f"{package} {importlib.metadata.version(package)}, PyTorch {torch.__version__}")
    print(f"| T = {T}, B = {B}, {I} inputs, {H} units | file, MB | largest difference |\n|---|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in (("LSTM", ln.LSTM), ("GRU", ln.GRU), ("RNN", ln.RNN)):
            net = kind(I, H).eval()
            path = Path(folder) / name
            found = make(ln.portable(net), x, path)(other)
            expected, state = net(other)
            whole = [expected, *(state if isinstance(state, tuple) else [state])]
            error = float(torch.stack([(a - b).abs().max() for a, b in zip(found, whole, strict=True)]).max())
            print(f"| `{name}` | {path.stat().st_size / 1e6:.2f} | {error:.1e} |")


if __name__ == "__main__":
    with torch.no_grad():
        main()
