"""`python -m megatron_bridge`: import, export, inspect, reshard, verify, train, ...

Built on argparse, so that it runs on a GPU machine that has nothing of the pipeline's.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from megatron_bridge.arguments import parser
from megatron_bridge.bar import Bar
from megatron_bridge.config import ParallelConfig, TrainConfig, TrainSpec
from megatron_bridge.errors import ConfigError, InputError, PipelineError, refused
from megatron_bridge.journal import interrupted

if TYPE_CHECKING:
    from megatron_bridge.proof import Proof


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    options = argparse.Namespace()
    try:
        options = parser(_RUNS).parse_args(arguments)
        run: Callable[[argparse.Namespace], int] = options.run
        status = run(options)
        sys.stdout.flush()
        return status
    except PipelineError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough; what is left to flush would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(refused(error), file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print(interrupted(getattr(options, "out", None)), file=sys.stderr)
        return 130


def _import(options: argparse.Namespace) -> int:
    from megatron_bridge.convert import import_hf
    from megatron_bridge.megatron_lm.folder import refuse_a_checkpoint
    from megatron_bridge.sources.address import parse

    if isinstance(place := parse(options.hf_dir), Path):
        refuse_a_checkpoint(place)
    with Bar("import") as bar:
        found = import_hf(
            options.hf_dir, options.out, options.dtype, bar, _proof(options), options.memory
        )
    return _told(found, options)


def _export(options: argparse.Namespace) -> int:
    from megatron_bridge.convert import export_hf
    from megatron_bridge.megatron_lm.sides import Given

    with Bar("export") as bar:
        found = export_hf(
            options.checkpoint,
            options.out,
            options.like,
            options.dtype,
            bar,
            options.form,
            _proof(options),
            options.memory,
            given=Given(options.tokenizer, options.vocab_size, options.model_type),
        )
    return _told(found, options)


def _inspect(options: argparse.Namespace) -> int:
    from megatron_bridge import inspection

    report = inspection.inspect(options.folder)
    if options.json:
        print(json.dumps(report, indent=1, ensure_ascii=False))
    else:
        print("\n".join(inspection.lines(report, options.tensors)))
    return InputError.exit_code if report["damaged"] else 0


def _reshard(options: argparse.Namespace) -> int:
    from megatron_bridge.megatron_lm.reshard import reshard

    with Bar("reshard") as bar:
        found = reshard(options.folder, options.out, bar, options.memory)
    left_out = found["left_out"]
    told = [
        f"iteration {found['iteration']:,}: {found['tensors']:,} tensors of the model and"
        f" {found['optimizer_tensors']:,} of its optimizer, {found['bytes']:,} bytes",
        f"read back and equal bit by bit: {found['compared']['tensors']:,} tensors",
        *(f"left out: {what}: {count}" for what, count in left_out.items()),
        *(f"note: {text}" for text in found["notes"]),
    ]
    print(json.dumps(found, indent=1) if options.json else "\n".join(told))
    return 0


def _verify(options: argparse.Namespace) -> int:
    from megatron_bridge import certificate
    from megatron_bridge.verify import verify

    out: Path | None = options.out
    both = (options.hf_dir, options.checkpoint)
    sides = [side.resolve() for side in both if isinstance(side, Path)]
    if out is not None and not set(out.resolve().parents).isdisjoint(sides):
        raise ConfigError(
            "Neither side of a comparison is written to",
            where="--out",
            expected="a file outside both folders",
            got=out,
            fix="name a file elsewhere",
        )
    with Bar("verify") as bar:
        found = verify(options.hf_dir, options.checkpoint, _proof(options), options.memory, bar)
    options.json = options.json or out is None
    if out is not None:
        out.write_text(certificate.text(found), encoding="utf-8")
    _told(found, options)
    if not found["holds"]:
        print(certificate.refusal(found), file=sys.stderr)
    return 0 if found["holds"] else 1


def _train(options: argparse.Namespace) -> int:
    from megatron_bridge.data import blend, words
    from megatron_bridge.runs import train

    fields: dict[str, Any] = {}
    for text in options.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(
                "A training field cannot be read",
                where="--set",
                expected="field=value",
                got=repr(text),
                fix="write for example steps=100",
            )
        try:
            fields[name] = json.loads(value)
        except json.JSONDecodeError:
            fields[name] = value
    try:
        spec = TrainSpec(
            config=TrainConfig(**fields),
            checkpoint=options.checkpoint.resolve(),
            train_data=words.sources(options.data, options.repeats),
            end_of_document=options.end_of_document,
            run_dir=options.out.resolve(),
            unproven=options.unproven,
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            "A training field is wrong",
            where=".".join(map(str, first["loc"])),
            expected=first["msg"],
            got=repr(first.get("input")),
            fix=f"the fields are {', '.join(sorted(TrainConfig.model_fields))}",
        ) from error
    with Bar("train") as bar:
        metrics = train(
            spec,
            on_step=lambda line: bar(line["step"], spec.config.steps, "steps", line["loss"]),
            on_table=lambda rows: print("\n".join(blend.lines(rows)), file=sys.stderr),
        )
    print(json.dumps(metrics, indent=1))
    return 0


def _logits(options: argparse.Namespace) -> int:
    from megatron_bridge.runs import logits

    tokens = _ids(options.tokens)
    logits(options.checkpoint, tokens, options.out, _parallel(options), options.dtype)
    return 0


def _generate(options: argparse.Namespace) -> int:
    from megatron_bridge.runs import generate

    new = generate(
        options.checkpoint,
        _ids(options.prompts),
        options.max_new_tokens,
        _parallel(options),
        options.dtype,
    )
    options.out.write_text(json.dumps(new) + "\n", encoding="utf-8")
    return 0


def _families(options: argparse.Namespace) -> int:
    from megatron_bridge import listing

    chosen: str | None = options.names
    if options.json:
        found: object = listing.names(chosen) if chosen else listing.proof()
        print(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        print("\n".join(listing.name_lines(chosen) if chosen else listing.lines()))
    return 0


def _parallel(options: argparse.Namespace) -> ParallelConfig:
    try:
        return ParallelConfig(
            tensor_parallel=options.tp, pipeline_parallel=options.pp, expert_parallel=options.ep
        )
    except ValidationError as error:
        raise ConfigError(
            "A parallel size is wrong",
            where="--tp, --pp, --ep",
            expected="whole numbers from 1",
            got=f"{options.tp}, {options.pp}, {options.ep}",
            fix="give each as 1 or more",
        ) from error


def _ids(path: Path) -> list[list[int]]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(
            "No such file",
            where=path,
            expected="a JSON list of lists of ids, like [[1, 2, 3]]",
            got="nothing there",
            fix="write the ids to this file, or name another",
        ) from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(
            "The file is not JSON",
            where=path,
            expected="a JSON list of lists of ids, like [[1, 2, 3]]",
            got=error,
            fix="correct the file",
        ) from error
    if not isinstance(rows, list) or not all(
        isinstance(row, list) and all(type(i) is int for i in row) for row in rows
    ):
        raise InputError(
            "The file does not hold token ids",
            where=path,
            expected="a JSON list of lists of whole numbers, like [[1, 2, 3]]",
            got=str(rows)[:60],
            fix="correct the file",
        )
    return rows


def _proof(options: argparse.Namespace) -> Proof:
    from megatron_bridge.proof import Proof

    return Proof(
        logits=options.logits or options.tokens is not None,
        tokens=_ids(options.tokens) if options.tokens else (),
        text=options.text,
        parallel=_parallel(options),
    )


def _told(found: dict[str, Any], options: argparse.Namespace) -> int:
    from megatron_bridge import certificate

    told = [certificate.text(found).rstrip()] if options.json else certificate.lines(found)
    print("\n".join(told))
    return 0


_RUNS = {
    "import": _import,
    "export": _export,
    "inspect": _inspect,
    "reshard": _reshard,
    "verify": _verify,
    "train": _train,
    "logits": _logits,
    "generate": _generate,
    "families": _families,
}


if __name__ == "__main__":
    sys.exit(main())
