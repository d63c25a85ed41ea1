"""Shows which tests passed with which PyTorch: a table from the results of `make test-torch`.

    make test-torch TORCH=2.12.0
    python benchmarks/torch_versions.py build/torch-*.xml

A row is a run, named by its file. A cell says how many tests of an area passed, and how many failed if any did.
"""

from __future__ import annotations

import argparse
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

AREAS = {
    # area: the files of tests, without `tests.`; a test that compiles is one of `compile` wherever it is
    "compile": r"compiled\.|.*(compile|inductor)",
    "ONNX": r"test_onnx",
    "export": r"test_decompositions|test_deploy|functional\.test_leaving|nn\.test_portable|.*(export|graph)",
    "steppers": r"nn\.test_stepper|.*stepper",
    "norms": r"nn\.test_norms|native\.test_native_norms|laws\.test_(symmetries|table_1)|.*(layer_norm|normalize)",
    "networks": r"nn\.|laws\.|convert\.|functional\.",
    "engines": r"native\.|equations\.|test_(every_engine|equations|numerics|backends)",
    "the rest": r"",
}


def area(case: ElementTree.Element) -> str:
    """Returns the first area that a test belongs to."""
    name = f"{case.get('classname', '')}.{case.get('name', '')}".removeprefix("tests.")
    return next(area for area, pattern in AREAS.items() if re.match(pattern, name))


def counted(path: Path) -> dict[str, Counter[str]]:
    """Counts the results of each area in a file of pytest's."""
    counts: dict[str, Counter[str]] = {area: Counter() for area in AREAS}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        kind = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        counts[area(case)][kind] += 1
    return counts


def cell(counts: Counter[str]) -> str:
    """Writes an area's counts: 12, or 11 and 1 failed."""
    if not counts:
        return ""
    return f"{counts['passed']:,}" + (f", {counts['failed']} failed" if counts["failed"] else "")


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="results in JUnit's format")
    print("| run | " + " | ".join(AREAS) + " |\n|---" + "|--:" * len(AREAS) + "|")
    for path in parser.parse_args().files:
        counts = counted(path)
        print(f"| {path.stem} | " + " | ".join(cell(counts[area]) for area in AREAS) + " |")


if __name__ == "__main__":
    main()
