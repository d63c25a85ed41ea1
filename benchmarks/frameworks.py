"""Trains a layernorm model with the tools that people train with, and compares each with a plain loop.

    python benchmarks/frameworks.py                           # every row whose package is installed
    python benchmarks/frameworks.py lightning transformers    # pip install lightning 'transformers[torch]'

A row prints the largest difference of a weight after eight updates. The weights are about 0.3.
"""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, Dataset

import layernorm as ln

RATE, EPOCHS, BATCH = 0.02, 2, 4
Weights = dict[str, Tensor]
Wrapped = Callable[[nn.Module], tuple[nn.Module, Callable[[], Weights]]]


class Model(nn.Module):
    """torch's LSTM accelerated, a network with layer norm, and the norm op. With labels it also returns a loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.torchs = ln.accelerate(nn.LSTM(4, 8, batch_first=True))
        self.ours = ln.GRU(8, 8, batch_first=True, bidirectional=True)
        self.last = nn.Sequential(ln.LayerNorm(16), nn.Linear(16, 1))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        y = self.last(self.ours(self.torchs(x)[0])[0])
        return y if labels is None else {"loss": mse_loss(y, labels), "logits": y}


class Cases(Dataset[Any]):
    """16 sequences of 6 steps; a batch is a dict of `x` and `labels`."""

    def __init__(self, network: nn.Module | None = None) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x, self.labels = (torch.randn(16, 6, size, generator=generator) for size in (4, 1))
        self.network = network

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x = self.x[index]
        if self.network is not None:
            with torch.no_grad():
                x = self.network(x.unsqueeze(0)).squeeze(0)
        return {"x": x, "labels": self.labels[index]}


def loader(**options: Any) -> Any:
    return DataLoader(Cases(), BATCH, **options)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), RATE)


def train(
    model: nn.Module, batches: Any, epochs: int = EPOCHS, after: Callable[[], None] = lambda: None,
    backward: Callable[[Tensor], None] = Tensor.backward, optimizer: Any = None,
) -> None:  # fmt: skip
    """The plain loop."""
    optimizer = optimizer or sgd(model)
    for _ in range(epochs):
        for batch in batches:
            backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            after()


def weights(model: nn.Module) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def plain() -> Weights:
    model = Model()
    train(model, loader())
    return weights(model)


def difference(one: Weights, other: Weights) -> float:
    assert one.keys() == other.keys()
    return float(torch.stack([(one[name] - other[name]).abs().max() for name in one]).max())  # nan, if one is


def lightning() -> float:
    """An epoch, a checkpoint, and the second epoch from there by another trainer."""
    from lightning import LightningModule, Trainer

    class Lit(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self)

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        for epochs in (1, 2):
            trainer, lit = Trainer(max_epochs=epochs, default_root_dir=folder, **quiet), Lit()
            trainer.fit(lit, loader(), ckpt_path=f"{folder}/half.ckpt" if epochs == 2 else None)
            trainer.save_checkpoint(f"{folder}/half.ckpt")
    return difference(weights(lit.model), plain())


def transformers() -> float:
    """Hugging Face's Trainer: an epoch, and the second one from its checkpoint."""
    from transformers import Trainer, TrainingArguments

    class InOrder(Trainer):
        def get_train_dataloader(self) -> Any:
            return loader()

    with tempfile.TemporaryDirectory() as folder:
        for epochs in (1, 2):
            options = TrainingArguments(
                folder, num_train_epochs=epochs, per_device_train_batch_size=BATCH, learning_rate=RATE, optim="sgd",
                lr_scheduler_type="constant", max_grad_norm=0, save_strategy="epoch", report_to="none", use_cpu=True,
                disable_tqdm=True,
            )  # fmt: skip
            model = Model()
            InOrder(model, options, train_dataset=Cases()).train(resume_from_checkpoint=epochs == 2)
    return difference(weights(model), plain())


def accelerate() -> float:
    """An epoch, `save_state`, and the second one after `load_state`."""
    from accelerate import Accelerator

    with tempfile.TemporaryDirectory() as folder:
        for epoch in (1, 2):
            accelerator = Accelerator(cpu=True)
            model = Model()
            prepared, optimizer, batches = accelerator.prepare(model, sgd(model), loader())
            if epoch == 2:
                accelerator.load_state(folder)
            train(prepared, batches, 1, backward=accelerator.backward, optimizer=optimizer)
            accelerator.save_state(folder)
            accelerator.free_memory()
    return difference(weights(model), plain())


def ddp() -> float:
    """Two processes, each with half of each batch."""
    return _two_processes(_ddp)


def fsdp2() -> float:
    """Does the same with `fully_shard`, which also divides the weights."""
    return _two_processes(_fsdp2)


def _two_processes(wrapped: Wrapped) -> float:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_one_of_two, (wrapped, folder), 2)
        return difference(torch.load(Path(folder) / "weights.pt"), plain())


def _one_of_two(rank: int, wrapped: Wrapped, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", world_size=2, rank=rank)
    model, whole = wrapped(Model())
    train(model, [{name: item[rank::2] for name, item in batch.items()} for batch in loader()])
    made = whole()
    if rank == 0:
        torch.save(made, Path(folder) / "weights.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _ddp(model: nn.Module) -> tuple[nn.Module, Callable[[], Weights]]:
    return nn.parallel.DistributedDataParallel(model), lambda: weights(model)


def _fsdp2(model: nn.Module) -> tuple[nn.Module, Callable[[], Weights]]:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for module in (model.ours, model):
        fully_shard(module, mesh=mesh)
    return model, lambda: get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))


def optuna() -> float:
    """Four trials in two threads: the largest difference of a trial's last loss."""
    import optuna as package

    fresh = Model()

    def objective(trial: Any) -> float:
        model = copy.deepcopy(fresh)
        rate = trial.suggest_float("rate", 0.001, 0.02)
        train(model, loader(), optimizer=torch.optim.SGD(model.parameters(), rate))
        return float(model(Cases().x, Cases().labels)["loss"].detach())

    package.logging.set_verbosity(package.logging.WARNING)
    study = package.create_study(sampler=package.samplers.RandomSampler(0))
    study.optimize(objective, n_trials=4, n_jobs=2)
    again = [objective(package.trial.FixedTrial(trial.params)) for trial in study.trials]
    return max(abs(trial.value - value) for trial, value in zip(study.trials, again, strict=True))


def joblib() -> float:
    """Two processes, each of which trains."""
    from joblib import Parallel, delayed

    results = Parallel(n_jobs=2)(delayed(plain)() for _ in range(2))
    return max(difference(result, plain()) for result in results)


def dataloader() -> float:
    """A network in a DataLoader's two workers: the largest difference of an output."""
    network = Model().eval()
    batches = list(DataLoader(Cases(network), BATCH, num_workers=2))
    with torch.no_grad():
        return float((torch.cat([batch["x"] for batch in batches]) - network(Cases().x)).abs().max())


def checkpointing() -> float:
    """`torch.utils.checkpoint` of the networks."""
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Model):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            return checkpoint(super().forward, x, labels, use_reentrant=False)

    model = Checkpointed()
    train(model, loader())
    return difference(weights(model), plain())


def ema() -> float:
    """`torch.optim.swa_utils.AveragedModel`, beside an average by hand."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = Model()
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    course: list[Weights] = []

    def after() -> None:
        averaged.update_parameters(model)
        course.append(weights(model))

    train(model, loader(), after=after)
    by_hand = course[0]
    for now in course[1:]:
        by_hand = {name: 0.9 * by_hand[name] + 0.1 * now[name] for name in now}
    return difference(weights(averaged.module), by_hand)


def functional_call() -> float:
    """`torch.func.functional_call` and `grad`: steps of weights that no module holds."""
    model = Model()
    held = dict(model.named_parameters())

    def loss(now: Weights, batch: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, now, kwargs=batch)["loss"]

    now = {name: item.detach() for name, item in held.items()}
    for _ in range(EPOCHS):
        for batch in loader():
            gradients = torch.func.grad(loss)(now, batch)
            now = {name: now[name] - RATE * gradients[name] for name in now}
    return difference({**weights(model), **now}, plain())


class Row(NamedTuple):
    measure: Callable[[], float]
    package: str


ROWS = {
    "lightning": Row(lightning, "lightning"),
    "transformers": Row(transformers, "transformers"),
    "accelerate": Row(accelerate, "accelerate"),
    "ddp": Row(ddp, "torch"),
    "fsdp2": Row(fsdp2, "torch"),
    "optuna": Row(optuna, "optuna"),
    "joblib": Row(joblib, "joblib"),
    "dataloader": Row(dataloader, "torch"),
    "checkpointing": Row(checkpointing, "torch"),
    "ema": Row(ema, "torch"),
    "functional_call": Row(functional_call, "torch"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)} (default: all)")
    chosen = parser.parse_args().rows
    if unknown := set(chosen) - set(ROWS):
        parser.error(f"no row {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    for name in chosen or ROWS:
        measure, package = ROWS[name]
        if importlib.util.find_spec(package) is None:
            print(f"{name:<16} {package} is not installed", flush=True)
        else:
            print(f"{name:<16} {package} {importlib.metadata.version(package):<12} {measure():.1e}", flush=True)


if __name__ == "__main__":
    main()
