"""The command `layernorm`: run an experiment, draw its report, prepare data, look at the installation."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .experiments.protocol import Experiment
    from .experiments.report.page import Report

_ABOUT = "Runs the experiments of the paper Layer Normalization and reports on them."

_EPILOGUE = """\
examples:
  layernorm run digits           the first experiment: two minutes, no download
  layernorm run mnist            the same on MNIST
  layernorm run mnist --help     all options of an experiment
  layernorm report runs/digits   its report again, also of unfinished runs
  layernorm sample handwriting RUN --text "hello"   its network writes this text
  layernorm search RUN "a dog runs"   images that an order embedding finds
  layernorm answer RUN FOLDER    a reader's answers to your questions
  layernorm encode RUN sentences.txt   sentences as vectors, by skip-thoughts
  layernorm invariance           Table 1 of the paper, measured
  layernorm geometry             every claim of its section 5, measured
  layernorm stability            the stability of the hidden dynamics, by norm
  layernorm play                 Table 1 with sliders and a training, in your browser
  layernorm doctor               what is installed, found and missing here
  layernorm doctor --check       whether every engine computes correctly
"""


_SEEDS = 2**31  # more than anyone needs, and a generator takes four times each


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command `layernorm` with these arguments, or with those of the process. Returns the exit code: 0 done, 1
    failed, 2 wrong usage, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--traceback" in words
    words = [word for word in words if word != "--traceback"]
    with contextlib.suppress(AttributeError):  # results have signs that an old locale cannot print
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    code = _guarded(words, debug)
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python would flush once more at its end
        if not code and not isinstance(error, BrokenPipeError):
            _say(f"cannot write to standard output: {error.strerror}")
        return code or 1
    return code


def _guarded(words: list[str], debug: bool) -> int:
    """Runs a command. Every error becomes an exit code and one line, or one line for each failed run."""
    from .experiments.errors import Failures, Interrupted, UsageError, error_line

    try:
        _dispatch(words)
        return 0
    except SystemExit as end:  # argparse or tyro has printed what is wrong
        return end.code if isinstance(end.code, int) else 2
    except (Interrupted, KeyboardInterrupt):
        _say("interrupted; the same command resumes")
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `layernorm ... | head`
        return 1
    except Exception as error:
        if debug:
            raise
        for line in error.lines if isinstance(error, Failures) else [error_line(error)]:
            _say(line)
        return 2 if isinstance(error, UsageError) else 1


def _say(message: str) -> None:
    from .experiments.errors import printable, wrapped

    text = f"layernorm: {printable(message)}"
    if sys.stderr.isatty():  # in a file or a pipe a message stays one line
        text = wrapped(text, 2, shutil.get_terminal_size().columns)
    print(text, file=sys.stderr)


def _dispatch(words: list[str]) -> None:
    from .experiments import catalogue
    from .experiments.errors import unknown

    commands: dict[str, Callable[[argparse.Namespace], None]] = {
        "report": _report, "data": _data, "invariance": _invariance, "geometry": _geometry,
        "stability": _stability, "doctor": _doctor, "claims": _claims, "play": _play,
    }  # fmt: skip
    by_experiment: dict[str, Callable[[list[str]], None]] = {"run": _run, "sample": _sample}
    by_experiment |= {name: functools.partial(_ask, name) for name in catalogue.TOOLS}
    names = (*by_experiment, *commands)
    if words and not words[0].startswith("-") and words[0] not in names:
        raise unknown("command", words[0], names)
    parser = _parser()
    if not words:
        parser.print_help()
        raise SystemExit(2)
    if words[0] in by_experiment:  # their options depend on the experiment
        by_experiment[words[0]](words[1:])
        return
    parsed = parser.parse_args(words)
    commands[parsed.command](parsed)


def _parser() -> argparse.ArgumentParser:
    from .experiments import catalogue

    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("layernorm", description=_ABOUT, epilog=_EPILOGUE, formatter_class=layout)
    parser.add_argument("--version", action="version", version=_version())
    parser.add_argument("--traceback", action="store_true", help="show where an error came from (anywhere on the line)")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("run", help="run an experiment, or resume it, and report on it", add_help=False)
    commands.add_parser("sample", help="let the network of a run draw or write", add_help=False)
    for name, (_, summary) in catalogue.TOOLS.items():
        commands.add_parser(name, help=summary, add_help=False)
    report = commands.add_parser(
        "report", help="write the report on runs, finished or not", formatter_class=layout,
        description="Writes the report on runs, finished or not: a page with tables and figures.",
        epilog="examples:\n  layernorm report runs/digits\n  layernorm report runs/a/mnist-layer-* --out report\n",
    )  # fmt: skip
    report.add_argument(
        "runs", nargs="+", type=Path, metavar="RUNS", help="folders of runs, folders of these, summaries"
    )
    report.add_argument("--out", type=Path, metavar="DIR", help="folder for the report (default: RUNS/report)")
    report.add_argument(
        "--summary", type=Path, metavar="FILE",
        help="write a summary of the runs, from which 'layernorm claims' decides, as JSON",
    )  # fmt: skip
    claims = commands.add_parser(
        "claims", help="decide the paper's claims by the summaries of our runs", formatter_class=layout,
        description="Writes a page with the paper's claims and their verdicts, which are decided by\n"
        "the summaries of our runs.",
        epilog="example:\n  layernorm claims --results docs/results --out docs/claims.md\n",
    )  # fmt: skip
    claims.add_argument(
        "--results", type=Path, default=Path("docs/results"), metavar="DIR",
        help="folder of the summaries (default: docs/results)",
    )  # fmt: skip
    claims.add_argument("--out", type=Path, metavar="FILE", help="file for the page (default: print it)")
    data = commands.add_parser(
        "data", help="list and prepare data sets", formatter_class=layout,
        epilog="examples:\n  layernorm data list\n  layernorm data prepare mnist\n"
        "  layernorm data prepare mnist --source ~/Downloads/mnist\n",
    )  # fmt: skip
    actions = data.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = "list the data sets, and where they are found on this machine"
    actions.add_parser("list", help=listing, description="Lists the data sets, and where they are found here.")
    prepare = actions.add_parser(
        "prepare", help="check a data set and put it into the cache", formatter_class=layout,
        description="Checks a data set and puts it into the cache.", epilog=_data_sets(),
    )  # fmt: skip
    prepare.add_argument("name", metavar="NAME", help="name of the data set")
    prepare.add_argument("--source", type=Path, metavar="DIR", help="take the files from here instead of downloading")
    table = commands.add_parser(
        "invariance", help="measure Table 1 of the paper",
        description="Measures Table 1 of the paper: under which changes of weights and data each norm's "
        "output is invariant. Exits with 1 if a verdict differs from the paper's.",
    )  # fmt: skip
    table.add_argument("--eps", type=float, default=0.0, help="added to the variances (default: 0, which is exact)")
    theory = commands.add_parser(
        "geometry", help="measure every claim of section 5",
        formatter_class=layout,
        description="Measures the claims of the paper's section 5 and appendix: invariances, Fisher\n"
        "matrices, curvature, gains, and the training of weights that grow. Takes about\n"
        "15 seconds. Exits with 1 if a claim is not measured as stated.",
        epilog="examples:\n  layernorm geometry\n  layernorm geometry --out theory --spectrum\n",
    )  # fmt: skip
    theory.add_argument("--seed", type=int, default=0, metavar="N", help="seed of all random numbers (default: 0)")
    theory.add_argument(
        "--spectrum", action="store_true", help="also measure the eigenvalues of a large network (15 s more)"
    )
    dynamics = commands.add_parser(
        "stability", help="measure how stable the hidden dynamics are under each norm", formatter_class=layout,
        description="Measures the hidden dynamics of a recurrent network: the largest Lyapunov\n"
        "exponent, in nats per step, and how a gradient grows or shrinks on its way\n"
        "back.\n\n"
        "Without RUNS it measures untrained networks on scikit-learn's digits: with\n"
        "layer, RMS, weight and no norm, with weights of 0.1 to 30 times torch's, and\n"
        "with gains of 0.1 to 1. Takes about 2 minutes.\n\n"
        "With RUNS it measures every recurrent layer of these runs, on their own inputs,\n"
        "untrained and as trained.",
        epilog="examples:\n  layernorm stability\n  layernorm stability --out stability --seeds 0 1 2 3 4\n"
        "  layernorm stability --network GRU --units 100\n"
        "  layernorm stability runs/handwriting/*-s0 --out stability\n",
    )  # fmt: skip
    dynamics.add_argument("runs", nargs="*", type=Path, metavar="RUNS", help="folders of runs, or folders of these")
    dynamics.add_argument("--network", metavar="NAME", help="LSTM, GRU or RNN (default: LSTM)")
    dynamics.add_argument("--units", type=int, metavar="N", help="number of units (default: 400)")
    dynamics.add_argument("--seeds", type=int, nargs="+", metavar="N", help="seeds of the weights (default: 0 1 2)")
    dynamics.add_argument(
        "--data", type=Path, metavar="DIR", help="with RUNS: folder of the data set (default: that of the training)"
    )
    for command in (table, theory, dynamics):
        command.add_argument("--out", type=Path, metavar="DIR", help="write a page and its figures to this folder")
    play = commands.add_parser(
        "play", help="show pages in your browser: Table 1 with sliders, a training, networks that write and draw",
        formatter_class=layout,
        description="Serves pages to a browser on this machine, until Ctrl-C. One page shows Table 1\n"
        "of the paper for a small layer, whose weights and inputs you move with sliders.\n"
        "Another trains small networks, with layer norm and without, while you look on.\n"
        "For each RUN of handwriting or draw there is a page on which its network\n"
        "writes or draws.",
        epilog="examples:\n  layernorm play\n  layernorm play runs/handwriting/handwriting-layer-s0\n",
    )  # fmt: skip
    play.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folder of a run")
    play.add_argument("--port", type=int, default=8080, metavar="N", help="port on 127.0.0.1 (default: 8080)")
    doctor = commands.add_parser(
        "doctor", help="show what is installed here, or check what every engine computes", formatter_class=layout,
        description="Prints the versions, engines and data sets found here, and why one is missing.",
        epilog="examples:\n  layernorm doctor\n  layernorm doctor --check\n"
        "  layernorm doctor --check > check.txt   the output, to send us\n",
    )  # fmt: skip
    doctor.add_argument(
        "--check", action="store_true",
        help="compare the results and gradients of every engine that runs here with the equations in float64, and "
        "its time with torch's. Takes some minutes. Exits with 1 if an engine is wrong",
    )  # fmt: skip
    return parser


def _data_sets() -> str:
    """Lists the data sets and the files that each needs, for the help."""
    from .experiments.data import catalogue
    from .experiments.errors import wrapped

    lines, width = ["data sets:"], catalogue.WIDTH
    inside = width + 3
    lines += [wrapped(f"  {name:<{width}} {about}", inside) for name, about in catalogue.EMBEDDED.items()]
    for source in catalogue.SOURCES.values():
        lines.append(wrapped(f"  {source.name:<{width}} {source.summary}", inside))
        lines.append(f"{'':{inside}}needs these, {source.form}:")
        lines += [f"{'':{inside}}{name}" for name in source.files]
    return "\n".join(lines)


def _chosen(usage: str, words: list[str], print_help: Callable[[], None]) -> Experiment:
    """Finds the experiment that the first word names. Without a word, or asked for help, it prints this and ends."""
    from .experiments import catalogue
    from .experiments.errors import UsageError

    if not words or words[0] in ("-h", "--help"):
        print_help()
        raise SystemExit(0 if words else 2)
    if words[0].startswith("-"):
        raise UsageError(f"the experiment's name comes before its options: layernorm {usage} {words[0]} ...")
    return catalogue.find_experiment(words[0])


def _run(words: list[str]) -> None:
    from .experiments.command import options, sweep
    from .experiments.train.distributed import processes_ended

    chosen = _chosen("run NAME", words, _print_experiments)
    request = options.parse_run(chosen, words[1:])
    with processes_ended():
        failures = sweep.make_runs(chosen, request)
    if failures is None:  # another process is the main one
        return
    if len(failures) < len(request.configs):
        out = sweep.out_folder(chosen, request)
        _write_report([out], out / "report")
    sweep.check_outcome(chosen, request, failures)


def _print_experiments() -> None:
    from .experiments import catalogue
    from .experiments.errors import wrapped

    print("usage: layernorm run EXPERIMENT [OPTIONS]\n")
    print("Runs an experiment, or resumes it, and writes its report.\n\nexperiments:")
    experiments = [catalogue.find_experiment(name) for name in catalogue.EXPERIMENTS]
    width = max(len(item.name) for item in experiments)
    for item in experiments:
        print(wrapped(f"  {item.name:<{width}} {item.summary}", width + 3))
        for name, preset in item.presets.items():
            print(wrapped(f"{'':{width + 3}}--preset {name}: {preset.summary}", width + 5))
    print("\nexamples:")
    for item in experiments:
        print("\n".join(f"  {example}" for example in item.examples))
    print("\nlayernorm run EXPERIMENT --help lists the experiment's options.")


def _sample(words: list[str]) -> None:
    from .experiments.command import options, sample
    from .experiments.errors import UsageError, printable

    chosen = _chosen("sample NAME RUN", words, _print_samplers)
    sampler = sample.find_sampler(chosen)
    asks_help = any(word in ("-h", "--help") for word in words[1:])
    if not asks_help and (len(words) < 2 or words[1].startswith("-")):
        raise UsageError(f"a run's folder comes before the options: layernorm sample {chosen.name} RUN [OPTIONS]")
    drawing, settings = options.parse_sample(chosen, sampler, ["--help"] if asks_help else words[2:])
    for line in sample.write_drawings(chosen, Path(words[1]), drawing, settings):
        print(printable(line))


def _print_samplers() -> None:
    from .experiments import catalogue

    print("usage: layernorm sample EXPERIMENT RUN [OPTIONS]\n")
    print("Lets the network of a run draw or write, from the run's newest checkpoint.\n\nexamples:")
    for name in catalogue.EXPERIMENTS:
        sampler = catalogue.find_experiment(name).sampler
        if sampler is not None:
            print("\n".join(f"  {example}" for example in sampler.examples))
    print("\nlayernorm sample EXPERIMENT --help lists the options.")


def _ask(name: str, words: list[str]) -> None:
    from .experiments import catalogue
    from .experiments.command import options, sample
    from .experiments.errors import printable

    tool = catalogue.find_tool(name)
    if not words:
        with contextlib.suppress(SystemExit):
            options.parse_tool(name, tool, ["--help"])
        raise SystemExit(2)
    path, texts, chosen = options.parse_tool(name, tool, words)
    for line in tool.ask(sample.read_run_of(catalogue.find_experiment(tool.experiment), path), texts, chosen):
        print(printable(line))


def _report(parsed: argparse.Namespace) -> None:
    for path in parsed.runs:
        if not path.is_dir() and not (path.suffix == ".json" and path.is_file()):
            from .experiments.errors import RunError

            raise RunError(f"{path} is not a folder; give run folders, a folder of them, or a summary (*.json)")
    if parsed.summary is not None:
        from .experiments.command.report import runs_of_one_experiment
        from .experiments.report import summary

        summary.write_summary(parsed.summary, runs_of_one_experiment(parsed.runs)[1].runs)
    first = parsed.runs[0]
    alone = len(parsed.runs) == 1 and first.is_dir()
    _write_report(parsed.runs, parsed.out or (first if alone else first.parent) / "report")


def _write_report(paths: list[Path], folder: Path) -> None:
    """Writes the report on the runs under some folders, and prints its tables and where it is."""
    from .experiments.command.report import make_report
    from .experiments.errors import printable
    from .experiments.report import rendering

    report = make_report(paths)
    page = rendering.write_report(report, folder)
    rendering.print_report(report)
    print(f"\nreport: {printable(str(page))}")


def _data(parsed: argparse.Namespace) -> None:
    from .experiments.data import catalogue, source
    from .experiments.errors import printable

    if parsed.action == "list":
        for line in catalogue.listing():
            print(printable(line))
        return
    if parsed.name in catalogue.EMBEDDED:
        print(f"{parsed.name}: {catalogue.EMBEDDED[parsed.name]}")
        return
    folder, facts = source.prepare_source(catalogue.find_source(parsed.name), parsed.source)
    print(printable(f"{parsed.name}: ready in {folder}"))
    for name, value in facts.items():
        if name not in ("name", "folder"):
            print(printable(f"  {name}: {value}"))


def _invariance(parsed: argparse.Namespace) -> None:
    from . import geometry
    from .experiments.errors import RunError, UsageError

    if not 0 <= parsed.eps < float("inf"):
        raise UsageError(f"expected --eps to be finite and >= 0, got {parsed.eps}")
    verdicts = geometry.invariance_table(parsed.eps)
    print(geometry.invariance_text(verdicts))
    shifted = geometry.invariance("layer", geometry.CASE_RECENTRING, eps=parsed.eps)
    print(f"\nlayer norm, single case re-centring (not in Table 1): relative change {shifted:.1e}")
    listed = [verdict for verdict in verdicts if verdict.paper is not None]
    differ = sum(verdict.differs for verdict in listed)
    why = "; with an eps no re-scaling is exact" if parsed.eps else ""
    end = f"{differ} of {len(listed)} verdicts differ from the paper's{why}"
    if not differ:
        end = f"all {len(listed)} verdicts are the paper's"
        print(end)
    if parsed.out is not None:
        from .experiments.report import rendering
        from .experiments.theory import report as theory

        report = theory.report_invariance(verdicts, f"With eps {parsed.eps:g}: {end}.")
        print(f"page: {rendering.write_report(report, parsed.out)}")
    if differ:
        raise RunError(end)


def _check_seeds(option: str, seeds: Sequence[int]) -> None:
    from .experiments.errors import UsageError

    for seed in seeds:
        if not 0 <= seed < _SEEDS:
            raise UsageError(f"expected {option} to lie in 0..{_SEEDS - 1}, got {seed}")


def _geometry(parsed: argparse.Namespace) -> None:
    from .experiments.errors import RunError
    from .experiments.report import rendering
    from .experiments.runs.files import make_folder
    from .experiments.theory import report as theory

    _check_seeds("--seed", [parsed.seed])
    if parsed.out is not None:
        make_folder(parsed.out)  # before the work, not after it
    findings = theory.measure_claims(parsed.seed, parsed.spectrum)
    report = theory.report_claims(findings)
    page = None if parsed.out is None else rendering.write_report(report, parsed.out)
    if parsed.out is not None:
        theory.write_claims(findings, parsed.out / "claims.json")
    rendering.print_report(report)
    if page is not None:
        print(f"\npage: {page}")
    wrong = theory.not_as_stated(findings)
    if wrong:
        raise RunError(f"{len(wrong)} of {len(findings)} claims were not measured as stated: {', '.join(wrong)}")
    print(f"\nall {len(findings)} claims were measured as stated")


def _stability(parsed: argparse.Namespace) -> None:
    from .experiments.errors import UsageError, printable, unknown
    from .experiments.report import rendering
    from .experiments.runs.files import make_folder, write_json
    from .experiments.theory import stability

    study = {"network": parsed.network, "units": parsed.units, "seeds": parsed.seeds}
    set_options = [f"--{name}" for name, value in study.items() if value is not None]
    if parsed.runs and set_options:
        raise UsageError(f"{', '.join(set_options)} cannot be set for RUNS, which have their own")
    if parsed.data is not None and not parsed.runs:
        raise UsageError("--data needs RUNS; without these, scikit-learn's digits are the data")
    network, units, seeds = parsed.network or "LSTM", parsed.units or 400, parsed.seeds or [0, 1, 2]
    if network not in stability.NETWORKS:
        raise unknown("network", network, stability.NETWORKS)
    if parsed.units is not None and not 1 <= parsed.units <= 4096:
        raise UsageError(f"expected --units to lie in 1..4096, got {parsed.units}")
    _check_seeds("--seeds", seeds)
    if parsed.out is not None:
        make_folder(parsed.out)  # before the work, not after it
    if parsed.runs:
        numbers, report = _stability_of_runs(parsed.runs, parsed.data)
    else:
        study_result = stability.measure_settings(network, units, list(dict.fromkeys(seeds)))
        numbers, report = study_result.numbers(), stability.report_study(study_result)
    rendering.print_report(report)
    if parsed.out is not None:
        page = rendering.write_report(report, parsed.out)
        write_json(parsed.out / "stability.json", numbers)
        print(f"\npage: {printable(str(page))}")


def _stability_of_runs(paths: list[Path], data: Path | None) -> tuple[dict[str, Any], Report]:
    from .experiments.command.report import runs_of_one_experiment
    from .experiments.theory import trained

    experiment, (runs, notes) = runs_of_one_experiment(paths)
    layers = []
    for run in runs:
        of_run, of_notes = trained.measure_run(experiment, run, data)
        layers += of_run
        notes += of_notes
    return trained.layers_as_json(layers), trained.report_layers(layers, notes)


def _play(parsed: argparse.Namespace) -> None:
    from .play import server

    server.serve(parsed.runs, parsed.port)


def _claims(parsed: argparse.Namespace) -> None:
    from .experiments import claims
    from .experiments.runs.files import write_atomic

    text = claims.claims_page(parsed.results)
    if parsed.out is None:
        print(text, end="")
    else:
        write_atomic(parsed.out, text.encode())


def _doctor(parsed: argparse.Namespace) -> None:
    if parsed.check:
        from .doctor.check import check

        check()
    else:
        from .doctor import installation

        installation.show()


def _version() -> str:
    from importlib.metadata import version

    return f"layernorm {version('layernorm')}"
