"""How a report looks: files that need no others, figures that depend on the runs alone, tables of 80 columns."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from lab_support.runs import report_of, write_digits, write_sweep
from layernorm_lab.report import figures, rendering
from layernorm_lab.report.page import Curve, Figure, Panel, Picture, Style, Table, level

pytestmark = pytest.mark.draws


@pytest.fixture
def folder(tmp_path):
    return write_sweep(tmp_path)


def test_the_files(folder, tmp_path):
    out = tmp_path / "report"
    page = rendering.write_report(replace(report_of(folder), findings=["Layer norm is ahead."]), out)
    assert (out / "figure6.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "figure6.svg").read_bytes().startswith(b"<?xml")
    text = page.read_text()
    # self-contained: nothing is fetched
    assert not re.search(r'(src|href|srcset)="(?!data:)', text)
    assert "url(" not in text
    assert "A &lt;fast&gt; one" in text
    markdown = (out / "report.md").read_text()
    for part in ("7.50 (7.00-8.00)", "layernorm run digits", "Layer norm is ahead.", "[stand-in]", "2.13.0"):
        assert part in re.sub("</?span>", "", text)
        assert part in markdown
    assert "](figure6.png)" in markdown


def test_captions_speak_of_bands_where_there_are_several_seeds(folder, tmp_path):
    (several,) = report_of(folder).figures
    assert "geometric mean, over seeds; bands: lowest to highest seed." in several.caption
    write_digits(tmp_path / "one", "layer", 128, 0, [0.3, 0.2])
    (alone,) = report_of(tmp_path / "one").figures
    assert alone.caption == alone.about
    assert not re.search("band|seed|mean", alone.caption)


def test_the_evaluations_of_a_short_run_are_marked():
    style = Style("#000000", "solid")

    def curve(count):
        return Curve(f"{count}", style, list(range(count)), *([[1.0] * count] * 3))

    panel = Panel("", "", "", [curve(2), curve(30), level("a level", style, [0.0, 29.0], 2.0)])
    (axes,) = figures.canvas(Figure("", "", [[panel]])).axes
    assert [line.get_marker() for line in axes.get_lines()] == ["o", "None", "None"]


def test_pictures_are_shown_on_one_scale_and_never_larger_than_they_are(folder):
    found = [Picture(f"{width}", "png", "", png(width)) for width in (174, 862)]
    page = rendering.page_text(replace(report_of(folder), figures=[], pictures=found), [])
    shown = re.findall(r'<img class="sample" style="width:min\((\d+)px,calc\(([\d.]+)\*\(100% - .8rem\)\)\)"', page)
    assert shown == [("174", f"{174 / 862:.4f}"), ("862", "1.0000")]


@pytest.mark.parametrize(
    ("columns", "width"), [(4, ""), (5, ' class="wide"'), (12, ' class="wide"'), (13, ' class="widest"')]
)
def test_a_table_that_is_wider_than_the_page_becomes_lines_with_their_heads(folder, columns, width):
    """Nothing is cut: no line of a cell is held together, and where a table has no room each cell bears its head."""
    heads = [f"head {number}" for number in range(columns)]
    table = Table("A table", heads, [[f"{number} ({number}.00-{number}.50)" for number in range(columns)]])
    page = rendering.page_text(replace(report_of(folder), figures=[], tables=[table]), [])
    assert f"<h2>A table</h2><table{width}>" in page
    assert re.findall(r'<td data-head="(head \d+)">', page) == heads
    assert '<td data-head="head 0">0 <span>(0.00-0.50)</span></td>' in page  # a range alone is held together
    style = page.split("<style>")[1].split("</style>")[0]
    assert "overflow-x" not in style
    assert re.findall(r"([^{}]*)\{[^}]*white-space:nowrap", style) == ["\ntd span"]
    phone = style.split("@media(max-width:640px){")[1]
    assert ".wide tr td{display:flow-root" in phone
    assert ".widest tr td{display:flow-root" in style.split(".wide td:nth-child(2)")[1]


def test_the_conclusion_comes_first(folder, tmp_path, capsys):
    said = {"conclusion": ["They are alike."], "status": ["Unfinished."], "claim": "A claim."}
    report = replace(report_of(folder), figures=[], **said)
    rendering.print_report(report)
    assert capsys.readouterr().out.strip().startswith("They are alike.")
    page = rendering.write_report(report, tmp_path / "report").read_text()
    assert page.index("</h1>") < page.index("They are alike.") < page.index("Unfinished.") < page.index("A claim.")
    parts = (tmp_path / "report" / "report.md").read_text().split("\n\n")
    assert parts[1] == "**In these runs.** They are alike."


def png(width):
    file = io.BytesIO()
    Image.new("L", (width, 20)).save(file, "png")
    return file.getvalue()


def test_the_same_runs_give_the_same_figure(folder):
    one, other = (figures.draw_figure(report_of(folder).figures[0], "svg") for _ in range(2))
    assert one == other


NAMED = "[red]x[/red] :smile: *a* <b> [c](d) `e` |\x1b[31m\u202e\udcff\n# f"


def test_what_a_user_named_is_shown_as_it_is(folder, tmp_path, capsys):
    """Its signs are no markup's, and what a terminal would obey is an escape, in the terminal, Markdown and page."""
    table = Table(NAMED, ["a", NAMED], [["1", NAMED]], NAMED)
    named = {"title": NAMED, "claim": NAMED, "status": [NAMED], "findings": [NAMED], "tables": [table]}
    report = replace(report_of(folder), figures=[], **named)
    rendering.print_report(report)
    said = capsys.readouterr().out
    assert "[red]x[/red] :smile: *a* <b> [c](d) `e` |" in " ".join(said.split())
    rendering.write_report(report, tmp_path / "report")
    page, text = ((tmp_path / "report" / name).read_text("utf-8") for name in ("index.html", "report.md"))
    for written in (said, page, text):
        assert not set("\x1b\u202e\udcff") & set(written)
        assert "\\x1b" in written
        assert "\\udcff" in written
        assert not re.search(r"^# f", written, re.MULTILINE)
    assert "&lt;b&gt;" in page
    escaped = r"\[red\]x\[/red\] :smile: \*a\* \<b\> \[c\](d) \`e\` \|\\x1b\[31m\\u202e\\udcff\\n# f"
    assert f"# {escaped}\n" in text
    assert f"| --: | :-- |\n| 1 | {escaped} |\n" in text


def test_the_terminals_tables_fit_80_columns(folder, capsys):
    rendering.print_report(report_of(folder))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "Milliseconds: the median between two evaluations, of the fastest such stretch" in text
    row = next(line for line in lines[lines.index(next(line for line in lines if line.startswith("Results"))) :]
               if "layer norm" in line)  # fmt: skip
    assert row.split() == ["128", "layer", "norm", "0.001", "7.50", "13.00", "9.4e-03", "3", "40"]


def test_a_short_line_keeps_its_colour():
    """Two bands that fade, for which 64 colours are none too many, and a line of another colour."""
    picture = np.empty((200, 400, 3), np.uint8)
    for half, colour in ((picture[:100], (0, 158, 115)), (picture[100:], (213, 94, 0))):
        half[:] = np.linspace((255, 255, 255), colour, 400).astype(np.uint8)
    picture[50:52, 10:60] = (0, 114, 178)
    png = io.BytesIO()
    Image.fromarray(picture).save(png, "png")
    small = np.asarray(Image.open(io.BytesIO(figures._small(png, ["#0072B2", "#009E73"]))).convert("RGB")).astype(int)
    assert (small[50:52, 10:60] == (0, 114, 178)).all()
    assert np.abs(small - picture).max() < 12


def test_a_picture_is_told_by_the_first_sentence_of_its_caption():
    assert rendering._first("How far eq. 13's blocks are. More.") == "How far eq. 13's blocks are."
    assert rendering._first("One sentence.") == "One sentence."
