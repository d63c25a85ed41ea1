"""The pages as NiceGUI shows them: Table 1, a training, and one for each trained network."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from nicegui import ui

from ..protocol import Drawn, StoppedError
from ..report.page import Picture
from ..report.rendering import address
from . import table_1
from .elements import GREY, axis, refusal
from .table_1 import Outcome
from .trained import Trained
from .training_page import TrainingPage
from .worker import WORKER, Job

_TABLE_1 = (
    "After which changes of its weights or inputs does a layer's output stay as it was? Table 1 of the paper answers "
    "for batch norm, weight norm and layer norm. Here a layer of 6 units sees 8 training cases. At first all its "
    "inputs have been doubled: under batch norm and layer norm the output stays, under weight norm it changes. Move "
    "the sliders for the other changes of the table."
)

_FIGURES = (
    "The number is the relative change of the whole output. Each point of a figure is the output of one unit for one "
    "case: to the right before the change, upwards after it. While the output stays, all points lie on the line."
)

_CSS = """
.body--light { --stays: #00664b; --changes: #a34700; --soft: #5c5c5c; --paper: #ffffff }
.body--dark { --stays: #5fd0ad; --changes: #ff9d5c; --soft: #a8a8a8; --paper: #1d1d1d }
.stays { color: var(--stays) } .changes { color: var(--changes) } .soft { color: var(--soft) }
.verdicts { position: sticky; top: 0; z-index: 2; background: var(--paper); padding: .5rem 0 }
.drawn { max-width: 100%; background: #fff; padding: .4rem; border-radius: 6px; max-height: 70vh }
"""


def root(networks: Sequence[Trained]) -> None:
    """Shows all pages, as tabs."""
    ui.add_css(_CSS)
    pages: dict[str, Callable[[], object]] = {"Table 1": _table_1, "Training": TrainingPage}
    for item in networks:
        pages[f"{item.experiment.name}: {item.path.name}"] = functools.partial(_Drawing, item)
    with ui.tabs().props("align=left outside-arrows mobile-arrows no-caps").classes("w-full") as tabs:
        for name in pages:
            ui.tab(name)
    tabs.on_value_change(lambda: ui.page_title(f"{tabs.value} - layernorm play"))
    with ui.tab_panels(tabs).classes("w-full"):
        for name, show in pages.items():
            with ui.tab_panel(name):
                show()
    tabs.value = "Table 1"


def _table_1() -> None:
    for text in (_TABLE_1, _FIGURES):
        ui.label(text).classes("max-w-3xl pb-2")
    with ui.row().classes("verdicts gap-x-6 gap-y-0 w-full"):
        verdicts = [ui.label() for _ in table_1.NORMS]
    with ui.element("div").classes("grid grid-cols-1 md:grid-cols-[20rem_1fr] gap-6 w-full"):
        with ui.column().classes("gap-0 w-full"):
            sliders, amounts = {}, {}
            for name, move in table_1.MOVES.items():
                with ui.row().classes("w-full justify-between gap-2 no-wrap"):
                    ui.label(name).tooltip(move.equation)
                    amounts[name] = ui.label().classes("soft whitespace-nowrap")
                far, step = table_1.farthest(name), 0.1 if table_1.shifts(name) else 0.05
                sliders[name] = ui.slider(min=-far, max=far, step=step, value=table_1.START.get(name, 0))
                sliders[name].props["aria-label"] = name
                sliders[name].props["selection-color"] = "transparent"  # 0 is in the middle: nothing is filled up
                ui.label(table_1.listed(name)).classes("soft text-xs pb-2")
            eps = ui.toggle({0.0: "eps 0", 1e-5: "eps 1e-5"}, value=0.0).props("no-caps")
            ui.button("put all back", on_click=lambda: [slider.set_value(0) for slider in sliders.values()]).props(
                "flat no-caps"
            )
        with ui.element("div").classes("grid grid-cols-2 lg:grid-cols-3 gap-4 w-full content-start"):
            charts = []
            for norm in table_1.NORMS.values():
                with ui.column().classes("gap-0 w-full"):
                    ui.label(norm).classes("font-bold")
                    charts.append(ui.echart({}).classes("w-full h-44"))

    def show() -> None:
        positions = {name: table_1.position(name, slider.value) for name, slider in sliders.items()}
        for name, position in positions.items():
            amounts[name].text = table_1.amount(name, position)
        for outcome, chart, label in zip(table_1.outcomes(positions, eps.value), charts, verdicts, strict=True):
            label.text, kind = _verdict_line(outcome)
            label.classes(replace=kind)
            chart.options.update(_scatter(outcome))
            chart.update()

    for control in (*sliders.values(), eps):
        control.on_value_change(show)
    show()


def _verdict_line(outcome: Outcome) -> tuple[str, str]:
    """Says what happened to the output, in words, and the CSS class of these words."""
    verdict = outcome.verdict
    name = table_1.NORMS[verdict.norm]
    if not verdict.transform:
        return f"{name}: not moved", "soft"
    paper = {True: ", Table 1: invariant", False: ", Table 1: not invariant", None: ""}[verdict.paper]
    kind = "stays" if verdict.invariant else "changes"
    return f"{name}: {kind} ({verdict.residual:.1g}{paper})", kind


def _scatter(outcome: Outcome) -> dict[str, Any]:
    """Draws the output after the moves against the output before them, for ECharts. Case 1 and unit 1 stand out."""
    groups: dict[str, list[tuple[float, float]]] = {"others": [], "unit 1": [], "case 1": []}
    cases, units = outcome.before.shape
    for case in range(cases):
        for unit in range(units):
            group = "case 1" if case == 0 else "unit 1" if unit == 0 else "others"
            groups[group].append((float(outcome.before[case, unit]), float(outcome.after[case, unit])))
    wide, high = (math.ceil(float(values.abs().max())) for values in (outcome.before, outcome.after))
    high = max(wide, high)
    marks = {"others": ("circle", GREY), "unit 1": ("triangle", "#2a8fd0"), "case 1": ("diamond", "#e06c1f")}
    line = {"name": "", "type": "line", "showSymbol": False, "silent": True, "data": [(-wide, -wide), (wide, wide)],
            "lineStyle": {"color": GREY, "width": 1}}  # fmt: skip
    points = [
        {"name": name, "type": "scatter", "symbol": marks[name][0], "symbolSize": 7, "itemStyle":
         {"color": marks[name][1]}, "data": data} for name, data in groups.items()
    ]  # fmt: skip
    return {
        "animationDuration": 200,
        "animationDurationUpdate": 200,
        "textStyle": {"color": GREY},
        "legend": {"data": ["unit 1", "case 1"], "top": 0, "itemGap": 6, "itemWidth": 12, "textStyle": {"color": GREY}},
        "grid": {"left": 34, "right": 8, "top": 26, "bottom": 22},
        "xAxis": axis(min=-wide, max=wide, interval=wide),
        "yAxis": axis(min=-high, max=high, interval=high),
        "series": [line, *points],
    }


class _Drawing:
    """The page of a trained network: a field for each option, a button, and what was drawn or why it was refused."""

    def __init__(self, network: Trained) -> None:
        self.network = network
        ui.label(f"The network of {network.path}, with its newest weights.").classes("soft break-all")
        with ui.element("div").classes("grid grid-cols-1 md:grid-cols-2 gap-x-6 gap-y-6 w-full max-w-3xl"):
            self.fields = {item.name: self._field(item.name, item.metadata["doc"], item.default) for item in
                           network.fields}  # fmt: skip
        with ui.row().classes("items-center pt-4"):
            self.button = ui.button("draw", on_click=self.draw).props("no-caps")
            self.busy = ui.spinner()
        self.refusal = ui.label().classes("changes").props("role=alert")
        self.drawn = ui.column().classes("w-full")
        self.busy.visible = False
        self.job: Job | None = None
        ui.context.client.on_delete(self.stop)

    def stop(self) -> None:
        """Takes back what is drawn for a page that is gone."""
        if self.job is not None:
            self.job.stop()

    def _field(self, name: str, doc: str, default: Any) -> ui.input:
        field = ui.input(name, value=str(default)).props("outlined dense").on("keydown.enter", self.draw)
        field.props["hint"] = doc
        return field

    async def draw(self) -> None:
        """Lets the network draw in the worker, and shows the pictures or the error."""
        if not self.button.enabled:  # Enter in a field while it draws
            return
        texts = {name: field.value for name, field in self.fields.items()}
        self.refusal.text, self.busy.visible = "", True
        self.button.disable()
        try:
            self.job = WORKER.submit(lambda: self.network.draw(texts))
            drawn = await asyncio.wrap_future(self.job.future)
            self._show(drawn)
        except (StoppedError, asyncio.CancelledError):  # the page is gone
            return
        except Exception as error:  # the page must show any error
            self.drawn.clear()
            self.refusal.text = refusal(error)
        self.button.enable()
        self.busy.visible = False

    def _show(self, drawn: Drawn) -> None:
        self.drawn.clear()
        with self.drawn:
            for note in drawn.notes:
                ui.label(note)
            best: dict[str, Picture] = {}
            for picture in drawn.pictures:
                best.setdefault(picture.name, picture)
            for picture in best.values():
                image = ui.element("img").classes("drawn")
                image.props["src"], image.props["alt"] = address(picture.kind, picture.content), picture.caption
                ui.label(picture.caption).classes("soft")
