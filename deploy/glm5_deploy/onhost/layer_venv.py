"""Makes an environment layered on one that the host has already.

    layer_venv.py FOLDER UV MARKER [SITE…]

Run by the interpreter that the host's vLLM runs on. The new environment sees its own packages
first, then those in each SITE, then the interpreter's: a ``.pth`` file adds these folders in every
process, spawned workers too, which ``PYTHONPATH`` would do only where nobody clears it. Entry
points in them count. Commands of the distribution ``vllm`` get a script in ``bin``. MARKER, which
may be empty, is the file that says that all is done. Runs on Python 3.8 and later.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from importlib import metadata
from pathlib import Path

PTH = "_glm5_base.pth"
# Works for folders of any name and length, which the first line of a script does not. vLLM's engine
# and workers, where they are spawned, import the script again.
SCRIPT = """\
#!/bin/sh
'''exec' '{python}' "$0" "$@"
' '''
import sys

from {module} import {function}

if __name__ == "__main__":
    sys.exit({call}())
"""


def folders(sites: list[str]) -> list[str]:
    """What the environment sees beyond its own packages, in order."""
    own = [path for path in site.getsitepackages() if os.path.isdir(path)]
    return list(dict.fromkeys([*sites, *own]))


def write_pth(folder: Path, seen: list[str]) -> None:
    """In the new environment's folder of packages; nested ``.pth`` files count too."""
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    python = str(folder / "bin" / "python")
    found = subprocess.run([python, "-I", "-c", where], stdout=subprocess.PIPE, check=True)
    path = Path(found.stdout.decode().strip(), PTH)
    # Python reads it by the locale of whoever runs it: in ASCII it is the same to all.
    path.write_text(f"import site; list(map(site.addsitedir, {seen!a}))\n", encoding="ascii")


def write_commands(folder: Path, seen: list[str]) -> int:
    """The commands of vLLM; gives how many."""
    found = next(iter(metadata.distributions(name="vllm", path=seen)), None)
    if found is None:
        sys.exit("no vLLM is installed in " + ", ".join(seen))
    commands = [each for each in found.entry_points if each.group == "console_scripts"]
    python = str(folder / "bin" / "python").replace("'", "'\\''")
    for each in commands:
        module, _, name = each.value.partition(":")
        name = name.split(" ")[0]
        script = folder / "bin" / each.name
        script.write_text(
            SCRIPT.format(python=python, module=module, function=name.split(".")[0], call=name)
        )
        script.chmod(0o755)
    return len(commands)


def main(words: list[str]) -> None:
    folder, uv, marker, sites = Path(words[0]), words[1], words[2], words[3:]
    if folder.parent.name != "venvs":
        sys.exit(f"not a folder of environments: {folder}")
    os.umask(0o022)
    missing = [path for path in sites if not os.path.isdir(path)]
    if missing:
        sys.exit("no such folder: " + ", ".join(missing))
    shutil.rmtree(folder, ignore_errors=True)
    print(f"PROGRESS - creating {folder}", flush=True)
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "UV_NO_CACHE": "1"}
    made = [uv, "venv", "--quiet", "--no-project", "--python", sys.executable, str(folder)]
    subprocess.run(made, env=environment, check=True)
    seen = folders(sites)
    write_pth(folder, seen)
    count = write_commands(folder, seen)
    (folder / ".locked").touch()
    if marker:
        Path(marker).touch()
    print(f"PROGRESS 1.0 layered on {sys.executable}, {count} commands", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
