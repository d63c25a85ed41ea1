"""The planted faults fit the sources."""

from planted.faults import FAULTS
from support.repository import ROOT


def test_every_fault_stands_in_the_sources_once():
    files = [file for folder in ("src", "lab/src") for file in (ROOT / folder).rglob("*")]
    texts = [file.read_text(encoding="utf-8") for file in files if file.suffix in (".py", ".h", ".cpp")]
    counts = {fault.name: sum(text.count(fault.find) for text in texts) for fault in FAULTS}
    assert {name: count for name, count in counts.items() if count != 1} == {}


def test_the_page_counts_them():
    assert f"plants {len(FAULTS)} of them" in (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
