"""The places of one step with their parameters: sites, which normalise or do not, and the sites of a block of gates.

The equations and their backwards (``_rnn.py``, ``_lstm.py``, ``_gru.py``) only pass through sites. Which parameters a
formula has where is the recurrence's to say (`Recurrence.places`).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ..formula import GATES, Place, Recurrence
from .batch_norm import ALL, Cases
from .norms import standardize, standardize_backward

Parameters = dict[str, Tensor]
Saved = tuple[Tensor, Tensor] | None


class Site:
    """A `Place` with its parameters: ``y = N(z + inside) * gain + outside``, without a gain ``z + inside + outside``.

    Args:
        parameters: the layer's parameters by name.
        cases: under batch norm, what it normalises over.
        groups: how many equal spans z is cut into, each normalised by itself.
        units: which of the G*H units this site sees; the parameters are cut accordingly.
    """

    def __init__(
        self,
        place: Place,
        parameters: Parameters,
        recurrence: Recurrence,
        cases: Cases | None,
        groups: int = 1,
        units: slice = ALL,
    ) -> None:
        self.place = place
        self.gain = None if place.gain is None else parameters[place.gain][units]
        self.inside = None if place.inside is None else parameters[place.inside][units]
        self.outside = [parameters[name][units] for name in place.outside]
        self.groups, self.norm, self.cases, self.units = groups, recurrence.norm, cases, units
        self.eps, self.eps_on = recurrence.formula.eps, recurrence.formula.eps_on

    def forward(self, z: Tensor, t: int | slice = ALL) -> tuple[Tensor, Saved]:
        """Computes y at one time step or at all of them, and what `backward` needs: (z_hat, r) by groups, (..., groups,
        n) and (..., groups, 1); of batch norm nothing, whose gradient is autograd's."""
        if self.inside is not None:
            z = z + self.inside
        saved = None
        if self.gain is not None and self.cases is not None:
            z = self.cases.standardize(z, str(self.place.gain), self.units, t) * self.gain
        elif self.gain is not None:
            saved = standardize(z.unflatten(-1, (self.groups, -1)), self.norm, self.eps, self.eps_on)
            z = saved[0].flatten(-2) * self.gain
        for bias in self.outside:
            z = z + bias
        return z, saved

    def __call__(self, z: Tensor, t: int | slice = ALL) -> Tensor:
        return self.forward(z, t)[0]

    def backward(self, dy: Tensor, saved: Saved) -> Tensor:
        """Computes the gradient of z."""
        if self.gain is None or saved is None:
            return dy
        d = (dy * self.gain).unflatten(-1, (self.groups, -1))
        return standardize_backward(d, *saved, self.norm, self.eps_on).flatten(-2)

    def parameter_gradients(self, dy: Tensor, dz: Tensor, saved: Saved) -> Parameters:
        """Computes the gradients of this site's parameters by name, summed over time and batch: (T, B, n) -> (n,)."""
        grads = {name: dy.sum((0, 1)) for name in self.place.outside}
        if saved is not None:
            grads[str(self.place.gain)] = (dy * saved[0].flatten(-2)).sum((0, 1))
        if self.inside is not None:
            grads = _add_gradients(grads, {str(self.place.inside): dz.sum((0, 1))})
        return grads


class GateSites(NamedTuple):
    """The three sites of a block of gates: ``a = both(input(W x) + hidden(U h))``."""

    input: Site
    hidden: Site
    both: Site

    def parameter_gradients(
        self, dy: tuple[Tensor, Tensor, Tensor], dz: tuple[Tensor, Tensor, Tensor], saved: tuple[Saved, Saved, Saved]
    ) -> Parameters:
        """Adds up the gradients of the three sites, in their order."""
        grads: Parameters = {}
        for site, d_out, d_in, site_saved in zip(self, dy, dz, saved, strict=True):
            grads = _add_gradients(grads, site.parameter_gradients(d_out, d_in, site_saved))
        return grads


def _add_gradients(a: Parameters, b: Parameters) -> Parameters:
    """Adds gradients by name: a parameter that stands in two places has both places' gradients."""
    return a | {name: a[name] + grad if name in a else grad for name, grad in b.items()}


def gate_sites(
    p: Parameters, recurrence: Recurrence, cases: Cases | None, first: int = 0, last: int | None = None
) -> GateSites:
    """Makes the sites of the gates ``first`` to ``last``, exclusive, by default of all: one span, or gate by gate."""
    gates = GATES[recurrence.network]
    H, last = p["weight_hh"].shape[0] // gates, gates if last is None else last
    groups = sum(first <= span[0] < last for span in recurrence.spans)
    units = slice(first * H, last * H)
    return GateSites(*(Site(place, p, recurrence, cases, groups, units) for place in recurrence.places[:3]))
