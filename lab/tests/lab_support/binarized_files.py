"""Small files of binarised MNIST's form."""

import numpy as np

NAMES = {split: f"binarized_mnist_{split}.amat" for split in ("train", "valid", "test")}


def amat_bytes(rows):
    return "".join(" ".join(map(str, row)) + "\n" for row in rows.tolist()).encode()


def random_rows(count, seed=0):
    return (np.random.default_rng(seed).random((count, 784)) < 0.13).astype(np.uint8)


def write_binarized(folder, train=12, test=7, seed=0):
    """Files of binarised MNIST's form, with random content."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (split, count) in enumerate((("train", train), ("valid", 5), ("test", test))):
        (folder / NAMES[split]).write_bytes(amat_bytes(random_rows(count, 3 * seed + number)))
    return folder
