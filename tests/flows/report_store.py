"""A store as a whole run leaves it, written by hand: records, and the files that people look at."""

from __future__ import annotations

import hashlib
import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.config import load
from flows.line import plan
from tasks.core.record import FileEntry, Record
from tasks.core.store import Store
from tasks.evaluate.report import markdown

RECIPE = Path(__file__).parents[2] / "deploy" / "recipes" / "toy.yaml"
HOSTILE = "<script>document.title='taken'</script>\"'&"
STEPS = 150
LOG = [
    {
        "step": step, "loss": 3.2 - step / 400 + 0.2 * math.sin(step), "seconds": 10.0,
        "grad_norm": 2.5 + math.cos(step), "tokens": 1024, "tokens_per_second": 102.4,
        "learning_rate": 1e-4 * (1 - step / STEPS), "epochs": step / 1e4,
    }
    for step in range(1, STEPS + 1)
]  # fmt: skip
EVALUATION: dict[str, Any] = {
    "passed": True,
    "metrics": {
        "eval_tokens": 8176, "perplexity_ratio": 0.9133,
        "perplexity_before": 22.5115, "loss_hf_before": 3.114027, "loss_megatron_before": 3.114028,
        "loss_gap_before": 1e-06, "perplexity_after": 20.5592, "loss_hf_after": 3.02331,
        "loss_megatron_after": 3.02331, "loss_gap_after": 1.5e-08,
    },
    "gates": [{"name": "perplexity_ratio", "value": 0.9133, "limit": 0.97, "holds": True}],
    "sequence_length": 512,
    "held_out": {
        "documents": [
            {"id": "1", "title": "反照率", "split": "test", "index": 0, "tokens": 2143},
            {"id": "2", "title": HOSTILE, "split": "validation", "index": 0, "tokens": 894},
        ],
        "training_documents": 24, "training_samples": 300, "shared": [],
    },
    "lm_eval": {
        time: {"arc_easy": {"items": 25, "metrics": {"acc": {"value": 0.4, "stderr": 0.1}}}}
        for time in ("before", "after")
    },
}  # fmt: skip
SERVED = [
    {
        "prompt": "The capital of France is", "served_text": " Paris.\n\nThe " + "long" * 60,
        "megatron_text": " Paris.", "served_tokens": [7042, 30] * 8, "compared": "ids",
        "megatron_tokens": [7042, 30] * 8, "tokens_equal": True,
    }
]  # fmt: skip
CLEANED: dict[str, Any] = {
    "pages": 206,
    "whereabouts": {
        "articles": 96, "redirects": 99, "other_namespaces": 1, "other_models": 0,
        "without_text": 0, "empty": 0, "too_few_words": 7, "hashes": 0, "no_stop_words": 1,
        "contaminated": 1, "duplicate": 0, "near_duplicate": 0, "timed_out": 0, "set_aside": 1,
    },
    "timed_out": [], "damage": [], "duplicates_across_sources": 0,
    "sources": {
        "files": 3, "without_articles": 1,
        "first": [{"name": HOSTILE, "pages": 206, "articles": 96}],
    },
    "set_aside": [{"id": "9", "title": HOSTILE, "error": "XMLSyntaxError: no XML"}],
    "characters": {
        "in": 90000, "out": 60000, "dropped": {"too_few_words": 777},
        "kept": {"tables": 700}, "lost": {"templates": 9000},
        "table_rows": 2, "unclosed": 1,
    },
    "rules": {"long_word": {"times": 2, "characters": 2400}},
    "samples": {
        "long_word": [{"title": "反照率", "text": HOSTILE}],
        "too_few_words": [
            {"title": "Stub", "text": "A wall.", "value": 2, "limit": 20, "note": ""}
        ],
    },
    "templates": {
        "dropped": 4, "names": 2,
        "most": [
            {"name": HOSTILE, "times": 3, "sample": {"title": "A", "text": "{{" + HOSTILE}},
            {"name": "rare", "times": 1, "sample": None},
        ],
    },
    "contamination": {
        "sets": {"quiz": 1}, "too_short": {"quiz": 4},
        "documents": [
            {"id": "7", "title": "Quiz", "name": "quiz", "item": 3, "runs": 2, "sample": "what is"}
        ],
    },
    "residue": {"paragraphs": 900, "paragraphs_with_residue": 1, "by_kind": {"tags": 1}},
    "lengths": {"64": 3, "1024": 60, "65536": 33},
    "languages": {"en": 94, HOSTILE: 2},
}  # fmt: skip
METRICS: dict[str, dict[str, Any]] = {
    "clean": {
        "pages": 206, "articles": 96, "characters_out": 60000, "templates": {HOSTILE: 3},
    },
    "tokens": {"documents": 96, "tokens": 659896},
    "train": {
        "steps": STEPS, "loss_first": 3.2, "loss_last": 2.8, "tokens": 153600,
        "blend": [
            {"source": HOSTILE, "documents": 96, "tokens": 659896, "weight": 1.0, "samples": 150,
             "epochs": 0.2328, "repeated_tokens": 0}
        ],
    },
    "evaluate": EVALUATION["metrics"],
    "export": {"tokens_equal": True, "compared": ["ids"]},
}  # fmt: skip
FILES: dict[str, dict[str, str]] = {
    "clean": {"report.json": json.dumps(CLEANED)},
    "train": {"log.jsonl": "".join(json.dumps(line) + "\n" for line in LOG)},
    "evaluate": {"report.json": json.dumps(EVALUATION), "report.md": markdown(EVALUATION)},
    "export": {"proof.json": json.dumps(SERVED)},
}


def write(root: Path) -> dict[str, Path]:
    """Seal every stage of the toy line; returns the output folders by stage."""
    store = Store(root)
    folders = {}
    for name, planned in plan(load(RECIPE), store).items():
        address = planned.address
        folders[name] = store.path(address)
        data = folders[name] / "data"
        data.mkdir(parents=True)
        entries = []
        for file, text in FILES.get(name, {"file": "abc"}).items():
            (data / file).write_text(text, encoding="utf-8")
            raw = text.encode()
            digest = hashlib.sha256(raw).hexdigest()
            entries.append(FileEntry(path=file, bytes=len(raw), sha256=digest))
        argv = [".venv/bin/megaline", "run", "a recipe.yaml"]
        record = Record(
            schema=1, stage=name, version=address.version, label=address.label,
            fingerprint=address.fingerprint, identity=address.identity,
            inputs=list(address.inputs), files=entries, metrics=METRICS.get(name, {"bytes": 3}),
            provenance={"commit": "c0ffee", "dirty": name == "export", "argv": argv},
            created_at=datetime.now(UTC), seconds=61.5,
        )  # fmt: skip
        store.storage.put(f"{address.key}/artifact.json", record.encode())
    return folders
