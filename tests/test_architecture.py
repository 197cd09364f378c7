"""Who may import whom, read from the source; nothing is imported here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# A library, and the only places that may import it (prefixes of paths).
HOMES = {
    "prefect": ("flows/", "tasks/core/stage.py"),
    "megatron.core": ("megatron_bridge/worker/",),
    "transformers": (
        "megatron_bridge/reference.py", "tasks/model/", "tasks/tokens/", "tasks/evaluate/",
        "tasks/export/",
    ),
    "gguf": ("megatron_bridge/sources/gguf.py",),
    "cyclopts": ("flows/",),
    "jinja2": ("flows/page.py",),
    "tensorboard": ("tasks/train/events.py",),
    "torch.utils.tensorboard": ("tasks/train/events.py",),
}  # fmt: skip
# Files under the first may not import what begins with one of the second.
WALLS = {
    "megatron_bridge/": ("tasks", "flows"),
    "tasks/": ("flows",),
}
CORE_TAKES = (
    "megatron_bridge.errors", "megatron_bridge.launch.pool", "megatron_bridge.launch.process",
)  # fmt: skip
HEAVY = {"torch", "transformers", "lxml", "nltk", "ftfy", "numpy", "prefect", "megatron", "gguf"}
LIGHT = (
    "tasks/core/", "flows/cli.py", "flows/config.py", "flows/console.py", "flows/line.py",
    "flows/lineage.py", "flows/run.py", "flows/server.py", "megatron_bridge/__init__.py",
    "megatron_bridge/architecture.py", "megatron_bridge/arguments.py", "megatron_bridge/bar.py",
    "megatron_bridge/certificate.py", "megatron_bridge/config.py",
    "megatron_bridge/data/blend.py", "megatron_bridge/data/words.py", "megatron_bridge/errors.py",
    "megatron_bridge/facts/", "megatron_bridge/families/", "megatron_bridge/listing.py",
    "megatron_bridge/mapping.py", "megatron_bridge/megatron_lm/", "megatron_bridge/options.py",
    "megatron_bridge/switches.py", "tasks/train/blend.py",
)  # fmt: skip


def imports(path: Path, top_only: bool = False) -> Iterator[str]:
    """Every module a file imports, in full; `top_only` leaves out what functions import."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _for_types_only(node):
            inside.update(ast.walk(node))
    for node in ast.walk(tree):
        if top_only and node in inside:
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "(relative)"
            yield from (f"{node.module}.{name.name}" for name in node.names)


def breaches(root: Path) -> list[str]:
    """Every import that the law forbids, as `file imports module`."""
    found = set()
    for folder in ("flows", "tasks", "megatron_bridge"):
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            for module in imports(path):
                if _forbidden(name, module):
                    found.add(f"{name} imports {module}")
            if name.startswith(LIGHT) or name.endswith("/task.py"):
                for module in imports(path, top_only=True):
                    if module.split(".")[0] in HEAVY:
                        found.add(f"{name} imports {module} at its top")
    return sorted(found)


def test_the_law_holds() -> None:
    assert breaches(ROOT) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("megatron_bridge/convert.py", "import prefect"),
        ("megatron_bridge/convert.py", "def f():\n    from prefect import flow"),
        ("megatron_bridge/convert.py", "from tasks.core.store import Store"),
        ("megatron_bridge/convert.py", "from megatron.core import parallel_state"),
        ("megatron_bridge/convert.py", "from megatron import core"),
        ("megatron_bridge/hf.py", "import transformers"),
        ("tasks/clean/task.py", "from tasks.tokens import indexed"),
        ("tasks/clean/task.py", "from prefect import task"),
        ("tasks/clean/task.py", "import lxml.etree"),
        ("tasks/clean/dump.py", "from flows import reports"),
        ("tasks/clean/dump.py", "import transformers"),
        ("tasks/core/store.py", "from tasks.clean import dump"),
        ("tasks/core/store.py", "from megatron_bridge.convert import import_hf"),
        ("tasks/core/stage.py", "from prefect import task"),
        ("flows/cli.py", "import torch"),
        ("flows/reports.py", "def f():\n    import jinja2"),
        ("tasks/train/task.py", "def f():\n    from torch.utils import tensorboard"),
        ("flows/pictures.py", "from tensorboard.backend import event_processing"),
        ("flows/cli.py", "from . import pipeline"),
    ],
)
def test_a_breach_is_seen(tmp_path: Path, file: str, line: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text("import json\n")
    assert breaches(tmp_path) == []
    path.write_text(line)
    assert len(breaches(tmp_path)) >= 1


def _forbidden(file: str, module: str) -> bool:
    if module.startswith("(relative)"):
        return True
    for library, homes in HOMES.items():
        if _within(module, library) and not file.startswith(homes):
            return True
    for wall, barred in WALLS.items():
        if file.startswith(wall) and any(_within(module, name) for name in barred):
            return True
    if file.startswith("tasks/") and _within(module, "tasks") and module != "tasks":
        own, other = file.split("/")[1], module.split(".")[1]
        if other not in (own, "core"):
            return True
    in_bridge = file.startswith("tasks/core/") and _within(module, "megatron_bridge")
    return in_bridge and not any(
        _within(module, name) or _within(name, module) for name in CORE_TAKES
    )


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
