"""What runs before a program's first line: .pth files, sitecustomize, the user site, variables, import hooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from envsmith.checks.expected import Expected, from_library, within
from envsmith.facts import Customize, Facts, PthFile
from envsmith.report import REBUILD, Finding, Severity

FAMILY: Final = "hooks"
#: Variables that change what is imported or loaded, and how.
VARIABLES: Final = {
    "PYTHONPATH": "puts directories before everything that is installed",
    "PYTHONHOME": "moves the standard library",
    "PYTHONUSERBASE": "moves the user site directory",
    "PYTHONSTARTUP": "is run by interactive interpreters",
    "LD_PRELOAD": "puts its libraries before those of every package",
}


def check_hooks(expected: Expected, facts: Facts) -> Iterator[Finding]:
    """Run every check of this family.

    Proves that no code but the manifest's runs at start and that no variable redirects imports. `-I` and unsetting
    PYTHONPATH do not switch .pth files and sitecustomize off, so they are looked at whatever the flags were. Misses
    code in packages that the known hooks themselves import (the files family) and changes to the standard library.
    """
    yield from check_pth_files(expected, facts)
    yield from check_customize(expected, facts)
    yield from check_user_site(expected, facts)
    yield from check_variables(expected, facts)
    yield from check_finders(expected, facts)


def check_pth_files(expected: Expected, facts: Facts) -> Iterator[Finding]:
    """Prove that every .pth file read at start is known to the manifest with this content.

    Running code in a .pth is not an offence: shipped wheels do it. Files of allowed outside directories are accepted
    unless the manifest knows another content for them. A file that holds only comments, or that may not have been
    read, is a warning.
    """
    for pth in facts.site.pth:
        path = expected.relative(pth.path)
        known = expected.hooks.get(path)
        if known == pth.sha256 or (known is None and within(pth.path, expected.allow_outside)):
            continue
        does_something = bool(pth.lines or pth.import_lines)
        yield Finding(
            check=FAMILY,
            kind="unowned-pth" if known is None else "changed-pth",
            severity=Severity.ERROR if _is_read(pth, expected) and does_something else Severity.WARNING,
            subject=path,
            message=_pth_message(pth, known, in_base=within(pth.path, expected.base_folders)),
            expected=known,
            actual=pth.sha256 if known else None,
            hint=_pth_hint(pth, known, expected),
        )


def _pth_hint(pth: PthFile, known: str | None, expected: Expected) -> str:
    if within(pth.path, expected.base_folders):
        return "the base belongs to its vendor: start from a fresh image, or take a new snapshot and lock again"
    return "remove it" if known is None else f"build it again with {REBUILD}"


def _is_read(pth: PthFile, expected: Expected) -> bool:
    """Whether Python surely read it: the env's own hook hands the folders of its base to the site module."""
    return pth.sure or within(pth.path, expected.base_folders)


def _pth_message(pth: PthFile, known: str | None, *, in_base: bool) -> str:
    does = [f"runs `{_short(line)}`" for line in pth.import_lines[:1]]
    does += [f"adds `{_short(line)}` to sys.path" for line in pth.lines[:1]]
    what = " and ".join(does) or "does nothing"
    whose = "a .pth file that no package owns" if known is None else "a .pth file whose content was changed"
    if known is None and in_base:
        whose = "a .pth file that the base did not have when the env was built"
    return f"{whose} {what}" + ("" if pth.sure else ", if its directory is read for .pth files")


def check_customize(expected: Expected, facts: Facts) -> Iterator[Finding]:
    """Prove that no sitecustomize or usercustomize but a known one is on the path, the base interpreter's included.

    One that is on the path but was not loaded here, because another came first or the user site is off, is a warning.
    """
    for customize in facts.site.customize:
        path = expected.relative(customize.path)
        known = expected.hooks.get(path)
        if known == customize.sha256 or (known is None and within(customize.path, expected.allow_outside)):
            continue
        yield Finding(
            check=FAMILY,
            kind=customize.name,
            severity=Severity.ERROR if customize.loaded else Severity.WARNING,
            subject=path,
            message=_customize_message(customize, known),
            expected=known,
            actual=customize.sha256 if known else None,
            hint=f"build it again with {REBUILD}"
            if known
            else "remove it; one that belongs to the base interpreter must be recorded at build time",
        )


def _customize_message(customize: Customize, known: str | None) -> str:
    whose = "that nobody owns" if known is None else "whose content was changed"
    when = "ran at start" if customize.loaded else "is on the path, but did not run in this process"
    return f"a {customize.name} {whose} {when}"


def check_user_site(expected: Expected, facts: Facts) -> Iterator[Finding]:
    """Prove that `~/.local` cannot answer an import. Enabled without an existing directory it does nothing yet."""
    site = facts.site
    if not (site.user_enabled and site.user_exists and site.user_dir):
        return
    if within(site.user_dir, expected.allowed()):
        return
    active = any(entry.real == site.user_dir for entry in facts.path)
    yield Finding(
        check=FAMILY,
        kind="user-site-leak",
        severity=Severity.ERROR if active else Severity.WARNING,
        subject=site.user_dir,
        message="the user site directory exists, is enabled and "
        + ("takes part in every import" if active else "is not on sys.path in this process"),
        hint="set PYTHONNOUSERSITE=1 in every process: `envsmith run` does",
    )


def check_variables(expected: Expected, facts: Facts) -> Iterator[Finding]:
    """Prove that no variable redirects imports or libraries; values that name only allowed directories are accepted.

    Under `-I` or `-E` the Python ones have no effect here but are inherited by children: a warning.
    """
    for name, effect in VARIABLES.items():
        value = facts.environ.get(name, "")
        if not value or (
            name != "PYTHONHOME" and all(_is_allowed(item, expected, facts) for item in _items(name, value))
        ):
            continue
        yield Finding(
            check=FAMILY,
            kind="python-variable",
            severity=_severity_of(name, facts),
            subject=name,
            message=f"`{name}` is set: it {effect}",
            actual=value,
            hint=f"unset {name}, or start the program through `envsmith run`",
        )


def _items(name: str, value: str) -> list[str]:
    """Split a list of paths; an empty item of PYTHONPATH is the current directory, of LD_PRELOAD nothing."""
    return value.split(":") if name != "LD_PRELOAD" else value.replace(":", " ").split()


def _is_allowed(item: str, expected: Expected, facts: Facts) -> bool:
    real = next((entry.real for entry in facts.path if entry.entry == item.rstrip("/")), item)
    return item.startswith("/") and within(real, expected.allowed())


def _severity_of(name: str, facts: Facts) -> Severity:
    ignored = name.startswith("PYTHON") and facts.flags.get("ignore_environment", 0)
    idle = name == "PYTHONSTARTUP" or (name == "PYTHONUSERBASE" and not facts.site.user_enabled)
    return Severity.WARNING if ignored or idle else Severity.ERROR


def check_finders(expected: Expected, facts: Facts) -> Iterator[Finding]:
    """Prove that every import hook was defined by a file of the environment, the interpreter or an allowed directory.

    Editable installations and setuptools bring such hooks. One that code of a .pth line defined has no file; the
    .pth file itself is judged instead.
    """
    for finder in facts.site.finders:
        if finder.file is None:
            inside = finder.module == "site"
        else:
            inside = within(finder.file, expected.allowed()) or from_library(finder.file, expected, facts)
        if not inside:
            yield Finding(
                check=FAMILY,
                kind="foreign-finder",
                severity=Severity.WARNING,
                subject=f"{finder.module}.{finder.name}",
                message="an import hook from outside of the environment can answer any import",
                actual=finder.file,
            )


def _short(line: str) -> str:
    return line if len(line) <= 80 else line[:77] + "…"
