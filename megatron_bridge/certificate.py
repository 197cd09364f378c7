"""`certificate.json`: what was compared between a Hugging Face folder and a checkpoint.

It lies in what a conversion wrote. A checkpoint whose certificate is missing or does not hold is
not trained unless somebody insists, and what is made of it says so ever after: `proven` is false in
its `checkpoint.json` and in the certificates of its exports.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatron_bridge import checkpoint
from megatron_bridge.errors import ProofError

CERTIFICATE = "certificate.json"
_ORIGIN = "it comes from a checkpoint without proof, as its {} says"

Certificate = dict[str, Any]
"""kind, holds, problems, proven, and a section for each thing that was compared."""


def text(certificate: Certificate) -> str:
    """Return the file's text."""
    return json.dumps(certificate, indent=1, ensure_ascii=False) + "\n"


def lines(certificate: Certificate) -> list[str]:
    """Say in lines of text what was compared, and what was left out."""
    coverage, inverse = certificate["coverage"], certificate["inverse"]
    told = [
        f"{certificate['model_type']}, {certificate['parameters']:,} parameters,"
        f" {coverage['hugging_face_tensors']} Hugging Face tensors ="
        f" {coverage['megatron_tensors']} Megatron tensors, read back and equal"
        if certificate["holds"]
        else f"{certificate['model_type']}: not the same model"
    ]
    told += [f"differs: {problem}" for problem in certificate["problems"]]
    if built := certificate.get("architecture"):
        told.append(
            f"the built model was compared with config.json in {len(built['compared'])} facts; it"
            f" has {built['parameters']['padding']:,} parameters more, as padding"
        )
    if certificate["dtype"]["cast"]:
        formats = [", ".join(certificate["dtype"][side]) for side in ("hugging_face", "megatron")]
        told.append(
            f"CAST: {formats[0]} in the folder, {formats[1]} in the checkpoint; equal after a cast "
            "to the narrower one"
        )
    told += [
        f"NOT FINITE: {name}: {count:,} values are NaN or infinite"
        for name, count in inverse.get("not_finite", {}).items()
    ]
    told += _answers(certificate) + _origin(certificate)
    if source := certificate.get("source"):
        told.append(
            f"{source['url']} was read once, by ranges: {source['bytes_fetched']:,} bytes fetched"
            f" of {source['bytes']:,}"
        )
    if section := certificate.get("dequantised"):
        told.append(
            f"DEQUANTISED: {dequantised(section)}; what is exported cannot be bit for bit the "
            "quantised file"
        )
    told += [f"left out: {name}" for name in coverage["buffers_left_out"]]
    told += [f"left out: {name}" for name in coverage["tied_copies_left_out"]]
    told += [
        f"changed: {name}, its rows normalised to length 1"
        for name in inverse["rows_normalised_to_length_1"]
    ]
    told += [
        f"LEFT OUT: {reason}: {len(lost['tensors'])} tensors, {lost['parameters']:,} parameters;"
        " they do not come back"
        for reason, lost in coverage["weights_left_out"].items()
        if lost["tensors"]
    ]
    if not certificate["proven"]:
        told.append("UNPROVEN: it comes from a checkpoint without proof")
    return told


def dequantised(section: Mapping[str, Any]) -> str:
    """Say what quantised weights became."""
    formats = ", ".join(f"{count} {name}" for name, count in section["formats"].items())
    return f"{section['tensors']} tensors ({formats}) to {' and '.join(section['to'])}"


def refusal(certificate: Certificate) -> str:
    """Return the first problems in one sentence."""
    problems = certificate["problems"]
    more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
    return f"The certificate does not hold: {'; '.join(problems[:5])}{more}."


def write(certificate: Certificate, folder: Path) -> None:
    """Write a certificate that holds into the folder that it speaks of.

    Raises:
        ProofError: it does not hold.
    """
    if not certificate["holds"]:
        raise ProofError(
            "What was written differs from what was read",
            where=folder,
            expected="every tensor equal, bit for bit, and the same model on both sides",
            got="; ".join(certificate["problems"][:5]),
            fix="see that config.json belongs to the weights, and convert again; if it stays, the "
            "disk or the memory is at fault, or the family (please report it)",
        )
    (folder / CERTIFICATE).write_text(text(certificate), encoding="utf-8")


def doubt(folder: Path) -> str | None:
    """Say why what lies in `folder`, with its certificate, is not proven; None where it is."""
    try:
        certificate = json.loads((folder / CERTIFICATE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"it has no {CERTIFICATE}"
    except (UnicodeDecodeError, json.JSONDecodeError):
        return f"its {CERTIFICATE} cannot be read"
    if not isinstance(certificate, dict) or certificate.get("holds") is not True:
        return f"its {CERTIFICATE} does not hold"
    if "architecture" not in certificate:
        return f"its {CERTIFICATE} compares the tensors only, not the model that Megatron builds"
    return _ORIGIN.format(CERTIFICATE) if certificate.get("proven") is False else None


def is_doubtful_origin(hf_dir: Path) -> bool:
    """True for a Hugging Face folder that was exported from a checkpoint without proof.

    A folder of any other origin is where proof begins, whatever lies in it.
    """
    return doubt(hf_dir) == _ORIGIN.format(CERTIFICATE)


def doubt_of_checkpoint(folder: Path) -> str | None:
    """Say why a checkpoint, imported or trained, is not proven; None where it is.

    Raises:
        InputError: it is no whole checkpoint.
    """
    info = checkpoint.read_info(folder)
    if not info.proven:
        return _ORIGIN.format(checkpoint.MARK)
    return doubt(folder) if info.iteration == 0 else None


def require(reason: str | None, what: str, folder: Path, unproven: bool, switch: str) -> None:
    """Refuse what is not proven, unless somebody insists.

    Args:
        reason: what `doubt` said.
        what: the thing in words, as the error begins.
        folder: where it lies.
        unproven: somebody insists.
        switch: how to insist, for the error.

    Raises:
        ProofError: it is not proven, and nobody insists.
    """
    if reason and not unproven:
        raise ProofError(
            f"{what} is not proven",
            where=folder,
            expected=f"a {CERTIFICATE} that holds, written by the conversion",
            got=reason,
            fix=f"convert the model again, or take it without proof: {switch}; everything made "
            "from it will say so",
        )


def _origin(certificate: Certificate) -> list[str]:
    """What is known of a run of Megatron-LM, and what is not."""
    if (origin := certificate.get("origin")) is None:
        return []
    vocabulary, step = origin["vocabulary"], origin["iteration"]
    return [
        f"from Megatron-LM's {origin['format']} checkpoint"
        + ("" if step is None else f" of iteration {step:,}")
        + f"; config.json: {origin['config']}",
        f"vocabulary: {vocabulary['true']:,} of {vocabulary['padded']:,} rows, by"
        f" {vocabulary['from']}",
        f"tokenizer: {origin['tokenizer']}"
        if origin["tokenizer"]
        else "NO TOKENIZER came along; --tokenizer DIR or --like HF_DIR gives one",
        *(f"in training only: {what}" for what in origin["training_only"]),
    ]


def _answers(certificate: Certificate) -> list[str]:
    """What both models answered."""
    told = []
    for name in ("logits", "loss"):
        reason = certificate.get(name, {}).get("reason")
        told += [f"{name} not compared: {reason}"] if reason else []
    if exact := certificate.get("logits", {}).get("float32"):
        told.append(
            f"logits in float32: largest difference {exact['largest_difference']:.2g} of"
            f" {exact['largest_logit']:.3g}, argmax agreement {exact['argmax_agreement']:.2%}"
        )
    if gaps := certificate.get("logits", {}).get("bfloat16", {}).get("gap_to_float32"):
        told.append(
            "logits in bfloat16, mean distance from Hugging Face's float32: Megatron"
            f" {gaps['megatron']['mean']:.3g}, Hugging Face {gaps['hugging_face']['mean']:.3g}"
        )
    if "difference" in (loss := certificate.get("loss", {})):
        told.append(
            f"zero-shot loss on {loss['tokens']:,} tokens: Hugging Face {loss['hugging_face']:.6f},"
            f" Megatron {loss['megatron']:.6f}, difference {loss['difference']:.1e}"
        )
    return told
