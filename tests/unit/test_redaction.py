"""Secrets are cut wherever they can be recognised, and what a reader needs is not."""

from __future__ import annotations

import time

import pytest
from hypothesis import given

from envsmith.redaction import CUT, READ, for_paper, holds_secret, redacted, short_path, without_secrets
from tests.support.reports import PLANTED, finding

#: The home of the administrator; no file of ours names it as it stands.
ADMIN = "/" + "root"


@given(PLANTED)
def test_a_planted_secret_is_cut(planted: tuple[str, str]) -> None:
    secret, text = planted
    assert secret not in redacted(text)
    assert secret not in for_paper(text)


@given(PLANTED)
def test_cutting_twice_cuts_no_more(planted: tuple[str, str]) -> None:
    assert redacted(redacted(planted[1])) == redacted(planted[1])


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'qwen3_5'",
        "undefined symbol: _ZN3c1013MessageLoggerC1EPKciibRKNS_10ArrayRefIlEE12V3x9QpLmZ",
        "TOKENIZERS_PARALLELISM=false",
        "sha256:a3845ca44927c7c4c94e5b8a0a3845ca44927c7c4c94e5b8a0a3845ca449270f",
        "keyring==25.6.0 and azure-keyvault==4.10.0",
        "https://git.example/verl-project/verl@1bf9d2d76c244238e8219531c582819a6b407d47",
        "http://127.0.0.1:8080/pkg@1.0",
        "lib/python3.11/site-packages/torch/_C.cpython-311-x86_64-linux-gnu.so",
        "flask-sqlalchemy-extensions-2 and hf_transfer_download_manager_v2 and pypi-mirror-of-this-site-2",
        "Qwen3-5-A22B-Instruct-2507-FP8-Int4-AWQ-v2",
        "vllm-0.18.0-cp38-abi3-manylinux_2_31_x86_64.whl",
        "TestDistributedDataParallelForCausalLMWithAdamW8Bit",
        "/data/envs/a100-rl/3f2a9c1be04d/bin/python",
    ],
)
def test_what_a_reader_needs_stays(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "api_key",
        "MYSECRETS",
        "spawn: DB_PASSWORD",
        "apikey",
        "MYSQL_PWD",
        "DB_PASS",
        "GH_PAT",
        "AUTH",
        "BASIC_AUTH",
        "SITE_COOKIE",
        "SITE_SESSION",
        "pw",
    ],
)
def test_a_variable_with_a_secret_is_known_by_its_name(name: str) -> None:
    assert holds_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "keyring",
        "tokenizers",
        "LD_LIBRARY_PATH",
        "directory",
        "PWD",
        "OLDPWD",
        "PATH",
        "XDG_SESSION_TYPE",
        "SSH_AUTH_SOCK",
        "forward_pass_ms",
        "session_dir",
        "author",
        "patch",
    ],
)
def test_other_names_hide_nothing(name: str) -> None:
    assert not holds_secret(name)


def test_values_of_a_secret_variable_are_cut_from_the_whole_finding() -> None:
    shown = without_secrets(
        finding(
            subject="spawn/HF_TOKEN", message="`HF_TOKEN` is hunter2 here", expected="correct horse", actual="hunter2"
        )
    )
    assert (shown.message, shown.expected, shown.actual) == (f"`HF_TOKEN` is {CUT} here", CUT, CUT)


@pytest.mark.parametrize(
    "text",
    [
        "MYSQL_PWD=hunter2", "export DB_PASS='hunter2'", "GH_PAT: hunter2", "AUTH=hunter2", "x --pw=hunter2 y",
        "x --pw hunter2 y", "my_session_id=hunter2", "https://hooks.slack.com/services/T0/B0/hunter2",
        "https://discord.com/api/webhooks/12/hunter2", "https://a.webhook.example/webhookb2/hunter2",
    ],
)  # fmt: skip
def test_a_secret_after_a_short_name_and_in_a_webhook_is_cut(text: str) -> None:
    assert "hunter2" not in redacted(text)
    assert redacted(redacted(text)) == redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "PWD=/data/run", "PATH=/usr/bin", "PASS: test_one", "session: started", "session_dir=/tmp/ray/session_1",
        "forward_pass_ms: 12.5", "author: someone", "patch: a.patch", "https://a.example/hooks.py",
    ],
)  # fmt: skip
def test_words_that_only_look_like_such_names_stay(text: str) -> None:
    assert redacted(text) == text


def test_a_file_whose_name_holds_a_word_keeps_its_digests() -> None:
    shown = without_secrets(finding(subject="lib/site-packages/app/api_key.py", expected="sha256:a3845ca44927"))
    assert shown.expected == "sha256:a3845ca44927"


@pytest.mark.parametrize(
    ("text", "paper"),
    [
        ("/home/alice/old/lib", "~/old/lib"),
        ("/mnt/nfs/home/alice.b/x", "~/x"),
        (f"{ADMIN}/y:{ADMIN}", "~/y:~"),
        (f"{ADMIN}fs/a", f"{ADMIN}fs/a"),
        ("in `/Users/alice`", "in `~`"),
        ("lib/home/alice/x.py", "lib/home/alice/x.py"),
        ("sha256:a3845ca44927c7c4c94e5b8a0", "sha256:a3845ca44927"),
        ("tree 1bf9d2d76c244238e8219531c582819a6b407d47", "tree 1bf9d2d76c24"),
    ],
)
def test_paper_names_no_people_and_no_long_digest(text: str, paper: str) -> None:
    assert for_paper(text) == paper


def test_the_middle_of_a_long_path_is_cut_and_its_last_components_stay() -> None:
    path = "/data/envs/a100-rl/3f2a9c1be04d/lib/python3.11/site-packages/ray/_private/worker.py"
    assert short_path(path, 40) == "/data/.../ray/_private/worker.py"
    assert short_path("a/b/c", 3) == "a/b/c"
    assert len(for_paper(path)) <= 48


@pytest.mark.parametrize("piece", ["://a:", "KEY", "a/", "--token ", "Ab1", "@", "://x@", "KEY=", "'", "home/"])
def test_a_huge_text_is_read_in_bounded_time(piece: str) -> None:
    started = time.perf_counter()
    shown = for_paper(piece * (2_000_000 // len(piece)))
    assert time.perf_counter() - started < 2
    assert len(shown) < READ * 2


def test_a_secret_at_the_place_of_the_cut_is_not_shown_in_part() -> None:
    for shift in range(80):
        text = " " * (READ - 64 - shift) + "https://user:hunter2hunter2@mirror.example/" + "x" * 100
        assert "hunter2" not in redacted(text)
