#!/usr/bin/env bash
# The parts of the evaluation that want a GPU, each of at most eight minutes on one H100:
#
#     bench/gpu.sh pretrain|compare|throughput|props-time [options]
#
# `compare` needs what `pretrain` leaves. Results go into the directory $OUT (gpu-results). The same
# commands run on a CPU with --tiny. PYTHON names an interpreter that has labelguard[train].
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
export OUT="${OUT:-gpu-results}" HF_HUB_OFFLINE=1
part="${1:-}"
shift || true
case "$part" in
pretrain | compare | throughput)
    PYTHONPATH="bench${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m "gpu.$part" "$@"
    ;;
props-time)
    shapes="gpt2-medium gpt2-large"
    if [[ "${1:-}" == --tiny ]]; then
        shapes=tiny
        set -- --pairs 8 --tokens 16 --epochs 1
    fi
    mkdir -p "$OUT"
    for shape in $shapes; do
        "$python" bench/props_time.py --shape "$shape" --rounds 1 "$@" | tee "$OUT/props-time-$shape.txt"
    done
    ;;
*)
    sed -n '2,7s/^# \{0,1\}//p' bench/gpu.sh >&2
    exit 2
    ;;
esac
