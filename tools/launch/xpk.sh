#!/usr/bin/env bash
# Starts a run on a slice of a GKE cluster that XPK created:
#
#   CLUSTER=c TYPE=v5litepod-16 IMAGE=REGION-docker.pkg.dev/P/R/jaxrl-reason NAME=run1 \
#     tools/launch/xpk.sh --config=configs/grpo_gsm8k.py:qwen3_1p7b --workdir=gs://bucket/run
#
# tools/launch/Dockerfile makes the image. XPK starts the pods again if one fails,
# and the run resumes. PROJECT and ZONE are gcloud's, unless they are set.
set -euo pipefail
: "${CLUSTER:?cluster of xpk cluster create}" "${TYPE:?accelerator type}"
: "${IMAGE:?image of tools/launch/Dockerfile}" "${NAME:?name of the workload}"
printf -v args '%q ' "$@"
xpk workload create --cluster="$CLUSTER" --workload="$NAME" --tpu-type="$TYPE" \
  --docker-image="$IMAGE" --max-restarts="${RESTARTS:-10}" \
  --termination-grace-period-seconds=300 \
  ${PROJECT:+--project="$PROJECT"} ${ZONE:+--zone="$ZONE"} \
  --command="cd /jaxrl_reason && python -m jaxrl_reason run $args"
