"""Who listens on a port, asked of this machine's /proc with real sockets and processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from tests.support.rungs import RUNGS

ASKING = """
import json, os, sys
from envsmith.rungs.listening import owner_of
port, root, user = map(int, sys.argv[1:])
if user:
    os.setuid(user)
owner = owner_of(port, root or None, "no-such-mark")
print(json.dumps([owner.verdict, owner.who]))
"""


def asked(port: int, root: int = 0, user: int = 0) -> Any:
    """What another process finds, which no test's socket belongs to."""
    done = subprocess.run(
        [sys.executable, "-c", ASKING, str(port), str(root), str(user)],
        cwd=RUNGS.parents[1], capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def listener(address: str, family: socket.AddressFamily = socket.AF_INET, port: int = 0) -> socket.socket:
    taken = socket.socket(family)
    if family == socket.AF_INET6:
        taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    taken.bind((address, port))
    taken.listen()
    return taken


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_listening_socket_is_the_process_trees_or_a_strangers(address: str) -> None:
    with listener(address) as taken:
        port = taken.getsockname()[1]
        assert asked(port, os.getpid())[0] == "ours"
        verdict, who = asked(port)
        assert (verdict, who.split(" (")[0]) == ("stranger", f"process {os.getpid()}")
    assert asked(port)[0] == "nobody"


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_a_socket_of_both_families_takes_connections_too() -> None:
    try:
        taken = listener("::", socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    with taken:
        assert asked(taken.getsockname()[1])[0] == "stranger"


def test_a_port_of_another_address_is_not_the_one_that_is_asked() -> None:
    with listener("127.0.0.2") as taken:
        assert asked(taken.getsockname()[1])[0] == "nobody"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_learns_only_that_it_cannot_be_told_or_that_none_of_its_own_listens() -> None:
    with listener("127.0.0.1") as taken:
        port = taken.getsockname()[1]
        assert asked(port, os.getpid(), 65534)[0] == "unknown"
        assert asked(port, 0, 65534) == ["stranger", "a process that cannot be seen from here, of user 0"]
