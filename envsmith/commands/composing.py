"""Putting a layout together: a bundle with its signatures and, for a delta, the note of what it leaves out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envsmith.bundle import (
    BUNDLE,
    DELTA_CONFIG,
    DELTAS,
    MANIFEST_TYPE,
    SIGNATURE,
    SIGNATURE_CONFIG,
    SIGNATURES,
    TITLE,
    Descriptor,
    Manifest,
    Tagged,
    bundle_tag,
    config_json,
    delta_tag,
    listing,
    parse_manifest,
    render_index,
    render_manifest,
    signature_tag,
)
from envsmith.bundlecheck import LISTING_FILE, SUMS_FILE, Laid, expected_blobs, root_titles, sums_text
from envsmith.commands.envs import shown
from envsmith.commands.screen import Screen
from envsmith.plan import megabytes
from envsmith.tools.files import filesystem
from envsmith.tools.layout_writing import BytesContent, Content, FileContent, Written, write_folder, write_tar
from envsmith.tools.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """A manifest beside the bundle: its signatures, or its wheel deltas."""

    data: bytes
    contents: Mapping[str, Content]

    @property
    def sha256(self) -> str:
        """Its digest."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Composed:
    """Everything about one bundle that a layout is made of."""

    data: bytes
    """Its manifest."""
    contents: Mapping[str, Content]
    """Sha256 to the bytes of its config and layers, as far as they are written."""
    root: Mapping[str, bytes]
    """Blobs that also stand at the root, by title."""
    sides: tuple[Side, ...] = ()
    tag: str | None = None
    base: str | None = None
    """Sha256 of the manifest of the bundle that a delta needs."""
    omitted: frozenset[str] = field(default_factory=frozenset)

    @property
    def sha256(self) -> str:
        """The digest of the bundle."""
        return hashlib.sha256(self.data).hexdigest()

    def written(self) -> Written:
        """Lay it out."""
        manifest = parse_manifest(self.data, "manifest")
        tag = self.tag or bundle_tag(manifest.stack, manifest.version)
        entry = Tagged(sha256=self.sha256, size=len(self.data), tag=tag, artifact=BUNDLE, base=self.base)
        laid = [Laid(entry=entry, manifest=manifest, omitted=self.omitted)]
        blobs: dict[str, tuple[Descriptor, Content]] = {}
        _put(blobs, self.data)
        for one in manifest.blobs:
            if one.sha256 not in self.omitted:
                blobs[one.sha256] = (one, self.contents[one.sha256])
        for side in self.sides:
            parsed = parse_manifest(side.data, "manifest")
            named = signature_tag if parsed.artifact == SIGNATURES else delta_tag
            own = Tagged(sha256=side.sha256, size=len(side.data), tag=named(self.sha256), artifact=parsed.artifact)
            laid.append(Laid(entry=own, manifest=parsed))
            _put(blobs, side.data)
            blobs |= {one.sha256: (one, side.contents[one.sha256]) for one in parsed.blobs}
        root = {
            **self.root,
            LISTING_FILE: listing(manifest).encode(),
            SUMS_FILE: sums_text(expected_blobs(laid)).encode(),
        }
        index = render_index(one.entry for one in laid)
        return Written(index=index, root=root, blobs=tuple(blobs.values()))


def stored(
    data: bytes, manifest: Manifest, store: Store, sides: tuple[Side, ...] = (), tag: str | None = None
) -> Composed:
    """A whole bundle whose blobs are all in the store, ready to be written."""
    root = {}
    for title, layer in root_titles(manifest).items():
        path = store.blob_path(layer.sha256)
        with filesystem(path):
            root[title] = path.read_bytes()
    contents = {one.sha256: FileContent(path=store.blob_path(one.sha256)) for one in manifest.blobs}
    return Composed(data=data, contents=contents, root=root, sides=sides, tag=tag)


def write(target: Path, written: Written, limit: int | None, screen: Screen) -> tuple[Path, ...]:
    """Write a layout where the user wants it: a name that ends in `.tar` is a file, or the parts of one.

    Raises:
        IntegrityError: `store-blob-corrupt`.
    """
    screen.say(f"write {len(written.blobs)} blobs, {megabytes(written.size)}, to {shown(target)}")
    if target.suffix == ".tar":
        return write_tar(target, written, screen, part_bytes=limit)
    write_folder(target, written, screen)
    return (target,)


def signature_side(bundle: bytes, armored: Iterable[str]) -> Side:
    """The manifest that holds signatures of a bundle."""
    return _side(
        SIGNATURES,
        bundle,
        SIGNATURE_CONFIG,
        config_json({}),
        [
            _layer(SIGNATURE, f"manifest.{number}.sshsig", BytesContent(data=text.encode()), text.encode())
            for number, text in enumerate(armored)
        ],
    )


def delta_side(bundle: bytes, config: bytes, layers: Iterable[tuple[Descriptor, Content]]) -> Side:
    """The manifest that says what a delta leaves out and holds what some of it is rebuilt from."""
    return _side(DELTAS, bundle, DELTA_CONFIG, config, list(layers))


def _layer(kind: str, title: str, content: Content, data: bytes) -> tuple[Descriptor, Content]:
    sha256 = hashlib.sha256(data).hexdigest()
    return Descriptor(media_type=kind, sha256=sha256, size=len(data), annotations={TITLE: title}), content


def _side(
    artifact: str, bundle: bytes, config_type: str, config: bytes, layers: list[tuple[Descriptor, Content]]
) -> Side:
    own = Descriptor(media_type=config_type, sha256=hashlib.sha256(config).hexdigest(), size=len(config))
    subject = Descriptor(media_type=MANIFEST_TYPE, sha256=hashlib.sha256(bundle).hexdigest(), size=len(bundle))
    manifest = Manifest(
        artifact=artifact, config=own, layers=tuple(descriptor for descriptor, _ in layers), subject=subject
    )
    contents: dict[str, Content] = {own.sha256: BytesContent(data=config)}
    contents |= {descriptor.sha256: content for descriptor, content in layers}
    return Side(data=render_manifest(manifest), contents=contents)


def _put(blobs: dict[str, tuple[Descriptor, Content]], data: bytes) -> None:
    sha256 = hashlib.sha256(data).hexdigest()
    blobs[sha256] = (Descriptor(media_type="", sha256=sha256, size=len(data)), BytesContent(data=data))
