"""Work on buckets side by side, with results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar, cast

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def ordered_map(
    function: Callable[[_Item], _Result], items: Iterable[_Item], workers: int
) -> Iterator[_Result]:
    """`map` on threads, in order, with at most `workers` + 1 results waiting (bounded memory)."""
    if workers == 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[_Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def read_ahead(items: Iterator[_Item]) -> Iterator[_Item]:
    """The same items, each fetched by another thread while the one before is being used."""
    done = object()
    with ThreadPoolExecutor(1) as pool:
        following: Future[_Item | object] = pool.submit(next, items, done)
        while (item := following.result()) is not done:
            following = pool.submit(next, items, done)
            yield cast(_Item, item)
