"""The bundle format: an OCI image layout with one flat manifest, every part a blob named by its sha256.

`render_manifest` and `parse_manifest` are inverses, as are those of the index. Nothing here does I/O. Sources of the
format: OCI image-spec v1.1 (image-layout.md, manifest.md, read 2026-11-30) and docs/bundle.md.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from envsmith.bundlejson import LARGEST_MANIFEST, all_malformed, malformed, parsed, read_table, said, to_json
from envsmith.bundlekinds import (
    ASSET,
    BUNDLE,
    CONFIG,
    CONFIG_OF,
    DELTA_BASE,
    DELTA_CONFIG,
    DELTA_RESULT,
    DELTAS,
    ENVS,
    INDEX_TYPE,
    INSTALLER,
    LOCK,
    LOCKS,
    MANIFEST_TYPE,
    ORDER,
    OURS,
    PATCH,
    PYLOCK,
    PYTHON,
    RECIPE,
    REPORT,
    ROLES,
    SDIST,
    SERIES,
    SHEET,
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
    belongs,
    laid_title,
    title_fault,
)
from envsmith.errors import IntegrityError

__all__ = [
    "ASSET", "BUNDLE", "CONFIG", "DELTAS", "DELTA_BASE", "DELTA_CONFIG", "DELTA_RESULT", "ENVS", "INDEX_TYPE",
    "INSTALLER", "LARGEST_MANIFEST", "LOCK", "LOCKS", "MANIFEST_TYPE", "PATCH", "PYLOCK", "PYTHON", "RECIPE", "REPORT",
    "ROLES", "SCHEMA", "SDIST", "SERIES", "SHEET", "SIGNATURE", "SIGNATURES", "SIGNATURE_CONFIG", "SNAPSHOT", "SOURCE",
    "TAG", "TITLE", "VERSION", "WHEEL", "WHEEL_DELTA", "Descriptor", "Manifest", "Tagged", "artifact_of", "bundle_tag",
    "config_json", "delta_tag", "file_title", "in_order", "listing", "locks_version", "parse_config", "parse_index",
    "parse_manifest", "render_index", "render_manifest", "signature_tag",
]  # fmt: skip

SCHEMA = 1
#: Sizes are int64 (OCI image-spec v1.1, descriptor.md, read 2026-11-30).
_LARGEST_SIZE = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Descriptor:
    """One blob of a bundle: what it is, its sha256 in hex and its size in bytes."""

    media_type: str
    sha256: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The path of the file that the blob is; empty for a config."""
        return self.annotations.get(TITLE, "")

    @property
    def name(self) -> str:
        """The last part of its title."""
        return self.title.rpartition("/")[2]

    @property
    def envs(self) -> tuple[str, ...]:
        """Names of the envs it is for."""
        return tuple(filter(None, self.annotations.get(ENVS, "").split(",")))

    @property
    def roles(self) -> tuple[str, ...]:
        """What it is for: env, build, bootstrap …"""
        return tuple(filter(None, self.annotations.get(ROLES, "").split(",")))


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """A manifest of ours: a bundle, its signatures, or its wheel deltas."""

    artifact: str
    """One of BUNDLE, SIGNATURES and DELTAS."""
    config: Descriptor
    layers: tuple[Descriptor, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)
    subject: Descriptor | None = None
    """The bundle that signatures and deltas are about."""

    @property
    def stack(self) -> str:
        """Name of the stack."""
        return self.annotations.get(TITLE, "")

    @property
    def version(self) -> str:
        """Version of the stack, or the digest of its locks."""
        return self.annotations.get(VERSION, "")

    @property
    def locks(self) -> dict[str, str]:
        """Env to the sha256 of its lock.

        Raises:
            ValueError: the annotation is unreadable; a manifest that was parsed as a bundle has a readable one.
        """
        table = parsed(self.annotations.get(LOCKS, "{}"))
        if not isinstance(table, dict) or not all(isinstance(sha256, str) for sha256 in table.values()):
            raise ValueError("it is no table of digests")
        return table

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        """Config and layers, each digest once, in order."""
        return tuple({one.sha256: one for one in (self.config, *self.layers)}.values())

    def of(self, media_type: str) -> tuple[Descriptor, ...]:
        """The layers of one kind."""
        return tuple(layer for layer in self.layers if layer.media_type == media_type)

    def titled(self, title: str) -> Descriptor | None:
        """The layer of that title."""
        return next((layer for layer in self.layers if layer.title == title), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tagged:
    """An entry of `index.json`: a manifest under a tag."""

    sha256: str
    size: int
    tag: str
    artifact: str
    base: str | None = None
    """Sha256 of the base's manifest, where this layout holds only what the base lacks."""


def file_title(kind: str, title: str) -> str:
    """Return a title after checking that a bundle may hold it.

    Raises:
        IntegrityError: `bundle-malformed`.
    """
    fault = title_fault(kind, title)
    if fault:
        raise malformed(f"the title `{title[:120]}` {fault}", "title")
    return title


def in_order(layers: Iterable[Descriptor]) -> tuple[Descriptor, ...]:
    """Bring layers into the one order that a manifest has: by kind, then by title."""
    return tuple(sorted(layers, key=lambda one: (ORDER[one.media_type], one.title)))


def render_manifest(manifest: Manifest) -> bytes:
    """Write a manifest: sorted keys, no spaces, no times. The same bundle gives the same bytes."""
    content: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": manifest.artifact,
        "config": _plain(manifest.config),
        "layers": [_plain(layer) for layer in manifest.layers],
        "annotations": dict(manifest.annotations),
    }
    if manifest.subject is not None:
        content["subject"] = _plain(manifest.subject)
    return to_json({key: value for key, value in content.items() if value != {}})


def render_index(entries: Iterable[Tagged]) -> bytes:
    """Write `index.json`."""
    manifests = []
    for entry in sorted(entries, key=lambda one: (one.tag, one.sha256)):
        annotations = {TAG: entry.tag} if entry.tag else {}
        annotations |= {DELTA_BASE: f"sha256:{entry.base}"} if entry.base else {}
        content: dict[str, Any] = {
            "mediaType": MANIFEST_TYPE,
            "digest": f"sha256:{entry.sha256}",
            "size": entry.size,
        }
        content |= {"artifactType": entry.artifact} if entry.artifact else {}
        manifests.append({**content, "annotations": annotations} if annotations else content)
    return to_json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": manifests})


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Read a manifest and refuse everything that our own would not hold: titles are paths chosen by others.

    Raises:
        IntegrityError: `bundle-malformed`, every fault at once.
    """
    content = read_table(data, where)
    faults: list[str] = []
    artifact = content.get("artifactType")
    if content.get("mediaType") != MANIFEST_TYPE:
        faults.append(f"its media type is {said(content.get('mediaType'))}, not that of an OCI manifest")
    if not isinstance(artifact, str) or artifact not in CONFIG_OF:
        faults.append(f"its artifact type is {said(artifact)}, which is none of envsmith's")
    entries = content.get("layers")
    if not isinstance(entries, list):
        faults.append("its layers are no list")
        entries = []
    config = _descriptor(content.get("config"), "its config", faults)
    layers = [_descriptor(entry, f"layer {number}", faults) for number, entry in enumerate(entries)]
    subject = _descriptor(content["subject"], "its subject", faults) if "subject" in content else None
    annotations = _annotations(content.get("annotations", {}), "it", faults)
    faults += _layer_faults([layer for layer in layers if layer], str(artifact))
    if config is None or faults:
        raise all_malformed(faults, where)
    manifest = Manifest(
        artifact=str(artifact),
        config=config,
        layers=tuple(layer for layer in layers if layer),
        annotations=annotations,
        subject=subject,
    )
    faults += _manifest_faults(manifest)
    if not faults and render_manifest(manifest) != data:
        faults.append("it says the same in other bytes, or more than envsmith says")
    if faults:
        raise all_malformed(faults, where)
    return manifest


def parse_index(data: bytes, where: str) -> tuple[Tagged, ...]:
    """Read `index.json`; entries that are none of ours are left out, whatever they hold.

    An entry without an artifact type may be ours, since movers of layouts drop it: `artifact_of` its manifest tells.

    Raises:
        IntegrityError: `bundle-malformed`, every fault at once.
    """
    content = read_table(data, where)
    entries = content.get("manifests")
    if not isinstance(entries, list):
        raise malformed("its manifests are no list", where)
    faults: list[str] = []
    found: list[Tagged] = []
    for number, entry in enumerate(entries):
        if isinstance(entry, dict) and entry.get("mediaType") == MANIFEST_TYPE:
            wrong: list[str] = []
            one = _tagged(entry, f"entry {number}", wrong)
            found += [one] if one else []
            faults += wrong if str(entry.get("artifactType")).startswith(OURS) else []
    tags = Counter(one.tag for one in found if one.tag)
    faults += [f"the tag {said(tag)} stands {count} times" for tag, count in tags.items() if count > 1]
    if faults:
        raise all_malformed(faults, where)
    return tuple(found)


def _tagged(entry: dict[str, Any], what: str, faults: list[str]) -> Tagged | None:
    """Read an entry of an index; None when it is none of ours, or has faults."""
    artifact = entry.get("artifactType") or ""
    if artifact not in ("", *CONFIG_OF):
        faults.append(f"{what} has the artifact type {said(artifact)}, which this envsmith does not know")
        return None
    one = _descriptor(entry, what, faults)
    base = one.annotations.get(DELTA_BASE) if one else None
    if base is not None and not _is_digest(base):
        faults.append(f"{what} names {said(base)} as its base, which is no digest such as `sha256:…`")
        return None
    if one is None:
        return None
    based = base.removeprefix("sha256:") if base else None
    return Tagged(sha256=one.sha256, size=one.size, tag=one.annotations.get(TAG, ""), artifact=artifact, base=based)


def artifact_of(data: bytes) -> str:
    """Return the artifact type of a manifest when it is one of ours, else nothing: a layout may hold others' images."""
    try:
        artifact = read_table(data, "").get("artifactType")
    except IntegrityError:
        return ""
    return artifact if isinstance(artifact, str) and artifact in CONFIG_OF else ""


def locks_version(locks: Mapping[str, str]) -> str:
    """The version of a stack whose recipe states none: twelve digits over the digests of its locks."""
    return hashlib.sha256(to_json(dict(locks))).hexdigest()[:12]


def bundle_tag(stack: str, version: str) -> str:
    """The tag of a bundle, in what registries take: `[a-z0-9._-]`, at most 128 characters, the first no sign."""
    return re.sub(r"[^a-z0-9._-]", "-", f"{stack}-{version}".lower()).lstrip(".-")[:128]


def signature_tag(sha256: str) -> str:
    """Where the signatures of a manifest are found, in a layout and in a registry."""
    return f"sha256-{sha256}.sig"


def delta_tag(sha256: str) -> str:
    """Where the wheel deltas of a manifest are found."""
    return f"sha256-{sha256}.delta"


def listing(manifest: Manifest) -> str:
    """The file FILES.tsv: digest, size and title of every file."""
    return "".join(f"{one.sha256}\t{one.size}\t{one.title}\n" for one in manifest.layers)


def config_json(content: Mapping[str, Any]) -> bytes:
    """Write a config blob."""
    return to_json({"schema": SCHEMA, **content})


def parse_config(data: bytes, where: str) -> Mapping[str, Any]:
    """Read a config blob.

    Raises:
        IntegrityError: `bundle-malformed`.
    """
    content = read_table(data, where)
    schema = content.get("schema")
    if isinstance(schema, bool) or schema != SCHEMA:
        raise malformed(f"its schema is {said(schema)}, this envsmith reads {SCHEMA}", where)
    return content


def _layer_faults(layers: list[Descriptor], artifact: str) -> Iterable[str]:
    """What is wrong with titles and kinds, one by one and beside each other."""
    seen: dict[str, Descriptor] = {}
    sizes: dict[str, int] = {}
    for layer in layers:
        fault = title_fault(layer.media_type, layer.title)
        if fault is None and artifact in CONFIG_OF and not belongs(layer.media_type, artifact):
            fault = f"has a kind that has no place here: `{layer.media_type[:80]}`"
        if fault:
            yield f"the title {said(layer.title)} of blob {layer.sha256} {fault}"
            continue
        place = laid_title(layer.media_type, layer.title)
        other = seen.setdefault(place, layer)
        if other is not layer:
            twice = "stands twice" if other.title == layer.title else f"takes the place of `{other.title}`"
            yield f"the title `{layer.title}` {twice}, for the blobs {other.sha256} and {layer.sha256}"
        if sizes.setdefault(layer.sha256, layer.size) != layer.size:
            yield f"the blob {layer.sha256}, `{layer.title}`, has two sizes"
    for place, layer in seen.items():
        above = next((str(path) for path in PurePosixPath(place).parents if str(path) in seen), None)
        if above:
            yield f"the title `{layer.title}` of blob {layer.sha256} lies below `{seen[above].title}`, which is a file"


def _manifest_faults(manifest: Manifest) -> Iterable[str]:
    """What is wrong with a manifest whose parts are sound."""
    if manifest.config.media_type != CONFIG_OF[manifest.artifact]:
        yield f"its config is of the kind `{manifest.config.media_type[:80]}`"
    if any(one.sha256 == manifest.config.sha256 and one.size != manifest.config.size for one in manifest.layers):
        yield f"the blob {manifest.config.sha256}, its config, has two sizes"
    if manifest.artifact == BUNDLE:
        yield from _bundle_faults(manifest)
    elif manifest.subject is None or manifest.subject.media_type != MANIFEST_TYPE:
        yield "it names no bundle as its subject"
    for delta in manifest.of(WHEEL_DELTA):
        for key in (DELTA_BASE, DELTA_RESULT):
            if not _is_digest(delta.annotations.get(key)):
                yield f"the delta `{delta.title}` of blob {delta.sha256} has no digest as its `{key}`"


def _bundle_faults(manifest: Manifest) -> Iterable[str]:
    if manifest.subject is not None:
        yield "it has a subject, which bundles have not"
    try:
        locks = manifest.locks
    except ValueError:
        yield f"its annotation `{LOCKS}` is missing or unreadable"
        return
    if not re.fullmatch(r"[a-z0-9-]+", manifest.stack):
        yield f"its stack {said(manifest.stack)} is no name of a stack"
        return
    if not locks:
        yield f"its annotation `{LOCKS}` names no lock"
    for env, sha256 in locks.items():
        layer = manifest.titled(f"stacks/pylock.{manifest.stack}-{env}.toml")
        if layer is None or layer.sha256 != sha256:
            yield f"the lock of {said(env)} that it is signed for ({sha256[:80]}) is not the one that it holds"
    if len(manifest.of(LOCK)) != len(locks):
        yield "it holds other locks than its annotation names"
    recipe = manifest.of(RECIPE)
    if len(recipe) != 1 or recipe[0].title != f"stacks/{manifest.stack}.toml":
        yield f"it does not hold the recipe of `{manifest.stack}`, or others beside"


def _plain(one: Descriptor) -> dict[str, Any]:
    content: dict[str, Any] = {"mediaType": one.media_type, "digest": f"sha256:{one.sha256}", "size": one.size}
    return {**content, "annotations": dict(one.annotations)} if one.annotations else content


def _descriptor(entry: Any, what: str, faults: list[str]) -> Descriptor | None:
    """Read a descriptor; None, with what is wrong added to the faults, when it is none."""
    if not isinstance(entry, dict):
        faults.append(f"{what} is {said(entry)} instead of a table")
        return None
    before = len(faults)
    annotations = _annotations(entry.get("annotations", {}), what, faults)
    if annotations.get(TITLE):
        what = f"{what}, {said(annotations[TITLE])},"
    kind: Any = entry.get("mediaType")
    digest: Any = entry.get("digest")
    size: Any = entry.get("size")
    if not isinstance(kind, str) or not kind.isprintable():
        faults.append(f"{what} has the media type {said(kind)}")
    if not _is_digest(digest):
        faults.append(f"{what} has the digest {said(digest)}, which is none such as `sha256:…`")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _LARGEST_SIZE:
        faults.append(f"{what} has the size {said(size)}, which is no number of bytes")
    if len(faults) > before:
        return None
    return Descriptor(media_type=kind, sha256=digest.removeprefix("sha256:"), size=size, annotations=annotations)


def _annotations(table: Any, what: str, faults: list[str]) -> dict[str, str]:
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        faults.append(f"the annotations of {what} are not a table of strings")
        return {}
    for key, value in table.items():
        if key != TITLE and not (key.isprintable() and value.isprintable()):
            faults.append(f"the annotation {said(key)} of {what} holds what cannot be printed: {said(value)}")
    return dict(table)


def _is_digest(text: Any) -> bool:
    return isinstance(text, str) and re.fullmatch(r"sha256:[0-9a-f]{64}", text) is not None
