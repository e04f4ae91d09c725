"""`envsmith inspect`: what a bundle holds, where it comes from, who signed it, and whether every byte is right.

An evidence folder is recognised here and judged in `evidence`.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from envsmith.bundle import BUNDLE, Descriptor
from envsmith.bundlecheck import Laid, expected_blobs, judge_layout, lacking, unreferenced
from envsmith.commands.bundles import (
    Opened,
    Signed,
    layout_of,
    open_bundle,
    require_expected,
    require_trust,
    signatures_of,
    site_signers,
)
from envsmith.commands.evidence import inspect_evidence, is_evidence
from envsmith.commands.result import Result
from envsmith.commands.screen import Screen
from envsmith.errors import EnvsmithError, IntegrityError, Problem
from envsmith.plan import megabytes
from envsmith.tools.layout import Layout, copy_blob, root_files

#: What a person is shown of the files of one kind.
_SHOWN = 400


def run(bundle: str, *, check: bool, trust: str | None, tag: str | None, expect: str | None, screen: Screen) -> Result:
    """Describe a bundle, or an evidence folder; `check` reads every byte of it.

    Raises:
        IntegrityError: with every damage that was found, each naming the blob and the file it is.
        InputError: `bundle-unknown`, `bundle-ambiguous`, `trust-unreadable`, `expect-malformed`.
    """
    if is_evidence(bundle):
        return inspect_evidence(bundle, check=check, trust=trust, expect=expect, screen=screen)
    with layout_of(bundle, screen) as layout:
        opened = open_bundle(layout, tag, expect)
        require_expected(opened, expect)
        problems = list(judge_layout(opened.laid, layout.sizes, root_files(layout), layout.others, layout.where))
        hashed = 0
        if check:
            wrong, hashed = _read_all(layout, opened.laid, screen, {_blob_in(one) for one in problems})
            problems += wrong
        if not problems:
            problems += _shortfall(opened)
        if problems:
            raise IntegrityError(*problems)
        trusted = site_signers(trust)
        signed = signatures_of(opened, trusted or ())
        if trust is not None:  # whoever names keys asks whether one of them signed
            require_trust(signed, trusted, layout.where)
        data = _data(opened, signed, check, hashed)
        return Result(command="inspect", data=data, text=_text(opened, signed, data))


def _blob_in(problem: Problem) -> str:
    return next((word.strip(",") for word in problem.message.split() if len(word.strip(",")) == 64), "")


def _read_all(layout: Layout, laid: tuple[Laid, ...], screen: Screen, known: set[str]) -> tuple[list[Problem], int]:
    """Hash every blob that the manifests name, and those that nothing names; return what is wrong."""
    expected = {sha256: value for sha256, value in expected_blobs(laid).items() if sha256 in layout.sizes}
    expected |= {sha256: (layout.sizes[sha256], "named by no manifest") for sha256 in unreferenced(laid, layout.sizes)}
    gate = threading.Lock()

    def counted(count: int) -> None:
        with gate:
            screen.advance(count)

    def read(item: tuple[str, tuple[int, str]]) -> list[Problem]:
        sha256, (size, what) = item
        try:
            copy_blob(layout, sha256, size, what, lambda data: None, counted)
        except EnvsmithError as error:
            return list(error.problems)
        return []

    todo = sorted((item for item in expected.items() if item[0] not in known), key=lambda item: item[1][1])
    screen.start(sum(size for _, (size, _) in todo), len(todo))
    try:
        with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
            found = [problem for problems in pool.map(read, todo) for problem in problems]
    finally:
        screen.done()
    return found, sum(size for _, (size, _) in todo)


def _shortfall(opened: Opened) -> list[Problem]:
    short = lacking(opened.manifest, opened.locks())
    return [
        Problem(
            code="bundle-incomplete",
            message=f"the bundle does not name what its own locks need: {words}",
            where=opened.layout.where,
            hint="it was not made by `envsmith bundle`, or was changed afterwards: do not use it",
        )
        for words in short[:20]
    ]


def _data(opened: Opened, signed: tuple[Signed, ...], check: bool, hashed: int) -> dict[str, Any]:
    manifest, entry = opened.manifest, opened.bundle.entry
    return {
        "digest": f"sha256:{opened.sha256}",
        "tag": entry.tag,
        "stack": manifest.stack,
        "version": manifest.version,
        "locks": manifest.locks,
        "base": f"sha256:{entry.base}" if entry.base else None,
        "config": dict(opened.config),
        "signatures": [one.to_dict() for one in signed],
        "blobs": len(manifest.blobs),
        "bytes": sum(one.size for one in manifest.blobs),
        "files": [_row(one, opened) for one in manifest.layers],
        "other_tags": [one.entry.tag for one in opened.laid if _is_other(one, opened)],
        "unreferenced": list(unreferenced(opened.laid, opened.layout.sizes)),
        "checked": check,
        "hashed_bytes": hashed,
    }


def _is_other(one: Laid, opened: Opened) -> bool:
    return one.manifest.artifact == BUNDLE and one.entry.sha256 != opened.sha256


def _row(one: Descriptor, opened: Opened) -> dict[str, Any]:
    return {
        "title": one.title,
        "type": one.media_type,
        "sha256": one.sha256,
        "size": one.size,
        "envs": list(one.envs),
        "roles": list(one.roles),
        "here": one.sha256 in opened.layout.sizes,
    }


def _text(opened: Opened, signed: tuple[Signed, ...], data: dict[str, Any]) -> str:
    manifest = opened.manifest
    lines = [
        f"{manifest.stack} {manifest.version}  ({opened.bundle.entry.tag})",
        f"digest:   {data['digest']}",
        *(f"lock:     {manifest.stack}/{env} sha256:{sha256}" for env, sha256 in sorted(manifest.locks.items())),
        *_origin(opened),
        f"holds:    {data['blobs']} blobs, {megabytes(data['bytes'])}",
    ]
    if data["base"]:
        lines.append(f"base:     {data['base']}; what it has is left out here")
    lines += [f"signed:   {_signed(one)}" for one in signed] or ["signed:   no"]
    if data["unreferenced"]:
        lines.append(f"besides:  {len(data['unreferenced'])} blobs that no manifest names")
    if data["checked"]:
        lines.append(f"checked:  every byte, {megabytes(data['hashed_bytes'])}")
    else:
        lines.append("checked:  names and sizes; `--check` reads every byte")
    lines.append("")
    for row in data["files"][:_SHOWN]:
        mark = "" if row["here"] else "  (in the base)"
        lines.append(f"{row['sha256'][:12]}  {megabytes(row['size']):>9}  {row['title']}{mark}")
    if len(data["files"]) > _SHOWN:
        lines.append(f"… and {len(data['files']) - _SHOWN} more; `--json` lists all")
    return "\n".join(lines)


def _origin(opened: Opened) -> list[str]:
    made = opened.config.get("made-with")
    envs = opened.config.get("envs")
    lines = []
    if isinstance(made, dict):
        lines.append(f"made by:  {', '.join(f'{name} {version}' for name, version in sorted(made.items()))}")
    for env, facts in sorted(envs.items()) if isinstance(envs, dict) else ():
        if isinstance(facts, dict):
            python = facts.get("interpreter")
            own = _interpreter(python) if isinstance(python, dict) else "without an interpreter"
            over = facts.get("base-python")
            if over:
                kept = facts.get("protected")
                count = f", {len(kept)} packages of it protected" if isinstance(kept, dict) else ""
                own = f"over the vendor's {over}, which must be on the target{count}"
            lines.append(
                f"for:      {env}: Python {facts.get('python')}, {facts.get('arch')}, glibc {facts.get('glibc')}; {own}"
            )
    return lines


def _interpreter(python: dict[str, Any]) -> str:
    glibc, needs = python.get("glibc"), python.get("needs")
    said = f"with CPython {python.get('version')}"
    said += f", which needs glibc {glibc}" if glibc else ""
    return f"{said} and {len(needs)} libraries of the target" if isinstance(needs, list) and needs else said


def _signed(one: Signed) -> str:
    if one.problem is None:
        return f"by {one.who}, {one.fingerprint}"
    return f"{one.fingerprint or 'unreadable'}: {one.problem.message}"
