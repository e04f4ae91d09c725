"""`envsmith diagnose` as a process: logs in every form that users have, and what is known beyond them."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOCKET = "OSError: AF_UNIX path length cannot exceed 107 bytes: '/scratch/u/ray/session_1/sockets/plasma_store'\n"
OWN = "Traceback (most recent call last):\n  File \"/home/u/train.py\", line 3, in step\nKeyError: 'answer'\n"


def diagnose(*words: object, stdin: bytes = b"", json_: bool = True, env: dict[str, str] | None = None) -> Any:
    argv = [sys.executable, "-m", "envsmith", *map(str, words), *(["--json"] if json_ else [])]
    done = subprocess.run(argv, input=stdin, capture_output=True, timeout=120, env={**os.environ, **(env or {})})
    text = done.stdout.decode()
    assert b"Traceback" not in done.stderr
    return done.returncode, (json.loads(text) if json_ else text), done.stderr.decode()


def write(name: str, text: str | bytes) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(text.encode() if isinstance(text, str) else text)
    return name


def kinds(said: Any) -> list[str]:
    return [one["kind"] for one in said["data"]["findings"]]


def test_a_known_cause_is_an_answer_of_no_with_all_that_the_contract_names() -> None:
    code, said, _ = diagnose("diagnose", write("train.log", "step 1\n" + SOCKET))
    assert (code, said["status"], said["command"]) == (1, "findings", "diagnose")
    cause = said["data"]["findings"][0]
    assert {key: cause[key] for key in ("kind", "severity", "file", "line", "check", "secondary", "evidence")} == {
        "kind": "af-unix-path",
        "severity": "error",
        "file": "train.log",
        "line": 2,
        "check": "check rules",
        "secondary": [],
        "evidence": "not-checked",
    }
    assert "RAY_TMPDIR" in cause["fix"] and "107" in cause["cause"]
    assert said["data"]["first_error"]["line"] == 2


def test_a_healthy_log_is_no_finding_and_exit_0() -> None:
    code, said, _ = diagnose("diagnose", write("train.log", "FutureWarning: an error some day\nstep 1 loss 0.5\n"))
    assert (code, said["status"], said["data"]["findings"], said["data"]["first_error"]) == (0, "ok", [], None)


def test_an_unknown_error_is_pointed_at_and_nothing_is_guessed() -> None:
    code, said, _ = diagnose("diagnose", write("train.log", OWN))
    assert (code, said["data"]["findings"], said["data"]["layer"]) == (1, [], "job")
    first = said["data"]["first_error"]
    assert (first["line"], first["frame"]["file"], first["frame"]["line"]) == (3, "/home/u/train.py", 3)
    code, text, _ = diagnose("diagnose", "train.log", json_=False)
    assert (code, text.splitlines()[0]) == (
        1,
        "no known symptom fits the first effective error, and nothing is guessed",
    )


def test_logs_of_all_ranks_are_one_run() -> None:
    late = "".join(f"2026-11-30 08:30:{n:02} [rank0]: NCCL watchdog timeout, work failed\n" for n in range(9))
    write("run/rank0.log", late)
    write("run/rank1.log", "2026-11-30 08:29:00 [rank1]: step\n2026-11-30 08:29:58 [rank1]: " + SOCKET)
    code, said, _ = diagnose("diagnose", "run")
    assert (code, kinds(said)) == (1, ["af-unix-path"])
    cause = said["data"]["findings"][0]
    assert (cause["file"], cause["line"], cause["rank"]) == ("run/rank1.log", 2, 1)
    assert {one["reason"] for one in cause["secondary"]} == {"consequence"}
    assert said["data"]["logs"] == ["run/rank0.log", "run/rank1.log"]


@pytest.mark.parametrize("form", ["stdin", "gz", "half-gz", "utf-16", "crlf", "binary"])
def test_a_log_may_come_in_any_form(form: str) -> None:
    noise = random.Random(1).randbytes(400_000)
    data = {
        "stdin": SOCKET.encode(),
        "gz": gzip.compress(("x\n" * 5000 + SOCKET).encode()),
        "half-gz": gzip.compress((SOCKET + "".join(f"{n} {n * n}\n" for n in range(50_000))).encode())[:-5000],
        "utf-16": SOCKET.encode("utf-16"),
        "crlf": SOCKET.replace("\n", "\r\n").encode(),
        "binary": noise + b"\n" + SOCKET.encode() + noise,
    }[form]
    name = "-" if form == "stdin" else write("a.log.gz" if "gz" in form else "a.log", data)
    code, said, _ = diagnose("diagnose", name, stdin=data if form == "stdin" else b"")
    assert (code, kinds(said)) == (1, ["af-unix-path"])


def test_every_log_that_cannot_be_read_is_named_at_once() -> None:
    Path("empty").mkdir()
    code, said, _ = diagnose("diagnose", "nowhere.log", "empty", write("good.log", SOCKET))
    assert (code, said["status"]) == (2, "error")
    assert [(one["code"], one["where"]) for one in said["errors"]] == [
        ("log-unreadable", "nowhere.log"),
        ("log-unreadable", "empty"),
    ]
    code, said, _ = diagnose("diagnose")
    assert (code, said["errors"][0]["code"]) == (2, "usage")


def test_an_empty_log_and_a_device_hold_no_error() -> None:
    code, said, _ = diagnose("diagnose", write("empty.log", ""))
    assert (code, said["data"]["findings"]) == (0, [])
    code, said, _ = diagnose("diagnose", "/dev/null")
    assert code in (0, 2)


def test_a_secret_in_a_line_is_cut() -> None:
    line = "RuntimeError: CUDA error: HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123 was refused\n"
    for words in ((), ("--brief",)):
        code, text, _ = diagnose("diagnose", write("train.log", line), *words, json_=False)
        assert code == 1 and "hf_abcdefghij" not in text
    assert "hf_abcdefghij" not in json.dumps(diagnose("diagnose", "train.log")[1])


def test_a_sheet_has_at_most_40_lines_of_100_columns() -> None:
    logs = [write(f"{n}.log", f"[rank{n}]: " + SOCKET + OWN * 30) for n in range(12)]
    code, text, _ = diagnose("diagnose", *logs, "--brief", json_=False)
    lines = text.splitlines()
    assert code == 1 and len(lines) <= 40 and max(map(len, lines)) <= 100
    assert "af-unix-path" in lines[0]


def test_an_env_that_is_not_there_is_said_before_a_log_is_read() -> None:
    code, said, _ = diagnose("diagnose", write("train.log", SOCKET), "--env", "nothing/here")
    assert (code, said["errors"][0]["code"]) == (1, "env-missing")
    code, said, _ = diagnose("diagnose", "train.log", "--host", "nowhere.toml")
    assert (code, said["errors"][0]["code"]) == (2, "snapshot-missing")
