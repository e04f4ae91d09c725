#!/bin/bash
# The recorded run on the H200 machine: no network, nothing of envsmith installed before, a bundle brought in by hand.
#
#   bash run.sh CHECKOUT BUNDLE DIGEST OUT
#
# CHECKOUT holds this repository's stacks and patches, BUNDLE is the unpacked bundle of `h200-vendor`, DIGEST its
# manifest's sha256, OUT an empty folder. Every command is shown with its output and exit status; a status that is not
# the expected one ends the run with 1.
checkout=$1 bundle=$2 digest=$3 out=$4
base=/opt/torch/.venv
compat=/usr/local/cuda/compat
root=/tmp/envs
export ENVSMITH_HOME=/tmp/envsmith-home
wrong=0
cd /tmp || exit 1

title() { printf '\n## %s\n' "$*"; }

run() {    # expected status, command…
    wanted=$1; shift
    printf '\n$ %s\n' "$*"
    started=$(date +%s%N)
    "$@"; status=$?
    took=$((($(date +%s%N) - started) / 100000000))
    printf '[exit %s, %s.%s s]\n' "$status" $((took / 10)) $((took % 10))
    [ "$status" = "$wanted" ] || { printf 'NOT AS EXPECTED: exit %s was wanted\n' "$wanted"; wrong=1; }
}

state() {    # every file and link of the base: path, mode, size, times of content and attributes, and one digest of all bytes
    (cd "$base" && find . -printf '%p %y %m %s %T@ %C@ %l\n' | sort | sha256sum
     find . -type f -print0 | sort -z | xargs -0 -P 8 -n 500 sha256sum | sort -k2 | sha256sum)
}

title "The machine as it is"
run 0 cat /proc/driver/nvidia/version
run 0 nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total --format=csv
run 0 bash -c 'python3 -c "import socket; socket.create_connection((\"1.1.1.1\", 53), 3)" 2>&1 | tail -1'
state > "$out/base-before.txt"
run 0 cat "$out/base-before.txt"

title "A snapshot with one file of the standard library"
run 0 python3 "$checkout/envsmith/probe/collect.py" --python $base/bin/python -o "$out/snapshot.toml"
run 0 sed -n '1,/^\[host.environ\]/p' "$out/snapshot.toml"
run 0 grep -A8 '^\[\[host.run\]\]' "$out/snapshot.toml"

title "envsmith out of the bundle, with no network"
run 0 sh "$bundle/install.sh" --root $root --expect "$digest"
PATH=$(ls -d $root/.tools/*/bin | head -1):$PATH
cp -r "$checkout/stacks" "$checkout/patches" /tmp/ 2>/dev/null
run 0 envsmith --version

title "Can this machine run it?"
run 0 envsmith check h200-vendor --host local
run 3 envsmith check p40 --host local
envsmith check p40 --host local --json > "$out/check-p40.json"
envsmith check h200-vendor --host local --json > "$out/check-h200-vendor.json"

title "A wheel set with too new a CUDA"
mkdir -p /tmp/new/stacks /tmp/new/wheels
python3 - <<'PY'
import base64, hashlib, zipfile
def wheel(name, version, files):
    info = f"{name}-{version}.dist-info"
    files = dict(files, **{f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
                           f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"})
    rows = [f"{p},sha256={base64.urlsafe_b64encode(hashlib.sha256(t.encode()).digest()).rstrip(b'=').decode()},{len(t)}" for p, t in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    with zipfile.ZipFile(f"/tmp/new/wheels/{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
wheel("torch", "3.0.0+cu140", {"torch/__init__.py": ""})
wheel("faster_torch", "1.0", {"torch/__init__.py": ""})
PY
for name in torch faster-torch; do    # an index on this machine: resolving asks one
    mkdir -p /tmp/new/simple/$name
    for file in /tmp/new/wheels/"${name/-/_}"-*.whl; do
        cp "$file" /tmp/new/simple/$name/
        printf '<a href="%s">%s</a>\n' "${file##*/}" "${file##*/}" >> /tmp/new/simple/$name/index.html
    done
done
python3 -m http.server --bind 127.0.0.1 --directory /tmp/new/simple 8765 > /dev/null 2>&1 &
server=$!
export ENVSMITH_INDEX=http://127.0.0.1:8765
sleep 1
printf '[stack]\nname = "new"\n[env.rl]\npython = "3.12"\nrequires = ["torch==3.0.0+cu140"]\n' > /tmp/new/stacks/new.toml
cd /tmp/new || exit 1
run 0 envsmith lock new
run 3 envsmith check new --host local
envsmith check new --host local --json > "$out/check-too-new.json"
cd /tmp || exit 1

title "With the CUDA compat folder first in LD_LIBRARY_PATH"
mkdir -p /tmp/plain    # the same stack without `driver-library`
cp -r stacks patches /tmp/plain/
sed -i '/^driver-library/d' /tmp/plain/stacks/h200-vendor.toml
run 3 env LD_LIBRARY_PATH=$compat envsmith check /tmp/plain/stacks/h200-vendor.toml --host local
LD_LIBRARY_PATH=$compat envsmith check /tmp/plain/stacks/h200-vendor.toml --host local --json > "$out/check-compat-first.json"
run 0 env LD_LIBRARY_PATH=$compat envsmith check h200-vendor --host local
run 1 env LD_LIBRARY_PATH=$compat $base/bin/python -c 'import torch; torch.ones(1).cuda()'
run 0 env LD_LIBRARY_PATH=$compat envsmith run h200-vendor/rl --root $root -- python -c 'import torch; x = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16); print((x @ x).sum().item(), torch.cuda.get_device_name())'

title "The env over the vendor's torch"
run 0 envsmith run h200-vendor/rl --root $root -- python -c 'import sys, torch, trl, verl, pyarrow; print(sys.prefix); [print(m.__name__, getattr(m, "__version__", ""), m.__file__) for m in (torch, trl, verl, pyarrow)]'
run 0 envsmith run h200-vendor/rl --root $root -- torchrun --standalone --nproc-per-node 1 --no-python python -c 'import sys, torch; print(sys.executable, torch.__file__)'
. <(envsmith run h200-vendor/rl --root $root --print)    # else it warns of the image's own torchrun, first on PATH
run 0 bash -c 'envsmith verify h200-vendor/rl --root '$root' --all --json > '$out'/verify.json'
run 0 envsmith verify h200-vendor/rl --root $root --only base --deep
run 0 envsmith verify h200-vendor/rl --root $root

title "Additions that must be refused"
mkdir -p /tmp/bad/stacks
cp -r stacks/snapshots /tmp/bad/stacks/
for name in other shadow; do
    requires='"torch==2.10.0"'; [ $name = shadow ] && requires='"faster-torch"'
    printf '[stack]\nname = "%s"\n[host]\nglibc = "2.39"\nsnapshot = "snapshots/h200.toml"\n[env.rl]\npython = "3.12"\nrequires = [%s]\n[env.rl.base]\npython = "%s/bin/python"\nprotect = ["torch"]\n' $name "$requires" $base > /tmp/bad/stacks/$name.toml
done
cd /tmp/bad || exit 1
run 2 envsmith lock other
run 2 envsmith build shadow --root /tmp/bad/envs
cd /tmp || exit 1
kill $server

title "The base afterwards"
state > "$out/base-after.txt"
run 0 cat "$out/base-after.txt"
run 0 cmp "$out/base-before.txt" "$out/base-after.txt"

cp $root/h200-vendor-rl/current/envsmith.json "$out/receipt.json"
title "$([ $wrong = 0 ] && echo 'Every command ended as expected' || echo 'SOMETHING WAS NOT AS EXPECTED')"
exit $wrong
