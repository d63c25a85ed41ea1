"""Pictures of what a pen has written: strokes as SVG, as PNG, and as an SVG in which the pen moves."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence

import numpy as np

SECOND = 100.0
"""The number of points that the moving pen makes in a second, which is about the rate of the whiteboard."""

_MARGIN = 60.0  # whiteboard units around the strokes, of which a small letter is about 150 high
_WIDTH = 12.0  # of the pen
_INCH, _LONGEST = 400.0, 25.0  # whiteboard units in an inch of a picture; inches of the widest and of the highest one


def strokes(points: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> list[np.ndarray]:
    """Turns normalised points `(N, 3)` into strokes, by the mean and deviation `(2,)` of the offsets: for each the
    positions of its points `(n, 2)` in the whiteboard's units, x to the right and y down."""
    places = np.cumsum(points[:, :2] * deviation + mean, axis=0)
    ends = np.flatnonzero(points[:, 2] > 0.5) + 1
    return [part for part in np.split(places, ends) if len(part)]


def svg(drawn: Sequence[np.ndarray], title: str) -> bytes:
    """Draws the strokes as an SVG picture."""
    paths = "".join(f'<path d="{_path(stroke)}"/>' for stroke in drawn)
    return _document(drawn, title, paths)


def moving_svg(drawn: Sequence[np.ndarray], title: str) -> bytes:
    """Draws the strokes as an SVG picture in which they appear as they were drawn (SMIL, no script)."""
    parts, begin = [], 0.0
    for stroke in drawn:
        seconds = len(stroke) / SECOND
        parts.append(
            f'<path d="{_path(stroke)}" pathLength="1" stroke-dasharray="1 2" stroke-dashoffset="1" '
            'visibility="hidden">'
            f'<set attributeName="visibility" to="visible" begin="{begin:.2f}s"/>'
            f'<animate attributeName="stroke-dashoffset" from="1" to="0" begin="{begin:.2f}s" dur="{seconds:.2f}s" '
            'fill="freeze"/></path>'
        )
        begin += seconds
    return _document(drawn, title, "".join(parts))


def scale(drawn: Sequence[np.ndarray]) -> float:
    """Chooses the number of whiteboard units in an inch of a picture: the same for all texts that are not too long."""
    _, _, wide, high = _box(drawn)
    return max(_INCH, wide / _LONGEST, high / _LONGEST)


def png(drawn: Sequence[np.ndarray], inch: float) -> bytes:
    """Draws the strokes as a PNG picture at 160 points an inch, `inch` being whiteboard units."""
    from matplotlib.figure import Figure

    left, top, wide, high = _box(drawn)
    canvas = Figure(figsize=(wide / inch, max(high / inch, 0.4)))
    axes = canvas.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(left, left + wide)
    axes.set_ylim(top + high, top)
    axes.set_aspect("equal")
    line_width = _WIDTH * 72 / inch
    for stroke in drawn:
        axes.plot(*stroke.T, color="black", linewidth=line_width, solid_capstyle="round", solid_joinstyle="round")
    output = io.BytesIO()
    canvas.savefig(output, format="png", dpi=160, metadata={"Software": None})
    return output.getvalue()


def _document(drawn: Sequence[np.ndarray], title: str, body: str) -> bytes:
    box = " ".join(f"{number:.0f}" for number in _box(drawn))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}"><title>{html.escape(title)}</title>'
        f'<g fill="none" stroke="black" stroke-width="{_WIDTH:g}" stroke-linecap="round" stroke-linejoin="round">'
        f"{body}</g></svg>\n"
    ).encode()


def _path(stroke: np.ndarray) -> str:
    places = [f"{x:.0f} {y:.0f}" for x, y in stroke]
    return f"M{places[0]}L{' '.join(places[1:] or places)}"


def _box(drawn: Sequence[np.ndarray]) -> tuple[float, float, float, float]:
    """Puts a box with a margin around the strokes: left, top, width and height."""
    places = np.concatenate([np.zeros((1, 2)), *drawn])
    low, high = places.min(0) - _MARGIN, places.max(0) + _MARGIN
    return float(low[0]), float(low[1]), float(high[0] - low[0]), float(high[1] - low[1])
