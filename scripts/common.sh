# Sourced by demo and test: a virtual environment in .venv with the locked requirements, and packages.

# Bytecode is kept whatever the caller's environment says: programs here are started hundreds of times.
unset PYTHONDONTWRITEBYTECODE

say() { printf '==> %s\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

find_python() { # the first Python that is new enough
    local name
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        if command -v "$name" > /dev/null &&
            "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then
            command -v "$name"
            return
        fi
    done
    fail "Python 3.11 or newer is needed, and there is none"
}

can_install() { [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; }

install_packages() { # Debian packages; the caller has checked can_install
    say "installing $*"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" > /dev/null
}

make_venv() { # FILE: hashed requirements; a later call with the same file does nothing
    local stamp python
    stamp=$(cat "$1" pyproject.toml hatch_build.py | sha256sum)
    if [ -f .venv/.stamp ] && grep -qxF "$1 $stamp" .venv/.stamp; then return; fi
    python=$(find_python)
    if ! "$python" -c 'import ensurepip' 2> /dev/null; then
        can_install || fail "$python cannot make virtual environments; run: sudo apt-get install -y python3-venv"
        install_packages python3-venv
    fi
    say "virtual environment in .venv with $("$python" --version)"
    [ -x .venv/bin/python ] || "$python" -m venv .venv || exit 1
    install_locked "$1"
    .venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps \
        --no-build-isolation --editable . || exit 1
    echo "$1 $stamp" >> .venv/.stamp
}

install_locked() { # FILE: with uv, many times faster than pip; with pip where only pip is set up
    local pip=(.venv/bin/python -m pip install -qq --disable-pip-version-check --require-hashes)
    awk '/^uv==/ { found = 1 } found { print } found && !/\\$/ { exit }' "$1" > .venv/uv.txt
    "${pip[@]}" -r .venv/uv.txt || exit 1
    UV_SYSTEM_CERTS=true .venv/bin/uv pip install --quiet --python .venv/bin/python \
        --require-hashes -r "$1" || "${pip[@]}" -r "$1" || exit 1
}

install_unhashed() { # ARGUMENT...: with uv, which is told where pip looks for wheels; else with pip
    local folders pip=(.venv/bin/python -m pip)
    folders=$("${pip[@]}" config list | sed -n "s/^[^ ]*find-links='\(.*\)'$/\1/p" | head -n 1)
    UV_FIND_LINKS=${folders//\\n/,} UV_SYSTEM_CERTS=true .venv/bin/uv pip install --quiet \
        --python .venv/bin/python "$@" ||
        "${pip[@]}" install -qq --disable-pip-version-check "$@" || exit 1
}

install_missing() { # what throwaway hosts need on this machine, where it may be installed
    local packages
    packages=$(.venv/bin/python -c 'from glm5_deploy.demo.rootfs import missing_packages as m; print(*m())')
    if [ -n "$packages" ] && can_install; then
        # shellcheck disable=SC2086
        install_packages $packages
    fi
}
