"""References to bundles in OCI registries: `oci://host:port/repository:tag` or `oci://host:port/repository@sha256:…`.

Parses and prints; it asks nobody. A password in a reference is refused and never shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from envsmith.errors import InputError, Problem

SCHEME = "oci://"
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?)(:[0-9]{1,5})?")
#: Source: OCI distribution spec v1.1, "Pulling manifests": `<name>` and `<reference>` (read 2026-11-30).
_REPOSITORY = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
#: What was meant as a digest, right or wrong.
_DIGEST_TAIL = re.compile(r"@sha[0-9]+:[0-9A-Za-z]*\Z")
#: The same text asks clients for host and repository of at most 255 characters together.
_LONGEST = 255


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """Where a bundle is; it has a tag or a digest, never both."""

    host: str
    """Host with its port where one was given, in lower case."""
    repository: str
    tag: str | None = None
    digest: str | None = None
    """`sha256:` and 64 digits."""

    @property
    def name(self) -> str:
        """The tag or digest by which the registry is asked."""
        return self.digest or self.tag or ""

    def __str__(self) -> str:
        return f"{SCHEME}{self.host}/{self.repository}{'@' if self.digest else ':'}{self.name}"


def parse_reference(text: str) -> Reference:
    """Read what a user typed.

    Raises:
        InputError: `oci-reference-malformed`, once for everything that is wrong.
    """
    host, rest = _host_and_rest(text)
    repository, tag, digest = _split(rest)
    faults = [*_host_faults(host), *_repository_faults(host, repository)]
    faults += _name_faults(tag, digest) if repository else ()
    if faults:
        raise InputError(*(_malformed(text, fault, hint) for fault, hint in faults))
    return Reference(host=host.lower(), repository=repository, tag=tag, digest=digest)


def is_repository(text: str) -> bool:
    """Say whether a registry takes this as the name of a repository."""
    return bool(_REPOSITORY.fullmatch(text))


def is_tag(text: str) -> bool:
    """Say whether a registry takes this as a tag."""
    return bool(_TAG.fullmatch(text))


def is_digest(text: str) -> bool:
    """Say whether this is a digest as we use them: `sha256:` and 64 lower-case digits."""
    return bool(_DIGEST.fullmatch(text))


def _host_and_rest(text: str) -> tuple[str, str]:
    """Cut off scheme and host; what is not even that far right is refused here, alone."""
    scheme, separator, tail = text.partition("://")
    hint = "write oci://HOST:PORT/REPOSITORY:TAG; whether http or https is spoken is not part of a reference"
    if _before_at(text):
        hint = "credentials come from the docker or podman config: log in there, and leave user and password out here"
        raise InputError(_malformed(text, "an `@` stands in it that no digest follows", hint))
    if not separator:
        raise InputError(_malformed(text, "it does not begin with `oci://`", hint))
    if scheme != "oci":
        raise InputError(_malformed(text, f"it begins with `{scheme[:20]}://` and not with `oci://`", hint))
    host, _, rest = tail.partition("/")
    return host, rest


def _before_at(text: str) -> str:
    """Return what stands before an `@` that no digest follows: it may be a password, with slashes too."""
    without_digest = _DIGEST_TAIL.sub("", text)
    return without_digest.rpartition("@")[0]


def _split(rest: str) -> tuple[str, str | None, str | None]:
    """Return repository, tag and digest as they are written; a digest holds a colon, a tag never a slash."""
    named, at, digest = rest.partition("@")
    repository, colon, tag = named.partition(":")
    return repository, tag if colon else None, digest if at else None


def _host_faults(host: str) -> Iterator[tuple[str, str]]:
    example = "an example: oci://registry.site:5000/envs/a100:3"
    match = _HOST.fullmatch(host)
    if not host:
        yield "it has no host", example
    elif not match:
        yield f"`{host}` is not a host with an optional port", example
    elif match[3] and not 0 < int(match[3][1:]) < 65536:
        yield f"`{match[3][1:]}` is not a port", "ports are 1 to 65535"


def _repository_faults(host: str, repository: str) -> Iterator[tuple[str, str]]:
    if not repository:
        yield "it has no repository", "name one behind the host: oci://HOST:PORT/REPOSITORY:TAG"
    elif repository != repository.lower() and is_repository(repository.lower()):
        yield f"the repository `{repository}` has upper-case letters", f"write `{repository.lower()}`"
    elif not is_repository(repository):
        hint = "its parts between slashes are lower-case letters and digits, with single `.`, `_`, `__` or `-` between"
        yield f"`{repository}` is not the name of a repository", hint
    elif len(host) + 1 + len(repository) > _LONGEST:
        yield f"host and repository have more than {_LONGEST} characters", "choose a shorter repository"


def _name_faults(tag: str | None, digest: str | None) -> Iterator[tuple[str, str]]:
    if tag is None and digest is None:
        yield "it has neither tag nor digest", "add `:TAG`, such as `:3`; none is assumed, not even `latest`"
    elif tag is not None and digest is not None:
        yield "it has a tag and a digest", "keep the digest: it says exactly which bundle is meant"
    elif tag is not None and not is_tag(tag):
        yield f"`{tag[:140]}` is not a tag", "a tag has at most 128 letters, digits, `_`, `.` and `-`"
    elif digest is not None and not is_digest(digest):
        yield f"`{digest[:80]}` is not a digest", "a digest is `sha256:` and 64 lower-case hexadecimal digits"


def _malformed(text: str, fault: str, hint: str) -> Problem:
    shown = _shown(text)
    message = f"`{shown}` is not a reference to a bundle in a registry: {fault}"
    return Problem(code="oci-reference-malformed", message=message, hint=hint)


def _shown(text: str) -> str:
    secret = _before_at(text)
    scheme = SCHEME if text.startswith(SCHEME) else ""
    return (f"{scheme}***{text[len(secret) :]}" if secret else text)[:300]
