"""Planted drift: every kind is found by the verb itself, with the right family and subject, and exit code 1."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.project import SITE, Project, envsmith
from tests.support.wheels import record_digest


def keep_stat(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change a file's bytes, not its size and not its time."""
    before = path.stat()
    content = change(path.read_bytes())
    assert len(content) == before.st_size
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def one_byte(p: Project) -> None:
    keep_stat(p.site / "beta/core.py", lambda data: data.replace(b"2.0", b"3.0"))


def deleted_file(p: Project) -> None:
    (p.site / "alpha/extra.py").unlink()


def deleted_package(p: Project) -> None:
    shutil.rmtree(p.site / "gamma")
    shutil.rmtree(next(p.site.glob("gamma-*.dist-info")))


def lost_init(p: Project) -> None:
    (p.site / "alpha/__init__.py").unlink()


def unowned_module(p: Project) -> None:
    (p.site / "alpha/helper.py").write_text("x = 1\n")


def shadowing_module(p: Project) -> None:
    (p.site / "json.py").write_text("x = 1\n")


def pth(p: Project) -> None:
    old = p.folder / "lib/python3.8/site-packages"
    old.mkdir(parents=True)
    (p.site / "zz.pth").write_text(f"import sys; sys.path.insert(0, {str(old)!r})\n")


def sitecustomize(p: Project) -> None:
    (p.site / "sitecustomize.py").write_text("import sys; sys.path.append('/opt/lib/python3.9/site-packages')\n")


def edited_record(p: Project) -> None:
    """Edit a module and its RECORD alike, so that the env agrees with itself."""
    module = p.site / "beta/core.py"
    module.write_text(module.read_text() + "# edited\n")
    path = next(p.site.glob("beta-*.dist-info")) / "RECORD"
    rows = [
        f"beta/core.py,{record_digest(module.read_bytes())},{module.stat().st_size}"
        if row.startswith("beta/core.py,")
        else row
        for row in path.read_text().splitlines()
    ]
    path.write_text("\n".join(rows) + "\n")


def reverted_patch(p: Project) -> None:
    git(p, "checkout", "--quiet", "HEAD~1", "--", ".")


def edited_work_copy(p: Project) -> None:
    keep_stat(p.current.resolve() / "src/tool/tool/__init__.py", lambda data: data.replace(b"sdpa", b"eager"[:4]))


def added_to_work_copy(p: Project) -> None:
    (p.current.resolve() / "src/tool/tool/extra.py").write_text("x = 1\n")


def lost_work_copy(p: Project) -> None:
    shutil.rmtree(p.current.resolve() / "src/tool")


def lost_bit(p: Project) -> None:
    (p.current.resolve() / "bin/beta-run").chmod(0o644)


def other_shebang(p: Project) -> None:
    path = p.current.resolve() / "bin/beta-run"
    path.write_text(f"#!{sys.executable}\n" + path.read_text().partition("\n")[2])


def other_python(p: Project) -> None:
    path = p.current.resolve() / "bin/python"
    path.unlink()
    path.symlink_to("/bin/true")


def system_site(p: Project) -> None:
    path = p.current.resolve() / "pyvenv.cfg"
    path.write_text(
        path.read_text().replace("include-system-site-packages = false", "include-system-site-packages = true")
    )


def extra_distribution(p: Project) -> None:
    install(p, "beta-1.0-py3-none-any.whl", "--reinstall")


def leftover(p: Project) -> None:
    (p.site / "~lpha").mkdir()
    (p.site / "~lpha/__init__.py").write_text("")


def lost_metadata(p: Project) -> None:
    shutil.rmtree(next(p.site.glob("beta-*.dist-info")))


def emptied(p: Project) -> None:
    shutil.rmtree(p.site)
    p.site.mkdir()


def git(p: Project, *words: str) -> None:
    subprocess.run(["git", *words], cwd=p.current.resolve() / "src/tool", check=True, capture_output=True)


def install(p: Project, wheel: str, *words: str) -> None:
    """Let real uv change the env behind our back."""
    from uv import find_uv_bin

    python = p.current.resolve() / "bin/python"
    argv = [find_uv_bin(), "pip", "install", "--no-config", "--offline", "--no-deps", "--python", python, *words]
    subprocess.run([*argv, p.index / wheel], check=True, capture_output=True)


PLANTED = [
    (one_byte, "files/file-changed", f"{SITE}/beta/core.py"),
    (deleted_file, "files/file-missing", f"{SITE}/alpha/extra.py"),
    (deleted_package, "files/half-env", "gamma==0.3"),
    (lost_init, "imports/became-namespace", "alpha"),
    (unowned_module, "files/unowned-module", f"{SITE}/alpha/helper.py"),
    (shadowing_module, "files/unowned-module", f"{SITE}/json.py"),
    (pth, "hooks/unowned-pth", f"{SITE}/zz.pth"),
    (pth, "imports/foreign-python-path", "lib/python3.8/site-packages"),
    (sitecustomize, "hooks/sitecustomize", f"{SITE}/sitecustomize.py"),
    (edited_record, "files/file-changed", f"{SITE}/beta/core.py"),
    (reverted_patch, "sources/patch-reverted", "tool"),
    (edited_work_copy, "sources/source-edited", "tool"),
    (added_to_work_copy, "sources/source-untracked", "tool"),
    (lost_work_copy, "sources/source-missing", "tool"),
    (lost_bit, "files/mode-changed", "bin/beta-run"),
    (other_shebang, "launchers/launcher-wrong-interpreter", "beta-run"),
    (other_python, "files/link-changed", "bin/python"),
    (system_site, "files/file-changed", "pyvenv.cfg"),
    (extra_distribution, "conflicts/version-differs", "beta"),
    (leftover, "files/leftover", f"{SITE}/~lpha"),
    (lost_metadata, "conflicts/distribution-missing", "beta"),
    (emptied, "files/half-env", None),
]


@pytest.mark.parametrize(("plant", "kind", "subject"), PLANTED, ids=[f"{p[0].__name__}-{p[1]}" for p in PLANTED])
def test_planted_drift_is_found(
    built: Project, plant: Callable[[Project], None], kind: str, subject: str | None
) -> None:
    clean = built.verify()
    assert (clean.code, clean.json["data"]["findings"]) == (0, [])
    plant(built)
    said = built.verify()
    assert said.code == 1, said.out
    assert said.json["status"] == "findings"
    found = [f for f in said.json["data"]["findings"] if f"{f['check']}/{f['kind']}" == kind]
    assert found, said.out
    assert all(f["severity"] == "error" and f["message"] for f in found)
    if subject is not None:
        assert any(subject in f["subject"] for f in found), found


def test_an_untouched_env_has_no_findings_at_any_level(built: Project) -> None:
    for level in ("--quick", "--deep", "--imports", "--all"):
        said = built.verify(level)
        assert (said.code, said.json["data"]["findings"]) == (0, []), level


def test_verify_writes_nothing_into_the_env(built: Project) -> None:
    def listing() -> dict[str, int]:
        return {str(path): path.lstat().st_mtime_ns for path in built.current.resolve().rglob("*")}

    before = listing()
    built.verify("--all")
    assert listing() == before


def test_touching_a_file_is_no_drift(built: Project) -> None:
    (built.site / "beta/core.py").touch()
    assert built.verify().code == 0


def test_pythonpath_of_the_calling_shell_is_named(built: Project, tmp_path: Path) -> None:
    (tmp_path / "old/alpha").mkdir(parents=True)
    (tmp_path / "old/alpha/__init__.py").write_text("")
    said = built.verify(env={"PYTHONPATH": str(tmp_path / "old")})
    assert said.code == 1
    (finding,) = [f for f in said.json["data"]["findings"] if f["kind"] == "python-variable"]
    assert finding["check"] == "hooks"
    assert "envsmith run" in finding["message"]
    ran = envsmith(
        "run", "demo/app", "--root", built.envs, "--", "python", "-c", "import alpha; print(alpha.answer())",
        cwd=built.folder, env={"PYTHONPATH": str(tmp_path / "old")},
    )  # fmt: skip
    assert ran.out == "42\n"


def test_a_launcher_of_another_env_first_on_path_is_named(built: Project, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "beta-run").write_text(f"#!{sys.executable}\nprint('wrong')\n")
    (other / "beta-run").chmod(0o755)
    for path in (f"{other}:{built.current}/bin:{os.environ['PATH']}", f"{other}:{os.environ['PATH']}"):
        said = built.verify(env={"PATH": path})
        assert said.code == 1
        (finding,) = [f for f in said.json["data"]["findings"] if f["kind"] == "launcher-from-wrong-env"]
        assert finding["subject"] == "beta-run"
        assert str(other) in finding["actual"]
    assert built.verify(env={"PATH": f"{built.current}/bin:{other}:{os.environ['PATH']}"}).code == 0


def test_a_failed_real_import_is_named(built: Project) -> None:
    built.edit('imports = ["alpha", "beta.core", "tool"]', 'imports = ["alpha", "beta.gone"]')
    built.edit('DEMO_MODE = "on"', 'DEMO_MODE = "off"')
    said = built.build()
    assert said.code == 1
    assert said.codes == ["verify-import-failed"]
    assert json.loads((built.current / "envsmith.json").read_text())["launch"]["set"]["DEMO_MODE"] == "on"


def test_an_edited_record_of_ours_is_told_apart_from_drift(built: Project) -> None:
    manifest = built.current.resolve().with_name(f"{built.current.resolve().name}.manifest.json")
    manifest.write_text(manifest.read_text().replace("alpha==", "alpha =="))
    said = built.verify()
    assert (said.code, said.codes) == (5, ["manifest-differs"])


def test_an_env_without_receipt_never_passes(built: Project) -> None:
    (built.current / "envsmith.json").unlink()
    said = built.verify()
    assert said.code == 1
    assert said.kinds == {"files/half-env"}


def test_another_lock_is_compared_on_request(built: Project) -> None:
    assert built.verify("--lock", built.lock).code == 0
    other = built.folder / "pylock.other.toml"
    other.write_text(built.lock.read_text().replace("gamma-0.3", "gamma-0.2").replace('"0.3"', '"0.2"'))
    said = built.verify("--lock", other)
    assert said.code == 1
    assert "lock/lock-differs" in said.kinds


def test_only_runs_the_named_family(built: Project) -> None:
    one_byte(built)
    assert built.verify("--only", "launchers").code == 0
    assert built.verify("--only", "files").code == 1
    said = built.verify("--only", "filez")
    assert (said.code, said.codes) == (2, ["unknown-family"])


def test_building_a_second_env_does_not_make_the_first_one_read_again(built: Project, tmp_path: Path) -> None:
    built.verify()
    built.run("build", "demo", "--root", tmp_path / "second")
    said = built.verify()
    assert said.json["data"]["envs"][0]["hashed_bytes"] == 0
