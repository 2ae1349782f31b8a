#!/usr/bin/env bash
# One GPU, a quarter of an hour (README.md): the attention verified, then `oppo validate` on quarter_hour.yaml.
#   quarter_hour.sh FOLDER [REPEATS STEPS BUDGET_S [other options of oppo validate]]
# FOLDER gets the logs and, every ten seconds, work.tgz: what is finished by then is kept if the machine goes away.
# Unpacked where the same command runs again, it goes on from there.
set -u
out=$(mkdir -p "$1" && cd "$1" && pwd); repeats=${2:-3}; steps=${3:-6}; budget=${4:-90}; shift; shift 3 2>/dev/null || shift $#
cd "$(dirname "$0")/../.."
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" COLUMNS=160
export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}
work=runs/quarter_hour
mkdir -p $work
(while sleep 10; do tar czf "$out/.part" $work 2>/dev/null; mv "$out/.part" "$out/work.tgz"; done) &
keeping=$!
trap 'kill $keeping; tar czf "$out/work.tgz" $work' EXIT
said() { echo "[$(date +%T)] $*"; }
if ! [ -e $work/attention.json ]; then
    said attention
    python3 experiments/gpu/part0_attention.py ${DEVICE:---work} $work
fi
said doctor
python3 -m oppo_sim doctor experiments/gpu/quarter_hour.yaml "${@:1}" 2>&1 | tee "$out/doctor.txt"
said validate
python3 -m oppo_sim validate experiments/gpu/quarter_hour.yaml --repeats "$repeats" --steps "$steps" --budget-s "$budget" \
    --policies sequential,rollout-overlap,intra,inter,oppo --no-figures -o $work/validated "$@"
said "done, code $?"
