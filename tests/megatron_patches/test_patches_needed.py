"""Each patch is still needed, works, and may be applied twice. A failure under `still_needed` means that upstream has
mended its side: delete the patch.

Patches change a whole process, so every check runs in one of its own.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.distributed


def run(code: str) -> None:
    """Run `code` in a fresh interpreter. Errors: AssertionError with its output if it fails."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


ADAM = """
    import torch, torch.distributed as dist
    from megatron_patches import cpu_device, torch_adam
    cpu_device.apply()
    {patch}
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer import TransformerConfig

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    config = TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=1)
    ddp_config = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
    ddp = DistributedDataParallel(config, ddp_config, torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)))
    (optimizer,) = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=0.1, use_distributed_optimizer=True), [ddp]
    ).chained_optimizers
    {body}
"""


def test_cpu_device_still_needed() -> None:
    run("""
        import torch
        from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
        try:
            RotaryEmbedding(kv_channels=4, rotary_percent=1.0)
        except (AssertionError, RuntimeError) as error:
            assert "CUDA" in str(error) or "NVIDIA" in str(error), error
        else:
            raise SystemExit("Megatron builds on this device by itself")
    """)


def test_cpu_device_stands_in_for_cuda() -> None:
    run("""
        import torch
        from megatron_patches import cpu_device
        cpu_device.apply()
        zeros = torch.zeros
        cpu_device.apply()
        assert torch.zeros is zeros, "wrapped twice"
        assert torch.zeros(2, device="cuda").device.type == "cpu"
        assert torch.zeros(2, device=torch.cuda.current_device()).cuda().type() == "torch.cuda.FloatTensor"
        assert torch.zeros(2).type(torch.float64).dtype is torch.float64
        with torch.device("meta"):
            assert torch.zeros(2).device.type == "meta", "device contexts have stopped working"

        from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
        tracker = CudaRNGStatesTracker()
        tracker.add("forked", 1)
        before = torch.get_rng_state()
        with tracker.fork("forked"):
            first = torch.rand(3)
        assert torch.equal(torch.get_rng_state(), before), "a fork must leave the outer stream alone"
        with tracker.fork("forked"):
            assert not torch.equal(torch.rand(3), first), "a fork must go on where it stopped"
    """)


def test_torch_adam_still_needed() -> None:
    body = """
    try:
        optimizer.state_dict()
    except AssertionError:
        pass
    else:
        raise SystemExit("a fresh optimizer can be saved by itself")
    """
    run(ADAM.format(patch="", body=body))


def test_torch_adam_counts_steps_of_its_own_after_a_load() -> None:
    body = """
    optimizer.load_state_dict(optimizer.state_dict())
    ddp.zero_grad_buffer()
    for parameter in ddp.parameters():
        parameter.main_grad.fill_(1.0)
    optimizer.step()
    assert [state["step"].item() for state in optimizer.optimizer.state.values()] == [1.0] * 4
    """
    run(ADAM.format(patch="torch_adam.apply(); torch_adam.apply()", body=body))


def test_checkpoint_writer_still_needed() -> None:
    run("""
        import inspect
        from megatron_patches import cpu_device
        cpu_device.apply()
        from megatron.core.dist_checkpointing.strategies import filesystem_async
        writer = filesystem_async.FileSystemWriterAsync
        if hasattr(writer, "write_preloaded_data_multiproc"):  # 0.16
            assert 'get_context("fork")' in inspect.getsource(writer.write_preloaded_data_multiproc)
            assert "Manager()" in inspect.getsource(filesystem_async._get_write_results_queue)
        else:
            assert "Manager()" in inspect.getsource(filesystem_async.get_write_results_queue)
    """)


def test_checkpoint_writer_starts_no_process_and_reports_errors(tmp_path: object) -> None:
    run(f"""
        import multiprocessing, queue
        from megatron_patches import checkpoint_writer, cpu_device
        cpu_device.apply()
        checkpoint_writer.apply()
        checkpoint_writer.apply()
        from megatron.core.dist_checkpointing.strategies import filesystem_async
        writer = filesystem_async.FileSystemWriterAsync
        old = hasattr(writer, "write_preloaded_data_multiproc")
        write = writer.write_preloaded_data_multiproc if old else writer.write_preloaded_data_multithread
        results = (filesystem_async._get_write_results_queue if old else filesystem_async.get_write_results_queue)()
        write([], False, 0, [("{tmp_path}/a", "a", ([], [])), ("{tmp_path}/b", "b", ([], []))], results)
        assert results.get_nowait() == {{0: [], 1: []}}
        write([], False, 0, [("{tmp_path}/none/a", "a", ([], []))], results)
        assert isinstance(results.get_nowait(), FileNotFoundError if old else RuntimeError)
        assert multiprocessing.active_children() == []
    """)


PADDING = """
    import torch, torch.distributed as dist
    from megatron_patches import bucket_padding, cpu_device
    cpu_device.apply()
    {patch}
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.transformer import TransformerConfig

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    config = TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=1)
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=True, overlap_grad_reduce=True, bucket_size=10
    )
    ddp = DistributedDataParallel(config, ddp_config, torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)))
    (buffer,) = ddp.buffers
    assert len(buffer.buckets) > 1
    last = max(end for _, end, _ in buffer.param_index_map.values())
"""


def test_bucket_padding_still_needed() -> None:
    """What is put together for saving is shorter than the places that parameters are taken from."""
    run(PADDING.format(patch="") + "    assert last > sum(bucket.numel_unpadded for bucket in buffer.buckets)")


def test_bucket_padding_counts_for_the_bucket() -> None:
    run(
        PADDING.format(patch="bucket_padding.apply(); bucket_padding.apply()")
        + "    sizes = [bucket.numel_unpadded for bucket in buffer.buckets]\n"
        + "    assert last <= sum(sizes) == buffer.numel_unpadded == buffer.numel, (last, sizes)"
    )
