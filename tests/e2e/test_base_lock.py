"""Locks over a vendor's base: its packages take part, are protected, and are never downloaded (case D28)."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.lock import Lock, parse
from tests.support.index import SimpleIndex
from tests.support.project import PYTHON, Project, Said
from tests.support.wheels import make_wheel

VENDOR = "2.9.0+ppu2.0.0.oe"

SNAPSHOT = f"""\
[snapshot]
schema = 1
origin = "transcribed"

[python]
executable = "/opt/vendor/bin/python"
version = "{PYTHON}.3"

[[packages]]
name = "torch"
version = "{VENDOR}"

[[packages]]
name = "numpy"
version = "1.26.4"

[[packages]]
name = "triton"
"""

RECIPE = """\
[stack]
name = "demo"

[host]
glibc = "2.17"
snapshot = "snapshots/vendor.toml"

[env.app]
python = "{python}"
requires = [{requires}]
{more}
[env.app.base]
python = "/opt/vendor/bin/python"
protect = [{protect}]
"""


class Vendor:
    """A stack over a base, and the index that its additions come from."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.snapshot = project.folder / "stacks/snapshots/vendor.toml"
        self.snapshot.parent.mkdir()
        self.snapshot.write_text(SNAPSHOT)
        for version in ("2.9.1", "2.10.0"):
            make_wheel(project.index, "torch", version)
        make_wheel(project.index, "numpy", "2.2.0")
        make_wheel(project.index, "triton", "3.5.0")
        make_wheel(project.index, "good", "1.0", requires=["torch>=2.9", "triton>=3", "numpy"])
        make_wheel(project.index, "vllm", "0.18.0", requires=["torch==2.10.0"])
        make_wheel(project.index, "trainer", "1.0", requires=["vllm"])
        make_wheel(project.index, "modern", "1.0", requires=["numpy>=2"])

    def recipe(self, *requires: str, protect: tuple[str, ...] = ("torch", "triton"), more: str = "") -> None:
        quoted = ", ".join(f'"{name}"' for name in requires)
        self.project.recipe.write_text(
            RECIPE.format(python=PYTHON, requires=quoted, protect=", ".join(f'"{name}"' for name in protect), more=more)
        )

    def lock(self, *words: str) -> Said:
        return self.project.run("lock", "demo", *words)

    def read(self) -> Lock:
        return parse(self.project.lock.read_text(), "lock")


@pytest.fixture
def vendor(project: Project, index: SimpleIndex) -> Vendor:
    return Vendor(project)


def test_the_vendors_packages_take_part_and_are_never_downloaded(vendor: Vendor, index: SimpleIndex) -> None:
    vendor.recipe("good")
    said = vendor.lock()
    assert said.code == 0, said.out
    lock = vendor.read()
    assert [wheel.name for wheel in lock.wheels] == ["good"]
    assert {(base.name, base.version, base.protected) for base in lock.base} == {
        ("numpy", "1.26.4", False), ("torch", VENDOR, True), ("triton", None, True),
    }  # fmt: skip
    assert lock.snapshot is not None
    assert not [asked for asked in index.log if asked.file.startswith(("torch-", "triton-", "numpy-"))]


def test_an_addition_that_would_pull_another_torch_is_refused_with_the_chain(vendor: Vendor) -> None:
    vendor.recipe("trainer")
    said = vendor.lock()
    assert (said.code, said.codes) == (2, ["unsatisfiable"])
    (error,) = said.json["errors"]
    assert all(part in error["message"] for part in ("trainer", "vllm", "torch==2.10.0", VENDOR))
    assert "`torch` of the vendor's base must stay" in error["hint"]
    assert not vendor.project.lock.exists()


def test_the_same_addition_without_its_requirements_is_a_recorded_conflict(vendor: Vendor) -> None:
    accept = '\n[[env.app.accept]]\npackage = "vllm"\nrequirement = "torch==2.10.0"\nbecause = "backported"\n'
    vendor.recipe("vllm", more='no-deps = ["vllm"]\n')
    assert vendor.lock().codes == ["conflict-unaccepted"]
    vendor.recipe("vllm", more='no-deps = ["vllm"]\n' + accept)
    assert vendor.lock().code == 0
    (conflict,) = vendor.read().conflicts
    assert (conflict.package, conflict.found) == ("vllm", VENDOR)


def test_an_unprotected_package_may_be_laid_over(vendor: Vendor) -> None:
    vendor.recipe("modern")
    assert vendor.lock().code == 0
    assert {(wheel.name, wheel.version) for wheel in vendor.read().wheels} == {("modern", "1.0"), ("numpy", "2.2.0")}
    vendor.recipe("modern", protect=("*",))
    said = vendor.lock()
    assert (said.code, said.codes) == (2, ["unsatisfiable"])


def test_a_plain_pin_does_not_let_the_community_build_in(vendor: Vendor) -> None:
    """`==2.9.0` is met by the vendor's build too: only the full version tells them apart."""
    make_wheel(vendor.project.index, "torch", "2.9.0")
    make_wheel(vendor.project.index, "plain", "1.0", requires=["torch==2.9.0"])
    vendor.recipe("plain")
    assert vendor.lock().code == 0
    assert [wheel.name for wheel in vendor.read().wheels] == ["plain"]


def test_a_changed_snapshot_stales_the_lock(vendor: Vendor) -> None:
    vendor.recipe("good")
    vendor.lock()
    assert vendor.lock("--check").code == 0
    vendor.snapshot.write_text(SNAPSHOT.replace("1.26.4", "1.26.3"))
    said = vendor.lock("--check")
    assert (said.code, said.codes) == (1, ["lock-stale"])
    assert "snapshot" in said.json["errors"][0]["message"]


def test_the_lock_repeats_byte_for_byte_on_another_store(vendor: Vendor, tmp_path: Path) -> None:
    vendor.recipe("good")
    vendor.lock()
    first = vendor.project.lock.read_bytes()
    vendor.project.lock.unlink()
    said = vendor.project.run("lock", "demo", env={"ENVSMITH_HOME": str(tmp_path / "other")})
    assert said.code == 0
    assert vendor.project.lock.read_bytes() == first


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("schema = 1", "schema = 2", "snapshot-invalid"),
        ('name = "numpy"', 'name = "Torch"', "snapshot-invalid"),
        ('version = "1.26.4"', 'version = "new"', "snapshot-invalid"),
        ("[python]", "[pythons]", "snapshot-invalid"),
        ("[snapshot]", "[snapshot", "snapshot-syntax"),
        (f'version = "{PYTHON}.3"', 'version = "3.7.1"', "snapshot-mismatch"),
        ('name = "torch"', 'name = "torchy"', "protect-unknown"),
    ],
)
def test_a_wrong_snapshot_is_an_input_error_with_its_line(vendor: Vendor, old: str, new: str, code: str) -> None:
    vendor.recipe("good")
    assert old in SNAPSHOT
    vendor.snapshot.write_text(SNAPSHOT.replace(old, new))
    said = vendor.lock()
    assert said.code == 2
    assert set(said.codes) == {code}
    assert all("demo.toml" in e["where"] or "snapshots/vendor.toml:" in e["where"] for e in said.json["errors"])


def test_a_base_without_a_snapshot_is_an_input_error(vendor: Vendor) -> None:
    vendor.recipe("good")
    vendor.snapshot.unlink()
    assert vendor.lock().codes == ["snapshot-missing"]


def test_building_where_the_base_is_not_is_refused_plainly(vendor: Vendor) -> None:
    vendor.recipe("good")
    said = vendor.project.build()
    assert (said.code, said.codes) == (3, ["base-missing"])
    assert vendor.project.lock.exists(), "the lock can be made anywhere"
