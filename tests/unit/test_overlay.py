"""What an overlay is made of: the hook and the commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from envsmith.manifest import Entry
from envsmith.overlay import Base, Command, entry_points, hook, is_command, protected_roots

SITE = "opt/vendor/lib/python3.12/site-packages"
OWN = "lib/python3.12/site-packages"


def files(owner: str, *paths: str, under: str = OWN) -> list[Entry]:
    return [Entry(path=f"{under}/{path}", size=1, sha256="0" * 64, owner=owner) for path in paths]


def test_names_of_protected_packages_are_told_with_their_files() -> None:
    base = files("torch==2", "torch/__init__.py", under=SITE) + files("six==1", "six.py", under=SITE)
    assert {
        name: root[0].path for name, root in protected_roots(base, folders=(SITE,), protected=("six",)).items()
    } == {"six": f"{SITE}/six.py"}


def test_entry_points_are_read_as_the_specification_says() -> None:
    text = """
[console_scripts]
torchrun = torch.distributed.run:main
with-extra = pkg.cli:App.run [extra]
# comment = x:y
; comment = x:y
blanks = pkg.more : run
broken = nothing
../evil = pkg:main
python3 = pkg:main
[gui_scripts]
window=pkg.gui:main
[vllm.plugins]
plugin = pkg:register
"""
    assert [(one.name, one.target) for one in entry_points(text)] == [
        ("torchrun", "torch.distributed.run:main"), ("with-extra", "pkg.cli:App.run"), ("blanks", "pkg.more:run"),
        ("window", "pkg.gui:main"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["python", "python3", "python3.12", "python3.13t", "activate", "activate.fish", "..", ""]
)
def test_parts_of_a_virtual_environment_are_no_commands(name: str) -> None:
    assert not is_command(name)


@pytest.mark.parametrize("name", ["torchrun", "pip3.12", "python-argcomplete-check-easy-install-script", "pythonw2"])
def test_other_programs_are(name: str) -> None:
    assert is_command(name)


def test_the_hook_works_where_the_site_module_runs_it(tmp_path: Path) -> None:
    base = tmp_path / "it's a base"
    base.mkdir()
    (base / "mine.py").write_text("")
    (base / "more.pth").write_text(f"{tmp_path}\n")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "zz.pth").write_text(hook((str(base),)))
    code = f"import site, sys; site.addsitedir({str(tmp_path / 'own')!r}); import mine"
    code += "; print(mine.__file__, sys.dont_write_bytecode)"
    done = subprocess.run([sys.executable, "-S", "-c", code + f"; assert {str(tmp_path)!r} in sys.path"],
                          capture_output=True, text=True, check=False, timeout=60, env={})  # fmt: skip
    assert done.stdout.strip() == f"{base / 'mine.py'} True", done.stderr


@pytest.mark.parametrize("folder", ["env", "an env with blanks and a ' quote", "e" * 140])
@pytest.mark.parametrize("kind", ["entry-point", "script"])
def test_a_command_runs_with_the_python_it_is_written_for(tmp_path: Path, folder: str, kind: str) -> None:
    python = tmp_path / folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (tmp_path / "cli.py").write_text(
        "import sys\nclass App:\n    @staticmethod\n    def run():\n"
        "        print(sys.executable, sys.argv[1:])\n        return 3\n"
    )
    target = "cli:App.run" if kind == "entry-point" else str(tmp_path / "script")
    (tmp_path / "script").write_text(
        "#!/elsewhere/python\nimport cli, sys\nif __name__ == '__main__':\n    sys.exit(cli.App.run())\n"
    )
    text = Command(name="x", kind="entry-point" if kind == "entry-point" else "script", target=target).text(str(python))
    assert text is not None
    script = tmp_path / "x"
    script.write_text(text)
    script.chmod(0o755)
    done = subprocess.run([script, "a b"], capture_output=True, text=True, check=False, timeout=60,
                          env={"PYTHONPATH": str(tmp_path)})  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (3, f"{python} ['a b']"), done.stderr


def test_a_program_is_linked_to() -> None:
    assert Command(name="ninja", kind="program", target="/opt/vendor/bin/ninja").text("/env/bin/python") is None


def test_a_base_survives_a_receipt() -> None:
    base = Base(python="/opt/vendor/bin/python", site=("/a", "/b"), beside=("/c",))
    assert Base.from_dict(base.to_dict()) == base
    assert base.folders == ("/a", "/b", "/c")
