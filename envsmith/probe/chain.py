"""The payload of the child chain: what do the processes load that frameworks start from the launched one?

    PYTHON -I -S chain.py door SAID PROGRAM ARG...    become PROGRAM, with stdout and stderr in the file SAID
    PYTHON chain.py spawn|fork|vllm|ray TASK.json     start the children of that context
    PYTHON chain.py rank|child TASK.json              be one child and report
    PYTHON chain.py libcuda TASK.json                 ask the driver's library and report

Every process writes its own answer, in the form of envsmith/facts.py, as <out>/<level>.json (temporary name, then
renamed). Nothing is answered on stdout: frameworks print there, and launchers splice what several ranks print.

It is a file with a main guard, because spawned children import the main module again: one fed through stdin dies
there (facts/symptoms.md D49). Like observe.py it must parse on 2.7 and run on 3.8; ray, torch and vllm are imported
from the probed env, and only by the contexts that are about them.
"""

import sys

if sys.version_info < (3, 8):
    sys.stderr.write("envsmith-probe: python too old\n")
    sys.exit(79)

import io
import json
import os

#: How much of the object store Ray gets: its own floor is 75 MiB.
OBJECT_STORE_BYTES = 80 * 1024 * 1024


def door(argv):
    """Become a program. Its output goes to a file, so that a child that outlives it cannot hold our pipes open."""
    said, program = argv[0], argv[1:]
    handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    os.execve(program[0], program, os.environ)


# -- reporting ----------------------------------------------------------------------------------------------------


def report(task, level):
    """Write down what this very process sees, under the name of its level.

    The probe's payload is loaded from its file, also in a Ray worker, which got these functions by value.
    """
    space = {"__name__": "envsmith_probe"}
    with io.open(task["collect"], encoding="utf-8") as stream:
        source = stream.read()
    exec(compile(source, task["collect"], "exec"), space)
    leave_out_scratch(task)
    answer = space["collect"](dict(task["request"], context=level), space["Own"]())
    for distribution in answer["distributions"]:
        distribution["requires"] = []
    put(task, level, answer)


def leave_out_scratch(task):
    """Take our own folders off sys.path: no program of the user has them, while his has its own there instead."""
    def ours(entry):
        real = os.path.realpath(entry or os.getcwd())
        return real == task["scratch"] or real.startswith(task["scratch"] + "/")

    sys.path[:] = [entry for entry in sys.path if not ours(entry)]


def put(task, level, answer):
    path = os.path.join(task["out"], level + ".json")
    with io.open(path + ".part", "w", encoding="utf-8") as stream:
        stream.write(json.dumps(answer, sort_keys=True))
    os.rename(path + ".part", path)


def import_all(task):
    """Import what the report will ask for; how it goes is the report's to say."""
    for name in task["request"]["imports"]:
        try:
            __import__(name)
        except BaseException as error:
            sys.stderr.write("import %s: %s: %s\n" % (name, type(error).__name__, error))


def await_child(child, task):
    """Start a multiprocessing child and see it end.

    Raises SystemExit with a sentence when it does not end well; a child that hangs is killed with our group.
    """
    child.start()
    child.join(task["limit_s"])
    if child.exitcode != 0:
        ended = "did not end in time" if child.exitcode is None else "ended with exit code %d" % child.exitcode
        if child.exitcode is None:
            child.kill()
        sys.stderr.write("the child %s\n" % ended)
        sys.stderr.flush()
        os._exit(1)


def leave():
    """End without exit handlers: threads of imported code must not hold or kill us once the answers are there."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


# -- the contexts -------------------------------------------------------------------------------------------------


def spawn(task):
    """A spawned child of a parent that imported nothing: what DataLoader workers and engines get under `spawn`."""
    import multiprocessing

    await_child(multiprocessing.get_context("spawn").Process(target=report, args=(task, "spawn")), task)


def fork(task):
    """A child forked after the parent imported everything: it inherits libraries, sys.path and edited variables."""
    import multiprocessing

    import_all(task)
    await_child(multiprocessing.get_context("fork").Process(target=report, args=(task, "fork")), task)


def rank(task):
    """One worker under torchrun."""
    report(task, "torchrun.%d" % int(os.environ["RANK"]))


def vllm(task):
    """A child of the kind that vLLM's engine manager starts for its EngineCore.

    Real: the parent imported vllm.v1.engine.utils; vLLM itself chooses the start method (VLLM_WORKER_MULTIPROC_METHOD,
    or spawn where it must); the child imports vllm.v1.engine.core. Not real without a GPU: no model, no CUDA context
    (with one vLLM would always choose spawn), no engine loop, no workers of a parallel group. A release without that
    function gets a spawned child, which is what every release does once CUDA is initialised.
    """
    import importlib
    import multiprocessing

    importlib.import_module("vllm.v1.engine.utils")
    context = None
    for name in ("vllm.v1.engine.utils", "vllm.utils.system_utils", "vllm.utils"):
        try:
            context = importlib.import_module(name).get_mp_context()
            break
        except (ImportError, AttributeError):
            continue
    if context is None:
        context = multiprocessing.get_context("spawn")
    request = dict(task["request"], imports=["vllm.v1.engine.core"] + list(task["request"]["imports"]))
    await_child(context.Process(target=report, args=(dict(task, request=request), "vllm"), name="EngineCore"), task)


def ray(task):
    """An actor of a private local cluster, called twice, and a clean child of it.

    It is called with an argument: only deserialising one makes a worker import pyarrow, which practically every real
    worker has (facts/verify.md, section 5). `address="local"` keeps it away from a cluster that is already running.
    """
    import ray as real_ray

    options = {"runtime_env": {"env_vars": task["runtime_env"]}} if task["runtime_env"] else {}
    real_ray.init(
        address="local", num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False,
        configure_logging=False, object_store_memory=OBJECT_STORE_BYTES, _temp_dir=task["ray_dir"], **options
    )
    try:
        worker = real_ray.remote(Worker).options(num_cpus=1).remote()
        calls = worker.look.remote(task, "ray"), worker.look.remote(task, "ray-second"), worker.child.remote(task)
        for call in calls:
            real_ray.get(call, timeout=task["limit_s"])
    finally:
        real_ray.shutdown()


class Worker(object):
    """The actor."""

    def look(self, task, level):
        report(task, level)

    def child(self, task):
        """Start what an engine process started by this worker would be: a new interpreter with its environment."""
        import subprocess

        with io.open(os.path.join(task["out"], "ray-child.said"), "wb") as said:
            command = [sys.executable, task["payload"], "child", task["path"]]
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                           timeout=task["limit_s"], check=True)


def child(task):
    """The clean child."""
    report(task, "ray-child")


# -- the driver's library -----------------------------------------------------------------------------------------


def libcuda(task):
    """Load libcuda.so.1 as every framework does, by its bare name, and ask it; nothing else is loaded before."""
    import ctypes

    answer = dict.fromkeys(("error", "init", "driver_version", "path", "version"))
    answer["loaded"] = False
    try:
        library = ctypes.CDLL("libcuda.so.1")
        answer["loaded"] = True
        answer["path"], answer["version"] = mapped_libcuda()
        put(task, "libcuda", answer)  # a broken driver may well kill the process in the next call
        answer["init"] = int(library.cuInit(0))
        version = ctypes.c_int(0)
        if library.cuDriverGetVersion(ctypes.byref(version)) == 0:
            answer["driver_version"] = version.value
    except (OSError, AttributeError) as error:
        answer["error"] = ("%s: %s" % (type(error).__name__, error))[:1000]
    put(task, "libcuda", answer)


def mapped_libcuda():
    """The file that is mapped, and the version that its name ends in."""
    with io.open("/proc/self/maps", encoding="utf-8", errors="backslashreplace") as stream:
        paths = [line.rstrip("\n").split(None, 5)[5] for line in stream if "/libcuda." in line]
    if not paths:
        return None, None
    path = os.path.realpath(paths[0])
    version = os.path.basename(path).partition(".so.")[2]
    return path, version if version.count(".") else None


def main(argv):
    if argv[1] == "door":
        door(argv[2:])
        return
    with io.open(argv[2], encoding="utf-8") as stream:
        task = json.load(stream)
    {"spawn": spawn, "fork": fork, "rank": rank, "vllm": vllm, "ray": ray, "child": child, "libcuda": libcuda}[argv[1]](
        task
    )
    leave()


if __name__ == "__main__":
    main(sys.argv)
