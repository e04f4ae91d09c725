"""Real git repositories with commits that are the same on every machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

_IDENTITY = {
    "GIT_AUTHOR_NAME": "A U Thor",
    "GIT_AUTHOR_EMAIL": "author@example.org",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "A U Thor",
    "GIT_COMMITTER_EMAIL": "author@example.org",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
}


def make_repo(path: Path, files: Mapping[str, str | bytes], message: str = "first") -> str:
    """Make a repository with one commit of these files and return the commit id."""
    path.mkdir(parents=True, exist_ok=True)
    git(path, "init", "--quiet", "--initial-branch=main")
    return commit(path, files, message)


def commit(path: Path, files: Mapping[str, str | bytes], message: str = "more") -> str:
    """Write files into a repository, commit everything in its work tree and return the commit id."""
    for name, content in files.items():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
    git(path, "add", "--all", "--force")
    git(path, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(path, "rev-parse", "HEAD")


def tree_id(path: Path, commitish: str = "HEAD") -> str:
    return git(path, "rev-parse", f"{commitish}^{{tree}}")


def git(path: Path, *arguments: str) -> str:
    """Run git in a repository and return what it wrote, stripped."""
    environ = {**os.environ, **_IDENTITY}
    done = subprocess.run(("git", *arguments), cwd=path, env=environ, check=True, capture_output=True, text=True)
    return done.stdout.strip()
