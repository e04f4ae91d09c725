"""Facts of a machine, a lock and an env under the names that `data/symptoms.toml` uses: `host.driver`, `lock.torch`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from envsmith.conditions import Value
from envsmith.hostfacts import HostFacts


def host_facts(facts: HostFacts) -> dict[str, Value]:
    """Every plain fact of a machine that is known."""
    said: dict[str, Value] = {}
    for name in type(facts).model_fields:
        value = getattr(facts, name)
        if isinstance(value, bool):
            said[f"host.{name}"] = str(value).lower()
        elif isinstance(value, (str, int, float)):
            said[f"host.{name}"] = value
    said |= {f"host.environ.{name}": value for name, value in facts.environ.items()}
    if facts.capabilities:
        said["host.capability"] = ".".join(map(str, facts.capabilities[0]))
        said["host.capability_highest"] = ".".join(map(str, facts.capabilities[-1]))
    if facts.devices is not None:
        said["host.devices"] = facts.devices
    if facts.accelerator:
        said["host.accelerator"] = ", ".join(one.name for one in facts.accelerator)
    centres = {one.data_centre for one in facts.accelerator if one.data_centre is not None}
    if len(centres) == 1:
        said["host.data_centre"] = str(centres.pop()).lower()
    return said


def lock_facts(versions: Mapping[str, str], python: str | None) -> dict[str, Value]:
    """Versions of packages by canonical name, with what torch's says of its CUDA."""
    said: dict[str, Value] = {f"lock.{name}": version for name, version in versions.items()}
    if python:
        said["lock.python"] = ".".join(python.split(".")[:2])
    local = versions.get("torch", "").partition("+")[2]
    if local:
        said["lock.torch_local"] = local
        said |= dict(_cuda(local))
    return said


def _cuda(local: str) -> Iterator[tuple[str, Value]]:
    digits = local.removeprefix("cu")
    if local.startswith("cu") and digits.isdigit() and len(digits) >= 2:
        yield "lock.torch_cuda", f"{digits[:-1]}.{digits[-1]}"


def env_facts(name: str, prefix: str | None, environ: Mapping[str, str]) -> dict[str, Value]:
    """What an env is called, where it lies, and what its launch environment sets."""
    said: dict[str, Value] = {"env.name": name}
    if prefix is not None:
        said["env.prefix"] = prefix
    return said | {f"env.environ.{key}": value for key, value in environ.items()}
