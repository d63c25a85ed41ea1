"""The network of experiment 6.2, the attentive reader."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layernorm.nn import LSTM, BatchNorm, BatchNormOverTime, Norm

from ...train.batches import INIT, derive_seed
from .config import BATCH_GAIN, Config

PROJECTIONS = ("passage", "question", "context", "asked", "mean")
"""The five linear maps that `batch-everywhere` also normalises: the attention's W_c h and W_q q, and the output's U_1,
U_2 and U_3."""


def masked_softmax(scores: Tensor, lengths: Tensor) -> Tensor:
    r"""Computes the softmax over the first steps of each column.

    .. math:: a_t = e^{s_t} / \sum_{t' < length} e^{s_{t'}} \quad\text{for } t < length, \text{ else } 0

    Args:
        scores: `[T, B]`.
        lengths: int64 `[B]`, each at least 1.
    """
    inside = torch.arange(len(scores), device=scores.device).unsqueeze(1) < lengths
    return scores.masked_fill(~inside, -math.inf).softmax(0)


class Reader(nn.Module):
    r"""The attentive reader of Hermann et al. (2015), with one direction.

    .. math::
        H &= \mathrm{LSTM}_d(\text{passage}), \quad q = \text{last state of } \mathrm{LSTM}_q(\text{question}) \\
        m_t &= \tanh(W_c h_t + b + W_q q + (B h_t) \cdot (B q)) \\
        a &= \mathrm{softmax}(w \cdot m_t), \quad c = \sum_t a_t h_t \\
        g &= \tanh(U_1 c + U_2 q + b + U_3 \mathrm{mean}(h)), \quad \text{logits} = W g + b

    Args:
        vocabulary: number of word ids.
        steps: the lengths of the longest passage and question. Recurrent batch norm has statistics for each step.
        config: sizes, norm and dropout.
    """

    def __init__(self, vocabulary: int, steps: tuple[int, int], config: Config) -> None:
        super().__init__()
        H = config.hidden
        norms: list[Norm] = [BatchNormOverTime(max_steps=count, count_padding=True) for count in steps]
        if config.norm in ("none", "layer"):
            norms = ["layer" if config.norm == "layer" else None] * len(steps)
        gain = None if config.norm == "none" else config.gain_init
        self.dropout = config.dropout
        self.words = nn.Embedding(vocabulary, config.words)
        self.passage_lstm, self.question_lstm = (LSTM(config.words, H, norm=norm, gain_init=gain) for norm in norms)
        self.starts = nn.Parameter(torch.empty(2, H))  # the initial h of both LSTMs; c begins at 0
        self.maps = nn.ModuleDict({name: nn.Linear(H, H, bias=False) for name in PROJECTIONS})
        everywhere = PROJECTIONS if config.norm == "batch-everywhere" else ()
        self.norms = nn.ModuleDict({name: BatchNorm(H) for name in everywhere})
        self.attention_bias, self.output_bias = (nn.Parameter(torch.empty(H)) for _ in range(2))
        self.similarity = nn.Linear(H, H, bias=False)
        self.attention = nn.Parameter(torch.empty(H))
        self.answer = nn.Linear(H, vocabulary)

    def forward(self, passage: Tensor, lengths: Tensor, question: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
        """Answers questions `[Q, B]` about passages `[T, B]`, both padded ids, `asked` and `lengths` `[B]` being their
        lengths. Returns logits `[B, V]` and attention `[T, B]`."""
        h, _ = self._states(self.passage_lstm, 0, passage, lengths)  # [T, B, H], 0 beyond a length
        _, q = self._states(self.question_lstm, 1, question, asked)  # [B, H]
        attention = masked_softmax(self._scores(h, q, lengths), lengths)
        context = torch.einsum("tb,tbh->bh", attention, h)
        mean = h.sum(0) / lengths.unsqueeze(1)
        parts = [self._mapped(name, item) for name, item in (("context", context), ("asked", q), ("mean", mean))]
        g = torch.tanh(parts[0] + parts[1] + self.output_bias + parts[2])
        return self.answer(F.dropout(g, self.dropout, self.training)), attention

    def _states(self, lstm: LSTM, which: int, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the states of an LSTM at every step, and each sequence's last."""
        embedded = F.dropout(self.words(ids), self.dropout, self.training)
        start = self.starts[which].expand(1, ids.shape[1], -1).contiguous()
        states, (last, _) = lstm(embedded, (start, torch.zeros_like(start)), lengths=lengths)
        return states, last[0]

    def _scores(self, h: Tensor, q: Tensor, lengths: Tensor) -> Tensor:
        """Computes w . m_t, `[T, B]`."""
        if "passage" in self.norms:  # padding does not count in the statistics
            inside = torch.arange(len(h), device=h.device).unsqueeze(1) < lengths
            projected = h.new_zeros(h.shape).masked_scatter(inside.unsqueeze(2), self._mapped("passage", h[inside]))
        else:
            projected = self._mapped("passage", h)
        # (B h) . (B q) = h . (B' B q): one product for each question instead of one for each word
        s = torch.einsum("tbh,bh->tb", h, self.similarity(q) @ self.similarity.weight)
        m = torch.tanh(projected + self.attention_bias + self._mapped("question", q) + s.unsqueeze(2))
        return m @ self.attention

    def _mapped(self, name: str, rows: Tensor) -> Tensor:
        """Applies one of the five linear maps, normalised under `batch-everywhere`."""
        mapped = self.maps[name](rows)
        return self.norms[name](mapped) if name in self.norms else mapped


def answer_loss(logits: Tensor, answers: Tensor) -> Tensor:
    """Computes -log(p + 1e-8) of each answer, where p is its softmax over the whole vocabulary. `[B, V]`, `[B]` ->
    `[B]`."""
    p = F.log_softmax(logits, dim=1).gather(1, answers.unsqueeze(1)).squeeze(1).exp()
    return -(p + 1e-8).log()


@torch.no_grad()
def clip(model: nn.Module, rule: str) -> None:
    """Clips the gradient g by its global norm n: by the rule "source" to 10 g / sqrt(n) where n > 100, as in the
    original code, by "norm10" to the norm 10."""
    gradients = [item.grad for item in model.parameters() if item.grad is not None]
    n = float(nn.utils.get_total_norm(gradients))
    factor = 1.0
    if rule == "source" and n > 100:
        factor = 10 / math.sqrt(n)
    elif rule == "norm10" and n > 10:
        factor = 10 / n
    if factor != 1.0:
        torch._foreach_mul_(gradients, factor)


def build_reader(config: Config, vocabulary: int, steps: tuple[int, int], shares: Tensor | None = None) -> Reader:
    """Builds the network with its initial weights. One seed gives every norm the same weights.

    `initial="source"`: square matrices are orthogonal times 0.05, for each gate by itself. Rectangular matrices are
    U(+-sqrt(6 / (in + out + 1))), and the states are 0. `"torch"`: embeddings are N(0, 1), matrices and states
    U(+-1/sqrt(H)). In both w is U(+-1/sqrt(H)), and biases are 0, except those of the forget gates.

    Args:
        config: the options.
        vocabulary: the number of word ids.
        steps: the lengths of the longest passage and question.
        shares: `[V]`, how often each word is an answer. The answer's bias starts at the logarithm of this.
    """
    draw = {"source": _draw_source, "torch": _draw_torch}[config.initial]
    with torch.random.fork_rng():
        model = Reader(vocabulary, steps, config)
        torch.manual_seed(derive_seed(config.seed, INIT))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name == "attention":
                    _uniform(parameter, config.hidden**-0.5)
                elif parameter.dim() == 2:
                    draw(name, parameter, config.hidden**-0.5)
                elif "gain" not in name and not name.startswith("norms"):
                    parameter.zero_()
            for name, parameter in model.norms.named_parameters():
                if name.endswith("weight"):
                    parameter.fill_(BATCH_GAIN)
            for lstm in (model.passage_lstm, model.question_lstm):
                _, forget, _, _ = lstm.get_parameter("bias_ih_l0").chunk(4)  # gates i, f, g, o
                forget.fill_(config.forget_bias)
            if shares is not None:
                model.answer.bias.copy_(shares.log())
    return model


def _draw_source(name: str, matrix: Tensor, bound: float) -> None:
    if name == "starts":
        matrix.zero_()
        return
    for block in matrix.chunk(4) if "lstm" in name else [matrix]:
        rows, columns = block.shape
        if rows == columns:
            nn.init.orthogonal_(block, 0.05)
        else:
            _uniform(block, math.sqrt(6 / (rows + columns + 1)))


def _draw_torch(name: str, matrix: Tensor, bound: float) -> None:
    if name == "words.weight":
        matrix.normal_()
    else:
        _uniform(matrix, bound)


def _uniform(tensor: Tensor, bound: float) -> None:
    tensor.uniform_(-bound, bound)
