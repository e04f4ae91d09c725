"""The sheet for the officer who must approve a bundle: what is in it, what runs, what deserves a look.

Markdown that is read as well without a renderer. Names, licences and reasons come from other people's metadata: they
are shown on one line, shortened and escaped, so that none of them can end a table, make a link or become HTML. A
digest is never shortened. The sheet is a function of its values. Nothing here does I/O.
Source: CommonMark 0.31 and the tables and autolinks of GitHub Flavored Markdown 0.29, read 2026-11-30.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from envsmith.errors import printable
from envsmith.lock import Conflict, File
from envsmith.sbom import AppliedPatch, Component, merged, plain_url
from envsmith.target import Target

_CELL = 120
_REASON = 400
_SPECIAL = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=[Ww]{3})\.")
#: A renderer makes a link of an address however it is escaped (cmark-gfm 0.29, tried 2026-11-30).
_ADDRESS = re.compile(r"(?<=[\w.+-])@(?=\w)")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


@dataclass(frozen=True, kw_only=True, slots=True)
class SheetEnv:
    """One env of the bundle."""

    name: str
    target: Target
    lock_sha256: str
    conflicts: tuple[Conflict, ...] = ()
    base: str | None = None
    """The vendor's base in words, where the env stands on one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SheetInput:
    """Everything that the sheet says."""

    stack: str
    summary: str
    envs: tuple[SheetEnv, ...]
    driver: str | None
    """What the recipe demands of the driver, such as `>=535`."""
    versions: Mapping[str, str]
    """Programs that made the bundle: envsmith, uv, git."""
    components: tuple[Component, ...]
    others: tuple[File, ...] = ()
    """Files that are no component: lock, recipe, patches, scripts, reports."""
    notes: tuple[str, ...] = ()
    """What its maker was told: libraries that the interpreter needs, what does not travel."""


def sheet(contents: SheetInput) -> str:
    """Write the sheet; the same contents in any order give the same text."""
    parts = merged(contents.components)
    envs = sorted(contents.envs, key=lambda env: env.name)
    blocks = [
        f"# Approval sheet: stack {words(contents.stack)}",
        f"Summary: {words(contents.summary, _REASON)}" if contents.summary else "",
        _facts(contents, parts, envs),
        _CHECK,
        "## What deserves a look\n\n"
        + "\n".join([*_looks(parts), *(f"- {words(note, _REASON)}." for note in contents.notes)]),
        _section("Accepted conflicts", ("env", "package", "requires", "found", "because"), _conflicts(envs)),
        _section("Wheels made here", ("file", "made from", "how", "sha256"), _made(parts)),
        _section("Patches", ("patch", "layer", "what it does", "origin", "forwarded", "sha256"), _patches(parts)),
        _section("Sources", ("name", "from", "commit", "tree", "envs", "bytes", "sha256"), _sources(parts)),
        *(_section(title, _COLUMNS, _rows(parts, kind)) for title, kind in _TABLES),
        _section("Other files", ("file", "bytes", "sha256"), _others(contents.others)),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


# --- words of others ---


def words(text: str, longest: int = _CELL) -> str:
    """Escape a text of others: one line, no control character, no markup, not longer than that before escaping."""
    line = _ADDRESS.sub(" at ", _line(text, longest))
    line = "".join(_ENTITIES.get(c, c) for c in line)
    return _SPECIAL.sub(lambda found: f"\\{found[0]}", line)


def code(text: str, longest: int = _CELL) -> str:
    """The same as code, which stays readable where it has `<` or `*`; what could end the code becomes words."""
    line = _line(text, longest)
    return words(line, longest) if not line or re.search(r"[`|\\]", line) else f"`{line}`"


def _line(text: str, longest: int) -> str:
    line = printable(" ".join(text[: longest * 4].split()), keep="")
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _section(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    table = _table(columns, rows)
    return f"## {title}\n\n{table}" if table else ""


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cell or '-' for cell in row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}", *lines]) if lines else ""


# --- facts ---


def _facts(contents: SheetInput, parts: Sequence[Component], envs: Sequence[SheetEnv]) -> str:
    files: dict[str, int] = {}
    sized = [(part.sha256, part.size or 0) for part in parts if part.sha256]
    for sha256, size in (*sized, *((file.sha256, file.size) for file in contents.others)):
        files[sha256] = max(size, files.get(sha256, 0))
    rows = [("files listed here", f"{len(files):,}, {sum(files.values()):,} bytes")]
    rows += [("driver", code(contents.driver) if contents.driver else "nothing demanded")]
    rows += [(f"made by {words(name)}", words(version)) for name, version in sorted(contents.versions.items())]
    for env in envs:
        base = f", on {words(env.base)}" if env.base else ""
        target = f"Python {env.target.python}, {env.target.arch}, glibc {env.target.glibc} or newer"
        rows += [(f"env {words(env.name)}", words(target) + base)]
        rows += [(f"lock of {words(env.name)}, sha256", code(env.lock_sha256))]
    return _table(("fact", "value"), rows)


_CHECK = """\
## How to check this without trusting us

Every file of the bundle lies in `blobs/sha256` and is named by its own SHA-256, so any machine with coreutils can
hold the contents against the names; this prints nothing when all is well:

    cd blobs/sha256 && sha256sum * | awk '$1 != $2 { print "WRONG", $2; bad = 1 } END { exit bad }'

A file that is missing is not seen that way; `sha256sum -c SHA256SUMS` beside `blobs` names all of them, `FILES.tsv`
says which file each one is, and the tables below give each file's whole SHA-256 (this sheet and the bill of materials
stand in `FILES.tsv` alone).
None of this says who made the bundle. That is said by the digest of its manifest, which lists every file, this sheet
included, and therefore cannot stand here: take it over another channel than the bundle and give it to the installer
as `--expect`, or have the manifest's signature checked against a key that the site already trusts.

What runs on install: the script `install.sh` or an envsmith that you have, the tools and the interpreter listed
below, and the build backends of the sources and their build requirements. Wheels are unpacked, which runs none of
their code. The verification at the end starts the env's Python, so `.pth` files run, and imports packages."""


# --- what deserves a look ---


def _looks(parts: Sequence[Component]) -> Iterator[str]:
    wheels = [part for part in parts if part.kind in ("wheel", "build", "library", "tool")]
    picks: tuple[tuple[str, Callable[[Component], str | None]], ...] = (
        ("No licence stated", lambda part: "" if part.licence.source == "none" else None),
        ("AGPL, GPL or LGPL named", lambda part: _named(part) if part.licence.copyleft else None),
        ("Proprietary licences", lambda part: part.licence.words if part.licence.proprietary else None),
        ("Statements about the licence differ", _differing),
        ("Built from an sdist, whose build ran its code", lambda part: "" if _is_built(part) else None),
        ("Patched", lambda part: f"{len(part.patches)}" if part.patches else None),
        ("Nobody looked for machine code", lambda part: "" if part.native is None else None),
    )  # fmt: skip
    for title, pick in picks:
        yield _look(title, [(part, said) for part in wheels if (said := pick(part)) is not None])
    native = [part.name for part in wheels if part.native]
    yield f"- Machine code, {_names(native)}"
    yield f"- Different versions in different envs: {'; '.join(_several(parts)) or 'none'}."


def _notes(notes: Iterable[str]) -> Iterator[str]:
    for note in notes:
        yield f"- {words(note[:1].upper() + note[1:], _REASON)}."


def _look(title: str, found: Sequence[tuple[Component, str]]) -> str:
    if len(found) > 1 and not any(said for _, said in found):
        return f"- {title}, {_names([part.name for part, _ in found])}"
    named = dict.fromkeys(
        f"{words(part.name)} {words(part.version or '', 60)}{f' ({words(said)})' if said else ''}"
        for part, said in found
    )
    return f"- {title}: {'; '.join(named) or 'none'}."


def _names(names: Iterable[str]) -> str:
    unique = sorted(set(names))
    return f"{len(unique)}: {', '.join(words(name) for name in unique) or 'none'}."


def _named(part: Component) -> str:
    named = ", ".join(part.licence.copyleft)
    return named if part.licence.expression is None else f"{part.licence.expression}; {named}"


def _differing(part: Component) -> str | None:
    against = part.licence.contradicted
    return f"{part.licence.words} against {', '.join(against)}" if against else None


def _is_built(part: Component) -> bool:
    return bool(part.made_with) or any(not one.filename.endswith(".whl") for one in part.ancestors)


def _several(parts: Iterable[Component]) -> Iterator[str]:
    found: dict[str, dict[str, set[str]]] = {}
    for part in parts:
        if part.kind == "wheel":
            found.setdefault(part.name, {}).setdefault(part.version or "", set()).update(part.envs)
    for name, versions in sorted(found.items()):
        if len(versions) > 1:
            said = (
                f"{words(version)} in {words(', '.join(sorted(envs)))}" for version, envs in sorted(versions.items())
            )
            yield f"{words(name)} {', '.join(said)}"


# --- tables ---

_COLUMNS = ("name", "version", "licence", "envs", "bytes", "sha256")
_TABLES = (
    ("Wheels", "wheel"), ("Sdists", "sdist"), ("Build requirements", "build"), ("Interpreter", "interpreter"),
    ("Tools", "tool"), ("Packages that the tools need", "library"), ("Assets", "asset"),
)  # fmt: skip


def _rows(parts: Iterable[Component], kind: str) -> Iterator[tuple[str, ...]]:
    for part in parts:
        if part.kind == kind:
            licence = "" if kind == "asset" else words(part.licence.words, 60)
            version = words(part.version or "", 60)
            yield words(part.name), version, licence, *_where(part)


def _where(part: Component) -> tuple[str, str, str]:
    size = "" if part.size is None else f"{part.size:,}"
    return words(", ".join(part.envs)), size, code(part.sha256 or "")


def _conflicts(envs: Iterable[SheetEnv]) -> Iterator[tuple[str, ...]]:
    for env in envs:
        for one in sorted(env.conflicts, key=lambda one: (one.package, one.requirement)):
            package = f"{words(one.package)} {words(one.version, 60)}"
            found = words(one.found) if one.found else "not there"
            yield words(env.name), package, code(one.requirement), found, words(one.because, _REASON)


def _made(parts: Iterable[Component]) -> Iterator[tuple[str, ...]]:
    for part in parts:
        if part.kind == "wheel" and (part.ancestors or part.patches or part.commit):
            inputs = [f"{code(one.filename)}, sha256 {code(one.sha256)}" for one in part.ancestors]
            inputs += [f"commit {code(part.commit)}"] if part.commit else []
            how = [f"patch {code(one.path)}: {words(one.description)}" for one in part.patches]
            how += [f"built with {words(', '.join(part.made_with), _REASON)}"] if part.made_with else []
            yield code(part.filename or part.name, 200), "; ".join(inputs), "; ".join(how), code(part.sha256 or "")


def _patches(parts: Iterable[Component]) -> Iterator[tuple[str, ...]]:
    found: dict[tuple[str, str, str], AppliedPatch] = {}
    for part in parts:
        for one in part.patches:
            found[one.path, one.layer, one.sha256] = one
    for _, one in sorted(found.items()):
        said = (words(one.layer), words(one.description), words(one.origin, 60), words(one.forwarded, 60))
        yield code(one.path), *said, code(one.sha256)


def _sources(parts: Iterable[Component]) -> Iterator[tuple[str, ...]]:
    for part in parts:
        if part.kind == "source":
            origin = plain_url(part.url) or ", ".join(one.filename for one in part.ancestors)
            name = f"{words(part.name)} {words(part.version or '', 60)}"
            yield name, code(origin), code(part.commit or ""), code(part.tree or ""), *_where(part)


def _others(files: Iterable[File]) -> Iterator[tuple[str, ...]]:
    for file in sorted(files, key=lambda one: (one.filename, one.sha256)):
        yield code(file.filename), f"{file.size:,}", code(file.sha256)
