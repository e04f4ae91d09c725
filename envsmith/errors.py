"""Problems and the error classes that carry them to an exit code.

A problem states a fact, where it is, and one thing to do next. Its `code` is stable and documented in
docs/errors.md. Many problems of one input may be raised as one error.
"""

from __future__ import annotations

from dataclasses import dataclass


def printable(text: str, *, keep: str = "\n\t") -> str:
    """Show control characters instead of sending them to a terminal: names of files are chosen by others."""
    return "".join(c if c in keep or c.isprintable() or c == "\u00a0" else ascii(c)[1:-1] for c in text)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing that is wrong, in words a user can act on."""

    code: str
    """Stable kebab-case identifier, listed in docs/errors.md."""
    message: str
    """The fact, one sentence, literals in backticks, no full stop."""
    where: str | None = None
    """`file:line`, `file:key` or a path."""
    hint: str | None = None
    """One thing to do next."""
    expected: str | None = None
    actual: str | None = None

    def text(self) -> str:
        """Render in the form of design §6: `error[code]: …`, aligned details, blank line, hint."""
        return printable(self._text())

    def _text(self) -> str:
        lines = [f"error[{self.code}]: {self.message}"]
        details = [("where", self.where), ("expected", self.expected), ("actual", self.actual)]
        shown = [(name, value) for name, value in details if value is not None]
        width = max((len(name) for name, _ in shown), default=0) + 1
        lines += [f"  {name + ':':<{width}} {value}" for name, value in shown]
        if self.hint:
            lines += ["", f"hint: {self.hint}"]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, str | None]:
        """Render for the JSON envelope: code, message, where and hint, as design §6 fixes them."""
        message = self.message
        details = (("expected", self.expected), ("actual", self.actual))
        said = ", ".join(f"{name}: {value}" for name, value in details if value is not None)
        message += f" ({said})" if said else ""
        return {"code": self.code, "message": message, "where": self.where, "hint": self.hint}


class EnvsmithError(Exception):
    """Base of every error that envsmith raises on purpose; carries one or more problems."""

    exit_code: int = 70

    def __init__(self, *problems: Problem, log: str | None = None) -> None:
        super().__init__("\n\n".join(problem.text() for problem in problems))
        self.problems = problems
        self.log = log
        """Path of the log that holds the failed command's output, where there is one."""


class NegativeAnswer(EnvsmithError):
    """The question was understood and the answer is no, for example a stale lock under `--locked`."""

    exit_code = 1


class InputError(EnvsmithError):
    """A recipe, patch, lock or command line is wrong; its author must act."""

    exit_code = 2


class HostError(EnvsmithError):
    """This machine cannot do it; another machine or stack must be picked."""

    exit_code = 3


class SupplyError(EnvsmithError):
    """Something could not be had: network, mirror, interpreter, disk space or a file missing from a bundle."""

    exit_code = 4


class IntegrityError(EnvsmithError):
    """A digest, size or tree id differs from what the lock says: stop and look."""

    exit_code = 5


class StepError(EnvsmithError):
    """A step of uv, git or a build failed; its log is kept."""

    exit_code = 6


class Bug(EnvsmithError):
    """A mistake of envsmith itself."""

    exit_code = 70
