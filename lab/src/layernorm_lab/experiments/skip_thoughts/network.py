"""The network of experiment 6.3, an encoder and two decoders."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from layernorm.nn import GRU

from ...train.batches import INIT, derive_seed
from ...train.initial import draw_gru
from .config import Config
from .objective import negative_log_likelihood


class SkipThoughts(nn.Module):
    """Encodes a sentence and predicts the words of its two neighbours.

    Args:
        vocabulary: number of word ids.
        config: sizes and norm.
    """

    def __init__(self, vocabulary: int, config: Config) -> None:
        super().__init__()
        norm = None if config.norm == "none" else config.norm
        self.words = nn.Embedding(vocabulary, config.words)
        self.encoder = GRU(config.words, config.hidden, norm=norm)
        self.next = GRU(config.words, config.hidden, norm=norm)
        self.previous = GRU(config.words, config.hidden, norm=norm)
        self.output = nn.Linear(config.hidden, vocabulary)

    def forward(self, sentence: Tensor, following: tuple[Tensor, Tensor], before: tuple[Tensor, Tensor]) -> Tensor:
        """Computes the negative log-likelihood of both neighbours' words, summed over words and sentences, in nats.

        Args:
            sentence: ids `[T, B]`, all of one length, each with its end.
            following, before: the next and the previous sentences: their ids `[T', B]`, each with its end, padded, and
                their lengths `[B]`.
        """
        _, state = self.encoder(self.words(sentence))
        parts = [
            self._decoded(decoder, state, *target)
            for decoder, target in ((self.next, following), (self.previous, before))
        ]
        states, targets = (torch.cat(item) for item in zip(*parts, strict=True))
        return negative_log_likelihood(states, self.output.weight, self.output.bias, targets)

    def _decoded(self, decoder: GRU, state: Tensor, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Returns a decoder's states at the real words, `[N, H]`, and these words, `[N]`."""
        inputs = self.words(ids)
        inputs = torch.cat([inputs.new_zeros(1, *inputs.shape[1:]), inputs])  # word t is predicted from earlier words
        inputs = inputs[: len(ids)]
        output, _ = decoder(inputs, state)
        real = torch.arange(len(ids), device=ids.device).unsqueeze(1) < lengths
        return output[real], ids[real]

    def encode(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Computes the encoder's last states for embedded words: `[T, B, D]`, `[B]` -> `[B, H]`."""
        _, state = self.encoder(inputs, lengths=lengths)
        return state[0]


def build_skip_thoughts(config: Config, vocabulary: int) -> SkipThoughts:
    """Builds the network with its initial weights. One seed gives every norm the same weights.

    Recurrent weights are orthogonal, with a block for each gate. All others are uniform on (-0.1, 0.1). Biases are 0.
    """
    model = SkipThoughts(vocabulary, config)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(derive_seed(config.seed, INIT))
        model.words.weight.uniform_(-0.1, 0.1)
        model.output.weight.uniform_(-0.1, 0.1)
        for gru in (model.encoder, model.next, model.previous):
            draw_gru(gru)
        for name, parameter in model.named_parameters():
            if "bias" in name:
                parameter.zero_()
    return model
