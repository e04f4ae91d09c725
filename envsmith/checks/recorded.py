"""What distributions of a foreign env say of themselves and is not so: part of the family `files`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from envsmith.recorded import Recorded
from envsmith.report import Finding, Severity

FAMILY = "files"
#: Installers that always write a RECORD. Source: recording installed projects, packaging.python.org, read 2026-11-30.
RECORDING = ("pip", "uv")


def check_recorded(distributions: Iterable[Recorded], gone: Mapping[str, tuple[str, ...]]) -> Iterator[Finding]:
    """Say which distributions cannot be judged, and which editable installations lead nowhere.

    `gone` maps `.pth` files, relative to the env, to the folders that their lines name and that are not there.
    Misses editable installations that only a finder of their own knows.
    """
    for one in distributions:
        if one.rows is None and one.info.endswith(".dist-info"):
            lost = one.installer in RECORDING
            yield Finding(
                check=FAMILY,
                kind="record-missing",
                severity=Severity.ERROR if lost else Severity.NOTE,
                subject=one.info,
                message=f"{one.owner} has no RECORD, so its files cannot be checked"
                + ("; its installer wrote one" if lost else f"; {one.installer or 'its installer'} writes none"),
            )
    for path, folders in sorted(gone.items()):
        yield Finding(
            check=FAMILY,
            kind="editable-missing",
            severity=Severity.ERROR,
            subject=path,
            message="a .pth file leads to a folder that is not there: what should be imported from it is missing",
            expected=", ".join(folders),
            actual="no such folder",
            hint="put the project back, or install it again with `uv pip install -e PROJECT`",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Linked:
    """A file of a distribution that is a link on disk."""

    path: str
    owner: str
    target: str
    """Where it leads in the end."""
    wanted: str
    """sha256 by RECORD."""
    actual: str | None
    """sha256 of what it leads to; None when that is no file."""


def check_linked(links: Iterable[Linked]) -> Iterator[Finding]:
    """Prove that a link in the place of a file leads to the content that RECORD names."""
    for link in links:
        if link.actual != link.wanted:
            yield Finding(
                check=FAMILY,
                kind="link-changed",
                severity=Severity.ERROR,
                subject=link.path,
                message=f"a file of {link.owner} was replaced by a link to something else",
                expected=f"sha256:{link.wanted[:12]}",
                actual=f"{link.target}, " + (f"sha256:{link.actual[:12]}" if link.actual else "no file"),
            )
