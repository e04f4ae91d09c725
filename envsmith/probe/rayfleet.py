"""The payload of a fleet under Ray: ask every node of a running cluster, from the env's own interpreter.

    PYTHON -B rayfleet.py TASK.json

Standard library and the env's ray only. It speaks with whoever started it through files in the task's `out` folder,
each under a temporary name first:

    NODE.json, details/NODE.json   what a node answered; a detail only where it was asked for
    round.json                     the nodes, who gave no answer and why, when answers came and how clocks stand
    wanted.json                    from the caller: nodes whose details are to be fetched
    end.json                       all is done, or the cluster was refused and why

Facts of ray 2.56.1 (read and seen 2026-11-30): the GCS keeps the versions that a cluster was started with under
CLUSTER_METADATA; `ray.nodes()` keeps dead nodes; an actor with hard affinity to a dead node dies at once.
"""

import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

#: How long the caller may take to say what it wants, and a node to send its detail.
WANTED_S = 120.0
DETAIL_S = 60.0
CONNECT_S = 10.0
#: One look at what has arrived.
LOOK_S = 0.1
BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from envsmith.commands.fleet_node import main; main(sys.argv[2])"
TEXT_LIMIT = 600


class Refused(Exception):
    """The cluster is not to be used."""

    def __init__(self, code, message, expected=None, actual=None):
        super(Refused, self).__init__(message)
        self.answer = {"code": code, "message": message, "expected": expected, "actual": actual}


# -- on a node ----------------------------------------------------------------------------------------------------


class Node(object):
    """The actor: looks at its own process, lets envsmith look at the env in another one, and keeps the detail."""

    def __init__(self):
        self.kept = None

    def clock(self):
        return time.time()

    def look(self, task, name, node_id, address):
        """The node's answer as text. `task` is an argument so that Ray deserialises one, as every real job does."""
        folder = tempfile.mkdtemp(prefix="envsmith-node-")
        try:
            return self.answer(task, name, node_id, address, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def answer(self, task, name, node_id, address, folder):
        for path in (task["python"], os.path.join(task["package"], "envsmith", "__init__.py")):
            if not os.path.exists(path):
                return failed(name, "envsmith is not on this node: there is no " + path)
        space = {"__name__": "envsmith_probe"}
        exec(compile(task["observe"], "observe.py", "exec"), space)
        seen = space["collect"](task["probe"], space["Own"]())
        for distribution in seen["distributions"]:
            distribution["requires"] = []
        worker = os.path.join(folder, "worker.json")
        put(worker, seen)
        request = dict(
            task["request"], node=name, id=node_id, address=address, out=folder, worker=worker, environ=dict(os.environ)
        )
        asked = os.path.join(folder, "request.json")
        put(asked, request)
        os.chmod(asked, 0o600)
        said = self.run(task, folder, asked)
        answer, detail = os.path.join(folder, name + ".json"), os.path.join(folder, "details", name + ".json")
        if os.path.isfile(detail):
            self.kept = read(detail)
        return read(answer) if os.path.isfile(answer) else failed(name, "envsmith gave no answer there: " + said)

    def run(self, task, folder, asked):
        """A process of envsmith's own interpreter, without what the worker's variables would bring into it."""
        kept = ("HOME", "PATH", "LANG", "LC_ALL", "TMPDIR", "USER", "LOGNAME")
        env = dict((key, os.environ[key]) for key in kept if key in os.environ)
        env["PYTHONDONTWRITEBYTECODE"] = "1"
        env.update(task["places"])
        log = os.path.join(folder, "said")
        with io.open(log, "wb") as stream:
            command = [task["python"], "-I", "-B", "-c", BOOT, task["package"], asked]
            try:
                child = subprocess.Popen(
                    command,
                    env=env,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    preexec_fn=die_with_parent,
                )
                code = child.wait(task["limit_s"])
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                return "it did not end within %g s" % task["limit_s"]
            except OSError as error:
                return str(error)
        lines = read(log).strip().splitlines()
        return "exit code %d%s" % (code, "; it last said: " + lines[-1] if lines else "")

    def detail(self):
        return self.kept


def die_with_parent():
    import ctypes
    import signal

    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: no check outlives its worker


def failed(name, message):
    return json.dumps({"envsmith-fleet": 1, "node": name, "failed": message[:TEXT_LIMIT]})


def read(path):
    with io.open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read()


def put(path, value):
    with io.open(path + ".part", "w", encoding="utf-8") as stream:
        stream.write(value if isinstance(value, str) else json.dumps(value))
    os.rename(path + ".part", path)


# -- the cluster --------------------------------------------------------------------------------------------------


def join(ray, address):
    """Join the cluster, and none of another version or Python."""
    place = located(address)
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise Refused("ray-unreachable", "no Ray cluster answers at `%s`: %s" % (place, error))
    require_same(ray, metadata(place))
    try:
        ray.init(address=place, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    except Exception as error:
        code = "ray-version-differs" if "ersion mismatch" in str(error) else "ray-unreachable"
        raise Refused(code, "Ray does not join `%s`: %s" % (place, short(error)))
    return place


def located(address):
    """`host:port` of the GCS; without an address the one cluster that Ray itself would find."""
    if address and address != "auto":
        return address
    from ray._private import services

    try:
        return services.canonicalize_bootstrap_address_or_die("auto")
    except Exception as error:
        raise Refused("ray-unreachable", "there is no one Ray cluster to be found: " + short(error))


def metadata(place):
    """What the cluster was started with; None where this release of Ray has it elsewhere: `ray.init` judges then."""
    try:
        from ray._raylet import GcsClient

        client = GcsClient(address=place)
        found = client.internal_kv_get(b"CLUSTER_METADATA", b"cluster", CONNECT_S)
        return json.loads(found.decode("utf-8")) if found else None
    except Exception as error:
        sys.stderr.write("the cluster's versions cannot be read: %s\n" % short(error))
        return None


def require_same(ray, there):
    mine = {"ray": ray.__version__, "python": "%d.%d.%d" % sys.version_info[:3]}
    if not there:
        return
    theirs = {"ray": there.get("ray_version"), "python": there.get("python_version")}
    off = [name for name in ("ray", "python") if theirs[name] and theirs[name] != mine[name]]
    if off:
        raise Refused(
            "ray-version-differs",
            "the cluster was started with another %s than the env's" % " and ".join(off),
            ", ".join("%s %s" % (name, mine[name]) for name in off),
            ", ".join("%s %s" % (name, theirs[name]) for name in off),
        )


def nodes_of(ray):
    """The nodes, each with a name that no other has; one that died and came back is there once."""
    every = ray.nodes()
    alive = set(node["NodeManagerAddress"] for node in every if node["Alive"])
    every = [node for node in every if node["Alive"] or node["NodeManagerAddress"] not in alive]
    hosts = [node["NodeManagerHostname"] for node in every]
    addresses = [node["NodeManagerAddress"] for node in every]
    found = []
    for node in every:
        name = node["NodeManagerHostname"] or node["NodeManagerAddress"]
        if hosts.count(node["NodeManagerHostname"]) > 1:
            name += "-" + node["NodeManagerAddress"]
            if addresses.count(node["NodeManagerAddress"]) > 1:
                name += "-" + node["NodeID"][:8]
        found.append(
            {"name": name, "id": node["NodeID"], "address": node["NodeManagerAddress"], "alive": bool(node["Alive"])}
        )
    return sorted(found, key=lambda one: one["name"])


# -- the rounds ---------------------------------------------------------------------------------------------------


class Round(object):
    """Every node asked at once, and what came of it until the limit."""

    def __init__(self, ray, task, nodes):
        self.ray, self.task, self.nodes = ray, task, nodes
        self.silent, self.arrived, self.actors = {}, {}, {}

    def go(self):
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ray, started = self.ray, time.time()
        shared = dict(self.task["node"])
        actor, pending = ray.remote(Node), {}
        for node in self.nodes:
            if not node["alive"]:
                self.lost(node, "dead", "Ray lists it as dead")
                continue
            strategy = NodeAffinitySchedulingStrategy(node_id=node["id"], soft=False)
            one = actor.options(num_cpus=0, max_restarts=0, scheduling_strategy=strategy).remote()
            self.actors[node["name"]] = one
            pending[one.look.remote(shared, node["name"], node["id"], node["address"])] = node
        limit = self.task["timeout_s"]
        while pending and time.time() - started < limit:
            ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=LOOK_S)
            for ref in ready:
                self.take(ref, pending.pop(ref), time.time() - started)
        self.late(pending.values(), limit)

    def take(self, ref, node, after_s):
        try:
            text = self.ray.get(ref)
        except Exception as error:
            gone = "Actor" in type(error).__name__ or "Unschedulable" in type(error).__name__
            self.lost(node, "dead" if gone and not self.is_alive(node) else "failed", short(error))
            return
        put(os.path.join(self.task["out"], node["name"] + ".json"), text)
        self.arrived[node["name"]] = [round(after_s, 3), self.offset(node["name"])]

    def offset(self, name):
        """How far a node's clock is ahead, by the middle of one call."""
        try:
            before = time.time()
            there = self.ray.get(self.actors[name].clock.remote(), timeout=5)
            return round(there - (before + time.time()) / 2, 4)
        except Exception:
            return None

    def late(self, nodes, limit):
        nodes = list(nodes)
        alive = dict((node["NodeID"], node["Alive"]) for node in self.ray.nodes()) if nodes else {}
        for node in nodes:
            if alive.get(node["id"]):
                self.lost(node, "late", "it gave no answer within %g s, and Ray holds it to be alive" % limit)
            else:
                self.lost(node, "dead", "it gave no answer, and Ray now lists it as dead")

    def is_alive(self, node):
        return any(one["NodeID"] == node["id"] and one["Alive"] for one in self.ray.nodes())

    def lost(self, node, reason, message):
        self.silent[node["name"]] = {"node": node["name"], "reason": reason, "message": message}

    def fetch(self, names):
        """Details of the nodes that differ."""
        wanted = dict((self.actors[name].detail.remote(), name) for name in names if name in self.actors)
        ready, _ = self.ray.wait(list(wanted), num_returns=len(wanted), timeout=DETAIL_S) if wanted else ([], [])
        for ref in ready:
            try:
                text = self.ray.get(ref)
            except Exception as error:
                sys.stderr.write("no detail of %s: %s\n" % (wanted[ref], short(error)))
                continue
            if text:
                put(os.path.join(self.task["out"], "details", wanted[ref] + ".json"), text)


def short(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = ("%s: %s" % (type(error).__name__, " ".join(lines))) if lines else type(error).__name__
    return said[:TEXT_LIMIT]


def asked_for(out):
    """The nodes that the caller wants details of; nobody who says nothing is waited for without end."""
    path, started = os.path.join(out, "wanted.json"), time.time()
    while not os.path.exists(path):
        if time.time() - started > WANTED_S:
            return []
        time.sleep(0.02)
    return json.loads(read(path))


def main(argv):
    task = json.loads(read(argv[1]))
    out = task["out"]
    try:
        import ray

        place = join(ray, task["address"])
        nodes = nodes_of(ray)
        one = Round(ray, task, nodes)
        one.go()
        put(
            os.path.join(out, "round.json"),
            {
                "address": place,
                "nodes": nodes,
                "silent": [one.silent[name] for name in sorted(one.silent)],
                "arrived": one.arrived,
            },
        )
        one.fetch(asked_for(out))
        put(os.path.join(out, "end.json"), {})
    except Refused as error:
        put(os.path.join(out, "end.json"), {"refused": error.answer})
    sys.stderr.flush()
    os._exit(0)  # the driver's death ends the actors; Ray's own exit handlers could wait for a node that hangs


if __name__ == "__main__":
    main(sys.argv)
