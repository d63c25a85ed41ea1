"""Small files of CIFAR-10's binary form."""

import io
import tarfile

import numpy as np

FOLDER = "cifar-10-batches-bin"
NAMES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")


def random_rows(count, seed=0):
    """uint8 `[count, 3073]`: labels of 0..9 and pixels."""
    random = np.random.default_rng(seed)
    rows = random.integers(0, 256, (count, 3073))
    rows[:, 0] = random.integers(0, 10, count)
    return rows.astype(np.uint8)


def write_cifar(folder, seed=0):
    """The six files with random content: five of 6 rows, and 20 for the test."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(NAMES):
        (folder / name).write_bytes(random_rows(20 if "test" in name else 6, 10 * seed + number).tobytes())
    return folder


def archive_of(folder, path):
    """The six files as the publisher's archive has them, with the two files that go with them."""
    with tarfile.open(path, "w:gz") as tar:
        for name in ("readme.html", "batches.meta.txt", *NAMES):
            content = (folder / name).read_bytes() if name in NAMES else b"airplane\n"
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path
