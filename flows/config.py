"""The configuration of a whole line: one frozen model of its stages' configs, from a recipe."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tasks.clean.task import CleanConfig
from tasks.convert.task import ToHFConfig, ToMegatronConfig
from tasks.core.errors import ConfigError
from tasks.evaluate.task import EvaluateConfig
from tasks.export.task import ExportConfig
from tasks.ingest.task import IngestConfig
from tasks.model.task import ModelConfig
from tasks.tokens.task import TokensConfig
from tasks.train.task import TrainStage


class PipelineConfig(BaseModel):
    """One field a stage, in the order of the line."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ingest: IngestConfig = Field(description="Which corpus")
    clean: CleanConfig = Field(CleanConfig(), description="From markup to documents")
    model: ModelConfig = Field(description="Which model to start from")
    tokens: TokensConfig = Field(TokensConfig(), description="From documents to token ids")
    to_megatron: ToMegatronConfig = Field(
        ToMegatronConfig(), description="Hugging Face to Megatron"
    )
    train: TrainStage = Field(TrainStage(), description="Continued pretraining")
    to_hf: ToHFConfig = Field(ToHFConfig(), description="Megatron to Hugging Face")
    evaluate: EvaluateConfig = Field(EvaluateConfig(), description="Before against after")
    export: ExportConfig = Field(ExportConfig(), description="A bundle that can be served")

    @model_validator(mode="after")
    def _keeps_text_to_measure_on(self) -> PipelineConfig:
        if self.tokens.validation + self.tokens.test == 0:
            raise ConfigError(
                "No text is kept from training, so evaluate has nothing to measure on",
                where="tokens.validation, tokens.test", expected="together more than 0", got=0,
                fix="raise tokens.test",
            )  # fmt: skip
        return self


def load(recipe: Path | str, overrides: Sequence[str] = ()) -> PipelineConfig:
    """Read a recipe and lay `stage.field=value` overrides over it.

    Args:
        recipe: a YAML file with one table a stage. A string in it that begins with `./` or `../`
            is a path relative to the recipe's own folder.
        overrides: values are YAML; a path in them is relative to the current folder.

    Raises:
        ConfigError: the file, a name or a value is wrong.
    """
    recipe = Path(recipe)
    if not recipe.is_file():
        raise ConfigError(
            "The recipe does not exist", where=recipe, expected="a YAML file", got="none",
            fix="name one of deploy/recipes/*.yaml or a file of your own",
        )  # fmt: skip
    try:
        values = _parse(recipe.read_text(encoding="utf-8"), recipe)
    except UnicodeDecodeError as error:
        raise ConfigError(
            "The recipe is not text", where=recipe, expected="a YAML file in UTF-8", got=error,
            fix="name one of deploy/recipes/*.yaml or a file of your own",
        ) from error  # fmt: skip
    if not isinstance(values, dict):
        raise ConfigError(
            "The recipe is no table", where=recipe, expected="one table a stage",
            got=repr(values), fix="write it as deploy/recipes/toy.yaml is written",
        )  # fmt: skip
    values = _absolute(values, recipe.parent.resolve())
    return overlaid(values, overrides, recipe)


def overlaid(values: dict[str, Any], overrides: Sequence[str], where: object) -> PipelineConfig:
    """The typed configuration of plain values with `stage.field=value` overrides over them.

    Raises:
        ConfigError: a name or a value is wrong.
    """
    for override in overrides:
        _lay_over(values, override)
    return validate(values, " ".join([str(where), *overrides]))


def validate(values: dict[str, Any], where: object) -> PipelineConfig:
    """The typed configuration of plain values.

    Raises:
        ConfigError: names the dotted field, what was expected and what was got.
    """
    try:
        return PipelineConfig.model_validate(values)
    except ValidationError as error:
        raise _explained(error, where) from error


class _Loader(yaml.SafeLoader):
    """Safe YAML that reads `1e-4` as a number and refuses a key given twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is given twice", key.start_mark
                )
            seen.add(key.value)
        return dict(super().construct_mapping(node, deep))


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def _parse(text: str, where: object) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}, line {mark.line + 1}, column {mark.column + 1}" if mark else where
        raise ConfigError(
            "This is not YAML", where=place, expected="valid YAML",
            got=getattr(error, "problem", None) or error, fix="correct the text there",
        ) from error  # fmt: skip


def _absolute(value: Any, folder: Path) -> Any:
    if isinstance(value, str) and value.startswith(("./", "../")):
        return str((folder / value).resolve())
    if isinstance(value, dict):
        return {key: _absolute(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [_absolute(item, folder) for item in value]
    return value


def _lay_over(values: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    parts = name.split(".")
    if not equals or len(parts) < 2 or not all(parts):
        raise ConfigError(
            "An override cannot be read", where=override, expected="stage.field=value",
            got=override, fix="write for example train.steps=7",
        )  # fmt: skip
    table = values
    for part in parts[:-1]:
        if not isinstance(table.get(part), dict):
            table[part] = {}
        table = table[part]
    table[parts[-1]] = _absolute(_parse(text, override), Path.cwd())


def _explained(error: ValidationError, where: object) -> ConfigError:
    problems = error.errors()
    first = problems[0]
    name = ".".join(map(str, first["loc"]))
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, _names(PipelineConfig), n=1, cutoff=0.5)
        return ConfigError(
            f"Unknown name {name}{f': did you mean {near[0]}' if near else ''}{more}", where=where,
            expected="a known stage and field", got=name,
            fix="write the right name" if near else "leave it out",
        )  # fmt: skip
    if first["type"] == "missing":
        return ConfigError(
            f"{name} is missing{more}", where=where, expected=f"a value for {name}", got="none",
            fix=f"add it to the recipe, or give {name}=… on the command line",
        )  # fmt: skip
    return ConfigError(
        f"{name} has a wrong value{more}", where=where, expected=first["msg"],
        got=repr(first["input"]), fix=f"change {name}",
    )  # fmt: skip


def _names(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every dotted name a recipe may hold, sections included."""
    names = []
    for key, field in model.model_fields.items():
        names.append(f"{prefix}{key}")
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            names += _names(field.annotation, f"{prefix}{key}.")
    return names
