"""uv, called in one way only: pinned binary, no configuration, scrubbed environment, absolute interpreter.

Measured behaviour that this respects is in the facts (anchors.md §0): a directory name may be taken for a version,
the environment may name indexes, a link may lead into the cache.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from envsmith.errors import EnvsmithError, InputError, IntegrityError, Problem, StepError, SupplyError
from envsmith.toml_reader import read_toml
from envsmith.tools.backend import UNDECLARED, undeclared_requirement
from envsmith.tools.process import NO_ROOM, Completed, run, scrubbed, without_frames, without_secrets

RESOLVE_TIMEOUT_S = 1800.0
INSTALL_TIMEOUT_S = 7200.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolution:
    """What to resolve and for which platform; every field goes to uv as it is."""

    requires: tuple[str, ...]
    python: str
    """`3.11` or `3.11.7`."""
    platform: str
    override: tuple[str, ...] = ()
    constrain: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    build: tuple[str, ...] = ()
    """Names that may come as an sdist."""
    no_deps: tuple[str, ...] = ()
    exclude_newer: str | None = None
    prefer: Mapping[str, str] = field(default_factory=dict)
    """Versions of an existing lock, kept where they still fit."""
    index: tuple[str, ...] = ()
    """Index URLs, the first one first; empty means uv's default index."""
    find_links: tuple[str, ...] = ()
    offline: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One file that a resolution offers for a package."""

    filename: str
    location: str
    """URL or absolute path."""
    size: int | None
    sha256: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedPackage:
    """One package of a resolution with all its candidate files."""

    name: str
    version: str
    marker: str | None
    wheels: tuple[Candidate, ...]
    sdist: Candidate | None


def uv_binary() -> Path:
    """Path of the uv that our dependencies pin."""
    from uv import find_uv_bin

    return Path(find_uv_bin()).absolute()


def uv_version() -> str:
    """Its version, as locks record it."""
    from importlib.metadata import version

    return version("uv")


@dataclass(frozen=True, kw_only=True, slots=True)
class Uv:
    """uv with its cache folder and the part of our environment that it may see."""

    cache: Path
    environ: Mapping[str, str]

    def call(
        self, *args: str | Path, cwd: Path, timeout_s: float, offline: bool = False, config: Path | None = None
    ) -> Completed:
        """Run uv with scrubbed configuration; a non-zero exit is a value."""
        env = scrubbed(
            self.environ,
            UV_CACHE_DIR=str(self.cache),
            UV_PYTHON_DOWNLOADS="never",
            UV_NO_PROGRESS="1",
            NO_COLOR="1",
            **({"UV_OFFLINE": "1"} if offline else {}),
        )
        options = ["--config-file", str(config)] if config else ["--no-config"]
        return run([uv_binary(), *args, *options], env=env, cwd=cwd, timeout_s=timeout_s)

    def resolve(self, wanted: Resolution, *, interpreter: Path, work: Path) -> tuple[ResolvedPackage, ...]:
        """Resolve requirements; `work` is an empty folder for uv's inputs and output.

        Raises:
            InputError: `unsatisfiable` with uv's own explanation.
            SupplyError: `index-unreachable` when the index does not answer.
            StepError: `uv-failed` for anything else.
        """
        args = _resolve_arguments(wanted, interpreter, work)
        config = _metadata_overrides(wanted, work)
        done = self.call(*args, cwd=work, timeout_s=RESOLVE_TIMEOUT_S, offline=wanted.offline, config=config)
        if done.returncode != 0:
            raise _resolve_error(done)
        return _read_resolution((work / "pylock.out.toml").read_text(), work)

    def create_venv(self, path: Path, *, interpreter: Path, prompt: str) -> None:
        """Make an empty virtual environment.

        Raises:
            StepError: `venv-failed`.
        """
        done = self.call(
            "venv", "--no-project", "--allow-existing", "--prompt", prompt, "--python", interpreter, path,
            cwd=path.parent, timeout_s=300, offline=True,
        )  # fmt: skip
        if done.returncode != 0:
            raise _step_error("venv-failed", "uv could not make the environment", done)

    def sync(self, pylock: Path, *, python: Path, link_mode: str) -> None:
        """Make an environment hold exactly what a pylock file lists; offline, no index, no build.

        Raises:
            StepError: `install-failed` with uv's words.
        """
        done = self.call(
            "pip", "sync", "--offline", "--no-index", "--no-build", "--strict", "--allow-empty-requirements",
            "--preview-features", "pylock", "--link-mode", link_mode, "--python", python, pylock,
            cwd=pylock.parent, timeout_s=INSTALL_TIMEOUT_S, offline=True,
        )  # fmt: skip
        if done.returncode != 0:
            raise _step_error("install-failed", "uv could not install the locked wheels", done)

    def unpack(self, pylock: Path, *, python: Path, scratch: Path) -> None:
        """Unpack the wheels of a pylock file into uv's cache ahead of `sync`; the copy in `scratch` is thrown away.

        Best effort: what fails here fails again, with words, in `sync`.
        """
        self.call(
            "pip", "install", "--offline", "--no-index", "--no-build", "--no-deps", "--quiet",
            "--preview-features", "pylock", "--link-mode", "hardlink", "--python", python, "--target", scratch,
            "-r", pylock,
            cwd=pylock.parent, timeout_s=INSTALL_TIMEOUT_S, offline=True,
        )  # fmt: skip


def _step_error(code: str, message: str, done: Completed) -> SupplyError | StepError:
    said = without_secrets(done.tail(12))
    if any(words in said for words in NO_ROOM):
        return SupplyError(Problem(code="disk-full", message="there is no room for the environment", actual=said))
    return StepError(Problem(code=code, message=message, actual=said))


def install_pylock(wheels: Iterable[tuple[str, str, str, Path, int, str]]) -> str:
    """Render a PEP 751 file for `sync`: (name, version, filename, absolute path, size, sha256) of every wheel."""
    out = ['lock-version = "1.0"', 'created-by = "envsmith"']
    listed = tuple(wheels)
    out += [] if listed else ["packages = []"]
    for name, version, filename, path, size, sha256 in listed:
        out += [
            "",
            "[[packages]]",
            f"name = {json.dumps(name)}",
            f"version = {json.dumps(version)}",
            f"wheels = [{{ name = {json.dumps(filename)}, path = {json.dumps(str(path), ensure_ascii=False)}, "
            f'size = {size}, hashes = {{ sha256 = "{sha256}" }} }}]',
        ]
    return "\n".join(out) + "\n"


def _resolve_arguments(wanted: Resolution, interpreter: Path, work: Path) -> list[str | Path]:
    def listed(name: str, lines: Iterable[str]) -> Path:
        path = work / name
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    args: list[str | Path] = [
        "pip", "compile", listed("requires.in", wanted.requires),
        "--python", interpreter, "--python-version", wanted.python, "--python-platform", wanted.platform,
        "--format", "pylock.toml", "--preview-features", "pylock", "--no-header", "--no-annotate", "--quiet",
        "--index-strategy", "first-index", "--only-binary", ":all:", "-o", work / "pylock.out.toml",
    ]  # fmt: skip
    for name in wanted.build:
        args += ["--no-binary", name]
    if wanted.override:
        args += ["--overrides", listed("override.txt", wanted.override)]
    if wanted.constrain:
        args += ["--constraints", listed("constrain.txt", wanted.constrain)]
    if wanted.exclude:
        args += ["--excludes", listed("exclude.txt", wanted.exclude)]
    if wanted.exclude_newer:
        args += ["--exclude-newer", wanted.exclude_newer]
    if wanted.index:
        args += ["--default-index", wanted.index[0]]
        for url in wanted.index[1:]:
            args += ["--index", url]
    if wanted.find_links:
        for folder in wanted.find_links:
            args += ["--find-links", folder]
    if wanted.prefer:
        (work / "pylock.out.toml").write_text(_preferences(wanted.prefer))
    return args


def _preferences(versions: Mapping[str, str]) -> str:
    """An output file that uv takes preferred versions from, as it does when it locks again (measured)."""
    out = ['lock-version = "1.0"', 'created-by = "envsmith"']
    for name, version in sorted(versions.items()):
        out += ["", "[[packages]]", f"name = {json.dumps(name)}", f"version = {json.dumps(version)}"]
    return "\n".join(out) + "\n"


def _metadata_overrides(wanted: Resolution, work: Path) -> Path | None:
    """uv knows no per-package `--no-deps`; a static metadata entry without requirements is the same."""
    if not wanted.no_deps:
        return None
    config = work / "uv.toml"
    blocks = [f"[[dependency-metadata]]\nname = {json.dumps(name)}\nrequires-dist = []\n" for name in wanted.no_deps]
    config.write_text("\n".join(blocks))
    return config


def _resolve_error(done: Completed) -> EnvsmithError:
    said = re.sub(r"\x1b\[[0-9;]*m", "", done.stderr).strip()
    said = without_secrets(without_frames(said))
    first = next((line for line in said.splitlines() if line.strip()), "uv said nothing")
    if re.search(r"\b(401|403)\b|Unauthorized|Forbidden", said):
        return SupplyError(
            Problem(
                code="index-refused",
                message="the package index refused to answer while resolving",
                actual=" ".join(said.split())[:600],
                hint="put user and password into ~/.netrc (or the file that NETRC names), or into the index URL",
            )
        )
    if "not found in the cache" in said or "connectivity is disabled" in said:
        missing = ", ".join(dict.fromkeys(re.findall(r"(?:Because|and) ([\w.-]+) was not found in the cache", said)))
        return SupplyError(
            Problem(
                code="offline-missing",
                message=f"the network is off, and no wheel folder or cache has {missing or 'what is needed'}",
                hint="lock once with the network on, or name a folder that has them with ENVSMITH_FIND_LINKS",
            )
        )
    undeclared = UNDECLARED.search(said)
    if undeclared:
        built = re.search(r"Failed to (?:download and )?build `([^`]+)`", said)
        return undeclared_requirement(undeclared[1], undeclared[0], built[1] if built else None)
    if "No solution found" in said or "no version of" in said or "was not found in the" in said:
        return InputError(Problem(code="unsatisfiable", message=_because(said), hint=_hint(said)))
    network = ("error sending request", "Failed to fetch", "connect", "dns error", "timed out", "disabled")
    if any(word in said for word in network):
        return SupplyError(
            Problem(
                code="index-unreachable",
                message="the package index could not be reached while resolving",
                actual=" ".join(said.split())[:600],
                hint="check the network, or name a mirror or a wheel folder with ENVSMITH_INDEX or ENVSMITH_FIND_LINKS",
            )
        )
    if ".whl" in said and re.search(r"zip|RECORD|METADATA|metadata|WHEEL", said):
        return IntegrityError(
            Problem(code="wheel-malformed", message=f"a wheel cannot be read: {' '.join(said.split())[:400]}")
        )
    return StepError(Problem(code="uv-failed", message=f"uv could not resolve: {first}", actual=said[:2000]))


def _because(said: str) -> str:
    """The resolver's reasoning in one line, without the labels that its terminal form has."""
    words = " ".join(line.strip().lstrip("╰─▶×│ ") for line in said.splitlines())
    reason = re.search(r"(?:cause: )?(Because .*?)(?: hint: .*)?$", words)
    return (reason[1] if reason else words.removeprefix("error: ")).strip().rstrip(".")


def _hint(said: str) -> str | None:
    if "has no usable wheels" in said or "no wheels with a matching" in said:
        return "allow building it in `build`, raise `host.glibc`, or pin a version that has a wheel for this target"
    if re.search(r"==[\w.!]+\+[\w.]+", said):
        return (
            "a requirement with a local version such as `==2.1.0+cpu` is met only by that very build, although"
            " `==2.1.0` is met by `2.1.0+cpu` (PEP 440); name the folder that holds it, or use `no-deps`"
        )
    return "if a declared requirement is wrong on purpose, name the version in `override` and record it in `accept`"


def _read_resolution(text: str, work: Path) -> tuple[ResolvedPackage, ...]:
    data = read_toml(text)
    found = []
    for entry in data.get("packages", []):
        sdist = entry.get("sdist")
        found.append(
            ResolvedPackage(
                name=entry["name"],
                version=entry.get("version", ""),
                marker=entry.get("marker"),
                wheels=tuple(_candidate(wheel, work) for wheel in entry.get("wheels", ())),
                sdist=_candidate(sdist, work) if sdist else None,
            )
        )
    return tuple(found)


def _candidate(entry: Mapping[str, object], work: Path) -> Candidate:
    location = str(entry.get("url") or (work / str(entry["path"])).resolve())
    if location.startswith("file://"):
        location = unquote(urlsplit(location).path)
    hashes = entry.get("hashes")
    size = entry.get("size")
    return Candidate(
        filename=str(entry.get("name") or unquote(urlsplit(location).path.rpartition("/")[2])),
        location=location,
        size=size if isinstance(size, int) else None,
        sha256=hashes.get("sha256") if isinstance(hashes, dict) else None,
    )
