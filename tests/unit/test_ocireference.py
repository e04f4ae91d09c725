"""A reference is read exactly or refused in words that say what is wrong, and never shows a password."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsmith.errors import InputError
from envsmith.ocireference import Reference, is_digest, is_repository, parse_reference

DIGEST = "sha256:" + "0a" * 32


@pytest.mark.parametrize(
    ("text", "host", "repository", "name"),
    [
        ("oci://registry.site/envs:3", "registry.site", "envs", "3"),
        ("oci://Registry.Site:5000/a/b-c/d_e__f.g:v1.2_x-Y", "registry.site:5000", "a/b-c/d_e__f.g", "v1.2_x-Y"),
        ("oci://127.0.0.1:5000/envs:latest", "127.0.0.1:5000", "envs", "latest"),
        ("oci://[::1]:5000/envs:3", "[::1]:5000", "envs", "3"),
        (f"oci://registry.site/envs@{DIGEST}", "registry.site", "envs", DIGEST),
        (f"oci://h/{'a' * 253}:t", "h", "a" * 253, "t"),
        (f"oci://h/a:{'t' * 128}", "h", "a", "t" * 128),
        ("oci://h/a---b:_", "h", "a---b", "_"),
    ],
)
def test_a_reference_is_read(text: str, host: str, repository: str, name: str) -> None:
    read = parse_reference(text)
    assert (read.host, read.repository, read.name) == (host, repository, name)
    assert (read.digest is None) != (read.tag is None)
    assert parse_reference(str(read)) == read


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "does not begin with `oci://`"),
        ("registry.site/envs:3", "does not begin with `oci://`"),
        ("oci:folder:3", "does not begin with `oci://`"),
        ("https://registry.site/envs:3", "begins with `https://`"),
        ("docker://registry.site/envs:3", "begins with `docker://`"),
        ("OCI://registry.site/envs:3", "begins with `OCI://`"),
        ("oci://registry.site", "no repository"),
        ("oci://registry.site/", "no repository"),
        ("oci://registry.site/:3", "no repository"),
        ("oci:///envs:3", "no host"),
        ("oci://registry.site/Envs/A:3", "`Envs/A` has upper-case letters"),
        ("oci://registry.site/envs", "neither tag nor digest"),
        ("oci://registry.site/envs:", "`` is not a tag"),
        ("oci://registry.site/envs:a/b", "`a/b` is not a tag"),
        ("oci://registry.site/envs:.a", "`.a` is not a tag"),
        (f"oci://registry.site/envs:{'t' * 129}", "is not a tag"),
        ("oci://registry.site/envs:3?x=1", "`3?x=1` is not a tag"),
        ("oci://registry.site/envs:3#x", "is not a tag"),
        ("oci://registry.site/envs/:3", "`envs/` is not the name of a repository"),
        ("oci://registry.site//envs:3", "is not the name of a repository"),
        ("oci://registry.site/../envs:3", "is not the name of a repository"),
        ("oci://registry.site/a..b:3", "is not the name of a repository"),
        ("oci://registry.site/en vs:3", "is not the name of a repository"),
        ("oci://registry.site/%2e:3", "is not the name of a repository"),
        (f"oci://h/{'a' * 254}:t", "more than 255 characters"),
        ("oci://registry.site:0/envs:3", "`0` is not a port"),
        ("oci://registry.site:70000/envs:3", "`70000` is not a port"),
        ("oci://registry.site:x/envs:3", "is not a host"),
        ("oci://-registry/envs:3", "is not a host"),
        ("oci://regi stry/envs:3", "is not a host"),
        (f"oci://registry.site/envs:3@{DIGEST}", "a tag and a digest"),
        ("oci://registry.site/envs@sha256:00", "`sha256:00` is not a digest"),
        (f"oci://registry.site/envs@{DIGEST.upper().replace('SHA', 'sha')}", "is not a digest"),
        (f"oci://registry.site/envs@sha512:{'0' * 128}", "is not a digest"),
        (f"oci://registry.site/envs@{DIGEST}\n", "that no digest follows"),
        ("oci://registry.site/envs:3\n", "is not a tag"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_reference(text)
    (problem,) = caught.value.problems
    assert problem.code == "oci-reference-malformed"
    assert said in problem.message
    assert problem.hint


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        parse_reference("oci://registry.site:99999/Envs")
    said = " ".join(problem.message for problem in caught.value.problems)
    assert "99999" in said and "upper-case" in said and "neither tag" in said


@pytest.mark.parametrize("scheme", ["oci://", "https://", ""])
@pytest.mark.parametrize("tail", ["host/envs:3", "host", f"host/envs@{DIGEST}", "host:5000/envs:3", ""])
@pytest.mark.parametrize("secret", ["user:hunter2", "user:hunter2/x", "us/er:a@hunter2", "hunter2", "hunter2:"])
def test_a_password_is_refused_and_not_shown(scheme: str, tail: str, secret: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_reference(f"{scheme}{secret}@{tail}")
    assert "hunter2" not in str(caught.value)
    assert "docker or podman config" in (caught.value.problems[0].hint or "")


@given(st.text(max_size=60), st.sampled_from(["", "oci://", "oci://h/", "oci://h/r:", "oci://h/r@sha256:"]))
def test_any_text_is_read_back_or_refused(text: str, head: str) -> None:
    try:
        read = parse_reference(head + text)
    except InputError:
        return
    assert isinstance(read, Reference)
    assert parse_reference(str(read)) == read


def test_names_and_digests_are_judged() -> None:
    assert is_repository("a/b") and not is_repository("a/B")
    assert is_digest(DIGEST) and not is_digest(DIGEST + "\n") and not is_digest("sha256:" + "0A" * 32)
