"""The thread that draws for `layernorm play`."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from layernorm_lab.errors import RunError
from layernorm_lab.experiments.draw.config import Config
from layernorm_lab.experiments.draw.network import build_draw
from layernorm_lab.play.worker import MOST_WAITING, Worker
from layernorm_lab.protocol import Drawn, StoppedError, go_on


def test_one_drawing_at_a_time_in_order_and_no_more_than_may_wait():
    worker, go, running, most, order = Worker(), threading.Event(), [], [], []

    def draw(number):
        running.append(number)
        most.append(len(running))
        assert go.wait(30)
        order.append(number)
        running.remove(number)
        return Drawn([], [str(number)])

    jobs = [worker.submit(lambda: draw(0))]
    while not running:
        time.sleep(0.001)
    jobs += [worker.submit(lambda number=number: draw(number)) for number in range(1, MOST_WAITING + 1)]
    with pytest.raises(RunError, match="drawings and trainings wait already; try again later"):
        worker.submit(lambda: draw(-1))
    jobs.pop(3).stop()  # a page that is closed gives its place to another
    jobs.append(worker.submit(lambda: draw(100)))
    with pytest.raises(RunError, match="wait already"):
        worker.submit(lambda: draw(-1))
    go.set()
    assert [job.future.result(30).notes for job in jobs]
    assert max(most) == 1
    assert order == [0, 1, 2, *range(4, MOST_WAITING + 1), 100]


def test_a_drawing_whose_client_has_left_ends_at_the_next_step():
    import torch

    worker, started = Worker(), threading.Event()
    model = build_draw(Config(hidden=4, glimpses=2))

    def draw():
        while True:
            model.draw(torch.zeros(2, 1, model.posterior.out_features // 2))
            started.set()

    job = worker.submit(draw)
    assert started.wait(30)
    job.stop()
    with pytest.raises(StoppedError):
        job.future.result(30)
    assert worker.submit(lambda: Drawn([], ["next"])).future.result(30).notes == ["next"]
    go_on()  # nothing is to stop outside of the worker


CODE = """
import asyncio, sys, time
from nicegui import app, background_tasks
from layernorm_lab.play import pages, server, training

training.UPDATES = 10**6

def busy():
    print("busy", flush=True)
    {}

async def wait():
    await asyncio.wrap_future(pages.WORKER.submit(busy).future)

app.on_startup(lambda: background_tasks.create(wait()))
server.serve([], int(sys.argv[1]))
"""


@pytest.mark.parametrize(
    "work",
    [
        pytest.param("time.sleep(60)", id="hangs", marks=pytest.mark.long),
        pytest.param("training.Training(0.01).run()", id="trains"),
    ],
)
def test_ctrl_c_ends_it_while_it_works(work):
    pytest.importorskip("nicegui")
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "NICEGUI"))}
    command = [sys.executable, "-c", CODE.format(work), port]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        while "busy" not in process.stdout.readline():
            assert process.poll() is None
        time.sleep(0.5)  # it is in the middle of it
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert not process.stderr.read()
    finally:
        process.kill()
        process.stdout.close()
        process.stderr.close()
