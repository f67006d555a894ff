"""The shape of an inventory and of a profile, and what they resolve to for one host."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from glm5_deploy.config.dotted import together

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
"""A name that is safe as a file name, a unit name and a YAML key."""

SecretReference = Annotated[str, Field(pattern=r"^\$\{(env|file|exec):[^}]+\}$")]
"""``${env:NAME}``, ``${file:path}`` or ``${exec:command}``; never the secret itself."""


def _absolute(path: PurePosixPath) -> PurePosixPath:
    if not path.is_absolute() or ".." in path.parts:
        raise ValueError(f"must be an absolute path without `..`, found {str(path)!r}")
    if not str(path).isprintable():
        raise ValueError(f"must hold no control characters, found {str(path)!r}")
    return path


def _own_folder(path: PurePosixPath) -> PurePosixPath:
    # `down --purge` removes it, and it gets our owner: a folder of the system would be a disaster.
    if len(path.parts) < 2 or (len(path.parts) == 2 and path.name in _SYSTEM_FOLDERS):
        raise ValueError(f"must be a folder of our own such as /opt/glm5, found {str(path)!r}")
    # systemd takes no quotes or backslashes in a program's path, and expands globs in others.
    if set(str(path)) & set("\"'\\*?[]"):
        raise ValueError(f"must hold no quotes, backslashes or wildcards, found {str(path)!r}")
    return path


_SYSTEM_FOLDERS = frozenset((
    "bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "media", "mnt", "opt", "proc",
    "root", "run", "sbin", "srv", "sys", "tmp", "usr", "var",
))  # fmt: skip


def _word(text: str) -> str:
    # A leading dash would be read as an option by ssh, rsync and package managers.
    if not text or text.startswith("-") or not text.isprintable() or any(c.isspace() for c in text):
        raise ValueError("must be one word without spaces that does not begin with `-`")
    return text


def _one_line(text: str) -> str:
    if any(not c.isprintable() and c != "\t" for c in text):
        raise ValueError("must be one line without control characters")
    return text


def _index(text: str) -> str:
    # As uv takes it, but a folder relative to nobody knows what.
    place = re.sub(r"^[\w.-]+=", "", text)
    if not re.match(r"(https?://|file:///|/)[^/]", place) or not _word(text):
        # What was found is not shown: it may hold a password.
        raise ValueError("must be an index's URL (https://…), or an absolute path on the host")
    return text


def _inside(text: str) -> str:
    path = PurePosixPath(text)
    if not text or path.is_absolute() or ".." in path.parts or not text.isprintable():
        raise ValueError(f"must be a path inside the model's folder, found {text!r}")
    return text


RemotePath = Annotated[
    PurePosixPath, Field(description="An absolute path on the host."), AfterValidator(_absolute)
]
Word = Annotated[str, AfterValidator(_word)]
"""Text that is safe to hand to a program as a word of its own."""
Inside = Annotated[str, AfterValidator(_inside)]
"""A path or glob below the model's folder."""
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Scalar = str | int | float | bool
Argument = Scalar | list[Scalar] | dict[str, Any]
Port = Annotated[int, Field(ge=1, le=65535)]


class Model(BaseModel):
    """Frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# --- how a host is reached -----------------------------------------------------------------------


class Become(Model):
    """How commands become root on the host."""

    method: Literal["sudo", "none"] = Field(
        default="sudo", description="none: the login user does it all (root)."
    )
    password: SecretReference | None = Field(
        default=None, description="sudo's password, as a reference."
    )


class Connection(Model):
    """Where the SSH server is; what is left out comes from the user's ssh_config."""

    address: Word | None = Field(
        default=None,
        description="Host name, IP address or ssh_config alias; default: the host's name.",
    )
    user: Word | None = Field(default=None, description="Login user.")
    port: Port | None = Field(default=None, description="TCP port.")
    identity_file: Path | None = Field(
        default=None, description="Private key, tried before ssh_config's and the agent's."
    )
    identity_passphrase: SecretReference | None = Field(
        default=None, description="The private key's passphrase, as a reference."
    )
    proxy_jump: Word | None = Field(
        default=None, description="user@jump:port, several separated by commas, or none."
    )
    ssh_config: Path | None = Field(default=None, description="Default: ~/.ssh/config.")
    known_hosts: Path | None = Field(
        default=None, description="Default: ~/.ssh/known_hosts and the system's file."
    )
    connect_timeout: float | None = Field(
        default=None, gt=0, description="Seconds; default 10, or ssh_config's."
    )
    connect_attempts: int = Field(
        default=3, ge=1, le=10, description="Before a host counts as unreachable."
    )
    keepalive: int = Field(default=15, ge=1, description="Seconds between keepalives.")


class Packages(Model):
    """What may be done about system packages that the host lacks."""

    install: bool = Field(
        default=True,
        description="Use the distribution's package manager; false: refuse with the commands.",
    )


class HostSettings(Model):
    """Settings that `defaults`, a group or a host may give; the nearer one wins, mappings merge."""

    connection: Connection = Field(
        default=Connection(), description="How the host is reached over SSH."
    )
    become: Become = Field(default=Become(), description="How commands become root there.")
    root: Annotated[RemotePath, AfterValidator(_own_folder)] = Field(
        default=PurePosixPath("/opt/glm5"), description="Everything of ours on the host lies here."
    )
    profile: Name | None = Field(default=None, description="What this host serves.")
    override: dict[str, Any] = Field(
        default_factory=dict, description="Profile keys to change here."
    )
    vars: dict[str, Any] = Field(
        default_factory=dict, description="Values for {{ vars.NAME }} in the profile."
    )
    packages: Packages = Field(default=Packages(), description="What may be installed there.")
    python: RemotePath | None = Field(
        default=None, description="Interpreter on the host, where it is in no usual place."
    )
    python_tree: Path | None = Field(
        default=None, description="Relocatable Python here, carried to hosts that lack one."
    )
    wheelhouse: Path | None = Field(
        default=None, description="Folder of wheels here, synced to hosts without an index."
    )
    index_url: Annotated[str, AfterValidator(_index)] | None = Field(
        default=None, description="Package index for the host; default: the host's own settings."
    )


class Group(HostSettings):
    """Hosts and groups that share settings."""

    hosts: list[Name] = Field(default_factory=list, description="Hosts that are in it.")
    groups: list[Name] = Field(default_factory=list, description="Groups that are in it.")


class Inventory(Model):
    """A whole inventory file. Host and group entries may be empty (null)."""

    defaults: HostSettings = Field(default=HostSettings(), description="What holds for every host.")
    groups: dict[Name, Group] = Field(default_factory=dict, description="Groups by their names.")
    hosts: dict[Name, HostSettings] = Field(
        default_factory=dict, description="Hosts by their names."
    )
    profiles: list[Path] = Field(
        default_factory=lambda: [Path("profiles")],
        description="Folders or files, relative to the inventory.",
    )


# --- what is served ------------------------------------------------------------------------------


class ModelFiles(Model):
    """The weights and what lies beside them."""

    name: Name = Field(description="Folder under ROOT/models.")
    path: RemotePath | None = Field(
        default=None, description="A folder already on the host, instead of ROOT/models/NAME."
    )
    source: Path | None = Field(
        default=None, description="A local folder that is synced to the host."
    )
    serve: Inside = Field(
        default=".",
        description="What vLLM loads, relative to the folder: a file, or . for the folder.",
    )
    required: list[Inside] = Field(
        default_factory=lambda: ["config.json"],
        description="File names or globs that must be there.",
    )
    source_host: Name | None = Field(
        default=None,
        description="Another host of the inventory, which the files are copied from directly.",
    )
    source_path: RemotePath | None = Field(
        default=None,
        description="The folder on source_host; default: its ROOT/models/NAME.",
    )
    source_address: Word | None = Field(
        default=None,
        description="How this host reaches source_host: address[:port]; default: as we reach it.",
    )
    fetch: list[str] | None = Field(
        default=None,
        min_length=1,
        description="A command on the host that fetches the files; {folder}, {venv} are filled in.",
    )
    fetch_environment: dict[VariableName, Annotated[str, AfterValidator(_one_line)]] = Field(
        default_factory=dict, description="Variables for fetch."
    )
    fetch_secrets: dict[VariableName, SecretReference] = Field(
        default_factory=dict, description="Variables for fetch whose values are references."
    )
    manifest: Path | None = Field(
        default=None,
        description="A local SHA-256 manifest; default: made from source, or the host's own.",
    )
    manifest_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        default=None,
        description="SHA-256 of the manifest itself: another set of files is refused.",
    )
    served_name: str | None = Field(
        default=None, description="The model's name in the API; default: name."
    )


class Base(Model):
    """A vLLM that the host has; only glm5-kernel is added, in an environment layered on it."""

    python: RemotePath = Field(description="The interpreter that runs it.")
    site: list[RemotePath] = Field(
        default_factory=list,
        description="More folders of packages, searched before the interpreter's own.",
    )


class Engine(Model):
    """What runs the model."""

    lock: str | None = Field(
        default=None, description="A lock's name, or the path of a hashed requirements file."
    )
    base: Base | None = Field(
        default=None, description="Instead of a lock: the vLLM that the host has already."
    )
    python: Annotated[str, Field(pattern=r"^3\.[0-9]+$")] = Field(
        default="3.12", description="Version of Python on the host; with base, the base's counts."
    )
    kernel: bool = Field(
        default=False, description="Install glm5-kernel; ask its doctor before a switch."
    )
    command: list[str] = Field(
        default_factory=lambda: ["{venv}/bin/vllm", "serve", "{model}"],
        min_length=1,
        description="Program and first arguments; {venv}, {model} and {python} are filled in.",
    )


class Serve(Model):
    """Where the server listens and what it is told."""

    host: Word = Field(default="127.0.0.1", description="Bind address; loopback or a private one.")
    port: Port = Field(default=8000, description="TCP port.")
    args: dict[str, Argument | None] = Field(
        default_factory=dict,
        description="--key value; true: the flag; false: --no-key; null: left out; mapping: JSON.",
    )

    @property
    def options(self) -> dict[str, Argument]:
        """`args` as vLLM reads them: by its names, parts that are given with dots together, and
        what is null left out.
        """
        given = {option_name(key): value for key, value in self.args.items() if value is not None}
        return together(given)


def option_name(key: str) -> str:
    """One name for what vLLM takes with dashes and underscores alike: ``max_model_len`` is
    ``max-model-len``. Behind a dot is a key of the argument's own, which stays as it is
    (vllm/utils/argparse_utils.py, `FlexibleArgumentParser`).
    """
    name, dot, inner = key.partition(".")
    return name.replace("_", "-") + dot + inner


class Gpus(Model):
    """What the model needs of the machine's GPUs; count 0 is a CPU host."""

    count: int = Field(default=0, ge=0, description="GPUs that the model is served on.")
    min_memory_gib: float | None = Field(
        default=None, gt=0, description="Memory that each GPU must have."
    )
    min_driver: str | None = Field(default=None, description="Oldest NVIDIA driver that will do.")
    devices: list[int] | None = Field(
        default=None, description="Indices for CUDA_VISIBLE_DEVICES; default: the first count."
    )


class Needs(Model):
    """What the host must have beside GPUs."""

    disk_gib: float = Field(
        default=5, ge=0, description="Free space under ROOT before the first installation."
    )
    memory_gib: float = Field(default=0, ge=0, description="Main memory.")
    packages: list[Word] = Field(default_factory=list, description="More distribution packages.")
    libraries: list[Word] = Field(
        default_factory=lambda: ["libnuma.so.1"], description="Shared libraries the engine loads."
    )
    compiler: bool = Field(
        default=True, description="A C compiler and Python's headers (Triton, torch.compile)."
    )


class Limits(Model):
    """How long things may take, in seconds."""

    load: int = Field(default=1800, gt=0, description="From start to healthy.")
    smoke: int = Field(default=300, gt=0, description="The whole smoke test.")
    stop: int = Field(default=120, gt=0, description="From the stop signal to the kill.")
    install: int = Field(default=3600, gt=0, description="Building the environment.")
    sync: int = Field(
        default=6 * 3600,
        gt=0,
        description="Bringing the model's files by source_host or fetch, and reading them all.",
    )
    rehearsal: int = Field(
        default=300,
        ge=0,
        description="vLLM reading its arguments before a running server is stopped; 0: not asked.",
    )


class Unit(Model):
    """The systemd unit."""

    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")] = Field(
        default="glm5", description="The service runs as it; made where it is missing."
    )
    restart_seconds: int = Field(default=30, ge=0, description="Pause before a restart.")
    start_limit_burst: int = Field(
        default=3, ge=1, description="Starts in start_limit_seconds before systemd gives up."
    )
    start_limit_seconds: int = Field(
        default=7200, ge=1, description="Must be longer than so many loads take."
    )
    nofile: int = Field(default=1048576, ge=1024, description="Limit of open files.")
    hardening: bool = Field(default=True, description="systemd's sandbox; false: none.")


class SmokePrompt(Model):
    """A prompt with what its greedy answer must be."""

    prompt: str = Field(description="What is sent.")
    max_tokens: int = Field(default=16, ge=1, description="How many are asked for.")
    text: str | None = Field(default=None, description="The exact greedy completion.")
    contains: str | None = Field(default=None, description="What the completion must hold.")
    tokens: list[int] | None = Field(default=None, description="The exact greedy token ids.")


class Needle(Model):
    """A sentence hidden in a long text, which the answer must tell; for models that can answer."""

    tokens: int = Field(
        default=8192, ge=256, description="Length of the text, beyond the indexer's top-k."
    )
    depths: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=lambda: [0.1, 0.5, 0.9],
        min_length=1,
        description="Where it is hidden, from 0 (the beginning) to 1; one question each.",
    )
    max_tokens: int = Field(default=64, ge=1, description="Length of the answer.")


class Smoke(Model):
    """What proves that the server works."""

    max_tokens: int = Field(default=16, ge=1, description="Length of the usual answer.")
    chat: bool = Field(default=True, description="false where the model has no chat template.")
    expect: list[SmokePrompt] = Field(
        default_factory=list, description="Prompts with known greedy answers."
    )
    golden: Path | None = Field(
        default=None, description="A local golden.json of make-tiny: greedy tokens to be given."
    )
    prompt_tokens: int | None = Field(
        default=None, ge=1, description="Length of the long prompt; default: skipped."
    )
    concurrency: int = Field(default=4, ge=1, le=256, description="Requests at once.")
    needle: Needle | None = Field(
        default=None, description="A sentence to find in a long text; default: not asked."
    )
    attention_backend: str | None = Field(
        default=None, description="Name that the journal must report."
    )
    kv_cache: str | None = Field(
        default=None, description="KV cache type that glm5-kernel must report: bf16, fp8_ds_mla, …"
    )
    indexer: Literal["triton", "stock"] | None = Field(
        default=None, description="Indexer that glm5-kernel must report."
    )
    min_tokens_per_second: float | None = Field(
        default=None, gt=0, description="Floor for one stream."
    )
    max_ttft_seconds: float | None = Field(
        default=None, gt=0, description="Ceiling for the time to the first token."
    )


class Profile(Model):
    """What is served, and how."""

    name: Name = Field(description="What inventories call it.")
    description: str = Field(default="", description="For people; it changes nothing.")
    service: Name | None = Field(
        default=None, description="The unit is glm5-SERVICE; default: the profile's name."
    )
    model: ModelFiles = Field(description="The model's files.")
    engine: Engine = Field(default=Engine(), description="What runs the model.")
    serve: Serve = Field(default=Serve(), description="Address and arguments of the server.")
    environment: dict[VariableName, Annotated[str, AfterValidator(_one_line)]] = Field(
        default_factory=dict, description="Environment variables of the service."
    )
    secrets: dict[VariableName, SecretReference] = Field(
        default_factory=dict, description="Environment variables whose values are references."
    )
    gpus: Gpus = Field(default=Gpus(), description="GPUs that the host must have.")
    needs: Needs = Field(default=Needs(), description="What else the host must have.")
    limits: Limits = Field(default=Limits(), description="Seconds that things may take.")
    unit: Unit = Field(default=Unit(), description="The systemd unit.")
    smoke: Smoke = Field(default=Smoke(), description="The smoke test.")

    @property
    def service_name(self) -> str:
        return self.service or self.name

    @property
    def unit_name(self) -> str:
        """The systemd unit, with its suffix."""
        return f"glm5-{self.service_name}.service"

    @property
    def served_model_name(self) -> str:
        return self.model.served_name or self.model.name


# --- what a host resolves to ---------------------------------------------------------------------


class Target(Model):
    """One host with all its settings merged and its profile complete: what a run works on.

    Local paths in it are absolute; `base` is the folder that ``${exec:…}`` runs in.
    """

    name: Name
    base: Path = Path()
    groups: tuple[str, ...] = ()
    settings: HostSettings
    profile: Profile

    @property
    def root(self) -> PurePosixPath:
        return self.settings.root

    @property
    def model_folder(self) -> PurePosixPath:
        """Where the model's files are on the host."""
        return self.profile.model.path or self.root / "models" / self.profile.model.name
