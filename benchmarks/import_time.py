"""What `import layernorm` adds to `import torch`, in milliseconds.

    python benchmarks/import_time.py [--rounds 9] [--json FILE]

Each round starts two fresh processes in turn, one that imports torch alone and one that imports layernorm after it and
times both imports; the minimum over the rounds is printed (goal: at most 60 ms).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

CODE = """
import time
a = time.perf_counter()
import torch
b = time.perf_counter()
import layernorm
print(b - a, time.perf_counter() - b)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="fresh processes (default: 9)")
    parser.add_argument("--json", metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    rounds = []
    for _ in range(options.rounds):
        out = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
        rounds.append([1e3 * float(word) for word in out.split()])
    torch_ms, layernorm_ms = (min(column) for column in zip(*rounds, strict=True))
    print(f"import torch      {torch_ms:7.1f} ms")
    print(f"import layernorm  {layernorm_ms:+7.1f} ms   (minimum of {options.rounds} fresh processes each)")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"torch_ms": torch_ms, "layernorm_ms": layernorm_ms, "rounds": options.rounds}, file)


if __name__ == "__main__":
    main()
