"""The op behind `rnn`, `lstm` and `gru`, with its gradient."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_type_hints

import torch
from torch import Tensor
from torch._C import _get_fp32_precision_getter

from ..equations.arguments import NO_CHANGES, RecurrentArguments, StateChanges
from ..equations.checks import check_lengths, check_recurrent, check_tensors
from ..equations.recurrent import recurrent_equations
from ..formula import CACHED, Recurrence
from ._autocast import cast_by_autocast, cast_projected, type_under_autocast
from ._bind import Arguments, Op, autocast_type, constant_in_graph, gradients_of_equations, is_eager, is_transforming


def recurrent(a: RecurrentArguments) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Runs one layer in one direction: (output, final state, moments that batch norm has found).

    Under autocast it computes in the type that torch's cell of the same name has (`type_under_autocast`). Integers and
    float64 are left as they are. Products of float32 are made as torch's switches say at this call, in its backward as
    well, and under autocast to bfloat16 of numbers that are rounded to it. The population may be of any floating type.
    """
    autocast = autocast_type(a.input)
    if autocast is not None:
        a = cast_by_autocast(a, type_under_autocast(a.recurrence.network, autocast, a.state))
    if a.population:
        compute_type = torch.promote_types(a.input.dtype, torch.float32)
        a = a._replace(population=[moment.to(compute_type) for moment in a.population])
    encoded = a.recurrence.encoded
    if a.input.dtype is torch.float32:
        encoded = with_products(encoded, autocast)
    tensors = a.tensors
    if is_eager(tensors):
        if encoded is not a.recurrence.encoded:
            a = a._replace(recurrence=Recurrence.decode(encoded))
        output, *results = RECURRENT(tensors, (a,), a.recurrence)
    else:
        output, *results = RECURRENT.dispatch(_flatten(a, encoded))
    final, moments = results[: len(a.state)], results[len(a.state) :]
    return *((output, final) if autocast is None else cast_projected(output, final, autocast)), moments


@constant_in_graph
def with_products(recurrence: str, autocast: torch.dtype | None) -> str:
    """Returns the recurrence with bfloat16 products, if autocast asks for that type or torch's switches allow them:
    those of its recurrent networks (``torch.backends.mkldnn.rnn.fp32_precision``) or, where these say nothing, those of
    matrix products (``torch.set_float32_matmul_precision``)."""
    if autocast is torch.bfloat16:
        return _with_bfloat16_products(recurrence)
    precision = _get_fp32_precision_getter("mkldnn", "rnn")
    if precision == "none":
        precision = _get_fp32_precision_getter("mkldnn", "matmul")
    return _with_bfloat16_products(recurrence) if precision == "bf16" else recurrence


@functools.lru_cache(CACHED)
def _with_bfloat16_products(recurrence: str) -> str:
    return replace(Recurrence.decode(recurrence), bfloat16_products=True).encoded


_SCHEMA: dict[Any, str] = {
    # what a field is in the op's schema, by its type
    Tensor: "Tensor {0}",
    Tensor | None: "Tensor? {0}",
    Sequence[Tensor]: "Tensor[] {0}",
    Sequence[Tensor | None]: "Tensor? {0}_h, Tensor? {0}_c",  # `torch.jit.trace` takes no list that has None
    Recurrence: "str {0}",
    bool: "bool {0}",
}


def _schema(arguments: type) -> str:
    """Writes the fields of a class as a schema has them."""
    types = get_type_hints(arguments).items()
    return ", ".join(_schema(t) if t is StateChanges else _SCHEMA[t].format(name) for name, t in types)


def _flatten(a: RecurrentArguments, recurrence: str) -> Arguments:
    """Returns the fields as the schema has them, with the equations as a string."""
    restart, dropout, kept = a.changes
    return *a[:3], recurrence, restart, dropout, *(*kept, None, None)[:2], *a[5:]


def _gather(flat: Arguments) -> RecurrentArguments:
    """Returns the arguments that `_flatten` has taken apart."""
    input, state, params, recurrence, restart, dropout, *kept = flat[:8]
    shares = () if kept == [None, None] else tuple(kept[: len(state)])
    changes = StateChanges(restart, dropout, shares) if restart or dropout is not None or shares else NO_CHANGES
    return RecurrentArguments(input, state, params, Recurrence.decode(recurrence), changes, *flat[8:])


class _Recurrent(Op):
    """[output (T, B, P), *final state], and the moments that batch norm has found, which have no gradient: mean and
    variance (T, n) of each gain. In a packed call the output is (lines, P)."""

    name = "recurrent"
    arguments = _schema(RecurrentArguments) + ", "
    forward = ""
    backward = "Tensor[] saved, Tensor? grad_output, Tensor?[] grad_state, "

    def engine_arguments(self, flat: Arguments) -> Arguments:
        own = self.arguments.count(",")
        return _gather(flat[:own]), *flat[own:]

    def schema_arguments(self, args: Arguments) -> Arguments:
        a, *rest = args
        return *_flatten(a, a.recurrence.encoded), *rest

    def fake(self, a: RecurrentArguments) -> list[Tensor]:
        check_tensors(a)
        output = a.input.new_empty(*a.lines, a.params[1].shape[1])
        return [output, *(s.new_empty(s.shape) for s in a.state), *a.new_moments()]

    def equations(self, a: RecurrentArguments) -> list[Tensor]:
        check_recurrent(a)
        return recurrent_equations(a)

    def decomposition(self, *flat: Any) -> list[Tensor]:
        (a,) = self.engine_arguments(flat[:-1])
        if a.batch_sizes is not None:
            network = a.recurrence.network
            raise ValueError(f"{network}: a PackedSequence has no plain operations; call the module with lengths=")
        check_tensors(a)
        T = a.input.shape[0]
        if not isinstance(T, int):
            raise ValueError(
                f"{a.recurrence.network.lower()}: plain operations are those of every step, so that the number of "
                f"time steps must be fixed; export the model without a dynamic dimension for it, got T={T}"
            )
        if a.lengths is not None:
            check_lengths(a.lengths, T, in_graph=True)
        return recurrent_equations(a)

    def save(self, ctx: Any, args: Arguments, results: Sequence[Tensor]) -> Sequence[Tensor]:
        a: RecurrentArguments = args[0]
        if a.recurrence.quantized:  # in a graph that was exported, nothing has asked before
            network = a.recurrence.network.lower()
            raise RuntimeError(
                f"{network}: a quantized network is for inference, got a tensor that requires grad; "
                "call it under torch.no_grad()"
            )
        tensors, n = a.tensors, 1 + len(a.state)
        ctx.call = a.with_tensors([()] * len(tensors))  # which of them there are
        ctx.save_for_backward(*tensors, *results[n:])
        if a.finds_moments:
            found = 2 * len(a.recurrence.gain_names)
            ctx.mark_non_differentiable(*results[n : n + found])
            n += found
        return results[:n]

    def gradients(self, ctx: Any, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        call, tensors = ctx.call, ctx.saved_tensors  # unpacked each time that it is asked for
        n, end, states = len(call.tensors), len(call.differentiable), 1 + len(call.state)
        masks, saved = tensors[end:n], tensors[n:]

        def equations(*inputs: Tensor) -> list[Tensor]:
            return recurrent_equations(call.with_tensors([*inputs, *masks]))

        if torch.is_grad_enabled() or is_transforming():
            d_inputs: list[Tensor | None] = [*gradients_of_equations(equations, tensors[:end], grads)]
        else:
            given = [*tensors, *[g for g in grads if g is not None]]
            args = call.with_tensors(tensors[:n]), saved, grads[0], grads[1:states]
            d_inputs = [*self.run_backward(given, ctx.backend, args)]
        return d_inputs + [None] * len(masks)


RECURRENT = _Recurrent()
