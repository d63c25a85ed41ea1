"""How a report looks: files that need no others, figures that depend on the runs alone, tables of 80 columns."""

import re
from dataclasses import replace

import pytest

from layernorm.experiments.report import rendering
from layernorm.experiments.report.page import Table
from support.runs import report_of, write_sweep


@pytest.fixture
def folder(tmp_path):
    return write_sweep(tmp_path)


def test_the_files(folder, tmp_path):
    out = tmp_path / "report"
    page = rendering.write(report_of(folder), out)
    assert (out / "figure6.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "figure6.svg").read_bytes().startswith(b"<?xml")
    text = page.read_text()
    # self-contained: nothing is fetched
    assert not re.search(r'(src|href|srcset)="(?!data:)', text)
    assert "url(" not in text
    assert "A &lt;fast&gt; one" in text
    markdown = (out / "report.md").read_text()
    for part in ("7.50 (7.00-8.00)", "layernorm run digits", "as the paper claims", "[stand-in]", "2.13.0"):
        assert part in text
        assert part in markdown
    assert "](figure6.png)" in markdown


def test_the_same_runs_give_the_same_figure(folder, tmp_path):
    for name in ("a", "b"):
        rendering.write(report_of(folder), tmp_path / name)
    assert (tmp_path / "a" / "figure6.svg").read_bytes() == (tmp_path / "b" / "figure6.svg").read_bytes()


NAMED = "[red]x[/red] :smile: *a* <b> [c](d) `e` |\x1b[31m\u202e\udcff\n# f"


def test_what_a_user_named_is_shown_as_it_is(folder, tmp_path, capsys):
    """Its signs are no markup's, and what a terminal would obey is an escape, in the terminal, Markdown and page."""
    table = Table(NAMED, ["a", NAMED], [["1", NAMED]], NAMED)
    report = replace(report_of(folder), title=NAMED, claim=NAMED, status=[NAMED], findings=[NAMED], tables=[table])
    rendering.show(report)
    said = capsys.readouterr().out
    assert "[red]x[/red] :smile: *a* <b> [c](d) `e` |" in " ".join(said.split())
    rendering.write(report, tmp_path / "report")
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
    rendering.show(report_of(folder))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "Epochs to test error, to train NLL: until the mean over seeds is at the baseline's best." in text
    row = next(line for line in lines if "layer norm" in line)
    assert row.split() == ["128", "layer", "norm", "7.50", "(7.00-8.00)", "6.50", "(6.00-7.00)", "9.4e-03", "3", "4"]
