"""Figures: curves with bands in panels, in colours that colour-blind people tell apart, as PNG and SVG."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from .report import Figure, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES: dict[str, tuple[str, Any]] = {
    # Okabe and Ito's palette; the dashes tell the lines apart without any colour
    "none": ("#000000", (0, (1, 1.2))),
    "layer": ("#D55E00", "solid"),
    "batch": ("#0072B2", (0, (5, 1.6))),
    "rms": ("#009E73", (0, (5, 1.6, 1, 1.6))),
}
"""Colour and dashes by a curve's style."""

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


def draw(figure: Figure, kind: str, narrow: bool = False) -> bytes:
    """Draws a figure.

    Args:
        figure: what to draw.
        kind: "png" or "svg".
        narrow: one panel below the other, for a phone.
    """
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    panels = [panel for row in figure.rows for panel in row]
    columns = 1 if narrow else max(len(row) for row in figure.rows)
    rows = len(panels) if narrow else len(figure.rows)
    with matplotlib.rc_context(_SETTINGS):
        canvas = Canvas(figsize=(4.6 * columns, 3.0 * rows + 0.5))
        canvas.set_layout_engine("constrained", wspace=0.06, hspace=0.06)
        axes = canvas.subplots(rows, columns, squeeze=False)
        grid = [[panel] for panel in panels] if narrow else figure.rows
        for row, places in zip(grid, axes, strict=True):
            for panel, place in zip(row, places, strict=True):
                _draw_panel(place, panel)
        handles, labels = axes[0][0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, handlelength=2.6)
        output = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {}
        canvas.savefig(output, format=kind, dpi=160, metadata=metadata)
    return output.getvalue()


def _draw_panel(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    for curve in panel.curves:
        colour, dashes = STYLES[curve.style]
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
        # a dot where a line would have no length
        marker = "o" if len(curve.x) == 1 else None
        axes.plot(curve.x, curve.mean, color=colour, linestyle=dashes, linewidth=1.6, marker=marker, label=curve.label)
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, steps=[1, 2, 5, 10]))
    if panel.log:
        axes.set_yscale("log")
    if panel.limits is not None:
        axes.set_ylim(*panel.limits)
    if panel.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
