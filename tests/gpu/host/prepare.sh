#!/usr/bin/env bash
# Collect in build/host what the walk on a GPU machine needs beyond the checkout, for a machine that
# reaches no package index: the operator's Python packages, and Debian packages of which a host with
# systemd is booted there.
#   tests/gpu/host/prepare.sh BOOT [PYTHON]    BOOT: a folder with gpu_host.sh and fetch_debs.sh
# What is there already stays; remove build/host to begin anew. PYTHON needs pip; default python3.
set -euo pipefail
boot=$(cd "$1" && pwd)
python=${2:-python3}
cd "$(dirname "$0")/../../.."
target=build/host
mkdir -p "$target/wheels"

# For Python 3.12 on x86-64 with glibc 2.35 or newer, from the lock without its hashes and markers.
platforms=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
for minor in 5 12 17 24 25 26 27 28 31 34 35; do
  platforms+=(--platform "manylinux_2_${minor}_x86_64")
done
sed -n '/sys_platform == .win32/d; s/^\([a-zA-Z0-9_.-]*==[^ ]*\).*/\1/p' requirements/run.txt \
  > "$target/wanted.txt"
if ! cmp -s "$target/wanted.txt" "$target/have.txt"; then
  rm -f "$target"/wheels/*.whl
  "$python" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 \
    --implementation cp "${platforms[@]}" -d "$target/wheels" -r "$target/wanted.txt" libgguf==0.2.2
  cp "$target/wanted.txt" "$target/have.txt"
fi

cp "$boot/gpu_host.sh" "$target/"
ls "$target"/debs/*.deb >/dev/null 2>&1 || "$boot/fetch_debs.sh" "$target/debs"
du -sh "$target/wheels" "$target/debs"
