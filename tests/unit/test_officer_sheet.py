"""The officer's sheet says all that is in a bundle, the same for the same contents, and no word of others breaks it."""

from __future__ import annotations

import hashlib
import random
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsmith.licences import Licence, licence_of
from envsmith.lock import Conflict, File, digest
from envsmith.officer_sheet import SheetEnv, SheetInput, code, sheet, words
from envsmith.sbom import Ancestor, AppliedPatch, Component
from envsmith.target import Target


def sha(text: str) -> str:
    return digest(text)


def wheel(name: str, version: str = "1.0", *envs: str, licence: str = "MIT", native: bool = False) -> Component:
    return Component(
        kind="wheel", name=name, version=version, filename=f"{name}-{version}.whl", size=1000,
        sha256=sha(f"{name} {version}"), envs=envs or ("rl",), native=native,
        licence=licence_of(f"License: {licence}\n\n".encode()),
    )  # fmt: skip


PATCH = AppliedPatch(
    path="speed-1/0001-x.patch", sha256=sha("patch"), layer="fix", description="mend resuming", origin="vendor, us",
    forwarded="no",
)  # fmt: skip
SPEED = replace(
    wheel("speed", "1.0+envsmith.t01"), patches=(PATCH,), made_with=("setuptools==80.9.0",),
    ancestors=(
        Ancestor(name="speed", version="1.0", filename="speed-1.0.whl", size=9, sha256=sha("speed original")),
        Ancestor(name="speed", version="1.0", filename="speed-1.0.tar.gz", size=8, sha256=sha("speed sdist")),
    ),
)  # fmt: skip
PARTS = (
    wheel("numpy", "1.26.4", "rl", native=True), wheel("numpy", "2.4.6", "sft", native=True),
    wheel("silent", licence="UNKNOWN"), wheel("strict", licence="AGPL-3.0-or-later"),
    wheel("shared", "3.0", "rl"), wheel("shared", "3.0", "sft"),
    wheel("nvidia-cublas", licence="NVIDIA Proprietary Software", native=True), SPEED,
    replace(
        wheel("nccl"),
        licence=licence_of(b"License: BSD-3-Clause\nClassifier: License :: Other/Proprietary License\n\n"),
    ),
    replace(wheel("setuptools", "80.9.0"), kind="build"), replace(wheel("uv", "0.13.9"), kind="tool"),
    replace(wheel("click", "8.1"), kind="library", native=None),
    replace(wheel("click", "8.1"), kind="build"),
    Component(kind="interpreter", name="cpython", version="3.11.9", size=5, sha256=sha("py"), filename="p.tar.gz"),
    Component(kind="asset", name="gsm8k", size=70, sha256=sha("gsm8k"), envs=("rl",), filename="gsm8k.parquet"),
    Component(kind="sdist", name="speed", version="1.0", size=8, sha256=sha("speed sdist"), filename="speed.tar.gz"),
    Component(
        kind="source", name="verl", version="0.9", size=77, sha256=sha("verl"), envs=("rl",), commit="1" * 40,
        tree="2" * 40, url="https://user:secret@example.invalid/a/verl.git", patches=(PATCH,),
    ),
)  # fmt: skip
CONTENTS = SheetInput(
    stack="a100",
    summary="RL and SFT on A100",
    envs=(
        SheetEnv(
            name="rl", target=Target(python="3.11", arch="x86_64", glibc="2.31"), lock_sha256=sha("lock rl"),
            conflicts=(
                Conflict(package="vllm", version="0.18.0", requirement="numpy>=2", found="1.26.4", because="tried"),
                Conflict(package="ray", version="2", requirement="x<2,>=1", found=None, because="unused"),
            ),
        ),
        SheetEnv(
            name="sft", target=Target(python="3.12", arch="x86_64", glibc="2.31"), lock_sha256=sha("lock sft"),
            base="snapshot ppu",
        ),
    ),
    driver=">=470",
    versions={"envsmith": "0.1.0", "uv": "0.13.9", "git": "2.39.5"},
    components=PARTS,
    others=(File(filename="stacks/a100.toml", size=12, sha256=sha("recipe")),),
)  # fmt: skip
SHEET = sheet(CONTENTS)


def rows(text: str, title: str) -> list[list[str]]:
    """The rows of the table below a heading, its own head left out."""
    section = text.split(f"## {title}\n\n", 1)[1].split("\n\n", 1)[0]
    return [cells(line) for line in section.splitlines()[2:]]


def cells(line: str) -> list[str]:
    """Cells as GitHub reads them: only a bar without a backslash before it ends one."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def look(text: str, title: str) -> str:
    (line,) = (line for line in text.splitlines() if line.startswith(f"- {title}"))
    return line.removeprefix(f"- {title}").lstrip(":, ")


# --- what it says ---


def test_the_stack_its_targets_its_makers_and_its_locks_are_named() -> None:
    assert SHEET.startswith("# Approval sheet: stack a100\n\nSummary: RL and SFT on A100\n")
    facts = dict(cells(line) for line in SHEET.split("\n\n")[2].splitlines()[2:])
    assert facts["driver"] == "`>=470`"
    assert facts["env rl"] == "Python 3.11, x86_64, glibc 2.31 or newer"
    assert facts["env sft"] == "Python 3.12, x86_64, glibc 2.31 or newer, on snapshot ppu"
    assert facts["lock of rl, sha256"] == f"`{sha('lock rl')}`"
    assert [facts[f"made by {name}"] for name in ("envsmith", "git", "uv")] == ["0.1.0", "2.39.5", "0.13.9"]


def test_the_totals_count_every_file_once() -> None:
    sizes = {part.sha256: part.size or 0 for part in PARTS} | {file.sha256: file.size for file in CONTENTS.others}
    assert f"| files listed here | {len(sizes)}, {sum(sizes.values()):,} bytes |" in SHEET


def test_every_digest_stands_there_whole() -> None:
    digests = {one for part in PARTS for one in (part.sha256, part.commit, part.tree) if one}
    digests |= {one.sha256 for part in PARTS for one in (*part.ancestors, *part.patches)}
    digests |= {env.lock_sha256 for env in CONTENTS.envs} | {file.sha256 for file in CONTENTS.others}
    assert {one for one in digests if f"`{one}`" not in SHEET} == set()


def test_a_wheel_of_two_envs_is_one_row() -> None:
    (shared,) = (row for row in rows(SHEET, "Wheels") if row[0] == "shared")
    assert shared == ["shared", "3.0", "MIT", "rl, sft", "1,000", f"`{sha('shared 3.0')}`"]


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Wheels", "numpy"), ("Sdists", "speed"), ("Build requirements", "setuptools"), ("Interpreter", "cpython"),
        ("Tools", "uv"), ("Packages that the tools need", "click"), ("Assets", "gsm8k"), ("Sources", "verl 0.9"),
        ("Other files", "`stacks/a100.toml`"),
    ],
)  # fmt: skip
def test_every_kind_has_its_table(title: str, name: str) -> None:
    assert name in [row[0] for row in rows(SHEET, title)]


def test_a_kind_of_which_there_is_none_has_no_table() -> None:
    small = sheet(replace(CONTENTS, components=(wheel("x"),), envs=(), others=(), summary="", driver=None))
    titles = re.findall(r"(?m)^#+ (.*)$", small)
    assert titles == [
        "Approval sheet: stack a100", "How to check this without trusting us", "What deserves a look", "Wheels",
    ]  # fmt: skip
    assert "| driver | nothing demanded |" in small


def test_accepted_conflicts_stand_with_their_reasons() -> None:
    assert rows(SHEET, "Accepted conflicts") == [
        ["rl", "ray 2", "`x<2,>=1`", "not there", "unused"],
        ["rl", "vllm 0.18.0", "`numpy>=2`", "1.26.4", "tried"],
    ]


def test_a_wheel_made_here_stands_with_its_inputs_and_reasons() -> None:
    ((file, inputs, how, made),) = rows(SHEET, "Wheels made here")
    assert (file, made) == ("`speed-1.0+envsmith.t01.whl`", f"`{SPEED.sha256}`")
    assert inputs == "; ".join(f"`{one.filename}`, sha256 `{one.sha256}`" for one in SPEED.ancestors)
    assert how == "patch `speed-1/0001-x.patch`: mend resuming; built with setuptools==80.9.0"


def test_a_patch_that_two_parts_share_is_one_row() -> None:
    row = ["`speed-1/0001-x.patch`", "fix", "mend resuming", "vendor, us", "no", f"`{sha('patch')}`"]
    assert rows(SHEET, "Patches") == [row]


def test_a_source_is_named_by_url_commit_and_tree_without_secrets() -> None:
    ((name, origin, commit, tree, *_),) = rows(SHEET, "Sources")
    assert (name, origin) == ("verl 0.9", "`https://example.invalid/a/verl.git`")
    assert (commit, tree) == (f"`{'1' * 40}`", f"`{'2' * 40}`")
    assert "secret" not in SHEET


def test_what_deserves_a_look_is_named_and_nothing_else() -> None:
    assert look(SHEET, "No licence stated") == "silent 1.0."
    assert look(SHEET, "AGPL, GPL or LGPL named") == "strict 1.0 (AGPL-3.0-or-later; AGPL)."
    proprietary = "nccl 1.0 (BSD-3-Clause); nvidia-cublas 1.0 (NVIDIA Proprietary Software)."
    assert look(SHEET, "Proprietary licences") == proprietary
    differing = "nccl 1.0 (BSD-3-Clause against Other/Proprietary License)."
    assert look(SHEET, "Statements about the licence differ") == differing
    assert look(SHEET, "Built from an sdist, whose build ran its code") == "speed 1.0+envsmith.t01."
    assert look(SHEET, "Patched") == "speed 1.0+envsmith.t01 (1)."
    assert look(SHEET, "Nobody looked for machine code") == "click 8.1."
    assert look(SHEET, "Machine code") == "2: numpy, nvidia-cublas."
    assert look(SHEET, "Different versions in different envs") == "numpy 1.26.4 in rl, 2.4.6 in sft."


def test_where_nothing_deserves_a_look_it_says_none() -> None:
    plain = sheet(replace(CONTENTS, components=(wheel("x"),)))
    looks = [line for line in plain.splitlines() if line.startswith("- ")]
    assert len(looks) == 9
    assert [line for line in looks if not line.endswith("none.")] == []


def test_its_line_for_checking_finds_a_changed_file_and_only_that(tmp_path: Path) -> None:
    (line,) = (line.strip() for line in SHEET.splitlines() if line.startswith("    cd "))
    blobs = tmp_path / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for content in (b"one", b"two"):
        (blobs / hashlib.sha256(content).hexdigest()).write_bytes(content)
    good = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True)
    assert (good.returncode, good.stdout, good.stderr) == (0, "", "")
    wrong = blobs / hashlib.sha256(b"two").hexdigest()
    wrong.write_bytes(b"twp")
    bad = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True)
    assert (bad.returncode, bad.stdout) == (1, f"WRONG {wrong.name}\n")


# --- one text ---


def test_the_order_of_the_contents_changes_no_byte() -> None:
    for seed in range(5):
        mixed = list(PARTS)
        random.Random(seed).shuffle(mixed)
        turned = replace(
            CONTENTS,
            components=tuple(mixed),
            envs=CONTENTS.envs[::-1],
            versions=dict(reversed(CONTENTS.versions.items())),
            others=CONTENTS.others[::-1],
        )
        assert sheet(turned) == SHEET


def test_a_stack_of_300_wheels_stays_below_100_kilobytes() -> None:
    many = tuple(wheel(f"package-with-a-name-{n}", "1.2.3", "rl", "sft", native=True) for n in range(300))
    assert len(sheet(replace(CONTENTS, components=many)).encode()) < 100_000


# --- the words of others ---

HOSTILE = [
    "a|b", "a\\|b", "a\\", "`x`", "`", "``|", "<script>alert(1)</script>", "<!--", "&lt;b&gt;", "![x](y)", "[x](y)",
    "[x]: y", "a\n| --- |\n# h", "a\r\n\r\n## h", "\u2028x\u0085y", "\x00\x1b[31m\x7f", "\u202eevil", "\ud800",
    "*a* __b__ ~~c~~", "http://e.invalid www.e.invalid", "a@e.invalid", "$x$", "x" * 100_000, "|" * 100_000, " ",
    "é漢\U0001f600",
]  # fmt: skip


def planted(text: str) -> SheetInput:
    """Every text of the sheet is that one; only digests, sizes and kinds are ours."""
    applied = AppliedPatch(path=text, sha256=sha("p"), layer=text, description=text, origin=text, forwarded=text)
    ancestor = Ancestor(name=text, version=text, filename=text, size=1, sha256=sha("a"))
    licences = (
        Licence(text=text, source="field", copyleft=("GPL",)),
        Licence(expression="MIT", text=text, classifiers=(text, "Other/Proprietary License"), source="classifier"),
        Licence(),
    )
    kinds = ("wheel", "sdist", "source", "build", "interpreter", "tool", "library", "asset")
    parts = [
        Component(
            kind=kind, name=text, version=f"{text}{n}", filename=text, size=1, sha256=sha(f"{kind}{n}"), envs=(text,),
            licence=licence, native=(True, False, None)[n], ancestors=(ancestor,), patches=(applied,), url=text,
            commit=text, tree=text, made_with=(text,),
        )
        for kind in kinds
        for n, licence in enumerate(licences)
    ]  # fmt: skip
    target = Target(python=text, arch=text, glibc=text)
    conflict = Conflict(package=text, version=text, requirement=text, found=text, because=text)
    return SheetInput(
        stack=text, summary=text, driver=text, versions={text: text}, components=tuple(parts),
        envs=(SheetEnv(name=text, target=target, lock_sha256=sha("l"), conflicts=(conflict,), base=text),),
        others=(File(filename=text, size=1, sha256=sha("o")),),
    )  # fmt: skip


def shape(text: str) -> list[tuple[str, int]]:
    """What a reader sees as structure: of each line its kind and its number of cells."""
    kinds = (("# ", "h1"), ("## ", "h2"), ("| --", "rule"), ("| ", "row"), ("- ", "item"), ("    ", "code"))
    return [
        (next((kind for start, kind in kinds if line.startswith(start)), "text" if line else ""), len(cells(line)))
        for line in text.split("\n")
    ]


def live(line: str) -> set[str]:
    """Marks of a line that a renderer would act on, code and escapes taken out."""
    bare = re.sub(r"\\[!-/:-@\[-`{-~]", " ", line)
    bare = re.sub(r"`[^`]*`", " ", bare)
    bare = re.sub(r"&(amp|lt|gt);", " ", bare)
    return set(re.findall(r"[`*\[\]~<&]|://|www\.|(?<=\w)@(?=\w)|(?<!\w)_+\w|\w_+(?!\w)", bare))


BENIGN = sheet(planted("benign"))


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_words_of_any_kind_change_nothing_but_the_words(text: str) -> None:
    made = sheet(planted(text))
    assert shape(made) == shape(BENIGN)
    marks = {mark for line in made.split("\n") if not line.startswith("    ") for mark in live(line)}
    assert marks == set()
    assert all(c == "\n" or c.isprintable() for c in made)
    assert len(made) < 60_000


@pytest.mark.parametrize(
    ("line", "mark"),
    [
        ("| <b> |", "<"), ("| `x |", "`"), ("| [x] |", "["), ("see http://e", "://"), ("www.e", "www."), ("a@b", "@"),
        ("*a*", "*"), ("__a", "__a"), ("&copy;", "&"), ("~~x", "~"),
    ],
)  # fmt: skip
def test_a_planted_mark_is_seen(line: str, mark: str) -> None:
    assert mark in live(line)


def test_a_planted_bar_or_line_changes_the_shape() -> None:
    row = next(line for line in BENIGN.split("\n") if line.startswith("| benign"))
    assert shape(BENIGN.replace(row, row.replace("benign", "a|b", 1))) != shape(BENIGN)
    assert shape(BENIGN.replace(row, row.replace("benign", "a\nb", 1))) != shape(BENIGN)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_any_words_become_one_line_without_marks_of_bounded_length(text: str) -> None:
    for made in (words(text), code(text)):
        assert live(made) == set()
        assert len(cells(f"| {made} |")) == 1
        assert made.isprintable()
        assert len(made) <= 120 * 5 + 2


@given(st.text("aZ09_.+-", max_size=60))
def test_what_names_and_versions_are_made_of_stays_readable(text: str) -> None:
    assert code(text) == (f"`{text}`" if text else "")
    assert words(text).replace("\\", "") == text
    assert words("typing_extensions-4.16.0+cu128") == "typing_extensions-4.16.0+cu128"
