"""Reads the words of `vllm serve` as vLLM does, up to the point where GPUs would be taken.

    rehearse.py -- serve MODEL OPTION…

Runs on the interpreter of the environment that will serve, before the server is stopped for it:
what vLLM would refuse after that (an unknown option, a wrong value, a context that the model does
not have, files that it cannot read) is found while the earlier one still answers.

One line of standard output is ``REHEARSAL`` and JSON: "status" (passed, failed, skipped), "detail".
Exit status 0 whenever there is such a line.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import io
import json
import os
import sys
import traceback
from typing import Any


class RefusedError(Exception):
    """vLLM does not take this; the message is its own."""


def parse(words: list[str]) -> Any:  # noqa: ANN401
    """Arguments as vLLM's own command line reads them (vllm/entrypoints/cli/serve.py).

    Raises:
        RefusedError: it refuses them.
    """
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm")
    command = ServeSubcommand()
    serve = command.subparser_init(parser.add_subparsers(dest="subparser"))
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            arguments = parser.parse_args(words)
    except SystemExit:
        lines = said.getvalue().strip().splitlines() or ["it gave no reason"]
        message = lines[-1].partition("error: ")[2] or lines[-1]
        raise RefusedError(message + meant(message, serve)) from None
    if getattr(arguments, "model_tag", None) is not None:
        arguments.model = arguments.model_tag
    command.validate(arguments)
    check_parsers(arguments)
    return arguments


def check_parsers(arguments: Any) -> None:  # noqa: ANN401
    """Names of tool and reasoning parsers, which the server checks when it starts; those of a
    plugin of the user's are known only then.
    """
    if arguments.tool_parser_plugin or arguments.reasoning_parser_plugin:
        return
    # vLLM 0.24 to 0.28, and 0.32
    for name in ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.launchers.launcher"):
        with contextlib.suppress(ImportError):
            module = importlib.import_module(name)
            if hasattr(module, "validate_api_server_args"):
                module.validate_api_server_args(arguments)
                break


def meant(message: str, parser: argparse.ArgumentParser) -> str:
    """Options that look like one that is not known."""
    if not message.startswith("unrecognized arguments:"):
        return ""
    options = [option for action in parser._actions for option in action.option_strings]
    for word in message.split():
        near = difflib.get_close_matches(word.partition("=")[0], options, 1)
        if word.startswith("--") and near:
            return f" (did you mean {near[0]}?)"
    return ""


def configure(arguments: Any) -> None:  # noqa: ANN401
    """What the server does before it starts an engine: the model's files are read for it."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    engine = AsyncEngineArgs.from_cli_args(arguments)
    engine.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)


def rehearse(words: list[str]) -> tuple[str, str]:
    """Status and detail."""
    try:
        import vllm

        configure(parse(words))
    except RefusedError as error:
        return "failed", str(error)
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        said = str(error.args[0] if len(error.args) == 1 else error) or type(error).__name__
        if asked_wrongly(error):
            return "skipped", f"this vLLM cannot be asked: {said}"
        if "vllm.entrypoints.cli.serve" not in sys.modules:
            # The server would break on it, too.
            said = f"vLLM cannot be loaded: {said}"
        return "failed", said
    return "passed", f"vLLM {vllm.__version__} takes them"


def asked_wrongly(error: BaseException) -> bool:
    """Whether a line of this file raised it, not one of vLLM's: there is no vLLM, or its parts have
    other names or take other arguments in this release, which says nothing of the words.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename == asked_wrongly.__code__.co_filename


def main() -> None:
    status, detail = rehearse(sys.argv[2:])
    print(f"\nREHEARSAL {json.dumps({'status': status, 'detail': detail})}", flush=True)
    sys.stderr.flush()
    # Threads that vLLM may have begun are not waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
