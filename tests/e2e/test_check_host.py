"""`envsmith check --host` as a process: a snapshot's machine and this one, beside a real recipe, lock and store."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

import pydantic_core
import pytest

from tests.support.index import SimpleIndex
from tests.support.project import PYTHON, Project, Said
from tests.support.wheels import make_wheel

ARCH = platform.machine()
HEAD = '[snapshot]\nschema = 1\norigin = "captured"\n\n[host]\n'
HEALTHY = f'arch = "{ARCH}"\nglibc = "2.39"\nopen-files = 1048576\n[host.environ]\nPATH = "/usr/bin"\n'


def check(project: Project, facts: str, *words: str, json: bool = True, env: Mapping[str, str] | None = None) -> Said:
    (project.folder / "node.toml").write_text(f"{HEAD}{facts}")
    return project.run("check", "demo", "--host", "node.toml", *words, json=json, env=env)


def host_kinds(said: Said) -> set[str]:
    return {kind for kind in said.kinds if kind.startswith("host/")}


def everything(*folders: Path) -> list[str]:
    return sorted(str(path) for folder in folders for path in folder.rglob("*") if "git" not in path.parts)


def test_a_machine_that_fits_is_named_and_nothing_is_written(built: Project) -> None:
    (built.folder / "node.toml").write_text(HEAD + HEALTHY)
    before = everything(built.folder, Path(os.environ["ENVSMITH_HOME"]))
    said = check(built, HEALTHY)
    assert (said.code, said.kinds) == (0, set())
    assert said.json["data"]["host"] == {
        "source": "node.toml",
        "facts": {
            "arch": ARCH, "glibc": "2.39", "open-files": 1048576, "accelerator": [], "link": [], "driver-folder": [],
            "library": [], "file-system": [], "run": [], "environ": {"PATH": "/usr/bin"},
        },
    }  # fmt: skip
    assert everything(built.folder, Path(os.environ["ENVSMITH_HOME"])) == before
    text = check(built, HEALTHY, json=False)
    assert text.out.splitlines() == [
        "stacks/demo.toml: no findings (recipe, patches, lock, rules, host)",
        f"judged for the machine of node.toml: {ARCH}, glibc 2.39",
        "the machine can run demo",
    ]


def test_a_machine_that_does_not_fit_is_exit_3_beside_whatever_else_is_wrong(project: Project) -> None:
    other = {"x86_64": "aarch64"}.get(ARCH, "x86_64")
    assert project.run("check", "demo").code == 1  # it has no lock
    said = check(project, HEALTHY.replace(ARCH, other))
    assert said.code == 3
    assert {"lock/lock-missing", "host/host-arch-differs"} <= said.kinds
    assert said.json["status"] == "error"
    text = check(project, HEALTHY.replace(ARCH, other), json=False)
    assert text.out.startswith("error[host/host-arch-differs]: ")


def test_without_the_option_no_machine_is_judged(built: Project) -> None:
    said = built.run("check", "demo")
    assert "host" not in said.json["data"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, "snapshot-missing"),
        ("[snapshot", "snapshot-syntax"),
        ("[snapshot]\nschema = 2\n", "snapshot-invalid"),
        (f'{HEAD}accelerator = [{{ name = "X", count = 1, compute-capability = "new" }}]\n', "snapshot-invalid"),
    ],
)
def test_what_is_no_snapshot_is_an_error_of_the_command_line(project: Project, text: str | None, code: str) -> None:
    if text is not None:
        (project.folder / "node.toml").write_text(text)
    said = project.run("check", "demo", "--host", "node.toml")
    assert (said.code, said.codes[:1]) == (2, [code])
    assert "node.toml" in said.json["errors"][0]["where"]


def test_a_folder_is_no_snapshot(project: Project) -> None:
    said = project.run("check", "demo", "--host", "stacks")
    assert (said.code, said.codes) == (2, ["snapshot-missing"])


def test_this_machine_is_judged_and_an_override_counts(built: Project) -> None:
    said = built.run("check", "demo", "--host", "local")
    assert said.json["data"]["host"]["source"] == "local"
    assert said.json["data"]["host"]["facts"]["arch"] == ARCH
    assert not host_kinds(said) & {"host/host-arch-differs", "host/manylinux-mismatch", "host/facts-missing"}
    planned = built.run("check", "demo", "--host", "local", env={"ENVSMITH_HOST_ARCH": "riscv64"})
    assert planned.code == 3
    assert "host/host-arch-differs" in planned.kinds


def test_facts_may_be_set_over_a_snapshot_too_and_are_named(built: Project) -> None:
    """Asking what another driver would change is what the variables are for; an ignored one would be a wrong answer."""
    env = {"ENVSMITH_HOST_ARCH": "riscv64"}
    said = check(built, HEALTHY, env=env)
    assert said.code == 3 and "host/host-arch-differs" in host_kinds(said)
    assert said.json["data"]["host"]["facts"]["arch"] == "riscv64"
    text = check(built, HEALTHY, json=False, env=env)
    assert "(set by hand: arch)" in text.out and text.out.splitlines()[-1] == "the machine cannot run demo"
    wrong = check(built, HEALTHY, env={"ENVSMITH_HOST_GLIBC": "new", "ENVSMITH_HOST_FOO": "1"})
    assert (wrong.code, set(wrong.codes)) == (2, {"snapshot-override-malformed"})
    assert len(wrong.codes) == 2


def test_another_driver_by_hand_takes_what_was_seen_through_the_old_one_with_it(built: Project) -> None:
    seen = 'driver = "580.1"\nlibcuda = "/usr/lib/libcuda.so.580.1"\ncuinit = 0\n' + HEALTHY
    facts = check(built, seen, env={"ENVSMITH_HOST_DRIVER": "535.1"}).json["data"]["host"]["facts"]
    assert facts["driver"] == "535.1"
    assert "cuinit" not in facts and "libcuda" not in facts


def test_a_planned_driver_is_not_held_against_the_libraries_of_this_machine(built: Project) -> None:
    for driver in ("470.57.02", "580.65.06"):
        plan = {"ENVSMITH_HOST_DRIVER": driver, "ENVSMITH_HOST_ACCELERATOR": "8xNVIDIA A100-SXM4-80GB:8.0:80"}
        planned = built.run("check", "demo", "--host", "local", env=plan)
        facts = planned.json["data"]["host"]["facts"]
        assert facts["driver"] == driver and "libcuda" not in facts and facts["driver-folder"] == []
        assert not {kind for kind in planned.kinds if "libcuda" in kind}
    plan |= {"ENVSMITH_HOST_LIBCUDA": "/c/libcuda.so.575.57.08", "ENVSMITH_HOST_LIBCUDA_VERSION": "575.57.08"}
    planned = built.run("check", "demo", "--host", "local", env=plan)
    assert (planned.code, "host/libcuda-wrong-compat" in planned.kinds) == (3, True)


def test_variables_that_the_recipe_requires_are_looked_for_by_name(built: Project) -> None:
    built.edit("[env.app.launch]\n", '[env.app.launch]\nrequire = ["MAKER_HOME"]\n')
    missing = built.run("check", "demo", "--host", "local", env={"MAKER_HOME": "\0"})
    assert "host/vendor-profile-missing" in missing.kinds
    there = built.run("check", "demo", "--host", "local", env={"MAKER_HOME": "/opt/maker"})
    assert "host/vendor-profile-missing" not in there.kinds


@pytest.fixture
def native(project: Project) -> Project:
    """The project with a wheel whose tag promises nothing and whose library is a real one."""
    library = next(Path(pydantic_core.__file__).parent.glob("_pydantic_core*.so"))
    tag = f"cp{PYTHON.replace('.', '')}"
    made = {"kernel/__init__.py": "", f"kernel/{library.name}": library.read_bytes()}
    make_wheel(project.index, "kernel", "1.0", made, tag=f"{tag}-{tag}-linux_{ARCH}")
    project.edit('requires = ["alpha", "beta", "delta"]', 'requires = ["alpha", "beta", "delta", "kernel"]')
    with SimpleIndex(project.index) as served:
        said = project.build(env={"ENVSMITH_INDEX": served.url})
    assert said.code == 0, said.out + said.err
    return project


def test_libraries_in_the_store_say_which_glibc_they_need(native: Project, tmp_path: Path) -> None:
    said = check(native, HEALTHY.replace("2.39", "2.3"))
    assert said.code == 3
    (finding,) = [one for one in said.json["data"]["findings"] if one["kind"] == "glibc-too-old"]
    assert finding["subject"].startswith("kernel/_pydantic_core") and finding["actual"] == "2.3"
    assert check(native, HEALTHY).code == 0
    # The wheel is read without the env that was built from it, too; without either nothing is known.
    words = ("check", "demo", "--host", "node.toml")
    (native.folder / "node.toml").write_text(HEAD + HEALTHY.replace("2.39", "2.3"))
    elsewhere = native.run(*words, env={"ENVSMITH_ROOT": str(tmp_path / "no-envs")})
    assert "host/glibc-too-old" in elsewhere.kinds
    unknown = native.run(*words, env={"ENVSMITH_HOME": str(tmp_path / "no-store")})
    assert "host/glibc-too-old" not in unknown.kinds


def test_devices_and_capability_are_set_by_hand_as_facts_of_the_accelerators(built: Project) -> None:
    one = '[[host.accelerator]]\nname = "NVIDIA A100-SXM4-80GB"\ncount = 1\ncompute-capability = "8.0"\n'
    env = {"ENVSMITH_HOST_DEVICES": "8", "ENVSMITH_HOST_COMPUTE_CAPABILITY": "7.0"}
    (device,) = check(built, HEALTHY + one, env=env).json["data"]["host"]["facts"]["accelerator"]
    assert device == {"name": "NVIDIA A100-SXM4-80GB", "count": 8, "compute-capability": "7.0"}
    (device,) = check(built, HEALTHY, env=env).json["data"]["host"]["facts"]["accelerator"]
    assert (device["count"], device["compute-capability"]) == (8, "7.0")
    facts = check(built, HEALTHY + one, env={"ENVSMITH_HOST_DEVICES": "0"}).json["data"]["host"]["facts"]
    assert facts["accelerator"] == []
