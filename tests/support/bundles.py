"""Small bundles for tests: sound ones, and the manifests of unsound ones."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsmith.bundle import (
    ASSET,
    BUNDLE,
    CONFIG,
    INSTALLER,
    LOCK,
    LOCKS,
    PYLOCK,
    RECIPE,
    SHEET,
    TITLE,
    VERSION,
    WHEEL,
    Descriptor,
    Manifest,
    Tagged,
    bundle_tag,
    config_json,
    in_order,
    listing,
    parse_manifest,
    render_index,
    render_manifest,
)
from envsmith.bundlecheck import LISTING_FILE, SUMS_FILE, Laid, expected_blobs, root_titles, sums_text
from envsmith.tools.layout_writing import BytesContent, Content, Written


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Sample:
    """A bundle in memory."""

    manifest: Manifest
    blobs: Mapping[str, bytes]
    """Config and layers by digest."""
    tag: str

    @property
    def data(self) -> bytes:
        return render_manifest(self.manifest)

    @property
    def sha256(self) -> str:
        return sha(self.data)

    @property
    def laid(self) -> Laid:
        entry = Tagged(sha256=self.sha256, size=len(self.data), tag=self.tag, artifact=BUNDLE)
        return Laid(entry=entry, manifest=self.manifest)

    def titled(self, title: str) -> str:
        """Digest of the file of that title."""
        layer = self.manifest.titled(title)
        assert layer is not None
        return layer.sha256

    def written(self, *others: Laid, contents: Mapping[str, Content] | None = None) -> Written:
        """All of it for a writer, beside other bundles that lie there already."""
        all_laid = [self.laid, *others]
        root = {title: self.blobs[layer.sha256] for title, layer in root_titles(self.manifest).items()}
        root |= {LISTING_FILE: listing(self.manifest).encode(), SUMS_FILE: sums_text(expected_blobs(all_laid)).encode()}
        own = Descriptor(media_type="", sha256=self.sha256, size=len(self.data))
        blobs: list[tuple[Descriptor, Content]] = [(own, BytesContent(data=self.data))]
        given = contents or {}
        blobs += [
            (one, given.get(one.sha256, BytesContent(data=self.blobs[one.sha256]))) for one in self.manifest.blobs
        ]
        return Written(index=render_index(one.entry for one in all_laid), root=root, blobs=tuple(blobs))


def sample(stack: str = "a100", version: str = "3", **files: bytes) -> Sample:
    """Make a sound bundle; `files` are wheels by name, besides those that are always there."""
    wheels = {"torch": b"torch " * 50_000, "numpy": b"n" * 700, "empty": b"", **files}
    kinds: dict[str, tuple[str, bytes]] = {
        f"stacks/pylock.{stack}-rl.toml": (LOCK, f"lock of {stack} {version}\n".encode()),
        f"stacks/{stack}.toml": (RECIPE, f'[stack]\nname = "{stack}"\n'.encode()),
        f"pylock.{stack}-rl.toml": (PYLOCK, f"derived lock of {stack}\n".encode()),
        "install.sh": (INSTALLER, b"#!/bin/sh\nexit 0\n"),
        "MANIFEST.md": (SHEET, f"# {stack} {version}\n".encode()),
        "assets/data/x.bin": (ASSET, bytes(range(256))),
        **{f"wheels/{name}-1-py3-none-any.whl": (WHEEL, data) for name, data in wheels.items()},
    }
    layers = in_order(
        Descriptor(media_type=kind, sha256=sha(data), size=len(data), annotations={TITLE: title})
        for title, (kind, data) in kinds.items()
    )
    config = config_json({"stack": stack, "version": version})
    locks = {"rl": sha(kinds[f"stacks/pylock.{stack}-rl.toml"][1])}
    manifest = Manifest(
        artifact=BUNDLE,
        config=Descriptor(media_type=CONFIG, sha256=sha(config), size=len(config)),
        layers=layers,
        annotations={TITLE: stack, VERSION: version, LOCKS: compact(locks)},
    )
    assert parse_manifest(render_manifest(manifest), "sample") == manifest
    blobs = {sha(config): config, **{sha(data): data for _, data in kinds.values()}}
    return Sample(manifest=manifest, blobs=blobs, tag=bundle_tag(stack, version))


def compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def gnu_tar(folder: Path, target: Path, *options: str) -> Path:
    """Pack a folder as a person would."""
    subprocess.run(["tar", *options, "-cf", target, "-C", folder, "."], check=True, timeout=60)
    return target


def crafted_tar(members: list[tuple[tarfile.TarInfo, bytes]], form: int = tarfile.USTAR_FORMAT) -> bytes:
    """Pack what no tool would."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for member, data in members:
            member.size = member.size or len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()
