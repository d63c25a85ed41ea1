"""What several pages show alike: the axes of their figures, and errors."""

from __future__ import annotations

import logging
from typing import Any

from ..errors import RunError, UsageError, error_line

GREY = "#8a8a8a"  # of axes and lines: seen on white and on black


def axis(**options: Any) -> dict[str, Any]:
    """Makes an axis, for ECharts."""
    return {
        "axisLine": {"lineStyle": {"color": GREY}},
        "axisLabel": {"color": GREY},
        "splitLine": {"lineStyle": {"color": GREY, "opacity": 0.25}},
        **options,
    }


def refusal(error: Exception) -> str:
    """Words an error for a page. One that nobody expects is also logged."""
    if not isinstance(error, (UsageError, RunError, OSError)):
        logging.error("a job of a page failed", exc_info=error)
    return error_line(error)
