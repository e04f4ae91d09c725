"""Opening a bundle that a user names: which one it is, what it holds, who signed it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from envsmith.bundle import (
    BUNDLE,
    DELTAS,
    LOCK,
    SIGNATURES,
    Manifest,
    Tagged,
    artifact_of,
    delta_tag,
    parse_config,
    parse_index,
    parse_manifest,
    signature_tag,
)
from envsmith.bundlecheck import LISTING_FILE, Laid
from envsmith.commands.envs import shown, user_path
from envsmith.commands.screen import Screen
from envsmith.errors import InputError, IntegrityError, Problem
from envsmith.lock import Lock
from envsmith.lock import parse as parse_lock
from envsmith.sshsig import Signer, parse_allowed_signers, parse_signature, verify
from envsmith.tools.layout import Layout, malformed, open_layout, read_small, spool
from envsmith.tools.store import Store

#: Where an administrator may put the keys that bundles are accepted from.
SITE_SIGNERS = Path("/etc/envsmith/allowed_signers")


@dataclass(frozen=True, kw_only=True, slots=True)
class Signed:
    """One signature of a bundle, as far as it can be judged here."""

    fingerprint: str
    who: str | None
    """The principal that the site trusts with this key."""
    problem: Problem | None
    """Why it does not count."""

    def to_dict(self) -> dict[str, Any]:
        """For the JSON envelope."""
        return {
            "fingerprint": self.fingerprint,
            "who": self.who,
            "problem": self.problem.to_dict() if self.problem else None,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """One bundle of a layout."""

    layout: Layout
    laid: tuple[Laid, ...]
    """Every manifest of ours in the layout."""
    bundle: Laid
    manifest_bytes: bytes
    config: Mapping[str, Any]

    @property
    def manifest(self) -> Manifest:
        """What is in it."""
        return self.bundle.manifest

    @property
    def sha256(self) -> str:
        """Its digest."""
        return self.bundle.entry.sha256

    @property
    def deltas(self) -> Laid | None:
        """Its wheel deltas, where it holds only what a base lacks."""
        return self._tagged(DELTAS, delta_tag(self.sha256))

    @property
    def signatures(self) -> Laid | None:
        """Its signatures."""
        return self._tagged(SIGNATURES, signature_tag(self.sha256))

    def text(self, title: str) -> str:
        """Return a short text file of the bundle.

        Raises:
            IntegrityError: `bundle-blob-missing`, `bundle-blob-corrupt`, `bundle-malformed`.
        """
        layer = self.manifest.titled(title)
        if layer is None:
            raise malformed(f"it has no `{title}`", self.layout.where)
        try:
            return read_small(self.layout, layer.sha256, layer.size, title).decode("utf-8")
        except UnicodeDecodeError as error:
            raise malformed(f"`{title}` is not UTF-8 text", self.layout.where) from error

    def locks(self) -> dict[str, Lock]:
        """Return its locks by env, from its own blobs.

        Raises:
            IntegrityError: as `text`; `bundle-malformed` for a lock that cannot be read.
        """
        prefix, found = f"stacks/pylock.{self.manifest.stack}-", {}
        for layer in self.manifest.of(LOCK):
            if layer.sha256 in self.bundle.omitted:
                continue
            try:
                lock = parse_lock(self.text(layer.title), layer.title)
            except InputError as error:
                raise malformed(error.problems[0].message, f"{self.layout.where}:{layer.title}") from error
            if f"{prefix}{lock.env}.toml" != layer.title or lock.stack != self.manifest.stack:
                raise malformed(f"`{layer.title}` is the lock of `{lock.stack}/{lock.env}`", self.layout.where)
            found[lock.env] = lock
        return found

    def _tagged(self, artifact: str, tag: str) -> Laid | None:
        return next((one for one in self.laid if one.manifest.artifact == artifact and one.entry.tag == tag), None)


@contextlib.contextmanager
def layout_of(word: str, screen: Screen, store: Store | None = None) -> Iterator[Layout]:
    """Open what BUNDLE names; `-` is a tar on stdin, which goes into `store`, or else into a folder of its own.

    Raises:
        InputError: `bundle-unknown`, `usage` for a reference to a registry.
        IntegrityError: `bundle-malformed`, `bundle-blob-corrupt`.
        SupplyError: `bundle-part-missing`.
    """
    if word.startswith("oci://"):
        hint = f"bring it here first: `envsmith pull {word} -o DIR`"
        raise InputError(Problem(code="bundle-unknown", message="this is a place in a registry", where=word, hint=hint))
    if word != "-":
        yield open_layout(user_path(word), shown(user_path(word)))
        return
    if sys.stdin is None:
        raise InputError(
            Problem(code="bundle-unknown", message="stdin is closed", where="-", hint="pipe a tar into it")
        )
    screen.start(0, 1)
    with contextlib.ExitStack() as stack:
        if store is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="envsmith-"))
            store = Store(Path(folder))
        yield spool(sys.stdin.buffer, store, "stdin", screen.advance)


def open_bundle(layout: Layout, tag: str | None = None, expect: str | None = None) -> Opened:
    """Read index and manifests of a layout, and choose its bundle.

    Raises:
        IntegrityError: `bundle-malformed`, `bundle-blob-missing`, `bundle-blob-corrupt`.
        InputError: `bundle-ambiguous`, `bundle-unknown`.
    """
    laid, data = _laid(layout)
    bundles = [one for one in laid if one.manifest.artifact == BUNDLE]
    if not bundles and LISTING_FILE in layout.others:
        raise malformed("its index names no bundle", layout.where)
    if expect is not None and len(bundles) > 1:
        bundles = [one for one in bundles if expect.removeprefix("sha256:") == one.entry.sha256] or bundles
    bundle = _chosen(bundles, tag, layout.where)
    own = bundle.manifest.config
    config: Mapping[str, Any] = {}
    if own.sha256 not in bundle.omitted:
        config = parse_config(read_small(layout, own.sha256, own.size, "config"), f"{layout.where}:config")
    return Opened(layout=layout, laid=laid, bundle=bundle, manifest_bytes=data[bundle.entry.sha256], config=config)


def _laid(layout: Layout) -> tuple[tuple[Laid, ...], Mapping[str, bytes]]:
    """Read every manifest of ours, with its bytes by digest."""
    index, mark = layout.root_file("index.json"), layout.root_file("oci-layout")
    if index is None or mark is None:
        hint = "a bundle holds `oci-layout`, `index.json` and `blobs/`; a copy that was broken off lacks some"
        raise IntegrityError(
            Problem(code="bundle-malformed", message="it has no `index.json`", where=layout.where, hint=hint)
        )
    if not _is_layout(mark):
        raise malformed("its `oci-layout` does not say that it is an image layout 1.0.0", layout.where)
    entries = parse_index(index, f"{layout.where}:index.json")
    found = {entry.sha256: _manifest(layout, entry) for entry in entries if _is_ours(entry)}
    read = {sha256: one for sha256, one in found.items() if one is not None}
    laid = tuple(
        Laid(entry=entry, manifest=read[entry.sha256][0], omitted=_omitted(layout, entry, entries, read))
        for entry in entries
        if entry.sha256 in read
    )
    return laid, {sha256: data for sha256, (_, data) in read.items()}


def _is_layout(mark: bytes) -> bool:
    """Whether a file `oci-layout` is one. Source: OCI image-spec v1.1, image-layout.md, read 2026-11-30."""
    try:
        content = json.loads(mark)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("imageLayoutVersion") == "1.0.0"


def signatures_of(opened: Opened, trusted: tuple[Signer, ...]) -> tuple[Signed, ...]:
    """Judge every signature of a bundle by the keys that the site trusts.

    Raises:
        IntegrityError: what reading them raises.
    """
    laid = opened.signatures
    found: list[Signed] = []
    for layer in laid.manifest.layers if laid else ():
        data = read_small(opened.layout, layer.sha256, layer.size, layer.title)
        armored = data.decode("ascii", "replace")
        where = f"{opened.layout.where}:{layer.title}"
        try:
            fingerprint = parse_signature(armored, where).fingerprint
        except IntegrityError as error:
            found.append(Signed(fingerprint="", who=None, problem=error.problems[0]))
            continue
        now = datetime.now(timezone.utc)
        verdict = verify(opened.manifest_bytes, armored, trusted, where=where, now=now)
        found.append(Signed(fingerprint=fingerprint, who=verdict.who, problem=verdict.problem))
    return tuple(found)


def site_signers(trust: str | None) -> tuple[Signer, ...] | None:
    """Read the keys that the site trusts: the file of `--trust`, else the administrator's; None where there is none.

    Raises:
        InputError: `allowed-signers-malformed`, `trust-unreadable`.
    """
    path = user_path(trust) if trust is not None else SITE_SIGNERS
    try:
        if path.exists() and not path.is_file() and path != Path(os.devnull):
            raise _unreadable(path, "it is no file")
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError as error:
        if trust is None:
            return None
        raise _unreadable(path, "there is no such file") from error
    except OSError as error:
        raise _unreadable(path, error.strerror or "it cannot be read") from error
    return parse_allowed_signers(text, shown(path))


def require_expected(opened: Opened, expect: str | None) -> None:
    """Compare the digest of a bundle with the one that was said over another channel.

    Raises:
        InputError: `expect-malformed`.
        IntegrityError: `bundle-unexpected`.
    """
    if expect is None:
        return
    wanted = expected_digest(expect)
    if wanted != opened.sha256:
        raise IntegrityError(
            Problem(
                code="bundle-unexpected",
                message="this is another bundle than the one that is expected",
                where=opened.layout.where,
                expected=f"sha256:{wanted}",
                actual=f"sha256:{opened.sha256} ({opened.manifest.stack} {opened.manifest.version})",
                hint="ask whoever said the digest which bundle they mean; do not install this one",
            )
        )


def expected_digest(expect: str) -> str:
    """Read the word of `--expect`, as hex.

    Raises:
        InputError: `expect-malformed`.
    """
    wanted = expect.removeprefix("sha256:")
    if len(wanted) != 64 or wanted.strip("0123456789abcdef"):
        message = f"`{expect[:80]}` is not a digest such as sha256:…, 64 hexadecimal digits"
        raise InputError(Problem(code="expect-malformed", message=message, where="--expect"))
    return wanted


def require_trust(signed: tuple[Signed, ...], trusted: tuple[Signer, ...] | None, where: str) -> str | None:
    """Return who signed; with a file of trusted keys a bundle has to be signed by one of them.

    Raises:
        IntegrityError: `bundle-unsigned`, `signature-untrusted`, `signature-wrong` and their kin.
    """
    good = next((one.who for one in signed if one.who and one.problem is None), None)
    if good is not None or trusted is None:
        return good
    problems = [one.problem for one in signed if one.problem is not None]
    if problems:
        raise IntegrityError(*problems)
    hint = "have it signed: `envsmith bundle … --sign KEY`, or name its digest with `--expect` instead"
    raise IntegrityError(
        Problem(
            code="bundle-unsigned",
            message="this site wants signed bundles, and this one is not",
            where=where,
            hint=hint,
        )
    )


def _is_ours(entry: Tagged) -> bool:
    """Whether an index entry may be a manifest of ours: movers may drop the artifact type from the index."""
    return entry.artifact in ("", BUNDLE, SIGNATURES, DELTAS)


def _manifest(layout: Layout, entry: Tagged) -> tuple[Manifest, bytes] | None:
    """Read a manifest; None for one that is somebody else's, which only shows in itself where the index is silent."""
    data = read_small(layout, entry.sha256, entry.size, f"manifest of {entry.tag or 'no tag'}")
    if not entry.artifact and not artifact_of(data):
        return None
    return parse_manifest(data, f"{layout.where}:{entry.tag or entry.sha256[:12]}"), data


def _omitted(
    layout: Layout, entry: Tagged, entries: tuple[Tagged, ...], read: Mapping[str, tuple[Manifest, bytes]]
) -> frozenset[str]:
    """What a delta leaves out, by its own list."""
    if entry.base is None or read[entry.sha256][0].artifact != BUNDLE:
        return frozenset()
    tag = delta_tag(entry.sha256)
    note = next((one for one in entries if one.tag == tag and one.sha256 in read), None)
    if note is None:
        raise malformed("it names a base, but not what it leaves out", layout.where)
    own = read[note.sha256][0].config
    config = parse_config(read_small(layout, own.sha256, own.size, "config of the delta"), f"{layout.where}:delta")
    listed = config.get("omitted")
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise malformed("its list of what the base holds is unreadable", layout.where)
    return frozenset(listed)


def _chosen(bundles: list[Laid], tag: str | None, where: str) -> Laid:
    found = [one for one in bundles if tag is None or one.entry.tag == tag]
    if len(found) == 1:
        return found[0]
    tags = ", ".join(f"`{one.entry.tag}`" for one in bundles) or "none"
    if not found:
        message = "there is no bundle in this layout" if tag is None else f"there is no bundle `{tag}` here"
        raise InputError(Problem(code="bundle-unknown", message=message, where=where, hint=f"bundles here: {tags}"))
    message = f"this layout holds {len(found)} bundles"
    raise InputError(
        Problem(
            code="bundle-ambiguous",
            message=message,
            where=where,
            hint=f"name one with `--tag`, or its digest with `--expect`: {tags}",
        )
    )


def _unreadable(path: Path, said: str) -> InputError:
    hint = "name a file of trusted keys as ssh-keygen(1) describes under ALLOWED SIGNERS, or a public key"
    message = f"the file of trusted keys cannot be used: {said}"
    return InputError(Problem(code="trust-unreadable", message=message, where=shown(path), hint=hint))
