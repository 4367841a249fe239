"""What a GPU has and can do, from its maker's data sheet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

GB = 10**9
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """memory: bytes that CUDA reports. capability: CUDA's. bf16, fp8: dense FLOP/s of the matrix units; no fp8 is 0.
    bandwidth: bytes/s of memory. link: bytes/s to another GPU of the node, one way. network: bytes/s of its share of
    the node's network."""

    memory: int
    capability: tuple[int, int]
    bf16: float
    fp8: float
    bandwidth: float
    link: float
    network: float


GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        # NVIDIA H100 Tensor Core GPU data sheet, SXM: 989 and 1,979 TFLOPS dense, 3.35 TB/s, NVLink 900 GB/s both ways;
        # network: one 400 Gb/s adapter for each GPU, as in NVIDIA's DGX H100.
        "h100_sxm_80gb": Gpu(
            memory=int(79.1 * GIB),
            capability=(9, 0),
            bf16=989e12,
            fp8=1979e12,
            bandwidth=3.35e12,
            link=450e9,
            network=50e9,
        ),
        # NVIDIA H200 data sheet, SXM: the same units with 141 GB at 4.8 TB/s.
        "h200_sxm_141gb": Gpu(
            memory=int(139.8 * GIB),
            capability=(9, 0),
            bf16=989e12,
            fp8=1979e12,
            bandwidth=4.8e12,
            link=450e9,
            network=50e9,
        ),
        # NVIDIA A100 80GB data sheet, SXM: 312 TFLOPS dense, 2,039 GB/s, NVLink 600 GB/s both ways; 200 Gb/s adapters.
        "a100_sxm_80gb": Gpu(
            memory=int(79.1 * GIB),
            capability=(8, 0),
            bf16=312e12,
            fp8=0.0,
            bandwidth=2.039e12,
            link=300e9,
            network=25e9,
        ),
    }
)
