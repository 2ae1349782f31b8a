#!/usr/bin/env bash
# One GPU, a quarter of an hour (README.md): engines and attention verified, then `oppo validate` on scenario.yaml.
#   experiments/gpu/quarter_hour/run.sh FOLDER [REPEATS [STEPS [BUDGET_S]]]
# FOLDER gets the log and, every ten seconds, work.tgz: what is finished by then is kept if the machine goes away. Unpacked in
# the checkout, the same command goes on from there, and --no-measure concludes from it anywhere.
set -u
out=$(mkdir -p "$1" && cd "$1" && pwd)
repeats=${2:-1} steps=${3:-7} budget=${4:-250}
here=experiments/gpu/quarter_hour work=runs/quarter_hour
cd "$(dirname "$0")/../../.."
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" COLUMNS=150
export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}
mkdir -p $work
pack() { tar czf "$out/part.tgz" $work 2>/dev/null; mv "$out/part.tgz" "$out/work.tgz"; }
(while sleep 10; do pack; done) &
keeping=$!
trap 'kill $keeping; pack' EXIT
if ! [ -e $work/attention.json ]; then
    python3 -m oppo_sim doctor $here/scenario.yaml | tee $work/doctor.txt
    python3 experiments/gpu/part0_engines.py --work $work && python3 experiments/gpu/part0_attention.py --work $work || exit 1
fi
python3 -m oppo_sim validate $here/scenario.yaml --repeats "$repeats" --steps "$steps" --budget-s "$budget" \
    --policies sequential,rollout-overlap,intra,inter,oppo --no-figures -o $work/validated 2>&1 | tee -a "$out/validate.log"
exit "${PIPESTATUS[0]}"
