"""The lines of a patch are those of the finished tree: later patches move them, change them, or take them away."""

from __future__ import annotations

from envsmith.patchlines import PatchedFile, final_lines, mislaid

FIRST = b"""\
Description: two hunks
 rename from here is a line of the description

diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -2,2 +2,4 @@
 two
+first
+again
 three
@@ -9 +11 @@
-nine
+NINE
"""
SECOND = b"""\
Description: above, and over the first

diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -1,0 +2 @@
+second
@@ -4 +5 @@
-again
+AGAIN
"""
RENAMED = b"""\
Description: another name

diff --git a/a.py b/b.py
rename from a.py
rename to b.py
--- a/a.py
+++ b/b.py
@@ -1 +1,2 @@
 one
+third
"""
DELETED = b"""\
Description: gone

diff --git a/b.py b/b.py
deleted file mode 100644
--- a/b.py
+++ /dev/null
@@ -1 +0,0 @@
-one
"""
CREATED = b"""\
Description: new

diff --git a/n.py b/n.py
new file mode 100644
--- /dev/null
+++ b/n.py
@@ -0,0 +1,2 @@
+x = 1
+y = 2
"""


def lines(*patches: bytes) -> list[dict[str, tuple[int, ...]]]:
    return [{file.path: file.lines for file in files} for files in final_lines(patches)]


def test_one_patch_has_the_lines_it_added() -> None:
    assert lines(FIRST) == [{"a.py": (3, 4, 11)}]
    assert final_lines([FIRST])[0][0].texts == ("first", "again", "NINE")


def test_a_later_patch_moves_the_lines_of_an_earlier_one_and_takes_those_it_changes() -> None:
    assert lines(FIRST, SECOND) == [{"a.py": (4, 12)}, {"a.py": (2, 5)}]


def test_lines_follow_a_renamed_file() -> None:
    assert lines(FIRST, RENAMED) == [{"b.py": (4, 5, 12)}, {"b.py": (2,)}]


def test_a_deleted_file_has_no_lines() -> None:
    assert lines(FIRST, RENAMED, DELETED) == [{}, {}, {}]


def test_a_new_file_is_all_its_own() -> None:
    assert lines(CREATED) == [{"n.py": (1, 2)}]


def test_a_patch_that_only_removes_keeps_its_file_without_lines() -> None:
    removing = b"diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -3 +2,0 @@\n-three\n"
    assert lines(removing) == [{"a.py": ()}]


def test_a_file_that_differs_from_what_the_patch_wrote_is_seen() -> None:
    file = PatchedFile(path="a.py", lines=(1, 3, 9), texts=("one", "three", "nine"))
    assert mislaid(file, "one\ntwo\nTHREE\n") == (3, 9)
    assert mislaid(file, "\n".join(["one", "", "three", "", "", "", "", "", "nine"])) == ()
