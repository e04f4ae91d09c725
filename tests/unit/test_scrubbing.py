"""Secrets are cut out of whole logs and JSON values, counted, and what a reader needs stays."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsmith.redaction import CUT
from envsmith.scrubbing import Scrubber, known_secrets
from tests.support.reports import PLANTED, SECRET_WORDS

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXkt\nAAAAB3NzaC1yc2E\n-----END OPENSSH PRIVATE KEY-----"


@settings(max_examples=60)
@given(PLANTED, st.integers(0, 9000))
def test_a_secret_is_cut_wherever_in_a_log_it_stands(planted: tuple[str, str], before: int) -> None:
    secret, text = planted
    clean = Scrubber().text(f"{'some words ' * (before // 11)}{text}\nthe end\n")
    assert secret not in clean
    assert clean.endswith("the end\n")


@settings(max_examples=60)
@given(SECRET_WORDS, st.text(max_size=50))
def test_a_value_that_this_process_keeps_secret_is_cut_without_any_name(secret: str, around: str) -> None:
    scrubber = Scrubber(known_secrets({"HF_TOKEN": secret}))
    assert secret not in scrubber.text(f"{around}{secret}{around}")
    assert secret not in str(scrubber.value({around: [around + secret], secret: 1}))
    assert scrubber.count >= 1


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("machine host.example login me password hunter2xyz", "hunter2xyz"),
        ("machine host.example\n  login me\n  password hunter2xyz\n", "hunter2xyz"),
        ("{'Authorization': 'Basic dXNlcjpwYXNz'}", "dXNlcjpwYXNz"),
        ("(b'authorization', b'Basic dXNlcjpwYXNz')", "dXNlcjpwYXNz"),
        ("> Cookie: session=abc; other=hunter2xyz", "hunter2xyz"),
        ("\x1b[31mHF_TOKEN\x1b[0m=abcdefgh", "abcdefgh"),
        ("AWS id AKIAIOSFODNN7EXAMPLE in a log", "AKIAIOSFODNN7EXAMPLE"),
        (f"loaded\n{KEY}\nafter", "AAAAB3NzaC1yc2E"),
        (KEY.replace("\n", "\\n"), "AAAAB3NzaC1yc2E"),
        ("password: 12345678", "12345678"),
        ("x" * 9000 + " token=abcdefgh", "abcdefgh"),
    ],
)
def test_forms_of_secrets_in_logs_are_known(text: str, secret: str) -> None:
    scrubber = Scrubber()
    assert secret not in scrubber.text(text)
    assert scrubber.count >= 1


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 128, prompt_tokens=12 and tokens_per_s: 311.5",
        "pad_token='<|endoftext|>', eos_token_id=151643, use_key=True",
        "the password is wrong",
        "KeyError: 'qwen3_5'\n  File \"x.py\", line 3\n",
        "a\r\nb\rc\n\n",
        "step 1/3\tloss 4.25",
    ],
)
def test_what_a_reader_needs_of_a_log_stays(text: str) -> None:
    scrubber = Scrubber()
    assert (scrubber.text(text), scrubber.count) == (text, 0)


def test_numbers_and_digests_of_a_record_stay_and_values_under_secret_names_go() -> None:
    value: dict[str, Any] = {
        "max_tokens": 5,
        "special_tokens_map.json": "0123456789abcdef" * 4,
        "api_key": "hunter2xyz",
        "loss": float("nan"),
        "bound": float("-inf"),
        "ok": True,
        "none": None,
        "half": "\ud800",
    }
    clean = Scrubber().value(value)
    assert clean["api_key"] == CUT
    assert (clean["loss"], clean["bound"], clean["half"]) == ("nan", "-inf", "?")
    assert {key: clean[key] for key in ("max_tokens", "special_tokens_map.json", "ok", "none")} == {
        key: value[key] for key in ("max_tokens", "special_tokens_map.json", "ok", "none")
    }


def test_which_values_are_known_secrets() -> None:
    environ = {
        "HF_TOKEN": "longenough",
        "MAX_TOKENS": "1048576",
        "SHORT_KEY": "abc",
        "HTTPS_PROXY": "http://user:pa%20ss99@proxy.example:80",
        "PATH": "/usr/bin",
    }
    assert known_secrets(environ) == ("longenough", "pa%20ss99", "pa ss99")


@pytest.mark.parametrize("piece", ["a", "KEY=", "x y ", "-----BEGIN A PRIVATE KEY-----\n", "token ", "\r", "://a:"])
def test_a_large_log_is_read_in_bounded_time(piece: str) -> None:
    started = time.perf_counter()
    Scrubber(("hunter2xyz",)).text(piece * (1_000_000 // len(piece)))
    assert time.perf_counter() - started < 20
