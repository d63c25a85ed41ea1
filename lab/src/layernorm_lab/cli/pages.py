"""The commands, and the parser of each: its help page and its options. Those of an experiment are made elsewhere, from
its configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from .. import catalogue
from .parser import Parser, table

GROUPS: dict[str, dict[str, str]] = {
    "experiments": {
        "run": "run an experiment, or resume it, and report on it",
        "report": "write the report on runs, finished or not",
        "data": "list and prepare data sets",
        "claims": "decide the paper's claims from the summaries of stored runs",
    },
    "trained networks": {
        "sample": "let the network of a run draw or write",
        **{name: summary for name, (_, summary) in catalogue.TOOLS.items()},
        "play": "show pages: Table 1 with sliders, a training, drawing networks",
    },
    "section 5 of the paper": {
        "invariance": "measure Table 1 of the paper",
        "geometry": "measure every claim of section 5",
        "stability": "measure how stable the hidden dynamics are under each norm",
    },
    "this machine": {"doctor": "show what is installed here, or check what every engine computes"},
}
"""Every command with a line for the help, in groups."""

SUMMARIES = {name: text for group in GROUPS.values() for name, text in group.items()}
"""Every command with its line."""

EXAMPLES = """\
examples:
  layernorm run digits           a first experiment: a few minutes, no download
  layernorm run mnist --help     the options of an experiment
  layernorm report runs/digits   its report again, also of unfinished runs
  layernorm geometry             the claims of section 5, measured
  layernorm play                 pages to move sliders and watch a training
  layernorm doctor --check       whether every engine computes correctly"""

OPTIONS = [
    ("--help", "show this page; after a command, the page of the command"),
    ("--version", "print the version"),
    ("--traceback", "show where an error came from (anywhere on the line)"),
]


def help_or_go_on(words: Sequence[str], print_page: Callable[[], None]) -> None:
    """Prints a help page and ends the command if there are no words, or the first one asks for help."""
    if not words or words[0] in ("-h", "--help"):
        print_page()
        raise SystemExit(0 if words else 2)


def print_commands() -> None:
    """Prints the help page of `layernorm` itself."""
    print("usage: layernorm COMMAND [OPTIONS]\n")
    print("Runs the experiments of the paper Layer Normalization and reports on them.\n")
    for heading, group in GROUPS.items():
        print(table(heading, [(name, text) for name, text in group.items()], len("invariance")), end="\n\n")
    print(table("options", OPTIONS, len("invariance")), end="\n\n")
    print(EXAMPLES)


def print_experiments() -> None:
    """Prints the help page of `layernorm run`."""
    print("usage: layernorm run EXPERIMENT [OPTIONS]\n")
    print("Runs an experiment, or resumes it, and writes its report.\n")
    print(table("experiments", [(name, summary) for name, (_, summary) in catalogue.EXPERIMENTS.items()]))
    print(
        "\nEvery experiment has the presets laptop, which is the default, smoke, which\n"
        "takes seconds, and paper, the paper's own protocol; swaps, which is not the\n"
        "paper's, has trial instead.\n\n"
        "examples:\n"
        "  layernorm run digits                  a few minutes, no download\n"
        "  layernorm run mnist --preset smoke    2 epochs on 2,000 cases\n"
        "  layernorm run mnist --help            the options of an experiment"
    )


def print_samplers() -> None:
    """Prints the help page of `layernorm sample`."""
    print("usage: layernorm sample EXPERIMENT RUN [OPTIONS]\n")
    print("Lets the network of a run draw or write, from the run's newest checkpoint.\n\nexamples:")
    print("  layernorm sample draw RUN                        digits")
    print("  layernorm sample handwriting RUN --text 'hello'  a line of handwriting")
    print("  layernorm sample handwriting --help              the options of an experiment")


def _report() -> Parser:
    parser = Parser(
        "report",
        ["Writes the report on runs, finished or not: a page with tables and figures."],
        "RUNS ...",
        ["layernorm report runs/digits", "layernorm report runs/a/mnist-layer-* --out report"],
    )
    parser.word("runs", "RUNS", "folders of runs, folders of these, summaries", nargs="+", type=Path)
    parser.option("--out", Path, "folder for the report (else report in RUNS, or beside several)")
    parser.option(
        "--summary", Path, "write a summary of the runs, from which 'layernorm claims' decides, to this file, *.json.gz"
    )
    return parser


def _claims() -> Parser:
    parser = Parser(
        "claims",
        [
            "Prints the paper's claims with their verdicts, decided from the summaries of stored runs, or writes "
            "a page in Markdown that says more. The summaries are in layernorm's checkout."
        ],
        examples=["layernorm claims", "layernorm claims --out docs/claims.md --details docs/results/verdicts.md"],
    )
    parser.option("--results", Path, "folder of the summaries", Path("docs/results"))
    parser.option("--out", Path, "write the page, a line a claim, to this file (else a table is printed)")
    parser.option("--details", Path, "write the page with all that is known of each claim to this file")
    return parser


def print_data() -> None:
    """Prints the help page of `layernorm data`."""
    print("usage: layernorm data list\n       layernorm data prepare NAME [OPTIONS]\n")
    print("Lists the data sets and where each is found here, or checks one and puts it into\nthe cache.\n\nexamples:")
    print("  layernorm data list\n  layernorm data prepare mnist")
    print("  layernorm data prepare mnist --source ~/Downloads/mnist")


def _data_list() -> Parser:
    return Parser("data list", ["Lists the data sets, and where they are found here."])


def _data_prepare() -> Parser:
    from ..data import catalogue as data

    needs = {
        source.name: f"{source.summary}; needs these, {source.form}: {', '.join(source.files)}"
        for source in data.SOURCES.values()
    }
    parser = Parser(
        "data prepare",
        ["Checks a data set and puts it into the cache."],
        "NAME",
        ["layernorm data prepare mnist", "layernorm data prepare mnist --source ~/Downloads/mnist"],
        [("data sets", [*data.EMBEDDED.items(), *needs.items()])],
    )
    parser.word("name", "NAME", "name of the data set")
    parser.option("--source", Path, "take the files from this folder instead of downloading them")
    return parser


def _invariance() -> Parser:
    parser = Parser(
        "invariance",
        [
            "Measures Table 1 of the paper: under which changes of weights and data each norm's output is invariant. "
            "Exits with 1 if a verdict differs from the paper's."
        ],
        examples=["layernorm invariance", "layernorm invariance --out table-1"],
    )
    parser.option("--eps", float, "added to the variances; 0 is exact", 0.0)
    return _with_page(parser)


def _geometry() -> Parser:
    parser = Parser(
        "geometry",
        [
            "Measures the claims of the paper's section 5 and appendix: invariances, Fisher matrices, curvature, "
            "gains, and the training of weights that grow. Takes about 15 seconds. Exits with 1 if a result differs "
            "from docs/theory.md. Three of the claims are known not to hold as the paper states them."
        ],
        examples=["layernorm geometry", "layernorm geometry --out theory --spectrum"],
    )
    parser.option("--seed", int, "seed of all random numbers", 0)
    parser.option("--spectrum", bool, "also measure the eigenvalues of a large network (15 to 30 s more)")
    return _with_page(parser)


def _stability() -> Parser:
    parser = Parser(
        "stability",
        [
            "Measures the hidden dynamics of a recurrent network: the largest Lyapunov exponent, in nats per step, and "
            "how a gradient grows or shrinks on its way back.",
            "Without RUNS it measures untrained networks. On scikit-learn's digits: with layer, RMS, weight and no "
            "norm, with weights of 0.1 to 30 times torch's, and with gains of 0.1 to 1. On digits and on noise: with "
            "several starts of all gains or of the recurrent gain, with torch's biases and with 0, beside what theory "
            "predicts. Takes three to four minutes.",
            "With RUNS it measures every recurrent layer of these runs, on their own inputs, untrained and as trained.",
        ],
        "[RUNS ...]",
        [
            "layernorm stability",
            "layernorm stability --out stability --seeds 0 1 2 3 4",
            "layernorm stability --network GRU --units 100",
            "layernorm stability runs/handwriting/*-s0 --out stability",
        ],
    )
    parser.word("runs", "RUNS", "folders of runs, or folders of these", nargs="*", type=Path)
    parser.option("--network", ("LSTM", "GRU", "RNN"), "the network that is measured (else LSTM)")
    parser.option("--units", int, "hidden size (else 400)")
    parser.option("--seeds", int, "seeds of the weights (else 0 1 2)", several=True)
    parser.option("--data", Path, "with RUNS: folder of the data set (else that of the training)")
    return _with_page(parser)


def _with_page(parser: Parser) -> Parser:
    parser.option("--out", Path, "write a page and its figures to this folder")
    return parser


def _play() -> Parser:
    parser = Parser(
        "play",
        [
            "Serves pages to a browser on this machine, until Ctrl-C. One page shows Table 1 of the paper for a small "
            "layer, whose weights and inputs you move with sliders. Another trains small networks, with layer norm and "
            "without, while you watch. For each RUN of handwriting or draw there is a page on which its network writes "
            "or draws."
        ],
        "[RUN ...]",
        ["layernorm play", "layernorm play runs/handwriting/handwriting-layer-lr0.001-s0"],
    )
    parser.word("runs", "RUN", "folder of a run", nargs="*", type=Path)
    parser.option("--port", int, "port on 127.0.0.1", 8080)
    return parser


def _doctor() -> Parser:
    parser = Parser(
        "doctor",
        ["Prints the versions and engines found here, and why one is missing."],
        examples=[
            "layernorm doctor",
            "layernorm doctor --check",
            "layernorm doctor --check > check.txt   the output, for a bug report",
        ],
    )
    parser.option(
        "--check", bool,
        "compare the results and gradients of every engine that runs here with the equations in float64, and its time "
        "with torch's. Takes some minutes. Exits with 1 if an engine is wrong",
    )  # fmt: skip
    return parser


PARSERS: dict[str, Callable[[], Parser]] = {
    "report": _report, "claims": _claims, "data list": _data_list, "data prepare": _data_prepare, "play": _play,
    "invariance": _invariance, "geometry": _geometry, "stability": _stability, "doctor": _doctor,
}  # fmt: skip
"""Makes the parser of each command whose options do not depend on an experiment."""
