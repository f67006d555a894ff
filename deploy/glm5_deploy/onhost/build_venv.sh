#!/bin/sh
# Build a virtual environment from a hashed lock, in a transient unit that a lost connection does not end.
#   build_venv.sh DIR PYTHON UV LOCK CACHE WHEELHOUSE INDEX MARKER
# WHEELHOUSE and INDEX may be empty; MARKER, which may be too, is the file that says that all is done.
set -eu
dir=$1 python=$2 uv=$3 lock=$4 cache=$5 wheelhouse=$6 index=$7 marker=$8
case $dir in */venvs/*) ;; *) echo "not a folder of environments: $dir" >&2; exit 2 ;; esac
export UV_CACHE_DIR="$cache" UV_NO_PROGRESS=1 UV_PYTHON_DOWNLOADS=never UV_HTTP_TIMEOUT=180 UV_SYSTEM_CERTS=1
# A unit has none, and without it uv finds neither root's netrc nor root's settings.
export HOME="${HOME:-/root}"
umask 022
# One that was emptied by hand, or whose Python the distribution removed, is built anew.
if [ ! -e "$dir/.locked" ] || [ ! -x "$dir/bin/python" ]; then
  rm -rf "$dir"
  echo "PROGRESS - creating $dir"
  "$uv" venv --quiet --python "$python" "$dir"
  set -- --python "$dir/bin/python" --require-hashes --requirements "$lock"
  if [ -n "$wheelhouse" ]; then
    cd -- "$wheelhouse"  # uv takes a comma in --find-links for the end of a folder's name
    set -- "$@" --no-index --find-links .
  elif [ -n "$index" ]; then
    set -- "$@" --default-index "$index"
  fi
  echo "PROGRESS - installing $(grep -c '^[[:alnum:]].*==' "$lock" || :) packages"
  # A lock names everything; resolving anew would hold its builds against bare versions.
  "$uv" pip install --no-deps "$@"
  # uv says "installed" and then compiles for minutes in silence. What does not compile, such as a package's data for
  # an old Python, is not imported either.
  echo "PROGRESS - compiling what was installed to bytecode"
  "$dir/bin/python" -I -W ignore -m compileall -qq -j 0 "$dir/lib" || [ $? = 1 ]
  : > "$dir/.locked"
fi
[ -z "$marker" ] || : > "$marker"
echo "PROGRESS 1.0 installed"
