"""Judging a bundle: does it hold what its locks need, and are the files beside its blobs what the blobs say.

Pure: what lies where comes in as values. Hashing the blobs is work for the shell.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from packaging.version import Version

from envsmith.bundle import (
    ASSET,
    BUNDLE,
    PATCH,
    SDIST,
    SERIES,
    SOURCE,
    WHEEL,
    Descriptor,
    Manifest,
    Tagged,
    listing,
    locks_version,
)
from envsmith.bundlekinds import AT_ROOT
from envsmith.errors import Problem
from envsmith.lock import Lock

#: Files that stand at the root of a folder or tar for people and for plain tools; each is a blob, or made from them.
SUMS_FILE = "SHA256SUMS"
LISTING_FILE = "FILES.tsv"
#: What a writer of ours leaves among the blobs when it is killed.
_LITTER = re.compile(r"blobs/sha256/\.envsmith-[^/]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Laid:
    """A manifest with its entry in the index."""

    entry: Tagged
    manifest: Manifest
    omitted: frozenset[str] = frozenset()
    """Blobs that the base of a delta holds, or that are rebuilt from what it holds."""

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        """Its manifest, config and layers."""
        own = Descriptor(media_type="", sha256=self.entry.sha256, size=self.entry.size)
        return (own, *self.manifest.blobs)


def lacking(manifest: Manifest, locks: Mapping[str, Lock]) -> tuple[str, ...]:
    """Say what the locks of a bundle need and the manifest does not name, in words."""
    held = {kind: {one.sha256 for one in manifest.of(kind)} for kind in (WHEEL, SDIST, PATCH, ASSET)}
    titles = {one.title for kind in (SOURCE, SERIES) for one in manifest.of(kind)}
    found: list[str] = []
    for env, lock in sorted(locks.items()):
        files = [(wheel.filename, wheel.sha256) for wheel in (*lock.wheels, *lock.build_requires)]
        found += [f"{env}: wheel `{name}`" for name, sha256 in files if sha256 not in held[WHEEL]]
        for source in lock.sources:
            if source.sdist is not None and source.sdist.sha256 not in held[SDIST]:
                found.append(f"{env}: sdist `{source.sdist.filename}`")
            if source.commit is not None and source_title(source.name, source.commit) not in titles:
                found.append(f"{env}: source `{source.name}` at commit {source.commit}")
        series = [one for source in lock.sources for one in source.series]
        series += [one for wheel in lock.patched for one in wheel.series]
        found += [f"{env}: series `{one.path}`" for one in series if f"patches/{one.path}" not in titles]
        patches = [patch for one in series for patch in one.patches]
        found += [f"{env}: patch `{patch.path}`" for patch in patches if patch.sha256 not in held[PATCH]]
        found += [f"{env}: asset `{asset.name}`" for asset in lock.assets if asset.sha256 not in held[ASSET]]
    return tuple(dict.fromkeys(found))


def stated_version(manifest: Manifest) -> str | None:
    """The version that a recipe states; None where it is made from the digests of the locks."""
    return None if manifest.version == locks_version(manifest.locks) else manifest.version


def is_older(new: str | None, standing: str) -> bool:
    """Whether a bundle may be older than what stands; what has no order to a stated version may be."""
    try:
        return new is None or Version(new) < Version(standing)
    except ValueError:
        return True


def source_title(name: str, commit: str) -> str:
    """The title of the git bundle of a source."""
    return f"sources/{name}@{commit}.bundle"


def root_titles(manifest: Manifest) -> dict[str, Descriptor]:
    """The blobs that also stand at the root under their own names."""
    return {layer.title: layer for kind in AT_ROOT for layer in manifest.of(kind)}


def expected_blobs(laid: Iterable[Laid]) -> dict[str, tuple[int, str]]:
    """Every blob that a layout must hold: sha256 to size and what it is."""
    found: dict[str, tuple[int, str]] = {}
    for one in laid:
        for blob in one.blobs:
            if blob.sha256 not in one.omitted:
                found.setdefault(blob.sha256, (blob.size, _what(one, blob)))
    return found


def sums_text(expected: Mapping[str, tuple[int, str]]) -> str:
    """The file SHA256SUMS: what `sha256sum -c` reads."""
    return "".join(f"{sha256}  blobs/sha256/{sha256}\n" for sha256 in sorted(expected))


def judge_layout(
    laid: Iterable[Laid], sizes: Mapping[str, int], root: Mapping[str, bytes], others: Iterable[str], where: str
) -> Iterator[Problem]:
    """Compare what lies in a layout with what its manifests name, by existence and size; contents are not read.

    Misses: a blob of the right size and other content, which only hashing finds; a layout whose index was replaced.
    """
    laid = tuple(laid)
    expected = expected_blobs(laid)
    for sha256, (size, what) in sorted(expected.items(), key=lambda item: item[1][1]):
        if sha256 not in sizes:
            yield _damage("bundle-blob-missing", f"the bundle lacks the blob {sha256}, which is `{what}`", where)
        elif sizes[sha256] != size:
            words = f"the blob {sha256}, which is `{what}`, has {sizes[sha256]} bytes instead of {size}"
            yield _damage("bundle-blob-corrupt", words, where)
    yield from _judge_root(laid, root, expected, where)
    known = {SUMS_FILE, LISTING_FILE, "oci-layout", "index.json"}
    known |= {title for one in laid if one.manifest.artifact == BUNDLE for title in root_titles(one.manifest)}
    for name in sorted(others):
        if name.startswith("blobs/sha256/") and not _LITTER.fullmatch(name):
            yield _damage("bundle-blob-misnamed", f"`{name}` lies among the blobs and is named like none", where)
        elif name not in known and _could_run(name):
            words = f"`{name}` stands beside the blobs and belongs to no bundle here"
            yield _damage("bundle-file-unowned", words, where)


def _could_run(name: str) -> bool:
    """Whether a file that no bundle names could be taken for a part of one: code, a recipe or a lock."""
    return name.startswith("pylock.") or name.endswith((".sh", ".py", ".pth", ".so", ".toml"))


def unreferenced(laid: Iterable[Laid], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Blobs that no manifest names."""
    return tuple(sorted(sizes.keys() - expected_blobs(laid).keys()))


def _what(one: Laid, blob: Descriptor) -> str:
    if blob.sha256 == one.entry.sha256:
        return f"manifest of {one.entry.tag}"
    return blob.title or f"config of {one.entry.tag}"


def _judge_root(
    laid: tuple[Laid, ...], root: Mapping[str, bytes], expected: Mapping[str, tuple[int, str]], where: str
) -> Iterator[Problem]:
    bundles = [one for one in laid if one.manifest.artifact == BUNDLE]
    for name, data in sorted(root.items()):
        if name == SUMS_FILE:
            fits = data.decode("utf-8", "replace") == sums_text(expected)
        elif name == LISTING_FILE:
            fits = any(data.decode("utf-8", "replace") == listing(one.manifest) for one in bundles)
        else:
            digest = hashlib.sha256(data).hexdigest()
            wanted = [root_titles(one.manifest).get(name) for one in bundles]
            fits = not any(wanted) or any(one is not None and one.sha256 == digest for one in wanted)
        if not fits:
            words = f"`{name}` beside the blobs is not what the bundle's own blob says"
            yield _damage("bundle-file-differs", words, where)


def _damage(code: str, message: str, where: str) -> Problem:
    hint = "copy the bundle again from where it was made; if it is the same there, do not use it"
    return Problem(code=code, message=message, where=where, hint=hint)
