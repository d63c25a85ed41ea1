"""`layernorm play` without a browser: Table 1 by hand, what a trained network is asked, and the pages' parts."""

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from lab_support.command import one_line
from lab_support.pages import simulated
from lab_support.runs import write_digits, write_drawing_runs
from layernorm import geometry
from layernorm_lab import cli
from layernorm_lab.errors import RunError, UsageError
from layernorm_lab.play import table_1, trained
from layernorm_lab.protocol import Drawn


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return write_drawing_runs(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("position", [-0.7, 0.5])
def test_every_move_alone_is_table_1(position):
    listed = {(v.norm, v.transform): v.paper for v in geometry.invariance_table()}
    for name in table_1.MOVES:
        for verdict, before, after in table_1.outcomes({name: position}, 0.0):
            paper = listed.get((verdict.norm, name))
            assert verdict.paper == paper
            assert not verdict.differs
            # what is drawn moves as far as the number says; both are of the same sums in float64
            change = float((after - before).norm() / before.norm())
            assert change == pytest.approx(verdict.residual, rel=1e-9, abs=1e-15)


def test_nothing_moved_changes_nothing():
    for verdict, before, after in table_1.outcomes(dict.fromkeys(table_1.MOVES, 0.0), 0.0):
        assert (verdict.transform, verdict.paper, verdict.residual) == ("", None, 0.0)
        assert before.equal(after)


def test_moves_together():
    """What stays under each of two moves stays under both; otherwise Table 1 says nothing of two."""
    both = {"weight matrix re-scaling": 0.5, "weight matrix re-centring": 1.0, "dataset re-scaling": 0.0}
    found = {outcome.verdict.norm: outcome.verdict for outcome in table_1.outcomes(both, 0.0)}
    assert {norm: verdict.paper for norm, verdict in found.items()} == {
        "layer": True, "batch": None, "weight": None, "rms": None, None: None
    }  # fmt: skip
    assert [norm for norm, verdict in found.items() if verdict.invariant] == ["layer"]


def test_at_first_the_page_shows_what_it_says():
    """All inputs are doubled; `pages._TABLE_1` says what stays."""
    (name, position), *others = table_1.START.items()
    assert not others
    assert name == "dataset re-scaling"
    assert 10**position == pytest.approx(2, abs=0.005)
    stays = {outcome.verdict.norm for outcome in table_1.outcomes(table_1.START, 0.0) if outcome.verdict.invariant}
    assert stays == {"batch", "layer", "rms"}


def test_each_slider_says_its_row_of_table_1():
    assert table_1.listed("weight matrix re-centring") == "Table 1: stays under layer norm"
    assert table_1.listed("dataset re-scaling") == "Table 1: stays under batch norm, layer norm"
    assert table_1.listed(geometry.CASE_RECENTRING.name) == "not in Table 1"


def test_a_sliders_value_that_is_no_position_is_no_move():
    (name, *_) = table_1.MOVES
    for value in ("abc", None, True, float("nan"), 1e300, -(10**400), [1]):
        assert table_1.position(name, value) == 0.0
    assert table_1.position(name, -0.5) == -0.5


def test_with_an_eps_no_rescaling_is_exact():
    (layer,) = (o.verdict for o in table_1.outcomes({"dataset re-scaling": -1.0}, 1e-5) if o.verdict.norm == "layer")
    assert not layer.invariant
    assert layer.residual < 1e-2


def test_a_network_writes_and_draws(runs):
    writes, draws = map(trained.find_trained, runs)
    drawn = writes.draw({"text": "ab", "bias": "1", "prime": "", "seed": "3", "points": "9"})
    assert [picture.kind for picture in drawn.pictures] == ["svg", "svg", "png"]
    assert drawn.pictures[1].name == drawn.pictures[2].name
    assert b"<animate" in drawn.pictures[0].content
    assert drawn == writes.draw({"text": "ab", "bias": "1.0", "prime": "", "seed": "3", "points": "9"})
    assert drawn != writes.draw({"text": "ab", "bias": "1", "prime": "", "seed": "4", "points": "9"})
    drawn = draws.draw({"count": "4", "seed": "0"})
    assert [(picture.name, picture.kind) for picture in drawn.pictures] == [("canvas", "gif"), ("digits", "png")]


WRITE = {"text": "ab", "bias": "0", "prime": "", "seed": "0", "points": "0"}
REFUSED = [
    ({"text": " "}, "text must not be empty"),
    ({"text": "naïve"}, "text has the unknown character 'ï'; printable ASCII is known"),
    ({"text": "a" * 201}, "text must have at most 200 characters, got 201"),
    ({"seed": ""}, "seed must be a whole number, got ''"),
    ({"seed": "1.5"}, "seed must be a whole number, got '1.5'"),
    ({"seed": "9" * 5000}, "seed must be a whole number, got '999999999999...9999999999999'"),
    ({"seed": "-1"}, "seed must be at least 0, got -1"),
    ({"bias": "much"}, "bias must be a number, got 'much'"),
    ({"bias": "nan"}, "bias must be a finite number, at least 0, got nan"),
    ({"points": "10001"}, "points must be at most 10000, got 10001"),
]


@pytest.mark.parametrize(("texts", "message"), REFUSED)
def test_what_cannot_be_asked_is_refused(runs, texts, message):
    with pytest.raises(UsageError) as refused:
        trained.find_trained(runs[0]).draw({**WRITE, **texts})
    assert str(refused.value) == message


def test_a_run_that_goes_away_is_refused(runs, tmp_path):
    (path,) = (run.rename(tmp_path / "run") for run in write_drawing_runs(tmp_path)[:1])
    network = trained.find_trained(path)
    (path / "checkpoint.safetensors").unlink()
    with pytest.raises(RunError, match="has no checkpoint yet"):
        network.draw(WRITE)


def test_what_cannot_be_served_is_one_line(runs, tmp_path, capsys):
    write_digits(tmp_path, "none", 4, 0, [0.3])
    (tmp_path / "empty").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, code, message in (
            (["--port", "0"], 2, "--port must lie in 1..65535, got 0"),
            (["--port", "65536"], 2, "--port must lie in 1..65535, got 65536"),
            (
                [str(tmp_path / "digits-none-b4-s0")],
                2,
                "digits has nothing to sample; experiments that have: draw, handwriting",
            ),
            ([str(tmp_path / "empty")], 1, "there is no run in"),
            ([str(tmp_path / "nothing")], 1, "there is no run in"),
            (["--port", port], 1, f"cannot serve on 127.0.0.1:{port}: Address already in use; choose another --port"),
        ):
            if "cannot serve" in message:
                pytest.importorskip("nicegui")
            assert cli.main(["play", *arguments]) == code
            assert message in one_line(capsys)


def test_enter_while_it_draws_does_not_draw_again(runs, monkeypatch):
    calls, go = [], threading.Event()

    def slow(network, texts):
        calls.append(texts)
        assert go.wait(60)
        return Drawn([], ["it has drawn"])

    async def drive(user):
        for _ in range(3):
            user.find("text").trigger("keydown.enter")
            await asyncio.sleep(0.05)
        go.set()
        await user.should_see("it has drawn", retries=50)
        user.find("text").trigger("keydown.enter")
        while len(calls) < 2:
            await asyncio.sleep(0.01)

    monkeypatch.setattr(trained.Trained, "draw", slow)
    simulated([trained.find_trained(runs[0])], drive)
    assert len(calls) == 2


def test_the_pages_answer_and_refuse(runs, caplog):
    async def drive(user):
        from nicegui import ui

        await user.should_see("layer norm: stays (")
        await user.should_see("weight norm: changes (")
        user.find("put all back").click()
        await user.should_see("layer norm: not moved")
        (slider,) = (item for item in user.find(ui.slider).elements if item.props["aria-label"] == "dataset re-scaling")
        slider.value = "abc"
        await user.should_see("layer norm: not moved")
        slider.value = 0.5
        await user.should_see("layer norm: stays (")
        await user.should_see("weight norm: changes (")
        user.find("put all back").click()
        await user.should_see("weight norm: not moved")

        user.find("text").type("é")
        user.find(kind=ui.button, content="draw").click()
        await user.should_see("text has the unknown character 'é'; printable ASCII is known", retries=20)
        assert not user.find(kind=ui.button, content="draw").elements.pop().props.get("disable")

    simulated([trained.find_trained(runs[0])], drive)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_pages_of_other_origins_are_refused():
    """A real server, and the requests that a browser sends: status lines of WebSocket handshakes and of pages."""
    pytest.importorskip("nicegui")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "layernorm_lab", "play", "--port", str(port)]

    def connect():
        while True:  # it says that it is open a moment before it is
            with contextlib.suppress(ConnectionRefusedError):
                return socket.create_connection(("127.0.0.1", port), timeout=60)
            assert server.poll() is None
            time.sleep(0.05)

    def status(path, *headers):
        with connect() as connection:
            lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", *headers, "", ""]
            connection.sendall("\r\n".join(lines).encode())
            return connection.recv(64).split()[1].decode()

    def handshake(*headers):
        path = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
        key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
        return status(path, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", key, *headers)

    own = f"Origin: http://127.0.0.1:{port}"
    others = ["https://example.com", f"http://127.0.0.1:{port + 1}", f"http://localhost:{port}", "null"]
    # NiceGUI serves otherwise where it finds pytest's variables.
    own_variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=own_variables) as server:
        try:
            assert server.stdout.readline() == f"open http://127.0.0.1:{port} in a browser; Ctrl-C ends\n"
            assert [handshake(own), handshake(), status("/", own), status("/")] == ["101", "101", "200", "200"]
            for other in others:
                assert handshake(f"Origin: {other}") == status("/", f"Origin: {other}") == "403"
        finally:
            server.terminate()
