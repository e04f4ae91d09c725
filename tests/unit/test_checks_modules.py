"""Modules hidden inside packages: two owners are an error, one owner is on purpose."""

from __future__ import annotations

import pytest

from envsmith.checks.modules import check_modules
from envsmith.manifest import Entry, file_entry

SITE = "lib/python3.11/site-packages"


def owned(path: str, owner: str) -> Entry:
    return file_entry(f"{SITE}/{path}", path.encode(), owner, part="portable")


@pytest.mark.parametrize(
    ("winner", "hidden"),
    [
        ("pkg/mod/__init__.py", "pkg/mod.py"),
        ("pkg/mod.cpython-311-x86_64-linux-gnu.so", "pkg/mod.py"),
        ("pkg/mod/__init__.py", "pkg/mod.abi3.so"),
        ("pkg/mod.py", "pkg/mod.pyc"),
    ],
)
def test_a_module_hidden_by_another_package_is_named_with_both_files(winner: str, hidden: str) -> None:
    for entries in (
        [owned(winner, "one==1"), owned(hidden, "two==2")],
        [owned(hidden, "two==2"), owned(winner, "one==1")],
    ):
        (finding,) = check_modules(entries)
        assert (finding.kind, finding.subject) == ("submodule-hidden", "pkg.mod")
        assert (finding.expected, finding.actual) == (f"{SITE}/{hidden}", f"{SITE}/{winner}")


def test_one_owner_may_ship_a_source_beside_what_it_compiles_to() -> None:
    assert list(check_modules([owned("pkg/mod.py", "one==1"), owned("pkg/mod.abi3.so", "one==1")])) == []


def test_top_level_names_other_names_and_shared_files_are_left_to_others() -> None:
    entries = [
        owned("pkg.py", "one==1"), owned("pkg/__init__.py", "two==2"), owned("pkg/a.py", "one==1"),
        owned("pkg/b.py", "two==2"), owned("pkg/a.txt", "two==2"), owned("google/rpc/__init__.py", "x==1, y==1"),
    ]  # fmt: skip
    assert list(check_modules(entries)) == []
