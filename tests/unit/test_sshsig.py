"""Our reading of OpenSSH signatures and allowed signers is ssh-keygen's own, and whatever was tampered with is refused.

The stored keys and signatures were made for these tests with ssh-keygen 9.2p1; the private halves are thrown away.
"""

from __future__ import annotations

import base64
import hashlib
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsmith.errors import EnvsmithError, InputError, IntegrityError
from envsmith.sshsig import (
    NAMESPACE,
    Signer,
    fingerprint,
    key_type,
    parse_allowed_signers,
    parse_signature,
    signed_bytes,
    strings,
    verify,
    verify_ed25519,
)

ONE = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGdNKiItcxnUlhHO6r3Cl8vpSGNm4eAsczlpKuk1WCJh"
TWO = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGrN1cG7Isa+uZXmGaXaUQUK80HDV+0G6xG0CY5frcer"
ECDSA = (
    "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBJ0k1edOeQJ+dCvevIAwFsh0HP6IIIuGms3CMwIz"
    "fP5FDw+3Wx/sK6vKtgzjef73f9UA6B3Y87Idi34et/d2Pgc="
)
MANIFEST = b'{"schemaVersion": 2}\n'
START = (
    "U1NIU0lHAAAAAQAAADMAAAALc3NoLWVkMjU1MTkAAAAgZ00qIi1zGdSWEc7qvcKXy+lIY2\n"
    "bh4CxzOWkq6TVYImEAAAAPZW52c21pdGgtYnVuZGxlAAAAAAAAAAZzaGE1MTIAAABTAAAA\n"
)
#: By name: the key, what was signed, and the lines between BEGIN and END.
STORED = {
    "of nothing": (
        ONE,
        b"",
        f"{START}C3NzaC1lZDI1NTE5AAAAQIDKQ2AztmzlbBvkQBbAsF0XQ6/SeJ7NUdp2ovN9pr55H5THhl\n"
        "Dg+H4T1Y3hLG/i2keQRPV+GaoSzOKLx5Bz3ww=\n",
    ),
    "of a manifest": (
        ONE,
        MANIFEST,
        f"{START}C3NzaC1lZDI1NTE5AAAAQPaKhi8OY7AgE7/g9Yl4BFIHHkZasKfRXVhXayoxYgljeOGaNX\n"
        "cG69BgMx7Mt/B5fjqR7CKFzG+3f0/0dlY3OA0=\n",
    ),
    "of all bytes": (
        ONE,
        bytes(range(256)) * 4,
        f"{START}C3NzaC1lZDI1NTE5AAAAQFzg9R+AJjh2VacH+t4e3W7fgErOv3BZZ44tictalL1G+pVl62\n"
        "elqT6pvqAHviT9kRVvnrMk/thFfo6p0JvTdgc=\n",
    ),
    "by sha256": (
        TWO,
        MANIFEST,
        "U1NIU0lHAAAAAQAAADMAAAALc3NoLWVkMjU1MTkAAAAgas3Vwbsixr65leYZpdpRBQrzQc\n"
        "NX7QbrEbQJjl+tx6sAAAAPZW52c21pdGgtYnVuZGxlAAAAAAAAAAZzaGEyNTYAAABTAAAA\n"
        "C3NzaC1lZDI1NTE5AAAAQAA6dqCX1LSAIe/7wq5IVGaDVFMI8pVJ2WxEajk2RmzC5JAqFk\n"
        "t/rZG5mldtV5wx6sGAZleQ7xfWKFUuTflzFQ4=\n",
    ),
}
FOR_FILES = (
    "U1NIU0lHAAAAAQAAADMAAAALc3NoLWVkMjU1MTkAAAAgZ00qIi1zGdSWEc7qvcKXy+lIY2\n"
    "bh4CxzOWkq6TVYImEAAAAEZmlsZQAAAAAAAAAGc2hhNTEyAAAAUwAAAAtzc2gtZWQyNTUx\n"
    "OQAAAEDuWt/odBHnmxbOq8AbULOrmLLeKST7xzAzhO4pBqTfnK/H+JY6mNNDnKRgIn+R1j\n"
    "XZcpNYtNSnbY3fy4UVc0EB\n"
)
BY_ECDSA = (
    "U1NIU0lHAAAAAQAAAGgAAAATZWNkc2Etc2hhMi1uaXN0cDI1NgAAAAhuaXN0cDI1NgAAAE\n"
    "EEnSTV5055An50K968gDAWyHQc/oggi4aazcIzAjN8/kUPD7dbH+wrq8q2DON5/vd/1QDo\n"
    "Hdjzsh2Lfh6393Y+BwAAAA9lbnZzbWl0aC1idW5kbGUAAAAAAAAABnNoYTUxMgAAAGMAAA\n"
    "ATZWNkc2Etc2hhMi1uaXN0cDI1NgAAAEgAAAAgHhu9wIA0cJ04irNcZZa5CWQn5M94aciT\n"
    "E9klAnYMu5IAAAAgLTKIphTa3PVvq5r5xd7mPT4LwEY8A2fAArnYpjj+WSU=\n"
)
#: RFC 8032 §7.1, tests 1 to 3: key, message, signature.
RFC_8032 = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
        "d25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
        "387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc659"
        "4a7c15e9716ed28dc027beceea1ec40a",
    ),
]
P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
BASE = (
    15112221349535400772501151409588531511454012693041857206046113283949847762202,
    46316835694926478169428394003475163141307993866256225615783033603165251855960,
)

needs_ssh_keygen = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="no ssh-keygen here to compare with; the stored corpus is still checked"
)


def armor(lines: str) -> str:
    return f"-----BEGIN SSH SIGNATURE-----\n{lines}-----END SSH SIGNATURE-----\n"


def dearmor(armored: str) -> bytes:
    return base64.b64decode("".join(armored.splitlines()[1:-1]))


def wrap(blob: bytes) -> str:
    text = base64.b64encode(blob).decode()
    return armor("".join(f"{text[at : at + 70]}\n" for at in range(0, len(text), 70)))


def string(*fields: bytes) -> bytes:
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def blob(
    key: bytes,
    signature: bytes,
    *,
    namespace: bytes = NAMESPACE.encode(),
    reserved: bytes = b"",
    hash_algorithm: bytes = b"sha512",
    version: int = 1,
) -> bytes:
    return b"SSHSIG" + version.to_bytes(4, "big") + string(key, namespace, reserved, hash_algorithm, signature)


def ed25519(raw: bytes) -> bytes:
    return string(b"ssh-ed25519", raw)


def key_line(raw: bytes) -> str:
    return f"ssh-ed25519 {base64.b64encode(ed25519(raw)).decode()}"


def add(p: tuple[int, int], q: tuple[int, int]) -> tuple[int, int]:
    t = D * p[0] * q[0] * p[1] * q[1]
    x = (p[0] * q[1] + q[0] * p[1]) * pow(1 + t, -1, P) % P
    return x, (p[1] * q[1] + p[0] * q[0]) * pow(1 - t, -1, P) % P


def times(n: int, p: tuple[int, int]) -> tuple[int, int]:
    total = (0, 1)
    for bit in f"{n:b}":
        total = add(total, total)
        total = add(total, p) if bit == "1" else total
    return total


def encode(p: tuple[int, int]) -> bytes:
    return (p[1] | (p[0] & 1) << 255).to_bytes(32, "little")


def challenge(r: bytes, key: bytes, message: bytes) -> int:
    return int.from_bytes(hashlib.sha512(r + key + message).digest(), "little") % ORDER


def sign(seed: bytes, message: bytes) -> tuple[bytes, bytes]:
    """Sign by RFC 8032 §5.1.6 with plain affine arithmetic, a second time and otherwise than the product does."""
    digest = hashlib.sha512(seed).digest()
    secret = int.from_bytes(digest[:32], "little") & ((1 << 254) - 8) | (1 << 254)
    key = encode(times(secret, BASE))
    nonce = int.from_bytes(hashlib.sha512(digest[32:] + message).digest(), "little") % ORDER
    r = encode(times(nonce, BASE))
    s = (nonce + challenge(r, key, message) * secret) % ORDER
    return key, r + s.to_bytes(32, "little")


def to_sign(message: bytes, hash_algorithm: str = "sha512", namespace: str = NAMESPACE) -> bytes:
    digest = hashlib.new(hash_algorithm, message).digest()
    return b"SSHSIG" + string(namespace.encode(), b"", hash_algorithm.encode(), digest)


def signers(*lines: str) -> tuple[Signer, ...]:
    return parse_allowed_signers("\n".join(lines), "allowed_signers")


def code(message: bytes, armored: str, *lines: str, now: datetime | None = None) -> str | None:
    """The code of the problem, or None for a signature that is good and trusted."""
    try:
        verdict = verify(message, armored, signers(*lines), where="manifest.sshsig", now=now)
    except IntegrityError as error:
        return error.problems[0].code
    assert (verdict.who is None) == (verdict.problem is not None)
    return verdict.problem.code if verdict.problem else None


def ssh_keygen_trusts(
    folder: Path, message: bytes, armored: str, allowed: str, who: str = "me", at: str = "20260601120000Z"
) -> bool:
    (folder / "sig").write_bytes(armored.encode())
    (folder / "allowed").write_bytes(allowed.encode())
    argv = ["ssh-keygen", "-Y", "verify", "-n", NAMESPACE, "-I", who, "-f", "allowed", "-s", "sig"]
    done = subprocess.run(
        [*argv, "-O", f"verify-time={at}"],
        input=message,
        capture_output=True,
        cwd=folder,
        env={**os.environ, "TZ": "FAR-3"},
    )
    return done.returncode == 0


@pytest.mark.parametrize("name", STORED)
def test_stored_signatures_of_ssh_keygen_are_good(name: str) -> None:
    key, message, lines = STORED[name]
    verdict = verify(message, armor(lines), signers(f"me {key}"), where="x", now=None)
    assert (verdict.who, verdict.problem) == ("me", None)


@pytest.mark.parametrize(("key", "message", "signature"), RFC_8032)
def test_the_vectors_of_the_rfc_hold(key: str, message: str, signature: str) -> None:
    assert verify_ed25519(bytes.fromhex(key), bytes.fromhex(message), bytes.fromhex(signature))
    assert not verify_ed25519(bytes.fromhex(key), bytes.fromhex(message) + b"\0", bytes.fromhex(signature))


def test_a_signature_says_its_parts_and_the_fingerprint_that_ssh_keygen_shows() -> None:
    signature = parse_signature(armor(STORED["by sha256"][2]), "x")
    assert (signature.namespace, signature.hash_algorithm) == (NAMESPACE, "sha256")
    assert len(signature.signature) == 64
    assert signature.fingerprint == fingerprint(base64.b64decode(TWO.split()[1]))
    assert signature.fingerprint == "SHA256:pIXxkdFZQV6fvUlLaXKsLWk7I9yZpSovTjYXY8Hfo3M"


def test_no_flipped_byte_of_a_signature_passes() -> None:
    key, message, lines = STORED["of a manifest"]
    whole = dearmor(armor(lines))
    for at in range(len(whole)):
        for mask in (0x01, 0x80):
            changed = whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :]
            assert code(message, wrap(changed), f"me {key}", f"me {TWO}") is not None, at


def test_no_flipped_byte_of_the_message_passes() -> None:
    key, message, lines = STORED["of a manifest"]
    for at in range(len(message)):
        changed = message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]
        assert code(changed, armor(lines), f"me {key}") == "signature-wrong"
    assert code(message[:-1], armor(lines), f"me {key}") == "signature-wrong"
    assert code(message + b"\n", armor(lines), f"me {key}") == "signature-wrong"


def test_no_cut_of_the_armor_passes() -> None:
    key, message, lines = STORED["of a manifest"]
    whole = armor(lines).rstrip("\n")
    assert code(message, whole, f"me {key}") is None
    assert {code(message, whole[:size], f"me {key}") for size in range(len(whole))} == {"signature-malformed"}


def faults() -> Iterator[tuple[str, Callable[[str], str], str, bool]]:
    """Kinds of tampering: name, what it does to an armored signature, our code, whether OpenSSH 9.2 refuses it too."""
    key = base64.b64decode(ONE.split()[1])
    whole = dearmor(armor(STORED["of a manifest"][2]))
    signature = strings(whole[10:], 5)[0][4]
    raw = strings(signature, 2)[0][1]
    s = int.from_bytes(raw[32:], "little")
    other = base64.b64decode(TWO.split()[1])
    remade = partial(blob, key, signature)
    inner = partial(string, b"ssh-ed25519")
    blobs: list[tuple[str, bytes, str, bool]] = [
        ("another key", blob(other, signature), "signature-wrong", True),
        ("another hash", remade(hash_algorithm=b"sha256"), "signature-wrong", True),
        ("a hash that is not allowed", remade(hash_algorithm=b"sha1"), "signature-malformed", True),
        ("another namespace", remade(namespace=b"file"), "signature-namespace", True),
        ("an empty namespace", remade(namespace=b""), "signature-namespace", True),
        ("a namespace with a NUL", remade(namespace=NAMESPACE.encode() + b"\0x"), "signature-namespace", True),
        ("a later version", remade(version=2), "signature-malformed", True),
        ("version 0", remade(version=0), "signature-malformed", False),
        ("a tag", remade(reserved=b"x"), "signature-malformed", False),
        ("bytes behind the end", whole + b"\0", "signature-malformed", True),
        ("bytes before the start", b"\0" + whole, "signature-malformed", True),
        ("bytes behind the key", blob(key + b"\0", signature), "signature-malformed", True),
        ("bytes behind the inner signature", blob(key, signature + b"\0"), "signature-malformed", True),
        ("a longer inner signature", blob(key, inner(raw + b"\0")), "signature-malformed", True),
        ("a shorter inner signature", blob(key, inner(raw[:-1])), "signature-malformed", True),
        ("a shorter key", blob(key[:-1], signature), "signature-malformed", True),
        ("an inner signature of another type", blob(key, string(b"ssh-rsa", raw)), "signature-malformed", True),
        ("no key", blob(b"", signature), "signature-key-type", True),
        ("s + L", blob(key, inner(raw[:32] + (s + ORDER).to_bytes(32, "little"))), "signature-wrong", False),
        ("s + 8 L", blob(key, inner(raw[:32] + (s + 8 * ORDER).to_bytes(32, "little"))), "signature-wrong", True),
        ("s = 0", blob(key, inner(raw[:32] + bytes(32))), "signature-wrong", True),
        ("R = 0", blob(key, inner(bytes(32) + raw[32:])), "signature-wrong", True),
        ("nothing", b"", "signature-malformed", True),
    ]
    for name, changed, expected, refused in blobs:
        yield name, lambda _, changed=changed: wrap(changed), expected, refused
    yield "text before", lambda armored: f"x\n{armored}", "signature-malformed", True
    yield "text behind", lambda armored: f"{armored}x\n", "signature-malformed", False
    yield "twice", lambda armored: armored * 2, "signature-malformed", False
    yield "no end", lambda armored: armored.replace("-----END", "----END"), "signature-malformed", True
    yield "cut base64", lambda armored: armored.replace("A0=\n", "A0\n"), "signature-malformed", True
    yield "stray bits", lambda armored: armored.replace("A0=\n", "A1=\n"), "signature-malformed", True
    yield "a foreign letter", lambda armored: armored.replace("U1NI", "U1N!"), "signature-malformed", True
    yield "a space", lambda armored: armored.replace("U1NI", "U1 NI"), "signature-malformed", False


FAULTS = {name: (tamper, expected, refused) for name, tamper, expected, refused in faults()}


@pytest.mark.parametrize("name", FAULTS)
def test_tampering_is_refused_in_words(name: str) -> None:
    key, message, lines = STORED["of a manifest"]
    tamper, expected, _ = FAULTS[name]
    assert tamper(armor(lines)) != armor(lines)
    assert code(message, tamper(armor(lines)), f"me {key}", f"me {TWO}") == expected


@needs_ssh_keygen
@pytest.mark.parametrize("name", [name for name, (_, _, refused) in FAULTS.items() if refused])
def test_what_was_tampered_with_is_refused_by_ssh_keygen_too(name: str, tmp_path: Path) -> None:
    key, message, lines = STORED["of a manifest"]
    assert ssh_keygen_trusts(tmp_path, message, armor(lines), f"me {key}\n")
    assert not ssh_keygen_trusts(tmp_path, message, FAULTS[name][0](armor(lines)), f"me {key}\nme {TWO}\n")


def test_windows_line_ends_and_a_missing_last_one_do_no_harm() -> None:
    key, message, lines = STORED["of a manifest"]
    assert code(message, armor(lines).replace("\n", "\r\n"), f"me {key}") is None
    assert code(message, armor(lines).rstrip("\n"), f"me {key}") is None


def test_a_signature_for_another_purpose_is_told_from_a_wrong_one() -> None:
    assert code(MANIFEST, armor(FOR_FILES), f"me {ONE}") == "signature-namespace"


def test_a_key_of_another_type_is_named() -> None:
    with pytest.raises(IntegrityError) as caught:
        verify(MANIFEST, armor(BY_ECDSA), signers(f"me {ECDSA}"), where="x", now=None)
    assert [problem.code for problem in caught.value.problems] == ["signature-key-type"]
    assert caught.value.problems[0].actual == "ecdsa-sha2-nistp256"
    for name in ("ssh-rsa", "sk-ssh-ed25519@openssh.com", "ssh-ed25519-cert-v01@openssh.com"):
        assert code(b"", wrap(blob(string(name.encode(), bytes(32)), b"")), f"me {ONE}") == "signature-key-type"


def test_signatures_made_otherwise_are_good_and_no_other_message_is() -> None:
    dice = random.Random(8032)
    for _ in range(6):
        message = dice.randbytes(dice.randrange(200))
        raw, signature = sign(dice.randbytes(32), to_sign(message))
        armored = wrap(blob(ed25519(raw), string(b"ssh-ed25519", signature)))
        assert to_sign(message) == signed_bytes(message, "sha512")
        assert code(message, armored, f"me {key_line(raw)}") is None
        assert code(message + b"\0", armored, f"me {key_line(raw)}") == "signature-wrong"


@needs_ssh_keygen
def test_random_keys_and_messages_are_judged_as_ssh_keygen_does(tmp_path: Path) -> None:
    dice = random.Random(9)
    for number in range(10):
        message, algorithm = dice.randbytes(dice.choice((0, 1, 63, 1000, 100_000))), dice.choice(("sha256", "sha512"))
        file = tmp_path / f"key{number}"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "throw-away", "-f", file], check=True)
        argv = ["ssh-keygen", "-q", "-Y", "sign", "-n", NAMESPACE, "-O", f"hashalg={algorithm}", "-f", file]
        armored = subprocess.run(argv, input=message, capture_output=True, check=True).stdout.decode()
        line = f"me {file.with_suffix('.pub').read_text()}"
        for said in (message, message + b"x"):
            assert (code(said, armored, line) is None) == ssh_keygen_trusts(tmp_path, said, armored, line)
        assert code(message, armored, line) is None


def forged(raw: bytes, order: int) -> tuple[bytes, str]:
    """Make a signature without a secret, as anybody can for a key of small order: h·A vanishes for one h in eight."""
    message, point = MANIFEST, BASE
    for s in range(1, 1000):
        r = encode(point)
        if challenge(r, raw, to_sign(message)) % order == 0:
            signature = string(b"ssh-ed25519", r + s.to_bytes(32, "little"))
            return message, wrap(blob(ed25519(raw), signature))
        point = add(point, BASE)
    raise AssertionError("no such h")


SMALL = {
    2: ["ec" + "ff" * 30 + "7f"],
    4: ["00" * 32, "00" * 31 + "80"],
    8: [
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    ],
}


@pytest.mark.parametrize(("order", "key"), [(order, key) for order, keys in SMALL.items() for key in keys])
def test_keys_of_small_order_are_taken_as_openssh_takes_them(order: int, key: str, tmp_path: Path) -> None:
    message, armored = forged(bytes.fromhex(key), order)
    line = f"me {key_line(bytes.fromhex(key))}"
    assert code(message, armored, line) is None
    if shutil.which("ssh-keygen"):
        assert ssh_keygen_trusts(tmp_path, message, armored, line)


@pytest.mark.parametrize(
    "key",
    [
        "01" + "00" * 31,  # the neutral element, which any s·B signs for
        "01" + "00" * 30 + "80",  # x = 0 that claims to be odd
        "ec" + "ff" * 31,
        "ed" + "ff" * 30 + "7f",  # y = p, p + 1 and 2^255 - 1
        "ee" + "ff" * 30 + "7f",
        "ff" * 31 + "7f",
        "02" + "00" * 31,  # no point of the curve
    ],
)
def test_the_neutral_element_and_encodings_that_are_not_canonical_are_no_keys(key: str) -> None:
    message, armored = forged(bytes.fromhex(key), 4)
    assert code(message, armored, f"me {key_line(bytes.fromhex(key))}") == "signature-wrong"


def test_an_r_that_is_not_canonical_is_refused() -> None:
    key = bytes.fromhex("ec" + "ff" * 30 + "7f")
    for r in (b"\x01" + bytes(31), b"\xee" + b"\xff" * 30 + b"\x7f", b"\x01" + bytes(30) + b"\x80"):
        messages = (bytes([n]) for n in range(64))
        message = next(m for m in messages if challenge(r, key, m) % 2 == 0)  # s = 0, R = neutral, h·A = neutral
        assert verify_ed25519(key, message, r + bytes(32)) == (r == b"\x01" + bytes(31))


#: Text of an allowed_signers file, whom ssh-keygen is asked for, when, and whether the key of ONE is trusted then.
NOON = "20260601120000Z"
CASES = [
    (f"me {ONE}", "me", NOON, True),
    (f"me {ONE} a comment", "me", NOON, True),
    (f"me\t{ONE}".replace(" ", "\t"), "me", NOON, True),
    (f"  me   {ONE}".replace(" AAAA", "  AAAA"), "me", NOON, True),
    (f"# a comment\n# me {TWO}\nme {ONE}\n", "me", NOON, True),
    (f"#me {ONE}\n", "me", NOON, False),
    (f"me {ONE}\r\n", "me", NOON, True),
    (f"me {TWO}", "me", NOON, False),
    (f"me {TWO}\nme {ONE}", "me", NOON, True),
    (f"me {ECDSA}\nme {ONE}", "me", NOON, True),
    (f"you,me {ONE}", "me", NOON, True),
    (f"*@example.com {ONE}", "me@example.com", NOON, True),
    (f'"me too,you" {ONE}', "me too", NOON, True),
    (f'"me too"{ONE}', "me too", NOON, True),
    (f'm"e"{ONE}', "me", NOON, True),
    (f"me cert-authority {ONE}", "me", NOON, False),
    (f"me cert-authority {TWO}\nme {ONE}", "me", NOON, True),
    (f'me namespaces="envsmith-bundle" {ONE}', "me", NOON, True),
    (f'me NameSpaces="git,envsmith-bundle" {ONE}', "me", NOON, True),
    (f'me namespaces="git" {ONE}', "me", NOON, False),
    (f'me namespaces="git" {ONE}\nme {ONE}', "me", NOON, True),
    (f'me namespaces="" {ONE}', "me", NOON, False),
    (f'me namespaces="ENVSMITH-BUNDLE" {ONE}', "me", NOON, False),
    (f'me namespaces="envsmith-*" {ONE}', "me", NOON, True),
    (f'me namespaces="*" {ONE}', "me", NOON, True),
    (f'me namespaces="**e?v*-b**" {ONE}', "me", NOON, True),
    (f'me namespaces="envsmith-bundl?" {ONE}', "me", NOON, True),
    (f'me namespaces="envsmith-bundle?" {ONE}', "me", NOON, False),
    (f'me namespaces="envsmith.bundle" {ONE}', "me", NOON, False),
    (f'me namespaces="envsmith[-]bundle" {ONE}', "me", NOON, False),
    (f'me namespaces="!envsmith-bundle,*" {ONE}', "me", NOON, False),
    (f'me namespaces="*,!envsmith-*" {ONE}', "me", NOON, False),
    (f'me namespaces="!git,*" {ONE}', "me", NOON, True),
    (f'me namespaces="!git" {ONE}', "me", NOON, False),
    (f'me namespaces="a\\"b,envsmith-bundle" {ONE}', "me", NOON, True),
    (f'me namespaces="a b,envsmith-bundle" {ONE}', "me", NOON, True),
    (f'me namespaces="a\\b,envsmith-bundle" {ONE}', "me", NOON, True),
    (f'me ,,namespaces="envsmith-bundle" {ONE}', "me", NOON, True),
    (f'me valid-after="20260601Z",namespaces="envsmith-bundle",valid-before="20260602Z" {ONE}', "me", NOON, True),
    (f'me valid-after="20260601120000Z" {ONE}', "me", NOON, True),
    (f'me valid-after="20260601120001Z" {ONE}', "me", NOON, False),
    (f'me valid-before="20260601120000Z" {ONE}', "me", NOON, True),
    (f'me valid-before="20260601115959z" {ONE}', "me", NOON, False),
    (f'me VALID-BEFORE="202606011201Z" {ONE}', "me", NOON, True),
    (f'me valid-after="202606011500" {ONE}', "me", NOON, True),
    (f'me valid-after="202606011501" {ONE}', "me", NOON, False),
    (f'me valid-before="20260601145959" {ONE}', "me", NOON, False),
    (f'me valid-before="20260601150000" {ONE}', "me", NOON, True),
    (f'me valid-before="20260601" {ONE}', "me", "20260531210000Z", True),
    (f'me valid-before="20260601" {ONE}', "me", "20260531210001Z", False),
]
BAD = [
    "me",
    f"me namespaces=envsmith-bundle {ONE}",
    f'me namespaces="envsmith-bundle {ONE}',
    f'me namespaces="a",namespaces="envsmith-bundle" {ONE}',
    f"me namespaces {ONE}",
    f'me nameſpaces="envsmith-bundle" {ONE}',
    f"me cert-authority, {ONE}",
    f"me cert-authorityx {ONE}",
    f'me cert-authority namespaces="envsmith-bundle" {ONE}',
    f"me no-pty {ONE}",
    f'me valid-after="2026" {ONE}',
    f'me valid-after="20261301Z" {ONE}',
    f'me valid-after="19700101Z" {ONE}',
    f'me valid-after="yesterday" {ONE}',
    f'me valid-after="20260601Z",valid-after="20260601Z" {ONE}',
    f'me valid-after="20260602Z",valid-before="20260602Z" {ONE}',
    f'me "{ONE}',
    f'"me {ONE}',
    f"me {ONE}"[:-1],
    f"me {ONE}="[:-5] + "=",
    f"me {ONE}".replace("ssh-ed25519", "ssh-rsa"),
    f"me ssh-ed25519 {ECDSA.split()[1]}",
    "me ssh-ed25519",
    f"me namespaces=\"envsmith-bundle\" {ONE.split()[1]}",
]  # fmt: skip


def moment(text: str) -> datetime:
    """The same instant on a clock three hours east, as the TZ that ssh-keygen is given."""
    utc = datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc)
    return utc.astimezone(timezone(timedelta(hours=3)))


@pytest.mark.parametrize(("text", "who", "at", "trusted"), CASES)
def test_allowed_signers_are_read_as_ssh_keygen_reads_them(
    text: str, who: str, at: str, trusted: bool, tmp_path: Path
) -> None:
    armored = armor(STORED["of a manifest"][2])
    assert code(MANIFEST, armored, text, now=moment(at)) == (None if trusted else "signature-untrusted")
    if shutil.which("ssh-keygen"):
        assert ssh_keygen_trusts(tmp_path, MANIFEST, armored, text, who, at) == trusted


@pytest.mark.parametrize("line", BAD)
def test_a_bad_line_is_an_error_here_and_vouches_for_nothing_with_ssh_keygen(line: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        signers(line)
    assert [(problem.code, problem.where) for problem in caught.value.problems] == [
        ("allowed-signers-malformed", "allowed_signers:1")
    ]
    if shutil.which("ssh-keygen"):
        assert not ssh_keygen_trusts(tmp_path, MANIFEST, armor(STORED["of a manifest"][2]), line)


def test_all_bad_lines_are_told_at_once_with_their_numbers() -> None:
    with pytest.raises(InputError) as caught:
        signers("# head", "me", f"me {ONE}", "", f"you x {TWO}", f'me valid-after="20260231Z" {ONE}', f'"" {ONE}')
    assert [problem.where for problem in caught.value.problems] == [f"allowed_signers:{n}" for n in (2, 5, 6, 7)]


def test_a_line_says_all_that_it_holds() -> None:
    (signer,) = signers("# head", f'a,*@b namespaces="x,y",valid-after="20260101Z",valid-before="20270101" {ONE} c')
    assert signer == Signer(
        principals=("a", "*@b"),
        key=base64.b64decode(ONE.split()[1]),
        namespaces=("x", "y"),
        valid_after=datetime(2026, 1, 1, tzinfo=timezone.utc),
        valid_before=datetime(2027, 1, 1),
        cert_authority=False,
        line=2,
    )


def test_separators_of_unicode_do_not_end_a_line() -> None:
    assert signers(f"me {ECDSA} \u2028you {ONE}\x0bhim {TWO}\x85") == ()


@needs_ssh_keygen
def test_who_is_what_find_principals_says(tmp_path: Path) -> None:
    armored = armor(STORED["of a manifest"][2])
    for name in ("me", "me,you", "*@example.com", "!eve@x,*@x", '"me too,you"'):
        (tmp_path / "sig").write_text(armored)
        (tmp_path / "allowed").write_text(f"{name} {ONE}\n")
        argv = ["ssh-keygen", "-Y", "find-principals", "-f", "allowed", "-s", "sig"]
        said = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, check=True).stdout
        assert verify(MANIFEST, armored, signers(f"{name} {ONE}"), where="x").who == ",".join(said.splitlines())


def test_a_file_of_public_keys_alone_trusts_them() -> None:
    assert signers(f"{ONE} me@desk here")[0].principals == ("me@desk here",)
    (signer,) = signers("", ONE)
    assert signer.principals == (fingerprint(signer.key),)
    assert [signer.line for signer in signers(ONE, ECDSA, TWO)] == [1, 3]
    assert code(MANIFEST, armor(STORED["of a manifest"][2]), f"{ONE} me") is None


def test_a_public_key_among_named_ones_is_a_mistake() -> None:
    with pytest.raises(InputError):
        signers(f"me {TWO}", ONE)


def test_why_a_known_key_is_not_trusted_is_said_for_each_line() -> None:
    lines = (f'me namespaces="git" {ONE}', f"me cert-authority {ONE}", f'me valid-before="20250101Z" {ONE}')
    verdict = verify(MANIFEST, armor(STORED["of a manifest"][2]), signers(*lines), where="x", now=moment(NOON))
    assert verdict.problem is not None
    for words in ("line 1 allows the namespaces `git` alone", "line 2 lets", "line 3 allows it only before 2025-01-01"):
        assert words in verdict.problem.message


def test_without_a_time_a_limited_key_is_not_trusted() -> None:
    armored = armor(STORED["of a manifest"][2])
    assert code(MANIFEST, armored, f'me valid-after="20000101Z" {ONE}') == "signature-untrusted"
    assert code(MANIFEST, armored, f'me valid-before="29990101Z" {ONE}') == "signature-untrusted"
    assert code(MANIFEST, armored, f'me valid-before="29990101Z" {ONE}', f"me {ONE}") is None


def test_a_time_without_its_zone_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        code(MANIFEST, armor(STORED["of a manifest"][2]), f'me valid-after="20000101Z" {ONE}', now=datetime(2026, 1, 1))


def test_nobody_is_trusted_by_an_empty_file() -> None:
    assert signers("", "# nobody yet", "  ") == ()
    assert code(MANIFEST, armor(STORED["of a manifest"][2])) == "signature-untrusted"


def test_a_signer_handed_in_by_the_caller_is_judged_by_its_key() -> None:
    (signer,) = signers(f"me {ONE}")
    armored = armor(STORED["of a manifest"][2])
    assert verify(MANIFEST, armored, [signer], where="x").who == "me"
    assert verify(MANIFEST, armored, [replace(signer, key=signer.key + b"\0")], where="x").problem is not None


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(), st.binary(max_size=300).map(wrap), st.text(alphabet='me ,"\\=\t' + ONE[:20])))
def test_whatever_is_read_only_our_own_errors_are_raised(text: str) -> None:
    for read in (partial(parse_signature, where="x"), partial(parse_allowed_signers, where="x")):
        try:
            read(text)
        except EnvsmithError as error:
            assert error.problems


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=4), st.binary(max_size=10))
def test_strings_are_read_as_they_are_written(fields: list[bytes], rest: bytes) -> None:
    assert strings(string(*fields) + rest, len(fields)) == (tuple(fields), rest)
    with pytest.raises(ValueError, match="ends too early"):
        strings((string(*fields) + string(b"xy"))[:-1], len(fields) + 1)


def test_a_key_without_a_type_has_none() -> None:
    assert key_type(b"") == key_type(b"\0\0\0\x05abc") == ""
