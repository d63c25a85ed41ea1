"""`layernorm stability`: how stable the hidden dynamics are under every norm, by the scale of weights and the gain, and
by where the gains and biases start, on digits and on noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from layernorm import geometry, nn

from ..data import digits
from ..data.progress import followed
from ..report.curves import banded
from ..report.page import STYLES, Curve, Figure, Panel, Report, Table
from ..runs import environment

CLAIM = (
    "Layer normalization is very effective at stabilizing the hidden state dynamics in recurrent networks (abstract): "
    "it is invariant to re-scaling all of the summed inputs to a layer, which results in much more stable "
    "hidden-to-hidden dynamics (section 3.1)."
)

NORMS: tuple[str | None, ...] = (None, "layer", "rms", "weight")
SCALES = (0.1, 1.0, 10.0, 30.0)
"""The factors of torch's initial weights, those of the input and the recurrent ones."""

GAINS = (0.1, 0.3, 1.0)
START_GAINS = (0.1, 0.3, 0.6, 1.0)
INPUTS = ("noise", "digits")
BIASES = ("torch's", "0")
CASES, WARMUP, STEPS, EVERY = 4, 50, 100, 5
"""CASES: training cases. WARMUP: steps before measuring. STEPS: measured steps, and the largest lag. EVERY: every fifth
lag is kept."""

PIXELS = 8


@dataclass(frozen=True)
class Setting:
    """The setting of an untrained network. Without a norm there is no gain."""

    norm: str | None
    gain: float | None
    scale: float = 1.0
    recurrent: float | None = None  # the gain of W_hh h, where it is another than `gain`
    biases: str = "0"
    inputs: str = "digits"

    @property
    def start(self) -> str:
        """Says in words how norm and gains start."""
        if self.norm is None:
            return "no norm"
        return f"gains of {self.gain:g}" if self.recurrent is None else f"recurrent gain {self.recurrent:g}, others 1"


SETTINGS = [Setting(norm, gain, scale) for norm in NORMS for gain in (GAINS if norm else (None,)) for scale in SCALES]
STARTS = [
    Setting(norm, gain, recurrent=recurrent, biases=biases, inputs=inputs)
    for inputs in INPUTS
    for biases in BIASES
    for norm, gain, recurrent in [
        (None, None, None),
        *(("layer", gain, None) for gain in START_GAINS),
        *(("layer", 1.0, gain) for gain in START_GAINS[:-1]),
    ]
]
"""The starts at torch's weights. A recurrent gain of 1 is gains of 1."""


class Stability(NamedTuple):
    """The measurements of one network."""

    exponent: float  # nats a step
    gradient: list[float]  # log10 of the gradient's norm over that at lag 0, at the lags 0, EVERY, ..., STEPS


@dataclass(frozen=True)
class Study:
    """Every setting with every seed."""

    network: str
    units: int
    seeds: list[int]
    steps: int  # measured, the largest lag
    measured: dict[Setting, list[Stability]]
    predicted: dict[Setting, float]  # of the starts, from the first seed's second moments

    def exponents(self, setting: Setting) -> list[float]:
        """Returns the exponents of a setting with every seed."""
        return [item.exponent for item in self.measured[setting]]

    def decades(self, setting: Setting) -> list[float]:
        """Returns the powers of ten by which a gradient has grown at the largest lag, with every seed."""
        return [item.gradient[-1] for item in self.measured[setting]]

    @property
    def about(self) -> str:
        """What was measured."""
        return f"{self.network} of {self.units} units, seeds {', '.join(map(str, self.seeds))}"

    def numbers(self) -> dict[str, Any]:
        """Returns the study as JSON values."""
        rows = [
            {
                **asdict(setting),
                "predicted": number(self.predicted[setting], 6) if setting in self.predicted else None,
                "exponents": [number(f.exponent, 6) for f in of_seeds],
                "gradients": [[number(g, 4) for g in f.gradient] for f in of_seeds],
            }
            for setting, of_seeds in self.measured.items()
        ]
        return {
            "network": self.network, "units": self.units, "seeds": self.seeds, "cases": CASES, "warmup": WARMUP,
            "steps": self.steps, "every": EVERY, "rows": rows,
        }  # fmt: skip


def number(value: float, digits: int) -> float | None:
    """A number for a JSON file, which has none that is not finite: None in its place."""
    return round(value, digits) if math.isfinite(value) else None


def measure_settings(network: str, units: int, seeds: Sequence[int]) -> Study:
    """Measures every setting with every seed. On a terminal it shows a progress bar."""
    streams = {"digits": stream(WARMUP + STEPS, CASES), "noise": noise(WARMUP + STEPS, CASES)}
    starts = [setting for setting in STARTS if setting.recurrent is None or network != "RNN"]  # one gain serves both
    groups: dict[tuple[str, str | None], list[Setting]] = {}
    for setting in dict.fromkeys([*SETTINGS, *starts]):
        groups.setdefault((setting.inputs, setting.norm), []).append(setting)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a step is too small to be shared
    try:
        measured = dict(
            item
            for (inputs, _), settings in followed(list(groups.items()), "measuring")
            for item in _of_norm(network, units, settings, seeds, streams[inputs])
        )
        predicted = {
            setting: predict(network, units, setting, seeds[0], streams[setting.inputs])
            for setting in followed(starts, "predicting")
        }
    finally:
        torch.set_num_threads(threads)
    return Study(network, units, list(seeds), STEPS, measured, predicted)


def predict(network: str, units: int, setting: Setting, seed: int, inputs: Tensor) -> float:
    """Predicts the exponent of a setting."""
    module, g = build_recurrent(network, units, setting, seed), torch.Generator().manual_seed(0)
    return float(geometry.predicted_exponent(module, inputs, warmup=WARMUP, generator=g).exponents)


def stream(steps: int, cases: int) -> Tensor:
    """Makes a sequence of scikit-learn's digits: the rows of one digit after those of another, (T, B, 8), in float64,
    with mean 0 and deviation 1 over all pixels."""
    images = digits.load_digits().train[:1200].images.to(torch.float64)
    rows = ((images - images.mean()) / images.std()).reshape(-1, PIXELS)
    return rows[: steps * cases].reshape(cases, steps, PIXELS).transpose(0, 1)


def noise(steps: int, cases: int) -> Tensor:
    """Makes inputs from N(0, 1), (T, B, 8), in float64."""
    return torch.randn(steps, cases, PIXELS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def build_recurrent(network: str, units: int, setting: Setting, seed: int) -> torch.nn.Module:
    """Builds a network with the weights that torch draws, scaled, and biases of 0 or torch's. Only the norms differ.

    Under weight norm the directions are scaled, and the gain is the length of each unit's weights.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        kind = getattr(nn, network)
        module = kind(PIXELS, units, norm=setting.norm, gain_init=setting.gain, dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.startswith("weight") or name.endswith("original1"):
                parameter.mul_(setting.scale)
            elif name.startswith("bias") and setting.biases == "0":
                parameter.zero_()
            elif name.startswith("gain_hh") and setting.recurrent is not None:
                parameter.fill_(setting.recurrent)
    for name in list(getattr(module, "parametrizations", ())):  # the weights that weight norm makes, made once
        torch.nn.utils.parametrize.remove_parametrizations(module, name)
    return module


class _Step(torch.nn.Module):
    """A network's step as a module, so that it can be called with the parameters of others."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network
        self.step, self.state = geometry.dynamics(network, CASES)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        return self.step(x, state)


def _of_norm(
    network: str, units: int, settings: Sequence[Setting], seeds: Sequence[int], inputs: Tensor
) -> list[tuple[Setting, list[Stability]]]:
    """Measures settings of one norm with every seed. All networks run side by side, each with its own cases."""
    networks = [_Step(build_recurrent(network, units, setting, seed)) for setting in settings for seed in seeds]
    parameters, _ = torch.func.stack_module_state(networks)
    parameters = {name: p.detach() for name, p in parameters.items()}
    first = networks[0]

    def one(parameters: dict[str, Tensor], x: Tensor, state: Tensor) -> Tensor:
        return torch.func.functional_call(first, parameters, (x, state))

    def step(x: Tensor, state: Tensor) -> Tensor:
        x, state = (t.unflatten(0, (len(networks), CASES)) for t in (x, state))
        return torch.func.vmap(one)(parameters, x, state).flatten(0, 1)

    g, (B, N), S = torch.Generator().manual_seed(0), first.state.shape, len(networks)
    start, back = (torch.randn(B, N, generator=g, dtype=torch.float64).repeat(S, 1) for _ in range(2))
    state, inputs = first.state.repeat(S, 1), inputs.repeat(1, S, 1)
    exponents = geometry.lyapunov(step, state, inputs, warmup=WARMUP, tangents=start[:, :, None]).cases
    with torch.no_grad():
        for x in inputs[:WARMUP]:
            state = step(x, state)
    logs = geometry.gradient_by_lag(step, state, inputs[WARMUP:], cotangents=back).mT / math.log(10)
    # (S * B, n) -> (S, n): the mean over the cases, of a gradient's norm the geometric one
    exponents, logs = (values.unflatten(0, (S, B)).mean(1) for values in (exponents, logs))
    logs = (logs - logs[:, :1])[:, ::EVERY]
    measured = [Stability(*numbers) for numbers in zip(exponents[:, 0].tolist(), logs.tolist(), strict=True)]
    return [(setting, measured[n * len(seeds) : (n + 1) * len(seeds)]) for n, setting in enumerate(settings)]


def report_study(study: Study) -> Report:
    """Makes tables, sentences and figure of a study."""

    def decades(setting: Setting) -> str:
        return lowest_to_highest(study.decades(setting), "+.1f")

    def exponents(setting: Setting) -> str:
        return lowest_to_highest(study.exponents(setting), "+.3f")

    return Report(
        title="The stability of hidden dynamics, measured",
        claim=CLAIM,
        findings=[*findings(study), *findings_of_starts(study)],
        figures=[_study_figure(study), _starts_figure(study)],
        tables=[
            _table_by_scale(
                "Largest Lyapunov exponent a step, against the scale of the weights", exponents,
                f"{study.about}, lowest to highest. In nats: a small change of the state grows as exp(exponent * "
                "steps). x1: weights as torch draws them; biases are 0. weight: the gain is the length of each unit's "
                "weights, and the scale that of their directions.",
            ),
            _table_by_scale(
                "The same beside the network without a norm", lambda setting: _beside(study, setting),
                "lower or higher than its exponent at this scale, and closer to 0 or farther from it, where every seed "
                "of the one is beyond every seed of the other; a dash where they overlap.",
            ),
            _table_by_scale(
                f"Decades by which a gradient has grown after {study.steps} steps back", decades,
                "log10 of its norm over that at lag 0, from a direction drawn at random.",
            ),
            _table_of_starts(study),
        ],
        start=environment.describe(),
    )  # fmt: skip


def findings(study: Study) -> list[str]:
    """Writes the findings in sentences, with their numbers."""
    moved = []
    for norm in NORMS:
        by_scale = [study.exponents(Setting(norm, 1.0 if norm else None, scale)) for scale in SCALES]
        widths = [max(of_seed) - min(of_seed) for of_seed in zip(*by_scale, strict=True)]
        finite = all(map(math.isfinite, widths))  # a state that does not depend on the one before has the exponent -inf
        ends = " to ".join(lowest_to_highest(by_scale[end], "+.3f") for end in (0, -1))
        moved.append(f"{norm or 'none'} {ends} (spread {lowest_to_highest(widths, '.3f') if finite else '-'})")
    beside = []
    for scale in SCALES:
        said: dict[str, list[str]] = {}
        for gain in GAINS:
            said.setdefault(_beside(study, Setting("layer", gain, scale)), []).append(f"{gain:g}")
        beside += [f"x{scale:g} {how} (gain {', '.join(of)})" for how, of in said.items()]
    gains = [
        f"{lowest_to_highest(study.exponents(Setting('layer', gain, 1.0)), '+.3f')} at gain {gain:g}" for gain in GAINS
    ]
    back = [
        f"{norm or 'none'} "
        + ", ".join(
            f"{lowest_to_highest(study.decades(Setting(norm, gain, scale)), '+.1f')} at x{scale:g}" for scale in SCALES
        )
        for norm, gain in ((None, None), ("layer", 1.0))
    ]
    return [
        f"{study.about}, lowest to highest. From weights of {SCALES[0]:g} to {SCALES[-1]:g} times torch's the exponent "
        f"goes, at gain 1: {'; '.join(moved)}.",
        f"Layer norm's exponent beside that without a norm, and its distance from 0: {'; '.join(beside)}.",
        f"Layer norm's exponent at torch's scale: {', '.join(gains)}.",
        f"Decades by which a gradient has grown after {study.steps} steps back, layer at gain 1: {'; '.join(back)}.",
    ]


def findings_of_starts(study: Study) -> list[str]:
    """Writes the findings about starts in sentences, with their numbers."""
    said = []
    for inputs in INPUTS:
        starts = [Setting(None, None), Setting("layer", 1.0), Setting("layer", 1.0, recurrent=0.3)]
        numbers = (
            f"{lowest_to_highest(study.exponents(at), '+.3f')} with {at.start}"
            for at in (replace(s, biases=BIASES[0], inputs=inputs) for s in starts)
            if at in study.measured
        )
        said.append(f"On {inputs}, with torch's weights and biases, the exponent is {', '.join(numbers)}.")
    errors = {s: abs(statistics.fmean(study.exponents(s)) - value) for s, value in study.predicted.items()}
    worst, mean = max(errors, key=lambda s: errors[s]), statistics.fmean(errors.values())
    said.append(
        f"The predicted exponent of a start differs from the mean over seeds by {mean:.3f} on average and by "
        f"{errors[worst]:.3f} at most ({worst.inputs}, biases {worst.biases}, {worst.start})."
    )
    return said


def lowest_to_highest(values: Sequence[float], form: str) -> str:
    """Writes the lowest and the highest value as text, or one number if they look the same."""
    low, high = f"{min(values):{form}}", f"{max(values):{form}}"
    return low if low == high else f"{low}..{high}"


def _beside(study: Study, setting: Setting) -> str:
    """Says where a setting's exponents lie beside those without a norm at the same scale; without a norm, nothing."""
    if setting.norm is None:
        return ""
    own, base = study.exponents(setting), study.exponents(Setting(None, None, setting.scale))
    level = _order(own, base, "lower", "higher")
    distance = _order([abs(e) for e in own], [abs(e) for e in base], "closer", "farther")
    return f"{level}, {distance}"


def _order(own: Sequence[float], base: Sequence[float], less: str, more: str) -> str:
    if max(own) < min(base):
        return less
    return more if min(own) > max(base) else "-"


def _table_by_scale(title: str, cell: Callable[[Setting], str], note: str) -> Table:
    """Makes a table with a row for each norm and gain, and a column for each scale. Empty rows are left out."""
    rows: dict[tuple[str, str], list[str]] = {}
    for setting in SETTINGS:
        gain = "-" if setting.gain is None else f"{setting.gain:g}"
        rows.setdefault((setting.norm or "none", gain), []).append(cell(setting))
    filled = [[*key, *cells] for key, cells in rows.items() if any(cells)]
    return Table(title, ["norm", "gain", *(f"x{scale:g}" for scale in SCALES)], filled, note)


def _table_of_starts(study: Study) -> Table:
    rows = [
        [
            s.inputs, s.biases, s.start, lowest_to_highest(study.exponents(s), "+.3f"), f"{value:+.3f}",
            lowest_to_highest(study.decades(s), "+.1f"),
        ]
        for s, value in study.predicted.items()
    ]  # fmt: skip
    return Table(
        "Largest Lyapunov exponent a step at torch's weights, measured and predicted, by the start",
        ["inputs", "biases", "start", "measured", "predicted", "decades"],
        rows,
        f"{study.about}, lowest to highest. Noise: 8 normal numbers a step. Predicted: from the second moments of the "
        f"recurrent weights (`predicted_exponent`). Decades: the growth of a gradient after {study.steps} steps back.",
    )


def _starts_figure(study: Study) -> Figure:
    """Draws the exponents against the gain, measured and predicted, with a panel for each kind of inputs."""

    def panel(inputs: str) -> Panel:
        starts = [s for s in study.predicted if (s.norm, s.inputs, s.biases) == ("layer", inputs, BIASES[0])]
        alike = [s for s in starts if s.recurrent is None]
        recurrent = [*(s for s in starts if s.recurrent is not None), alike[-1]]
        none = study.exponents(Setting(None, None, biases=BIASES[0], inputs=inputs))
        curves = [banded("no norm", STYLES["none"], START_GAINS, [none] * len(START_GAINS))]
        for label, of, styles in (
            ("gain of W_hh h", recurrent, (STYLES["layer"], STYLES["layer-shared"])),
            ("all gains", alike, (STYLES["batch"], STYLES["batch-exact"])),
        ):
            if len(of) == len(START_GAINS):  # an RNN has no recurrent gain
                curves.append(banded(f"{label}, measured", styles[0], START_GAINS, [study.exponents(s) for s in of]))
                predicted = [[study.predicted[s]] for s in of]
                curves.append(banded(f"{label}, predicted", styles[1], START_GAINS, predicted))
        return Panel(inputs, "gain", "Lyapunov exponent a step", curves, log_x=True)

    caption = (
        f"Exponents of starts with torch's weights and biases: {study.about}. Above 0 a gradient explodes, below 0 it "
        "vanishes. The band of a measured line goes from the lowest to the highest seed."
    )
    return Figure("starts", caption, [[panel(inputs) for inputs in INPUTS]])


def _study_figure(study: Study) -> Figure:
    """Draws above the exponents against scale, with a panel for each gain. Below, gradients against lag at gain 1, with
    a panel for each scale."""

    def at(norm: str | None, gain: float, scale: float) -> Setting:
        return Setting(norm, gain if norm else None, scale)

    def lag_curve(norm: str | None, scale: float) -> Curve:
        lines = [item.gradient for item in study.measured[at(norm, 1.0, scale)]]
        return banded(
            norm or "none", STYLES[norm or "none"], range(0, study.steps + 1, EVERY), list(zip(*lines, strict=True))
        )

    def scale_curve(norm: str | None, gain: float) -> Curve:
        columns = [study.exponents(at(norm, gain, scale)) for scale in SCALES]
        return banded(norm or "none", STYLES[norm or "none"], SCALES, columns)

    above = [
        Panel(f"gain {gain:g}", "weights, times torch's", "Lyapunov exponent a step",
              [scale_curve(norm, gain) for norm in NORMS], log_x=True)
        for gain in GAINS
    ]  # fmt: skip
    below = [
        Panel(f"weights x{scale:g}, gain 1", "lag", "log10 of the gradient's norm",
              [lag_curve(norm, scale) for norm in NORMS])
        for scale in SCALES[:3]
    ]  # fmt: skip
    caption = (
        f"The hidden dynamics at the start: {study.about}. Above, the largest Lyapunov exponent a step, against the "
        "scale of the weights: 0 is the edge between forgetting and chaos. The line without a norm is the same in "
        "every panel. Below, a gradient's norm against the lag."
    )
    return Figure("stability", caption, [above, below])
