"""Pairs of responses in a made-up language, and a planted preference between them.

A response is some sentences `the <adjective> <noun> <verb> the <noun> .` Adjectives and verbs are
of one of eight styles, nouns of one of eight topics; a prompt names nouns of its topic. Responses
differ in how much of each style they have, and in how often they keep to the topic. The utility is
a smooth function of both,

    u = Σ_style value · share of sentences  +  TOPIC · share of sentences on the topic,

so that no single word decides, and the last part cannot be read without the prompt. A labeler
prefers the first response with probability σ(u_first − u_second) (Bradley–Terry).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

STYLES, TOPICS, WORDS = 8, 8, 8
NAMED = 4  # nouns of a prompt
VALUES = 15.0 * np.linspace(-1, 1, STYLES)
TOPIC = 10.0
SENTENCES = (15, 19)
"""Fewest and most sentences of a response."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Preference:
    """What labelers prefer: `style` is how much the values of styles count, beside the topic.

    `in_other_words`: responses never repeat a noun of their prompt, and leave its topic for one
    other. Then a response alone says nothing, nor do the words that it shares with its prompt: one
    must know which words are of one topic.
    """

    style: float = 1.0
    in_other_words: bool = False


STYLE_AND_TOPIC = Preference()

_SYLLABLES = ["".join(parts) for parts in product("bdfgklmnprstvz", "aeiou")]


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
        """Prompts with each of their responses: what a language model learns the language from."""
        both = zip(self.prompt, self.first, self.second, strict=True)
        return [f"{prompt} {side}" for prompt, *sides in both for side in sides]

    def labels(self, generator: np.random.Generator) -> NDArray[np.uint8]:
        """Whether the first response is preferred, shape (n,), as labelers would say."""
        chance = 1 / (1 + np.exp(-self.advantage))
        return (generator.random(len(self)) < chance).astype(np.uint8)


def vocabulary() -> list[str]:
    """Every word of the language."""
    return ["the", "about", ".", *_NOUNS.ravel(), *_ADJECTIVES.ravel(), *_VERBS.ravel()]


def pairs(
    count: int,
    seed: int,
    sentences: tuple[int, int] = SENTENCES,
    preference: Preference = STYLE_AND_TOPIC,
) -> Pairs:
    """Fresh pairs; equal arguments give equal pairs."""
    generator = np.random.default_rng(seed)
    rows = [_pair(generator, sentences, preference) for _ in range(count)]
    prompt, first, second, advantage = zip(*rows, strict=True)
    return Pairs(list(prompt), list(first), list(second), np.array(advantage))


def _pair(
    generator: np.random.Generator, sentences: tuple[int, int], preference: Preference
) -> tuple[str, str, str, float]:
    topic = int(generator.integers(TOPICS))
    if preference.in_other_words:
        shuffled = generator.permuted(_NOUNS, axis=1)
        named, nouns = shuffled[topic, :NAMED], shuffled[:, NAMED:]
    else:
        named, nouns = generator.choice(_NOUNS[topic], NAMED, replace=False), _NOUNS
    prompt = f"about {' '.join(named)} ."
    (first, u_first), (second, u_second) = (
        _response(topic, nouns, generator, sentences, preference) for _ in range(2)
    )
    return prompt, first, second, u_first - u_second


def _response(
    topic: int,
    nouns: Any,
    generator: np.random.Generator,
    sentences: tuple[int, int],
    preference: Preference,
) -> tuple[str, float]:
    """A response and its utility."""
    count = int(generator.integers(sentences[0], sentences[1] + 1))
    style = generator.choice(STYLES, count, p=generator.dirichlet(np.full(STYLES, 0.7)))
    on_topic = generator.random(count) < generator.random()
    away = (topic + generator.integers(1, TOPICS, count)) % TOPICS
    if preference.in_other_words:
        away[:] = away[0]
    said = zip(style, nouns[np.where(on_topic, topic, away)], strict=True)
    text = " ".join(_sentence(one, about, generator) for one, about in said)
    value = preference.style * VALUES[style].mean() + TOPIC * on_topic.mean()
    return text, float(value)


def _sentence(style: int, nouns: Any, generator: np.random.Generator) -> str:
    adjective, verb, one, other = generator.integers(WORDS, size=4)
    subject = f"the {_ADJECTIVES[style, adjective]} {nouns[one % len(nouns)]}"
    return f"{subject} {_VERBS[style, verb]} the {nouns[other % len(nouns)]} ."


def words() -> tuple[Any, Any, Any]:
    """Nouns (topics, words), adjectives and verbs (styles, words), all different."""
    every = np.array([a + b for a, b in product(_SYLLABLES, _SYLLABLES)])
    counts = (TOPICS * WORDS, STYLES * WORDS, STYLES * WORDS)
    drawn = np.random.default_rng(0).choice(every, sum(counts), replace=False)
    return tuple(part.reshape(-1, WORDS) for part in np.split(drawn, np.cumsum(counts)[:-1]))


_NOUNS, _ADJECTIVES, _VERBS = words()
