"""Hunks are read where they stand, and a file that differs is looked at where it comes nearest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envsmith.hunks import Hunk, is_unique, nearest, offsets, paths, read_hunks, rejected, without_index_lines

PATCH = b"""\
Description: two files

diff --git a/a.py b/a.py
index 1111111..2222222 100644
--- a/a.py
+++ b/a.py
@@ -2,3 +2,3 @@ def f():
 two
-three
+THREE
 four
@@ -9 +9,2 @@
 nine
+index is no header here
diff --git a/b.py b/b.py
new file mode 100644
index 0000000..3333333
--- /dev/null
+++ b/b.py
@@ -0,0 +1 @@
+x = 1
\\ No newline at end of file
"""
FIRST, SECOND, NEW = read_hunks(PATCH)
LINES = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", ""]


def test_each_hunk_knows_its_file_number_and_line() -> None:
    lines = PATCH.decode().split("\n")
    assert [(h.path, h.number, h.start) for h in (FIRST, SECOND, NEW)] == [
        ("a.py", 1, 2),
        ("a.py", 2, 9),
        ("b.py", 1, 0),
    ]
    assert all(lines[h.line - 1].startswith("@@ ") for h in (FIRST, SECOND, NEW))
    assert (FIRST.old, FIRST.context, NEW.old) == (("two", "three", "four"), 1, ())
    assert paths(PATCH) == ("a.py", "b.py")


def test_index_lines_go_and_nothing_else_does() -> None:
    bare = without_index_lines(PATCH)
    assert PATCH.count(b"\n") - bare.count(b"\n") == 2
    assert b"+index is no header here" in bare


@pytest.mark.parametrize(
    ("lines", "unique"), [(LINES, True), (LINES + LINES, False), (LINES[:2] + LINES[3:], False), ([], False)]
)
def test_a_hunk_is_unique_where_its_lines_stand_once(lines: list[str], unique: bool) -> None:
    assert is_unique(FIRST, lines) is unique
    assert is_unique(NEW, lines)


def test_the_nearest_place_is_the_one_with_most_of_its_lines() -> None:
    moved = ["new"] * 5 + [line if line != "three" else "drei" for line in LINES]
    miss = nearest(FIRST, moved)
    assert (miss.line, miss.expected, miss.actual) == (8, "three", "drei")
    end = nearest(FIRST, ["one", "two", "three"])
    assert (end.line, end.expected, end.actual) == (4, "four", None)


def test_of_equal_places_the_nearer_is_taken() -> None:
    hunk = replace(FIRST, start=6)
    assert nearest(hunk, ["two", "x", "four", "y", "two", "x", "four"]).line == 6


def test_an_empty_file_is_no_crash() -> None:
    assert nearest(FIRST, []).actual is None
    assert isinstance(NEW, Hunk) and nearest(NEW, LINES).expected is None


SAID = """\
Checking patch a.py...
error: while searching for:
two
error: patch failed: a.py:2
Hunk #2 succeeded at 11 (offset 2 lines).
Checking patch b.py...
error: b.py: already exists in working directory
Applying patch a.py with 1 reject...
Rejected hunk #1.
Hunk #2 applied cleanly.
"""


def test_what_git_said_is_read_by_file_and_hunk() -> None:
    assert rejected(SAID, PATCH) == (
        ("a.py", 1, "it is not there"),
        ("b.py", None, "already exists in working directory"),
    )
    (moved,) = offsets(SAID)
    assert (moved.path, moved.number, moved.line, moved.lines) == ("a.py", 2, 11, 2)
    clean = "Applied patch a.py cleanly.\nApplied patch b.py cleanly.\n"
    assert rejected(clean, PATCH) == ()
    assert [reason for _, _, reason in rejected("", PATCH)] == ["git does not say why"] * 2
