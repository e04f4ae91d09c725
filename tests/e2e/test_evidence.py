"""Evidence of a run over a real env: written whole, free of secrets, and every kind of fault in it is found."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envsmith.commands.evidencing import require_free_folder
from envsmith.errors import EnvsmithError, InputError
from envsmith.evidence import MANIFEST, NAMESPACE, SIGNATURE, SUMS
from tests.support.project import Said, envsmith
from tests.support.smoke import CRASH, SHA, Run, env_of, good_run, material, said, warning, written
from tests.support.stage import Stage

SECRETS = {
    "HF_TOKEN": "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HTTPS_PROXY": "http://me:S3cr3Tproxy@proxy.example:3128",
    "MY_PASSWORD": "plainwordsecret",
}
LOG = f"""\
{CRASH}machine host.example login me password S3cr3Tnetrc
> Authorization: Bearer S3cr3Tbearer.with.dots
cloning https://me:S3cr3Turl@git.example/a.git?sig=S3cr3Tquery
the word plainwordsecret stands alone, and {SECRETS["AWS_SECRET_ACCESS_KEY"]} too
export OTHER_TOKEN='S3cr3Tother'
-----BEGIN RSA PRIVATE KEY-----
MIIEpAIBAAKCAQEAS3cr3Tkey
-----END RSA PRIVATE KEY-----
"""
PLANTED = (
    "S3cr3T", "plainwordsecret", *(value for name, value in SECRETS.items() if name != "HTTPS_PROXY"),
)  # fmt: skip


@pytest.fixture(scope="module")
def kept() -> dict[str, Path]:
    """Folders that the first test of the module made; every other one works on a copy."""
    return {}


@pytest.fixture
def made(kept: dict[str, Path], stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evidence of a run that passed."""
    if "good" not in kept:
        project = stage.reset()
        place = tmp_path_factory.mktemp("evidence")
        answer = written(place / "good", material(env_of(project.envs), good_run(place / "run")))
        stage.clear()
        assert answer.problems == ()
        kept["good"] = place / "good"
    return kept["good"]


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """A copy of it, elsewhere, under a name that is odd."""
    place = tmp_path / "w\u00e9ird name $(x)"
    shutil.copytree(made, place)
    return place


def inspect(folder: Path, *words: str) -> Said:
    return envsmith("inspect", str(folder), *words, "--json", cwd=folder.parent)


def codes(found: Said) -> set[str]:
    return {one["code"] for one in found.json["errors"]}


def reseal(folder: Path) -> None:
    """Write manifest and sums anew over what lies there, as somebody with care would."""
    content = json.loads((folder / MANIFEST).read_text())
    for row in content["files"]:
        data = (folder / row["path"]).read_bytes()
        row |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"
    (folder / MANIFEST).write_text(text)
    rows = {row["path"]: row["sha256"] for row in content["files"]}
    rows[MANIFEST] = hashlib.sha256(text.encode()).hexdigest()
    (folder / SUMS).write_text("".join(f"{rows[path]}  {path}\n" for path in sorted(rows)))


def edit(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content, sort_keys=True, indent=2))


# what is written


def test_a_folder_checks_elsewhere_and_two_people_read_the_same_digest(copy: Path) -> None:
    found = inspect(copy, "--check")
    assert (found.code, found.json["errors"]) == (0, [])
    data = found.json["data"]
    assert (data["kind"], data["result"], data["checked"]) == ("evidence", "passed", True)
    assert [one["status"] for one in data["rungs"]] == ["passed"] * 4
    assert data["digest"] == f"sha256:{hashlib.sha256((copy / MANIFEST).read_bytes()).hexdigest()}"
    subprocess.run(["sha256sum", "--quiet", "-c", SUMS], cwd=copy, check=True, timeout=60)
    text = envsmith("inspect", str(copy), cwd=copy.parent)
    assert data["digest"] in text.out
    assert inspect(copy, "--expect", data["digest"]).code == 0
    other = inspect(copy, "--expect", "sha256:" + "0" * 64)
    assert (other.code, codes(other)) == (5, {"evidence-unexpected"})
    assert codes(inspect(copy, "--expect", "12")) == {"expect-malformed"}


def test_a_folder_that_cannot_be_written_to_is_checked_all_the_same(copy: Path) -> None:
    subprocess.run(["chmod", "-R", "a-w", copy], check=True, timeout=60)
    before = sorted((path, path.lstat().st_mtime_ns) for path in copy.rglob("*"))
    try:
        assert inspect(copy, "--check").code == 0
        assert before == sorted((path, path.lstat().st_mtime_ns) for path in copy.rglob("*"))
    finally:
        subprocess.run(["chmod", "-R", "u+w", copy], check=True, timeout=60)


def test_the_page_says_what_ran_what_did_not_and_where(made: Path) -> None:
    text = (made / "SUMMARY.md").read_text()
    assert len(text.splitlines()) <= 60
    for words in (
        "**Result: passed**", "demo/app", "kernel ", "glibc ", "| collective | passed | 1.2 |", "311.2",
        "ran on the CPU, so nothing is proved of a GPU: train-step", "not in this run: device, encode",
        "tool-1/use-sdpa.patch", "exercised in train-step", "envsmith inspect DIR --check",
    ):  # fmt: skip
        assert words in text, words
    page = (made / "SUMMARY.html").read_text()
    assert "<script" not in page
    assert "default-src 'none'" in page


def test_every_document_is_there_and_says_what_the_env_is(made: Path, kept: dict[str, Path]) -> None:
    read = {path.name: json.loads(path.read_text()) for path in made.glob("*.json")}
    assert read["identities.json"]["03-train-step"]["model"]["special_tokens_map.json"] == "0123456789abcdef" * 4
    assert read["seconds.json"]["build"]
    assert read["seconds.json"]["rungs"]["02-collective"] == 1.25
    assert {one["target"] for one in read["patches.json"]} == {"tool", "alpha"}
    assert all(
        len(patch["sha256"]) == 64
        for one in read["patches.json"]
        for series in one["series"]
        for patch in series["patches"]
    )
    assert read["launch.json"]["set"]["DEMO_MODE"] == "on"
    assert "PATH" in read["launch.json"]["environment"]["values"]
    assert {"HOME", "PATH"} <= set(read["launch.json"]["environment"]["names"])
    assert "HOME" not in read["launch.json"]["environment"]["values"]
    assert {"alpha", "beta", "delta", "tool"} <= {one["name"] for one in read["sbom.cdx.json"]["components"]}
    assert "[host]" in (made / "host.toml").read_text()


def test_a_second_look_at_the_same_run_gives_the_same_bytes_but_for_the_host(built: Any, tmp_path: Path) -> None:
    one = material(env_of(built.envs), good_run(tmp_path / "run"), host='[host]\nkernel = "6"\n')
    first, second = written(tmp_path / "a", one), written(tmp_path / "b", one)
    assert first.digest == second.digest


def test_a_failed_run_is_good_evidence_of_a_failure_with_stack_and_signal(built: Any, tmp_path: Path) -> None:
    run = good_run(tmp_path / "run")
    first = {"file": "pyarrow/lib.py", "line": 19, "text": "boom <b>| `x`"}
    run.add("train-step", "failed", codes=(0, -11), log=CRASH, first_error=first)
    run.add("encode", "inconclusive", statements=(said("equal-rewards", "inconclusive", "all rewards are equal"),))
    run.add("embed", "skipped", codes=(), statements=(said("no-rank", "note", "the rung before it failed"),))
    run.findings.append({"check": "smoke/x", "severity": "warning", "subject": "encode", "message": "a warning"})
    answer = written(tmp_path / "e", material(env_of(built.envs), run, report=warning("w")))
    assert answer.problems == ()
    found = inspect(tmp_path / "e", "--check")
    assert (found.code, found.json["data"]["result"]) == (0, "failed")
    stack = (tmp_path / "e" / "rungs" / "05-train-step" / "stack.1.txt").read_text()
    assert stack.startswith("rank 1 ended with SIGSEGV (exit code -11)\n")
    assert "pyarrow/lib.py" in stack
    assert "loading weights" not in stack
    text = (tmp_path / "e" / "SUMMARY.md").read_text()
    for words in ("pyarrow/lib.py:19: boom &lt;b>", "rank 1: -11", "SIGSEGV", "all rewards are equal", "a warning"):
        assert words in text, words
    assert "<b>" not in (tmp_path / "e" / "SUMMARY.html").read_text()


def test_no_secret_of_environment_logs_answers_or_record_enters(
    built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    run = good_run(tmp_path / "run")
    folder = run.add(
        "generate",
        "failed",
        codes=(-11,),
        answered=(0,),
        log=LOG + "\x1b[1mSOME_TOKEN\x1b[0m=S3cr3Tcoloured\n" + "x " * 6000 + "password=S3cr3Tlong\n",
        first_error={"file": "x", "line": 1, "text": "token=S3cr3Tfirst"},
        statements=(said("x", "failed", "api_key=S3cr3Tsaid", "plainwordsecret"),),
        figures={"api_key": "S3cr3Tfigure", "note": "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345"},
        options={"command": ["x", "--token", "S3cr3Targ", "--url=https://me:S3cr3Targ@h.example/"]},
    )
    (folder / "config.yaml").write_text("hub_token: S3cr3Tconfig\nlearning_rate: 1e-4\n")
    (folder / "task.json").write_text(json.dumps({"launch": {"HF_TOKEN": "S3cr3Ttask"}}))
    (folder / "command.json").write_text(json.dumps({"environment": {"SITE": "S3cr3Tsite"}}))
    (folder / "model.safetensors").write_bytes(b"S3cr3T")
    (folder / "nested" / "deep").mkdir(parents=True)
    (folder / "nested" / "deep" / "worker.log").write_text("token=S3cr3Tworker\n")
    (folder / "nested" / "config.json").write_text("S3cr3T")
    (folder / "link.txt").symlink_to(folder / "rank0.log")
    answer = written(tmp_path / "e", material(env_of(built.envs), run))
    assert answer.redactions > 10
    for path in (tmp_path / "e").rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        for secret in PLANTED:
            assert secret.encode() not in data, (path, secret)
            assert base64.b64encode(secret.encode()) not in data
    kept = {path.name for path in (tmp_path / "e" / "rungs" / folder.name).iterdir()}
    assert kept == {"rank0.log", "answer.0.json", "stack.0.txt", "config.yaml", "task.json", "nested"}
    assert "learning_rate: 1e-4" in (tmp_path / "e" / "rungs" / folder.name / "config.yaml").read_text()
    rows = {row["path"]: row for row in inspect(tmp_path / "e", "--check").json["data"]["files"]}
    assert rows[f"rungs/{folder.name}/rank0.log"]["redactions"] >= 8
    names = json.loads((tmp_path / "e" / "launch.json").read_text())["environment"]
    assert set(SECRETS) <= set(names["names"])
    assert "HF_TOKEN" in names["not-shown"]


def test_a_secret_in_the_launch_table_is_cut_and_the_folder_still_checks(built: Any, tmp_path: Path) -> None:
    built.edit('set = { DEMO_MODE = "on" }', 'set = { DEMO_MODE = "on", DEMO_TOKEN = "S3cr3Tlaunch" }')
    assert built.build().code == 0
    written(tmp_path / "e", material(env_of(built.envs), good_run(tmp_path / "run")))
    assert all(b"S3cr3T" not in path.read_bytes() for path in (tmp_path / "e").rglob("*") if path.is_file())
    assert inspect(tmp_path / "e", "--check").code == 0


def test_odd_answers_of_a_rung_that_passed_are_evidence_that_checks(built: Any, tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(6):
        deep = [deep]
    figures = {"deep": deep, "many": 2**62, "large": float("inf")}  # what is odder, the ladder takes for no answer
    run = Run(tmp_path / "run")
    run.add("collective", codes=(0, 0), figures=figures, statements=(said("x", "ok"),))
    for rank in (0, 1):
        path = run.folder / "01-collective" / f"answer.{rank}.json"
        path.write_text(path.read_text().replace("Infinity", "1e999"))
    assert written(tmp_path / "e", material(env_of(built.envs), run)).problems == ()
    found = inspect(tmp_path / "e", "--check")
    assert (found.code, found.json["data"]["result"]) == (0, "passed")


def test_an_answer_that_the_run_could_not_read_is_kept_as_a_text(built: Any, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    folder = run.add("device", "failed", answered=())
    (folder / "answer.0.json").write_text("{")
    assert written(tmp_path / "e", material(env_of(built.envs), run)).problems == ()
    assert (tmp_path / "e" / "rungs" / "01-device" / "answer.0.json.txt").read_text() == "{"


def test_no_secret_in_the_name_of_a_file_enters(built: Any, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    folder = run.add("device")
    (folder / f"{SECRETS['HF_TOKEN']}.txt").write_text("x")
    assert written(tmp_path / "e", material(env_of(built.envs), run)).problems == ()
    assert "hf_AbC" not in "".join(map(str, (tmp_path / "e").rglob("*")))
    assert "hf_AbC" not in (tmp_path / "e" / MANIFEST).read_text() + (tmp_path / "e" / SUMS).read_text()
    assert (tmp_path / "e" / "rungs" / "01-device" / "cut.txt").is_file()


def test_a_long_log_keeps_its_beginning_and_its_end_and_says_the_cut(built: Any, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    lines = b"".join(b"step %07d loss 4.25 \xff\n" % n for n in range(350_000))
    folder = run.add("device", log=lines)
    written(tmp_path / "e", material(env_of(built.envs), run))
    log = (tmp_path / "e" / "rungs" / folder.name / "rank0.log").read_text()
    assert log.startswith("step 0000000 ")
    assert log.rstrip("\n").endswith("step 0349999 loss 4.25 \ufffd")
    (cut,) = [line for line in log.splitlines() if line.startswith("[envsmith: ")]
    assert "bytes are left out here" in cut
    found = inspect(tmp_path / "e", "--check").json["data"]
    (row,) = [row for row in found["files"] if row["path"].endswith("rank0.log")]
    assert row["cut_bytes"] > 100_000


# where it is written


def test_a_place_that_cannot_be_used_is_refused_before_the_run(built: Any, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    subject = env_of(built.envs)
    inside = subject.directory / "evidence"
    places = (tmp_path / "full", tmp_path / "file", tmp_path / "link", tmp_path / "file" / "x", inside)
    for place in places:
        with pytest.raises(InputError) as caught:
            require_free_folder(place, subject=subject)
        assert caught.value.problems[0].code == "evidence-folder-unusable"
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "empty", tmp_path / "new" / "deep"):
        require_free_folder(place, subject=subject)
        assert not (tmp_path / "new").exists()
    with pytest.raises(InputError) as caught:
        require_free_folder(tmp_path / "empty", subject=subject, key=tmp_path / "no key")
    assert caught.value.problems[0].code == "signing-key-unusable"
    with pytest.raises(InputError) as caught:
        require_free_folder(tmp_path / "empty", subject=replace(subject, receipt=None))
    assert caught.value.problems[0].code == "evidence-env-foreign"


def test_a_folder_that_was_filled_meanwhile_is_left_alone(built: Any, tmp_path: Path) -> None:
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "theirs").write_text("x")
    answer = written(tmp_path / "e", material(env_of(built.envs), good_run(tmp_path / "run")))
    assert answer.folder == tmp_path / "e.2"
    assert [path.name for path in (tmp_path / "e").iterdir()] == ["theirs"]
    assert inspect(tmp_path / "e.2", "--check").code == 0


def test_a_disk_that_is_full_leaves_nothing_behind(built: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    given = material(env_of(built.envs), good_run(tmp_path / "run"))
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", place], capture_output=True, timeout=60)
    if mounted.returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        with pytest.raises(EnvsmithError) as caught:
            written(place / "e", given)
        assert [one.code for one in caught.value.problems] == ["disk-full"]
        assert [*place.iterdir()] == []
    finally:
        subprocess.run(["umount", place], check=True, timeout=60)


def test_an_interrupt_leaves_nothing_behind(built: Any, tmp_path: Path) -> None:
    class Interrupting(dict[str, float]):
        def items(self) -> Any:
            raise KeyboardInterrupt

    given = material(env_of(built.envs), good_run(tmp_path / "run"), environ={}, host="[host]\n")
    (tmp_path / "out").mkdir()
    with pytest.raises(KeyboardInterrupt):
        written(tmp_path / "out" / "e", replace(given, stages=Interrupting()))
    assert [*(tmp_path / "out").iterdir()] == []


# faults by kind, in every file


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def rename(path: Path) -> None:
    path.rename(path.with_name(f"{path.name}.old"))


def link(path: Path) -> None:
    path.rename(path.parent.parent / "kept")
    path.symlink_to(path.parent.parent / "kept")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("fault", [flip, shorten, lengthen, Path.unlink, rename, link, pipe, folder])
def test_a_fault_in_any_file_is_found(fault: Callable[[Path], None], made: Path, tmp_path: Path) -> None:
    """By the judgement itself, since a process a file would take minutes; one file goes through the program."""
    from envsmith.commands.evidence import inspect_evidence
    from envsmith.commands.screen import Screen

    names = sorted(path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file())
    assert len(names) > 15
    for n, name in enumerate(names):
        place = tmp_path / f"{n}" / "e"
        shutil.copytree(made, place)
        fault(place / name)
        with pytest.raises(EnvsmithError) as caught:
            inspect_evidence(str(place), check=True, trust=None, expect=None, screen=Screen(quiet=True))
        assert caught.value.exit_code == 5, name
        assert all(one.code.startswith("evidence-") for one in caught.value.problems), name
        if n == len(names) // 2:
            found = inspect(place, "--check")
            assert (found.code, found.json["status"]) == (5, "error")
        shutil.rmtree(place.parent)


def test_files_that_changed_places_or_were_added_are_found(copy: Path) -> None:
    one, other = (copy / "rungs" / "02-collective" / f"rank{rank}.log" for rank in (0, 1))
    one.write_text("other\n")
    reseal(copy)
    assert inspect(copy, "--check").code == 0
    one_data, other_data = one.read_bytes(), other.read_bytes()
    one.write_bytes(other_data)
    other.write_bytes(one_data)
    assert codes(inspect(copy, "--check")) == {"evidence-file-changed"}
    one.write_bytes(one_data)
    other.write_bytes(other_data)
    (copy / "env" / "more").mkdir()
    (copy / "env" / "more" / "x.py").write_text("")
    (copy / "loose").write_text("")
    found = inspect(copy, "--check")
    assert (found.code, codes(found), len(found.json["errors"])) == (5, {"evidence-file-unlisted"}, 2)


def record(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    return lambda folder: edit(folder, "record.json", change)


def row(**changed: Any) -> Callable[[Path], None]:
    """Change the row of `collective` in the record."""
    return record(lambda content: content["rungs"][1].update(changed))


def _status(status: str) -> Callable[[Path], None]:
    return record(lambda content: content["rungs"][1].update(status=status))


def _text(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return change


def _answer(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    return lambda folder: edit(folder, "rungs/02-collective/answer.1.json", change)


def _finding(content: Any) -> None:
    content["findings"] = [{"check": "files", "severity": "error"}]


def _without_static(folder: Path) -> None:
    edit(folder, "record.json", lambda content: content["rungs"].pop(0))
    edit(folder, "seconds.json", lambda content: content["rungs"].pop("01-static"))


def _more_files(folder: Path) -> None:
    (folder / "rungs" / "09-embed").mkdir()
    (folder / "rungs" / "09-embed" / "rank0.log").write_text("done\n")
    listed = {"path": "rungs/09-embed/rank0.log", "size": 0, "sha256": SHA, "media-type": "text/plain", "what": "a log"}
    edit(folder, MANIFEST, lambda content: content["files"].append(listed))
    edit(folder, MANIFEST, lambda content: content["files"].sort(key=lambda one: one["path"]))


CAREFUL: dict[str, tuple[Callable[[Path], None], int]] = {
    "a status that was changed": (_status("failed"), 1),
    "a rung that was left out of the record": (record(lambda content: content["rungs"].pop(1)), 1),
    "an exit code that was not 0": (record(lambda content: content["rungs"][1]["exit_codes"].update({"1": 1})), 1),
    "a rung that was left out with all of its traces": (_without_static, 1),
    "files of a rung that the record does not have": (_more_files, 1),
    "a rung that has another number": (row(folder="rungs/09-collective"), 1),
    "shared memory that was left behind": (row(shared_memory_left=[{"name": "x", "size_bytes": 1 << 30}]), 1),
    "device memory that was not given back": (row(device_memory={"before": [0], "after": [80 << 30]}), 1),
    "processes that were left behind": (row(left_behind=[{"pid": 1, "name": "x"}]), 1),
    "a record of another env": (record(lambda content: content.update(env="demo/other")), 1),
    "a record of another year": (record(lambda content: content.update(started="1999-01-01T00:00:00+00:00")), 1),
    "a record that took longer": (record(lambda content: content.update(seconds=9999)), 1),
    "a record of no time": (record(lambda content: content.update(seconds=10**400)), 1),
    "no host": (lambda folder: (folder / "host.toml").write_text("") and None, 1),
    "no launch": (lambda folder: (folder / "launch.json").write_text("{}") and None, 1),
    "a launch that sets less": (lambda folder: edit(folder, "launch.json", lambda one: one["set"].clear()), 1),
    "no words of verify": (lambda folder: (folder / "verify.txt").write_text("") and None, 1),
    "other words of verify": (lambda folder: (folder / "verify.txt").write_text("fine\n") and None, 1),
    "a report of nothing": (lambda folder: (folder / "verify.json").write_text('{"findings": []}') and None, 1),
    "a device that no answer says": (row(device="cuda:0 NVIDIA H200 141 GB"), 1),
    "figures that no answer says": (row(figures={"all_reduce_gb_per_s": 900.0}), 1),
    "figures of a rank that no answer says": (row(figures_of_ranks={"1": {"all_reduce_gb_per_s": 1.0}}), 1),
    "statements that no answer says": (row(statements=[{"rank": 1, **said("x", "ok")}]), 1),
    "identities that no answer says": (row(identities={"model": {}}), 1),
    "figures of an answer": (_answer(lambda content: content["figures"].update(ranks=8)), 1),
    "true instead of 1": (_answer(lambda content: content["figures"].update(ranks=2.0)), 1),
    "an answer of another form": (_answer(lambda content: content.update(device=None)), 1),
    "a verdict that is none": (_answer(lambda content: content["statements"].append(said("x", "Failed"))), 1),
    "a verdict that is a list": (
        _answer(lambda content: content["statements"].append({**said("x", "ok"), "verdict": ["failed"]})),
        1,
    ),
    "a signal with exit code 0": (row(ends={"0": "exit code 0", "1": "signal SIGSEGV"}), 1),
    "a rank without an end": (row(ends={"0": "exit code 0"}), 1),
    "more ranks than exit codes": (row(ranks=8), 1),
    "a first error of a rung that passed": (row(first_error={"file": "rank0.log", "line": 1, "text": "boom"}), 1),
    "an exit code that is a truth value": (row(exit_codes={"0": False, "1": False}), 1),
    "another command line": (row(argv=["bin/python", "-c", "pass"]), 1),
    "another kind's command line": (
        record(lambda content: content["rungs"][1].update(argv=content["rungs"][2]["argv"])),
        1,
    ),
    "seconds that no float holds": (row(seconds=10**400), 1),
    "a rank that never ended": (record(lambda content: content["rungs"][1]["exit_codes"].update({"1": None})), 1),
    "a rung without exit codes": (record(lambda content: content["rungs"][1].update(exit_codes={})), 1),
    "a rank that never answered": (record(lambda content: content["rungs"][1]["exit_codes"].update({"2": 0})), 1),
    "a statement against a rung": (_answer(lambda content: content["statements"].append(said("x", "failed"))), 1),
    "a statement against it in the record": (
        record(lambda content: content["rungs"][1]["statements"].append(said("x", "inconclusive"))),
        1,
    ),
    "a result of its own": (record(lambda content: content.update(result="failed")), 1),
    "an error that was found in it": (
        record(lambda content: content["findings"].append({"check": "collective", "severity": "error"})),
        1,
    ),
    "seconds that do not fit": (record(lambda content: content["rungs"][1].update(seconds=4000.0)), 1),
    "seconds below zero": (record(lambda content: content["rungs"][1].update(seconds=-1.0)), 1),
    "a record that is none": (lambda folder: (folder / "record.json").write_text("[]") and None, 1),
    "a record that is no JSON": (lambda folder: (folder / "record.json").write_text("{'a'}") and None, 1),
    "a summary that says more": (_text("SUMMARY.md", "| train-step | passed", "| train-step | failed"), 1),
    "a summary with a rung more": (
        _text("SUMMARY.md", "| train-", "| generate | passed | 1 | x | y |\n| train-"),
        1,
    ),
    "a summary with another result": (_text("SUMMARY.md", "Result: passed", "Result: failed"), 1),
    "a page that says more": (_text("SUMMARY.html", ">passed</span>", ">failed</span>"), 1),
    "errors that verify found": (lambda folder: edit(folder, "verify.json", _finding), 1),
    "other models": (lambda folder: edit(folder, "identities.json", lambda content: content.clear()), 1),
    "other seconds": (lambda folder: edit(folder, "seconds.json", lambda content: content["rungs"].clear()), 1),
    "a manifest with another result": (_text(MANIFEST, '"result":"passed"', '"result":"failed"'), 1),
    "a run that ended before it started": (_text(MANIFEST, '"ended":"20', '"ended":"19'), 1),
    "another lock": (_text("env/pylock.toml", 'version = "2.0"', 'version = "2.1"'), 5),
    "a comment in the lock": (_text("env/pylock.toml", "\n", "\n# x\n"), 5),
    "a lock that is none": (lambda folder: (folder / "env" / "pylock.toml").write_text("x = [") and None, 5),
    "another launch table": (_text("env/receipt.json", '"DEMO_MODE": "on"', '"DEMO_MODE": "off"'), 5),
    "a receipt that is none": (lambda folder: (folder / "env" / "receipt.json").write_text("{}") and None, 1),
    "other patches": (lambda folder: edit(folder, "patches.json", lambda content: content.pop()), 5),
    "a patch with another sum": (
        lambda folder: edit(
            folder, "patches.json", lambda content: content[0]["series"][0]["patches"][0].update(sha256="0" * 64)
        ),
        5,
    ),
    "a bill without a package": (
        lambda folder: edit(
            folder,
            "sbom.cdx.json",
            lambda content: content.update(components=[one for one in content["components"] if one["name"] != "beta"]),
        ),
        5,
    ),
    "a bill with another digest": (
        lambda folder: edit(
            folder,
            "sbom.cdx.json",
            lambda content: [
                one["hashes"][0].update(content="0" * 64) for one in content["components"] if one["name"] == "beta"
            ],
        ),
        5,
    ),
    "a bill that is none": (lambda folder: (folder / "sbom.cdx.json").write_text("{}") and None, 1),
    "a fingerprint of another env": (
        lambda folder: (
            (folder / MANIFEST).write_text(
                json.dumps(json.loads((folder / MANIFEST).read_text()) | {"fingerprint": "0" * 64}, sort_keys=True)
            )
            and None
        ),
        5,
    ),
}


@pytest.mark.parametrize("kind", CAREFUL)
def test_files_that_were_changed_with_care_do_not_agree_with_each_other(kind: str, copy: Path) -> None:
    from envsmith.commands.evidence import inspect_evidence
    from envsmith.commands.screen import Screen

    change, exit_code = CAREFUL[kind]
    change(copy)
    reseal(copy)
    with pytest.raises(EnvsmithError) as caught:
        inspect_evidence(str(copy), check=True, trust=None, expect=None, screen=Screen(quiet=True))
    assert caught.value.exit_code == exit_code, str(caught.value)
    found = {one.code for one in caught.value.problems}
    assert found <= {"evidence-inconsistent", "evidence-identity-differs", "evidence-summary-differs"}
    assert ("evidence-identity-differs" in found) == (exit_code == 5)


PAGES: dict[str, Callable[[Path], None]] = {
    "a part more": _text("SUMMARY.md", "## How to check", "## Devices\n\n- All ran on 8 x H200\n\n## How to check"),
    "another digit": _text("SUMMARY.md", "311.2", "911.2"),
    "a script": _text("SUMMARY.html", "</main>", "<script src=//evil.example/x.js></script></main>"),
    "a frame": _text("SUMMARY.html", "</main>", "<iframe src=//evil.example></iframe></main>"),
    "nothing": lambda folder: (folder / "SUMMARY.md").write_text("") and None,
}


@pytest.mark.parametrize("kind", PAGES)
def test_a_page_that_the_other_files_do_not_give_is_found(kind: str, copy: Path) -> None:
    PAGES[kind](copy)
    reseal(copy)
    found = inspect(copy, "--check")
    assert (found.code, codes(found)) == (1, {"evidence-summary-differs"})


def test_pages_of_another_version_are_held_against_what_they_have_to_state(copy: Path) -> None:
    for name in ("SUMMARY.md", "SUMMARY.html"):
        (copy / name).write_text((copy / name).read_text() + "\n")
    edit(copy, MANIFEST, lambda content: content.update(envsmith="0.0.1"))
    reseal(copy)
    assert inspect(copy, "--check").code == 0
    (copy / "SUMMARY.md").write_text("fine\n")
    reseal(copy)
    assert codes(inspect(copy, "--check")) == {"evidence-summary-differs"}


def test_documents_that_no_memory_should_hold_are_not_read(copy: Path) -> None:
    for name in ("record.json", "identities.json", "seconds.json"):
        os.truncate(copy / name, 50 << 20)
    reseal(copy)
    found = inspect(copy, "--check")
    assert (found.code, codes(found)) == (5, {"evidence-too-large"})


def test_a_folder_that_was_changed_with_care_has_another_digest(copy: Path) -> None:
    before = inspect(copy).json["data"]["digest"]
    (copy / "rungs" / "02-collective" / "rank0.log").write_text("other\n")
    reseal(copy)
    assert inspect(copy, "--check").code == 0
    assert codes(inspect(copy, "--expect", before)) == {"evidence-unexpected"}


# hostile folders


def _huge(folder: Path) -> None:
    (folder / MANIFEST).write_bytes(b" " * (5 << 20))


def _outside(folder: Path) -> None:
    (folder / MANIFEST).write_text((folder / MANIFEST).read_text().replace('"launch.json"', '"../x.json"'))


def _deep(folder: Path) -> None:
    place = folder
    for _ in range(60):
        place = place / "d"
    place.mkdir(parents=True)


def _sparse(folder: Path) -> None:
    os.truncate(folder / MANIFEST, 1 << 36)


def _swap_folder(folder: Path) -> None:
    (folder / "env").rename(folder.parent / "elsewhere")
    (folder / "env").symlink_to(folder.parent / "elsewhere")


HOSTILE: dict[str, Callable[[Path], Any]] = {
    "a manifest of spaces": _huge,
    "a manifest of 64 GiB of nothing": _sparse,
    "a path that leads out": _outside,
    "deep folders": _deep,
    "a folder that is a link": _swap_folder,
    "a manifest that is a pipe": lambda folder: ((folder / MANIFEST).unlink(), os.mkfifo(folder / MANIFEST)),
    "a manifest that is a link": lambda folder: (
        (folder / MANIFEST).rename(folder.parent / "m"),
        (folder / MANIFEST).symlink_to(folder.parent / "m"),
    ),
    "a manifest that is a folder": lambda folder: ((folder / MANIFEST).unlink(), (folder / MANIFEST).mkdir()),
    "no UTF-8": lambda folder: (folder / MANIFEST).write_bytes(b'{"a": "\xff"}'),
    "a key twice": lambda folder: (folder / MANIFEST).write_text('{"files":[],"files":[]}'),
    "a name that is no text": lambda folder: Path(os.fsdecode(os.fsencode(folder) + b"/\xff\x1b[31m")).write_text(""),
    "a pipe beside": lambda folder: os.mkfifo(folder / "pipe"),
    "a signature that is a pipe": lambda folder: os.mkfifo(folder / SIGNATURE),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_folder_is_one_clear_error_in_no_time(kind: str, copy: Path) -> None:
    HOSTILE[kind](copy)
    started = time.monotonic()
    for words in ((), ("--check",)):
        found = inspect(copy, *words)
        assert found.code == 5, found.out
        assert all(code.startswith("evidence-") for code in codes(found))
    assert time.monotonic() - started < 100
    plain = envsmith("inspect", str(copy), cwd=copy.parent)
    assert "\x1b" not in plain.err
    assert plain.err.startswith("error[evidence-")


@pytest.mark.parametrize("name", ["record.json", "identities.json", "verify.json", "rungs/02-collective/answer.0.json"])
@pytest.mark.parametrize(
    "data",
    [b"[" * 100_000, b'{"a":1,"a":2}', b'{"a":"\xff"}', b"NaN", b"1e999", b'"\\ud800"'],
    ids=["deep", "a key twice", "no UTF-8", "no number", "too large a number", "half a pair"],
)
def test_hostile_json_with_a_good_digest_is_a_clear_error(name: str, data: bytes, copy: Path) -> None:
    from envsmith.commands.evidence import inspect_evidence
    from envsmith.commands.screen import Screen

    (copy / name).write_bytes(data)
    reseal(copy)
    with pytest.raises(EnvsmithError) as caught:
        inspect_evidence(str(copy), check=True, trust=None, expect=None, screen=Screen(quiet=True))
    codes = {one.code for one in caught.value.problems}
    assert "evidence-inconsistent" in codes and codes <= {"evidence-inconsistent", "evidence-summary-differs"}


# signatures


@pytest.fixture
def key(tmp_path: Path) -> Path:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen here")
    path = tmp_path / "key"
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "me", "-f", path]
    subprocess.run(argv, check=True, timeout=60)
    return path


def test_evidence_is_signed_and_trust_is_the_readers(built: Any, key: Path, tmp_path: Path) -> None:
    written(tmp_path / "e", material(env_of(built.envs), good_run(tmp_path / "run"), key=key))
    (tmp_path / "mine").write_text(f'me namespaces="{NAMESPACE}" {key.with_suffix(".pub").read_text()}')
    (tmp_path / "bundles").write_text(f'me namespaces="envsmith-bundle" {key.with_suffix(".pub").read_text()}')
    good = inspect(tmp_path / "e", "--check", "--trust", str(tmp_path / "mine"))
    assert (good.code, good.json["data"]["signature"]["who"]) == (0, "me")
    assert codes(inspect(tmp_path / "e", "--trust", str(tmp_path / "bundles"))) == {"signature-untrusted"}
    assert inspect(tmp_path / "e", "--check").code == 0
    flip(tmp_path / "e" / SIGNATURE)
    assert inspect(tmp_path / "e", "--check").code == 5
    (tmp_path / "e" / SIGNATURE).unlink()
    assert codes(inspect(tmp_path / "e", "--trust", str(tmp_path / "mine"))) == {"evidence-unsigned"}
    argv = ["ssh-keygen", "-q", "-Y", "sign", "-n", NAMESPACE, "-f", key, MANIFEST]
    subprocess.run(argv, cwd=tmp_path / "e", check=True, timeout=60, capture_output=True)
    assert inspect(tmp_path / "e", "--check", "--trust", str(tmp_path / "mine")).code == 0
    (tmp_path / "e" / "rungs" / "02-collective" / "rank0.log").write_text("other\n")
    reseal(tmp_path / "e")
    assert codes(inspect(tmp_path / "e", "--check")) == {"signature-wrong"}
