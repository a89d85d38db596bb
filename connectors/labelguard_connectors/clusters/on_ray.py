"""`--engine ray`: plain tasks of Ray, one for each bucket.

Ray may run a task again when a worker is lost, and keeps arguments and results in its object store,
which may spill to disk: both are sealed (`clusters.sealing`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from labelguard import extras
from labelguard.errors import LabelguardError
from labelguard.storage.executor import Result, Task
from labelguard_connectors.clusters.sealing import new_key, open_result, run_sealed_task, seal_task

# How many seconds calls that were cancelled may take to end.
_PATIENCE = 60


class Ray:
    """A cluster of Ray at `address` (`auto`, host:port, ray://host:port), else one on this machine.

    At most twice as many tasks as there are cores wait or hold results.
    """

    shares_memory = False

    def __init__(self, workers: int, address: str | None = None) -> None:
        extras.require_extra("ray", "--engine ray")
        import ray

        self._started = not ray.is_initialized()
        if self._started:
            local = {} if address else {"num_cpus": workers, "include_dashboard": False}
            try:
                ray.init(address=address, log_to_driver=False, logging_level="error", **local)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise LabelguardError(f"no cluster of Ray at {address}: {error}") from None
        self._ray: Any = ray

    def map(
        self, work: Callable[[Task, int], Result], task: Task, buckets: Iterable[int]
    ) -> Iterator[Result]:
        """`work(task, bucket)` of every bucket, in the order of these."""
        ray, key = self._ray, new_key()
        sealed = ray.put(seal_task(key, work, task))
        remote = ray.remote(max_retries=3)(run_sealed_task)
        most = 2 * max(int(ray.cluster_resources().get("CPU", 1)), 1)
        waiting: deque[Any] = deque()
        try:
            for bucket in buckets:
                waiting.append(remote.remote(sealed, key, bucket))
                if len(waiting) > most:
                    yield open_result(key, ray.get(waiting.popleft()))
            while waiting:
                yield open_result(key, ray.get(waiting.popleft()))
        except ray.exceptions.RayError as error:
            raise LabelguardError(
                f"Ray gave up a task ({type(error).__name__}); nothing is lost: run the same "
                "command again"
            ) from None
        finally:
            for reference in waiting:
                ray.cancel(reference)
            if waiting:  # what still runs writes labels that nobody would remove
                ray.wait(list(waiting), num_returns=len(waiting), timeout=_PATIENCE)

    def close(self) -> None:
        """Leave the cluster; end it if it was started here."""
        if self._started:
            self._ray.shutdown()
