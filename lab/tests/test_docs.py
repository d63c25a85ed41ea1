"""README and docs: links, anchors, code blocks, commands, API pages, the notebook and the life of a call.

`make docs` builds the site with warnings as errors; these tests need no generator.
"""

import functools
import inspect
import json
import re
import runpy
import shlex
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
import torch
from markdown_it import MarkdownIt
from markdown_it.token import Token

import layernorm as ln
from layernorm.formula import GATES, PRESETS
from layernorm_lab import catalogue, cli
from support.repository import ROOT

DOCS = ROOT / "docs"
NOTEBOOK = DOCS / "notebook.ipynb"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "examples").glob("*.md"), *DOCS.rglob("*.md")])
WRITTEN = [page for page in PAGES if DOCS / "results" not in page.parents]
"""Those that a person wrote: the others are reports, whose commands are of their time."""

UNRAISED = (
    "ignore:.isinstance.treespec:FutureWarning",  # torch.export's own
    "ignore:`torch.jit",  # TorchScript is deprecated
)


@functools.cache
def tokens(page: Path) -> list[Token]:
    """A page's blocks, and the parts of its lines."""
    blocks = MarkdownIt("commonmark").enable("table").parse(text_of(page))
    return [part for block in blocks for part in (block, *(block.children or []))]


def text_of(page: Path) -> str:
    """A page's Markdown; of the notebook that of its cells."""
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    return "\n\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")


@functools.cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    blocks = MarkdownIt("commonmark").enable("table").parse(text_of(page))
    headings = [blocks[i + 1] for i, block in enumerate(blocks) if block.type == "heading_open"]
    texts = ["".join(part.content for part in heading.children or []) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


def blocks(page: Path, kind: str) -> list[Token]:
    """A page's fenced blocks of one language."""
    return [token for token in tokens(page) if token.type == "fence" and token.info == kind]


@pytest.mark.parametrize("page", [*PAGES, NOTEBOOK], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_anchor_leads_somewhere(page):
    found = [token.attrGet("href") or token.attrGet("src") for token in tokens(page)]
    for link in [str(link) for link in found if link]:
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.is_file(), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.filterwarnings(*UNRAISED)
@pytest.mark.parametrize(
    "page",
    [page for page in WRITTEN if blocks(page, "python") and page.name != "deploy.md"],  # test_deploy.py runs that
    ids=lambda page: page.name,
)
def test_every_python_block_runs(page, tmp_path, monkeypatch):
    """In their order, in one namespace."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SB3_LOGDIR", str(tmp_path))  # not among all temporary files
    # Whether a graph is whole is seen without compiling it to machine code, which takes longer than all else here.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    torch.manual_seed(0)
    names: dict = {"__name__": "page"}
    for block in blocks(page, "python"):
        exec(compile(block.content, str(page), "exec"), names)


@pytest.mark.filterwarnings(*UNRAISED)
def test_every_cell_of_the_notebook_runs(tmp_path, monkeypatch, capsys):
    """And shows what its text says: after `convert` a trained network is worse than guessing, and learns again."""
    monkeypatch.chdir(tmp_path)
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in code), "make docs makes the outputs"
    script = tmp_path / "notebook.py"  # torch.jit.script reads the model's source from a file
    script.write_text("\n".join("".join(cell["source"]) for cell in code), encoding="utf-8")
    runpy.run_path(str(script), run_name="notebook")
    said = capsys.readouterr().out
    start, converted, plain, jumped, again, matched, matched_again = map(float, re.findall(r"([\d.]+) nats", said))
    assert "nothing starts badly" in said
    assert converted < again < plain < 0.5 * start
    assert jumped > start
    assert matched < jumped
    assert matched_again < again


def commands(page: Path) -> list[list[str]]:
    """The lines of a page's shell blocks."""
    lines = [line for block in blocks(page, "sh") for line in block.content.splitlines()]
    return [shlex.split(line, comments=True) for line in lines]


GALLERY = DOCS / "results" / "README.md"


@pytest.mark.parametrize(
    "page", [p for p in [*WRITTEN, GALLERY] if commands(p)], ids=lambda p: str(p.relative_to(ROOT))
)
def test_every_command_exists(page, capsys):
    """Targets of make, files that Python runs, `layernorm`'s commands and options, the package's extras."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    projects = "".join((ROOT / path / "pyproject.toml").read_text(encoding="utf-8") for path in (".", "lab"))
    extras = set(re.findall(r"^(\w+) = \[", projects, re.MULTILINE))
    for program, *arguments in commands(page):
        if program == "torchrun":
            program, arguments = "layernorm", arguments[arguments.index("layernorm_lab") + 1 :]
        if program == "make":
            assert arguments[0] in targets, arguments
        elif program == "python":
            assert (ROOT / arguments[0]).is_file() or arguments[0] == "-m", arguments
        elif program == "pip":
            assert arguments[0] == "install", arguments
            assert set(re.findall(r"\[(\w+)\]", arguments[1])) <= extras, arguments
            small = ["torch", "--index-url", "https://download.pytorch.org/whl/cpu"]
            assert arguments[1].startswith(".") or arguments[1:] == small, "the package is not published"
        elif program == "layernorm":
            own = 2 if arguments[0] in ("run", "sample", "data") else 1  # an experiment has options of its own
            with pytest.raises(SystemExit) as left:
                raise SystemExit(cli.main([*arguments[:own], "--help"]))
            assert left.value.code == 0, arguments
            text = capsys.readouterr().out
            assert all(option in text for option in arguments[own:] if option.startswith("--")), arguments
        else:
            pytest.fail(f"{program}: no command that this test knows")


@functools.cache
def benchmark_commands() -> dict[str, list[list[str]]]:
    """By script, the arguments that pages, docstrings and its own examples give it. The log is not read: it is old."""
    lines = []
    for page in [page for page in PAGES if DOCS / "log" not in page.parents]:
        code = [token.content for token in tokens(page) if token.type in ("code_inline", "fence")]
        lines += [line for text in code for line in text.splitlines()]
    for file in [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "lab" / "src").rglob("*.py"),
        *(ROOT / "benchmarks").glob("*.py"),
    ]:
        lines += re.findall(r"(?:``|^ {4}python )(benchmarks/.*?)(?:``|$)", text_of(file), re.MULTILINE)
    found: dict[str, list[list[str]]] = {}
    for line in lines:
        if named := re.match(r"(?:python )?(benchmarks/\w+\.py)(.*)", line):
            found.setdefault(named[1], []).append(shlex.split(named[2]))
    return found


@pytest.mark.parametrize("script", sorted(benchmark_commands()))
def test_every_benchmark_that_is_named_exists_with_its_options(script, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert f"python {script}" in text, "no example"
    for arguments in benchmark_commands()[script]:
        words = [argument for argument in arguments if argument.startswith("--")] + arguments[:1]
        assert [word for word in words if word not in text] == [], arguments


def test_no_benchmark_hides_a_package():
    """A script's folder comes first in the search: `accelerate.py` hid the package that the experiments import."""
    names = [path.stem for path in (ROOT / "benchmarks").glob("*.py")]
    assert "training_step" in names
    assert [name for name in names if PathFinder.find_spec(name) is not None] == []


def test_every_page_is_in_a_table_of_contents():
    """The site is built with warnings as errors, and a page in no toctree is one."""
    listed = {DOCS / "index"}
    for page in [*DOCS.rglob("*.md"), *DOCS.rglob("*.rst")]:
        text = page.read_text(encoding="utf-8")
        trees = re.findall(r"```\{toctree\}\n(.*?)```", text, re.S) + re.findall(
            r"\.\. toctree::\n((?: .*\n|\n)*)", text
        )
        for line in [line.strip() for tree in trees for line in tree.splitlines()]:
            if line and not line.startswith(":"):
                listed |= {
                    found.with_suffix("")
                    for kind in ("md", "rst", "ipynb")
                    for found in page.parent.glob(f"{line}.{kind}")
                }
    pages = {page.with_suffix("") for kind in ("md", "rst", "ipynb") for page in DOCS.rglob(f"*.{kind}")}
    assert sorted(str(page.relative_to(DOCS)) for page in pages - listed) == []


def test_the_readme_fits_two_screens():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 100
    assert max(map(len, lines)) <= 120


def test_the_readme_says_what_the_claims_say():
    """`layernorm claims` writes the counts on its page (test_paper_claims.py); README repeats them."""
    page = " ".join((DOCS / "claims.md").read_text(encoding="utf-8").split())
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    pattern = r"Without them there are (\d+) claims: ahead (\d+), behind (\d+), equal (\d+), undecided (\d+)\."
    counts = re.search(pattern, page).groups()
    sentence = (
        "The paper makes {} claims that one norm is better than another. In our trials the norm that it prefers was "
        "better in {}, worse in {}, equal in {}, and in {} there were too few runs to tell."
    )
    assert sentence.format(*counts) in readme


def test_the_api_pages_have_every_public_name():
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.rst"))
    described = set(re.findall(r"auto(?:class|function):: (?:[\w.]+\.)?(\w+)", pages))
    public = {name for name in dir(ln) if callable(getattr(ln, name))}
    functions = {name for name, item in vars(ln.functional).items() if inspect.isfunction(item) and item.__doc__}
    documented = {name for name in functions if "Returns:" in inspect.getdoc(getattr(ln.functional, name))}
    assert public <= described
    assert documented & {"layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm", "lstm", "gru", "rnn"} <= described
    assert {"from_state", "to_state", "shapes"} <= described


def test_the_table_of_the_theory_has_measured_numbers():
    """Each number of its last column is in what `layernorm geometry` found, or in the sections below, which
    lab/tests/theory holds."""
    page = (DOCS / "theory.md").read_text(encoding="utf-8")
    table, below = page.split("`layernorm geometry` measures", 1)
    numbers = [
        re.findall(r"-?\d[\d.]*(?:e-\d+)?", row.split("|")[3]) for row in table.splitlines() if row.count("|") == 4
    ]
    claims = json.loads((DOCS / "results" / "theory" / "claims.json").read_text(encoding="utf-8"))["claims"]
    known = " ".join(claim["found"] for claim in claims) + below
    assert sum(map(len, numbers)) > 15
    assert [number for row in numbers for number in row if number not in known] == []


def test_every_preset_has_a_row_in_its_table():
    page = (DOCS / "formulas.md").read_text(encoding="utf-8")
    table = page.split("| preset | networks |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([\w, ]+) \|", table, re.MULTILINE)
    named = {(name, of) for name, networks in rows for of in (GATES if networks == "all" else networks.split(", "))}
    assert named == {(name, of) for name, networks in PRESETS.items() for of in networks}


def test_the_places_where_things_go_exist():
    page, package = (DOCS / "where-things-go.md").read_text(encoding="utf-8"), Path(ln.__file__).parent
    named = re.findall(r"`([\w/]+/[\w.]*(?:py|h|cpp|md|/))`", page.replace("NAME", "mnist"))
    assert len(named) > 30
    roots = (package, Path(catalogue.__file__).parent, ROOT)
    missing = [name for name in named if not any((root / name).exists() for root in roots)]
    assert missing == []
    rooms = re.findall(r"^ {2,4}(\w+)/ ", page, re.MULTILINE)
    folders = [item.name for item in package.iterdir() if item.is_dir() and item.name != "__pycache__"]
    assert sorted(set(folders) - set(rooms)) == []


STOP = re.compile(r"^\| (\d+) \| `([\w/.]+)` \| `([\w.]+)` \|", re.MULTILINE)


def test_a_call_lives_as_its_page_says():
    """A call with its gradient passes the functions of docs/life.md in this order; the kernels' names are theirs."""
    page = (DOCS / "life.md").read_text(encoding="utf-8")
    stops = [(file, name) for _, file, name in STOP.findall(page)]
    assert len(stops) == 21
    package, drawing = Path(ln.__file__).parent, (DOCS / "life.svg").read_text(encoding="utf-8")
    for number, (file, name) in enumerate(stops, 1):
        assert f">{number} {name}<" in drawing, name
        assert f">{file}<" in drawing, file
        if not file.endswith(".py"):
            assert name in (package / file).read_text(encoding="utf-8"), file
    for file in re.findall(r"`([\w/]+\.(?:py|h|cpp))`", page):
        assert (package / file).is_file() or (ROOT / file).is_file(), file
    if "native" not in ln.backends.available():
        pytest.skip("without the CPU engine the call ends in the reference engine")
    assert called_in_order(stops, package) == [stop for stop in stops if stop[0].endswith(".py")]


def test_as_many_functions_are_on_the_stack_as_the_page_says():
    if "native" not in ln.backends.available():
        pytest.skip("without the CPU engine the call ends in the reference engine")
    page = (DOCS / "life.md").read_text(encoding="utf-8")
    said = int(re.search(r"(\d+)\s+Python\s+functions\s+are\s+on\s+the\s+stack", page)[1])
    lstm, x = ln.LSTM(28, 16), torch.randn(5, 3, 28)
    here, stacks, before = sys._getframe(), [], sys.getprofile()

    def note(frame, event, _):
        if event == "call" and (Path(frame.f_code.co_filename).name, frame.f_code.co_name) == ("_plan.py", "run"):
            stacks.append([])
            while frame is not here:
                stacks[-1].append(frame.f_code.co_name)
                frame = frame.f_back

    with torch.no_grad():
        lstm(x)
        sys.setprofile(note)
        try:
            lstm(x)
        finally:
            sys.setprofile(before)
    (stack,) = stacks
    assert len(stack) == said, stack


def called_in_order(stops, package):
    """Those of the stops that a call and its gradient pass, each after the one before it."""
    left, passed = [stop for stop in stops if stop[0].endswith(".py")], []

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and left and code.co_filename.startswith(str(package)):
            file, name = left[0]
            if code.co_filename == str(package / file) and code.co_name == name.rpartition(".")[2]:
                passed.append(left.pop(0))

    from layernorm.engines.native import _recurrent_plan

    lstm, x = ln.LSTM(28, 16), torch.randn(5, 3, 28)
    ln.backends.choose_for.cache_clear()  # the first call of its kind
    _recurrent_plan.forward_plan.cache_clear()
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        output, _ = lstm(x)
        output.sum().backward()
    finally:
        sys.setprofile(before)
    return passed
