"""What rules judge: one env of a recipe with its machine, job, lock and the facts about its sources' code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from packaging.requirements import Requirement
from packaging.specifiers import Specifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envsmith.hostfacts import HostFacts
from envsmith.lock import Lock
from envsmith.modelsize import Model
from envsmith.recipe import Env, Host, Job
from envsmith.report import Finding, Severity
from envsmith.rules.scan import SourceFacts
from envsmith.rules.tables import Capability, TorchBuild, capability, torch_builds, torch_releases
from envsmith.target import Target, applies

FAMILY = "rules"

#: The commit of VERL that the facts were read at; what other commits do is not known.
VERL = "1bf9d2d"


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """One env before it is built."""

    name: str
    """Of the env in its recipe."""
    env: Env
    host: Host
    job: Job
    """The recipe's table, with what a configuration says laid over it."""
    lock: Lock | None = None
    sources: Mapping[str, SourceFacts | None] = field(default_factory=dict)
    """By source, after its series; None where its code is not at hand."""
    touched: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Files that the series of a source or a patched wheel change."""
    said_by: Mapping[str, str] = field(default_factory=dict)
    """Field of the job to the place in a configuration that said it."""
    model: Model | None = None
    """The model that the job names, where it is on this machine."""
    known_types: frozenset[str] | None = None
    """Model types that the locked transformers knows; None where its wheel is not here."""
    facts: HostFacts | None = None
    """Of one machine, whose word beats the recipe's class; None when the class alone is judged."""

    def key(self, *parts: str) -> str:
        """A key of this env as findings name it."""
        return ".".join(("env", self.name, *parts))

    def job_key(self, name: str) -> str:
        """Where a fact of the job was said: in a configuration, else in the recipe."""
        return self.said_by.get(name) or self.key("job", name.replace("_", "-"))

    def version(self, package: str) -> Version | None:
        """The version of a package as far as it is certain: locked, of the base, or pinned by the recipe."""
        return _version(self.versions().get(package))

    def versions(self) -> Mapping[str, str]:
        """Every version that is certain."""
        if self.lock is None:
            return dict(self._pins())
        known = {one.name: one.version for one in self.lock.base if one.version}
        known |= {source.project: source.version for source in self.lock.sources}
        return known | {wheel.name: wheel.version for wheel in self.lock.wheels}

    def has(self, package: str) -> bool:
        """Whether a package is in the env, as far as recipe and lock say."""
        if self.lock is not None:
            return package in self.versions() or any(one.name == package for one in self.lock.base)
        named = (*self.env.requires, *(source.sdist for source in self.env.source.values() if source.sdist))
        return package in self.env.source or any(_name(text) == package for text in named)

    def holds(self, text: str) -> bool:
        """Whether a requirement counts on this machine: its marker, if it has one, is true there."""
        target = Target(python=self.env.python, arch=self.host.arch, glibc=self.host.glibc)
        return applies(Requirement(text).marker, self.lock.target if self.lock else target)

    def _pins(self) -> Iterator[tuple[str, str]]:
        """Exact pins, the strongest last."""
        sdists = [source.sdist for source in self.env.source.values() if source.sdist]
        for text in filter(self.holds, (*sdists, *self.env.constrain, *self.env.requires, *self.env.override)):
            requirement = Requirement(text)
            exact = [one for one in requirement.specifier if is_exact(one)]
            if len(exact) == 1:
                yield str(canonicalize_name(requirement.name)), exact[0].version

    def capabilities(self) -> tuple[Capability, ...]:
        """Compute capabilities of the machine, the lowest first."""
        if self.facts is not None and self.facts.capabilities:
            return self.facts.capabilities
        return tuple(sorted(capability(text) for text in self.host.compute_capability))

    def driver(self) -> Version | None:
        """The kernel driver of the machine, else the oldest that the recipe admits; NVIDIA's numbering alone counts."""
        if self.facts is not None and self.facts.driver is not None:
            return _version(nvidia_driver(self.facts))
        return lowest(SpecifierSet(self.host.driver)) if self.host.driver else None

    def torch(self) -> tuple[Version, TorchBuild | None] | None:
        """The version of torch and what its wheel holds; None when it is unknown or a vendor's own build."""
        version = self.version("torch")
        if version is None or is_vendor_build(version):
            return None
        build = torch_builds().get(f"{version.major}.{version.minor}.{version.micro}")
        other = re.match(r"cu(\d+)(\d)(?:\.|\Z)", version.local or "")
        if build and other and build.cuda != f"{other[1]}.{other[2]}":
            build = None
        return version, build

    def torch_cuda(self) -> str | None:
        """The CUDA release that torch is built for, as `12.8`: its local version says it, else the table."""
        torch = self.torch()
        if torch is None:
            return None
        version, build = torch
        local = re.match(r"cu(\d+)(\d)(?:\.|\Z)", version.local or "")
        if local or build:
            return f"{local[1]}.{local[2]}" if local else build.cuda if build else None
        is_public = not version.local and self.host.arch == "x86_64"
        return torch_releases().get(version.base_version) if is_public else None

    def is_this_verl(self) -> bool:
        """Whether the env runs the commit of VERL that the facts are about."""
        return any((source.commit or "").startswith(VERL) for source in self.env.source.values())

    def switched_on(self, variable: str) -> bool:
        """Whether the launch table sets a variable to something that reads as yes."""
        return self.env.launch.set.get(variable, "").lower() in ("1", "true", "yes", "y", "on", "t")

    def switched_off(self, variable: str) -> bool:
        """Whether the launch table sets a variable to something that reads as no."""
        value = self.env.launch.set.get(variable)
        return value is not None and value.lower() in ("", "0", "false", "no", "n", "off", "f")


def nvidia_driver(facts: HostFacts) -> str | None:
    """The kernel driver of a machine when it is numbered as NVIDIA numbers; other vendors' numbers say nothing here.

    People write down the branch alone, `470`. Where a library of that branch is known to be there, its number is the
    driver's: the two come together.
    """
    said = (facts.driver or "").strip()
    if not re.fullmatch(r"[0-9]{3}(\.[0-9]{1,3}){0,2}", said):
        return None
    own = [facts.libcuda_version, *(row.version for row in facts.driver_folder if row.kind in ("driver", "other"))]
    if "." not in said:
        return next((one for one in own if one and re.fullmatch(rf"{said}(\.[0-9]{{1,3}}){{1,2}}", one)), said)
    return said


def is_exact(specifier: Specifier) -> bool:
    """Whether a specifier names one version; `==2.11.*` does not."""
    return specifier.operator in ("==", "===") and not specifier.version.endswith(".*")


def is_vendor_build(version: Version) -> bool:
    """Whether a version is a vendor's own build, about which the public wheels say nothing."""
    return bool(version.local) and not re.match(r"cu\d|cpu", version.local or "")


def lowest(specifier: SpecifierSet) -> Version | None:
    """The lowest version that a specifier names as a bound from below."""
    bounds = [one.version.removesuffix(".*") for one in specifier if one.operator in (">=", "==", "===", "~=", ">")]
    versions = [version for text in bounds if (version := _version(text)) is not None]
    return max(versions) if versions else None


def found(
    kind: str,
    subject: str,
    message: str,
    *,
    severity: Severity = Severity.ERROR,
    hint: str,
    expected: str | None = None,
    actual: str | None = None,
) -> Finding:
    """A finding of a rule."""
    return Finding(
        check=FAMILY,
        kind=kind,
        severity=severity,
        subject=subject,
        message=message,
        expected=expected,
        actual=actual,
        hint=hint,
    )


def _name(text: str) -> str:
    return str(canonicalize_name(Requirement(text).name))


def _version(text: str | None) -> Version | None:
    try:
        return Version(text) if text else None
    except InvalidVersion:
        return None
