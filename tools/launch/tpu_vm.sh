#!/usr/bin/env bash
# Starts one command on all workers of a Cloud TPU slice. The command is detached:
# it continues if this terminal is closed. jax detects the number of workers. The
# same call again resumes the run from the workdir.
#
#   PROJECT=p ZONE=us-east5-a TPU=my-slice \
#     tools/launch/tpu_vm.sh --config=configs/grpo_gsm8k.py:qwen3_1p7b --workdir=gs://bucket/run
#
# Each worker writes ~/jaxrl_reason.log. The workers clone REPO, by default the
# remote `origin` of this clone, and check out REF, by default main.
# PYTHON is their interpreter (3.11 or newer).
set -euo pipefail
: "${TPU:?name of the slice}" "${ZONE:?zone of the slice}"
PROJECT="${PROJECT:-$(gcloud config get-value project)}"
ROOT="$(dirname "${BASH_SOURCE[0]}")/../.."
REPO="${REPO:-$(git -C "$ROOT" remote get-url origin || true)}" REF="${REF:-main}"
: "${REPO:?git URL that every worker can clone: this clone has no remote origin}"
printf -v args '%q ' "$@"
printf -v repo '%q' "$REPO"
printf -v ref '%q' "$REF"
printf -v python '%q' "${PYTHON:-}"
gcloud compute tpus tpu-vm ssh "$TPU" --project="$PROJECT" --zone="$ZONE" \
  --worker=all --command="set -e
    [ -d jaxrl_reason ] || git clone $repo jaxrl_reason
    cd jaxrl_reason && git fetch origin $ref && git checkout -q FETCH_HEAD
    export PYTHON=$python JAXRL_EXTRAS=tpu,hf,gcs
    nohup setsid tools/run $args </dev/null >~/jaxrl_reason.log 2>&1 &
    echo started: tail -f ~/jaxrl_reason.log"
