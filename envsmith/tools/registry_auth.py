"""Who may do what at a registry: logins that docker and podman keep, challenges, and the tokens that answer them.

A password goes to the registry's own origin and to the token server it names, nowhere else, and into no message.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from envsmith.errors import InputError, Problem, SupplyError
from envsmith.tools.files import filesystem
from envsmith.tools.process import run
from envsmith.tools.transport import refuse_downgrade, without_secrets

_HELPER_S = 60.0
#: Source: distribution's "Token Authentication Specification": a token without `expires_in` lasts 60 s
#: (read 2026-11-30).
_USUAL_LIFE_S = 60.0
_TOKEN_TEXT = re.compile(r"[\x21-\x7e]+")
_PARAMETER = re.compile(r"([\w!#$%&'*+.^`|~-]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s,\"]+))")
_SCHEME = re.compile(r"[\w!#$%&'*+.^`|~-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """What one file or credential helper knows for a registry."""

    user: str
    password: str = field(repr=False)
    identity_token: str = field(default="", repr=False)
    """An OAuth2 refresh token, kept instead of a password."""
    origin: str
    """The file, for messages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenQuestion:
    """One request to a token server: a GET, or a POST where there is a form."""

    url: str
    basic: str | None = field(default=None, repr=False)
    """The Authorization header, where a password may be sent."""
    form: Mapping[str, str] | None = field(default=None, repr=False)


def find_login(host: str, repository: str, environ: Mapping[str, str]) -> Login | None:
    """Return the login for a repository from the first file that has one; the longest key of a file wins.

    Asked in this order: `$REGISTRY_AUTH_FILE`, docker's config.json, podman's two auth.json. Source of the forms:
    containers-auth.json(5) and docker's "docker login" page (read 2026-11-30).

    Raises:
        InputError: `registry-config-malformed`.
        SupplyError: `credential-helper-failed`, or what `filesystem` raises.
        StepError: `program-missing` or `program-timeout` of a credential helper.
    """
    parts = repository.split("/")
    keys = [host, *("/".join((host, *parts[:count])) for count in range(1, len(parts) + 1))][::-1]
    for path in _files(environ):
        config = _read(path)
        login = _login_of(config, keys, host, path, environ)
        if login:
            return login
    return None


def parse_challenges(header: str) -> list[tuple[str, dict[str, str]]]:
    """Read a WWW-Authenticate header: schemes in lower case, each with its parameters."""
    found: list[tuple[str, dict[str, str]]] = []
    position = 0
    while position < len(header):
        if found and (match := _PARAMETER.match(header, position)):
            quoted, bare = match[2], match[3]
            found[-1][1][match[1].lower()] = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else bare
        elif match := _SCHEME.match(header, position):
            found.append((match[0].lower(), {}))
        position = match.end() if match else position + 1
    return found


def basic(user: str, password: str) -> str:
    """Return the value of an Authorization header."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Keyring:
    """The Authorization headers for one registry, shared by many threads: they get each token once."""

    def __init__(
        self, site: str, find: Callable[[], Login | None], ask: Callable[[TokenQuestion], Mapping[str, Any]]
    ) -> None:
        """`find` is called when the registry first asks who we are, `ask` carries a question to the token server."""
        self._site = site
        self._find = find
        self._ask = ask
        self._gate = threading.Lock()
        self._login: Login | None = None
        self._searched = False
        self._basic: str | None = None
        self._realm: tuple[str, str] | None = None
        self._tokens: dict[tuple[str, ...], tuple[str, float]] = {}

    def header(self, scopes: tuple[str, ...]) -> str | None:
        """Return the header for a request, as far as the registry has asked for one; an old token is replaced."""
        with self._gate:
            if self._basic or not self._realm or scopes not in self._tokens:
                return self._basic
            text, until = self._tokens[scopes]
            return text if time.monotonic() < until else self._new_token(scopes)

    def answer(self, challenges: str, scopes: tuple[str, ...], refused: str | None) -> str | None:
        """Return the header that answers a 401, which was given although `refused` had been sent; None without one.

        Raises:
            SupplyError: `registry-unauthorized` by the token server, `registry-answer-malformed`, `redirect-refused`.
            Temporary: the token server fails for now.
        """
        with self._gate:
            current = self._basic or self._tokens.get(scopes, (None,))[0]
            if current and current != refused:
                return current  # another thread has answered meanwhile
            known = dict(reversed(parse_challenges(challenges)))
            if "realm" in known.get("bearer", {}):
                self._realm = known["bearer"]["realm"], known["bearer"].get("service", "")
                return self._new_token(scopes)
            login = self.login()
            if "basic" in known and refused is None and login and login.password:
                self._basic = basic(login.user, login.password)
                return self._basic
            return None

    def login(self) -> Login | None:
        """Return the login, looked for once."""
        if not self._searched:
            self._login, self._searched = self._find(), True
        return self._login

    def _new_token(self, scopes: tuple[str, ...]) -> str:
        answer = self._ask(self._question(scopes))
        token = answer.get("token") or answer.get("access_token")
        if not isinstance(token, str) or not _TOKEN_TEXT.fullmatch(token):
            realm = without_secrets(self._realm[0] if self._realm else "")
            message = f"the token server `{realm}` answered without a token"
            raise SupplyError(Problem(code="registry-answer-malformed", message=message, where=realm))
        lasts = answer.get("expires_in")
        life = float(lasts) if isinstance(lasts, int) and 0 < lasts < 1 << 31 else _USUAL_LIFE_S
        self._tokens[scopes] = f"Bearer {token}", time.monotonic() + life - min(10.0, life / 5)
        return self._tokens[scopes][0]

    def _question(self, scopes: tuple[str, ...]) -> TokenQuestion:
        realm, service = self._realm or ("", "")
        try:
            parts = urlsplit(realm)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:
            usable = False
        if not usable:
            message = f"the registry names a token server that is no URL: `{without_secrets(realm)[:200]}`"
            raise SupplyError(Problem(code="registry-answer-malformed", message=message, where=self._site))
        refuse_downgrade(self._site, realm)
        login = self.login()
        if login and not (parts.scheme == "https" or parts.hostname == urlsplit(self._site).hostname):
            login = None  # an open connection to a third party
        if login and login.identity_token:
            form = {"grant_type": "refresh_token", "service": service, "client_id": "envsmith"}
            form |= {"refresh_token": login.identity_token, "scope": " ".join(scopes)}
            return TokenQuestion(url=realm, form=form)
        query = urlencode([("service", service)] * bool(service) + [("scope", scope) for scope in scopes])
        header = basic(login.user, login.password) if login and login.password else None
        return TokenQuestion(url=f"{realm}{'&' if parts.query else '?'}{query}", basic=header)


def unauthorized(shown: str, said: str, login: Login | None) -> Problem:
    """State that a registry, or its token server, does not let us."""
    host = urlsplit(shown).netloc or shown
    if login:
        message = f"`{shown}` does not accept the login of `{login.user}` for this: {said}"
        hint = f"check what this user may do there, or log in again; the login is from {login.origin}"
    else:
        message = f"`{shown}` wants a login, and none is known for it: {said}"
        hint = f"`docker login {host}` or `podman login {host}`, or set DOCKER_CONFIG or REGISTRY_AUTH_FILE"
    return Problem(code="registry-unauthorized", message=message, where=shown, hint=hint)


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files that may hold logins and are there; one that is named outright must be there."""
    home = environ.get("HOME", "")
    if environ.get("REGISTRY_AUTH_FILE"):
        yield Path(environ["REGISTRY_AUTH_FILE"])
    settings = environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    folders = (
        (environ.get("DOCKER_CONFIG") or (f"{home}/.docker" if home else ""), "config.json"),
        (environ.get("XDG_RUNTIME_DIR", ""), "containers/auth.json"),
        (settings, "containers/auth.json"),
    )
    for folder, name in folders:
        if folder and (path := Path(folder, name)).is_file():
            yield path


def _read(path: Path) -> dict[str, Any]:
    with filesystem(path):
        content = path.read_bytes()
    try:
        config = json.loads(content)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise InputError(_malformed(path, "it is not a JSON object"))
    return config


def _login_of(
    config: Mapping[str, Any], keys: list[str], host: str, path: Path, environ: Mapping[str, str]
) -> Login | None:
    """Look into one file: a helper for this registry, then what the file holds, then its general helper."""
    helpers, auths = (
        {_plain(k): v for k, v in _table(config, name, path).items()} for name in ("credHelpers", "auths")
    )
    for key in keys:
        if helpers.get(key):
            return _ask_helper(helpers[key], key, path, environ)
    for key in keys:
        if key in auths and (login := _entry(auths[key], key, path)):
            return login
    return _ask_helper(config["credsStore"], host, path, environ) if config.get("credsStore") else None


def _table(config: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    found = config.get(name) or {}
    if not isinstance(found, dict):
        raise InputError(_malformed(path, f"`{name}` is not an object"))
    return found


def _plain(key: str) -> str:
    """Reduce the old form of a key, a URL such as `https://host/v1/`, to its host."""
    _, separator, rest = key.partition("://")
    return rest.partition("/")[0] if separator else key.rstrip("/")


def _entry(entry: object, key: str, path: Path) -> Login | None:
    """Read one entry of `auths`; docker leaves an empty one where a helper holds the secret."""
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise InputError(_malformed(path, f"the entry of `{key}` is not an object of texts"))
    user, password = entry.get("username", ""), entry.get("password", "")
    if entry.get("auth"):
        try:
            text = base64.b64decode(entry["auth"], validate=True).decode()
        except (binascii.Error, ValueError) as error:
            raise InputError(_malformed(path, f"`auth` of `{key}` is not base64 of UTF-8")) from error
        user, colon, password = text.partition(":")
        if not colon:
            raise InputError(_malformed(path, f"`auth` of `{key}` does not hold user:password"))
    token = entry.get("identitytoken", "")
    password = password.rstrip("\0")
    return Login(user=user, password=password, identity_token=token, origin=str(path)) if password or token else None


def _ask_helper(name: object, key: str, path: Path, environ: Mapping[str, str]) -> Login | None:
    """Ask a docker credential helper. Source: docker-credential-helpers, README, "Development" (read 2026-11-30)."""
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name, re.ASCII):
        raise InputError(_malformed(path, "the name of a credential helper is not one"))
    program = f"docker-credential-{name}"
    done = run((program, "get"), env=environ, timeout_s=_HELPER_S, stdin=key.encode())
    if done.returncode and "credentials not found" in (done.stdout + done.stderr).lower():
        return None
    try:
        answer = json.loads(done.stdout) if not done.returncode else None
        user, secret = answer["Username"], answer["Secret"]  # type: ignore[index]
    except (ValueError, KeyError, TypeError):
        user = secret = None
    if not isinstance(user, str) or not isinstance(secret, str):
        message = f"`{program}` gave no login for `{key}` (exit code {done.returncode})"
        hint = f"try `echo {key} | {program} get`; it is named in {path}"
        raise SupplyError(Problem(code="credential-helper-failed", message=message, where=str(path), hint=hint))
    if user == "<token>":
        return Login(user=user, password="", identity_token=secret, origin=f"{program}, named in {path}")
    return Login(user=user, password=secret, origin=f"{program}, named in {path}")


def _malformed(path: Path, fault: str) -> Problem:
    message = f"`{path.name}` holds no logins that can be used: {fault}"
    hint = "mend or remove it, then log in again with docker or podman"
    return Problem(code="registry-config-malformed", message=message, where=str(path), hint=hint)
