"""`envsmith run --as`: the launch environment of an env for Slurm, for Kubernetes, and for `module load`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from envsmith.commands.envs import BuiltEnv, installed_from, shown
from envsmith.commands.result import Result
from envsmith.commands.screen import Screen
from envsmith.errors import EnvsmithError, InputError, Problem
from envsmith.launch import LaunchEnvironment
from envsmith.modulefile import modulefile
from envsmith.receipt import Receipt
from envsmith.snippets import Job, kubernetes, not_text, slurm


@dataclass(frozen=True, kw_only=True, slots=True)
class Elsewhere:
    """What is to be written."""

    form: str
    bundle: str | None
    """As the nodes see it."""
    at: str | None
    """The root of envs, as the nodes see it; None for the same path as here."""
    command: tuple[str, ...]


def written(
    built: BuiltEnv, receipt: Receipt, launch: LaunchEnvironment, elsewhere: Elsewhere, screen: Screen
) -> Result:
    """Render it; nothing is started or written.

    Raises:
        InputError: `usage` for `--at` without a bundle, `snippet-not-text`.
    """
    name = f"{receipt.stack}/{receipt.env}"
    if elsewhere.form == "modulefile":
        text = modulefile(launch, f"{name} {receipt.fingerprint[:12]}")
        return Result(command="run", data={"as": "modulefile", "env": name, "snippet": text}, text=text)
    bundle = elsewhere.bundle or (f"/bundle/{receipt.stack}.tar" if elsewhere.form == "k8s" else None)
    if elsewhere.at is not None and bundle is None:
        hint = "give `--bundle PATH` too: an env cannot be moved, it is installed where it is used"
        raise InputError(Problem(code="usage", message="`--at` is where a bundle is installed", hint=hint))
    root = elsewhere.at or str(built.directory.parent.parent)
    job = Job(
        stack=receipt.stack,
        env=receipt.env,
        launch=launch,
        root=_absolute("--at", root),
        bundle=_absolute("--bundle", bundle) if bundle else None,
        digest=_digest(built, receipt, elsewhere.bundle, screen) if bundle else None,
        command=elsewhere.command,
    )
    if elsewhere.form == "k8s" and job.bundle_folder in ("", job.root):
        hint = "volumes are mounted on both: give the bundle a folder of its own, for example `/bundle/a100.tar`"
        message = "the bundle lies in `/` or in the root of envs"
        raise InputError(Problem(code="usage", message=message, where=job.bundle, hint=hint))
    if bundle and any(word.startswith("PYTHONPATH") for word, _ in launch.prepend):
        screen.say("note: an env that is installed from a bundle has no work copies of yours")
    if bad := not_text(job) if elsewhere.form == "k8s" else ():
        raise InputError(
            Problem(
                code="snippet-not-text",
                message=f"`{ascii(bad[0])[1:-1]}` is no UTF-8, and YAML holds nothing else",
                hint="give it another value, or start the command through a script in the image",
            )
        )
    text = kubernetes(job) if elsewhere.form == "k8s" else slurm(job)
    data = {"as": elsewhere.form, "env": name, "root": job.root, "bundle": job.bundle, "digest": job.digest}
    return Result(command="run", data={**data, "snippet": text}, text=text)


def _absolute(option: str, path: str) -> str:
    if not path.startswith("/") or "\n" in path:
        hint = "the script may start in another folder: name it from `/` on"
        raise InputError(Problem(code="usage", message=f"`{option}` is no absolute path", where=path, hint=hint))
    return path.rstrip("/") or "/"


def _digest(built: BuiltEnv, receipt: Receipt, bundle: str | None, screen: Screen) -> str | None:
    """The digest of the bundle that is to be installed: of the file where it is here too, else of what stands here."""
    if bundle is not None and Path(bundle).exists():
        from envsmith.commands.bundles import layout_of, open_bundle

        with contextlib.suppress(EnvsmithError), layout_of(bundle, screen) as layout:
            return f"sha256:{open_bundle(layout).sha256}"
        screen.say(f"note: no digest can be read from {shown(Path(bundle))}")
        return None
    return installed_from(built.directory, receipt.lock_sha256)
