"""The SBOM is CycloneDX 1.6, the same for the same parts, and nothing that others wrote can break it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.licenses import canonicalize_license_expression

from envsmith.licences import Licence
from envsmith.lock import (
    BuiltWheel,
    File,
    Lock,
    LockedAsset,
    LockedPatch,
    LockedSeries,
    LockedSource,
    PatchedWheel,
    Wheel,
    digest,
)  # fmt: skip
from envsmith.sbom import (
    Ancestor,
    AppliedPatch,
    Component,
    Known,
    Subject,
    components_of,
    cyclonedx,
    merged,
    plain_url,
    render,
)  # fmt: skip
from envsmith.series import Patch, parse_patch
from envsmith.target import Target

HOSTILE = [
    "a|b\n\n# c", "`x` <script>alert(1)</script>", "\x00\x1b[31m", "\u202eevil", "\ud800", "x" * 100_000, '"}],[{"',
    "../../etc", "a@b?c#d%00", "é漢\U0001f600", " ", "-",
]  # fmt: skip
SUBJECT = Subject(name="a100", version="3", envs={"rl": "Python 3.11", "sft": "Python 3.12"}, envsmith="0.1.0")


def sha(text: str) -> str:
    return digest(text)


def wheel(name: str, version: str = "1.0", *, content: str = "") -> Wheel:
    filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return Wheel(name=name, version=version, filename=filename, size=10, sha256=sha(filename + content))


PATCH = b"""Description: mend it
 in two lines
Origin: vendor, us
Forwarded: no
Last-Update: 2026-11-29
Seen-As: KeyError

diff --git a/x.py b/x.py
--- a/x.py
+++ b/x.py
@@ -1 +1 @@
-a
+b
"""


def patch() -> Patch:
    return parse_patch(PATCH, "0001-x.patch", "x")


SERIES = LockedSeries(path="s/x.series", layer="fix", patches=(LockedPatch(path="s/0001-x.patch", sha256=sha("p")),))
SDIST = File(filename="antlr-1.0.tar.gz", size=7, sha256=sha("sdist"))
SPEED_SDIST = File(filename="speed-1.0.tar.gz", size=8, sha256=sha("speed sdist"))
SPEED = wheel("speed")
PATCHED = Wheel(
    name="speed", version="1.0+envsmith.t01", filename="speed-1.0+envsmith.t01-py3-none-any.whl", size=11,
    sha256=sha("speed patched"),
)  # fmt: skip
VERL = LockedSource(
    name="verl", project="verl", version="0.9", commit="1" * 40, sdist=None, extras=(), series=(SERIES,),
    base_tree="2" * 40, tree="3" * 40, install="editable", deps=True, requires=(), requires_python=None,
    build_requires=("setuptools==80.9.0",),
)  # fmt: skip
LOCK = Lock(
    stack="a100", env="rl", target=Target(python="3.11", arch="x86_64", glibc="2.31"), recipe_digest=sha("r"),
    uv="0.13.9", exclude_newer=None, wheels=(wheel("antlr"), wheel("numpy"), PATCHED), sources=(VERL,),
    built=(
        BuiltWheel(
            name="antlr", filename=wheel("antlr").filename, sha256=wheel("antlr").sha256, sdist=SDIST,
            build_requires=("setuptools==80.9.0",), source_date_epoch=1,
        ),
        BuiltWheel(
            name="speed", filename=SPEED.filename, sha256=SPEED.sha256, sdist=SPEED_SDIST,
            build_requires=("wheel==1",), source_date_epoch=1,
        ),
    ),
    patched=(
        PatchedWheel(
            name="speed", filename=PATCHED.filename, sha256=PATCHED.sha256, original=SPEED.file, series=(SERIES,),
            tree="4" * 40,
        ),
    ),
    build_requires=(wheel("setuptools", "80.9.0"),),
    assets=(LockedAsset(name="gsm8k", path="data/gsm8k.parquet", sha256=sha("gsm8k")),),
)  # fmt: skip
KNOWN = Known(
    licences={
        wheel("numpy").sha256: Licence(expression="BSD-3-Clause", text="BSD-3-Clause", source="field"),
        PATCHED.sha256: Licence(text="A; B", classifiers=("A", "B"), source="classifier"),
        wheel("antlr").sha256: Licence(text="BSD", source="field"),
    },
    native={wheel("numpy").sha256: True},
    patches={"s/0001-x.patch": patch()},
    urls={"verl": "https://user:secret@github.com/Verl-Project/verl.git?token=secret"},
    files={"verl": File(filename="verl.bundle", size=99, sha256=sha("bundle"))},
)
OTHERS = (
    Component(kind="interpreter", name="cpython", version="3.11.9", filename="p.tar", size=5, sha256=sha("py")),
    Component(kind="tool", name="uv", version="0.13.9", filename="uv.whl", size=6, sha256=sha("uv")),
    Component(kind="library", name="click", version="8.1", filename="click.whl", size=6, sha256=sha("click")),
    Component(kind="sdist", name="antlr", version="1.0", filename=SDIST.filename, size=7, sha256=SDIST.sha256),
)
PARTS = (*components_of(LOCK, KNOWN), *OTHERS)


def broken(document: dict[str, Any]) -> set[str]:
    """Rules of CycloneDX 1.6 that a document breaks; the schema itself was used by hand, see the module."""
    found = set()
    if (document.get("bomFormat"), document.get("specVersion"), document.get("version")) != ("CycloneDX", "1.6", 1):
        found.add("head")
    if not re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", document.get("serialNumber", "")):
        found.add("serial")
    refs = [document["metadata"]["component"]["bom-ref"]]
    for top in document["components"]:
        for one in (top, *top.get("pedigree", {}).get("ancestors", ())):
            refs.append(one.get("bom-ref"))
            found |= broken_component(one)
    if len(set(refs)) != len(refs) or None in refs:
        found.add("bom-ref")
    return found


def broken_component(one: dict[str, Any]) -> set[str]:
    found = set()
    if one.get("type") not in ("library", "application", "platform", "data") or not one.get("name"):
        found.add("component")
    if one.get("scope", "required") not in ("required", "optional", "excluded"):
        found.add("scope")
    for made in one.get("hashes", ()):
        if made["alg"] != "SHA-256" or not re.fullmatch(r"[0-9a-f]{64}", made["content"]):
            found.add("hash")
    licences = one.get("licenses", [])
    if any("expression" in entry for entry in licences):
        shapes = [len(licences) == 1, set(licences[0]) <= {"expression", "acknowledgement"}]
    else:
        shapes = [len([key for key in ("id", "name") if entry["license"].get(key)]) == 1 for entry in licences]
    if not all(shapes):
        found.add("licence")
    if "purl" in one and not re.fullmatch(r"pkg:[a-z]+/[^@\s?#]+(@[^@\s?#/]+)?", one["purl"]):
        found.add("purl")
    if any(set(entry) != {"name", "value"} for entry in one.get("properties", ())):
        found.add("property")
    if any(
        entry["type"] != "unofficial" or not entry["diff"]["url"]
        for entry in one.get("pedigree", {}).get("patches", ())
    ):
        found.add("patch")
    return found


def named(document: dict[str, Any], name: str, kind: str) -> dict[str, Any]:
    tagged = {"name": "envsmith:kind", "value": kind}
    (one,) = (one for one in document["components"] if one["name"] == name and tagged in one["properties"])
    assert isinstance(one, dict)
    return one


def values(one: dict[str, Any], name: str) -> list[str]:
    return [entry["value"] for entry in one["properties"] if entry["name"] == f"envsmith:{name}"]


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        for one in value:
            yield from texts(one)
    elif isinstance(value, str):
        yield value


DOCUMENT = cyclonedx(PARTS, subject=SUBJECT)


# --- structure ---


def test_the_document_keeps_the_rules_of_the_format() -> None:
    assert broken(DOCUMENT) == set()
    assert json.loads(render(DOCUMENT)) == DOCUMENT


@pytest.mark.parametrize(
    ("rule", "plant"),
    [
        ("head", lambda d: d.update(specVersion="1.7")),
        ("serial", lambda d: d.pop("serialNumber")),
        ("bom-ref", lambda d: d["components"].append(d["components"][0])),
        ("component", lambda d: d["components"][0].update(type="wheel")),
        ("scope", lambda d: d["components"][0].update(scope="build")),
        ("hash", lambda d: d["components"][0].update(hashes=[{"alg": "sha256", "content": "0" * 64}])),
        ("licence", lambda d: d["components"][0].update(licenses=[{"expression": "MIT"}, {"expression": "ISC"}])),
        ("licence", lambda d: d["components"][0].update(licenses=[{"license": {"id": "MIT", "name": "MIT"}}])),
        ("purl", lambda d: d["components"][0].update(purl="pkg:pypi/a b@1")),
        ("property", lambda d: d["components"][0].update(properties=[{"name": "x"}])),
        ("patch", lambda d: d["components"][0].update(pedigree={"patches": [{"type": "ours", "diff": {"url": "x"}}]})),
    ],
)
def test_a_planted_break_of_a_rule_is_seen(rule: str, plant: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(render(DOCUMENT))
    plant(document)
    assert rule in broken(document)


def test_every_file_and_every_digest_of_the_lock_is_in_it_whole() -> None:
    text = render(DOCUMENT)
    digests = {file.sha256 for _, file in LOCK.downloads()} | {one.sha256 for one in (*LOCK.wheels, *LOCK.assets)}
    digests |= {patch.sha256 for patch in SERIES.patches}
    assert {one for one in digests if one not in text} == set()


# --- what is said of each kind ---


def test_a_wheel_has_purl_hash_licence_env_file_and_size() -> None:
    numpy = named(DOCUMENT, "numpy", "wheel")
    assert (numpy["type"], numpy["scope"], numpy["purl"]) == ("library", "required", "pkg:pypi/numpy@1.0")
    assert numpy["hashes"] == [{"alg": "SHA-256", "content": wheel("numpy").sha256}]
    assert numpy["licenses"] == [{"expression": "BSD-3-Clause", "acknowledgement": "declared"}]
    found = [values(numpy, name) for name in ("env", "file", "size", "native")]
    assert found == [["rl"], ["numpy-1.0-py3-none-any.whl"], ["10"], ["true"]]


def test_words_that_are_no_expression_are_names_each_for_itself() -> None:
    names = [entry["license"]["name"] for entry in named(DOCUMENT, "speed", "wheel")["licenses"]]
    assert names == ["A", "B"]
    assert named(DOCUMENT, "antlr", "wheel")["licenses"][0]["license"]["name"] == "BSD"
    assert "licenses" not in named(DOCUMENT, "setuptools", "build")


def test_a_patched_wheel_tells_its_original_its_sdist_and_its_patches() -> None:
    speed = named(DOCUMENT, "speed", "wheel")
    assert speed["purl"] == "pkg:pypi/speed@1.0%2Benvsmith.t01"
    ancestors = speed["pedigree"]["ancestors"]
    assert [one["hashes"][0]["content"] for one in ancestors] == [SPEED.sha256, SPEED_SDIST.sha256]
    assert [one["purl"] for one in ancestors] == ["pkg:pypi/speed@1.0"] * 2
    assert speed["pedigree"]["patches"] == [
        {"type": "unofficial", "diff": {"url": f"patches/s/0001-x.patch#sha256={sha('p')}"}}
    ]
    assert speed["pedigree"]["notes"] == "s/0001-x.patch (fix): mend it; built with wheel==1"


def test_a_built_wheel_tells_its_sdist_and_what_it_was_built_with() -> None:
    pedigree = named(DOCUMENT, "antlr", "wheel")["pedigree"]
    assert pedigree["ancestors"][0]["hashes"][0]["content"] == SDIST.sha256
    assert pedigree["notes"] == "built with setuptools==80.9.0"


def test_a_source_tells_its_commit_its_patches_and_its_url_without_secrets() -> None:
    verl = named(DOCUMENT, "verl", "source")
    assert verl["purl"] == f"pkg:github/verl-project/verl@{'1' * 40}"
    assert verl["externalReferences"] == [{"type": "vcs", "url": "https://github.com/Verl-Project/verl.git"}]
    assert verl["pedigree"]["commits"] == [{"uid": "1" * 40}]
    assert len(verl["pedigree"]["patches"]) == 1
    assert values(verl, "tree") == ["3" * 40]
    assert "secret" not in render(DOCUMENT)


def test_without_a_url_there_is_no_host_at_all() -> None:
    text = render(cyclonedx(components_of(LOCK, Known()), subject=SUBJECT))
    assert set(re.findall(r"\w+://[^/\"]*", text)) == {"http://cyclonedx.org"}
    assert f"pkg:generic/verl@{'1' * 40}" in text


def test_a_source_that_gives_a_wheel_is_named_by_the_wheel() -> None:
    made = wheel("verl", "0.9")
    source = replace(VERL, install="wheel", wheel=made.file)
    parts = components_of(replace(LOCK, wheels=(made,), sources=(source,), built=(), patched=()), KNOWN)
    one = named(cyclonedx(parts, subject=SUBJECT), "verl", "wheel")
    assert one["pedigree"]["commits"] == [{"uid": "1" * 40}]
    assert one["pedigree"]["notes"] == "s/0001-x.patch (fix): mend it; built with setuptools==80.9.0"


@pytest.mark.parametrize(
    ("name", "kind", "type_", "scope"),
    [
        ("cpython", "interpreter", "platform", "required"), ("uv", "tool", "application", "excluded"),
        ("click", "library", "library", "excluded"), ("setuptools", "build", "library", "excluded"),
        ("gsm8k", "asset", "data", "required"), ("antlr", "sdist", "library", "excluded"),
    ],
)  # fmt: skip
def test_every_kind_has_its_type_and_scope(name: str, kind: str, type_: str, scope: str) -> None:
    one = named(DOCUMENT, name, kind)
    assert (one["type"], one["scope"]) == (type_, scope)


def test_the_subject_its_envs_and_its_maker_are_named() -> None:
    metadata = DOCUMENT["metadata"]
    assert (metadata["component"]["name"], metadata["component"]["version"]) == ("a100", "3")
    assert [entry["name"] for entry in metadata["properties"]] == ["envsmith:env:rl", "envsmith:env:sft"]
    assert metadata["tools"]["components"] == [{"type": "application", "name": "envsmith", "version": "0.1.0"}]


# --- one document ---


def test_the_order_of_the_parts_and_of_the_envs_changes_no_byte() -> None:
    other = components_of(replace(LOCK, env="sft"), Known())
    first = render(cyclonedx((*PARTS, *other), subject=SUBJECT))
    for seed in range(5):
        mixed = [*PARTS, *other]
        random.Random(seed).shuffle(mixed)
        turned = replace(SUBJECT, envs=dict(reversed(SUBJECT.envs.items())))
        assert render(cyclonedx(mixed, subject=turned)) == first


def test_what_two_envs_share_is_one_component_and_what_is_known_once_is_known() -> None:
    both = merged((*components_of(LOCK, Known()), *components_of(replace(LOCK, env="sft"), KNOWN)))
    numpy = [one for one in both if one.name == "numpy"]
    assert [one.envs for one in numpy] == [("rl", "sft")]
    assert (numpy[0].licence.expression, numpy[0].native) == ("BSD-3-Clause", True)
    assert [one.licence.text for one in both if one.name == "antlr"] == ["BSD"]


def test_another_file_another_version_and_another_tree_are_other_components() -> None:
    parts = merged(
        (
            *(Component(kind="wheel", name="x", version="1", sha256=sha(one)) for one in "ab"),
            Component(kind="wheel", name="x", version="2", sha256=sha("a")),
            Component(kind="build", name="x", version="1", sha256=sha("a")),
            *(Component(kind="source", name="x", commit="1" * 40, sha256=sha("g"), tree=tree * 40) for tree in "45"),
        )
    )
    assert len(parts) == 6
    assert broken(cyclonedx(parts, subject=SUBJECT)) == set()


def test_any_change_of_content_changes_the_serial_number() -> None:
    changed = [
        cyclonedx(PARTS[1:], subject=SUBJECT),
        cyclonedx(PARTS, subject=replace(SUBJECT, version="4")),
        cyclonedx((replace(PARTS[0], size=11), *PARTS[1:]), subject=SUBJECT),
    ]
    assert len({one["serialNumber"] for one in (DOCUMENT, *changed)}) == 4


# --- what others wrote ---


def hostile_parts(text: str) -> list[Component]:
    licences = [Licence(text=text, source="field"), Licence(text=text, classifiers=(text, "B"), source="classifier")]
    ancestor = Ancestor(name=text, version=text, filename=text, size=1, sha256=sha("o"))
    applied = AppliedPatch(path=text, sha256=sha("p"), layer=text, description=text)
    kinds = ("wheel", "sdist", "source", "build", "interpreter", "tool", "library", "asset")
    return [
        Component(
            kind=kind, name=text, version=text, filename=text, size=1, sha256=sha(ascii(text)),
            envs=(text,), licence=licence, ancestors=(ancestor,), patches=(applied,), url=text, commit="1" * 40,
            made_with=(text,), tree=str(n) * 40,
        )
        for kind in kinds
        for n, licence in enumerate(licences)
    ]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_words_of_any_kind_leave_a_sound_short_document(text: str) -> None:
    parts = [*hostile_parts(text), *hostile_parts(text + "2")]
    written = render(cyclonedx(parts, subject=Subject(name=text, version=text, envs={text: text}, envsmith=text)))
    document = json.loads(written)
    assert broken(document) - ({"component"} if not text.strip() else set()) == set()
    assert len(written) < 200_000
    assert [one for one in texts(document) if not one.isprintable()] == []


@settings(max_examples=50, deadline=None)
@given(st.text(min_size=1, max_size=60).filter(lambda text: bool(text.strip())))
def test_any_words_leave_a_sound_document(text: str) -> None:
    assert broken(cyclonedx(hostile_parts(text), subject=SUBJECT)) == set()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://u:p@example.invalid:8443/a/b.git?x=y#z", "https://example.invalid:8443/a/b.git"),
        ("ssh://git@example.invalid/a", "ssh://example.invalid/a"), ("git@example.invalid:a/b", None),
        ("/srv/git/a", None), ("file:///srv/git/a", None), ("https://", None), ("https://[", None),
        ("https://example.invalid:x/", None), ("javascript:alert(1)", None), (None, None), ("", None),
    ],
)  # fmt: skip
def test_a_url_is_said_without_credentials_or_not_at_all(url: str | None, said: str | None) -> None:
    assert plain_url(url) == said


def test_a_licence_expression_is_valid_wherever_it_stands() -> None:
    for one in DOCUMENT["components"]:
        for entry in one.get("licenses", ()):
            if "expression" in entry:
                assert canonicalize_license_expression(entry["expression"]) == entry["expression"]
