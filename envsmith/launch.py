"""The launch environment as data: what every process of an env gets, rendered for a process or a shell.

Build, verify and every later stage start processes through this, so that what was verified is what runs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from envsmith.errors import InputError, Problem
from envsmith.rayforward import ray_shell

#: What the private folder for `driver-library` links to the host driver's libcuda: by its SONAME for the loader, and
#: without a version for the `-lcuda` of compilers at run time (facts/symptoms.md D04).
DRIVER_LINKS: Final = ("libcuda.so.1", "libcuda.so")
#: Other libraries of the driver to link to, by the names that libcuda opens them by, where they lie beside it: for
#: example `libnvidia-ptxjitcompiler.so.1` and `libnvidia-nvvm.so.4`, which a compat folder has too.
DRIVER_COMPANIONS: tuple[str, ...] = ()
LIBRARY_PATH: Final = "LD_LIBRARY_PATH"


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverPlaces:
    """Where a host says which NVIDIA driver it has, and where the libcuda of that driver may lie."""

    versions: tuple[str, ...] = ("/proc/driver/nvidia/version", "/sys/module/nvidia/version")
    """Files that name the version of the kernel's driver; the first that does is believed."""
    folders: tuple[str, ...] = (
        "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
        "/lib64", "/usr/lib64", "/lib", "/usr/lib",
        "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib64/nvidia", "/usr/lib/nvidia",
        "/usr/lib/x86_64-linux-gnu/nvidia/current", "/usr/lib/aarch64-linux-gnu/nvidia/current", "/usr/lib/wsl/lib",
        "/run/nvidia/driver/usr/lib/x86_64-linux-gnu", "/run/nvidia/driver/usr/lib/aarch64-linux-gnu",
        "/run/nvidia/driver/usr/lib64", "/run/opengl-driver/lib", "/home/kubernetes/bin/nvidia/lib64",
    )  # fmt: skip
    """The loader's default folders, then where distributions, NVIDIA's container tools and driver container, WSL, NixOS
    and GKE put the driver. The loader's cache and LD_LIBRARY_PATH are looked at before them."""
    cache: str | None = "/etc/ld.so.cache"
    """The loader's cache; None for no look at it."""
    nodes: tuple[str, ...] = ("/dev/nvidiactl", "/dev/nvidia0")
    """Files of which one is there when a process may use a device."""


_HOST: Final = DriverPlaces()


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
    """`host`: a private folder with nothing but the host driver's own libcuda comes first in LD_LIBRARY_PATH."""
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
    driver_scratch: str | None = None
    """Folder in which the private folder for the host driver's library is still to be made; None for no such wish."""
    forward: tuple[str, ...] = ()
    """Variables that Ray must hand on to its workers."""
    marked: tuple[tuple[str, str], ...] = ()
    """Values with the scratch folder in them, and the same with a mark for it: files find that of whoever reads them.
    Empty where somebody named the folder."""

    def with_driver_folder(self, folder: str | None) -> LaunchEnvironment:
        """Put the private folder that was made before all else in LD_LIBRARY_PATH; None where there is no driver."""
        first = dict(self.prepend)
        if folder:
            first[LIBRARY_PATH] = ":".join([folder, *filter(None, [first.get(LIBRARY_PATH)])])
        return replace(self, prepend=tuple(sorted(first.items())), driver_scratch=None)

    def library_path(self, environ: Mapping[str, str]) -> str:
        """LD_LIBRARY_PATH as `apply` makes it, whatever else is missing."""
        return replace(self, require=()).apply(environ).get(LIBRARY_PATH, "")

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

    def shell(self, places: DriverPlaces = _HOST) -> str:
        """Render as lines for a POSIX shell, to be sourced.

        They are read on other machines than they were written on, so the driver's library is looked for by them.
        """
        lines = [f". {shlex.quote(self.profile)}"] if self.profile else []
        filled = [value for _, value in (*self.set, *self.prepend)]
        scratch = any(len(self.around_scratch(value)) > 1 for value in filled)
        lines += [_SHELL_SCRATCH.strip()] if scratch else []
        lines += [f"unset {name}" for name in self.unset]
        lines += [f"export {name}={self._word(value)}" for name, value in self.set]
        lines += [_SHELL_PREPEND.strip()] if self.prepend or self.driver_scratch else []
        lines += [f"_envsmith_prepend {name} {self._word(first)}" for name, first in self.prepend]
        lines += [_shell_driver(places)] if self.driver_scratch else []
        lines += ["unset -f _envsmith_prepend"] if self.prepend or self.driver_scratch else []
        lines += [f"mkdir -p {self._word(path)}" for path in self.directories]
        lines += ["unset _envsmith_scratch"] if scratch else []
        lines += [f': "${{{name}:?required by the recipe and not set}}"' for name in self.require]
        lines += [ray_shell(self.forward, dict(self.set)["VIRTUAL_ENV"])] if self.forward else []
        return "\n".join(lines) + "\n"

    def around_scratch(self, text: str) -> list[str]:
        """What stands before, between and behind the scratch folder in a value; one part where it is not there."""
        return dict(self.marked).get(text, text).split(_MARK)

    def _word(self, text: str) -> str:
        parts = self.around_scratch(text)
        if len(parts) == 1:
            return shlex.quote(text)
        return '"$_envsmith_scratch"'.join(shlex.quote(part) if part else "" for part in parts)


def resolve(table: LaunchTable, *, env_dir: str, scratch: str, work_dirs: tuple[str, ...] = ()) -> LaunchEnvironment:
    """Fill a launch table in for one env directory.

    `scratch` is a short local directory that `{scratch}` stands for; `work_dirs` are writable source copies that
    come first on PYTHONPATH.
    """
    found = _resolved(table, env_dir, scratch, work_dirs)
    if not re.fullmatch(r"/tmp/es\d+", scratch):
        return found
    other = _resolved(table, env_dir, _MARK, work_dirs)
    pairs = zip((*found.set, *found.prepend), (*other.set, *other.prepend), strict=True)
    return replace(found, marked=tuple((one[1], two[1]) for one, two in pairs if one != two))


#: In no variable of a process.
_MARK: Final = "\0"


def _resolved(table: LaunchTable, env_dir: str, scratch: str, work_dirs: tuple[str, ...]) -> LaunchEnvironment:
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
        driver_scratch=scratch if table.driver_library == "host" else None,
        forward=table.forwarded,
    )


def path_filter_hook(parts: tuple[str, ...]) -> str:
    """The hook that drops entries from sys.path; deleting the file takes it back."""
    return (
        "# Written by envsmith for launch.path-filter. Way back: remove the key from the recipe and build again.\n"
        f"import sys; sys.path[:] = [p for p in sys.path if not any(part in p for part in {list(parts)!r})]\n"
    )


#: As `scratch_folder` in envsmith/commands/launching.py: the files of an env are read by others than who built it.
_SHELL_SCRATCH: Final = r"""
_envsmith_scratch=${ENVSMITH_SCRATCH-}
case $_envsmith_scratch in
    /*) ;;
    "~/"*) _envsmith_scratch=$HOME/${_envsmith_scratch#"~/"} ;;
    ?*) _envsmith_scratch=$PWD/$_envsmith_scratch ;;
    *)
        _envsmith_scratch=/tmp/es$(id -u)
        mkdir -m 700 "$_envsmith_scratch" 2>/dev/null ||
            { [ -O "$_envsmith_scratch" ] && [ ! -L "$_envsmith_scratch" ]; } ||
            _envsmith_scratch=$(mktemp -d /tmp/esXXXXXX)
        ;;
esac
"""
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

#: The same as envsmith/tools/driver.py does, in the words of POSIX, and of readlink, mktemp and od as coreutils and
#: busybox have them. A subshell: no variable, option or function of it stays. It says the folder, or nothing.
_SHELL_DRIVER: Final = r"""
_envsmith_driver() (
    set +eu
    [ -z "${ZSH_VERSION-}" ] || emulate sh
    [ -z "${BASH_VERSION-}" ] || shopt -u failglob
    set -f
    unset IFS
    PATH=${PATH:+$PATH:}/usr/sbin:/sbin:/usr/bin:/bin
    version=
    for file in @VERSIONS@; do
        [ -r "$file" ] || continue
        while [ -z "$version" ] && read -r line; do
            for word in $line; do
                case $word in
                    *[!0-9.]* | *..* | .* | *.) ;;
                    *.*) version=$word; break ;;
                esac
            done
        done <"$file"
        [ -z "$version" ] || break
    done
    [ -n "$version" ] || exit 0

    places() {
        @CACHE@
        printf '%s\n' "${LD_LIBRARY_PATH-}" | tr ':;' '\n\n'
        printf '%s\n' @FOLDERS@
    }
    machine() {
        od -An -tx1 -j4 -N1 "$1" 2>/dev/null
        od -An -tx1 -j18 -N2 "$1" 2>/dev/null
    }
    spoken() { LC_ALL=C tr '\000' '\n' <"$1" | LC_ALL=C grep -cF "$version"; }
    ours=$(machine /proc/self/exe)
    search() {
        while IFS= read -r folder; do
            for name in "libcuda.so.$version" libcuda.so.1 libcuda.so; do
                file=$(readlink -f "$folder/$name" 2>/dev/null) || continue
                case $folder/$file in [!/]* | */stubs/*) continue ;; esac
                [ -f "$file" ] || continue
                case $1,${file##*/} in
                    "name,libcuda.so.$version") ;;
                    content,libcuda.so | content,libcuda.so.1) [ "$(spoken "$file")" -gt 0 ] || continue ;;
                    *) continue ;;
                esac
                [ "$(machine "$file")" = "$ours" ] || continue
                printf '%s\n' "$file"
                return
            done
        done
    }
    library=$(places | search name)
    [ -n "$library" ] || library=$(places | search content)
    if [ -z "$library" ]; then
        for node in @NODES@; do
            [ -e "$node" ] || continue
            printf '%s\n' "envsmith: launch.driver-library: there is no libcuda.so.$version of the driver here" >&2
            break
        done
        exit 0
    fi

    target() {
        case $1 in
            @LINK_PATTERN@) printf '%s\n' "$library" ;;
            *) readlink -f "${library%/*}/$1" 2>/dev/null ;;
        esac
    }
    umask 077
    user=$(id -u)
    scratch=${ENVSMITH_SCRATCH:-/tmp/es$user}
    case $scratch in /*) ;; "~/"*) scratch=$HOME/${scratch#"~/"} ;; *) scratch=$PWD/$scratch ;; esac
    mkdir -p "$scratch" 2>/dev/null
    if [ -z "${ENVSMITH_SCRATCH-}" ] && { [ -L "$scratch" ] || [ ! -O "$scratch" ]; }; then
        scratch=$(mktemp -d /tmp/esXXXXXX)
    fi
    for folder in "$scratch/driver-$version" "$scratch/driver-$version.$user"; do
        [ -L "$folder" ] || mkdir "$folder" 2>/dev/null
        { [ -d "$folder" ] && [ ! -L "$folder" ] && [ -O "$folder" ] && chmod 700 "$folder"; } || continue
        set +f
        for entry in "$folder"/* "$folder"/.[!.]* "$folder"/..?*; do
            case ${entry##*/} in @PATTERN@) [ ! -L "$entry" ] || [ -d "$entry" ] || continue ;; esac
            if [ -e "$entry" ] || [ -L "$entry" ]; then rm -rf "$entry"; fi
        done
        set -f
        for name in @NAMES@; do
            file=$(target "$name")
            [ -f "$file" ] || { rm -f "$folder/$name"; continue; }
            [ "$(readlink "$folder/$name" 2>/dev/null)" != "$file" ] || continue
            staging=$(mktemp -d "$scratch/.driver-XXXXXX") || break
            ln -s "$file" "$staging/$name" && mv -f "$staging/$name" "$folder/$name"
            rm -rf "$staging"
        done
        for name in @LINKS@; do
            [ "$(readlink "$folder/$name" 2>/dev/null)" = "$library" ] || continue 2
        done
        printf '%s\n' "$folder"
        exit 0
    done
    printf '%s\n' "envsmith: launch.driver-library: no private folder could be made in $scratch" >&2
    exit 0
)
_envsmith_folder=$(_envsmith_driver)
[ -z "$_envsmith_folder" ] || _envsmith_prepend LD_LIBRARY_PATH "$_envsmith_folder"
unset _envsmith_folder
unset -f _envsmith_driver
"""
_SHELL_CACHE: Final = r"""
        ldconfig -p 2>/dev/null | while read -r line; do
            case $line in libcuda.so*' => /'*) line=${line##* => } && printf '%s\n' "${line%/*}" ;; esac
        done
"""


def _shell_driver(places: DriverPlaces) -> str:
    """Look for the driver's library, link to it in the private folder, and put that first."""

    def words(values: tuple[str, ...]) -> str:
        return " ".join(map(shlex.quote, values)) or "''"

    filled = {
        "VERSIONS": words(places.versions),
        "CACHE": _SHELL_CACHE.strip() if places.cache else ":",
        "FOLDERS": words(places.folders),
        "NODES": words(places.nodes),
        "LINKS": words(DRIVER_LINKS),
        "LINK_PATTERN": " | ".join(DRIVER_LINKS),
        "NAMES": words((*DRIVER_LINKS, *DRIVER_COMPANIONS)),
        "PATTERN": " | ".join((*DRIVER_LINKS, *DRIVER_COMPANIONS)),
    }
    return fill(_SHELL_DRIVER.strip(), filled)


def fill(text: str, values: Mapping[str, str]) -> str:
    """Put values in the places `@NAME@` of a text, in one pass: a value that has such a place in it stays as it is."""
    return re.sub("@(" + "|".join(values) + ")@", lambda found: values[found[1]], text)


def _elements(value: str) -> str:
    """A `:`-separated list without its empty elements."""
    return ":".join(filter(None, value.split(":")))
