"""An engine that stands for any cluster: everything travels, and everything runs twice."""

import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class Twice:
    """Runs each call of a map twice, the first ones in any order, on what was pickled.

    The results are those of the second calls. `works` are the names of what ran.
    """

    shares_memory = False

    def __init__(self) -> None:
        self.works: list[str] = []

    def map(
        self, work: Callable[[Any, int], Any], task: Any, buckets: Iterable[int]
    ) -> Iterator[Any]:
        numbers, sent = list(buckets), pickle.dumps((work, task))
        self.works.append(work.__name__)
        for number in random.Random(0).sample(numbers, len(numbers)):
            self._run(sent, number)
        return (pickle.loads(pickle.dumps(self._run(sent, number))) for number in numbers)

    def close(self) -> None:
        """Nothing runs any more."""

    @staticmethod
    def _run(sent: bytes, number: int) -> Any:
        work, task = pickle.loads(sent)
        return work(task, number)
