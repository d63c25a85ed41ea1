"""The page on which networks are trained: their curves while they learn, and the ends of all, by learning rate."""

from __future__ import annotations

import asyncio
from typing import Any

from nicegui import ui

from ..protocol import StoppedError
from ..report.page import STYLES
from . import training
from .elements import GREY, axis, refusal
from .training import NORMS, RATES, Training
from .worker import WORKER, Job

_ABOUT = (
    "A small LSTM learns to read handwritten digits, one row of pixels after the other: three networks with layer "
    "norm, and three without. Nothing else differs. Each pair has the same first weights, the same batches and the "
    "same learning rate. Press train."
)

_TASK = (
    "The digits are scikit-learn's, of 8 x 8 pixels. The networks learn from 1397 of them. The error is that on the "
    f"other 400, most of which are by other writers. 2 layers of {training.UNITS} units, Adam, {training.UPDATES} "
    "updates of 100 digits. Thin lines are single networks, thick ones their means. An end is the mean of the last "
    "three points."
)

_FAIR = (
    "Which networks are ahead depends on the learning rate, so try several. A single one may be wrong for one side: "
    "also compare the two at the best learning rate of each. Three seeds on one small task are too few to tell which "
    "is better."
)

_COLOURS = {"none": GREY, "layer": STYLES["layer"].colour}
_UPDATES = [str(update) for update in range(0, training.UPDATES + 1, training.EVERY)]
_START = RATES.index(0.0025)


class TrainingPage:
    """The page's parts, and the training that it shows."""

    def __init__(self) -> None:
        self.training, self.ends = Training(RATES[_START]), dict[float, Training]()
        self.job: Job[None] | None = None
        ui.label(_ABOUT).classes("max-w-3xl pb-2")
        with ui.row().classes("items-center gap-4 w-full max-w-xl no-wrap"):
            amount = ui.label().classes("whitespace-nowrap w-44")
            self.slider = ui.slider(min=0, max=len(RATES) - 1, step=1, value=_START)
            self.slider.props["aria-label"] = "learning rate"
            amount.bind_text_from(self.slider, "value", lambda _: f"learning rate {self.rate():.2g}")
        with ui.row().classes("items-center"):
            ui.button("train", on_click=self.train).props("no-caps")
            self.stopper = ui.button("stop", on_click=self.stop).props("no-caps flat")
            self.status = ui.label().classes("soft").props("role=status")
        self.refusal = ui.label().classes("changes").props("role=alert")
        with ui.element("div").classes("grid grid-cols-1 md:grid-cols-2 gap-6 w-full max-w-5xl"):
            self.curves = _chart("wrong of the 400 digits, in %, by update")
            self.rates = _chart("at the end, by learning rate")
        self.found = ui.label().classes("max-w-3xl font-bold py-2 whitespace-pre-line").props("role=status")
        for text in (_FAIR, _TASK):
            ui.label(text).classes("max-w-3xl pb-2")
        self.timer = ui.timer(0.25, self.show, active=False)
        ui.context.client.on_delete(self.leave)
        self.show()

    def rate(self) -> float:
        """Returns the learning rate at the slider's position, or the first where a client sent what is no position."""
        value = self.slider.value
        return RATES[value if isinstance(value, int) and 0 <= value < len(RATES) else _START]

    def leave(self) -> None:
        """Ends the training of a page that is gone."""
        if self.job is not None:
            self.job.stop()

    def stop(self) -> None:
        """Ends the training. Its curves stay, as far as they have come."""
        self.leave()
        self.job = None
        self.show()

    async def train(self) -> None:
        """Trains at the slider's learning rate, and ends a training that still runs."""
        self.stop()
        self.refusal.text = ""
        self.training = now = Training(self.rate())
        try:
            self.job = job = WORKER.submit(now.run)
            self.show()
            await asyncio.wrap_future(job.future)
            self.ends.pop(now.rate, None)
            self.ends[now.rate] = now  # the last one
        except (StoppedError, asyncio.CancelledError):  # stopped, started again, or the page is gone
            return
        except Exception as error:  # the page must show any error
            self.refusal.text = refusal(error)
        if self.training is now:  # it was not started again
            self.stop()

    def show(self) -> None:
        """Shows how far the training has come, and the ends of all that are complete."""
        means = {norm: self.training.mean(norm) for norm in NORMS}
        done = max(0, training.EVERY * (len(means["layer"]) - 1))
        waits = self.job is not None and not self.job.future.running() and not self.job.future.done()
        step = "waits for another page" if waits else f"update {done} of {training.UPDATES}"
        self.status.text = step if self.job is not None or means["layer"] else ""
        self.timer.active = self.job is not None
        self.stopper.set_enabled(self.job is not None)
        self.found.text = found(self.ends)
        single = [_line(norm, _percents(curve), 1) for norm in NORMS for curve in self.training.errors[norm]]
        _draw(
            self.curves,
            _UPDATES,
            single + [_line(norm, _percents(mean), 3, NORMS[norm]) for norm, mean in means.items()],
        )
        ends = []
        for norm, label in NORMS.items():
            values = [100 * self.ends[rate].end(norm).mean if rate in self.ends else None for rate in RATES]
            ends.append({**_line(norm, values, 2, label), "showSymbol": True, "symbolSize": 9, "connectNulls": True})
        _draw(self.rates, [f"{rate:.2g}" for rate in RATES], ends)


def found(ends: dict[float, Training]) -> str:
    """Says in words where the last training ended, and each norm's best learning rate of all that were tried."""
    if not ends:
        return ""
    last = ends[list(ends)[-1]]
    of_last = {label: last.end(norm) for norm, label in NORMS.items()}
    words = ", ".join(
        f"{label} {100 * e.mean:.1f} % ({100 * e.low:.1f} to {100 * e.high:.1f})" for label, e in of_last.items()
    )
    lines = [f"At a learning rate of {last.rate:.2g}: {words}."]
    if len(ends) > 1:
        best = {label: min((item.end(norm).mean, rate) for rate, item in ends.items()) for norm, label in NORMS.items()}
        words = ", ".join(f"{label} {100 * error:.1f} % at {rate:.2g}" for label, (error, rate) in best.items())
        lines.append(f"Best of {len(ends)} learning rates: {words}.")
    return "\n".join(lines)


def _percents(shares: list[float]) -> list[float]:
    return [100 * share for share in shares]


def _line(norm: str, values: list[Any], width: int, name: str = "") -> dict[str, Any]:
    """Makes a curve, for ECharts. One without a name is thin and pale."""
    style = {"color": _COLOURS[norm], "width": width, "opacity": 1 if name else 0.45}
    item = {"color": _COLOURS[norm]}
    return {"name": name, "type": "line", "showSymbol": False, "data": values, "lineStyle": style, "itemStyle": item}


def _chart(title: str) -> ui.echart:
    with ui.column().classes("gap-0 w-full"):
        ui.label(title).classes("font-bold")
        return ui.echart({}).classes("w-full h-72")


def _draw(chart: ui.echart, places: list[str], curves: list[dict[str, Any]]) -> None:
    """Draws curves, whose points lie at these places of the axis along x."""
    text = {"color": GREY}
    chart.options.update(
        animation=False,
        textStyle=text,
        legend={"data": list(NORMS.values()), "top": 0, "textStyle": text},
        grid={"left": 40, "right": 16, "top": 32, "bottom": 28},
        xAxis=axis(type="category", data=places),
        yAxis=axis(type="value", min=0, max=100),
        series=curves,
    )
    chart.update()
