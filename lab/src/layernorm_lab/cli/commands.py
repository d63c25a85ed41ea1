"""What each command does. It imports what it needs after its options were read."""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import catalogue
from ..errors import RunError, UsageError, printable, unknown, wrapped
from . import pages
from .waiting import waiting

if TYPE_CHECKING:
    from ..protocol import Experiment
    from ..report.page import Report

_SEEDS = 2**31  # more than anyone needs, and a generator takes four times each


def _chosen(usage: str, words: list[str], print_help: Callable[[], None]) -> Experiment:
    """Finds the experiment that the first word names. Without a word, or asked for help, it prints this and ends."""
    pages.help_or_go_on(words, print_help)
    if words[0].startswith("-"):
        raise UsageError(f"the experiment's name comes before its options: layernorm {usage} {words[0]} ...")
    with contextlib.nullcontext() if "torch" in sys.modules else waiting("loading PyTorch"):
        return catalogue.find_experiment(words[0])


def _run(words: list[str]) -> None:
    experiment = _chosen("run NAME", words, pages.print_experiments)
    from . import run

    run.run(experiment, words[1:])


def _sample(words: list[str]) -> None:
    experiment = _chosen("sample NAME RUN", words, pages.print_samplers)
    from ..runs.files import make_folder, write_atomic
    from ..runs.restore import read_run_of
    from . import options

    sampler = catalogue.find_sampler(experiment)
    path, drawing, settings = options.parse_sample(experiment, sampler, words[1:])
    run = read_run_of(experiment.name, path)
    out = make_folder(settings.out or path / "samples")
    drawn = sampler.draw(run, drawing, settings.data)
    files = {out / f"{picture.name}.{picture.kind}": picture.content for picture in drawn.pictures}
    for file, content in files.items():
        write_atomic(file, content)
    for line in [*drawn.notes, *(f"wrote {file}" for file in files)]:
        print(printable(line))


def _ask(name: str, words: list[str]) -> None:
    from ..runs.restore import read_run_of
    from . import options

    tool = catalogue.find_tool(name)
    path, texts, chosen = options.parse_tool(name, tool, words)
    for line in tool.ask(read_run_of(tool.experiment, path), texts, chosen):
        print(printable(line))


def _report(parsed: argparse.Namespace) -> None:
    from ..report import summary
    from .report import runs_of_one_experiment, write_report

    for path in parsed.runs:
        if not path.is_dir() and not (path.name.endswith(summary.ENDINGS) and path.is_file()):
            kinds = "*.json or *.json.gz"
            raise RunError(f"{path} is not a folder; give run folders, a folder of them, or a summary ({kinds})")
    if parsed.summary is not None and not parsed.summary.name.endswith(summary.ENDINGS):
        raise UsageError(f"--summary must end in {' or '.join(summary.ENDINGS)}, got {parsed.summary}")
    first = parsed.runs[0]
    alone = len(parsed.runs) == 1 and first.is_dir()
    write_report(parsed.runs, parsed.out or (first if alone else first.parent) / "report")
    if parsed.summary is not None:  # at the end, as the file may be among the runs
        summary.write_summary(parsed.summary, runs_of_one_experiment(parsed.runs)[1].runs)


def _data(words: list[str]) -> None:
    pages.help_or_go_on(words, pages.print_data)
    if words[0] not in ("list", "prepare"):
        raise unknown("action", words[0], ["list", "prepare"])
    parsed = pages.PARSERS[f"data {words[0]}"]().read(words[1:])
    from ..data import catalogue, source

    if words[0] == "list":
        for line in catalogue.listing():
            print(printable(line))
        return
    if parsed.name in catalogue.EMBEDDED:
        if parsed.source is not None:
            raise UsageError(f"{parsed.name} does not take --source: its data need no folder")
        print(f"{parsed.name}: {catalogue.EMBEDDED[parsed.name]}")
        return
    folder, facts = source.prepare_source(catalogue.find_source(parsed.name), parsed.source)
    print(printable(f"{parsed.name}: ready in {folder}"))
    for name, value in facts.items():
        if name not in ("name", "folder"):
            print(printable(f"  {name}: {value}"))


def _invariance(parsed: argparse.Namespace) -> None:
    from layernorm import geometry

    if not 0 <= parsed.eps < float("inf"):
        raise UsageError(f"--eps must be finite and at least 0, got {parsed.eps}")
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
        from ..report import rendering
        from ..theory import report as theory

        report = theory.report_invariance(verdicts, f"With eps {parsed.eps:g}: {end}.")
        print(f"page: {rendering.write_report(report, parsed.out)}")
    if differ:
        raise RunError(end)


def _check_seeds(option: str, seeds: Sequence[int]) -> None:
    for seed in seeds:
        if not 0 <= seed < _SEEDS:
            raise UsageError(f"{option} must lie in 0..{_SEEDS - 1}, got {seed}")


def _geometry(parsed: argparse.Namespace) -> None:
    from ..report import rendering
    from ..runs.files import make_folder
    from ..theory import report as theory

    _check_seeds("--seed", [parsed.seed])
    if parsed.out is not None:
        make_folder(parsed.out)  # before the work, not after it
    findings = theory.measure_claims(parsed.seed, parsed.spectrum)
    report = theory.report_claims(findings)
    rendering.print_report(report)  # before the files, whose folder may be full
    if parsed.out is not None:
        page = rendering.write_report(report, parsed.out)
        theory.write_claims(findings, parsed.out / "claims.json")
        print(f"\npage: {page}")
    wrong = theory.not_as_documented(findings)
    if wrong:
        raise RunError(
            f"{len(wrong)} of {len(findings)} claims were not measured as docs/theory.md says: {', '.join(wrong)}"
        )
    print(f"\n{theory.counted_claims(findings)}")


def _stability(parsed: argparse.Namespace) -> None:
    from ..report import rendering
    from ..runs.files import make_folder, write_json
    from ..theory import stability

    study = {"network": parsed.network, "units": parsed.units, "seeds": parsed.seeds}
    set_options = [f"--{name}" for name, value in study.items() if value is not None]
    if parsed.runs and set_options:
        raise UsageError(f"{', '.join(set_options)} cannot be set for RUNS, which have their own")
    if parsed.data is not None and not parsed.runs:
        raise UsageError("--data needs RUNS; without these, scikit-learn's digits are the data")
    network, units, seeds = parsed.network or "LSTM", parsed.units or 400, parsed.seeds or [0, 1, 2]
    if parsed.units is not None and not 1 <= parsed.units <= 4096:
        raise UsageError(f"--units must lie in 1..4096, got {parsed.units}")
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
    from ..theory import trained
    from .report import runs_of_one_experiment

    experiment, (runs, notes) = runs_of_one_experiment(paths)
    layers: list[trained.Layer] = []
    for run in runs:
        try:
            of_run, of_notes = trained.measure_run(experiment, run, data)
        except RunError as error:
            notes.append(f"skipped: {error}")
            continue
        layers += of_run
        notes += of_notes
    if not layers:
        raise RunError("; ".join(notes))
    return trained.layers_as_json(layers), trained.report_layers(layers, notes)


def _play(parsed: argparse.Namespace) -> None:
    from ..play import server

    server.serve(parsed.runs, parsed.port)


def _claims(parsed: argparse.Namespace) -> None:
    from .. import claims
    from ..report import rendering
    from ..runs.files import write_atomic

    if parsed.out is not None and parsed.out == parsed.details:
        raise UsageError(f"--out and --details must be two files, got {parsed.out} for both")
    pages = [(parsed.out, claims.claims_page), (parsed.details, claims.details_page)]
    for path, page in pages:
        if path is not None:
            write_atomic(path, page(parsed.results).encode())
    if parsed.out is not None or parsed.details is not None:
        return
    for table in claims.claims_tables(parsed.results):
        rendering.print_sentences(table)
    about = (
        "The effect is that of the norm that the claim puts first: a difference below 0, or less than 1 times as fast, "
        "means that it did worse. Where a trial has several claims, one can be undecided although its interval leaves "
        "out 0."
    )
    print(wrapped(about, 0))
    print("\n--out FILE writes this in Markdown, --details FILE also how each was decided.")


def _doctor(parsed: argparse.Namespace) -> None:
    if parsed.check:
        from layernorm.doctor.check import WrongEngineError, check

        try:
            check()
        except WrongEngineError as error:
            raise RunError(str(error)) from None
    else:
        from layernorm.doctor import installation

        installation.show()


def _with_parser(name: str, command: Callable[[argparse.Namespace], None]) -> Callable[[list[str]], None]:
    """Makes the command that reads its words by the parser of this name."""
    return lambda words: command(pages.PARSERS[name]().read(words))


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "run": _run, "sample": _sample, "data": _data,
    **{name: functools.partial(_ask, name) for name in catalogue.TOOLS},
    **{
        name: _with_parser(name, command)
        for name, command in {
            "report": _report, "claims": _claims, "play": _play, "invariance": _invariance, "geometry": _geometry,
            "stability": _stability, "doctor": _doctor,
        }.items()
    },
}  # fmt: skip
"""What each command does with the words after its name."""
