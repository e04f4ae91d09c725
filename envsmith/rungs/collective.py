"""The rung `collective`: n ranks, each gives its number, and every rank must hear what all of them together make.

NCCL where every rank has a GPU of its own, else gloo. It shows that the launcher gave every rank the same interpreter,
torch and variables, and that their messages arrive; it says nothing about links that the sizes here do not fill.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from .answering import Answer, Task, main, pick_device, sha256_of
from .reductions import all_reduce_types
from .surroundings import check_launch, launch_here, mapped_libraries

BANDWIDTH_BYTES = 64 << 20
REPEATS = 3
#: The stages in their order; every rank leaves word in the rung's folder before it enters one.
STAGES = (
    "connect",
    "all-reduce",
    "all-reduce-types",
    "broadcast",
    "all-gather",
    "compare",
    "bandwidth",
    "barrier",
    "end",
)


def run(task: Task, answer: Answer) -> None:
    """Go through all stages; when one fails, say which ranks did not come to it."""
    check_launch(answer, task.launch, launch_here(task.launch), f"rank {task.rank}")
    device, backend = choose(answer)
    stage = STAGES[0]
    try:
        for stage in STAGES:
            leave_word(task, stage)
            DEEDS[stage](task, answer, device, backend)
    except Exception as error:
        time.sleep(1.0)  # a healthy rank may be a moment behind
        missing = absent(task, stage)
        answer.say(
            "rank-missing" if missing else "collective-failed",
            "failed",
            f"rank {task.rank} waited in `{stage}` for ranks that did not come there" if missing
            else f"`{stage}` failed although every rank came to it",
            subject=", ".join(f"rank {rank}" for rank in missing) or f"rank {task.rank}",
            expected=f"all {world()} ranks in `{stage}` within {patience_s(task):g} s",
            actual=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            hint="read the logs of these ranks" if missing else "set NCCL_DEBUG=INFO and read this rank's log",
        )  # fmt: skip
        answer.write(task)
        raise


def world() -> int:
    """Number of ranks."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def patience_s(task: Task) -> float:
    """How long a rank waits for others: well below the limit of the rung, so that it can still say who is missing."""
    return min(60.0, max(2.0, task.timeout_s / 4))


def choose(answer: Answer) -> tuple[str, str]:
    """Device and backend; more ranks than GPUs is said."""
    import torch

    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", str(world())))
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if devices >= ranks_here:
        return pick_device(answer), "nccl"
    if devices:
        answer.say(
            "gloo-instead-of-nccl",
            "warning",
            f"{ranks_here} ranks share {devices} GPUs, so they talk through gloo and nothing is shown about NCCL",
            expected=f"{devices} ranks at most",
            actual=ranks_here,
            hint="set `ranks` of this rung to the number of GPUs",
        )
    else:
        pick_device(answer)
    return "cpu", "gloo"


def leave_word(task: Task, stage: str) -> None:
    """Tell the other ranks, through the folder, that this one enters a stage."""
    path = task.folder / f"stage.{task.rank}"
    path.with_suffix(f".{task.rank}.part").write_text(stage)
    path.with_suffix(f".{task.rank}.part").replace(path)


def absent(task: Task, stage: str) -> list[int]:
    """Ranks that have not entered a stage."""
    late = []
    for rank in range(world()):
        path = task.folder / f"stage.{rank}"
        if not path.exists() or STAGES.index(path.read_text()) < STAGES.index(stage):
            late.append(rank)
    return late


def connect(task: Task, answer: Answer, device: str, backend: str) -> None:
    """Meet the other ranks where the environment says, as torchrun's children do."""
    import torch
    from torch import distributed

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0")
    more = {"device_id": torch.device(device)} if backend == "nccl" else {}
    if backend == "nccl":
        # What NCCL decides about transports it says nowhere but in its log; whoever set these wants them otherwise.
        os.environ.setdefault("NCCL_DEBUG", "INFO")
        os.environ.setdefault("NCCL_DEBUG_SUBSYS", "INIT,GRAPH,P2P,NET")
        os.environ.setdefault("NCCL_DEBUG_FILE", str(task.folder / f"nccl.{task.rank}.log"))
    distributed.init_process_group(
        backend, rank=task.rank, world_size=world(), timeout=timedelta(seconds=patience_s(task)), **more
    )
    answer.figures["backend_name"] = backend
    answer.figures["ranks_count"] = world()
    if world() == 1:
        answer.say("one-rank", "note", "there is one rank only: nothing is shown about messages between ranks")


def all_reduce(task: Task, answer: Answer, device: str, backend: str) -> None:
    """Every rank gives its number from 1 on."""
    import torch
    from torch import distributed

    number = torch.tensor([float(task.rank + 1)], device=device)
    distributed.all_reduce(number)
    expected, got = world() * (world() + 1) // 2, number.item()
    answer.figures["all_reduce_sum_number"] = got
    answer.check(
        "all-reduce",
        got == expected,
        f"the numbers of {world()} ranks make {expected} in rank {task.rank}",
        otherwise=f"rank {task.rank} has a wrong sum",
        expected=expected,
        actual=got,
    )


def broadcast(task: Task, answer: Answer, device: str, backend: str) -> None:
    """The last rank tells all others a row of numbers."""
    import torch
    from torch import distributed

    sender = world() - 1
    told = torch.arange(64, dtype=torch.float32, device=device) + sender
    row = told.clone() if task.rank == sender else torch.zeros(64, device=device)
    distributed.broadcast(row, src=sender)
    answer.check("broadcast", bool(torch.equal(row, told)), f"rank {task.rank} has what rank {sender} told")


def all_gather(task: Task, answer: Answer, device: str, backend: str) -> None:
    """Every rank brings other content; all must have all of it, in the order of the ranks."""
    import torch
    from torch import distributed

    def content(rank: int) -> Any:
        return (torch.arange(1 + rank, 17 + rank, dtype=torch.float32, device=device) ** 2) * (rank + 1)

    rows = [torch.empty(16, device=device) for _ in range(world())]
    distributed.all_gather(rows, content(task.rank))
    wrong = [rank for rank, row in enumerate(rows) if not torch.equal(row, content(rank))]
    answer.check(
        "all-gather",
        not wrong,
        f"rank {task.rank} has the content of all ranks in their order",
        otherwise=f"rank {task.rank} has wrong content of other ranks",
        subject=", ".join(f"rank {rank}" for rank in wrong) or None,
    )


def compare(task: Task, answer: Answer, device: str, backend: str) -> None:
    """Interpreter, torch and NCCL of all ranks must be the same."""
    import torch
    from torch import distributed

    mine = {
        "executable": sys.executable,
        "prefix": sys.prefix,
        "torch": f"{torch.__version__} from {torch.__file__}",
        "nccl": nccl_version(),
        "libnccl": ", ".join(mapped_libraries("libnccl")) or "none mapped",
    }
    answer.figures |= {
        "executable_path": mine["executable"],
        "torch_version": torch.__version__,
        "nccl_version": mine["nccl"],
        "libnccl_paths": mine["libnccl"],
    }
    if task.rank == 0:
        for path in mapped_libraries("libnccl"):
            answer.figures[f"{Path(path).name.split('.')[0]}_sha256"] = sha256_of(Path(path))
    everyone: list[Any] = [None] * world()
    distributed.all_gather_object(everyone, mine)
    differing = [key for key in mine if any(other[key] != mine[key] for other in everyone)]
    for key in differing:
        actual = "; ".join(f"rank {rank}: {other[key]}" for rank, other in enumerate(everyone))
        answer.say("ranks-differ", "failed", f"the ranks have different `{key}`", subject=key, actual=actual,
                   hint="start the ranks with this env's own python or torchrun")  # fmt: skip
    if backend == "nccl":
        check_origin(answer)
    if not differing:
        answer.say("ranks-agree", "ok", "all ranks have the same interpreter, torch and NCCL")


def nccl_version() -> str:
    """The version that the loaded NCCL says of itself."""
    import torch

    try:
        return ".".join(str(part) for part in torch.cuda.nccl.version())
    except (AttributeError, RuntimeError):
        return "none"


def bandwidth(task: Task, answer: Answer, device: str, backend: str) -> None:
    """Time the sum of 64 MiB; bus bandwidth counts what passes every rank's link, 2 (n - 1) / n of the bytes."""
    import torch
    from torch import distributed

    numbers = torch.ones(BANDWIDTH_BYTES // 4, device=device)
    distributed.all_reduce(numbers)
    times = []
    for _ in range(REPEATS):
        synchronise(device)
        started = time.perf_counter()
        distributed.all_reduce(numbers)
        synchronise(device)
        times.append(time.perf_counter() - started)
    expected = float(world()) ** (REPEATS + 1)
    answer.check(
        "all-reduce-large",
        bool((numbers == expected).all()),
        f"the sum of 64 MiB is right in rank {task.rank}",
        expected=expected,
        actual=f"{numbers.min().item()} to {numbers.max().item()}",
    )
    answer.figures["all_reduce_64_mib_ms"] = round(min(times) * 1000, 3)
    rate = BANDWIDTH_BYTES * 2 * (world() - 1) / world() / min(times)
    answer.figures["all_reduce_64_mib_bus_gb_per_s"] = round(rate / 1e9, 3)
    if backend == "nccl":
        transports(task, answer)


def transports(task: Task, answer: Answer) -> None:
    """Write down how NCCL reaches its peers: `channel … via P2P/CUMEM` and the like, as its log says (NCCL 2.28)."""
    import torch

    named = os.environ.get("NCCL_DEBUG_FILE", "")
    text = Path(named).read_text(errors="replace") if named and Path(named).is_file() else ""
    found = re.findall(r"Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\] (?:\[\w+\] )?via (\S+)", text)
    answer.figures["transports"] = ", ".join(sorted(set(found))) or "none said"
    answer.figures["transport_channels_count"] = len(found)
    network = re.findall(r"Using network (\w+)", text)
    answer.figures["network_name"] = network[0] if network else "none said"
    count = torch.cuda.device_count()
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    answer.figures["peer_access"] = ", ".join(
        f"{a}->{b}" for a, b in pairs if torch.cuda.can_device_access_peer(a, b)
    ) or "none"  # fmt: skip


def check_origin(answer: Answer) -> None:
    """The mapped libnccl must be the one that is installed for this torch, where one is installed for it."""
    from importlib import metadata

    ours = {
        os.path.realpath(str(file.locate()))
        for one in metadata.distributions()
        if (one.metadata["Name"] or "").lower().replace("_", "-").startswith("nvidia-nccl-")
        for file in one.files or ()
        if "libnccl" in file.name
    }
    mapped = [os.path.realpath(path) for path in mapped_libraries("libnccl.so")]
    strange = [path for path in mapped if path not in ours]
    if ours and mapped:
        answer.check(
            "nccl-origin",
            not strange,
            "the mapped libnccl is the installed one",
            otherwise="a libnccl is mapped that is not the installed one",
            subject=", ".join(strange) or None,
            expected=", ".join(sorted(ours)),
            actual=", ".join(mapped),
            hint="look for LD_PRELOAD, LD_LIBRARY_PATH and the loader's cache: `envsmith verify --only native`",
        )


def synchronise(device: str) -> None:
    """Wait until the device has done what it was told."""
    import torch

    if device != "cpu":
        torch.cuda.synchronize()


def barrier(task: Task, answer: Answer, device: str, backend: str) -> None:
    """Nobody goes on before all are here."""
    from torch import distributed

    distributed.barrier()


def end(task: Task, answer: Answer, device: str, backend: str) -> None:
    """Part properly: NCCL's threads otherwise end with the interpreter, in any order."""
    from torch import distributed

    distributed.destroy_process_group()


DEEDS: dict[str, Callable[[Task, Answer, str, str], None]] = {
    "connect": connect,
    "all-reduce": all_reduce,
    "all-reduce-types": all_reduce_types,
    "broadcast": broadcast,
    "all-gather": all_gather,
    "compare": compare,
    "bandwidth": bandwidth,
    "barrier": barrier,
    "end": end,
}


if __name__ == "__main__":
    main(run)
