#!/bin/bash
# The recorded climb of the smoke ladder on the H200 machine: no network, nothing of envsmith installed before.
#
#   bash run.sh BUNDLE DIGEST OUT
#
# BUNDLE is the unpacked bundle of `h200-vendor`, DIGEST its manifest's sha256, OUT an empty folder. Every command is
# shown with its output and exit status; a status that is not the expected one ends the run with 1.
bundle=$1 digest=$2 out=$3
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

title "The machine, and envsmith out of the bundle"
run 0 nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total,memory.used --format=csv
run 0 bash -c 'python3 -c "import socket; socket.create_connection((\"1.1.1.1\", 53), 3)" 2>&1 | tail -1'
run 0 sh "$bundle/install.sh" --root $root --expect "$digest"
PATH=$(ls -d $root/.tools/*/bin | head -1):$PATH
run 0 envsmith --version

title "The ladder, with evidence"
run 0 envsmith smoke h200-vendor/rl --root $root --evidence /tmp/evidence
run 0 envsmith inspect /tmp/evidence --check
tar -C /tmp -cf "$out/evidence.tar" evidence

title "Equal rewards are recognised"
run 1 envsmith smoke h200-vendor/rl --root $root --only train-step --set train-step.rewards=constant

title "Device memory that is not returned, and a rank that says done and ends with 1"
cat > /tmp/hold.py <<'PY'
import os, subprocess, sys, time
if sys.argv[1:] == ["hold"]:
    import torch
    keep = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")
    print("holding", flush=True)
    time.sleep(600)
child = subprocess.Popen([sys.executable, __file__, "hold"], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
PY
mkdir -p /tmp/faults/stacks/snapshots
stack=$(ls -d $root/.tools/*/lib/python3*/site-packages/envsmith/content/stacks | head -1)
cp "$stack"/h200-vendor.toml "$stack"/pylock.h200-vendor-rl.toml /tmp/faults/stacks/
cp "$stack"/snapshots/h200.toml /tmp/faults/stacks/snapshots/
cp -r "$stack/../patches" /tmp/faults/
cat >> /tmp/faults/stacks/h200-vendor.toml <<'TOML'

[[env.rl.smoke]]
rung = "command"
name = "holds-memory"
command = ["python", "/tmp/hold.py"]

[[env.rl.smoke]]
rung = "command"
name = "done-and-one"
command = ["python", "-c", "print('done'); raise SystemExit(1)"]
TOML
cd /tmp/faults || exit 1
run 1 envsmith smoke h200-vendor/rl --root $root --only holds-memory
run 1 envsmith smoke h200-vendor/rl --root $root --only done-and-one
cd /tmp || exit 1
run 0 nvidia-smi --query-gpu=memory.used --format=csv

title "$([ $wrong = 0 ] && echo 'Every command ended as expected' || echo 'SOMETHING WAS NOT AS EXPECTED')"
exit $wrong
