"""The commit that a run notes is the one of the package's own source tree."""

import subprocess

import pytest

from layernorm.experiments.runs import environment


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A git repository with this package in it, from which `environment` seems to come."""

    def git(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", *who, "-C", str(tmp_path), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def place(folder):
        path = tmp_path / folder / "experiments" / "runs" / "environment.py"
        path.parent.mkdir(parents=True)
        path.write_text("")
        git("init", "--quiet")
        git("add", ".")
        git("commit", "--quiet", "--message", "first")
        monkeypatch.setattr(environment, "__file__", str(path))
        return path, git("rev-parse", "--short=12", "HEAD")

    return place


def test_the_commit_is_told_with_a_plus_for_local_changes(checkout):
    path, commit = checkout("src/layernorm")
    assert environment.commit() == commit
    (path.parents[2] / "new.py").write_text("")
    assert environment.commit() == f"{commit}+"


def test_a_package_installed_inside_another_repository_has_none(checkout):
    checkout("venv/lib/layernorm")
    assert environment.commit() is None
