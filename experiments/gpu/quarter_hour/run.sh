#!/usr/bin/env bash
# One GPU, a quarter of an hour (README.md): engines and attention verified, then `oppo validate` on quarter_hour.yaml.
#   quarter_hour.sh FOLDER [REPEATS [STEPS [BUDGET_S]]]
# FOLDER gets the logs and, every ten seconds, work.tgz: what is finished by then is kept if the machine goes away.
# Unpacked where the same command runs again, it goes on from there.
set -u
out=$(mkdir -p "$1" && cd "$1" && pwd)
repeats=${2:-2} steps=${3:-7} budget=${4:-250}
cd "$(dirname "$0")/../.."
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" COLUMNS=150
export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}
work=runs/quarter_hour
mkdir -p $work
pack() { tar czf "$out/part.tgz" $work 2>/dev/null; mv "$out/part.tgz" "$out/work.tgz"; }
(while sleep 10; do pack; done) &
keeping=$!
trap 'kill $keeping; pack' EXIT
said() { echo "[$(date +%T)] $*"; }
said doctor
python3 -m oppo_sim doctor experiments/gpu/quarter_hour.yaml > "$out/doctor.txt" 2>&1
if ! [ -e $work/attention.json ]; then
    said engines and attention
    python3 experiments/gpu/part0_engines.py --work $work && python3 experiments/gpu/part0_attention.py --work $work || exit 1
fi
said validate
python3 -m oppo_sim validate experiments/gpu/quarter_hour.yaml --repeats "$repeats" --steps "$steps" --budget-s "$budget" \
    --policies sequential,rollout-overlap,intra,inter,oppo --no-figures -o $work/validated 2>&1 | tee -a "$out/validate.log"
said "done, code ${PIPESTATUS[0]}"
