"""Write checkpoints from threads of the rank's own process.

Targets: megatron-core 0.16.x and, for the manager alone, 0.19.x; `dist_checkpointing.strategies.filesystem_async`.
Symptoms: a save that never ends, once in a while; and a helper process (a `multiprocessing` manager) that outlives its
    rank when the rank is killed.
Cause: every save, synchronous ones too, forks a process per file (0.19 has threads by itself). A fork of a process
    with running threads (gloo, OpenMP, autograd) copies locks that nobody will release in the child. Results come back
    through a manager process, which does not notice that its parent is gone.
Cure: the same writing function in threads, which write as fast since the file system does the work, and a plain queue.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

_MARK = "_da3po_checkpoint_writer"


def apply() -> None:
    """Patch the module. A second call does nothing."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    writer = filesystem_async.FileSystemWriterAsync
    if getattr(writer, _MARK, False):
        return
    setattr(writer, _MARK, True)
    for name in ("_get_write_results_queue", "get_write_results_queue"):
        if hasattr(filesystem_async, name):
            setattr(filesystem_async, name, queue.Queue)
    if hasattr(writer, "write_preloaded_data_multiproc"):
        _write_in_threads(writer)


def _write_in_threads(writer: Any) -> None:

    def write_in_threads(
        transform_list: list[Any], use_msc: bool, rank: int, write_buckets: list[Any], global_results_queue: Any
    ) -> None:
        results: queue.Queue[Any] = queue.Queue()
        running: queue.Queue[int] = queue.Queue()
        threads = []
        for index, bucket in enumerate(write_buckets):
            running.put(index)
            arguments = {
                "local_proc_idx": index,
                "write_bucket": bucket,
                "results_queue": results,
                "count_queue": running,
                "use_fsync": True,
                "use_msc": use_msc,
            }
            threads.append(
                threading.Thread(target=writer.write_preloaded_data, args=(transform_list,), kwargs=arguments)
            )
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        written = dict(results.get_nowait() for _ in threads)
        errors = [result for result in written.values() if isinstance(result, Exception)]
        global_results_queue.put(errors[0] if errors else written)

    writer.write_preloaded_data_multiproc = staticmethod(write_in_threads)
