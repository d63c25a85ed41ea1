"""What a run notes about where it ran."""

from layernorm.doctor import machine
from layernorm_lab.runs import environment


def test_a_run_notes_the_commits_of_both_packages(monkeypatch):
    monkeypatch.setattr(machine, "commit", lambda package=None: "a1")
    assert environment.describe()["commit"] == "a1"
    monkeypatch.setattr(machine, "commit", lambda package=None: "b2+" if package == environment.PACKAGE else "a1")
    assert environment.describe()["commit"] == "a1, laboratory b2+"
    monkeypatch.setattr(machine, "commit", lambda package=None: "b2" if package == environment.PACKAGE else None)
    assert environment.describe()["commit"] == "unknown, laboratory b2"
    monkeypatch.setattr(machine, "commit", lambda package=None: None)
    assert environment.describe()["commit"] is None
