"""Facts of one clean process and the view that fits them; tests plant a single fault with `dataclasses.replace`."""

from __future__ import annotations

from typing import Any

from envsmith.checks.expected import Expected, ImportRoot
from envsmith.facts import Customize, Facts, Finder, Launcher, Module, PathEntry, PthFile, Python, Site

ENV = "/envs/a100-rl/0123456789ab"
BASE = "/opt/python/3.11.7"
PACKAGES = f"{ENV}/lib/python3.11/site-packages"
RELATIVE = "lib/python3.11/site-packages"


def entry(path: str, *, exists: bool = True, real: str | None = None) -> PathEntry:
    return PathEntry(entry=path, real=real or path, exists=exists)


def module(kind: str, origin: str | None = None, *locations: str) -> Module:
    return Module(kind=kind, origin=origin, locations=locations, error=None)


def root(owner: str, kind: str, origin: str = "") -> ImportRoot:
    return ImportRoot(owner=owner, kind=kind, origin=f"{RELATIVE}/{origin}" if origin else "")


def pth(
    path: str, *, lines: tuple[str, ...] = (), runs: tuple[str, ...] = (), sha256: str = "5", sure: bool = True
) -> PthFile:
    return PthFile(path=path, sha256=sha256, lines=lines, import_lines=runs, sure=sure)


def customize(path: str, *, name: str = "sitecustomize", loaded: bool = True, sha256: str = "7") -> Customize:
    return Customize(name=name, path=path, sha256=sha256, loaded=loaded)


def finder(module_name: str, file: str | None) -> Finder:
    return Finder(name="MetaFinder", module=module_name, file=file)


def script(path: str, interpreter: str | None, /, **changes: Any) -> Launcher:
    values: dict[str, Any] = {
        "path": path,
        "realpath": path,
        "shebang": f"#!{interpreter}" if interpreter else None,
        "interpreter": interpreter,
        "interpreter_exists": interpreter is not None,
        "executable": True,
        "skipped": (),
        "beside": path,
    }
    return Launcher(**{**values, **changes})


def site(**changes: Any) -> Site:
    values: dict[str, Any] = {
        "user_enabled": False,
        "user_dir": "/home/u/.local/lib/python3.11/site-packages",
        "user_exists": False,
        "pth": (),
        "customize": (),
        "finders": (),
    }
    return Site(**{**values, **changes})


def python(**changes: Any) -> Python:
    values: dict[str, Any] = {
        "executable": f"{ENV}/bin/python",
        "realpath": f"{BASE}/bin/python3.11",
        "version": "3.11.7",
        "prefix": ENV,
        "base_prefix": BASE,
        "real_prefix": ENV,
        "real_base_prefix": BASE,
        "implementation": "cpython",
        "stdlib": (f"{BASE}/lib/python3.11", f"{BASE}/lib/python3.11/lib-dynload", f"{BASE}/lib/python311.zip"),
        "purelib": PACKAGES,
        "platlib": PACKAGES,
        "site_packages": (PACKAGES,),
    }
    return Python(**{**values, **changes})


CLEAN_PATH = (
    entry(f"{BASE}/lib/python311.zip", exists=False),
    entry(f"{BASE}/lib/python3.11"),
    entry(f"{BASE}/lib/python3.11/lib-dynload"),
    entry(PACKAGES),
)


def facts(**changes: Any) -> Facts:
    values: dict[str, Any] = {
        "schema": 1,
        "context": "plain",
        "python": python(),
        "flags": {"ignore_environment": 0, "isolated": 0},
        "path": CLEAN_PATH,
        "environ": {"PATH": f"{ENV}/bin:/usr/bin"},
        "site": site(),
        "modules": {},
        "imports": {},
        "attributes": {},
        "launchers": {},
        "scripts": (),
        "distributions": (),
        "maps": (),
        "faults": (),
        "seconds": 0.1,
    }
    return Facts(**{**values, **changes})


def expected(**changes: Any) -> Expected:
    values: dict[str, Any] = {
        "env_dir": ENV,
        "site_packages": PACKAGES,
        "python_version": "3.11",
        "base_prefix": BASE,
    }
    return Expected(**{**values, **changes})
