"""envsmith.series: what a series or a patch may hold; every refusal, and that all of them come at once."""

from __future__ import annotations

import hashlib

import pytest

from envsmith.errors import InputError
from envsmith.series import Layer, TouchedFile, check_base, parse_patch, parse_series

COMMIT = "1bf9d2d76c244238e8219531c582819a6b407d47"
HEADER = """\
Description: mend the thing
 It was broken.
Origin: vendor
Forwarded: no
Last-Update: 2026-11-29
Seen-As: ValueError: thing
"""
EDIT = """\
diff --git a/pkg/f.py b/pkg/f.py
index 1111111..2222222 100644
--- a/pkg/f.py
+++ b/pkg/f.py
@@ -1,3 +1,4 @@
 one
-two
+deux
+trois
 four
@@ -10 +11 @@ def f():
-ten
+dix
"""
NEW = """\
diff --git a/new.py b/new.py
new file mode 100644
index 0000000..2222222
--- /dev/null
+++ b/new.py
@@ -0,0 +1,2 @@
+one
+two
"""
GONE = """\
diff --git a/old.py b/old.py
deleted file mode 100644
index 2222222..0000000
--- a/old.py
+++ /dev/null
@@ -1,2 +0,0 @@
-one
-two
"""
EMPTY = "diff --git a/py.typed b/py.typed\nnew file mode 100644\nindex 0000000..e69de29\n"
RENAME = """\
diff --git a/a.py b/b/c.py
similarity index 90%
rename from a.py
rename to b/c.py
index 1111111..2222222 100644
--- a/a.py
+++ b/b/c.py
@@ -1 +1 @@
-one
+un
"""
NO_NEWLINE = """\
diff --git a/f b/f
index 1111111..2222222 100644
--- a/f
+++ b/f
@@ -1 +1 @@
-one
\\ No newline at end of file
+un
\\ No newline at end of file
"""
LINK = """\
diff --git a/l b/l
new file mode 120000
index 0000000..1111111
--- /dev/null
+++ b/l
@@ -0,0 +1 @@
+/etc/passwd
\\ No newline at end of file
"""
BINARY = "diff --git a/x.so b/x.so\nindex 1111111..2222222 100644\nBinary files a/x.so and b/x.so differ\n"


def codes_of(text: str) -> list[str]:
    """Return the codes of all problems of a patch, in order."""
    with pytest.raises(InputError) as caught:
        parse_patch(text.encode(), "0001-x.patch", "p/0001-x.patch")
    return [problem.code for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("body", "touched"),
    [
        pytest.param(EDIT, [("pkg/f.py", "pkg/f.py")], id="edit"),
        pytest.param(NEW, [(None, "new.py")], id="new file"),
        pytest.param(GONE, [("old.py", None)], id="deleted file"),
        pytest.param(EMPTY, [(None, "py.typed")], id="new empty file"),
        pytest.param(RENAME, [("a.py", "b/c.py")], id="rename"),
        pytest.param(NO_NEWLINE, [("f", "f")], id="no newline at the end"),
        pytest.param(
            EDIT.replace("pkg/f.py", "a b.py").replace("--- a/a b.py", "--- a/a b.py\t"),
            [("a b.py", "a b.py")],
            id="a space in a name",
        ),
        pytest.param(EDIT + NEW + GONE, [("pkg/f.py", "pkg/f.py"), (None, "new.py"), ("old.py", None)], id="three"),
        pytest.param(EDIT + "\n", [("pkg/f.py", "pkg/f.py")], id="blank line at the end"),
    ],
)
def test_a_patch_says_which_files_it_touches(body: str, touched: list[tuple[str | None, str | None]]) -> None:
    data = (HEADER + "\n" + body).encode()
    patch = parse_patch(data, "0001-x.patch", "p/0001-x.patch")
    assert patch.touched == tuple(TouchedFile(old=old, new=new) for old, new in touched)
    assert patch.sha256 == hashlib.sha256(data).hexdigest()
    assert patch.data == data
    assert patch.field("Description") == "mend the thing\nIt was broken."
    assert patch.field("Bug") is None


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        pytest.param("", ["patch-header"] * 5 + ["patch-empty"], id="nothing"),
        pytest.param(EDIT, ["patch-header"] * 5, id="a bare diff"),
        pytest.param(HEADER, ["patch-empty"], id="no diff"),
        pytest.param(HEADER.replace("Origin: vendor\n", "") + EDIT, ["patch-header"], id="a field is missing"),
        pytest.param(HEADER.replace("no\n", "\n") + EDIT, ["patch-header"], id="a field is empty"),
        pytest.param(HEADER + "Origin: me\n" + EDIT, ["patch-header"], id="a field twice"),
        pytest.param(HEADER + "Desciption: x\n" + EDIT, ["patch-header"], id="a field that nobody knows"),
        pytest.param(HEADER + "some prose\n" + EDIT, ["patch-header"], id="prose without a field"),
        pytest.param(HEADER.replace("2026-11-29", "yesterday") + EDIT, ["patch-header"], id="no date"),
        pytest.param(HEADER + EDIT.replace("pkg/f.py", "../f.py"), ["patch-path-escapes"], id="leaves the tree"),
        pytest.param(HEADER + EDIT.replace("pkg/f.py", "pkg/../../f.py"), ["patch-path-escapes"], id="leaves later"),
        pytest.param(HEADER + EDIT.replace("a/pkg/f.py", "/etc/f"), ["patch-path-escapes"], id="absolute"),
        pytest.param(HEADER + EDIT.replace("pkg/f.py", "/etc/f"), ["patch-path-escapes"], id="absolute after a/"),
        pytest.param(HEADER + EDIT.replace("pkg/f.py", "pkg//f.py"), ["patch-path-escapes"], id="empty component"),
        pytest.param(HEADER + NEW.replace("new.py", ".git/hooks/x"), ["patch-path-git"], id="git folder"),
        pytest.param(
            HEADER + NEW.replace("new.py", "sub/.GIT/config"), ["patch-path-git"], id="git folder in capitals"
        ),
        pytest.param(
            HEADER + RENAME.replace("b/c.py", "../c.py").replace("b/../c", "b/../c"),
            ["patch-path-escapes"],
            id="rename to outside",
        ),
        pytest.param(HEADER + RENAME.replace("a.py", ".git/config"), ["patch-path-git"], id="rename from a git folder"),
        pytest.param(HEADER + LINK, ["patch-symlink"], id="new link"),
        pytest.param(HEADER + EDIT.replace("2 100644", "2 120000"), ["patch-symlink"], id="edit of a link"),
        pytest.param(HEADER + EDIT.replace("2 100644", "2 160000"), ["patch-symlink"], id="submodule"),
        pytest.param(
            HEADER + EDIT.replace("index ", "old mode 100644\nnew mode 100755\nindex "), ["patch-mode-line"], id="mode"
        ),
        pytest.param(
            HEADER + "diff --git a/f b/f\nold mode 100644\nnew mode 100755\n", ["patch-mode-line"], id="only a mode"
        ),
        pytest.param(HEADER + NEW.replace("100644", "100755"), ["patch-mode-line"], id="new executable"),
        pytest.param(HEADER + BINARY, ["patch-binary"], id="binary"),
        pytest.param(
            HEADER
            + BINARY.replace("Binary files a/x.so and b/x.so differ", "GIT binary patch\nliteral 0\nHcmV?d00001"),
            ["patch-binary", "patch-malformed"],
            id="binary with data",
        ),
        pytest.param(HEADER + EDIT.replace("deux", "de\0ux"), ["patch-binary"], id="NUL"),
        pytest.param((HEADER + EDIT).replace("\n", "\r\n"), ["patch-crlf"], id="CRLF"),
        pytest.param(HEADER + EDIT.replace("+deux", "+deux\r"), ["patch-crlf"], id="one CRLF"),
        pytest.param(HEADER + EDIT.replace("-1,3 +1,4", "-1,4 +1,4"), ["patch-malformed"] * 2, id="count too high"),
        pytest.param(HEADER + EDIT.replace("-1,3 +1,4", "-1,2 +1,3"), ["patch-malformed"], id="count too low"),
        pytest.param(HEADER + EDIT.replace("+trois\n", ""), ["patch-malformed"], id="a line was taken out"),
        pytest.param(HEADER + EDIT.replace("+11 @@", "+12 @@"), ["patch-malformed"], id="position does not follow"),
        pytest.param(HEADER + EDIT.replace("-10 +11", "-2 +3"), ["patch-malformed"], id="hunks overlap"),
        pytest.param(HEADER + EDIT.replace("@@ -10 +11 @@", "@@ ten @@"), ["patch-malformed"] * 2, id="no numbers"),
        pytest.param(HEADER + EDIT + "-- \n2.39.5\n", ["patch-malformed"], id="mail trailer"),
        pytest.param(HEADER + EDIT + "prose\n", ["patch-malformed"], id="text that git skips"),
        pytest.param(HEADER + EDIT.removesuffix("\n"), ["patch-malformed"], id="cut at the end"),
        pytest.param(HEADER + EDIT + EDIT, ["patch-malformed"], id="one file twice"),
        pytest.param(HEADER + EDIT.replace("+++ b/pkg", "+++ b/other"), ["patch-malformed"], id="two names"),
        pytest.param(HEADER + EDIT.replace("--- a/pkg", "--- pkg"), ["patch-malformed"], id="no prefix"),
        pytest.param(HEADER + NEW.replace("new file mode 100644\n", ""), ["patch-malformed"], id="new without mode"),
        pytest.param(HEADER + "diff --git a/f b/f\nindex 1..2 100644\n", ["patch-malformed"], id="changes nothing"),
        pytest.param(
            HEADER + 'diff --git "a/\\303.py" "b/\\303.py"\nnew file mode 100644\n',
            ["patch-malformed"],
            id="quoted name",
        ),
        pytest.param(
            HEADER.replace("Origin: vendor\n", "") + LINK + EDIT.replace("pkg/", "../") + BINARY,
            ["patch-header", "patch-symlink", "patch-path-escapes", "patch-binary"],
            id="all at once",
        ),
    ],
)
def test_a_patch_is_refused_for(text: str, codes: list[str]) -> None:
    assert codes_of(text) == codes


def test_a_problem_names_the_line_it_is_on() -> None:
    text = HEADER + "\n" + EDIT.replace("+trois\n", "")
    with pytest.raises(InputError) as caught:
        parse_patch(text.encode(), "0001-x.patch", "p/0001-x.patch")
    line = text.split("\n").index("@@ -1,3 +1,4 @@") + 1
    assert [problem.where for problem in caught.value.problems] == [f"p/0001-x.patch:{line}"]
    assert caught.value.exit_code == 2


def series_text(*entries: str, layer: str = "device", base: str = COMMIT) -> str:
    return "".join(f"{line}\n" for line in (f"# Layer: {layer}", f"# Base: {base}", "# Description: d", *entries))


def test_a_series_keeps_order_and_drops_comments() -> None:
    text = series_text("0002-b.patch", "", "# why", "0001-a.patch   # because", base="LlamaFactory==0.9.5")
    series = parse_series(text, "s")
    assert series.entries == ("0002-b.patch", "0001-a.patch")
    assert (series.layer, series.base, series.description) == (Layer.DEVICE, "LlamaFactory==0.9.5", "d")


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        pytest.param("", ["series-empty", "series-header", "series-header"], id="nothing"),
        pytest.param("0001-a.patch\n", ["series-header", "series-header"], id="no fields"),
        pytest.param(series_text("a.patch", layer="hack"), ["series-header"], id="no such layer"),
        pytest.param(series_text("a.patch", base="1bf9d2d"), ["series-header"], id="short commit"),
        pytest.param(series_text("a.patch", base="deepspeed>=0.18"), ["series-header"], id="no pin"),
        pytest.param(series_text("a.patch", base="deepspeed[x]==1"), ["series-header"], id="extras"),
        pytest.param(series_text("a.patch", base="main"), ["series-header"], id="a branch"),
        pytest.param(series_text("# Layer: fix", "a.patch"), ["series-header"], id="field twice"),
        pytest.param(series_text("../a.patch"), ["series-entry"], id="slash"),
        pytest.param(series_text("a.patch -p2"), ["series-entry"], id="options"),
        pytest.param(series_text("a.diff"), ["series-entry"], id="no patch file"),
        pytest.param(series_text("a.patch", "b.patch", "a.patch"), ["series-duplicate"], id="twice"),
        pytest.param(series_text("a.patch\r", "b.patch"), ["patch-crlf"], id="CRLF"),
        pytest.param(
            series_text("/a.patch", "b", layer="x"), ["series-header", "series-entry", "series-entry"], id="all"
        ),
    ],
)
def test_a_series_is_refused_for(text: str, codes: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        parse_series(text, "s")
    assert [problem.code for problem in caught.value.problems] == codes


@pytest.mark.parametrize(
    ("made_for", "base"),
    [(COMMIT, COMMIT), (COMMIT, COMMIT.upper()), ("Flash-Attn==2.8.3", "flash_attn == 2.8.3.0")],
)
def test_a_series_fits_the_base_it_names_in_any_spelling(made_for: str, base: str) -> None:
    check_base(parse_series(series_text("a.patch", base=made_for), "s"), base)


@pytest.mark.parametrize("base", ["2" * 40, "deepspeed==0.18.4", "main"])
def test_a_series_for_another_base_is_refused(base: str) -> None:
    with pytest.raises(InputError) as caught:
        check_base(parse_series(series_text("a.patch"), "s"), base, "p/s.series")
    (problem,) = caught.value.problems
    assert (problem.code, problem.where, problem.actual) == ("series-wrong-base", "p/s.series", base)
