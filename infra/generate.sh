#!/usr/bin/env bash
# Generate the Python of protos/ into the folder given (default protos/gen).
set -euo pipefail
out=${1:-protos/gen}
rm -rf "$out" && mkdir -p "$out"
python -m grpc_tools.protoc -I protos --python_out="$out" --grpc_python_out="$out" --mypy_out="$out" --mypy_grpc_out="$out" \
  $(cd protos && find meiri -name '*.proto' | LC_ALL=C sort | sed 's|^|protos/|')
