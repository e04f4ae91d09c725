"""Looking at processes of an env: the launched one, one that really imports, and what the calling shell would start."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from envsmith.checks.conflicts import check_conflicts, check_conflicts_over_base, check_requirements, check_versions
from envsmith.checks.expected import Expected
from envsmith.checks.hooks import check_hooks
from envsmith.checks.imports import check_imports
from envsmith.checks.launch_env import check_launched, check_shell
from envsmith.checks.launchers import check_activate, check_launchers, check_scripts
from envsmith.checks.maps import check_level_maps
from envsmith.checks.modules import check_modules
from envsmith.commands.depth import PROBED, Depth, Examination
from envsmith.commands.foreign import opened_to_system
from envsmith.commands.launching import prepared, resolved
from envsmith.commands.libraries import libraries
from envsmith.commands.look_native import NativeLook
from envsmith.commands.subject import Subject, expectation
from envsmith.commands.workcopies import work_dirs
from envsmith.errors import EnvsmithError
from envsmith.facts import Facts, Level
from envsmith.launch import LaunchEnvironment
from envsmith.probe import Request, probe
from envsmith.report import REBUILD, Finding, Severity
from envsmith.target import Target
from envsmith.tools.interpreter import machine
from envsmith.tools.process import scrubbed

SHELL = "in the calling shell, without `envsmith run`: "


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """The environments that processes of an env get."""

    launched: Mapping[str, str]
    """As `envsmith run` gives it; of an env without a recipe the caller's own."""
    shell: Mapping[str, str]
    """The caller's."""
    wanted: Mapping[str, str] = field(default_factory=dict)
    """What the launch table sets, filled in."""
    launch: LaunchEnvironment | None = None
    """The change that made `launched`; None for an env without a recipe."""


def surroundings(subject: Subject, environ: Mapping[str, str]) -> Surroundings:
    """Make the launch environment, its folders and profile included."""
    shell = {name: value for name, value in environ.items() if name != "VIRTUAL_ENV"}
    if subject.foreign:
        return Surroundings(launched=shell, shell=shell)
    launch = resolved(subject.launch, subject.directory, environ, work_dirs(subject.work))
    ready = prepared(launch, environ)
    return Surroundings(launched=ready.environment, shell=shell, wanted=dict(launch.set), launch=ready.launch)


def look_at_processes(
    subject: Subject, depth: Depth, around: Surroundings, native: NativeLook | None, examination: Examination
) -> Iterator[Finding]:
    """Ask a launched process, and run the families that judge it."""
    if not depth.wants(PROBED - {"native"}):
        return
    expected = expectation(subject)
    names = tuple(sorted({*expected.roots, *expected.editable}))
    request = Request(
        context="launched",
        locate=names,
        launchers=expected.launchers,
        scripts=f"{subject.env_dir}/bin",
        environ_names=(*around.wanted, *subject.launch.unset, *subject.launch.require),
    )
    try:
        if subject.foreign:
            expected = replace(expected, hooks={**expected.hooks, **_hooks_of_base(subject, around)})
        facts = probe(subject.executable, request, env=around.launched)
    except EnvsmithError as error:
        yield from unprobed(error)
        return
    if subject.foreign and opened_to_system(subject.directory):
        base = [place for place in facts.python.site_packages if place != facts.site.user_dir]
        expected = replace(expected, allow_outside=(*expected.allow_outside, *base))
    examination.facts += (facts,)
    yield from _judge(subject, depth, expected, facts)
    launched: list[Finding] = []
    if "launch_env" in depth.families and native:
        seen = native.surrounding(around.launched, facts.environ)
        launched += check_launched(subject.launch, around.wanted, seen)
        yield from launched
    if depth.imports and "imports" in depth.families:
        yield from _real_imports(subject, depth, expected, around.launched, examination)
    if depth.shell and subject.foreign is None:
        yield from _shell(subject, depth, expected, around, examination)
        if "launch_env" in depth.families and native:
            yield from _shell_variables(subject, around, native, launched)


def _hooks_of_base(subject: Subject, around: Surroundings) -> dict[str, str]:
    """Without a record of a build, the hooks that the base interpreter has now are taken as its own."""
    # A prefix of its own is the base: what lies in it belongs to it.
    inside = subject.env_dir + "/" if subject.foreign and subject.foreign.is_venv else "\0"
    found = base_hooks(subject.executable, around.shell)
    known = {path: sha256 for path, sha256 in found.items() if not path.startswith(inside)}
    return known | {path.removeprefix(subject.env_dir + "/"): sha256 for path, sha256 in known.items()}


def unprobed(error: EnvsmithError) -> Iterator[Finding]:
    """The findings for a process that could not be asked."""
    for problem in error.problems:
        yield Finding(
            check="imports",
            kind=problem.code,
            severity=Severity.ERROR,
            subject="bin/python",
            message=problem.message,
            expected=problem.expected,
            actual=problem.actual,
            hint=problem.hint or f"build it again with {REBUILD}",
        )


def _judge(subject: Subject, depth: Depth, expected: Expected, facts: Facts) -> Iterator[Finding]:
    if "imports" in depth.families:
        yield from check_imports(expected, facts)
        yield from check_modules(subject.manifest.entries)
    if "hooks" in depth.families:
        yield from check_hooks(expected, facts)
    if "launchers" in depth.families:
        if _bin_on_path(subject, facts):
            yield from check_launchers(expected, facts)
        if subject.foreign is None or subject.foreign.is_venv:
            mine = {entry.path for entry in subject.manifest.entries if entry.part == "portable" and subject.receipt}
            yield from check_scripts(expected, facts, mine)
            yield from check_activate(expected, _activated(subject))
    if "conflicts" in depth.families:
        yield from _conflicts(subject, facts)


def _activated(subject: Subject) -> str | None:
    """What `bin/activate` gives VIRTUAL_ENV, resolved; None where it works that out itself, or is of another shell."""
    activate = subject.directory / "bin" / "activate"
    try:
        text = activate.read_text(encoding="utf-8", errors="replace") if activate.is_file() else ""
    except OSError:
        return None
    found = re.search(r"""(?m)^\s*(?:export )?VIRTUAL_ENV=(['"]?)(/[^'"$`\n]*)\1\s*$""", text)
    return os.path.realpath(found[2]) if found else None


def _bin_on_path(subject: Subject, facts: Facts) -> bool:
    """Whether launchers can be judged: whoever has not put a foreign env's `bin` on PATH does not mean its programs."""
    folders = (Path(folder) for folder in facts.environ.get("PATH", "").split(":") if folder.startswith("/"))
    return subject.foreign is None or any(folder.resolve() == Path(subject.env_dir, "bin") for folder in folders)


def _conflicts(subject: Subject, facts: Facts) -> Iterator[Finding]:
    if subject.lock is not None and subject.base is not None:
        yield from check_conflicts_over_base(subject.lock, facts, subject.env_dir)
        return
    if subject.lock is not None and not subject.lock.base:
        yield from check_conflicts(subject.lock, facts)
        return
    if subject.versions is not None:
        yield from check_versions(subject.versions, facts)
    arch, glibc = machine()
    yield from check_requirements(Target(python=facts.python.version, arch=arch, glibc=glibc or "2.17"), facts)


def _real_imports(
    subject: Subject, depth: Depth, expected: Expected, environment: Mapping[str, str], examination: Examination
) -> Iterator[Finding]:
    """Import the recipe's list in one process whose home is thrown away: packages write caches there."""
    copies = tuple(folder for folders in expected.editable.values() for folder in folders)
    wanted = replace(
        expected,
        imports=tuple(subject.verify["imports"]),
        attributes=tuple(subject.verify["attributes"]),
        allow_outside=(*expected.allow_outside, *copies),
        roots={},
        editable={},
    )
    with tempfile.TemporaryDirectory(prefix="envsmith-imports-") as home:
        request = Request(context="launched", imports=wanted.imports, attributes=wanted.attributes, maps=True)
        env = {**environment, **throwaway(home)}
        try:
            facts = probe(subject.executable, request, env=env, cwd=Path(home), timeout_s=900)
        except EnvsmithError as error:
            yield from unprobed(error)
            return
    examination.facts += (facts,)
    yield from check_imports(wanted, facts)
    if "contexts" in depth.families:
        level = Level(name="imports", parent=None, facts=facts)
        yield from check_level_maps(replace(wanted, editable=expected.editable), (level,), libraries(subject))


def throwaway(home: str) -> dict[str, str]:
    """Variables that keep what packages write at import away from the user's own folders, and them off the hub."""
    return {
        "HOME": home, "XDG_CACHE_HOME": f"{home}/cache", "XDG_CONFIG_HOME": f"{home}/config", "TMPDIR": home,
        "HF_HUB_OFFLINE": "1",
    }  # fmt: skip


def _shell(
    subject: Subject, depth: Depth, expected: Expected, around: Surroundings, examination: Examination
) -> Iterator[Finding]:
    """Judge what a process gets that is started from the calling shell without `envsmith run`."""
    own = f"{subject.env_dir}/bin/"
    try:
        facts = probe(subject.executable, Request(context="shell", launchers=expected.launchers), env=around.shell)
    except EnvsmithError as error:
        yield from unprobed(error)
        return
    examination.facts += (facts,)
    if "hooks" in depth.families:
        for finding in check_hooks(expected, facts):
            yield replace(finding, message=SHELL + finding.message)
    if "launchers" in depth.families:
        for finding in check_launchers(expected, facts):
            launcher = facts.launchers.get(finding.subject)
            if launcher is None or launcher.path is None:
                continue  # the shell has none: nothing wrong can be started
            if launcher.path.startswith(own):
                continue
            if subject.base and launcher.path.startswith(f"{Path(subject.base.python).parent}/"):
                # The vendor's own program is first on PATH in the vendor's own image.
                finding = replace(finding, severity=Severity.WARNING)
            yield replace(finding, message=SHELL + finding.message)


def _shell_variables(
    subject: Subject, around: Surroundings, native: NativeLook, launched: list[Finding]
) -> Iterator[Finding]:
    """What the calling shell alone would bring in; what it hands on to launched processes was said of those."""
    said = {(finding.kind, finding.subject) for finding in launched}
    for finding in check_shell(subject.launch, native.surrounding(around.shell, around.shell)):
        if (finding.kind, finding.subject) not in said:
            yield replace(finding, message=SHELL + finding.message)


def needs_probe(depth: Depth) -> bool:
    """Whether a family is asked for that judges a process."""
    return depth.wants(PROBED)


def base_hooks(python: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Hooks of an interpreter itself, seen without the user's settings: they were there before the env."""
    return probe(python, Request(context="base"), env=scrubbed(environ), flags=("-B", "-I")).site.hooks()
