"""The training loop that all experiments share: updates, evaluations, checkpoints, resuming.

Batches are pure functions of the update (`batches.py`), so the state of a run is the model, the optimiser, the random
number generators and a few counters. All of them are in the checkpoint, so that a resumed run has the same bits as one
without an interruption.
"""

from __future__ import annotations

import contextlib
import math
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Interrupted, RunError
from ..runs import checkpoint, environment
from ..runs.checkpoint import Header, State, check_alike
from ..runs.folder import RunFolder
from .distributed import share_of_loss
from .progress import Progress
from .task import Accelerator, Task

BLOCK = 10
"""The most updates whose time is measured together, so that the loop seldom waits for the GPU."""

BLOCK_SECONDS = 2.0
"""The seconds after which such a block ends in a single process, so that a display of slow updates moves, and Ctrl-C is
heard."""


class Fit:
    """One run being trained.

    Args:
        task: what to train.
        folder: the run's folder, already locked.
        accelerator: the device and the processes.
        facts: the facts of the data set, for the environment's file.
        checkpoint_seconds: the seconds between checkpoints. There is always a checkpoint at the end.
    """

    def __init__(
        self, task: Task, folder: RunFolder, accelerator: Accelerator, facts: dict[str, Any], checkpoint_seconds: float
    ) -> None:
        self.task, self.folder, self.accelerator = task, folder, accelerator
        self.facts, self.checkpoint_seconds = facts, checkpoint_seconds
        # The optimiser is not wrapped: accelerate's wrapper only adds a gradient scaler (for float16, which is not
        # offered here), and takes as much time as an update of a small network.
        self.model = accelerator.prepare_model(task.model)
        self.bare = accelerator.unwrap_model(self.model)
        self.state = State()
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=accelerator.device)
        self.block_times: list[float] = []
        self.gradient_norm = 0.0  # of the last update before an evaluation, before anything is clipped
        self.rates = [group["lr"] for group in task.optimizer.param_groups]
        self.kept: dict[str, Tensor] = {}  # the weights of the best evaluation, if the task keeps them

    def run(self, progress: Progress) -> dict[str, float]:
        """Trains from the newest checkpoint, or from the beginning, until the end or until the run has diverged.

        A run has diverged if, at an evaluation, the training loss since the last one, the gradient's norm, a weight or
        a metric is not finite. It ends there: its result says so, that evaluation makes no record, and there is no
        test.

        Returns:
            the last evaluation's metrics.

        Raises:
            Interrupted: SIGINT or SIGTERM arrived. The state is saved; if the run was at its end, it is done.
            RunError: a file could not be written or read. The last checkpoint is complete.
        """
        self._restore()
        task, state = self.task, self.state
        processes, device = self.accelerator.num_processes, str(self.accelerator.device)
        self.folder.started(environment.describe(processes, device), self.facts, state.update)
        began = time.perf_counter() - state.seconds
        saved = time.perf_counter()
        stopping = False
        with _flushed_denormals(), _stop_signals() as stop:
            progress.update(state, task)
            while state.update < task.updates and state.diverged is None:
                self._block()
                state.seconds = time.perf_counter() - began
                if self._due(state.update):
                    self._evaluate()
                    state.seconds = time.perf_counter() - began
                progress.update(state, task)
                late = time.perf_counter() - saved > self.checkpoint_seconds
                stopping, late = self._agree(stop.is_set() or progress.stopping, late)
                over = state.update == task.updates or state.diverged is not None
                if stopping or late or over:
                    self._save()
                    saved = time.perf_counter()
                if stopping and not over:
                    raise Interrupted
        self._finish()
        if stopping:  # no other run must begin
            raise Interrupted
        return state.metrics

    def _block(self) -> None:
        """Makes up to `BLOCK` updates in about `BLOCK_SECONDS`, and ends where an evaluation is due."""
        task, state = self.task, self.state
        model, optimizer, processes = self.model, task.optimizer, self.accelerator.num_processes
        to_evaluation = task.evaluate_every - state.update % task.evaluate_every
        count = min(BLOCK, to_evaluation, task.updates - state.update)
        model.train()
        start = time.perf_counter()
        for update in range(state.update, state.update + count):
            factor = step_size_factor(task.decay, update, task.updates)
            for group, rate in zip(task.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate * factor
            with self.accelerator.autocast():
                loss = task.mean_loss(model, update) if processes == 1 else share_of_loss(*task.loss(model, update))
            # DDP averages the gradients of the processes, but their shares of the loss must be added up
            (loss if processes == 1 else loss * processes).backward()
            if update == 0 or self._due(update + 1):
                gradients = [item.grad for item in self.bare.parameters() if item.grad is not None]
                self.gradient_norm = float(nn.utils.get_total_norm(gradients))
            if update == 0:
                state.first_gradient_norm = self.gradient_norm if math.isfinite(self.gradient_norm) else None
            if task.before_step is not None:
                task.before_step(self.bare)
            optimizer.step()
            optimizer.zero_grad()
            self.loss_sum += loss.detach()
            if processes == 1 and time.perf_counter() - start > BLOCK_SECONDS:
                count = update + 1 - state.update
                break
        if self.accelerator.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        self.block_times.append(seconds / count)
        state.update += count
        state.losses += count
        state.train_seconds += seconds

    def _due(self, update: int) -> bool:
        """Tells whether there is an evaluation after this number of updates."""
        return update % self.task.evaluate_every == 0 or update == self.task.updates

    def _evaluate(self) -> None:
        task, state = self.task, self.state
        total = self.accelerator.reduce(self.loss_sum, "sum") if self.accelerator.num_processes > 1 else self.loss_sum
        running = float(total) / state.losses
        metrics = {"batch_loss": running, "gradient_norm": self.gradient_norm}
        # also checks the weights, which the last step may have made infinite after a finite loss
        whole = all(bool(item.isfinite().all()) for item in self.bare.parameters())
        whole = whole and state.first_gradient_norm is not None
        if whole and _finite(metrics):
            self.bare.eval()
            with torch.no_grad():
                metrics |= task.evaluate(self.bare)
        if not whole or not _finite(metrics):
            state.diverged = state.update
            return
        state.metrics = metrics
        self._keep()
        start = {"first_gradient_norm": state.first_gradient_norm} if not state.records else {}
        record = {
            "update": state.update,
            "epoch": state.update / task.updates_per_epoch,
            "examples": task.seen(state.update),
            "seconds": round(state.seconds, 4),
            "train_seconds": round(state.train_seconds, 4),
            "seconds_per_update": round(statistics.median(self.block_times), 8),
            **state.metrics,
            **start,
        }
        self.folder.record(record)
        self.accelerator.log(record, step=state.update)
        state.records += 1
        state.losses = 0
        self.loss_sum.zero_()
        self.block_times.clear()

    def _keep(self) -> None:
        """Keeps the weights if this evaluation is the best so far."""
        name, state = self.task.keep, self.state
        if name is not None and (not self.kept or state.metrics[name] > state.kept_score):
            state.kept_update, state.kept_score = state.update, state.metrics[name]
            self.kept = {name: tensor.detach().clone() for name, tensor in self.bare.state_dict().items()}

    def _finish(self) -> None:
        """Marks the run as done, with the results of the test unless it has diverged."""
        state = self.state
        ending = self._test() if state.diverged is None else {"diverged": state.diverged}
        done = {"update": state.update, "records": state.records, "seconds": state.seconds}
        self.folder.finish({**done, **state.metrics, **ending})

    def _test(self) -> dict[str, float]:
        """Tests the kept model."""
        task = self.task
        results: dict[str, float] = {}
        if task.keep is not None:
            results["kept_update"] = self.state.kept_update
            self.bare.load_state_dict(self.kept)
        if task.test is not None:
            self.bare.eval()
            with torch.no_grad():
                metrics, tensors = task.test(self.bare)
            results |= metrics
            self.folder.keep_test(tensors)
        return results

    def _agree(self, stopping: bool, late: bool) -> tuple[bool, bool]:
        """Lets the clock and signals of the main process decide for all, which must save and stop at the same
        update."""
        if self.accelerator.num_processes == 1:
            return stopping, late
        word = torch.tensor([stopping, late], dtype=torch.int32, device=self.accelerator.device)
        torch.distributed.broadcast(word, 0)
        return bool(word[0]), bool(word[1])

    def _save(self) -> None:
        own = self._generators()
        everyone: list[Any] = [(own, float(self.loss_sum))]
        if self.accelerator.num_processes > 1:
            everyone *= self.accelerator.num_processes
            torch.distributed.all_gather_object(everyone, everyone[0])
        if not self.folder.writes:
            return
        generators = {f"{name}.{rank}": state for rank, (own, _) in enumerate(everyone) for name, state in own.items()}
        optimizer, groups = checkpoint.optimizer_tensors(self.task.optimizer)
        tensors = {
            **checkpoint.prefixed("model", self.bare.state_dict()),
            **checkpoint.prefixed("optimizer", optimizer),
            **checkpoint.prefixed("generator", generators),
            **checkpoint.prefixed("kept", self.kept),
            "loss_sum": torch.tensor([loss for _, loss in everyone], dtype=torch.float64).squeeze(),
        }
        header = Header(self.state, groups, self.accelerator.num_processes)
        checkpoint.save_checkpoint(self.folder.checkpoint, tensors, asdict(header))

    def _restore(self) -> None:
        if not self.folder.checkpoint.exists():
            self.folder.cut_back(0, 0)
            return
        tensors, header = checkpoint.load_run_checkpoint(self.folder.checkpoint)
        processes = self.accelerator.num_processes
        if header.processes != processes:
            raise RunError(
                f"{self.folder.path} was begun by {_processes(header.processes)}, and this command has "
                f"{_processes(processes)}; "
                f"use torchrun --nproc-per-node {header.processes}, or --restart"
            )
        try:
            self._check(tensors, header)
            checkpoint.restore_optimizer(self.task.optimizer, checkpoint.under("optimizer", tensors), header.groups)
        except ValueError as error:
            raise RunError(f"{self.folder.checkpoint} does not fit this model ({error})") from error
        self.bare.load_state_dict(checkpoint.under("model", tensors))
        self.state = header.state
        self.loss_sum.fill_(tensors["loss_sum"].view(-1)[self.accelerator.process_index])
        device = self.accelerator.device
        self.kept = {name: tensor.to(device) for name, tensor in checkpoint.under("kept", tensors).items()}
        self._set_generators(checkpoint.under("generator", tensors))
        self.folder.cut_back(self.state.update, self.state.records)

    def _check(self, tensors: dict[str, Tensor], header: Header) -> None:
        """Raises a ValueError if a checkpoint, except the optimiser, does not fit the objects that it will be loaded
        into."""
        model = self.bare.state_dict()
        check_alike("the model", model, checkpoint.under("model", tensors))
        check_alike("the kept model", model if header.state.kept_update else {}, checkpoint.under("kept", tensors))
        loss = {name: tensor for name, tensor in tensors.items() if "/" not in name}
        expected = torch.zeros(header.processes, dtype=torch.float64).squeeze()
        check_alike("the training loss", {"loss_sum": expected}, loss)
        states = checkpoint.under("generator", tensors)
        for name in sorted(states.keys() | {f"cpu.{rank}" for rank in range(header.processes)}):
            kind = name.split(".")[0]
            if kind in ("cpu", self.accelerator.device.type):  # a run may resume without its GPU
                try:
                    torch.Generator(kind).set_state(states[name])
                except (KeyError, RuntimeError, TypeError) as error:
                    raise ValueError(f"no state of the generator {name}") from error

    def _generators(self) -> dict[str, Tensor]:
        """Returns the states of this process's random number generators (dropout), by name."""
        own = {"cpu": torch.get_rng_state()}
        if self.accelerator.device.type == "cuda":
            own["cuda"] = torch.cuda.get_rng_state(self.accelerator.device)
        return own

    def _set_generators(self, states: dict[str, Tensor]) -> None:
        rank = self.accelerator.process_index
        torch.set_rng_state(states[f"cpu.{rank}"])
        if self.accelerator.device.type == "cuda" and f"cuda.{rank}" in states:
            torch.cuda.set_rng_state(states[f"cuda.{rank}"], self.accelerator.device)


def step_size_factor(decay: float, update: int, updates: int) -> float:
    """Returns the learning rate of an update, as a multiple of the first one: 1, then falling linearly to 0 in the
    end's share."""
    falling = decay * updates
    return min(1.0, (updates - update) / falling) if falling else 1.0


def _processes(count: int) -> str:
    return f"{count} process{'es' * (count != 1)}"


def _finite(metrics: dict[str, float]) -> bool:
    return all(map(math.isfinite, metrics.values()))


@contextlib.contextmanager
def _flushed_denormals() -> Iterator[None]:
    """Takes numbers near 0 that lack leading digits for 0 inside the ``with``. Adam's moments of units that are seldom
    used become such numbers, and a CPU computes with them several times as long."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextlib.contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Turns SIGINT and SIGTERM into an event that the loop checks between updates. A second signal acts at once. A
    signal that this process ignores stays ignored."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield stop
        return
    previous: dict[signal.Signals, Any] = {}

    def handle(number: int, frame: object) -> None:
        stop.set()
        for name, handler in previous.items():
            signal.signal(name, handler)

    for name in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(name) is not signal.SIG_IGN:
            previous[name] = signal.signal(name, handle)
    try:
        yield stop
    finally:
        for name, handler in previous.items():
            signal.signal(name, handler)
