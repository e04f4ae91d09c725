"""HTTP with one registry: logins, redirects, which failures may pass, answers of bounded size. No verb of the spec."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter

from envsmith.errors import Problem, SupplyError
from envsmith.tools.patience import Patient, Temporary
from envsmith.tools.registry_auth import Keyring, Login, TokenQuestion, unauthorized
from envsmith.tools.transport import (
    _LATER,
    _retry_after,
    _translated,
    refuse_downgrade,
    same_origin,
    without_secrets,
)

T = TypeVar("T")
_HOPS = 5
_ERROR_BYTES = 1 << 16
_JSON_BYTES = 1 << 22
#: How long a registry may think about a body it has got whole: it may hash it again, or hand it to another store.
_COMMIT_S = 300.0
#: Variables that name certificates to trust, the first one first: what requests reads by itself, then OpenSSL's.
_CERTIFICATES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
#: How OpenSSL 1.1 to 3.5 say that the other side spoke no TLS.
_NOT_TLS = ("wrong_version_number", "wrong version number", "http_request", "record layer failure", "packet_length")


class RegistrySession(Patient):
    """Connections to one registry for many threads. Use it as a context manager, so that they are closed."""

    def __init__(
        self,
        site: str,
        find: Callable[[], Login | None],
        *,
        environ: Mapping[str, str],
        timeout_s: float,
        attempts: int,
        backoff_s: float,
        sleep: Callable[[float], None],
    ) -> None:
        """`site` is scheme and host; `timeout_s` the longest silence; `sleep` may raise to end a wait early.

        Raises:
            SupplyError: `file-missing` when a variable names certificates that are not there.
        """
        self.site = site
        super().__init__(attempts=attempts, backoff_s=backoff_s, sleep=sleep)
        self._timeout_s = timeout_s
        self._keys = Keyring(site, find, self._get_token)
        self._verify = _certificates(environ)
        self._session = requests.Session()
        adapter = HTTPAdapter(pool_connections=8, pool_maxsize=32)
        self._session.mount("https://", adapter)
        self._session.mount("http://", adapter)

    def __enter__(self) -> RegistrySession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close()

    @contextlib.contextmanager
    def ask(
        self,
        method: str,
        url: str,
        scopes: tuple[str, ...],
        *,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> Iterator[requests.Response]:
        """Give the answer to one request, its body not yet read. A `body` must be able to be sent twice.

        Statuses below 500 but 401, 403, 408 and 429 are left to the caller.

        Raises:
            Temporary: a failure that may pass.
            SupplyError: `registry-unauthorized`, `registry-refused`, `registry-scheme-differs`, `redirect-refused`,
                `certificate-not-trusted` or `registry-answer-malformed`.
        """
        header = self._keys.header(scopes)
        response = self._follow(method, url, headers or {}, body, header)
        if response.status_code == 401 and same_origin(response.url, self.site):  # no other host is told who we are
            header = self._answered(response, scopes, header)
            if header:
                response = self._follow(method, url, headers or {}, body, header)
        with response, _translated(url):
            self._judge(response)
            yield response
            _drain(response)

    def give_up(self, url: str, failure: Temporary) -> SupplyError:
        """State that the registry does not answer."""
        shown = self.site if failure.connecting else without_secrets(url)
        message = f"`{shown}` could not be reached: {failure} ({self.attempts} attempts)"
        hint = "check network and proxy variables and run it again: what has arrived is kept"
        if failure.connecting and self.site.startswith("https:"):
            hint = "check host, port and proxy variables; a registry without TLS needs --plain-http"
        return SupplyError(Problem(code="registry-unreachable", message=message, where=shown, hint=hint))

    def location(self, response: requests.Response) -> str:
        """Return where an answer points to.

        Raises:
            SupplyError: `registry-answer-malformed` or `redirect-refused`.
        """
        try:
            target = urljoin(response.url, response.headers.get("Location", ""))
            usable = "Location" in response.headers and urlsplit(target).scheme in ("http", "https")
            usable = usable and bool(urlsplit(target).hostname)
        except ValueError:
            usable = False
        if not usable:
            raise SupplyError(malformed(response, "its Location is not a URL"))
        refuse_downgrade(response.url, target)
        return target

    def refusal(self, response: requests.Response, what: str) -> Problem:
        """State that the registry does not do what it was asked, in its own words where it has any."""
        shown, status = without_secrets(response.url), response.status_code
        said = _said(response)
        hint = None
        if status == 413:
            hint = "a proxy in front of the registry limits the size of a request: ask whoever runs it to raise it"
        message = f"the registry answered {status} to {what}{f': {said}' if said else ''}"
        return Problem(code="registry-refused", message=message, where=shown, hint=hint)

    def _answered(self, response: requests.Response, scopes: tuple[str, ...], refused: str | None) -> str | None:
        """Return the header that answers a 401, whose response is closed then; without one it is left to be judged."""
        try:
            header = self._keys.answer(response.headers.get("WWW-Authenticate", ""), scopes, refused)
        except BaseException:
            response.close()
            raise
        if header:
            _drain(response)
            response.close()
        return header

    def _judge(self, response: requests.Response) -> None:
        status = response.status_code
        if status >= 500 or status in _LATER:
            raise Temporary(f"answered {status}", after_s=_retry_after(response))
        if status == 400 and response.url.startswith("http:") and same_origin(response.url, self.site):
            self._notice_tls(response)
        if status in (401, 403) and same_origin(response.url, self.site):
            said = _said(response)
            raise SupplyError(unauthorized(self.site, f"{status}{f', {said}' if said else ''}", self._keys.login()))
        if status in (401, 403):
            raise SupplyError(self.refusal(response, "a request it was redirected to"))

    def _notice_tls(self, response: requests.Response) -> None:
        """Refuse what TLS servers say in the clear: Go's without a header, others as a page (seen 2026-11-30)."""
        if "Docker-Distribution-Api-Version" in response.headers or "json" in response.headers.get("Content-Type", ""):
            return
        message = f"`{self.site}` answered 400, as a server does that speaks TLS only"
        hint = "leave out --plain-http if this registry speaks https"
        raise SupplyError(Problem(code="registry-scheme-differs", message=message, where=self.site, hint=hint))

    def _follow(
        self, method: str, url: str, headers: Mapping[str, str], body: Any, authorization: str | None
    ) -> requests.Response:
        """Send a request, and again where it is pointed to; only the registry itself is sent the Authorization."""
        for _ in range(_HOPS):
            sent = dict(headers)
            if authorization and same_origin(url, self.site):
                sent["Authorization"] = authorization
            response = self._send(method, url, sent, body)
            if method not in ("GET", "HEAD") or response.status_code not in (301, 302, 303, 307, 308):
                return response
            with response:
                url = self.location(response)
                _drain(response)
        message = f"`{without_secrets(url)}` redirects more than {_HOPS} times"
        raise SupplyError(Problem(code="redirect-refused", message=message, where=without_secrets(url)))

    def _send(self, method: str, url: str, headers: Mapping[str, str], body: Any) -> requests.Response:
        # While a body is sent, the socket has the first of both limits, not the second (urllib3 2, read 2026-11-30).
        limits = (min(10.0, self._timeout_s), self._timeout_s)
        if body is not None:
            limits = (self._timeout_s, max(self._timeout_s, _COMMIT_S))
        with _translated(url), _plain_http_noticed(self.site):
            return self._session.request(
                method,
                url,
                headers={"Accept-Encoding": "identity", **headers},
                data=body,
                auth=_as_it_is,
                verify=self._verify,
                stream=True,
                allow_redirects=False,
                timeout=limits,
            )

    def _get_token(self, question: TokenQuestion) -> Mapping[str, Any]:
        headers = {"Authorization": question.basic} if question.basic else {}
        method = "POST" if question.form else "GET"
        response = self._send(method, question.url, headers, dict(question.form) if question.form else None)
        with response, _translated(question.url):
            status, shown = response.status_code, without_secrets(question.url.partition("?")[0])
            if status >= 500 or status in _LATER:
                _drain(response)
                raise Temporary(f"the token server answered {status}", after_s=_retry_after(response))
            if status != 200:
                login = self._keys.login() if question.basic or question.form else None
                raise SupplyError(unauthorized(self.site, f"the token server `{shown}` answered {status}", login))
            answer = read_json(response)
        if not isinstance(answer, dict):
            raise SupplyError(malformed(response, "it is not a JSON object"))
        return answer


def read(response: requests.Response, limit: int) -> bytes:
    """Return a body of bounded size.

    Raises:
        SupplyError: `registry-answer-malformed` when it is longer.
    """
    content = bytearray()
    while len(content) <= limit and (chunk := response.raw.read(1 << 16, decode_content=False)):
        content += chunk
    if len(content) > limit:
        raise SupplyError(malformed(response, f"it has more than {limit} bytes"))
    return bytes(content)


def read_json(response: requests.Response) -> Any:
    """Return the value of a JSON body.

    Raises:
        SupplyError: `registry-answer-malformed`.
    """
    try:
        return json.loads(read(response, _JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise SupplyError(malformed(response, "it is not JSON")) from error


def malformed(response: requests.Response, fault: str) -> Problem:
    """State that an answer is none that a registry may give."""
    shown = without_secrets(response.url)
    message = f"the answer of `{shown}` cannot be used: {fault}"
    return Problem(code="registry-answer-malformed", message=message, where=shown, hint=page_hint(response))


def page_hint(response: requests.Response) -> str | None:
    """Say what may have happened when a web page came."""
    if "html" not in response.headers.get("Content-Type", ""):
        return None
    return "a web page came: a login or a proxy seems to be in the way, or this host is no registry"


def _drain(response: requests.Response) -> None:
    """Read what is left of a short body: only then can the connection be used again."""
    length = response.headers.get("Content-Length", "0")
    if response.request.method == "HEAD" or (length.isdigit() and int(length) <= _ERROR_BYTES):
        with contextlib.suppress(Exception):  # a connection that cannot be used again is closed instead
            response.raw.read(_ERROR_BYTES, decode_content=False)


def _said(response: requests.Response) -> str:
    """Return what a registry says in its error, cut; an answer of another form has said nothing."""
    try:
        content = read(response, _ERROR_BYTES)
        words = [f"{one.get('code', '')} {one.get('message', '')}".strip() for one in json.loads(content)["errors"][:3]]
        return "; ".join(words)[:300]
    except (SupplyError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ""


def _as_it_is(prepared: requests.PreparedRequest) -> requests.PreparedRequest:
    """Keep requests from looking into ~/.netrc, whose login would replace our Authorization."""
    return prepared


@contextlib.contextmanager
def _plain_http_noticed(site: str) -> Iterator[None]:
    try:
        yield
    except requests.exceptions.SSLError as error:
        if not any(words in str(error).lower() for words in _NOT_TLS):
            raise
        message = f"`{site}` does not speak TLS"
        hint = "if this is meant, ask for plain http with --plain-http; everybody between can then read and change it"
        raise SupplyError(Problem(code="registry-scheme-differs", message=message, where=site, hint=hint)) from error


def _certificates(environ: Mapping[str, str]) -> str | bool:
    for name in _CERTIFICATES:
        if environ.get(name):
            if not Path(environ[name]).exists():
                message = f"`{environ[name]}` is not there"
                raise SupplyError(Problem(code="file-missing", message=message, where=name, hint=f"correct {name}"))
            return environ[name]
    return True
