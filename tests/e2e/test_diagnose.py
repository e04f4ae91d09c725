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

from tests.support.project import Project
from tests.support.symptomcases import FOLDER

SOCKET = "OSError: AF_UNIX path length cannot exceed 107 bytes: '/scratch/u/ray/session_1/sockets/plasma_store'\n"
OWN = "Traceback (most recent call last):\n  File \"/home/u/train.py\", line 3, in step\nKeyError: 'answer'\n"


NAMESPACE = "ImportError: cannot import name 'answer' from 'alpha' (unknown location)\n"
SHM = "node1:1:1 [3] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-Y to 33030532 bytes, error: No space left on device (28)\n"  # noqa: E501
SNAPSHOT = '[snapshot]\nschema = 1\norigin = "captured"\n\n[host]\nshm-bytes = {}\n'


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


def evidence(said: Any) -> tuple[str, str, str]:
    cause = said["data"]["findings"][0]
    return cause["kind"], cause["evidence"], cause["severity"]


def test_what_verify_finds_in_the_env_confirms_the_cause(built: Project) -> None:
    log = write(str(built.folder / "train.log"), NAMESPACE)
    for name in ("__init__.py", "extra.py"):
        (built.site / "alpha" / name).unlink()
    said = built.run("diagnose", log, "--env", "demo/app", "--root", built.envs)
    assert said.code == 1
    assert evidence(said.json) == ("record-missing-files", "confirmed", "error")
    proofs = said.json["data"]["findings"][0]["proofs"]
    assert any(one["by"] == "verify files" and "alpha" in one["says"] for one in proofs)


def test_an_env_that_is_whole_contradicts_it_and_the_cause_is_a_warning(built: Project) -> None:
    log = write(str(built.folder / "train.log"), NAMESPACE)
    said = built.run("diagnose", log, "--env", "demo/app", "--root", built.envs)
    assert said.code == 1  # the log holds an error all the same
    assert evidence(said.json) == ("record-missing-files", "contradicted", "warning")


def test_an_env_that_is_not_built_here_lends_its_lock(built: Project) -> None:
    log = write(str(built.folder / "train.log"), NAMESPACE)
    said = built.run("diagnose", log, "--env", "demo/app", "--root", built.folder / "elsewhere")
    assert evidence(said.json) == ("record-missing-files", "not-checked", "error")
    assert "is not built here" in said.json["data"]["findings"][0]["proofs"][0]["says"]


@pytest.mark.parametrize(("size", "state"), [(64 << 20, "confirmed"), (64 << 30, "contradicted")])
def test_a_fact_of_the_machine_decides(size: int, state: str) -> None:
    write("node.toml", SNAPSHOT.format(size))
    _, said, _ = diagnose("diagnose", write("nccl.log", SHM), "--host", "node.toml")
    assert evidence(said)[:2] == ("dev-shm-too-small", state)
    _, said, _ = diagnose("diagnose", "nccl.log")
    assert evidence(said) == ("dev-shm-too-small", "not-checked", "error")


def test_numbers_that_are_none_are_a_finding_of_their_own() -> None:
    lines = "".join(
        f"{{'loss': {'nan' if n > 3 else 1.0 / n}, 'grad_norm': 1.{n}, 'step': {n}}}\n" for n in range(1, 9)
    )
    code, said, _ = diagnose("diagnose", write("train.log", lines))
    assert (code, kinds(said)) == (1, ["not-finite"])
    finding = said["data"]["findings"][0]
    assert (finding["severity"], finding["line"]) == ("error", 4)
    assert finding["cause"] and finding["fix"]
    code, said, _ = diagnose("diagnose", write("good.log", lines.replace("nan", "0.1")))
    assert (code, kinds(said)) == (0, [])


def test_what_programs_say_at_their_start_is_held_against_the_recipe(built: Project) -> None:
    built.recipe.write_text(built.recipe.read_text() + '\n[env.app.job]\ndtype = "bfloat16"\ntensor-parallel = 2\n')
    log = write(str(built.folder / "serve.log"), "WARNING 11-30 08:00:00 Casting torch.bfloat16 to torch.float16.\n")
    said = built.run("diagnose", log, "--env", "demo/app", "--root", built.envs)
    assert (said.code, kinds(said.json)) == (1, ["start-up-differs"])
    states = {one["topic"]: one["state"] for one in said.json["data"]["start_up"]}
    assert states == {"dtype": "other", "tensor-parallel": "absent"}


def test_a_real_device_is_seen_full_when_its_process_failed() -> None:
    folder = FOLDER / "cuda-out-of-memory"
    logs = [folder / "real-h200-timed.log", folder / "real-h200-smi.csv"]
    _, said, _ = diagnose("diagnose", *logs)
    sample = said["data"]["samples"][0]
    assert (sample["gpu"], sample["used_mib"], sample["total_mib"]) == (0, 142863, 143771)
    _, text, _ = diagnose("diagnose", *logs, json_=False)
    assert "142,863 of 143,771 MiB in use" in text
