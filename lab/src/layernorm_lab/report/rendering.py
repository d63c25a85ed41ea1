"""Writes a report as one self-contained HTML page and one Markdown file with figures, and prints its tables."""

from __future__ import annotations

import base64
import html
import io
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable

from ..errors import printable
from ..runs.files import make_folder, write_atomic
from . import figures
from .page import MARKS, Figure, Picture, Report, Table, commands, environment_lines


def write_report(report: Report, folder: Path) -> Path:
    """Writes `index.html`, whose path is returned, `report.md`, every figure as PNG and SVG, and every picture."""
    make_folder(folder)
    vectors = [figures.draw_figure(figure, "svg") for figure in report.figures]
    for figure, vector in zip(report.figures, vectors, strict=True):
        write_atomic(folder / f"{figure.name}.png", figures.draw_figure(figure, "png"))
        write_atomic(folder / f"{figure.name}.svg", vector)
    for picture in report.pictures:
        write_atomic(folder / f"{picture.name}.{picture.kind}", picture.content)
    write_atomic(folder / "report.md", markdown(report).encode())
    page = folder / "index.html"
    write_atomic(page, page_text(report, vectors).encode())
    return page


def markdown(report: Report) -> str:
    """Writes the report as Markdown. Its figures are PNG files in the same folder."""
    escape = _escaped
    parts = [f"# {escape(report.title)}"]
    parts += [f"**In these runs.** {escape(' '.join(report.conclusion))}"] if report.conclusion else []
    parts += [f"> **{escape(line)}**" for line in report.status]
    parts += [f"**The paper's claim.** {escape(report.claim)}"] if report.claim else []
    parts += [f"**{_measured(report)}.**", _bullets(report.findings)] if report.findings else []
    for figure in report.figures:
        parts += [f"**{escape(line)}**" for line in figure.says]
        parts += [*_image(figure.caption, f"{figure.name}.png"), escape(figure.rule)]
    for picture in report.pictures:
        parts += _image(picture.caption, f"{picture.name}.{picture.kind}")
    for table in report.tables:
        parts += [f"## {escape(table.title)}", _markdown_table(table), escape(table.note)]
    parts += ["## Verdicts", _bullets(report.verdicts)] if report.verdicts else []
    if report.deviations:
        lines = [f"[{item.mark}] {escape(f'{item.name}: {item.text}')}" for item in report.deviations]
        numbered = "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))
        parts += ["## Deviations and decisions", numbered, _marks(report)]
    lines = [f"    {printable(line)}" for line in commands(report)]  # indented: no line can end the block
    parts += ["## Commands", "\n".join(lines)] if lines else []
    parts += ["## Environment", _bullets(f"{what}: {value}" for what, value in environment_lines(report))]
    parts += [_written(report)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _image(caption: str, name: str) -> list[str]:
    """Writes a picture in Markdown, with its caption."""
    return [f"![{_escaped(_first(caption))}]({name})", f"*{_escaped(caption)}*"]


def page_text(report: Report, vectors: Sequence[bytes]) -> str:
    """Writes the report as an HTML page that needs no other file. `vectors` are its figures as SVG."""
    escape = _html
    status = "".join(f'<p class="status">{escape(line)}</p>' for line in report.status)
    conclusion = "".join(f"<p>{escape(line)}</p>" for line in report.conclusion)
    conclusion = f'<div class="conclusion">{conclusion}</div>' if conclusion else ""
    claim = f"<p><b>The paper's claim.</b> {escape(report.claim)}</p>" if report.claim else ""
    findings = "".join(f"<li>{escape(line)}</li>" for line in report.findings)
    findings = f"<p><b>{_measured(report)}.</b></p><ul>{findings}</ul>" if findings else ""
    widest = max((_width(picture) for picture in report.pictures), default=0)
    samples = [_picture(picture, widest) for picture in report.pictures]
    pictures = "".join([*map(_figure_html, report.figures, vectors), *samples])
    tables = "".join(map(_html_table, report.tables))
    verdicts = "".join(f"<li>{escape(line)}</li>" for line in report.verdicts)
    verdicts = f"<h2>Verdicts</h2><ul>{verdicts}</ul>" if verdicts else ""
    deviations = "".join(
        f"<li><b>[{escape(item.mark)}]</b> {escape(f'{item.name}: {item.text}')}</li>" for item in report.deviations
    )
    if deviations:
        marks = f'<p class="note">{escape(_marks(report))}</p>'
        deviations = f"<h2>Deviations and decisions</h2><ol>{deviations}</ol>{marks}"
    lines = "\n".join(map(escape, commands(report)))
    facts = "".join(
        f"<tr><th>{escape(what)}</th><td>{escape(value)}</td></tr>" for what, value in environment_lines(report)
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(report.title)}</title><style>{_CSS}</style></head><body><main>
<h1>{escape(report.title)}</h1>{conclusion}{status}
{claim}{findings}
{pictures}{tables}
{verdicts}{deviations}
<h2>Commands</h2><pre>{lines}</pre>
<h2>Environment</h2><table class="facts">{facts}</table>
<p class="note">{_written(report)}</p>
</main></body></html>
"""


def print_report(report: Report) -> None:
    """Prints the conclusion, the tables with their notes, what the figures say, and the findings, in at most 80
    columns."""
    console = _console()
    for line in report.conclusion:
        console.print(Padding(printable(line), (0, 1, 1, 1)), style="bold")
    for table in report.tables:
        grid = RichTable(
            title=printable(table.title), title_justify="left", title_style="bold", box=None, padding=(0, 1, 0, 0)
        )
        for position, column in enumerate(table.columns):
            grid.add_column(printable(column), justify="left" if position == 1 else "right")
        for number, row in enumerate(table.rows):
            new_block = number and table.rows[number - 1][0] != row[0]
            if new_block:
                grid.add_row()
            grid.add_row(*map(printable, row))
        console.print(grid)
        if table.note:
            console.print(Padding(printable(table.note), (0, 1)), style="dim")
        console.print()
    said = [line for figure in report.figures for line in figure.says]
    for line in (*report.status, *said, *report.findings):
        console.print(Padding(printable(line), (0, 1)))


def print_sentences(table: Table) -> None:
    """Prints a table of three columns of sentences, in at most 80 columns: all to the left, a line between the rows. A
    cell may have several lines."""
    grid = RichTable(
        title=printable(table.title), title_justify="left", title_style="bold", box=None, padding=(0, 2, 1, 0),
        pad_edge=False, expand=True,
    )  # fmt: skip
    for position, column in enumerate(table.columns):
        grid.add_column(printable(column), ratio=(34, 19, 27)[position])
    for row in table.rows:
        grid.add_row(*("\n".join(map(printable, cell.split("\n"))) for cell in row))
    console = _console()
    console.print(grid)
    if table.note:
        console.print(printable(table.note), style="dim")
    console.print()


def _console() -> Console:
    """Makes a console of at most 80 columns that prints texts as they are."""
    console = Console()
    width = min(80, console.width) if console.is_terminal else 80
    return Console(highlight=False, markup=False, emoji=False, width=width)


def _html(text: str) -> str:
    """Escapes a text on a page, as it is."""
    return html.escape(printable(text))


def _escaped(text: str) -> str:
    """Escapes a text in Markdown, as it is: nothing in it is a sign of Markdown's."""
    return _SIGNS.sub(r"\\\g<0>", printable(text))


_SIGNS = re.compile(r"[\\`*\[\]<>|~]|(?<!\w)_|_(?!\w)|&(?=#?\w+;)|^[#+-]")
"""Of Markdown; an underscore within a word is none."""


def _figure_html(figure: Figure, vector: bytes) -> str:
    wide, narrow = address("svg", vector), address("svg", figures.draw_figure(figure, "svg", narrow=True))
    says = "".join(f'<p class="says">{_html(line)}</p>' for line in figure.says)
    rule = f'<p class="note">{_html(figure.rule)}</p>' if figure.rule else ""
    return (
        f'{says}<figure><picture><source media="(max-width: 640px)" srcset="{narrow}">'
        f'<img src="{wide}" alt="{_html(_first(figure.caption))}"></picture>'
        f"<figcaption>{_html(figure.caption)}</figcaption></figure>{rule}"
    )


def _first(caption: str) -> str:
    """Cuts a caption to its first sentence, to be read where a picture cannot be seen."""
    return re.split(r"(?<!\beq)\. ", caption, maxsplit=1)[0].rstrip(".") + "."


def _picture(picture: Picture, widest: int) -> str:
    """Writes a picture in its own size, or smaller where the widest does not fit: all share one scale."""
    caption, width = _html(picture.caption), _width(picture)
    style = f"width:min({width}px,calc({width / widest:.4f}*(100% - .8rem)))"
    source = address(picture.kind, picture.content)
    return (
        f'<figure><img class="sample" style="{style}" src="{source}" alt="{caption}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _width(picture: Picture) -> int:
    """Returns the width of a picture in pixels."""
    with Image.open(io.BytesIO(picture.content)) as image:
        return image.width


def address(kind: str, content: bytes) -> str:
    """Encodes a picture as an address that needs no other file."""
    media = {"svg": "image/svg+xml", "png": "image/png", "gif": "image/gif"}[kind]
    return f"data:{media};base64,{base64.b64encode(content).decode()}"


def _html_table(table: Table) -> str:
    """Writes a table. One that is wider than the page is shown as one block of lines for each row: a cell a line, with
    the column's head before it, which the attribute has."""
    head = "".join(f"<th>{_html(column)}</th>" for column in table.columns)
    rows, previous = [], ""
    for row in table.rows:
        first = ' class="first"' if previous and row[0] != previous else ""
        cells = (f'<td data-head="{_html(column)}">{_whole_ranges(_html(cell))}</td>' for column, cell in
                 zip(table.columns, row, strict=True))  # fmt: skip
        rows.append(f"<tr{first}>{''.join(cells)}</tr>")
        previous = row[0]
    body, count = "".join(rows), len(table.columns)
    width = "" if count <= FITS_PHONE else ' class="wide"' if count <= FITS_SCREEN else ' class="widest"'
    return (
        f"<h2>{_html(table.title)}</h2><table{width}><thead><tr>{head}</tr></thead>"
        f'<tbody>{body}</tbody></table><p class="note">{_html(table.note)}</p>'
    )


def _whole_ranges(text: str) -> str:
    """Keeps a short text in brackets, such as "(7.00-8.00)", on one line."""
    return re.sub(r"\([^()]{1,20}\)", r"<span>\g<0></span>", text)


def _markdown_table(table: Table) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    rule = line(":--" if position == 1 else "--:" for position in range(len(table.columns)))
    head, *rows = [line(map(_escaped, cells)) for cells in (table.columns, *table.rows)]
    return "\n".join([head, rule, *rows])


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_escaped(line)}" for line in lines)


def _measured(report: Report) -> str:
    return "These runs" if report.runs else "Measured"


def _written(report: Report) -> str:
    source = f" from {len(report.runs)} runs" if report.runs else ""
    return f"Written {time.strftime('%Y-%m-%d %H:%M')}{source}."


def _marks(report: Report) -> str:
    used = dict.fromkeys(item.mark for item in report.deviations)
    return "Marks: " + "; ".join(f"[{mark}] {MARKS[mark]}" for mark in used) + "."


FITS_PHONE, FITS_SCREEN = 4, 12
"""The columns that a table may have to be shown as one on a phone, and on a screen of 1,280 pixels."""

_BLOCKS = """
%(table)s,%(table)s tbody{display:block}%(table)s thead{display:none}
%(table)s tr{display:block;padding:.4rem 0;border-bottom:1px solid var(--line)}
%(table)s tr td{display:flow-root;overflow-wrap:anywhere;text-align:right;border:0}
%(table)s td::before{content:attr(data-head);color:var(--soft);float:left;margin-right:1rem}
%(table)s td:nth-child(2){font-weight:600}%(table)s tr td:empty{display:none}
"""
"""Shows each row of a table as a block of lines."""

_CSS = (
    """
:root{color-scheme:light dark;--ink:#1a1a1a;--soft:#5c5c5c;--line:#d8d8d8;--paper:#fff;--tint:#f4f4f2;--warn:#fff3d6}
@media(prefers-color-scheme:dark){
:root{--ink:#e8e8e8;--soft:#a8a8a8;--line:#444;--paper:#181818;--tint:#242424;--warn:#4a3a10}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink)}
body{font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:60rem;margin:0 auto;padding:1.2rem;overflow-wrap:break-word}
h1{font-size:1.6rem;line-height:1.25;margin:.4rem 0 1rem}h2{font-size:1.15rem;margin:2rem 0 .6rem}
.status{background:var(--warn);padding:.5rem .8rem;border-radius:6px}
.conclusion{font-size:1.1rem;border-left:4px solid var(--ink);padding-left:.8rem}.conclusion p{margin:.5rem 0}
.says{font-size:1.1rem;font-weight:600;margin:1.2rem 0 .4rem}
.note,figcaption{color:var(--soft);font-size:.88rem}
figure{margin:1.5rem 0}figure img{width:100%;height:auto;background:#fff;border-radius:6px;padding:.4rem}
figure .sample{box-sizing:content-box}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.93rem}
th,td{padding:.3rem .5rem;text-align:right;border-bottom:1px solid var(--line)}
th:nth-child(2),td:nth-child(2){text-align:left}thead th{border-bottom:2px solid var(--ink);font-weight:600}
td span{white-space:nowrap}tr.first td{border-top:2px solid var(--line)}
.facts th,.facts td{text-align:left;overflow-wrap:anywhere}.facts th{width:11rem;font-weight:500}
pre{background:var(--tint);padding:.7rem .9rem;border-radius:6px;font-size:.85rem}
pre{white-space:pre-wrap;overflow-wrap:anywhere}
li{margin:.25rem 0}
@media(max-width:640px){
table{font-size:.85rem}th,td{padding:.2rem .3rem}.facts th{width:7rem}
"""
    + _BLOCKS % {"table": ".wide"}
    + "}"
    + _BLOCKS % {"table": ".widest"}
)
