"""The README's moving picture: a DRAW network draws digits, glimpse by glimpse.

    layernorm run draw --norm layer --seeds 0 --epochs 4 --glimpses 10 --batch-size 64 --learning-rate 1e-3 \\
      --decay 0.35 --evaluate-every 0 --threads 1 --out runs/drawing
    python benchmarks/drawing.py runs/drawing/draw-layer-s0      # docs/drawing.gif

The digits are the first that the network draws with seed 0, none chosen. The script prints the run's length and its
bound.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from layernorm_lab.experiments.draw.samples import animation, draw_digits
from layernorm_lab.runs.folder import read_run

FIGURE = Path(__file__).parents[1] / "docs" / "drawing.gif"
COLUMNS, ROWS = 8, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run of `layernorm run draw`")
    parser.add_argument("--figure", type=Path, default=FIGURE, metavar="FILE", help="where the picture goes (GIF)")
    options = parser.parse_args()
    run = read_run(options.run)
    for record in run.records:
        print(f"epoch {record['epoch']:g}, update {record['update']}: test bound {record['test_bound']:.1f} nats")
    options.figure.write_bytes(animation(draw_digits(run, COLUMNS * ROWS, 0), COLUMNS))
    print(f"wrote {options.figure}, {options.figure.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
