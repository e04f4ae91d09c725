"""The modulefile, loaded and unloaded by the real `module` of Environment Modules and of Lmod, where installed."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from envsmith.launch import LaunchEnvironment, LaunchTable, resolve
from envsmith.modulefile import modulefile

#: Where distributions and sites put what a shell sources to get `module`.
PLACES = {
    "modules": ("/usr/share/modules/init/bash", "/usr/share/Modules/init/bash", "/usr/local/Modules/init/bash"),
    "lmod": (
        "/usr/share/lmod/lmod/init/bash", "/usr/lib/x86_64-linux-gnu/lmod/init/bash", "/opt/apps/lmod/lmod/init/bash",
    ),
}  # fmt: skip
TOOLS = {name: next((one for one in places if Path(one).exists()), None) for name, places in PLACES.items()}
#: What shells and the tools keep for themselves.
OWN = ("PWD", "OLDPWD", "SHLVL", "_", "__MODULES", "MODULE", "LOADEDMODULES", "_LMFILES_", "LMOD", "__LMOD", "_Module",
       "BASH_FUNC", "ENVSMITH_KEPT_", "MANPATH", "SYSHOST", "CLEAR_CASE")  # fmt: skip

TABLE = LaunchTable(
    unset=("GONE", "NEVER_THERE"),
    set={"PLAIN": "1", "EMPTY": "", "HOSTILE": "a b'c\"d$HOME`id`\\e*;#!~{}[exit]", "WORDS": "grüße 你好"},
    prepend={"LD_LIBRARY_PATH": "/new/lib:/with space", "LIST": "/first:/q'\"\\q", "FRESH": "/f"},
    short_dirs={"SHORT": "{scratch}/r d"},
)
ENVIRON = {
    "GONE": "x $y 'z'",
    "HOME": "/h",
    "KEPT": "k p",
    "PLAIN": "old",
    "LD_LIBRARY_PATH": "/old:/o ld",
    "LIST": "/l",
}


@dataclass(frozen=True)
class Said:
    loaded: dict[str, str]
    unloaded: dict[str, str]
    err: str


@pytest.fixture(params=list(TOOLS))
def tool(request: pytest.FixtureRequest) -> str:
    if TOOLS[request.param] is None or shutil.which("bash") is None:
        pytest.skip(f"`module` of {request.param} is not installed")
    return str(request.param)


def launched(tmp_path: Path, table: LaunchTable = TABLE) -> LaunchEnvironment:
    return resolve(table, env_dir=f"{tmp_path}/e nv", scratch=f"{tmp_path}/scratch")


def load(tool: str, folder: Path, text: str, environ: Mapping[str, str], *, locale: str = "C.UTF-8") -> Said:
    """Load and unload a modulefile, and say the environment after either."""
    (folder / "modules" / "es").mkdir(parents=True, exist_ok=True)
    (folder / "modules" / "es" / "1.0").write_text(text, encoding="utf-8")
    shutil.rmtree(folder / "lmod-cache", ignore_errors=True)
    # The shell's own programs are named by path: a module may put any PATH in place.
    env = shutil.which("env")
    script = (
        f'. {TOOLS[tool]}\nmodule use "{folder}/modules"\nmodule load es/1.0\n{env} -0 >"{folder}/loaded"\n'
        f'module unload es\n{env} -0 >"{folder}/unloaded"\n'
    )
    given = {"PATH": "/usr/bin:/bin", "LC_ALL": locale, "HOME": str(folder), **environ}
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", script], env=given, capture_output=True, timeout=60, check=False
    )
    return Said(read(folder / "loaded"), read(folder / "unloaded"), done.stderr.decode(errors="replace"))


def read(path: Path) -> dict[str, str]:
    pairs = [pair.split("=", 1) for pair in path.read_bytes().decode(errors="surrogateescape").split("\0") if pair]
    return {name: value for name, value in pairs if not name.startswith(OWN)}


def given(folder: Path, environ: Mapping[str, str], locale: str = "C.UTF-8") -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "LC_ALL": locale, "HOME": str(folder), **environ}


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_loading_gives_what_apply_gives_and_unloading_takes_it_back(tool: str, tmp_path: Path, locale: str) -> None:
    launch = launched(tmp_path)
    said = load(tool, tmp_path, modulefile(launch, "demo/app {x} [exit] $y"), ENVIRON, locale=locale)
    before = given(tmp_path, ENVIRON, locale)
    assert said.err == ""
    assert said.loaded == launch.apply(before)
    assert said.unloaded == before
    assert (tmp_path / "scratch" / "r d").is_dir()


def test_an_element_that_stood_in_the_list_comes_first_and_empty_ones_go(tool: str, tmp_path: Path) -> None:
    table = LaunchTable(prepend={"LD_LIBRARY_PATH": "/a:/b"})
    launch = launched(tmp_path, table)
    environ = {"LD_LIBRARY_PATH": ":/x::/b:"}
    said = load(tool, tmp_path, modulefile(launch, "t"), environ)
    assert said.loaded["LD_LIBRARY_PATH"] == "/a:/b:/x" == launch.apply(given(tmp_path, environ))["LD_LIBRARY_PATH"]


@pytest.mark.parametrize("seed", range(4))
def test_any_text_survives(tool: str, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    letters = " aZ09'\"\\$`{}[]()<>|&;#*?!~%^=,.:/@+-_äß你"
    words = ["".join(chance.choices(letters, k=chance.randint(0, 12))).strip(" ") for _ in range(60)]
    words = [word.replace(":~", ":-").removeprefix("~") for word in words]
    settings = {f"V{n}": word for n, word in enumerate(words)}
    lists = {f"L{n}": "/" + word.replace("/", "").replace(":", "") + "x" for n, word in enumerate(words[:10])}
    launch = launched(tmp_path, LaunchTable(set=settings, prepend=lists))
    said = load(tool, tmp_path, modulefile(launch, "t"), ENVIRON)
    before = given(tmp_path, ENVIRON)
    assert said.err == ""
    assert said.loaded == launch.apply(before)
    assert said.unloaded == before


@pytest.mark.parametrize("value", ["a\nid >&2", "a\n", "b\udcff"])
def test_what_no_tool_can_hold_is_refused_and_nothing_is_changed(tool: str, tmp_path: Path, value: str) -> None:
    launch = launched(tmp_path, LaunchTable(set={"A": value, "B": "1"}))
    said = load(tool, tmp_path, modulefile(launch, "t"), {})
    assert "cannot hold the value of A" in said.err
    assert "uid=" not in said.err
    assert said.loaded == given(tmp_path, {})


REFUSED = {"lmod": "Lmod would change the value of A", "modules": "Environment Modules would change the value of A"}


@pytest.mark.parametrize(
    ("value", "by"),
    [("tab\there", "lmod"), ("end ", "lmod"), ("\N{GRINNING FACE}", "lmod"), ("~/x", "modules"), ("a:~", "modules")],
)
def test_what_one_tool_would_change_it_refuses_and_the_other_takes(
    tool: str, tmp_path: Path, value: str, by: str
) -> None:
    said = load(tool, tmp_path, modulefile(launched(tmp_path, LaunchTable(set={"A": value})), "t"), {})
    if tool == by:
        assert REFUSED[tool] in said.err
        assert said.loaded == given(tmp_path, {})
    else:
        assert (said.loaded["A"], said.err) == (value, "")


@pytest.mark.parametrize("value", ["/", "/a/", "/a//b:/c", "/a/./b", "/a :/b"])
def test_an_element_that_lmod_would_shorten_is_refused_there(tool: str, tmp_path: Path, value: str) -> None:
    said = load(tool, tmp_path, modulefile(launched(tmp_path, LaunchTable(prepend={"A": value})), "t"), {})
    if tool == "lmod":
        assert REFUSED[tool] in said.err
    else:
        assert (said.loaded["A"], said.err) == (value, "")


def test_a_required_variable_that_is_missing_stops_the_load(tool: str, tmp_path: Path) -> None:
    launch = launched(tmp_path, LaunchTable(set={"A": "1"}, require=("VENDOR_HOME",)))
    said = load(tool, tmp_path, modulefile(launch, "t"), {})
    assert "VENDOR_HOME is required" in said.err
    assert "A" not in said.loaded
    there = load(tool, tmp_path, modulefile(launch, "t"), {"VENDOR_HOME": "/v"})
    assert (there.loaded["A"], there.err) == ("1", "")


def test_a_profile_is_sourced_first_or_the_load_is_refused(tool: str, tmp_path: Path) -> None:
    profile = tmp_path / "vendor env.sh"
    profile.write_text("export LD_LIBRARY_PATH=/vendor/lib PYTHONPATH=/vendor/py VENDOR_HOME='/v v'\n")
    table = LaunchTable(profile=str(profile), prepend={"LD_LIBRARY_PATH": "/ours"}, require=("VENDOR_HOME",))
    said = load(tool, tmp_path, modulefile(launched(tmp_path, table), "t"), {})
    if tool == "lmod":
        assert "cannot source the vendor profile" in said.err
        assert said.loaded == given(tmp_path, {})
    else:
        assert said.err == ""
        assert (said.loaded["LD_LIBRARY_PATH"], said.loaded["VENDOR_HOME"]) == ("/ours:/vendor/lib", "/v v")
        assert "PYTHONPATH" not in said.loaded
        assert said.unloaded == given(tmp_path, {})


def test_ray_gets_the_forwarded_variables_where_the_env_has_ray(tool: str, tmp_path: Path) -> None:
    launch = launched(tmp_path, LaunchTable(set={"A": 'x "y"', "B": "2"}, forward=("A",)))
    text = modulefile(launch, "t")
    assert "RAY_RUNTIME_ENV" not in load(tool, tmp_path, text, {}).loaded
    (tmp_path / "e nv" / "bin").mkdir(parents=True)
    (tmp_path / "e nv" / "bin" / "ray").touch()
    said = load(tool, tmp_path, text, {})
    assert said.loaded["RAY_JOB_CONFIG_JSON_ENV_VAR"] == '{"runtime_env": {"env_vars": {"A": "x \\"y\\""}}}'
    assert said.unloaded == given(tmp_path, {})


def test_the_scratch_folder_is_that_of_whoever_loads_it(tool: str, tmp_path: Path) -> None:
    table = LaunchTable(
        set={"A": "{scratch}/a ü", "B": "x{scratch}/b"}, prepend={"L": "{scratch}/l"}, forward=("A", "B")
    )
    launch = resolve(table, env_dir=str(tmp_path), scratch="/tmp/es4711")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ray").touch()
    text = modulefile(launch, "t")
    for environ, folder in (
        ({}, f"/tmp/es{os.getuid()}"),
        ({"ENVSMITH_SCRATCH": f"{tmp_path}/s p"}, f"{tmp_path}/s p"),
    ):
        said = load(tool, tmp_path, text, environ)
        assert said.err == ""
        assert (said.loaded["A"], said.loaded["L"]) == (f"{folder}/a ü", f"{folder}/l")
        assert "4711" not in said.loaded.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "")
        assert said.unloaded == given(tmp_path, environ)


def test_a_driver_library_is_only_spoken_of(tool: str, tmp_path: Path) -> None:
    launch = launched(tmp_path, replace(TABLE, driver_library="host"))
    text = modulefile(launch, "t")
    assert "# launch.driver-library" in text
    assert load(tool, tmp_path, text, ENVIRON).err == ""
