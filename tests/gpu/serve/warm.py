"""Import vLLM once and write its cached facts about the model's class.

Every server looks them up; the first time that costs it another process with another import.
Private to vLLM 0.26 (model_executor/models/registry.py): where it is otherwise, servers do it.
"""

from __future__ import annotations

from pathlib import Path


def main() -> None:
    from vllm.model_executor.models import registry

    model = registry.ModelRegistry.models["GlmMoeDsaForCausalLM"]
    source = Path(registry.__file__).parent / f"{model.module_name.split('.')[-1]}.py"
    digest = model._get_modelinfo_module_hash(source)
    if model._load_modelinfo_from_cache(digest) is None:
        found = registry._ModelInfo.from_model_cls(model.load_model_cls())
        model._save_modelinfo_to_cache(found, digest)


if __name__ == "__main__":
    main()
