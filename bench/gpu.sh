#!/usr/bin/env bash
# The parts of the evaluation that want a GPU, each of at most eight minutes on one H100:
#
#     bench/gpu.sh pretrain|compare|throughput|alignment|alignment-records|lora-utility|props-time|uls-time [options]
#
# `compare`, `alignment`, `alignment-records` and `lora-utility` need what `pretrain` leaves. Results go into $OUT
# (gpu-results). The same commands run on a CPU with --tiny. PYTHON names an interpreter that has labelguard[train].
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
export OUT="${OUT:-gpu-results}" HF_HUB_OFFLINE=1
part="${1:-}"
shift || true
case "$part" in
pretrain | compare | throughput | alignment | alignment-records | lora-utility)
    PYTHONPATH="bench${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m "gpu.${part//-/_}" "$@"
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
uls-time)
    if [[ "${1:-}" == --tiny ]]; then
        set -- --records 4 --tokens 16 --steps 1
    else
        set -- --model gpt2 --device cuda "$@"
    fi
    mkdir -p "$OUT"
    "$python" bench/uls_time.py "$@" | tee "$OUT/uls-time.txt"
    ;;
*)
    sed -n '2,7s/^# \{0,1\}//p' bench/gpu.sh >&2
    exit 2
    ;;
esac
