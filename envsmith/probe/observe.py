"""The probe's payload: what does this very process load, and from where?

It runs inside any interpreter, imports nothing but the standard library and answers through a file:

    PYTHON observe.py REQUEST.json ANSWER.json

Everything below the gate needs Python 3.8, but the whole file must *parse* on 2.7, else an old interpreter would die
of a syntax error instead of refusing clearly; hence no f-strings, no annotations, no keyword-only arguments.
The keys of the answer are the field names of envsmith/facts.py.
"""

import sys

if sys.version_info < (3, 8):
    sys.stderr.write("envsmith-probe: python too old\n")
    sys.exit(79)

sys.dont_write_bytecode = True
#: What the site hooks had loaded before us: for these names `import` answers with the loaded module.
LOADED_BEFORE = frozenset(sys.modules)
SCHEMA = 1
SECRET_WORDS = ("TOKEN", "KEY", "PASSWORD", "PASSWD", "SECRET", "CREDENTIAL")
FLAG_NAMES = (
    "dont_write_bytecode", "ignore_environment", "isolated", "no_site", "no_user_site", "optimize", "safe_path",
)
#: Loaded as private copies, so that neither a hook's patching of them reaches us nor our loading them the caller.
PRIVATE = ("json", "hashlib", "re", "shutil", "sysconfig")
TEXT_LIMIT = 1000


class Own(object):
    """The standard library as the payload uses it, whatever the site hooks did to sys.path and sys.meta_path."""

    def __init__(self):
        path, meta_path = list(sys.path), list(sys.meta_path)
        try:
            self._restrict()
            import importlib.machinery
            import io
            import os
            import time

            self.os, self.io, self.time, self.machinery = os, io, time, importlib.machinery
            for name in PRIVATE:
                setattr(self, name, _private(name))
            self.paths = self.sysconfig.get_paths()
        finally:
            sys.path[:], sys.meta_path[:] = path, meta_path

    def _restrict(self):
        """Leave only the interpreter's own finders and library; `encodings` is loaded before any site hook."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if _is_default(finder)]
        encodings = getattr(sys.modules.get("encodings"), "__file__", None)
        if encodings and "/" in encodings:
            stdlib = encodings.rsplit("/", 2)[0]
            dynamic = [entry for entry in sys.path if entry.endswith("/lib-dynload")]
            sys.path[:] = [stdlib, stdlib + "/lib-dynload"] + dynamic


def _private(name):
    """Import a fresh copy and leave sys.modules as it was."""
    def family():
        return [key for key in list(sys.modules) if key == name or key.startswith(name + ".")]

    before = dict((key, sys.modules.pop(key)) for key in family())
    try:
        return __import__(name)
    finally:
        for key in family():
            del sys.modules[key]
        sys.modules.update(before)


def _is_default(finder):
    return getattr(finder, "__module__", None) in ("_frozen_importlib", "_frozen_importlib_external")


def collect(request, own, note=lambda step: None):
    """Answer a request; a section that fails is named in `faults` and left empty, the others still answer."""
    started = own.time.perf_counter()
    entries, environ = list(sys.path), dict(own.os.environ)
    launch_path = request.get("launch_path")
    launch_path = environ.get("PATH", "") if launch_path is None else launch_path
    answer = {"schema": SCHEMA, "context": request["context"], "faults": []}

    def each(names, look, *more):
        return dict((name, look(own, name, *more)) for name in names or ())

    sections = (
        ("python", lambda: python_facts(own)),
        ("flags", lambda: dict((name, int(getattr(sys.flags, name, 0))) for name in FLAG_NAMES)),
        ("path", lambda: [path_entry(own, entry) for entry in entries]),
        ("environ", lambda: shown_environ(environ, request["environ_names"])),
        ("site", lambda: site_facts(own, entries, environ)),
        ("modules", lambda: each(request["locate"], locate)),
        ("launchers", lambda: each(request["launchers"], launcher, launch_path)),
        ("scripts", lambda: scripts_in(own, request["scripts"])),
        ("distributions", lambda: distributions(own, entries)),
        ("imports", lambda: each(request["imports"], really_import, note)),
        ("attributes", lambda: each(request["attributes"], attribute, note)),
        ("maps", lambda: mapped_files(own) if request["maps"] else []),
    )
    for name, section in sections:
        note("the section `%s`" % name)
        try:
            answer[name] = section()
        except Exception as error:
            answer[name] = EMPTY[name]()
            answer["faults"].append({"section": name, "message": describe(error)})
    answer["seconds"] = round(own.time.perf_counter() - started, 4)
    return clean(answer)


#: What stands in for a section that failed, so that the answer keeps its form.
EMPTY = {
    "python": lambda: dict(
        dict.fromkeys(("executable", "realpath", "version", "prefix", "base_prefix", "real_prefix"), ""),
        real_base_prefix="", implementation="", stdlib=[], purelib="", platlib="", site_packages=[],
    ),
    "site": lambda: {"user_enabled": False, "user_dir": None, "user_exists": False, "pth": [], "customize": [],
                     "finders": []},
    "flags": dict, "path": list, "environ": dict, "modules": dict, "launchers": dict, "scripts": list, "distributions": list,
    "imports": dict, "attributes": dict, "maps": list,
}


# -- the interpreter and its path ---------------------------------------------------------------------------------


def python_facts(own):
    path = own.os.path
    return {
        "executable": sys.executable or "",
        "realpath": path.realpath(sys.executable) if sys.executable else "",
        "version": "%d.%d.%d" % sys.version_info[:3],
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "real_prefix": path.realpath(sys.prefix),
        "real_base_prefix": path.realpath(sys.base_prefix),
        "implementation": sys.implementation.name,
        "stdlib": stdlib_dirs(own),
        "purelib": path.realpath(own.paths["purelib"]),
        "platlib": path.realpath(own.paths["platlib"]),
        "site_packages": [path.realpath(entry) for entry in site_dirs(own)],
    }


def stdlib_dirs(own):
    """The entries that the interpreter itself puts on sys.path, resolved; to be matched exactly, never as prefixes."""
    path = own.os.path
    # without these variables the platform folder of a virtual environment is named, which is on nobody's path
    base = {"base": sys.base_prefix, "platbase": sys.base_prefix}
    folders = [own.paths["stdlib"], own.sysconfig.get_path("platstdlib", vars=base)]
    dynamic = [path.join(folder, "lib-dynload") for folder in folders]
    version = "%d%d" % sys.version_info[:2]
    zips = [path.join(sys.base_prefix, lib, "python" + version + abi + ".zip")
            for lib in ("lib", getattr(sys, "platlibdir", "lib")) for abi in ("", "t")]
    return sorted(set(path.realpath(entry) for entry in folders + dynamic + zips))


def path_entry(own, entry):
    real = own.os.path.realpath(entry)
    return {"entry": entry, "real": real, "exists": own.os.path.exists(real)}


def shown_environ(environ, names):
    """The variables that were asked for or decide what is loaded; values that look secret are never carried."""
    shown = {}
    for name in environ:
        decisive = name.startswith(("PYTHON", "LD_")) or name in ("VIRTUAL_ENV", "PATH") or name.endswith("_ALLOC_CONF")
        if decisive or name in names:
            secret = any(word in name.upper() for word in SECRET_WORDS)
            shown[name] = "(redacted)" if secret else environ[name]
    return shown


# -- site hooks ---------------------------------------------------------------------------------------------------


def site_dirs(own):
    """The directories whose .pth files the site module reads at start, in its order."""
    if sys.flags.no_site:
        return []
    import site

    user = [site.USER_SITE] if site.ENABLE_USER_SITE and site.USER_SITE else []
    found, seen = [], set()
    for entry in user + list(site.getsitepackages()):
        real = own.os.path.realpath(entry)
        if real not in seen and own.os.path.isdir(real):
            seen.add(real)
            found.append(entry)
    return found


def site_facts(own, entries, environ):
    import site

    user_dir = None
    if not sys.flags.no_site:
        user_dir = site.USER_SITE or site.getusersitepackages()
    return {
        "user_enabled": bool(site.ENABLE_USER_SITE) and not sys.flags.no_site,
        "user_dir": own.os.path.realpath(user_dir) if user_dir else None,
        "user_exists": bool(user_dir) and own.os.path.isdir(user_dir),
        "pth": pth_files(own, entries, environ),
        "customize": customize_files(own, entries),
        "finders": foreign_finders(own),
    }


def pth_files(own, entries, environ):
    """Every .pth file of the site directories, then, less sure, of path entries whose origin is not visible.

    A hook may call site.addsitedir, which leaves no trace but the entry; entries of PYTHONPATH and plain lines of
    .pth files are known not to be searched for further .pth files.
    """
    if sys.flags.no_site:
        return []
    real = own.os.path.realpath
    sure = [real(entry) for entry in site_dirs(own)]
    found = [pth_file(own, directory, name, True) for directory in sure for name in pth_names(own, directory)]
    plain = set(stdlib_dirs(own)) | set(sure)
    plain.update(real(entry) for entry in environ.get("PYTHONPATH", "").split(own.os.pathsep) if entry)
    for pth in found:
        directory = own.os.path.dirname(pth["path"])
        plain.update(real(own.os.path.join(directory, line)) for line in pth["lines"])
    for entry in entries:
        directory = real(entry)
        if directory not in plain and own.os.path.isdir(directory):
            plain.add(directory)
            found.extend(pth_file(own, directory, name, False) for name in pth_names(own, directory))
    return found


def pth_names(own, directory):
    try:
        return sorted(name for name in own.os.listdir(directory) if name.endswith(".pth"))
    except OSError:
        return []


def pth_file(own, directory, name, sure):
    path = own.os.path.join(directory, name)
    content = content_of(own, path)
    lines = [line.rstrip() for line in content.decode("utf-8", "backslashreplace").lstrip(u"\ufeff").splitlines()]
    lines = [line for line in lines if line.strip() and not line.startswith("#")]
    runs = [line for line in lines if line.startswith(("import ", "import\t"))]
    return {
        "path": path,
        "sha256": own.hashlib.sha256(content).hexdigest(),
        "lines": [line[:TEXT_LIMIT] for line in lines if line not in runs],
        "import_lines": [line[:TEXT_LIMIT] for line in runs],
        "sure": sure,
    }


def customize_files(own, entries):
    """Every sitecustomize and usercustomize that any path entry offers; only a loaded one has run."""
    found, seen = [], set()
    for name in ("sitecustomize", "usercustomize"):
        module = sys.modules.get(name) if name in LOADED_BEFORE else None
        loaded = settled(own, getattr(module, "__file__", None) or "") if module is not None else None
        origins = [loaded] if loaded else []
        for entry in entries:
            try:
                spec = own.machinery.PathFinder.find_spec(name, [entry])
            except Exception:
                continue
            if spec is not None and spec.origin and spec.has_location:
                origins.append(settled(own, spec.origin))
        for origin in origins:
            if origin not in seen:
                seen.add(origin)
                digest = own.hashlib.sha256(content_of(own, origin)).hexdigest()
                found.append({"name": name, "path": origin, "sha256": digest, "loaded": origin == loaded})
    return found


def foreign_finders(own):
    found = []
    for finder in sys.meta_path:
        if not _is_default(finder):
            kind = finder if isinstance(finder, type) else type(finder)
            module = str(getattr(kind, "__module__", ""))
            file = getattr(sys.modules.get(module), "__file__", None)
            found.append({"name": kind.__name__, "module": module, "file": settled(own, file) if file else None})
    return found


# -- modules ------------------------------------------------------------------------------------------------------


def locate(own, name):
    """Which file would `import NAME` load? Only top-level names: looking up a dotted one imports its parents."""
    try:
        if "." in name:
            raise ValueError("only top-level names can be located without running code")
        module = sys.modules.get(name) if name in LOADED_BEFORE else None
        if module is not None:
            return loaded_module(own, module)
        for finder in list(sys.meta_path):
            spec = finder.find_spec(name, None) if hasattr(finder, "find_spec") else None
            if spec is not None:
                return by_spec(own, spec)
        return located("missing")
    except Exception as error:
        return located("error", error=describe(error))


def located(kind, origin=None, locations=(), error=None):
    return {"kind": kind, "origin": origin, "locations": list(locations), "error": error}


def loaded_module(own, module):
    spec = getattr(module, "__spec__", None)
    if spec is not None:
        return by_spec(own, spec)
    file = getattr(module, "__file__", None)
    kind = "regular" if hasattr(module, "__path__") else "module"
    return located(kind, settled(own, file)) if file else located("error", error="loaded, but without __spec__ or file")


def by_spec(own, spec):
    search = spec.submodule_search_locations
    # transformers puts a Path where the protocol wants text
    entries = [own.os.fspath(entry) for entry in search or ()]
    locations = [own.os.path.realpath(entry) if entry.startswith("/") else entry for entry in entries]
    if spec.loader is not None and not spec.has_location:  # 3.8 gives those of before the start no origin
        if spec.name in sys.builtin_module_names:
            return located("builtin")
        if spec.origin == "frozen":
            return located("frozen")
    if spec.origin is None or (spec.origin == "namespace" and not spec.has_location):
        return located("namespace", None, locations)
    if search is not None:
        return located("regular", settled(own, spec.origin), locations)
    extension = spec.origin.endswith(tuple(own.machinery.EXTENSION_SUFFIXES))
    return located("extension" if extension else "module", settled(own, spec.origin))


def really_import(own, name, note):
    note("the import of `%s`" % name)
    started = own.time.perf_counter()
    result = {"ok": False, "error_type": None, "error": None, "file": None, "version": None, "cause": None}
    heard = Heard(own, getattr(note, "said", None))
    try:
        module = import_module(name)
        result["ok"] = True
        file, version = getattr(module, "__file__", None), getattr(module, "__version__", None)
        result["file"] = settled(own, file) if isinstance(file, str) else None
        result["version"] = str(version)[:TEXT_LIMIT] if version is not None else None
    except BaseException as error:  # a module may well call sys.exit
        result.update(failure(error), cause=root_cause(error))
    result["seconds"] = round(own.time.perf_counter() - started, 4)
    result["said"] = heard.end()
    return result


class Heard(object):
    """What is written to stderr meanwhile, by native code too; it still goes where it should."""

    def __init__(self, own, path):
        self.own, self.file = own, None
        if path:
            os = own.os
            self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
            self.before = os.dup(2)
            os.dup2(self.file, 2)

    def end(self):
        if self.file is None:
            return None
        os = self.own.os
        try:
            sys.stderr.flush()
        except Exception:
            pass
        os.dup2(self.before, 2)
        os.close(self.before)
        size = os.fstat(self.file).st_size
        text = os.pread(self.file, 4 * TEXT_LIMIT, max(0, size - 4 * TEXT_LIMIT))
        os.close(self.file)
        if text:
            os.write(2, text)
        return text.decode("utf-8", "replace") or None


def import_module(name):
    __import__(name)
    return sys.modules[name]


def attribute(own, name, note):
    """Import the longest prefix that is a module, then follow the attributes."""
    note("the attribute `%s`" % name)
    parts = name.split(".")
    try:
        value, rest = import_module(parts[0]), parts[1:]
        walked = parts[0]
        for part in rest:
            walked += "." + part
            if not hasattr(value, part) and hasattr(value, "__path__"):
                try:
                    import_module(walked)
                except ModuleNotFoundError as error:
                    if error.name != walked:
                        raise
            value = getattr(value, part)
    except BaseException as error:
        return dict({"ok": False}, **failure(error))
    return {"ok": True, "error_type": None, "error": None}


def mapped_files(own):
    """Files mapped as code, the interpreter itself left out; a deleted one is no longer what a new process gets."""
    mark, found = " (deleted)", {}
    with own.io.open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as stream:
        for line in stream:
            parts = line.rstrip("\n").split(None, 5)
            if len(parts) == 6 and "x" in parts[1] and parts[5].startswith("/") and not parts[5].startswith("/memfd:"):
                deleted = parts[5].endswith(mark)
                found[parts[5][: -len(mark)] if deleted else parts[5]] = deleted
    found.pop(own.os.path.realpath("/proc/self/exe"), None)
    several = several_files(own, [path for path in found if not found[path]])
    return [{"path": path, "deleted": found[path], "sha256": digest_of(own, path) if path in several else None}
            for path in sorted(found)]


def several_files(own, paths):
    """The files of every library that is mapped from more than one path.

    Installers of wheels put eight hexadecimal digits into the names of libraries that they bundle.
    """
    families = {}
    for path in paths:
        match = own.re.match(r"(lib[^/]+?)(?:[-.][0-9a-f]{8})?\.so(?:\.|$)", own.os.path.basename(path))
        if match:
            families.setdefault(match.group(1), []).append(path)
    return set(path for family in families.values() if len(family) > 1 for path in family)


def digest_of(own, path):
    """The sha256 of a regular file, read in pieces; a mapped device may have no end."""
    try:
        if not own.os.path.isfile(path):
            return None
        digest = own.hashlib.sha256()
        with own.io.open(path, "rb") as stream:
            for piece in iter(lambda: stream.read(1 << 20), b""):
                digest.update(piece)
        return digest.hexdigest()
    except OSError:
        return None


# -- launchers ----------------------------------------------------------------------------------------------------


def launcher(own, name, launch_path):
    path = own.os.path
    found = own.shutil.which(name, path=launch_path)
    candidates = [path.join(entry, name) for entry in launch_path.split(own.os.pathsep) if entry]
    skipped = []
    for candidate in candidates:
        if candidate == found:
            break
        if path.isfile(candidate) and not own.os.access(candidate, own.os.X_OK):
            skipped.append(settled(own, candidate))
    beside = path.join(sys.prefix, "bin", name)
    shebang, interpreter = shebang_of(own, found, launch_path) if found else (None, None)
    return {
        "path": settled(own, found) if found else None,
        "realpath": path.realpath(found) if found else None,
        "shebang": shebang,
        "interpreter": settled(own, interpreter) if interpreter else None,
        "interpreter_exists": bool(interpreter) and path.exists(interpreter),
        "executable": bool(found),
        "skipped": skipped,
        "beside": settled(own, beside) if path.isfile(beside) else None,
    }


def scripts_in(own, folder):
    """Every file of a folder that starts with `#!` and names its program by path: whoever starts it gets that one."""
    found = []
    for name in sorted(own.os.listdir(folder)) if folder and own.os.path.isdir(folder) else ():
        file = own.os.path.join(folder, name)
        if own.os.path.isfile(file):
            shebang, interpreter = shebang_of(own, file, "")
            if shebang and interpreter and interpreter.startswith("/"):
                found.append({
                    "path": settled(own, file), "shebang": shebang[:TEXT_LIMIT], "interpreter": settled(own, interpreter),
                    "interpreter_exists": own.os.path.exists(interpreter),
                })
    return found


def shebang_of(own, script, launch_path):
    """The first line of a script and the program that ends up running it.

    Knows `#!/usr/bin/env PROGRAM`, and the `#!/bin/sh` trampoline that installers write where the path is too long for
    the kernel or must stay relative: its second line is a string to Python and an exec to the shell.
    """
    try:
        with own.io.open(script, "rb") as stream:
            head = stream.read(8192)
    except OSError:
        return None, None
    if not head.startswith(b"#!"):
        return None, None
    lines = head.decode("utf-8", "surrogateescape").splitlines() + [""]
    words = lines[0][2:].strip().split() or [""]
    if lines[1].startswith("'''exec' "):
        return lines[0], trampoline_target(own, script, lines[1])
    if own.os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word] or [""]
        return lines[0], own.shutil.which(words[0], path=launch_path)
    return lines[0], words[0] or None


def trampoline_target(own, script, line):
    """The program of `'''exec' PROGRAM "$0" "$@"`, which may be quoted or relative to the script's own folder."""
    command = line[len("'''exec' "):]
    here = r"""(?P<here>"\$\(dirname -- "?\$\(realpath -- "?\$0"?\)"?\)"/)?"""
    match = own.re.match(here + r"""(?P<word>'[^']*'|"[^"]*"|\S+)""", command)
    if match is None:
        return None
    word = match.group("word").strip("'\"")
    folder = own.os.path.dirname(own.os.path.realpath(script))
    return own.os.path.join(folder, word) if match.group("here") else word


# -- distributions ------------------------------------------------------------------------------------------------


def distributions(own, entries):
    """Name, version and requirements of everything that has metadata on the path; headers only, no parser needed."""
    found, seen = [], set()
    for entry in entries:
        directory = own.os.path.realpath(entry)
        if directory in seen or not own.os.path.isdir(directory):
            continue
        seen.add(directory)
        for name in sorted(own.os.listdir(directory)):
            if name.endswith((".dist-info", ".egg-info")):
                found.append(distribution(own, own.os.path.join(directory, name)))
    return found


def distribution(own, metadata):
    stem = own.os.path.basename(metadata).rsplit(".", 1)[0].split("-")
    header = {"Name": [], "Version": [], "Requires-Dist": []}
    inner = {True: "METADATA", False: "PKG-INFO"}[metadata.endswith(".dist-info")]
    file = own.os.path.join(metadata, inner) if own.os.path.isdir(metadata) else metadata
    try:
        with own.io.open(file, encoding="utf-8", errors="replace") as stream:
            read_header(stream, header)
        readable = True
    except OSError:
        readable = False
    return {
        "name": (header["Name"] or stem)[0],
        "version": (header["Version"] or stem[1:2] or [""])[0],
        "metadata": metadata,
        "requires": header["Requires-Dist"],
        "readable": readable,
    }


def read_header(stream, header):
    last = []
    for line in stream:
        line = line.rstrip("\r\n")
        if not line:
            return
        if line[0] in " \t":
            last[-1:] = [value + " " + line.strip() for value in last[-1:]]
            continue
        key, _, value = line.partition(":")
        last = header.get(key, [])
        last.append(value.strip())


# -- small things -------------------------------------------------------------------------------------------------


def settled(own, path):
    """Resolve the directory, keep the name: an installer may link single files, and bin/python is always a link."""
    directory, name = own.os.path.split(path)
    return own.os.path.join(own.os.path.realpath(directory), name)


def content_of(own, path):
    try:
        with own.io.open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def describe(error):
    return ("%s: %s" % (type(error).__name__, error))[:TEXT_LIMIT]


def failure(error):
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be made)"
    return {"error_type": type(error).__name__, "error": text[:TEXT_LIMIT]}


def root_cause(error):
    """The exception at the start of the chain: packages catch one and raise another that says less."""
    first, seen = error, set()
    while id(first) not in seen:
        seen.add(id(first))
        first = first.__cause__ or first.__context__ or first
    return None if first is error else describe(first)


def clean(value):
    """Make every string encodable: undecodable bytes of file names become visible escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return dict((clean(key), clean(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return [clean(item) for item in value]
    return value


def main(argv):
    own = Own()
    os = own.os
    here = os.path.realpath(os.path.dirname(os.path.abspath(argv[0])))
    if sys.path and os.path.realpath(sys.path[0]) == here:
        del sys.path[0]  # the payload's own directory: no program of the user would have it

    def put(path, text):
        with own.io.open(path + ".part", "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(path + ".part", path)

    # if a native module kills the process, this file still names the step that it died in
    def note(step):
        put(argv[2] + ".step", step)

    note.said = argv[2] + ".said"
    note("the request")
    with own.io.open(argv[1], encoding="utf-8") as stream:
        request = own.json.load(stream)
    put(argv[2], own.json.dumps(collect(request, own, note), sort_keys=True))
    os._exit(0)  # the answer is there: threads and exit handlers of imported code must not hold or kill us


if __name__ == "__main__":
    main(sys.argv)
