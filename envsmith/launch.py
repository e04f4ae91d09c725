"""The launch environment as data: what every process of an env gets, rendered for a process or a shell.

Build, verify and every later stage start processes through this, so that what was verified is what runs.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from envsmith.errors import InputError, Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchTable:
    """What a recipe says about the environment of its processes, after defaults."""

    unset: tuple[str, ...] = ("PYTHONHOME", "PYTHONPATH")
    set: Mapping[str, str] = field(default_factory=dict)
    prepend: Mapping[str, str] = field(default_factory=dict)
    """Variable to the elements that come first, joined by `:`."""
    require: tuple[str, ...] = ()
    forward: tuple[str, ...] | None = None
    """Variables that must reach workers; None means every key of `set`."""
    driver_library: str | None = None
    short_dirs: Mapping[str, str] = field(default_factory=dict)
    """Variable to a directory that is made before a process starts; `{scratch}` is filled in."""
    profile: str | None = None
    """A shell file on the target that is sourced first."""
    path_filter: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Canonical form for the fingerprint."""
        return {
            "unset": sorted(self.unset),
            "set": dict(sorted(self.set.items())),
            "prepend": dict(sorted(self.prepend.items())),
            "require": sorted(self.require),
            "forward": sorted(self.forwarded),
            "driver-library": self.driver_library,
            "short-dirs": dict(sorted(self.short_dirs.items())),
            "profile": self.profile,
            "path-filter": sorted(self.path_filter),
        }

    @property
    def forwarded(self) -> tuple[str, ...]:
        """Names that must reach every worker process."""
        return tuple(self.set) if self.forward is None else self.forward


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchEnvironment:
    """The resolved change to a process environment: first `unset`, then `set`, then `prepend`."""

    unset: tuple[str, ...]
    set: tuple[tuple[str, str], ...]
    prepend: tuple[tuple[str, str], ...]
    require: tuple[str, ...]
    directories: tuple[str, ...]
    """Directories that must exist before a process starts."""
    profile: str | None

    def apply(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment that a process started from `environ` gets.

        Raises:
            InputError: `launch-variable-missing` for every required variable that is not there.
        """
        out = {name: value for name, value in environ.items() if name not in self.unset}
        out.update(self.set)
        for name, first in self.prepend:
            # An empty element means the current directory to every loader, so one is never made.
            rest = [part for part in out.get(name, "").split(":") if part and part not in first.split(":")]
            out[name] = ":".join([first, *rest])
        missing = [name for name in self.require if not out.get(name)]
        if missing:
            raise InputError(
                *(
                    Problem(
                        code="launch-variable-missing",
                        message=f"the recipe requires the variable `{name}` in every process, and it is not set",
                        where=f"launch.require:{name}",
                        hint="set it in the shell that starts envsmith, or name the vendor's file as `launch.profile`",
                    )
                    for name in missing
                )
            )
        return out

    def shell(self) -> str:
        """Render as lines for a POSIX shell, to be sourced."""
        lines = [f". {shlex.quote(self.profile)}"] if self.profile else []
        lines += [f"unset {name}" for name in self.unset]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in self.set]
        lines += [_SHELL_PREPEND.strip()] if self.prepend else []
        lines += [f"_envsmith_prepend {name} {shlex.quote(first)}" for name, first in self.prepend]
        lines += ["unset -f _envsmith_prepend"] if self.prepend else []
        lines += [f"mkdir -p {shlex.quote(path)}" for path in self.directories]
        lines += [f': "${{{name}:?required by the recipe and not set}}"' for name in self.require]
        return "\n".join(lines) + "\n"

    def modulefile(self, title: str) -> str:
        """Render as a Tcl modulefile, which Lmod and Environment Modules both read."""
        lines = ["#%Module1.0", f"module-whatis {_tcl(title)}"]
        lines += [f"unsetenv {name}" for name in self.unset]
        lines += [f"setenv {name} {_tcl(value)}" for name, value in self.set]
        lines += [f"prepend-path {name} {_tcl(first)}" for name, first in self.prepend]
        return "\n".join(lines) + "\n"


def resolve(table: LaunchTable, *, env_dir: str, scratch: str, work_dirs: tuple[str, ...] = ()) -> LaunchEnvironment:
    """Fill a launch table in for one env directory.

    `scratch` is a short local directory that `{scratch}` stands for; `work_dirs` are writable source copies that
    come first on PYTHONPATH.
    """

    def filled(text: str) -> str:
        return text.replace("{scratch}", scratch).replace("{env}", env_dir)

    short = [(name, filled(value)) for name, value in table.short_dirs.items()]
    settings = {name: filled(value) for name, value in table.set.items()}
    settings.setdefault("PYTHONNOUSERSITE", "1")
    settings["VIRTUAL_ENV"] = env_dir
    settings.update(short)
    prepend = {name: first for name, value in table.prepend.items() if (first := _elements(filled(value)))}
    own_bin = f"{env_dir}/bin"
    prepend["PATH"] = f"{own_bin}:{prepend['PATH']}" if prepend.get("PATH") else own_bin
    if work_dirs:
        prepend["PYTHONPATH"] = ":".join([*work_dirs, *filter(None, [prepend.get("PYTHONPATH")])])
    return LaunchEnvironment(
        unset=tuple(name for name in table.unset if name not in settings),
        set=tuple(sorted(settings.items())),
        prepend=tuple(sorted(prepend.items())),
        require=table.require,
        directories=tuple(path for _, path in short),
        profile=table.profile,
    )


def path_filter_hook(parts: tuple[str, ...]) -> str:
    """The hook that drops entries from sys.path; deleting the file takes it back."""
    return (
        "# Written by envsmith for launch.path-filter. Way back: remove the key from the recipe and build again.\n"
        f"import sys; sys.path[:] = [p for p in sys.path if not any(part in p for part in {list(parts)!r})]\n"
    )


#: Like `apply`: what is there is kept behind the new elements, without empty ones and without repeating any.
_SHELL_PREPEND = r"""
_envsmith_prepend() {
    _envsmith_all=$2
    eval "_envsmith_rest=\${$1-}:"
    while [ -n "$_envsmith_rest" ]; do
        _envsmith_one=${_envsmith_rest%%:*}
        _envsmith_rest=${_envsmith_rest#*:}
        case ":$2::" in *":$_envsmith_one:"*) ;; *) _envsmith_all=$_envsmith_all:$_envsmith_one ;; esac
    done
    export "$1=$_envsmith_all"
    unset _envsmith_all _envsmith_rest _envsmith_one
}
"""


def _elements(value: str) -> str:
    """A `:`-separated list without its empty elements."""
    return ":".join(filter(None, value.split(":")))


def _tcl(text: str) -> str:
    """Quote for Tcl: braces, or backslashes where the text holds braces itself."""
    if "{" in text or "}" in text or "\\" in text:
        return '"' + "".join("\\" + c if c in '\\"[]$ ' else c for c in text) + '"'
    return "{" + text + "}"
