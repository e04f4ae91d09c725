"""One node's part of a fleet: verify the env here, look at two processes, and write an answer with its detail.

A launcher of any kind starts it on every node, with a request in a file; see docs/fleet.md.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import envsmith
from envsmith.checks.contexts import Intended, check_contexts
from envsmith.checks.maps import check_level_maps
from envsmith.commands.depth import Depth
from envsmith.commands.envs import open_env
from envsmith.commands.launching import resolved
from envsmith.commands.libraries import libraries
from envsmith.commands.look_contexts import intention
from envsmith.commands.look_processes import Surroundings, surroundings
from envsmith.commands.screen import Screen
from envsmith.commands.snapshot import capture
from envsmith.commands.subject import Subject, expectation, open_with_work
from envsmith.commands.verify import verify_one
from envsmith.errors import EnvsmithError, NegativeAnswer, Problem
from envsmith.facts import Facts, Level
from envsmith.facts import parse as parse_facts
from envsmith.fleet import Detail, answer_of, failure_json
from envsmith.fleetfacts import of_host, of_mounts, of_process
from envsmith.launch import LaunchEnvironment
from envsmith.probe import Request, probe
from envsmith.redaction import without_secrets
from envsmith.report import Finding
from envsmith.tools.files import sha256_stream, write_atomic
from envsmith.tools.procfs import MAPS_BYTES

#: What both processes import before their libraries are compared: a Ray worker imports pyarrow when it gets an
#: argument (facts/verify.md section 6).
IMPORTED: Final = ("numpy", "pyarrow")
WORKER: Final = "worker"
#: Where the details of nodes lie beside their answers.
DETAILS: Final = "details"
#: Largest file whose bytes are compared; larger ones are by their size.
_HASHED_BYTES: Final = 256 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRequest:
    """What a node is asked."""

    env: str
    """Directory of the env on the node."""
    node: str
    out: str
    """Folder for the answer."""
    depth: Depth
    root: str
    id: str = ""
    address: str = ""
    worker: str | None = None
    """File with what a worker of the launcher saw, in the form of the probe's answer."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """The environment that a worker has there."""

    def to_json(self) -> str:
        """Render for the node."""
        depth = self.depth
        return json.dumps({
            "env": self.env, "node": self.node, "out": self.out, "root": self.root, "id": self.id,
            "address": self.address, "worker": self.worker, "environ": dict(self.environ),
            "depth": {"bytes": depth.bytes, "imports": depth.imports, "contexts": depth.contexts,
                      "families": list(depth.families)},
        })  # fmt: skip


def parse_request(text: str) -> NodeRequest:
    """Read a request of our own."""
    data = json.loads(text)
    depth = data.pop("depth")
    return NodeRequest(**data, depth=Depth(**{**depth, "families": tuple(depth["families"]), "shell": False}))


def main(path: str) -> None:
    """Answer the request in a file; whatever goes wrong becomes an answer too."""
    answer_here(parse_request(Path(path).read_text(encoding="utf-8")), Screen(quiet=True))


def answer_here(request: NodeRequest, screen: Screen) -> bool:
    """Look, and write the answer; its detail comes first, so that no answer lacks one. False: nothing could be said."""
    started = time.monotonic()
    out = Path(request.out)
    (out / DETAILS).mkdir(parents=True, exist_ok=True)
    try:
        name, detail = _look(request, screen)
    except EnvsmithError as error:
        problem = error.problems[0]
        write_atomic(out / f"{request.node}.json", failure_json(request.node, f"{problem.code}: {problem.message}"))
        return False
    answer = answer_of(
        detail,
        node=request.node,
        env=name,
        id=request.id,
        address=request.address,
        seconds=time.monotonic() - started,
    )
    write_atomic(out / DETAILS / f"{request.node}.json", detail.to_json())
    write_atomic(out / f"{request.node}.json", answer.to_json() + "\n")
    return True


def node_name(environ: Mapping[str, str]) -> str:
    """How this node is called: as Slurm calls it, which knows several nodes on one host, else by its host name."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname()


def _look(request: NodeRequest, screen: Screen) -> tuple[str, Detail]:
    built = open_env(request.env, Path(request.root))
    if built.receipt is None:
        raise NegativeAnswer(
            Problem(
                code="env-incomplete",
                message="the env has no receipt of envsmith",
                where=request.env,
                hint="build it with `envsmith build`",
            )
        )
    environ = request.environ
    examination = verify_one(built, request.depth, lock_file=None, environ=environ, screen=screen)
    subject = open_with_work(built)
    around = surroundings(subject, environ)
    families: dict[str, list[Finding]] = {name: [] for name in examination.report.families}
    for finding in examination.report.findings:
        families.setdefault(finding.check, []).append(finding)
    lock, receipt = subject.records
    facts: dict[str, Any] = {
        "env": f"{receipt.lock_sha256[:16]} {built.directory.name}",
        "envsmith": envsmith.__version__,
        **of_host(capture(no_run=True, no_files=True, environ=environ).host),
        "mounts": of_mounts(_mountinfo(), _folders(subject, around)),
    }
    ray = next((wheel.version for wheel in lock.wheels if wheel.name == "ray"), None)
    facts |= {"ray": ray} if ray else {}
    launched = _launched(subject, around, environ)
    facts |= of_process(launched, _digests(launched, subject))
    if request.worker is not None:
        seen = parse_facts(Path(request.worker).read_text(encoding="utf-8"))
        facts |= of_process(seen, _digests(seen, subject), prefix=f"{WORKER}-")
        families[WORKER] = list(_judged(subject, environ, around, launched, seen))
    rows = {name: tuple(one.to_dict() for one in found) for name, found in families.items()}
    return built.name, Detail(families=rows, facts=facts)


def worker_request(subject: Subject, environ: Mapping[str, str]) -> Request:
    """What is asked of both processes."""
    expected = expectation(subject)
    names = {*expected.roots, *expected.editable}
    launch = resolved(subject.launch, subject.directory, environ)
    return Request(
        context=WORKER,
        locate=tuple(sorted(names)),
        imports=tuple(name for name in IMPORTED if name in names),
        environ_names=Intended(launch=launch, forwarded=subject.launch.forwarded).watched,
        maps=True,
    )


def _launched(subject: Subject, around: Surroundings, environ: Mapping[str, str]) -> Facts:
    asked = replace(worker_request(subject, environ), context="launched")
    return probe(subject.executable, asked, env={**around.launched, "HF_HUB_OFFLINE": "1"}, timeout_s=300)


def _judged(
    subject: Subject, environ: Mapping[str, str], around: Surroundings, launched: Facts, seen: Facts
) -> Iterator[Finding]:
    """Hold a worker against a launched process of its node, as the child chain holds a level against its parent."""
    intended = intention(subject, environ, _launch(around))
    chain = (
        Level(name="launched", parent=None, facts=launched),
        Level(name=WORKER, parent="launched", facts=seen),
    )
    found = (
        *check_contexts(intended, chain, ()),
        *check_level_maps(expectation(subject), chain[1:], libraries(subject)),
    )
    yield from (replace(without_secrets(finding), check=WORKER) for finding in found)


def _launch(around: Surroundings) -> LaunchEnvironment:
    assert around.launch is not None, "an env of ours has a launch table"
    return around.launch


def _folders(subject: Subject, around: Surroundings) -> Iterator[str]:
    """Folders whose mounts decide: the env, the interpreter's, and where processes write."""
    yield subject.env_dir
    yield str(subject.executable.resolve().parent)
    for name in ("HOME", "TMPDIR", "RAY_TMPDIR"):
        if around.launched.get(name, "").startswith("/"):
            yield around.launched[name]
    yield "/dev/shm"


def _mountinfo() -> str:
    try:
        with Path("/proc/self/mountinfo").open("rb") as stream:
            return stream.read(MAPS_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _digests(facts: Facts, subject: Subject) -> dict[str, str]:
    """The bytes of mapped files outside the env: the machine's own libraries."""
    inside = f"{subject.env_dir}/"
    outside = (one.path for one in facts.maps if not one.deleted and not one.path.startswith(inside))
    return dict(_hashed(outside))


def _hashed(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    for path in paths:
        try:
            size = os.stat(path).st_size  # noqa: PTH116
            if not Path(path).is_file() or size > _HASHED_BYTES:
                yield path, f"{size} bytes"
                continue
            with Path(path).open("rb", buffering=0) as stream:
                yield path, sha256_stream(stream)[:24]
        except OSError as error:
            yield path, f"unreadable ({error.strerror})"
