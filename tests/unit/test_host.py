"""Snapshots: every fact may be missing, nothing wrong gets in, and the digest is over what a lock rests on."""

from __future__ import annotations

import pytest

from envsmith.errors import InputError
from envsmith.host import parse_snapshot, protected_names

WHOLE = """\
[snapshot]
schema = 1
origin = "captured"
taken = "2026-11-29T00:00:00Z"

[host]
arch = "x86_64"
driver = "580.95.05"
cuinit = 803

[[host.accelerator]]
name = "NVIDIA H200"
count = 2
compute-capability = "9.0"
data-centre = true

[python]
executable = "/opt/v/bin/python"
version = "3.12.3"

[[packages]]
name = "Torch"
version = "2.11.0+cu130"
requires = ["numpy>=2"]

[[packages]]
name = "flash_attn"
"""


def test_a_whole_snapshot_is_read() -> None:
    snapshot = parse_snapshot(WHOLE, "x")
    assert snapshot.host.cuinit == 803
    assert snapshot.by_name().keys() == {"torch", "flash-attn"}
    assert snapshot.by_name()["flash-attn"].version is None


def test_every_fact_may_be_missing() -> None:
    snapshot = parse_snapshot('[snapshot]\nschema = 1\norigin = "transcribed"\n', "x")
    assert snapshot.host.driver is None
    assert snapshot.packages == ()


def test_the_digest_is_over_python_and_packages_alone_and_not_their_order() -> None:
    first = parse_snapshot(WHOLE, "x").digest()
    assert parse_snapshot(WHOLE.replace("580.95.05", "535.1"), "x").digest() == first
    head, torch, flash = WHOLE.split("[[packages]]")
    swapped = f"{head}[[packages]]{flash}\n[[packages]]{torch}"
    assert parse_snapshot(swapped, "x").digest() == first
    assert parse_snapshot(WHOLE.replace("2.11.0", "2.11.1"), "x").digest() != first
    assert parse_snapshot(WHOLE.replace("3.12.3", "3.12.4"), "x").digest() != first


def test_facts_of_a_host_answer_what_checks_ask() -> None:
    more = """
[[host.accelerator]]
name = "Tesla P40"
count = 1
compute-capability = "6.1"

[[host.file-system]]
path = "/"
type = "overlay"
kind = "local"

[[host.file-system]]
path = "/data/deep"
type = "fuse.hdfs"
kind = "fuse"
rename = "EPERM"
"""
    host = parse_snapshot(WHOLE.replace("[python]", f"{more}\n[python]"), "x").host
    assert host.capabilities == ((6, 1), (9, 0))
    assert host.devices == 3
    assert [row.path if (row := host.behind(path)) else None for path in ("/data", "/data/deep/x", "relative")] == [
        "/", "/data/deep", None,
    ]  # fmt: skip


@pytest.mark.parametrize(("facts", "devices"), [('driver = ""', 0), ('arch = "x86_64"', None)])
def test_no_device_is_told_from_nobody_looked(facts: str, devices: int | None) -> None:
    text = f'[snapshot]\nschema = 1\norigin = "captured"\n[host]\n{facts}\n'
    assert parse_snapshot(text, "x").host.devices == devices


@pytest.mark.parametrize(
    "line",
    [
        'cpu-limit = "2"', "open-files = -2", "cpus = -1", 'cuinit = "0"', "swappiness = true",
        "cpus = 9223372036854775808", "memory-limit-bytes = 9223372036854775808",
        'accelerator = [{ name = "X", count = 9223372036854775808 }]',
        'accelerator = [{ name = "X", count = 1, compute-capability = "٨.٠" }]',
        'accelerator = [{ name = "X", count = 1, compute-capability = "8.0\\n" }]',
    ],
)  # fmt: skip
def test_a_fact_of_another_type_is_refused(line: str) -> None:
    with pytest.raises(InputError) as error:
        parse_snapshot(f'[snapshot]\nschema = 1\norigin = "captured"\n[host]\n{line}\n', "s.toml")
    assert error.value.problems[0].where == "s.toml:5"


def test_star_protects_everything() -> None:
    snapshot = parse_snapshot(WHOLE, "x")
    assert protected_names(snapshot, ("*",)) == {"torch", "flash-attn"}
    assert protected_names(snapshot, ("Flash.Attn",)) == {"flash-attn"}


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("count = 2", "count = 0", 13),
        ('origin = "captured"', 'origin = "guessed"', 3),
        ('name = "flash_attn"', 'name = "torch"', 27),
        ('requires = ["numpy>=2"]', 'requires = ["numpy =>2"]', 24),
        ("cuinit = 803", 'cuinit = "803"', 9),
        ('arch = "x86_64"', 'arhc = "x86_64"', 7),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old: str, new: str, line: int) -> None:
    assert WHOLE.count(old) == 1
    with pytest.raises(InputError) as error:
        parse_snapshot(WHOLE.replace(old, new), "s.toml")
    assert f"s.toml:{line}" in {problem.where for problem in error.value.problems}
