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
VALUES = 15.0 * np.linspace(-1, 1, STYLES)
TOPIC = 10.0
SENTENCES = (15, 19)
"""Fewest and most sentences of a response."""

Floats = NDArray[np.float64]
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


def pairs(count: int, seed: int) -> Pairs:
    """Fresh pairs; equal seeds give equal pairs."""
    generator = np.random.default_rng(seed)
    rows = [_pair(generator) for _ in range(count)]
    prompt, first, second, advantage = zip(*rows, strict=True)
    return Pairs(list(prompt), list(first), list(second), np.array(advantage))


def _pair(generator: np.random.Generator) -> tuple[str, str, str, float]:
    topic = int(generator.integers(TOPICS))
    prompt = f"about {' '.join(generator.choice(_NOUNS[topic], 4, replace=False))} ."
    (first, u_first), (second, u_second) = (_response(topic, generator) for _ in range(2))
    return prompt, first, second, u_first - u_second


def _response(topic: int, generator: np.random.Generator) -> tuple[str, float]:
    """A response and its utility."""
    count = int(generator.integers(SENTENCES[0], SENTENCES[1] + 1))
    style = generator.choice(STYLES, count, p=generator.dirichlet(np.full(STYLES, 0.7)))
    on_topic = generator.random(count) < generator.random()
    away = (topic + generator.integers(1, TOPICS, count)) % TOPICS
    said = zip(style, np.where(on_topic, topic, away), strict=True)
    text = " ".join(_sentence(one, about, generator) for one, about in said)
    return text, float(VALUES[style].mean() + TOPIC * on_topic.mean())


def _sentence(style: int, topic: int, generator: np.random.Generator) -> str:
    adjective, verb, one, other = generator.integers(WORDS, size=4)
    subject = f"the {_ADJECTIVES[style, adjective]} {_NOUNS[topic, one]}"
    return f"{subject} {_VERBS[style, verb]} the {_NOUNS[topic, other]} ."


def _words() -> tuple[Any, Any, Any]:
    """Nouns (topics, words), adjectives and verbs (styles, words), all different."""
    every = np.array([a + b for a, b in product(_SYLLABLES, _SYLLABLES)])
    counts = (TOPICS * WORDS, STYLES * WORDS, STYLES * WORDS)
    drawn = np.random.default_rng(0).choice(every, sum(counts), replace=False)
    return tuple(part.reshape(-1, WORDS) for part in np.split(drawn, np.cumsum(counts)[:-1]))


_NOUNS, _ADJECTIVES, _VERBS = _words()
