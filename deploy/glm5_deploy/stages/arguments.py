"""From a profile to the engine's command line."""

from __future__ import annotations

import json
from pathlib import PurePosixPath

from glm5_deploy.config.models import Target


def flag_words(key: str, value: object) -> list[str]:
    """One serve argument as words.

    true is the flag alone, false its ``--no-`` form, None nothing, a list the flag with several
    values, a mapping JSON. A key with a dot is one value within an argument: vLLM takes the next
    word for it, whatever that is, and reads JSON.
    """
    flag = f"--{key}"
    if "." in key and isinstance(value, bool | list):
        return [flag, json.dumps(value, separators=(",", ":"))]
    match value:
        case None:
            return []
        case True:
            return [flag]
        case False:
            return [f"--no-{key}"]
        case list():
            return [flag, *(str(item) for item in value)]
        case dict():
            return [flag, json.dumps(value, separators=(",", ":"))]
        case _:
            return [flag, str(value)]


def engine_words(
    target: Target, venv: PurePosixPath | None, python: PurePosixPath
) -> tuple[str, ...]:
    """Program and arguments that start the server.

    Raises:
        ValueError: the command names ``{venv}`` but the profile has no lock.
    """
    profile = target.profile
    values = {"{model}": str(target.model_folder / profile.model.serve), "{python}": str(python)}
    if venv is not None:
        values["{venv}"] = str(venv)
    words = [filled(word, values) for word in profile.engine.command]
    if any("{venv}" in word for word in words):
        raise ValueError("engine.command names {venv}, but engine.lock is not set")
    serve = profile.serve
    words += ["--host", serve.host, "--port", str(serve.port)]
    words += ["--served-model-name", profile.served_model_name]
    for key, value in serve.args.items():
        words += flag_words(key, value)
    return tuple(words)


def filled(word: str, values: dict[str, str]) -> str:
    """A word with the places in braces replaced."""
    for name, value in values.items():
        word = word.replace(name, value)
    return word
