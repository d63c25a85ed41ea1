"""Text of 80 columns."""

from __future__ import annotations

import textwrap


def wrapped(text: str, indent: int) -> str:
    """Wraps the text to 80 columns, all lines but the first indented. Names and paths are not split."""
    return textwrap.fill(text, 80, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
