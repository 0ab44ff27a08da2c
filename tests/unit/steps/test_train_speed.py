"""What makes training quicker must not change what it computes."""

from __future__ import annotations

import copy
import resource

import numpy as np
import pytest

from medweave_steps.io.network import build_network
from medweave_steps.runtime.allocator import keep_freed_memory
from medweave_steps.training.convolutions import compute_as_convolutions

torch = pytest.importorskip("torch")

ARCHITECTURE = {
    "class": "monai.networks.nets.UNet",
    "arguments": {
        "spatial_dims": 3, "in_channels": 1, "out_channels": 1, "channels": [4, 8, 16], "strides": [1, 2],
        "num_res_units": 0, "norm": "BATCH", "act": "RELU",
    },
}  # fmt: skip


def test_values_and_gradients_are_those_of_the_transposed_convolution() -> None:
    torch.manual_seed(3)
    plain = build_network(ARCHITECTURE).double()
    quick = copy.deepcopy(plain)
    compute_as_convolutions(quick)
    image = torch.randn(2, 1, 8, 8, 8, dtype=torch.float64)
    results = [network(image) for network in (plain, quick)]
    torch.testing.assert_close(*results)
    for result in results:
        result.square().sum().backward()
    for (name, one), (_, other) in zip(plain.named_parameters(), quick.named_parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, msg=name)
    assert quick.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize("options", [{"padding": 0}, {"padding": 2, "dilation": 2}, {"kernel_size": 1}])
def test_other_kernels_and_paddings(options: dict[str, int]) -> None:
    torch.manual_seed(4)
    layer = torch.nn.ConvTranspose3d(3, 2, **{"kernel_size": 3, **options}).double()
    image = torch.randn(1, 3, 6, 7, 8, dtype=torch.float64)
    expected = layer(image)
    compute_as_convolutions(layer)
    torch.testing.assert_close(layer(image), expected)


def test_a_layer_with_a_stride_or_groups_is_left_alone() -> None:
    for layer in (torch.nn.ConvTranspose3d(2, 2, 3, stride=2), torch.nn.ConvTranspose3d(2, 2, 3, groups=2)):
        compute_as_convolutions(layer)
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
