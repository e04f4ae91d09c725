#!/bin/bash
# Two H200 of one host: NCCL over both, and training steps on two ranks. Needs the env that h200-smoke/run.sh installed.
#
#   bash run.sh ROOT OUT
#
# ROOT holds the env h200-vendor/rl and the tools of its bundle, OUT is an empty folder. NVLink multicast stays off: the
# machine sets NCCL_NVLS_ENABLE=0, and the launch environment leaves it as it is.
root=$1 out=$2
export ENVSMITH_HOME=/tmp/envsmith-home
PATH=$(ls -d $root/.tools/*/bin | head -1):$PATH
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

title "The machine"
run 0 nvidia-smi --query-gpu=index,name,driver_version,memory.total,memory.used --format=csv
run 0 nvidia-smi topo -m
printf '\n'; env | grep '^NCCL_\|MULTICAST'

title "Two ranks: their numbers make 3, parameters stay equal, memory comes back"
run 0 envsmith smoke h200-vendor/rl --root $root --only static --only collective --only train-step --only exit-clean \
    --set collective.ranks=2 --set train-step.ranks=2 --evidence /tmp/evidence-two
run 0 envsmith inspect /tmp/evidence-two --check
tar -C /tmp -cf "$out/evidence-two.tar" evidence-two

title "What each of torchrun's ranks sees"
. <(envsmith run h200-vendor/rl --root $root --print)
run 0 bash -c 'envsmith verify h200-vendor/rl --root '$root' --only contexts --json > '$out'/contexts.json'

title "Faults: a rank that hangs, and another libnccl"
mkdir -p /tmp/hang /tmp/nccl
cat > /tmp/hang/sitecustomize.py <<'PY'
import os, sys, time
if os.environ.get("RANK") == "1" and any("envsmith_rungs.collective" in word for word in sys.orig_argv):
    time.sleep(3600)
PY
base=/opt/torch/.venv
cp $base/lib/python3.*/site-packages/nvidia/nccl/lib/libnccl.so.2 /tmp/nccl/
run 1 env PYTHONPATH=/tmp/hang envsmith smoke $base --only collective --set collective.ranks=2 --set collective.timeout-s=40
run 1 env LD_PRELOAD=/tmp/nccl/libnccl.so.2 envsmith smoke $base --only collective --set collective.ranks=2
run 0 nvidia-smi --query-gpu=index,memory.used --format=csv
run 0 bash -c '! pgrep -af "[e]nvsmith_rungs"'

title "$([ $wrong = 0 ] && echo 'Every command ended as expected' || echo 'SOMETHING WAS NOT AS EXPECTED')"
exit $wrong
