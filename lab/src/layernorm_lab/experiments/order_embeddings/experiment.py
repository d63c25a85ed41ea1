"""Experiment 6.1: order embeddings of images and sentences, Table 2 and Figure 1. Layer norm in the GRU or none."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...config import check_most
from ...data.order_embeddings import CAPTIONS, ORDER_EMBEDDINGS, Captioned, ImagesAndCaptions
from ...protocol import Experiment, Preset
from ...report.judge import PILOT_SEEDS
from ...train.batches import ORDER, Shuffled, derive_seed
from ...train.distributed import check_whole_batch, gathered
from ...train.task import Accelerator, Loss, Task, Tested
from . import claims, report
from .config import Config
from .network import MARGINS, Embedding, build_embedding
from .objective import penalties, ranking_loss, ranks, recalls

CHUNK = 500
"""The number of sentences that are embedded together in an evaluation."""

KEPT_BY = "valid_image_recall"
"""The metric of the kept model: the sum of R@1, R@5 and R@10 of the images found for a caption."""


def check_order_embeddings(config: Config, data: ImagesAndCaptions) -> None:
    """Checks that there are enough training images for a batch."""
    check_most(config, "batch_size", len(data.train), "training images")


def order_embeddings_task(config: Config, data: ImagesAndCaptions, accelerator: Accelerator) -> Task:
    """Makes one run: the network, its optimiser, and the ranking loss.

    Raises:
        RunError: several processes train with recurrent batch norm.
    """
    device, rank, processes = accelerator.device, accelerator.process_index, accelerator.num_processes
    check_whole_batch(config.norm, processes)
    train = data.train
    features = train.features.to(device)
    order = Shuffled.of(len(train), config, accelerator, drop_last=True)
    chosen = _Captions(len(train), config.seed)
    margin = config.margin or MARGINS[config.similarity]
    model = build_embedding(config, len(data.vocabulary), features.shape[1])

    def loss(model: nn.Module, update: int) -> Loss:
        rows = order.share(update)
        ids, lengths = train.sentences.batch(chosen.of(rows, update // order.updates_per_epoch))
        sentences, images = model(ids.to(device), lengths.to(device), features.index_select(0, rows.to(device)))
        sentences, images = (gathered(item, config.batch_size, rank, processes) for item in (sentences, images))
        return ranking_loss(penalties(sentences, images, config.similarity), margin), 1

    def evaluate(model: nn.Module) -> dict[str, float]:
        assert isinstance(model, Embedding)
        caption_rank, image_rank = fold_ranks(model, data.val, 0, config.valid_images, config.similarity)
        metrics = recalls(caption_rank, "valid_caption") | recalls(image_rank, "valid_image")
        return {KEPT_BY: sum(metrics[f"valid_image_r{count}"] for count in (1, 5, 10)), **metrics}

    def test(model: nn.Module) -> Tested:
        assert isinstance(model, Embedding)
        return folds(model, data.test, config.fold, config.similarity)

    def clip(model: nn.Module) -> None:
        for parameter in model.parameters():
            nn.utils.clip_grad_norm_([parameter], config.clip)

    shown = {"batch_loss": "loss {:.1f}", "valid_image_r10": "valid R@10 {:.1f}"}
    return Task.of(config, order, model, loss, evaluate, shown=shown, before_step=clip, keep=KEPT_BY, test=test)


class _Captions:
    """Which of its captions each image has in an epoch, as a pure function of seed and epoch."""

    def __init__(self, images: int, seed: int) -> None:
        self.images, self.seed = images, seed
        self._epoch, self._choice = -1, torch.empty(0, dtype=torch.int64)

    def of(self, rows: Tensor, epoch: int) -> Tensor:
        """Returns the captions' numbers for some images: int64 `[B]` -> int64 `[B]`."""
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, ORDER, epoch, CAPTIONS))
            self._epoch, self._choice = epoch, torch.randint(CAPTIONS, (self.images,), generator=generator)
        return rows * CAPTIONS + self._choice[rows]


def embed_sentences(model: Embedding, data: Captioned, start: int, stop: int) -> Tensor:
    """Computes the embeddings of a range of captions, `[M, D]`. Sentences of similar length are embedded together."""
    device = model.image.weight.device
    rows = torch.arange(start, stop)[data.sentences.lengths[start:stop].argsort(stable=True)]
    embeddings = torch.empty(stop - start, model.image.out_features, device=device)
    for part in rows.split(CHUNK):
        ids, lengths = data.sentences.batch(part)
        embeddings[part - start] = model.sentences(ids.to(device), lengths.to(device))
    return embeddings


def fold_ranks(model: Embedding, data: Captioned, start: int, count: int, similarity: str) -> tuple[Tensor, Tensor]:
    """Computes `ranks` among `count` images from `start` on, or fewer at the end of the data."""
    stop = min(start + count, len(data))
    images = model.images(data.features[start:stop].to(model.image.weight.device))
    sentences = embed_sentences(model, data, CAPTIONS * start, CAPTIONS * stop)
    return ranks(penalties(sentences, images, similarity), CAPTIONS)


def folds(model: Embedding, data: Captioned, size: int, similarity: str) -> Tested:
    """Returns metrics averaged over contiguous folds, and the rank of every image and caption within its fold.

    Images that do not fill a fold are left out. If there are fewer than one fold needs, all images are one fold.
    """
    count = max(1, len(data) // size)
    both = [fold_ranks(model, data, number * size, size, similarity) for number in range(count)]
    metrics = [recalls(captions, "test_caption") | recalls(images, "test_image") for captions, images in both]
    means = {name: sum(item[name] for item in metrics) / count for name in metrics[0]}
    captions, images = (torch.cat(parts).to(torch.int32) for parts in zip(*both, strict=True))
    return {"test_folds": count, **means}, {"caption_rank": captions, "image_rank": images}


_NORMS = ("none", "layer")

EXPERIMENT = Experiment(
    name="order-embeddings",
    examples=(
        "layernorm run order-embeddings --data ~/flickr8k",
        "layernorm run order-embeddings --preset paper --similarity order cosine",
        'layernorm search RUN "a dog runs"',
    ),
    presets={
        "laptop": Preset(
            "25 epochs with 256 units; two seeds and four learning rates",
            claims.LAPTOP,
            {"similarity": ("order",), "norm": _NORMS, "learning_rate": claims.TRIAL.rates, "seed": PILOT_SEEDS},
        ),
        "smoke": Preset(
            "1 epoch with 16 units",
            Config(epochs=1, words=8, hidden=16, evaluate_every=25),
            {"similarity": ("order",), "norm": _NORMS, "learning_rate": (1e-3,), "seed": (0,)},
        ),
        "paper": Preset(
            "the paper's protocol: 1024 units, 100 epochs; three seeds",
            Config(),
            {"similarity": ("order",), "norm": _NORMS, "learning_rate": (1e-3,), "seed": (0, 1, 2)},
        ),
    },
    load=lambda config, data: ORDER_EMBEDDINGS.load(data),
    check=check_order_embeddings,
    task=order_embeddings_task,
    report=report.OUTLINE.report,
    claims=claims.CLAIMS,
)
