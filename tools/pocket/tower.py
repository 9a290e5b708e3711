"""The causal text tower with open_clip's parameter names, small enough to train without open_clip."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, CONTEXT, START, END = 49408, 77, 49406, 49407


class Attention(nn.Module):
    """Causal self-attention whose parameters are named as in `nn.MultiheadAttention`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.randn(3 * width, width) * width**-0.5)
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        packed = F.linear(x, self.in_proj_weight, self.in_proj_bias).view(n, length, 3, self.heads, width // self.heads)
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(mixed.transpose(1, 2).reshape(n, length, width))


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            OrderedDict(c_fc=nn.Linear(width, 4 * width), gelu=nn.GELU(), c_proj=nn.Linear(4 * width, width))
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class TextTower(nn.Module):
    """Token ids -> one vector per text, read at the end token (open_clip's CLIP text branch)."""

    def __init__(self, width: int, heads: int, layers: int, joint: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(VOCABULARY, width)
        self.positional_embedding = nn.Parameter(torch.randn(CONTEXT, width) * 0.01)
        blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.transformer = nn.ModuleDict({"resblocks": blocks})
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.randn(width, joint) * width**-0.5)
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        for block in blocks:  # residual branches start small, so depth does no harm at the start
            nn.init.normal_(block.attn.out_proj.weight, std=width**-0.5 * (2 * layers) ** -0.5)
            nn.init.normal_(block.mlp.c_fc.weight, std=(2 * width) ** -0.5)
            nn.init.normal_(block.mlp.c_proj.weight, std=width**-0.5 * (2 * layers) ** -0.5)

    def forward(self, ids: Tensor, parts: int = 1) -> Tensor:
        """`parts` > 1 runs texts of like length together, each group cut to its longest: same result, less padding."""
        if parts == 1:
            return self.encode(ids)
        order = ids.argmax(-1).argsort()
        groups = [ids[rows] for rows in order.chunk(parts)]
        out = torch.cat([self.encode(group[:, : int(group.argmax(-1).max()) + 1]) for group in groups])
        return out[order.argsort()]

    def encode(self, ids: Tensor) -> Tensor:
        x = self.token_embedding(ids) + self.positional_embedding[: ids.shape[1]]
        for block in self.transformer["resblocks"]:
            x = block(x)
        last = x[torch.arange(len(ids), device=ids.device), ids.argmax(-1)]  # END has the highest id
        return self.ln_final(last) @ self.text_projection
