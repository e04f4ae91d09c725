"""What lies in a layout is held against what its manifests name; every damage names the blob and the file it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from envsmith.bundle import (
    ASSET,
    DELTAS,
    LOCK,
    PATCH,
    SDIST,
    SERIES,
    SIGNATURE,
    SIGNATURE_CONFIG,
    SIGNATURES,
    SOURCE,
    TITLE,
    WHEEL,
    Descriptor,
    Manifest,
    Tagged,
    listing,
    render_manifest,
)
from envsmith.bundlecheck import (
    LISTING_FILE,
    SUMS_FILE,
    Laid,
    expected_blobs,
    judge_layout,
    lacking,
    root_titles,
    source_title,
    sums_text,
    unreferenced,
)
from envsmith.lock import Lock
from tests.support.bundles import Sample, sample, sha
from tests.unit.test_lock import LOCK as LOCKED

SAMPLE = sample()
OTHER = sample("h100", "7", extra=b"only here")
SIZES = {sha256: len(data) for sha256, data in SAMPLE.blobs.items()} | {SAMPLE.sha256: len(SAMPLE.data)}
OTHERS = ("oci-layout", "index.json", SUMS_FILE, LISTING_FILE, "install.sh", "MANIFEST.md", "pylock.a100-rl.toml")


def root_of(one: Sample, *laid: Laid) -> dict[str, bytes]:
    root = {title: one.blobs[layer.sha256] for title, layer in root_titles(one.manifest).items()}
    return root | {
        LISTING_FILE: listing(one.manifest).encode(),
        SUMS_FILE: sums_text(expected_blobs([one.laid, *laid])).encode(),
    }


def judged(
    sizes: Mapping[str, int] = SIZES,
    root: Mapping[str, bytes] | None = None,
    others: tuple[str, ...] = OTHERS,
    laid: tuple[Laid, ...] = (SAMPLE.laid,),
) -> list[tuple[str, str]]:
    found = list(judge_layout(laid, sizes, root_of(SAMPLE) if root is None else root, others, "here"))
    assert all(problem.where == "here" and problem.hint for problem in found)
    return [(problem.code, problem.message) for problem in found]


# --- layouts ---


def test_a_whole_layout_is_sound() -> None:
    assert judged() == []
    assert unreferenced([SAMPLE.laid], SIZES) == ()


def test_what_is_expected_is_manifest_config_and_every_layer() -> None:
    expected = expected_blobs([SAMPLE.laid])
    assert {sha256: size for sha256, (size, _) in expected.items()} == SIZES
    assert expected[SAMPLE.sha256][1] == "manifest of a100-3"
    assert expected[SAMPLE.manifest.config.sha256][1] == "config of a100-3"
    assert expected[SAMPLE.titled("install.sh")][1] == "install.sh"


@pytest.mark.parametrize("title", ["manifest", "config", *(one.title for one in SAMPLE.manifest.layers)])
def test_a_blob_that_is_missing_or_of_another_size_is_named_with_its_title(title: str) -> None:
    digests = {"manifest": SAMPLE.sha256, "config": SAMPLE.manifest.config.sha256}
    sha256 = digests.get(title) or SAMPLE.titled(title)
    what = f"{title} of a100-3" if title in digests else title
    gone = {key: size for key, size in SIZES.items() if key != sha256}
    assert judged(gone) == [("bundle-blob-missing", f"the bundle lacks the blob {sha256}, which is `{what}`")]
    for size in (SIZES[sha256] + 1, 1 << 40):
        words = f"the blob {sha256}, which is `{what}`, has {size} bytes instead of {SIZES[sha256]}"
        assert judged({**SIZES, sha256: size}) == [("bundle-blob-corrupt", words)]


def test_all_damage_is_said_at_once() -> None:
    assert len(judged({})) == len(SIZES)


def test_blobs_that_nothing_names_are_no_damage_but_known() -> None:
    more = {**SIZES, sha(b"loose"): 5}
    assert judged(more) == []
    assert unreferenced([SAMPLE.laid], more) == (sha(b"loose"),)


@pytest.mark.parametrize("name", sorted(root_of(SAMPLE)))
@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data + b"\n", lambda data: b"", lambda data: b"\xff" + data]
)
def test_a_file_at_the_root_that_is_not_its_blob_is_found(name: str, damage) -> None:  # type: ignore[no-untyped-def]
    root = root_of(SAMPLE)
    words = f"`{name}` beside the blobs is not what the bundle's own blob says"
    assert judged(root={**root, name: damage(root[name])}) == [("bundle-file-differs", words)]


def test_files_at_the_root_may_be_lost() -> None:
    assert judged(root={}, others=("oci-layout", "index.json")) == []


@pytest.mark.parametrize("name", ["evil.sh", "pylock.a100-sft.toml", "pylock.toml", "bin/install.sh", "install.sh.sh"])
def test_a_script_or_lock_that_belongs_to_no_bundle_is_found(name: str) -> None:
    words = f"`{name}` stands beside the blobs and belongs to no bundle here"
    assert judged(others=(*OTHERS, name)) == [("bundle-file-unowned", words)]


@pytest.mark.parametrize(
    "name", ["x", f"{'A' * 64}", f"{'a' * 63}", f"{'a' * 64}.part", "sub/" + "a" * 64, "install.sh"]
)
def test_a_file_among_the_blobs_with_another_name_is_found(name: str) -> None:
    words = f"`blobs/sha256/{name}` lies among the blobs and is named like none"
    assert judged(others=(*OTHERS, f"blobs/sha256/{name}")) == [("bundle-blob-misnamed", words)]


@pytest.mark.parametrize(
    "name", ["oci-put-blob123", ".envsmith-x1", "blobs/sha256/.envsmith-x1", "notes.txt", "a/b.md"]
)
def test_litter_and_notes_are_no_damage(name: str) -> None:
    assert judged(others=(*OTHERS, name)) == []


def test_two_bundles_in_one_layout_share_blobs_and_root() -> None:
    laid = (SAMPLE.laid, OTHER.laid)
    sizes = {**SIZES, **{key: len(data) for key, data in OTHER.blobs.items()}, OTHER.sha256: len(OTHER.data)}
    for one, other in ((SAMPLE, OTHER), (OTHER, SAMPLE)):
        root = {**root_of(other, one.laid), **root_of(one, other.laid)}
        assert judged(sizes, root, (*OTHERS, "pylock.h100-rl.toml"), laid) == []
        assert judged({**SIZES}, root, OTHERS, laid) != []
    assert [code for code, _ in judged(sizes, root_of(SAMPLE), OTHERS, laid)] == ["bundle-file-differs"]


def test_a_delta_lacks_what_its_base_holds() -> None:
    omitted = SAMPLE.titled("wheels/torch-1-py3-none-any.whl")
    rest = {key: size for key, size in SIZES.items() if key != omitted}
    delta = replace(SAMPLE.laid, omitted=frozenset({omitted}))
    root = {**root_of(SAMPLE), SUMS_FILE: sums_text(expected_blobs([delta])).encode()}
    assert judged(rest, root, laid=(delta,)) == []
    assert omitted not in root[SUMS_FILE].decode()


def test_signatures_are_blobs_too() -> None:
    data = b"signature"
    layer = Descriptor(media_type=SIGNATURE, sha256=sha(data), size=len(data), annotations={TITLE: "manifest.0.sshsig"})
    config = Descriptor(media_type=SIGNATURE_CONFIG, sha256=sha(b"{}"), size=2)
    subject = Descriptor(media_type="", sha256=SAMPLE.sha256, size=len(SAMPLE.data))
    manifest = Manifest(artifact=SIGNATURES, config=config, layers=(layer,), subject=subject)
    own = render_manifest(manifest)
    laid = Laid(entry=Tagged(sha256=sha(own), size=len(own), tag="s.sig", artifact=SIGNATURES), manifest=manifest)
    assert {code for code, _ in judged(laid=(SAMPLE.laid, laid))} == {"bundle-blob-missing", "bundle-file-differs"}
    both = {**SIZES, sha(data): len(data), sha(b"{}"): 2, sha(own): len(own)}
    assert judged(both, root_of(SAMPLE, laid), laid=(SAMPLE.laid, laid)) == []
    alone = replace(laid, manifest=replace(manifest, artifact=DELTAS))
    assert root_titles(alone.manifest) == {}


# --- what locks need ---


def needs(lock: Lock) -> dict[str, tuple[str, str, str]]:
    """Words for each need to kind, title and digest of what meets it."""
    found = {}
    for wheel in (*lock.wheels, *lock.build_requires):
        found[f"wheel `{wheel.filename}`"] = (WHEEL, f"wheels/{wheel.filename}", wheel.sha256)
    for source in lock.sources:
        if source.sdist is not None:
            name = source.sdist.filename
            found[f"sdist `{name}`"] = (SDIST, f"sdists/{name}", source.sdist.sha256)
        if source.commit is not None:
            words = f"source `{source.name}` at commit {source.commit}"
            found[words] = (SOURCE, source_title(source.name, source.commit), sha(source.name.encode()))
    for one in [each for part in (*lock.sources, *lock.patched) for each in part.series]:
        found[f"series `{one.path}`"] = (SERIES, f"patches/{one.path}", sha(b"series"))
        for patch in one.patches:
            found[f"patch `{patch.path}`"] = (PATCH, f"patches/{patch.path}", patch.sha256)
    for asset in lock.assets:
        found[f"asset `{asset.name}`"] = (ASSET, f"assets/{asset.path}", asset.sha256)
    return found


NEEDS = needs(LOCKED)


def holding(met: Mapping[str, tuple[str, str, str]]) -> Manifest:
    layers = tuple(
        Descriptor(media_type=kind, sha256=sha256, size=1, annotations={TITLE: title})
        for kind, title, sha256 in met.values()
    )
    return replace(SAMPLE.manifest, layers=(*SAMPLE.manifest.of(LOCK), *layers))


def test_a_bundle_that_names_all_that_its_locks_need_lacks_nothing() -> None:
    assert len(NEEDS) >= 9
    assert lacking(holding(NEEDS), {"rl": LOCKED}) == ()


@pytest.mark.parametrize("need", sorted(NEEDS))
def test_each_need_that_is_not_met_is_said(need: str) -> None:
    rest = {words: value for words, value in NEEDS.items() if words != need}
    assert lacking(holding(rest), {"rl": LOCKED}) == (f"rl: {need}",)


@pytest.mark.parametrize("need", sorted(words for words in NEEDS if not words.startswith(("source", "series"))))
def test_a_file_of_that_name_and_other_content_meets_no_need(need: str) -> None:
    kind, title, _ = NEEDS[need]
    swapped = {**NEEDS, need: (kind, title, sha(b"swapped"))}
    assert lacking(holding(swapped), {"rl": LOCKED}) == (f"rl: {need}",)


def test_an_empty_bundle_lacks_everything_for_every_env() -> None:
    locks = {"sft": LOCKED, "rl": LOCKED}
    said = lacking(replace(SAMPLE.manifest, layers=()), locks)
    assert {one.partition(": ")[0] for one in said} == {"rl", "sft"}
    assert len(said) == 2 * len(NEEDS)
