"""The arguments that several commands of `megaline` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

StageName = Literal[
    "ingest", "clean", "model", "tokens", "to_megatron", "train", "to_hf", "evaluate", "export"
]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON document")]
Root = Annotated[
    Path | None, Parameter(help="The store's folder; without it MEGALINE_ROOT, else .megaline")
]
Recipe = Annotated[Path, Parameter(help="A YAML file, such as deploy/recipes/quickstart.yaml")]
Overrides = Annotated[
    str,
    Parameter(
        help="stage.field=value, such as train.steps=7; laid over the recipe, values are YAML"
    ),
]

Output = Annotated[
    Path,
    Parameter(help="An output's folder, STORE/STAGE/LABEL/FINGERPRINT, as `plan --json` tells"),
]
Stage = Annotated[StageName, Parameter(help="The stage to explain")]
