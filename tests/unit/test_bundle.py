"""A bundle's manifest and index are written and read without loss, and what is none of ours is refused in words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envsmith.bundle import (
    ASSET,
    BUNDLE,
    CONFIG,
    DELTA_BASE,
    DELTA_CONFIG,
    DELTA_RESULT,
    DELTAS,
    ENVS,
    INDEX_TYPE,
    LARGEST_MANIFEST,
    LOCK,
    LOCKS,
    MANIFEST_TYPE,
    PATCH,
    PYLOCK,
    RECIPE,
    ROLES,
    SDIST,
    SERIES,
    SIGNATURE,
    SIGNATURE_CONFIG,
    SIGNATURES,
    SNAPSHOT,
    SOURCE,
    TAG,
    TITLE,
    VERSION,
    WHEEL,
    WHEEL_DELTA,
    Descriptor,
    Manifest,
    Tagged,
    artifact_of,
    bundle_tag,
    config_json,
    delta_tag,
    file_title,
    in_order,
    listing,
    locks_version,
    parse_config,
    parse_index,
    parse_manifest,
    render_index,
    render_manifest,
    signature_tag,
)
from envsmith.errors import IntegrityError
from tests.support.bundles import compact, sample, sha

SAMPLE = sample()
#: Machines that run tests are busy: how long an example takes says nothing.
UNHURRIED = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
MANIFEST = SAMPLE.manifest
SUBJECT = Descriptor(media_type=MANIFEST_TYPE, sha256=SAMPLE.sha256, size=len(SAMPLE.data))


def side(artifact: str, *layers: Descriptor, **changes: Any) -> Manifest:
    config = {SIGNATURES: SIGNATURE_CONFIG, DELTAS: DELTA_CONFIG}[artifact]
    made = Manifest(
        artifact=artifact,
        config=Descriptor(media_type=config, sha256=sha(b"{}"), size=2),
        layers=layers,
        subject=SUBJECT,
    )
    return replace(made, **changes)


def layer(kind: str, title: str, data: bytes = b"x", **annotations: str) -> Descriptor:
    said = {TITLE: title, **annotations}
    return Descriptor(media_type=kind, sha256=sha(data), size=len(data), annotations=said)


SIGNED = side(SIGNATURES, layer(SIGNATURE, "manifest.0.sshsig"), layer(SIGNATURE, "manifest.1.sshsig", b"y"))
DELTA_NOTES = {DELTA_BASE: f"sha256:{'1' * 64}", DELTA_RESULT: f"sha256:{'2' * 64}"}
DELTA = side(DELTAS, layer(WHEEL_DELTA, f"deltas/{'2' * 64}.delta", **DELTA_NOTES))


def refused(data: bytes, read: Callable[[bytes, str], object] = parse_manifest) -> list[str]:
    """What is said about data that must be refused."""
    with pytest.raises(IntegrityError) as error:
        read(data, "here")
    assert {problem.code for problem in error.value.problems} == {"bundle-malformed"}
    assert all(problem.where == "here" and problem.hint for problem in error.value.problems)
    assert all(len(problem.message) < 700 for problem in error.value.problems)
    return [problem.message for problem in error.value.problems]


# --- writing and reading ---


@pytest.mark.parametrize("manifest", [MANIFEST, SIGNED, DELTA], ids=["bundle", "signatures", "deltas"])
def test_what_is_written_is_read_back(manifest: Manifest) -> None:
    data = render_manifest(manifest)
    assert parse_manifest(data, "x") == manifest
    assert render_manifest(parse_manifest(data, "x")) == data


HEX = st.integers(0, 16**64 - 1).map("{:064x}".format)
SIZE = st.integers(0, 2**63 - 1)
NAME = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)
SIGNS = st.characters(codec="utf-8", categories=("L", "N", "P", "S"), exclude_characters="/\\")
PRINTABLE = st.text(SIGNS | st.just(" "), max_size=10)
PART = st.text(SIGNS, min_size=1, max_size=6).filter(lambda text: text not in (".", ".."))
TITLES = st.one_of(
    st.tuples(st.just(WHEEL), PART.map("wheels/{}.whl".format)),
    st.tuples(st.just(WHEEL), PART.map("wheels/rl-a/{}.whl".format)),
    st.tuples(st.just(SDIST), PART.map("sdists/{}".format)),
    st.tuples(st.just(PATCH), st.tuples(PART, PART).map(lambda two: f"patches/{two[0]}/{two[1]}.patch")),
    st.tuples(st.just(SERIES), PART.map("patches/s/{}.series".format)),
    st.tuples(st.just(ASSET), PART.map("assets/data/{}".format)),
    st.tuples(st.just(PYLOCK), NAME.map("pylock.{}.toml".format)),
    st.tuples(st.just(SOURCE), NAME.map(lambda name: f"sources/{name}@{'a' * 40}.bundle")),
)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    stack, envs = draw(NAME), draw(st.lists(NAME, min_size=1, max_size=3, unique=True))
    titles = {title: kind for kind, title in draw(st.lists(TITLES, max_size=8))}
    titles |= {f"stacks/pylock.{stack}-{env}.toml": LOCK for env in envs} | {f"stacks/{stack}.toml": RECIPE}
    sizes: dict[str, int] = {}
    layers = []
    for title, kind in titles.items():
        sha256, size = draw(HEX), draw(SIZE)
        notes = {TITLE: title, **draw(st.dictionaries(st.sampled_from([ENVS, ROLES, "x.y"]), PRINTABLE, max_size=2))}
        size = sizes.setdefault(sha256, size)
        layers.append(Descriptor(media_type=kind, sha256=sha256, size=size, annotations=notes))
    locks = {
        env: next(one.sha256 for one in layers if one.title.endswith(f"/pylock.{stack}-{env}.toml")) for env in envs
    }
    config = draw(HEX.filter(lambda sha256: sha256 not in sizes))
    return Manifest(
        artifact=BUNDLE,
        config=Descriptor(media_type=CONFIG, sha256=config, size=draw(SIZE)),
        layers=in_order(layers),
        annotations={TITLE: stack, VERSION: draw(PRINTABLE), LOCKS: compact(locks)},
    )


@UNHURRIED
@given(manifests())
def test_any_bundle_is_read_back_and_has_one_form(manifest: Manifest) -> None:
    data = render_manifest(manifest)
    read = parse_manifest(data, "x")
    assert read == manifest
    assert render_manifest(read) == data
    assert read.locks == json.loads(manifest.annotations[LOCKS])


@UNHURRIED
@given(manifests(), st.randoms())
def test_the_same_bundle_gives_the_same_bytes(manifest: Manifest, random: Any) -> None:
    layers = list(manifest.layers)
    random.shuffle(layers)
    shuffled = [
        replace(one, annotations=dict(sorted(one.annotations.items(), key=lambda _: random.random()))) for one in layers
    ]
    annotations = dict(reversed(list(manifest.annotations.items())))
    again = replace(manifest, layers=in_order(shuffled), annotations=annotations)
    assert render_manifest(again) == render_manifest(manifest)


ENTRIES = st.lists(
    st.builds(
        Tagged,
        sha256=HEX,
        size=SIZE,
        tag=PRINTABLE,
        artifact=st.sampled_from(["", BUNDLE, SIGNATURES, DELTAS]),
        base=st.none() | HEX,
    ),
    max_size=5,
    unique_by=lambda one: one.tag,
)


@UNHURRIED
@given(ENTRIES)
def test_an_index_is_read_back_in_order_of_its_tags(entries: list[Tagged]) -> None:
    data = render_index(entries)
    assert list(parse_index(data, "x")) == sorted(entries, key=lambda one: (one.tag, one.sha256))
    assert render_index(reversed(entries)) == data


def test_a_manifest_holds_no_time_and_no_space() -> None:
    text = render_manifest(MANIFEST).decode()
    assert json.loads(text)["schemaVersion"] == 2
    assert " " not in text.replace('"', "") or not re.search(r'[,:] "', text)
    assert not re.search(r"created|20\d\d-", text)


def test_files_are_listed_with_digest_and_size() -> None:
    rows = [line.split("\t") for line in listing(MANIFEST).splitlines()]
    assert [row[2] for row in rows] == [one.title for one in MANIFEST.layers]
    assert [(row[0], int(row[1])) for row in rows] == [(one.sha256, one.size) for one in MANIFEST.layers]


def test_a_descriptor_says_what_it_is_for() -> None:
    one = layer(WHEEL, "wheels/x-1-py3-none-any.whl", **{ENVS: "rl,sft", ROLES: "env,built"})
    assert (one.name, one.envs, one.roles) == ("x-1-py3-none-any.whl", ("rl", "sft"), ("env", "built"))
    assert MANIFEST.config.title == ""
    assert MANIFEST.config.envs == ()


def test_two_titles_of_one_content_are_one_blob() -> None:
    two = [layer(WHEEL, "wheels/x.whl"), layer(WHEEL, "wheels/y.whl")]
    manifest = replace(MANIFEST, layers=in_order([*MANIFEST.layers, *two]))
    assert parse_manifest(render_manifest(manifest), "x") == manifest
    assert len(manifest.blobs) == len(MANIFEST.blobs) + 1


# --- what is refused: single faults, by kind ---


def changed(**changes: Any) -> bytes:
    """Render the sample with top-level keys replaced, or dropped where the value is `...`."""
    content = json.loads(render_manifest(MANIFEST)) | changes
    return compact({key: value for key, value in content.items() if value is not ...}).encode()


def with_layer(**changes: Any) -> bytes:
    """Render the sample with one more layer, a sound wheel but for the changes."""
    entry = {
        "mediaType": WHEEL,
        "digest": f"sha256:{sha(b'more')}",
        "size": 4,
        "annotations": {TITLE: "wheels/more-1-py3-none-any.whl"},
    }
    content = json.loads(render_manifest(MANIFEST))
    content["layers"].append({key: value for key, value in {**entry, **changes}.items() if value is not ...})
    return compact(content).encode()


def titled(title: str, kind: str = WHEEL) -> bytes:
    return with_layer(mediaType=kind, annotations={TITLE: title})


def test_one_more_sound_layer_is_sound() -> None:
    assert len(parse_manifest(with_layer(), "x").layers) == len(MANIFEST.layers) + 1


@pytest.mark.parametrize(
    "title",
    [
        "../evil.whl", "wheels/../../evil.whl", "wheels/..", "wheels/./x.whl", "wheels//x.whl", "/wheels/x.whl",
        "wheels/x.whl/", "", ".", "..", "wheels\\x.whl", "C:\\x.whl", "wheels/a\\..\\x.whl",
    ],
)  # fmt: skip
def test_a_title_that_is_no_plain_relative_path_is_refused(title: str) -> None:
    (said,) = refused(titled(title))
    assert sha(b"more") in said
    assert "is not a plain relative path" in said


@pytest.mark.parametrize(
    "title",
    [
        "wheels/a\nb.whl", "wheels/a\0.whl", "wheels/\x1b[2Ja.whl", "wheels/a\x7f.whl", "wheels/a\u202eb.whl",
        "wheels/a\u2028b.whl", "wheels/a\xa0b.whl", f"wheels/{'a' * 252}.whl", f"assets/{'a/' * 600}b",
    ],
    ids=["newline", "nul", "escape", "delete", "right-to-left", "line", "hard-space", "long-name", "long"],
)  # fmt: skip
def test_a_title_with_what_no_file_name_should_hold_is_refused(title: str) -> None:
    (said,) = refused(titled(title, ASSET if title.startswith("assets") else WHEEL))
    assert "holds what no file name should hold" in said


def test_half_a_character_is_refused() -> None:
    data = titled("wheels/HALF.whl").replace(b"HALF", b"\\ud800")
    (said,) = refused(data)
    assert "is not JSON" in said


@pytest.mark.parametrize(
    ("kind", "title"),
    [
        (WHEEL, "patches/x.whl"), (WHEEL, "wheels/x.zip"), (WHEEL, "wheels/a/b/x.whl"), (WHEEL, "x.whl"),
        (PATCH, "stacks/a100.toml"), (RECIPE, "stacks/A100.toml"), (RECIPE, "a100.toml"), (LOCK, "stacks/x.toml"),
        (SNAPSHOT, "stacks/pylock.a100-other.toml"), (ASSET, "install.sh"), (PYLOCK, "stacks/pylock.a.toml"),
        (SOURCE, "sources/verl@abc.bundle"), (SDIST, "sdists/a/b/c.tar.gz"), (PATCH, "patchesx/y"),
    ],
)  # fmt: skip
def test_a_title_of_another_kind_is_refused(kind: str, title: str) -> None:
    said = refused(titled(title, kind))
    assert f"the title `{title}` of blob {sha(b'more')} is not where a bundle keeps" in said[0]


@pytest.mark.parametrize("kind", ["", "text/plain", "application/vnd.envsmith.wheel.v2+zip", CONFIG, WHEEL.upper()])
def test_an_unknown_kind_is_refused(kind: str) -> None:
    (said,) = refused(titled("wheels/x.whl", kind))
    assert "has a kind that this envsmith does not know" in said


@pytest.mark.parametrize(
    ("kind", "title"), [(SIGNATURE, "manifest.0.sshsig"), (WHEEL_DELTA, f"deltas/{'2' * 64}.delta")]
)
def test_a_kind_of_another_artifact_is_refused(kind: str, title: str) -> None:
    assert "has a kind that has no place here" in refused(titled(title, kind))[0]
    assert "has no place here" in refused(render_manifest(side(SIGNATURES, layer(WHEEL, "wheels/x.whl"))))[0]


def test_a_title_that_stands_twice_is_refused_with_both_blobs() -> None:
    title = "wheels/numpy-1-py3-none-any.whl"
    (said,) = refused(titled(title))
    assert said.endswith(f"the title `{title}` stands twice, for the blobs {SAMPLE.titled(title)} and {sha(b'more')}")


@pytest.mark.parametrize("title", ["assets/a100.toml", "assets/pylock.a100-rl.toml"])
def test_an_asset_that_would_lie_on_the_recipe_or_a_lock_is_refused(title: str) -> None:
    """Assets are laid out beside the recipe, so `assets/x` and `stacks/x` are one place."""
    (said,) = refused(titled(title, ASSET))
    assert f"the title `{title}` takes the place of `stacks/{title.removeprefix('assets/')}`" in said


@pytest.mark.parametrize(
    ("title", "above"),
    [("assets/data/x.bin/y", "assets/data/x.bin"), ("assets/a100.toml/y", "stacks/a100.toml")],
)
def test_a_title_below_a_file_is_refused(title: str, above: str) -> None:
    (said,) = refused(titled(title, ASSET))
    assert said.endswith(f"the title `{title}` of blob {sha(b'more')} lies below `{above}`, which is a file")


@pytest.mark.parametrize("size", [-1, True, False, None, "4", 4.0, 1e300, 2**63, 10**400, [], {}, ...])
def test_what_is_no_size_is_refused(size: Any) -> None:
    (said,) = refused(with_layer(size=size))
    assert "`wheels/more-1-py3-none-any.whl`" in said
    assert "has the size" in said


DIGEST = sha(b"more")


@pytest.mark.parametrize(
    "digest",
    [
        DIGEST, f"sha256:{DIGEST.upper()}", f"sha256:{DIGEST[:-1]}", f"sha256:{DIGEST}0", f"sha512:{DIGEST * 2}",
        f"SHA256:{DIGEST}", f" sha256:{DIGEST}", f"sha256:{DIGEST}\n", f"sha256:../{DIGEST[3:]}", "", 5, None, True,
        ["sha256"], {"sha256": DIGEST}, f"sha256:{'٣' * 64}", ...,
    ],
)  # fmt: skip
def test_what_is_no_digest_is_refused(digest: Any) -> None:
    (said,) = refused(with_layer(digest=digest))
    assert "has the digest" in said


@pytest.mark.parametrize("kind", [5, None, True, [], {}, "a\nb", ...])
def test_what_is_no_media_type_is_refused(kind: Any) -> None:
    assert "has the media type" in refused(with_layer(mediaType=kind))[0]


@pytest.mark.parametrize("annotations", [[], "x", {TITLE: 5}, {TITLE: None}, {TITLE: ["x"]}, None])
def test_annotations_are_strings(annotations: Any) -> None:
    assert "the annotations of layer" in refused(with_layer(annotations=annotations))[0]


def test_annotations_hold_nothing_that_a_terminal_would_obey() -> None:
    notes = json.loads(render_manifest(MANIFEST))["annotations"]
    (said,) = refused(changed(annotations={**notes, VERSION: "\x1b]0;pwned\x07"}))
    assert VERSION in said
    assert "\x1b" not in said


@pytest.mark.parametrize("entry", [None, 5, "x", [], True])
def test_a_layer_that_is_no_table_is_refused(entry: Any) -> None:
    layers = json.loads(render_manifest(MANIFEST))["layers"]
    (said,) = refused(changed(layers=[*layers, entry]))
    assert f"layer {len(layers)} is" in said


@pytest.mark.parametrize("layers", [None, 5, "x", {}, {"a": 1}, ...])
def test_layers_that_are_no_list_are_refused(layers: Any) -> None:
    assert any("its layers are no list" in said for said in refused(changed(layers=layers)))


@pytest.mark.parametrize(
    "artifact", [None, "", 5, [], {}, "application/vnd.cncf.helm.config.v1+json", BUNDLE + "x", ...]
)
def test_another_artifact_is_refused(artifact: Any) -> None:
    assert any("its artifact type is" in said for said in refused(changed(artifactType=artifact)))


@pytest.mark.parametrize("kind", [INDEX_TYPE, None, 5, ...])
def test_another_manifest_type_is_refused(kind: Any) -> None:
    assert any("its media type is" in said for said in refused(changed(mediaType=kind)))


@pytest.mark.parametrize("config", [None, [], {}, "x", ...])
def test_a_manifest_without_a_config_is_refused(config: Any) -> None:
    assert any("its config" in said for said in refused(changed(config=config)))


def test_a_config_of_another_kind_is_refused() -> None:
    other = replace(MANIFEST, config=replace(MANIFEST.config, media_type="application/vnd.oci.empty.v1+json"))
    assert "its config is of the kind" in refused(render_manifest(other))[0]


def test_one_blob_has_one_size() -> None:
    again = layer(WHEEL, "wheels/again.whl", b"n" * 700)
    wrong = replace(MANIFEST, layers=in_order([*MANIFEST.layers, replace(again, size=5)]))
    assert "has two sizes" in refused(render_manifest(wrong))[0]
    config = replace(MANIFEST.config, sha256=again.sha256)
    assert "has two sizes" in refused(render_manifest(replace(MANIFEST, config=config)))[0]


# --- locks and recipe ---


def with_notes(**notes: str) -> bytes:
    names = {"locks": LOCKS, "stack": TITLE}
    said = {**MANIFEST.annotations, **{names[key]: value for key, value in notes.items()}}
    return render_manifest(replace(MANIFEST, annotations=said))


@pytest.mark.parametrize(
    "locks",
    ["", "x", "[]", "5", '{"rl":5}', "[" * 2000, '{"a":' * 50 + "1" + "}" * 50, '{"rl":"a","rl":"b"}', "9" * 5000],
    ids=["empty", "word", "list", "number", "value", "deep-list", "deep-table", "twice", "huge"],
)
def test_an_unreadable_list_of_locks_is_refused(locks: str) -> None:
    (said,) = refused(with_notes(locks=locks))
    assert f"its annotation `{LOCKS}` is missing or unreadable" in said


def test_the_locks_that_are_signed_for_are_those_that_it_holds() -> None:
    own = MANIFEST.locks["rl"]
    assert "is not the one that it holds" in refused(with_notes(locks=compact({"rl": "0" * 64})))[0]
    assert "it holds other locks" in " ".join(refused(with_notes(locks=compact({"rl": own, "sft": own}))))
    assert "names no lock" in " ".join(refused(with_notes(locks="{}")))
    more = layer(LOCK, "stacks/pylock.a100-sft.toml")
    said = refused(render_manifest(replace(MANIFEST, layers=in_order([*MANIFEST.layers, more]))))
    assert ["it holds other locks than its annotation names" in one for one in said] == [True]
    assert f"`{LOCKS}` is missing" not in str(said)


def test_without_its_lock_or_recipe_a_bundle_is_refused() -> None:
    for kind, said in ((LOCK, "the lock of `rl`"), (RECIPE, "it does not hold the recipe of `a100`")):
        rest = tuple(one for one in MANIFEST.layers if one.media_type != kind)
        assert said in refused(render_manifest(replace(MANIFEST, layers=rest)))[0]
    two = in_order([*MANIFEST.layers, layer(RECIPE, "stacks/h100.toml")])
    assert "or others beside" in refused(render_manifest(replace(MANIFEST, layers=two)))[0]


@pytest.mark.parametrize("stack", ["", "A100", "../a100", "a 100", "a" * 300 + "/"])
def test_a_stack_has_a_plain_name(stack: str) -> None:
    assert "is no name of a stack" in refused(with_notes(stack=stack))[0]


# --- signatures and deltas ---


def test_what_is_about_a_bundle_names_it() -> None:
    for one in (SIGNED, DELTA):
        assert "it names no bundle as its subject" in refused(render_manifest(replace(one, subject=None)))[0]
        other = replace(SUBJECT, media_type="text/plain")
        assert "it names no bundle" in refused(render_manifest(replace(one, subject=other)))[0]
    assert "it has a subject" in refused(render_manifest(replace(MANIFEST, subject=SUBJECT)))[0]


@pytest.mark.parametrize("key", [DELTA_BASE, DELTA_RESULT])
@pytest.mark.parametrize("value", [None, "", "x", "2" * 64, "sha256:x"])
def test_a_delta_says_from_what_to_what(key: str, value: str | None) -> None:
    notes = {**DELTA_NOTES, key: value}
    kept = {name: text for name, text in notes.items() if text is not None}
    (said,) = refused(render_manifest(side(DELTAS, layer(WHEEL_DELTA, f"deltas/{'2' * 64}.delta", **kept))))
    assert f"has no digest as its `{key}`" in said


# --- whole files ---


NONSENSE = (
    b"", b"\0", b"{", b"[]", b'"x"', b"5", b"null", b"[1,2]", b"\xff\xfe{\0}\0", b'{"a":NaN}', b'{"a":1,"a":1}',
    b"[" * 100_000, b'{"a":' * 30 + b"1" + b"}" * 30, b'{"a":' * 900 + b"1" + b"}" * 900, b"9" * 5000,
    b"{" + b" " * LARGEST_MANIFEST + b"}", b"x" * (5 << 20), b'{"a":"\\ud800"}', b'\xef\xbb\xbf{"a":1}',
)  # fmt: skip


@pytest.mark.parametrize("read", [parse_manifest, parse_index, parse_config])
def test_what_is_no_json_object_of_sane_size_and_depth_is_refused(read: Any) -> None:
    for data in NONSENSE:
        assert len(refused(data, read)) == 1


def test_every_fault_is_named_at_once() -> None:
    content = json.loads(render_manifest(MANIFEST))
    for number, fault in enumerate(
        [{"size": -1}, {"digest": "x"}, {"mediaType": "text/plain"}, {"annotations": {TITLE: "../x"}}, {"size": True}]
    ):
        entry = {
            "mediaType": WHEEL,
            "digest": f"sha256:{number:064x}",
            "size": 4,
            "annotations": {TITLE: f"wheels/{number}.whl"},
        }
        content["layers"].append({**entry, **fault})
    content["artifactType"] = "nonsense"
    said = refused(compact(content).encode())
    assert len(said) == 6
    for words in ("`-1`", "`x`", "`text/plain`", "`../x`", "`True`", "`nonsense`"):
        assert sum(words in one for one in said) == 1


def test_thousands_of_faults_are_counted() -> None:
    said = refused(changed(layers=[None] * 5000))
    assert len(said) == 21
    assert said[-1].endswith("and 4980 faults more")


def test_a_title_of_a_million_folders_is_refused_at_once() -> None:
    (said,) = refused(titled("assets/" + "a/" * 1_000_000 + "b", ASSET))
    assert "holds what no file name should hold" in said


@pytest.mark.parametrize(
    "other",
    [
        lambda content: json.dumps(content).encode(),
        lambda content: compact({**content, "extra": 1}).encode(),
        lambda content: compact({**content, "schemaVersion": 1}).encode(),
        lambda content: compact({**content, "subject": None}).encode(),
        lambda content: compact(content).encode() + b"\n",
        lambda content: compact({**content, "config": {**content["config"], "urls": ["x"]}}).encode(),
    ],
    ids=["spaces", "extra-key", "schema", "null-subject", "line-end", "urls"],
)
def test_the_same_in_other_bytes_is_none_of_ours(other: Callable[[Any], bytes]) -> None:
    refused(other(json.loads(render_manifest(MANIFEST))))


@UNHURRIED
@given(st.integers(0, len(SAMPLE.data) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_makes_another_bundle_that_is_sound(place: int, change: int) -> None:
    data = bytearray(SAMPLE.data)
    data[place] ^= change
    try:
        read = parse_manifest(bytes(data), "x")
    except IntegrityError:
        return
    assert render_manifest(read) == bytes(data)


KEYS = ("layers", "config", "size", "digest", "mediaType", "annotations", "artifactType", "schema")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@UNHURRIED
@given(VALUES)
def test_any_json_is_read_or_refused_in_words(content: Any) -> None:
    for read in (parse_manifest, parse_index, parse_config):
        for data in (json.dumps(content).encode(), json.dumps({"manifests": [content], "layers": [content]}).encode()):
            try:
                read(data, "x")
            except IntegrityError as error:
                assert {problem.code for problem in error.problems} == {"bundle-malformed"}


# --- the index ---

ENTRY = {"mediaType": MANIFEST_TYPE, "digest": f"sha256:{'1' * 64}", "size": 7, "artifactType": BUNDLE}


def index_of(*entries: Any, **more: Any) -> bytes:
    return json.dumps({"schemaVersion": 2, "manifests": list(entries), **more}).encode()


@pytest.mark.parametrize(
    "foreign",
    [
        None, 5, "x", [], {}, {"mediaType": INDEX_TYPE, "digest": "sha256:x"}, {"mediaType": 5},
        {"mediaType": "application/vnd.docker.distribution.manifest.v2+json", "size": -1},
        {**ENTRY, "artifactType": "application/vnd.cncf.helm", "size": "many"},
        {**ENTRY, "artifactType": "", "digest": f"sha512:{'1' * 128}"},
        {**ENTRY, "artifactType": None, "annotations": {"a": 5}},
        {**ENTRY, "artifactType": ["x"]},
    ],
    ids=str,
)  # fmt: skip
def test_entries_of_other_tools_are_passed_over(foreign: Any) -> None:
    (one,) = parse_index(index_of(foreign, {**ENTRY, "annotations": {TAG: "x"}}, foreign, annotations={"a": "b"}), "x")
    assert one == Tagged(sha256="1" * 64, size=7, tag="x", artifact=BUNDLE)


def test_an_entry_that_lost_its_artifact_type_is_kept() -> None:
    entry = {key: value for key, value in ENTRY.items() if key != "artifactType"}
    (one,) = parse_index(index_of({**entry, "platform": {"os": "linux"}, "urls": []}), "x")
    assert (one.artifact, one.tag) == ("", "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": -1}, "size"), ({"size": True}, "size"), ({"digest": "x"}, "digest"), ({"digest": None}, "digest"),
        ({"annotations": {TAG: 5}}, "annotations"), ({"annotations": {TAG: "\x1b"}}, "cannot be printed"),
        ({"annotations": {DELTA_BASE: "1" * 64}}, "base"), ({"annotations": {DELTA_BASE: ""}}, "base"),
        ({"artifactType": "application/vnd.envsmith.bundle.v2"}, "does not know"),
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_entry_of_ours_is_refused(change: dict[str, Any], words: str) -> None:
    (said,) = refused(index_of({**ENTRY, **change}), parse_index)
    assert words in said


def test_a_tag_stands_once() -> None:
    tagged = {**ENTRY, "annotations": {TAG: "a100-3"}}
    (said,) = refused(index_of(tagged, {**tagged, "digest": f"sha256:{'2' * 64}"}), parse_index)
    assert "the tag `a100-3` stands 2 times" in said


@pytest.mark.parametrize("manifests", [None, {}, 5, "x"])
def test_an_index_without_a_list_is_refused(manifests: Any) -> None:
    (said,) = refused(json.dumps({"manifests": manifests}).encode(), parse_index)
    assert "no list" in said


def test_the_artifact_of_what_is_not_ours_is_nothing() -> None:
    assert artifact_of(SAMPLE.data) == BUNDLE
    assert artifact_of(render_manifest(SIGNED)) == SIGNATURES
    for other in (b"", b"[]", b"{}", b'{"artifactType":5}', b'{"artifactType":["x"]}', b'{"artifactType":"x"}'):
        assert artifact_of(other) == ""


# --- names, titles, configs ---


def test_a_tag_is_one_that_registries_take() -> None:
    for stack, version in (("a100", "3"), ("a100", "2026.1+cu128 RC"), ("a" * 200, "1"), ("-x", "1"), ("x", "é/ü:@")):
        assert re.fullmatch(r"[a-z0-9_][a-z0-9._-]{0,127}", bundle_tag(stack, version))
    assert bundle_tag("a100", "3") == "a100-3"
    assert signature_tag("ab") == "sha256-ab.sig"
    assert delta_tag("ab") == "sha256-ab.delta"


def test_the_version_of_locks_hangs_on_each_of_them_and_not_on_their_order() -> None:
    one = locks_version({"a": "1", "b": "2"})
    assert one == locks_version({"b": "2", "a": "1"})
    assert len({one, locks_version({"a": "1"}), locks_version({"a": "2", "b": "1"})}) == 3
    assert re.fullmatch(r"[0-9a-f]{12}", one)


def test_a_bad_title_is_refused_before_it_is_used() -> None:
    assert file_title(WHEEL, "wheels/x.whl") == "wheels/x.whl"
    with pytest.raises(IntegrityError) as error:
        file_title(WHEEL, "../x.whl")
    assert error.value.problems[0].code == "bundle-malformed"


def test_a_config_is_read_back_and_another_schema_refused() -> None:
    assert parse_config(config_json({"a": {"b": [1, 2.5]}}), "x") == {"schema": 1, "a": {"b": [1, 2.5]}}
    for schema in (b"2", b"true", b'"1"', b"null", b"[1]"):
        (said,) = refused(b'{"schema":%b}' % schema, parse_config)
        assert "its schema is" in said
    refused(b"{}", parse_config)
