"""Times rollouts in which episodes begin: torch's loop, sb3-contrib's policy and TorchRL's module against layernorm's.

    python benchmarks/rollout.py reset
    python benchmarks/rollout.py sb3
    python benchmarks/rollout.py torchrl --shapes 64,128,32,64 64,128,32,256

`reset`: forward and backward over a rollout (T, B). torch's LSTM is called for each step, with the state set to zero
where an episode begins; layernorm's once, with ``reset``.

`sb3`: sb3-contrib's RecurrentPPO on CartPole, 8 environments and 128 steps a rollout, 10 epochs in minibatches of 256:
a rollout, an update with it, and the frames a second of both together.

`torchrl`: TorchRL's own benchmark of resets (B, T, I, H; an episode begins at 3 % of the steps), which times inference,
and also forward and backward. It compares TorchRL's LSTMModule with torch's LSTM, and layernorm's LSTMModule.

All sides take turns in one process; the figures are minima over the rounds. `reset` and `torchrl` compare outputs
without a norm before that.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import layernorm as ln
import timing

Row = dict[str, Any]
NORMS = {"ours": None, "ours, layer norm": "layer"}


def printed(what: str, best: dict[str, float], frames: int) -> Row:
    """Prints milliseconds, frames a second and the ratio to the first side, and returns them as a row."""
    first = next(iter(best.values()))
    cells = [f"{name} {1e3 * s:.1f} ms, {frames / s:,.0f} frames/s ({first / s:.2f})" for name, s in best.items()]
    print(f"{what}: " + "; ".join(cells), flush=True)
    return {"what": what, "frames": frames, "seconds": best}


def gradients(output: Callable[[], Tensor], module: torch.nn.Module) -> Callable[[], Any]:
    """Returns a call and the gradients of its parameters, as a function."""
    return lambda: torch.autograd.grad(output().square().sum(), list(module.parameters()))


def reset(options: argparse.Namespace) -> list[Row]:
    rows = []
    for T, B, H in [(128, 16, 64), (128, 16, 256), (128, 64, 128)]:
        x, begins = torch.randn(T, B, H), torch.rand(T, B) < 0.03
        lstm = torch.nn.LSTM(H, H)

        def loop(x: Tensor = x, begins: Tensor = begins, lstm: torch.nn.LSTM = lstm) -> Tensor:
            outputs, h, c = (
                [],
                x.new_zeros(1, x.shape[1], lstm.hidden_size),
                x.new_zeros(1, x.shape[1], lstm.hidden_size),
            )
            for frame, goes_on in zip(x.unsqueeze(1), 1.0 - begins.float(), strict=True):
                output, (h, c) = lstm(frame, (h * goes_on[:, None], c * goes_on[:, None]))
                outputs.append(output)
            return torch.cat(outputs)

        runs = {"torch's loop": gradients(loop, lstm)}
        for name, norm in NORMS.items():
            ours = ln.LSTM(H, H, norm=norm)
            ours.load_state_dict(lstm.state_dict(), strict=False)
            runs[name] = gradients(lambda ours=ours, x=x, begins=begins: ours(x, reset=begins)[0], ours)
        torch.testing.assert_close(runs["ours"](), runs["torch's loop"](), rtol=1e-3, atol=1e-3)
        rows.append(printed(f"T {T}, B {B}, H {H}", timing.minima(runs, options.rounds), T * B))
    return rows


def sb3(options: argparse.Namespace) -> list[Row]:
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.env_util import make_vec_env

    from layernorm.sb3 import MlpLstmPolicy

    rows = []
    for H in (64, 256):
        sides: dict[str, Any] = {"sb3-contrib": ("MlpLstmPolicy", {})}
        sides |= {name: (MlpLstmPolicy, {"norm": norm}) for name, norm in NORMS.items()}
        rollouts, updates = {}, {}
        for name, (policy, keywords) in sides.items():
            model = RecurrentPPO(
                policy,
                make_vec_env("CartPole-v1", n_envs=8),
                batch_size=256,
                seed=0,
                device="cpu",
                policy_kwargs={"lstm_hidden_size": H, **keywords},
            )
            _, callback = model._setup_learn(1024, None)
            given = (model.env, callback, model.rollout_buffer, 128)
            rollouts[name] = lambda model=model, given=given: model.collect_rollouts(*given)
            updates[name] = model.train
        best = timing.minima(rollouts, options.rounds), timing.minima(updates, options.rounds)
        rows += [printed(f"H {H}, {what}", side, 1024) for what, side in zip(("rollout", "update"), best, strict=True)]
        rows.append(printed(f"H {H}, both", {name: best[0][name] + best[1][name] for name in sides}, 1024))
    return rows


def torchrl(options: argparse.Namespace) -> list[Row]:
    from tensordict import TensorDict
    from torchrl import modules

    from layernorm.torchrl import LSTMModule

    rows = []
    for B, T, I, H in options.shapes:  # noqa: E741
        begins = torch.rand(B, T, 1) < 0.03
        begins[:, 0] = False
        data = TensorDict({"obs": torch.randn(B, T, I), "is_init": begins}, [B, T])
        keys = {"in_key": "obs", "out_key": "feat", "default_recurrent_mode": True}
        sides = {"TorchRL": modules.LSTMModule(input_size=I, hidden_size=H, **keys)}
        for name, norm in NORMS.items():
            lstm = ln.LSTM(I, H, batch_first=True, norm=norm)
            lstm.load_state_dict(sides["TorchRL"].lstm.state_dict(), strict=False)
            sides[name] = LSTMModule(lstm=lstm, **keys)
        calls = {name: lambda side=side: side(data.copy())["feat"] for name, side in sides.items()}  # noqa: B023
        with torch.inference_mode():
            torch.testing.assert_close(calls["ours"](), calls["TorchRL"](), rtol=1e-4, atol=1e-4)
            best = timing.minima(calls, options.rounds)
        rows.append(printed(f"B {B}, T {T}, I {I}, H {H}, inference", best, B * T))
        if not options.inference:
            runs = {name: gradients(call, sides[name]) for name, call in calls.items()}
            best = timing.minima(runs, options.rounds)
            rows.append(printed(f"B {B}, T {T}, I {I}, H {H}, training", best, B * T))
    return rows


TABLES = {"reset": reset, "sb3": sb3, "torchrl": torchrl}


def main() -> None:
    parser = timing.parser(__doc__, rounds=5)
    parser.add_argument("what", choices=TABLES, help="the table to print")
    parser.add_argument(
        "--shapes",
        nargs="+",
        type=lambda text: tuple(map(int, text.split(","))),
        default=[(256, 128, 32, 512)],
        help="of `torchrl`: B,T,I,H (default: 256,128,32,512, which is TorchRL's)",
    )
    parser.add_argument("--inference", action="store_true", help="of `torchrl`: only inference, as TorchRL's times")
    options = parser.parse_args()
    rows = []
    for threads in timing.tables(options):
        print(f"\n{threads} thread(s)")
        rows += [{"threads": threads, **row} for row in TABLES[options.what](options)]
    timing.save(options.json, rows)


if __name__ == "__main__":
    main()
