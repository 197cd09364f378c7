"""The model families, by `model_type` of `config.json`."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

from megatron_bridge.errors import ConfigError, InputError
from megatron_bridge.families.baichuan import BAICHUAN
from megatron_bridge.families.bloom import BLOOM
from megatron_bridge.families.chatglm import CHATGLM
from megatron_bridge.families.cohere import COHERE
from megatron_bridge.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from megatron_bridge.families.falcon import FALCON
from megatron_bridge.families.gemma import GEMMA, GEMMA2, GEMMA3_TEXT
from megatron_bridge.families.glm import GLM, GLM4
from megatron_bridge.families.gpt2 import GPT2, GPT_BIGCODE
from megatron_bridge.families.gpt_neox import GPT_NEOX
from megatron_bridge.families.llama import INTERNLM, LLAMA, MISTRAL
from megatron_bridge.families.moe import MIXTRAL, QWEN2_MOE, QWEN3_MOE
from megatron_bridge.families.opt import OPT
from megatron_bridge.families.phi3 import PHI3
from megatron_bridge.families.qwen import QWEN
from megatron_bridge.families.qwen2 import QWEN2
from megatron_bridge.families.qwen3 import QWEN3
from megatron_bridge.families.starcoder2 import STARCODER2
from megatron_bridge.mapping import Family

_ALL = (
    LLAMA,
    INTERNLM,
    MISTRAL,
    BAICHUAN,
    QWEN,
    QWEN2,
    QWEN3,
    MIXTRAL,
    QWEN2_MOE,
    QWEN3_MOE,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    CHATGLM,
    GLM,
    GLM4,
    GPT_BIGCODE,
    STARCODER2,
    GPT2,
    FALCON,
    BLOOM,
    OPT,
    GEMMA,
    GEMMA2,
    GEMMA3_TEXT,
    PHI3,
    GPT_NEOX,
    COHERE,
)
FAMILIES = {family.model_type: family for family in _ALL}


def get(model_type: str | None) -> Family:
    """Return the family of a `model_type`.

    Raises:
        ConfigError: no such family; the text names the nearest ones, and how to add one.
    """
    if isinstance(model_type, str) and model_type in FAMILIES:
        return FAMILIES[model_type]
    near = difflib.get_close_matches(str(model_type), FAMILIES, n=2, cutoff=0.3)
    raise ConfigError(
        f"No model family {model_type!r}",
        where="config.json, model_type",
        expected=", ".join(sorted(FAMILIES)),
        got=repr(model_type),
        fix=(f"the nearest are {', '.join(near)}; " if near else "")
        + f"to add a family, follow {Path(__file__).with_name('ADDING.md')}",
    )


def read_config(folder: Path) -> dict[str, Any]:
    """Return a Hugging Face folder's `config.json`.

    Raises:
        InputError: it is missing or is not a JSON object.
    """
    path = Path(folder) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(
            "The model folder has no config.json",
            where=folder,
            expected="config.json beside *.safetensors",
            got="a folder without it"
            if Path(folder).is_dir()
            else "a file"
            if Path(folder).is_file()
            else "no such folder",
            fix="give the folder that holds config.json",
        ) from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(
            "config.json is not JSON",
            where=path,
            expected="a JSON object",
            got=error,
            fix="fetch the file again",
        ) from error
    if not isinstance(config, dict):
        raise InputError(
            "config.json is not a JSON object",
            where=path,
            expected="a table of the model's sizes",
            got=type(config).__name__,
            fix="fetch the file again",
        )
    return config
