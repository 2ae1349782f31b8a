#!/bin/sh
# Validate the simulator on two cores: real runs of four policies beside predictions from a profile that is calibrated in the same run.
# Writes the run folder given as the first argument (default: runs/validate-cpu); takes about twelve minutes.
set -eu
here=$(dirname "$0")
exec python -m oppo_sim.cli.main validate "$here/scenario.yaml" \
    --policies sequential,intra,inter,oppo --repeats 3 --budget-s 240 -o "${1:-runs/validate-cpu}"
