"""envsmith.tools.signer with a real ssh-keygen and agent: it signs without ever asking, and believes no exit code."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from envsmith.errors import EnvsmithError, HostError, InputError, IntegrityError
from envsmith.sshsig import NAMESPACE, fingerprint, parse_allowed_signers, parse_signature, verify
from envsmith.tools.signer import public_key, sign
from tests.unit.test_sshsig import STORED, armor

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen here to sign with")
needs_agent = pytest.mark.skipif(shutil.which("ssh-agent") is None, reason="no ssh-agent here")

MESSAGE = b'secret\n{"schemaVersion": 2}\n'
PASSPHRASE = "secret"


def make(path: Path, *options: str, passphrase: str = "") -> Path:
    """Make a throw-away key."""
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-C", "throw-away@test.invalid", "-N", passphrase, "-f", str(path)]
    subprocess.run([*argv, *options], check=True, stdin=subprocess.DEVNULL)
    return path


def public_file(key: Path) -> Path:
    return key.with_name(key.name + ".pub")


def environment(**extra: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **extra}


def who_signed(message: bytes, armored: str, public: Path) -> str | None:
    return verify(message, armored, parse_allowed_signers(public.read_text(), str(public)), where="x").who


def program(folder: Path, text: str) -> dict[str, str]:
    """Put a program named ssh-keygen before all others."""
    folder.mkdir()
    (folder / "ssh-keygen").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "ssh-keygen").chmod(0o755)
    return environment(PATH=f"{folder}:{os.environ['PATH']}")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make(tmp_path / "a key")


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    return make(tmp_path / "locked", passphrase=PASSPHRASE)


@pytest.fixture
def agent() -> Iterator[str]:
    """The socket of an agent of our own, in a folder whose name is short enough for one."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        socket = Path(folder) / "agent"
        child = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
        try:
            for _ in range(500):
                if socket.exists():
                    break
                time.sleep(0.01)
            yield str(socket)
        finally:
            child.terminate()
            child.wait()


def load(socket: str, key: Path, tmp_path: Path) -> None:
    """Give an agent a key whose passphrase a program says."""
    says = tmp_path / "says"
    says.write_text(f"#!/bin/sh\necho {PASSPHRASE}\n")
    says.chmod(0o755)
    env = environment(SSH_AUTH_SOCK=socket, SSH_ASKPASS=str(says), SSH_ASKPASS_REQUIRE="force")
    subprocess.run(["ssh-add", "-q", key], env=env, check=True, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("message", [b"", MESSAGE, os.urandom(200_000)], ids=["nothing", "text", "bytes"])
def test_what_a_key_file_signs_is_good_for_us_and_for_ssh_keygen(message: bytes, key: Path, tmp_path: Path) -> None:
    armored = sign(message, key, environment())
    assert who_signed(message, armored, public_file(key)) == "throw-away@test.invalid"
    (tmp_path / "sig").write_text(armored)
    (tmp_path / "allowed").write_text(f"me {public_file(key).read_text()}")
    argv = ["ssh-keygen", "-Y", "verify", "-n", NAMESPACE, "-I", "me", "-f", "allowed", "-s", "sig"]
    subprocess.run(argv, input=message, cwd=tmp_path, check=True, capture_output=True)


def test_one_key_and_message_have_one_signature_and_leave_nothing_behind(key: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    tempfile.tempdir, kept = str(scratch), tempfile.tempdir
    try:
        assert sign(MESSAGE, key, environment()) == sign(MESSAGE, key, environment())
    finally:
        tempfile.tempdir = kept
    assert list(scratch.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir() if path != scratch) == before


def test_a_key_without_its_public_file_and_one_named_by_it_sign_alike(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_public = sign(MESSAGE, public_file(key), environment())
    public_file(key).unlink()
    monkeypatch.chdir(tmp_path)
    assert sign(MESSAGE, Path("a key"), environment()) == by_public


def test_a_path_that_looks_like_an_option_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(tmp_path / "-q")
    monkeypatch.chdir(tmp_path)
    assert parse_signature(sign(MESSAGE, Path("-q"), environment()), "x").key == public_key(made)


@needs_agent
def test_an_agent_signs_for_a_public_file_whose_private_half_it_alone_has(
    agent: str, locked: Path, tmp_path: Path
) -> None:
    load(agent, locked, tmp_path)
    locked.unlink()
    armored = sign(MESSAGE, public_file(locked), environment(SSH_AUTH_SOCK=agent))
    assert who_signed(MESSAGE, armored, public_file(locked))
    with pytest.raises(InputError) as caught:
        sign(MESSAGE, public_file(locked), environment())
    assert caught.value.problems[0].code == "signing-key-unusable"
    assert "neither with an agent nor in a file" in caught.value.problems[0].message
    assert "ssh-add" in (caught.value.problems[0].hint or "")


@needs_agent
def test_an_agent_signs_for_a_key_with_a_passphrase(agent: str, locked: Path, tmp_path: Path) -> None:
    load(agent, locked, tmp_path)
    assert who_signed(MESSAGE, sign(MESSAGE, locked, environment(SSH_AUTH_SOCK=agent)), public_file(locked))


@pytest.mark.parametrize(
    "extra", [{}, {"DISPLAY": ":0", "SSH_ASKPASS_REQUIRE": "force"}, {"SSH_AUTH_SOCK": "/nowhere"}]
)
@pytest.mark.parametrize("public", [False, True])
def test_a_passphrase_is_never_asked_for(extra: dict[str, str], public: bool, locked: Path, tmp_path: Path) -> None:
    asked, asks = tmp_path / "asked", tmp_path / "asks"
    asks.write_text(f"#!/bin/sh\ntouch '{asked}'\necho {PASSPHRASE}\n")
    asks.chmod(0o755)
    with pytest.raises(InputError) as caught:
        sign(MESSAGE, public_file(locked) if public else locked, environment(SSH_ASKPASS=str(asks), **extra))
    assert not asked.exists()
    (problem,) = caught.value.problems
    assert (problem.code, "has a passphrase" in problem.message) == ("signing-key-unusable", True)
    assert "ssh-agent" in (problem.hint or "")


def test_the_message_is_never_taken_for_the_passphrase(locked: Path) -> None:
    said = ["ssh-keygen", "-Y", "sign", "-n", NAMESPACE, "-f", str(locked)]
    by_stdin = subprocess.run(said, input=MESSAGE, capture_output=True, start_new_session=True, env=environment())
    assert MESSAGE.startswith(f"{PASSPHRASE}\n".encode())
    if by_stdin.returncode == 0:  # what ssh-keygen does with stdin: it signs the rest
        assert who_signed(MESSAGE.partition(b"\n")[2], by_stdin.stdout.decode(), public_file(locked))
    with pytest.raises(InputError):
        sign(MESSAGE, locked, environment())


def test_without_ssh_keygen_the_host_cannot(key: Path, tmp_path: Path) -> None:
    with pytest.raises(HostError) as caught:
        sign(MESSAGE, key, environment(PATH=str(tmp_path)))
    assert caught.value.problems[0].code == "ssh-keygen-missing"


def test_an_ssh_keygen_that_cannot_sign_yet_is_told_from_a_bad_key(key: Path, tmp_path: Path) -> None:
    env = program(tmp_path / "old", 'echo "unknown option -- Y" >&2; exit 1')
    with pytest.raises(HostError, match="is older than OpenSSH"):
        sign(MESSAGE, key, env)


def test_what_is_no_key_is_refused_before_anything_runs(tmp_path: Path) -> None:
    large, text, cut, two = (tmp_path / name for name in ("large", "text", "cut", "two"))
    large.write_bytes(bytes(1 << 17))
    text.write_text("not a key\n")
    made = make(tmp_path / "made")
    cut.write_text(made.read_text()[:120])
    two.write_text(public_file(made).read_text() * 2)
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(256)))
    for path in (tmp_path / "absent", tmp_path, large, text, cut, two, binary, tmp_path / "made" / "below"):
        with pytest.raises(InputError) as caught:
            sign(MESSAGE, path, environment(PATH="/nowhere"))
        assert [(problem.code, problem.where) for problem in caught.value.problems] == [
            ("signing-key-unusable", str(path))
        ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_key_that_may_not_be_read_is_unusable(key: Path) -> None:
    key.chmod(0)
    with pytest.raises(InputError, match="signing-key-unusable"):
        sign(MESSAGE, key, environment())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("-t", "ecdsa"), "ecdsa-sha2-nistp256"),
        (("-t", "ecdsa", "-m", "PEM"), "EC PRIVATE KEY"),
        (("-t", "rsa", "-b", "2048"), "ssh-rsa"),
    ],
)
def test_a_key_of_another_type_is_refused_and_named(options: tuple[str, ...], named: str, tmp_path: Path) -> None:
    made = make(tmp_path / "made", *options)
    with pytest.raises(InputError) as caught:
        sign(MESSAGE, made, environment())
    assert [(problem.code, problem.actual) for problem in caught.value.problems] == [("signing-key-type", named)]
    with pytest.raises(InputError, match="signing-key-type"):
        sign(MESSAGE, public_file(made), environment())


def test_a_certificate_is_no_plain_key(key: Path, tmp_path: Path) -> None:
    authority = make(tmp_path / "authority")
    subprocess.run(["ssh-keygen", "-q", "-s", authority, "-I", "x", public_file(key)], check=True, capture_output=True)
    with pytest.raises(InputError, match="ssh-ed25519-cert-v01@openssh"):
        sign(MESSAGE, key.with_name("a key-cert.pub"), environment())
    assert sign(MESSAGE, key, environment())


def test_a_key_that_others_may_read_is_refused_with_what_to_do(key: Path) -> None:
    key.chmod(0o644)
    with pytest.raises(InputError) as caught:
        sign(MESSAGE, key, environment())
    assert (caught.value.problems[0].hint or "") == f"`chmod 600 '{key}'`"


def test_a_public_file_of_another_key_is_not_believed(key: Path, tmp_path: Path) -> None:
    shutil.copy(public_file(make(tmp_path / "other")), public_file(key))
    for path in (key, public_file(key)):
        with pytest.raises(InputError, match="signing-key-unusable"):
            sign(MESSAGE, path, environment())


@pytest.mark.parametrize("form", ["plain", "locked", "public", "public without a comment"])
def test_the_public_half_is_the_one_that_ssh_keygen_shows(form: str, key: Path, locked: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text(" ".join(public_file(key).read_text().split()[:2]))
    path = {"plain": key, "locked": locked, "public": public_file(key), "public without a comment": bare}[form]
    shown = subprocess.run(["ssh-keygen", "-l", "-f", path], capture_output=True, text=True, check=True).stdout
    assert fingerprint(public_key(path)) == shown.split()[1]


LIES = {
    "says nothing": "exit 0",
    "writes nothing useful": 'for last; do :; done; echo signed > "$last.sig"',
    "gives an old signature": "for last; do :; done; cat > \"$last.sig\" <<'E'\n" + armor(STORED["by sha256"][2]) + "E",
    "signs for another purpose": 'for last; do :; done; exec {real} -q -Y sign -n file -f "$6" "$last"',
    "signs with another key": f'for last; do :; done; exec {{real}} -q -Y sign -n {NAMESPACE} -f {{other}} "$last"',
    "signs something else": f'for last; do :; done; echo >> "$last"; exec {{real}} -q -Y sign -n {NAMESPACE} -f "$6" '
    '"$last"',
}


@pytest.mark.parametrize("lie", LIES)
def test_a_signature_that_does_not_verify_is_never_returned(lie: str, key: Path, tmp_path: Path) -> None:
    text = LIES[lie].replace("{real}", shutil.which("ssh-keygen") or "").replace("{other}", str(make(tmp_path / "b")))
    env = program(tmp_path / "bin", text)
    with pytest.raises(IntegrityError) as caught:
        sign(MESSAGE, key, env)
    assert [problem.code for problem in caught.value.problems] == ["signature-not-made"]


def test_every_cut_of_a_key_file_is_refused_in_words(key: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    for source in (key, public_file(key)):
        content = source.read_bytes().rstrip()
        whole = base64.b64decode(public_file(key).read_text().split()[1])
        for size in range(len(content)):
            cut.write_bytes(content[:size])
            try:
                assert public_key(cut) == whole
            except EnvsmithError as error:
                assert error.problems[0].code in ("signing-key-unusable", "signing-key-type")
