"""Every key of a TOML file has its line, whatever form it is written in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import tomlkit
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tomlkit.exceptions import TOMLKitError

from envsmith.toml_position import KeyPath, line_of, locate

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a = 1\nb = 2", {("a",): 1, ("b",): 2}),
        ("# a = 0\n\n  a = 1 # b = 2\n\tb=3\n", {("a",): 3, ("b",): 4}),
        ("[t]\na = 1\n[t.u]\nb = 2", {("t",): 1, ("t", "a"): 2, ("t", "u"): 3, ("t", "u", "b"): 4}),
        ("[ t . \"u v\" ]\n'b c' = 1", {("t", "u v"): 1, ("t", "u v", "b c"): 2}),
        ("a.b.c = 1\na.d = 2", {("a",): 1, ("a", "b"): 1, ("a", "b", "c"): 1, ("a", "d"): 2}),
        ("a = [1,\n 2, # 3\n\n 4]", {("a",): 1, ("a", 0): 1, ("a", 1): 2, ("a", 2): 4}),
        ("a = { b = 1, c = { d = 2 } }", {("a", "b"): 1, ("a", "c", "d"): 1}),
        ("a = [\n  { b = 1 },\n  { b = 2 },\n]", {("a", 0, "b"): 2, ("a", 1, "b"): 3}),
        ("[[a]]\nb = 1\n[[a]]\nb = 2", {("a",): 1, ("a", 0, "b"): 2, ("a", 1): 3, ("a", 1, "b"): 4}),
        ("[[a]]\n[a.t]\nb = 1\n[[a]]\n[a.t]\nb = 2", {("a", 0, "t", "b"): 3, ("a", 1, "t", "b"): 6}),
        ("[[a]]\n[[a.c]]\nx=1\n[[a.c]]\nx=2\n[[a]]\n[[a.c]]\nx=3", {("a", 0, "c", 1): 4, ("a", 1, "c", 0, "x"): 8}),
        ('a = """\nb = 1\n\\"""\n"""\nc = 2', {("a",): 1, ("c",): 5}),
        ("a = '''\nb = 1\n''''\nc = 2", {("a",): 1, ("c",): 4}),
        ('a = """""x"""""\nb = """"""\nc = 1', {("a",): 1, ("b",): 2, ("c",): 3}),
        ('a = "x # y = [\\" ]"\nb = \'{ \\\'\nc = 1', {("a",): 1, ("b",): 2, ("c",): 3}),
        ("a = 1979-05-27 07:32:00Z # x\nb = -0.5e-3\nc = true", {("a",): 1, ("b",): 2, ("c",): 3}),
        ("a = 1\r\n\r\n[b]\r\nc = 2\r\n", {("a",): 1, ("b",): 3, ("b", "c"): 4}),
        ('"" = 1\n"a.b" = 2\n"ä"."\\u00fc" = 3', {("",): 1, ("a.b",): 2, ("ä", "ü"): 3}),
        ('"\\U0001F600" = 1\n"tab\\t\\"" = 2', {("😀",): 1, ('tab\t"',): 2}),
        ("\n[a.b.c]\nd = 1\n[a]\ne = 2", {("a",): 2, ("a", "b"): 2, ("a", "e"): 5}),
        ("", {}),
        ("# only words", {}),
    ],
    ids=[
        "plain", "comments", "tables", "spaces and quotes", "dotted", "array over lines", "inline", "inline in array",
        "array of tables", "table in it", "arrays in arrays", "basic text over lines", "literal text over lines",
        "quotes in quotes", "marks in text", "bare values", "windows", "odd keys", "escaped keys", "parents", "empty",
        "only a comment",
    ],
)  # fmt: skip
def test_lines_of_every_kind_of_key(text: str, lines: dict[KeyPath, int]) -> None:
    tomllib.loads(text)
    found = locate(text)
    assert {path: found.get(path) for path in lines} == lines


def test_a_path_that_is_not_there_has_the_line_of_its_parent() -> None:
    lines = locate("[a]\n[a.b]\nc = [1]")
    assert line_of(lines, ("a", "b", "x")) == 2
    assert line_of(lines, ("a", "b", "c", 0, "y", 3)) == 3
    assert line_of(lines, ("z",)) is None


def test_a_table_without_a_header_of_its_own_stands_where_it_is_first_named() -> None:
    assert line_of(locate("\n\n[env.a.source.s]\ngit = 1"), ("env", "a", "python")) == 3


# --- for every document ---

KEYS = st.one_of(
    st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=4),
)
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
SCALARS = st.one_of(
    st.integers(-(2**31), 2**31), st.booleans(), st.floats(allow_nan=False), st.datetimes(), st.dates(), TEXT,
    st.sampled_from(['a"b', "it's", "'''", '"""', "# no comment", "[a]\nb = 1", "\\", "a\\", "x = {", "\r\n", "]]"]),
)  # fmt: skip
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(KEYS, PLAIN, max_size=5)


class Writer:
    """Writes plain values with tomlkit, each in a form that the test draws."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def document(self, content: dict[str, Any]) -> str:
        made = tomlkit.document()
        # tomlkit writes keys in the order they come; a plain key behind a table would fall into the table.
        for key, value in sorted(content.items(), key=lambda pair: _is_table(pair[1])):
            if self._draw(st.booleans()):
                made.add(tomlkit.comment("a = [ \" ' {"))
                made.add(tomlkit.nl())
            made.add(key, self.item(value, inline=False))
        return tomlkit.dumps(made)

    def item(self, value: Any, *, inline: bool) -> Any:
        if isinstance(value, dict):
            return self.table(value, inline=inline or self._draw(st.booleans()))
        if isinstance(value, list):
            if value and not inline and all(isinstance(one, dict) for one in value) and self._draw(st.booleans()):
                tables = tomlkit.aot()
                for one in value:
                    tables.append(self.table(one, inline=False))
                return tables
            array = tomlkit.array()
            for one in value:
                array.append(self.item(one, inline=True))
            return array.multiline(self._draw(st.booleans()))
        if isinstance(value, str):
            return self.text(value)
        return value

    def table(self, value: dict[str, Any], *, inline: bool) -> Any:
        made: Any = tomlkit.inline_table() if inline else tomlkit.table()
        for key, inner in sorted(value.items(), key=lambda pair: not inline and _is_table(pair[1])):
            made.add(key, self.item(inner, inline=inline))
        return made

    def text(self, value: str) -> Any:
        literal, multiline = self._draw(st.booleans()), self._draw(st.booleans())
        try:
            return tomlkit.string(value, literal=literal, multiline=multiline)
        except (TOMLKitError, ValueError):
            return tomlkit.string(value)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, dict) for one in value))


@st.composite
def texts(draw: st.DrawFn) -> str:
    text = Writer(draw).document(draw(DOCUMENTS))
    return text.replace("\n", "\r\n") if "\r" not in text and draw(st.booleans()) else text


def leaves(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from leaves(inner, (*path, key))
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield (*path, index)
            yield from leaves(inner, (*path, index))


def spellings(key: str) -> set[str]:
    """How a key may stand in a line: as it is, or escaped."""
    escaped = "".join(c if c.isprintable() and c not in '"\\' else f"\\u{ord(c):04x}" for c in key)
    return {key, escaped, escaped.upper(), tomlkit.key(key).as_string().strip("\"'")}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(texts())
def test_every_key_of_a_valid_document_is_found_in_its_line(text: str) -> None:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assume(False)  # tomlkit wrote what is no TOML
    lines = locate(text)
    rows = text.split("\n")
    for path in leaves(data):
        assert path in lines, path
        assert 1 <= lines[path] <= len(rows)
        key = path[-1]
        if isinstance(key, str):
            assert any(spelled in rows[lines[path] - 1] for spelled in spellings(key)), (path, lines[path])


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("ab=[]{}\"'\\.,#\n\r \t1-"), max_size=30))
def test_nothing_that_the_standard_parser_takes_upsets_the_scanner(text: str) -> None:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert set(leaves(data)) <= set(locate(text))
