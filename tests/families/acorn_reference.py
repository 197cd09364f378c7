"""The made-up family of `families/ADDING.md` in plain PyTorch; shares no code with the bridge."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn


def build(config: Mapping[str, Any]) -> Acorn:
    return Acorn(config)


class Acorn(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.given = dict(config)
        self.config = SimpleNamespace(vocab_size=config["tokens"])
        width = config["width"]
        self.tokens = nn.Embedding(config["tokens"], width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config["blocks"]))
        self.last_norm = nn.LayerNorm(width, eps=1e-5)
        self.head = nn.Linear(width, config["tokens"], bias=False)

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return SimpleNamespace(logits=self.head(self.last_norm(x)))

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.given))
        save_file(self.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})


class Block(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width = config["width"]
        self.norm_1 = nn.LayerNorm(width, eps=1e-5)
        self.norm_2 = nn.LayerNorm(width, eps=1e-5)
        self.attention = Attention(config)
        self.mlp = Mlp(width, config["mlp_width"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Attention(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.size, self.base = config["head_width"], config["rope_theta"]
        inside, shared = config["heads"] * self.size, config["groups"] * self.size
        self.query = nn.Linear(config["width"], inside)
        self.key = nn.Linear(config["width"], shared)
        self.value = nn.Linear(config["width"], shared)
        self.out = nn.Linear(inside, config["width"], bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            linear(x).view(batch, length, -1, self.size).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        q, k = self.turned(q), self.turned(k)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        """Rotary positions, the first half of a head paired with the second, as complex numbers."""
        half = self.size // 2
        turns = self.base ** (-torch.arange(half) / half)
        angles = torch.outer(torch.arange(x.shape[2]), turns)
        pairs = torch.complex(*(part.float() for part in x.split(half, -1)))
        pairs = pairs * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([pairs.real, pairs.imag], -1).to(x.dtype)


class Mlp(nn.Module):
    def __init__(self, width: int, inside: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * inside, bias=False)
        self.down = nn.Linear(inside, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(nn.functional.silu(gate) * up)
