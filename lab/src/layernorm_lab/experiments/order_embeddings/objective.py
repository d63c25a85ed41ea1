"""The two losses of image-sentence ranking, and the rank of the right item."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

ELEMENTS = 2**17
"""The number of elements of the differences in memory at a time: half a megabyte stays in a CPU's cache."""


class _OrderPenalty(torch.autograd.Function):
    """The penalties of all pairs, some rows at a time. The whole `[S, V, D]` would take most of an update's time."""

    @staticmethod
    def forward(ctx: Any, sentences: Tensor, images: Tensor) -> Tensor:
        ctx.save_for_backward(sentences, images)
        # allocated at once: small pieces between large ones that are freed would let the heap grow
        penalty = sentences.new_empty(len(sentences), len(images))
        for rows, excess in _excess(sentences, images):
            torch.sum(excess.square_(), -1, out=penalty[rows])
        return penalty

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        sentences, images = ctx.saved_tensors
        for_sentences, for_images = torch.empty_like(sentences), torch.zeros_like(images)
        for rows, excess in _excess(sentences, images):
            weighted = excess.mul_(2 * grad[rows].unsqueeze(-1))
            for_sentences[rows] = weighted.sum(1)
            for_images -= weighted.sum(0)
        return for_sentences, for_images


def _excess(sentences: Tensor, images: Tensor) -> Any:
    """Computes max(0, s - v) for all pairs: slices of the sentences, each with its part `[rows, V, D]` in one
    memory."""
    step = max(1, ELEMENTS // max(1, images.numel()))
    memory = sentences.new_empty(min(step, len(sentences)), *images.shape)
    for start in range(0, len(sentences), step):
        rows = slice(start, start + step)
        part = sentences[rows].unsqueeze(1)
        yield rows, torch.sub(part, images, out=memory[: len(part)]).clamp_(min=0)


def penalties(sentences: Tensor, images: Tensor, similarity: str) -> Tensor:
    r"""Computes the penalty of each sentence with each image. Lower means a better fit.

    .. math::
        E(s, v) &= \sum_d \max(0, s_d - v_d)^2 \quad\text{(order)} \\
        E(s, v) &= -s \cdot v \quad\text{(cosine)}

    Args:
        sentences: `[S, D]`, each of length 1.
        images: `[V, D]`, each of length 1.
        similarity: "order" or "cosine".

    Returns:
        `[S, V]`.

    Source: Vendrov, Kiros, Fidler, Urtasun, "Order-Embeddings of Images and Language", 2016, eq. 2 and section 5.1.
    """
    if similarity == "cosine":
        with torch.autocast(sentences.device.type, enabled=False):  # the margin needs more digits than bfloat16 has
            return -(sentences @ images.T)
    return _OrderPenalty.apply(sentences, images)


def ranking_loss(penalty: Tensor, margin: float) -> Tensor:
    r"""Computes the hinge loss over all wrong pairs of a batch, summed.

    .. math:: \sum_{i \ne j} \max(0, m - E_{ij} + E_{ii}) + \max(0, m - E_{ij} + E_{jj})

    Args:
        penalty: `[B, B]`; sentence i belongs to image i.
        margin: m.
    """
    right = penalty.diagonal()
    wrong_image = (margin - penalty + right.unsqueeze(1)).clamp(min=0)
    wrong_sentence = (margin - penalty + right.unsqueeze(0)).clamp(min=0)
    off_diagonal = 1 - torch.eye(len(penalty), dtype=penalty.dtype, device=penalty.device)
    return ((wrong_image + wrong_sentence) * off_diagonal).sum()


def ranks(penalty: Tensor, captions: int) -> tuple[Tensor, Tensor]:
    """Ranks the right items, from 0, by the penalties `[captions * V, V]`, in which the sentences from `captions * i`
    on belong to image i. A wrong item with the same penalty is ranked before it. Returns for each image the best rank
    of its captions among all captions, int64 `[V]`; and for each caption the rank of its image among all images, int64
    `[captions * V]`."""
    images = penalty.shape[1]
    own = torch.arange(images, device=penalty.device).repeat_interleave(captions)
    right = penalty.gather(1, own.unsqueeze(1))
    image_rank = (penalty <= right).sum(1) - 1  # the sum counts the right image itself
    best = right.view(images, captions).amin(1)
    before = penalty <= best
    before[torch.arange(len(own), device=penalty.device), own] = False  # an image's own captions do not count
    return before.sum(0), image_rank


def recalls(rank: Tensor, prefix: str) -> dict[str, float]:
    """Computes R@1, R@5 and R@10 in percent, mean and median rank from 1, as metrics named `prefix_r1` and so on."""
    metrics = {f"{prefix}_r{count}": 100.0 * float((rank < count).double().mean()) for count in (1, 5, 10)}
    metrics[f"{prefix}_mean_rank"] = float(rank.double().mean()) + 1
    metrics[f"{prefix}_median_rank"] = float(rank.double().quantile(0.5).floor()) + 1
    return metrics
