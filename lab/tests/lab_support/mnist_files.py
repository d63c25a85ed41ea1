"""Small files of MNIST's form."""

import gzip

import numpy as np

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx_bytes(array):
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


def write_mnist(folder, train=30, seed=0, spell=lambda name: name, test=10):
    """Files of MNIST's form, with random content."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    for name in NAMES:
        count = train if name.startswith("train") else test
        array = random.integers(0, 256, (count, 28, 28)) if "images" in name else random.integers(0, 10, count)
        content = idx_bytes(array)
        path = folder / spell(name)
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return folder


SPELLINGS = {
    "plain": lambda name: name,
    "gzipped": lambda name: name + ".gz",
    "dotted": lambda name: name.replace("-idx", ".idx"),
    "dotted and gzipped": lambda name: name.replace("-idx", ".idx") + ".gz",
}
