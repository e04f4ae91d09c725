"""`envsmith verify --fleet` and `--collect`: the same look on every node, reduced to one answer."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from envsmith.commands.depth import Depth
from envsmith.commands.envs import BuiltEnv, env_root, open_env, shown, user_path
from envsmith.commands.fleet_node import DETAILS, NodeRequest, answer_here, node_name, worker_request
from envsmith.commands.launching import prepared, resolved
from envsmith.commands.raylet_check import has_ray, with_ray
from envsmith.commands.result import Result
from envsmith.commands.screen import Screen
from envsmith.commands.subject import open_with_work
from envsmith.commands.workcopies import work_dirs
from envsmith.errors import InputError, NegativeAnswer, Problem, StepError, SupplyError
from envsmith.fleet import (
    LIMIT_BYTES,
    RUBBISH,
    Detail,
    NodeAnswer,
    Silent,
    arrived,
    is_node_name,
    read_answer,
    read_detail,
)
from envsmith.fleetreduce import Reduction, needed, reduce, with_details
from envsmith.fleettext import data, text
from envsmith.probe import PAYLOAD as OBSERVE
from envsmith.tools.files import filesystem, write_atomic
from envsmith.tools.process import Begun, without_frames

PAYLOAD: Final = Path(__file__).parent.parent / "probe" / "rayfleet.py"
TIMEOUT_S: Final = 300.0
#: What joining the cluster, the clocks and the details may take besides.
_GRACE_S: Final = 240.0
_POLL_S: Final = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What the command line asks for."""

    fleet: str | None = None
    address: str | None = None
    collect: str | None = None
    nodes: str | None = None
    """How many nodes there should be, or their names with commas between."""
    timeout_s: float | None = None
    root: str | None = None
    unheard: tuple[str, ...] = ()
    """Options given besides that say nothing about a fleet."""

    @property
    def limit_s(self) -> float:
        """Seconds that a node may take."""
        return self.timeout_s or TIMEOUT_S


def run(
    envs: tuple[str, ...], depth: Depth, wishes: Wishes, *, environ: Mapping[str, str], screen: Screen
) -> Result:  # fmt: skip
    """Ask a fleet, answer for this node, or reduce the answers of a folder.

    Raises:
        InputError: `usage`, `collect-folder-missing`.
        NegativeAnswer: `fleet-without-ray`, `ray-version-differs`, `env-incomplete`.
        SupplyError: `ray-unreachable`.
        StepError: `fleet-failed`.
    """
    _require_usable(envs, wishes)
    expected = _expected(wishes.nodes)
    if wishes.collect is not None and not envs:
        return _collected(user_path(wishes.collect), expected)
    root = env_root(wishes.root, environ)
    built = open_env(envs[0], root)
    if wishes.collect is not None:
        return _answered(built, root, depth, user_path(wishes.collect), environ, screen)
    return _under_ray(built, root, depth, wishes, expected, environ, screen)


def _require_usable(envs: tuple[str, ...], wishes: Wishes) -> None:
    wrong = None
    if wishes.unheard:
        wrong = f"`{wishes.unheard[0]}` says nothing about a fleet", "leave it out, or verify one node with it"
    elif wishes.fleet and wishes.collect:
        wrong = "`--fleet` and `--collect` are two ways to ask a fleet", "give one of them"
    elif wishes.fleet and len(envs) != 1:
        wrong = f"`--fleet` takes one ENV, not {len(envs)}", "name the env that the nodes should have"
    elif wishes.collect and len(envs) > 1:
        wrong = "`--collect` takes one ENV, or none to reduce", "collect each env into a folder of its own"
    elif wishes.address and not wishes.fleet:
        wrong = "`--address` says where a Ray cluster is", "give `--fleet ray` too"
    elif wishes.nodes and wishes.collect and envs:
        wrong = "`--nodes` is for whoever reduces", "leave it out on a node, or leave ENV out"
    elif wishes.timeout_s is not None and not 1 <= wishes.timeout_s <= 86400:
        wrong = f"`--timeout {wishes.timeout_s:g}` is no time limit", "give 1 to 86400 seconds"
    elif (wishes.nodes or wishes.timeout_s) and not (wishes.fleet or wishes.collect):
        wrong = "`--nodes` and `--timeout` are about a fleet", "give `--fleet ray` or `--collect DIR` too"
    if wrong:
        raise InputError(Problem(code="usage", message=wrong[0], hint=wrong[1]))


def _expected(nodes: str | None) -> tuple[str, ...] | int | None:
    if nodes is None:
        return None
    if nodes.isdecimal() and len(nodes) < 8:
        return int(nodes)
    names = tuple(name.strip() for name in nodes.split(",") if name.strip())
    wrong = [name for name in names if not is_node_name(name)]
    if wrong or not names:
        raise InputError(
            Problem(
                code="usage",
                message=f"`--nodes {nodes}` names no nodes",
                hint="give how many there should be, or their names with commas between",
            )
        )
    return names


# --- any launcher: a folder of answers ---


def _answered(
    built: BuiltEnv, root: Path, depth: Depth, folder: Path, environ: Mapping[str, str], screen: Screen
) -> Result:
    """This node's part; what it found is for whoever reduces, so the answer is yes when there is one."""
    node = node_name(environ)
    with filesystem(folder):
        folder.mkdir(parents=True, exist_ok=True)
    request = NodeRequest(
        env=str(built.directory), node=node, out=str(folder), depth=replace(depth, shell=False), root=str(root),
        environ=environ,
    )  # fmt: skip
    said = answer_here(request, screen)
    path = folder / f"{node}.json"
    words = f"{node}: wrote {shown(path)}" if said else f"{node}: nothing could be looked at; {shown(path)} says why"
    return Result(command="verify", data={"node": node, "answer": str(path)}, text=words, exit_code=0 if said else 1)


def _collected(folder: Path, expected: tuple[str, ...] | int | None) -> Result:
    if not folder.is_dir():
        raise InputError(
            Problem(
                code="collect-folder-missing",
                message="there is no folder of answers",
                where=shown(folder),
                hint="each node writes its answer with `envsmith verify ENV --collect DIR`, DIR on a shared disk",
            )
        )
    envs: set[str] = set()
    reduction = reduce(_heard(_answers(folder), envs), expected)
    reduction = with_details(reduction, lambda node: _detail(folder, node))
    return _result(reduction, ", ".join(sorted(envs)) or shown(folder), {})


def _answers(folder: Path) -> Iterator[NodeAnswer | Silent]:
    """What lies in a folder, by name; files that are on their way have another suffix and do not count."""
    for path in sorted(folder.glob("*.json")):
        if not is_node_name(path.stem):
            yield Silent(node=repr(path.stem), reason=RUBBISH, message="the file is named like no node")
            continue
        yield _answer(path)


def _answer(path: Path) -> NodeAnswer | Silent:
    try:
        with path.open("rb") as stream:
            return read_answer(stream.read(LIMIT_BYTES + 1), path.stem)
    except OSError as error:
        return Silent(node=path.stem, reason=RUBBISH, message=f"its answer cannot be read: {error.strerror}")


def _heard(answers: Iterator[NodeAnswer | Silent], envs: set[str]) -> Iterator[NodeAnswer | Silent]:
    for answer in answers:
        if isinstance(answer, NodeAnswer):
            envs.add(answer.env)
        yield answer


def _detail(folder: Path, node: str) -> Detail | None:
    path = folder / DETAILS / f"{node}.json"
    try:
        return read_detail(path.read_bytes()) if path.is_file() else None
    except OSError:
        return None


# --- Ray ---


def _under_ray(
    built: BuiltEnv,
    root: Path,
    depth: Depth,
    wishes: Wishes,
    expected: tuple[str, ...] | int | None,
    environ: Mapping[str, str],
    screen: Screen,
) -> Result:
    started = time.monotonic()
    if built.receipt is None or not has_ray(built.directory):
        why = "has no receipt of envsmith" if built.receipt is None else "has no Ray"
        raise NegativeAnswer(
            Problem(
                code="fleet-without-ray",
                message=f"the env {why}, so its own interpreter cannot ask a Ray cluster",
                where=shown(built.directory),
                hint="with another launcher let each node run `envsmith verify ENV --collect DIR`",
            )
        )
    out = Path(tempfile.mkdtemp(prefix="envsmith-fleet-"))
    try:
        (out / DETAILS).mkdir()
        child = _begin(built, root, depth, wishes, out, environ, screen)
        try:
            reduction, cluster = _ask(child, out, wishes, expected, screen)
        finally:
            child.kill()
    finally:
        shutil.rmtree(out, ignore_errors=True)
    more = {"cluster": cluster, "in": f"{time.monotonic() - started:.1f} s"}
    return _result(reduction, built.name, more)


def _begin(
    built: BuiltEnv,
    root: Path,
    depth: Depth,
    wishes: Wishes,
    out: Path,
    environ: Mapping[str, str],
    screen: Screen,
) -> Begun:
    """Start the driver in the launch environment, as `envsmith run` would start the job's."""
    subject = open_with_work(built)
    launch = resolved(subject.launch, subject.directory, environ, work_dirs(subject.work))
    ready = prepared(launch, environ)
    request = NodeRequest(env=str(built.directory), node="", out="", depth=depth, root=str(root))
    task = {
        "address": wishes.address or environ.get("RAY_ADDRESS"),
        "out": str(out),
        "timeout_s": wishes.limit_s,
        "node": {
            "python": sys.executable,
            "package": str(Path(__file__).resolve().parents[2]),
            "observe": OBSERVE.read_text(encoding="utf-8"),
            "probe": json.loads(worker_request(subject, environ).to_json()),
            "request": json.loads(request.to_json()),
            "places": {name: environ[name] for name in ("ENVSMITH_HOME", "ENVSMITH_SCRATCH") if name in environ},
            "limit_s": wishes.limit_s,
        },
    }
    path = out / "task"
    write_atomic(path, json.dumps(task), mode=0o600)
    whole = with_ray(built.directory, ready.launch, ready.environment, screen)
    whole = {name: value for name, value in whole.items() if name != "RAY_ADDRESS"}  # the task has it
    argv = (subject.executable, "-B", PAYLOAD, path)
    return Begun(argv, env={**whole, "PYTHONDONTWRITEBYTECODE": "1"}, cwd=out, log=out / "said")


def _ask(
    child: Begun, out: Path, wishes: Wishes, expected: tuple[str, ...] | int | None, screen: Screen
) -> tuple[Reduction, str]:
    screen.say("asking every node of the Ray cluster")
    first = _await(child, out, ("round.json", "end.json"), wishes.limit_s + _GRACE_S)
    _require_joined(first)
    nodes = [node["name"] for node in first["nodes"]]
    screen.say(f"{len(nodes)} nodes at {first['address']}, {len(first['arrived'])} answered")
    wanted = expected if expected is not None else nodes
    reduction = reduce(_ray_answers(out, first), wanted, wishes.limit_s)
    write_atomic(out / "wanted.json", json.dumps(needed(reduction)))
    _await(child, out, ("end.json",), _GRACE_S)
    return with_details(reduction, lambda node: _detail(out, node)), first["address"]


def _ray_answers(out: Path, first: Mapping[str, Any]) -> Iterator[NodeAnswer | Silent]:
    for one in first["silent"]:
        yield Silent(node=one["node"], reason=one["reason"], message=without_frames(one["message"]))
    for node, (after_s, offset_s) in first["arrived"].items():
        answer = _answer(out / f"{node}.json")
        yield answer if isinstance(answer, Silent) else arrived(answer, after_s=after_s, clock_offset_s=offset_s)


def _await(child: Begun, out: Path, names: Sequence[str], limit_s: float) -> dict[str, Any]:
    """Wait for one of the payload's files.

    Raises:
        StepError: `fleet-failed`.
    """
    deadline = time.monotonic() + limit_s
    while True:
        over = child.ended()
        for name in names:
            if (out / name).is_file():
                read: dict[str, Any] = json.loads((out / name).read_text(encoding="utf-8"))
                return read
        if over is not None or time.monotonic() > deadline:
            words = f"ended with exit code {over}" if over is not None else f"did not end within {limit_s:.0f} s"
            said = without_frames((out / "said").read_text(encoding="utf-8", errors="replace")).strip().splitlines()
            raise StepError(
                Problem(
                    code="fleet-failed",
                    message=f"the driver that asks the nodes {words}" + (f"; it last said: {said[-1]}" if said else ""),
                    hint="`envsmith run ENV -- ray status` shows whether the cluster works",
                )
            )
        time.sleep(_POLL_S)


def _require_joined(first: Mapping[str, Any]) -> None:
    refused = first.get("refused")
    if not refused:
        return
    details = {"expected": refused["expected"], "actual": refused["actual"]}
    if refused["code"] == "ray-version-differs":
        hint = (
            "end that cluster with its own `ray stop`, and start it in the env: `envsmith run ENV -- ray start --head`"
        )
        raise NegativeAnswer(Problem(code="ray-version-differs", message=refused["message"], hint=hint, **details))
    hint = "name the address of its head with `--address HOST:PORT`; `ray start --head` prints it"
    raise SupplyError(Problem(code="ray-unreachable", message=refused["message"], hint=hint, **details))


def _result(reduction: Reduction, env: str, more: Mapping[str, str]) -> Result:
    return Result(
        command="verify",
        data={"env": env, "fleet": data(reduction), **({"cluster": more["cluster"]} if "cluster" in more else {})},
        text=text(reduction, env, more),
        exit_code=1 if reduction.failed else 0,
    )
