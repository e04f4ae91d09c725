"""Where each key of a TOML text stands, so that an error can name its line.

The standard parser gives no positions. This scanner only walks text that the standard parser has already
accepted, so it checks nothing.
"""

from __future__ import annotations

from envsmith.toml_reader import read_toml

KeyPath = tuple["str | int", ...]


def locate(text: str) -> dict[KeyPath, int]:
    """Map every key path of a valid TOML text to its 1-based line; array elements count from 0."""
    scanner = _Scanner(text)
    scanner.document()
    return scanner.lines


def line_of(lines: dict[KeyPath, int], path: KeyPath) -> int | None:
    """Return the line of `path`, or of the nearest parent that stands in the file."""
    for end in range(len(path), 0, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return None


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        self.lengths: dict[KeyPath, int] = {}
        self._counted_to, self._line = 0, 1

    def line(self) -> int:
        self._line += self.text.count("\n", self._counted_to, self.at)
        self._counted_to = self.at
        return self._line

    def peek(self, width: int = 1) -> str:
        return self.text[self.at : self.at + width]

    def skip(self, characters: str) -> None:
        """Step over `characters` and comments."""
        while self.at < len(self.text):
            if self.peek() in characters:
                self.at += 1
            elif self.peek() == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def document(self) -> None:
        table: KeyPath = ()
        while True:
            self.skip(" \t\r\n")
            if self.at >= len(self.text):
                return
            if self.peek() == "[":
                table = self.header()
            else:
                self.pair(table)

    def header(self) -> KeyPath:
        width = 2 if self.peek(2) == "[[" else 1
        line = self.line()
        self.at += width
        path = self.resolve(self.keys(), line)
        self.skip(" \t")
        self.at += width
        if width == 2:
            self.lines.setdefault(path, line)
            index = self.lengths.get(path, 0)
            self.lengths[path] = index + 1
            path = (*path, index)
        self.lines.setdefault(path, line)
        return path

    def resolve(self, keys: list[str], line: int) -> KeyPath:
        """Follow a header's keys through arrays of tables: a key means the array's last element so far.

        A parent that has no header of its own, or not yet, stands where it is first named.
        """
        path: KeyPath = ()
        for n, key in enumerate(keys):
            path = (*path, key)
            if n < len(keys) - 1:
                self.lines.setdefault(path, line)
                if path in self.lengths:
                    path = (*path, self.lengths[path] - 1)
        return path

    def keys(self) -> list[str]:
        found = []
        while True:
            self.skip(" \t")
            found.append(self.key())
            self.skip(" \t")
            if self.peek() != ".":
                return found
            self.at += 1

    def key(self) -> str:
        if self.peek() in "\"'":
            return self.string()
        start = self.at
        while self.at < len(self.text) and (self.peek().isalnum() or self.peek() in "-_"):
            self.at += 1
        return self.text[start : self.at]

    def pair(self, table: KeyPath) -> None:
        line = self.line()
        path = table
        for key in self.keys():
            path = (*path, key)
            self.lines.setdefault(path, line)
        self.at += 1  # the equals sign
        self.skip(" \t")
        self.value(path)

    def value(self, path: KeyPath) -> None:
        self.lines.setdefault(path, self.line())
        opening = self.peek()
        if opening == "[":
            self.array(path)
        elif opening == "{":
            self.inline_table(path)
        elif opening and opening in "\"'":
            self.string()
        else:
            while self.at < len(self.text) and self.peek() not in ",]}#\n":
                self.at += 1

    def array(self, path: KeyPath) -> None:
        self.at += 1
        index = 0
        while True:
            self.skip(" \t\r\n,")
            if self.at >= len(self.text) or self.peek() == "]":
                self.at += 1
                return
            self.value((*path, index))
            index += 1

    def inline_table(self, path: KeyPath) -> None:
        self.at += 1
        while True:
            self.skip(" \t\r\n,")
            if self.at >= len(self.text) or self.peek() == "}":
                self.at += 1
                return
            self.pair(path)

    def string(self) -> str:
        quote = self.peek()
        triple = quote * 3
        mark = triple if self.peek(3) == triple else quote
        start = self.at
        self.at += len(mark)
        while self.at < len(self.text) and not self.text.startswith(mark, self.at):
            self.at += 2 if quote == '"' and self.peek() == "\\" else 1
        self.at += len(mark)
        while mark == triple and self.peek() == quote:  # up to two more quotes may belong to the content
            self.at += 1
        return _content(self.text[start : self.at], mark)


def _content(literal: str, mark: str) -> str:
    inner = literal[len(mark) : -len(mark)]
    return str(read_toml(f"key = {literal}")["key"]) if mark == '"' and "\\" in inner else inner
