#!/usr/bin/env bash
# On the GPU machine: unpack one part of what pack.sh made. The parts come in any order.
#   bash build/pack/N/unpack.sh
# SITE is vLLM's folder; it lies outside /tmp, where a host that is booted there sees it, too.
set -euo pipefail
part=$(cd "$(dirname "$0")" && pwd)
place=${PLACE:-/tmp/glm5}
site=${SITE:-/opt/site}
mkdir -p "$place/operator" "$place/kept" "$site"
link=${LINK:-/tmp/site} # where other scripts look for it
[ -e "$link" ] || ln -s "$site" "$link"
for archive in "$part"/*.tar.xz; do
  [ ! -f "$archive" ] || tar xJf "$archive" -C "$site" &
done
if ls "$part"/wheels/*.whl >/dev/null 2>&1; then
  # For glm5-deploy alone: its pydantic is another than vLLM's. A folder for each part, because pip
  # replaces a target's bin.
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
    --target "$place/operator/$(basename "$part")" "$part"/wheels/*.whl
  for wheel in "$part"/wheels/libgguf-*.whl; do
    [ ! -f "$wheel" ] || python3 -m zipfile -e "$wheel" "$site"
  done
fi
if [ -f "$part/head.tar.gz" ]; then
  rm -rf "$place/head"
  mkdir "$place/head"
  tar xzf "$part/head.tar.gz" -C "$place/head"
  tar xzf "$part/kept.tar.gz" -C "$place/kept"
fi
if [ -d "$part/debs" ]; then cp -r "$part/debs" "$part/gpu_host.sh" "$place/"; fi
wait
du -sh "$place" "$site"
