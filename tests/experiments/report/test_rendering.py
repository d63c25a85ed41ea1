"""How a report looks: files that need no others, figures that depend on the runs alone, tables of 80 columns."""

import re

import pytest

from layernorm.experiments.report import rendering
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


def test_the_terminals_tables_fit_80_columns(folder, capsys):
    rendering.show(report_of(folder))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "Epochs to test error, to train NLL: until the mean over seeds is at the baseline's best." in text
    row = next(line for line in lines if "layer norm" in line)
    assert row.split() == ["128", "layer", "norm", "7.50", "(7.00-8.00)", "6.50", "(6.00-7.00)", "9.4e-03", "3", "4"]
