"""What the installer adds to a wheel: launchers, rewritten scripts, and the RECORD it must have written.

The templates equal, byte for byte, what uv 0.13.9 writes, so that these files need not be believed because they are
there. An installed RECORD enters a manifest only after `check_record` has held it against the wheel. No I/O here.

Sources: recording installed projects (packaging.python.org specifications, read 2026-11-29); uv 0.13.9, observed by
installing wheels of our own (tests/integration/test_tree.py repeats it).
"""

from __future__ import annotations

import csv
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from envsmith.errors import Problem
from envsmith.manifest import Entry, file_entry, installed_path, site_packages, wheel_folders

if TYPE_CHECKING:
    from envsmith.wheelfile import WheelListing

#: A kernel reads at most this many bytes of a shebang line, its newline included; uv wraps longer ones in /bin/sh.
SHEBANG_LIMIT = 127


def site_entries(
    listing: WheelListing,
    owner: str,
    *,
    python_path: str,
    python: str = "3.11",
    rewritten: Mapping[str, bytes] | None = None,
    extras: Mapping[str, bytes] | None = None,
) -> tuple[Entry, ...]:
    """Return the entries that uv adds for a wheel, RECORD excepted, sorted by path.

    `rewritten` maps each of `listing.rewritten_scripts` to its content in the wheel. `extras` maps further file
    names of the .dist-info (`direct_url.json`, `uv_cache.json`) to what was found on disk: they hold a URL or a
    time of the local wheel file and nothing executes them.
    """
    info, data = wheel_folders(listing)
    base = site_packages(python)
    contents = {f"{base}/{info}/INSTALLER": b"uv", f"{base}/{info}/REQUESTED": b""}
    contents.update({f"{base}/{info}/{name}": content for name, content in (extras or {}).items()})
    scripts = {}
    for path, content in (rewritten or {}).items():
        place, is_script = installed_path(path, data, listing.name, python)
        if is_script:  # uv ignores a .data folder that is not spelled like the .dist-info
            scripts[place] = rewritten_script(python_path, content)
    for name, target in listing.console_scripts:
        module, _, attr = target.partition(":")
        scripts[f"bin/{name}"] = expected_console_script(python_path, module, attr)
    made = [file_entry(path, content, owner, part="site") for path, content in contents.items()]
    made += [file_entry(path, content, owner, part="site", executable=True) for path, content in scripts.items()]
    return tuple(sorted(made, key=lambda entry: entry.path))


def expected_console_script(python_path: str, module: str, attr: str) -> bytes:
    """Return the launcher that uv writes for the entry point `module:attr`."""
    module, attr = module.strip(), attr.split("[")[0].strip()
    lines = (
        "# -*- coding: utf-8 -*-",
        "import sys",
        f"from {module} import {attr.split('.')[0]}",
        'if __name__ == "__main__":',
        '    if sys.argv[0].endswith("-script.pyw"):',
        "        sys.argv[0] = sys.argv[0][:-11]",
        '    elif sys.argv[0].endswith(".exe"):',
        "        sys.argv[0] = sys.argv[0][:-4]",
        f"    sys.exit({attr}())",
    )
    return _shebang(python_path) + "".join(f"{line}\n" for line in lines).encode()


def rewritten_script(python_path: str, content: bytes) -> bytes:
    """Return what uv makes of a `.data/scripts` member that starts with `#!python`: its first line is replaced."""
    return _shebang(python_path) + content.partition(b"\n")[2]


def _shebang(python_path: str) -> bytes:
    raw = python_path.encode(errors="surrogateescape")
    line = b"#!" + raw + b"\n"
    if len(line) <= SHEBANG_LIMIT and b" " not in raw:
        return line
    quoted = raw.replace(b"'", b"'\"'\"'")
    return b"#!/bin/sh\n'''exec' '" + quoted + b"' \"$0\" \"$@\"\n' '''\n"


def expected_record_rows(
    entries: Iterable[Entry], owner: str, *, info: str, python: str
) -> tuple[tuple[str, str, str], ...]:
    """Return the rows (path, hash, size) that the RECORD of `owner` must have, sorted as uv sorts them.

    `entries` are its portable and site entries; `info` is the name of its .dist-info directory.
    """
    base = site_packages(python)
    rows = [(f"{info}/RECORD", "", "")]
    for entry in entries:
        mine = next((c for c in entry.contents if owner in c.owner.split(", ")), None)
        if mine is not None:
            digest = urlsafe_b64encode(bytes.fromhex(mine.sha256)).rstrip(b"=").decode()
            rows.append((_relative(entry.path, base), f"sha256={digest}", str(mine.size)))
    return tuple(sorted(rows))


def check_record(text: str, rows: Iterable[tuple[str, str, str]], where: str) -> tuple[Problem, ...]:
    """Hold an installed RECORD against its expected rows and return what differs.

    A row without a hash or size states nothing and passes: wheels ship such rows and uv copies them.
    """
    expected = {path: (digest, size) for path, digest, size in rows}
    problems = []
    seen = set()
    for row in csv.reader(text.splitlines()):
        path, digest, size = (*row, "", "", "")[:3]
        if not row or path in seen:
            continue
        seen.add(path)
        if path not in expected:
            problems.append(_record_problem("record-row-unknown", path, "is listed but belongs to nothing", where))
            continue
        right = expected[path]
        if digest not in ("", right[0]) or size not in ("", right[1]):
            found = Problem(
                code="record-row-differs",
                message=f"`{path}` is recorded with another content",
                where=where,
                expected=",".join(right),
                actual=f"{digest},{size}",
            )
            problems.append(found)
    for path in sorted(expected.keys() - seen):
        problems.append(_record_problem("record-row-missing", path, "is not listed", where))
    return tuple(problems)


def _record_problem(code: str, path: str, fact: str, where: str) -> Problem:
    return Problem(code=code, message=f"`{path}` {fact}", where=where)


def _relative(path: str, base: str) -> str:
    """Return `path` relative to `base`, as RECORD spells it."""
    there, here = path.split("/"), base.split("/")
    shared = next((n for n, (a, b) in enumerate(zip(there, here, strict=False)) if a != b), len(here))
    return "../" * (len(here) - shared) + "/".join(there[shared:])
