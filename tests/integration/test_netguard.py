"""envsmith.tools.netguard: who is inside reaches loopback and nothing else; who cannot get in goes on, with a reason.

Every test acts in a child process: there is no way back out.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

import pytest

from envsmith.tools import netguard

ROOT = Path(__file__).parents[2]
NOBODY = 65534
INSIDE = """
import errno, json, os, socket, subprocess, sys
sys.path.insert(0, sys.argv[1])
from envsmith.tools.netguard import enter
{before}
guard = enter(os.environ)
facts = {{"state": guard.state, "why": guard.why, "uid": os.getuid(), "gid": os.getgid()}}
{after}
print(json.dumps(facts))
"""
#: 192.0.2.0/24 and 2001:db8::/32 are for documentation (RFC 5737, RFC 3849): nobody answers there.
OUTSIDE = """
def reach(family, place):
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.settimeout(20)
        try:
            one.connect((place, 80))
        except OSError as error:
            return errno.errorcode.get(error.errno, str(error))
    return "reached"
facts["v4"] = reach(socket.AF_INET, "192.0.2.1")
facts["child"] = subprocess.run([sys.executable, "-c", '''
import errno, socket
try:
    socket.create_connection(("192.0.2.1", 80), 20)
except OSError as error:
    print(errno.errorcode.get(error.errno, str(error)), end="")
'''], capture_output=True, text=True).stdout
"""
LOOPBACK = """
def echo(family, place):
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind((place, 0))
        server.listen()
        code = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 20).sendall(b'hello')"
        with subprocess.Popen([sys.executable, "-c", code, place, str(server.getsockname()[1])]):
            with server.accept()[0] as one:
                return one.makefile("rb").read().decode()
facts["127.0.0.1"] = echo(socket.AF_INET, "127.0.0.1")
if os.path.exists("/proc/net/if_inet6"):
    facts["::1"] = echo(socket.AF_INET6, "::1")
"""
FILES = """
with open(sys.argv[2], "w") as stream:
    stream.write("made inside")
"""


def inside(
    *words: str, before: str = "", after: str = "", python: tuple[str, ...] = (sys.executable,), **variables: str
) -> dict[str, object]:
    code = INSIDE.format(before=before, after=after)
    environ = {"PATH": os.environ["PATH"], **variables}
    argv = [*python, "-B", "-c", code, str(ROOT), *words]
    done = subprocess.run(argv, capture_output=True, text=True, env=environ, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert isinstance(facts, dict)
    return facts


@cache
def shut_in() -> bool:
    return inside()["state"] == "namespace"


def unprivileged() -> tuple[str, ...]:
    """How to run a Python as somebody who may do nothing; skipped where that cannot be tried here."""
    if os.getuid() != 0:
        return (sys.executable,)
    if not shutil.which("setpriv"):
        pytest.skip("setpriv of util-linux is not here")
    code = "import subprocess, sys; sys.path.insert(0, sys.argv[1]); import envsmith.tools.netguard\n"
    code += "subprocess.run([sys.executable, '-c', ''], check=True)"
    for python in (sys.executable, "/usr/bin/python3"):  # the first may lie below root's home
        argv = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all", python]
        if subprocess.run([*argv, "-B", "-c", code, str(ROOT)], capture_output=True, check=False).returncode == 0:
            return tuple(argv)
    pytest.skip("this interpreter or checkout is hidden from other users")


def need_guard(facts: dict[str, object]) -> None:
    if facts["state"] != "namespace":
        pytest.skip(f"no namespaces here: {facts['why']}")


def test_outside_fails_at_once_for_the_process_and_its_children() -> None:
    facts = inside(after=OUTSIDE)
    need_guard(facts)
    assert facts["v4"] == facts["child"] == "ENETUNREACH"


def test_loopback_works_between_processes_inside() -> None:
    facts = inside(after=LOOPBACK)
    need_guard(facts)
    assert facts["127.0.0.1"] == "hello"
    assert facts.get("::1", "hello") == "hello"


def test_a_server_of_the_host_is_not_reached_from_inside() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"facts['host'] = socket.socket().connect_ex(('127.0.0.1', {port}))"
        facts = inside(after=code)
        need_guard(facts)
        assert facts["host"] == 111  # ECONNREFUSED
        assert inside(after=code, ENVSMITH_NETGUARD="off")["host"] == 0


def test_files_made_inside_belong_to_the_same_user(tmp_path: Path) -> None:
    facts = inside(str(tmp_path / "made"), after=FILES)
    need_guard(facts)
    assert (facts["uid"], facts["gid"]) == (os.getuid(), os.getgid())
    assert (tmp_path / "made").stat().st_uid == os.getuid()


def test_somebody_without_any_right_is_shut_in_by_a_user_namespace(short_dir: Path) -> None:
    python = unprivileged()
    user = os.getuid() or NOBODY
    short_dir.chmod(0o777)
    facts = inside(str(short_dir / "made"), after=OUTSIDE + LOOPBACK + FILES, python=python)
    need_guard(facts)
    assert facts["why"] == "a user and a network namespace"
    assert facts["v4"] == facts["child"] == "ENETUNREACH"
    assert (facts["127.0.0.1"], facts["uid"]) == ("hello", user)
    assert (short_dir / "made").stat().st_uid == user


@pytest.mark.parametrize("kind", ["python", "native"])
def test_a_process_with_more_threads_stays_outside_and_says_why(kind: str) -> None:
    thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(5,), daemon=True).start()"
    native = (
        # A thread that Python knows nothing of, as libraries start them.
        "import ctypes\nlibc = ctypes.CDLL(None)\nhandle = ctypes.c_ulong()\n"
        "assert libc.pthread_create(ctypes.byref(handle), None, ctypes.cast(libc.sleep, ctypes.c_void_p), 5) == 0"
    )
    facts = inside(before=thread if kind == "python" else native, after="os.sys.stdout.flush()")
    assert facts["state"] == "none"
    assert facts["why"] == "this process has 2 threads, and only one of them could be shut in"


def test_a_kernel_that_refuses_is_a_value_with_its_reason() -> None:
    python = unprivileged()
    # Inside a user namespace of ours the limit of further ones can be set: user.max_user_namespaces is per namespace.
    before = (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nuid = os.geteuid()\n"
        "if libc.unshare(0x10000000) != 0: print('null'); raise SystemExit\n"
        "open('/proc/self/setgroups', 'w').write('deny')\nopen('/proc/self/uid_map', 'w').write(f'{uid} {uid} 1')\n"
        "open('/proc/sys/user/max_user_namespaces', 'w').write('0')\n"
        "open('/proc/sys/user/max_net_namespaces', 'w').write('0')\n"
    )
    code = INSIDE.format(before=before, after="facts['works'] = socket.socket().connect_ex(('127.0.0.1', 1)) == 111")
    argv = [*python, "-B", "-c", code, str(ROOT)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0 or done.stdout.strip() == "null":
        pytest.skip("the limits of namespaces cannot be set here")
    facts = json.loads(done.stdout)
    assert facts["state"] == "none"
    assert facts["why"].startswith("the kernel refuses; a network namespace: unshare: No space left on device (ENOSPC)")
    assert "; a user and a network namespace: unshare: " in facts["why"]
    assert facts["works"]


def test_it_can_be_switched_off() -> None:
    facts = inside(after="", ENVSMITH_NETGUARD="off")
    assert (facts["state"], facts["why"]) == ("none", "switched off by ENVSMITH_NETGUARD=off")


def test_this_very_process_was_never_shut_in() -> None:
    release = threading.Event()
    other = threading.Thread(target=release.wait, daemon=True)
    other.start()
    try:
        assert netguard.enter({}).state == "none"
    finally:
        release.set()
        other.join()
