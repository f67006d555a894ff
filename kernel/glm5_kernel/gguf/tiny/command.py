"""The command `make-tiny`: its arguments and what it says."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from glm5_kernel.gguf.errors import listed
from glm5_kernel.gguf.tiny.recipes import RECIPES
from glm5_kernel.gguf.tiny.spec import DIMENSIONS, LAYERS, TinySpec, check_split, make_spec


def main(argv: Sequence[str] | None = None) -> int:
    """Make a model. Exit 0; 1 where something to make it with is missing, it cannot be written, or
    it has no golden tokens though they were asked for; 2 for wrong usage."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        spec = spec_from(args)
        check_split(spec, args.split)
    except ValueError as error:
        parser.error(str(error))
    return _make(args, spec)


def _make(args: argparse.Namespace, spec: TinySpec) -> int:
    try:
        from glm5_kernel.gguf.tiny.codec import MissingPackageError
        from glm5_kernel.gguf.tiny.golden import check
    except ImportError as error:
        print(f"error: making a model needs numpy ({error})", file=sys.stderr)
        return 1
    try:
        if args.golden:
            check(spec, args.device)
        args.dir.mkdir(parents=True, exist_ok=True)
        # A model appears whole or not at all, whatever ends this process.
        with TemporaryDirectory(prefix=".unfinished-", dir=args.dir) as folder:
            missed = _write(args, spec, Path(folder))
            _put_in_place(Path(folder), args.dir)
    except OSError as error:
        print(f"error: {error.filename or args.dir}: {error.strerror or error}", file=sys.stderr)
        return 1
    except (MissingPackageError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if missed is None:
        return 0
    print(f"error: the model has no golden tokens: {missed}", file=sys.stderr)
    return 1


def _write(args: argparse.Namespace, spec: TinySpec, folder: Path) -> str | None:
    """Write all; why there are no golden tokens though they were asked for, or None."""
    from glm5_kernel.gguf.tiny.writer import write_companions, write_gguf

    paths = write_gguf(folder, spec, args.split, say=lambda _text: None)
    write_companions(folder, spec, bare=args.bare_config)
    return _golden(args, spec, folder, paths)


def _golden(
    args: argparse.Namespace, spec: TinySpec, folder: Path, paths: list[Path]
) -> str | None:
    from glm5_kernel.gguf.tiny.codec import MissingPackageError
    from glm5_kernel.gguf.tiny.golden import write_golden

    if not args.golden:
        print("golden tokens: none, as asked")
        return None
    try:
        write_golden(folder, spec, paths, device=args.device)
    except (MissingPackageError, ValueError) as error:
        # A model of many gigabytes is not thrown away for them.
        return str(error)
    return None


def _put_in_place(made: Path, folder: Path) -> None:
    """Move all that was made; what an earlier model has left is told of, its golden tokens go."""
    (folder / "golden.json").unlink(missing_ok=True)
    names = sorted(each.name for each in made.iterdir())
    for name in names:
        (made / name).replace(folder / name)
        print(f"wrote {folder / name} ({(folder / name).stat().st_size / 1e6:,.1f} MB)")
    if others := sorted(each.name for each in folder.glob("*.gguf") if each.name not in names):
        print(f"note: {folder} holds {listed(others)} too, which config.json does not describe")


def spec_from(args: argparse.Namespace) -> TinySpec:
    """The model that the arguments describe.

    Raises:
        ValueError: dimensions that cannot be, or a form that the variant has not.
    """
    if args.variant == "glm5" and (args.shared or not args.types):
        raise ValueError("--shared and --no-types are forms of 5.2; add --variant glm5.2")
    names = {
        "hidden": args.hidden,
        "heads": args.heads,
        "experts": args.experts,
        "moe_intermediate": args.moe_width,
        "vocab": args.vocab,
        "context": args.context,
    }
    changes: dict[str, Any] = {key: value for key, value in names.items() if value is not None}
    return make_spec(
        args.variant,
        args.dims,
        layers=args.layers,
        topk=args.topk,
        mtp=args.mtp,
        changes=changes,
        quant=args.quant,
        seed=args.seed,
        shared=args.shared or "omit",
        types=args.types,
        kv_b=args.kv_b,
        same_experts=args.same_experts,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m glm5_kernel make-tiny",
        description="Make a tiny, valid GLM-5 in GGUF with random weights, its config, tokenizer "
        "and golden tokens, for tests and demonstrations. The same arguments make the same bytes.",
    )
    parser.add_argument("dir", type=Path, help="where it is put; made if it is not there")
    parser.add_argument(
        "--variant", choices=LAYERS, default="glm5", help="5.2 has layers that share an indexer"
    )
    parser.add_argument(
        "--quant", choices=RECIPES, default="q8_0", metavar="TYPE",
        help=f"one of {', '.join(RECIPES)} (default q8_0)",
    )  # fmt: skip
    parser.add_argument(
        "--split", type=int, default=1, metavar="N", help="files; the first holds metadata alone"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of weights and prompts")
    parser.add_argument("--no-golden", dest="golden", action="store_false",
                        help="compute no golden tokens")  # fmt: skip
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu",
                        help="where golden tokens are computed (default cpu)")  # fmt: skip
    _add_dimensions(parser.add_argument_group("dimensions"))
    _add_forms(parser.add_argument_group("forms that files come in"))
    return parser


def _add_dimensions(group: Any) -> None:  # noqa: ANN401
    group.add_argument(
        "--dims", choices=DIMENSIONS, default="tiny",
        help="tiny: the least that vLLM's GPU kernels take (default); demo: the least that vLLM "
        "takes on the CPU; micro: for tests that serve nothing; real: GLM-5's widths",
    )  # fmt: skip
    numbers = {
        "--layers": "layers (default 4; of 5.2 7)",
        "--topk": "tokens that the indexer selects",
        "--hidden": "hidden size",
        "--heads": "attention heads",
        "--experts": "experts",
        "--moe-width": "width of an expert",
        "--vocab": "tokens of the vocabulary",
        "--context": "longest context; 1048576 is what files without types are known as 5.2 by",
    }
    for name, text in numbers.items():
        group.add_argument(name, type=int, metavar="N", help=text)


def _add_forms(group: Any) -> None:  # noqa: ANN401
    group.add_argument(
        "--shared", choices=("omit", "repeat"),
        help="whether shared layers of 5.2 leave out or repeat their indexer (default omit)",
    )  # fmt: skip
    group.add_argument("--no-types", dest="types", action="store_false",
                       help="leave attention.indexer.types out")  # fmt: skip
    group.add_argument(
        "--kv-b", choices=("split", "flat", "whole"), default="split",
        help="k_b and v_b with three dimensions, with two, or whole (older files)",
    )  # fmt: skip
    group.add_argument("--mtp", action="store_true", help="add an MTP block")
    group.add_argument("--bare-config", action="store_true",
                       help="config.json without what the file tells")  # fmt: skip
    group.add_argument("--same-experts", action="store_true",
                       help="make one expert and repeat it, for large files")  # fmt: skip
