"""What machine and env say about the libraries of a process."""

from __future__ import annotations

from collections.abc import Iterator

from envsmith.checks.maps import Surroundings, shipped_libraries
from envsmith.commands.subject import Subject
from envsmith.tools.procfs import kernel_driver, loader_folders


def libraries(subject: Subject) -> Surroundings:
    """The libraries that the env ships, those that must be in a process once, the loader's folders, the driver."""
    return Surroundings(
        shipped=shipped_libraries(_paths(subject)),
        single_instance=tuple(subject.verify["single-instance"]),
        loader=loader_folders(),
        driver=kernel_driver(),
    )


def _paths(subject: Subject) -> Iterator[str]:
    """Files of the env, relative to it, and those of the base that it is laid over, absolute."""
    yield from (entry.path for entry in subject.manifest.entries)
    for one in subject.base_distributions:
        yield from (f"/{row.path}" for row in one.rows or ())
