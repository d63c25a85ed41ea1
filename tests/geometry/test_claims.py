"""The claims of section 5: what is measured is what independent sums expect, and their renderings say all of them."""

import re

import pytest
import torch

from layernorm import cli
from layernorm import geometry as geo
from layernorm.experiments.data import digits
from layernorm.experiments.data.mnist import Cases, Images
from layernorm.experiments.theory import report as theory
from support.repository import ROOT

DATA = geo.Data(torch.rand(40, 64, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 10)
CLAIMS = {claim.name: claim for claim in geo.CLAIMS}


@pytest.fixture(scope="module")
def found():
    return {name: claim.measure(0, DATA) for name, claim in CLAIMS.items()}


def column(measured, name):
    """A column by the first two of its row."""
    at = list(measured.columns).index(name)
    return {row[:2]: row[at] for row in measured.rows}


def test_every_claim_is_as_stated_and_its_table_is_whole(found):
    assert all(measured.as_stated for measured in found.values())
    assert {name for name, claim in CLAIMS.items() if not claim.holds} == {"blocks", "curvature", "prediction"}
    for claim in (*geo.CLAIMS, geo.SPECTRUM):
        assert all(hasattr(geo, name) for name in claim.functions)
    for measured in found.values():
        assert {len(row) for row in measured.rows} == {len(measured.columns)}


def test_the_same_seed_gives_the_same_numbers(found):
    for name in ("quadratic", "fisher", "training"):
        assert CLAIMS[name].measure(0, DATA).rows == found[name].rows
        assert CLAIMS[name].measure(1, DATA).rows != found[name].rows


def test_kl_goes_to_its_quadratic_form_with_order_one(found):
    orders = column(found["quadratic"], "order")
    assert orders.pop(("gaussian", "none")) == "exact"
    assert len(orders) == 19
    assert all(order == pytest.approx(1, abs=0.05) for order in orders.values())
    assert all(1e-7 < off < 1e-3 for key, off in column(found["quadratic"], "1e-04").items() if key in orders)


def test_the_gap_of_eq_13_is_the_shared_statistics(found):
    exponents = column(found["blocks"], "exponent")
    for (family, norm), exponent in exponents.items():
        if norm in ("layer", "rms"):
            assert -0.7 < exponent < -0.2, (family, norm)
        else:
            assert exponent == "exact"


def test_in_the_spectral_norm_the_gap_of_eq_13_stays(found):
    """Under the Gaussian's layer norm, where the Frobenius norm's falls by a half with each column."""
    frobenius, spectral = (
        [column(found["blocks"], f"{name}{H}")["gaussian", "layer"] for H in (4, 16, 64)]
        for name in ("H = ", "2-norm, ")
    )
    assert frobenius[2] < 0.4 * frobenius[0]
    assert min(spectral) > 0.25
    assert "of the largest eigenvalue at H = 64" in found["blocks"].found


def test_the_cross_blocks_of_independent_outputs_are_0(found):
    assert "the paper's, are 0e+00 of the matrix under batch and weight norm" in found["curvature"].found


def test_curvature_falls_as_the_sigmas_say(found):
    own, cross = (column(found["curvature"], f"exp. {block}") for block in ("F_ii", "F_ij"))
    assert all(value == pytest.approx(-2, abs=1e-9) for value in own.values())
    expected = {("w_i", "batch"): -1, ("w_i", "weight"): -1, ("W", "layer"): -2, ("W", "rms"): -2}
    assert cross == pytest.approx(expected, abs=1e-9)


def test_training_turns_long_weights_less(found):
    """Also with other data than the digits: it is the norm's doing."""
    angle = column(found["training"], "first angle")
    for norm in ("batch", "weight", "layer", "rms"):
        assert angle["1", norm] / angle["8", norm] == pytest.approx(64, rel=0.05)  # the arc tangent's third order
    assert angle["1", "none"] / angle["8", "none"] < 10
    by_adam = column(found["training"], "Adam's")
    for norm in ("batch", "weight", "layer", "rms", "none"):
        assert by_adam["1", norm] / by_adam["8", norm] == pytest.approx(8, rel=0.1), "Adam's step has one length"
    grew = column(found["training"], "grew with")
    assert {said for (_, norm), said in grew.items() if norm != "none"} == {"every step"}


def test_gains_under_weight_norm_are_the_standard_models(found):
    stated = {"batch": 0, "layer": 0, "rms": 0, "weight": 2, "none": 2}
    exponents = {key[1]: value for key, value in column(found["gain"], "exponent").items()}
    assert exponents == pytest.approx(stated, abs=1e-9)
    for scale in ("1e-3", "1", "1e3"):
        values = {key[1]: value for key, value in column(found["gain"], scale).items()}
        assert values["weight"] == pytest.approx(values["none"], rel=1e-12)


def test_eq_32_by_hand(found):
    """Four Gaussian outputs, a step of 1 in each gain, z of mean square 1: 4/2 both ways."""
    ratio = column(found["prediction"], "ratio")
    assert column(found["prediction"], "ds^2")["gaussian", "batch"] == pytest.approx(2, rel=1e-12)
    assert ratio["gaussian", "batch"] == pytest.approx(1, rel=1e-12)
    assert all(abs(value - 1) > 0.01 for key, value in ratio.items() if key[0] != "gaussian")
    assert ratio["categorical", "batch"] == 0  # the same step in every gain
    low, high = map(float, re.search(r"random steps ([\d.]+) to ([\d.]+)", found["prediction"].found).groups())
    assert 0.5 < low < high < 3  # no other direction goes to 0


def test_power_iteration_is_the_dense_matrixs(found):
    assert max(column(found["deep"], "off").values()) < 1e-6
    assert max(column(found["deep"], "blocks").values()) < 1e-12


def a_finding(as_stated=True):
    measured = geo.Measured(as_stated, "1 of 1", "A table", {"family": "", "norm": "", "off": ".1e"},
                            [("gaussian", "layer", 0.5)],
                            [geo.Series("p", "layer", [1.0, 2.0], [1.0, 4.0])], "Note.")  # fmt: skip
    return theory.Finding(CLAIMS["gain"], measured)


def test_the_command_writes_its_page_and_says_all_claims(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(digits, "load_digits", digits_of(DATA))
    assert cli.main(["geometry", "--out", str(tmp_path / "new" / "theory")]) == 0
    said = capsys.readouterr().out
    assert said.endswith(f"\nall {len(CLAIMS)} claims were measured as stated\n")
    first, header, *rows = said.splitlines()
    assert first.strip() == "The claims of section 5 and the appendix"
    assert header.strip() == "verdict claim, and what was measured"
    verdicts = [row[:13].strip() for row in rows[: rows.index("Table 1: relative change of the output".ljust(62))]]
    expected = ["holds" if claim.holds else "does not hold" for claim in CLAIMS.values()]
    assert [verdict for verdict in verdicts if verdict] == expected
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
    assert "runs" not in page


def digits_of(data):
    """The data as the experiments load them."""
    cases = Cases((data.images * 16).byte(), data.labels)
    return lambda: Images(cases, cases, cases, 16, {})


def test_the_command_fails_and_names_the_claim(monkeypatch, capsys):
    monkeypatch.setattr(theory, "measure_claims", lambda seed, spectrum: [a_finding(), a_finding(as_stated=False)])
    assert cli.main(["geometry"]) == 1
    text = capsys.readouterr()
    assert text.err == "layernorm: 1 of 2 claims were not measured as stated: gain\n"
    assert "Not measured as stated: gain." in text.out
    assert "NOT MEASURED AS STATED" in text.out


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
    assert capsys.readouterr().err == f"layernorm: cannot write {tmp_path}/gain.png: Permission denied\n"


def test_table_1_as_a_page(tmp_path, capsys):
    assert cli.main(["invariance", "--out", str(tmp_path / "a")]) == 0
    assert capsys.readouterr().out.endswith(f"page: {tmp_path}/a/index.html\n")
    assert "all 18 verdicts are the paper's" in (tmp_path / "a" / "report.md").read_text()
    assert cli.main(["invariance", "--eps", "1e-5", "--out", str(tmp_path / "b")]) == 1
    assert (tmp_path / "b" / "report.md").read_text().count("DIFFERS") == 9


def test_the_docs_say_every_claim():
    """docs/theory.md states each claim with its verdict, condition and functions; its figures are there, and small."""
    text = " ".join((ROOT / "docs" / "theory.md").read_text(encoding="utf-8").split())
    for claim in (*geo.CLAIMS, geo.SPECTRUM):
        assert f"**{'Holds' if claim.holds else 'Does not hold'}.** {claim.condition}" in text, claim.name
        assert claim.statement in text, claim.name
        assert all(f"`{name}`" in text for name in claim.functions), claim.name
    for name in theory._AXES:
        assert f"results/theory/{name}.png" in text
        assert (ROOT / "docs" / "results" / "theory" / f"{name}.png").stat().st_size < 105_000


def test_a_layers_eigenvalue_as_spectrum_finds_it():
    """The claim's own network is large; here its product on one layer of a small one, against the dense matrix."""
    g = torch.Generator().manual_seed(0)
    W = {k: torch.randn(4, 4, generator=g, dtype=torch.float64) for k in "ab"}
    X = torch.randn(9, 4, generator=g, dtype=torch.float64)

    def model(p, x):
        return torch.relu(geo.normalized(p["a"], x, "layer")) @ W["b"].T

    own = {"a": W["a"]}
    found = geo.power_iteration(lambda v: geo.fisher_vector_product(model, own, v, X, "categorical"), own, generator=g)
    expected = torch.linalg.eigvalsh(geo.fisher(model, own, X, "categorical"))[-1]
    assert found.value == pytest.approx(float(expected), rel=1e-6)
