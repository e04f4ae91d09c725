"""A strict reader for the body of a patch, as `git diff` writes it.

The grammar is stricter than git's on purpose: `git apply` skips text it does not understand, guesses around hunk
positions, and follows paths and modes that a reviewer does not expect in a patch. What passes here is what a reader
sees.
Source: git-diff(1), git-apply(1) of git 2.39, read 2026-11-29.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from envsmith.errors import InputError, Problem

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: .*)?", re.ASCII)
_LINK_MODES = {"120000": "symbolic link", "160000": "submodule"}
_NO_MODES = "leave mode lines out: make the patch after `git config core.fileMode false`"
_PATH_WORDS = ("--- ", "+++ ", "rename from ", "rename to ", "copy from ", "copy to ")
_HEADER_WORDS = (
    *_PATH_WORDS,
    "old mode ",
    "new mode ",
    "new file mode ",
    "deleted file mode ",
    "index ",
    "similarity index ",
    "dissimilarity index ",
    "Binary files ",
    "GIT binary patch",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TouchedFile:
    """One file section of a patch; `None` is `/dev/null`."""

    old: str | None
    new: str | None


class Problems:
    """The problems of one file, raised together in line order."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._found: list[tuple[int, Problem]] = []

    def add(self, line: int, code: str, message: str, hint: str | None = None) -> None:
        """Note a problem of one line."""
        problem = Problem(code=code, message=message, where=f"{self._where}:{line}", hint=hint)
        self._found.append((line, problem))

    def has(self, code: str) -> bool:
        """Say whether a problem of this code was noted."""
        return any(problem.code == code for _, problem in self._found)

    def throw(self) -> None:
        """Raise what was noted, if anything.

        Raises:
            InputError: with every problem, in line order.
        """
        if self._found:
            raise InputError(*(problem for _, problem in sorted(self._found, key=lambda found: found[0])))


def read_sections(lines: Sequence[str], start: int, problems: Problems) -> tuple[TouchedFile, ...]:
    """Read the file sections of a patch from line index `start` on; what is wrong goes into `problems`.

    Codes: `patch-malformed`, `patch-path-escapes`, `patch-path-git`, `patch-symlink`, `patch-mode-line` and
    `patch-binary`.
    """
    return tuple(_Body(lines, start, problems).sections())


@dataclass(kw_only=True, slots=True)
class _Section:
    """What the lines above a file's first hunk said."""

    line: int
    names: str
    """The rest of the `diff --git` line."""
    stated: dict[str, str] = field(default_factory=dict)
    """Paths by the word in front of them: `---`, `+++`, `rename from` …"""
    created: bool = False
    deleted: bool = False
    refused: bool = False
    """True once a problem was found that makes further rules pointless."""


class _Body:
    """A strict reader of `git diff` output; a bad section does not hide the problems of the next."""

    def __init__(self, lines: Sequence[str], start: int, problems: Problems) -> None:
        self._lines = lines
        self._at = start
        self._problems = problems

    def sections(self) -> Iterator[TouchedFile]:
        seen: set[str] = set()
        while self._at < len(self._lines):
            section = _Section(line=self._at + 1, names=self._lines[self._at].removeprefix("diff --git "))
            self._at += 1
            while self._at < len(self._lines) and self._extended_header(self._lines[self._at], section):
                self._at += 1
            hunks = self._hunks()
            self._skip_rest()
            touched = self._touched(section, hunks)
            name = touched.new or touched.old or ""
            if name in seen:
                self._malformed(section.line, f"`{name}` has two sections")
            seen.add(name)
            yield touched

    def _malformed(self, line: int, message: str) -> None:
        self._problems.add(line, "patch-malformed", message, hint="make the patch anew with `git diff`; do not edit it")

    def _extended_header(self, line: str, section: _Section) -> bool:
        """Take one line above the hunks; `False` when it is not one of them."""
        number = self._at + 1
        word = next((w for w in _HEADER_WORDS if line.startswith(w)), None)
        if word is None:
            return False
        value = line.removeprefix(word)
        if word in _PATH_WORDS:
            section.stated[word.strip()] = value.split("\t", 1)[0]
        elif word == "new mode ":
            self._check_mode(value, (), number, section)
        elif word == "new file mode ":
            section.created = True
            self._check_mode(value, ("100644",), number, section)
        elif word == "deleted file mode ":
            section.deleted = True
            self._check_mode(value, ("100644", "100755"), number, section)
        elif word == "index ":
            self._check_mode(value.partition(" ")[2] or "100644", ("100644", "100755"), number, section)
        elif word in ("Binary files ", "GIT binary patch"):
            section.refused = True
            self._problems.add(number, "patch-binary", "the section is binary", hint="carry the file as an asset")
        return True

    def _check_mode(self, mode: str, allowed: tuple[str, ...], number: int, section: _Section) -> None:
        if mode in _LINK_MODES:
            self._problems.add(number, "patch-symlink", f"mode `{mode}` makes or changes a {_LINK_MODES[mode]}")
        elif mode not in allowed:
            self._problems.add(number, "patch-mode-line", f"mode `{mode}` may not be set by a patch", hint=_NO_MODES)
        section.refused |= mode not in allowed

    def _hunks(self) -> int:
        """Read hunks; check that counts hold, that hunks do not overlap and that new positions follow from old ones."""
        count = shift = end = 0
        while self._at < len(self._lines) and self._lines[self._at].startswith("@@"):
            count += 1
            number, match = self._at + 1, _HUNK.fullmatch(self._lines[self._at])
            self._at += 1
            if match is None:
                self._malformed(number, f"`{self._lines[number - 1][:60]}` is no hunk header")
                continue
            old_start, old, new_start, new = (int(part if part is not None else 1) for part in match.groups())
            old_position, new_position = old_start + (old == 0), new_start + (new == 0)
            if old_position < end or new_position != old_position + shift:
                self._malformed(number, "the hunk's position does not follow from the hunks above it")
            end, shift = old_position + old, shift + new - old
            self._hunk_lines(number, old, new)
        return count

    def _hunk_lines(self, number: int, old: int, new: int) -> None:
        left_old, left_new, changes = old, new, 0
        while self._at < len(self._lines) and (left_old > 0 or left_new > 0):
            mark = self._lines[self._at][:1]
            if mark not in ("", " ", "-", "+", "\\"):
                break
            left_old -= mark in ("", " ", "-")
            left_new -= mark in ("", " ", "+")
            changes += mark in ("-", "+")
            self._at += 1
        if self._at < len(self._lines) and self._lines[self._at].startswith("\\ "):
            self._at += 1
        if left_old or left_new:
            said = f"{old} old and {new} new lines"
            self._malformed(number, f"the hunk says {said}, it has {old - left_old} and {new - left_new}")
        elif not changes:
            self._malformed(number, "the hunk changes nothing")

    def _skip_rest(self) -> None:
        """Go to the next section; text in between is what git would silently skip."""
        reported = False
        while self._at < len(self._lines) and not self._lines[self._at].startswith("diff --git "):
            line = self._lines[self._at]
            self._at += 1
            if line.strip() and not reported:
                self._malformed(self._at, f"`{line[:60]}` belongs to no hunk: the line above it ends the last one")
                reported = True

    def _touched(self, section: _Section, hunks: int) -> TouchedFile:
        stated = section.stated
        moved = next((word for word in ("rename", "copy") if f"{word} from" in stated), None)
        if moved is not None:
            raw = (f"a/{stated[f'{moved} from']}", f"b/{stated.get(f'{moved} to', '')}")
        elif "---" in stated and "+++" in stated:
            raw = (stated["---"], stated["+++"])
        else:
            half = (len(section.names) - 1) // 2  # `a/NAME b/NAME`: an empty file has no other line with its name
            raw = (section.names[:half], section.names[half + 1 :])
            raw = ("/dev/null" if section.created else raw[0], "/dev/null" if section.deleted else raw[1])
        old = self._path(raw[0], "a/", section)
        new = self._path(raw[1], "b/", section)
        if section.refused:
            return TouchedFile(old=old, new=new)
        if hunks and not {"---", "+++"} <= stated.keys():
            self._malformed(section.line, "hunks without `---` and `+++` lines")
        elif not (hunks or moved or section.created or section.deleted):
            self._malformed(section.line, "the section changes nothing")
        elif section.names != f"a/{old or new} b/{new or old}":
            self._malformed(section.line, f"`diff --git {section.names}` and the lines below it name other files")
        elif hunks and (section.created, section.deleted) != (old is None, new is None):
            self._malformed(
                section.line, "`/dev/null` and the mode lines disagree on whether the file is new or deleted"
            )
        elif moved and hunks and (stated["---"], stated["+++"]) != raw:
            self._malformed(section.line, f"`{moved}` lines and `---`, `+++` lines name other files")
        return TouchedFile(old=old, new=new)

    def _path(self, raw: str, prefix: str, section: _Section) -> str | None:
        if raw == "/dev/null":
            return None
        path = raw.removeprefix(prefix)
        parts = path.split("/")
        problem: tuple[str, str] | None = None
        if raw.startswith('"') or any(ord(c) < 32 or ord(c) == 127 for c in raw):
            problem = ("patch-malformed", "needs quoting, which is not supported")
        elif path.startswith("/") or ".." in parts:
            problem = ("patch-path-escapes", "leaves the tree")
        elif not raw.startswith(prefix):
            problem = ("patch-malformed", f"does not start with `{prefix}`")
        elif "" in parts or "." in parts or "\\" in path:
            problem = ("patch-path-escapes", "is not in plain form")
        elif any(part.casefold() in (".git", "git~1") for part in parts):
            problem = ("patch-path-git", "is inside a git folder")
        if problem and not section.refused:
            section.refused = True
            self._problems.add(section.line, problem[0], f"path `{path}` {problem[1]}")
        return path
