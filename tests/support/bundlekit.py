"""Real bundles of the demo project, made once for all workers of a test run, and hands that tamper with copies of them.

A copy shares its blobs with the original by hard links: `Tampered` replaces files and never writes into one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import random
import shutil
import signal
import subprocess
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from envsmith import bundle as form
from envsmith.bundle import Descriptor, Manifest, Tagged, parse_index, parse_manifest, render_index, render_manifest
from envsmith.bundlecheck import LISTING_FILE, SUMS_FILE, Laid, expected_blobs, root_titles, sums_text
from envsmith.cli import main
from envsmith.commands.composing import signature_side
from tests.support.index import SimpleIndex
from tests.support.project import PYTHON, Project, Said, envsmith, make_project
from tests.support.wheels import make_wheel

#: Nothing listens there: whoever tries the network fails.
DEAD_INDEX = "http://127.0.0.1:9/simple"
#: Wheels of such a content travel as deltas.
LARGE_BYTES = 300_000
PAIR = """\
[stack]
name = "pair"
{version}
[host]
glibc = "2.17"

[env.a]
python = "{python}"
requires = ["gamma"]

[env.b]
python = "{python}"
requires = ["beta==2.0"]
"""


class Kit:
    """A project and the bundles of it, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def project(self) -> Project:
        """The demo project with two wheels of some size besides."""
        return Project(self.once("project", self._project), self.folder / "project" / "index")

    @property
    def newer(self) -> Project:
        """The same project after the large wheels moved on."""
        return Project(self.once("newer", self._newer), self.project.index)

    @property
    def lean(self) -> Bundle:
        """Its bundle without an interpreter, as a folder."""
        return Bundle(self.once("lean", lambda at: self.bundle("demo", "-o", at, "--no-python")))

    @property
    def pair(self) -> Bundle:
        """The bundle of a stack with two envs and hardly anything in them."""
        return Bundle(self.once("pair", lambda at: self.bundle("pair", "-o", at, "--no-python")))

    @property
    def whole(self) -> Bundle:
        """The demo's bundle with an interpreter, where the Python of these tests can be carried."""
        return Bundle(self.once("whole", lambda at: self.bundle("demo", "-o", at)))

    @property
    def small(self) -> Bundle:
        """`lean` without envsmith's own wheels, and with one more blob of every kind that the demo has none of."""
        return Bundle(self.once("small", self._small))

    @property
    def full(self) -> Bundle:
        """The bundle of the newer project."""
        return Bundle(self.once("full", lambda at: self.bundle("demo", "-o", at, "--no-python", project=self.newer)))

    @property
    def delta(self) -> Path:
        """What of `full` is not in `lean`, as a tar."""

        def make(at: Path) -> None:
            words = ("-o", at / "delta.tar", "--no-python", "--since", self.lean.path)
            (at / "said.json").write_text(self.bundle("demo", *words, project=self.newer).out)

        return self.once("delta", make) / "delta.tar"

    @property
    def built(self) -> Project:
        """The project with its env built where it was made."""

        def make(at: Path) -> None:
            with self.index() as environ:
                said = self.project.run("build", "demo", "--root", at, env=environ)
            assert said.code == 0, said.out + said.err

        self.once("project/envs", make)
        return self.project

    def bundle(
        self, stack: str, *words: str | Path, project: Project | None = None, env: Mapping[str, str] | None = None
    ) -> Said:
        """Run `envsmith bundle` beside the index; it has to work."""
        with self.index() as environ:
            said = (project or self.project).run("bundle", stack, *words, env={**environ, **(env or {})})
        assert said.code == 0, said.out + said.err
        return said

    @property
    def offline(self) -> dict[str, str]:
        """The environment of who makes bundles without an index: everything is in the store."""
        _ = self.lean, self.pair
        return {"ENVSMITH_HOME": str(self.store), "ENVSMITH_INDEX": DEAD_INDEX}

    @contextlib.contextmanager
    def index(self) -> Iterator[dict[str, str]]:
        """Serve the wheels; give the environment of who makes bundles."""
        with SimpleIndex(self.project.index) as served:
            yield {"ENVSMITH_HOME": str(self.store), "ENVSMITH_INDEX": served.url}

    def once(self, name: str, make: Callable[[Path], object]) -> Path:
        """Make a thing in a folder, unless this worker or another has."""
        place, mark = self.folder / name, self.folder / f"{name.replace('/', '-')}.made"
        if mark.exists():
            return place
        with mark.with_suffix(".lock").open("w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            if not mark.exists():
                shutil.rmtree(place, ignore_errors=True)
                place.mkdir(parents=True)
                make(place)
                mark.touch()
        return place

    def _project(self, at: Path) -> None:
        project = make_project(at)
        for version in ("1.0", "1.1"):
            make_wheel(project.index, "omega", version, large_files("omega", version))
            # Other contents, packed as zlib does not by default: there is nothing to rebuild it from.
            repack(make_wheel(project.index, "rho", version, large_files("rho", version, seed=version)), level=1)
        project.edit('"delta"]\noverride', '"delta", "omega==1.0", "rho==1.0"]\noverride')
        (at / "stacks" / "pair.toml").write_text(PAIR.format(python=PYTHON, version=""))

    def _newer(self, at: Path) -> None:
        _ = self.lean  # it wrote the lock that the newer one starts from
        for name in ("stacks", "patches"):
            shutil.copytree(self.project.folder / name, at / name)
        Project(at, self.project.index).edit('"omega==1.0", "rho==1.0"', '"omega==1.1", "rho==1.1"')

    def _small(self, at: Path) -> None:
        at.rmdir()
        small = Tampered.of(self.lean, at)
        kept = [
            one for one in small.manifest.layers if one.roles != ("bootstrap",) and "pylock.tools-" not in one.title
        ]
        titles = {
            form.SNAPSHOT: "stacks/site.toml",
            form.SDIST: "sdists/some-1.0.tar.gz",
            form.ASSET: "assets/data/words.txt",
            form.PYTHON: "python/cpython-3.99.1-none.tar",
        }
        for kind, title in titles.items():
            data = f"content of {title}\n".encode() * 7
            one = Descriptor(media_type=kind, sha256=small.add(data), size=len(data), annotations={form.TITLE: title})
            kept.append(one)
        small.rewrite(replace(small.manifest, layers=form.in_order(kept)))
        small.drop_unreferenced()


def large_files(name: str, version: str, seed: str = "") -> dict[str, bytes]:
    """Files of a package; of one seed the versions differ in a few bytes of some hundred kilobytes."""
    noise = random.Random(name + seed).randbytes(LARGE_BYTES).hex().encode()
    changed = noise[:1000] + version.encode() + noise[1000 + len(version) :]
    return {f"{name}/__init__.py": f"VERSION = {version!r}\n".encode(), f"{name}/data.bin": changed}


def repack(wheel: Path, level: int) -> None:
    """Pack the members of an archive again, as no default of zlib would."""
    with zipfile.ZipFile(wheel) as archive:
        members = [(one, archive.read(one)) for one in archive.infolist()]
    with zipfile.ZipFile(wheel, "w") as archive:
        for one, data in members:
            info = zipfile.ZipInfo(one.filename, one.date_time)
            info.external_attr, info.create_system = one.external_attr, one.create_system
            archive.writestr(info, data, zipfile.ZIP_DEFLATED, level)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle in a folder."""

    path: Path

    @property
    def blobs(self) -> Path:
        return self.path / "blobs" / "sha256"

    @property
    def entries(self) -> tuple[Tagged, ...]:
        return parse_index((self.path / "index.json").read_bytes(), "index.json")

    @property
    def entry(self) -> Tagged:
        return next(one for one in self.entries if one.artifact == form.BUNDLE)

    @property
    def digest(self) -> str:
        return f"sha256:{self.entry.sha256}"

    @property
    def data(self) -> bytes:
        """Bytes of the manifest."""
        return (self.blobs / self.entry.sha256).read_bytes()

    @property
    def manifest(self) -> Manifest:
        return parse_manifest(self.data, "manifest")

    def first(self, kind: str) -> Descriptor:
        """The first layer of a kind."""
        return self.manifest.of(kind)[0]

    def wheel(self, project: str) -> Descriptor:
        """The wheel of a project."""
        return next(one for one in self.manifest.of(form.WHEEL) if one.name.startswith(f"{project}-"))


class Tampered(Bundle):
    """A copy of a bundle; what is changed here is changed nowhere else."""

    @classmethod
    def of(cls, bundle: Bundle, at: Path) -> Tampered:
        shutil.copytree(bundle.path, at, copy_function=os.link)
        return cls(at)

    def write(self, name: str, data: bytes) -> None:
        """Replace a file, never its content."""
        place = self.path / name
        mode = place.stat().st_mode if place.exists() else 0o644
        place.unlink(missing_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        place.chmod(mode)

    def blob(self, sha256: str, data: bytes) -> None:
        """Give a blob another content and leave its name."""
        self.write(f"blobs/sha256/{sha256}", data)

    def flip(self, sha256: str) -> None:
        """Change one bit in the middle of a blob."""
        data = bytearray((self.blobs / sha256).read_bytes())
        data[len(data) // 2] ^= 1
        self.blob(sha256, bytes(data))

    def add(self, data: bytes) -> str:
        """Add an honest blob."""
        sha256 = hashlib.sha256(data).hexdigest()
        self.blob(sha256, data)
        return sha256

    def rewrite(self, manifest: Manifest) -> None:
        """Put another manifest in the place of the bundle's, with right digests and root files throughout."""
        self.rewrite_raw(render_manifest(manifest))
        self.refresh(manifest)

    def rewrite_raw(self, data: bytes) -> None:
        """Put bytes that our own writer would not make in the place of the manifest."""
        old = self.entry
        (self.blobs / old.sha256).unlink()
        entry = replace(old, sha256=self.add(data), size=len(data))
        self.write("index.json", render_index([entry, *(one for one in self.entries if one.sha256 != old.sha256)]))

    def refresh(self, manifest: Manifest) -> None:
        """Make the files at the root fit the bundle."""
        for title, layer in root_titles(manifest).items():
            if (self.blobs / layer.sha256).exists():
                self.write(title, (self.blobs / layer.sha256).read_bytes())
        for stale in self.path.glob("pylock.*.toml"):
            if stale.name not in root_titles(manifest):
                stale.unlink()
        self.write(LISTING_FILE, form.listing(manifest).encode())
        with contextlib.suppress(Exception):  # a manifest that is none on purpose
            self.refresh_sums()

    def refresh_sums(self) -> None:
        """Make the list of sums fit all that the index names."""
        laid = [
            Laid(entry=one, manifest=parse_manifest((self.blobs / one.sha256).read_bytes(), "m"))
            for one in self.entries
        ]
        self.write(SUMS_FILE, sums_text(expected_blobs(laid)).encode())

    def drop_unreferenced(self) -> None:
        """Take away what no manifest names."""
        manifests = [parse_manifest((self.blobs / one.sha256).read_bytes(), "m") for one in self.entries]
        named = {one.sha256 for manifest in manifests for one in manifest.blobs} | {one.sha256 for one in self.entries}
        for blob in self.blobs.iterdir():
            if blob.name not in named:
                blob.unlink()

    def sign(self, *armored: str) -> None:
        """Add signatures of the bundle as it is now."""
        side = signature_side(self.data, armored)
        self.add(side.data)
        for content in side.contents.values():
            with content.stream() as stream:
                self.add(stream.read())
        tag = form.signature_tag(self.entry.sha256)
        own = Tagged(sha256=side.sha256, size=len(side.data), tag=tag, artifact=form.SIGNATURES)
        others = [one for one in self.entries if one.artifact != form.SIGNATURES]
        self.write("index.json", render_index([*others, own]))
        self.refresh_sums()


@dataclass(frozen=True, slots=True)
class Site:
    """A machine that has nothing of ours and no index: an empty store and a root."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "envs"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def environ(self) -> dict[str, str]:
        return {"ENVSMITH_HOME": str(self.store), "ENVSMITH_INDEX": DEAD_INDEX, "ENVSMITH_FIND_LINKS": ""}

    @property
    def untouched(self) -> bool:
        """Whether nothing was ever written below its root."""
        return not self.root.exists() or not any(self.root.iterdir())

    def run(self, *words: str | Path, json: bool = True, env: Mapping[str, str] | None = None) -> Said:
        """Run the program there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        environ = {**self.environ, **(env or {})}
        return envsmith(*words, *(["--json"] if json else []), cwd=self.folder, env=environ)

    def inside(self, *words: str | Path, env: Mapping[str, str] | None = None) -> Said:
        """The same without a process of its own, for the many cases that end early."""
        self.folder.mkdir(parents=True, exist_ok=True)
        out, err = io.StringIO(), io.StringIO()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        code: object = None
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.chdir(self.folder)
            for name, value in {**self.environ, "ENVSMITH_NETGUARD": "off", **(env or {})}.items():
                patch.setenv(name, value)
            try:
                main([*map(str, words), "--json"])
            except SystemExit as ended:
                code = ended.code
            finally:
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        assert isinstance(code, int)
        assert code != 70, out.getvalue() + err.getvalue()
        return Said(code, out.getvalue(), err.getvalue())

    def install(self, bundle: Path | str, *words: str | Path) -> Said:
        """Install below its root."""
        return self.run("install", bundle, "--root", self.root, *words)

    def refused(self, bundle: Path | str, *words: str | Path) -> Said:
        """An install that has to end before anything is written below its root."""
        said = self.inside("install", bundle, "--root", self.root, *words)
        assert said.code != 0, said.out
        assert said.json["data"] == {}
        assert self.untouched
        return said


def make_key(path: Path) -> Path:
    """Make a throw-away key that needs no passphrase."""
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-C", "throw-away@test.invalid", "-N", "", "-f", str(path)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, timeout=30)
    return path


def signers(path: Path, key: Path, *, namespaces: str = "envsmith-bundle", who: str = "maker@example.org") -> Path:
    """Write a file of keys that a site trusts."""
    public = Path(f"{key}.pub").read_text().strip()
    path.write_text(f'{who} namespaces="{namespaces}" {public}\n')
    return path
