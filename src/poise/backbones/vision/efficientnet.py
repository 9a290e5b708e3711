"""EfficientNet-Lite feature extractor in plain torch, built from a state dict with timm's names (Tan and Le, 2019).

timm's model gives the same features, but importing timm takes longer than classifying an image. Since the network is
never trained here, its batch norms are folded into its convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STRIDES = (1, 2, 2, 2, 1, 2, 1)  # stride of each stage's first block, the same in every EfficientNet
EPSILON = 1e-3  # batch-norm epsilon of the models trained in TensorFlow
# Torch's own compiler calls this operation for a convolution with an activation; it is absent where oneDNN is.
_FUSED: Any = (
    getattr(torch.ops.mkldnn, "_convolution_pointwise", None) if torch.backends.mkldnn.is_available() else None
)
_RELU6 = "hardtanh", (0.0, 6.0), ""


def _fuses(x: Tensor) -> bool:
    plain = x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_grad_enabled()
    return _FUSED is not None and plain and not torch.compiler.is_compiling()


class SameConv(nn.Module):
    """A convolution with TensorFlow's "same" padding and a folded batch norm, optionally followed by ReLU6."""

    def __init__(self, weight: Tensor, norm: Mapping[str, Tensor], *, stride: int = 1, active: bool = True) -> None:
        super().__init__()
        gain = norm["weight"].double() / (norm["running_var"].double() + EPSILON).sqrt()
        bias = norm["bias"].double() - norm["running_mean"].double() * gain
        folded = weight.double() * gain[:, None, None, None]
        self.weight = nn.Parameter(folded.to(weight.dtype), requires_grad=False)
        self.bias = nn.Parameter(bias.to(weight.dtype), requires_grad=False)
        self.stride, self.active = stride, active
        self.groups = len(weight) if weight.shape[1] == 1 and weight.shape[-1] > 1 else 1

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer, [N, c, h, w] -> [N, c', ceil(h / stride), ceil(w / stride)]."""
        kernel = self.weight.shape[-1]
        before, after = zip(*(self._padding(side, kernel) for side in x.shape[-2:]), strict=True)
        if before != after:
            x, before = F.pad(x, (before[1], after[1], before[0], after[0])), (0, 0)
        if self.active and _fuses(x):  # the activation is part of the convolution: the same bits in less time
            return _FUSED(x, self.weight, self.bias, before, (self.stride,) * 2, (1, 1), self.groups, *_RELU6)
        x = F.conv2d(x, self.weight, self.bias, self.stride, before, groups=self.groups)
        return F.relu6(x, inplace=True) if self.active else x  # x is a new tensor; in place takes a quarter of the time

    def _padding(self, side: int, kernel: int) -> tuple[int, int]:
        total = max((-(-side // self.stride) - 1) * self.stride + kernel - side, 0)
        return total // 2, total - total // 2


class InvertedResidual(nn.Module):
    """An inverted-residual or depthwise-separable block, with a shortcut if input and output shapes agree."""

    def __init__(self, convolutions: list[SameConv]) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(*convolutions)
        strides = [convolution.stride for convolution in convolutions]
        first, last = convolutions[0], convolutions[-1]
        inputs = first.weight.shape[0] if first.groups > 1 else first.weight.shape[1]
        self.shortcut = max(strides) == 1 and inputs == last.weight.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block, [N, c, h, w] -> [N, c', h', w']."""
        output: Tensor = self.convolutions(x)
        return x + output if self.shortcut else output


class EfficientNetLite(nn.Module):
    """Maps images [N, 3, H, W] to pooled features [N, 1280]."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.stem = SameConv(state["conv_stem.weight"], _norm(state, "bn1"), stride=2)
        self.blocks = nn.Sequential(*_blocks(state))
        self.head = SameConv(state["conv_head.weight"], _norm(state, "bn2"))
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """Return globally averaged features, [N, 3, H, W] -> [N, 1280]."""
        x: Tensor = self.head(self.blocks(self.stem(images.contiguous(memory_format=torch.channels_last))))
        return x.mean((2, 3))


def _norm(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {part: state[f"{name}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")}


def _blocks(state: Mapping[str, Tensor]) -> list[InvertedResidual]:
    blocks = []
    for stage, first_stride in enumerate(STRIDES):
        depth = 0
        while f"blocks.{stage}.{depth}.conv_dw.weight" in state:
            blocks.append(_block(state, f"blocks.{stage}.{depth}", first_stride if depth == 0 else 1))
            depth += 1
    return blocks


def _block(state: Mapping[str, Tensor], name: str, stride: int) -> InvertedResidual:
    def convolution(weight: str, norm: str, stride: int = 1, active: bool = True) -> SameConv:
        return SameConv(state[f"{name}.{weight}.weight"], _norm(state, f"{name}.{norm}"), stride=stride, active=active)

    if f"{name}.conv_pwl.weight" in state:  # expansion, depthwise convolution, projection
        return InvertedResidual(
            [
                convolution("conv_pw", "bn1"),
                convolution("conv_dw", "bn2", stride),
                convolution("conv_pwl", "bn3", active=False),
            ]
        )
    return InvertedResidual([convolution("conv_dw", "bn1", stride), convolution("conv_pw", "bn2", active=False)])
