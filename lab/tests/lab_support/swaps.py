"""Runs of `swaps` as they would lie on the disk."""

import zlib

from lab_support.runs import write_run
from layernorm_lab.experiments.swaps.config import Config
from layernorm_lab.experiments.swaps.programs import PROGRAMS
from layernorm_lab.report.judge import TRIAL_SEEDS


def write(place, task, value, seeds=TRIAL_SEEDS, rate=1.0, diverged=None, valid=1.0, **options):
    """Runs of an arm whose last three evaluations are this value, a little different for each seed and arm. Where
    there are test cases, the value is theirs, and that of the validation is `valid`."""
    name = PROGRAMS[task].metric.name
    tested = PROGRAMS[task].confirms
    for seed in seeds:
        config = vars(Config(task=task, seed=seed, learning_rate=rate, **options))
        change = 1e-5 * (zlib.crc32(f"{seed} {options}".encode()) % 5)
        ends = [value * share + change for share in (1.5, 1.1, 1.0, 0.9)]
        records = [
            {"update": PROGRAMS[task].updates * place // 4, "epoch": place / 4, "seconds_per_update": 0.01}
            | ({name: valid, f"test_{name}": end} if tested else {name: end})
            for place, end in enumerate(ends, 1)
        ]
        facts = {"name": f"data of {task}", "fingerprint": task, "original": False}
        path = place / "-".join(map(str, (task, *options.values(), rate, seed)))
        write_run(path, "swaps", config, facts, [] if diverged else records, diverged=diverged)
