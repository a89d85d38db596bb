#!/usr/bin/env bash
# What wants a GPU, in parts of some eight minutes on one H100:
#
#     bench/gpu.sh all|pretrain|dpo|lora|time [--tiny]
#
# `dpo` and `lora` (bench/language_models.py on dialogues) need what `pretrain` leaves. Models and results go into
# $OUT (gpu-results). PYTHON names an interpreter that has labelguard[train]. With --tiny it runs on a CPU.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
export OUT="${OUT:-gpu-results}" HF_HUB_OFFLINE=1 PYTHONPATH="bench${PYTHONPATH:+:$PYTHONPATH}"
part="${1:-}"
shift || true
case "$part" in
all) for each in pretrain dpo lora time; do bench/gpu.sh "$each" "$@"; done ;;
pretrain) "$python" -m gpu.pretrain "$@" ;;
dpo | lora) "$python" bench/language_models.py "$part" --dialogues --work "$OUT" "$@" ;;
time)
    "$python" bench/training_time.py dpo --shape gpt2 "$@"
    "$python" bench/training_time.py dpo props --shape gpt2-large "$@"
    "$python" bench/training_time.py gradients --shape gpt2 "$@"
    ;;
*)
    sed -n '2,7s/^# \{0,1\}//p' bench/gpu.sh >&2
    exit 2
    ;;
esac
