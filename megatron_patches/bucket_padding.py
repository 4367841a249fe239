"""Save each parameter's own optimizer state when gradient buckets are padded.

Targets: megatron-core 0.16.x and 0.19.x, `distributed.param_and_grad_buffer._ParamAndGradBuffer` with the distributed
    optimizer's fully reshardable checkpoints.
Symptom: "param range exceeds unpadded buffer by N elements. It will be padded with zeros which can lead to data
    corruption." A run that resumes has main weights and moments of neighbouring parameters. Seen with tied embeddings
    and pipeline stages, whose embedding has a bucket of its own, as soon as the bucket before it is no multiple of
    lcm(data-parallel size, 128) elements; several buckets by `ddp.bucket_size` or overlapped reduction do the same.
Cause: saving puts the buckets together without the padding between them and then takes each parameter's part at its
    place in the buffer, which counts the padding.
Cure: buckets count their padding as theirs, so that both use the same places. What is saved is cut out by parameter
    either way, and has no padding in it.
"""

from __future__ import annotations

from typing import Any

_MARK = "_da3po_bucket_padding"


def apply() -> None:
    """Patch the class. A second call does nothing."""
    from megatron.core.distributed import param_and_grad_buffer

    cls = param_and_grad_buffer._ParamAndGradBuffer
    if getattr(cls, _MARK, False):
        return
    make = cls.__init__

    def make_with_padding(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        for bucket in self.buckets:
            bucket.numel_unpadded = bucket.grad_data.numel()
        self.numel_unpadded = self.numel

    cls.__init__ = make_with_padding
    setattr(cls, _MARK, True)
