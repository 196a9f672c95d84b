#!/usr/bin/env bash
# Compare protos/ with the protos of the local branch main: what is published there may not break.
set -euo pipefail
if ! git rev-parse --quiet --verify main:protos >/dev/null 2>&1; then
  echo "The local branch main has no protos to compare with: the check for breaking changes is skipped."
  exit 0
fi
earlier=$(mktemp -d)
trap 'rm -rf "$earlier"' EXIT
git archive main -- protos buf.yaml | tar -x -C "$earlier"
buf breaking --against "$earlier"
