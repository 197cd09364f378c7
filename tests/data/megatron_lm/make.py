"""Make the checkpoints in this folder with Megatron-LM's own code; see README.md."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
RUN = """
    --hidden-size 24 --num-attention-heads 4 --kv-channels 6 --ffn-hidden-size 28
    --group-query-attention --num-query-groups 2 --normalization RMSNorm --swiglu
    --seq-length 12 --max-position-embeddings 64 --position-embedding-type rope --rotary-base 5000
    --disable-bias-linear --init-method-std 0.15 --norm-epsilon 1e-6
    --tokenizer-type NullTokenizer --vocab-size 101 --make-vocab-size-divisible-by 8
    --micro-batch-size 1 --global-batch-size 2 --train-iters 20 --lr 0.01 --lr-decay-style cosine
    --weight-decay 0.1 --save-interval 3 --clip-grad 1.0 --seed 7
    --attention-dropout 0 --hidden-dropout 0
    --distributed-backend gloo --use-cpu-initialization --transformer-impl local
    --no-gradient-accumulation-fusion --no-masked-softmax-fusion --no-bias-swiglu-fusion
    --no-bias-dropout-fusion --no-rope-fusion --no-persist-layer-norm --disable-jit-fuser
    --calculate-per-token-loss
""".split()
UNTIED = ["--untie-embeddings-and-output-weights"]
SPLIT = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2".split()
CHUNKS = "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2".split()
BARE = ["--no-save-rng"]
EXPERTS = """
    --num-experts 4 --moe-ffn-hidden-size 20 --moe-router-topk 2
    --moe-router-load-balancing-type none
    --moe-token-dispatcher-type allgather --expert-model-parallel-size 2 --moe-router-dtype fp32
""".split()
TORCH, TORCH_DIST = ["--ckpt-format", "torch"], ["--ckpt-format", "torch_dist"]
TWO, FOUR = ["--num-layers", "2"], ["--num-layers", "4"]
UNEVEN = "--num-layers 3 --decoder-first-pipeline-num-layers 1".split()
SHARDED = ["--use-distributed-optimizer"]
CASES: dict[str, tuple[int, list[str]]] = {
    "dense-torch": (4, [*TWO, *UNTIED, *SPLIT, *TORCH]),
    "dense-torch_dist": (4, [*TWO, *UNTIED, *SPLIT, *TORCH_DIST]),
    "chunks-torch": (2, [*FOUR, *UNTIED, *CHUNKS, *TORCH, *BARE]),
    "sharded-torch": (2, [*TWO, *UNTIED, *SHARDED, *TORCH, *BARE]),
    "experts-torch": (2, [*TWO, *UNTIED, *EXPERTS, *TORCH, *BARE]),
    "experts-torch_dist": (2, [*TWO, *UNTIED, *EXPERTS, *TORCH_DIST, *BARE, "--no-save-optim"]),
    "half-torch": (4, [*UNEVEN, *UNTIED, *SPLIT, "--bf16", *TORCH, *BARE]),
    "tied-torch": (4, [*TWO, *SPLIT, "--add-qkv-bias", *TORCH, *BARE, "--no-save-optim"]),
}


def run(ranks: int, options: list[str], folder: Path, **environment: str) -> None:
    """Run `rank.py` under torchrun in `folder`."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", str(HERE.resolve() / "rank.py"), *RUN, *options]
    subprocess.run(
        command,
        cwd=folder,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
        | environment,
    )


def main() -> None:
    """Make the cases named on the command line, or all."""
    for name in sys.argv[1:] or CASES:
        ranks, options = CASES[name]
        with tempfile.TemporaryDirectory() as work:
            run(
                ranks,
                [*options, "--save", name],
                Path(work),
                STEPS="3",
                LOGITS=f"{name}.safetensors",
            )
            shutil.rmtree(HERE / name, ignore_errors=True)
            shutil.copytree(Path(work, name), HERE / name)
            if "--bf16" not in options:
                shutil.copy(Path(work, f"{name}.safetensors"), HERE / name / "logits.safetensors")


if __name__ == "__main__":
    main()
