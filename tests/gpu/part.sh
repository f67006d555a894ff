#!/usr/bin/env bash
# On the GPU machine, after unpack.sh: one part of the proof, from the commit that was packed.
#   bash /tmp/glm5/head/tests/gpu/part.sh PART [SECONDS] [ARGUMENT…]
# ARGUMENTs go to the part's program. $OUT/PART.tar.gz gets what it wrote, also where it fails or its
# SECONDS are over. CUDA_VISIBLE_DEVICES chooses a GPU. The parts:
#   model        make the model of the parts host and host-tp2, in the background
#   kernels      tests on the GPU
#   doctor       those of the doctor, alone: they fill the GPU
#   pytest       both, one after the other
#   warmup       of the former, whether a server compiles while it serves
#   indexer      the indexer's benchmark; needs the GPU for itself
#   attention    its benchmark; needs the GPU for itself
#   served       the same kernel as a server calls it, beside vLLM's; needs the GPU for itself
#   sweep        and in other configurations
#   stalls       what its warps wait for in a prefill of 8,000 tokens, by ncu
#   parity       our attention and indexer against stock vLLM: the same answers
#   throughput   and as fast
#   stress       our servers under long prompts, five rounds: does one hang?
#   profile      what the kernels of ours and of stock take
#   measured     throughput, and profile over the same servers
#   gguf         GLM-5 from GGUF against transformers
#   large        make the file of the part loading
#   loading      how fast a file of 20 GB loads, beside dd
#   host         the whole path to a host with systemd
#   serve-tp2, gguf-tp2, host-tp2      the same on two GPUs
set -uo pipefail
part=${1:?which part}
place=${PLACE:-/tmp/glm5}
site=${SITE:-/opt/site}
head=$(cd "$(dirname "$0")/../.." && pwd)
results=${OUT:?a folder for the results}
out=$place/out/$part
large=${MODELS:-/opt/models}/large
mkdir -p "$out"
cd "$head" || exit 1

GLM5_COMMIT=$(cat "$place/kept/commit" 2> /dev/null)
export GLM5_COMMIT PYTHONUNBUFFERED=1 CUDA_HOME=${CUDA_HOME:-/usr/local/cuda} VLLM_HOST_IP=127.0.0.1
export VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 VLLM_USE_FLASHINFER_SAMPLER=0
# NVLink multicast can take a shared host out of service.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1

case $part in
  pytest) limit=330 ;;
  attention | served | sweep) limit=250 ;;
  indexer | stalls) limit=200 ;;
  gguf-tp2 | serve-tp2) limit=250 ;;
  stress | profile) limit=330 ;;
  gguf) limit=330 ;;
  loading) limit=300 ;;
  *) limit=560 ;;
esac
# Parts may run beside each other on GPUs of their own: each has its ports and folders.
case $part in
  parity) port=9000 ;;
  stress) port=10000 ;;
  profile) port=11000 ;;
  serve-tp2) port=12000 ;;
  gguf) port=13000 ;;
  gguf-tp2) port=14000 ;;
  measured) port=15000 ;;
  *) port=8100 ;;
esac
limit=${2:-$limit}
shift $(($# < 2 ? $# : 2))
started=$(date +%s)

pack() {
  cp "$place/kept/commit" "$out/" 2>/dev/null
  tar czf "$results/$part.tar.gz" -C "$place/out" "$part"
  echo "== $part: $(($(date +%s) - started)) s"
}
trap pack EXIT

# The program ends itself before its limit where it can, and is ended at it otherwise.
within() { timeout -k 20 -s TERM "$limit" "$@" 2>&1 | tee -a "$out/said.txt"; }
on_site() { PYTHONPATH=$head/kernel:$site within "$@"; }
serve() {
  within python3 tests/gpu/serve/run.py --kept "$place/kept" --site "$site" --out "$out" \
    --work "/tmp/serve-$part" --port $port --seconds $((limit - 25)) "$@"
}
gguf() {
  within env PYTHONPATH="$head/kernel:$site" python3 tests/gpu/gguf_serve/run.py --kept "$place/kept" \
    --site "$site" --out "$out" --work "/tmp/gguf-$part" --port $port \
    --seconds $((limit - 25)) "$@"
}
host() {
  # PyYAML and the rest of glm5-deploy's packages come from the folders that unpack.sh filled.
  within python3 tests/gpu/host/run.py --place "$place" --site "$site" --out "$out" "$@"
}
pytests() { # NAME ARGUMENT…
  local name=$1
  shift
  local left=$((limit - ($(date +%s) - started)))
  [ $left -gt 0 ] || { echo "$name: no time is left"; return 1; }
  PYTHONPATH=$head/kernel:$site timeout -k 10 $left python3 -m pytest -q -p no:cacheprovider "$@" \
    > "$out/$name.txt" 2>&1
  local status=$?
  tail -n 12 "$out/$name.txt"
  return $status
}
most() {
  local workers=()
  python3 -c 'import xdist' 2> /dev/null && workers=(-n 8)
  pytests most "${workers[@]}" tests/gpu/test_warmup.py tests/gpu/test_sparse_mla.py \
    tests/gpu/test_indexer_ops.py tests/kernel/test_topk_edges.py \
    tests/gpu/test_gguf_ops.py tests/gpu/test_gguf_loading.py "$@"
}

case $part in
  model)
    PYTHONPATH=$head/kernel:$site setsid nohup python3 tests/gpu/host/run.py --model-only --out "$out" \
      --site "$site" "$@" > "$out/said.txt" 2>&1 < /dev/null &
    ;;
  kernels) most "$@" ;;
  pytest)
    most "$@"
    status=$?
    pytests doctor tests/gpu/test_doctor.py || exit
    exit $status
    ;;
  doctor) pytests doctor tests/gpu/test_doctor.py "$@" ;;
  warmup) pytests warmup tests/gpu/test_warmup.py "$@" ;;
  indexer)
    on_site python3 benchmarks/indexer.py --replays 1 --rounds 1 > "$out/warm.txt"
    on_site python3 benchmarks/indexer.py --output "$out/indexer-h200.json" "$@"
    ;;
  attention)
    on_site python3 benchmarks/sparse_mla.py --output "$out/sparse_mla-h200.json" "$@"
    ;;
  served)
    on_site python3 benchmarks/sparse_mla_served.py --output "$out/sparse_mla_served-h200.json" "$@"
    ;;
  sweep)
    on_site python3 benchmarks/sparse_mla_served.py --sweep --output "$out/sweep.json" "$@"
    ;;
  stalls)
    on_site ncu --clock-control none --kernel-name split_kernel --launch-count 1 --set full \
      -f -o "$out/stalls" python3 benchmarks/sparse_mla_served.py --replays 1 --heads 16 --shape 9 "$@"
    ncu -i "$out/stalls.ncu-rep" --page details > "$out/details.txt"
    ncu -i "$out/stalls.ncu-rep" --page source --csv > "$out/source.csv"
    grep -E 'Duration|Throughput|Stall|Eligible|Registers|Achieved|Hit Rate' "$out/details.txt"
    ;;
  throughput) serve --part throughput "$@" ;;
  parity) serve --part stock --part ours "$@" ;;
  stress)
    serve --part throughput --bench ours-bf16 --bench ours-fp8 \
      --load 1x8000 --load 8x8000 --load 64x8000 "$@"
    ;;
  profile) serve --part profile "$@" ;;
  measured) serve --part throughput --part profile "$@" ;;
  gguf) gguf --part single "$@" ;;
  large) on_site python3 benchmarks/gguf_loading.py "$large" --make "$@" ;;
  loading)
    on_site python3 benchmarks/gguf_loading.py "$large" \
      --output "$out/gguf_loading-h200.json" "$@"
    ;;
  host) host "$@" ;;
  serve-tp2) serve --part tp2 "$@" ;;
  gguf-tp2) gguf --part tp2 --results "$place/out/gguf/gguf-h200.json" "$@" ;;
  host-tp2) host --tp 2 "$@" ;;
  *)
    echo "no such part: $part" >&2
    exit 2
    ;;
esac
