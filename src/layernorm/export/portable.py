"""`portable`: a copy of a model on plain PyTorch operations, for TorchScript, which compiles a module's source.

The modules here are written for `torch.jit.script`: one set of equations for every network and formula, in terms of the
eight vectors that `Recurrence.vectors` names. TorchScript reads annotations as types, so this file does without
``from __future__ import annotations``.
"""

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.parametrize import type_before_parametrizations as own_class

from ..formula import GATES
from ..nn._cell import RecurrentCell
from ..nn._gru import GRU, GRUCell
from ..nn._lstm import LSTM, LSTMCell
from ..nn._normalised import Normalised, check_module
from ..nn._norms import BatchNorm, LayerNorm, RMSNorm
from ..nn._recurrent import Recurrent
from ..nn._rnn import RNN, RNNCell
from ..nn._tracing import fx_call_module


def portable(model: torch.nn.Module) -> torch.nn.Module:
    """Copies a model so that `torch.jit.script` can compile it: layernorm's modules become plain PyTorch operations.

    The saved result runs in processes without layernorm. The copied modules have the shapes and state-dict keys of the
    originals, and their arguments but for those named below. Weights that weight norm computes become parameters with
    their values. Buffers, modules and attributes that were added to one of layernorm's modules are not copied.

    TorchScript is deprecated: PyTorch 2.13 warns with a DeprecationWarning wherever it is called, 2.15 with a
    FutureWarning, and on Python 3.14 PyTorch does not support it. PyTorch has named no release that removes it.
    `portable` will be removed when the oldest PyTorch that layernorm runs on has no `torch.jit.script`. For all other
    tools use `torch.export` with `layernorm.decompositions`; ExecuTorch and LiteRT take either. `torch.export` of the
    copy leaves out the checks of the values of ``lengths`` and ``reset``.

    The copies compute step by step, in the type of their weights: they are slower, and in 16 bits less exact. They have
    no ``stepper``, ``mask`` and ``reset_hx``. They take ``lengths`` as a tensor, and no `PackedSequence`. The norms
    become torch's own, which have no argument ``residual``.

    Args:
        model: any network. It is not changed.

    Returns:
        The copy.

    Raises:
        TypeError: ``model`` is no module, or has a module that is a subclass of one of layernorm's, accelerated, or
            compiled by itself.
        ValueError: a module has something that has no plain form: hooks on its forward or backward, a ``forward`` that
            was set on it, zoneout, parametrized weights of a norm, or batch norm in a recurrent network, whose
            statistics differ by time step; in training also recurrent or variational dropout, ``gate_clip``,
            parametrized weights of a recurrent network, and ``BatchNorm(unbiased=True)``.

    Example::

        torch.jit.script(ln.portable(model)).save("model.pt")
    """
    check_module("portable", model, "model")
    for name, part in model.named_modules():
        _check(name or "the model", part)
    copied = copy.deepcopy(model)
    replacements = {id(part): _portable_module(part) for part in copied.modules() if own_class(part) in _TABLE}
    if id(copied) in replacements:
        return replacements[id(copied)]
    for parent in list(copied.modules()):
        for name, child in parent._modules.items():
            if id(child) in replacements:
                parent._modules[name] = replacements[id(child)]
    return copied


def _check(name: str, module: torch.nn.Module) -> None:
    """Raises an error where a module cannot be copied."""
    original = own_class(module)
    if original not in _TABLE:
        compiled = module._modules.get("_orig_mod")  # what `torch.compile` makes keeps the forward that it was given
        if compiled is not None and own_class(compiled) in _TABLE:
            raise TypeError(f"portable: cannot copy {name}: it is compiled; copy its _orig_mod")
        if hasattr(original, "_class_before"):
            raise TypeError(f"portable: cannot copy {name}: it is accelerated; call layernorm.restore(model) first")
        if issubclass(original, tuple(_TABLE)):
            raise TypeError(
                f"portable: cannot copy {name}: {original.__name__} is a subclass, and may do more than its base"
            )
        return
    if not isinstance(module, Normalised) and is_parametrized(module):
        raise ValueError(
            f"portable: cannot copy {name}: {original.__name__} has parametrized weights; call "
            "torch.nn.utils.parametrize.remove_parametrizations first"
        )
    if isinstance(module, Normalised) and module.norm == "batch":
        raise ValueError(f"portable: cannot copy {name}: batch norm in a {original.__name__} has no plain form")
    if isinstance(module, BatchNorm) and module.unbiased and module.training:
        raise ValueError(
            f"portable: cannot copy {name}: unbiased=True has no plain form in training; call eval() first"
        )
    if isinstance(module, Normalised) and module.recurrence.quantized:
        raise ValueError(f"portable: cannot copy {name}: a quantized {original.__name__} has no plain form")
    if isinstance(module, Normalised) and module._may_be_drawn:
        raise ValueError(
            f"portable: cannot copy {name}: in training its parametrizations may draw weights; call eval() first"
        )
    if "forward" in vars(module):
        raise ValueError(f"portable: cannot copy {name}: a forward was set on the {original.__name__}")
    if isinstance(module, Normalised) and any(module._zoneouts):
        raise ValueError(f"portable: cannot copy {name}: zoneout={module.zoneout} has no plain form")
    if isinstance(module, Normalised) and module.training and math.isfinite(module.recurrence.gate_clip):
        clip = f"gate_clip={module.recurrence.gate_clip}"
        raise ValueError(f"portable: cannot copy {name}: {clip} has no plain form in training; call eval() first")
    if isinstance(module, Recurrent) and module.training and (module.recurrent_dropout or module.variational):
        raise ValueError(
            f"portable: cannot copy {name}: recurrent and variational dropout have no plain form in training; "
            "call eval() first"
        )
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        hooks = f"{original.__name__} has hooks on its forward (pruning adds one) or its backward"
        raise ValueError(f"portable: cannot copy {name}: {hooks}; remove them first")


def check_shape(name: str, tensor: Tensor, expected: list[int]) -> None:
    """Raises an error if a tensor has another shape. A trace is made of the example's shapes, and has no such check."""
    if (torch.jit.is_scripting() or not torch.jit.is_tracing()) and list(tensor.shape) != expected:
        raise RuntimeError(f"expected {name} of size {expected}, got {list(tensor.shape)}")


def raise_unless(fits: Tensor, expected: str, given: Tensor) -> Tensor:
    if not bool(fits):
        raise RuntimeError(f"{expected}, got {given}")
    return fits


def check_values(fits: Tensor, expected: str, given: Tensor) -> Tensor:
    """Returns ``fits``. If it is false, raises an error with what is ``expected``; a trace does so when it runs, and a
    program of `torch.export` never: LiteRT has no operation for it, and ExecuTorch drops it."""
    if not torch.jit.is_scripting():
        if torch.jit.is_tracing():
            return check_in_trace(fits, expected, given)
        if torch.compiler.is_exporting():
            return fits
    return raise_unless(fits, expected, given)


@torch.jit.unused
def check_in_trace(fits: Tensor, expected: str, given: Tensor) -> Tensor:
    """Writes the check into a trace: it keeps branches of scripted functions, and no others."""
    with warnings.catch_warnings():  # `torch.jit.trace` has told whoever called it that TorchScript is deprecated
        warnings.filterwarnings("ignore", "`torch.jit.script` is")
        scripted: Callable[..., Tensor] = torch.jit.script(raise_unless)
    return scripted(fits, expected, given)


class Vectors(NamedTuple):
    """The eight vectors of `VectorTerms`, each the sum of its parameters, or None."""

    gain_x: Tensor | None
    gain_h: Tensor | None
    inside_x: Tensor | None
    inside_h: Tensor | None
    outside_x: Tensor | None
    outside_h: Tensor | None
    gain_c: Tensor | None
    bias_c: Tensor | None


class PortableLayers(torch.nn.Module):
    """The parameters of a recurrent network or cell, and the equations of one step.

    Scripted code reads parameters from a list, as `torch.nn.LSTM` does; Python reads them by name.
    """

    _flat: list[Tensor]
    _terms: list[list[int]]
    _spans: list[tuple[int, int]]

    def __init__(self, module: Normalised, suffixes: list[str]) -> None:
        super().__init__()
        module._follow_attributes()
        r = module.recurrence
        self.hidden_size, self.gates = module.hidden_size, GATES[r.network]
        self._names = [name + suffix for suffix in suffixes for name in r.parameter_names]
        for name, value in zip(self._names, module._parameters_named(self._names), strict=True):
            if not isinstance(value, torch.nn.Parameter):  # weight norm computes it
                value = torch.nn.Parameter(value.detach().clone())
            self.register_parameter(name, value)
        self._flat = [self.get_parameter(name) for name in self._names]
        self._count = len(r.parameter_names)
        self._terms = [[r.parameter_names.index(name) for name in terms] for terms in r.vectors]
        self._projection = r.parameter_names.index("weight_hr") if r.projected else -1
        self._spans = list(r.spans)
        self._network, self._relu, self._rms = r.network, r.nonlinearity == "relu", r.norm == "rms"
        self._sum, self._carry = r.formula.gates == "sum", r.formula.cell == "carry"
        self._multiplies_sum = r.reset_multiplies == "sum"
        self._eps, self._on_deviation = r.formula.eps, r.formula.eps_on == "deviation"
        self._forget_bias = r.formula.forget_bias
        self._repr = module.extra_repr()
        self.train(module.training)

    def __call__(self, input: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(input, Proxy):  # not in `forward`, where TorchScript would compile it
            return fx_call_module(self, input, *args, **kwargs)
        return super().__call__(input, *args, **kwargs)

    def extra_repr(self) -> str:
        return self._repr

    def __prepare_scriptable__(self) -> "PortableLayers":
        """Renews the list of parameters, which may have been replaced. `torch.jit.script` calls this first."""
        self._flat = [self.get_parameter(name) for name in self._names]
        return self

    def parameters_of(self, index: int) -> list[Tensor]:
        """Returns the parameters of one layer and direction."""
        first = index * self._count
        if torch.jit.is_scripting():
            return self._flat[first : first + self._count]
        return [getattr(self, name) for name in self._names[first : first + self._count]]

    def vectors(self, p: list[Tensor]) -> Vectors:
        sums: list[Tensor | None] = []
        for terms in self._terms:
            total: Tensor | None = None
            for k in terms:
                total = p[k] if total is None else total + p[k]
            sums.append(total)
        return Vectors(sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6], sums[7])

    def standardized(self, z: Tensor) -> Tensor:
        """Computes N(z) over the last dimension."""
        if self._on_deviation:
            u = z if self._rms else z - z.mean(-1, keepdim=True)
            return u / ((u * u).mean(-1, keepdim=True).sqrt() + self._eps)
        shape = [z.shape[-1]]
        return torch.rms_norm(z, shape, None, self._eps) if self._rms else torch.layer_norm(z, shape, eps=self._eps)

    def normalised(self, z: Tensor, gain: Tensor | None, first: int) -> Tensor:
        """Computes ``N(z) * gain`` for the gates from ``first`` on, each span by itself. Without a gain it is z."""
        if gain is None:
            return z
        H, n = self.hidden_size, z.shape[-1]
        parts: list[Tensor] = []
        for a, b in self._spans:
            start, end = (a - first) * H, (b - first) * H
            if start >= 0 and end <= n:
                parts.append(self.standardized(z[..., start:end]))
        return torch.cat(parts, -1) * gain[first * H : first * H + n]

    def normalised_side(self, z: Tensor, gain: Tensor | None, inside: Tensor | None, outside: Tensor | None) -> Tensor:
        """Computes one side of the summed inputs, from W x or U h.

        Where the sum of both sides is normalised, this is only what is inside that normalisation.
        """
        if inside is not None:
            z = z + inside
        if self._sum:
            return z
        z = self.normalised(z, gain, 0)
        return z if outside is None else z + outside

    def normalised_sum(self, z: Tensor, v: Vectors, first: int) -> Tensor:
        """Computes the normalisation of a sum, for the gates from ``first`` on."""
        if not self._sum:
            return z
        z = self.normalised(z, v.gain_x, first)
        start = first * self.hidden_size
        for outside in (v.outside_x, v.outside_h):
            if outside is not None:
                z = z + outside[start : start + z.shape[-1]]
        return z

    def step(self, x: Tensor, state: list[Tensor], p: list[Tensor], v: Vectors) -> list[Tensor]:
        """Computes the state after a step, from that step's input side."""
        h = self.normalised_side(state[0] @ p[1].t(), v.gain_h, v.inside_h, v.outside_h)
        if self._network == "LSTM":
            return self.lstm(self.normalised_sum(x + h, v, 0), state[1], p, v)
        if self._network == "GRU":
            return [self.gru(x, h, state[0], v)]
        a = self.normalised_sum(x + h, v, 0)
        return [torch.relu(a) if self._relu else torch.tanh(a)]

    def lstm(self, a: Tensor, c: Tensor, p: list[Tensor], v: Vectors) -> list[Tensor]:
        i, f, g, o = a.chunk(4, -1)
        c = torch.sigmoid(f + self._forget_bias) * c + torch.sigmoid(i) * torch.tanh(g)
        normalised, gain, bias = c, v.gain_c, v.bias_c
        if gain is not None:
            normalised = self.standardized(c) * gain
            if bias is not None:
                normalised = normalised + bias
        h = torch.sigmoid(o) * torch.tanh(normalised)
        if self._projection >= 0:
            h = h @ p[self._projection].t()
        return [h, normalised if self._carry else c]

    def gru(self, x: Tensor, hidden: Tensor, h: Tensor, v: Vectors) -> Tensor:
        two = 2 * self.hidden_size
        if self._multiplies_sum:
            r, z, n = self.normalised_sum(x + hidden, v, 0).chunk(3, -1)
            n = torch.sigmoid(r) * n
        else:
            r, z = self.normalised_sum(x[..., :two] + hidden[..., :two], v, 0).chunk(2, -1)
            n = self.normalised_sum(x[..., two:] + torch.sigmoid(r) * hidden[..., two:], v, 2)
        z = torch.sigmoid(z + self._forget_bias)
        return (1 - z) * torch.tanh(n) + z * h


class PortableNetwork(PortableLayers):
    """Layers and directions (`Recurrent`)."""

    def __init__(self, module: Recurrent) -> None:
        super().__init__(module, module._suffixes)
        self.layers, self.directions = module.num_layers, len(module._directions)
        self.batch_first, self.dropout = module.batch_first, module.dropout
        self.state_sizes = list(module._state_sizes)

    def run_layer(
        self, x: Tensor, state: list[Tensor], index: int, lengths: Tensor | None, reset: Tensor | None, reverse: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """Runs one layer in one direction: output (T, B, P) and final state."""
        p = self.parameters_of(index)
        v = self.vectors(p)
        from_input = self.normalised_side(x @ p[0].t(), v.gain_x, v.inside_x, v.outside_x).unbind()
        T = x.shape[0]
        outputs: list[Tensor] = []
        for s in range(T):
            t = T - 1 - s if reverse else s
            before = state
            cut_t = t + 1 if reverse else t  # a cut before time t is met after step t in the reverse direction
            if reset is not None and cut_t < T:
                cut = reset[cut_t].to(torch.bool)
                cut = cut if lengths is None else cut & (cut_t < lengths)
                before = [torch.where(cut.unsqueeze(-1), torch.zeros_like(part), part) for part in state]
            after = self.step(from_input[t], before, p, v)
            output = after[0]
            if lengths is not None:
                active = (t < lengths).unsqueeze(-1)
                output = torch.where(active, output, torch.zeros_like(output))
                after = [torch.where(active, after[k], state[k]) for k in range(len(state))]
            state = after
            outputs.append(output)
        if reverse:
            outputs.reverse()
        no_steps = state[0].unsqueeze(0)[:0]
        return torch.stack(outputs) if T > 0 else no_steps, state

    def check(self, input: Tensor, hx: list[Tensor], lengths: Tensor | None, reset: Tensor | None) -> None:
        """Refuses what `Recurrent.forward` refuses, and plain operations would take."""
        if input.dim() != 2 and input.dim() != 3:
            raise ValueError(f"Expected input to be 2D or 3D, got {input.dim()}D instead")
        sizes = list(input.shape[:-1])  # T, and B if there is a batch, in the input's order
        time, batch = (1, 0) if self.batch_first and len(sizes) == 2 else (0, 1)
        for k, part in enumerate(hx):
            expected = [self.layers * self.directions, self.state_sizes[k]]
            if len(sizes) == 2:
                expected.insert(1, sizes[batch])
            check_shape("hidden h" if k == 0 else "hidden c", part, expected)
        if lengths is not None:
            if len(sizes) == 1:
                raise ValueError(f"lengths needs a batch, got unbatched input {list(input.shape)}")
            check_shape("lengths", lengths, [sizes[batch]])
            if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
                raise RuntimeError(f"expected lengths of an integer type, got {lengths.dtype}")
            wide = lengths.to(torch.int64)  # T may be too large for a narrow type
            fits = ((wide >= 0) & (wide <= sizes[time])).all()
            check_values(fits, "lengths must lie in 0..T, the time steps of the input", lengths)
        if reset is not None:
            check_shape("reset", reset, sizes)
            if reset.dtype != torch.bool:
                fits = ((reset == 0) | (reset == 1)).all()
                check_values(fits, "expected reset to be bool, or to hold only 0 and 1", reset)

    def run(
        self, input: Tensor, hx: list[Tensor], lengths: Tensor | None, reset: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Runs a padded or unbatched input as `Recurrent.forward` does. ``hx``: the state's parts; empty: zeros."""
        self.check(input, hx, lengths, reset)
        if lengths is not None:
            lengths = lengths.to(torch.int64)  # torch compares no uint16 with a number
        batched = input.dim() == 3
        x = input if batched else input.unsqueeze(1)
        if batched and self.batch_first:
            x = x.transpose(0, 1)
            reset = None if reset is None else reset.t()
        if reset is not None and not batched:
            reset = reset.unsqueeze(1)
        rows = self.layers * self.directions
        if len(hx) == 0:
            hx = [x.new_zeros([rows, x.shape[1], size]) for size in self.state_sizes]
        elif not batched:
            hx = [part.unsqueeze(1) for part in hx]
        finals: list[list[Tensor]] = [[] for _ in self.state_sizes]
        for layer in range(self.layers):
            outputs: list[Tensor] = []
            for direction in range(self.directions):
                index = layer * self.directions + direction
                output, final = self.run_layer(x, [part[index] for part in hx], index, lengths, reset, direction == 1)
                outputs.append(output)
                for k in range(len(finals)):
                    finals[k].append(final[k])
            x = torch.cat(outputs, -1)
            if layer < self.layers - 1 and self.dropout > 0:
                x = torch.nn.functional.dropout(x, self.dropout, self.training)
        state = [torch.stack(part) for part in finals]
        if not batched:
            return x.squeeze(1), [part.squeeze(1) for part in state]
        return x.transpose(0, 1) if self.batch_first else x, state


class PortableRecurrent(PortableNetwork):
    """`RNN` or `GRU` on plain PyTorch operations."""

    def forward(
        self, input: Tensor, hx: Tensor | None = None, lengths: Tensor | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        output, state = self.run(input, [] if hx is None else [hx], lengths, reset)
        return output, state[0]


class PortableLSTM(PortableNetwork):
    """`LSTM` on plain PyTorch operations."""

    def forward(
        self,
        input: Tensor,
        hx: tuple[Tensor, Tensor] | None = None,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        output, state = self.run(input, [] if hx is None else [hx[0], hx[1]], lengths, reset)
        return output, (state[0], state[1])


class PortableStep(PortableLayers):
    """One step of one layer (`RecurrentCell`)."""

    def __init__(self, module: RecurrentCell) -> None:
        super().__init__(module, [""])

    def take_step(self, input: Tensor, state: list[Tensor]) -> list[Tensor]:
        if input.dim() != 1 and input.dim() != 2:
            raise ValueError(f"Expected input to be 1D or 2D, got {input.dim()}D instead")
        expected = list(input.shape)
        expected[-1] = self.hidden_size
        for k, part in enumerate(state):
            check_shape("hidden h" if k == 0 else "hidden c", part, expected)
        p = self.parameters_of(0)
        v = self.vectors(p)
        return self.step(self.normalised_side(input @ p[0].t(), v.gain_x, v.inside_x, v.outside_x), state, p, v)

    def zeros(self, input: Tensor) -> Tensor:
        shape = list(input.shape)
        shape[-1] = self.hidden_size
        return input.new_zeros(shape)


class PortableCell(PortableStep):
    """`RNNCell` or `GRUCell` on plain PyTorch operations."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self.take_step(input, [self.zeros(input) if hx is None else hx])[0]


class PortableLSTMCell(PortableStep):
    """`LSTMCell` on plain PyTorch operations."""

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        state = [self.zeros(input), self.zeros(input)] if hx is None else [hx[0], hx[1]]
        h, c = self.take_step(input, state)
        return h, c


_TABLE: dict[type[torch.nn.Module], Any] = {
    # layernorm's class: the class of its copy, which for a norm is torch's
    RNN: PortableRecurrent,
    GRU: PortableRecurrent,
    LSTM: PortableLSTM,
    RNNCell: PortableCell,
    GRUCell: PortableCell,
    LSTMCell: PortableLSTMCell,
    LayerNorm: torch.nn.LayerNorm,
    RMSNorm: torch.nn.RMSNorm,
    BatchNorm: torch.nn.BatchNorm1d,
}


def _portable_module(module: torch.nn.Module) -> torch.nn.Module:
    """Makes the plain module that takes the place of one of layernorm's."""
    plain_class = _TABLE[own_class(module)]
    if isinstance(module, Normalised):
        return plain_class(module)
    module.__class__ = plain_class  # layernorm's norms have the attributes of torch's, and only another forward
    return module
