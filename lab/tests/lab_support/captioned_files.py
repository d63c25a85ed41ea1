"""Small files in the layout of the order-embeddings code: captions that tell which image they belong to."""

import numpy as np

CONTENT = {"train": 60, "val": 12, "test": 10}
"""Images of each split."""

WORDS = tuple("a dog cat runs sits on in the grass snow red blue two boys girl ball water jumps".split())  # noqa: SIM905


def write_captioned(folder, content=CONTENT, seed=0):
    """Captions of random words, and features that follow from an image's first caption."""
    random = np.random.default_rng(seed)
    (folder / "images" / "10crop").mkdir(parents=True, exist_ok=True)
    table = random.normal(size=(len(WORDS), 6))
    for split, count in content.items():
        lines, rows = [], []
        for _ in range(count):
            topic = random.choice(len(WORDS), size=3, replace=False)
            rows.append(table[topic].sum(0))
            for _ in range(5):
                chosen = [*random.permutation(topic), *random.choice(len(WORDS), size=random.integers(0, 5))]
                lines.append(" ".join(WORDS[number] for number in chosen))
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
        np.save(folder / "images" / "10crop" / f"{split}.npy", np.asarray(rows, np.float32))
    return folder
