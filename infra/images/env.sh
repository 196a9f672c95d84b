#!/usr/bin/env bash
# Write .env for docker-compose.yml, once: a new password for each database role, and an id for the Kafka cluster.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ -e .env ]; then
  echo ".env is there already and stays as it is."
  exit 0
fi
new() { head -c 24 /dev/urandom | base64 | tr '+/' '-_'; }
umask 077
{
  # A Kafka cluster id is a UUID: 16 bytes in base64url without padding.
  echo "KAFKA_CLUSTER_ID=$(head -c 16 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=')"
  echo "POSTGRES_PASSWORD=$(new)"
  for service in GATEWAY FEATURES MATERIALISER PLAYLISTS; do
    echo "MEIRI_${service}_DB_PASSWORD=$(new)"
  done
} > .env
echo "Wrote .env: keep it, it holds the passwords of the containers' databases."
