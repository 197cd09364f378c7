"""The facts of a built model, read off its modules: `python -m … spec.json`, one rank.

The model is whole, but on the meta device: it has shapes and no values, so that one of any size is
built in seconds. The counterpart, read from `config.json`, is `megatron_bridge/facts/`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from megatron_bridge.config import ParallelConfig
from megatron_bridge.facts import Facts, parts, routing
from megatron_bridge.facts.sizes import alike
from megatron_bridge.worker import rank


def work(text: str) -> None:
    """Build each model of the job, and write what it is."""
    spec = json.loads(text)
    # Read the same everywhere: on a GPU some of these parts are fused out of sight.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # Megatron hands functions to the compiler as it is imported, which costs a second and 75 MiB;
    # nothing is computed here.
    compiler: Any = torch
    compiler.compile = lambda function=None, **_: function or (lambda bare: bare)
    rank.join(ParallelConfig(), "float32")
    built = {name: _build_and_read(**model) for name, model in spec["models"].items()}
    Path(spec["out"]).write_text(json.dumps(built), encoding="utf-8")
    rank.leave()


def _build_and_read(fields: Mapping[str, Any], vocab_size: int, longest: int) -> dict[str, Any]:
    from megatron_bridge.worker import model

    with torch.device("meta"):
        extras = {"perform_initialization": False}
        gpt = model.build(fields, ParallelConfig(), vocab_size=vocab_size, extras=extras)
    weights = {n: t for n, t in gpt.state_dict().items() if isinstance(t, torch.Tensor)}
    vocabulary = ("embedding.word_embeddings.weight", "output_layer.weight")
    return {
        "facts": read(gpt.eval(), longest),
        "parameters": sum(t.numel() for t in weights.values()),
        "padding": sum(
            (weights[name].shape[0] - vocab_size) * weights[name].shape[1]
            for name in vocabulary
            if name in weights
        ),
    }


def read(gpt: Any, longest: int) -> Facts:
    """Return the facts of a model that is whole on this rank.

    Args:
        gpt: Megatron's model, on any device.
        longest: its `max_position_embeddings`; rotary positions are also read at twice of it.
    """
    layers = list(gpt.decoder.layers)
    return {
        "layers": len(layers),
        **_attention([layer.self_attention for layer in layers]),
        **_mlp([layer.mlp for layer in layers]),
        **_norms(gpt),
        **_positions(gpt, layers, longest),
        **_ends(gpt),
    }


def _attention(attentions: list[Any]) -> Facts:
    one = attentions[0]
    cores = [attention.core_attention for attention in attentions]
    inner = [name for name, _ in one.named_children() if name.startswith(("linear_q", "linear_k"))]
    facts: Facts = {
        "hidden size": one.linear_proj.weight.shape[0],
        "bias of query, key and value": alike(
            [any(_has_bias(getattr(a, name)) for name in inner) for a in attentions]
        ),
        "bias of the attention's output": alike([_has_bias(a.linear_proj) for a in attentions]),
        "scale of scores": alike([_scale(core) for core in cores]),
        "window": alike([_window(core) for core in cores]),
        # Megatron's own attention has neither; our module reads both from its options.
        "soft cap of attention": alike(
            [core.config.ours.attention_softcap if _is_ours(core) else None for core in cores]
        ),
        "ALiBi": alike([bool(_is_ours(core) and core.config.ours.alibi) for core in cores]),
    }
    if hasattr(one, "linear_kv_up_proj"):
        return facts | _latent(one)
    from megatron.core.transformer.identity_op import IdentityOp

    normed = [
        not any(isinstance(n, IdentityOp | None) for n in (a.q_layernorm, a.k_layernorm))
        for a in attentions
    ]
    return facts | {
        "attention heads": one.num_attention_heads_per_partition,
        "key-value heads": one.num_query_groups_per_partition,
        "head size": one.hidden_size_per_attention_head,
        "norm on query and key": alike(normed),
    }


def _latent(attention: Any) -> Facts:
    whole = hasattr(attention, "linear_q_proj")
    query = attention.linear_q_proj if whole else attention.linear_q_up_proj
    up = attention.linear_kv_up_proj.weight
    return {
        "query rows": query.weight.shape[0],
        "key and value rows": up.shape[0],
        "query latent": None if whole else query.weight.shape[1],
        "key-value latent": up.shape[1],
        "rotary key size": attention.linear_kv_down_proj.weight.shape[0] - up.shape[1],
    }


def _mlp(mlps: list[Any]) -> Facts:
    sparse = [layer for layer, mlp in enumerate(mlps) if hasattr(mlp, "router")]
    dense = [mlp for mlp in mlps if not hasattr(mlp, "router")]
    facts: Facts = {
        "feed-forward size": alike(
            [None if i in sparse else m.linear_fc2.weight.shape[1] for i, m in enumerate(mlps)]
        ),
    }
    plain = list(dense)
    if sparse:
        layers = [mlps[layer] for layer in sparse]
        experts = [layer.experts.local_experts for layer in layers]
        shared = [layer.shared_experts for layer in layers]
        plain += [expert for some in experts for expert in some]
        plain += [mlp for mlp in shared if mlp is not None]
        facts |= {
            "layers with experts": sparse,
            "experts": alike([len(some) for some in experts]),
            "experts a token": alike([layer.router.topk for layer in layers]),
            "expert size": alike([some[0].linear_fc2.weight.shape[1] for some in experts]),
            "shared expert size": alike(
                [None if mlp is None else mlp.linear_fc2.weight.shape[1] for mlp in shared]
            ),
            "routing of a sample": alike([_routed(layer.router) for layer in layers]),
        }
    biases = [_has_bias(linear) for mlp in plain for linear in (mlp.linear_fc1, mlp.linear_fc2)]
    functions = {mlp.activation_func for mlp in plain}
    points = torch.tensor(parts.POINTS, device="cpu")
    return facts | {
        "bias of the MLP": alike(biases),
        "activation": alike([function(points).tolist() for function in functions]),
    }


def _routed(router: Any) -> list[list[list[float]]]:
    """Let a router choose for the sample; it uses no weights behind its logits."""
    count = router.config.num_moe_experts
    logits = torch.tensor(routing.sample(count), device="cpu")[:, None]
    with torch.no_grad():
        shares, chosen = router.routing(logits)
    return [
        routing.weights(
            {expert: row[expert].item() for expert in mask.nonzero().flatten().tolist()}
        )
        for row, mask in zip(shares, chosen, strict=True)
    ]


def _norms(gpt: Any) -> Facts:
    norms = [module for module in gpt.modules() if isinstance(getattr(module, "eps", None), float)]
    kinds = {"LayerNorm" if norm.is_layer_norm else "RMSNorm" for norm in norms}
    return {"norm": alike(sorted(kinds)), "norm epsilon": alike([norm.eps for norm in norms])}


def _positions(gpt: Any, layers: list[Any], longest: int) -> Facts:
    table = getattr(gpt.embedding, "position_embeddings", None)
    facts: Facts = {"learned positions": None if table is None else table.weight.shape[0]}
    if table is not None:
        facts["first position"] = _first_position(gpt.embedding)
    one = layers[0].self_attention
    rotary = getattr(one, "rotary_pos_emb", None) or getattr(gpt, "rotary_pos_emb", None)
    if rotary is None:
        return facts | {"rotary frequencies": None}
    from megatron.core.models.common.embeddings import yarn_rotary_pos_embedding as yarn

    angles = rotary(2)
    # Latent attention gets the factor with the angles; other attention asks its config for it.
    latent = isinstance(angles, tuple)
    angles, factor = angles if latent else (angles, None)
    ask = yarn._yarn_get_concentration_factor_from_config
    facts |= {
        "factor on cosine and sine": factor if latent else ask(one.config),
        "rotary frequencies": _frequencies(angles, rotary.rotary_interleaved),
        "rotary frequencies at twice the length": _frequencies(angles, rotary.rotary_interleaved),
    }
    if hasattr(rotary, "scaling"):  # `rope.ByLength`
        rotary.get_freqs_non_repeated(2 * longest)
        facts["rotary frequencies at twice the length"] = rotary.inv_freq.tolist()
    apart = {id(f): f for f in (_apart(layer, angles) for layer in layers) if f is not None}
    if apart:
        facts["rotary frequencies under a window"] = alike(list(apart.values()))
    return facts


def _apart(layer: Any, angles: torch.Tensor) -> list[float] | None:
    """Frequencies of a layer that has its own."""
    if not getattr(layer, "windowed", False):
        return None
    return _frequencies(layer._angles(angles), interleaved=False)


def _frequencies(angles: torch.Tensor, interleaved: bool) -> list[float]:
    """The angles of position 1, [positions, 1, 1, dim], without the repetition."""
    row = angles[1].flatten()
    once = row[::2] if interleaved else row[: row.shape[0] // 2]
    return [float(value) for value in once]


def _ends(gpt: Any) -> Facts:
    """What happens to embeddings and logits: the hooks on both, put to the test."""
    output, embedding = gpt.output_layer, gpt.embedding
    rows = torch.tensor([[3.0, 4.0]], device="cpu")
    for hook in output._forward_pre_hooks.values():
        _, arguments = hook(output, (), {"weight": rows})
        rows = arguments["weight"]
    logits = torch.full((1, 1, 1), parts.LOGIT, device="cpu")
    for hook in output._forward_hooks.values():
        logits, _ = hook(output, (), (logits, None))
    facts: Facts = {
        "embeddings tied": bool(gpt.share_embeddings_and_output_weights and output.weight is None),
        "a logit of 100 becomes": logits.item(),
        parts.NORMALISED: abs(rows.norm().item() - 1) < 1e-6,
    }
    if not hasattr(embedding, "norm"):
        ones = torch.ones(1, device="cpu")
        for hook in embedding._forward_hooks.values():
            ones = hook(embedding, (), ones)
        facts["factor on embeddings"] = ones.item()
    return facts


def _first_position(embedding: Any) -> int:
    arguments = {"position_ids": torch.zeros(1, dtype=torch.long, device="cpu")}
    for hook in embedding._forward_pre_hooks.values():
        _, arguments = hook(embedding, (), arguments)
    return int(arguments["position_ids"].item())


def _has_bias(linear: Any) -> bool:
    return getattr(linear, "bias", None) is not None


def _is_ours(core: Any) -> bool:
    from megatron_bridge.worker.modules import CoreAttention

    return isinstance(core, CoreAttention)


def _scale(core: Any) -> float:
    if _is_ours(core):
        return float(core.scale)
    # Megatron may divide the scores by the layer's number, and multiply again in the softmax.
    return float(core.softmax_scale * (core.scale_mask_softmax.scale or 1.0))


def _window(core: Any) -> int | None:
    """Tokens that a token sees, itself among them."""
    window = core.window if _is_ours(core) else core.scale_mask_softmax.window_size
    window = window[0] if isinstance(window, tuple) else window
    return None if window is None else window + 1


if __name__ == "__main__":
    rank.run(work)
