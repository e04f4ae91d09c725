"""The child chain as values: silent where a child sees what its parent sees, and one finding for each planted fault."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from envsmith.checks.contexts import Intended, check_contexts
from envsmith.checks.maps import Surroundings
from envsmith.checks.rows import context_rows, running_rows
from envsmith.checks.running import check_running
from envsmith.facts import Distribution, Facts, Fault, Level, MappedFile, Unstarted
from envsmith.launch import LaunchEnvironment
from envsmith.report import Finding, Severity
from envsmith.running import RunningProcess, chain_of
from tests.support.facts import BASE, CLEAN_PATH, ENV, PACKAGES, entry, expected, facts, module, python

SET = {
    "VIRTUAL_ENV": ENV,
    "PYTORCH_ALLOC_CONF": "expandable_segments:False",
    "VERL_ATTN_IMPLEMENTATION": "sdpa",
    "API_TOKEN": "hunter2",
}
LAUNCH = LaunchEnvironment(
    unset=("PYTHONPATH", "PYTORCH_CUDA_ALLOC_CONF"),
    set=tuple(SET.items()),
    prepend=(("PATH", f"{ENV}/bin"),),
    require=("ASCEND_HOME_PATH",),
    directories=(),
    profile=None,
)
INTENDED = Intended(launch=LAUNCH, forwarded=("VERL_ATTN_IMPLEMENTATION",))
ENVIRON = {**SET, "API_TOKEN": "(redacted)", "PATH": f"{ENV}/bin:/usr/bin", "ASCEND_HOME_PATH": "/opt/cann"}
ARROW = f"{PACKAGES}/pyarrow/libarrow.so.2400"


def level(name: str = "launched", parent: str | None = None, **changes: Any) -> Level:
    values: dict[str, Any] = {
        "environ": ENVIRON,
        "modules": {"ray": module("regular", f"{PACKAGES}/ray/__init__.py")},
        "maps": (MappedFile(path=ARROW, deleted=False),),
        "distributions": (distribution("ray", "2.56.1"),),
    }
    return Level(name=name, parent=parent, facts=facts(**{**values, **changes}))


def distribution(name: str, version: str, folder: str = PACKAGES) -> Distribution:
    metadata = f"{folder}/{name}-{version}.dist-info"
    return Distribution(name=name, version=version, metadata=metadata, requires=(), readable=True)


def judge(*levels: Level) -> list[Finding]:
    return list(check_contexts(INTENDED, levels, ()))


def environ(**changes: str | None) -> dict[str, str]:
    return {name: value for name, value in {**ENVIRON, **changes}.items() if value is not None}


def kinds(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.kind, finding.subject) for finding in found]


RAY_PATH = (entry(f"{PACKAGES}/ray/thirdparty_files"), entry(f"{PACKAGES}/ray/_private/workers"), *CLEAN_PATH)


def test_a_chain_that_sees_one_env_is_silent() -> None:
    """What frameworks add on purpose is known: torchrun's ranks, Ray's folders, its own psutil, its breakpoint."""
    ranks = environ(RANK="0", LOCAL_RANK="0", OMP_NUM_THREADS="1", MASTER_ADDR="h", TORCHELASTIC_RUN_ID="1")
    ray = level(
        "ray",
        "launched",
        environ=environ(PYTHONBREAKPOINT="ray.util.rpdb.set_trace", RAY_JOB_ID="1", CUDA_VISIBLE_DEVICES=""),
        path=RAY_PATH,
        distributions=(
            distribution("psutil", "7.2.2", f"{PACKAGES}/ray/thirdparty_files"),
            distribution("ray", "2.56.1"),
        ),
    )
    chain = (level(), level("spawn", "launched"), level("torchrun[0]", "launched", environ=ranks), ray)
    assert judge(*chain, level("ray-child", "ray")) == []


PLANTED = {
    "version": ({"python": python(version="3.12.12")}, ("context-interpreter", "version")),
    "prefix": ({"python": python(prefix="/o", real_prefix="/o")}, ("context-interpreter", "prefix")),
    "binary": ({"python": python(realpath="/usr/bin/python3.11")}, ("context-interpreter", "executable")),
    "entry more": ({"path": (*CLEAN_PATH, entry("/old/site-packages"))}, ("context-path", "/old/site-packages")),
    "entry less": ({"path": CLEAN_PATH[:-1]}, ("context-path", PACKAGES)),
    "order": ({"path": CLEAN_PATH[::-1]}, ("context-path", PACKAGES)),
    "module": ({"modules": {"ray": module("regular", "/o/ray/__init__.py")}}, ("context-module", "ray")),
    "namespace": ({"modules": {"ray": module("namespace", None, f"{PACKAGES}/ray")}}, ("context-module", "ray")),
    "package": ({"distributions": (distribution("ray", "2.53.0"),)}, ("context-package", "ray")),
    "package gone": ({"distributions": ()}, ("context-package", "ray")),
    "value": ({"environ": environ(PYTORCH_ALLOC_CONF="x")}, ("context-variable", "PYTORCH_ALLOC_CONF")),
    "D37": (
        {"environ": environ(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")},
        ("context-variable", "PYTORCH_CUDA_ALLOC_CONF"),
    ),
    "lost": ({"environ": environ(VIRTUAL_ENV=None)}, ("context-variable", "VIRTUAL_ENV")),
    "profile": ({"environ": environ(ASCEND_HOME_PATH=None)}, ("context-variable", "ASCEND_HOME_PATH")),
    "D20": (
        {"environ": environ(VERL_ATTN_IMPLEMENTATION=None)},
        ("variable-not-forwarded", "VERL_ATTN_IMPLEMENTATION"),
    ),
    "preload": ({"environ": environ(LD_PRELOAD="/x.so")}, ("context-variable", "LD_PRELOAD")),
    "path": ({"environ": environ(PATH="/usr/bin")}, ("context-variable", "PATH")),
    "empty": ({"environ": environ(PATH=f"{ENVIRON['PATH']}:")}, ("context-empty-element", "PATH")),
    "secret lost": ({"environ": environ(API_TOKEN=None)}, ("context-variable", "API_TOKEN")),
    "library": (
        {"maps": (MappedFile(path="/o/libarrow.so.2500", deleted=False),)},
        ("context-library", "libarrow"),
    ),
    "fault": ({"faults": (Fault(section="path", message="OSError"),)}, ("context-failed", "path")),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_at_the_first_level_and_not_again_below(name: str) -> None:
    changes, wanted = PLANTED[name]
    below = {key: value for key, value in changes.items() if key != "faults"}
    found = judge(level(), level("ray", "launched", **changes), level("ray-child", "ray", **below))

    assert kinds(found) == [wanted]
    assert found[0].message.endswith("first changes in `ray` (launched -> ray)")
    assert "hunter2" not in str(found)


def test_a_fault_of_a_grandchild_names_the_whole_chain() -> None:
    odd = level("ray-child", "ray", environ=environ(PYTHONPATH="/old"))
    (finding,) = judge(level(), level("ray", "launched"), odd)
    assert "(launched -> ray -> ray-child)" in finding.message


def test_ranks_with_one_fault_share_a_finding() -> None:
    odd = environ(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    levels = [level(f"torchrun[{rank}]", "launched", environ=odd) for rank in (0, 1)]
    (finding,) = judge(level(), *levels)
    assert "`torchrun[0]` and `torchrun[1]`" in finding.message


def test_the_first_level_is_held_against_the_launch_table() -> None:
    found = judge(level(environ=environ(VERL_ATTN_IMPLEMENTATION="eager", PYTHONPATH="/old", PATH="/usr/bin")))
    assert kinds(found) == [
        ("context-variable", "VERL_ATTN_IMPLEMENTATION"),
        ("context-variable", "PATH"),
        ("context-variable", "PYTHONPATH"),
    ]
    assert "(launch table -> launched)" in found[0].message


def test_what_cv2_writes_is_known_and_another_empty_element_is_not() -> None:
    cv2 = f"{PACKAGES}/cv2/../../lib64"
    assert judge(level(), level("vllm", "launched", environ=environ(LD_LIBRARY_PATH=f"{cv2}:"))) == []
    parent = level(environ=environ(LD_LIBRARY_PATH="/sdk"))
    assert judge(parent, level("vllm", "launched", environ=environ(LD_LIBRARY_PATH=f"{cv2}:/sdk"))) == []
    (finding,) = judge(parent, level("vllm", "launched", environ=environ(LD_LIBRARY_PATH="/sdk:")))
    assert (finding.kind, finding.severity) == ("context-empty-element", Severity.WARNING)
    had = level(environ=environ(LD_LIBRARY_PATH="/sdk:"))
    assert judge(had, level("vllm", "launched", environ=environ(LD_LIBRARY_PATH="/sdk:"))) == []


def test_copies_of_the_same_bytes_are_no_other_library() -> None:
    copy = "/o/libarrow.so.2400"
    maps = tuple(MappedFile(path=path, deleted=False, sha256="a") for path in (ARROW, copy))
    assert judge(level(), level("spawn", "launched", maps=maps)) == []
    maps = tuple(MappedFile(path=path, deleted=False, sha256=path) for path in (ARROW, copy))
    assert kinds(judge(level(), level("spawn", "launched", maps=maps))) == [("context-library", "libarrow")]


def test_what_did_not_start_is_an_error_and_what_is_absent_a_note() -> None:
    gone = (
        Unstarted(context="ray", reason="exit code 1; no space"),
        Unstarted(context="vllm", reason="no", skipped=True),
    )
    failed, skipped = check_contexts(INTENDED, (), gone)
    assert (failed.kind, failed.severity, failed.actual) == ("context-failed", Severity.ERROR, "exit code 1; no space")
    assert (skipped.kind, skipped.severity) == ("context-skipped", Severity.NOTE)


def test_rows_show_what_differs_and_no_secret() -> None:
    odd = level("ray", "launched", environ={**ENVIRON, "API_TOKEN": "hunter2", "PYTHONPATH": "/old"})
    launched, ray = context_rows(INTENDED, (level(), odd), ("ray",))
    assert launched.differs == ()
    assert ray.differs == ("$PYTHONPATH",)
    assert ray.facts["$API_TOKEN"] == "(cut)"
    assert ray.facts["libarrow"] == ARROW
    assert ray.facts["import ray"].endswith("ray/__init__.py")
    assert "hunter2" not in str(ray)


# -- running processes ------------------------------------------------------------------------------------------------

RUN_ENVIRON = {**ENVIRON, "API_TOKEN": "hunter2"}


def process(pid: int, parent: int | None = None, **changes: Any) -> RunningProcess:
    values: dict[str, Any] = {
        "name": "python",
        "uid": 0,
        "argv": (f"{ENV}/bin/python", "train.py"),
        "started_ticks": 1,
        "executable": f"{BASE}/bin/python3.11",
        "interpreter": f"{ENV}/bin/python",
        "cwd": "/data",
        "environ": RUN_ENVIRON,
        "maps": (MappedFile(path=ARROW, deleted=False),),
    }
    return RunningProcess(pid=pid, parent=parent, **{**values, **changes})


def mapped(path: str) -> MappedFile:
    return MappedFile(path=path, deleted=False)


def judged(*processes: RunningProcess) -> list[Finding]:
    around = Surroundings(shipped={"libarrow": ("lib/python3.11/site-packages/pyarrow/libarrow.so.2400",)})
    return list(check_running(expected(), INTENDED, around, processes))


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in RUN_ENVIRON.items() if name not in names}


def test_processes_of_the_env_are_silent_and_strangers_are_not_judged() -> None:
    shell = process(1, executable="/usr/bin/bash", interpreter=None, argv=("bash",), environ={}, maps=())
    assert judged(shell, process(2, 1), process(3, 2, argv=("ray::Worker.look",))) == []


RUNNING = {
    "interpreter": ({"interpreter": "/opt/conda/bin/python"}, ("pid-interpreter", "interpreter")),
    "deleted program": ({"executable_deleted": True}, ("pid-interpreter", "exe")),
    "value": ({"environ": {**RUN_ENVIRON, "PYTORCH_ALLOC_CONF": "x"}}, ("pid-variable", "PYTORCH_ALLOC_CONF")),
    "lost": ({"environ": without("VIRTUAL_ENV")}, ("pid-variable", "VIRTUAL_ENV")),
    "D21": ({"environ": without("ASCEND_HOME_PATH")}, ("pid-variable", "ASCEND_HOME_PATH")),
    "D37": (
        {"environ": {**RUN_ENVIRON, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}},
        ("pid-variable", "PYTORCH_CUDA_ALLOC_CONF"),
    ),
    "python path": ({"environ": {**RUN_ENVIRON, "PYTHONPATH": "/old"}}, ("pid-variable", "PYTHONPATH")),
    "path": ({"environ": {**RUN_ENVIRON, "PATH": "/usr/bin"}}, ("pid-variable", "PATH")),
    "package": (
        {"maps": (MappedFile(path="/o/lib/python3.10/site-packages/numpy/core/_m.so", deleted=False),)},
        ("pid-package", "numpy"),
    ),
    "library": ({"maps": (mapped("/usr/lib/libarrow.so.2500"),)}, ("library-outside", "libarrow")),
    "deleted": (
        {"maps": (MappedFile(path=ARROW, deleted=True),)},
        ("library-deleted", "lib/python3.11/site-packages/pyarrow/libarrow.so.2400"),
    ),
    "odd place": ({"maps": (mapped("/scratch/libx.so.1"),)}, ("pid-file-outside", "/scratch/libx.so.1")),
    "unreadable": ({"maps": None, "unreadable": {"maps": "permission"}}, ("pid-unreadable", "maps")),
    "title": ({"environ": None, "unreadable": {"environ": "overwritten"}}, ("pid-unreadable", "environ")),
    "gone": ({"maps": None, "unreadable": {"maps": "gone"}}, ("pid-unreadable", "maps")),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNNING)
def test_a_planted_fault_of_a_running_process_is_told_at_the_first_of_its_chain(name: str) -> None:
    changes, wanted = RUNNING[name]
    found = judged(process(10), process(11, 10, **changes), process(12, 11, **changes), process(13, 10, **changes))

    assert kinds(found) == [wanted]
    assert "first in `python train.py (11)` (python train.py (10) -> python train.py (11))" in found[0].message
    assert "1 beside it and 1 below" in found[0].message
    assert "hunter2" not in str(found)


def test_what_ray_preloads_from_the_env_is_accepted() -> None:
    own = {**RUN_ENVIRON, "LD_PRELOAD": f"{PACKAGES}/ray/core/libjemalloc.so"}
    assert judged(process(1, environ=own)) == []
    foreign = {**own, "LD_PRELOAD": f"{own['LD_PRELOAD']}:/old/libx.so"}
    assert kinds(judged(process(1, environ=foreign))) == [("pid-variable", "LD_PRELOAD")]


@pytest.mark.parametrize(
    ("words", "role"),
    [
        (("-B", "/x/train.py", "--lr"), "python train.py"),
        (("-m", "verl.trainer.main_ppo", "a=b"), "python -m verl.trainer.main_ppo"),
        (("-c", "import time"), "python -c"),
        ((), "python"),
    ],
)
def test_the_role_of_a_python_is_what_it_runs(words: tuple[str, ...], role: str) -> None:
    assert process(1, argv=(f"{ENV}/bin/python", *words)).role == role


def test_a_variable_that_did_not_reach_an_actor_is_called_by_its_name() -> None:
    actor = process(2, 1, argv=("ray::Worker.look",), environ=without("VERL_ATTN_IMPLEMENTATION"))
    found = judged(process(1), actor)
    assert kinds(found) == [("variable-not-forwarded", "VERL_ATTN_IMPLEMENTATION")]
    assert "ray::Worker.look (2)" in found[0].message


def test_a_titled_process_without_a_name_of_its_own_is_known_by_its_base_only() -> None:
    titled = process(1, argv=("VLLM::EngineCore",), interpreter=f"{BASE}/bin/python3.11", environ=None)
    assert judged(titled) == []
    assert kinds(
        judged(dataclasses.replace(titled, interpreter="/usr/bin/python3", executable="/usr/bin/python3"))
    ) == [("pid-interpreter", "interpreter")]


def test_a_loop_of_parents_ends() -> None:
    one, two = process(1, 2), process(2, 1)
    assert len(chain_of(one, (one, two))) == 2


def test_rows_of_running_processes_name_roles_and_no_secret() -> None:
    actor = process(2, 1, argv=("ray::Worker",), environ=None, unreadable={"environ": "overwritten"})
    first, second = running_rows(INTENDED, (process(1), actor))
    assert (first.name, second.name, second.parent) == ("python train.py (1)", "ray::Worker (2)", "python train.py (1)")
    assert second.facts["variables"] == "overwritten"
    assert "hunter2" not in str((first, second))


def test_facts_with_nothing_in_them_do_not_raise() -> None:
    nothing = dict.fromkeys(("executable", "realpath", "version", "prefix", "real_prefix", "purelib", "platlib"), "")
    empty: Facts = facts(python=python(**nothing), path=(), environ={}, modules={}, maps=(), distributions=())
    assert judge(level(), Level(name="ray", parent="launched", facts=empty))
    assert list(check_contexts(INTENDED, (Level(name="x", parent="nobody", facts=empty),), ()))
