"""What lies in an environment and belongs to nothing: part of the family `files`.

Bytecode is left to the family `pyc`.

Source: import path order (docs.python.org, "The import system").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from envsmith.manifest import Entry, import_base, importable
from envsmith.observed import Seen
from envsmith.report import Finding, Severity

FAMILY = "files"
SHOWN = 10
#: Modules that Python imports at every start when it finds them.
START_UP = ("sitecustomize", "usercustomize")


def judge_unowned(unowned: list[Seen], owned: Mapping[str, Entry]) -> Iterator[Finding]:
    """Judge every other path that the manifest does not list, grouped by the place where it appeared."""
    leftovers: dict[str, list[str]] = defaultdict(list)
    folders: dict[str, list[str]] = defaultdict(list)
    modules = []
    for item in unowned:
        base = import_base(item.path)
        rest = item.path[len(base or "") :]
        root = leftover_root(item.path)
        if item.kind == "folder":
            if base and "/" not in rest and rest.isidentifier() and rest != "__pycache__":
                yield _finding("unowned-module", item.path, "is an empty folder that can be imported as a namespace")
        elif root:
            leftovers[root].append(item.path)
        elif item.path.endswith(".pyc"):
            continue
        elif base and rest.endswith(".pth") and "/" not in rest:
            yield _finding("unowned-pth", item.path, "runs or extends sys.path at every start and belongs to nothing")
        elif base and importable(rest):
            modules.append(item.path)
        else:
            top = base + rest.split("/")[0] if base else rest.split("/")[0]
            folders[top if "/" in rest else item.path].append(item.path)
    for root, paths in sorted(leftovers.items()):
        yield _finding("leftover", root, f"pip left {len(paths)} file(s) here when it was interrupted")
    yield from _unowned_modules(modules, owned)
    for top, paths in sorted(folders.items()):
        is_distribution = top.endswith((".dist-info", ".egg-info")) and not any(p.startswith(f"{top}/") for p in owned)
        kind = "unowned-distribution" if is_distribution else "unowned-file"
        yield from _grouped(kind, paths, "belongs to no package", Severity.ERROR, whole=top)


def leftover_root(path: str) -> str | None:
    """Return the `~name` folder or file that pip renames what it is about to remove to, if `path` is in one."""
    base = import_base(path)
    if base is None or not path[len(base) :].startswith("~"):
        return None
    return base + path[len(base) :].split("/", 1)[0]


def _unowned_modules(paths: list[str], owned: Mapping[str, Entry]) -> Iterator[Finding]:
    if not paths:
        return
    names: dict[str, tuple[int, Entry]] = {}
    tops: set[str] = set()
    for entry in owned.values():
        base = import_base(entry.path)
        rest = entry.path[len(base or "") :]
        if base:
            tops.add(base + rest.split("/")[0])
        if base and (found := importable(rest)):
            names[found[0]] = min(names.get(found[0], (9, entry)), (found[1], entry), key=lambda pair: pair[0])
    groups: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        base = import_base(path) or ""
        top = base + path[len(base) :].split("/")[0]
        groups[path if top in tops else top].append(path)
    singles = [place for place, group in groups.items() if group == [place]]
    for place in sorted(groups.keys() - set(singles)):
        yield _module_finding(place, groups[place], names)
    for place in sorted(singles)[:SHOWN]:
        yield _module_finding(place, groups[place], names)
    if len(singles) > SHOWN:
        yield _finding(
            "unowned-module", f"{len(singles) - SHOWN} more modules", "can be imported and belong to nothing"
        )


def _module_finding(place: str, group: list[str], names: Mapping[str, tuple[int, Entry]]) -> Finding:
    base = import_base(group[0]) or ""
    message = "can be imported and belongs to nothing" + (f" ({len(group)} files)" if len(group) > 1 else "")
    expected = None
    for path in group:
        found = importable(path[len(base) :])
        if found is None:
            continue
        name, rank = found
        if name in names:
            own_rank, entry = names[name]
            verb = "shadows" if rank < own_rank else "lies beside"
            message, expected = f"{verb} `{name}` of {entry.owner} and belongs to nothing", entry.path
            break
        if name in START_UP:
            message = f"`{name}` is run at every start and belongs to nothing"
    return _finding("unowned-module", place, message, expected=expected, actual=place if expected else None)


def _grouped(
    kind: str, paths: list[str], message: str, severity: Severity, whole: str | None = None
) -> Iterator[Finding]:
    if whole and len(paths) > 1:
        names = ", ".join(path.rsplit("/", 1)[-1] for path in paths[:3])
        said = f"{len(paths)} files here belong to no package: {names}{', …' if len(paths) > 3 else ''}"
        yield Finding(check=FAMILY, kind=kind, severity=severity, subject=whole, message=said)
        return
    for path in paths[:SHOWN]:
        yield Finding(check=FAMILY, kind=kind, severity=severity, subject=path, message=message)
    if len(paths) > SHOWN:
        more = f"{len(paths) - SHOWN:,} more files"
        yield Finding(check=FAMILY, kind=kind, severity=severity, subject=more, message=message)


def _finding(kind: str, subject: str, message: str, **more: str | None) -> Finding:
    return Finding(check=FAMILY, kind=kind, severity=Severity.ERROR, subject=subject, message=message, **more)
