"""Which running Ray a command would join, what its workers would have otherwise, and how to mend that."""

from __future__ import annotations

import pytest

from envsmith.launch import LaunchTable, resolve
from envsmith.raylets import Raylet, differences, is_judged, joined, problem_of, raylet_of
from envsmith.running import RunningProcess

ENV = "/envs/a100-rl/0123456789ab"
TABLE = LaunchTable(
    unset=("PYTHONPATH", "PYTORCH_CUDA_ALLOC_CONF"),
    set={"VERL_ATTN_IMPLEMENTATION": "sdpa", "PYTHONNOUSERSITE": "1"},
)
#: What a raylet has that was started in the env.
RIGHT = {"VERL_ATTN_IMPLEMENTATION": "sdpa", "PYTHONNOUSERSITE": "1", "PATH": "/usr/bin", "TMPDIR": "/elsewhere"}


def raylet(
    environ: dict[str, str] | None = None,
    *,
    python: str = f"{ENV}/bin/python",
    address: str = "10.0.0.1:6379",
    pid: int = 7,
) -> Raylet:
    process = RunningProcess(
        pid=pid, parent=1, uid=0, name="raylet", started_ticks=1, executable=None, environ=environ,
        argv=(
            "/x/raylet", "--node_id=1",
            f'--python_worker_command="{python}" /x/setup_worker.py --gcs-address={address} --temp-dir=/tmp/ray',
            f"--gcs-address={address}",
        ),
    )  # fmt: skip
    found = raylet_of(process)
    assert found is not None
    return found


def names(table: LaunchTable, there: Raylet, *, work_dirs: tuple[str, ...] = ()) -> list[str]:
    launch = resolve(table, env_dir=ENV, scratch="/tmp/es0", work_dirs=work_dirs)
    return [one.name for one in differences(there, launch, launch.apply({"PATH": "/bin"}), ENV)]


def test_a_command_line_says_cluster_and_interpreter() -> None:
    there = raylet(python="/a b/bin/python3.11")
    assert (there.address, there.port, there.python) == ("10.0.0.1:6379", "6379", "/a b/bin/python3.11")
    for argv in (
        (),
        ("raylet",),
        ("raylet", "--gcs-address=a:1"),
        ("raylet", "--gcs-address=a:1", '--python_worker_command="'),
    ):
        assert raylet_of(RunningProcess(
            pid=1, parent=1, uid=0, name="raylet", argv=argv, started_ticks=1, executable=None)) is None  # fmt: skip


def test_a_ray_that_was_started_in_the_env_is_right() -> None:
    assert names(TABLE, raylet(RIGHT)) == []


def test_variables_of_another_start_shell_are_named() -> None:
    """Case D20: `ray start` ran in a shell that knew nothing of them."""
    there = {"TOKENIZERS_PARALLELISM": "true", "NCCL_DEBUG": "WARN", "VLLM_LOGGING_LEVEL": "WARN"}
    assert names(TABLE, raylet(there)) == ["VERL_ATTN_IMPLEMENTATION", "PYTHONNOUSERSITE"]
    assert names(TABLE, raylet({**RIGHT, "PYTHONPATH": "/old", "PYTORCH_CUDA_ALLOC_CONF": "x"})) == [
        "PYTHONPATH", "PYTORCH_CUDA_ALLOC_CONF",
    ]  # fmt: skip


def test_another_interpreter_is_named_even_where_the_variables_are_secret() -> None:
    """Case D19: the cluster runs Python 3.11.14 and the driver 3.12.12."""
    assert names(TABLE, raylet(RIGHT, python="/opt/py312/bin/python")) == ["python"]
    assert names(TABLE, raylet(RIGHT, python=f"{ENV}/bin/python3.11")) == []
    assert names(TABLE, raylet(None)) == []
    assert names(TABLE, raylet(None, python="/envs/a100-rl/ba9876543210/bin/python")) == ["python"]


@pytest.mark.parametrize(
    ("there", "found"),
    [
        ("/drv", []),
        ("/drv:/more", []),
        ("/drvx", ["LD_LIBRARY_PATH"]),
        ("/more:/drv", ["LD_LIBRARY_PATH"]),
        ("", ["LD_LIBRARY_PATH"]),
    ],
)
def test_of_a_library_path_the_first_elements_count(there: str, found: list[str]) -> None:
    table = LaunchTable(prepend={"LD_LIBRARY_PATH": "/drv"}, forward=("LD_LIBRARY_PATH",))
    assert names(table, raylet({"LD_LIBRARY_PATH": there})) == found


def test_a_work_copy_that_the_workers_lack_is_named() -> None:
    assert names(TABLE, raylet(RIGHT), work_dirs=("/home/me/verl",)) == ["PYTHONPATH"]
    assert names(TABLE, raylet({**RIGHT, "PYTHONPATH": "/home/me/verl"}), work_dirs=("/home/me/verl",)) == []


def test_what_ray_writes_itself_is_no_difference() -> None:
    table = LaunchTable(unset=("LD_PRELOAD",), set={"RAY_USAGE_STATS_ENABLED": "1"})
    assert names(table, raylet({"LD_PRELOAD": "/x/libjemalloc.so", "RAY_USAGE_STATS_ENABLED": "0"})) == []


ONE, TWO, FAR = raylet(pid=1), raylet(pid=2, address="10.0.0.1:6380"), raylet(pid=3, address="10.9.9.9:6379")


@pytest.mark.parametrize(
    ("named", "current", "expected"),
    [
        (None, None, []),
        (None, "10.0.0.1:6379", [ONE]),
        ("", "10.0.0.1:6380", [TWO]),
        (None, "10.0.0.1:1", []),
        ("10.0.0.1:6379", None, [ONE]),
        ("10.9.9.9:6379", "10.0.0.1:6379", [FAR]),
        ("127.0.0.1:6380", None, [TWO]),
        ("localhost:6380", None, [TWO]),
        ("[::1]:6380", None, [TWO]),
        ("127.0.0.2:6380", None, [TWO]),
        ("node7:6380", None, [TWO]),
        ("node8:6380", None, []),
        ("local", "10.0.0.1:6379", []),
        ("ray://10.0.0.1:10001", "10.0.0.1:6379", []),
        ("auto", "10.0.0.1:6380", [TWO]),
        ("auto", None, [ONE, TWO, FAR]),
    ],
)
def test_only_the_cluster_that_a_driver_would_join_counts(
    named: str | None, current: str | None, expected: list[Raylet]
) -> None:
    assert list(joined((ONE, TWO, FAR), named=named, current=current, names=("node7",))) == expected


def test_with_one_cluster_auto_finds_it_wherever_it_was_started() -> None:
    assert joined((ONE,), named="auto", current="10.0.0.1:1") == (ONE,)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("python train.py", True),
        (f"{ENV}/bin/ray stop", False),
        ("ray start --head", False),
        ("ray --logging-level debug status", False),
        ("ray job submit -- python x.py", True),
        ("ray --logging-level info job submit -- python x.py", True),
        ("ray job list", False),
        ("ray", False),
        ("python -m ray.scripts.scripts stop", False),
        ("python -m ray.scripts.scripts job submit -- x", True),
        ("bash stop.sh ray", True),
    ],
)
def test_rays_own_command_is_needed_to_mend(words: str, expected: bool) -> None:
    assert is_judged(words.split()) is expected


def test_the_error_names_the_process_the_way_and_no_secret() -> None:
    table = LaunchTable(set={"HF_TOKEN": "hunter2", "A": "1"})
    launch = resolve(table, env_dir=ENV, scratch="/tmp/es0")
    there = raylet({"HF_TOKEN": "hunter3"}, python="/o ther/bin/python", pid=4711)
    text = problem_of(there, differences(there, launch, launch.apply({}), ENV), "a100/rl").text()
    for part in ("raylet 4711", "10.0.0.1:6379", "`python`, `HF_TOKEN`, `A`", "A=1", "A not set",
                 "'/o ther/bin/ray' stop", "envsmith run a100/rl -- ray start"):  # fmt: skip
        assert part in text
    assert "hunter" not in text
