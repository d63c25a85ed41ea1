"""What a visitor of a shop looks at next: sessions side by side, of which each update sees one step."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....report.blocks import Metric
from ....train.batches import derive_seed
from ..program import Data, Networks, Parts, Program, as_data

BATCH, UNITS, ITEMS, SIZE, TASTES, FIRST = 64, 100, 500, 25, 4, 20
"""SIZE: the items of a kind. FIRST: the ranks that count."""
TRAIN, TEST, LONGEST = 20_000, 1000, 20
NONE = -1


class Recommender(nn.Module):
    """Scores of all items as the next one, by the vectors that items are read as; and the state of the last step."""

    state: Tensor

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.items, self.bias = nn.Embedding(ITEMS, UNITS), nn.Parameter(torch.zeros(ITEMS))
        self.gru = networks(UNITS, UNITS)
        weights = {name: item for name, item in self.gru.named_parameters() if "weight" in name}
        for weight in (self.items.weight, *weights.values()):
            rows = ITEMS if weight is self.items.weight else UNITS
            nn.init.uniform_(weight, -((6 / (rows + UNITS)) ** 0.5), (6 / (rows + UNITS)) ** 0.5)
        self.register_buffer("state", torch.zeros(1, BATCH, UNITS))

    def forward(self, items: Tensor, begins: Tensor, state: Any = None) -> tuple[Tensor, Tensor]:
        """Returns scores `[T, B, items]` and the state, for items and whether a session begins, `[T, B]`."""
        output, state = self.gru(self.items(items), state, reset=begins)
        return F.linear(output, self.items.weight, self.bias), state


def make_next(chance: random.Random) -> list[list[int]]:
    """Draws which item of its kind follows an item, for each taste."""
    return [[item // SIZE * SIZE + chance.randrange(SIZE) for _ in range(TASTES)] for item in range(ITEMS)]


def session(chance: random.Random, following: list[list[int]]) -> list[int]:
    """Makes the items that a visitor looks at. Most follow from the one before by his taste, which the shop can learn
    from only the session. Others are any of their kind, or of another kind, or were seen before."""

    def any_of(kind: int) -> int:
        return kind * SIZE + min(chance.randrange(SIZE) for _ in range(2))  # few are looked at by many

    taste, seen = chance.randrange(TASTES), [any_of(chance.randrange(ITEMS // SIZE))]
    while len(seen) < LONGEST and (len(seen) < 2 or chance.randrange(10)):
        way = chance.randrange(20)
        if way < 14:
            seen.append(following[seen[-1]][taste])
        elif way < 16:
            seen.append(any_of(seen[-1] // SIZE))
        elif way < 18:
            seen.append(any_of(chance.randrange(ITEMS // SIZE)))
        else:
            seen.append(chance.choice(seen))
    return seen


def load(folder: Path | None) -> Data:
    """Makes sessions, one after the other in 64 columns, and padded ones for validation and test.

    `items`, `next` and `begins` are `[steps, 64]`; `held_out` and `test` are `[T, M]`, padded with -1.
    """
    chance = random.Random(derive_seed(*b"sessions"))
    following = make_next(chance)
    columns: list[list[tuple[int, int, int]]] = [[] for _ in range(BATCH)]
    for _ in range(TRAIN):
        seen = session(chance, following)
        shortest = min(columns, key=len)
        shortest += [(seen[place], seen[place + 1], place == 0) for place in range(len(seen) - 1)]
    steps = min(map(len, columns))
    stream = torch.tensor([column[:steps] for column in columns]).permute(2, 1, 0)
    held_out, test = (
        nn.utils.rnn.pad_sequence([torch.tensor(session(chance, following)) for _ in range(TEST)], padding_value=NONE)
        for _ in range(2)
    )
    return as_data("sessions", items=stream[0], next=stream[1], begins=stream[2].bool(), held_out=held_out, test=test)


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(BATCH, generator=generator)  # which column of the state a stream of sessions has
    start = int(torch.randint(len(data["items"]), (), generator=generator))
    items, right, begins = (data[name][:, order].roll(-start, 0) for name in ("items", "next", "begins"))
    begins[0] = begins[-start] = True

    def loss(model: Any, update: int) -> Tensor:
        step = slice(update % len(items), update % len(items) + 1)
        scores, state = model(items[step], begins[step], model.state.clone())
        model.state.copy_(state.detach())
        return F.cross_entropy(scores[0], right[step][0])

    def reciprocal(sessions: Tensor, model: Any) -> float:
        """Computes the mean of 1 / rank of the next item among the 20 with the highest scores; 0 if it is not there."""
        reset = torch.zeros_like(sessions[:-1], dtype=torch.bool)
        scores, goal = model(sessions[:-1].clamp(min=0), reset)[0], sessions[1:]
        right = scores.topk(FIRST, 2).indices == goal.unsqueeze(2)
        ranks = (right / torch.arange(1, FIRST + 1, device=right.device)).sum(2)
        return float(ranks[goal != NONE].double().mean())

    evaluate, test = (functools.partial(reciprocal, data[name]) for name in ("held_out", "test"))
    return Parts(Recommender(networks), loss, evaluate, (items[:8], begins[:8]), test=test)


PROGRAM = Program(
    source="https://github.com/hidasib/GRU4Rec_PyTorch_Official (gru4rec_pytorch.py)",
    settings="GRU4Rec's defaults: 100 units, Adagrad 0.05, eps 1e-6, batch 64, cross-entropy, items read as the "
    "vectors that score them, gradients of one step, uniform weights. Here made sessions with 500 items, which are "
    "all scored, not a sample of them, and torch's biases for 0.",
    network="GRU",
    metric=Metric("mrr", "reciprocal rank", rising=True),
    chance=0.01,
    margin=0.01,
    optimizer=functools.partial(torch.optim.Adagrad, eps=1e-6),
    rate=0.05,
    updates=5000,
    load=load,
    build=build,
    confirms="start",
)
