"""Measures what int8 weights gain and what they cost: `ln.quantize`.

    python benchmarks/quantized.py speed --rounds 20
    python benchmarks/quantized.py speed --networks LSTM GRU RNN --units 32 64 96 128 160 192 256 --steps 1 10 100
    python benchmarks/quantized.py trained

`speed`: a network over one sequence, a call with the state of the call before, under `torch.inference_mode`. It prints
microseconds in float32, bfloat16 and int8, and those of a step of `module.stepper()` in float32. The sides take turns
in one process; the figures are minima over the rounds. The second command, with
`--sides int8 --rounds 80 --clock processor`, decided `_quantize.WORTHWHILE`.

`trained`: a character model (an LSTM of 512 units) is trained on the help texts that come with Python, and evaluated on
the last tenth in float32, bfloat16 and int8. It prints nats a character.
"""

from __future__ import annotations

import argparse
import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import layernorm as ln
import timing

Row = dict[str, Any]
SIDES = ["float32", "stepper", "bfloat16", "int8"]


def forms(model: Any) -> dict[str, Any]:
    """Returns a model in each type of number."""
    model = model.eval()
    return {"float32": model, "bfloat16": copy.deepcopy(model).bfloat16(), "int8": ln.quantize(model, filter_fn=every)}


def every(module: nn.Module, name: str) -> bool:
    """Asks for int8 in every network, small ones too."""
    return True


# Time


def call(net: Callable[..., tuple[Tensor, Any]], x: Tensor) -> Callable[[], Any]:
    """Returns a call with the state of one before it, as a function."""
    _, state = net(x)
    return lambda: net(x, state)


def speed(options: argparse.Namespace) -> list[Row]:
    sides = [side for side in SIDES if side in {*options.sides, "float32", "int8"}]
    head = f"{'network':<9}{'norm':<7}{'T, I, H':<15}{'weights':>9}"
    print(head + "".join(f"{side:>10}" for side in sides) + f"{'float32 / int8':>16}")
    rows: list[Row] = []
    shapes = [(I or H, H) for H in options.units for I in options.inputs]  # noqa: E741
    for network, (I, H), norm in itertools.product(options.networks, shapes, ("layer", None)):  # noqa: E741
        nets = forms(getattr(ln, network)(I, H, norm=norm))
        weights = nets["int8"].weight_ih_l0.numel() + nets["int8"].weight_hh_l0.numel()
        for T in options.steps:
            x = torch.randn(T, 1, I)
            with torch.inference_mode():
                runs = {name: call(net, x.bfloat16() if name == "bfloat16" else x) for name, net in nets.items()}
                runs = {name: run for name, run in runs.items() if name in sides}
                if T == 1 and "stepper" in sides:
                    runs["stepper"] = call(nets["float32"].stepper(), x[0])
                best = timing.minima(runs, options.rounds, 1e-3)
            ratio = best["float32"] / best["int8"]
            cells = [f"{1e6 * best[side]:.1f}" if side in best else "" for side in sides]
            line = f"{network:<9}{norm!s:<7}{f'{T}, {I}, {H}':<15}{weights:>9}"
            print(line + "".join(f"{cell:>10}" for cell in cells) + f"{ratio:>16.2f}", flush=True)
            row = {"network": network, "norm": norm, "T": T, "I": I, "H": H, "weights": weights}
            rows.append({**row, "ratio": ratio, "seconds": best})
    return rows


# Error


class Characters(nn.Module):
    """The next character, from those before it."""

    def __init__(self, characters: int, units: int, norm: str | None) -> None:
        super().__init__()
        self.embedding, self.net = nn.Embedding(characters, 64), ln.LSTM(64, units, norm=norm)
        self.head = nn.Linear(units, characters)

    def forward(self, text: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        output, state = self.net(self.embedding(text), state)
        return self.head(output), state


def help_texts() -> tuple[Tensor, int]:
    """Returns the characters of Python's help texts as numbers, and how many there are."""
    from pydoc_data.topics import topics

    text = "".join(topics.values())
    numbers = {c: i for i, c in enumerate(sorted(set(text)))}
    return torch.tensor([numbers[c] for c in text]), len(numbers)


def nats(model: nn.Module, text: Tensor) -> float:
    """Returns the mean loss over a text, one sequence from its start."""
    total, state = 0.0, None
    with torch.inference_mode():
        for part in text.split(1000):
            if len(part) > 1:
                scores, state = model(part[:-1, None], state)
                total += float(nn.functional.cross_entropy(scores[:, 0].float(), part[1:], reduction="sum"))
    return total / (len(text) - -(-len(text) // 1000))


def trained(options: argparse.Namespace) -> list[Row]:
    text, characters = help_texts()
    training, test = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :][: options.test]
    rows: list[Row] = []
    print(f"{'norm':<8}{'float32':>10}{'bfloat16':>10}{'int8':>10}{'int8 - float32':>16}")
    for norm in ("layer", None):
        torch.manual_seed(0)
        model = Characters(characters, options.units[0], norm)
        optimizer = torch.optim.Adam(model.parameters(), 2e-3)
        for _ in range(options.updates):
            at = torch.randint(len(training) - 65, (32,))
            batch = training[at + torch.arange(65)[:, None]]
            loss = nn.functional.cross_entropy(model(batch[:-1])[0].flatten(0, 1), batch[1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        found = {name: nats(form, test) for name, form in forms(model).items()}
        line = "".join(f"{found[name]:>10.4f}" for name in ("float32", "bfloat16", "int8"))
        print(f"{norm!s:<8}{line}{found['int8'] - found['float32']:>16.4f}", flush=True)
        rows.append({"norm": norm, "nats": found})
    return rows


def main() -> None:
    parser = timing.parser(__doc__, rounds=20)
    parser.add_argument("what", choices=["speed", "trained"])
    parser.add_argument("--units", type=int, nargs="+", help="default: 128 256 512 1024; trained: 512")
    parser.add_argument("--inputs", type=int, nargs="+", default=[0], help="I (default: 0, which is H); speed only")
    parser.add_argument("--sides", nargs="+", default=SIDES, choices=SIDES, help="besides float32 and int8; speed only")
    parser.add_argument("--networks", nargs="+", default=["LSTM"], choices=["LSTM", "GRU", "RNN"], help="speed only")
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 10], help="T (default: 1 10)")
    parser.add_argument("--updates", type=int, default=600, help="of the training (default: 600)")
    parser.add_argument("--test", type=int, default=20_000, help="characters (default: 20,000)")
    options = parser.parse_args()
    run = {"speed": speed, "trained": trained}[options.what]
    options.units = options.units or ([128, 256, 512, 1024] if run is speed else [512])
    timing.save(options.json, [row for _ in timing.tables(options) for row in run(options)])


if __name__ == "__main__":
    main()
