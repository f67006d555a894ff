#!/usr/bin/env bash
# Build the glm5-kernel wheel of this checkout into build/serve, from where run.py takes it.
# usage: tests/gpu/serve/prepare.sh [PYTHON]   a Python with hatchling; default .venv/bin/python
set -euo pipefail
cd "$(dirname "$0")/../../.."
python=$(realpath -s "${1:-.venv/bin/python}")
target=$PWD/build/serve
mkdir -p "$target"
rm -f "$target"/glm5_kernel-*.whl
(cd kernel && "$python" -m hatchling build -t wheel -d "$target")
