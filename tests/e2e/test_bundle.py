"""Making bundles: the same bytes wherever it is done, never over something else, never half, signed on demand."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envsmith import bundle as form
from envsmith.tools.files import sha256_file as sha256
from envsmith.tools.signer import sign
from tests.support.bundlekit import PAIR, Bundle, Kit, Site, Tampered, make_key, signers
from tests.support.project import PYTHON, Said, envsmith

pytest_plugins = ("tests.e2e.bundle_fixtures",)
needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen here to sign with")


def files_of(folder: Path) -> dict[str, str]:
    return {str(one.relative_to(folder)): sha256(one) for one in folder.rglob("*") if one.is_file()}


# --- what is in it ---


def test_a_bundle_holds_one_manifest_and_what_its_lock_needs(kit: Kit) -> None:
    manifest = kit.lean.manifest
    titles = [one.title for one in manifest.layers]
    for title in (
        "stacks/pylock.demo-app.toml", "pylock.demo-app.toml", "stacks/demo.toml", "install.sh", "MANIFEST.md",
        "patches/tool-1/demo.series", "patches/tool-1/use-sdpa.patch", "patches/alpha-1.0/right-answer.patch",
        "wheels/beta-2.0-py3-none-any.whl", "wheels/gamma-0.3-py3-none-any.whl",
    ):  # fmt: skip
        assert title in titles
    assert any(title.startswith("sources/tool@") for title in titles)
    assert any(title.startswith("wheels/uv-") for title in titles)
    assert not any(title.startswith(("python/", "sdists/")) for title in titles)
    roles = {one.name: one.roles for one in manifest.of(form.WHEEL)}
    assert roles["delta-0.5-py3-none-any.whl"] == ("built", "env")
    assert next(value for name, value in roles.items() if name.startswith("alpha-")) == ("env", "patched")
    assert manifest.locks == {"app": sha256(kit.project.lock)}


def test_every_blob_is_named_by_its_digest_and_every_root_file_is_a_blob(kit: Kit) -> None:
    lean = kit.lean
    assert all(sha256(blob) == blob.name for blob in lean.blobs.iterdir())
    named = {one.sha256 for one in lean.manifest.blobs} | {lean.entry.sha256}
    assert {blob.name for blob in lean.blobs.iterdir()} == named
    for line in (lean.path / "FILES.tsv").read_text().splitlines():
        digest, size, _ = line.split("\t")
        assert (lean.blobs / digest).stat().st_size == int(size)
    done = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=lean.path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_place_or_time_of_the_machine_that_made_it_is_in_its_texts(kit: Kit) -> None:
    lean = kit.lean
    for one in lean.manifest.layers:
        if one.media_type not in (form.WHEEL, form.SOURCE, form.RECIPE, form.INSTALLER):
            text = (lean.blobs / one.sha256).read_text().replace(str(kit.project.folder / "upstream"), "")
            assert str(kit.folder) not in text, one.title
            assert os.environ["HOME"] not in text, one.title


def test_an_edit_of_a_bundle_never_reaches_the_store(kit: Kit) -> None:
    for blob in kit.lean.blobs.iterdir():
        stored = kit.store / "blobs" / "sha256" / blob.name
        assert not stored.exists() or stored.stat().st_ino != blob.stat().st_ino


# --- the same bytes ---


def test_another_store_place_umask_time_zone_and_locale_give_the_same_digest_and_tar(kit: Kit, tmp_path: Path) -> None:
    assert Site(tmp_path / "site").inside("join", kit.lean.path, "-o", tmp_path / "one.tar").code == 0
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    environ = {
        "ENVSMITH_HOME": str(tmp_path / "fresh"),
        "TZ": "Asia/Tokyo",
        "LC_ALL": "C",
        "SOURCE_DATE_EPOCH": "86400",
        "PYTHONHASHSEED": "7",
    }
    program = f"umask 077; cd '{elsewhere}'; exec {sys.executable} -m envsmith bundle '{kit.project.recipe}' "
    with kit.index() as served:
        done = subprocess.run(
            ["sh", "-c", program + f"--no-python --json -o '{tmp_path}/two.tar'"],
            env={**os.environ, **served, **environ},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["data"]["digest"] == kit.lean.digest
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    assert (tmp_path / "two.tar").stat().st_mode & 0o777 == 0o644


def test_a_tar_unpacks_to_the_folder_and_its_parts_are_the_tar(kit: Kit, site: Site, tmp_path: Path) -> None:
    target, folder = tmp_path / "one.tar", tmp_path / "unpacked"
    said = site.inside("join", kit.lean.path, "-o", target)
    assert said.json["data"]["digest"] == kit.lean.digest
    with tarfile.open(target) as tar:
        members = tar.getmembers()
        assert {(one.uid, one.gid, one.uname, one.mtime) for one in members} == {(0, 0, "", 0)}
        assert [one.name for one in members[:2]] == ["oci-layout", "index.json"]
    folder.mkdir()
    subprocess.run(["tar", "-xf", target, "-C", folder], check=True)
    assert files_of(folder) == files_of(kit.lean.path)
    assert (folder / "install.sh").stat().st_mode & 0o777 == 0o755
    said = site.inside("join", kit.lean.path, "-o", tmp_path / "p" / "x.tar", "--max-size", "20M")
    *parts, sums = map(Path, said.json["data"]["files"])
    assert len(parts) > 2
    assert all(part.stat().st_size == 20 << 20 for part in parts[:-1])
    assert b"".join(part.read_bytes() for part in parts) == target.read_bytes()
    done = subprocess.run(["sha256sum", "-c", "--quiet", sums.name], cwd=sums.parent, check=False)
    assert done.returncode == 0


def test_parts_are_made_at_once_and_again_with_other_parts_gone(kit: Kit, tmp_path: Path) -> None:
    out = tmp_path / "x.tar"
    said = offline(kit, "pair", "-o", out, "--max-size", "5M")
    first = said.json["data"]["files"]
    said = offline(kit, "pair", "-o", out, "--max-size", "40M")
    assert said.code == 0, said.out
    assert len(said.json["data"]["files"]) < len(first)
    assert sorted(map(str, tmp_path.glob("x.tar*"))) == sorted(said.json["data"]["files"])


def test_the_order_of_envs_changes_nothing_and_fewer_envs_are_another_bundle(kit: Kit, tmp_path: Path) -> None:
    offline(kit, "pair", "-o", tmp_path / "ba", "--env", "b", "--env", "a")
    assert Bundle(tmp_path / "ba").digest == kit.pair.digest
    offline(kit, "pair", "-o", tmp_path / "a", "--env", "a")
    assert Bundle(tmp_path / "a").digest != kit.pair.digest
    assert set(Bundle(tmp_path / "a").manifest.locks) == {"a"}


def test_an_interpreter_travels_unless_it_is_not_wanted(kit: Kit) -> None:
    whole = kit.whole
    carried = whole.manifest.of(form.PYTHON)
    if not carried:
        pytest.skip("the Python of these tests cannot be carried")
    (archive,) = carried
    assert archive.title.startswith(f"python/cpython-{PYTHON}.")
    assert archive.envs == ("app",)
    lean = {one.title: one.sha256 for one in kit.lean.manifest.layers}
    more = {one.title: one.sha256 for one in whole.manifest.layers}
    assert {title for title in more if more[title] != lean.get(title)} == {
        archive.title, "MANIFEST.md", "reports/sbom.cdx.json",
    }  # fmt: skip


# --- where it may be written ---


def plant_file(at: Path) -> Path:
    (at / "file").write_text("mine")
    return at / "file"


def plant_other_tar(at: Path) -> Path:
    (at / "x.tar").write_bytes(b"mine" * 300)
    return at / "x.tar"


def plant_folder(at: Path) -> Path:
    (at / "folder").mkdir()
    (at / "folder" / "thesis.txt").write_text("mine")
    return at / "folder"


def plant_tar_folder(at: Path) -> Path:
    (at / "y.tar").mkdir()
    return at / "y.tar"


def plant_begun_with_more(at: Path) -> Path:
    (at / "begun" / "blobs").mkdir(parents=True)
    (at / "begun" / "oci-layout").write_text("{}")
    (at / "begun" / "thesis.txt").write_text("mine")
    return at / "begun"


@pytest.mark.parametrize("plant", [plant_file, plant_other_tar, plant_folder, plant_tar_folder, plant_begun_with_more])
def test_nothing_of_others_is_written_over(kit: Kit, tmp_path: Path, plant: Callable[[Path], Path]) -> None:
    target = plant(tmp_path)
    before = files_of(target) if target.is_dir() else {"": sha256(target)}
    said = offline(kit, "pair", "-o", target)
    assert (said.code, said.codes) == (2, ["bundle-output-unusable"])
    assert (files_of(target) if target.is_dir() else {"": sha256(target)}) == before


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("-o", "b", "--max-size", "20M"), "bundle-output-unusable"),
        (("-o", "b.tar.part000"), "bundle-output-unusable"),
        (("-o", "b.tar", "--max-size", "much"), "max-size-malformed"),
        (("-o", "b.tar", "--max-size", "100"), "max-size-malformed"),
        (("-o", "b.tar", "--env", "nobody"), "unknown-env"),
        (("-o", "b.tar", "--since", "nowhere"), "bundle-unknown"),
        (("-o", "b.tar", "--sign", "no-key"), "signing-key-unusable"),
        (("-o", "b.tar", "--python", "no-python"), "no-interpreter"),
        (("-o", "b.tar", "--source", "nothing=x"), "unknown-source"),
    ],
)
def test_what_cannot_be_wished_is_said_in_a_code_and_nothing_is_written(
    kit: Kit, tmp_path: Path, words: tuple[str, ...], code: str
) -> None:
    site = Site(tmp_path)
    said = site.inside("bundle", kit.project.recipe, *words, env=kit.offline)
    assert said.codes == [code], said.out
    assert said.code in (2, 3, 4)
    assert not list(tmp_path.glob("b*"))


def test_the_folder_of_another_bundle_is_refused_and_that_of_the_same_is_kept(kit: Kit, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(kit.pair.path, out)  # no links: blobs that something else names too are written anew
    before = files_of(out)
    said = offline(kit, "pair", "--env", "a", "-o", out)
    assert said.codes == ["bundle-output-unusable"]
    inodes = {one.name: one.stat().st_ino for one in (out / "blobs" / "sha256").iterdir()}
    assert offline(kit, "pair", "-o", out).code == 0
    assert files_of(out) == before
    assert {one.name: one.stat().st_ino for one in (out / "blobs" / "sha256").iterdir()} == inodes


def test_a_wrong_blob_in_a_begun_folder_is_replaced(kit: Kit, tmp_path: Path) -> None:
    begun = Tampered.of(kit.pair, tmp_path / "out")
    before = files_of(begun.path)
    wheel = begun.first(form.WHEEL)
    begun.blob(wheel.sha256, bytes(wheel.size))
    (begun.path / "index.json").unlink()
    assert offline(kit, "pair", "-o", begun.path).code == 0
    assert files_of(begun.path) == before


@pytest.mark.parametrize("name", ["out", "out.tar"])
def test_killed_at_random_instants_the_next_run_ends_with_the_same_bytes(kit: Kit, tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    words = [sys.executable, "-m", "envsmith", "bundle", "demo", "--no-python", "--offline", "-o", str(out)]
    environ = {**os.environ, **kit.offline}
    for delay in (0.5, 0.8):
        child = subprocess.Popen(
            words,
            cwd=kit.project.folder,
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(delay)
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if name == "out" and (out / "index.json").exists():
            assert Bundle(out).digest == kit.lean.digest
    said = offline(kit, "demo", "-o", out)
    assert said.code == 0, said.out
    assert said.json["data"]["digest"] == kit.lean.digest
    if name == "out":
        assert files_of(out) == files_of(kit.lean.path)
    else:
        with tarfile.open(out) as tar:
            assert len(tar.getmembers()) == len(files_of(kit.lean.path))
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith("out")] == [name]


def test_a_blob_that_went_bad_in_the_store_never_gets_into_a_bundle(kit: Kit, site: Site, tmp_path: Path) -> None:
    """Copies of the store keep its blobs by name; whoever writes a bundle hashes them."""
    shutil.copytree(kit.store, site.store, copy_function=os.link)
    wheel = next(one for one in kit.lean.manifest.of(form.WHEEL) if one.name.startswith("gamma-"))
    blob = site.store / "blobs" / "sha256" / wheel.sha256
    blob.unlink()
    blob.write_bytes(bytes(wheel.size))
    for out in (tmp_path / "b", tmp_path / "b.tar"):
        said = site.run("bundle", kit.project.recipe, "-o", out, "--no-python", "--offline")
        assert (said.code, said.codes) == (5, ["store-blob-corrupt"])
        assert wheel.title in said.json["errors"][0]["message"]
        assert not (out / "index.json").exists()
        assert not out.is_file()


# --- the lock decides ---


def test_a_stale_lock_is_no_ground_for_a_bundle(kit: Kit, tmp_path: Path) -> None:
    folder = tmp_path / "p"
    for name in ("stacks", "patches"):
        shutil.copytree(kit.project.folder / name, folder / name)
    recipe = folder / "stacks" / "demo.toml"
    recipe.write_text(recipe.read_text().replace('"rho==1.0"', '"rho==1.1"'))
    for word in ("--locked", "--offline"):
        said = envsmith("bundle", recipe, "-o", tmp_path / "b", word, "--json", cwd=tmp_path, env=kit.offline)
        assert (said.code, said.codes) == (1, ["lock-stale"])
    assert not (tmp_path / "b").exists()


def test_stdout_holds_the_result_alone_and_stderr_everything_else(kit: Kit, tmp_path: Path) -> None:
    said = offline(kit, "pair", "-o", tmp_path / "b", json=False)
    assert said.code == 0
    assert said.out.splitlines()[1].startswith("digest: sha256:")
    assert "write " in said.err
    said = offline(kit, "pair", "-o", tmp_path / "b", "-q")
    assert said.json["exit_code"] == 0
    assert said.err == ""


# --- signed ---


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path / "key")


def signed(kit: Kit, at: Path, key: Path) -> Tampered:
    """The pair with a signature as `--sign` makes it."""
    bundle = Tampered.of(kit.pair, at)
    bundle.sign(sign(bundle.data, key, dict(os.environ)))
    return bundle


@needs_ssh
def test_a_signature_changes_no_digest_and_is_shown_with_whom_the_site_trusts(
    kit: Kit, site: Site, tmp_path: Path, key: Path
) -> None:
    made = offline(kit, "pair", "-o", tmp_path / "signed.tar", "--sign", key)
    assert made.code == 0, made.out
    assert made.json["data"]["digest"] == kit.pair.digest
    signed(kit, tmp_path / "signed", key)
    assert site.inside("join", tmp_path / "signed", "-o", tmp_path / "again.tar").code == 0
    assert (tmp_path / "again.tar").read_bytes() == (tmp_path / "signed.tar").read_bytes()
    trust = signers(tmp_path / "trust", key)
    said = site.inside("inspect", tmp_path / "signed.tar", "--check", "--trust", trust)
    (one,) = said.json["data"]["signatures"]
    assert said.json["data"]["checked"]
    assert (one["who"], one["problem"]) == ("maker@example.org", None)
    (unknown,) = site.inside("inspect", tmp_path / "signed.tar").json["data"]["signatures"]
    assert unknown["who"] is None
    assert unknown["fingerprint"] == one["fingerprint"]


@needs_ssh
def test_only_who_the_site_trusts_for_bundles_is_accepted(kit: Kit, site: Site, tmp_path: Path, key: Path) -> None:
    signed(kit, tmp_path / "signed", key)
    other = make_key(tmp_path / "other")
    for trust, bundle, code in (
        (signers(tmp_path / "t1", other), "signed", "signature-untrusted"),
        (signers(tmp_path / "t2", key, namespaces="git"), "signed", "signature-untrusted"),
        (signers(tmp_path / "t3", key), kit.pair.path, "bundle-unsigned"),
        (tmp_path / "absent", "signed", "trust-unreadable"),
    ):
        said = site.refused(tmp_path / bundle, "--trust", trust)
        assert said.codes == [code], said.out
        assert said.code == (2 if code == "trust-unreadable" else 5)
    said = site.install(tmp_path / "signed", "--env", "a", "--trust", signers(tmp_path / "t4", key))
    assert said.code == 0, said.out
    assert said.json["data"]["signed_by"] == "maker@example.org"
    assert json.loads((site.root / "pair-a" / "bundle.json").read_text())["signed-by"] == "maker@example.org"


@needs_ssh
def test_a_signature_of_another_namespace_or_bundle_is_none(kit: Kit, site: Site, tmp_path: Path, key: Path) -> None:
    trust = signers(tmp_path / "trust", key)
    armored = {}
    for name, namespace, message in (
        ("other namespace", "git", kit.pair.blobs / kit.pair.entry.sha256),
        ("other bundle", "envsmith-bundle", kit.lean.blobs / kit.lean.entry.sha256),
    ):
        argv = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", namespace]
        with message.open("rb") as stream:
            armored[name] = subprocess.run(argv, stdin=stream, capture_output=True, text=True, check=True).stdout
    armored["torn"] = armored["other bundle"][:100]
    for name, text in armored.items():
        bundle = Tampered.of(kit.pair, tmp_path / name)
        bundle.sign(text)
        said = site.refused(bundle.path, "--trust", trust)
        assert said.code == 5, said.out
        assert all(code.startswith("signature-") for code in said.codes), said.codes
        asked = site.inside("inspect", bundle.path, "--check", "--trust", trust)
        assert (asked.code, asked.codes) == (5, said.codes), "whoever names keys asks whether one of them signed"
        shown = site.inside("inspect", bundle.path, "--check")
        assert shown.code == 0
        assert shown.json["data"]["signatures"][0]["problem"] is not None


@needs_ssh
def test_a_changed_manifest_loses_its_signature_even_where_all_digests_fit(
    kit: Kit, site: Site, tmp_path: Path, key: Path
) -> None:
    signed(kit, tmp_path / "signed", key)
    trust = signers(tmp_path / "trust", key)
    bundle = Tampered.of(Bundle(tmp_path / "signed"), tmp_path / "tampered")
    old, manifest = bundle.entry.sha256, bundle.manifest
    bundle.rewrite(replace(manifest, annotations={**manifest.annotations, form.VERSION: "99.0"}))
    index = (bundle.path / "index.json").read_text()
    bundle.write("index.json", index.replace(form.signature_tag(old), form.signature_tag(bundle.entry.sha256)).encode())
    said = site.refused(bundle.path, "--trust", trust)
    assert (said.code, said.codes) == (5, ["signature-wrong"])


# --- versions ---


def version_of(kit: Kit, tmp_path: Path, version: str) -> Path:
    """The bundle of the pair whose recipe states a version."""
    folder = tmp_path / f"v{version}"
    shutil.copytree(kit.project.folder / "stacks", folder / "stacks")
    (folder / "stacks" / "pair.toml").write_text(PAIR.format(python=PYTHON, version=f'version = "{version}"'))
    said = envsmith(
        "bundle", folder / "stacks" / "pair.toml", "-o", folder / "b", "--no-python", "--json", "--offline",
        cwd=tmp_path, env=kit.offline,
    )  # fmt: skip
    assert said.code == 0, said.out
    return folder / "b"


def test_an_older_version_is_refused_also_under_a_new_tag_and_goes_on_purpose(
    kit: Kit, site: Site, tmp_path: Path
) -> None:
    old = version_of(kit, tmp_path, "1.9")
    assert Bundle(old).entry.tag == "pair-1.9"
    claiming = Tampered.of(Bundle(old), tmp_path / "claiming")
    claiming.rewrite(
        replace(claiming.manifest, annotations={**claiming.manifest.annotations, form.VERSION: "9" * 5000})
    )
    refused = site.inside("install", claiming.path, "--root", site.root, "--env", "a")
    assert (refused.code, refused.codes) == (5, ["bundle-malformed"]), "its recipe states another version"
    new = version_of(kit, tmp_path, "10")
    assert site.install(new, "--env", "a").code == 0
    posing = Tampered.of(Bundle(old), tmp_path / "posing")
    index = (posing.path / "index.json").read_text()
    posing.write("index.json", index.replace("pair-1.9", "pair-10").encode())
    for bundle in (old, posing.path):
        said = site.inside("install", bundle, "--root", site.root, "--env", "a")
        assert (said.code, said.codes) == (1, ["bundle-older"])
        assert "version 1.9)" in said.json["errors"][0]["message"]
        assert site.inside("inspect", bundle).json["data"]["version"] == "1.9"
    record = site.root / "pair-a" / "bundle.json"
    assert json.loads(record.read_text())["version"] == "10"
    unstated = site.inside("install", kit.pair.path, "--root", site.root, "--env", "a")
    assert (unstated.code, unstated.codes) == (1, ["bundle-older"]), "what states no version may be of any age"
    kept = record.read_text()
    record.write_text("{bad")
    assert site.inside("install", old, "--root", site.root, "--env", "a").codes == ["bundle-record-unreadable"]
    record.write_text(kept)
    said = site.inside("install", old, "--root", site.root, "--env", "a", "--allow-older")
    assert said.code == 0, said.out
    assert json.loads(record.read_text())["version"] == "1.9"


# --- two bundles ---


def test_diff_names_what_changed_and_says_when_two_are_one(kit: Kit, site: Site) -> None:
    said = site.inside("diff", kit.lean.path, kit.lean.path)
    assert (said.code, said.json["data"]["equal"]) == (0, True)
    said = site.inside("diff", kit.lean.path, kit.full.path)
    assert said.code == 1
    changes = {row["title"]: row["change"] for row in said.json["data"]["files"]}
    assert changes["wheels/omega-1.0-py3-none-any.whl"] == "removed"
    assert changes["wheels/omega-1.1-py3-none-any.whl"] == "added"
    assert changes["stacks/pylock.demo-app.toml"] == "changed"
    assert "wheels/gamma-0.3-py3-none-any.whl" not in changes


def offline(kit: Kit, stack: str, *words: str | Path, json: bool = True) -> Said:
    return kit.project.run("bundle", stack, "--no-python", "--offline", *words, env=kit.offline, json=json)
