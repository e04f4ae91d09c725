# ruff: noqa
# mypy: ignore-errors
"""A payload: does bytecode hold what its source compiles to?

It runs inside the interpreter whose bytecode is asked about and answers through a file, one line for each pair. What
was answered stays answered when a file kills the process:

    PYTHON -I -S -B -X pycache_prefix=EMPTY recompile.py REQUEST ANSWER

The library of that interpreter may itself be what is asked about, so nothing of it is imported: every module below is
built in or written in C. A request is bytes with a NUL after each part: seconds for a file, bytes of memory, the
folder, then bytecode, source and level of each pair, paths relative to the folder. The first line of the answer is
`begin`, the last `end`; a line between them has a word, a detail, and the sha256 of bytecode and source, with tabs
between. No code of the pairs is run: bytecode is unmarshalled, a source is compiled.

Everything below the gate needs Python 3.8, but the whole file must *parse* on 2.7; hence no f-strings, no annotations.
Source of what makes Python load a file: `SourceLoader.get_code` in Lib/importlib/_bootstrap_external.py (2026-11-30).
"""

import sys

if sys.version_info < (3, 8):
    sys.stderr.write("envsmith-probe: python too old\n")
    sys.exit(79)

sys.dont_write_bytecode = True

import gc
import marshal
import posix

import _imp
import _signal
import _warnings
from _frozen_importlib_external import MAGIC_NUMBER

try:
    from _hashlib import openssl_sha256 as sha256
except ImportError:
    try:
        from _sha2 import sha256
    except ImportError:
        from _sha256 import sha256

CODE = type(compile("", "", "exec"))
FILE_LIMIT_BYTES = 64 << 20
SAID_LIMIT = 160
HASH_KEY = int.from_bytes(MAGIC_NUMBER, "little")
#: What decides how code behaves. co_filename is left out: Python itself corrects it when it loads a file.
FIELDS = (
    "co_flags",
    "co_argcount",
    "co_posonlyargcount",
    "co_kwonlyargcount",
    "co_nlocals",
    "co_stacksize",
    "co_names",
    "co_varnames",
    "co_freevars",
    "co_cellvars",
    "co_name",
    "co_qualname",
)
#: The same, looked at last: what differs before them says more to a reader.
BODY = ("co_code", "co_exceptiontable")


def main(asked, answered):
    """Answer every pair of a request, in order."""
    parts = read(asked, 0)[0].split(b"\0")
    seconds, memory_bytes, root = float(parts[0]), int(parts[1]), parts[2] + b"/"
    limit(memory_bytes)
    silence()
    # A source with many objects would be walked over and over; everything here is freed by counting.
    gc.disable()
    out = posix.open(answered, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND, 0o600)
    say(out, ["begin"])
    for at in range(3, len(parts) - 3, 3):
        # Time of our own, not of a busy machine; the signal ends the process, whatever C code it is in.
        _signal.setitimer(_signal.ITIMER_VIRTUAL, seconds)
        say(out, judge(root + parts[at], root + parts[at + 1], int(parts[at + 2])))
    say(out, ["end"])


def silence():
    """Warnings about foreign sources help nobody here; where the filters are elsewhere, they go to stderr."""
    filters = getattr(_warnings, "filters", None)
    mutated = getattr(_warnings, "_filters_mutated", None)
    if filters is not None and mutated is not None:
        filters.insert(0, ("ignore", None, Warning, None, 0))
        mutated()


def limit(memory_bytes):
    """A few bytes of hostile bytecode can ask for all memory, and a crash should leave no core file."""
    unlimited = getattr(sys, "set_int_max_str_digits", None)
    if unlimited:
        unlimited(0)
    try:
        import resource
    except ImportError:
        return
    for what, most in ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CORE, 0)):
        try:
            hard = resource.getrlimit(what)[1]
            resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
        except (ValueError, OSError):
            continue


def say(out, parts):
    """Write one line; what would break it into more is left out."""
    line = "\t".join("".join(char if " " <= char else " " for char in part) for part in parts) + "\n"
    data = line.encode("ascii", "backslashreplace")
    while data:
        data = data[posix.write(out, data) :]


def judge(pyc_path, source_path, level):
    """Return (word, detail, sha256 of the pyc, sha256 of the source)."""
    try:
        data, _ = read(pyc_path, posix.O_NOFOLLOW)
        source, info = read(source_path, 0)
    except (OSError, ValueError, MemoryError) as error:
        return ["unproved", describe(error), "", ""]
    digests = [sha256(data).hexdigest(), sha256(source).hexdigest()]
    if is_stale(data, source, info):
        return ["stale", ""] + digests
    try:
        wanted = compile(source, "source", "exec", dont_inherit=True, optimize=level)
    except (SyntaxError, ValueError) as error:
        return ["no-compile", describe(error)] + digests
    except Exception as error:
        return ["unproved", "its source cannot be compiled here: " + describe(error)] + digests
    try:
        found = marshal.loads(memoryview(data)[16:])
    except MemoryError:
        return ["unproved", "reading it takes too much memory"] + digests
    except Exception as error:
        return ["unreadable", describe(error)] + digests
    if type(found) is not CODE:
        return ["unreadable", "it holds no code"] + digests
    lines = []
    try:
        where = difference(wanted, found, lines)
    except (RecursionError, MemoryError) as error:
        return ["unproved", "too deep to compare: " + describe(error)] + digests
    word = "differs" if where else "lines" if lines else "same"
    return [word, (where or (lines[0] if lines else ""))[:SAID_LIMIT]] + digests


def read(path, flags):
    """Return content and attributes of a regular file; a pipe or device must not hold us up."""
    handle = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK | flags)
    try:
        info = posix.fstat(handle)
        if info.st_mode & 0o170000 != 0o100000:
            raise ValueError("it is no regular file")
        if info.st_size > FILE_LIMIT_BYTES:
            raise ValueError("it has more than %d MiB" % (FILE_LIMIT_BYTES >> 20))
        parts = []
        while True:
            part = posix.read(handle, 1 << 20)
            if not part:
                return b"".join(parts), info
            parts.append(part)
    finally:
        posix.close(handle)


def is_stale(data, source, info):
    """Tell whether the import system passes this file over and compiles the source."""
    if len(data) < 16 or data[:4] != MAGIC_NUMBER:
        return True
    flags, mtime, size = [int.from_bytes(data[at : at + 4], "little") for at in (4, 8, 12)]
    if flags & ~3:
        return True
    if flags & 1:
        return bool(flags & 2) and data[8:16] != _imp.source_hash(HASH_KEY, source)
    return (mtime, size) != (int(info.st_mtime) & 0xFFFFFFFF, info.st_size & 0xFFFFFFFF)


def difference(wanted, found, lines, name="the module"):
    """Walk two code objects side by side; return where they differ, None when they do the same.

    What was compiled here decides how deep and how far the walk goes, so hostile bytecode cannot prolong it. Line
    numbers decide nothing but tracebacks and debuggers: where only they differ, `lines` says so. Columns are not
    compared, because Python can be told to leave them out (-X no_debug_ranges).
    """
    where = first_field(FIELDS, wanted, found, name)
    if where:
        return where
    if len(wanted.co_consts) != len(found.co_consts):
        return "the number of constants of %s" % name
    for one, other in zip(wanted.co_consts, found.co_consts):
        if type(one) is CODE and type(other) is CODE:
            inner = getattr(one, "co_qualname", one.co_name)
            where = difference(one, other, lines, "`%s`" % inner)
            if where:
                return where
        elif not same(one, other):
            return "a constant of %s, %s instead of %s" % (name, shown(other), shown(one))
    if not lines and not same_lines(wanted, found):
        lines.append("line numbers of %s" % name)
    return first_field(BODY, wanted, found, name)


def first_field(fields, wanted, found, name):
    """Name the first of these attributes that differs; one that this Python does not have is on neither side."""
    for field in fields:
        one, other = getattr(wanted, field, None), getattr(found, field, None)
        if type(one) is not type(other) or one != other:
            return "`%s` of %s" % (field, name)
    return None


def same(one, other):
    """Compare two constants with their types: 1, 1.0 and True are equal and are not the same."""
    if type(one) is not type(other):
        return False
    if type(one) in (tuple, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other))
    if type(one) is frozenset:
        return same_sets(one, other)
    if type(one) is float:
        return one.hex() == other.hex()  # tells zero from minus zero, and is equal for what is not a number
    if type(one) is complex:
        return same((one.real, one.imag), (other.real, other.imag))
    if type(one) is CODE:
        return difference(one, other, []) is None
    if type(one).__name__ == "slice":
        return same((one.start, one.stop, one.step), (other.start, other.stop, other.step))
    return one == other


def same_sets(one, other):
    """An element is looked up by equality first, and then compared with the very one that is there."""
    if len(one) != len(other):
        return False
    there = dict((element, element) for element in other)
    return all(element in there and same(element, there[element]) for element in one)


def same_lines(wanted, found):
    if wanted.co_firstlineno != found.co_firstlineno:
        return False
    field = "co_linetable" if hasattr(wanted, "co_lines") else "co_lnotab"
    if getattr(wanted, field) == getattr(found, field):
        return True
    return field == "co_linetable" and line_starts(wanted) == line_starts(found)


def line_starts(code):
    """Return (offset, line) where the line changes."""
    starts = []
    most = len(code.co_code) + 2
    for start, _, line in code.co_lines():
        if not starts or starts[-1][1] != line:
            starts.append((start, line))
        if len(starts) > most:
            break
    return starts


def shown(value):
    """Name a constant in a few words."""
    if type(value) in (str, bytes):
        text = repr(value[:30]) + ("..." if len(value) > 30 else "")
    elif type(value) in (float, bool, type(None), complex) or (type(value) is int and abs(value) < 1 << 64):
        text = repr(value)
    else:
        text = "a " + type(value).__name__
    return text


def describe(error):
    try:
        said = str(error)
    except Exception:
        said = ""
    return ("%s: %s" % (type(error).__name__, said))[:SAID_LIMIT]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
