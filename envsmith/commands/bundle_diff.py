"""Two bundles against each other: their locks, then every file by its title."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from envsmith.bundle import Descriptor, Manifest
from envsmith.commands.bundles import Opened, open_bundle
from envsmith.commands.envs import shown
from envsmith.commands.result import Result
from envsmith.lockdiff import compare, render
from envsmith.plan import megabytes
from envsmith.tools.layout import PART, open_layout


def is_bundle(path: Path) -> bool:
    """Say whether a path is a bundle's folder, its tar file, or the name or a part of a split one."""
    if path.is_dir():
        return (path / "oci-layout").is_file()
    return path.suffix == ".tar" or PART.search(path.name) is not None


def run(a: Path, b: Path) -> Result:
    """Compare; exit code 0 when the two are the same bundle, 1 when they differ.

    Raises:
        InputError, IntegrityError: what opening the bundles raises.
    """
    old, new = (open_bundle(open_layout(path, shown(path))) for path in (a, b))
    files = _files(old.manifest, new.manifest)
    locks, texts = _locks(old, new)
    data: dict[str, Any] = {
        "a": _side(old, a),
        "b": _side(new, b),
        "equal": old.sha256 == new.sha256,
        "files": files,
        "locks": locks,
        "new_bytes": sum(row["size"] for row in files if row["change"] != "removed"),
    }
    if data["equal"]:
        return Result(command="diff", data=data, text=f"{shown(a)} and {shown(b)} are one bundle: sha256:{old.sha256}")
    lines = [
        f"{shown(a)} ({old.manifest.stack} {old.manifest.version}) -> "
        f"{shown(b)} ({new.manifest.stack} {new.manifest.version}): {len(files)} files differ,"
        f" {megabytes(data['new_bytes'])} are new",
        *texts,
        "",
        "files",
        *(_line(row) for row in files),
    ]
    return Result(command="diff", data=data, text="\n".join(lines), exit_code=1)


def _side(opened: Opened, path: Path) -> dict[str, str]:
    return {"name": str(path), "path": shown(path), "digest": f"sha256:{opened.sha256}"}


def _files(old: Manifest, new: Manifest) -> list[dict[str, Any]]:
    before = {one.title: one for one in old.layers}
    after = {one.title: one for one in new.layers}
    rows = []
    for title in sorted(before.keys() | after.keys()):
        one, other = before.get(title), after.get(title)
        if one is None or other is None or one.sha256 != other.sha256:
            rows.append(_row(title, one, other))
    return rows


def _row(title: str, old: Descriptor | None, new: Descriptor | None) -> dict[str, Any]:
    kind = "added" if old is None else "removed" if new is None else "changed"
    there = new or old
    assert there is not None
    return {
        "title": title,
        "change": kind,
        "old": old.sha256 if old else None,
        "new": new.sha256 if new else None,
        "size": there.size,
    }


def _line(row: dict[str, Any]) -> str:
    return f"  {row['change']:<8} {row['title']} ({megabytes(row['size'])})"


def _locks(old: Opened, new: Opened) -> tuple[dict[str, Any], list[str]]:
    """Compare the locks of both, env by env, as far as both have them here."""
    found: dict[str, Any] = {}
    lines: list[str] = []
    before, after = old.locks(), new.locks()
    for env in sorted({*old.manifest.locks, *new.manifest.locks}):
        name = f"{new.manifest.stack}/{env}"
        with contextlib.suppress(KeyError):
            diff = compare(before[env], after[env])
            found[env] = diff.to_dict()
            if diff.changes:
                lines += ["", render(diff, name, name)]
            continue
        there = [side for side, locks in (("a", old.manifest.locks), ("b", new.manifest.locks)) if env in locks]
        found[env] = {"only_in": there}
        lines += ["", f"{name}: its lock is not in both"]
    return found, lines
