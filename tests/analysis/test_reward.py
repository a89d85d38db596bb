"""Rewards of single responses: what a release's head gives, and how far from labels one is."""

import numpy as np
import pyarrow as pa
import pytest
from support.preferred_words import head, table
from support.releases import make_release

import labelguard as lg
from labelguard.errors import LabelguardError


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return head(tmp_path_factory.mktemp("study"))


def test_the_difference_of_two_rewards_is_the_log_odds_of_the_pair(release):
    scored = lg.score(release, table())
    reward = lg.reward(release)
    sides = [
        reward.score(scored["prompt"].to_list(), scored[side].to_list())
        for side in ("chosen", "rejected")
    ]
    odds = np.log(scored["label_probability"] / (1 - scored["label_probability"]))
    np.testing.assert_allclose(sides[0] - sides[1], odds, atol=1e-4)


def test_scores_do_not_read_who_labeled(release):
    given = table().drop_columns("labeler_id")
    nobody = given.append_column("labeler_id", pa.nulls(len(given), pa.string()))
    assert lg.score(release, nobody).equals(lg.score(release, table()))


def test_a_reward_is_called_as_trl_calls_it(release):
    reward, logged = lg.reward(release), {}
    values = reward(
        prompts=["tea?", "tea?", "rain?"],
        completions=["yes good", "no bad", "yes good"],
        completion_ids=[[1]] * 3,
        trainer_state=None,
        log_metric=logged.__setitem__,
    )
    assert [type(value) for value in values] == [float] * 3
    assert values[0] > values[1]
    assert logged.keys() == {"distance"} and reward.__name__ == release.id


def test_messages_are_scored_as_their_texts_are(release):
    said = {"role": "assistant", "content": "yes good"}
    asked = {"role": "user", "content": "tea?"}
    reward = lg.reward(release)
    np.testing.assert_allclose(
        reward.score([[asked]], [[said]]), reward.score(["tea?"], ["yes good"]), rtol=1e-6
    )


def test_equal_texts_are_computed_once(release):
    reward = lg.reward(release, mix={"length": 0.0})
    [(scorer, weight), *others] = reward._scorers
    counts = []
    reward._scorers = [(lambda texts: counts.append(len(texts)) or scorer(texts), weight), *others]
    first = reward.score(["tea?"] * 3, ["yes", "no", "yes"])
    again = reward.score(["tea?", "tea?"], ["no", "good"])
    assert counts == [2, 1] and first[0] == first[2] and first[1] == again[0]


def test_public_rewards_are_added_by_weight(release):
    texts = ["tea?", "tea?"], ["yes", "yes good sure"]
    plain, mixed = lg.reward(release), lg.reward(release, mix={"length": -0.5})
    length = np.log1p([len(text) for text in texts[1]])
    np.testing.assert_allclose(
        plain.score(*texts) - 0.5 * length, mixed.score(*texts), rtol=1e-4, atol=1e-6
    )


def test_distance_is_about_1_for_labeled_responses_and_more_for_others(release):
    reward, labels = lg.reward(release), table()
    near = reward.distances(labels["prompt"].to_pylist(), labels["chosen"].to_pylist())
    [far] = reward.distances(["tea?"], ["- perhaps\n- `x = 1` " * 40])
    assert 0.5 < near.mean() < 1.5 and far > 2 * near.max()


def test_a_release_of_labels_gives_no_reward_but_is_a_reference(tmp_path, release):
    labels = make_release(table(), epsilon=3, delta=1e-5, mechanism="rr", project=lg.init(tmp_path))
    with pytest.raises(LabelguardError, match="train reward"):
        lg.reward(labels)
    reward = lg.reward(release, reference=labels)
    assert reward.distances(["tea?"], ["yes good no bad"]).shape == (1,)


def test_a_head_on_columns_of_pairs_gives_no_reward(tmp_path):
    numbers = np.random.default_rng(0).normal(size=(2, 120))
    labels = table(fluency_chosen=numbers[0], fluency_rejected=numbers[1])
    release = make_release(
        labels,
        epsilon=3,
        delta=1e-5,
        mechanism="statistic",
        features="length+columns:fluency",
        public_columns=["fluency"],
        project=lg.init(tmp_path),
    )
    with pytest.raises(LabelguardError, match="columns of its pairs"):
        lg.reward(release)


def test_an_altered_release_gives_no_reward(tmp_path, release):
    import shutil

    copy = shutil.copytree(release.path, tmp_path / "copy")
    (copy / "head.npz").write_bytes((copy / "head.npz").read_bytes()[:-1] + b"x")
    with pytest.raises(LabelguardError):
        lg.reward(copy)
