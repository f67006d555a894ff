"""vLLM's own scheduler, model runner and model, on a CPU that passes for a GPU.

For a process of its own, in which nothing is interpreted: torch and vLLM are changed for good. No
Triton kernel runs, so what is computed means nothing; shapes, strides and addresses are the real
ones, as are the arguments that vLLM derives for our warm-up.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tests.vllm.cuda import extensions

extensions.stub()
os.environ |= {"GLM5_INDEXER": "triton", "VLLM_USE_FLASHINFER_SAMPLER": "0"}

import vllm.platforms  # noqa: E402
from glm5_kernel import plugin, warming  # noqa: E402
from vllm import _custom_ops as custom_ops  # noqa: E402
from vllm.utils import torch_utils  # noqa: E402

from tests.gpu.serve import model as small  # noqa: E402
from tests.kernel.stand_in import GPUS, Form, stand_in  # noqa: E402
from tests.vllm.cuda.gpu import Gpu  # noqa: E402
from tests.vllm.cuda.setups import SEATS, Prompt, Served, Setup, traffic  # noqa: E402

CPU = torch.device("cpu")
BLOCK = 64
WORD = 7
"""A token."""
DRAFTS = f"{__name__}.Drafts"


class GpuOnTheCpu(Gpu):
    """Its operations and communication are those of the CPU."""

    dispatch_key = "CPU"
    device_type = "cpu"
    dist_backend = "gloo"


class Nothing:
    """An event or stream."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _nothing


def _nothing(*_: object, **__: object) -> None: ...


def _unpinned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Integers that a kernel would have written are 0: torch looks tokens up by them."""

    @functools.wraps(make)
    def unpinned(*given: Any, pin_memory: bool = False, **more: Any) -> Tensor:  # noqa: ANN401, ARG001
        made = make(*given, **more)
        unknown = "empty" in make.__name__ and made.dtype in (torch.int32, torch.int64)
        return made.zero_() if unknown else made

    return unpinned


def _without_cuda() -> None:
    """What torch and vLLM's extensions are asked for on a GPU."""
    vllm.platforms._current_platform = GpuOnTheCpu()
    torch_utils.PIN_MEMORY = False
    torch.cuda.Event = Nothing
    torch.cuda.is_current_stream_capturing = lambda: False
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        setattr(torch.accelerator, name, _nothing)
    torch.accelerator.max_memory_allocated = lambda *_: 0
    torch.cuda.synchronize = _nothing
    torch.cuda.current_stream = Nothing
    torch.cuda.stream = lambda _: contextlib.nullcontext()
    for name in ("empty", "empty_like", "zeros", "ones", "full", "tensor"):
        setattr(torch, name, _unpinned(getattr(torch, name)))
    for name in (
        "cutlass_scaled_mm_supports_fp8",
        "cutlass_scaled_mm_supports_block_fp8",
        "cutlass_scaled_mm_supports_fp4",
        "cutlass_group_gemm_supported",
    ):
        setattr(custom_ops, name, lambda *_: False)


_without_cuda()
# It needs many more of the extensions' operations, and nothing is compiled.
_compiler: Any = ModuleType("vllm.compilation.backends")
_compiler.set_model_tag = contextlib.nullcontext
sys.modules[_compiler.__name__] = _compiler
_library = torch.library.Library("_C", "FRAGMENT")
_library.define("silu_and_mul(Tensor! out, Tensor x) -> ()")
_library.define(
    "per_token_group_fp8_quant(Tensor x, Tensor! values, Tensor! scales, int group, float eps,"
    " float low, float high, bool powers, bool columns, bool aligned) -> ()"
)
_library.impl("per_token_group_fp8_quant", _nothing, dispatch_key="CPU")
plugin.register()

from glm5_kernel.attention.backend import TritonMLASparseImpl  # noqa: E402
from glm5_kernel.indexer import op  # noqa: E402
from vllm.config import VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.distributed import (  # noqa: E402
    ensure_model_parallel_initialized,
    init_distributed_environment,
)
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core import kv_cache_utils as caches  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.outputs import ModelRunnerOutput, SamplerOutput  # noqa: E402
from vllm.v1.request import Request  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402
from vllm.v1.worker import workspace  # noqa: E402
from vllm.v1.worker.cpu_model_runner import CPUModelRunner  # noqa: E402

CACHE_OPS = ("indexer_k_quant_and_cache", "cp_gather_indexer_k_quant_cache", "concat_and_cache_mla")
caches.init_none_hash(sha256)
_hasher = caches.get_request_block_hasher(BLOCK, sha256)


def _leave_out(names: tuple[str, ...]) -> None:
    """vLLM's own CUDA operations: dense prefill, and what fills and reads the caches."""
    import vllm.model_executor.layers.sparse_attn_indexer  # noqa: F401  # ours takes its place

    TritonMLASparseImpl.forward_mha = _nothing
    for name in names:
        setattr(custom_ops, name, _nothing)


_leave_out(CACHE_OPS)
_met: set[str] = set()


def _watch() -> None:
    """Note what kinds of batches reach our kernels."""
    prefill, decode, attend = op._prefill, op._decoded_tokens, TritonMLASparseImpl.forward_mqa

    def prefilled(chunk: Any, *given: Any) -> None:  # noqa: ANN401
        _met.add("slice" if chunk.skip_kv_gather else "prefill")
        prefill(chunk, *given)

    def decoded(metadata: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        part = metadata.decode
        lengths = "unlike" if part.requires_padding else part.seq_lens.shape[1]
        _met.add(f"decode {lengths}")
        return decode(metadata)

    def attended(self: Any, q: Any, cache: Tensor, metadata: Any, layer: object) -> Any:  # noqa: ANN401
        if metadata.num_prefills and metadata.num_decodes:
            _met.add("mixed")
        return attend(self, q, cache, metadata, layer)

    op._prefill, op._decoded_tokens, TritonMLASparseImpl.forward_mqa = prefilled, decoded, attended


_watch()


class Drafts:
    """A proposer of as many drafts as it likes (vLLM's method custom_class)."""

    def __init__(self, config: VllmConfig) -> None:
        self.most = config.speculative_config.num_speculative_tokens

    def propose(self, sampled: list[list[int]], *_: object, **__: object) -> list[list[int]]:
        """Half of the time as many for all requests, else for each as it comes."""
        alike = random.choice((None, *range(self.most + 1)))
        counts = [random.randint(0, self.most) if alike is None else alike for _ in sampled]
        return [[WORD] * count for count in counts]

    def load_model(self, *_: object) -> None: ...


def _accept(metadata: Any, *_: object) -> SamplerOutput:  # noqa: ANN401
    """Instead of vLLM's rejection sampler: some of the drafts are right."""
    drafted = metadata.num_draft_tokens
    found = torch.full((len(drafted), metadata.max_spec_len + 1), -1, dtype=torch.int32)
    for row, count in enumerate(drafted):
        found[row, : 1 + random.randint(0, count)] = WORD
    return SamplerOutput(found, None)


def configuration(setup: Setup, folder: Path) -> VllmConfig:
    """As `vllm serve` makes it, for two layers that share an indexer, and one for drafts."""
    model = small.config(setup.topk, 2) | {
        "hidden_size": 128, "intermediate_size": 64, "q_lora_rank": 64, "vocab_size": 256,
        "first_k_dense_replace": 3, "num_nextn_predict_layers": 1, "index_topk_pattern": "FSF",
        "indexer_types": ["full", "shared", "full"],
        "num_attention_heads": setup.heads, "num_key_value_heads": setup.heads,
        "max_position_embeddings": setup.room,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(model))
    made = {"method": "custom_class", "model": DRAFTS}
    if setup.mtp:
        made = {"method": "mtp", "attention_backend": "CUSTOM"}
    drafts = made | {"num_speculative_tokens": setup.drafts}
    native = {"rms_norm": ["native"], "fused_add_rms_norm": ["native"]}
    return EngineArgs(
        model=str(folder), load_format="dummy", skip_tokenizer_init=True, dtype=setup.dtype,
        attention_backend="CUSTOM", kv_cache_dtype=setup.kv, block_size=BLOCK,
        max_model_len=setup.room, max_num_seqs=SEATS, async_scheduling=False,
        max_num_batched_tokens=setup.chunk, enforce_eager=not setup.graphs,
        attention_config={"sparse_mla_force_mqa": setup.mqa},
        compilation_config=GRAPHS if setup.graphs else {"custom_ops": ["none"]},
        kernel_config={"ir_op_priority": native},
        speculative_config=drafts if setup.drafts else None,
    ).create_engine_config()  # fmt: skip


GRAPHS = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "custom_ops": ["none"]}


class Engine:
    """A model that is loaded and profiled, as when a server has just started."""

    def __init__(self, setup: Setup, config: VllmConfig) -> None:
        self.setup, self.config = setup, config
        workspace.init_workspace_manager(CPU)
        self.runner = CPUModelRunner(config, CPU)
        self.runner.load_model()
        self.runner.rejection_sampler = _accept
        self.runner.profile_run()
        blocks = 2 * setup.longest // BLOCK + 400
        specs = self.runner.get_kv_cache_spec()
        room = blocks * sum(spec.page_size_bytes for spec in specs.values())
        (cache,) = caches.get_kv_cache_configs(config, [specs], [room])
        config.cache_config.num_gpu_blocks = cache.num_blocks
        self.runner.initialize_kv_cache(cache)
        self.scheduler = Scheduler(
            config, caches.generate_scheduler_kv_cache_config([cache]),
            StructuredOutputManager(config), block_size=BLOCK, hash_block_size=BLOCK,
        )  # fmt: skip
        workspace.current_workspace_manager().lock()

    def capture(self) -> None:
        """What vLLM's `capture_model` does for each graph."""
        torch.cuda.is_current_stream_capturing = lambda: True
        for mode, sizes in self.runner.cudagraph_dispatcher.get_capture_descs():
            self.runner._capture_cudagraphs(sizes, mode)
            _met.add("graph")
        torch.cuda.is_current_stream_capturing = lambda: False

    def serve(self, prompts: list[Prompt]) -> None:
        """Answer them."""
        waiting = sorted(prompts, key=lambda prompt: prompt.step)
        step = 0
        while waiting or self.scheduler.has_unfinished_requests():
            while waiting and waiting[0].step <= step:
                self.scheduler.add_request(_request(waiting.pop(0), len(waiting)))
            step += self._step()

    def _step(self) -> bool:
        """False for a chunk of a long prompt that is only counted."""
        batch = self.scheduler.schedule()
        counted = self._counted(batch)
        if counted:
            self.runner._update_states(batch)
            done = _no_tokens(batch)
        else:
            done = self.runner.execute_model(batch) or self.runner.sample_tokens(None)
        self.scheduler.update_from_output(batch, done)
        if self.setup.drafts and not counted:
            drafts = self.runner.take_draft_token_ids()
            if drafts is not None:
                self.scheduler.update_draft_token_ids(drafts)
        return not counted

    def _counted(self, batch: Any) -> bool:  # noqa: ANN401
        """Whether it is a single long prompt, far from its end."""
        running = self.scheduler.running
        if len(running) != 1 or not batch.total_num_scheduled_tokens:
            return False
        left = running[0].num_tokens - running[0].num_computed_tokens
        return bool(left > self.setup.chunk)


def _no_tokens(batch: Any) -> ModelRunnerOutput:  # noqa: ANN401
    names = list(batch.num_scheduled_tokens)
    places = {name: place for place, name in enumerate(names)}
    return ModelRunnerOutput(names, places, [[] for _ in names])


def _request(prompt: Prompt, name: int) -> Request:
    own = random.choices(range(3, 250), k=prompt.tokens - prompt.shared)
    words = [WORD] * prompt.shared + own
    wanted = SamplingParams(temperature=0, max_tokens=prompt.answer, ignore_eos=True)
    return Request(str(name), words, wanted, None, block_hasher=_hasher)


def serve(arch: str, setups: list[Setup]) -> list[Served]:
    """Start and use a server of each setup, one after the other."""
    GpuOnTheCpu.choose(*GPUS[arch][:2])
    forms: set[Form] = set()
    stand_in(arch, forms)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        init_distributed_environment(1, 0, f"file://{folder}/meeting", 0, "gloo")
        return [_serve(setup, folder, forms) for setup in setups]


def _serve(setup: Setup, folder: Path, forms: set[Form]) -> Served:
    os.environ["VLLM_BATCH_INVARIANT"] = str(int(setup.invariant))
    os.environ["VLLM_SPARSE_INDEXER_MAX_LOGITS_MB"] = str(setup.logits_mb)
    for kept in (warming._done, op._decoded, op._workspaces, forms, _met):
        kept.clear()
    random.seed(0)
    config = configuration(setup, folder)
    with set_current_vllm_config(config):
        ensure_model_parallel_initialized(1, 1)
        engine = Engine(setup, config)
        known = set(forms)
        if setup.graphs:
            engine.capture()
        engine.serve(traffic(setup))
    return Served(setup, len(known), frozenset(_met), tuple(sorted(forms - known)))
