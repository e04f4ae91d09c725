#!/bin/sh
# Installs this bundle on a machine that has neither envsmith nor a network.
#
#   sh install.sh --root DIR [--env E] [--expect sha256:DIGEST] [--trust FILE]
#
# Every option goes to `envsmith install`. It needs a POSIX shell and, unless the bundle carries an interpreter, a
# Python of the recipe's version; git where the stack has sources. This script only puts envsmith itself in place, out
# of blobs that it has compared with the manifest; envsmith then verifies the whole bundle before it uses any of it.
set -eu

PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
export PATH
umask 022

fail() {    # code, exit status, message, hint
    printf 'error[%s]: %s\n\nhint: %s\n' "$1" "$3" "$4" >&2
    exit "$2"
}

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
[ -f "$here/index.json" ] && [ -f "$here/FILES.tsv" ] ||
    fail bundle-malformed 5 "\`$here\` is not a whole bundle" "copy it again from where it was made"

root=${ENVSMITH_ROOT:-.envsmith/envs}
expect=
before=
for word in "$@"; do
    case $before in
        --root) root=$word ;;
        --expect) expect=${word#sha256:} ;;
    esac
    case $word in
        --root=*) root=${word#--root=} ;;
        --expect=*) word=${word#--expect=}; expect=${word#sha256:} ;;
    esac
    before=$word
done
case $root in /*) ;; *) root=$PWD/$root ;; esac
case $root in
    *:*) fail root-unusable 2 "envs cannot lie below a path with a colon" "choose another root with --root" ;;
esac

tab=$(printf '\t')
arch=$(uname -m)

# --- what can hash here, and what is a Python of the right version ---

is_python() {    # executable, minor version
    [ "$("$1" -I -B -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$2" ]
}

find_python() {    # minor version
    old_ifs=$IFS
    IFS=:
    for one in ${ENVSMITH_PYTHON:-} ${PYTHON:-}; do
        [ -d "$one" ] && one=$one/bin/python3
        if [ -x "$one" ] && is_python "$one" "$1"; then IFS=$old_ifs; printf '%s\n' "$one"; return 0; fi
    done
    for folder in $PATH /opt/conda/bin /opt/python/bin; do
        for name in "python$1" python3 python; do
            one=$folder/$name
            if [ -x "$one" ] && is_python "$one" "$1"; then IFS=$old_ifs; printf '%s\n' "$one"; return 0; fi
        done
    done
    IFS=$old_ifs
    return 1
}

sha256() {    # file
    if command -v openssl >/dev/null 2>&1; then
        openssl dgst -sha256 -r "$1" | cut -d' ' -f1
    elif command -v sha256sum >/dev/null 2>&1; then
        sha256sum "$1" | cut -d' ' -f1
    elif [ -n "${hasher:-}" ] || hasher=$(command -v python3); then
        "$hasher" -I -B -c 'import hashlib, sys
digest = hashlib.sha256()
with open(sys.argv[1], "rb") as stream:
    for chunk in iter(lambda: stream.read(1 << 20), b""):
        digest.update(chunk)
print(digest.hexdigest())' "$1"
    else
        fail no-hash-program 3 "nothing here computes SHA-256" "install coreutils, openssl or a Python 3"
    fi
}

# --- the manifest, and blobs that it names ---

digests=$(tr ',{}' '\n\n\n' <"$here/index.json" | sed -n 's/.*"digest" *: *"sha256:\([0-9a-f]\{64\}\)".*/\1/p')
manifest=
for digest in $digests; do
    blob=$here/blobs/sha256/$digest
    [ -f "$blob" ] && grep -q '"artifactType":"application/vnd.envsmith.bundle.v1"' "$blob" || continue
    [ -z "$manifest" ] || [ -n "$expect" ] ||
        fail bundle-ambiguous 2 "this layout holds several bundles" "say which with --expect sha256:DIGEST"
    if [ -z "$expect" ] || [ "$digest" = "$expect" ] || [ -z "$manifest" ]; then manifest=$digest; fi
done
[ -n "$manifest" ] || fail bundle-malformed 5 "\`index.json\` names no bundle that is here" "copy the bundle again"
[ -z "$expect" ] || [ "$manifest" = "$expect" ] ||
    fail bundle-unexpected 5 "this is the bundle sha256:$manifest, and sha256:$expect is expected" \
        "ask whoever said the digest which bundle they mean; do not install this one"

proven() {    # sha256, title, copy: compares a copy of a blob with its name and with the manifest; only the copy is used
    blob=$here/blobs/sha256/$1
    [ -f "$blob" ] || {
        if grep -q 'io.envsmith.delta.base' "$here/index.json"; then
            fail bundle-base-missing 4 "this bundle is a delta: \`$2\` ($1) is in its base" \
                "install it with the envsmith that the base brought, in ROOT/.tools, or join both with \`envsmith join\`"
        fi
        fail bundle-blob-missing 5 "the bundle lacks the blob $1, which is \`$2\`" "copy the bundle again"
    }
    cat "$blob" >"$3" || fail disk-full 4 "\`$2\` could not be copied to \`$3\`" "make room, and run it again"
    [ "$(sha256 "$3")" = "$1" ] ||
        fail bundle-blob-corrupt 5 "the blob $1, which is \`$2\`, is not what its name says" "copy the bundle again"
    [ "$1" = "$manifest" ] ||
        grep -qF "\"org.opencontainers.image.title\":\"$2\"},\"digest\":\"sha256:$1\"" "$boot/manifest" ||
        fail bundle-file-differs 5 "\`FILES.tsv\` names the blob $1 as \`$2\`, and the manifest does not" \
            "copy the bundle again"
}

titled() {    # pattern of a title: prints `sha256<tab>title` of every file it fits
    while IFS=$tab read -r digest size title; do
        # shellcheck disable=SC2254
        case $title in $1) printf '%s\t%s\n' "$digest" "$title" ;; esac
    done <"$here/FILES.tsv"
}

# --- a Python: the bundle's, else this machine's ---

machine=$(printf '%s' "$arch" | tr _ -)
python=
lock=
pythons=
has_python() {
    [ "$(cat "$place/.envsmith-archive" 2>/dev/null || :)" = "$sum" ]
}

mkdir -p "$root/.tools" 2>/dev/null && [ -w "$root/.tools" ] ||
    fail root-not-writable 4 "\`$root\` cannot be written" "choose another folder with --root"
# All work is done in a folder of our own, so that two runs at once do not meet; what a killed one left goes away.
for old in "$root/.tools/.boot-$(uname -n)-"*; do
    kill -0 "${old##*-}" 2>/dev/null || rm -rf "$old"
done
boot=$root/.tools/.boot-$(uname -n)-$$
rm -rf "$boot"
mkdir "$boot"
trap 'rm -rf "$boot"' EXIT
proven "$manifest" "the manifest" "$boot/manifest"
choices=$boot/choices
titled "pylock.tools-*-$machine.toml" >"$choices"
while IFS=$tab read -r digest title; do
    minor=${title#pylock.tools-}
    minor=${minor%-"$machine".toml}
    minor=3.${minor#3}
    found=
    carried=$(titled "python/cpython-$minor.*-$arch.tar" | head -n 1)
    if [ -n "$carried" ]; then
        sum=${carried%%"$tab"*}
        name=${carried##*/}
        place=$root/.python/${name%.tar}-$(printf '%.12s' "$sum")
        if ! has_python; then
            proven "$sum" "python/$name" "$boot/python.tar"
            mkdir -p "$root/.python"
            mkdir "$boot/python"
            tar -xf "$boot/python.tar" -C "$boot/python" --no-same-owner 2>/dev/null ||
                tar -xf "$boot/python.tar" -C "$boot/python" ||
                fail interpreter-not-unpacked 4 "the interpreter could not be unpacked to \`$place\`" "is the disk full?"
            rm -f "$boot/python.tar"
            printf '%s\n' "$sum" >"$boot/python/.envsmith-archive"
            if ! has_python; then
                rm -rf "$place"
                mv "$boot/python" "$place"
            fi
        fi
        found=$place/bin/python$minor
        is_python "$found" "$minor" || found=
    fi
    [ -n "$found" ] || found=$(find_python "$minor") || continue
    pythons=$pythons${pythons:+:}$found
    if [ -z "$python" ]; then python=$found; lock=$title; sum_of_lock=$digest; fi
done <"$choices"
[ -s "$choices" ] || fail bundle-without-tools 4 "the bundle carries no envsmith for $arch" \
    "install envsmith here by other means and run \`envsmith install $here\`"
[ -n "$python" ] || fail no-interpreter 4 "no Python that the bundle was made for is on this machine" \
    "put one on PATH, or name it: ENVSMITH_PYTHON=/path/to/python sh install.sh …"
hasher=$python

# --- envsmith itself, from proven wheels ---

tools=$root/.tools/$(printf '%.12s' "$manifest")
has_tools() {
    [ "$(cat "$tools/.complete" 2>/dev/null || :)" = "$python" ] && [ -x "$tools/bin/python" ]
}

if ! has_tools; then
    printf 'put envsmith into %s\n' "$tools" >&2
    mkdir -p "$boot/blobs/sha256"
    proven "$sum_of_lock" "$lock" "$boot/$lock"
    uv_wheel=
    sed -n 's/.*name = "\([^"]*\.whl\)", path = "blobs\/sha256\/\([0-9a-f]\{64\}\)".*/\2 \1/p' \
        "$boot/$lock" >"$boot/wheels"
    while read -r digest name; do
        proven "$digest" "wheels/$name" "$boot/blobs/sha256/$digest"
        case $name in uv-*) uv_wheel=$boot/blobs/sha256/$digest ;; esac
    done <"$boot/wheels"
    [ -n "$uv_wheel" ] || fail bundle-malformed 5 "\`$lock\` names no wheel of uv" "copy the bundle again"
    # uv is taken out of its wheel; nothing else of it runs.
    "$python" -I -B -c 'import os, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(one for one in wheel.namelist() if one.endswith(".data/scripts/uv"))
    with open(sys.argv[2], "wb") as out:
        out.write(wheel.read(name))
os.chmod(sys.argv[2], 0o755)' "$uv_wheel" "$boot/uv"
    uv() (
        for name in $(env | sed -n 's/^\(UV_[A-Za-z0-9_]*\)=.*/\1/p'); do unset "$name"; done
        unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
        UV_CACHE_DIR=$boot/cache UV_NO_CONFIG=1 UV_OFFLINE=1 UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy
        HOME=${HOME:-$boot}
        export UV_CACHE_DIR UV_NO_CONFIG UV_OFFLINE UV_PYTHON_DOWNLOADS UV_LINK_MODE HOME
        exec "$boot/uv" --quiet "$@"
    )
    # uv compares size and sha256 of each wheel with the lock once more.
    uv venv --relocatable --python "$python" --no-project "$boot/env" &&
        (cd "$boot" && uv pip sync --preview-features pylock --no-index --python "$boot/env/bin/python" "$lock") ||
        fail tools-not-installed 6 "envsmith could not be put into \`$tools\`" "what uv said stands above"
    printf '%s\n' "$python" >"$boot/env/.complete"
    # One that another run has put there meanwhile is in use, and as good.
    if ! has_tools; then
        rm -rf "$tools"
        mv "$boot/env" "$tools"
    fi
fi
rm -rf "$boot"

# --- the install itself ---

if [ -z "${ENVSMITH_HOME:-}" ] && [ -z "${HOME:-}" ]; then
    ENVSMITH_HOME=$root/.store
    export ENVSMITH_HOME
fi
ENVSMITH_PYTHON=${ENVSMITH_PYTHON:+$ENVSMITH_PYTHON:}$pythons
export ENVSMITH_PYTHON
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
status=0
# Isolated: neither the current folder nor a variable may bring code of its own.
"$tools/bin/python" -I -B -m envsmith install "$here" "$@" || status=$?
[ "$status" != 0 ] || printf 'envsmith itself: %s\n' "$tools/bin/envsmith" >&2
exit "$status"
