"""What makes Ray hand the forwarded variables to its workers: variables that Ray itself reads, no code of the user.

Workers inherit from the raylet, whose shell may have known none of them (facts/symptoms.md D20). `ray.init()` lays the
`runtime_env` in RAY_JOB_CONFIG_JSON_ENV_VAR below the one in its arguments; with the same key in both it stops, unless
RAY_OVERRIDE_JOB_RUNTIME_ENV is 1, when the arguments win. `ray.init("ray://…")` takes RAY_RUNTIME_ENV where its
arguments hold none. Ray's workers then expand `$NAME` and `${NAME}`, and nothing escapes them. All read in ray 2.56.1,
`_private/worker.py`, `_private/utils.py`, `runtime_env/runtime_env.py`, `client_builder.py`, and seen, 2026-11-30.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

JOB_CONFIG: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"
CLIENT: Final = "RAY_RUNTIME_ENV"
OVERRIDE: Final = "RAY_OVERRIDE_JOB_RUNTIME_ENV"
#: What a worker would read as the name of a variable.
_EXPANDED: Final = r"\$(\w|\{)"


def ray_variables(names: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """What to set, besides, in a process whose other variables are `environ`; empty when nothing is to be forwarded.

    What the caller has there already is kept: a job's own `working_dir`, and variables that the recipe does not name.
    """
    values = {name: environ[name] for name in names if name in environ and name not in not_forwarded(names, environ)}
    if not values:
        return {}
    out = {OVERRIDE: environ.get(OVERRIDE) or "1"}
    for key in (JOB_CONFIG, CLIENT):
        whole = _table(environ.get(key) or "{}")
        part = _table(whole.setdefault("runtime_env", {})) if whole is not None and key == JOB_CONFIG else whole
        kept = _table(part.get("env_vars") or {}) if part is not None else None
        if whole is None or part is None or kept is None:
            continue  # Ray says what is wrong with it better than we could
        part["env_vars"] = {**kept, **values}
        out[key] = json.dumps(whole)
    return out


def not_forwarded(names: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names whose values Ray would change on the way, or cannot carry because they are not text."""
    return tuple(name for name in names if name in environ and not _is_carried(environ[name]))


def ray_shell(names: tuple[str, ...], env_dir: str) -> str:
    """The same as lines for a POSIX shell: the env's own Python does it, where the env has Ray."""
    python, words = shlex.quote(f"{env_dir}/bin/python"), " ".join(map(shlex.quote, names))
    return (
        f"if [ -e {shlex.quote(f'{env_dir}/bin/ray')} ]; then\n"
        f"    eval \"$({python} -I -S -c '{_SCRIPT.strip()}\n' {words})\"\n"
        "fi"
    )


def _is_carried(value: str) -> bool:
    surrogate = any("\ud800" <= one <= "\udfff" for one in value)  # how Python writes a byte that is no UTF-8
    return not surrogate and re.search(_EXPANDED, value, re.ASCII) is None


def _table(value: object) -> dict[str, Any] | None:
    """A JSON object, from its text or as it is; None for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


#: `ray_variables` in words for another interpreter, without a single quote; tests hold the two together.
_SCRIPT: Final = r"""
import json, os, re, shlex, sys
env = os.environ
def carried(value):
    return not re.search(r"\$(\w|\{)", value, re.ASCII) and not any("\ud800" <= one <= "\udfff" for one in value)
values = {name: env[name] for name in sys.argv[1:] if name in env and carried(env[name])}
out = {"RAY_OVERRIDE_JOB_RUNTIME_ENV": env.get("RAY_OVERRIDE_JOB_RUNTIME_ENV") or "1"} if values else {}
for key in ("RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_RUNTIME_ENV") if values else ():
    try:
        whole = json.loads(env.get(key) or "{}")
        part = whole.setdefault("runtime_env", {}) if key != "RAY_RUNTIME_ENV" else whole
        part["env_vars"] = {**(part.get("env_vars") or {}), **values}
        out[key] = json.dumps(whole)
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass
for name, value in out.items():
    print("export", name + "=" + shlex.quote(value))
"""
