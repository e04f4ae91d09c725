"""Verifies OpenSSH signatures (SSHSIG, ed25519) and says whom a site trusts to make them, without OpenSSH.

It reads no file, no clock and no time zone, and it never signs: no secret passes here, so time may tell what it will.
Sources: PROTOCOL.sshsig 1.4, sshsig.c, misc.c, match.c and ed25519.c of OpenSSH 9.2p1 and of its main branch of
2026-08-21 (10.5), ssh-keygen(1) ALLOWED SIGNERS, RFC 8032 and RFC 4251 §5; all read 2026-11-30.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from envsmith.ed25519 import verify_ed25519
from envsmith.errors import InputError, IntegrityError, Problem

#: What a signature of a bundle is for. One made for mail or for git says another word and is refused.
NAMESPACE = "envsmith-bundle"
KEY_TYPE = "ssh-ed25519"

_MAGIC = b"SSHSIG"
_VERSION = (1).to_bytes(4, "big")
_HASHES = {"sha256": hashlib.sha256, "sha512": hashlib.sha512}
_ARMOR = re.compile(
    r"-----BEGIN SSH SIGNATURE-----\r?\n((?:[A-Za-z0-9+/=]+\r?\n)+)-----END SSH SIGNATURE-----(?:\r?\n)?"
)
_BLANK = " \t\r\n"
#: A quote may begin within the principals, and ends them.
_PRINCIPALS = re.compile(r'([^ \t\r\n"]*)(?:"([^"]*)"[ \t\r\n]*|[ \t\r\n]+)(.+)', re.DOTALL)
_QUOTED = r'"((?:\\"|[^"\\]|\\(?!"))*)"'
_OPTIONS = re.compile(rf'(?:\\"|{_QUOTED}|[^" \t\\]|\\(?!"))+')
_OPTION = re.compile(rf"cert-authority|(namespaces|valid-after|valid-before)={_QUOTED}", re.IGNORECASE | re.ASCII)
_TIME = re.compile(r"(\d{4})(\d\d)(\d\d)(?:(\d\d)(\d\d)(\d\d)?)?(Z|UTC)?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """What a signature file says; nothing of it is proven yet."""

    key: bytes
    """The public key as OpenSSH writes it, type and all."""
    namespace: str
    hash_algorithm: str
    signature: bytes
    """The 64 bytes of RFC 8032."""
    fingerprint: str
    """`SHA256:…` of the key, as `ssh-keygen -l` shows it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Signer:
    """A line of an allowed_signers file: a key, whose it is, and what it may sign when."""

    principals: tuple[str, ...]
    key: bytes
    namespaces: tuple[str, ...] = ()
    """Patterns; none means that every namespace is allowed."""
    valid_after: datetime | None = None
    """Without a zone it is local time, whichever that is where `verify` gets its `now` from."""
    valid_before: datetime | None = None
    cert_authority: bool = False
    """The key signs certificates, which count for nothing here, and may sign nothing else."""
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What was found of a signature: either `who` or `problem` is None."""

    who: str | None
    """The principals of the line that vouches for the key."""
    fingerprint: str
    problem: Problem | None


class _Malformed(Exception):
    """Why something cannot be read, as the end of a sentence."""


def parse_signature(armored: str, where: str) -> Signature:
    """Read a signature file; stricter than OpenSSH, which takes version 0, tags and text around it.

    Raises:
        IntegrityError: `signature-malformed`, or `signature-key-type` for a key that is not plain ed25519.
    """
    try:
        key, namespace, hash_algorithm, signature = _fields(_dearmored(armored))
        found = key_type(key)
        if found == KEY_TYPE:
            _raw_key(key)
            signature = _raw_signature(signature)
    except _Malformed as error:
        message = f"`{where}` is not a signature of OpenSSH: {error}"
        raise IntegrityError(Problem(code="signature-malformed", message=message, where=where)) from error
    if found != KEY_TYPE:
        message = f"`{where}` was made with a key of type `{found}`, which is not verified here"
        hint = "have it signed with an ed25519 key (`ssh-keygen -t ed25519`)"
        raise IntegrityError(
            Problem(code="signature-key-type", message=message, where=where, hint=hint, expected=KEY_TYPE, actual=found)
        )
    return Signature(
        key=key,
        namespace=namespace,
        hash_algorithm=hash_algorithm,
        signature=signature,
        fingerprint=fingerprint(key),
    )


def parse_allowed_signers(text: str, where: str) -> tuple[Signer, ...]:
    """Read an allowed_signers file, or one of public keys alone; lines with keys of other types are left out.

    OpenSSH stops at the first bad line that it comes to; here each one is an error.

    Raises:
        InputError: `allowed-signers-malformed`, one problem a bad line.
    """
    numbered = ((number, line.strip(_BLANK)) for number, line in enumerate(text.split("\n"), 1))
    lines = [(number, line) for number, line in numbered if line and not line.startswith("#")]
    only_keys = all(parse_key(line) for _, line in lines)
    signers, problems = [], []
    for number, line in lines:
        try:
            signer = _bare_key(line, number) if only_keys else _signer(line, number)
        except _Malformed as error:
            message = f"line {number} names no signer: {error}"
            hint = f'a line reads `NAME {KEY_TYPE} BASE64`, with options such as `namespaces="{NAMESPACE}"` after NAME'
            at = f"{where}:{number}"
            problems.append(Problem(code="allowed-signers-malformed", message=message, where=at, hint=hint))
        else:
            signers += [signer] if signer else []
    if problems:
        raise InputError(*problems)
    return tuple(signers)


def verify(
    message: bytes,
    armored: str,
    signers: Iterable[Signer],
    *,
    where: str,
    now: datetime | None = None,
    namespace: str = NAMESPACE,
) -> Verdict:
    """Judge a signature over `message`: namespace first, then the bytes, then whether a signer vouches for its key.

    `now` is aware of its zone; without it a key with a time limit vouches for nothing. OpenSSH reads a time without a
    zone as standard time also in summer, here it is what a clock on the wall shows.

    Raises:
        IntegrityError: what `parse_signature` raises.
    """
    signature = parse_signature(armored, where)
    problem = None
    if signature.namespace != namespace:
        said, found = "the signature was made for another purpose", signature.namespace
        ours = "`envsmith bundle --sign`, or " if namespace == NAMESPACE else ""
        hint = f"sign with {ours}`ssh-keygen -Y sign -n {namespace}`"
        problem = Problem(
            code="signature-namespace", message=said, where=where, hint=hint, expected=namespace, actual=found
        )
    elif not _signs(signature, message):
        said = f"the signature of key `{signature.fingerprint}` is not one of these bytes"
        hint = "they were changed after they were signed, or the signature belongs to something else; fetch both again"
        problem = Problem(code="signature-wrong", message=said, where=where, hint=hint)
    if problem:
        return Verdict(who=None, fingerprint=signature.fingerprint, problem=problem)
    return _trust(signature, signers, where, now)


def signed_bytes(message: bytes, hash_algorithm: str, namespace: str = NAMESPACE) -> bytes:
    """Return what a key really signs: the digest of the message, bound to the namespace and the hash."""
    digest = _HASHES[hash_algorithm](message).digest()
    fields = (namespace.encode(), b"", hash_algorithm.encode(), digest)
    return _MAGIC + b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def fingerprint(key: bytes) -> str:
    """Return the fingerprint of a public key as OpenSSH shows it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def strings(blob: bytes, count: int) -> tuple[tuple[bytes, ...], bytes]:
    """Take `count` strings of the SSH wire format off a blob; return them and what follows.

    Raises:
        ValueError: the blob ends within one of them.
    """
    taken = []
    for _ in range(count):
        size = int.from_bytes(blob[:4], "big")
        if len(blob) < 4 + size:
            raise ValueError("it ends too early")
        taken.append(blob[4 : 4 + size])
        blob = blob[4 + size :]
    return tuple(taken), blob


def parse_key(text: str) -> bytes | None:
    """Read a public key, `TYPE BASE64 …`, of whatever type; None when it is none: it says its type once more inside."""
    name, *rest = re.split(r"[ \t]+", text, maxsplit=2)
    try:
        key = _unbase64(rest[0] if rest else "")
        if name == KEY_TYPE:
            _raw_key(key)
    except _Malformed:
        return None
    return key if key_type(key) == name else None


def key_type(key: bytes) -> str:
    """Return the type that a public key names, empty when it names none."""
    try:
        (name,), _ = strings(key, 1)
    except ValueError:
        return ""
    return name.decode("ascii", "backslashreplace")


def _dearmored(armored: str) -> bytes:
    match = _ARMOR.fullmatch(armored)
    if match is None:
        raise _Malformed("its BEGIN and END lines do not enclose all of it, or lines between them are not base64")
    return _unbase64("".join(match[1].split()))


def _unbase64(text: str) -> bytes:
    """Decode base64 that has but one way to be written: a signature cannot be changed and still pass."""
    try:
        blob = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise _Malformed("its base64 is cut or damaged") from error
    if base64.b64encode(blob).decode() != text:
        raise _Malformed("its base64 is cut or damaged")
    return blob


def _fields(blob: bytes) -> tuple[bytes, str, str, bytes]:
    start = len(_MAGIC) + len(_VERSION)
    if blob[: len(_MAGIC)] != _MAGIC:
        raise _Malformed("it does not begin with `SSHSIG`")
    if blob[len(_MAGIC) : start] != _VERSION:
        raise _Malformed("its version is not 1")
    try:
        (key, namespace, reserved, hash_algorithm, signature), rest = strings(blob[start:], 5)
    except ValueError as error:
        raise _Malformed(str(error)) from error
    if rest:
        raise _Malformed("bytes follow its end")
    if reserved:
        raise _Malformed("its reserved field is not empty")
    name = hash_algorithm.decode("ascii", "backslashreplace")
    if name not in _HASHES:
        raise _Malformed(f"`{name}` is none of its hashes, {' and '.join(_HASHES)}")
    return key, namespace.decode("utf-8", "backslashreplace"), name, signature


def _raw_key(key: bytes) -> bytes:
    return _of_type(key, 32, "key")


def _raw_signature(signature: bytes) -> bytes:
    return _of_type(signature, 64, "signature")


def _of_type(blob: bytes, size: int, what: str) -> bytes:
    try:
        (name, raw), rest = strings(blob, 2)
    except ValueError as error:
        raise _Malformed(f"its {what} ends too early") from error
    if name != KEY_TYPE.encode() or len(raw) != size or rest:
        raise _Malformed(f"its {what} is not an ed25519 {what}")
    return raw


def _bare_key(line: str, number: int) -> Signer | None:
    key = parse_key(line)
    if key is None or key_type(key) != KEY_TYPE:
        return None
    comment = "".join(re.split(r"[ \t]+", line, maxsplit=2)[2:])
    return Signer(principals=(comment or fingerprint(key),), key=key, line=number)


def _signer(line: str, number: int) -> Signer | None:
    match = _PRINCIPALS.fullmatch(line)
    if match is None:
        raise _Malformed("it is a single word, or a quote is not closed")
    principals = tuple(name for name in (match[1] + (match[2] or "")).split(",") if name)
    rest, options = match[3], ""
    key = parse_key(rest)
    if key is None:
        found = _OPTIONS.match(rest)
        options = found[0] if found else ""
        key = parse_key(rest[len(options) :].lstrip(" \t"))
    if key is None:
        raise _Malformed("no whole key follows its name and options")
    if not principals:
        raise _Malformed("its name is empty")
    flags = _options(options)
    after, before = (_time(name, flags.get(name)) for name in ("valid-after", "valid-before"))
    if after and before and (after.tzinfo is None) == (before.tzinfo is None) and before <= after:
        raise _Malformed("`valid-before` is not after `valid-after`")
    if key_type(key) != KEY_TYPE:
        return None
    return Signer(
        principals=principals,
        key=key,
        namespaces=tuple(flags["namespaces"].split(",")) if "namespaces" in flags else (),
        valid_after=after,
        valid_before=before,
        cert_authority="cert-authority" in flags,
        line=number,
    )


def _options(text: str) -> dict[str, str]:
    """Read options up to the last; as in OpenSSH nothing between two commas is no mistake."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        if match := _OPTION.match(text, at):
            name = (match[1] or match[0]).lower()
            if match[1] and name in found:
                raise _Malformed(f"`{name}` stands twice")
            found[name] = (match[2] or "").replace('\\"', '"')
            at = match.end()
            if at == len(text):
                break
        if text[at] != ",":
            raise _Malformed(f"`{text[at:]}` is no option, or its value is not in quotes")
        at += 1
        if at == len(text):
            raise _Malformed("its options end with a comma")
    return found


def _time(name: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    moment = None
    if match := _TIME.fullmatch(text):
        year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
        with contextlib.suppress(ValueError):  # no such day
            zone = timezone.utc if match[7] else None
            moment = datetime(year, month, day, hour, minute, second, tzinfo=zone)
    if moment is None or moment <= datetime(1970, 1, 1, tzinfo=moment.tzinfo):
        raise _Malformed(f"`{name}` is not a time as `20260131Z` or `202601312359Z`")
    return moment


def _signs(signature: Signature, message: bytes) -> bool:
    signed = signed_bytes(message, signature.hash_algorithm, signature.namespace)
    return verify_ed25519(_raw_key(signature.key), signed, signature.signature)


def _trust(signature: Signature, signers: Iterable[Signer], where: str, now: datetime | None) -> Verdict:
    """Ask every line with this key, as OpenSSH does: one that vouches is enough."""
    refusals = []
    for signer in signers:
        if signer.key == signature.key:
            refusal = _refusal(signer, now, signature.namespace)
            if refusal is None:
                return Verdict(who=",".join(signer.principals), fingerprint=signature.fingerprint, problem=None)
            refusals.append(f"line {signer.line} {refusal}")
    message = f"the signature is good, but nobody here vouches for key `{signature.fingerprint}`"
    hint = "ask the signer for the fingerprint over another channel, then add the key to the allowed signers"
    if refusals:
        message = f"the signature is good, but key `{signature.fingerprint}` may not sign this: {'; '.join(refusals)}"
        hint = "correct that line of the allowed signers, or have the bundle signed with another key"
    problem = Problem(code="signature-untrusted", message=message, where=where, hint=hint)
    return Verdict(who=None, fingerprint=signature.fingerprint, problem=problem)


def _refusal(signer: Signer, now: datetime | None, namespace: str) -> str | None:
    if signer.cert_authority:
        return "lets it sign certificates alone"
    if signer.namespaces and not _listed(namespace, signer.namespaces):
        return f"allows the namespaces `{','.join(signer.namespaces)}` alone"
    after, before = signer.valid_after, signer.valid_before
    if (after or before) and now is None:
        return "limits its time, and no time was given"
    if after and now and _clock(now, after) < after:
        return f"allows it only after {after.isoformat()}"
    if before and now and _clock(now, before) > before:
        return f"allows it only before {before.isoformat()}"
    return None


def _clock(now: datetime, bound: datetime) -> datetime:
    """Put `now` into the terms of a bound: whole seconds, and without a zone where the bound has none."""
    if now.tzinfo is None:
        raise ValueError("`now` has no time zone")
    return now.replace(microsecond=0) if bound.tzinfo else now.replace(microsecond=0, tzinfo=None)


def _listed(name: str, patterns: Sequence[str]) -> bool:
    """Match a pattern list of ssh_config(5): one pattern must match, and none of those behind a `!`."""
    if any(_matches(name, pattern[1:]) for pattern in patterns if pattern.startswith("!")):
        return False
    return any(_matches(name, pattern) for pattern in patterns if not pattern.startswith("!"))


def _matches(name: str, pattern: str) -> bool:
    wild = re.sub(r"\*+", "*", pattern)
    return re.fullmatch("".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in wild), name, re.DOTALL) is not None
