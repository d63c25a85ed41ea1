"""The results of `layernorm doctor --check` as text of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..isolation import Failure
from .comparison import Case, Deviation, Row, type_name
from .text import wrapped
from .timing import NETWORK, NORM


@dataclass(frozen=True)
class Outcome:
    """One case with its result: how far every tensor deviates, or what happened instead."""

    case: Case
    result: Sequence[Deviation] | Failure

    @property
    def wrong(self) -> bool:
        return self.share > 1

    @property
    def share(self) -> float:
        """The largest deviation as a share of what is allowed. It is infinite after a failure."""
        return float("inf") if isinstance(self.result, Failure) else max(d.share for d in self.result)


HEAD = f"{'op':<10} {'type':<8} {'cases':>5} {'forward':>7} {'gradients':>9} {'of bound':>8} {'time':>5}  nearest to it"


def lines(outcomes: Iterable[Outcome], times: Mapping[Row, str]) -> list[str]:
    """Writes a table for each engine and type of device, a row for each op and type."""
    rows: dict[Row, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.case.row[:3]):
        rows.setdefault(outcome.case.row, []).append(outcome)
    text: list[str] = []
    for engine, device in dict.fromkeys((row.engine, row.device) for row in rows):
        text += ["", f"{engine} on {device}: largest error in roundings", HEAD]
        text += [_row(row, rows[row], times) for row in rows if (row.engine, row.device) == (engine, device)]
    return text


def _row(row: Row, outcomes: Sequence[Outcome], times: Mapping[Row, str]) -> str:
    deviations = [d for o in outcomes if not isinstance(o.result, Failure) for d in o.result]
    worst = max(outcomes, key=lambda o: o.share)
    figures = [_largest(d for d in deviations if d.gradient is gradient) for gradient in (False, True)]
    text = f"{row.op:<10} {type_name(row.dtype):<8} {len(outcomes):>5} {figures[0]:>7} {figures[1]:>9} "
    share = "WRONG" if worst.wrong else f"{worst.share:.0%}"
    return f"{text}{share:>8} {times.get(row, '-'):>5}  {worst.case.problem.short}"


def _largest(deviations: Iterable[Deviation]) -> str:
    """Writes the largest number of roundings. A NaN is larger than any number."""
    ordered = sorted(deviations, key=lambda d: (d.roundings != d.roundings, d.roundings))
    return _figure(ordered[-1].roundings) if ordered else "-"


def _figure(roundings: float) -> str:
    return f"{roundings:.1f}" if not roundings >= 1000 else f"{roundings:.1e}"


def wrong(outcomes: Iterable[Outcome]) -> list[str]:
    """Lists wrong cases, each with all its deviations that are not allowed."""
    text = []
    for outcome in outcomes:
        text.append(wrapped(f"  {outcome.case.row}: {outcome.case.problem.label}", 6))
        if isinstance(outcome.result, Failure):
            text.append(wrapped(f"    {outcome.result.message}", 6))
            continue
        too_far = sorted((d for d in outcome.result if d.share > 1), key=lambda d: -d.share)
        errors = [f"{d.name} {_figure(d.roundings)} (allowed {_figure(d.allowed)})" for d in too_far]
        unbroken = ", ".join(error.replace(" ", "\xa0") for error in errors)  # lines break only between two errors
        text.append(wrapped(f"    roundings: {unbroken}", 6).replace("\xa0", " "))
    return text


def legend(devices: Iterable[str]) -> str:
    """Explains the columns."""
    sizes = []
    for device in devices:
        (T, B, H), (M, N) = NETWORK[device], NORM[device]
        sizes.append(f"{T} steps of {B} rows, {H} units, norms {M} x {N} on {device}")
    return wrapped(
        "A rounding is the type's eps times the largest magnitude in the exact tensor. of bound: the error that comes "
        "nearest to what rounding explains, as a share of that. Above 100 % it is wrong. In float64 the forward of "
        "reference is the equations themselves. time: forward and backward, relative to torch's network without layer "
        f"norm and to torch's norms ({'; '.join(sizes)}). It means little while other programs run.",
        0,
    )
