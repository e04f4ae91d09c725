"""Signs with an OpenSSH ed25519 key through `ssh-keygen`; the key itself is never read, and nothing is ever asked.

Who holds the key decides: a file without a passphrase, or an agent. What comes back counts when our own code has
verified it. Sources: ssh-keygen.c (`sig_sign`), readpass.c and PROTOCOL.key of OpenSSH 9.2p1, read 2026-11-30.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from envsmith.errors import HostError, InputError, IntegrityError, Problem
from envsmith.sshsig import KEY_TYPE, NAMESPACE, Signer, fingerprint, key_type, parse_key, strings, verify
from envsmith.tools.files import filesystem
from envsmith.tools.process import Completed, run, scrubbed

#: Long enough for an agent that wants a token touched or a click.
_LIMIT_S = 60.0
#: A key file is some hundred bytes; whoever names a wheel by mistake should not wait.
_LARGEST_KEY = 1 << 16
_PRIVATE = re.compile(rb"\s*-----BEGIN OPENSSH PRIVATE KEY-----\s(.+?)-----END OPENSSH PRIVATE KEY-----", re.DOTALL)
_OTHER_PRIVATE = re.compile(rb"\s*-----BEGIN ((?:[A-Z0-9]+ )*PRIVATE KEY)-----")
_MAGIC = b"openssh-key-v1\0"
_AGENT = 'load the key into an agent first: `eval "$(ssh-agent)" && ssh-add {}`'


def sign(message: bytes, key: Path, environ: Mapping[str, str], *, namespace: str = NAMESPACE) -> str:
    """Return the armored signature of `message`, made by a key file or by the agent that holds the key.

    `key` is a private key or a `.pub` file. A passphrase is never asked for, by no terminal and no window.

    Raises:
        InputError: `signing-key-unusable`, `signing-key-type`.
        HostError: `ssh-keygen-missing`, also for one before OpenSSH 8.1, which cannot sign.
        IntegrityError: `signature-not-made` when ssh-keygen says that it signed, and our own verification says no.
        SupplyError: what `filesystem` raises for the temporary folder.
        StepError: `program-timeout`.
    """
    public = public_key(key)
    program = shutil.which("ssh-keygen", path=environ.get("PATH"))
    if program is None:
        hint = "install OpenSSH's client programs, or sign on another machine"
        raise HostError(Problem(code="ssh-keygen-missing", message="`ssh-keygen` is not on PATH", hint=hint))
    with filesystem(Path(tempfile.gettempdir())), tempfile.TemporaryDirectory(prefix="envsmith-") as scratch:
        file = Path(scratch) / "message"  # not stdin: ssh-keygen would take its first line for a passphrase
        file.write_bytes(message)
        argv = (program, "-Y", "sign", "-n", namespace, "-f", key, file)
        said = run(argv, env=_environment(environ), timeout_s=_LIMIT_S)
        made = file.with_name("message.sig")
        armored = made.read_text("ascii", "replace") if made.exists() else ""
    if said.returncode != 0:
        raise _refused(key, said)
    _confirm(message, armored, public, key, namespace)
    return armored


def public_key(key: Path) -> bytes:
    """Return the public half of a key file as OpenSSH writes it; a passphrase does not hide it.

    Raises:
        InputError: `signing-key-unusable`, `signing-key-type`.
    """
    content = _content(key)
    public = _half_of_private(content) or _listed(content)
    other = _OTHER_PRIVATE.match(content)
    if public is None and (other is None or other[1] == b"OPENSSH PRIVATE KEY"):
        hint = "name an OpenSSH private key, or the `.pub` file of a key that an agent holds"
        raise _unusable(key, f"`{key}` is not a key file of OpenSSH", hint)
    found = key_type(public) if public else other[1].decode() if other else ""
    if public is None or found != KEY_TYPE:
        message = f"`{key}` holds a key of another type than ed25519"
        hint = "make one with `ssh-keygen -t ed25519`"
        raise InputError(
            Problem(
                code="signing-key-type", message=message, where=str(key), hint=hint, expected=KEY_TYPE, actual=found
            )
        )
    return public


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Give ssh-keygen the agent and no way to ask; `run` gives it no terminal and no input."""
    agent = {name: environ[name] for name in ("SSH_AUTH_SOCK",) if name in environ}
    return scrubbed(environ, LC_ALL="C", SSH_ASKPASS_REQUIRE="never", **agent)


def _content(key: Path) -> bytes:
    hint = "give the path of an OpenSSH ed25519 key that this user may read"
    try:
        with key.open("rb") as stream:
            content = stream.read(_LARGEST_KEY + 1)
    except OSError as error:
        raise _unusable(key, f"`{key}` cannot be read: {os.strerror(error.errno or 0)}", hint) from error
    if len(content) > _LARGEST_KEY:
        raise _unusable(key, f"`{key}` is too large for a key file", hint)
    return content


def _half_of_private(content: bytes) -> bytes | None:
    header = _private_header(content)
    return header[1] if header else None


def _private_header(content: bytes) -> tuple[bytes, bytes] | None:
    """Return the cipher and the public key of a private key file; what follows them is not looked at."""
    match = _PRIVATE.match(content)
    try:
        blob = base64.b64decode(b"".join(match[1].split()), validate=True) if match else b""
        if not blob.startswith(_MAGIC):
            return None
        (cipher, _, _), rest = strings(blob[len(_MAGIC) :], 3)
        (public,), _ = strings(rest[4:], 1)
    except ValueError:
        return None
    return (cipher, public) if rest[:4] == (1).to_bytes(4, "big") else None


def _listed(content: bytes) -> bytes | None:
    """Read a `.pub` file; one of several keys does not say which is meant."""
    lines = content.decode("utf-8", "replace").strip().split("\n")
    return parse_key(lines[0]) if len(lines) == 1 else None


def _confirm(message: bytes, armored: str, public: bytes, key: Path, namespace: str) -> None:
    signer = Signer(principals=(fingerprint(public),), key=public, line=1)
    try:
        problem = verify(message, armored, (signer,), where=str(key), namespace=namespace).problem
    except IntegrityError as error:
        problem = error.problems[0]
    if problem:
        said = f"`ssh-keygen` ended well, but made no signature of `{key}` that verifies: {problem.message}"
        hint = "sign with the `ssh-keygen` of another machine, and find out what the one here does"
        raise IntegrityError(Problem(code="signature-not-made", message=said, where=str(key), hint=hint))


def _refused(key: Path, said: Completed) -> InputError | HostError:
    """Say why ssh-keygen failed, by what can be seen of the key rather than by its words."""
    if re.search(r"(?:unknown|illegal|invalid) option", said.stderr):
        message = "the `ssh-keygen` here cannot sign files: it is older than OpenSSH 8.1"
        hint = "put a newer one on PATH, or sign on another machine"
        return HostError(Problem(code="ssh-keygen-missing", message=message, where=said.argv[0], hint=hint))
    private = key.with_suffix("") if key.suffix == ".pub" else key
    header = _private_header(_content(private)) if private.exists() else None
    words = "".join(said.stderr.strip().splitlines()[-1:])
    message, hint = f"`{key}` cannot sign: {words}", f"look at it with `ssh-keygen -l -f {shlex.quote(str(key))}`"
    if header is None:
        message = f"the private half of `{key}` is neither with an agent nor in a file beside it"
        hint = _AGENT.format("PRIVATE_KEY")
    elif "UNPROTECTED PRIVATE KEY FILE" in said.stderr:
        message = f"others may read `{private}`, and `ssh-keygen` uses no such key"
        hint = f"`chmod 600 {shlex.quote(str(private))}`"
    elif header[0] != b"none":
        message = f"`{private}` has a passphrase, and no agent holds the key"
        hint = _AGENT.format(shlex.quote(str(private)))
    return _unusable(key, message, hint)


def _unusable(key: Path, message: str, hint: str) -> InputError:
    return InputError(Problem(code="signing-key-unusable", message=message, where=str(key), hint=hint))
