"""Faults of our own records: whoever changes what the truth is held against."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from bench.drift.edits import rewrite
from bench.drift.fault import Fault, one_of
from bench.drift.target import Target, choose

FAMILY = "records"


def _fault(target: Target, record: Path, old: bytes, new: bytes, code: str) -> Fault:
    def plant(folder: Path) -> None:
        rewrite(record, lambda text: text.replace(old, new, 1))

    return Fault(
        name=code,
        family=FAMILY,
        what=f"edit {record.name}",
        plant=plant,
        expect=one_of(f"error/{code}"),
        names=(record.name,),
        severity="any",
        exit_codes=(5,),
    )


def _beside(target: Target, suffix: str) -> Path:
    return target.directory.parent / f"{target.directory.name}.{suffix}"


def manifest_edited(target: Target, pick: Random) -> Iterator[Fault]:
    """The manifest was made to fit an edited file."""
    entry = choose(pick, target.modules)
    fake = f"{pick.getrandbits(256):064x}"
    yield _fault(target, _beside(target, "manifest.json"), entry.sha256.encode(), fake.encode(), "manifest-differs")


def lock_edited(target: Target, pick: Random) -> Iterator[Fault]:
    """The lock kept with the env was edited."""
    wheel = choose(pick, target.lock.wheels)
    record = _beside(target, "pylock.toml")
    yield _fault(target, record, wheel.sha256.encode(), f"{pick.getrandbits(256):064x}".encode(), "lock-differs")


def receipt_edited(target: Target, pick: Random) -> Iterator[Fault]:
    """The receipt was edited: an allowed directory was added."""
    record = target.directory / "envsmith.json"
    comma = b"," if target.receipt.verify["allow-outside"] else b""
    old = b'"allow-outside": ['
    yield _fault(target, record, old, old + b'"/planted"' + comma, "receipt-differs")


GENERATORS = (manifest_edited, lock_edited, receipt_edited)
