"""`--engine spark`: `mapInArrow` of Spark over a table that has one row for each bucket.

Spark may run a task twice, and writes broadcasts, results and spilled rows to its disks: what it
moves is sealed (`clusters.sealing`), and its own encryption of disks is on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from labelguard import extras
from labelguard.errors import LabelguardError
from labelguard.storage.executor import Result, Task
from labelguard_connectors.clusters.sealing import new_key, open_result, run_sealed_task, seal_task

_ENCRYPTION = "spark.io.encryption.enabled"
_RESULTS = pa.schema([("position", pa.int64()), ("result", pa.binary())])


class Spark:
    """A cluster of Spark at `address` (a master: spark://host:port, yarn, k8s://…), else local.

    Results come in waves of twice as many buckets as there are cores.
    """

    shares_memory = False

    def __init__(self, workers: int, address: str | None = None) -> None:
        extras.require_extra("spark", "--engine spark")
        from pyspark.sql import SparkSession

        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        active = SparkSession.getActiveSession()
        builder = (
            SparkSession.builder.appName("labelguard")
            .master(address or f"local[{workers}]")
            .config(_ENCRYPTION, "true")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
        )
        session: Any = active or builder.getOrCreate()
        if session.conf.get(_ENCRYPTION, "false") != "true":
            raise LabelguardError(f"the session of Spark that is open lacks {_ENCRYPTION}=true")
        self._session, self._started = session, active is None

    def map(
        self, work: Callable[[Task, int], Result], task: Task, buckets: Iterable[int]
    ) -> Iterator[Result]:
        """`work(task, bucket)` of every bucket, in the order of these."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        context, key = self._session.sparkContext, new_key()
        sealed = context.broadcast(seal_task(key, work, task))
        try:
            numbers, most = list(buckets), 2 * context.defaultParallelism
            for start in range(0, len(numbers), most):
                wave = numbers[start : start + most]

                def run(
                    batches: Iterator[pa.RecordBatch], wave: list[int] = wave
                ) -> Iterator[pa.RecordBatch]:
                    for batch in batches:
                        for position in batch["id"].to_pylist():
                            result = run_sealed_task(sealed.value, key, wave[position])
                            row = [pa.array([position]), pa.array([result], pa.binary())]
                            yield pa.RecordBatch.from_arrays(row, schema=_RESULTS)

                rows = self._session.range(0, len(wave), 1, len(wave))
                results = rows.mapInArrow(run, "position bigint, result binary").toArrow()
                for row in results.sort_by("position")["result"]:
                    yield open_result(key, row.as_buffer().to_pybytes())
        except (PySparkException, Py4JError) as error:
            raise LabelguardError(
                f"Spark gave up a task ({type(error).__name__}); nothing is lost: run the same "
                "command again"
            ) from None
        finally:
            sealed.destroy()

    def close(self) -> None:
        """End the session if it was started here."""
        if self._started:
            self._session.stop()
