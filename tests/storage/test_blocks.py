"""Sorting and counting of numbers in columns, as slow and plain code has it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from labelguard.storage.blocks import distinct_rows, find_first_rows, order_within

ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**64 - 1) | st.integers(0, 2)))


def columns(rows):
    group = np.array([row[0] for row in rows], np.intp)
    return group, np.array([row[1] for row in rows], np.uint64)


@given(ROWS)
def test_rows_are_sorted_by_group_then_by_keys(rows):
    group, key = columns(rows)
    other = key[::-1].copy()
    assert np.array_equal(order_within(group, key, other), np.lexsort((other, key, group)))


@given(ROWS)
def test_distinct_rows_are_those_of_a_sort(rows):
    group, key = columns(rows)
    distinct, which = distinct_rows(group, key)
    assert distinct.T.tolist() == [list(row) for row in sorted(set(rows))]
    assert distinct[:, which].T.tolist() == [list(row) for row in rows]
    first = find_first_rows(which, distinct.shape[1])
    assert [rows[row] for row in first.tolist()] == sorted(set(rows))
    assert [rows.index(rows[row]) for row in first.tolist()] == first.tolist()
