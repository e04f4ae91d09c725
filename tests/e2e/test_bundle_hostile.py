"""What a hostile tester found once: each attack, and what stands against it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.bundlekit import Kit, Site, Tampered
from tests.support.project import Project

pytest_plugins = ("tests.e2e.bundle_fixtures",)


def test_a_workspace_that_was_changed_in_the_store_is_laid_out_again(kit: Kit, site: Site) -> None:
    said = site.install(kit.pair.path, "--env", "a")
    assert said.code == 0, said.out
    folder = site.store / "bundles" / kit.pair.entry.sha256
    recipe = folder / "stacks" / "pair.toml"
    before = recipe.read_bytes()
    recipe.chmod(0o644)
    recipe.write_bytes(before + b'\n[env.a.launch]\nset = { EVIL = "1" }\n')
    (folder / "stacks" / "envsmith.toml").write_text("")
    again = site.install(kit.pair.path, "--env", "a")
    assert (again.code, again.json["data"]["envs"][0]["state"]) == (0, "unchanged"), again.out
    assert recipe.read_bytes() == before
    assert not (folder / "stacks" / "envsmith.toml").exists()


def test_an_env_that_came_in_a_bundle_is_repaired_from_it(kit: Kit, site: Site) -> None:
    """The root is named with `..`, which no path in a RECORD may keep."""
    root = site.folder / "below" / ".." / "envs"
    (site.folder / "below").mkdir(parents=True)
    assert site.run("install", kit.pair.path, "--root", root, "--env", "a").code == 0
    current = site.root / "pair-a" / "current"
    changed = next(current.resolve().rglob("site-packages/*/__init__.py"))
    changed.write_text("changed = 1\n")
    found = site.run("verify", "pair/a", "--root", site.root)
    assert found.code == 1
    hints = " ".join(str(one["hint"]) for one in found.json["data"]["findings"])
    assert f"`envsmith install BUNDLE --env a --root {site.root.name} --rebuild` (BUNDLE is {kit.pair.digest})" in hints
    said = site.install(kit.pair.path, "--env", "a", "--rebuild")
    assert (said.code, said.json["data"]["envs"][0]["state"]) == (0, "built"), said.out
    assert site.run("verify", "pair/a", "--root", site.root, "--deep").code == 0


@pytest.mark.parametrize("name", ["envsmith/__init__.py", "usercustomize.py", "evil.pth", "stacks/pair.toml", "x.sh"])
def test_code_that_no_bundle_names_is_damage(kit: Kit, site: Site, tmp_path: Path, name: str) -> None:
    bundle = Tampered.of(kit.pair, tmp_path / "b")
    (bundle.path / name).parent.mkdir(exist_ok=True)
    (bundle.path / name).write_text("raise SystemExit(0)\n")
    said = site.inside("inspect", bundle.path)
    assert (said.code, said.codes) == (5, ["bundle-file-unowned"])
    assert name in said.json["errors"][0]["message"]


def test_a_bundle_is_not_written_over_what_is_read_or_of_others(kit: Kit, site: Site, tmp_path: Path) -> None:
    whole = tmp_path / "whole.tar"
    made = site.inside("join", kit.pair.path, "-o", whole)
    assert made.code == 0, made.out
    before = whole.read_bytes()
    (tmp_path / "notes.tar.SHA256SUMS").write_text("my own notes\n")
    os.mkfifo(tmp_path / "fifo.tar")
    shutil.copytree(kit.pair.path, tmp_path / "pair")
    tries = [
        (whole, whole),
        (kit.lean.path, whole),  # another stack
        (kit.pair.path, tmp_path / "notes.tar"),
        (kit.pair.path, tmp_path / "fifo.tar"),
        (tmp_path / "pair", tmp_path / "pair" / "blobs" / "inner"),
    ]
    for source, target in tries:
        said = site.inside("join", source, "-o", target)
        assert (said.code, said.codes) == (2, ["bundle-output-unusable"]), (source, target, said.out)
    assert whole.read_bytes() == before
    assert (tmp_path / "notes.tar.SHA256SUMS").read_text() == "my own notes\n"
    assert site.inside("join", kit.pair.path, "-o", whole).code == 0, "the same stack may be written again"


def test_blobs_are_not_written_through_a_link(kit: Kit, site: Site, tmp_path: Path) -> None:
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    elsewhere.mkdir()
    out.mkdir()
    (out / "blobs").symlink_to(elsewhere)
    said = site.inside("join", kit.pair.path, "-o", out)
    assert (said.code, said.codes) == (2, ["bundle-output-unusable"])
    assert not any(elsewhere.iterdir())


def test_files_of_a_bundle_serve_a_recipe_that_is_here_and_no_other(kit: Kit, site: Site) -> None:
    said = site.run("build", "--from", kit.pair.path, "--root", site.root)
    assert (said.code, said.codes) == (2, ["usage"])
    recipe = kit.project.folder / "stacks" / "pair.toml"
    said = site.run("build", recipe, "--env", "a", "--from", kit.pair.path, "--root", site.root, "--offline")
    assert said.code == 0, said.out


def test_the_expected_digest_chooses_among_several_bundles(kit: Kit, site: Site, tmp_path: Path) -> None:
    both = Tampered.of(kit.pair, tmp_path / "both")
    for blob in kit.lean.blobs.iterdir():
        if not (both.blobs / blob.name).exists():
            shutil.copyfile(blob, both.blobs / blob.name)
    index = json.loads((both.path / "index.json").read_bytes())
    index["manifests"] += json.loads((kit.lean.path / "index.json").read_bytes())["manifests"]
    both.write("index.json", json.dumps(index, sort_keys=True, separators=(",", ":")).encode())
    both.refresh_sums()
    assert site.inside("install", both.path, "--root", site.root).codes == ["bundle-ambiguous"]
    said = site.install(both.path, "--env", "a", "--expect", kit.pair.digest)
    assert said.code == 0, said.out
    assert said.json["data"]["bundle"] == kit.pair.digest


def test_an_interrupted_git_does_not_keep_the_program_alive(project: Project, tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\nexec sleep 300\n")
    ssh.chmod(0o755)
    words = [sys.executable, "-m", "envsmith", "lock", "demo", "--source", "tool=ssh://nowhere.invalid/tool"]
    env = {**os.environ, "GIT_SSH": str(ssh), "GIT_SSH_VARIANT": "simple"}
    child = subprocess.Popen(words, cwd=project.folder, env=env, stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        if (tmp_path / "asked").exists():
            break
        time.sleep(0.05)
    child.send_signal(signal.SIGTERM)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130, said
    assert "error[interrupted]" in said
    subprocess.run(["pkill", "-f", str(ssh)], check=False)
