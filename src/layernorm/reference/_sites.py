"""The places in one step where a normalisation may sit, and a formula as the sites it makes of a gate block.

Every field of a `Formula` is taken care of here, once: the equations and their backwards (``_rnn.py``, ``_lstm.py``,
``_gru.py``) only pass through sites, which normalise or do not.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ..formula import Recurrence
from ._cases import ALL, Cases
from ._norms import standardize, standardize_backward

Parameters = dict[str, Tensor]
Saved = tuple[Tensor, Tensor] | None


class Site:
    """``y = N(z + inside) * gain + outside``; without a gain nothing is normalised: ``y = z + inside + outside``.

    Args:
        parameters: the layer's parameters by name; a name that is not there stands for no such term.
        cases: under batch norm, what it normalises over.
        gain, inside, outside: the names of this site's parameters.
        groups: how many equal spans z is cut into, each normalised by itself.
        units: which of the G*H units this site sees; the parameters are cut accordingly.
    """

    def __init__(
        self,
        parameters: Parameters,
        recurrence: Recurrence,
        cases: Cases | None,
        *,
        gain: str = "",
        inside: str = "",
        outside: tuple[str, ...] = (),
        groups: int = 1,
        units: slice = ALL,
    ) -> None:
        have = {name: parameters[name][units] for name in (gain, inside, *outside) if name in parameters}
        self.gain, self.inside = have.get(gain), have.get(inside)
        self.outside = [have[name] for name in outside if name in have]
        self.gain_name, self.inside_name = gain, inside
        self.outside_names = [name for name in outside if name in have]
        self.groups, self.norm, self.cases, self.units = groups, recurrence.norm, cases, units
        self.eps, self.eps_on = recurrence.formula.eps, recurrence.formula.eps_on

    def forward(self, z: Tensor, t: int | slice = ALL) -> tuple[Tensor, Saved]:
        """y at one time step or at all of them, and what `backward` needs: (z_hat, r) by groups, (..., groups, n) and
        (..., groups, 1); of batch norm nothing, whose gradient is autograd's."""
        if self.inside is not None:
            z = z + self.inside
        saved = None
        if self.gain is not None and self.cases is not None:
            z = self.cases.standardize(z, self.gain_name, self.units, t) * self.gain
        elif self.gain is not None:
            saved = standardize(z.unflatten(-1, (self.groups, -1)), self.norm, self.eps, self.eps_on)
            z = saved[0].flatten(-2) * self.gain
        for bias in self.outside:
            z = z + bias
        return z, saved

    def __call__(self, z: Tensor, t: int | slice = ALL) -> Tensor:
        return self.forward(z, t)[0]

    def backward(self, dy: Tensor, saved: Saved) -> Tensor:
        """The gradient of z."""
        if self.gain is None or saved is None:
            return dy
        d = (dy * self.gain).unflatten(-1, (self.groups, -1))
        return standardize_backward(d, *saved, self.norm, self.eps_on).flatten(-2)

    def parameter_gradients(self, dy: Tensor, dz: Tensor, saved: Saved) -> Parameters:
        """The gradients of this site's parameters by name, summed over time and batch: (T, B, n) -> (n,)."""
        grads = {name: dy.sum((0, 1)) for name in self.outside_names}
        if saved is not None:
            grads[self.gain_name] = (dy * saved[0].flatten(-2)).sum((0, 1))
        if self.inside is not None:
            grads = _added(grads, {self.inside_name: dz.sum((0, 1))})
        return grads


class Block(NamedTuple):
    """The three sites of a block of gates: ``a = both(input(W x) + hidden(U h))``."""

    input: Site
    hidden: Site
    both: Site

    def parameter_gradients(
        self, dy: tuple[Tensor, Tensor, Tensor], dz: tuple[Tensor, Tensor, Tensor], saved: tuple[Saved, Saved, Saved]
    ) -> Parameters:
        """Over the three sites, in their order."""
        grads: Parameters = {}
        for site, d_out, d_in, kept in zip(self, dy, dz, saved, strict=True):
            grads = _added(grads, site.parameter_gradients(d_out, d_in, kept))
        return grads


def _added(a: Parameters, b: Parameters) -> Parameters:
    """A parameter that stands in two places has both places' gradients."""
    return a | {name: a[name] + grad if name in a else grad for name, grad in b.items()}


def block(p: Parameters, recurrence: Recurrence, cases: Cases | None, gates: int, units: slice = ALL) -> Block:
    """The sites of ``gates`` gates that share one normalisation under ``span="joint"``."""
    formula = recurrence.formula
    groups = gates if formula.span == "per_gate" else 1

    def site(gain: str, inside: str, outside: tuple[str, ...]) -> Site:
        return Site(p, recurrence, cases, gain=gain, inside=inside, outside=outside, groups=groups, units=units)

    if formula.gates is None:
        return Block(site("", "bias_ih", ()), site("", "bias_hh", ()), site("", "", ()))
    again = ("bias_ih",) if formula.bias_again else ()
    if formula.gates == "split":
        if formula.bias_inside:
            outside = (("norm_bias_ih", *again), ("norm_bias_hh",))
            sides = [site(f"gain_{k}", f"bias_{k}", o) for k, o in zip(("ih", "hh"), outside, strict=True)]
        else:
            sides = [site(f"gain_{k}", "", (f"bias_{k}",)) for k in ("ih", "hh")]
        return Block(sides[0], sides[1], site("", "", ()))
    if formula.bias_inside:
        return Block(site("", "bias_ih", ()), site("", "bias_hh", ()), site("gain", "", ("norm_bias", *again)))
    return Block(site("", "", ()), site("", "", ()), site("gain", "", ("bias_ih", "bias_hh")))
