"""Every kind of damage to every kind of blob is found: `inspect --check` names it, `install` writes nothing.

Both run in this process here: there are some hundred cases, and each ends early. A few run as processes besides.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envsmith import bundle as form
from envsmith.bundle import Descriptor
from tests.support.bundlekit import Bundle, Kit, Site, Tampered, make_key
from tests.support.project import Said

pytest_plugins = ("tests.e2e.bundle_fixtures",)

KINDS = (
    form.LOCK, form.PYLOCK, form.RECIPE, form.SNAPSHOT, form.INSTALLER, form.SHEET, form.REPORT, form.SERIES,
    form.PATCH, form.SOURCE, form.ASSET, form.SDIST, form.WHEEL, form.PYTHON, form.CONFIG, form.MANIFEST_TYPE,
)  # fmt: skip
#: Kinds that only a signed bundle and a delta hold: they have tests of their own.
ELSEWHERE = {form.SIGNATURE, form.WHEEL_DELTA}


@pytest.fixture
def bundle(kit: Kit, tmp_path: Path) -> Tampered:
    return Tampered.of(kit.small, tmp_path / "b")


def blob_of(bundle: Bundle, kind: str) -> tuple[str, str]:
    """Digest of a blob of that kind, and what messages call it."""
    if kind == form.MANIFEST_TYPE:
        return bundle.entry.sha256, f"manifest of {bundle.entry.tag}"
    if kind == form.CONFIG:
        return bundle.manifest.config.sha256, "config"
    one = bundle.first(kind)
    return one.sha256, one.title


def flip(bundle: Tampered, sha256: str) -> None:
    bundle.flip(sha256)


def truncate(bundle: Tampered, sha256: str) -> None:
    bundle.blob(sha256, (bundle.blobs / sha256).read_bytes()[:-1])


def append(bundle: Tampered, sha256: str) -> None:
    bundle.blob(sha256, (bundle.blobs / sha256).read_bytes() + b"\n")


def empty(bundle: Tampered, sha256: str) -> None:
    bundle.blob(sha256, b"")


def zeros(bundle: Tampered, sha256: str) -> None:
    bundle.blob(sha256, bytes((bundle.blobs / sha256).stat().st_size))


def swap(bundle: Tampered, sha256: str) -> None:
    # Never the manifest, which would hide all others: digests change with every commit, and so would the first one.
    other = next(one for one in (bundle.wheel("gamma").sha256, bundle.wheel("beta").sha256) if one != sha256)
    first, second = ((bundle.blobs / one).read_bytes() for one in (sha256, other))
    bundle.blob(sha256, second)
    bundle.blob(other, first)


def remove(bundle: Tampered, sha256: str) -> None:
    (bundle.blobs / sha256).unlink()


def rename(bundle: Tampered, sha256: str) -> None:
    (bundle.blobs / sha256).rename(bundle.blobs / (sha256[:-1] + ("1" if sha256[-1] == "0" else "0")))


def misname(bundle: Tampered, sha256: str) -> None:
    (bundle.blobs / sha256).rename(bundle.blobs / f"{sha256}.part")


def link(bundle: Tampered, sha256: str) -> None:
    place = bundle.path.parent / "outside"
    (bundle.blobs / sha256).rename(place)
    (bundle.blobs / sha256).symlink_to(place)


def folder(bundle: Tampered, sha256: str) -> None:
    (bundle.blobs / sha256).unlink()
    (bundle.blobs / sha256).mkdir()


DAMAGES = (flip, truncate, append, empty, zeros, swap, remove, rename, misname, link, folder)


def refused(site: Site, bundle: Tampered) -> tuple[Said, Said]:
    """What both verbs say; both have to end with 5, and nothing may be written."""
    inspected = site.inside("inspect", bundle.path, "--check")
    installed = site.refused(bundle.path)
    assert (inspected.code, installed.code) == (5, 5), inspected.out + installed.out
    return inspected, installed


def messages(said: Said) -> str:
    return "\n".join(error["message"] for error in said.json["errors"])


def test_every_kind_that_a_bundle_knows_is_damaged_here(kit: Kit) -> None:
    values = {str(value) for name, value in vars(form).items() if name.isupper()}
    known = {value for value in values if re.fullmatch(r"application/vnd\.envsmith\..+", value)}
    artifacts = {form.BUNDLE, form.SIGNATURES, form.DELTAS, form.SIGNATURE_CONFIG, form.DELTA_CONFIG}
    assert known - artifacts == {*KINDS, *ELSEWHERE} - {form.MANIFEST_TYPE}
    assert {one.media_type for one in kit.small.manifest.blobs} == {*KINDS} - {form.MANIFEST_TYPE}


@pytest.mark.parametrize("kind", KINDS)
def test_every_damage_of_this_kind_is_found_and_named(kit: Kit, site: Site, tmp_path: Path, kind: str) -> None:
    sha256, what = blob_of(kit.small, kind)
    for damage in DAMAGES:
        bundle = Tampered.of(kit.small, tmp_path / damage.__name__)
        damage(bundle, sha256)
        for said in refused(site, bundle):
            said_of = messages(said)
            assert sha256 in said_of, (damage.__name__, said_of)
            if damage is not link:  # a link is refused whatever it stands for
                assert f"`{what}" in said_of, (damage.__name__, said_of)


def test_inspect_without_check_finds_what_names_and_sizes_show(kit: Kit, site: Site, tmp_path: Path) -> None:
    sha256 = kit.small.wheel("gamma").sha256
    for damage, code in ((truncate, 5), (remove, 5), (misname, 5), (flip, 0)):
        bundle = Tampered.of(kit.small, tmp_path / damage.__name__)
        damage(bundle, sha256)
        said = site.inside("inspect", bundle.path)
        assert said.code == code
        assert said.code == 5 or not said.json["data"]["checked"]


def test_all_damages_are_said_at_once(bundle: Tampered, site: Site) -> None:
    hurt = [bundle.wheel("gamma").sha256, bundle.first(form.PATCH).sha256, bundle.first(form.SOURCE).sha256]
    flip(bundle, hurt[0])
    remove(bundle, hurt[1])
    truncate(bundle, hurt[2])
    said = site.inside("inspect", bundle.path, "--check")
    assert said.code == 5
    assert len(said.json["errors"]) == 3
    assert all(sha256 in messages(said) for sha256 in hurt)


@pytest.mark.parametrize("damage", [flip, truncate, remove])
def test_as_a_process_it_ends_with_5_and_one_json_document(
    bundle: Tampered, site: Site, damage: Callable[[Tampered, str], None]
) -> None:
    sha256 = bundle.wheel("beta").sha256
    damage(bundle, sha256)
    for said in (site.run("inspect", bundle.path, "--check"), site.install(bundle.path)):
        assert said.code == said.json["exit_code"] == 5
        assert sha256 in messages(said)
    text = site.run("inspect", bundle.path, "--check", json=False)
    assert (text.code, text.out) == (5, "")
    assert sha256 in text.err
    assert site.untouched


# --- a manifest that was rewritten, all digests right ---


def titled(bundle: Tampered, project: str, title: str, *, keep: bool = False) -> None:
    """Give the wheel of a project another title, or a second one."""
    manifest = bundle.manifest
    one = bundle.wheel(project)
    changed = replace(one, annotations={**one.annotations, form.TITLE: title})
    layers = [layer for layer in manifest.layers if keep or layer.sha256 != one.sha256]
    bundle.rewrite(replace(manifest, layers=(*layers, changed)))


@pytest.mark.parametrize(
    "title",
    [
        "wheels/../../outside.whl",
        "../outside.whl",
        "/tmp/outside.whl",
        "wheels//x.whl",
        "wheels/./x.whl",
        "wheels\\x.whl",
        "wheels/x\n.whl",
        "wheels/x\x00.whl",
        "wheels/\u202e.whl",
        "install.sh",
        "stacks/x.whl",
        "wheels/",
        "",
        "wheels/" + "x" * 1100 + ".whl",
    ],
)
def test_a_title_that_is_no_plain_path_is_refused(bundle: Tampered, site: Site, title: str) -> None:
    sha256 = bundle.wheel("gamma").sha256
    titled(bundle, "gamma", title)
    for said in refused(site, bundle):
        assert said.codes == ["bundle-malformed"]
        assert sha256 in messages(said)
    assert not (bundle.path.parent / "outside.whl").exists()


def test_a_duplicate_title_and_a_file_that_is_a_folder_are_refused(kit: Kit, site: Site, tmp_path: Path) -> None:
    one = Tampered.of(kit.small, tmp_path / "one")
    gamma, beta = one.wheel("gamma"), one.wheel("beta")
    titled(one, "gamma", beta.title, keep=True)
    for said in refused(site, one):
        assert all(word in messages(said) for word in (beta.title, beta.sha256, gamma.sha256))
    other = Tampered.of(kit.small, tmp_path / "other")
    asset = other.first(form.ASSET)
    below = replace(asset, annotations={form.TITLE: f"{asset.title}/below"})
    other.rewrite(replace(other.manifest, layers=(*other.manifest.layers, below)))
    for said in refused(site, other):
        assert "is a file" in messages(said)


def without_wheel(bundle: Tampered) -> str:
    gone = bundle.wheel("gamma")
    bundle.rewrite(
        replace(bundle.manifest, layers=tuple(one for one in bundle.manifest.layers if one.sha256 != gone.sha256))
    )
    return gone.name


def without_patch(bundle: Tampered) -> str:
    gone = bundle.first(form.PATCH)
    bundle.rewrite(
        replace(bundle.manifest, layers=tuple(one for one in bundle.manifest.layers if one.sha256 != gone.sha256))
    )
    return gone.title.removeprefix("patches/")


def without_source(bundle: Tampered) -> str:
    bundle.rewrite(
        replace(bundle.manifest, layers=tuple(one for one in bundle.manifest.layers if one.media_type != form.SOURCE))
    )
    return "source `tool`"


def other_wheel(bundle: Tampered) -> str:
    """An honest blob with another content under the wheel's title."""
    old = bundle.wheel("gamma")
    data = (bundle.blobs / bundle.wheel("beta").sha256).read_bytes() + b"evil"
    new = replace(old, sha256=bundle.add(data), size=len(data))
    bundle.rewrite(
        replace(
            bundle.manifest, layers=tuple(new if one.sha256 == old.sha256 else one for one in bundle.manifest.layers)
        )
    )
    return old.name


@pytest.mark.parametrize("change", [without_wheel, without_patch, without_source, other_wheel])
def test_a_bundle_that_lacks_what_its_lock_needs_is_not_used(
    bundle: Tampered, site: Site, change: Callable[[Tampered], str]
) -> None:
    name = change(bundle)
    bundle.drop_unreferenced()
    bundle.refresh(bundle.manifest)
    for said in refused(site, bundle):
        assert set(said.codes) == {"bundle-incomplete"}
        assert name in messages(said)


def changed_lock(bundle: Tampered) -> None:
    old = bundle.first(form.LOCK)
    data = (bundle.blobs / old.sha256).read_bytes().replace(b"gamma", b"gamna")
    new = replace(old, sha256=bundle.add(data), size=len(data))
    bundle.rewrite(
        replace(
            bundle.manifest, layers=tuple(new if one.sha256 == old.sha256 else one for one in bundle.manifest.layers)
        )
    )


def no_locks(bundle: Tampered) -> None:
    bundle.rewrite(replace(bundle.manifest, annotations={**bundle.manifest.annotations, form.LOCKS: "{}"}))


def wild_locks(bundle: Tampered) -> None:
    bundle.rewrite(replace(bundle.manifest, annotations={**bundle.manifest.annotations, form.LOCKS: "[1"}))


def wild_stack(bundle: Tampered) -> None:
    bundle.rewrite(replace(bundle.manifest, annotations={**bundle.manifest.annotations, form.TITLE: "../demo"}))


def other_stack(bundle: Tampered) -> None:
    bundle.rewrite(replace(bundle.manifest, annotations={**bundle.manifest.annotations, form.TITLE: "other"}))


def unknown_kind(bundle: Tampered) -> None:
    data = b"#!/bin/sh\n"
    one = Descriptor(
        media_type="application/x-unknown", sha256=bundle.add(data), size=len(data),
        annotations={form.TITLE: "run-me.sh"},
    )  # fmt: skip
    bundle.rewrite(replace(bundle.manifest, layers=(*bundle.manifest.layers, one)))


def wrong_size(bundle: Tampered) -> None:
    gamma = bundle.wheel("gamma")
    wrong = replace(gamma, size=gamma.size + 1)
    bundle.rewrite(
        replace(
            bundle.manifest,
            layers=tuple(wrong if one.sha256 == gamma.sha256 else one for one in bundle.manifest.layers),
        )
    )


@pytest.mark.parametrize(
    "change", [changed_lock, no_locks, wild_locks, wild_stack, other_stack, unknown_kind, wrong_size]
)
def test_a_manifest_that_contradicts_itself_is_refused(
    bundle: Tampered, site: Site, change: Callable[[Tampered], None]
) -> None:
    change(bundle)
    for said in refused(site, bundle):
        assert set(said.codes) <= {"bundle-malformed", "bundle-blob-corrupt"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"schemaVersion":2}',
        b'{"mediaType":1,"artifactType":[],"layers":{},"config":7}',
    ],
    ids=lambda one: repr(one[:12]),
)
def test_what_is_no_manifest_and_no_index_is_refused(kit: Kit, site: Site, tmp_path: Path, data: bytes) -> None:
    one = Tampered.of(kit.small, tmp_path / "manifest")
    one.rewrite_raw(data)
    refused(site, one)
    index = Tampered.of(kit.small, tmp_path / "index")
    index.write("index.json", data)
    refused(site, index)


def test_manifest_fields_of_wrong_types_never_end_in_a_traceback(kit: Kit, site: Site, tmp_path: Path) -> None:
    good = json.loads(kit.small.data)
    wrong = (None, 7, "x", [], {}, [7], {"digest": "sha256:x"}, {"a": 7}, True)
    number = 0
    for path in (
        ("mediaType",), ("artifactType",), ("config",), ("layers",), ("annotations",), ("subject",), ("layers", 0),
        ("layers", 0, "digest"), ("layers", 0, "size"), ("layers", 0, "mediaType"), ("layers", 0, "annotations"),
        ("config", "digest"), ("config", "size"),
    ):  # fmt: skip
        for value in wrong:
            changed = json.loads(json.dumps(good))
            place = changed
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            if path == ("subject",) and value is None:
                continue
            number += 1
            one = Tampered.of(kit.small, tmp_path / str(number))
            one.rewrite_raw(json.dumps(changed).encode())
            said = site.inside("inspect", one.path)
            assert said.code == 5, (path, value, said.out)
            shutil.rmtree(one.path)


# --- files beside the blobs ---


@pytest.mark.parametrize("name", ["install.sh", "MANIFEST.md", "pylock.demo-app.toml", "SHA256SUMS", "FILES.tsv"])
def test_a_changed_file_beside_the_blobs_is_found(kit: Kit, site: Site, tmp_path: Path, name: str) -> None:
    for number, data in enumerate((b"", b"changed\n", (kit.small.path / name).read_bytes() + b"\n")):
        one = Tampered.of(kit.small, tmp_path / str(number))
        one.write(name, data)
        for said in refused(site, one):
            assert said.codes == ["bundle-file-differs"]
            assert f"`{name}`" in messages(said)


@pytest.mark.parametrize("name", ["run.sh", "pylock.other.toml", "blobs/sha256/notes.txt"])
def test_a_file_that_could_be_taken_for_the_bundles_own_is_found(bundle: Tampered, site: Site, name: str) -> None:
    bundle.write(name, b"x\n")
    for said in refused(site, bundle):
        assert name in messages(said)


def test_what_movers_lose_or_leave_is_no_damage(kit: Kit, site: Site, tmp_path: Path) -> None:
    """A registry keeps blobs alone, and skopeo leaves litter when it is killed."""
    one = Tampered.of(kit.small, tmp_path / "b")
    for name in ("install.sh", "MANIFEST.md", "pylock.demo-app.toml", "SHA256SUMS", "FILES.tsv"):
        (one.path / name).unlink()
    one.write("oci-put-blob123", b"x")
    one.write("README", b"copied by whom\n")
    said = site.inside("inspect", one.path, "--check")
    assert said.code == 0, said.out


def test_without_layout_file_or_index_it_is_no_bundle(kit: Kit, site: Site, tmp_path: Path) -> None:
    for name, codes in (("oci-layout", ["bundle-unknown"]), ("index.json", ["bundle-malformed"])):
        one = Tampered.of(kit.small, tmp_path / name)
        (one.path / name).unlink()
        assert site.inside("inspect", one.path).codes == codes
        assert site.refused(one.path).codes == codes


def test_blobs_that_nothing_names_are_said_and_hashed(bundle: Tampered, site: Site) -> None:
    extra = bundle.add(b"a leftover of an older bundle\n")
    said = site.inside("inspect", bundle.path, "--check")
    assert said.code == 0
    assert said.json["data"]["unreferenced"] == [extra]
    bundle.blob(extra, b"something else\n")
    said = site.inside("inspect", bundle.path, "--check")
    assert (said.code, said.codes) == (5, ["bundle-blob-corrupt"])
    assert extra in messages(said)


# --- signatures ---


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen here to sign with")
def test_every_damage_of_a_signature_is_found_and_named(kit: Kit, site: Site, tmp_path: Path) -> None:
    import subprocess

    key = make_key(tmp_path / "key")
    argv = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", "envsmith-bundle"]
    armored = subprocess.run(argv, input=kit.small.data, capture_output=True, check=True).stdout.decode()
    signed = Tampered.of(kit.small, tmp_path / "signed")
    signed.sign(armored)
    assert site.inside("inspect", signed.path, "--check").code == 0
    side = next(one for one in signed.entries if one.artifact == form.SIGNATURES)
    manifest = form.parse_manifest((signed.blobs / side.sha256).read_bytes(), "m")
    names = {
        side.sha256: f"manifest of {side.tag}",
        manifest.config.sha256: "config",
        manifest.layers[0].sha256: "manifest.0.sshsig",
    }
    for sha256, what in names.items():
        for damage in (flip, truncate, append, empty, remove, rename):
            one = Tampered.of(signed, tmp_path / f"{sha256[:8]}-{damage.__name__}")
            damage(one, sha256)
            for said in refused(site, one):
                assert sha256 in messages(said)
                assert f"`{what}" in messages(said)


# --- a tar ---


def test_every_single_byte_of_a_tar_counts(kit: Kit, site: Site, tmp_path: Path) -> None:
    """Headers, names, sizes, contents and the end: a flip anywhere but in padding is found by `--check`."""
    target = tmp_path / "b.tar"
    assert site.inside("join", kit.small.path, "-o", target).code == 0
    data = target.read_bytes()
    assert site.inside("inspect", target, "--check").code == 0
    step = len(data) // 60
    for position in (*range(0, 1536, 130), *range(1536, len(data), step)):
        changed = bytearray(data)
        changed[position] ^= 0x20
        target.write_bytes(changed)
        said = site.inside("inspect", target, "--check")
        if said.code == 0:
            assert data[position] == 0, position  # padding between members, or the unused end of a header
        else:
            assert said.code in (2, 5), said.out
    end = -(-len(data.rstrip(bytes(1))) // 512) * 512  # after it come the two empty blocks, and filling
    for length in (0, 100, 512, 1024, len(data) // 2, end - 1, end, end + 1023):
        target.write_bytes(data[:length])
        said = site.inside("inspect", target, "--check")
        assert said.code == 5, (length, said.out)


def test_a_bundle_that_cannot_be_read_is_said_so(bundle: Tampered, site: Site) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    sha256 = bundle.wheel("gamma").sha256
    bundle.blob(sha256, (bundle.blobs / sha256).read_bytes())
    (bundle.blobs / sha256).chmod(0)
    said = site.inside("inspect", bundle.path, "--check")
    assert said.code == 4
