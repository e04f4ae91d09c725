"""HTTP for indexes and mirrors: credentials, redirects, which failures may pass by themselves, words without secrets.

The one module besides tools/registry_session.py that may import requests; whoever needs it imports it late.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TypeVar
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter

from envsmith.errors import InputError, Problem, SupplyError
from envsmith.tools.patience import Patient, Temporary

Auth = tuple[str, str]
T = TypeVar("T")
#: Answers by which a server says "later". Every other 4xx is final.
_LATER = (408, 429)


class SourceError(SupplyError):
    """The place asked cannot give the file; another place may."""


class Transport(Patient):
    """A session for many threads. Use it as a context manager, so that its connections are closed."""

    def __init__(
        self,
        *,
        timeout_s: float = 30.0,
        attempts: int = 5,
        backoff_s: float = 0.5,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`timeout_s` is the longest silence; `sleep` may raise to end a wait early."""
        super().__init__(attempts=attempts, backoff_s=backoff_s, sleep=sleep)
        self._timeout_s = timeout_s
        self._dead: dict[str, Problem] = {}
        self._gate = threading.Lock()
        self._session = _Session()
        adapter = HTTPAdapter(pool_connections=32, pool_maxsize=32)
        self._session.mount("https://", adapter)
        self._session.mount("http://", adapter)
        # requests reads REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE itself, but not the variable that uv and OpenSSL read.
        self._session.verify = os.environ.get("SSL_CERT_FILE") or True

    def __enter__(self) -> Transport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close()

    @contextlib.contextmanager
    def get(self, url: str, auth: Auth | None, headers: Mapping[str, str]) -> Iterator[requests.Response]:
        """Give the answer to one GET, its body not yet read. Statuses below 500 are left to the caller.

        Raises:
            Temporary: a failure that may pass.
            SourceError: `index-unreachable`, `certificate-not-trusted` or `redirect-refused`.
            InputError: `index-url-malformed`.
        """
        with self._gate:
            known = self._dead.get(_origin(url))
        if known:
            raise SourceError(known)
        with _translated(url):
            limits = (min(10.0, self._timeout_s), self._timeout_s)
            response = self._session.get(url, auth=auth, headers=dict(headers), stream=True, timeout=limits)
            with response:
                if response.status_code >= 500 or response.status_code in _LATER:
                    raise Temporary(f"answered {response.status_code}", after_s=_retry_after(response))
                yield response

    def give_up(self, url: str, failure: Temporary) -> SourceError:
        """State the failure; a host that cannot even be connected to is not asked again by this transport."""
        shown = without_secrets(_origin(url) if failure.connecting else url)
        problem = Problem(
            code="index-unreachable",
            message=f"`{shown}` could not be reached: {failure} ({self.attempts} attempts)",
            where=shown,
            hint="check network, proxy variables and ENVSMITH_INDEX; what was downloaded so far is kept",
        )
        if failure.connecting:
            with self._gate:
                self._dead[_origin(url)] = problem
        return SourceError(problem)


class _Session(requests.Session):
    def get_redirect_target(self, resp: requests.Response) -> str | None:
        target = super().get_redirect_target(resp)
        if target:
            refuse_downgrade(resp.url, urljoin(resp.url, target))
        return target


def refuse_downgrade(url: str, target: str) -> None:
    """Refuse to be led from an encrypted connection to an open one.

    Raises:
        SourceError: `redirect-refused`.
    """
    if urlsplit(url).scheme == "https" and urlsplit(target).scheme != "https":
        shown = without_secrets(target)
        message = f"`{without_secrets(url)}` redirects to `{shown}`, which is not encrypted"
        hint = "ask whoever runs the mirror to redirect to https"
        raise SourceError(Problem(code="redirect-refused", message=message, where=shown, hint=hint))


def without_secrets(url: str) -> str:
    """Return a URL as it may be shown: user, password and query cut out."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "a malformed URL"
    _, at, host = parts.netloc.rpartition("@")
    return urlunsplit((parts.scheme, ("***@" if at else "") + host, parts.path, "…" if parts.query else "", ""))


def split_auth(url: str) -> tuple[str, Auth | None]:
    """Take user and password out of a URL."""
    parts = urlsplit(url)
    user_info, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None
    user, _, password = user_info.partition(":")
    return urlunsplit(parts._replace(netloc=host)), (unquote(user), unquote(password))


def same_origin(one: str, other: str) -> bool:
    """Say whether two URLs have scheme, host and port in common: only then do they share credentials."""
    return _origin(one) == _origin(other)


def refused(url: str, status: int) -> Problem:
    """State that a server does not give what was asked for; with 401 and 403 it wants other credentials."""
    shown = without_secrets(url)
    hint = None
    if status in (401, 403):
        hint = "put user and password into ~/.netrc (or the file that NETRC names), or into the index URL"
    return Problem(code="index-refused", message=f"`{shown}` answered {status}", where=shown, hint=hint)


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"


@contextlib.contextmanager
def _translated(url: str) -> Iterator[None]:
    """Turn what requests and urllib3 raise into ours. Their texts may hold a proxy's password: never show them."""
    try:
        yield
    except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema, requests.exceptions.MissingSchema) as e:
        shown = without_secrets(url)
        message = f"`{shown}` is not a URL that can be fetched"
        raise InputError(Problem(code="index-url-malformed", message=message, where=shown)) from e
    except requests.exceptions.TooManyRedirects as error:
        shown = without_secrets(url)
        message = f"`{shown}` redirects in a circle"
        raise SourceError(Problem(code="redirect-refused", message=message, where=shown)) from error
    except requests.exceptions.SSLError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise SourceError(_untrusted(url)) from error
        raise Temporary("the encrypted connection failed", connecting=True) from error
    except requests.exceptions.ReadTimeout as error:
        raise Temporary("no answer in time") from error
    except requests.exceptions.ConnectTimeout as error:
        raise Temporary("no connection in time", connecting=True) from error
    except requests.exceptions.ConnectionError as error:
        raise Temporary(_reason(error), connecting=_never_connected(error)) from error
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
        raise Temporary(f"the answer broke off ({_reason(error)})") from error


def _untrusted(url: str) -> Problem:
    shown = without_secrets(_origin(url))
    message = f"the certificate of `{shown}` is not trusted here"
    hint = "point SSL_CERT_FILE (or REQUESTS_CA_BUNDLE) to your site's certificates"
    return Problem(code="certificate-not-trusted", message=message, where=shown, hint=hint)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it was made of, outermost first."""
    seen: list[BaseException] = [error]
    for inner in seen:
        yield inner
        parts = (*inner.args, getattr(inner, "reason", None), inner.__cause__, inner.__context__)
        seen += [part for part in parts if isinstance(part, BaseException) and not any(part is one for one in seen)]


def _never_connected(error: BaseException) -> bool:
    kinds = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ProxyError)
    return any(isinstance(cause, kinds) for cause in _causes(error))


def _reason(error: BaseException) -> str:
    """Say why in the operating system's words, else by the error's class: neither can hold a secret."""
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.errno is not None and cause.strerror:
            return cause.strerror
    return type(error).__name__


def _retry_after(response: requests.Response) -> float:
    said = response.headers.get("Retry-After", "")
    return float(said) if said.isdigit() else 0.0
