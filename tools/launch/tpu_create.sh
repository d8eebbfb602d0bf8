#!/usr/bin/env bash
# Requests a spot slice and waits until it exists:
#
#   PROJECT=p ZONE=us-west4-a TPU=my-slice tools/launch/tpu_create.sh v5litepod-16
#
# Then start a run:
#   tools/launch/tpu_vm.sh --config=configs/grpo_gsm8k.py:smoke --workdir=gs://bucket/run
# Further flags are passed on to gcloud, such as --valid-until-duration=6h. Remove
# the slice and its request:
#   gcloud compute tpus queued-resources delete my-slice --force --zone=...
set -euo pipefail
: "${TPU:?name of the slice}" "${ZONE:?zone of the slice}"
PROJECT="${PROJECT:-$(gcloud config get-value project)}"
TYPE="${1:?accelerator type, such as v5litepod-16, v5p-16 or v6e-8}"
shift
case "$TYPE" in
  v5litepod-*) image=v2-alpha-tpuv5-lite ;;
  v5p-*) image=v2-alpha-tpuv5 ;;
  v6e-*) image=v2-alpha-tpuv6e ;;
  *) echo "$TYPE: set IMAGE to its runtime version" >&2 && image="${IMAGE:?}" ;;
esac
where=(--project="$PROJECT" --zone="$ZONE")
gcloud compute tpus queued-resources create "$TPU" --node-id="$TPU" \
  --accelerator-type="$TYPE" --runtime-version="${IMAGE:-$image}" --spot \
  "${where[@]}" "$@"
until state=$(gcloud compute tpus queued-resources describe "$TPU" \
  "${where[@]}" --format='value(state.state)') && [ "$state" = ACTIVE ]; do
  case "$state" in FAILED | SUSPENDED) echo "$TPU: $state" >&2 && exit 1 ;; esac
  echo "$TPU: $state"
  sleep "${WAIT_S:-30}"
done
