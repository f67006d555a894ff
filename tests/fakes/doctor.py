"""What glm5-kernel's doctor answers, and what a host says of its current release."""

from __future__ import annotations

import json
from typing import Any

VERSIONS = {
    "python": "3.12.3",
    "vllm": "0.26.0",
    "torch": "2.11.0",
    "triton": "3.6.0",
    "glm5-kernel": "0.1.0",
    "vllm-gguf-plugin": "0.0.5",
    "gguf": "0.17.1",
    "driver": "580.95.05",
}
UNIT = """\
[Unit]
Description=glm5-deploy: tiny

[Service]
Type=exec
User=glm5
WorkingDirectory=/var/lib/glm5-tiny
EnvironmentFile=/opt/glm5/releases/abc/environment
EnvironmentFile=/opt/glm5/releases/abc/secrets
ExecStart=:"/opt/glm5/venvs/v1/bin/vllm" "serve"
# A comment.
CacheDirectory=glm5-tiny
RemoveIPC=yes
DeviceAllow=char-nvidia rw
DeviceAllow=char-nvidia-uvm rw

[Install]
WantedBy=multi-user.target
"""


def row(name: str, status: str = "passed", detail: str = "", hint: str | None = None) -> dict:
    """One check of the document."""
    return {"name": name, "status": status, "detail": detail, "hint": hint}


def document(*rows: dict[str, Any]) -> str:
    """The JSON document; without rows all is well."""
    checks = list(rows) or [row("vLLM", detail="0.26.0"), row("merge", detail="error 1e-03")]
    ok = all(check["status"] != "failed" for check in checks)
    parts = [{"name": "attention", "state": "registered", "reason": "chosen by CUSTOM"}]
    found = {"ok": ok, "versions": VERSIONS, "gpus": [], "parts": parts, "checks": checks}
    return json.dumps(found, indent=1)


def served(*, kernel: bool = True, venv: str | None = "v1") -> str:
    """What reading the current release gives."""
    profile = {"engine": {"kernel": kernel}, "venv": venv}
    return f"{json.dumps(profile, indent=1)}\n\n--- unit ---\n{UNIT}"
