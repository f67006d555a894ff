"""The profiles that ship: vLLM's own parser takes their arguments."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from tests.vllm.cuda.conftest import RELEASE

pytestmark = pytest.mark.skipif(RELEASE != "0.26.0", reason="the profiles' lock is of vLLM 0.26.0")

PROFILES = ("glm-5", "glm-5.1", "glm-5.2", "glm-5-fp8-safetensors")
INVENTORY = """
hosts:
  bw1:
    connection: {{address: 192.0.2.1}}
    profile: {profile}
    vars: {{gguf: model-00001-of-00002.gguf}}
"""


def words(profile: str, folder: Path) -> list[str]:
    """What follows `vllm serve MODEL`."""
    from glm5_deploy.config.load import load_inventory, resolve
    from glm5_deploy.stages.arguments import engine_words

    path = folder / "inventory.yml"
    path.write_text(INVENTORY.format(profile=profile))
    (target,) = resolve(load_inventory(path))
    found = engine_words(target, PurePosixPath("/venv"), PurePosixPath("/usr/bin/python3"))
    assert found[1] == "serve"
    return list(found[3:])


@pytest.fixture(scope="module")
def parser() -> Any:  # noqa: ANN401
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser())


@pytest.mark.parametrize("profile", PROFILES)
def test_arguments(profile: str, parser: Any, tmp_path: Path) -> None:  # noqa: ANN401
    from vllm.entrypoints.openai.cli_args import validate_parsed_serve_args
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    found = parser.parse_args(words(profile, tmp_path))
    validate_parsed_serve_args(found)
    assert found.attention_backend in ("CUSTOM", AttentionBackendEnum.CUSTOM)
    assert (found.kv_cache_dtype, found.block_size) == ("fp8_ds_mla", 64)
    assert found.tensor_parallel_size == 8
    assert found.enable_auto_tool_choice


@pytest.mark.parametrize("profile", PROFILES)
def test_parsers_have_these_names(profile: str, parser: Any, tmp_path: Path) -> None:  # noqa: ANN401
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    found = parser.parse_args(words(profile, tmp_path))
    assert ReasoningParserManager.get_reasoning_parser(found.reasoning_parser)
    assert ToolParserManager.get_tool_parser(found.tool_call_parser)
