#!/usr/bin/env bash
# Pack everything that a session on a GPU machine carries, from the last commit and nothing newer:
# a call never sends a tree that somebody is editing.
#   tests/gpu/pack.sh KIT BOOT [PYTHON]
# KIT has 1/python.tar.xz, 2/core.tar.xz and 3/moe-fa3.tar.xz: vLLM for the machine. BOOT has
# gpu_host.sh and fetch_debs.sh. PYTHON needs pip and hatchling; default .venv/bin/python.
#
# Makes build/pack/1 to 4, each small enough for one call; README.md says how they are sent.
set -euo pipefail
kit=$(cd "$1" && pwd)
boot=$(cd "$2" && pwd)
cd "$(dirname "$0")/../.."
python=$(realpath -s "${3:-.venv/bin/python}")
target=$PWD/build/pack
tests/gpu/host/prepare.sh "$boot" "$python"
rm -rf "$target"
mkdir -p "$target"/{1,2,3,4} "$target"/{1,4}/wheels

scratch=$(mktemp -d)
mkdir "$scratch/kept"
trap 'rm -rf "$scratch"' EXIT
git clone -q --shared . "$scratch/head"
(cd "$scratch/head/kernel" && "$python" -m hatchling build -t wheel -d "$scratch/kept" >/dev/null)
git -C "$scratch/head" archive --format=tar.gz -o "$target/1/head.tar.gz" HEAD
git -C "$scratch/head" rev-parse HEAD > "$scratch/kept/commit"

# Answers of earlier runs: cases whose answers are kept are not asked again.
for name in answers reference; do
  [ ! -f "build/serve/$name.json" ] || cp "build/serve/$name.json" "$scratch/kept/"
done
tar czf "$target/1/kept.tar.gz" -C "$scratch/kept" .
for wheel in build/host/wheels/*.whl; do
  case $wheel in */uv-* | */cryptography-*) part=4 ;; *) part=1 ;; esac
  cp "$wheel" "$target/$part/wheels/"
done
cp "$kit/1/python.tar.xz" "$target/1/"
cp "$kit/2/core.tar.xz" "$target/2/"
cp "$kit/3/moe-fa3.tar.xz" "$target/3/"
cp -r build/host/debs build/host/gpu_host.sh "$target/4/"
for part in 1 2 3 4; do cp tests/gpu/unpack.sh "$target/$part/"; done

tree=$(git ls-files -z | du -cb --files0-from=- | tail -1 | cut -f1)
echo "commit $(cut -c1-12 "$scratch/kept/commit")"
for part in 1 2 3 4; do
  size=$(($(du -sb "$target/$part" | cut -f1) + tree))
  echo "call $part: $((size >> 20)) MiB with the tree"
  [ "$size" -lt $((62 << 20)) ] || { echo "over what one call carries" >&2; exit 1; }
done
