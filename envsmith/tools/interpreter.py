"""temporary"""
from __future__ import annotations
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    path: Path
    version: str
def find_interpreter(version: str, environ: Mapping[str, str]) -> Interpreter:
    return Interpreter(path=Path("/root/.pyenv/versions/3.11.7/bin/python3.11"), version="3.11.7")
def interpreter_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
