"""Build backends (PEP 517, PEP 660), called through `build` in an environment of pinned wheels.

The backend runs in its own interpreter, offline, with a fixed date and hash seed, so that what it makes depends
on the tree and on the pinned requirements alone as far as the backend allows.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from envsmith.errors import InputError, Problem, StepError
from envsmith.toml_reader import TomlError, read_toml
from envsmith.tools.process import Completed, run, scrubbed

if TYPE_CHECKING:
    from build import ProjectBuilder

Kind = Literal["wheel", "editable"]
T = TypeVar("T")

#: 1980-01-01, the first date a zip can hold. Recorded in the lock beside every built wheel.
SOURCE_DATE_EPOCH = 315532800
BUILD_TIMEOUT_S = 3600.0

#: How a build says that it imports what nobody installed for it (facts/symptoms.md D33).
UNDECLARED = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")

#: What PEP 517 says a tree without `pyproject.toml` means.
LEGACY_REQUIRES = ("setuptools>=40.8.0",)


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreMetadata:
    """What a backend says about a tree."""

    extras: frozenset[str] = frozenset()
    """Canonical names of `Provides-Extra`."""

    name: str
    version: str
    requires: tuple[str, ...]
    requires_python: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """The backend of one source tree, run by one interpreter that has its requirements."""

    tree: Path
    python: Path
    environ: Mapping[str, str]
    version: str | None = None
    """What a backend that asks git for its version is told instead: a work copy has no tags."""

    def requires(self, kind: Kind) -> tuple[str, ...]:
        """Requirements beyond the static ones that the backend wants for a build of this kind."""
        asked = self._guarded("say what it needs", lambda: self._builder().get_requires_for_build(kind))
        return tuple(sorted(asked))

    def metadata(self, kind: Kind) -> CoreMetadata:
        """Name, version and requirements of the tree.

        Raises:
            StepError: `backend-failed`.
        """
        with tempfile.TemporaryDirectory(prefix="envsmith-metadata-") as out:
            found = self._guarded("prepare its metadata", lambda: self._builder().prepare(kind, out))
            if found is None:
                built = self.build("wheel", Path(out))
                return _from_wheel(built)
            return parse_metadata((Path(found) / "METADATA").read_bytes())

    def build(self, kind: Kind, out: Path) -> Path:
        """Build a wheel into `out` and return its path.

        Raises:
            StepError: `backend-failed` with the end of what the backend said.
        """
        return Path(
            self._guarded(
                "build its wheel" if kind == "wheel" else "build its editable wheel",
                lambda: self._builder().build(kind, out),
            )
        )

    def _builder(self) -> ProjectBuilder:
        from build import BuildException, ProjectBuilder

        try:
            return ProjectBuilder(self.tree, python_executable=str(self.python), runner=self._run)
        except BuildException as error:
            raise StepError(
                Problem(
                    code="backend-failed", message=f"its build configuration is wrong: {error}", where=str(self.tree)
                )
            ) from error

    def _guarded(self, what: str, action: Callable[[], T]) -> T:
        from build import BuildBackendException

        try:
            # What a backend warns its authors of is not for our user's screen.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return action()
        except BuildBackendException as error:
            if isinstance(error.exception, StepError):
                raise error.exception from error
            raise StepError(
                Problem(
                    code="backend-failed",
                    message=f"the build backend could not {what}",
                    where=str(self.tree),
                    actual=_words(error.exception),
                )
            ) from error

    def _run(self, cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None) -> None:
        env = scrubbed(
            self.environ,
            SOURCE_DATE_EPOCH=str(SOURCE_DATE_EPOCH),
            PYTHONHASHSEED="0",
            PYTHONNOUSERSITE="1",
            PYTHONDONTWRITEBYTECODE="1",
            PIP_NO_INDEX="1",
            PIP_CONFIG_FILE="/dev/null",
        )
        env["PATH"] = f"{self.python.parent}:{env.get('PATH', '')}"
        if self.version is not None:
            # Read by setuptools-scm, and by hatch-vcs and others that are built on it.
            env["SETUPTOOLS_SCM_PRETEND_VERSION"] = self.version
        env.update(extra_environ or {})
        done: Completed = run(cmd, env=env, cwd=Path(cwd) if cwd else None, timeout_s=BUILD_TIMEOUT_S)
        undeclared = UNDECLARED.search(done.stderr) if done.returncode != 0 else None
        if undeclared:
            raise undeclared_requirement(undeclared[1], undeclared[0], str(self.tree))
        if done.returncode != 0:
            raise StepError(
                Problem(
                    code="backend-failed",
                    message=f"the build backend of `{self.tree.name}` failed",
                    where=str(self.tree),
                    actual=done.tail(15),
                )
            )


def _words(error: BaseException) -> str:
    """What the backend said: a problem of ours inside carries it, anything else is shown as it is."""
    if isinstance(error, StepError):
        return error.problems[0].actual or error.problems[0].message
    return str(error)[-2000:]


def undeclared_requirement(module: str, said: str, where: str | None = None) -> StepError:
    """The error for a build that imports what it does not declare; builds are isolated from the env."""
    return StepError(
        Problem(
            code="build-requirement-undeclared",
            message=f"building an sdist needs the module `{module}`, which it does not declare as a build requirement",
            where=where,
            actual=said,
            hint="build its wheel once by hand against the locked versions and name the folder that holds it with"
            " ENVSMITH_FIND_LINKS, or do without it (`exclude`)",
        )
    )


def static_requires(tree: Path) -> tuple[str, ...]:
    """`build-system.requires` of a tree.

    Raises:
        InputError: `source-not-python` when it can be built in no way, `source-pyproject` when its file is broken.
    """
    pyproject = tree / "pyproject.toml"
    if not pyproject.is_file():
        if not (tree / "setup.py").is_file():
            raise InputError(
                Problem(
                    code="source-not-python",
                    message="it has neither `pyproject.toml` nor `setup.py`",
                    where=str(tree),
                )
            )
        return LEGACY_REQUIRES
    try:
        data = read_toml(pyproject.read_text())
    except (UnicodeDecodeError, TomlError) as error:
        raise InputError(
            Problem(code="source-pyproject", message=f"this is not TOML: {error}", where=str(pyproject))
        ) from error
    system = data.get("build-system")
    return tuple(sorted(system.get("requires", LEGACY_REQUIRES))) if isinstance(system, dict) else LEGACY_REQUIRES


#: Projects that make a version out of git tags, by canonical name.
VERSION_FROM_TAGS = frozenset(
    (
        "setuptools-scm",
        "hatch-vcs",
        "vcs-versioning",
        "flit-scm",
        "setuptools-git-versioning",
        "versioningit",
        "dunamai",
    )
)


def sdist_version(tree: Path) -> str | None:
    """The version that the PKG-INFO of an unpacked sdist states."""
    try:
        return parse_metadata((tree / "PKG-INFO").read_bytes()).version or None
    except OSError:
        return None


def parse_metadata(data: bytes) -> CoreMetadata:
    """Read core metadata leniently: a bad optional field of somebody else's package is no reason to stop."""
    from packaging.metadata import parse_email
    from packaging.utils import canonicalize_name

    raw, _ = parse_email(data)
    return CoreMetadata(
        name=str(canonicalize_name(raw.get("name", ""))),
        version=raw.get("version", ""),
        requires=tuple(raw.get("requires_dist", ())),
        requires_python=raw.get("requires_python") or None,
        extras=frozenset(str(canonicalize_name(extra)) for extra in raw.get("provides_extra", ())),
    )


def _from_wheel(path: Path) -> CoreMetadata:
    from envsmith.tools.wheel import read_metadata

    return parse_metadata(read_metadata(path))
