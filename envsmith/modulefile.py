"""A launch environment as a Tcl modulefile that Environment Modules and Lmod both read, with their differences in it.

Read in and tried with Environment Modules 5.2.0 (`modulecmd.tcl`) and Lmod 8.6.19 (`tcl2lua.tcl`, `MasterControl.lua`)
of Debian, 2026-11-30.
"""

from __future__ import annotations

import re
from typing import Final

from envsmith.launch import LaunchEnvironment
from envsmith.rayforward import ray_variables

#: Unloading puts back what was there. In Environment Modules a variable of ours keeps it: their `pushenv` (5.2.0) loses
#: what follows a colon, and `unsetenv` what `pushenv` kept. Lmod's `pushenv` is right, but its translator sets the
#: variable before Lmod looks what to keep, so the old value is put back for that look. Environment Modules leave an
#: element of a list where it stands when it is put in front again; neither drops empty elements, which mean the current
#: directory to a loader.
_HEAD: Final = r"""
set _lmod [expr {[info exists ModuleTool] && $ModuleTool eq "Lmod"}]
set _load [module-info mode load]
proc _envsmith_scratch {} {
    global env
    set named [expr {[info exists env(ENVSMITH_SCRATCH)] ? $env(ENVSMITH_SCRATCH) : ""}]
    return [expr {$named eq "" ? "/tmp/es[exec id -u]" : [file normalize $named]}]
}
proc _envsmith_bytes {bytes} {
    global _lmod
    return [encoding convertfrom [expr {$_lmod ? "utf-8" : [encoding system]}] $bytes]
}
proc _envsmith_change {name command} {
    global env _lmod _load
    set had [info exists env($name)]
    set old [expr {$had ? $env($name) : ""}]
    set kept ENVSMITH_KEPT_$name
    if {$_lmod} {
        pushenv $name [lindex $command 2]
        if {[lindex $command 0] eq "unsetenv"} { unsetenv $name }
        set env($name) $old
        if {!$had} { unset env($name) }
    } elseif {$_load} {
        if {$had && [string first \n $old] < 0} { setenv $kept $old }
        eval $command
    } elseif {[info exists env($kept)]} {
        unsetenv $name $env($kept)
        setenv $kept {}
    } else {
        eval $command
    }
}
proc _envsmith_set {name value} { _envsmith_change $name [list setenv $name $value] }
proc _envsmith_unset {name} { _envsmith_change $name [list unsetenv $name] }
proc _envsmith_first {name value {lua {}}} {
    global env _lmod _load
    if {$_load && [info exists env($name)]} {
        set there [split $env($name) :]
        if {$_lmod && {} in $there} {
            setenv $name [join [lsearch -all -inline -not -exact $there {}] :]
        } elseif {!$_lmod} {
            foreach one [concat [split $value :] [list {}]] {
                if {$one in $there} { remove-path $name $one }
            }
        }
    }
    if {$_lmod && $lua ne {}} { prepend-path $name $lua } else { prepend-path $name $value }
}
"""
_DRIVER: Final = (
    "# launch.driver-library: a modulefile cannot look for the driver; source env.sh or start through `envsmith run`."
)
#: In either tool the shell would run what follows a line break. Lmod's translator cuts white space at the end of a
#: value, writes a tab as Lua cannot read it, and splits characters beyond U+FFFF; of the elements of a list Lmod makes
#: shorter paths, and none of `/`. In Environment Modules the shell reads a `~`.
_NOT_FOR_EITHER: Final = re.compile(r"[\n\udc80-\udcff]")
_NOT_FOR_LMOD: Final = re.compile(r"[\t\r\U00010000-\U0010ffff]| \Z")
_NOT_FOR_LMOD_LISTS: Final = re.compile(r"/(?=:|\Z)|//|/\./|(?:\A|:)(?:\./| )| :")
_NOT_FOR_MODULES: Final = re.compile(r"(?:\A|:)~")


def modulefile(launch: LaunchEnvironment, title: str) -> str:
    """Render as a Tcl modulefile; unloading it puts the variables back.

    What the tool that reads it cannot do is an error there, and never another environment.
    """
    lines = ["#%Module1.0", f"module-whatis {_tcl(title)}", *_refused(launch), *_HEAD.strip().splitlines()]
    lines += [f"if {{$_load}} {{ source-sh sh {_tcl(launch.profile)} }}"] if launch.profile else []
    lines += [_DRIVER] if launch.driver_scratch else []
    lines += [f"_envsmith_unset {name}" for name in launch.unset]
    lines += [f"_envsmith_set {name} {_filled(launch, value)}" for name, value in launch.set]
    lines += [_first(launch, name, first) for name, first in launch.prepend]
    lines += _ray(launch)
    made = " ".join(_filled(launch, path) for path in launch.directories)
    lines += [f"if {{$_load}} {{ file mkdir {made} }}"] if made else []
    lines += [_required(name) for name in launch.require]
    lines += [f"if {{!$_load}} {{ source-sh sh {_tcl(launch.profile)} }}"] if launch.profile else []  # taken back last
    return "\n".join(lines) + "\n"


def _refused(launch: LaunchEnvironment) -> list[str]:
    values = [*launch.set, *launch.prepend]
    lines = [
        f"error {_tcl(f'a modulefile cannot hold the value of {name}: {_ELSE}')}"
        for name, value in values
        if _NOT_FOR_EITHER.search(value)
    ]
    odd = [name for name, value in values if _NOT_FOR_LMOD.search(value)]
    odd += [name for name, value in launch.prepend if _NOT_FOR_LMOD_LISTS.search(value)]
    lines += [_error(_LMOD, f"Lmod would change the value of {name}") for name in odd]
    tildes = [name for name, value in values if _NOT_FOR_MODULES.search(value)]
    lines += [_error(f"!({_LMOD})", f"Environment Modules would change the value of {name}") for name in tildes]
    return lines + ([_error(_LMOD, "Lmod cannot source the vendor profile from a Tcl file")] if launch.profile else [])


_LMOD: Final = '[info exists ModuleTool] && $ModuleTool eq "Lmod"'
#: Stands for the scratch folder in a value.
_MARK: Final = "@envsmith-scratch@"
_ELSE: Final = "source env.sh, or start through `envsmith run`"


def _error(condition: str, what: str) -> str:
    return f"if {{{condition}}} {{ error {_tcl(f'{what}: {_ELSE}')} }}"


def _first(launch: LaunchEnvironment, name: str, first: str) -> str:
    """Put a list in front; Lmod's translator writes it into Lua as it stands, so for Lmod it is quoted for Lua too."""
    parts = launch.around_scratch(first)
    lua = [part.replace("\\", "\\\\").replace('"', '\\"') for part in parts]
    return f"_envsmith_first {name} {_joined(parts)}" + (f" {_joined(lua)}" if lua != parts else "")


def _ray(launch: LaunchEnvironment) -> list[str]:
    """What Ray hands on to its workers, where the env has Ray: of the variables that the recipe sets."""
    settings = dict(launch.set)
    fixed = {name: value for name, value in launch.set if len(launch.around_scratch(value)) == 1}
    found = ray_variables(launch.forward, fixed)
    if not found:
        return []
    ray = _tcl(f"{settings['VIRTUAL_ENV']}/bin/ray")
    lines = (f"    _envsmith_set {name} {_tcl(value)}" for name, value in sorted(found.items()))
    return [f"if {{[file exists {ray}]}} {{", *lines, "}"]


def _required(name: str) -> str:
    said = _tcl(f"{name} is required by the recipe and not set")
    unset = f"![info exists env({name})] || $env({name}) eq {{}}"
    return f"if {{$_load && ({unset})}} {{ puts stderr {said}; break }}"


def _filled(launch: LaunchEnvironment, text: str) -> str:
    """A value with the scratch folder of whoever loads the module in it."""
    return _joined(launch.around_scratch(text))


def _joined(parts: list[str]) -> str:
    if len(parts) == 1:
        return _tcl(parts[0])
    return f"[string map [list {_MARK} [_envsmith_scratch]] {_tcl(_MARK.join(parts))}]"


def _tcl(text: str) -> str:
    """Quote for Tcl: braces where that is enough, else octal bytes, which old Tcl reads too and no brace count sees."""
    if text.isascii() and not set("{}\\") & set(text):
        return "{" + text + "}"
    special = frozenset(b'\\"[]${}')
    octets = text.encode("utf-8", "surrogateescape")
    quoted = "".join(chr(one) if one < 128 and one not in special else f"\\{one:03o}" for one in octets)
    return f'"{quoted}"' if text.isascii() else f'[_envsmith_bytes "{quoted}"]'
