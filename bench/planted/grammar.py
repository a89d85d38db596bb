"""Pairs of responses in a made-up language, and a planted preference between them.

A response is some sentences `the <adjective> <noun> <verb> the <noun> .` Adjectives and verbs are
of one of eight styles, nouns of one of eight topics. A prompt names nouns of its topic. Responses
differ in how much of each style they have, and in how often they keep to the topic. The utility is
a smooth function of both,

    u = Σ_style value · share of sentences  +  TOPIC · share of sentences on the topic,

so that no single word decides, and the last part cannot be read without the prompt. A labeler
prefers the first response with probability σ(u_first − u_second) (Bradley and Terry).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

STYLES, TOPICS, WORDS = 8, 8, 8
NAMED = 4  # nouns of a prompt
VALUES = 15.0 * np.linspace(-1, 1, STYLES)
TOPIC = 10.0

Floats: TypeAlias = NDArray[np.float64]
Ids: TypeAlias = NDArray[np.intp]
Labels: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True)
class Preference:
    """What labelers prefer: `style` is the weight of styles beside the topic.

    `in_other_words`: responses never repeat a noun of their prompt, and leave its topic for one
    other. Then a response alone says nothing, nor do the words that it shares with its prompt.
    """

    style: float = 1.0
    in_other_words: bool = False


STYLE_AND_TOPIC = Preference()


@dataclass(frozen=True)
class Pairs:
    """n pairs: texts, and the difference of the two utilities, shape (n,)."""

    prompt: list[str]
    first: list[str]
    second: list[str]
    advantage: Floats

    def __len__(self) -> int:
        return len(self.prompt)

    def texts(self) -> list[str]:
        """Return each prompt with each of its responses."""
        both = zip(self.prompt, self.first, self.second, strict=True)
        return [f"{prompt} {side}" for prompt, *sides in both for side in sides]

    def label(self, rows: Ids, generator: np.random.Generator) -> Labels:
        """Return labels of some pairs, 1 where a labeler prefers the first response."""
        chance = 1 / (1 + np.exp(-self.advantage[rows]))
        return (generator.random(len(rows)) < chance).astype(np.uint8)


def list_words() -> tuple[Any, Any, Any]:
    """Return nouns (topics, words), adjectives and verbs (styles, words), all different."""
    syllables = ["".join(parts) for parts in product("bdfgklmnprstvz", "aeiou")]
    every = np.array([a + b for a, b in product(syllables, syllables)])
    counts = (TOPICS * WORDS, STYLES * WORDS, STYLES * WORDS)
    drawn = np.random.default_rng(0).choice(every, sum(counts), replace=False)
    return tuple(part.reshape(-1, WORDS) for part in np.split(drawn, np.cumsum(counts)[:-1]))


NOUNS, ADJECTIVES, VERBS = list_words()
VOCABULARY = ["the", "about", ".", *NOUNS.ravel(), *ADJECTIVES.ravel(), *VERBS.ravel()]


def draw_pairs(
    count: int, seed: int, sentences: tuple[int, int], preference: Preference = STYLE_AND_TOPIC
) -> Pairs:
    """Return fresh pairs with from `sentences[0]` to `sentences[1]` sentences a response."""
    generator = np.random.default_rng(seed)
    rows = [_draw_pair(generator, sentences, preference) for _ in range(count)]
    prompt, first, second, advantage = zip(*rows, strict=True)
    return Pairs(list(prompt), list(first), list(second), np.array(advantage))


def _draw_pair(
    generator: np.random.Generator, sentences: tuple[int, int], preference: Preference
) -> tuple[str, str, str, float]:
    topic = int(generator.integers(TOPICS))
    if preference.in_other_words:
        shuffled = generator.permuted(NOUNS, axis=1)
        named, nouns = shuffled[topic, :NAMED], shuffled[:, NAMED:]
    else:
        named, nouns = generator.choice(NOUNS[topic], NAMED, replace=False), NOUNS
    (first, u_first), (second, u_second) = (
        _draw_response(topic, nouns, generator, sentences, preference) for _ in range(2)
    )
    return f"about {' '.join(named)} .", first, second, u_first - u_second


def _draw_response(
    topic: int,
    nouns: Any,
    generator: np.random.Generator,
    sentences: tuple[int, int],
    preference: Preference,
) -> tuple[str, float]:
    count = int(generator.integers(sentences[0], sentences[1] + 1))
    style = generator.choice(STYLES, count, p=generator.dirichlet(np.full(STYLES, 0.7)))
    on_topic = generator.random(count) < generator.random()
    away = (topic + generator.integers(1, TOPICS, count)) % TOPICS
    if preference.in_other_words:
        away[:] = away[0]
    parts = []
    for one, about in zip(style, nouns[np.where(on_topic, topic, away)], strict=True):
        adjective, verb, subject, other = generator.integers(WORDS, size=4)
        words = (ADJECTIVES[one, adjective], about[subject % len(about)], VERBS[one, verb])
        parts.append(f"the {' '.join(words)} the {about[other % len(about)]} .")
    value = preference.style * VALUES[style].mean() + TOPIC * on_topic.mean()
    return " ".join(parts), float(value)
