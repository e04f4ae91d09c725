"""The target of a lock: which wheels it can use and how markers answer there.

Source: PEP 425 and PEP 600 (platform tags), PEP 508 (markers); the tag order is packaging's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

#: Legacy names of three manylinux levels. Source: PEP 600, "Legacy manylinux tags".
_LEGACY = {(2, 17): "manylinux2014", (2, 12): "manylinux2010", (2, 5): "manylinux1"}

#: The manylinux levels that uv 0.13.9 takes as `--python-platform` (its `--help`), lowest first.
_UV_LEVELS = (17, 28, *range(31, 41))


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What a lock is made for."""

    python: str
    """`3.11` or `3.11.7`."""
    arch: str
    glibc: str

    @property
    def python_minor(self) -> str:
        """`3.11`."""
        return ".".join(self.python.split(".")[:2])

    def platforms(self) -> Iterator[str]:
        """Platform tags from the newest glibc allowed down to the oldest."""
        major, minor = (int(part) for part in self.glibc.split("."))
        for level in range(minor, 4 if self.arch == "x86_64" else 16, -1):
            yield f"manylinux_{major}_{level}_{self.arch}"
            if (major, level) in _LEGACY:
                yield f"{_LEGACY[major, level]}_{self.arch}"
        yield f"linux_{self.arch}"

    def tags(self) -> tuple[Tag, ...]:
        """Every tag that a wheel may carry here, best first."""
        version = tuple(int(part) for part in self.python_minor.split("."))
        platforms = list(self.platforms())
        interpreter = f"cp{version[0]}{version[1]}"
        return (
            *cpython_tags(version, platforms=platforms),
            *compatible_tags(version, interpreter=interpreter, platforms=platforms),
        )

    def markers(self, *, extra: str = "") -> dict[str, str]:
        """The marker environment. Without a patch release in the recipe it is `.0`, as uv takes it."""
        full = self.python if self.python.count(".") == 2 else f"{self.python}.0"
        return {
            "implementation_name": "cpython",
            "implementation_version": full,
            "os_name": "posix",
            "platform_machine": self.arch,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": full,
            "python_version": self.python_minor,
            "sys_platform": "linux",
            "extra": extra,
        }

    def uv_platform(self) -> str:
        """The nearest `--python-platform` of uv that promises no more than this glibc."""
        minor = int(self.glibc.split(".")[1])
        level = max((level for level in _UV_LEVELS if level <= minor), default=17)
        return f"{self.arch}-manylinux_2_{level}"

    def environment_marker(self) -> str:
        """The marker that PEP 751's `environments` holds."""
        return (
            f"implementation_name == 'cpython' and platform_machine == '{self.arch}' and sys_platform == 'linux'"
            f" and python_version == '{self.python_minor}'"
        )


def applies(marker: Marker | str | None, target: Target, extras: Iterable[str] = ()) -> bool:
    """Say whether a marker holds on the target with any of the extras switched on.

    A comparison that has no meaning, such as `platform_machine ~= "x86"`, does not hold, as for uv.
    """
    if marker is None or marker == "":
        return True
    parsed = marker if isinstance(marker, Marker) else Marker(marker)
    try:
        return any(parsed.evaluate(target.markers(extra=extra)) for extra in ("", *extras))
    except (UndefinedComparison, UndefinedEnvironmentName):
        return False


def choose_wheel(filenames: Iterable[str], target: Target) -> str | None:
    """Pick the one wheel of a package that a lock names: best tag, then highest build tag, then name.

    Several files may answer one pin (`torch-2.10.0` and `torch-2.10.0-3`); afterwards only the sha256 decides.
    A file whose name no installer can read is no candidate.
    """
    rank = {tag: n for n, tag in enumerate(target.tags())}

    def quality(filename: str) -> tuple[int, tuple[int, str], str] | None:
        try:
            _, _, build, tags = parse_wheel_filename(filename)
        except InvalidWheelFilename:
            return None
        best = min((rank[tag] for tag in tags if tag in rank), default=None)
        return None if best is None else (-best, build or (-1, ""), filename)

    fitting = [found for name in filenames if (found := quality(name)) is not None]
    return max(fitting)[2] if fitting else None
