"""The default stack on real wheels from the real index: what the README's first command promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.project import Said, envsmith

pytestmark = pytest.mark.network

REPOSITORY = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """The env built once for this module, by the program as a newcomer starts it."""
    if os.environ.get("ENVSMITH_TEST_OFFLINE") == "1":
        pytest.skip("ENVSMITH_TEST_OFFLINE=1")
    folder = tmp_path_factory.mktemp("quickstart")
    env = {"ENVSMITH_HOME": str(folder / "store"), "ENVSMITH_ROOT": str(folder / "envs"), "HOME": str(folder)}
    said = envsmith("build", "--json", cwd=folder, env=env, timeout_s=600)
    if said.code == 4 and "no-interpreter" in said.codes:
        pytest.skip("no Python 3.11 on this machine")
    assert said.code == 0, said.out + said.err
    yield folder, env


def run(quickstart: tuple[Path, dict[str, str]], *words: str) -> Said:
    folder, env = quickstart
    return envsmith(*words, cwd=folder, env=env)


def test_the_default_stack_builds_verified_and_runs(quickstart: tuple[Path, dict[str, str]]) -> None:
    code = "import ray, pyarrow; print(ray.__version__, pyarrow.__version__)"
    said = run(quickstart, "run", "quickstart/worker", "--", "python", "-c", code)
    assert (said.code, said.out) == (0, "2.56.1 24.0.0\n")
    said = run(quickstart, "verify", "--all", "--json")
    assert (said.code, said.json["data"]["findings"]) == (0, [])


def test_the_second_build_says_nothing_to_do_at_once(quickstart: tuple[Path, dict[str, str]]) -> None:
    said = run(quickstart, "build", "--json")
    assert said.json["data"]["envs"][0]["state"] == "unchanged"


def test_the_committed_lock_is_what_the_index_gives(quickstart: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    """The same recipe and index state give the same bytes, on a store that has never seen them."""
    for name in ("stacks", "patches"):
        (tmp_path / name).mkdir()
    committed = (REPOSITORY / "stacks/pylock.quickstart-worker.toml").read_text()
    (tmp_path / "stacks/quickstart.toml").write_text((REPOSITORY / "stacks/quickstart.toml").read_text())
    for path in (REPOSITORY / "patches").rglob("*"):
        if path.is_file():
            copy = tmp_path / "patches" / path.relative_to(REPOSITORY / "patches")
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(path.read_bytes())
    said = envsmith(
        "lock", "quickstart", "--json", cwd=tmp_path, env={**quickstart[1], "ENVSMITH_HOME": str(tmp_path / "new")}
    )
    assert said.code == 0, said.out
    assert (tmp_path / "stacks/pylock.quickstart-worker.toml").read_text() == committed


def test_the_module_of_the_source_is_located_in_its_patched_work_copy(
    quickstart: tuple[Path, dict[str, str]],
) -> None:
    code = "import importlib.util as u; print(u.find_spec('llamafactory').origin)"
    said = run(quickstart, "run", "quickstart/worker", "--", "python", "-c", code)
    origin = Path(said.out.strip())
    assert origin.parts[-4:] == ("llamafactory", "src", "llamafactory", "__init__.py")
    assert "PYTORCH_ALLOC_CONF" in (origin.parent / "launcher.py").read_text()


def test_a_real_ray_actor_sees_the_same_env(quickstart: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    script = tmp_path / "actor.py"
    script.write_text(
        "import json, sys\n"
        "import ray\n\n\n"
        "@ray.remote\n"
        "class Worker:\n"
        "    def look(self, argument):\n"
        "        import pyarrow\n\n"
        "        return sys.executable, pyarrow.__file__, argument\n\n\n"
        "if __name__ == '__main__':\n"
        "    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)\n"
        "    print(json.dumps([sys.executable, *ray.get(Worker.remote().look.remote([1]))]))\n"
    )
    said = run(quickstart, "run", "quickstart/worker", "--", "python", str(script))
    assert said.code == 0, said.err[-2000:]
    driver, worker, pyarrow, argument = json.loads(said.out.strip().splitlines()[-1])
    assert driver == worker
    assert "/quickstart-worker/" in pyarrow
    assert argument == [1]


def test_one_changed_byte_of_a_real_package_is_found(quickstart: tuple[Path, dict[str, str]]) -> None:
    folder, _ = quickstart
    victim = next(
        (folder / "envs/quickstart-worker/current").resolve().glob("lib/python3.11/site-packages/ray/__init__.py")
    )
    before, data = victim.stat(), victim.read_bytes()
    try:
        victim.write_bytes(data.replace(b"import", b"imp0rt", 1))
        os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))
        said = run(quickstart, "verify", "--json")
        assert said.code == 1
        (finding,) = said.json["data"]["findings"]
        assert (finding["check"], finding["kind"]) == ("files", "file-changed")
        assert finding["subject"] == "lib/python3.11/site-packages/ray/__init__.py"
        assert "ray==2.56.1" in finding["message"]
    finally:
        victim.write_bytes(data)


def test_plain_uv_installs_the_lock_once_its_wheels_lie_beside_it(
    quickstart: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """PEP 751 is kept to: no envsmith is needed to install what it locked."""
    from uv import find_uv_bin

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    folder, _ = quickstart
    lock = (REPOSITORY / "stacks/pylock.quickstart-worker.toml").read_text()
    (tmp_path / "pylock.toml").write_text(lock)
    (tmp_path / "wheels").mkdir()
    for package in tomllib.loads(lock)["packages"]:
        wheel = package["wheels"][0]
        blob = folder / "store/blobs/sha256" / wheel["hashes"]["sha256"]
        (tmp_path / wheel["path"]).symlink_to(blob)
    python = (folder / "envs/quickstart-worker/current/bin/python").resolve()
    for words in (
        ("venv", "--python", str(python), str(tmp_path / "venv")),
        ("pip", "sync", "--no-index", "--python", str(tmp_path / "venv/bin/python"), str(tmp_path / "pylock.toml")),
    ):
        done = subprocess.run(
            [find_uv_bin(), "--no-config", "--offline", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_version_costs_little_more_than_an_interpreter() -> None:
    """No heavy library may be imported for it; the time itself is measured in bench/, not here."""
    code = (
        "import sys; sys.argv = ['envsmith', '--version']\n"
        "from envsmith.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted({'pydantic', 'requests', 'git', 'rich', 'tomlkit', 'packaging'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["envsmith 0.1.0", "[]"]
