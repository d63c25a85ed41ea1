"""Lanes: what CUDA graphs bake in for one kind of call in one direction, and the graphs.

A lane has the small buffers of one step, the table, and graphs of 16, 4 and 1 steps. Its kernels read from the table
which step it is, how many there are, and where the tensors of the call begin. So graphs serve calls of every length,
nothing is copied into them, and they hold no memory but the lane's. Nothing inside calls cuBLAS, whose workspace the
end of another graph may free (pytorch/pytorch#193402). Calls on one lane follow each other on the device.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import sys
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from . import _kernels as kernels

SIZES = (16, 4, 1)
MOST_LANES = 64
MOST_BYTES = 256 * 2**20


class Graph(Protocol):
    """Launches that are made once and run often."""

    def replay(self) -> None:
        """Launches all of it on the current stream."""


def is_captured(device: torch.device) -> bool:
    """Says whether somebody captures what is launched, or is about to: PyTorch's trees of graphs forbid memory that
    outlives a call."""
    if device.type != "cuda":
        return False
    manager, trees = None, sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is not None:
        with contextlib.suppress(AssertionError):  # of PyTorch 2.12 in a thread that has no trees
            manager = trees.get_manager(device.index, create_if_none_exists=False)
    return torch.cuda.is_current_stream_capturing() or (manager is not None and manager.in_warmup)


def keeps_lanes(device: torch.device) -> bool:
    """Says whether a call's lane is kept, with graphs."""
    return device.type == "cuda" and not is_captured(device)


_one_capture = threading.Lock()


@functools.cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which graphs are captured. Torch has 32 of a priority, and gives them out in turn: one of the usual
    priority may be a user's as well, whose work would become a part of the graph."""
    return torch.cuda.Stream(device, priority=-1)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Collects no garbage: an object that frees something on the device as it goes would break a capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def capture(steps: Callable[[], None], device: torch.device) -> Graph:
    """Captures a CUDA graph. Not by `torch.cuda.graph`, which waits for the device and empties torch's memory cache."""
    graph = torch.cuda.CUDAGraph()
    with _one_capture, torch.cuda.stream(_capture_stream(device)), _no_collection():
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            steps()
        finally:
            graph.capture_end()
    return graph


class Lane:
    """The table, the buffers and the graphs of one kind of call in one direction."""

    def __init__(self, device: torch.device, kept: bool) -> None:
        self.device, self.kept, self.has_graphs, self.lock = device, kept, kept, threading.Lock()
        self.table = self._new(len(kernels.SLOTS), dtype=torch.int64)
        self.buffers: dict[str, Tensor] = {}
        self.graphs: dict[int, Graph] = {}
        self.has_run = False  # in the first call the kernels are compiled, which nothing may do in a graph
        self.last_use: torch.cuda.Event | None = None

    def _new(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        with torch.inference_mode(False):
            return torch.empty(shape, dtype=dtype, device=self.device)

    def buffer(self, name: str, *shape: int) -> Tensor:
        """Returns a buffer of float32, the same one in each call; each call writes it before it reads it."""
        if name not in self.buffers:
            self.buffers[name] = self._new(*shape)
        return self.buffers[name]

    @property
    def nbytes(self) -> int:
        return sum(b.nbytes for b in (self.table, *self.buffers.values()))

    def launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        """Launches a kernel, which is given the table, on the current stream."""
        kernel[grid](self.table, *arguments, **constants)

    def begin(self, first_step: int, steps: int, tensors: Mapping[str, Tensor | None]) -> None:
        """Writes the table. The call keeps the tensors until its last launch."""
        given = (tensors.get(name) for name in kernels.SLOTS[2:])
        # Triton compiles anew where a number changes between 32 and 64 bits, or in being a multiple of 16.
        odd = tuple(2 * (self.table if t is None else t).data_ptr() + 1 for t in given)
        self.launch(kernels.begin, (1,), first_step, steps, odd)

    def run(self, count: int, take_step: Callable[[], None]) -> None:
        """Takes so many steps, by graphs from the second call on."""
        for size in SIZES:
            graph = self._graph(size, take_step) if count >= size else None
            while graph is not None and count >= size:
                graph.replay()
                count -= size
        for _ in range(count):
            take_step()
        self.has_run = True

    def _graph(self, size: int, take_step: Callable[[], None]) -> Graph | None:
        """Returns the graph of so many steps; None where there is none."""

        def steps() -> None:
            for _ in range(size):
                take_step()

        if self.has_graphs and self.has_run and size not in self.graphs:
            try:
                self.graphs[size] = capture(steps, self.device)
            except RuntimeError as error:  # such as when another thread waits for the whole device
                self.has_graphs = False
                warnings.warn(
                    "layernorm's engine 'triton' takes the steps of a kind of call one by one, more slowly: "
                    f"no CUDA graph was captured: {error}",
                    stacklevel=2,
                )
        return self.graphs.get(size)

    @contextlib.contextmanager
    def used(self) -> Iterator[Lane]:
        """Makes other threads, and other streams, wait for this call."""
        with self.lock:
            if self.last_use is not None:
                torch.cuda.current_stream(self.device).wait_event(self.last_use)
            try:
                yield self
            finally:
                if self.kept and self.device.type == "cuda":
                    self._note_use(torch.cuda.current_stream(self.device))

    def _note_use(self, stream: torch.cuda.Stream) -> None:
        self.last_use = self.last_use or torch.cuda.Event()
        self.last_use.record(stream)
        for buffer in (self.table, *self.buffers.values()):
            buffer.record_stream(stream)  # their memory goes to nobody else before that is done


class Lanes:
    """The lanes that were used last."""

    def __init__(self) -> None:
        self._lanes: collections.OrderedDict[Hashable, Lane] = collections.OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def nbytes(self) -> int:
        """How much memory their buffers take."""
        return sum(lane.nbytes for lane in [*self._lanes.values()])

    def __repr__(self) -> str:
        graphs = sum(len(lane.graphs) for lane in [*self._lanes.values()])
        return f"<{graphs} graphs for {len(self)} kinds of calls, {self.nbytes / 2**20:.1f} MiB>"

    def get(self, key: Hashable, device: torch.device) -> Lane:
        """Returns the lane of a kind of call. While somebody captures a graph it is one of the call's own."""
        if not keeps_lanes(device):
            return Lane(device, kept=False)
        with self._lock:
            lane = self._lanes.pop(key, None) or Lane(device, kept=True)
            self._lanes[key] = lane  # the last one in the order
            # Not the two used last: those of a layer, forward and back.
            while len(self._lanes) > 2 and (
                len(self._lanes) > MOST_LANES or (not lane.has_run and self.nbytes > MOST_BYTES)
            ):
                self._lanes.popitem(last=False)
        return lane

    @contextlib.contextmanager
    def without_new(self) -> Iterator[None]:
        """Drops at the end the lanes that the calls inside have made."""
        before = set(self._lanes)
        try:
            yield
        finally:
            with self._lock:
                for key in set(self._lanes) - before:
                    del self._lanes[key]

    def clear(self) -> None:
        """Drops all lanes, and their memory."""
        with self._lock:
            self._lanes.clear()


lanes = Lanes()
