"""The benchmark's deployment in pyinfra. Host data comes from benchmarks/contenders.py."""

from pyinfra import host
from pyinfra.facts.server import Command
from pyinfra.operations import apt, files, server, systemd
from pyinfra.operations.util import any_changed

root, site, unit = host.data.root, host.data.site, host.data.unit
venv, wheels, model = f"{root}/venv", f"{root}/cache/wheels", f"{root}/models/tiny"
uv = f"{root}/cache/uv-program"

ASK = (
    "import sys, urllib.request as r;"
    "sys.stdout.write(str(r.urlopen(sys.argv[1], timeout=5).status))"
)
# A fact is read before anything is done: 200 where the service is healthy already.
healthy = host.get_fact(
    Command, f"python3.11 -c '{ASK}' {host.data.health_url} 2>/dev/null || echo down"
)

apt.packages(name="Packages", packages=["python3.11", "rsync", "libnuma1"])
server.user(
    name="User",
    user=host.data.user,
    system=True,
    home="/nonexistent",
    create_home=False,
    ensure_home=False,
    shell="/usr/sbin/nologin",
)
for folder in (root, f"{root}/etc", f"{root}/cache", f"{root}/models", model, wheels):
    files.directory(name=f"Folder {folder}", path=folder, mode="755")
files.put(name="Program uv", src=host.data.uv, dest=uv, mode="755")
files.sync(name="Wheels", src=f"{site}/wheels", dest=wheels, mode="644", dir_mode="755")
lock = files.put(name="Lock", src=f"{site}/lock.txt", dest=f"{root}/etc/lock.txt", mode="644")
environment = server.shell(
    name="Environment",
    commands=[f"{uv} venv --quiet --allow-existing --python /usr/bin/python3.11 {venv}"],
    _if=lock.did_change,
)
engine = server.shell(
    name="Engine from the lock",
    commands=[
        f"{uv} pip install --quiet --compile-bytecode --python {venv}/bin/python --require-hashes "
        f"--no-index --find-links {wheels} --requirements {root}/etc/lock.txt"
    ],
    _env={"UV_CACHE_DIR": f"{root}/cache/uv"},
    _if=lock.did_change,
)
weights = files.sync(name="Model", src=f"{site}/model", dest=model, mode="644", dir_mode="755")
manifest = files.put(
    name="Manifest",
    src=f"{site}/peer/MANIFEST.sha256",
    dest=f"{root}/etc/MANIFEST.sha256",
    mode="644",
)
server.shell(
    name="Model is what the manifest says",
    commands=[f"cd {model} && sha256sum --quiet --check {root}/etc/MANIFEST.sha256"],
    _if=any_changed(weights, manifest),
)
variables = files.put(
    name="Variables", src=f"{site}/peer/environment", dest=f"{root}/etc/environment", mode="644"
)
secrets = files.put(
    name="Secrets", src=f"{site}/peer/secrets", dest=f"{root}/etc/secrets", mode="600"
)
unit_file = files.put(
    name="Unit", src=f"{site}/peer/unit", dest=f"/etc/systemd/system/{unit}", mode="644"
)
systemd.service(
    name="Service restarted",
    service=unit,
    daemon_reload=True,
    restarted=True,
    enabled=True,
    _if=any_changed(engine, variables, secrets, unit_file),
)
systemd.service(name="Service", service=unit, running=True, enabled=True)
if healthy != "200":
    ask = f"python3.11 -c '{ASK}' {host.data.health_url} >/dev/null 2>&1"
    server.shell(
        name="Health",
        commands=[f"for n in $(seq 300); do {ask} && exit 0; sleep 0.1; done; exit 1"],
    )
