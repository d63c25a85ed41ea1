"""Serves the pages only to this machine."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import RunError, UsageError
from . import trained
from .worker import WORKER

HOST = "127.0.0.1"


class SameOrigin:
    """Refuses what a page of another origin asks for: a browser lets every page open a WebSocket to this machine.

    A browser names the page's origin wherever its answer could be read or a WebSocket opened. Programs name none, and
    are let in; so is a page that shows these ones in a frame or as a picture, which learns nothing of them.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        origin = headers.get(b"origin")
        if origin is None or origin == b"http://" + headers.get(b"host", b""):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: status 403
        else:
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b"a page of another origin asked for this"})


def serve(paths: Sequence[Path], port: int) -> None:
    """Serves the pages on 127.0.0.1, among them one for each run folder, until it is interrupted."""
    if not 1 <= port <= 65535:
        raise UsageError(f"--port must lie in 1..65535, got {port}")
    networks = [trained.find_trained(path) for path in paths]
    from nicegui import app, ui
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from . import pages

    try:
        socket.create_server((HOST, port)).close()
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise RunError(f"cannot serve on {HOST}:{port}: {why}; choose another --port") from error
    # also refuses requests that reach this machine under another host's name (DNS rebinding)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
    app.add_middleware(SameOrigin)
    app.on_startup(lambda: print(f"open http://{HOST}:{port} in a browser; Ctrl-C ends", flush=True))
    app.on_shutdown(WORKER.close)
    with contextlib.suppress(KeyboardInterrupt):
        ui.run(
            lambda: pages.root(networks),
            host=HOST,
            port=port,
            title="layernorm play",
            dark=None,
            reload=False,
            show=False,
            show_welcome_message=False,
        )
