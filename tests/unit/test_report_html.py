"""The page holds everything the report says, as text and nothing else, and needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsmith.report import ContextRow, Finding, Package, Report, Severity
from envsmith.report_html import page
from tests.support.reports import AROUND, HOSTILE, PLANTED, everywhere, finding, report

VOID = {"meta", "input", "wbr"}
#: Attributes through which a page could load or send something.
LOADING = {"src", "srcset", "action", "formaction", "data", "poster", "background", "ping", "manifest", "style"}


class Page(HTMLParser):
    """What a browser sees: elements with their attributes and text; unbalanced markup is an error."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: dict[str, str] = {}
        self.texts: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        self.text[inside] = self.text.get(inside, "") + data
        if inside not in ("script", "style"):
            self.texts.append(data)

    def said(self) -> str:
        return "".join(self.texts)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


FULL = report(
    finding(expected="1", actual="2", hint="`envsmith build a100 --rebuild`: it helps"),
    finding(Severity.WARNING, check="imports", kind="path-outside", subject="/opt/x"),
    finding(Severity.NOTE, check="other", kind="n"),
    environment={"directory": "/data/envs/x", "HF_TOKEN": "hunter2"},
    figures={"files": "39,825"},
    packages=(
        Package(name="numpy", version="1.26.3", locked="1.26.4", origin="wheel", files=900, findings=1),
        Package(name="ray", version="2.56.1", locked="2.56.1", origin="wheel", files=9, findings=0),
        Package(name="gone", version=None, locked="1", origin="wheel", files=0, findings=0),
        Package(name="extra", version="1", locked=None, origin="unknown", files=1, findings=0),
    ),
    contexts=(
        ContextRow(
            name="launched", parent=None, facts={"version": "3.11.7", "LD_LIBRARY_PATH": "/a", "X_KEY": "hunter2"}
        ),
        ContextRow(
            name="ray", parent="launched", facts={"version": "3.11.7", "X_KEY": "hunter2"}, differs=("LD_LIBRARY_PATH",)
        ),
    ),
)


def test_only_our_script_may_run_and_nothing_may_be_loaded() -> None:
    source = page([FULL], title="t")
    seen = Page(source)
    [policy] = [meta["content"] for meta in seen.of("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    script = re.search(r"<script>(.*)</script>", source, re.DOTALL)
    assert script and len(seen.of("script")) == 1
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    assert "</" not in script[1] and "<!--" not in script[1]


@pytest.mark.parametrize("said", [FULL, everywhere(HOSTILE), everywhere("https://evil.example/x //evil.example/y")])
def test_the_page_refers_to_nothing_outside(said: Report) -> None:
    seen = Page(page([said, said], title=HOSTILE))
    for tag, attributes in seen.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form", "svg", "video", "audio")
        assert not LOADING & attributes.keys() and not any(name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(r"url\(|@import|https?:|//", re.sub(r"/\*.*?\*/", "", seen.text["style"]))
    assert not re.search(r"https?:|\bfetch\b|XMLHttpRequest|WebSocket|import\(|eval|innerHTML", seen.text["script"])


def test_hostile_text_stays_text_and_what_cannot_be_seen_is_shown() -> None:
    source = page([everywhere(HOSTILE)], title=HOSTILE)
    seen = Page(source)
    assert len(seen.of("script")) == 1
    assert all(c.isprintable() or c == "\n" for c in source)
    assert "<script>alert(1)" in seen.said() and "\\u202egpj.exe\\x1b[31m\\u200b" in seen.said()


@settings(max_examples=60, deadline=None)
@given(AROUND | st.text(alphabet="<>&\"'`/=! -a:", max_size=60))
def test_any_text_leaves_the_page_whole(text: str) -> None:
    shape = [tag for tag, _ in Page(page([everywhere("x")], title="x")).elements if tag not in ("wbr", "code")]
    seen = Page(page([everywhere(text)], title=text))
    known = {*shape, "code", "wbr"}
    assert {tag for tag, _ in seen.elements} <= known
    assert [tag for tag, _ in seen.elements].count("script") == 1


@settings(max_examples=60, deadline=None)
@given(PLANTED)
def test_no_planted_secret_is_on_the_page(planted: tuple[str, str]) -> None:
    secret, text = planted
    said = Page(page([everywhere(text)], title=text)).said()
    assert secret not in said


def test_values_of_secret_variables_are_cut() -> None:
    assert "hunter2" not in page([FULL], title="t")


def test_the_same_reports_give_the_same_bytes() -> None:
    assert page([FULL], title="t") == page([replace(FULL)], title="t")


def test_every_finding_is_on_the_page_and_the_many_are_folded() -> None:
    findings = [finding(subject=f"lib/file_{n:04}.py", expected=f"sha256:{n:012x}", hint="h") for n in range(5000)]
    seen = Page(page([report(*findings)], title="t"))
    said = seen.said()
    for one in findings:
        assert one.subject in said and str(one.expected) in said
    assert "4,990 more" in said
    assert [attributes for attributes in seen.of("details") if "open" in attributes] == []


def test_a_report_of_many_causes_begins_with_a_list_of_them() -> None:
    source = page([report(*(finding(kind=f"k-{n}", subject=f"s{n}") for n in range(50)))], title="t")
    seen = Page(source)
    anchors = {str(a["id"]) for a in seen.of("article")}
    linked = {str(a["href"])[1:] for a in seen.of("a")}
    assert len(anchors) == 50 and anchors <= linked
    assert "50 causes at a glance" in seen.said()


def test_links_lead_somewhere_and_no_name_is_given_twice() -> None:
    for reports in ([FULL], [FULL, report(), FULL]):
        seen = Page(page(reports, title="t"))
        names = [attributes["id"] for _, attributes in seen.elements if "id" in attributes]
        assert len(names) == len(set(names))
        assert {str(a["href"])[1:] for a in seen.of("a")} <= set(names)


@pytest.mark.parametrize(
    ("findings", "word"),
    [
        ((), "Passed: no findings"),
        ((finding(Severity.NOTE),), "Passed: 1 note"),
        ((finding(Severity.WARNING),), "Passed with warnings: 1 warning"),
        ((finding(), finding(Severity.NOTE)), "Failed: 2 findings of 2 causes"),
    ],
)
def test_the_verdict_is_a_word(findings: tuple[Finding, ...], word: str) -> None:
    assert word in Page(page([report(*findings)], title="t")).said()


def test_families_that_found_nothing_are_named_and_those_that_fail_come_first() -> None:
    said = Page(page([report(finding(Severity.NOTE, check="files"), finding(check="hooks"))], title="t")).said()
    assert "imports no findings" in said
    assert said.index("hooks 1 error") < said.index("files 1 note")


def test_contexts_stand_side_by_side_and_a_difference_is_said_in_words() -> None:
    said = Page(page([FULL], title="t")).said()
    assert "1 of 3 facts differ between 2 processes" in said
    assert "differs from launchedabsent" in said
    assert "2 facts are the same in all" in said


def test_packages_that_need_a_look_come_first_with_their_state() -> None:
    said = Page(page([FULL], title="t")).said()
    order = [
        said.index(name) for name in ("numpyother version 1 finding", "gonemissing", "extranot in the lock", "rayas")
    ]
    assert order == sorted(order)


def test_a_command_of_a_hint_can_be_copied_whole() -> None:
    assert '<code data-command="">envsmith build a100 --rebuild</code>: it helps' in page([FULL], title="t")


@pytest.mark.parametrize("hint", ["`", "a ` b", "`a` `", "``", "`a b"])
def test_backticks_that_do_not_pair_are_kept(hint: str) -> None:
    assert hint.replace("``", "") in Page(page([report(finding(hint=hint))], title="t")).said() or "`" in hint


def test_headings_descend_one_step_at_a_time_and_tables_have_captions() -> None:
    for reports in ([FULL], [FULL, FULL]):
        seen = Page(page(reports, title="t"))
        levels = [int(tag[1]) for tag, _ in seen.elements if re.fullmatch("h[1-6]", tag)]
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        assert len(seen.of("table")) == len(seen.of("caption"))
        assert all(th.get("scope") in ("col", "row") for th in seen.of("th"))
        assert all(box.get("aria-label") and box.get("tabindex") == "0" for box in seen.of("div") if "role" in box)


def test_tools_are_hidden_where_no_script_runs() -> None:
    tools = [box for box in Page(page([FULL], title="t")).of("div") if box.get("class") == "tools"]
    assert len(tools) == 2 and all("hidden" in box for box in tools)
