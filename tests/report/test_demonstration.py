"""The picture of the demonstration; what it measures is in the golden text of the command."""

from labelguard.report import demonstration
from labelguard.report.demonstration import Outcome, draw_outcomes


def outcome(mechanism, bound, accuracy):
    return Outcome(mechanism, bound, 100, 0.2, accuracy, None)


PLAIN, EVERY = outcome("non-private", None, 0.8), outcome("rr", None, 0.6)


def test_the_same_outcomes_give_the_same_picture():
    assert (
        draw_outcomes([PLAIN, EVERY])
        == draw_outcomes([PLAIN, EVERY])
        != draw_outcomes([PLAIN, PLAIN])
    )
    assert draw_outcomes([PLAIN]).startswith(b"\x89PNG")


def test_every_simulated_pair_is_labeled_once_and_fresh_labelers_give_nothing_else():
    labels, fresh = demonstration._simulate_labels()
    pairs = ["prompt", "response_a", "response_b"]
    assert labels[pairs].is_unique().all()
    assert not set(labels["labeler_id"]) & set(fresh["labeler_id"])
    assert labels["labeler_id"].n_unique() == 4 * fresh["labeler_id"].n_unique()
    again, _ = demonstration._simulate_labels()
    assert labels.equals(again)
