"""StarCoder2: GPT's plain MLP and biases in Llama's names, with a sliding window."""

from megatron_bridge.families import rotary, rows
from megatron_bridge.families.rows import H
from megatron_bridge.families.toy import TOY
from megatron_bridge.mapping import Family, Field

STARCODER2 = Family(
    "starcoder2",
    rows=(
        *rows.embeddings(bias=True),
        *rows.norm(rows.ATTENTION_NORM, H + "input_layernorm", bias=True),
        *rows.attention(qkv_bias="bias", output_bias="bias"),
        *rows.norm(rows.MLP_NORM, H + "post_attention_layernorm", bias=True),
        *rows.linear(rows.FC1, H + "mlp.c_fc", sizes=rows.FC1_SIZES, bias="bias"),
        *rows.linear(rows.FC2, H + "mlp.c_proj", sizes=rows.FC2_SIZES, bias="bias"),
    ),
    fields=(
        *rows.SIZE_FIELDS,
        Field("layernorm_epsilon", "norm_epsilon", 1e-5),
        Field("add_bias_linear", "use_bias", True),
        rows.TIED,
    ),
    computed=(
        rotary.rope,
        rows.window,
        rows.activation("hidden_act", "gelu_pytorch_tanh"),
    ),
    fixed=rows.GPT,
    # Both are in the released files and name what transformers always does.
    only={"norm_type": ("layer_norm",), "mlp_type": ("default",)},
    parts={**rows.untied(True), "bias": lambda config: bool(config.get("use_bias", True))},
    buffers=rows.ROTARY_BUFFERS,
    toy={
        "model_type": "starcoder2",
        **{key: value for key, value in TOY.items() if key != "rms_norm_eps"},
        "tie_word_embeddings": True,
        "sliding_window": 5,
    },
)
