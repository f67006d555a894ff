#!/bin/sh
# Install one wheel, without dependencies, into an environment and mark it complete.
#   install_wheel.sh DIR UV WHEEL CACHE MARKER
set -eu
export UV_CACHE_DIR="$4" UV_NO_PROGRESS=1
umask 022
"$2" pip install --quiet --python "$1/bin/python" --no-deps --no-index --reinstall --compile-bytecode "$3"
"$1/bin/python" -c 'import glm5_kernel; print("PROGRESS 1.0 glm5_kernel", glm5_kernel.__version__)'
: > "$5"
