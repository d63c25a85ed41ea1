"""`layernorm geometry` and `layernorm invariance`: what they print, their pages, and the page of the documentation."""

import re

import pytest
import torch

from layernorm_lab import cli
from layernorm_lab.data import digits
from layernorm_lab.data.mnist import Cases, Images
from layernorm_lab.theory import report as theory
from layernorm_lab.theory.claims import CLAIMS as ALL
from layernorm_lab.theory.claims import SPECTRUM
from layernorm_lab.theory.measured import Data, Measured, Series
from support.repository import ROOT

DATA = Data(torch.rand(40, 64, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 10)
CLAIMS = {claim.name: claim for claim in ALL}


def a_finding(as_stated=True):
    measured = Measured(as_stated, "1 of 1", "A table", {"family": "", "norm": "", "off": ".1e"},
                            [("gaussian", "layer", 0.5)],
                            [Series("p", "layer", [1.0, 2.0], [1.0, 4.0])], "Note.")  # fmt: skip
    return theory.Finding(CLAIMS["gain"], measured)


@pytest.mark.long  # test_theory_claims.py measures every claim
def test_the_command_writes_its_page_and_says_all_claims(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(digits, "load_digits", digits_of(DATA))
    assert cli.main(["geometry", "--out", str(tmp_path / "new" / "theory")]) == 0
    said = capsys.readouterr().out
    assert said.endswith(
        "\nall 9 claims were measured as docs/theory.md says: 6 hold,\n"
        "3 are known not to hold as the paper states them\n"
    )
    first, header, *rows = said.splitlines()
    assert first.strip() == "The claims of section 5 and the appendix"
    assert header.strip() == "verdict claim, and what was measured"
    verdicts = [row[:13].strip() for row in rows[: rows.index("Table 1: relative change of the output".ljust(62))]]
    expected = ["holds" if claim.holds else "does not hold" for claim in CLAIMS.values()]
    assert [verdict for verdict in verdicts if verdict] == expected
    for text in (said, (tmp_path / "new" / "theory" / "report.md").read_text()):
        flat = " ".join(text.split()).replace("\\", "")
        assert re.findall(r"\d\. (\w+) \([^)]*\): does not hold as the paper states it; see (\S+)\. ", flat) == [
            (claim.name.capitalize(), f"docs/theory.md#{claim.name}") for claim in CLAIMS.values() if not claim.holds
        ]
    assert max(map(len, said.splitlines())) <= max(80, len(str(tmp_path)) + 40)
    assert "\x1b" not in said
    figures = {f"{name}.{kind}" for name in ("quadratic", "blocks", "curvature", "training", "gain")
               for kind in ("png", "svg")}  # fmt: skip
    written = {path.name for path in (tmp_path / "new" / "theory").iterdir()}
    assert written == {"index.html", "report.md", "claims.json"} | figures
    page = (tmp_path / "new" / "theory" / "report.md").read_text()
    for text in (said, page):
        flat = " ".join(text.split())
        for claim in CLAIMS.values():
            assert claim.statement in flat
            assert claim.condition in flat
    assert "Deviations" not in page
    assert "runs" not in page.split("## Environment")[0]


def digits_of(data):
    """The data as the experiments load them."""
    cases = Cases((data.images * 16).byte(), data.labels)
    return lambda: Images(cases, cases, cases, 16, {})


def test_the_command_fails_and_names_the_claim(monkeypatch, capsys):
    monkeypatch.setattr(theory, "measure_claims", lambda seed, spectrum: [a_finding(), a_finding(as_stated=False)])
    assert cli.main(["geometry"]) == 1
    text = capsys.readouterr()
    assert text.err == "layernorm: 1 of 2 claims were not measured as docs/theory.md says: gain\n"
    assert "Not measured as docs/theory.md says: gain." in text.out
    assert "NOT MEASURED AS DOCUMENTED" in text.out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--seed", "-1"], 2, "--seed must lie in 0..2147483647, got -1"),
        (["--seed", "1.5"], 2, "--seed must be a whole number, got '1.5'"),
        (["--out", "file"], 1, "cannot create the folder file: "),
        (["--out", "file/below"], 1, "cannot create the folder file/below: "),
        (["layer"], 2, "unexpected 'layer'; expected: layernorm geometry"),
    ],
)
def test_what_cannot_be_is_said_before_the_work(arguments, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(theory, "measure_claims", lambda *_: pytest.fail("measured"))
    assert cli.main(["geometry", *arguments]) == code
    assert message in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_one_line(tmp_path, monkeypatch, capsys):
    def refused(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(theory, "measure_claims", lambda seed, spectrum: [a_finding()])
    monkeypatch.setattr("tempfile.mkstemp", refused)
    assert cli.main(["geometry", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.err == f"layernorm: cannot write {tmp_path}/gain.png: Permission denied\n"
    assert a_finding().claim.statement.split()[0] in said.out, "what was measured is printed all the same"


def test_table_1_as_a_page(tmp_path, capsys):
    assert cli.main(["invariance", "--out", str(tmp_path / "a")]) == 0
    assert capsys.readouterr().out.endswith(f"page: {tmp_path}/a/index.html\n")
    assert "all 18 verdicts are the paper's" in (tmp_path / "a" / "report.md").read_text()
    assert cli.main(["invariance", "--eps", "1e-5", "--out", str(tmp_path / "b")]) == 1
    assert (tmp_path / "b" / "report.md").read_text().count("DIFFERS") == 9


def test_the_command_prints_table_1_and_fails_where_a_verdict_differs(capsys):
    assert cli.main(["invariance"]) == 0
    said = capsys.readouterr().out
    assert said.count("\n") == 1 + 30 + 3
    assert said.endswith("\nall 18 verdicts are the paper's\n")
    assert "DIFFERS" not in said
    assert max(map(len, said.splitlines())) <= 80
    assert cli.main(["invariance", "--eps", "1e-5"]) == 1
    text = capsys.readouterr()
    assert text.err == ("layernorm: 9 of 18 verdicts differ from the paper's; with an eps no re-scaling is exact\n")
    assert text.out.count("DIFFERS") == 9  # all 10 invariances but batch norm's to re-centring, which subtracts
    assert cli.main(["invariance", "--eps", "-1"]) == 2
    assert "--eps must be finite and at least 0, got -1.0" in capsys.readouterr().err


def test_the_docs_say_every_claim():
    """docs/theory.md states each claim with its verdict, condition and functions; its figures are there, and small."""
    text = " ".join((ROOT / "docs" / "theory.md").read_text(encoding="utf-8").split())
    for claim in (*ALL, SPECTRUM):
        assert f"**{'Holds' if claim.holds else 'Does not hold'}.** {claim.condition}" in text, claim.name
        assert claim.statement in text, claim.name
        assert all(f"`{name}`" in text for name in claim.functions), claim.name
        assert f"## {claim.name.capitalize()} " in text, "the anchor that the command names"
    for name in theory._AXES:
        assert f"results/theory/{name}.png" in text
        assert (ROOT / "docs" / "results" / "theory" / f"{name}.png").stat().st_size < 105_000
