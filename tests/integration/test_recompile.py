"""Bytecode is proved in real interpreters: what they write themselves is silent, other code is found however hidden."""

from __future__ import annotations

import ast
import importlib.util
import marshal
import os
import py_compile
import shutil
import struct
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType

import pytest

from envsmith.bytecode import Memory, Proof, pairs_to_prove
from envsmith.checks.pyc import check_pyc
from envsmith.report import Finding
from envsmith.tools import bytecode
from envsmith.tools.bytecode import PAYLOAD, load_memory, prove
from envsmith.tools.tree import StatIndex, verify_bytes

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
TAG = sys.implementation.cache_tag
SITE = f"lib/python{VERSION}/site-packages"
ENV = {"PATH": os.environ["PATH"]}
SOURCE = '''"""Say something."""
import sys

LIMIT, ZERO, SEEN = 1, 0.0, sys.argv in {"a", "b", ("c", 1)}


def answer(value=3):
    """Answer."""
    assert value
    return [lambda: value + 1000 for _ in range(2)]
'''


class Lab:
    """An env with sources, and the hand that writes bytecode beside them."""

    def __init__(self, root: Path) -> None:
        self.root, self.site = root / "env", root / "env" / SITE
        self.site.mkdir(parents=True)
        self.listed: dict[str, str] = {}
        self.memory: Memory | None = None
        self.python = Path(sys.executable)

    def source(self, name: str, content: str = SOURCE) -> Path:
        path = self.site / f"{name}.py"
        path.write_text(content, encoding="utf-8")
        os.utime(path, (1_700_000_000, 1_700_000_000))
        self.listed[f"{SITE}/{name}.py"] = ""
        return path

    def compiled(self, name: str, content: str = SOURCE, level: int = 0) -> Path:
        py_compile.compile(str(self.source(name, content)), optimize=level, doraise=True)
        return self.pyc(name, level)

    def pyc(self, name: str, level: int = 0) -> Path:
        return self.site / "__pycache__" / f"{name}.{TAG}{f'.opt-{level}' if level else ''}.pyc"

    def poisoned(self, name: str, data: bytes, *, flags: int = 0) -> Path:
        """Write anything under a header that fits."""
        self.compiled(name)
        info = (self.site / f"{name}.py").stat()
        second = b"whatever" if flags else struct.pack("<II", int(info.st_mtime), info.st_size)
        self.pyc(name).write_bytes(importlib.util.MAGIC_NUMBER + struct.pack("<I", flags) + second + data)
        return self.pyc(name)

    def prove(self, *, deep: bool = True, budget: int = 200, clock: bool = True, identity: str = "x") -> Proof:
        observed, _ = verify_bytes(self.root, self.listed, StatIndex())
        proof, self.memory = prove(
            self.root,
            pairs_to_prove(observed, self.listed, python=VERSION),
            observed,
            python=self.python,
            identity=identity,
            env=ENV,
            memory=self.memory,
            deep=deep,
            budget_files=budget,
            clock=self.root.parent if clock else None,
        )
        self.findings: list[Finding] = list(check_pyc(observed, self.listed, python=VERSION, proof=proof))
        return proof

    def kinds(self) -> set[tuple[str, str]]:
        self.prove()
        return {(finding.kind, finding.subject.rpartition("/")[2]) for finding in self.findings}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def code(content: str = SOURCE) -> CodeType:
    return compile(content, "somewhere.py", "exec", dont_inherit=True)


# -- silent -----------------------------------------------------------------------------------------------------------


def pythons() -> Iterator[Path]:
    """Every Python of this machine that the payload supports."""
    seen = set()
    managed = sorted(Path(sys.base_prefix).parent.glob("*/bin/python"))
    found = [*managed, Path("/usr/bin/python3"), Path(sys.executable)]
    for python in found:
        if not python.exists() or python.resolve() in seen:
            continue
        seen.add(python.resolve())
        asked = (python, "-c", "import sys; print(sys.version_info >= (3, 8))")
        if subprocess.run(asked, capture_output=True, text=True, check=False).stdout == "True\n":
            yield python


TRICKY = {
    "future.py": "from __future__ import annotations\ndef f(x: int = 3) -> 'str': ...\n",
    "latin.py": "# -*- coding: latin-1 -*-\nNAME = 'Müller'\n",
    "docs.py": '''"""Doc."""
class A:
    "doc"
    def f(self):
        "doc"
        assert self, "no"
        return __debug__
''',
    "numbers.py": "A = [0.0, -0.0, 1e400, -1e400, 1e400 - 1e400, 1j, -0j, 10**30]\nB = (1, 1.0, True, 0, False)\n",
    "sets.py": "def f(x):\n    return x in {1, 'a', b'a', None, (1, (2, 'x'))} or x in {frozenset()}\n",
    "text.py": "A = ['\\ud800', '\\x00', 'ä', b'\\xff', ...]\nx = f'{A!r:>{30}}'\n",
    "flow.py": """async def f():
    async for x in y:
        try:
            yield x
        except* E:
            pass
        finally:
            del x
""",
    "warns.py": "a = 1\nif a is 1:\n    b = '\\d'\n",
    "empty.py": "",
}


@pytest.mark.parametrize("python", list(pythons()), ids=str)
def test_what_an_interpreter_compiles_itself_is_proved(python: Path, tmp_path: Path) -> None:
    root = tmp_path / "env"
    root.mkdir()
    for name, content in TRICKY.items():
        (root / name).write_bytes(content.encode("latin-1" if name == "latin.py" else "utf-8"))
    stdlib = Path(os.__file__).parent
    for name in ("dataclasses.py", "enum.py", "inspect.py", "typing.py"):
        shutil.copy(stdlib / name, root / name)
    for flags in ((), ("-O",), ("-OO",), ("-X", "no_debug_ranges")):
        folder = () if flags[:1] != ("-X",) else ("-f",)
        subprocess.run(
            (python, *flags, "-W", "ignore", "-m", "compileall", "-q", *folder, root),
            check=False,
            stdout=subprocess.DEVNULL,
        )
        said = subprocess.run(
            (python, "-c", "import sys; print(sys.version)"), capture_output=True, text=True, check=True
        )
        observed, _ = verify_bytes(root, {}, StatIndex())
        pairs = pairs_to_prove(observed, {}, python=said.stdout.split()[0])
        proof, _ = prove(root, pairs, observed, python=python, identity="", env=ENV, deep=True)
        assert len(pairs) >= 8
        assert (proof.problem, proof.verdicts, proof.left) == (None, (), ())


def test_the_payload_parses_on_the_oldest_python_and_runs_on_3_8() -> None:
    text = PAYLOAD.read_text()
    assert not [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.JoinedStr | ast.AnnAssign)]
    old = next(iter(sorted(Path(sys.base_prefix).parent.glob("2.7*/bin/python"))), None)
    if old:
        done = subprocess.run((old, PAYLOAD, "a", "b"), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (79, "envsmith-probe: python too old\n")
    vermin = Path(sys.executable).with_name("vermin")
    if vermin.exists():
        done = subprocess.run([vermin, "-t=3.8-", "--no-tips", PAYLOAD], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_clean_bytecode_of_every_level_is_silent_and_nothing_is_written(lab: Lab) -> None:
    for level in (0, 1, 2):
        lab.compiled(f"m{level}", level=level)
    before = sorted(lab.root.rglob("*"))
    proof = lab.prove()
    assert (proof.pairs, proof.unproved, lab.findings) == (3, 0, [])
    assert sorted(lab.root.rglob("*")) == before


def test_what_a_wheel_ships_and_what_other_loaders_read_is_not_asked(lab: Lab) -> None:
    import hashlib

    shipped = lab.poisoned("shipped", marshal.dumps(code("x = 1")))
    lab.listed[f"{SITE}/__pycache__/{shipped.name}"] = hashlib.sha256(shipped.read_bytes()).hexdigest()
    for tag in (f"{TAG}-pytest-8.4.1", "cpython-37"):
        shutil.copy(shipped, shipped.with_name(f"shipped.{tag}.pyc"))
    assert lab.kinds() == {("foreign-bytecode", "shipped.cpython-37.pyc")}
    assert lab.prove().pairs == 0


def test_bytecode_that_another_directory_name_is_written_in_is_the_same(lab: Lab) -> None:
    py_compile.compile(str(lab.source("moved")), dfile="/build/place/moved.py", doraise=True)
    assert lab.kinds() == set()


# -- found ------------------------------------------------------------------------------------------------------------


def changed(**fields: object) -> bytes:
    return marshal.dumps(code().replace(**fields))  # type: ignore[arg-type]


def inner(**fields: object) -> bytes:
    whole = code()
    consts = tuple(c.replace(**fields) if isinstance(c, CodeType) else c for c in whole.co_consts)  # type: ignore[arg-type]
    return marshal.dumps(whole.replace(co_consts=consts))


def replaced(old: str, new: str) -> bytes:
    assert old in SOURCE
    return marshal.dumps(code(SOURCE.replace(old, new)))


POISONS: dict[str, Callable[[], bytes]] = {
    "constant": lambda: replaced("1000", "1001"),
    "constant-of-another-type": lambda: replaced("= 1, ", "= True, "),
    "sign-of-zero": lambda: replaced("0.0", "-0.0"),
    "set": lambda: replaced('"b"', '"z"'),
    "type-in-a-set": lambda: replaced('("c", 1)', '("c", True)'),
    "docstring": lambda: replaced("Answer", "Reply"),
    "default": lambda: replaced("value=3", "value=4"),
    "name": lambda: replaced("sys.argv", "sys.path"),
    "one-more-statement": lambda: marshal.dumps(code(SOURCE + "import os\n")),
    "flags": lambda: changed(co_flags=code().co_flags | 0x100000),
    "flags-of-a-function": lambda: inner(co_flags=3 | 0x20),
    "stack": lambda: inner(co_stacksize=1),
    "asserts-left-out": lambda: marshal.dumps(compile(SOURCE, "x", "exec", optimize=1)),
    "nothing": lambda: b"",
    "garbage": lambda: b"\xfb\x00\xff" * 40,
    "cut-short": lambda: marshal.dumps(code())[:-30],
    "no-code": lambda: marshal.dumps(("a", 1)),
    # A tuple that claims two thousand million elements.
    "huge": lambda: b"(" + struct.pack("<i", 2**31 - 1),
}


@pytest.mark.parametrize("name", POISONS)
def test_code_that_its_source_does_not_compile_to_is_found(lab: Lab, name: str) -> None:
    lab.compiled("clean")
    poisoned = lab.poisoned("six", POISONS[name]())
    if name == "huge":
        assert lab.kinds() == {("unreadable-bytecode", poisoned.name)}
    else:
        assert lab.kinds() == {("poisoned-bytecode", poisoned.name)}


def test_the_message_says_where_the_code_differs(lab: Lab) -> None:
    lab.poisoned("six", replaced("= 1, ", "= 7, "))
    lab.prove()
    assert "a constant of the module" in lab.findings[0].message
    lab.poisoned("six", replaced("1000", "1001"))
    lab.prove()
    assert "lambda" in lab.findings[0].message


def test_unchecked_bytecode_is_found_by_its_header_and_by_its_code(lab: Lab) -> None:
    poisoned = lab.poisoned("six", replaced("1000", "1001"), flags=1)
    assert lab.kinds() == {("unowned-bytecode", poisoned.name), ("poisoned-bytecode", poisoned.name)}


def test_checked_hashes_are_held_against_the_source(lab: Lab) -> None:
    lab.poisoned("six", replaced("1000", "1001"), flags=3)
    assert lab.kinds() == set()  # the hash is not that of the source: Python does not load it
    path = lab.source("good")
    py_compile.compile(str(path), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    assert lab.kinds() == set()
    header = lab.pyc("good").read_bytes()[:16]
    lab.pyc("good").write_bytes(header + replaced("1000", "1001"))
    assert lab.kinds() == {("poisoned-bytecode", lab.pyc("good").name)}


def test_moved_lines_are_a_warning_of_their_own(lab: Lab) -> None:
    moved = lab.poisoned("six", marshal.dumps(code("\n\n" + SOURCE)))
    assert lab.kinds() == {("misleading-bytecode", moved.name)}


def test_bytecode_beside_a_source_that_does_not_compile_is_said_and_is_no_error(lab: Lab) -> None:
    lab.poisoned("six", b"")
    source = lab.source("six", "print 'python 2'\n" + "#" * (len(SOURCE) - 17))
    assert source.stat().st_size == len(SOURCE)
    lab.pyc("six").write_bytes(lab.pyc("six").read_bytes() + marshal.dumps(code()))
    assert lab.kinds() == {("unproved-bytecode", lab.pyc("six").name)}


def test_a_pipe_a_link_and_a_file_without_rights_hold_nobody_up(lab: Lab) -> None:
    lab.compiled("six")
    (lab.pyc("six")).unlink()
    os.mkfifo(lab.pyc("six"))
    lab.compiled("linked")
    elsewhere = lab.root.parent / "elsewhere.pyc"
    lab.pyc("linked").rename(elsewhere)
    lab.pyc("linked").symlink_to(elsewhere)
    assert lab.kinds() == {("unowned-bytecode", lab.pyc("six").name), ("unowned-bytecode", lab.pyc("linked").name)}


def test_a_file_that_takes_for_ever_is_cut_off_and_the_others_are_proved(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two elements that are one and the same, sixty deep: hashing it for a set takes 2**60 steps.
    nested = b"N"
    for depth in range(60):
        nested = b"\xa9\x02" + nested + (b"r" + struct.pack("<I", 60 - depth) if depth else b"N")
    for number in range(6):
        lab.compiled(f"m{number}")
    slow = lab.poisoned("m3", b">" + struct.pack("<I", 1) + nested)
    monkeypatch.setattr(bytecode, "FILE_SECONDS", 1.0)
    proof = lab.prove()
    assert [(verdict.word, verdict.pyc.rpartition("/")[2]) for verdict in proof.verdicts] == [("unproved", slow.name)]
    assert (proof.recompiled, proof.left) == (6, 0 or ())


def killer(lab: Lab) -> None:
    """An interpreter that dies while it reads certain bytecode, as one with a fault in `marshal` does."""
    script = lab.root.parent / "dying.py"
    script.write_text(
        "import marshal, os, runpy, sys\n"
        "loads = marshal.loads\n"
        "def dying(data):\n"
        "    if bytes(data).endswith(b'DIE'):\n"
        "        os.kill(os.getpid(), 11)\n"
        "    return loads(data)\n"
        "marshal.loads = dying\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    lab.python = lab.root.parent / "python"
    lab.python.write_text(f'#!/bin/sh\nshift 5\nexec {sys.executable} -I -B {script} "$@"\n')
    lab.python.chmod(0o755)


def test_a_file_that_kills_the_interpreter_is_found_and_the_others_are_proved(lab: Lab) -> None:
    killer(lab)
    for number in range(7):
        lab.compiled(f"m{number}")
    for number in (2, 5):
        with lab.pyc(f"m{number}").open("ab") as stream:
            stream.write(b"DIE")
    assert lab.kinds() == {("poisoned-bytecode", lab.pyc("m2").name), ("poisoned-bytecode", lab.pyc("m5").name)}
    assert "ends the process" in lab.findings[0].message and "signal 11" in lab.findings[0].message


def test_endless_deaths_end_the_proof_and_not_the_verification(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    killer(lab)
    monkeypatch.setattr(bytecode, "CRASHES", 2)
    for number in range(6):
        with lab.compiled(f"m{number}").open("ab") as stream:
            stream.write(b"DIE")
    proof = lab.prove()
    assert proof.left and "more than 2 files" in str(proof.problem)
    assert "bytecode-not-proved" in {finding.kind for finding in lab.findings}


@pytest.mark.parametrize("python", ["/nonexistent/python", "/bin/false", "/bin/true"])
def test_an_interpreter_that_does_not_run_proves_nothing_and_says_so(lab: Lab, python: str) -> None:
    lab.compiled("six")
    lab.python = Path(python)
    proof = lab.prove()
    assert proof.problem and proof.unproved == 1
    assert [finding.kind for finding in lab.findings] == ["bytecode-not-proved"]


# -- memory -----------------------------------------------------------------------------------------------------------


def test_what_was_proved_is_not_compiled_again_and_a_change_is(lab: Lab, tmp_path: Path) -> None:
    for number in range(5):
        lab.compiled(f"m{number}")
    assert lab.prove().recompiled == 5
    assert lab.memory is not None
    (tmp_path / "memory.json").write_text(lab.memory.to_json())
    lab.memory = load_memory(tmp_path / "memory.json")
    assert (lab.prove().recompiled, lab.prove(deep=False).recompiled) == (0, 0)

    before = lab.pyc("m1").stat()
    data = lab.pyc("m1").read_bytes()
    lab.pyc("m1").write_bytes(data.replace(b"Answer.", b"Banana."))
    os.utime(lab.pyc("m1"), ns=(before.st_atime_ns, before.st_mtime_ns))
    assert lab.prove(deep=False).recompiled == 1
    assert [finding.kind for finding in lab.findings] == ["poisoned-bytecode"]
    assert lab.prove(deep=False).recompiled == 1  # what is wrong is not remembered


def test_a_memory_to_which_nothing_came_is_the_same_one(lab: Lab) -> None:
    lab.compiled("six")
    time.sleep(0.1)  # a row as young as the look is read again
    lab.prove()
    kept = lab.memory
    lab.prove(deep=False)
    assert lab.memory is kept
    lab.prove()
    assert lab.memory is kept
    lab.compiled("another")
    lab.prove(deep=False)
    assert lab.memory is not kept


def test_attributes_are_believed_by_default_and_never_with_deep(lab: Lab) -> None:
    lab.compiled("six")
    lab.prove()
    lab.memory = Memory(
        identity="x",
        taken_ns=2**62,
        rows={path: row._replace(pyc_sha256="0" * 64) for path, row in lab.memory.rows.items()},  # type: ignore[union-attr]
    )
    kept = lab.memory
    assert lab.prove(deep=False, clock=False).remembered == 1
    lab.memory = kept
    assert lab.prove(deep=True, clock=False).recompiled == 1


def test_a_memory_from_the_future_vouches_for_no_attributes(lab: Lab) -> None:
    lab.compiled("six")
    lab.prove()
    lab.memory = Memory(
        identity="x",
        taken_ns=2**62,
        rows={path: row._replace(pyc_sha256="0" * 64) for path, row in lab.memory.rows.items()},  # type: ignore[union-attr]
    )
    assert lab.prove(deep=False).recompiled == 1


def test_another_interpreter_or_another_source_remembers_nothing(lab: Lab) -> None:
    lab.compiled("six")
    assert lab.prove().recompiled == 1
    assert lab.prove(identity="another").recompiled == 1
    lab.compiled("six", SOURCE.replace("1000", "2000"))
    assert lab.prove(identity="another").recompiled == 1


def test_a_fresh_poison_is_among_the_few_that_the_default_level_recompiles(lab: Lab) -> None:
    for number in range(30):
        lab.compiled(f"m{number}")
    lab.poisoned("m7", replaced("1000", "1001"))
    proof = lab.prove(deep=False, budget=5)
    assert (proof.recompiled, len(proof.left)) == (5, 25)
    assert [finding.kind for finding in lab.findings] == ["poisoned-bytecode"]
    assert "25 not yet" in proof.figure()
    for _ in range(8):
        proof = lab.prove(deep=False, budget=5)
    assert (proof.left, len(proof.verdicts)) == ((), 1)


def test_the_own_library_of_this_interpreter_is_proved(tmp_path: Path) -> None:
    stdlib = Path(sysconfig.get_path("stdlib")) / "json"
    shutil.copytree(stdlib, tmp_path / "json", ignore=shutil.ignore_patterns("__pycache__"))
    for path in (tmp_path / "json").glob("*.py"):
        py_compile.compile(str(path), doraise=True)
    observed, _ = verify_bytes(tmp_path / "json", {}, StatIndex())
    pairs = pairs_to_prove(observed, {}, python=VERSION)
    proof, memory = prove(
        tmp_path / "json", pairs, observed, python=Path(sys.executable), identity="", env=ENV, deep=True
    )
    assert (len(pairs) >= 5, proof.verdicts, len(memory.rows)) == (True, (), len(pairs))
