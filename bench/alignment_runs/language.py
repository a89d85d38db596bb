"""What simulated people prefer in a made-up language, and how good a response of any model is.

Texts are those of `dpo.grammar`, with two to four sentences. The true reward of a response is the
mean over its sentences: the value of its style, and a bonus where its subject is on the prompt's
topic. What is no sentence of the language counts as the worst style: a policy gains nothing by
words that people would not read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from dpo import grammar
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SENTENCES = (2, 4)
SHARPNESS = 0.2  # of labels: log-odds for each point of reward
_SENTENCE = re.compile(r"the (\w+) (\w+) (\w+) the (\w+)")


def _numbers(words: NDArray[np.str_]) -> dict[str, int]:
    """Return the row of each word, its style or topic."""
    return {str(word): row for row, some in enumerate(words) for word in some}


_NOUNS, _ADJECTIVES, _VERBS = (_numbers(words) for words in grammar.words())


def pairs(count: int, seed: int, sentences: tuple[int, int] = SENTENCES) -> grammar.Pairs:
    """Return fresh pairs, whose labels are noisier than the reward."""
    drawn = grammar.pairs(count, seed, sentences)
    sides = (true_rewards(drawn.prompt, side) for side in (drawn.first, drawn.second))
    first, second = sides
    return replace(drawn, advantage=SHARPNESS * (first - second))


def true_rewards(prompts: Sequence[str], responses: Sequence[str]) -> Floats:
    """Return the true reward of responses, shape (n,)."""
    return np.array([_reward(*texts) for texts in zip(prompts, responses, strict=True)])


def _reward(prompt: str, response: str) -> float:
    topic = _NOUNS.get(prompt.split()[1], -1)
    sentences = [part.strip() for part in response.split(".") if part.strip()]
    return float(np.mean([_of_sentence(one, topic) for one in sentences] or [grammar.VALUES[0]]))


def _of_sentence(sentence: str, topic: int) -> float:
    match = _SENTENCE.fullmatch(sentence)
    adjective, noun, verb, other = match.groups() if match else ("",) * 4
    styles = _ADJECTIVES.get(adjective), _VERBS.get(verb)
    if None in styles or noun not in _NOUNS or other not in _NOUNS:
        return float(grammar.VALUES[0])
    value = float(np.mean(grammar.VALUES[[style for style in styles if style is not None]]))
    return value + grammar.TOPIC * (_NOUNS[noun] == topic)
