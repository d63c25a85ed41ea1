"""The places of one step with their parameters: sites, which normalise or do not, and the sites of a block of gates.

The equations and their backwards (``rnn.py``, ``lstm.py``, ``gru.py``) only pass through sites. Which parameters a
formula has where is the recurrence's to say (`Recurrence.places`).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ..formula import GATES, Place, Recurrence
from .arguments import Index
from .batch_norm import ALL, BatchNorm, Moments, Standardized
from .norms import standardize, standardize_backward

Parameters = dict[str, Tensor]
Saved = tuple[Tensor, ...] | None


class Site:
    """A `Place` with its parameters: ``y = N(z + inside) * gain + outside``, without a gain ``z + inside + outside``.

    Args:
        parameters: the layer's parameters by name.
        batch_norm: what it normalises by, under batch norm.
        groups: how many equal spans z is cut into, each normalised by itself.
        units: which of the G*H units this site sees; the parameters are cut accordingly.
    """

    def __init__(
        self,
        place: Place,
        parameters: Parameters,
        recurrence: Recurrence,
        batch_norm: BatchNorm | None,
        groups: int = 1,
        units: slice = ALL,
    ) -> None:
        self.place = place
        self.gain = None if place.gain is None else parameters[place.gain][units]
        self.inside = None if place.inside is None else parameters[place.inside][units]
        self.outside = [parameters[name][units] for name in place.outside]
        self.groups, self.norm, self.units = groups, recurrence.norm, units
        self.batch_norm = batch_norm
        self.eps, self.eps_on = recurrence.formula.eps, recurrence.formula.eps_on
        self.later: Moments | None = None  # of `BatchNorm.backward`

    def __call__(self, z: Tensor, t: int | slice = ALL) -> Tensor:
        """Computes y at one time step or at all of them."""
        if self.batch_norm is None or self.gain is None:
            return self.forward(z)[0]
        z = self.batch_norm.standardize(self._with_inside(z), str(self.place.gain), self.units, t)
        return self._with_outside(z * self.gain)

    def forward(self, z: Tensor) -> tuple[Tensor, Saved]:
        """Computes y, and what `backward` needs: (z_hat, r) by groups, (..., groups, n) and (..., groups, 1); of batch
        norm, whose moments must be known, `Standardized`."""
        z = self._with_inside(z)
        saved: Saved = None
        if self.batch_norm is not None and self.gain is not None:
            saved = self.batch_norm.standardized(z, str(self.place.gain), self.units)
        elif self.gain is not None:
            saved = standardize(z.unflatten(-1, (self.groups, -1)), self.norm, self.eps, self.eps_on)
        return self._with_outside(z if self.gain is None or saved is None else self._z_hat(saved) * self.gain), saved

    def _with_inside(self, z: Tensor) -> Tensor:
        return z if self.inside is None else z + self.inside

    def _with_outside(self, y: Tensor) -> Tensor:
        for bias in self.outside:
            y = y + bias
        return y

    def _z_hat(self, saved: tuple[Tensor, ...]) -> Tensor:
        return saved[0].flatten(-2) if self.batch_norm is None else saved[0]

    def backward(self, dy: Tensor, saved: Saved) -> Tensor:
        """Computes the gradient of z, at one step or of all lines; under batch norm from the last step to the first."""
        if self.gain is None or saved is None:
            return dy
        d = dy * self.gain
        if self.batch_norm is None:
            z_hat, r = saved
            d = d.unflatten(-1, (self.groups, -1))
            return standardize_backward(d, z_hat, r, self.norm, self.eps_on).flatten(-2)
        if dy.dim() == 2:
            dz, self.later = self.batch_norm.backward(d, Standardized(*saved), self.later)
            return dz
        schedule = self.batch_norm.schedule
        indices = reversed(schedule.indices(len(dy)))
        return schedule.join([self.backward(dy[index], saved_at(saved, index)) for index in indices][::-1])

    def parameter_gradients(self, dy: Tensor, dz: Tensor, saved: Saved) -> Parameters:
        """Computes the gradients of this site's parameters by name, summed over time and batch: (T, B, n) -> (n,)."""
        grads = {name: dy.sum((0, 1)) for name in self.place.outside}
        if saved is not None:
            grads[str(self.place.gain)] = (dy * self._z_hat(saved)).sum((0, 1))
        if self.inside is not None:
            grads = _add_gradients(grads, {str(self.place.inside): dz.sum((0, 1))})
        return grads


def saved_at(saved: Saved, index: Index) -> Saved:
    """Returns what a site saved at one step."""
    return None if saved is None else tuple([part[index] for part in saved])


class GateSaved(NamedTuple):
    """What the three sites of a block of gates saved."""

    input: Saved
    hidden: Saved
    both: Saved


class GateSites(NamedTuple):
    """The three sites of a block of gates: ``a = both(input(W x) + hidden(U h))``."""

    input: Site
    hidden: Site
    both: Site

    def forward(self, zx: Tensor, zh: Tensor, r: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, GateSaved]:
        """Computes a, its two terms, and what `Site.backward` needs; ``r`` multiplies the term of U h, in a GRU."""
        from_input, input = self.input.forward(zx)
        from_hidden, hidden = self.hidden.forward(zh)
        a, both = self.both.forward(from_input + (from_hidden if r is None else r * from_hidden))
        return a, from_input, from_hidden, GateSaved(input, hidden, both)

    def parameter_gradients(
        self, dy: tuple[Tensor, Tensor, Tensor], dz: tuple[Tensor, Tensor, Tensor], saved: GateSaved
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
    p: Parameters, recurrence: Recurrence, batch_norm: BatchNorm | None, first: int = 0, last: int | None = None
) -> GateSites:
    """Makes the sites of the gates ``first`` to ``last``, exclusive, by default of all: one span, or gate by gate."""
    gates = GATES[recurrence.network]
    H, last = p["weight_hh"].shape[0] // gates, gates if last is None else last
    groups = sum(first <= span[0] < last for span in recurrence.spans)
    units = slice(first * H, last * H)
    return GateSites(*(Site(place, p, recurrence, batch_norm, groups, units) for place in recurrence.places[:3]))
