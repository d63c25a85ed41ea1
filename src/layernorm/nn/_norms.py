"""Feed-forward normalisations as modules: subclasses of torch's own that run on layernorm's ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor
from torch.fx import Proxy

from ..functional import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from ._tracing import fx_call_module, not_scriptable


class LayerNorm(torch.nn.LayerNorm):
    r"""Layer normalisation over the last dimensions, eq. 3.

    .. math:: y = \frac{x - \mathrm{mean}(x)}{\sqrt{\mathrm{var}(x) + \epsilon}} \cdot gain + bias

    Constructor and state dict are those of `torch.nn.LayerNorm`. The gain is ``weight`` (initially 1), the bias is
    ``bias`` (initially 0), both of shape ``normalized_shape``. Input and output have shape ``(*, *normalized_shape)``.
    See `layernorm.functional.layer_norm` for types and errors.

    Called with a second tensor ``residual``, of the input's shape, the module returns ``(y, input + residual)``, where
    y normalises the sum. A pre-norm network's ``y, x = norm(branch, x)`` then reads and writes memory once.

    Source: Ba, Kiros, Hinton, "Layer Normalization", 2016, arXiv:1607.06450, eq. 3.
    """

    __prepare_scriptable__ = not_scriptable

    @overload
    def forward(self, input: Tensor) -> Tensor: ...
    @overload
    def forward(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]: ...
    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        if isinstance(input, Proxy):
            return fx_call_module(self, input, residual)
        if residual is None:
            return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
        return add_layer_norm(input, residual, self.normalized_shape, self.weight, self.bias, self.eps)

    if TYPE_CHECKING:

        @overload
        def __call__(self, input: Tensor) -> Tensor: ...
        @overload
        def __call__(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]: ...
        def __call__(self, *args: Tensor, **kwargs: Tensor) -> Any: ...


class RMSNorm(torch.nn.RMSNorm):
    r"""RMS normalisation over the last dimensions.

    .. math:: y = \frac{x}{\sqrt{\mathrm{mean}(x^2) + \epsilon}} \cdot gain

    Constructor and state dict are those of `torch.nn.RMSNorm`. See `layernorm.functional.rms_norm` for types and
    errors, and `LayerNorm` for the second argument ``residual``.

    Source: Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv:1910.07467.
    """

    __prepare_scriptable__ = not_scriptable

    @overload
    def forward(self, x: Tensor) -> Tensor: ...
    @overload
    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]: ...
    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        if isinstance(x, Proxy):
            return fx_call_module(self, x, residual)
        if residual is None:
            return rms_norm(x, self.normalized_shape, self.weight, self.eps)
        return add_rms_norm(x, residual, self.normalized_shape, self.weight, self.eps)

    if TYPE_CHECKING:

        @overload
        def __call__(self, x: Tensor) -> Tensor: ...
        @overload
        def __call__(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]: ...
        def __call__(self, *args: Tensor, **kwargs: Tensor) -> Any: ...


class BatchNorm(torch.nn.BatchNorm1d):
    r"""Batch normalisation of ``(B, N)`` or ``(B, N, L)``, with the choice of variance that section 6.6 needs.

    .. math:: y = \frac{x - \mathrm{mean}_B(x)}{\sqrt{\mathrm{var}_B(x) + \epsilon}} \cdot gain + bias

    Constructor and state dict are those of `torch.nn.BatchNorm1d`, with one more keyword.

    Args:
        unbiased: whether training normalises by the unbiased variance (divided by n - 1), as the paper does at batch
            size 4. torch normalises by the biased variance (divided by n). The population variance is unbiased in both.

    Raises:
        ValueError: in training, when a unit has only one value. In any mode, when the input is not 2D or 3D.

    Source: Ioffe, Szegedy, "Batch Normalization", 2015, arXiv:1502.03167.
    """

    __prepare_scriptable__ = not_scriptable

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        unbiased: bool = False,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.unbiased = unbiased

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy):
            return fx_call_module(self, input)
        batch_statistics = self.training or self.running_mean is None
        if not (self.unbiased and batch_statistics):
            return super().forward(input)
        self._check_input_dim(input)
        # With the biased variance var: var * n/(n-1) + eps = (var + eps (n-1)/n) * n/(n-1). So the unbiased variance is
        # the biased one with another eps and a smaller gain.
        n = input.numel() // max(input.shape[1], 1)
        shrink = (n - 1) / n if n > 1 else 1.0  # of fewer cases torch tells
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else momentum
        like = input if self.running_mean is None else self.running_mean
        gain = like.new_ones(self.num_features) if self.weight is None else self.weight
        running = (self.running_mean, self.running_var) if self.track_running_stats else (None, None)
        return torch.nn.functional.batch_norm(
            input, *running, gain * shrink**0.5, self.bias, True, momentum, self.eps * shrink
        )

    if TYPE_CHECKING:

        def __call__(self, input: Tensor) -> Tensor: ...
