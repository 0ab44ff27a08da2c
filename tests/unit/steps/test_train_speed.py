"""Faster CPU kernels and the allocator setting do not change results."""

from __future__ import annotations

import copy
import resource

import numpy as np
import pytest

from medweave_steps.io.model.network import build_network
from medweave_steps.networks import BUILT_IN
from medweave_steps.runtime.allocator import keep_freed_memory
from medweave_steps.training.loop.cpu_kernels import replace_kernels

torch = pytest.importorskip("torch")

KERNELS = BUILT_IN["unet"].cpu_kernels
ARCHITECTURE = {
    "class": "monai.networks.nets.UNet",
    "arguments": {
        "spatial_dims": 3, "in_channels": 1, "out_channels": 1, "channels": [4, 8, 16], "strides": [1, 2],
        "num_res_units": 0, "norm": "BATCH", "act": "RELU",
    },
}  # fmt: skip


@pytest.mark.slow
def test_values_and_gradients_are_those_of_the_plain_network() -> None:
    torch.manual_seed(3)
    plain = build_network(ARCHITECTURE).double()
    quick = copy.deepcopy(plain)
    replace_kernels(quick, KERNELS)
    images = [torch.randn(2, 1, 8, 10, 6, dtype=torch.float64, requires_grad=True)]
    images.append(images[0].detach().clone().requires_grad_())
    results = [network(image) for network, image in zip((plain, quick), images, strict=True)]
    torch.testing.assert_close(*results)
    for result in results:
        result.square().sum().backward()
    torch.testing.assert_close(*(image.grad for image in images))
    for (name, one), (_, other) in zip(plain.named_parameters(), quick.named_parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, msg=name)
    assert quick.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize("options", [{"padding": 0}, {"padding": 2, "dilation": 2}, {"kernel_size": 1}])
def test_other_kernels_and_paddings(options: dict[str, int]) -> None:
    torch.manual_seed(4)
    layer = torch.nn.ConvTranspose3d(3, 2, **{"kernel_size": 3, **options}).double()
    image = torch.randn(1, 3, 6, 7, 8, dtype=torch.float64)
    expected = layer(image)
    replace_kernels(layer, KERNELS)
    torch.testing.assert_close(layer(image), expected)


@pytest.mark.parametrize("kernel", [1, 3, (5, 3, 1)])
@pytest.mark.parametrize("kind", ["Conv3d", "ConvTranspose3d"])
def test_one_channel_with_other_kernels(kind: str, kernel: int | tuple[int, ...]) -> None:
    torch.manual_seed(5)
    sizes = (kernel,) * 3 if isinstance(kernel, int) else kernel
    channels = (1, 4) if kind == "Conv3d" else (4, 1)
    layer = getattr(torch.nn, kind)(*channels, sizes, padding=tuple(size // 2 for size in sizes)).double()
    image = torch.randn(2, channels[0], 6, 7, 8, dtype=torch.float64)
    expected = layer(image)
    replace_kernels(layer, KERNELS)
    assert "forward" in vars(layer)
    torch.testing.assert_close(layer(image), expected)


def test_mixed_precision_is_as_near_to_float64_as_the_plain_network() -> None:
    torch.manual_seed(6)
    exact = build_network(ARCHITECTURE)
    plain, quick = copy.deepcopy(exact), copy.deepcopy(exact)
    exact.double()
    replace_kernels(quick, KERNELS)
    image = torch.randn(2, 1, 16, 16, 16)

    def gradients(network: torch.nn.Module, image: torch.Tensor, enabled: bool) -> list[torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            logits = network(image)
        logits.double().square().mean().backward()
        return [logits.detach().double(), *(weight.grad.double() for weight in network.parameters())]

    truth = gradients(exact, image.double(), enabled=False)
    errors = [
        [float((one - true).norm() / true.norm()) for one, true in zip(of, truth, strict=True) if true.norm() > 1e-6]
        for of in (gradients(plain, image, enabled=True), gradients(quick, image, enabled=True))
    ]
    for of_plain, of_quick in zip(*errors, strict=True):
        assert of_quick < 2 * of_plain + 0.01


def test_a_layer_with_a_stride_or_groups_is_left_alone() -> None:
    for layer in (torch.nn.ConvTranspose3d(2, 2, 3, stride=2), torch.nn.ConvTranspose3d(2, 2, 3, groups=2)):
        replace_kernels(layer, KERNELS)
        assert "forward" not in vars(layer)


def test_freed_memory_is_used_again() -> None:
    if not keep_freed_memory():
        pytest.skip("the C library is not the GNU one")
    size = 24 * 2**20  # below the largest threshold, above the usual one
    np.ones(size, np.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(size, np.uint8)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < 20 * size / 4096 / 10, "a page fault per page is what the setting is there to avoid"
