"""Deltas: only what a base lacks travels, wheels as exact deltas; with its base a delta is the full bundle again."""

from __future__ import annotations

import json
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from envsmith import bundle as form
from tests.support.bundlekit import Bundle, Kit, Site, Tampered, make_key, signers
from tests.support.project import Said

pytest_plugins = ("tests.e2e.bundle_fixtures",)


def unpacked(kit: Kit) -> Bundle:
    """The delta as a folder."""

    def make(at: Path) -> None:
        with tarfile.open(kit.delta) as tar:
            for one in tar:
                place = at / one.name
                place.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(one)
                assert content is not None
                place.write_bytes(content.read())

    return Bundle(kit.once("delta-folder", make))


def messages(said: Said) -> str:
    return "\n".join(error["message"] for error in said.json["errors"])


def test_a_delta_holds_only_what_the_base_lacks_and_the_manifest_of_the_full_bundle(kit: Kit) -> None:
    delta = unpacked(kit)
    assert delta.digest == kit.full.digest
    assert delta.entry.base == kit.lean.entry.sha256
    held = {blob.name for blob in delta.blobs.iterdir()}
    assert not held & {blob.name for blob in kit.lean.blobs.iterdir()}
    assert kit.delta.stat().st_size < sum(blob.stat().st_size for blob in kit.full.blobs.iterdir()) / 50


def test_a_changed_wheel_travels_as_a_delta_and_one_that_zlib_did_not_make_as_it_is(kit: Kit) -> None:
    delta, said = unpacked(kit), json.loads((kit.delta.parent / "said.json").read_text())["data"]
    omega, rho = kit.full.wheel("omega"), kit.full.wheel("rho")
    assert min(omega.size, rho.size) > 256 << 10
    (row,) = said["rebuilt"]
    assert (row["title"], row["bytes"]) == (omega.title, omega.size)
    assert row["delta_bytes"] < omega.size / 20
    held = {blob.name for blob in delta.blobs.iterdir()}
    assert rho.sha256 in held
    assert omega.sha256 not in held
    side = next(one for one in delta.entries if one.artifact == form.DELTAS)
    layers = form.parse_manifest((delta.blobs / side.sha256).read_bytes(), "m").layers
    assert [one.title for one in layers] == [f"deltas/{omega.sha256}.delta"]
    assert said["base"] == kit.lean.digest


def test_the_same_delta_twice_is_the_same_bytes(kit: Kit, tmp_path: Path) -> None:
    words = ("-o", tmp_path / "d.tar", "--no-python", "--offline", "--since", kit.lean.path)
    said = kit.newer.run("bundle", "demo", *words, env=kit.offline)
    assert said.code == 0, said.out
    assert (tmp_path / "d.tar").read_bytes() == kit.delta.read_bytes()


def test_without_its_base_a_delta_says_which_digest_is_missing_and_writes_nothing(kit: Kit, site: Site) -> None:
    said = site.refused(kit.delta)
    assert (said.code, said.codes) == (4, ["bundle-base-missing"])
    assert kit.lean.digest in messages(said)
    assert "--base" in said.json["errors"][0]["hint"]
    said = site.refused(kit.delta, "--base", kit.pair.path)
    assert (said.code, said.codes) == (4, ["bundle-base-missing"])
    looked = site.inside("inspect", kit.delta, "--check")
    assert looked.code == 0, looked.out
    assert looked.json["data"]["base"] == kit.lean.digest
    assert not all(row["here"] for row in looked.json["data"]["files"])


def test_with_its_base_a_delta_installs_what_the_full_bundle_does(kit: Kit, site: Site, tmp_path: Path) -> None:
    said = site.install(kit.delta, "--base", kit.lean.path)
    assert said.code == 0, said.out + said.err
    blobs = said.json["data"]["blobs"]
    assert (blobs["rebuilt"], blobs["known"]) == (1, 0)
    assert blobs["copied"] == len(list((unpacked(kit).blobs).iterdir())) - 3  # two manifests, and a config of theirs
    assert said.json["data"]["bundle"] == kit.full.digest
    assert site.store.joinpath("blobs/sha256", kit.full.wheel("omega").sha256).is_file()
    ran = site.run(
        "run", "demo/app", "--root", site.root, "--", "python", "-c", "import omega, rho; print(omega.VERSION)",
        json=False,
    )  # fmt: skip
    assert (ran.code, ran.out) == (0, "1.1\n")
    # The store has all of it now: the next one needs no base.
    again = site.inside("install", kit.delta, "--root", site.root)
    assert (again.code, again.json["data"]["envs"][0]["state"]) == (0, "unchanged")


def test_a_base_that_the_store_knows_need_not_be_named(kit: Kit, site: Site, tmp_path: Path) -> None:
    assert site.inside("join", kit.lean.path, "-o", tmp_path / "base.tar").code == 0  # imports it
    said = site.inside("join", kit.delta, "-o", tmp_path / "full.tar")
    assert said.code == 0, said.out
    assert said.json["data"]["digest"] == kit.full.digest
    assert (said.json["data"]["rebuilt"], said.json["data"]["from_base"]) == (1, 0)


def test_a_delta_joined_with_its_base_is_the_full_bundle_byte_for_byte(kit: Kit, site: Site, tmp_path: Path) -> None:
    assert site.inside("join", kit.full.path, "-o", tmp_path / "full.tar").code == 0
    for number, words in enumerate(((kit.lean.path, kit.delta), (kit.delta, kit.lean.path))):
        other = Site(tmp_path / f"site-{number}")
        out = tmp_path / f"{number}.tar"
        said = other.inside("join", *words, "-o", out)
        assert said.code == 0, said.out
        assert out.read_bytes() == (tmp_path / "full.tar").read_bytes()
    out = tmp_path / "parts" / "x.tar"
    said = other.inside("join", kit.lean.path, kit.delta, "-o", out, "--max-size", "7M")
    parts = [Path(file) for file in said.json["data"]["files"][:-1]]
    assert len(parts) > 5
    assert b"".join(part.read_bytes() for part in parts) == (tmp_path / "full.tar").read_bytes()
    out = tmp_path / "folder"
    assert other.inside("join", kit.lean.path, kit.delta, "-o", out).code == 0
    for one in kit.full.path.rglob("*"):
        if one.is_file():
            assert (out / one.relative_to(kit.full.path)).read_bytes() == one.read_bytes()
    assert len(list(out.rglob("*"))) == len(list(kit.full.path.rglob("*")))


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen here to sign with")
def test_a_signature_of_a_delta_is_that_of_the_full_bundle(kit: Kit, site: Site, tmp_path: Path) -> None:
    key = make_key(tmp_path / "key")
    trust = signers(tmp_path / "trust", key)
    common = ("--no-python", "--offline", "--sign", key)
    full = kit.newer.run("bundle", "demo", "-o", tmp_path / "full.tar", *common, env=kit.offline)
    made = kit.newer.run(
        "bundle", "demo", "-o", tmp_path / "d.tar", "--since", kit.lean.path, *common, env=kit.offline
    )  # fmt: skip
    assert (full.code, made.code) == (0, 0)
    said = site.inside("join", kit.lean.path, tmp_path / "d.tar", "-o", tmp_path / "joined.tar")
    assert said.code == 0, said.out
    assert (tmp_path / "joined.tar").read_bytes() == (tmp_path / "full.tar").read_bytes()
    for bundle in ("d.tar", "joined.tar"):
        looked = site.inside("inspect", tmp_path / bundle, "--check", "--trust", trust)
        assert looked.json["data"]["signatures"][0]["who"] == "maker@example.org"
    assert site.refused(kit.delta, "--base", kit.lean.path, "--trust", trust).codes == ["bundle-unsigned"]


def test_every_damage_of_a_delta_is_found_and_named(kit: Kit, site: Site, tmp_path: Path) -> None:
    delta = unpacked(kit)
    side = next(one for one in delta.entries if one.artifact == form.DELTAS)
    manifest = form.parse_manifest((delta.blobs / side.sha256).read_bytes(), "m")
    blobs = {
        side.sha256: "manifest of",
        manifest.config.sha256: "config of",
        manifest.layers[0].sha256: "deltas/",
        delta.wheel("rho").sha256: "wheels/rho-1.1",
    }
    for sha256, what in blobs.items():
        for damage in ("flip", "truncate", "append", "empty", "remove"):
            one = Tampered.of(delta, tmp_path / f"{sha256[:8]}-{damage}")
            data = (one.blobs / sha256).read_bytes()
            if damage == "flip":
                one.flip(sha256)
            elif damage == "remove":
                (one.blobs / sha256).unlink()
            else:
                one.blob(sha256, {"truncate": data[:-1], "append": data + b"x", "empty": b""}[damage])
            for said in (
                site.inside("inspect", one.path, "--check"), site.refused(one.path, "--base", kit.lean.path),
            ):  # fmt: skip
                assert said.code == 5, (what, damage, said.out)
                assert sha256 in messages(said)
                assert what in messages(said)


def test_a_damaged_base_is_never_built_upon(kit: Kit, tmp_path: Path) -> None:
    for project in ("omega", "gamma"):
        base = Tampered.of(kit.lean, tmp_path / project)
        base.flip(base.wheel(project).sha256)
        said = Site(tmp_path / f"site-{project}").refused(kit.delta, "--base", base.path)
        assert (said.code, said.codes) == (5, ["bundle-blob-corrupt"]), said.out
        assert base.wheel(project).sha256 in messages(said)


def test_a_list_of_omissions_that_lies_is_refused(kit: Kit, site: Site, tmp_path: Path) -> None:
    """Leaving out what no base has is found before anything is written; so is a lock that is left out."""
    delta = unpacked(kit)
    side = next(one for one in delta.entries if one.artifact == form.DELTAS)
    manifest = form.parse_manifest((delta.blobs / side.sha256).read_bytes(), "m")
    config = json.loads((delta.blobs / manifest.config.sha256).read_bytes())
    for name, omitted in {
        "nothing": [],
        "no list": 7,
        "no digests": ["../../x"],
        "too much": [*config["omitted"], kit.full.wheel("rho").sha256],
        "all": [one.sha256 for one in kit.full.manifest.blobs],
    }.items():
        one = Tampered.of(delta, tmp_path / name)
        data = form.config_json({"base": config["base"], "omitted": omitted})
        own = replace(manifest.config, sha256=one.add(data), size=len(data))
        changed = form.render_manifest(replace(manifest, config=own))
        entry = replace(side, sha256=one.add(changed), size=len(changed))
        others = [entry if each.sha256 == side.sha256 else each for each in one.entries]
        one.write("index.json", form.render_index(others))
        (one.path / "SHA256SUMS").unlink()
        said = site.refused(one.path, "--base", kit.lean.path)
        assert said.code in (4, 5), (name, said.out)


def test_a_delta_of_equal_bundles_is_hardly_anything_and_joins_to_the_same(
    kit: Kit, site: Site, tmp_path: Path
) -> None:
    words = ("-o", tmp_path / "d", "--no-python", "--offline", "--since", kit.pair.path)
    said = kit.project.run("bundle", "pair", *words, env=kit.offline)
    assert said.code == 0, said.out
    assert said.json["data"]["blobs"] <= 3
    said = site.inside("join", kit.pair.path, tmp_path / "d", "-o", tmp_path / "same")
    assert said.code == 0, said.out
    assert said.json["data"]["digest"] == kit.pair.digest


def test_since_takes_no_file_that_is_no_bundle_and_no_other_stack_breaks_it(
    kit: Kit, site: Site, tmp_path: Path
) -> None:
    """Another stack as a base is allowed: blobs are blobs."""
    (tmp_path / "x.tar").write_bytes(b"x" * 5000)
    said = kit.newer.run("bundle", "demo", "-o", tmp_path / "d", "--since", tmp_path / "x.tar", env=kit.offline)
    assert (said.code, said.codes) == (5, ["bundle-malformed"])
    words = ("-o", tmp_path / "d", "--no-python", "--offline", "--since", kit.pair.path)
    assert kit.newer.run("bundle", "demo", *words, env=kit.offline).code == 0
    said = site.inside("join", kit.pair.path, tmp_path / "d", "-o", tmp_path / "joined")
    assert (said.code, said.json["data"]["digest"]) == (0, kit.full.digest)
