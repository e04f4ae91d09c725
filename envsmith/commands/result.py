"""What every verb returns; the command line renders it once, as text or as the JSON envelope of design §6."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envsmith.errors import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The outcome of one verb."""

    command: str
    data: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    """The result for people, for stdout."""
    exit_code: int = 0
    errors: tuple[Problem, ...] = ()

    @property
    def status(self) -> str:
        """`ok`, `findings` (it ran and the answer is no) or `error`."""
        return {0: "ok", 1: "error" if self.errors else "findings"}.get(self.exit_code, "error")

    def envelope(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "envsmith": 1,
            "command": self.command,
            "status": self.status,
            "exit_code": self.exit_code,
            "data": dict(self.data),
            "errors": [problem.to_dict() for problem in self.errors],
        }
