"""A recipe is read whole or refused whole: every problem at once, each with its line and a way on."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from envsmith.errors import InputError, Problem
from envsmith.recipe import Env, parse, schema

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

STACKS = Path(__file__).parents[2] / "stacks"
COMMIT, SHA = "1bf9d2d76c244238e8219531c582819a6b407d47", "ab" * 32

#: design.md §3 with its gaps filled; the comments of that page are not repeated.
DESIGN = f"""\
[stack]
name = "a100"
summary = "8×A100 80 GB, driver 470, kernel 4.9, no root"

[host]
arch = "x86_64"
glibc = "2.31"
kernel = ">=4.9"
driver = ">=470"
cuda-compat = "12.8"
compute-capability = ["8.0"]
devices = 8
snapshot = "snapshots/a100.toml"

[env.rl]
python = "3.11"
requires = ["torch==2.10.0", "vllm==0.18.0", "ray==2.56.1", "pyarrow==24.0.0", "TransferQueue==0.1.6"]
no-deps = ["TransferQueue"]
override = ["numpy==1.26.4", "transformers==5.3.0"]
constrain = ["pandas<3", "datasets>=3"]
exclude = ["flash-attn"]
build = ["antlr4-python3-runtime"]
exclude-newer = 2026-11-01T00:00:00Z

[[env.rl.accept]]
package = "vllm"
requirement = "transformers<5"
because = "Qwen3.5 needs transformers 5; generation and one GRPO step passed with it"

[env.rl.source.verl]
git = "https://github.com/verl-project/verl"
commit = "{COMMIT}"
extras = ["math"]
series = ["verl-1bf9d2d/a100.series"]
install = "editable"
deps = true

[env.rl.patch.deepspeed]
series = ["deepspeed-0.18.4/cpu-adam.series"]

[env.rl.base]
python = "/opt/vendor/bin/python"
protect = ["torch", "vllm", "triton", "flash-attn"]

[env.rl.asset.gsm8k]
path = "data/gsm8k.parquet"
sha256 = "{SHA}"

[env.rl.launch]
unset = ["PYTHONHOME", "PYTHONPATH", "PYTORCH_CUDA_ALLOC_CONF"]
set = {{ PYTHONNOUSERSITE = "1", VERL_ATTN_IMPLEMENTATION = "sdpa" }}
prepend = {{ }}
require = ["LD_LIBRARY_PATH"]
forward = "set"
driver-library = "host"
short-dirs = {{ RAY_TMPDIR = "{{scratch}}/r", TMPDIR = "{{scratch}}/t" }}
profile = "/path/on/target/vendor_env.sh"
path-filter = ["python3.10/site-packages"]

[env.rl.verify]
imports = ["torch", "vllm.v1.engine.core", "ray", "transformers", "verl"]
attributes = ["ray.remote"]
launchers = ["torchrun", "ray", "vllm"]
contexts = ["launched", "spawn", "torchrun", "ray"]
single-instance = ["libarrow", "libnccl", "libcudart", "libcuda"]
allow-outside = []

[env.rl.job]
dtype = "bfloat16"
attention = "sdpa"
model-type = "qwen3_5"
cpu-offload = true
fused-kernels = false

[[env.rl.smoke]]
rung = "device"
timeout-s = 120
ranks = 8
"""

#: The shortest recipe; tests put lines under its env table, which starts at line 4.
SHORT = '[stack]\nname = "x"\n\n[env.a]\npython = "3.11"\n'


def problems(text: str, where: str = "stacks/x.toml") -> tuple[Problem, ...]:
    with pytest.raises(InputError) as caught:
        parse(text, where)
    return caught.value.problems


def env(lines: str) -> str:
    return SHORT + lines


def env_line(number: int) -> str:
    """The place of a line that `env` added."""
    return f"stacks/x.toml:{5 + number}"


# --- what is read ---


def test_the_example_of_the_design_is_read_completely() -> None:
    stack = parse(DESIGN, "stacks/a100.toml")
    rl = stack.env["rl"]
    assert stack.stack.summary.startswith("8×A100")
    assert (stack.host.devices, stack.host.compute_capability, stack.host.cuda_compat) == (8, ("8.0",), "12.8")
    assert rl.exclude_newer is not None
    assert rl.exclude_newer.isoformat() == "2026-11-01T00:00:00+00:00"
    assert rl.accept[0].requirement == "transformers<5"
    assert rl.source["verl"].base == COMMIT
    assert rl.source["verl"].deps is True
    assert rl.patch["deepspeed"].series == ("deepspeed-0.18.4/cpu-adam.series",)
    assert rl.base is not None
    assert rl.base.protect[-1] == "flash-attn"
    assert rl.asset["gsm8k"].sha256 == SHA
    assert rl.launch.table().forwarded == ("PYTHONNOUSERSITE", "VERL_ATTN_IMPLEMENTATION")
    assert rl.launch.short_dirs["RAY_TMPDIR"] == "{scratch}/r"
    assert rl.verify.contexts == ("launched", "spawn", "torchrun", "ray")
    assert (rl.job.dtype, rl.job.fused_kernels) == ("bfloat16", False)
    assert rl.smoke[0].timeout_s == 120


def test_defaults_are_the_documented_ones() -> None:
    stack = parse(SHORT, "stacks/x.toml")
    assert (stack.host.arch, stack.host.glibc) == ("x86_64", "2.28")
    assert stack.env["a"].launch.unset == ("PYTHONHOME", "PYTHONPATH")
    assert stack.env["a"].verify.contexts == ("launched",)


GOOD: dict[str, str] = {
    "python with a patch release": 'exclude = ["a"]',
    "requirements with markers and extras": "requires = [\"a[b,c]>=1,<2; python_version >= '3.10'\", 'd']",
    "the same name twice under other markers": (
        "requires = ['a==1; python_version < \"3.11\"', 'a==2; python_version >= \"3.11\"']"
    ),
    "a time as text": 'exclude-newer = "2026-11-01T00:00:00+02:00"',
    "variables as numbers and truth values": "launch = { set = { A = 1, B = true, C = 0.5, D = '' } }",
    "forward as a list": 'launch = { set = { A = "1" }, forward = ["A", "B"] }',
    "forward nothing": "launch = { forward = [] }",
    "an sdist source": 'source.s = { sdist = "deepspeed==0.18.4", series = ["s/a.series"], install = "wheel" }',
    "an sdist with spaces and a marker": "source.s = { sdist = \"deepspeed == 0.18.4; os_name == 'posix'\" }",
    "accept absent ones": 'accept = [{ package = "A.b", requirement = "*", because = "why" }]',
    "dotted keys": 'launch.set.A = "1"\nlaunch.set.B = "2"\nverify.imports = ["a"]',
    "every rung": "smoke = [{ rung = 'static' }, { rung = 'command', command = ['true'], timeout-s = 0.5 }]",
    "an integer where a number may stand": "job = { kv-cache-gib = 4, zero-stage = 3 }",
    "unicode in values": 'launch = { set = { GREETING = "grüße 你好" } }',
}


@pytest.mark.parametrize("lines", GOOD.values(), ids=GOOD)
def test_good_forms_are_read(lines: str) -> None:
    assert "a" in parse(env(lines), "stacks/x.toml").env


def test_values_become_the_text_that_a_process_sees() -> None:
    launch = parse(env(GOOD["variables as numbers and truth values"]), "stacks/x.toml").env["a"].launch
    assert launch.set == {"A": "1", "B": "1", "C": "0.5", "D": ""}


def test_a_patch_release_of_python_is_kept() -> None:
    stack = parse(SHORT.replace("3.11", "3.11.7"), "stacks/x.toml")
    assert (stack.env["a"].python, stack.env["a"].python_minor) == ("3.11.7", "3.11")


def test_windows_line_ends_do_not_matter() -> None:
    assert parse(DESIGN.replace("\n", "\r\n"), "stacks/a100.toml") == parse(DESIGN, "stacks/a100.toml")


@pytest.mark.parametrize("path", sorted(STACKS.glob("[!p]*.toml")), ids=lambda path: path.stem)
def test_shipped_stacks_are_read(path: Path) -> None:
    assert parse(path.read_text(), f"stacks/{path.name}").stack.name == path.stem


# --- what is refused: lines of an env, code, line, part of the message ---

INVALID, UNKNOWN, MISSING, AGAINST = (
    f"recipe-{kind}" for kind in ("invalid-value", "unknown-key", "missing-key", "contradiction")
)

REFUSED: tuple[tuple[str, str, str, int, str], ...] = (
    ("requires is text", 'requires = "a"', INVALID, 1, "`env.a.requires`: should be an array (got `a`)"),
    ("a requirement is a number", "requires = [\n  'a',\n  1,\n]", INVALID, 3, "`env.a.requires[1]`: should be a str"),
    ("no requirement", "requires = ['a =>1']", INVALID, 1, "`a =>1` is not a requirement"),
    ("a URL requirement", "override = ['a @ https://h/a.whl']", INVALID, 1, "names a URL"),
    ("a constraint that is none", "constrain = ['']", INVALID, 1, "is not a requirement"),
    ("a name with a version", "build = ['a==1']", INVALID, 1, "`a==1` is not a package name"),
    ("a time without a zone", "exclude-newer = 2026-11-01T00:00:00", INVALID, 1, "needs its zone"),
    ("a day", "exclude-newer = 2026-11-01", INVALID, 1, "needs its zone"),
    ("a number for a time", "exclude-newer = 20261101", INVALID, 1, "not a point in time"),
    ("a time of day", "exclude-newer = 12:00:00", INVALID, 1, "should be a point in time"),
    ("an empty reason", "accept = [{package='a', requirement='b', because=''}]", INVALID, 1, "may not be empty"),
    ("accept is a table", "accept = {}", INVALID, 1, "should be an array (got a table)"),
    ("accept without a reason", "[[env.a.accept]]\npackage='a'\nrequirement='b'", MISSING, 1, "accept[0].because"),
    ("accept of nonsense", "accept = [{package='a', requirement='b c', because='d'}]", AGAINST, 1, "`b c` is neither"),
    ("source is a list", "source = []", INVALID, 1, "`env.a.source`: should be a table (got an array)"),
    ("a short commit", "source.s = {git='g', commit='1bf9d2d'}", INVALID, 1, "full commit id"),
    ("no commit", "[env.a.source.s]\ngit = 'g'", AGAINST, 1, "has no `commit`"),
    ("neither git nor sdist", "[env.a.source.s]\ndeps = false", AGAINST, 1, "needs either `git`"),
    ("an sdist with a commit", f"[env.a.source.s]\nsdist='s==1'\ncommit='{COMMIT}'", AGAINST, 3, "has no commit"),
    ("an sdist without a version", "source.s = {sdist='s'}", AGAINST, 1, "does not pin one version"),
    ("an sdist with a range", "source.s = {sdist='s==1,<2'}", AGAINST, 1, "does not pin one version"),
    ("an sdist with a wildcard", "source.s = {sdist='s==1.*'}", AGAINST, 1, "does not pin one version"),
    ("a source name with capitals", "source.Verl = {sdist='verl==1'}", AGAINST, 1, "not a source name"),
    ("a source that leads out", "source.'../x' = {sdist='x==1'}", AGAINST, 1, "not a source name"),
    ("a source that is required", "requires=['S_x']\nsource.s-x = {sdist='s-x==1'}", AGAINST, 2, "both a source and"),
    ("a series that leads out", "source.s = {sdist='s==1', series=['../a.series']}", INVALID, 1, "without `..`"),
    ("deps as text", "source.s = {sdist='s==1', deps='yes'}", INVALID, 1, "should be `true` or `false`"),
    ("an unknown way to install", "source.s = {sdist='s==1', install='egg'}", INVALID, 1, "'editable' or 'wheel'"),
    ("a patch without a series", "patch.a = {}", MISSING, 1, "`env.a.patch.a.series` is missing"),
    ("a patch with no series", "patch.a = {series=[]}", INVALID, 1, "may not be empty"),
    ("a base that protects nothing", "base = {python='/p', protect=[]}", INVALID, 1, "may not be empty"),
    ("a base without an interpreter", "base = {protect=['*']}", MISSING, 1, "`env.a.base.python` is missing"),
    ("an absolute asset", f"asset.a = {{path='/a', sha256='{SHA}'}}", INVALID, 1, "must be a relative path"),
    ("an asset with NUL", f'asset.a = {{path="a\\u0000", sha256="{SHA}"}}', INVALID, 1, "NUL"),
    ("a short sha256", "asset.a = {path='a', sha256='ab'}", INVALID, 1, "64 lower-case hexadecimal"),
    ("a variable with a space", "launch = {unset=['A B']}", INVALID, 1, "`A B` is not a variable name"),
    ("a variable that is a list", "launch = {set={A=['1']}}", INVALID, 1, "launch.set.A`: should be a string"),
    ("a variable name with a dash", "[env.a.launch.set]\nA-B = '1'", INVALID, 2, "`A-B` is not a variable name"),
    ("a variable with NUL", 'launch = {set={A="a\\u0000b"}}', INVALID, 1, "NUL"),
    ("forward is a word", "launch = {forward='all'}", INVALID, 1, "should be 'set' or an array (got `all`)"),
    ("forward is a number", "launch = {forward=3}", INVALID, 1, "should be 'set' or an array (got `3`)"),
    ("forward names no variable", "launch = {forward=['A B']}", INVALID, 1, "`A B` is not a variable name"),
    ("another driver library", "launch = {driver-library='mine'}", INVALID, 1, "should be 'host'"),
    ("an unknown context", "verify = {contexts=['launched', 'ryn']}", INVALID, 1, "verify.contexts[1]`: should be"),
    ("a changed file that leads out", "verify = {allow-changed=['/etc/x']}", INVALID, 1, "must be a relative path"),
    ("an unknown dtype", "job = {dtype='bf16'}", INVALID, 1, "'bfloat16'"),
    ("a truth value as a number", "job = {cpu-offload=1}", INVALID, 1, "should be `true` or `false` (got `1`)"),
    ("a number as a truth value", "job = {tensor-parallel=true}", INVALID, 1, "whole number (got `true`)"),
    ("a number as text", "job = {mini-batch-size='8'}", INVALID, 1, "should be a whole number (got `8`)"),
    ("a batch of nothing", "job = {train-batch-size=0}", INVALID, 1, "greater than or equal to 1"),
    ("a stage that is none", "job = {zero-stage=4}", INVALID, 1, "less than or equal to 3"),
    ("no memory at all", "job = {kv-cache-gib=0}", INVALID, 1, "greater than 0"),
    ("endless memory", "job = {kv-cache-gib=inf}", INVALID, 1, "finite"),
    ("a rung that is none", "smoke = [{rung='devise'}]", AGAINST, 1, "`devise` is not a rung"),
    ("smoke without a rung", "smoke = [{ranks=1}]", MISSING, 1, "`env.a.smoke[0].rung` is missing"),
    ("a port that is none", "smoke = [{rung='embed', port=70000}]", INVALID, 1, "less than or equal to 65535"),
    ("no-deps of nothing", "no-deps = ['q']", AGAINST, 1, "in `no-deps` but not in `requires`"),
    ("required and excluded", "requires=['A.b']\nexclude=['a-b']", AGAINST, 2, "both required and excluded"),
    ("required twice", "requires=[\n'A.b',\n'a-b>1']", AGAINST, 3, "`a-b` is required twice"),
    ("an unknown key", "pyton = '3.11'", UNKNOWN, 1, "unknown key `env.a.pyton`"),
    ("a key with an underscore", "no_deps = []", UNKNOWN, 1, "unknown key `env.a.no_deps`"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "code", "line", "message"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_bad_forms_are_refused_with_their_line(lines: str, code: str, line: int, message: str) -> None:
    (found,) = problems(env(lines))
    assert (found.code, found.where) == (code, env_line(line))
    assert message in found.message


TABLES: tuple[tuple[str, str, str], ...] = (
    ("[stak]\n", "stak", "did you mean `stack`?"),
    ("[stack]\nname='x'\nsumary='s'\n", "stack.sumary", "did you mean `summary`?"),
    ("[host]\nglbc='2.28'\n", "host.glbc", "did you mean `glibc`?"),
    ("[host]\ncompute_capability=[]\n", "host.compute_capability", "did you mean `compute-capability`?"),
    ("[env.a]\nrequire=[]\n", "env.a.require", "did you mean `requires`?"),
    ("[[env.a.accept]]\nreason=''\n", "env.a.accept[0].reason", "known keys here: `package`, `requirement`, `because`"),
    ("[env.a.source.s]\ncomit=''\n", "env.a.source.s.comit", "did you mean `commit`?"),
    ("[env.a.patch.p]\nserie=[]\n", "env.a.patch.p.serie", "did you mean `series`?"),
    ("[env.a.base]\nprotected=[]\n", "env.a.base.protected", "did you mean `protect`?"),
    ("[env.a.asset.x]\nsha='1'\n", "env.a.asset.x.sha", "did you mean"),
    ("[env.a.launch]\nprepends={}\n", "env.a.launch.prepends", "did you mean `prepend`?"),
    ("[env.a.verify]\nimport=[]\n", "env.a.verify.import", "did you mean `imports`?"),
    ("[env.a.job]\nd_type='x'\n", "env.a.job.d_type", "did you mean `dtype`?"),
    ("[[env.a.smoke]]\ntimeout=3\n", "env.a.smoke[0].timeout", "did you mean `timeout-s`?"),
    ("[env.a]\nxyzzy=1\n", "env.a.xyzzy", "known keys here: `python`,"),
)


@pytest.mark.parametrize(("text", "key", "hint"), TABLES, ids=[case[1] for case in TABLES])
def test_unknown_keys_of_every_table_get_a_suggestion(text: str, key: str, hint: str) -> None:
    found = [p for p in problems(text) if p.message == f"unknown key `{key}`"]
    assert len(found) == 1
    assert found[0].hint is not None
    assert hint in found[0].hint
    name = key.rpartition(".")[2]
    assert found[0].where == f"stacks/x.toml:{next(n for n, row in enumerate(text.splitlines(), 1) if name in row)}"


def test_many_problems_are_said_at_once_and_in_order() -> None:
    text = "\n".join(
        [
            "[stack]",
            'name = "other"',  # 2: not the file's stem
            "[host]",
            'glibc = "new"',  # 4
            'arch = "sparc"',  # 5
            "devises = 3",  # 6
            "[env.A-b]",  # 7: no env name, and no python
            'requires = ["a", "a", "b !"]',  # 8: twice, and none
            "launch.set = { 'X Y' = 1 }",  # 9
            "[[env.A-b.smoke]]",
            "rung = 'devise'",  # 11
        ]
    )
    found = problems(text)
    lines = [int(str(p.where).rpartition(":")[2]) for p in found]
    assert lines == [2, 4, 5, 6, 7, 7, 8, 8, 9, 11]
    assert {p.code for p in found} == {INVALID, UNKNOWN, MISSING, AGAINST}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the key `stack` is missing"),
        ("stack = 3\nenv = 4", "`stack`: should be a table"),
        ("[env]\n[stack]\nname='x'", "`env`: may not be empty"),
        ("[[env]]\n[stack]\nname='x'", "`env`: should be a table"),
        ("[stack]\nname = 'X'\n[env.a]\npython='3.11'", "`X` is not a stack name"),
        ("[stack]\nname = 'y'\n[env.a]\npython='3.11'", "the stack is named `y`, its file `x.toml`"),
        ("[stack]\nname = 'x'\n[env.a]\npython='2.7'", "`2.7` is not a Python version"),
        ("[stack]\nname = 'x'\n[env.a]\npython=3.11", "`env.a.python`: should be a string (got `3.11`)"),
        ("[stack]\nname = 'x'\n[env.a_b]\npython='3.11'", "`a_b` is not an env name"),
        ("[stack]\nname = 'x'\n[env.a]\npython='3.11'\n[host]\ndriver='470'", "not a version specifier"),
        ("[stack]\nname = 'x'\n[env.a]\npython='3.11'\n[host]\ndevices=-1", "greater than or equal to 0"),
        ("[stack]\nname = 'x'\n[env.a]\npython='3.11'\n[host]\nsnapshot='/s'", "must be a relative path"),
    ],
)
def test_whole_tables_that_are_wrong(text: str, message: str) -> None:
    assert message in "\n".join(p.message for p in problems(text))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[stack", 1),
        ("[stack]\nname = 'x'\nname = 'y'\n", 3),
        ("[stack]\nname = \n", 2),
        ("a = 1\n\nb = '", 3),
        ("a = " + "[" * 3000, 1),
    ],
    ids=["header", "twice", "no value", "end", "deep"],
)
def test_what_is_no_toml_is_said_with_its_line(text: str, line: int) -> None:
    (found,) = problems(text)
    assert (found.code, found.where) == ("recipe-syntax", f"stacks/x.toml:{line}")


def test_keys_in_any_script_are_named_as_they_are_written() -> None:
    (found,) = problems(env('"größe" = 1\n'))
    assert "`env.a.größe`" in found.message
    assert found.where == env_line(1)


def test_a_problem_inside_an_inline_table_over_lines_has_its_own_line() -> None:
    found = problems(
        env("smoke = [\n  { rung = 'static' },\n  { rung = 'nope' },\n  { rung = 'device', rank = 1 },\n]")
    )
    assert [p.where for p in found] == [env_line(3), env_line(4)]


def test_a_problem_in_the_second_table_of_an_array_has_its_own_line() -> None:
    first = "[[env.a.accept]]\npackage='a'\nrequirement='b'\nbecause='c'\n"
    rows = f"{first}\n[[env.a.accept]]\npackage=1\nrequirement='*'\nbecause='d'"
    (found,) = problems(env(rows))
    assert (found.where, found.message) == (env_line(7), "`env.a.accept[1].package`: should be a string (got `1`)")


# --- the digest ---


def digest(text: str) -> str:
    return parse(text, "stacks/a100.toml").recipe_digest("rl")


#: Changes of one place of the design's example.
UNLOCKED = {
    "comments": ("[host]", "# words\n[host]  # more"),
    "order of requirements": ('"torch==2.10.0", "vllm==0.18.0"', '"vllm==0.18.0", "torch==2.10.0"'),
    "order of keys": (f'commit = "{COMMIT}"\nextras = ["math"]\n', f'extras = ["math"]\ncommit = "{COMMIT}"\n'),
    "summary": ("no root", "root"),
    "driver": (">=470", ">=535"),
    "devices": ("devices = 8", "devices = 4"),
    "launch": ('VERL_ATTN_IMPLEMENTATION = "sdpa"', 'VERL_ATTN_IMPLEMENTATION = "eager"'),
    "verify": ('"ray.remote"', '"ray.get"'),
    "job": ('"bfloat16"', '"float16"'),
    "smoke": ("timeout-s = 120", "timeout-s = 60"),
    "a default written out": ("deps = true\n", ""),
    "a time in another zone": ("2026-11-01T00:00:00Z", "2026-11-01T02:00:00+02:00"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), UNLOCKED.values(), ids=UNLOCKED)
def test_what_does_not_change_a_lock_does_not_count(old: str, new: str) -> None:
    assert DESIGN.count(old) == 1
    assert digest(DESIGN.replace(old, new)) == digest(DESIGN)


LOCKED = {
    "stack": ('name = "a100"', 'name = "a10"'),
    "arch": ('"x86_64"', '"aarch64"'),
    "glibc": ("2.31", "2.28"),
    "snapshot": ("snapshots/a100", "snapshots/b"),
    "python": ('python = "3.11"', 'python = "3.12"'),
    "requires": ("torch==2.10.0", "torch==2.9.0"),
    "no-deps": ('no-deps = ["TransferQueue"]', "no-deps = []"),
    "override": ("numpy==1.26.4", "numpy==1.26.3"),
    "constrain": ("pandas<3", "pandas<2"),
    "exclude": ('exclude = ["flash-attn"]', "exclude = []"),
    "build": ("antlr4-python3-runtime", "antlr4"),
    "exclude-newer": ("2026-11-01", "2026-11-02"),
    "accept package": ('package = "vllm"', 'package = "ray"'),
    "accept requirement": ("transformers<5", "transformers<6"),
    "accept because": ("one GRPO step", "two GRPO steps"),
    "source git": ("verl-project/verl", "verl-project/fork"),
    "source commit": (COMMIT, COMMIT[::-1]),
    "source extras": ('["math"]', '["geo"]'),
    "source series": ("a100.series", "b100.series"),
    "source install": ('"editable"', '"wheel"'),
    "source deps": ("deps = true", "deps = false"),
    "patch": ("cpu-adam.series", "adam.series"),
    "base python": ("/opt/vendor", "/opt/other"),
    "base protect": ('"triton", ', ""),
    "asset path": ("data/gsm8k", "data/math"),
    "asset sha256": (SHA, SHA[::-1]),
}


@pytest.mark.parametrize(("old", "new"), LOCKED.values(), ids=LOCKED)
def test_whatever_can_change_a_lock_counts(old: str, new: str) -> None:
    assert DESIGN.count(old) == 1
    where = "stacks/a10.toml" if new == 'name = "a10"' else "stacks/a100.toml"
    assert parse(DESIGN.replace(old, new), where).recipe_digest("rl") != digest(DESIGN)


def test_every_key_of_an_env_is_either_locked_or_said_not_to_be() -> None:
    """A new key must be put into one of the two tables above."""
    named = {name.split()[0] for name in LOCKED} | {"launch", "verify", "job", "smoke"}
    assert {key.replace("_", "-") for key in Env.model_fields} <= named


def test_two_envs_of_one_recipe_have_digests_of_their_own() -> None:
    stack = parse(env('[env.b]\npython = "3.11"\n'), "stacks/x.toml")
    assert stack.recipe_digest("a") != stack.recipe_digest("b")


# --- the schema ---


def followed(node: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A node of a schema with its references and branches."""
    if "$ref" in node:
        yield from followed(root["$defs"][node["$ref"].rpartition("/")[2]], root)
    for branch in node.get("anyOf", ()):
        yield from followed(branch, root)
    yield node


def unknown(value: object, node: Mapping[str, Any], root: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Keys of a value that its schema does not know; just enough of a validator for keys."""
    nodes = list(followed(node, root))
    if isinstance(value, dict):
        for key, inner in value.items():
            found = [n["properties"][key] for n in nodes if key in n.get("properties", {})]
            found += [n["additionalProperties"] for n in nodes if isinstance(n.get("additionalProperties"), dict)]
            if not found:
                yield f"{path}.{key}"
            for one in found[:1]:
                yield from unknown(inner, one, root, f"{path}.{key}")
    if isinstance(value, list):
        items = [n["items"] for n in nodes if "items" in n]
        for inner in value:
            for one in items[:1]:
                yield from unknown(inner, one, root, f"{path}[]")


@pytest.mark.parametrize(
    "text",
    [*(path.read_text() for path in sorted(STACKS.glob("[!p]*.toml"))), DESIGN],
    ids=[*(path.stem for path in sorted(STACKS.glob("[!p]*.toml"))), "design"],
)
def test_the_schema_knows_every_key_of_real_recipes(text: str) -> None:
    assert list(unknown(tomllib.loads(text), schema(), schema())) == []


def test_the_schema_does_not_know_a_wrong_key() -> None:
    wrong = tomllib.loads(DESIGN.replace("no-deps", "no_deps").replace("rung", "rang"))
    assert list(unknown(wrong, schema(), schema())) == [".env.rl.no_deps", ".env.rl.smoke[].rang"]


def test_the_schema_is_json_and_refuses_more_keys() -> None:
    made = json.loads(json.dumps(schema()))
    assert made["additionalProperties"] is False
    assert all(one["additionalProperties"] is False for one in made["$defs"].values())
    assert made["required"] == ["stack", "env"]
