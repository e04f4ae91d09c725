"""envsmith.tools.wheeldelta: what is rebuilt is the new wheel byte for byte, or nothing is written and why is said."""

from __future__ import annotations

import hashlib
import io
import os
import random
import struct
import subprocess
import sys
import textwrap
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from envsmith.deltaformat import DIGEST_SIZE, HEADER_SIZE, Packing, Patch, Plan, render_header
from envsmith.deltaplan import parse_plan, render_plan
from envsmith.errors import EnvsmithError, HostError, IntegrityError, SupplyError
from envsmith.tools import zstdpatch
from envsmith.tools.progress import Progress
from envsmith.tools.wheeldelta import Limits, Made, apply_delta, make_delta, read_header

#: So small that a content of a hundred KB takes several segments and windows.
NARROW = Limits(memory_bytes=1 << 18)
WIDE = Limits()
CODE = "envsmith"


@dataclass
class Heard(Progress):
    """What was said about the work."""

    total: int = 0
    seen: int = 0
    ended: int = 0

    def start(self, total_bytes: int, items: int) -> None:
        self.total = total_bytes

    def advance(self, count: int) -> None:
        self.seen += count

    def done(self) -> None:
        self.ended += 1


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def noise(seed: int, size: int) -> bytes:
    """Bytes that deflate halves, as code does."""
    return bytes(b & 0x0F for b in random.Random(seed).randbytes(size))


def edited(content: bytes, seed: int, edits: int = 20) -> bytes:
    dice, data = random.Random(seed), bytearray(content)
    for _ in range(edits):
        at = dice.randrange(len(data))
        data[at : at + dice.randrange(40)] = dice.randbytes(dice.randrange(40))
    return bytes(data)


def zipped(
    members: dict[str, bytes], *, level: int = 6, method: int = zipfile.ZIP_DEFLATED, unseekable: bool = False
) -> bytes:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def tell(self) -> int:
            raise io.UnsupportedOperation

    buffer = Pipe() if unseekable else io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method, compresslevel=level) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, method, level)
    return buffer.getvalue()


def foreign(members: dict[str, bytes], pack: Callable[[bytes], bytes]) -> bytes:
    """An archive whose members another compressor has packed."""
    out, directory = io.BytesIO(), b""
    for name, content in members.items():
        packed = pack(content)
        about = struct.pack("<5HLLLHH", 20, 0, 8, 0, 33, zlib.crc32(content), len(packed), len(content), len(name), 0)
        place = struct.pack("<HHHLL", 0, 0, 0, 0, out.tell())
        directory += b"PK\x01\x02\x14\x00" + about + place + name.encode()
        out.write(b"PK\x03\x04" + about + name.encode() + packed)
    end = struct.pack("<4H2LH", 0, 0, len(members), len(members), len(directory), out.tell(), 0)
    return out.getvalue() + directory + b"PK\x05\x06" + end


def with_packing(level: int, memory: int, strategy: int) -> Callable[[bytes], bytes]:
    def pack(content: bytes) -> bytes:
        compressor = zlib.compressobj(level, zlib.DEFLATED, -15, memory, strategy)
        return compressor.compress(content) + compressor.flush()

    return pack


def in_two_flushes(content: bytes) -> bytes:
    """Pack as no call of zlib in one go does."""
    compressor = zlib.compressobj(6, zlib.DEFLATED, -15, 8)
    half = compressor.compress(content[: len(content) // 2]) + compressor.flush(zlib.Z_FULL_FLUSH)
    return half + compressor.compress(content[len(content) // 2 :]) + compressor.flush()


BEFORE = {
    "pkg/__init__.py": b"VERSION = '1.0'\n" * 40,
    "pkg/same.so": noise(1, 30_000),
    "pkg/core.so": noise(2, 120_000),
    "pkg.libs/libgfx-1a2b3c4d.so.1": noise(3, 40_000),
    "pkg/empty": b"",
    "pkg-1.0.dist-info/METADATA": b"Name: pkg\nVersion: 1.0\n",
    "pkg-1.0.dist-info/RECORD": b"pkg/core.so,sha256=abc,1\n" * 30,
}
AFTER = {
    "pkg/__init__.py": b"VERSION = '1.1'\n" * 40,
    "pkg/same.so": BEFORE["pkg/same.so"],
    "pkg/core.so": edited(BEFORE["pkg/core.so"], 5),
    "pkg/added.py": b"print('new')\n",
    "pkg.libs/libgfx-99887766.so.1": edited(BEFORE["pkg.libs/libgfx-1a2b3c4d.so.1"], 6),
    "pkg/empty": b"",
    "pkg-1.1.dist-info/METADATA": b"Name: pkg\nVersion: 1.1\n",
    "pkg-1.1.dist-info/RECORD": b"pkg/core.so,sha256=abd,1\n" * 31,
}


class Pair:
    """Two wheels on disk, and where their delta goes."""

    def __init__(self, folder: Path, old: bytes, new: bytes) -> None:
        self.old, self.new = folder / "old.whl", folder / "new.whl"
        self.delta, self.out = folder / "x.delta", folder / "rebuilt" / "new.whl"
        self.work = folder / "work"
        self.work.mkdir()
        self.out.parent.mkdir()
        self.old.write_bytes(old)
        self.new.write_bytes(new)

    def make(self, limits: Limits = NARROW, progress: Progress | None = None) -> Made | None:
        progress = progress or Progress()
        old, new = digest(self.old), digest(self.new)
        made = make_delta(self.old, old, self.new, new, self.delta, work=self.work, progress=progress, limits=limits)
        assert list(self.work.iterdir()) == []
        assert self.litter() == []
        assert self.delta.exists() == (made is not None)
        return made

    def apply(self, progress: Progress | None = None, limits: Limits = WIDE) -> str:
        return apply_delta(self.old, self.delta, self.out, progress=progress or Progress(), limits=limits)

    def rebuilt(self) -> bool:
        return self.apply() == digest(self.new) and self.out.read_bytes() == self.new.read_bytes()

    def refused(self) -> str:
        """Apply, and return the code of the error, after which nothing must be left."""
        with pytest.raises(EnvsmithError) as error:
            self.apply()
        assert list(self.out.parent.iterdir()) == []
        (problem,) = error.value.problems
        expected = {"delta-malformed": IntegrityError, "delta-base-differs": IntegrityError}
        assert type(error.value) is expected.get(problem.code, SupplyError)
        assert problem.hint
        return problem.code

    def litter(self) -> list[Path]:
        return list(self.delta.parent.glob(".envsmith-*"))


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path, zipped(BEFORE), zipped(AFTER))


def test_a_delta_is_small_and_rebuilds_the_wheel_byte_for_byte(pair: Pair) -> None:
    made = pair.make()
    assert made is not None
    assert made.size == pair.delta.stat().st_size < made.new_size // 20
    assert (made.new_size, made.copied, made.literal) == (pair.new.stat().st_size, 2, 0)
    assert made.patched == len(AFTER) - 2
    assert pair.rebuilt()
    assert pair.out.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in pair.out.parent.iterdir()] == ["new.whl"]


def test_the_header_tells_which_wheel_comes_from_which(pair: Pair) -> None:
    pair.make()
    header = read_header(pair.delta)
    assert (header.base_sha256, header.base_size) == (digest(pair.old), pair.old.stat().st_size)
    assert (header.result_sha256, header.result_size) == (digest(pair.new), pair.new.stat().st_size)


def test_the_same_wheels_give_the_same_delta(pair: Pair) -> None:
    pair.make()
    first = pair.delta.read_bytes()
    for limits in (NARROW, replace(NARROW, workers=1, memory_bytes=NARROW.memory_bytes // 2)):
        pair.make(limits)
        assert pair.delta.read_bytes() == first


def test_progress_counts_the_bytes_of_the_new_wheel_once_made_and_once_proven(pair: Pair) -> None:
    making, applying = Heard(), Heard()
    pair.make(progress=making)
    pair.apply(applying)
    size = pair.new.stat().st_size
    assert (making.total, making.seen, making.ended) == (2 * size, 2 * size, 1)
    assert (applying.total, applying.seen, applying.ended) == (size, size, 1)


KINDS: dict[str, Callable[[dict[str, bytes]], bytes]] = {
    "stored": lambda members: zipped(members, method=zipfile.ZIP_STORED),
    "level 1": lambda members: zipped(members, level=1),
    "level 9": lambda members: zipped(members, level=9),
    "data descriptors": lambda members: zipped(members, unseekable=True),
    "memory 9": lambda members: foreign(members, with_packing(6, 9, 0)),
    "filtered": lambda members: foreign(members, with_packing(6, 8, zlib.Z_FILTERED)),
    "another compressor": lambda members: foreign(members, in_two_flushes),
    "bzip2": lambda members: zipped(members, method=zipfile.ZIP_BZIP2),
    "data before it": lambda members: noise(9, 70_000) + zipped(members),
    "data after it": lambda members: zipped(members)[:-2] + b"\x05\x00hello",
}


@pytest.mark.parametrize("new", KINDS)
@pytest.mark.parametrize("old", ["stored", "level 9", "another compressor"])
def test_any_archive_comes_out_as_it_was_or_no_delta_is_made(tmp_path: Path, old: str, new: str) -> None:
    pair = Pair(tmp_path, KINDS[old](BEFORE), KINDS[new](AFTER))
    made = pair.make(replace(NARROW, worth=1.5))
    assert made is not None
    assert pair.rebuilt()
    assert (made.literal > 2) == (new == "another compressor")


@pytest.mark.parametrize("kind", ["stored", "level 1", "level 9", "data descriptors", "memory 9", "filtered"])
def test_what_zlib_can_make_again_is_patched_whatever_its_parameters(tmp_path: Path, kind: str) -> None:
    pair = Pair(tmp_path, KINDS[kind](BEFORE), KINDS[kind](AFTER))
    made = pair.make()
    assert made is not None
    assert made.literal == 0
    assert made.size < made.new_size // 20


def test_a_wheel_of_another_compressor_is_not_worth_a_delta(tmp_path: Path) -> None:
    assert Pair(tmp_path, foreign(BEFORE, in_two_flushes), foreign(AFTER, in_two_flushes)).make() is None


@pytest.mark.parametrize("broken", ["old", "new"])
def test_a_file_that_is_no_archive_gets_no_delta(pair: Pair, broken: str) -> None:
    (pair.old if broken == "old" else pair.new).write_bytes(noise(1, 5000))
    assert pair.make() is None


def test_members_of_one_name_and_gaps_and_wrong_sizes_come_out_as_they_were(tmp_path: Path) -> None:
    twice = io.BytesIO()
    with (
        pytest.warns(UserWarning, match="Duplicate name"),
        zipfile.ZipFile(twice, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for content in (noise(1, 9000), noise(2, 9000)):
            archive.writestr("pkg/a", content)
    data = bytearray(twice.getvalue())
    sizes = data.index(b"PK\x01\x02") + 24
    data[sizes : sizes + 4] = struct.pack("<L", 5)
    pair = Pair(tmp_path, twice.getvalue(), bytes(data))
    made = pair.make()
    assert made is not None
    assert pair.rebuilt()


def test_zip64_members_are_patched(tmp_path: Path) -> None:
    def forced(content: bytes) -> bytes:
        out = io.BytesIO()
        info = zipfile.ZipInfo("pkg/big")
        info.compress_type = zipfile.ZIP_DEFLATED
        with zipfile.ZipFile(out, "w") as archive, archive.open(info, "w", force_zip64=True) as member:
            member.write(content)
        return out.getvalue()

    pair = Pair(tmp_path, forced(noise(1, 200_000)), forced(edited(noise(1, 200_000), 2)))
    made = pair.make()
    assert made is not None
    assert made.size < made.new_size // 10
    assert pair.rebuilt()


def test_a_member_that_inflates_beyond_measure_is_not_inflated(tmp_path: Path) -> None:
    bomb = {"pkg/bomb": bytes(10 << 20), "pkg/a": noise(1, 30_000)}
    pair = Pair(tmp_path, zipped(BEFORE), zipped(bomb | BEFORE))
    made = pair.make(replace(NARROW, ratio=2, slack_bytes=0))
    assert made is not None
    assert made.literal >= 1
    assert pair.rebuilt()


@pytest.mark.parametrize("seed", range(8))
def test_random_pairs_come_out_as_they_were(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    before = {f"p{n}/m{dice.randrange(99)}": noise(n, dice.randrange(60_000)) for n in range(12)}
    after = {}
    for name, content in before.items():
        if dice.random() < 0.8:
            renamed = name if dice.random() < 0.8 else name + "x"
            after[renamed] = edited(content, seed) if content and dice.random() < 0.5 else content
    order = sorted(after, key=lambda _: dice.random())
    make = list(KINDS.values())
    pair = Pair(tmp_path, dice.choice(make)(before), dice.choice(make)({name: after[name] for name in order}))
    assert pair.make(replace(NARROW, worth=2.0)) is not None
    assert pair.rebuilt()


@pytest.mark.parametrize("seed", range(16))
def test_damaged_archives_come_out_as_they_were_or_get_no_delta(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    wheels = [bytearray(zipped(members)) for members in (BEFORE, AFTER)]
    for wheel in wheels:
        start = wheel.rindex(b"pkg/empty") - 700 if dice.random() < 0.7 else 0
        for _ in range(dice.randrange(1, 6)):
            wheel[dice.randrange(start, len(wheel))] = dice.randrange(256)
    pair = Pair(tmp_path, bytes(wheels[0]), bytes(wheels[1]))
    assert pair.make(replace(NARROW, worth=2.0)) is None or pair.rebuilt()


def test_a_wheel_that_is_not_the_one_named_is_no_start_and_no_end(pair: Pair) -> None:
    for old, new, code in [("0" * 64, digest(pair.new), "base"), (digest(pair.old), "0" * 64, "result")]:
        with pytest.raises(IntegrityError) as error:
            make_delta(pair.old, old, pair.new, new, pair.delta, work=pair.work, progress=Progress())
        assert error.value.problems[0].code == f"delta-{code}-differs"
    assert not pair.delta.exists()


def test_a_missing_base_and_another_base_are_named(pair: Pair) -> None:
    pair.make()
    pair.old.write_bytes(pair.new.read_bytes())
    assert pair.refused() == "delta-base-differs"
    pair.old.unlink()
    assert pair.refused() == "delta-base-missing"


def test_any_damage_on_the_way_is_seen_before_the_delta_is_used(pair: Pair) -> None:
    pair.make()
    whole = pair.delta.read_bytes()
    dice = random.Random(1)
    places = [*range(0, HEADER_SIZE, 5), *(dice.randrange(len(whole)) for _ in range(40)), len(whole) - 1]
    damaged = [whole[:at] + bytes([whole[at] ^ 1 << dice.randrange(8)]) + whole[at + 1 :] for at in places]
    damaged += [whole[:at] for at in (0, 1, HEADER_SIZE - 1, HEADER_SIZE, len(whole) // 2, len(whole) - 1)]
    damaged += [whole + b"\0", whole + whole, whole[::-1], noise(1, 3000)]
    for data in damaged:
        pair.delta.write_bytes(data)
        assert pair.refused() == "delta-malformed"


def signed(data: bytes) -> bytes:
    """Give a forged delta its digest, so that nothing but its own checks is left."""
    return data + hashlib.sha256(data).digest()


def test_a_forged_delta_ends_in_a_named_error_and_leaves_nothing(pair: Pair) -> None:
    pair.make()
    whole = pair.delta.read_bytes()[:-DIGEST_SIZE]
    dice = random.Random(2)
    seen = set()
    for at in [*range(23, HEADER_SIZE, 3), *(dice.randrange(HEADER_SIZE, len(whole)) for _ in range(80))]:
        pair.delta.write_bytes(signed(whole[:at] + bytes([whole[at] ^ 1 << dice.randrange(8)]) + whole[at + 1 :]))
        seen.add(pair.refused())
    assert seen == {"delta-malformed", "delta-base-differs", "delta-not-reproducible"}


def forge(pair: Pair, change: Callable[[Plan], Plan]) -> None:
    """Write another plan into the delta, with everything around it made right."""
    whole, header = pair.delta.read_bytes(), read_header(pair.delta)
    packed = whole[HEADER_SIZE : HEADER_SIZE + header.plan_packed]
    plan = render_plan(change(parse_plan(zstdpatch.unpack(packed, header.plan_size), header, "")))
    packed, body = zstdpatch.pack(plan), whole[HEADER_SIZE + header.plan_packed : -DIGEST_SIZE]
    header = replace(header, plan_size=len(plan), plan_packed=len(packed))
    pair.delta.write_bytes(signed(render_header(header) + packed + body))


def on_patches(change: Callable[[Patch], Patch]) -> Callable[[Plan], Plan]:
    def changed(plan: Plan) -> Plan:
        steps = (change(step) if isinstance(step, Patch) and step.packing else step for step in plan.steps)
        return replace(plan, steps=tuple(steps))

    return changed


@pytest.mark.parametrize("packing", [Packing(level=1, memory=8, strategy=0), Packing(level=6, memory=9, strategy=0)])
def test_a_machine_whose_zlib_packs_otherwise_says_so(pair: Pair, packing: Packing) -> None:
    pair.make()
    forge(pair, lambda plan: plan)
    assert pair.rebuilt()
    pair.out.unlink()
    forge(pair, on_patches(lambda step: replace(step, packing=packing)))
    assert pair.refused() == "delta-not-reproducible"


@pytest.mark.parametrize(
    "change",
    [
        on_patches(lambda step: replace(step, length=step.length + 1)),
        on_patches(lambda step: replace(step, content=replace(step.content, size=step.content.size + 1))),
        on_patches(lambda step: replace(step, content=replace(step.content, base=None))),
        lambda plan: replace(plan, regions=tuple(replace(r, length=r.length - 1) for r in plan.regions)),
        lambda plan: replace(plan, regions=tuple(replace(r, start=r.start + 1) for r in plan.regions)),
        lambda plan: replace(plan, steps=plan.steps[:-1]),
        lambda plan: replace(plan, steps=(plan.steps[0], *plan.steps)),
        lambda plan: replace(plan, skeleton=replace(plan.skeleton, base=None)),
    ],
    ids=range(8),
)
def test_a_plan_that_lies_is_malformed(pair: Pair, change: Callable[[Plan], Plan]) -> None:
    pair.make()
    forge(pair, change)
    assert pair.refused() == "delta-malformed"


def test_a_delta_that_inflates_beyond_measure_is_refused_before_it_does(pair: Pair) -> None:
    pair.make()
    with pytest.raises(IntegrityError) as error:
        pair.apply(limits=Limits(ratio=0, slack_bytes=1000))
    assert error.value.problems[0].code == "delta-malformed"
    with pytest.raises(IntegrityError) as error:
        pair.apply(limits=Limits(file_bytes=1000))
    assert error.value.problems[0].code == "delta-malformed"
    assert list(pair.out.parent.iterdir()) == []


def test_what_was_at_the_place_stays_when_the_wheel_cannot_be_rebuilt(pair: Pair) -> None:
    pair.make()
    pair.out.write_bytes(b"older")
    forge(pair, on_patches(lambda step: replace(step, packing=Packing(level=1, memory=8, strategy=0))))
    with pytest.raises(SupplyError):
        pair.apply()
    assert pair.out.read_bytes() == b"older"


def test_a_place_that_cannot_be_written_is_no_traceback(pair: Pair) -> None:
    pair.make()
    pair.out.parent.rmdir()
    with pytest.raises(SupplyError) as error:
        pair.apply()
    assert error.value.problems[0].code == "file-missing"
    pair.delta.unlink()
    with pytest.raises(SupplyError) as error:
        read_header(pair.delta)
    assert error.value.problems[0].code == "file-missing"


def test_without_zstd_the_error_says_what_to_install(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    zstdpatch.library.cache_clear()
    for name in ("backports.zstd", "compression.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr("backports.zstd", raising=False)
    try:
        with pytest.raises(HostError) as error:
            pair.make()
    finally:
        zstdpatch.library.cache_clear()
    assert error.value.problems[0].code == "zstd-missing"


MEMORY = """
    import sys
    from pathlib import Path
    from envsmith.tools.files import sha256_file
    from envsmith.tools.progress import Progress
    from envsmith.tools.wheeldelta import Limits, apply_delta, make_delta

    def peak():
        status = Path("/proc/self/status").read_text()  # ru_maxrss begins with that of whoever started the process
        return int(status.partition("VmHWM:")[2].split()[0]) >> 10

    old, new, delta, out, work = map(Path, sys.argv[1:])
    limits, start = Limits(memory_bytes=4 << 20), peak()
    digests = sha256_file(old), sha256_file(new)
    made = make_delta(
        old, digests[0], new, digests[1], delta, work=work, progress=Progress(), limits=limits
    )
    apply_delta(old, delta, out, progress=Progress(), limits=limits)
    print(peak() - start, made.size, made.new_size)
"""


def test_memory_is_bounded_by_the_limit_not_by_the_member(tmp_path: Path) -> None:
    rows = [noise(n, 1 << 10) + bytes(7 << 10) for n in range(64)]
    dice = random.Random(1)
    old = b"".join(dice.choice(rows) for _ in range(4_000))
    new = edited(old[:9000], 1) + old[9000:]
    assert len(new) > 32_000_000
    pair = Pair(tmp_path, zipped({"lib.so": old}, level=1), zipped({"lib.so": new}, level=1))
    command = [sys.executable, "-c", textwrap.dedent(MEMORY)]
    paths = [pair.old, pair.new, pair.delta, pair.out, pair.work]
    package = Path(sys.modules[CODE].__file__ or "").parent.parent
    environ = {**os.environ, "PYTHONPATH": str(package)}
    done = subprocess.run([*command, *paths], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown, size, new_size = map(int, done.stdout.split())
    assert pair.out.read_bytes() == pair.new.read_bytes()
    assert size < new_size // 10
    assert grown < 32  # MB, less than the content of either member
