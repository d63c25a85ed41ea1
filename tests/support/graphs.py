"""In the place of CUDA graphs where there is no GPU: the same launches again, with the same arguments."""

import contextlib
import threading

import pytest
import torch

from layernorm.engines.triton import _lanes as lanes
from layernorm.engines.triton._self_check import SelfCheck

interpret = lanes.Lane.launch
one_at_a_time = threading.Lock()  # the interpreter has one state for all threads
of_thread = threading.local()


def launch(lane, kernel, grid, *arguments, **constants):
    recording = getattr(of_thread, "recording", None)
    if recording is not None:
        recording.append((lane, kernel, grid, arguments, constants))
        return
    with one_at_a_time:
        interpret(lane, kernel, grid, *arguments, **constants)


class StandIn:
    """What steps launch, to be launched again."""

    replays = 0

    def __init__(self, steps, device):
        of_thread.recording = self.launches = []
        try:
            steps()
        finally:
            of_thread.recording = None

    def replay(self):
        StandIn.replays += 1
        for lane, kernel, grid, arguments, constants in self.launches:
            lane.launch(kernel, grid, *arguments, **constants)


@contextlib.contextmanager
def stand_in():
    """Lanes use these graphs, and start without any lane."""
    lanes.lanes.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "keeps_lanes", lambda device: True)
        patch.setattr(lanes, "capture", StandIn)
        patch.setattr(lanes.Lane, "launch", launch)
        patch.setattr(SelfCheck, "passes", lambda *given: True)  # it would use the lanes
        yield
    lanes.lanes.clear()


def poison():
    """Makes every number in a buffer of a lane NaN, and every address in a table none."""
    for lane in lanes.lanes._lanes.values():
        lane.table.fill_(-1)
        for buffer in lane.buffers.values():
            buffer.fill_(torch.nan)
