"""Runs of every family by Megatron-LM's own code, exported; needs megatron-core 0.19.

`make test-next` has it. Latent attention is not here: on a CPU Megatron's own attention knows one
size for keys and values.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from megatron_bridge.convert import export_hf
from megatron_bridge.proof import TENSORS

DATA = Path(__file__).parents[1] / "data" / "megatron_lm"
RUN = """
    --hidden-size 24 --num-attention-heads 4 --num-layers 4 --seq-length 12
    --max-position-embeddings 64 --init-method-std 0.2 --seed 7 --tokenizer-type NullTokenizer
    --vocab-size 101 --make-vocab-size-divisible-by 8 --micro-batch-size 1 --global-batch-size 2
    --train-iters 20 --lr 0.01 --lr-decay-style cosine --save-interval 3 --attention-dropout 0
    --hidden-dropout 0 --distributed-backend gloo --use-cpu-initialization --transformer-impl local
    --no-gradient-accumulation-fusion --no-masked-softmax-fusion --no-bias-dropout-fusion
    --no-rope-fusion --no-persist-layer-norm --disable-jit-fuser --calculate-per-token-loss
    --ckpt-format torch_dist --no-save-optim --no-save-rng
"""
GPT = "--ffn-hidden-size 44"
ROPE, UNTIED = "--position-embedding-type rope", "--untie-embeddings-and-output-weights"
GROUPED = "--group-query-attention --num-query-groups 2"
BIASED = f"""
    --kv-channels 10 --ffn-hidden-size 28 --swiglu --no-bias-swiglu-fusion --normalization RMSNorm
    --norm-epsilon 1e-6 {GROUPED}
"""
GATED = f"{BIASED} --disable-bias-linear"
LLAMA = f"{GATED} {ROPE} {UNTIED}"
EXPERTS = """
    --num-experts 4 --moe-ffn-hidden-size 20 --moe-router-topk 2 --moe-router-dtype fp32
    --moe-router-load-balancing-type none --moe-token-dispatcher-type allgather
"""
CASES = {
    "gpt2, exact gelu": ("gpt2", f"{GPT} --no-bias-gelu-fusion"),
    "gpt2, fused gelu": ("gpt2", f"{GPT} {UNTIED}"),
    "gpt_neox": ("gpt_neox", f"{GPT} {ROPE} {UNTIED} --rotary-percent 0.5"),
    "starcoder2": ("starcoder2", f"{GPT} {ROPE} {GROUPED}"),
    "llama, biases": ("llama", f"{BIASED} {ROPE}"),
    "llama, scaled": ("llama", f"{LLAMA} --use-rope-scaling"),
    "llama, yarn": ("llama", f"{GATED} {UNTIED} --position-embedding-type yarn "
                    "--rotary-scaling-factor 4.0 --yarn-original-max-position-embeddings 16"),
    "mistral": ("mistral", f"{LLAMA} --window-size 3,0"),
    "qwen2": ("qwen2", f"{GATED} {ROPE} --add-qkv-bias"),
    "qwen3, windows": ("qwen3", f"{LLAMA} --qk-layernorm --window-size 3,0 "
                       "--window-attn-skip-freq 2"),
    "qwen3_moe": ("qwen3_moe", f"{LLAMA} {EXPERTS} --qk-layernorm --moe-layer-freq [1,0,1,1] "
                  "--moe-router-pre-softmax"),
    "qwen2_moe": ("qwen2_moe", f"{LLAMA} {EXPERTS} --add-qkv-bias --moe-shared-expert-gate "
                  "--moe-shared-expert-intermediate-size 32"),
}  # fmt: skip
"""The family that is found, and the run's further arguments."""


def maker() -> Any:
    """`make.py` of the frozen checkpoints, with this file's arguments."""
    spec = importlib.util.spec_from_file_location("mlm_make", DATA / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module)["RUN"] = RUN.split()
    return module


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_transformers_answers_as_a_fresh_run_did(case: str, tmp_path: Path) -> None:
    pytest.importorskip("megatron.training")
    import torch
    import transformers
    from safetensors.torch import load_file

    kind, options = CASES[case]
    more = {"STEPS": "2", "LOGITS": "logits.safetensors", "TORCHDYNAMO_DISABLE": "1"}
    more["PYTHONPATH"] = str(Path(__file__).parents[2])
    maker().run(1, [*options.split(), "--save", "run"], tmp_path, **more)
    found = export_hf(tmp_path / "run", tmp_path / "out", proof=TENSORS)
    assert found["model_type"] == kind
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32, attn_implementation="eager"
    )
    answer = load_file(tmp_path / "logits.safetensors")
    with torch.no_grad():
        difference = (model(answer["tokens"]).logits - answer["logits"]).abs().max()
    assert float(difference) < 5e-5
