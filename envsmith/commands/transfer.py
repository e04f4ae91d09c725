"""`envsmith push` and `pull`: a bundle between a folder or file and an OCI registry; only missing blobs move."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from envsmith.bundle import (
    BUNDLE,
    MANIFEST_TYPE,
    Manifest,
    parse_manifest,
    signature_tag,
)
from envsmith.bundlecheck import judge_layout
from envsmith.commands.bundles import Opened, layout_of, open_bundle
from envsmith.commands.composing import Side, stored, write
from envsmith.commands.envs import shown
from envsmith.commands.outputs import Output, output_of
from envsmith.commands.result import Result
from envsmith.commands.screen import Screen
from envsmith.errors import InputError, IntegrityError, Problem, SupplyError
from envsmith.ocireference import Reference, parse_reference
from envsmith.plan import megabytes
from envsmith.tools.layout import Layout, root_files
from envsmith.tools.layout_writing import BytesContent
from envsmith.tools.store import Store, open_store
from envsmith.tools.storeusage import using

PREFIX = "oci://"


def push(
    first: str,
    second: str,
    *,
    mount_from: tuple[str, ...],
    plain_http: bool,
    tag: str | None,
    environ: Mapping[str, str],
    screen: Screen,
) -> Result:
    """Bring a bundle and its signatures into a registry.

    Raises:
        InputError: `usage`, `oci-reference-malformed`, what opening the bundle raises.
        IntegrityError: a damaged bundle, or a registry that changes what it is given.
        SupplyError: what the registry or the way to it refuses.
    """
    bundle, reference = _sorted_out(first, second)
    with layout_of(bundle, screen) as layout:
        opened = open_bundle(layout, tag)
        problems = list(judge_layout(opened.laid, layout.sizes, root_files(layout), layout.others, layout.where))
        if problems:
            raise IntegrityError(*problems)
        return _pushed(opened, reference, mount_from, plain_http, environ, screen)


def _pushed(
    opened: Opened,
    reference: Reference,
    mount_from: tuple[str, ...],
    plain_http: bool,
    environ: Mapping[str, str],
    screen: Screen,
) -> Result:
    from envsmith.tools.registry import Registry
    from envsmith.tools.registry_push import Blob

    def blobs(manifest: Manifest) -> list[Blob]:
        return [_blob(opened.layout, one.sha256, one.size) for one in manifest.blobs]

    tags = [reference.tag] if reference.tag else []
    if reference.digest and reference.digest != f"sha256:{opened.sha256}":
        message = "the digest in the reference is not that of the bundle"
        raise InputError(
            Problem(code="oci-reference-malformed", message=message, where=str(reference), hint="name a tag instead")
        )
    with Registry(reference, environ=environ, insecure=plain_http, progress=screen) as registry:
        try:
            try:
                moved = registry.push(
                    blobs(opened.manifest), opened.manifest_bytes, MANIFEST_TYPE, tags=tags, mount_from=mount_from
                )
            except SupplyError as error:
                raise _needs_whole(error, opened) from error
            side = opened.signatures
            if side is not None:
                data = _content(opened.layout, side.entry.sha256, side.entry.size)
                registry.push(blobs(side.manifest), data, MANIFEST_TYPE, tags=[signature_tag(opened.sha256)])
        finally:
            screen.done()
    data_of = {
        "reference": str(reference),
        "digest": f"sha256:{opened.sha256}",
        "sent": moved.sent,
        "skipped": moved.skipped,
        "mounted": moved.mounted,
        "bytes_sent": moved.bytes_sent,
        "signatures": opened.signatures is not None,
    }
    text = (
        f"{reference}: sent {moved.sent} blobs, {megabytes(moved.bytes_sent)}; {moved.skipped} were there,"
        f" {moved.mounted} mounted\ndigest: sha256:{opened.sha256}"
    )
    return Result(command="push", data=data_of, text=text)


def _needs_whole(error: SupplyError, opened: Opened) -> SupplyError:
    """Say what helps where a delta lacks what the registry lacks too: wheels that only a target rebuilds."""
    absent = [problem for problem in error.problems if problem.code == "blob-missing"]
    if opened.bundle.entry.base is None or not absent:
        return error
    return SupplyError(
        Problem(
            code="blob-missing",
            message=f"this bundle is a delta, and the registry lacks {len(absent)} files that it leaves out",
            where=opened.layout.where,
            hint="a registry takes whole bundles and keeps each file once: `envsmith join BASE DELTA -o WHOLE.tar`",
        )
    )


def pull(
    words: tuple[str, ...],
    *,
    out: str | None,
    max_size: str | None,
    plain_http: bool,
    environ: Mapping[str, str],
    screen: Screen,
) -> Result:
    """Bring a bundle and its signatures from a registry into a folder or file.

    Blobs come to lie in the store, so that what came before an interruption is kept and a second pull moves nothing.

    Raises:
        InputError: `usage`, `oci-reference-malformed`, `bundle-output-unusable`.
        IntegrityError: what came is not what it was asked for by.
        SupplyError: what the registry or the way to it refuses.
    """
    reference, target = _reference_and_output(words, out, max_size)
    store = open_store(environ)
    with using(store, screen.message):
        return _pulled(reference, target, store, plain_http, environ, screen)


def _pulled(
    reference: Reference, target: Output, store: Store, plain_http: bool, environ: Mapping[str, str], screen: Screen
) -> Result:
    from envsmith.tools.registry import Registry
    from envsmith.tools.registry_pull import IntoStore

    with Registry(reference, environ=environ, insecure=plain_http, progress=screen) as registry:
        try:
            data = registry.fetch_manifest()
            manifest = parse_manifest(data, str(reference))
            if manifest.artifact != BUNDLE:
                message = "this is no bundle, but something that belongs to one"
                raise InputError(Problem(code="bundle-unknown", message=message, where=str(reference)))
            into = IntoStore(store)
            wanted = [(f"sha256:{one.sha256}", one.size) for one in manifest.blobs]
            known = [digest for digest, size in wanted if into.has(digest, size)]
            pulled = registry.pull(wanted, have=into.has, into=into)
            for digest in known:
                store.verify(digest.removeprefix("sha256:"))
        finally:
            screen.done()
    side = _signatures(reference, data, plain_http, environ, screen)
    composed = stored(data, manifest, store, (side,) if side else ())
    target.require(composed.sha256, manifest.stack)
    files = write(target.path, composed.written(), target.part_bytes, screen)
    return Result(
        command="pull",
        data={
            "path": str(target.path),
            "files": [str(file) for file in files],
            "reference": str(reference),
            "digest": f"sha256:{composed.sha256}",
            "received": pulled.received,
            "skipped": pulled.skipped,
            "bytes_received": pulled.bytes_received,
            "signatures": side is not None,
        },
        text=(
            f"{shown(target.path)}: received {pulled.received} blobs, {megabytes(pulled.bytes_received)};"
            f" {pulled.skipped} were here\ndigest: sha256:{composed.sha256}"
        ),
    )


def _signatures(
    reference: Reference, bundle: bytes, plain_http: bool, environ: Mapping[str, str], screen: Screen
) -> Side | None:
    """Fetch the signatures of a bundle, where it has some."""
    import hashlib
    from dataclasses import replace

    from envsmith.tools.registry import Registry

    tag = signature_tag(hashlib.sha256(bundle).hexdigest())
    place = replace(reference, tag=tag, digest=None)
    with Registry(place, environ=environ, insecure=plain_http, progress=screen) as registry:
        try:
            data = registry.fetch_manifest()
        except SupplyError as error:
            if error.problems[0].code == "manifest-missing":
                return None
            raise
        manifest = parse_manifest(data, str(place))
        into = _Memory()
        wanted = [(f"sha256:{one.sha256}", one.size) for one in manifest.blobs]
        with into:
            registry.pull(wanted, have=lambda digest, size: False, into=into)
            contents = {one.sha256: BytesContent(data=into.read(one.sha256)) for one in manifest.blobs}
    return Side(data=data, contents=contents)


class _Memory:
    """A destination for the few short blobs of signatures: they are of one bundle and not for the store."""

    def __init__(self) -> None:
        import tempfile

        self._folder = tempfile.TemporaryDirectory(prefix="envsmith-")
        self._root = Path(self._folder.name)

    def __enter__(self) -> _Memory:
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()

    def part_path(self, digest: str) -> Path:
        return self._root / f"{digest.removeprefix('sha256:')}.part"

    def commit(self, part: Path, digest: str) -> None:
        part.replace(self._root / digest.removeprefix("sha256:"))

    def lock(self, digest: str) -> AbstractContextManager[object]:
        import contextlib

        return contextlib.nullcontext()

    def read(self, sha256: str) -> bytes:
        return (self._root / sha256).read_bytes()


def _blob(layout: Layout, sha256: str, size: int) -> Any:
    from envsmith.tools.registry_push import Blob

    if sha256 not in layout.sizes:
        return Blob(digest=f"sha256:{sha256}", size=size)
    return Blob(digest=f"sha256:{sha256}", size=size, path=Path(layout.where), source=lambda: layout.open(sha256))


def _content(layout: Layout, sha256: str, size: int) -> bytes:
    from envsmith.tools.layout import read_small

    return read_small(layout, sha256, size, "signatures")


def _sorted_out(first: str, second: str) -> tuple[str, Reference]:
    """Which of two words is the bundle and which the place in a registry.

    Raises:
        InputError: `usage`, `oci-reference-malformed`.
    """
    places = [word for word in (first, second) if word.startswith(PREFIX)]
    if len(places) != 1:
        hint = "write `envsmith push BUNDLE oci://host:port/repository:tag`"
        message = "one of both has to be a place in a registry, and the other a bundle"
        raise InputError(Problem(code="usage", message=message, where=f"{first} {second}", hint=hint))
    bundle = second if first.startswith(PREFIX) else first
    return bundle, parse_reference(places[0])


def _reference_and_output(words: tuple[str, ...], out: str | None, max_size: str | None) -> tuple[Reference, Output]:
    given = [*words, *([out] if out is not None else [])]
    if len(given) != 2:
        hint = "write `envsmith pull oci://host:port/repository:tag -o DIR`"
        message = "name one place in a registry, and where the bundle shall be written"
        raise InputError(Problem(code="usage", message=message, where=" ".join(given), hint=hint))
    place, reference = _sorted_out(given[0], given[1])
    return reference, output_of(place, max_size)
