"""The rung `ray-generate`: the same generation inside a Ray actor, and the actor's surroundings beside those outside.

The actor is called with an argument and a second time: Ray's first (de)serialisation loads pyarrow, so that an actor
without arguments is another process than the ones that train (facts/verify.md section 5).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .answering import Answer, Task, main, pick_device
from .continuing import TransformersEngine, model_folder
from .surroundings import check_launch, is_gone, mapped_libraries, origins, portrait, tail
from .tiny import prompts

MODULES = ("torch", "transformers", "tokenizers", "ray", "numpy", "pyarrow", "vllm", "verl", "safetensors")
LIBRARIES = ("libarrow.so", "libnccl.so", "libcudart", "libcuda.so")
TOKENS = 32
#: Ray puts sockets of up to 60 characters below its folder, and a socket's path has at most 107 bytes (AF_UNIX).
LONGEST_FOLDER = 40
STORE_BYTES = 96 << 20
#: Folders of Ray's own that it puts in front of a worker's path.
RAYS_OWN = ("ray/thirdparty_files", "ray/_private", "ray/core")


def look(folder: str, device: str, seed: int, texts: list[str], wanted: list[str]) -> dict[str, Any]:
    """What a process sees and generates; run outside and inside in the same way."""
    engine = TransformersEngine(Path(folder), device, seed)
    tokens = engine.greedy(texts, TOKENS)
    with contextlib.suppress(ModuleNotFoundError):
        __import__("pyarrow")
    seen = portrait(wanted) | {"tokens": tokens, "origins": origins(MODULES), "libraries": mapped_libraries(*LIBRARIES)}
    engine.close()
    return seen


class Actor:
    """What runs in Ray's worker."""

    def look(self, folder: str, device: str, seed: int, texts: list[str], wanted: list[str]) -> dict[str, Any]:
        """As the function outside."""
        return look(folder, device, seed, texts, wanted)


def run(task: Task, answer: Answer) -> None:
    """Generate outside, then twice in an actor, compare, and see the actor gone."""
    device = pick_device(answer)
    folder = model_folder(task)
    engine = TransformersEngine(folder, device, task.seed)
    texts = prompts(engine.tokenizer, 2)
    engine.close()
    asked = (str(folder), device, task.seed, texts, sorted(task.launch))
    outside = look(*asked)
    with ray_folder() as place:
        pids = inside(task, answer, place, asked, outside)
        keep_logs(place, task)
    left = [pid for pid in pids if not is_gone(pid)]
    if not pids:
        return
    answer.check("actor-end", not left, "the actor's process has ended with Ray",
                 otherwise="the actor's process outlives Ray", actual=left or None)  # fmt: skip


def inside(task: Task, answer: Answer, place: Path, asked: tuple[Any, ...], outside: dict[str, Any]) -> list[int]:
    """Run the actor and compare; returns the actor's process id."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    answer.figures["ray_version"] = ray.__version__
    try:
        started = time.monotonic()
        begin(place)
        answer.figures["ray_start_s"] = round(time.monotonic() - started, 2)
        actor = ray.remote(num_cpus=1, num_gpus=0 if asked[1] == "cpu" else 1)(Actor).remote()
        seen = []
        for call in ("first", "second"):
            started = time.monotonic()
            wanted = actor.look.remote(asked[0], *actor_device(asked))
            seen.append(ray.get(wanted, timeout=max(20.0, task.timeout_s * 0.6)))
            answer.figures[f"{call}_call_s"] = round(time.monotonic() - started, 2)
    except Exception as error:
        say_failed(error, place, answer)
        return []
    finally:
        ray.shutdown()
    for found, which in zip(seen, ("the actor's first call", "the actor's second call"), strict=True):
        compare(task, answer, outside, found, which)
    pids = {found["pid"] for found in seen}
    answer.check("actor-stays", len(pids) == 1, "both calls ran in the same process")
    return sorted(pids)


def begin(place: Path) -> None:
    """Start a Ray of our own, whatever RAY_ADDRESS says."""
    import ray

    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        object_store_memory=STORE_BYTES,
        _temp_dir=str(place),
        log_to_driver=False,
        configure_logging=False,
    )


def actor_device(asked: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments after the folder; in an actor the one GPU that Ray gives it has the number 0."""
    return ("cpu" if asked[1] == "cpu" else "cuda:0", *asked[2:])


def say_failed(error: Exception, place: Path, answer: Answer) -> None:
    """State Ray's own error, with what the worker's log says last."""
    text = str(error)
    kind = type(error).__name__
    if "Version mismatch" in text or ("version" in text.lower() and "mismatch" in text.lower()):
        what, message = "ray-worker-other-python", "Ray's processes run with different versions of Python or Ray"
    elif "ActorDied" in kind or "WorkerCrashed" in kind or "ActorUnavailable" in kind:
        what, message = "ray-actor-died", "the actor's process ended before it answered"
    elif "GetTimeout" in kind:
        what, message = "ray-no-answer", "the actor did not answer in time"
    else:
        what, message = "ray-failed", "Ray did not run the actor"
    answer.say(what, "failed", message, subject=kind, expected="a generation inside a Ray actor",
               actual=text.strip().splitlines()[-1] if text.strip() else kind, hint=last_words(place))  # fmt: skip


def last_words(place: Path) -> str:
    """The end of the youngest log of a worker that says something."""
    logs = [*place.glob("session_2*/logs/worker-*.err"), *place.glob("session_2*/logs/raylet.err")]
    logs = sorted((log for log in logs if log.stat().st_size), key=lambda log: log.stat().st_mtime)
    return f"{logs[-1].name}: {tail(logs[-1])}" if logs else "no worker wrote an error log"


def compare(task: Task, answer: Answer, outside: dict[str, Any], seen: dict[str, Any], which: str) -> None:
    """Tokens, interpreter, path, origins, variables and libraries: equal to outside."""
    # Ray gives an actor with a GPU its own choice of the visible ones.
    wanted = {name: value for name, value in task.launch.items() if name != "CUDA_VISIBLE_DEVICES"}
    check_launch(answer, wanted, seen["launch"], which)
    for what, keys in (
        ("ray-worker-other-python", ("executable", "prefix", "version")),
        ("ray-other-tokens", ("tokens",)),
    ):
        differing = [key for key in keys if outside[key] != seen[key]]
        for key in differing:
            answer.say(what, "failed", f"{which} has another `{key}` than outside", subject=key,
                       expected=shortened(outside[key]), actual=shortened(seen[key]))  # fmt: skip
        if not differing:
            answer.say(what.replace("other", "same"), "ok", f"{which} has the same {', '.join(keys)} as outside")
    compare_modules(answer, outside, seen, which)
    own, other = outside["libraries"], seen["libraries"]
    if own == other:
        answer.say("ray-same-libraries", "ok", f"{which} maps the same {len(own)} single-instance libraries as outside")
        return
    answer.say(
        "ray-other-libraries",
        "failed",
        f"{which} maps other single-instance libraries than outside",
        expected=", ".join(own),
        actual=", ".join(other),
        hint="look for LD_LIBRARY_PATH and for packages that bring a library of their own",
    )


def compare_modules(answer: Answer, outside: dict[str, Any], seen: dict[str, Any], which: str) -> None:
    """Where modules come from, and what stands on the path."""
    own, other = outside["origins"], seen["origins"]
    moved = [name for name in {**own, **other} if own.get(name) != other.get(name)]
    for name in moved:
        answer.say("ray-other-module", "failed", f"{which} has another `{name}` than outside", subject=name,
                   expected=own.get(name), actual=other.get(name),
                   hint="look for a `runtime_env`, PYTHONPATH or `.pth` file that the worker reads")  # fmt: skip
    if not moved:
        answer.say("ray-same-modules", "ok", f"{which} takes {len(own)} modules from the same files as outside")
    added = [entry for entry in clean(seen["path"]) if entry not in clean(outside["path"])]
    missing = [entry for entry in clean(outside["path"]) if entry not in clean(seen["path"])]
    if added or missing:
        answer.say("ray-other-path", "failed", f"{which} has another module path than outside",
                   expected=f"without {', '.join(added)}" if added else f"with {', '.join(missing)}",
                   actual=", ".join(clean(seen["path"])))  # fmt: skip


def clean(path: list[str]) -> list[str]:
    """A module path without the job's own folder and without what Ray adds of its own."""
    here = {"", str(Path.cwd()), str(Path(__file__).parent)}
    return [entry for entry in path if entry not in here and not any(own in entry for own in RAYS_OWN)]


def shortened(value: object) -> str:
    """A value as it is shown."""
    return str(value)[:200]


@contextlib.contextmanager
def ray_folder() -> Iterator[Path]:
    """A folder with a path short enough for Ray's sockets, below RAY_TMPDIR where that is short enough."""
    wanted = os.environ.get("RAY_TMPDIR", "")
    parents = [parent for parent in (wanted, tempfile.gettempdir(), "/tmp") if parent and Path(parent).is_dir()]
    parent = next((parent for parent in parents if len(parent) + 8 <= LONGEST_FOLDER), "/tmp")
    place = Path(tempfile.mkdtemp(prefix="r", dir=parent))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def keep_logs(place: Path, task: Task) -> None:
    """Copy Ray's logs into the rung's folder; its own folder goes."""
    for logs in place.glob("session_2*/logs"):
        with contextlib.suppress(OSError, shutil.Error):
            shutil.copytree(logs, task.folder / "ray-logs", dirs_exist_ok=True, symlinks=True)


if __name__ == "__main__":
    # Ray sends what `__main__` defines by value; under its own name the worker imports the module from the disk.
    import importlib

    main(importlib.import_module(f"{__package__}.ray_generate").run)
