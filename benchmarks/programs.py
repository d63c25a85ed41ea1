"""Times training steps of networks that other packages make, with torch's networks in them and accelerated.

    pip install 'gluonts[torch]' torch_geometric pytorch-forecasting u8darts neuralforecast sb3-contrib
    python benchmarks/programs.py
    python benchmarks/programs.py --programs gluonts darts --rounds 9

Nothing of a package is changed: `ln.accelerate` gets the network that it makes. Data are random, and sizes are the
package's defaults where it has such. A training step is the call, the loss, the gradients and Adam. It prints the
minima over rounds in milliseconds, how many times as fast the accelerated network is, and the largest difference of a
gradient, relative to the largest number in it. A package that is not installed is named and passed by.
"""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import layernorm as ln
import timing

Program = tuple[str, Callable[[], nn.Module], Callable[[Any], Tensor]]  # what it is, a network, its loss


def gluonts() -> Program:
    module = importlib.import_module("gluonts.torch.model.deepar.module")

    def make() -> nn.Module:
        return module.DeepARModel(
            freq="h", context_length=72, prediction_length=24, num_feat_dynamic_real=4, num_feat_static_real=1,
            num_feat_static_cat=1, cardinality=[1], num_layers=2, hidden_size=40, dropout_rate=0.0,
        )  # fmt: skip

    rows, steps = 32, make()._past_length
    batch = {
        "feat_static_cat": torch.zeros(rows, 1, dtype=torch.long),
        "feat_static_real": torch.zeros(rows, 1),
        "past_time_feat": torch.randn(rows, steps, 4),
        "past_target": torch.randn(rows, steps).abs(),
        "past_observed_values": torch.ones(rows, steps),
        "future_time_feat": torch.randn(rows, 24, 4),
        "future_target": torch.randn(rows, 24).abs(),
        "future_observed_values": torch.ones(rows, 24),
    }
    return "GluonTS' DeepAR, 2 layers of 40 units, 32 series", make, lambda model: model.loss(**batch).mean()


def geometric() -> Program:
    convolutions = importlib.import_module("torch_geometric.nn")
    nodes = 256
    x, edges = (
        torch.randn(nodes, 32),
        torch.stack([torch.randint(0, nodes, (10 * nodes,)), torch.arange(nodes).repeat_interleave(10)]),
    )

    def make() -> nn.Module:
        return convolutions.SAGEConv(32, 32, aggr=convolutions.LSTMAggregation(32, 32))

    name = "PyTorch Geometric's LSTM aggregation, 32 units, 256 nodes of 10 neighbours"
    return name, make, lambda model: model(x, edges).square().mean()


def forecasting() -> Program:
    package, frames = importlib.import_module("pytorch_forecasting"), importlib.import_module("pandas")
    series, steps = 40, 100
    table = frames.DataFrame(
        {
            "t": list(range(steps)) * series,
            "name": [str(k) for k in range(series) for _ in range(steps)],
            "value": torch.randn(series * steps).numpy(),
        }
    )
    data = package.TimeSeriesDataSet(
        table, time_idx="t", target="value", group_ids=["name"], min_encoder_length=20, max_encoder_length=60,
        max_prediction_length=20, time_varying_unknown_reals=["value"], static_categoricals=["name"],
    )  # fmt: skip
    x, y = next(iter(data.to_dataloader(batch_size=128, shuffle=False)))

    def make() -> nn.Module:
        return package.DeepAR.from_dataset(data, hidden_size=30, rnn_layers=2, dropout=0.0)

    name = "PyTorch Forecasting's DeepAR, 2 layers of 30 units, 128 series of 20 to 60 steps"
    return name, make, lambda model: model.loss(model(x)["prediction"], y)


def darts() -> Program:
    module = importlib.import_module("darts.models.forecasting.block_rnn_model")
    x = torch.randn(32, 48, 1)

    def make() -> nn.Module:
        return module._BlockRNNModule(
            name="LSTM", input_size=1, hidden_dim=25, num_layers=1, target_size=1, nr_params=1, num_layers_out_fc=[],
            dropout=0.0, input_chunk_length=48, output_chunk_length=12, output_chunk_shift=0, activation="ReLU",
            train_sample_shape=None, loss_fn=nn.MSELoss(), torch_metrics=None, future_cov_dim=0,
        )  # fmt: skip

    name = "Darts' BlockRNN, 25 units, 32 windows of 48 steps"
    return name, make, lambda model: model((x, None, None)).square().mean()


def neuralforecast() -> Program:
    models = importlib.import_module("neuralforecast.models")
    windows = {"insample_y": torch.randn(32, 48, 1), "futr_exog": None, "hist_exog": None, "stat_exog": None}

    def make() -> nn.Module:
        return models.LSTM(h=12, input_size=48, encoder_n_layers=2, encoder_hidden_size=128, max_steps=1)

    name = "NeuralForecast's LSTM, 2 layers of 128 units, 32 windows of 48 steps"
    return name, make, lambda model: model(dict(windows)).square().mean()


def sb3() -> Program:
    policies = importlib.import_module("sb3_contrib.common.recurrent.policies")
    types = importlib.import_module("sb3_contrib.common.recurrent.type_aliases")
    environment = importlib.import_module("gymnasium").make("CartPole-v1")
    steps, rows = 128, 8
    seen, taken, begins = torch.randn(steps * rows, 4), torch.randint(0, 2, (steps * rows,)), torch.zeros(steps * rows)
    begins[::steps] = 1
    zeros = [torch.zeros(1, rows, 256) for _ in range(4)]
    states = types.RNNStates((zeros[0], zeros[1]), (zeros[2], zeros[3]))

    def make() -> nn.Module:
        spaces = environment.observation_space, environment.action_space
        return policies.RecurrentActorCriticPolicy(*spaces, lambda _: 3e-4, lstm_hidden_size=256)

    def loss(policy: Any) -> Tensor:
        values, log_prob, entropy = policy.evaluate_actions(seen, taken, states, begins)
        return values.square().mean() - log_prob.mean() - entropy.mean()

    return "sb3-contrib's RecurrentPPO, 256 units, 8 sequences of 128 steps", make, loss


PROGRAMS = {f.__name__: f for f in (gluonts, geometric, forecasting, darts, neuralforecast, sb3)}


def training(model: nn.Module, loss: Callable[[Any], Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.Adam(model.parameters(), 1e-5)

    def step() -> None:
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()

    return step


def compare(program: Program, rounds: int) -> dict[str, Any]:
    name, make, loss = program
    theirs = make()
    ours = ln.accelerate(copy.deepcopy(theirs))
    steps = {"torch": training(theirs, loss), "accelerated": training(ours, loss)}
    for step in steps.values():
        step()
    pairs = [(p.grad, q.grad) for p, q in zip(theirs.parameters(), ours.parameters(), strict=True)]
    errors = [(a - b).abs().max() / a.abs().max().clamp_min(1e-12) for a, b in pairs if a is not None]
    apart = float(torch.stack(errors).max())  # nan, if one is
    best = timing.minima(steps, rounds, least=0.1)
    factor = best["torch"] / best["accelerated"]
    cells = f"{1e3 * best['torch']:.2f}, {1e3 * best['accelerated']:.2f} | {factor:.1f}x | {apart:.0e}"
    print(f"| {name} | {cells} |", flush=True)
    return {"name": name, "difference": apart, **best}


def main() -> None:
    parser = timing.parser(__doc__)
    parser.add_argument("--programs", nargs="+", choices=sorted(PROGRAMS), default=list(PROGRAMS), metavar="NAME")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    rows = []
    for threads in timing.tables(options):
        print(f"\n{threads} thread(s)\n\n| program | torch, accelerated, ms | | difference |\n|---|--:|--:|--:|")
        for name in options.programs:
            torch.manual_seed(0)
            try:
                program = PROGRAMS[name]()
            except ModuleNotFoundError as error:
                print(f"{name}: passed by, as {error.name} is not installed")
                continue
            rows.append({"threads": threads, **compare(program, options.rounds)})
    timing.save(options.json, rows)


if __name__ == "__main__":
    main()
