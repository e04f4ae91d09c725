"""The family `base`: a vendor's own environment against the lock of an env that is laid over it, file by file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envsmith.tools.distributions import package_states
from tests.support.index import SimpleIndex
from tests.support.project import PYTHON, SITE, Project
from tests.support.venvs import Venv, findings, make_venv
from tests.support.wheels import make_wheel

RECIPE = f"""\
[stack]
name = "demo"

[host]
glibc = "2.17"
snapshot = "snapshots/vendor.toml"

[env.app]
python = "{PYTHON}"
requires = ["good"]

[env.app.base]
python = "/opt/vendor/bin/python"
protect = ["torch", "certifi"]
"""


class Vendor:
    """A vendor's environment, one file of it altered before the snapshot, and the lock that was made of it."""

    def __init__(self, project: Project, folder: Path) -> None:
        self.project = project
        self.venv: Venv = make_venv(folder / "vendor")
        self.venv.install("torch", "2.9.0+ppu2.0.0.oe", {"torch/__init__.py": "x = 1\n", "torch/lib/a.txt": "a\n"})
        self.venv.install("certifi", "2026.1.1", {"certifi/__init__.py": "", "certifi/cacert.pem": "public\n"})
        self.venv.install("other", "1.0", {"other.py": ""})
        (self.venv.site / "certifi/cacert.pem").write_text("public and the vendor's own\n")

    def lock(self) -> None:
        """Take the snapshot, and lock an env over it."""
        lines = [
            "[snapshot]", "schema = 1", 'origin = "captured"', "[python]", 'executable = "/opt/vendor/bin/python"',
            f'version = "{PYTHON}.3"',
        ]  # fmt: skip
        for state in package_states(self.venv.path, (SITE,)):
            altered = ", ".join(
                f"{{ path = {json.dumps(path)}" + (f', sha256 = "{sha}"' if sha else "") + " }"
                for path, sha in state.altered.items()
            )
            lines += ["[[packages]]", f'name = "{state.name}"', f'version = "{state.version}"']
            lines += [f'files = "{state.files}"', f'record = "{state.record}"', f"altered = [{altered}]"]
        snapshot = self.project.folder / "stacks/snapshots/vendor.toml"
        snapshot.parent.mkdir(exist_ok=True)
        snapshot.write_text("\n".join(lines) + "\n")
        make_wheel(self.project.index, "good", "1.0", requires=["torch>=2.9"])
        self.project.recipe.write_text(RECIPE)
        said = self.project.run("lock", "demo")
        assert said.code == 0, said.out + said.err

    def verify(self, *words: str):  # type: ignore[no-untyped-def]
        return self.venv.verify("--lock", str(self.project.lock), "--only", "base", *words)


@pytest.fixture
def vendor(project: Project, index: SimpleIndex, tmp_path: Path) -> Vendor:
    made = Vendor(project, tmp_path)
    made.lock()
    return made


def test_an_unchanged_base_has_no_findings_although_its_vendor_altered_a_file(vendor: Vendor) -> None:
    said = vendor.verify()
    assert (said.code, said.json["data"]["findings"]) == (0, [])
    assert said.json["data"]["envs"][0]["families"] == ["base"]
    (vendor.venv.site / "other.py").write_text("not protected\n")
    assert vendor.verify().code == 0


def test_a_changed_file_of_a_protected_package_is_named_with_both_contents(vendor: Vendor) -> None:
    (vendor.venv.site / "torch/lib/a.txt").write_text("b\n")
    said = vendor.verify()
    (finding,) = findings(said, "base/base-file-changed")
    assert (said.code, finding["subject"]) == (1, "torch/lib/a.txt")
    assert finding["expected"].startswith("sha256:") and finding["actual"].startswith("sha256:")
    assert finding["expected"] != finding["actual"]


def test_a_file_that_is_gone_and_one_that_was_put_back_are_named(vendor: Vendor) -> None:
    (vendor.venv.site / "torch/__init__.py").unlink()
    (vendor.venv.site / "certifi/cacert.pem").write_text("public\n")
    said = vendor.verify()
    found = {finding["subject"]: finding["actual"] for finding in findings(said, "base/base-file-changed")}
    assert found.keys() == {"torch/__init__.py", "certifi/cacert.pem"}
    assert found["torch/__init__.py"] == "missing"


def test_a_package_installed_anew_with_its_record_is_found(vendor: Vendor) -> None:
    record = next(vendor.venv.site.glob("torch-*.dist-info/RECORD"))
    (vendor.venv.site / "torch/lib/a.txt").write_text("b\n")
    kept = [line for line in record.read_text().splitlines() if "a.txt" not in line]
    record.write_text("\n".join([*kept, "torch/lib/a.txt,,"]) + "\n")
    said = vendor.verify()
    assert [f["subject"] for f in findings(said, "base/base-package-rewritten")] == ["torch"]


def test_another_version_and_a_package_that_is_gone(vendor: Vendor) -> None:
    info = next(vendor.venv.site.glob("torch-*.dist-info"))
    (info / "METADATA").write_text("Name: torch\nVersion: 2.10.0\n")
    for path in next(vendor.venv.site.glob("certifi-*.dist-info")).iterdir():
        path.unlink()
    next(vendor.venv.site.glob("certifi-*.dist-info")).rmdir()
    said = vendor.verify()
    assert said.kinds == {"base/base-version-differs", "base/base-package-missing"}
    (finding,) = findings(said, "base/base-version-differs")
    assert (finding["expected"], finding["actual"]) == ("2.9.0+ppu2.0.0.oe", "2.10.0")


def test_a_lock_over_a_base_judges_no_version_of_the_base_that_it_does_not_name(vendor: Vendor) -> None:
    said = vendor.venv.verify("--lock", str(vendor.project.lock))
    assert "distribution-extra" not in said.out
    assert "base" in said.json["data"]["envs"][0]["families"]
