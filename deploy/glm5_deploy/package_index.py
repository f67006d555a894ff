"""Whether a host reaches the package index that its environment is to be installed from.

It is asked as the installation will ask: from a transient unit, with the variables of
/etc/environment (a machine's proxies and certificates), for a package of the lock. What asks is
what a bare host may have: curl, else python3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from urllib.parse import urlsplit

from glm5_deploy.config.numbers import natural
from glm5_deploy.errors import CommandTimeoutError, SudoRefusedError
from glm5_deploy.hosts.command import Command, command, script
from glm5_deploy.hosts.host import Host
from glm5_deploy.local_command import LocalCommandError, run
from glm5_deploy.locks.text import pins
from glm5_deploy.report.outcome import Check
from glm5_deploy.stages.desired import Desired, Venv
from glm5_deploy.stages.observed import Observed
from glm5_deploy.stages.venv import uv_binary

NAME = "index"
LIMIT = 60
"""Seconds for two attempts of 20, and a resolver that is slow."""

# Two lines of input, so that no credentials are in a list of processes: the inventory's index, and
# the one that uv uses where nothing is said. What uv is told on the host beside that may name
# others, or let it trust what curl would not: `own` tells so.
ASK = r"""
made=$1 package=$2 program=$3
IFS= read -r given; IFS= read -r usual
say() { printf '%s\n' "$@"; exit 0; }
[ ! -e "$made/.locked" ] || [ ! -x "$made/bin/python" ] || say installed
for name in UV_NO_INDEX UV_OFFLINE; do
  eval "[ -z \"\${$name:-}\" ]" || say "without $name"
done
own=
for name in UV_INDEX UV_EXTRA_INDEX_URL UV_FIND_LINKS UV_INSECURE_HOST; do
  eval "[ -z \"\${$name:-}\" ]" || own=$name
done
url=${given:-${UV_DEFAULT_INDEX:-${UV_INDEX_URL:-}}}
for file in /etc/uv/uv.toml /etc/xdg/uv/uv.toml "${HOME:-/root}/.config/uv/uv.toml" \
  "${UV_CONFIG_FILE:-}"
do
  [ -f "$file" ] || continue
  own=$file
  while [ -z "$url" ] && { read -r line || [ -n "$line" ]; }; do
    case $line in
      index-url[\ =]*[\"\']*|url[\ =]*[\"\']*) line=${line#*[\"\']}; url=${line%%[\"\']*} ;;
    esac
  done < "$file"
done
url=${url:-$usual}
case $url in http://*|https://*) ;; *=http://*|*=https://*) url=${url#*=} ;; esac
case $url in
  *[\"\\]*) say other ;;
  http://*|https://*) ;;
  *) say other ;;
esac
page=${url%/}/$package/
if command -v curl >/dev/null; then
  http_proxy=${http_proxy:-${HTTP_PROXY:-}}; export http_proxy
  answer=$(printf 'url = "%s"\n' "$page" | curl --config - --netrc-optional --globoff \
    --silent --show-error --location --connect-timeout 10 --max-time 20 --retry 1 \
    --output /dev/null --write-out '\nhttp %{http_code}\n' 2>&1)
elif command -v python3 >/dev/null; then
  answer=$(printf '%s\n' "$page" | python3 -I -c "$program" 2>&1)
else
  say nothing
fi
say "own $own" "url $url" "$answer"
"""
"""$1 the environment's folder, $2 a package, $3 `GET`."""

GET = """
import base64, sys, urllib.error, urllib.parse, urllib.request
parts = urllib.parse.urlsplit(sys.stdin.readline().strip())
who, _, place = parts.netloc.rpartition('@')
request = urllib.request.Request(parts._replace(netloc=place).geturl())
request.add_header('User-Agent', 'glm5-deploy')
if who:
    word = base64.b64encode(urllib.parse.unquote(who).encode()).decode()
    request.add_header('Authorization', 'Basic ' + word)
code = 0
try:
    code = urllib.request.urlopen(request, timeout=20).status
except urllib.error.HTTPError as error:
    code = error.code
except Exception as error:
    print(getattr(error, 'reason', error))
print('http', code)
"""


@dataclass(frozen=True)
class Answer:
    """What came of it.

    Args:
        kind: ``asked``, or why it was not: ``installed`` (nothing is left to install), ``without``
            (the host's uv uses none, by the setting in `detail`), ``other`` (no index over HTTP),
            ``nothing`` (no program to ask with), ``unread``.
        url: that was asked, without credentials.
        code: HTTP status; 0 where none came.
        detail: what the program said.
        own: what else may tell the host's uv where packages come from: a variable or a file.
    """

    kind: str
    url: str = ""
    code: int = 0
    detail: str = ""
    own: str = ""


def rows(host: Host, desired: Desired, observed: Observed) -> tuple[Check, ...]:
    """One row where the host is to install from an index, else none."""
    venv = desired.venv
    if venv is None or venv.base is not None or venv.wheelhouse is not None:
        return ()
    if venv.identifier in observed.deployment.venvs:
        return ()
    package = next(iter(pins(venv.lock.decode(errors="replace"))), None)
    if package is None:
        return ()
    lock = desired.target.profile.engine.lock or ""
    try:
        said = host.run(
            ask(desired, venv, package),
            sudo=True,
            stdin=f"{venv.index_url or ''}\n{default_index()}\n".encode(),
            timeout=LIMIT + 30,
            check=False,
        )
    except SudoRefusedError:
        return (Check(NAME, "skipped", "it takes root to ask as the installation will"),)
    except CommandTimeoutError:
        return (_failed(lock, "the package index: no answer"),)
    return (_row(parse(said.stdout), lock, package),)


def ask(desired: Desired, venv: Venv, package: str) -> Command:
    """The question; it leaves nothing behind."""
    folder = desired.paths.venv(venv.identifier)
    # systemd expands $NAME in what systemd-run is given.
    words = [word.replace("$", "$$") for word in script(ASK, folder, package, GET).argv]
    return command(
        "systemd-run", "--quiet", "--pipe", "--wait", "--collect",
        "--description=glm5-deploy: package index", "-p", f"RuntimeMaxSec={LIMIT}",
        "-p", "EnvironmentFile=-/etc/environment", "--", *words,
    )  # fmt: skip


@lru_cache(maxsize=1)
def default_index() -> str:
    """Which index uv uses where nothing is said, by its own help; empty where it does not tell."""
    try:
        words = run([uv_binary(), "pip", "install", "--help"], timeout=20)
    except (LocalCommandError, OSError):
        return ""
    found = re.search(r"--default-index\b.*?by default: *<?(https?://[^\s>)]+)", words, re.DOTALL)
    return found[1] if found else ""


def parse(output: str) -> Answer:
    """Read what `ASK` prints."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    kind, _, rest = (lines[0] if lines else "").partition(" ")
    if kind in {"installed", "without", "other", "nothing"}:
        return Answer(kind, detail=rest)
    url = lines[1].removeprefix("url ") if len(lines) > 2 else ""
    code = natural(lines[-1].removeprefix("http ")) if url else None
    if kind != "own" or code is None:
        return Answer("unread")
    # curl tells each attempt, with its name and a number in front.
    said = re.sub(r"^curl: (\(\d+\) )?", "", lines[-2]) if len(lines) > 3 else ""
    user = urlsplit(url).netloc.rpartition("@")[0]
    if user:
        url, said = url.replace(f"{user}@", "", 1), said.replace(user, "…")
    return Answer("asked", url, code, said, own=rest)


_SKIPPED = {
    "without": "the host's uv uses none ({})",
    "other": "it is none over HTTP",
    "nothing": "neither curl nor python3 is there to ask it",
    "unread": "it could not be asked",
}


def _row(answer: Answer, lock: str, package: str) -> Check:
    if answer.kind == "installed":
        return Check(NAME, "passed", "nothing is left to install from it")
    if answer.kind != "asked":
        return Check(NAME, "skipped", _SKIPPED[answer.kind].format(answer.detail))
    if 200 <= answer.code < 300:
        return Check(NAME, "passed", f"{answer.url} answers")
    detail = _trouble(answer, package)
    if not answer.own:
        return _failed(lock, detail)
    detail += f"; {answer.own} there may name another"
    return replace(_failed(lock, detail), status="warning")


def _trouble(answer: Answer, package: str) -> str:
    if not answer.code:
        return f"{answer.url}: {answer.detail or 'no answer'}"
    if answer.code == 404:
        return f"{answer.url} has no {package}: HTTP 404"
    if answer.code == 407:
        return f"the proxy refuses: HTTP 407 for {package}"
    if answer.code in {401, 403}:
        return f"{answer.url} refuses: HTTP {answer.code} for {package}"
    return f"{answer.url}: HTTP {answer.code} for {package}"


def _failed(lock: str, detail: str) -> Check:
    return Check(
        NAME,
        "failed",
        detail,
        "set index_url to an index that the host reaches and may read, or carry the wheels there"
        f" (`glm5-deploy wheelhouse {lock} --output wheels`, and wheelhouse: wheels)",
    )
