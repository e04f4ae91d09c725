"""From a bundle to an env on a machine without index and network: the env is the one that a build makes."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from envsmith.receipt import VARIABLE
from tests.support.bundlekit import Kit, Site, Tampered
from tests.support.project import Project, Said, envsmith

pytest_plugins = ("tests.e2e.bundle_fixtures",)


def no_network() -> list[str]:
    """The words that start a program without any network, where the kernel lets this user."""
    for words in (["unshare", "-n"], ["unshare", "-rn"]):
        if (
            shutil.which("unshare")
            and subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
        ):
            return words
    return []


def receipt(root: Path, env: str = "demo-app") -> dict[str, object]:
    """What has to be equal for equal envs: all but what names the place, the time and the machine's own interpreter."""
    found = json.loads((root / env / "current" / "envsmith.json").read_text())
    return {key: value for key, value in found.items() if key not in VARIABLE}


def assert_equal_envs(site: Site, built: Project) -> None:
    assert receipt(site.root) == receipt(built.envs)
    assert (site.root / "demo-app" / "current").is_symlink()
    said = site.run("verify", "demo/app", "--root", site.root, "--deep")
    assert said.code == 0, said.out
    assert said.json["data"]["findings"] == []


def test_the_installed_env_is_the_built_one_and_a_second_install_does_nothing(kit: Kit, site: Site) -> None:
    said = site.install(kit.lean.path)
    assert said.code == 0, said.out + said.err
    data = said.json["data"]
    assert (data["bundle"], data["envs"][0]["state"]) == (kit.lean.digest, "built")
    assert_equal_envs(site, kit.built)
    assert receipt(site.root)["lock-sha256"] == kit.lean.manifest.locks["app"]
    again = site.install(kit.lean.path)
    assert again.code == 0
    assert again.json["data"]["envs"][0]["state"] == "unchanged"
    assert again.json["data"]["blobs"]["copied"] == 0
    ran = site.run("run", "demo/app", "--root", site.root, "--", "tool", json=False)
    assert (ran.code, ran.out) == (0, "backend: sdpa\n")


def test_with_the_carried_interpreter_in_a_namespace_without_network_it_is_the_same_env(kit: Kit, site: Site) -> None:
    from envsmith.bundle import PYTHON

    if not kit.whole.manifest.of(PYTHON):
        pytest.skip("the Python of these tests cannot be carried")
    words = [*no_network(), sys.executable, "-m", "envsmith", "install", str(kit.whole.path), "--json"]
    site.folder.mkdir()
    environ = {**os.environ, **site.environ, "PATH": "/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run(
        [*words, "--root", str(site.root)], cwd=site.folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert_equal_envs(site, kit.built)
    python = json.loads((site.root / "demo-app/current/envsmith.json").read_text())["python-path"]
    assert Path(python).is_relative_to(site.root / ".python")
    (place,) = (site.root / ".python").iterdir()
    before = {one: one.lstat().st_mtime_ns for one in place.rglob("*")}
    assert site.install(kit.whole.path).code == 0
    assert {one: one.lstat().st_mtime_ns for one in place.rglob("*")} == before


def test_it_looks_for_no_network_where_the_kernel_gives_no_guard_and_only_reads_the_bundle(
    kit: Kit, site: Site
) -> None:
    from tests.support.index import SimpleIndex

    before = {one: one.stat().st_mtime_ns for one in kit.pair.path.rglob("*")}
    with SimpleIndex(kit.project.index) as served:
        environ = {"ENVSMITH_NETGUARD": "off", "ENVSMITH_INDEX": served.url}
        words = ("install", kit.pair.path, "--root", site.root, "--env", "a", "-q")
        said = site.run(*words, env=environ, json=False)
        assert (said.code, said.err) == (0, "")
        assert kit.pair.digest in said.out
        assert served.log == []
    assert {one: one.stat().st_mtime_ns for one in kit.pair.path.rglob("*")} == before
    said = site.run("install", "nowhere", "--root", site.root, json=False)
    assert (said.code, said.out) == (2, "")
    assert "error[bundle-unknown]" in said.err


# --- tar, parts and pipes ---


@pytest.fixture
def parts(kit: Kit) -> list[Path]:
    """The bundle of the pair in parts of 5 MiB."""

    def make(at: Path) -> None:
        said = envsmith("join", kit.pair.path, "-o", at / "b.tar", "--max-size", "5M", "--json", cwd=at)
        assert said.json["data"]["digest"] == kit.pair.digest

    return sorted(kit.once("parts", make).glob("b.tar.part*"))


def piped(site: Site, parts: list[Path], *words: str) -> Said:
    site.folder.mkdir(exist_ok=True)
    argv = [sys.executable, "-m", "envsmith", "install", "-", "--root", str(site.root), "--env", "a", "--json", *words]
    with subprocess.Popen(["cat", *parts], stdout=subprocess.PIPE) as cat:
        done = subprocess.run(
            argv,
            stdin=cat.stdout,
            cwd=site.folder,
            env={**os.environ, **site.environ},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert "Traceback" not in done.stderr, done.stderr
    return Said(done.returncode, done.stdout, done.stderr)


def test_parts_install_through_a_pipe_and_by_the_name_of_the_first(
    kit: Kit, site: Site, tmp_path: Path, parts: list[Path]
) -> None:
    assert len(parts) > 3
    said = piped(site, parts, "--expect", kit.pair.digest)
    assert said.code == 0, said.out + said.err
    assert said.json["data"]["envs"][0]["state"] == "built"
    for word in (parts[0], parts[0].with_suffix("")):
        again = site.inside("install", word, "--root", site.root, "--env", "a")
        assert again.code == 0, again.out
        assert again.json["data"]["envs"][0]["state"] == "unchanged"


def test_a_missing_or_short_part_is_named_and_nothing_is_written(
    kit: Kit, site: Site, tmp_path: Path, parts: list[Path]
) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in parts:
        os.link(part, folder / part.name)
    (folder / "b.tar.part002").unlink()
    said = site.refused(folder / "b.tar.part000")
    assert (said.code, said.codes) == (4, ["bundle-part-missing"])
    assert "part002" in said.json["errors"][0]["message"]
    os.link(parts[2], folder / "b.tar.part002")
    last = folder / parts[-1].name
    data = last.read_bytes()
    last.unlink()
    last.write_bytes(data[: len(data) // 2])
    said = site.refused(folder / "b.tar.part000")
    assert (said.code, said.codes) == (5, ["bundle-malformed"])
    said = piped(site, [*parts[:-1], last])
    assert (said.code, said.codes) == (5, ["bundle-malformed"])
    last.unlink()  # a missing last part looks like a shorter bundle until its end is missed
    said = site.refused(folder / "b.tar.part000")
    assert (said.code, said.codes) == (5, ["bundle-malformed"])
    assert site.untouched


def test_parts_in_a_wrong_order_are_no_bundle(kit: Kit, site: Site, parts: list[Path]) -> None:
    said = piped(site, [parts[0], parts[2], parts[1], *parts[3:]])
    assert said.code == 5, said.out
    assert site.untouched


@pytest.mark.parametrize("data", [b"", b"no tar at all\n" * 100, bytes(10240)])
def test_what_is_no_tar_is_no_bundle(site: Site, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(data)
    for said in (site.refused(tmp_path / "x.tar"), piped(site, [tmp_path / "x.tar"])):
        assert said.code == 5, said.out
        assert said.codes == ["bundle-malformed"]
    assert site.untouched


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    "planted",
    [
        member("../outside"),
        member("/tmp/outside"),
        member("blobs/../../outside"),
        member("blobs/sha256/x", tarfile.SYMTYPE, "/etc/passwd"),
        member("blobs/sha256/x", tarfile.LNKTYPE, "index.json"),
        member("device", tarfile.CHRTYPE),
        member("pipe", tarfile.FIFOTYPE),
        member("index.json"),
    ],
    ids=lambda one: f"{one.name}-{one.type.decode()}",
)
def test_a_member_that_leads_elsewhere_is_refused_in_file_and_pipe(
    kit: Kit, site: Site, tmp_path: Path, planted: tarfile.TarInfo
) -> None:
    target = tmp_path / "b.tar"
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name in ("oci-layout", "index.json"):
            tar.add(kit.small.path / name, name)
        tar.addfile(planted, io.BytesIO())
        tar.add(kit.small.path / "blobs", "blobs")
    for said in (site.refused(target), piped(site, [target])):
        assert (said.code, said.codes) == (5, ["bundle-malformed"]), said.out
    assert not (tmp_path / "outside").exists()
    assert site.untouched


# --- which, for whom, expected ---


def test_expect_is_held_against_the_digest_before_anything_is_copied(kit: Kit, site: Site) -> None:
    for expect, code, codes in (
        ("sha256:" + "0" * 64, 5, ["bundle-unexpected"]),
        ("0" * 64, 5, ["bundle-unexpected"]),
        ("sha256:abc", 2, ["expect-malformed"]),
        (kit.small.digest.upper(), 2, ["expect-malformed"]),
    ):
        said = site.refused(kit.small.path, "--expect", expect)
        assert (said.code, said.codes) == (code, codes)
    assert not list((site.store / "blobs").rglob("*"))


@pytest.mark.parametrize(
    ("words", "code", "codes"),
    [
        (("nowhere",), 2, ["bundle-unknown"]),
        ((".",), 2, ["bundle-unknown"]),
        (("oci://host/repo:tag",), 2, ["bundle-unknown"]),
        (("BUNDLE", "--env", "nobody"), 2, ["unknown-env"]),
        (("BUNDLE", "--tag", "other"), 2, ["bundle-unknown"]),
        (("BUNDLE", "--root", "a:b"), 2, ["root-unusable"]),
        (("BUNDLE", "--base", "nowhere"), 2, ["bundle-unknown"]),
        (("BUNDLE", "--trust", "nowhere"), 2, ["trust-unreadable"]),
    ],
)
def test_what_is_asked_wrongly_is_said_in_a_code(
    kit: Kit, site: Site, words: tuple[str, ...], code: int, codes: list[str]
) -> None:
    given = [str(kit.small.path) if word == "BUNDLE" else word for word in words]
    said = site.refused(*given)
    assert (said.code, said.codes) == (code, codes), said.out


def test_two_bundles_in_one_folder_need_a_tag(kit: Kit, site: Site, tmp_path: Path) -> None:
    from envsmith.bundle import render_index

    both = Tampered.of(kit.small, tmp_path / "both")
    for blob in kit.pair.blobs.iterdir():
        if not (both.blobs / blob.name).exists():
            os.link(blob, both.blobs / blob.name)
    both.write("index.json", render_index([*kit.small.entries, *kit.pair.entries]))
    both.refresh_sums()
    said = site.refused(both.path)
    assert (said.code, said.codes) == (2, ["bundle-ambiguous"])
    assert kit.pair.entry.tag in said.json["errors"][0]["hint"]
    said = site.inside("inspect", both.path, "--check", "--tag", kit.pair.entry.tag)
    assert (said.code, said.json["data"]["other_tags"]) == (0, [kit.small.entry.tag])
    assert site.refused(both.path, "--tag", kit.pair.entry.tag, "--env", "app").codes == ["unknown-env"]


def test_a_wrong_blob_in_the_store_is_mended_and_one_in_the_bundle_stops_it(
    kit: Kit, site: Site, tmp_path: Path
) -> None:
    """That a blob is there proves nothing."""
    wheel = kit.pair.wheel("beta")
    blob = site.store / "blobs" / "sha256" / wheel.sha256
    blob.parent.mkdir(parents=True)
    blob.write_bytes(bytes(wheel.size))
    said = site.install(kit.pair.path, "--env", "b")
    assert said.code == 0, said.out
    assert receipt(site.root, "pair-b")["portable"]
    assert len(list((site.store / "blobs" / "quarantine").iterdir())) == 1
    # A bundle that is damaged leaves the env that stands as it is.
    before = {one: one.lstat().st_mtime_ns for one in site.root.rglob("*")}
    bad = Tampered.of(kit.pair, tmp_path / "bad")
    bad.flip(wheel.sha256)
    said = site.inside("install", bad.path, "--root", site.root)
    assert (said.code, said.codes) == (5, ["bundle-blob-corrupt"])
    assert {one: one.lstat().st_mtime_ns for one in site.root.rglob("*")} == before
