"""The payload of `envsmith snapshot`: what does this machine give, and what does one interpreter on it hold?

It is one file, needs nothing but the standard library of Python 3.8, and runs where envsmith is not:

    python3 collect.py [--python EXE] [--query "COMMAND"] [--path DIR]... [--no-run] [-o FILE]

The answer is a snapshot in TOML (docs/snapshot.md; tables of envsmith/host.py and envsmith/hostfacts.py). A fact that
cannot be had is left out; a section that crashed is named in `[snapshot] note`. Exit codes: 0; 2 the words, an
override or FILE are wrong; 3 EXE is too old; 4 the answer cannot be written; 6 EXE does not work; 79 this Python is
too old.

Like observe.py it must *parse* on 2.7, so that an old interpreter refuses clearly: no f-strings, no annotations.
"""

import sys

if sys.version_info < (3, 8):
    sys.stderr.write("envsmith-snapshot: python too old\n")
    sys.exit(79)

sys.dont_write_bytecode = True

import os


def initial_environ():
    """The variables that this process was started with: a site hook may have changed its own since."""
    try:
        with open("/proc/self/environ", "rb") as stream:
            pairs = [item.partition(b"=") for item in stream.read().split(b"\0")]
        return dict((name, value) for name, equals, value in pairs if name and equals)
    except OSError:
        return dict(os.environb)


def say_python_facts(out):
    """The hidden sub-command `python-facts`, run by EXE itself, hooks and all: they may add folders to its path.

    It stands before the imports and writes a literal, not JSON: a hook may have broken any of the library.
    """
    import site
    import sysconfig

    path = os.path
    here = path.realpath(path.dirname(path.abspath(sys.argv[0])))
    folders, seen = [], set()
    for folder in [] if sys.flags.no_site else site.getsitepackages():
        real = path.realpath(folder)
        if real not in seen and path.isdir(real):
            seen.add(real)
            folders.append(path.abspath(folder))
    paths = sysconfig.get_paths()
    answer = {
        "version": "%d.%d.%d" % sys.version_info[:3], "prefix": sys.prefix, "site": folders,
        "path": [path.abspath(entry) for entry in sys.path if entry and path.realpath(entry) != here],
        "stdlib": [paths["stdlib"], paths["platstdlib"]],
        "headers": path.isfile(path.join(paths.get("include") or "", "Python.h")),
    }
    handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(handle, ascii(answer).encode("ascii"))
    os.close(handle)
    os._exit(0)


if __name__ == "__main__" and sys.argv[1:2] == ["python-facts"]:
    say_python_facts(sys.argv[2])

if __name__ == "__main__" and not (sys.flags.isolated and sys.flags.no_site) and sys.argv[1:2] != ["run-torch"]:
    if not os.path.isfile(sys.argv[0]):
        sys.stderr.write("envsmith-snapshot: error[usage]: save this file first, it starts itself again: "
                         "`python3 collect.py`\n")
        sys.exit(2)
    # once more without site hooks: they may replace parts of the standard library, and load libraries before we look
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-B", os.path.abspath(sys.argv[0])] + sys.argv[1:],
              initial_environ())

import argparse
import ast
import base64
import binascii
import csv
import ctypes
import errno
import fcntl
import hashlib
import io
import json
import posixpath
import re
import resource
import selectors
import shlex
import shutil
import signal
import stat
import struct
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote, urlsplit

SCHEMA = 1
UNLIMITED = -1
TEXT_LIMIT = 1000
#: How long a mount may keep us waiting: one whose server is gone waits for ever.
PATIENCE_S = 10.0
PROGRAM_S = 60.0
CUINIT_S = 60.0
RUN_S = 180.0
#: How long the pipes of a program that has ended may stay open: what it left behind may hold them for ever.
LINGER_S = 2.0
#: What a program prints beyond this is read and dropped.
HEARD_BYTES = 16 << 20
GROWN_BYTES = 1 << 20
#: What cuInit of a stub answers. Source: CUDA driver API, CUDA_ERROR_STUB_LIBRARY (read 2026-11-30).
STUB = 34
#: Metadata files above this size are not read, as in envsmith/tools/distributions.py.
METADATA_BYTES = 64 << 20
#: Smaller files travel between threads in batches.
SMALL_BYTES, BATCH_FILES = 1 << 16, 256


class Refused(Exception):
    """What the user must mend; one line each."""

    def __init__(self, exit_code, code, *messages):
        Exception.__init__(self, "\n".join(messages))
        self.exit_code, self.code, self.messages = exit_code, code, messages


# -- small things -------------------------------------------------------------------------------------------------


def opened(path):
    """A regular file as a stream of bytes: a pipe in its place would hold us for ever.

    Raises OSError.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", path)
        return io.open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def text_of(path, limit=1 << 20):
    """A file as text, None where it cannot be read."""
    try:
        with opened(path) as stream:
            return stream.read(limit).decode("utf-8", "replace")
    except OSError:
        return None


def is_number(text):
    """Whether it is a whole number in ASCII that fits a TOML reader; `isdigit` takes the digits of every script."""
    return re.match(r"[0-9]{1,18}\Z", text) is not None


def one_line(text):
    """What a program said as one line without control characters."""
    return " ".join(re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text).split())


def say(text):
    """A line on stderr, which may be full or gone."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def under(root, path):
    """A path of the machine below another root, for tests."""
    return os.path.join(root, path.lstrip("/"))


def described(error):
    return ("%s: %s" % (type(error).__name__, error))[:TEXT_LIMIT]


def error_name(error):
    """`EROFS`; of two names for one number the one that the manual pages use."""
    if error.errno == errno.EOPNOTSUPP:
        return "EOPNOTSUPP"
    return errno.errorcode.get(error.errno, type(error).__name__)


def answered(function, *arguments):
    """Call a function that may hang in the kernel: whether it came back, and what it gave, None where it failed."""
    answer = []

    def work():
        try:
            answer.append(function(*arguments))
        except Exception:
            answer.append(None)

    thread = threading.Thread(target=work)
    thread.daemon = True
    thread.start()
    thread.join(PATIENCE_S)
    return (True, answer[0]) if answer else (False, None)


def patiently(function, *arguments):
    """Call a function that may hang in the kernel; None where it does or fails."""
    return answered(function, *arguments)[1]


class Said(object):
    """How a program ended."""

    def __init__(self, code, out, error, hung=False):
        self.code, self.out, self.error, self.hung = code, out, error, hung


def run_program(argv, environ, limit_s=PROGRAM_S, cwd=None):
    """Run a program, never through a shell; `code` is None where it did not start or did not end in time."""
    try:
        child = subprocess.Popen(argv, env=environ, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, start_new_session=True)
    except (OSError, ValueError) as error:
        return Said(None, "", "`%s` cannot be started: %s" % (argv[0], getattr(error, "strerror", error)))
    try:
        in_time, out, error = heard(child, limit_s)
    except BaseException:
        kill_group(child)
        raise
    if not in_time:
        return Said(None, "", "`%s` did not end within %.0f s" % (os.path.basename(argv[0]), limit_s), hung=True)
    return Said(child.returncode, out.decode("utf-8", "replace"), error.decode("utf-8", "replace"))


def heard(child, limit_s):
    """Whether a program ended in time, and what it printed; one that did not is killed with its group.

    Its pipes are given up LINGER_S after its end: a daemon that it started may hold them.
    """
    said, deadline, in_time = {child.stdout: [], child.stderr: []}, time.monotonic() + limit_s, True
    left = HEARD_BYTES
    with selectors.DefaultSelector() as selector:
        for stream in said:
            selector.register(stream, selectors.EVENT_READ)
        while True:
            now = time.monotonic()
            if in_time and child.poll() is not None:
                break
            if now >= deadline:
                in_time = False
                kill_group(child)
                break
            if not selector.get_map():
                time.sleep(0.01)  # it closed its pipes and goes on
            left -= taken(selector, said, left, min(0.1, deadline - now))
        deadline = time.monotonic() + LINGER_S
        while selector.get_map() and time.monotonic() < deadline:
            left -= taken(selector, said, left, 0.1)
    for stream in said:
        stream.close()
    try:
        child.wait(LINGER_S)
    except subprocess.TimeoutExpired:
        pass  # it hangs in the kernel, where no signal reaches it
    return in_time, b"".join(said[child.stdout]), b"".join(said[child.stderr])


def taken(selector, said, left, wait_s):
    """Read what is there now, and keep as many bytes as are left; how many were kept."""
    kept = 0
    for key, _ in selector.select(wait_s) if selector.get_map() else ():
        data = os.read(key.fd, 1 << 16)
        if not data:
            selector.unregister(key.fileobj)
        data = data[:left - kept]
        if data:
            said[key.fileobj].append(data)
            kept += len(data)
    return kept


def kill_group(child):
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except OSError:
        pass


def last_line(said):
    lines = (said.error.strip() or said.out.strip()).splitlines()
    return lines[-1][:200] if lines else "nothing"


def ended(code):
    """How a process ended, in words."""
    if code >= 0:
        return "exit code %d" % code
    try:
        return "signal %s" % signal.Signals(-code).name
    except ValueError:
        return "signal %d" % -code


def current_folder():
    try:
        return os.getcwd()
    except OSError:
        return "/"  # it was removed under us


def which(name, environ):
    return shutil.which(name, path=environ.get("PATH", os.defpath))


# -- the machine --------------------------------------------------------------------------------------------------


def system_facts(root, environ):
    release = dict(re.findall(r'(?m)^(\w+)="?([^"\n]*)"?$', text_of(under(root, "/etc/os-release")) or ""))
    info = os.uname()
    facts = {"arch": info.machine, "kernel": info.release, "os": release.get("PRETTY_NAME"), "glibc": glibc()}
    facts["cpu"] = cpu_model(text_of(under(root, "/proc/cpuinfo")) or "", environ)
    facts["cpus"] = len(os.sched_getaffinity(0))
    return facts


def glibc():
    """The C library that runs now, not the one that this Python was built with."""
    try:
        ask = ctypes.CDLL(None).gnu_get_libc_version
        ask.restype = ctypes.c_char_p
        return ask().decode("ascii")
    except (OSError, AttributeError):
        return None  # another C library


def cpu_model(cpuinfo, environ):
    match = re.search(r"(?m)^(?:model name|cpu model|cpu)\s*:\s*(\S.*)$", cpuinfo)
    if match:
        return match.group(1).strip()
    said = run_program(["lscpu"], dict(environ, LC_ALL="C"))  # ARM: /proc has numbers only
    match = re.search(r"(?m)^Model name:\s*(\S.*)$", said.out)
    return match.group(1).strip() if match and match.group(1) != "-" else None


def memory_facts(root):
    facts = {}
    match = re.search(r"(?m)^MemTotal:\s*([0-9]{1,15}) kB", text_of(under(root, "/proc/meminfo")) or "")
    if match:
        facts["memory-bytes"] = int(match.group(1)) * 1024
    swappiness = (text_of(under(root, "/proc/sys/vm/swappiness")) or "").strip()
    if is_number(swappiness):
        facts["swappiness"] = int(swappiness)
    space = patiently(os.statvfs, under(root, "/dev/shm"))
    if space is not None:
        facts["shm-bytes"] = space.f_blocks * space.f_frsize
        facts["shm-free-bytes"] = space.f_bavail * space.f_frsize
    return facts


def limit_facts():
    facts = {}
    for key, hard, name in (("open-files", "open-files-max", "RLIMIT_NOFILE"),
                            ("processes", "processes-max", "RLIMIT_NPROC"),
                            ("locked-memory-bytes", None, "RLIMIT_MEMLOCK")):
        for place, value in zip((key, hard), resource.getrlimit(getattr(resource, name))):
            if place:
                facts[place] = UNLIMITED if value == resource.RLIM_INFINITY else value
    return facts


# -- control groups -----------------------------------------------------------------------------------------------


def unescaped(text):
    """Undo the octal escapes of /proc/self/mounts and mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def cgroup_mounts(mountinfo):
    """(version, controllers, root, mount point) of every mounted hierarchy. Source: proc_pid_mountinfo(5)."""
    found = []
    for line in mountinfo.splitlines():
        before, dash, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if dash and len(fields) > 4 and len(kind) > 2 and kind[0] in ("cgroup", "cgroup2"):
            controllers = frozenset(kind[2].split(",")) if kind[0] == "cgroup" else frozenset()
            found.append((2 if kind[0] == "cgroup2" else 1, controllers, unescaped(fields[3]), unescaped(fields[4])))
    return found


def cgroup_folders(root, controller):
    """The folders whose limits count for this process: its own first, then every one above that can be seen.

    Where a container sees another root than /proc/self/cgroup names, only the mount point itself can be asked.
    """
    mounts = cgroup_mounts(text_of(under(root, "/proc/self/mountinfo")) or "")
    for line in (text_of(under(root, "/proc/self/cgroup")) or "").splitlines():
        number, colon, rest = line.partition(":")
        names, colon, path = rest.partition(":")
        version = 2 if number == "0" and not names else 1
        if version == 1 and controller not in names.split(","):
            continue
        for kind, controllers, top, point in mounts:
            if kind != version or (kind == 1 and controller not in controllers):
                continue
            inner = posixpath.relpath(path, top) if (path + "/").startswith(top.rstrip("/") + "/") else "."
            steps = [] if inner == "." or inner.startswith("..") else inner.split("/")
            for depth in range(len(steps), -1, -1):
                yield kind, under(root, posixpath.join(point, *steps[:depth]))


def cgroup_facts(root):
    """The smallest CPU and memory limits of this process' groups; -1 where groups are there and none sets one."""
    facts = {}
    cpu = [limit for kind, folder in cgroup_folders(root, "cpu") for limit in [cpu_limit(kind, folder)]]
    memory = [limit for kind, folder in cgroup_folders(root, "memory") for limit in [memory_limit(kind, folder)]]
    seen = bool(text_of(under(root, "/proc/self/cgroup")))
    if seen or cpu:
        facts["cpu-limit"] = float(min([limit for limit in cpu if limit is not None] or [UNLIMITED]))
    if seen or memory:
        facts["memory-limit-bytes"] = min([limit for limit in memory if limit is not None] or [UNLIMITED])
    return facts


def cpu_limit(kind, folder):
    if kind == 2:
        words = (text_of(folder + "/cpu.max") or "").split()
        quota, period = words[0] if words else "max", words[1] if len(words) > 1 else "100000"
    else:
        quota = (text_of(folder + "/cpu.cfs_quota_us") or "-1").strip()
        period = (text_of(folder + "/cpu.cfs_period_us") or "100000").strip()
    if is_number(quota) and is_number(period) and int(quota) and int(period):
        return round(int(quota) / float(period), 4)
    return None


def memory_limit(kind, folder):
    text = (text_of(folder + ("/memory.max" if kind == 2 else "/memory.limit_in_bytes")) or "").strip()
    # version 1 writes "none" as the largest multiple of the page size
    return int(text) if re.match(r"[0-9]{1,20}\Z", text) and int(text) < (1 << 62) else None


# -- compiler, container, scheduler -------------------------------------------------------------------------------


def compiler(environ, notes):
    """Triton takes CC, else gcc, else clang; torch's Inductor asks for the compilers of C++ the same way."""
    named = environ.get("CC", "").strip()
    if named:
        try:
            word = shlex.split(named)[0]
        except (ValueError, IndexError):
            word = named.split()[0]
        found = which(word, environ)
        if found is None:
            notes.append("CC names `%s`, which is no program here" % word)
        return found or ""
    return next((found for found in (which(name, environ) for name in ("gcc", "cc", "clang")) if found), "")


def container(root, environ):
    """Signs in the order of how sure they are."""
    if environ.get("KUBERNETES_SERVICE_HOST") or os.path.isdir(under(root, "/run/secrets/kubernetes.io")) or (
        os.path.isdir(under(root, "/var/run/secrets/kubernetes.io"))
    ):
        return "kubernetes"
    if environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    if os.path.exists(under(root, "/run/.containerenv")):
        return "podman"
    if os.path.exists(under(root, "/.dockerenv")):
        return "docker"
    told = environ.get("container") or (text_of(under(root, "/run/systemd/container")) or "").strip()
    if told:
        return told
    groups = (text_of(under(root, "/proc/1/cgroup")) or "") + (text_of(under(root, "/proc/self/cgroup")) or "")
    for mark, name in (("kubepods", "kubernetes"), ("docker", "docker"), ("libpod", "podman"), ("lxc", "lxc")):
        if mark in groups:
            return name
    return ""


def scheduler(environ):
    if any(name.startswith("SLURM_") for name in environ):
        return "slurm"
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    return "slurm" if which("srun", environ) else ""


# -- variables ----------------------------------------------------------------------------------------------------

#: Beginnings of names that decide what is loaded, found or allowed.
SHOWN = (
    "LD_", "CUDA", "NVIDIA_", "NCCL_", "PYTHON", "RAY_", "SLURM_", "HF_", "TORCH", "PYTORCH", "VLLM_", "TRITON_",
    "OMP_", "MKL_", "GLOO_", "UCX_", "KUBERNETES_", "CONDA_", "TRANSFORMERS_", "XDG_", "ENVSMITH_", "GLIBC_TUNABLES",
)
SHOWN_NAMES = (
    "TMPDIR", "PATH", "CC", "CXX", "LIBRARY_PATH", "CPATH", "HOME", "VIRTUAL_ENV", "LANG", "LC_ALL", "CFLAGS",
    "LDFLAGS", "OPTIM_TORCH", "DISABLE_VERSION_CHECK", "container",
)
SHOWN_ENDS = ("_ALLOC_CONF", "_SDK", "_HOME", "_HOME_PATH", "_PATH")
#: Names of secrets; `_KEY` and its like stand anywhere in a name. A tokenizer is none, nor is a number of tokens.
_WORDS = r"(?:token(?!iz|s\b)|key(?!error)|passw|passphrase|secret|credential|auth|cookie|jwt)"
SECRET_NAME = re.compile(r"token|" + _WORDS + r"|(?:^|_)(?:pass|pw|pwd)\Z", re.I)
#: What gives a value away: a user in a URL or before a host, a name of a secret with a value behind it (in a query, in
#: JSON, as an option, as a variable or a header), tokens that are known by their beginning, and private keys. Every
#: repetition has a bound, so that a long value costs no time.
SECRET_VALUE = re.compile(
    r"://[^/\s]{0,300}@|://[^/\s@:]{1,100}:(?![0-9]+(?:/|\s|\Z))[^\s@]{0,300}@"
    r"|(?:(?<=[\s,;'\"=])|\A)[^\s/:@,;'\"=]{0,100}:(?!/)[^\s@,;'\"]{1,300}@(?!sha256:)[\w.\[-]"
    r"|[?&;#][^=&\s]{0,60}(?:sig|" + _WORDS + r")[^=&\s]{0,60}="
    r"|(?:" + _WORDS + r"[\w-]{0,60}|(?:\b|_)(?:pass|pw|pwd))(?:\\{0,9}['\"]\s{0,9}:|\s{0,9}=|\s{0,9}:\s)\s{0,9}\S"
    r"|--?[\w-]{0,60}(?:" + _WORDS + r"[\w-]{0,60}|\bpass|\bpw|\bpwd)(?:=|\s)\s{0,9}\S"
    r"|\bbearer\s{1,9}\S"
    r"|(?<![A-Za-z0-9])(?:(?:hf|gh[opsur]|github_pat|glpat|xox[abeoprs]|npm|dckr_pat|pypi)[_-][\w-]{16}|sk-[\w-]{16}"
    r"|nvapi-[\w-]{8}|AIza[\w-]{16}|A[KS]IA[0-9A-Z]{12}|eyJ[\w-]{10,300}\.)"
    r"|PRIVATE KEY", re.I
)


def cut(text):
    """Words of a program without what may be secret: the user and the query of every URL, all from a secret on."""
    text = re.sub(r"(?<=://)([^/@\s]*@)?([^\s?#'\"`]*)([?#][^\s'\"`]*)?", r"\2", text)
    secret = SECRET_VALUE.search(text)
    return text if secret is None else text[:secret.start()] + "(the rest may hold a secret)"


def shown_environ(environ):
    """The variables that matter; one whose value may be secret is left out, name and all."""
    shown = {}
    for name, value in environ.items():
        wanted = name.startswith(SHOWN) or name in SHOWN_NAMES or name.endswith(SHOWN_ENDS)
        secret = SECRET_NAME.search(name) or SECRET_VALUE.search(value)
        if wanted and not secret and not name.startswith("ENVSMITH_HOST_"):
            shown[name] = value
    return shown


# -- libraries that the loader gives ------------------------------------------------------------------------------

CUDA_FAMILY = re.compile(
    r"lib(?:nccl|cudnn|cublas|cublasLt|nvJitLink|cudart|cusparse|nvrtc|stdc\+\+)\.so\.[0-9]+\Z"
)
LIBCUDA = re.compile(r"libcuda\.so(?:\.1)?\Z")
#: Where images and installers put a libcuda that no loader is told of. Source: NVIDIA's CUDA and container toolkit
#: installation guides (read 2026-11-30), WSL's guide, and the H200 machine.
USUAL_PLACES = (
    "/usr/local/cuda/compat", "/usr/local/cuda-*/compat", "/usr/local/cuda*/compat/lib*",
    "/usr/local/cuda*/targets/*/lib/stubs", "/usr/local/cuda*/lib64/stubs", "/usr/lib/*/stubs",
    "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib", "/usr/lib/wsl/drivers/*",
    "/run/nvidia/driver/usr/lib/*-linux-gnu",
    "/run/nvidia/driver/usr/lib64", "/home/kubernetes/bin/nvidia/lib64", "/var/lib/nvidia/lib64",
    "/run/opengl-driver/lib", "/usr/lib*/nvidia*", "/opt/cuda*/compat", "/opt/cuda*/lib64/stubs",
)


def elf_machine(path):
    """(class, machine) of an ELF file. Source: elf(5)."""
    try:
        with opened(path) as stream:
            head = stream.read(20)
    except OSError:
        return None
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return None
    return head[4], struct.unpack_from("<H" if head[5] == 1 else ">H", head, 18)[0]


def ld_cache(data):
    """(name, path) of every entry of the loader's cache, in its order.

    Source: sysdeps/generic/dl-cache.h of glibc 2.36 (read 2026-11-30); as envsmith/tools/hostlibs.py reads it.
    """
    start = data.find(b"glibc-ld.so.cache1.1")
    if start % 8 or len(data) < start + 48:
        return
    own = "<" if sys.byteorder == "little" else ">"
    order = {2: "<", 3: ">"}.get((data[start + 28:start + 29] or b"\0")[0] & 3, own)
    entry = struct.Struct(order + "iIIIQ")
    for n in range(min(struct.unpack_from(order + "I", data, start + 20)[0], 200000)):
        place = start + 48 + n * entry.size
        if place + entry.size > len(data):
            return
        found = []
        for offset in entry.unpack_from(data, place)[1:3]:
            end = data.find(b"\0", start + offset, start + offset + 4096)
            found.append(os.fsdecode(data[start + offset:end]) if end > start + offset else None)
        if all(found):
            yield found[0], found[1]


class Loader(object):
    """Where the loader of this machine finds libraries for a program started with these variables."""

    def __init__(self, root, environ, cwd):
        self.root, self.machine, self.silent = root, elf_machine("/proc/self/exe"), []
        value = environ.get("LD_LIBRARY_PATH", "").replace(";", ":")
        self.told = [os.path.join(cwd, element) for element in value.split(":")][:200] if value else []
        try:
            with opened(under(root, "/etc/ld.so.cache")) as stream:
                self.cache = list(ld_cache(stream.read(64 << 20)))
        except OSError:
            self.cache = []
        triplet = os.uname().machine + "-linux-gnu"
        self.default = ["/lib/" + triplet, "/usr/lib/" + triplet, "/lib64", "/usr/lib64", "/lib", "/usr/lib"]

    def fits(self, path):
        return elf_machine(path) == self.machine

    def look(self, folder, function, *arguments):
        """Call a function that looks into a folder: None where it fails, or the folder's mount does not answer."""
        if folder in self.silent:
            return None
        came_back, answer = answered(function, *arguments)
        if not came_back:
            self.silent.append(folder)
        return answer

    def folders(self):
        """(how, folder) in the order of the search, those of the cache as they come."""
        seen = set()
        for how, folders in (("LD_LIBRARY_PATH", self.told),
                             ("loader", [os.path.dirname(path) for name, path in self.cache if LIBCUDA.match(name)]),
                             ("loader", self.default)):
            for folder in folders:
                if (folder, how) not in seen:
                    seen.add((folder, how))
                    yield how, folder

    def libraries(self):
        """Name to (path, how) of the CUDA family, the first that fits this machine."""
        found = {}
        for how, folders in (("LD_LIBRARY_PATH", self.told), ("cache", None), ("loader", self.default)):
            if folders is None:
                candidates = [(name, path) for name, path in self.cache if CUDA_FAMILY.match(name)]
            else:
                candidates = [(name, os.path.join(folder, name)) for folder in folders for name in self.look(
                    folder, names_in, under(self.root, folder)) or () if CUDA_FAMILY.match(name)]
            for name, path in candidates:
                if name not in found and self.look(os.path.dirname(path), self.fits, under(self.root, path)):
                    found[name] = (path, "loader" if how == "cache" else how)
        return [{"name": name, "path": found[name][0], "found-by": found[name][1]} for name in sorted(found)]


def names_in(folder):
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def version_in_name(path):
    """`580.95.05` of `libcuda.so.580.95.05`."""
    match = re.match(r"libcuda\.so\.([0-9]+\.[0-9]+(?:\.[0-9]+)*)\Z", os.path.basename(path))
    return match.group(1) if match else None


def driver_folders(loader, driver, stub=None):
    """Every folder that holds a libcuda, each once by where the file really lies, in the order of the search."""
    places = list(loader.folders())
    for pattern in USUAL_PLACES:
        places += [("search", folder) for folder in patiently(globbed, loader.root, pattern) or ()]
    rows, seen = [], set()
    for how, folder in places:
        row = loader.look(folder, driver_folder, loader, how, folder, driver, stub)
        if row is not None and row["path"] not in seen:
            seen.add(row["path"])
            rows.append(row)
    return rows


def driver_folder(loader, how, folder, driver, stub):
    """The row of a folder, None where it holds no libcuda for this machine."""
    files = [under(loader.root, posixpath.join(folder, name)) for name in ("libcuda.so.1", "libcuda.so")]
    file = next((file for file in files if os.path.isfile(file)), None)
    if file is None:
        return None
    real = os.path.realpath(file)
    home = os.path.dirname(real)
    if not loader.fits(real):
        return None
    shown = home if loader.root == "/" else "/" + os.path.relpath(home, os.path.realpath(loader.root))
    return {
        "path": shown, "version": version_in_name(real),
        "kind": "stubs" if shown == stub else folder_kind(shown, folder, real, driver),
        "unversioned": os.path.exists(os.path.join(home, "libcuda.so")), "found-by": how,
    }


def folder_kind(home, folder, real, driver):
    parts = home.split("/") + folder.split("/")
    version = version_in_name(real)
    if "stubs" in parts:
        return "stubs"
    if version and driver and version == driver:
        return "driver"
    return "compat" if "compat" in parts else "other"


def globbed(root, pattern):
    """Folders of the machine that a pattern names; only `*` is understood."""
    found = [""]
    for part in pattern.strip("/").split("/"):
        if "*" not in part:
            found = [folder + "/" + part for folder in found]
            continue
        wanted = re.compile(".*".join(re.escape(piece) for piece in part.split("*")) + r"\Z")
        found = [folder + "/" + name for folder in found
                 for name in names_in(under(root, folder)) if wanted.match(name)]
    return [folder for folder in found if os.path.isdir(under(root, folder))]


# -- the driver ---------------------------------------------------------------------------------------------------


def kernel_driver_in(text):
    """The version in /proc/driver/nvidia/version, in the words of the closed and of the open module."""
    match = re.search(r"Kernel Module[^\n]*?\s([0-9]+\.[0-9]+(?:\.[0-9]+)?)\s", text + "\n")
    return match.group(1) if match else None


def kernel_driver(root):
    for path in ("/proc/driver/nvidia/version", "/sys/module/nvidia/version"):
        text = text_of(under(root, path)) or ""
        version = kernel_driver_in(text) or (
            text.strip() if re.match(r"[0-9]+(\.[0-9]+)+\s*\Z", text) else None)
        if version:
            return version
    return None


def ask_libcuda(out):
    """The hidden sub-command `cuinit`: load libcuda.so.1 by its bare name, as every framework does, and ask it."""
    answer, before = {}, mapped_files()
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        put_json(out, {"libcuda": "", "error": described(error)})
        return
    came = [path for path in mapped_files() if path not in before]
    named = [path for path in came if os.path.basename(path).startswith("libcuda.so")]
    answer["libcuda"] = (named + came)[0] if came else ""
    put_json(out, answer)  # a broken driver may well kill the process in the next call
    try:
        answer["cuinit"] = int(library.cuInit(0))
        version = ctypes.c_int(0)
        if library.cuDriverGetVersion(ctypes.byref(version)) == 0 and version.value > 0:
            answer["cuda-driver-version"] = "%d.%d" % (version.value // 1000, version.value % 1000 // 10)
        put_json(out, answer)
        if answer["cuinit"] == 0:
            answer["devices"] = libcuda_devices(library)
    except AttributeError as error:
        answer["error"] = described(error)
    put_json(out, answer)


def libcuda_devices(library):
    """Names, compute capabilities and memory as the driver's own library says them.

    Source: CUDA driver API, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR is 75 and MINOR 76 (read 2026-11-30).
    """
    count, devices = ctypes.c_int(0), []
    if library.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return devices
    for number in range(count.value):
        handle, name, major, minor = ctypes.c_int(0), ctypes.create_string_buffer(256), ctypes.c_int(0), ctypes.c_int(0)
        memory = ctypes.c_size_t(0)
        failed = (
            library.cuDeviceGet(ctypes.byref(handle), number) or library.cuDeviceGetName(name, 256, handle)
            or library.cuDeviceGetAttribute(ctypes.byref(major), 75, handle)
            or library.cuDeviceGetAttribute(ctypes.byref(minor), 76, handle)
        )
        if failed:
            continue
        device = {"name": name.value.decode("utf-8", "replace"),
                  "compute-capability": "%d.%d" % (major.value, minor.value)}
        if library.cuDeviceTotalMem_v2(ctypes.byref(memory), handle) == 0:
            device["memory-bytes"] = memory.value
        devices.append(device)
    return devices


def mapped_files():
    """Files that this process has mapped as code, in the order of their addresses."""
    found = []
    with io.open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as stream:
        for line in stream:
            parts = line.rstrip("\n").split(None, 5)
            if len(parts) == 6 and "x" in parts[1] and parts[5].startswith("/") and parts[5] not in found:
                found.append(parts[5])
    return found


def put_json(path, value):
    with io.open(path + ".part", "w", encoding="utf-8") as stream:
        stream.write(json.dumps(value))
    os.replace(path + ".part", path)


def start_ourselves(python, flags, words, environ, limit_s, read=json.loads):
    """Start this file with a hidden sub-command in a fresh process; how it ended and what it wrote."""
    try:
        folder = tempfile.mkdtemp(prefix="envsmith-snapshot-")
    except OSError as error:
        raise Refused(4, "root-not-writable", "no folder for temporary files: %s; set TMPDIR" % error.strerror)
    try:
        copy, out = os.path.join(folder, "collect.py"), os.path.join(folder, "answer.json")
        shutil.copyfile(os.path.abspath(__file__), copy)  # nothing may lie beside it that imports would find
        said = run_program([python] + flags + [copy] + words + [out], environ, limit_s, cwd=folder)
        text = text_of(out, 16 << 20)
        try:
            return said, read(text) if text else None
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return said, None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def libcuda_facts(environ, notes):
    """What a fresh process maps and what it is answered; a crash in cuInit is the negated number of the signal."""
    said, answer = start_ourselves(sys.executable, ["-I", "-S", "-B"], ["cuinit"], environ, CUINIT_S)
    if answer is None:
        notes.append("libcuda could not be asked: %s" % last_line(said))
        return {}, []
    facts = dict((key, answer[key]) for key in ("libcuda", "cuinit", "cuda-driver-version") if key in answer)
    if facts.get("libcuda") and version_in_name(facts["libcuda"]):
        facts["libcuda-version"] = version_in_name(facts["libcuda"])
    if facts.get("libcuda") and "cuinit" not in facts:
        if said.code is None:
            notes.append("cuInit did not answer within %.0f s" % CUINIT_S)
        elif said.code < 0:
            facts["cuinit"] = said.code
            notes.append("cuInit ended its process with %s" % ended(said.code))
        else:
            notes.append("the libcuda that is found could not be asked: %s" % answer.get("error", ended(said.code)))
    if answer.get("error") and not facts.get("libcuda") and "cannot open shared object file" not in answer["error"]:
        notes.append("libcuda cannot be loaded: %s" % answer["error"])
    return facts, answer.get("devices", [])


# -- accelerators -------------------------------------------------------------------------------------------------

#: nvidia-smi ends with this where no kernel driver is loaded. Source: its manual, RETURN VALUE (read 2026-11-30).
SMI_NO_DRIVER = 9
SMI_FIELDS = ("name,memory.total,driver_version,compute_cap", "name,memory.total,driver_version")
#: Lines by the names that nvidia-smi gives. NVIDIA supports forward compatibility on data-centre devices and on some
#: RTX cards of the professional line, never on GeForce; of the rest we say nothing. Source: NVIDIA CUDA Compatibility,
#: and NVIDIA's list of CUDA devices, "NVIDIA Data Center Products" (both read 2026-11-30). The A800 40GB
#: Active is a card for workstations.
DATA_CENTRE = re.compile(
    r"(?:NVIDIA )?(?:Tesla |(?:GRID )?(?:GH200|GB[23]00|B[123]00|H[128]00|H20|A100X?|A800(?! 40GB Active)|A2|A10[GM]?|"
    r"A16|A30X?|A40|L2|L4|L20|L40[SG]?|V100S?|P100|P40|P4|P6|T4G?|K[1248]0M?|M4|M6|M10|M40|M60|PG[0-9]{3})"
    r"(?![0-9A-Za-z]))"
)
CONSUMER = re.compile(r"\b(?:GeForce|GTX|TITAN|MX[0-9]{3}|RTX [0-9]0[5-9]0)\b")
#: The largest whole number of TOML.
LARGEST = (1 << 63) - 1
UNITS = {"": 1, "b": 1, "kb": 10 ** 3, "mb": 10 ** 6, "gb": 10 ** 9, "tb": 10 ** 12,
         "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
COLUMNS = {
    "name": "name", "product_name": "name", "product name": "name", "gpu_name": "name",
    "memory.total": "memory-bytes", "memory-bytes": "memory-bytes", "memory_bytes": "memory-bytes",
    "memory": "memory-bytes", "compute_cap": "compute-capability", "compute-capability": "compute-capability",
    "compute_capability": "compute-capability", "driver_version": "driver", "driver": "driver", "count": "count",
}


def amount(text, unit=""):
    """Bytes of `143771 MiB`, or of `143771` under a heading with `[MiB]`; None where it is no amount."""
    match = re.match(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]*)\Z", str(text).strip())
    factor = UNITS.get((match.group(2) or unit).lower()) if match else None
    number = int(float(match.group(1)) * factor) if factor else None
    return number if number is not None and number <= LARGEST else None


def devices_in(text):
    """Devices from what a query printed: CSV with a line of headings as nvidia-smi prints it, or JSON.

    Raises ValueError where it is neither.
    """
    try:
        return rows_in(text)
    except (csv.Error, RecursionError, ArithmeticError) as error:
        raise ValueError(described(error))


def rows_in(text):
    """The same, with whatever the readers of CSV and JSON raise."""
    if text.lstrip()[:1] in ("[", "{"):
        rows = json.loads(text)
        rows = [rows] if isinstance(rows, dict) else rows
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError("its JSON is no list of objects")
        named = [dict((COLUMNS.get(str(key).lower()), value) for key, value in row.items()) for row in rows]
        return [device(row, {}) for row in named]
    lines = [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if row]
    if not lines:
        return []
    headings = [re.match(r"\s*(.*?)\s*(?:\[(.*)\])?\s*\Z", cell).groups() for cell in lines[0]]
    keys = [COLUMNS.get(name.lower()) for name, unit in headings]
    if "name" not in keys:
        raise ValueError("its first line has no column `name`")
    units = dict((key, unit or "") for key, (name, unit) in zip(keys, headings))
    return [device(dict(zip(keys, [cell.strip() for cell in row])), units) for row in lines[1:]]


def device(row, units):
    """One row as facts; what says `[N/A]` or makes no sense is left out."""
    name = one_line(str(row.get("name") or ""))[:200]
    if not name:
        raise ValueError("a device has no name")
    found = {"name": name, "count": 1}
    memory = row.get("memory-bytes")
    if memory is not None and amount(memory, units.get("memory-bytes", "")) is not None:
        found["memory-bytes"] = amount(memory, units.get("memory-bytes", ""))
    capability = re.match(r"[0-9]{1,3}\.[0-9]{1,3}\Z", str(row.get("compute-capability", "")).strip())
    if capability:
        found["compute-capability"] = capability.group(0)
    driver = one_line(str(row.get("driver") or ""))[:200]
    if driver and not driver.startswith("["):
        found["driver"] = driver
    count = str(row.get("count", 1)).strip()
    if not is_number(count) or int(count) < 1:
        raise ValueError("`%s` is no count" % count)
    found["count"] = int(count)
    return found


def grouped(devices):
    """Equal devices as one row with a count, in the order in which they came."""
    rows = []
    for one in devices:
        kept = ("name", "memory-bytes", "compute-capability", "data-centre")
        row = dict((key, one[key]) for key in kept if key in one)
        if "data-centre" not in row and (DATA_CENTRE.match(row["name"]) or CONSUMER.search(row["name"])):
            row["data-centre"] = not CONSUMER.search(row["name"])
        same = next((other for other in rows if dict(other, count=0) == dict(row, count=0)), None)
        if same is None:
            rows.append(dict(row, count=one.get("count", 1)))
        else:
            same["count"] += one.get("count", 1)
    return rows


def links_in(text):
    """Pairs from `nvidia-smi topo -m`; columns of network cards are left out."""
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", line).split("\t") for line in text.splitlines()]
    heading = next((row for row in rows if "GPU0" in [cell.strip() for cell in row]), None)
    if heading is None:
        return []
    columns = dict((place, int(cell.strip()[3:])) for place, cell in enumerate(heading)
                   if re.match(r"GPU[0-9]{1,4}\Z", cell.strip()))
    links = []
    for row in rows[rows.index(heading) + 1:]:
        match = re.match(r"GPU([0-9]{1,4})\Z", row[0].strip())
        for place, other in sorted(columns.items()):
            if match and place < len(row) and int(match.group(1)) < other and row[place].strip():
                links.append({"a": int(match.group(1)), "b": other, "kind": row[place].strip()})
    return links


def by_smi(environ, notes):
    """Devices and links as nvidia-smi says them, and whether nothing from it means that there is no driver.

    Old drivers do not know the field of compute capabilities.
    """
    if which("nvidia-smi", environ) is None:
        return [], [], True
    plain = dict(environ, LC_ALL="C")
    for fields in SMI_FIELDS:
        said = run_program(["nvidia-smi", "--query-gpu=" + fields, "--format=csv"], plain)
        if said.code == 0 or said.hung:
            break  # what hung once would hang again
    if said.code != 0:
        notes.append("nvidia-smi failed: %s" % last_line(said))
        return [], [], said.code == SMI_NO_DRIVER
    try:
        devices = devices_in(said.out)
    except ValueError as error:
        notes.append("nvidia-smi answered what cannot be read: %s" % error)
        return [], [], False
    several = sum(one["count"] for one in devices) > 1
    return devices, links_in(run_program(["nvidia-smi", "topo", "-m"], plain).out) if several else [], True


def by_proc(root):
    """Names alone, from the kernel driver: the last resort."""
    folder, devices = under(root, "/proc/driver/nvidia/gpus"), []
    for name in names_in(folder):
        match = re.search(r"(?m)^Model:\s*(\S.*)$", text_of(os.path.join(folder, name, "information")) or "")
        if match:
            devices.append({"name": match.group(1).strip(), "count": 1})
    return devices


class Hung(ValueError):
    """A vendor's program did not end in time."""


def by_query(command, environ):
    """Devices as a vendor's program says them.

    Raises ValueError with a sentence; Hung.
    """
    words = shlex.split(command)
    if not words:
        raise ValueError("it is empty")
    said = run_program(words, environ)
    if said.code != 0:
        how = said.error if said.code is None else "it ended with %s: %s" % (ended(said.code), last_line(said))
        raise Hung(how) if said.hung else ValueError(how)
    return devices_in(said.out)


def accelerator_facts(root, environ, query, given, told, notes):
    """Devices, links and driver; a declared query comes first, then what the caller had, then the programs.

    `told` are the devices that libcuda named: they fill in what a program did not say. The driver is empty where
    there is none, and None where nobody can say.
    """
    devices, links, kernel, sure, hung = [], [], kernel_driver(root), not has_nodes(root), False
    driver = kernel
    if query:
        try:
            devices = by_query(query, environ)
            driver = next((one["driver"] for one in devices if "driver" in one), driver)
        except ValueError as error:
            notes.append("the query gave nothing: %s" % error)
            sure, hung = False, isinstance(error, Hung) and "nvidia-smi" in query
    if not devices and given.get("accelerator"):
        devices, links = [dict(one) for one in given["accelerator"]], list(given.get("link") or [])
        driver = driver or given.get("driver")
    if not devices and not hung and (kernel is not None or not query):
        devices, links, clear = by_smi(environ, notes)
        driver = driver or next((one["driver"] for one in devices if "driver" in one), None)
        sure = sure and clear
    if not devices:
        devices = told or by_proc(root)
    for one in devices:
        same = [other for other in told if other["name"] == one["name"]]
        for key in ("compute-capability", "memory-bytes"):
            if key not in one and same and key in same[0]:
                one[key] = same[0][key]
    return grouped(devices), links, driver or ("" if sure and not devices else None)


def has_nodes(root):
    """Whether NVIDIA's kernel driver left signs, its version aside."""
    signs = ("/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia/version", "/sys/module/nvidia")
    return any(os.path.exists(under(root, sign)) for sign in signs)


# -- file systems -------------------------------------------------------------------------------------------------

PSEUDO = frozenset((
    "proc", "sysfs", "cgroup", "cgroup2", "devpts", "devtmpfs", "mqueue", "debugfs", "tracefs", "securityfs", "pstore",
    "bpf", "configfs", "fusectl", "hugetlbfs", "binfmt_misc", "autofs", "rpc_pipefs", "nsfs", "efivarfs", "selinuxfs",
    "fuse.gvfsd-fuse", "fuse.portal", "fuse.lxcfs", "squashfs", "iso9660",
))
NETWORK = frozenset((
    "nfs", "nfs3", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "panfs", "afs", "pvfs2",
    "orangefs", "wekafs", "9p", "virtiofs", "ocfs2", "gfs2", "glusterfs", "vastnfs", "cpfs", "alinas",
))
#: Mounts below these belong to the machine's own plumbing, not to where people keep files.
PLUMBING = ("/proc/", "/sys/", "/dev/", "/run/", "/var/lib/docker/", "/var/lib/containers/", "/var/lib/containerd/",
            "/var/lib/kubelet/", "/boot/", "/snap/")
MAX_MOUNTS = 200


def mounts_in(text):
    """(mount point, type) of /proc/self/mounts, the last of a mount point, which is the one that is seen."""
    found = {}
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) > 2:
            point = unescaped(fields[1])
            found.pop(point, None)
            found[point] = fields[2]
    return list(found.items())


def storage_kind(name):
    if name in ("tmpfs", "ramfs"):
        return "memory"
    if name in NETWORK:
        return "network"
    return "fuse" if name.startswith("fuse") else "local"


def matters(point, name):
    if name in PSEUDO or (point + "/").startswith(PLUMBING) and point != "/dev/shm":
        return False
    return point == "/dev/shm" or bool(patiently(os.path.isdir, point))


def paths_that_matter(environ, cwd, more):
    named = [environ.get(name) for name in ("RAY_TMPDIR", "HF_HOME", "ENVSMITH_ROOT", "ENVSMITH_HOME")]
    wanted = [cwd, environ.get("HOME"), environ.get("TMPDIR") or "/tmp", "/dev/shm"] + named + list(more)
    found = []
    for path in wanted:
        path = os.path.normpath(os.path.join(cwd, path)) if path else None
        if path and path not in found:
            found.append(path)
    return found


def file_systems(root, environ, cwd, more):
    """Rows of the paths that matter, each tried, then of the mounts."""
    mounts = mounts_in(text_of(under(root, "/proc/self/mounts"), 16 << 20) or "")
    paths = paths_that_matter(environ, cwd, more)
    rows = []
    for path in paths:
        there = path
        while patiently(os.path.isdir, there) is False and there != "/":
            there = os.path.dirname(there)  # what is not there yet would be made in the nearest folder above
        real = patiently(os.path.realpath, there) or there
        behind = [(point, name) for point, name in mounts if (real + "/").startswith(point.rstrip("/") + "/")]
        name = max(behind, key=lambda one: len(one[0]))[1] if behind else "unknown"
        rows.append(dict(row_of(path, there, name), **(patiently(tried, there) or {"write": "ETIMEDOUT"})))
    known = [(point, name) for point, name in mounts if point not in paths and matters(point, name)]
    return rows + [row_of(point, point, name) for point, name in known[:MAX_MOUNTS]]


def row_of(path, there, name):
    row = {"path": path, "type": name, "kind": storage_kind(name)}
    space = patiently(os.statvfs, there)
    if space is not None:
        row["size-bytes"] = space.f_blocks * space.f_frsize
        row["free-bytes"] = space.f_bavail * space.f_frsize
    return row


def tried(folder):
    """Write, grow, lock and replace a file of our own: `ok` or the name of the error.

    Where not even writing works, the rest is not tried.
    """
    row, made, handle = {}, [], None
    try:
        step = "write"
        handle, path = tempfile.mkstemp(prefix=".envsmith-snapshot-", dir=folder)
        made.append(path)
        os.write(handle, b"envsmith")
        os.fsync(handle)
        row[step] = "ok"
        for step, act in (("truncate", lambda: os.ftruncate(handle, GROWN_BYTES)),
                          ("lock", lambda: fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)),
                          ("rename", lambda: replaced(folder, path, made))):
            try:
                act()
                row[step] = "ok"
            except OSError as error:
                row[step] = error_name(error)
    except OSError as error:
        row["write"] = error_name(error)
    finally:
        if handle is not None:
            os.close(handle)
        for path in made:
            try:
                os.unlink(path)
            except OSError:
                pass
    return row


def replaced(folder, path, made):
    handle, other = tempfile.mkstemp(prefix=".envsmith-snapshot-", dir=folder)
    os.close(handle)
    made.append(other)
    os.replace(path, other)


# -- overrides ----------------------------------------------------------------------------------------------------

#: The scalar facts of `[host]` and the form of each; a test holds this equal to envsmith/hostfacts.py.
FACTS = {
    "arch": "text", "kernel": "text", "os": "text", "glibc": "release", "cpu": "text", "cpus": "count",
    "cpu-limit": "number", "memory-bytes": "count", "memory-limit-bytes": "limit", "shm-bytes": "count",
    "shm-free-bytes": "count", "open-files": "limit", "open-files-max": "limit", "processes": "limit",
    "processes-max": "limit", "locked-memory-bytes": "limit", "swappiness": "count", "compiler": "text",
    "container": "text", "scheduler": "text", "driver": "text", "libcuda": "text", "libcuda-version": "text",
    "cuinit": "whole", "cuda-driver-version": "release",
}
#: Facts of the accelerators that may be set without naming one.
OF_ACCELERATORS = {"devices": "count", "compute-capability": "release"}
FORMS = {"count": "a whole number, 0 or more", "limit": "a whole number, or -1 for no limit",
         "number": "a number, or -1 for no limit", "whole": "a whole number",
         "release": "numbers with dots, such as 2.31", "text": "one line without control characters"}
OVERRIDE = "ENVSMITH_HOST_"
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def overrides(environ):
    """Facts that ENVSMITH_HOST_* sets, None for those that it makes missing.

    Raises Refused with every variable that does not fit.
    """
    facts, wrong = {}, []
    for name in sorted(name for name in environ if name.startswith(OVERRIDE)):
        key, value = name[len(OVERRIDE):].lower().replace("_", "-"), environ[name].strip()
        try:
            if CONTROL.search(environ[name]):
                raise ValueError("it must be " + FORMS["text"])
            if key == "accelerator":
                facts[key] = [accelerator_of(one.strip()) for one in value.split(",")] if value else None
            elif key not in FACTS and key not in OF_ACCELERATORS:
                raise ValueError("there is no such fact; facts are ACCELERATOR, " + ", ".join(
                    sorted(key.upper().replace("-", "_") for key in list(FACTS) + list(OF_ACCELERATORS))))
            else:
                facts[key] = fact_of(FACTS.get(key) or OF_ACCELERATORS[key], value) if value else None
        except ValueError as error:
            wrong.append("%s=%s: %s" % (name, one_line(environ[name]), error))
    if wrong:
        raise Refused(2, "snapshot-override-malformed", *wrong)
    return facts


#: What was seen through a driver or a device says nothing of another one.
FOLLOWS = {
    "driver": ("libcuda", "libcuda-version", "cuinit", "cuda-driver-version", "driver-folder", "run"),
    "accelerator": ("link", "run"),
    "devices": ("link",),
    "compute-capability": ("run",),
}


def plan(host, planned):
    """Lay facts that were set by hand over those that were seen, and leave out what was seen through others.

    `devices` and `compute-capability` are facts of accelerators: they change those that are there, or stand for one
    that nobody named.
    """
    for cause, facts in FOLLOWS.items():
        if cause in planned:
            for fact in facts:
                host.pop(fact, None)
    host.update((key, value) for key, value in planned.items() if key not in OF_ACCELERATORS)
    rows = host.get("accelerator") or []
    if planned.get("devices") == 0:
        rows = []
    elif planned.get("devices") is not None or planned.get("compute-capability") is not None:
        rows = rows or [{"name": "not named", "count": 1}]
    if planned.get("devices"):
        rows = [dict(rows[0], count=planned["devices"])]
    if "compute-capability" in planned:
        rows = [dict(row, **{"compute-capability": planned["compute-capability"]}) for row in rows]
    host["accelerator"] = [dict((key, value) for key, value in row.items() if value is not None) for row in rows]


def say_planned(seen, answer):
    """Lay what ENVSMITH_HOST_* says over the facts of a snapshot that was taken before, both as JSON.

    The answer holds the facts and the names of those that were set.
    """
    with io.open(seen, encoding="utf-8") as stream:
        host = json.load(stream)
    planned = overrides(dict(os.environ))
    plan(host, planned)
    facts = dict((key, value) for key, value in host.items() if value is not None)
    put_text(answer, json.dumps({"host": facts, "set": sorted(planned)}))


def fact_of(form, value):
    if form == "text":
        return value
    if form == "number":
        if re.match(r"[0-9]{1,18}(\.[0-9]{1,18})?\Z|-1(\.0)?\Z", value):
            return float(value)
    elif form == "release":
        if re.match(r"[0-9]{1,9}(\.[0-9]{1,9})+\Z", value):
            return value
    elif re.match({"count": r"[0-9]{1,18}\Z", "limit": r"[0-9]{1,18}\Z|-1\Z", "whole": r"-?[0-9]{1,9}\Z"}[form], value):
        return int(value)
    raise ValueError("it must be " + FORMS[form])


def accelerator_of(text):
    """`8xNVIDIA A100-SXM4-80GB:8.0:80`."""
    match = re.match(
        r"([0-9]{1,9})x([^:]*[^:\s]):([0-9]{1,3}\.[0-9]{1,3})(?::([0-9]{1,9}(?:\.[0-9]{1,9})?))?\Z", text)
    if match is None or int(match.group(1)) < 1:
        raise ValueError("it must be COUNTxNAME:CC[:MEMORY_GIB], such as 8xNVIDIA A100-SXM4-80GB:8.0:80")
    found = {"name": match.group(2).strip(), "count": int(match.group(1)), "compute-capability": match.group(3)}
    if match.group(4):
        found["memory-bytes"] = int(float(match.group(4)) * (1 << 30))
    return grouped([found])[0]


# -- the interpreter ----------------------------------------------------------------------------------------------


def without_python_settings(environ):
    return dict((name, value) for name, value in environ.items() if not name.startswith("PYTHON"))


def interpreter(python, environ, cwd):
    """The absolute path of EXE, its links kept: a virtual environment is found through them.

    Raises Refused.
    """
    path = python if "/" in python else which(python, environ) or python
    path = os.path.normpath(os.path.join(cwd, os.path.expanduser(path)))
    if not os.path.exists(path):
        raise Refused(6, "interpreter-broken", "`%s` is not there" % path)
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        raise Refused(6, "interpreter-broken", "`%s` is no program that this user may run" % path)
    return path


def ask_python(path, environ):
    """What EXE says about itself, its user's folder and PYTHON variables left out.

    Raises Refused.
    """
    said, answer = start_ourselves(
        path, ["-I", "-B"], ["python-facts"], without_python_settings(environ), PROGRAM_S, ast.literal_eval
    )
    if answer is not None:
        return answer
    if said.code == 79 or "Unknown option: -I" in said.error:
        raise Refused(3, "python-too-old", "`%s` is older than Python 3.8, the oldest that can be captured" % path)
    how = said.error if said.code is None else "it ended with %s and said: %s" % (ended(said.code), last_line(said))
    raise Refused(6, "interpreter-broken", "`%s` does not work as a Python: %s" % (path, how))


# -- distributions ------------------------------------------------------------------------------------------------


def metadata_text(path):
    """As envsmith/tools/distributions.py reads it: None where it is no file or far too large."""
    try:
        if not os.path.isfile(path) or os.stat(path).st_size > METADATA_BYTES:
            return None
        with io.open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return None


def header_of(text):
    """Fields before the first empty line; of one that stands several times the first, but every Requires-Dist."""
    found, requires = {}, []
    for line in (text or "").splitlines():
        if not line:
            break
        if line[0] in " \t":
            continue  # the rest of a long field; none that we read has one
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key, value.strip())
            if key.lower() == "requires-dist":
                requires.append(value.strip())
    return found, requires


def canonical(name):
    """Source: name normalisation, packaging.python.org specifications."""
    return re.sub(r"[-_.]+", "-", name).lower()


def csv_rows(text):
    lines = text.splitlines()
    try:
        return list(csv.reader(lines))
    except csv.Error:
        rows = []
        for line in lines:
            try:
                rows += csv.reader([line])
            except csv.Error:
                pass
        return rows


def sha256_of(text):
    """Hex of a sha256 as RECORD writes it."""
    name, _, value = text.partition("=")
    if name != "sha256":
        return None
    try:
        digest = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    except (binascii.Error, ValueError):
        return None
    return binascii.hexlify(digest).decode("ascii") if len(digest) == 32 else None


def record_rows(text, below):
    """(path relative to the folder that imports start from, sha256 or None) of every row; bytecode left out."""
    rows = {}
    for row in csv_rows(text):
        if row and row[0] and "\0" not in row[0]:
            path = posixpath.normpath(posixpath.join(below, row[0]))
            if not path.endswith(".pyc"):
                rows[path] = sha256_of((row[1:2] or [""])[0])
    return rows


def editable_of(text):
    """The folder of an editable installation. Source: PEP 610."""
    try:
        data = json.loads(text or "{}")
        if data["dir_info"]["editable"] is not True:
            return None
        parts = urlsplit(data["url"])
        return unquote(parts.path) if parts.scheme == "file" else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


class Distribution(object):
    """One installed distribution as its metadata says."""

    def __init__(self, folder, info):
        place = os.path.join(folder, info)
        inner = "METADATA" if info.endswith(".dist-info") else "PKG-INFO"
        header, self.requires = header_of(metadata_text(os.path.join(place, inner)) or metadata_text(place))
        stem = info.rsplit(".", 1)[0].split("-")
        self.folder, self.info, self.real = folder, info, os.path.realpath(folder)
        self.said = header.get("Name") or stem[0]
        self.name = canonical(self.said)
        self.version = header.get("Version") or (stem[1] if len(stem) > 1 else "0")
        self.editable = editable_of(metadata_text(os.path.join(place, "direct_url.json")))
        record = metadata_text(os.path.join(place, "RECORD"))
        self.rows = None if record is None else record_rows(record, "")
        if self.rows is None:
            listed = metadata_text(os.path.join(place, "installed-files.txt"))
            self.rows = None if listed is None else record_rows(listed, info)
        self.record = None
        try:
            with opened(os.path.join(place, "RECORD")) as stream:
                self.record = hashlib.sha256(stream.read()).hexdigest()
        except OSError:
            pass

    def file(self, row):
        return os.path.normpath(os.path.join(self.real, row))


#: Source: PEP 508, names.
PROJECT = re.compile(r"[A-Z0-9](?:[A-Z0-9._-]*[A-Z0-9])?\Z", re.I | re.A)


def distributions_in(folders, notes):
    """Every distribution, folder by folder and sorted in each, as envsmith/tools/distributions.py reads them.

    What names no project is left out and noted: pip renames what it is about to remove to `~orch-2.9.0.dist-info`.
    """
    found, nameless = [], []
    for folder in folders:
        for name in names_in(folder):
            if not name.endswith((".dist-info", ".egg-info")):
                continue
            one = Distribution(folder, name)
            if name.startswith("~"):
                nameless.append("%s in %s" % (name, folder))
            elif not PROJECT.match(one.said):
                nameless.append("%s in %s, which names `%s`" % (name, folder, one.said[:100]))
            else:
                found.append(one)
    if nameless:
        notes.append("metadata that names no project is left out: " + ", ".join(nameless))
    return found


class Progress(object):
    """A line on stderr when reading takes long."""

    def __init__(self, files, size):
        self.files, self.size, self.read, self.lock = files, size, 0, threading.Lock()
        self.started = self.said = time.time()
        self.pause = 2.0 if sys.stderr.isatty() else 10.0

    def add(self, count):
        with self.lock:
            self.read += count
            now = time.time()
            if now - self.said >= self.pause:
                self.said = now
                say("envsmith-snapshot: read %.1f of %.1f GB in %d files" % (
                    self.read / 1e9, self.size / 1e9, self.files))


def hashed(paths):
    """Path to sha256 of every regular file, links followed, each inode read once, several at a time."""
    inodes, digests = {}, {}
    for path in paths:
        try:
            info = os.stat(path)
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(info.st_mode):
            inodes.setdefault((info.st_dev, info.st_ino, info.st_size), []).append(path)
    groups = sorted(inodes.items(), key=lambda item: -item[0][2])  # the big ones first: none is left for the end
    big = [group for group in groups if group[0][2] > SMALL_BYTES]
    small = groups[len(big):]
    tasks = [[group] for group in big] + [small[n:n + BATCH_FILES] for n in range(0, len(small), BATCH_FILES)]
    progress = Progress(len(groups), sum(key[2] for key, _ in groups))
    buffers = threading.local()

    def work(batch):
        return [(names, digest_of(names[0])) for _, names in batch]

    def digest_of(path):
        view = getattr(buffers, "view", None)
        if view is None:
            view = buffers.view = memoryview(bytearray(1 << 20))
        digest = hashlib.sha256()
        try:
            with io.open(path, "rb", buffering=0) as stream:
                while True:
                    count = stream.readinto(view)
                    if not count:
                        break
                    digest.update(view[:count])
                    progress.add(count)
        except OSError:
            return None
        return digest.hexdigest()

    jobs = max(4, min(64, 2 * len(os.sched_getaffinity(0))))
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        for names, digest in (pair for pairs in pool.map(work, tasks) for pair in pairs):
            if digest is not None:
                digests.update(dict.fromkeys(names, digest))
    return digests


def files_digest(contents):
    """As envsmith/basepackages.py: sha256 over a sorted line `path NUL sha256 LF` for each file."""
    lines = ("%s\0%s\n" % (path, contents[path] or "") for path in sorted(contents))
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def package_rows(found, notes, with_files=True):
    """`[[packages]]`: the first of each name, which is the one that imports find; versions alone without their files."""
    chosen, twice, unread = [], [], []
    for one in found:
        if any(one.name == other.name for other in chosen):
            twice.append("%s %s in %s" % (one.name, one.version, one.folder))
        else:
            chosen.append(one)
    paths = sorted(set(one.file(row) for one in chosen for row in one.rows or ())) if with_files else ()
    digests = hashed(paths)
    rows, dropped = [], 0
    for one in sorted(chosen, key=lambda one: one.name):
        package = {"name": one.name}
        if VERSION.match(one.version):
            package["version"] = one.version
        else:
            unread.append("%s `%s`" % (one.name, one.version))
        good = [line for line in one.requires if is_requirement(line)]
        dropped += len(one.requires) - len(good)
        package["requires"] = good
        if one.rows is not None and with_files:
            actual = dict((row, digests.get(one.file(row))) for row in one.rows)
            package["files"] = files_digest(actual)
            package["altered"] = [
                {"path": row, "sha256": actual[row]} for row in sorted(actual)
                if actual[row] is None or (one.rows[row] is not None and actual[row] != one.rows[row])
            ]
        package["record"], package["editable"] = one.record, one.editable
        rows.append(package)
    if dropped:
        notes.append("%d requirements of packages cannot be read and are left out" % dropped)
    if unread:
        notes.append("versions that are none by PEP 440 are left out: " + ", ".join(unread))
    if twice:
        notes.append("hidden by others of their name: " + ", ".join(twice))
    return rows


def hook_rows(facts, found):
    """What runs in every process of it: .pth files of the site folders, sitecustomize and usercustomize of its path."""
    places = [os.path.join(folder, name) for folder in facts["site"]
              for name in names_in(folder) if name.endswith(".pth")]
    for module in ("sitecustomize", "usercustomize"):
        candidates = [os.path.join(entry, name) for entry in facts["path"]
                      for name in (module + "/__init__.py", module + ".py")]
        places += [path for path in candidates if os.path.isfile(path)][:1]
    owners = dict((os.path.join(os.path.realpath(one.folder), row), one.name)
                  for one in found for row in one.rows or ())
    rows = []
    for path in places:
        try:
            with opened(path) as stream:
                digest = hashlib.sha256(stream.read()).hexdigest()
        except OSError:
            continue
        settled = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        rows.append({"path": path, "sha256": digest, "owner": owners.get(settled)})
    return rows


def package_folders(facts):
    """The site folders, then what else .pth files put on its path; never the standard library itself."""
    folders, seen = [], set(os.path.realpath(entry) for entry in facts["stdlib"])
    for folder in facts["site"] + facts["path"]:
        real = os.path.realpath(folder)
        if real not in seen and os.path.isdir(real):
            seen.add(real)
            folders.append(folder)
    return folders


# -- versions and requirements ------------------------------------------------------------------------------------

#: Source: PEP 440, appendix B, and PEP 508.
_VERSION = (
    r"v?(?:\d+!)?\d+(?:\.\d+)*(?:[-_.]?(?:alpha|a|beta|b|preview|pre|c|rc)[-_.]?\d*)?"
    r"(?:-\d+|[-_.]?(?:post|rev|r)[-_.]?\d*)?(?:[-_.]?dev[-_.]?\d*)?"
)
_LOCAL = r"(?:\+[a-z0-9]+(?:[-_.][a-z0-9]+)*)"
VERSION = re.compile(r"\s*" + _VERSION + _LOCAL + r"?\s*\Z", re.I | re.A)
_CLAUSE = re.compile(
    r"\s*(?:(?:==|!=)\s*(?:" + _VERSION + r"(?:" + _LOCAL + r"|\.\*)?)|~=\s*(?:v?(?:\d+!)?\d+\.\d" + r"[^\s,;)+*]*)"
    r"|(?:<=|>=|<|>)\s*" + _VERSION + r"|===\s*[^\s,;)]+)\s*\Z", re.I | re.A
)
_HEAD = re.compile(r"\s*[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\s*(?:\[\s*([^\]]*)\])?\s*")
_EXTRA = re.compile(r"\s*[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\s*\Z")
_MARKER_TOKEN = re.compile(
    r"\s*(?:(?P<variable>python_version|python_full_version|os_name|sys_platform|platform_release|platform_system|"
    r"platform_version|platform_machine|platform_python_implementation|implementation_name|implementation_version|"
    r"python_implementation|os\.name|sys\.platform|platform\.version|platform\.machine|platform\.python_implementation|"
    r"extra)\b|(?P<text>'[^']*'|\"[^\"]*\")|(?P<op>===|==|~=|!=|<=|>=|<|>|not\s+in\b|in\b)|(?P<joint>and\b|or\b)|"
    r"(?P<paren>[()]))"
)


def is_requirement(text):
    """Whether a Requires-Dist line can be read; strict where in doubt."""
    match = _HEAD.match(text)
    if match is None:
        return False
    if match.group(1) and not all(_EXTRA.match(one) for one in match.group(1).split(",")):
        return False
    rest = text[match.end():]
    if rest.startswith("@"):
        url = re.match(r"@\s*\S+(?:\s+;(?P<marker>.*))?\s*\Z", rest)
        return url is not None and (url.group("marker") is None or is_marker(url.group("marker")))
    clauses, semicolon, marker = rest.partition(";")
    clauses = clauses.strip()
    if clauses.startswith("("):
        if not clauses.endswith(")"):
            return False
        clauses = clauses[1:-1].strip()
    parts = clauses.split(",")
    if len(parts) > 1 and not parts[-1].strip():
        parts.pop()  # a trailing comma is allowed
    if clauses and not all(_CLAUSE.match(one) for one in parts):
        return False
    return not semicolon or is_marker(marker)


def is_marker(text):
    """Walk the grammar: OPERAND OP OPERAND, joined by and/or, in parentheses."""
    tokens, place = [], 0
    text = text.rstrip()
    while place < len(text):
        match = _MARKER_TOKEN.match(text, place)
        if match is None:
            return False
        tokens.append(match.group(0).strip() if match.lastgroup in ("paren",) else match.lastgroup)
        place = match.end()
    depth, wanted = 0, "operand"
    kinds = iter(tokens)
    for token in kinds:
        if wanted == "operand" and token == "(":
            depth += 1
        elif wanted == "operand" and token in ("variable", "text"):
            if next(kinds, None) != "op" or next(kinds, None) not in ("variable", "text"):
                return False
            wanted = "joint"
        elif wanted == "joint" and token == ")" and depth:
            depth -= 1
        elif wanted == "joint" and token == "joint":
            wanted = "operand"
        else:
            return False
    return wanted == "joint" and not depth


# -- one real computation -----------------------------------------------------------------------------------------


def run_torch(out):
    """The hidden sub-command `run-torch`, run by EXE with its hooks: a matrix product in bfloat16 on device 0."""
    here = os.path.realpath(os.path.dirname(os.path.abspath(sys.argv[0])))
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != here]
    answer = {"dtype": "bfloat16", "ok": False, "error": "the process ended while torch was imported"}
    put_json(out, answer)
    try:
        import torch

        answer.update({"torch": str(torch.__version__), "cuda": torch.version.cuda,
                       "error": "the process ended while the device computed"})
        put_json(out, answer)
        answer["device"], answer["error"] = multiplied(torch)
        answer["ok"] = answer["error"] is None
    except BaseException as error:
        answer["error"] = described(error)
    answer["libcuda"] = next((path for path in mapped_files() if os.path.basename(path).startswith("libcuda.so")), None)
    put_json(out, answer)
    os._exit(0)


def multiplied(torch):
    """Name of the device, and what is wrong with its product, None where it is right."""
    accelerator = getattr(torch, "accelerator", None)
    kind = "cuda"
    if not torch.cuda.is_available() and accelerator is not None and accelerator.is_available():
        kind = accelerator.current_accelerator().type
    generator = torch.Generator().manual_seed(7)
    left, right = [torch.randn(256, 256, generator=generator).to(torch.bfloat16) for _ in range(2)]
    right_answer = torch.matmul(left.double(), right.double())
    product = torch.matmul(left.to(kind + ":0"), right.to(kind + ":0")).cpu().double()
    name = torch.cuda.get_device_name(0) if kind == "cuda" else kind + ":0"
    if not bool(torch.isfinite(product).all()):
        return name, "the product is not finite"
    off = float((product - right_answer).abs().max() / right_answer.abs().max())
    return name, None if off < 0.02 else "the product is off by %.3g" % off


def device_run(path, environ, driver):
    said, answer = start_ourselves(path, ["-B"], ["run-torch"], without_python_settings(environ), RUN_S)
    row = answer or {"dtype": "bfloat16", "ok": False, "error": "it could not be started: " + last_line(said)}
    if said.code is None:
        row["ok"], row["error"] = False, said.error
    elif said.code != 0:
        row["ok"], row["error"] = False, "%s; it ended with %s" % (row.get("error"), ended(said.code))
    if row.get("error"):
        row["error"] = cut(one_line(row["error"]))
    return dict(row, driver=driver or None)


def has_torch(folders):
    return any(os.path.isdir(os.path.join(folder, "torch")) for folder in folders)


# -- TOML ---------------------------------------------------------------------------------------------------------

ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def quoted(text):
    """A basic string. Bytes that are no UTF-8 become visible escapes, since TOML has no way to say them."""
    clean = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return '"' + "".join(
        ESCAPES.get(c) or ("\\u%04X" % ord(c) if ord(c) < 32 or 127 <= ord(c) < 160 else c) for c in clean
    ) + '"'


def value_of(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, dict):
        return "{ " + ", ".join("%s = %s" % (key_of(key), value_of(item)) for key, item in value.items()
                                if item is not None) + " }"
    if isinstance(value, (list, tuple)):
        if not value:
            return "[]"
        if len(value) == 1:
            return "[" + value_of(value[0]) + "]"
        return "[\n" + "".join("    %s,\n" % value_of(item) for item in value) + "]"
    return quoted(value)


def key_of(key):
    return key if re.match(r"[A-Za-z0-9_-]+\Z", key) else quoted(key)


def table(title, facts, empty=()):
    """Lines of a table; facts that are missing, and empty lists that say nothing, are left out."""
    lines = [title]
    for key, value in facts.items():
        if value is None or (isinstance(value, (list, tuple)) and not value and key not in empty):
            continue
        lines.append("%s = %s" % (key_of(key), value_of(value)))
    return "\n".join(lines) + "\n"


def written(answer):
    """The whole answer as a snapshot file."""
    parts = [table("[snapshot]", answer["snapshot"])]
    host = answer["host"]
    scalars = dict((key, host[key]) for key in FACTS if key in host)
    parts.append(table("[host]", scalars))
    if host.get("environ"):
        parts.append(table("[host.environ]", dict(sorted(host["environ"].items()))))
    for name in ("accelerator", "link", "driver-folder", "library", "file-system", "run"):
        parts += [table("[[host.%s]]" % name, row) for row in host.get(name) or ()]
    if answer.get("python"):
        python = dict(answer["python"])
        hooks = python.pop("hook")
        parts.append(table("[python]", python))
        parts += [table("[[python.hook]]", row) for row in hooks]
    parts += [table("[[packages]]", row) for row in answer.get("packages") or ()]
    return "\n".join(parts)


# -- all of it ----------------------------------------------------------------------------------------------------


def collect(options, environ, cwd, root="/"):
    """The answer as tables; every section is guarded, because a fact that is missing is a value.

    Raises Refused.
    """
    notes, host = [], {}
    planned = overrides(environ)
    given = read_given(options.given)
    python = interpreter(options.python, environ, cwd) if options.python is not None else None
    facts = ask_python(python, environ) if python else None

    def section(name, look, otherwise):
        try:
            return look()
        except Exception as error:
            notes.append("the section `%s` failed: %s" % (name, described(error)))
            return otherwise

    for name, look in (("system", lambda: system_facts(root, environ)), ("memory", lambda: memory_facts(root)),
                       ("limits", limit_facts), ("cgroup", lambda: cgroup_facts(root)),
                       ("compiler", lambda: {"compiler": compiler(environ, notes)}),
                       ("container", lambda: {"container": container(root, environ)}),
                       ("scheduler", lambda: {"scheduler": scheduler(environ)}),
                       ("environ", lambda: {"environ": shown_environ(environ)})):
        host.update(section(name, look, {}))
    about, told = section("libcuda", lambda: libcuda_facts(environ, notes), ({}, []))
    host.update(about)
    kernel = section("driver", lambda: kernel_driver(root), None)  # it needs no program, and none may take it away
    found = section("accelerator", lambda: accelerator_facts(root, environ, options.query, given, told, notes),
                    ([], [], kernel))
    host["accelerator"], host["link"], host["driver"] = found
    loader = section("loader", lambda: Loader(root, environ, cwd), None)
    if loader is not None:
        stub = os.path.dirname(host.get("libcuda", "")) if host.get("cuinit") == STUB else None
        host["driver-folder"] = section("driver-folder", lambda: driver_folders(loader, host["driver"], stub), [])
        host["library"] = section("library", loader.libraries, [])
        notes.extend("the folder `%s` did not answer within %.0f s" % (folder, PATIENCE_S) for folder in loader.silent)
    host["file-system"] = section("file-system", lambda: file_systems(root, environ, cwd, options.path), [])
    answer = {"host": host}
    if python:
        folders = package_folders(facts)
        packages = section("packages", lambda: distributions_in(folders, notes), [])
        answer["python"] = {
            "executable": python, "version": facts["version"], "prefix": facts["prefix"], "site": facts["site"],
            "headers": facts["headers"], "hook": section("hook", lambda: hook_rows(facts, packages), []),
        }
        answer["packages"] = section("packages", lambda: package_rows(packages, notes, not options.no_files), [])
        if host["accelerator"] and not options.no_run and has_torch(folders):
            row = section("run", lambda: device_run(python, environ, host["driver"]), None)
            host["run"] = [row] if row else []
    if planned:
        plan(host, planned)
        notes.append("set by hand: " + ", ".join(sorted(planned)))
    note = "; ".join(cut(one_line(note)) for note in notes)
    answer["snapshot"] = {
        "schema": SCHEMA, "origin": "captured", "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "tool": options.tool or "collect.py %d" % SCHEMA, "note": note or None,
    }
    return answer


def read_given(path):
    """Facts of a better source.

    Raises Refused.
    """
    if not path:
        return {}
    try:
        with io.open(path, encoding="utf-8") as stream:
            given = json.load(stream)
    except (OSError, ValueError) as error:
        raise Refused(2, "usage", "--given `%s`: %s" % (path, error))
    if not isinstance(given, dict):
        raise Refused(2, "usage", "--given `%s` holds no object" % path)
    return given


def require_file(path):
    """Refuse what must not be replaced by a file: a device, a pipe, a folder.

    Raises Refused.
    """
    if not path:
        raise Refused(2, "usage", "-o names no file")
    try:
        info = os.stat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return  # whether it can be made there shows when it is written
        raise Refused(4, "root-not-writable", "`%s` cannot be written: %s" % (path, error.strerror))
    if not stat.S_ISREG(info.st_mode) or any(os.path.samestat(info, os.fstat(number)) for number in (1, 2)):
        what = "is our own stdout or stderr" if stat.S_ISREG(info.st_mode) else "is there and is no regular file"
        raise Refused(2, "snapshot-output-unusable", "`%s` %s; without -o the answer goes to stdout" % (path, what))


def put_text(path, text):
    """Write a file whole or not at all; a link is followed, so that it stays.

    Raises Refused.
    """
    require_file(path)
    path = os.path.realpath(path)
    folder, name = os.path.split(path)
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix="." + name[:40] + "-", dir=folder)
        with io.open(handle, "wb") as stream:
            stream.write(text.encode("utf-8"))
            stream.flush()
            os.fsync(stream.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except OSError as error:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        raise Refused(4, "root-not-writable", "`%s` cannot be written: %s" % (path, error.strerror))


def words_of(argv):
    parser = argparse.ArgumentParser(prog="collect.py", description="Write a snapshot of this machine as TOML.")
    parser.add_argument("--python", metavar="EXE", help="also what this interpreter holds")
    parser.add_argument("--query", metavar="COMMAND", help="a vendor's program that lists its accelerators")
    parser.add_argument("--path", metavar="DIR", action="append", default=[], help="try this folder too")
    parser.add_argument("--given", metavar="FILE", help="JSON of accelerators that are known already")
    parser.add_argument("--tool", metavar="TEXT", help=argparse.SUPPRESS)
    parser.add_argument("--no-run", action="store_true", help="do not compute anything on the device")
    parser.add_argument("--no-files", action="store_true", help="read versions of packages only, not their files")
    parser.add_argument("-o", "--output", metavar="FILE", help="write here instead of to stdout")
    return parser.parse_args(argv)


def main(argv):
    hidden = {"cuinit": ask_libcuda, "run-torch": run_torch}
    if argv[1:2] and argv[1] in hidden:
        hidden[argv[1]](argv[2])
        return 0
    closed = restored()
    asked = argv[1:2] == ["plan"]
    options = None if asked else words_of(argv[1:])
    try:
        if asked:
            say_planned(*argv[2:4])
            return 0
        if options.output is not None:
            require_file(options.output)
        elif 1 in closed:
            raise Refused(4, "output-failed", "stdout is closed; name a file with -o")
        text = written(collect(options, dict(os.environ), current_folder()))
        if options.output is not None:
            put_text(options.output, text)
        else:
            sys.stdout.buffer.write(text.encode("utf-8"))
            sys.stdout.flush()
    except Refused as error:
        for message in error.messages:
            say("envsmith-snapshot: error[%s]: %s" % (
                error.code, message.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")))
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a reader that has gone is no error of ours
    except OSError as error:
        say("envsmith-snapshot: error[output-failed]: the answer cannot be written: %s" % error)
        return 4
    except KeyboardInterrupt:
        return 130
    return 0


def restored():
    """Open those of the descriptors 0 to 2 that were closed on the null device, and say which they were.

    Else the next file that is opened would take their numbers, and what is meant for a person would go into it.
    """
    closed = []
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            closed.append(number)
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    if sys.stdout is None:
        sys.stdout = io.open(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = io.open(2, "w", closefd=False)
    return closed


if __name__ == "__main__":
    code = main(sys.argv)
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
    os._exit(code)  # a thread that waits for a dead mount must not hold us
