"""Our EfficientNet-Lite equals timm's, for the same weights."""

from __future__ import annotations

import pytest
import torch

from poise.backbones.vision.efficientnet import EfficientNetLite

timm = pytest.importorskip("timm")


@pytest.mark.parametrize(("name", "size"), [("tf_efficientnet_lite0", 224), ("tf_efficientnet_lite2", 97)])
def test_equals_timm(name: str, size: int) -> None:
    torch.manual_seed(0)
    reference = timm.create_model(name, pretrained=False, num_classes=0).eval().double()
    for module in reference.modules():
        if isinstance(module, torch.nn.BatchNorm2d):  # a fresh norm does nothing, so folding it would prove nothing
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.5, 2)
            module.weight.data.uniform_(0.5, 2)
            module.bias.data.uniform_(-0.2, 0.2)
    ours = EfficientNetLite(reference.state_dict()).double()
    images = torch.randn(2, 3, size, size, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), reference(images), atol=1e-9, rtol=1e-9)
