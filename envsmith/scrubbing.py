"""Taking secrets out of whole logs and out of JSON values, while counting them; `redaction` knows what a secret is.

Besides what looks like a secret, the values that this process itself holds under secret names are cut wherever they
stand. Misses half of a quoted secret that has a space where a line of more than 4,000 characters is divided.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from envsmith.redaction import CUT, READ, holds_secret, is_count, redacted

#: A shorter value would be found in words that have nothing to do with it.
_SHORTEST = 6
_URL_PASSWORD = re.compile(r"://[^/\s:@]{0,128}:([^/\s@]{1,512})@")
_LINE_END = re.compile(r"(\r\n|\n|\r)")
#: What colours and moves on a terminal. Source: ECMA-48 §5.4, control sequences (read 2026-11-30).
_COLOUR = re.compile(r"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]")
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,32}PRIVATE KEY-----")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,32}PRIVATE KEY-----")
#: An RSA key of 16,384 bits has 200 lines.
_KEY_LINES = 300
#: Between a name and its value a long line is not divided.
_NAMES = re.compile(r"(?i)(?:token|key|passw|secret|credential|bearer|authorization|cookie|login|[=:])\S{0,64}\s{0,4}$")
_PIECE = READ - 96
_BACK = 1024


def known_secrets(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Values that must not be shown wherever they stand: those of variables named so, and passwords in any URL."""
    found = {value for name, value in environ.items() if holds_secret(name) and not is_count(name, value)}
    for value in environ.values():
        passwords = _URL_PASSWORD.findall(value)
        found |= {*passwords, *map(unquote, passwords)}
    # the longest first: a secret may be the beginning of another one
    return tuple(sorted((one for one in found if len(one.strip()) >= _SHORTEST), key=lambda one: (-len(one), one)))


class Scrubber:
    """Cuts secrets and counts what it cut."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """`secrets` are literal values, as `known_secrets` finds them."""
        self._secrets = tuple(secrets)
        self.count = 0

    def text(self, text: str) -> str:
        """Cut secrets out of a text of any length, line by line; line ends stay."""
        return "".join(self._lines(text))

    def value(self, value: Any, name: str = "") -> Any:
        """Cut secrets out of a JSON value, keys and all; what JSON cannot say (NaN, infinity) becomes its name."""
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(inner, str(key)) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._item(inner, before, name) for before, inner in zip((None, *value), value, strict=False)]
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        # a file is no variable, and half of a character pair cannot be written
        text = str(value).encode("utf-8", "replace").decode("utf-8")
        if text and "." not in name and holds_secret(name) and not is_count(name, text):
            self.count += text != CUT
            return CUT
        return self.text(text)

    def _item(self, value: Any, before: Any, name: str) -> Any:
        """One of a list; in `--token VALUE` of a command line the word before it says what it is."""
        option = before.lstrip("-") if isinstance(before, str) and before.startswith("-") else None
        return self.value(value, option if option and holds_secret(option) else name)

    def _lines(self, text: str) -> Iterator[str]:
        key_lines = 0
        for n, part in enumerate(_LINE_END.split(text)):
            if n % 2:
                yield part
            elif key_lines and not _KEY_ENDS.search(part):
                key_lines -= 1
                yield CUT if part else part
            else:
                key_lines = 0
                begins = _KEY_BEGINS.search(part)
                if begins and not _KEY_ENDS.search(part, begins.end()):
                    key_lines = _KEY_LINES
                yield self._line(part)

    def _line(self, line: str) -> str:
        if not line:
            return line
        clean = _COLOUR.sub("", line)  # a colour may stand between a name and its value
        for secret in self._secrets:
            clean = clean.replace(secret, CUT)
        shown = redacted(clean) if len(clean) <= _PIECE else "".join(map(redacted, _pieces(clean)))
        cut = shown.count(CUT) - line.count(CUT)
        self.count += max(cut, 1) if shown != clean or clean.count(CUT) > line.count(CUT) else 0
        return shown


def _pieces(line: str) -> Iterator[str]:
    """Divide a long line at spaces that stand between a name and a value of it least likely."""
    while len(line) > _PIECE:
        at = _division(line)
        if at:
            yield line[:at]
            line = line[at:]
            continue
        end = next((n for n in range(_PIECE, len(line)) if line[n].isspace()), len(line))
        yield f"({end:,} characters without a place to divide them left out)"
        line = line[end:]
    yield line


def _division(line: str) -> int:
    for at in range(_PIECE, _PIECE - _BACK, -1):
        if line[at].isspace() and not _NAMES.search(line, at - 80, at):
            return at
    return 0
