"""Section 3.1's "more stable hidden-to-hidden dynamics" in numbers: Lyapunov exponents, and gradients against lag."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from . import _checks

Step = Callable[[Tensor, Tensor], Tensor]
"""``step(input (B, ...), state (B, N)) -> state (B, N)``; no case depends on another."""


class Dynamics(NamedTuple):
    """The step of a recurrent module and its initial state, as `lyapunov` and `gradient_by_lag` take them."""

    step: Step
    state: Tensor  # (B, N), zeros: the state to start from


def dynamics(module: torch.nn.Module, cases: int) -> Dynamics:
    r"""Makes the step of a recurrent module on its whole state: h, in an LSTM h and c, of all layers together.

    .. math:: s_t = F(x_t, s_{t-1}), \qquad s = (h^1, ..., h^L, c^1, ..., c^L)

    With several layers F takes one step of each, the lowest first, so that the exponents are those of the whole stack.

    Args:
        module: an `RNN`, `LSTM`, `GRU` or one of their cells, of layernorm or of torch, with any ``norm`` but
            ``"batch"``.
        cases: B, the number of training cases.

    Returns:
        `Dynamics`, in the type and on the device of the module's parameters. Call ``module.double()`` first for more
        digits, and for `lyapunov` of torch's LSTM, which has no forward mode in float32.

    Raises:
        TypeError: the module is no such network.
        ValueError: the module is bidirectional, and has no step from state to state; it has batch norm, under which
            every case depends on the others; or it would draw dropout or zoneout.

    Source: this library.
    """
    network = recurrent_module(module)
    _checks.whole("cases", cases, 1)

    def advanced(x: Tensor, hx: Any) -> Any:
        if not hasattr(network, "num_layers"):  # a cell
            return network(x, hx)
        return network(x.unsqueeze(1 if network.batch_first else 0), hx)[1]

    weight = next(network.parameters())
    with torch.no_grad():
        like = advanced(weight.new_zeros(cases, network.input_size), None)
    pair = not isinstance(like, Tensor)
    parts = [part.movedim(-2, 0) for part in (like if pair else [like])]  # (B, L, n), of a cell (B, n)
    sizes = [part[0].numel() for part in parts]

    def step(x: Tensor, state: Tensor) -> Tensor:
        split = zip(state.split(sizes, 1), parts, strict=True)
        hx = tuple(s.reshape(part.shape).movedim(0, -2) for s, part in split)
        after = advanced(x, hx if pair else hx[0])
        return torch.cat([part.movedim(-2, 0).flatten(1) for part in (after if pair else [after])], 1)

    return Dynamics(step, weight.new_zeros(cases, sum(sizes)))


def recurrent_module(module: object) -> Any:
    """Checks that a module is a recurrent network or cell whose step is the same function of every case."""
    if not isinstance(module, torch.nn.Module) or not hasattr(module, "hidden_size"):
        raise TypeError(
            f"expected module to be an RNN, LSTM, GRU or one of their cells, got {type(module).__name__}; for another "
            "network, pass its own step to lyapunov"
        )
    network: Any = module
    if getattr(network, "bidirectional", False):
        raise ValueError("a bidirectional network has no step from state to state; pass one of its directions")
    if getattr(network, "norm", None) == "batch":
        raise ValueError("under batch norm a case's step depends on the other cases, so that no case has exponents")
    drawn = [torch.tensor(getattr(network, name, 0.0)) for name in ("dropout", "recurrent_dropout", "zoneout")]
    if network.training and any(share.any() for share in drawn):
        raise ValueError("with dropout or zoneout every step is a different function; call module.eval() first")
    if hasattr(network, "_follow_attributes"):
        network._follow_attributes()
    return network


class Lyapunov(NamedTuple):
    """Lyapunov exponents in nats per step, the largest first. A small change grows as exp(exponent * steps)."""

    exponents: Tensor  # (k,), the mean over the cases
    cases: Tensor  # (B, k), those of each case


def lyapunov(
    step: Step,
    state: Tensor,
    inputs: Tensor,
    *,
    k: int = 1,
    warmup: int = 0,
    tangents: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Lyapunov:
    r"""Computes the k largest Lyapunov exponents, in nats per step, of a recurrent network that is driven by given
    inputs.

    .. math:: J_t Q_{t-1} = Q_t R_t, \qquad J_t = \frac{\partial s_t}{\partial s_{t-1}}, \qquad
              \lambda_i = \frac{1}{T - warmup} \sum_{t > warmup} \log |R_t|_{ii}

    k tangent vectors are carried along the trajectory in forward mode and made orthonormal after every step. No
    Jacobian is formed. With an exponent above 0 a small change of the state grows; with one below 0 it is forgotten.
    The inputs do not depend on the state.

    Args:
        step: one step of all cases, such as `dynamics` makes: ``step(input, state) -> state``. It runs under
            `torch.func`.
        state: ``(B, N)``, the state to start from. The computation is in its type.
        inputs: ``(T, B, ...)``, the input of each step.
        k: the number of exponents, 1 to N.
        warmup: the number of steps at the start that are not counted. They only turn the tangents.
        tangents: ``(B, N, k)``, the tangents to start from. None: they are drawn at random.
        generator: draws the tangents.

    Returns:
        `Lyapunov`. An exponent is -infinity where the state forgets a direction completely, as a dead ReLU does.

    Raises:
        ValueError: a shape does not fit; k or warmup is out of range; or the state does not stay finite.
        TypeError: state, inputs or tangents is no floating-point tensor, or k or warmup no int.

    Source: Benettin et al. 1980; Engelken, Wolf, Abbott 2023, "Lyapunov spectra of chaotic recurrent neural networks".
    """
    B, N = _checks.shaped("state", state, "B", "N").shape
    T = steps_of(inputs, B)
    _checks.whole("k", k, 1, N)
    _checks.whole("warmup", warmup, 0, T - 1)
    if tangents is None:
        tangents = torch.randn(B, N, k, generator=generator, dtype=torch.float64).to(state)
    _checks.shaped("tangents", tangents, B, N, k)
    total = state.new_zeros(B, k)
    Q = torch.linalg.qr(tangents.to(state)).Q
    with torch.no_grad():
        for t, x in enumerate(inputs):

            def moved(s: Tensor, x: Tensor = x) -> Tensor:
                return step(x, s)

            def along(v: Tensor, s: Tensor = state, F: Callable[[Tensor], Tensor] = moved) -> Any:
                return torch.func.jvp(F, (s,), (v,))

            # The state is the same for every tangent. The annotation of vmap does not allow None for that, hence the
            # cast.
            state, JQ = torch.func.vmap(along, in_dims=2, out_dims=cast(Any, (None, 2)))(Q)
            Q, R = torch.linalg.qr(stays_finite(JQ, t))
            if t >= warmup:
                total += R.diagonal(dim1=-2, dim2=-1).abs().log()
    cases = total / (T - warmup)
    return Lyapunov(cases.mean(0), cases)


def gradient_by_lag(
    step: Step,
    state: Tensor,
    inputs: Tensor,
    *,
    cotangents: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Computes the logarithm of a gradient's norm after it has gone back 0 to T steps.

    .. math:: \log \|v_{T-lag}\|, \qquad v_{t-1} = J_t^T v_t, \qquad v_T = \frac{\partial loss}{\partial s_T}

    It is a logarithm because the norm itself may leave the range of floating-point numbers within a hundred steps.

    Args:
        step, state, inputs: as in `lyapunov`.
        cotangents: ``(B, N)``, v_T, such as the gradient of a loss with respect to the last state. None: directions of
            norm 1 drawn at random. The result then measures only the Jacobian product ``d s_T / d s_{T-lag}``.
        generator: draws the directions.

    Returns:
        Natural logarithms ``(T + 1, B)``, lag 0 first.

    Raises:
        ValueError, TypeError: as in `lyapunov`.

    Source: Ba, Kiros, Hinton 2016, section 3.1; Pascanu, Mikolov, Bengio 2013.
    """
    B, N = _checks.shaped("state", state, "B", "N").shape
    steps_of(inputs, B)
    if cotangents is None:
        cotangents = torch.randn(B, N, generator=generator, dtype=torch.float64)
        cotangents = cotangents / cotangents.norm(dim=1, keepdim=True)
    v = _checks.shaped("cotangents", cotangents, B, N).to(state)
    if not v.isfinite().all():
        raise ValueError("expected cotangents to be finite, got NaN or infinity")
    states = [state.detach()]
    with torch.no_grad():
        for t, x in enumerate(inputs):
            states.append(stays_finite(step(x, states[-1]), t))
    size = v.norm(dim=1)
    logs = [size.log()]
    v = torch.where(size[:, None] > 0, v / size[:, None], v)
    for x, before in zip(reversed(inputs), reversed(states[:-1]), strict=True):
        with torch.enable_grad():
            leaf = before.requires_grad_()
            (v,) = torch.autograd.grad(step(x, leaf), leaf, v)
        size = v.norm(dim=1)
        logs.append(logs[-1] + size.log())
        v = torch.where(size[:, None] > 0, v / size[:, None], v)  # a gradient that has vanished stays 0
    return torch.stack(logs)


def steps_of(inputs: Tensor, B: int) -> int:
    """Returns T of inputs (T, B, ...)."""
    if not isinstance(inputs, Tensor):
        raise TypeError(f"expected inputs to be a Tensor, got {type(inputs).__name__}")
    if inputs.dim() < 2 or inputs.shape[1] != B or not len(inputs):
        raise ValueError(f"expected inputs of shape (T, {B}, ...), T at least 1, got {tuple(inputs.shape)}")
    return len(inputs)


def stays_finite(state: Tensor, t: int) -> Tensor:
    if not state.isfinite().all():
        raise ValueError(f"expected the state to stay finite, got NaN or infinity at step {t}")
    return state
