#!/usr/bin/env bash
# One command on all workers of a Cloud TPU slice; jax finds out by itself how
# many there are. The same call again resumes from the workdir.
#
#   PROJECT=p ZONE=us-east5-a TPU=my-slice tools/launch/tpu_vm.sh \
#     --config=configs/grpo_gsm8k_qwen3_1p7b.py --workdir=gs://bucket/run
#
# REPO is where the workers get the code from, REF what they check out.
set -euo pipefail
: "${TPU:?name of the slice}" "${ZONE:?zone of the slice}"
PROJECT="${PROJECT:-$(gcloud config get-value project)}"
REPO="${REPO:?git URL that every worker can clone}" REF="${REF:-main}"
printf -v args '%q ' "$@"
printf -v repo '%q' "$REPO"
printf -v ref '%q' "$REF"
gcloud compute tpus tpu-vm ssh "$TPU" --project="$PROJECT" --zone="$ZONE" \
  --worker=all --command="set -e
    [ -d jaxrl_reason ] || git clone $repo jaxrl_reason
    cd jaxrl_reason && git fetch origin $ref && git checkout -q FETCH_HEAD
    JAXRL_EXTRAS=tpu,hf,gcs tools/run $args"
