"""The network of experiment 6.3, an encoder and two decoders, and the experiment's options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from layernorm.nn import GRU

from ...protocol import CheckedOptions, decay_option, option, seed_option
from ...train.batches import INIT, derive_seed
from ...train.initial import draw_gru
from .objective import negative_log_likelihood


@dataclass(frozen=True)
class Config(CheckedOptions):
    """Options of the experiment. The defaults are the paper's protocol."""

    norm: Literal["none", "layer", "rms", "weight"] = option(
        "layer", "what the summed inputs of encoder and decoders are normalised by", several="norm"
    )
    learning_rate: float = option(2e-4, "step size", several="learning-rate", mark="lr", above=0)
    seed: int = seed_option("seeds of the initial weights and of the order of the sentences")
    updates: int = option(1_000_000, "updates of the weights", least=1)
    batch_size: int = option(64, "triples of sentences in a batch, over all processes together", least=1)
    decay: float = decay_option()
    vocabulary: int = option(20_000, "most frequent words, with the sentence's end and the unknown word", least=3)
    words: int = option(620, "size of a word's embedding", least=1)
    hidden: int = option(2400, "units of the encoder and of each decoder", least=1)
    optimizer: Literal["legacy_adam", "adam"] = option(
        "legacy_adam", "legacy_adam: the original code's Adam, with nearly no bias correction; adam: torch's"
    )
    clip: float = option(5.0, "largest norm of the whole gradient", above=0)
    evaluate_every: int = option(50_000, "updates between evaluations", least=1)
    tasks_every: int = option(
        1,
        "SICK and the classification tasks run at each evaluation whose number it divides, and at the end (0: never)",
        least=0,
    )
    fast_eval: bool = option(
        False, "with fast evaluation, the classification tasks choose C by 3 inner folds; without it, by 10"
    )
    held_out_triples: int = option(
        2000, "triples of the validation books, and of the test books, evenly spread (0: all)", least=0
    )


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
