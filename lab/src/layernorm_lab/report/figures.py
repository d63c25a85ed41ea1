"""Figures: curves with bands in panels, in colours that colour-blind people can distinguish, as PNG and SVG."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter
from PIL import Image, ImageColor

from .page import Figure, Panel

SHORT = 8
"""A curve of at most this many points has each of them marked, or a tick for each."""

_LETTERS = 40
"""The letters that have room below a panel, of two in a row."""

_SETTINGS: Any = {
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "svg.fonttype": "path",  # a viewer may lack the font
    "svg.hashsalt": "layernorm",  # the same data give the same file
}


def draw_figure(figure: Figure, kind: str, narrow: bool = False) -> bytes:
    """Draws a figure as "png" or "svg". `narrow`: with the panels in one column, for a phone."""
    with matplotlib.rc_context(_SETTINGS):
        output = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {}
        canvas(figure, narrow).savefig(output, format=kind, dpi=160, metadata=metadata)
    if kind == "svg":
        return output.getvalue()
    colours = {curve.style.colour for row in figure.rows for panel in row for curve in panel.curves}
    return _small(output, sorted({*colours, "#ffffff"}))


def canvas(figure: Figure, narrow: bool = False) -> Canvas:
    """Makes a figure of matplotlib, with its panels and their legend."""
    panels = [panel for row in figure.rows for panel in row]
    columns = 1 if narrow else max(len(row) for row in figure.rows)
    rows = len(panels) if narrow else len(figure.rows)
    whole = Canvas(figsize=(4.6 * columns, 3.0 * rows + 0.5))
    whole.set_layout_engine("constrained", wspace=0.06, hspace=0.06)
    axes = whole.subplots(rows, columns, squeeze=False)
    grid = [[panel] for panel in panels] if narrow else figure.rows
    for row, places in zip(grid, axes, strict=True):
        for panel, place in itertools.zip_longest(row, places):
            if panel is None:  # a row with fewer panels than another
                place.set_axis_off()
            else:
                _draw_panel(place, panel)
    drawn = [place.get_legend_handles_labels() for row in axes for place in row]
    curves = {label: handle for handles, labels in drawn for handle, label in zip(handles, labels, strict=True)}
    _legend(whole, curves, columns=min(len(curves), 3 * columns))
    return whole


def _legend(whole: Canvas, curves: dict[str, Artist], columns: int) -> None:
    """Names the curves above the panels, in as many columns as fit."""
    options: Any = {"loc": "outside upper center", "frameon": False, "handlelength": 2.6}
    legend = whole.legend(curves.values(), curves, ncols=columns, **options)
    while columns > 1 and legend.get_window_extent().width > whole.bbox.width:
        legend.remove()
        columns -= 1
        legend = whole.legend(curves.values(), curves, ncols=columns, **options)


def _small(png: io.BytesIO, colours: Iterable[str]) -> bytes:
    """Reduces the picture to 64 colours and these, the curves', which take a third of the bytes. With only the 64
    a short curve could have the colour of another."""
    picture = Image.open(png).convert("RGB")
    given = [channel for colour in colours for channel in ImageColor.getrgb(colour)]
    palette = np.array([*(picture.quantize(64).getpalette() or [])[: 3 * 64], *given], np.int32).reshape(-1, 3)
    numbers = np.asarray(picture, np.int32) @ np.array([1 << 16, 1 << 8, 1], np.int32)
    seen, places = np.unique(numbers, return_inverse=True)
    apart = np.stack([seen >> 16, seen >> 8 & 255, seen & 255], 1)[:, None] - palette
    nearest = np.square(apart).sum(-1).argmin(-1).astype(np.uint8)
    small, output = Image.fromarray(nearest[places].reshape(numbers.shape)), io.BytesIO()
    small.putpalette(palette.astype(np.uint8).tobytes())
    small.save(output, "png", optimize=True)
    return output.getvalue()


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for curve in panel.curves:
        colour, dashes = curve.style
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
        # the points of a short run are marked: a single one would be a line of no length
        marked = panel.dots or (curve.measured and len(curve.x) <= SHORT)
        marker = "o" if marked else None
        options: Any = {"color": colour, "linestyle": dashes, "linewidth": 1.6, "marker": marker, "markersize": 4}
        axes.plot(curve.x, curve.mean, label=curve.label, **options)
        if len(curve.x) == 1:  # its band would have no width
            axes.vlines(curve.x, curve.low, curve.high, color=colour, linewidth=1.6)
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    points = sorted({x for curve in panel.curves for x in (*curve.x, *curve.lost)})
    if panel.log_x and points:
        axes.set_xscale("log")
        axes.grid(visible=True, axis="x", which="both")
        axes.xaxis.set_major_formatter(FuncFormatter(_plain_tick))
        few = len(points) <= SHORT or panel.dots  # learning rates, or a short run
        if few:
            labels = [f"{point:g}" for point in points]
            step = -(-sum(map(len, labels)) // _LETTERS)
            axes.set_xticks(points, ["" if place % step else label for place, label in enumerate(labels)])
        crowded = points[-1] >= 1000 * points[0] or few
        axes.xaxis.set_minor_formatter(NullFormatter() if crowded else FuncFormatter(_plain_tick))
    else:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, steps=[1, 2, 5, 10]))
    if panel.log:
        axes.set_yscale("log")
    if panel.limits is not None:
        axes.set_ylim(*panel.limits)
    _mark_lost(axes, panel)
    if panel.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        if panel.log:
            axes.yaxis.set_minor_formatter(FuncFormatter(_percent_tick))


def _mark_lost(axes: Axes, panel: Panel) -> None:
    """Crosses above the curves where runs diverged, one row for each curve that has any."""
    lost = [curve for curve in panel.curves if curve.lost]
    for number, curve in enumerate(lost, 1):
        place = axes.get_xaxis_transform()
        axes.plot(curve.lost, [1 - 0.07 * number] * len(curve.lost), "X", color=curve.style.colour, transform=place)
    low, high = axes.transData.transform([(1, value) for value in axes.get_ylim()])[:, 1]
    top = high + (high - low) * 0.09 * len(lost)
    if lost:
        axes.set_ylim(top=axes.transData.inverted().transform((0, top))[1])


def _percent_tick(value: float, position: int | None = None) -> str:
    """Writes a tick of a logarithmic axis in percent, by the rule of `_plain_tick`."""
    text = _plain_tick(100 * value)
    return f"{text} %" if text else ""


def _plain_tick(value: float, position: int | None = None) -> str:
    """Writes a tick of a logarithmic axis as a plain number, at 1, 2 and 5 of each decade."""
    return f"{value:,g}" if f"{value:e}"[0] in "125" else ""
