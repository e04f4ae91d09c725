"""What may not stand before a protected package of a base, and what may."""

from __future__ import annotations

import hashlib

import pytest

from envsmith.manifest import Entry
from envsmith.shadowing import Shadow, provided, shadows

SITE = "opt/vendor/lib/python3.12/site-packages"
OWN = "lib/python3.12/site-packages"
BASE = (
    ("torch==2.11.0", "torch/__init__.py", "torch/lib/libtorch.so", "functorch/__init__.py", "LICENSE"),
    ("nvidia-nccl-cu13==2.28.9", "nvidia/nccl/__init__.py", "nvidia/nccl/lib/libnccl.so.2", "nvidia/LICENSE"),
    ("cub==1", "nv/cub/__init__.py", "nv/deep/a.py", "nv/one.py"),
    ("gcloud==1", "google/__init__.py", "google/cloud/storage.py"),
    ("six==1.17.0", "six.py", "tests/__init__.py"),
)


def files(owner: str, *paths: str, under: str = OWN, sha256: str = "0" * 64) -> list[Entry]:
    return [Entry(path=f"{under}/{path}" if under else path, size=1, sha256=sha256, owner=owner) for path in paths]


def judged(additions: list[Entry], **more: dict[str, str]) -> tuple[Shadow, ...]:
    entries = [entry for owner, *paths in BASE for entry in files(owner, *paths, under=SITE, sha256="1" * 64)]
    known = {"tops": more.get("tops", {}), "commands": more.get("commands", {})}
    return shadows(additions, provided(entries, folders=(SITE,), **known))


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("torch/__init__.py", "torch==2.11.0"),
        ("torch/more.py", "torch==2.11.0"),
        ("torch.py", "torch==2.11.0"),
        ("torch.cpython-312-x86_64-linux-gnu.so", "torch==2.11.0"),
        ("functorch/x.py", "torch==2.11.0"),
        ("six/__init__.py", "six==1.17.0"),
        ("nvidia/__init__.py", "nvidia-nccl-cu13==2.28.9"),
        ("nvidia.py", "nvidia-nccl-cu13==2.28.9"),
        ("nvidia/nccl/lib/libnccl.so.2", "nvidia-nccl-cu13==2.28.9"),
        ("nv/cub.py", "cub==1"),
        ("nv/cub/__init__.abi3.so", "cub==1"),
        ("nv/deep/__init__.py", "cub==1"),
        ("nv/deep.py", "cub==1"),
        ("nv/one/__init__.py", "cub==1"),
        ("google/__init__.py", "gcloud==1"),
        ("google/cloud/storage/__init__.py", "gcloud==1"),
    ],
)
def test_what_would_answer_for_a_protected_package_is_a_shadow(path: str, kept: str) -> None:
    assert [(one.owner, one.protected) for one in judged(files("evil==1", path))] == [("evil==1", kept)]


@pytest.mark.parametrize(
    "path",
    [
        "good/__init__.py",
        "good/torch/__init__.py",
        "nv/other.py",
        "nv/deep/b.py",
        "nvidia/cufft/lib/libcufft.so.11",
        "LICENSE",
        "README.md",
        "nvidia/LICENSE",
        "torch.pyi",
        "tests/__init__.py",
        "torch-2.0.dist-info/METADATA",
    ],
)
def test_what_hides_nothing_is_none(path: str) -> None:
    assert judged(files("good==1", path)) == ()


OLD, OLDER, EMPTY = "1" * 64, "2" * 64, hashlib.sha256().hexdigest()


def test_packages_that_look_for_their_other_portions_hide_nothing() -> None:
    base = provided(
        [
            *files("gcloud==1", "google/__init__.py", "google/cloud/storage.py", under=SITE, sha256=OLD),
            *files("zstd==1", "backports/zstd.py", under=SITE),
        ],
        folders=(SITE,), tops={}, commands={},
    )  # fmt: skip
    own = files("other==1", "google/other.py")
    for init in (OLD, OLDER):
        same = files("other==1", "google/__init__.py", "backports/__init__.py", sha256=init)
        assert shadows([*same, *own], base, {OLD, OLDER}) == ()
        (found,) = shadows([*same, *files("other==1", "google/cloud/storage.py")], base, {OLD, OLDER})
        assert (found.protected, found.name) == ("gcloud==1", "google.cloud.storage")
        assert {one.name for one in shadows([*same, *own], base, ())} == {"google", "backports"}
    assert shadows(own, base, {OLD}) == ()
    assert [one.name for one in shadows(own, base, ())] == ["google"]


def test_equal_packages_that_look_nowhere_hide_what_lies_below_them() -> None:
    bare = files("core==1", "foo/__init__.py", "foo/lib/__init__.py", under=SITE, sha256=EMPTY)
    added = [*files("extra==1", "foo/__init__.py", sha256=EMPTY), *files("extra==1", "foo/more.py")]
    assert shadows(added, provided(bare, folders=(SITE,), tops={}, commands={})) == ()
    filled = [*bare, *files("core==1", "foo/core.py", under=SITE)]
    (found,) = shadows(added, provided(filled, folders=(SITE,), tops={}, commands={}))
    assert (found.protected, found.name) == ("core==1", "foo")


def test_a_name_below_a_namespace_that_nobody_recorded_counts() -> None:
    tops = {"zope.interface": "zope-interface==5"}
    assert judged(files("zope-event==1", "zope/event/__init__.py"), tops=tops) == ()
    for path in ("zope/__init__.py", "zope/interface/__init__.py"):
        assert [one.protected for one in judged(files("evil==1", path), tops=tops)] == ["zope-interface==5"]


def test_packages_without_a_record_count_by_the_names_that_they_claim() -> None:
    (found,) = judged(files("evil==1", "vend/__init__.py"), tops={"vend": "vend==1.0"})
    assert (found.protected, found.name) == ("vend==1.0", "vend")
    (found,) = judged(files("evil==1", "sitecustomize.py"), tops={"sitecustomize": "the site hook"})
    assert found.protected == "the site hook"


def test_commands_of_protected_packages_count() -> None:
    commands = {"torchrun": "torch==2.11.0"}
    (found,) = judged(files("evil==1", "bin/torchrun", under=""), commands=commands)
    assert (found.protected, found.name) == ("torch==2.11.0", "bin/torchrun")
    assert judged(files("good==1", "bin/good-run", under=""), commands=commands) == ()
