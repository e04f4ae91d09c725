"""Rules about torch's allocator: expandable segments, and the two names of its variable.

In torch 2.9 and newer PYTORCH_CUDA_ALLOC_CONF beats PYTORCH_ALLOC_CONF when both are set; 2.8 does not know the
second. Both read from the wheels' libraries, 2.10.0 measured, 2026-11-29.
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from envsmith.report import Finding, Severity
from envsmith.rules.scan import ALLOCATOR, EXPANDABLE, Site
from envsmith.rules.situation import Situation, found

OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
_KNOWS_NEW = Version("2.9")

#: Expandable segments failed on 470 and are taken to hold from 535 on; nobody has tried those between.
_FAILED, _HOLDS = Version("525"), Version("535")


def old_driver(s: Situation) -> Iterator[Finding]:
    """An old driver cannot map expandable segments: one rank dies in `cuMemMap`, the others time out."""
    driver = s.driver()
    for subject in _asked(s) if driver is not None and driver < _HOLDS else ():
        severity = Severity.ERROR if driver is not None and driver < _FAILED else Severity.WARNING
        yield found(
            "expandable-segments-old-driver",
            subject,
            f"expandable segments are on, and the driver may be as old as {driver}",
            expected=f"driver {_HOLDS} or newer",
            actual=s.host.driver,
            severity=severity,
            hint="set `expandable_segments:False`, and `expandable-segments = false` in the job",
        )


def sleep_mode(s: Situation) -> Iterator[Finding]:
    """The engine's memory pool cannot live with expandable segments: sleep mode frees nothing, or asserts."""
    for subject in _asked(s) if s.job.sleep_mode else ():
        yield found(
            "expandable-segments-sleep-mode",
            subject,
            "expandable segments are on, and with them the engine's sleep mode frees nothing",
            hint="set `expandable_segments:False` for the engine's processes, or switch sleep mode off",
        )


def names(s: Situation) -> Iterator[Finding]:
    """One name of the allocator's variable must be set, the one that this torch obeys."""
    settings, torch = s.env.launch.set, s.version("torch")
    if OLD in settings and NEW in settings:
        yield found(
            "allocator-names-both",
            s.key("launch", "set", OLD),
            f"both {OLD} and {NEW} are set: torch 2.9 and newer obey the first, 2.8 and older know no other",
            hint=f"keep {NEW} for torch 2.9 and newer and unset {OLD}; keep {OLD} alone for older ones",
        )
    elif NEW in settings and torch is not None and torch < _KNOWS_NEW:
        yield found(
            "allocator-name-unknown",
            s.key("launch", "set", NEW),
            f"torch {torch} does not know {NEW}, so the setting has no effect",
            hint=f"set {OLD} instead",
        )
    elif NEW in settings and OLD not in s.env.launch.unset:
        yield found(
            "allocator-name-inherited",
            s.key("launch", "unset"),
            f"{NEW} is set, but a {OLD} that a shell hands down would beat it",
            severity=Severity.WARNING,
            hint=f"add {OLD} to `unset`, beside PYTHONHOME and PYTHONPATH",
        )


def launchers(s: Situation) -> Iterator[Finding]:
    """A launcher that writes the variable into its children overrides what the recipe says."""
    driver = s.driver()
    forbidden, tried = _forbidden(s), driver is not None and driver < _HOLDS
    for name, facts in s.sources.items():
        for site in facts.allocator if facts and (forbidden or tried) else ():
            if any(s.switched_off(switch) for switch in site.switches):
                continue
            severity = Severity.ERROR if forbidden or (driver is not None and driver < _FAILED) else Severity.WARNING
            yield found(
                "allocator-set-by-launcher",
                f"src/{name}/{site.place}",
                f"the code writes expandable segments into {site.what}, whatever the launch table says",
                severity=severity,
                hint=_switch_off(site),
            )


def _switch_off(site: Site) -> str:
    if site.switches:
        return f'set `{site.switches[0]} = "0"` in the launch table, and patch the launcher to clear what it inherits'
    return "patch the code"


def toggles(s: Situation) -> Iterator[Finding]:
    """Calls at run time beat the environment, and put `max_split_size_mb` back to unlimited."""
    driver = s.driver()
    if not _forbidden(s) and (driver is None or driver >= _HOLDS):
        return
    for name, facts in s.sources.items():
        if facts is None or any(s.switched_on(veto.what) for veto in facts.vetoes):
            continue
        veto = f'set `{facts.vetoes[0].what} = "1"` in the launch table' if facts.vetoes else None
        for site in facts.expandable:
            yield found(
                "allocator-toggled-in-code",
                f"src/{name}/{site.place}",
                "the code turns expandable segments on at run time, so the environment alone does not hold",
                severity=Severity.WARNING,
                hint=veto or "patch it; for VERL 1bf9d2d `verl-1bf9d2d/a100.series` does",
            )


def _asked(s: Situation) -> Iterator[str]:
    """Keys that ask for expandable segments."""
    if s.job.expandable_segments:
        yield s.job_key("expandable_segments")
    for name, value in s.env.launch.set.items():
        if ALLOCATOR.fullmatch(name) and EXPANDABLE.search(value):
            yield s.key("launch", "set", name)


def _forbidden(s: Situation) -> bool:
    """Whether the recipe says that expandable segments must stay off."""
    values = [value.lower() for name, value in s.env.launch.set.items() if ALLOCATOR.fullmatch(name)]
    return s.job.expandable_segments is False or any("expandable_segments:false" in value for value in values)
