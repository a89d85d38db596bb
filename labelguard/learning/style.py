"""Style of a response, as numbers: public functions that need no model.

`FUNCTIONS` names each with what it is. Counts enter as log(1 + count), the rest as shares or means,
so that one long response does not drown the others. Each is standardised over the distinct
responses that the provider was fitted on and clipped at ±5 standard deviations; a pair's features
are the first side's less the second's. The length in characters is a provider of its own, `length`.

Words are runs of letters and digits of any script. Sentences, syllables and the lists of words know
English; elsewhere these functions are poorer, and never wrong about a label.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.learning.columns import content_column, plain_text
from labelguard.learning.providers import (
    Features,
    FittedProvider,
    State,
    refuse_options,
    sample_pairs,
)

# Standard deviations at which a function is clipped.
CLIP = 5.0

_PORTION = 1 << 14

_WORD = r"[\p{L}\p{N}]+(?:['’][\p{L}]+)*"
_SENTENCE_END = r"[.!?…。！？]+(?:\s|$)"
_CODE = r"(?s)```.*?(?:```|$)|`[^`\n]+`"
_LIST_ITEM = r"(?m)^\s*(?:[-*•+]|\d{1,3}[.)])\s+\S"
_HEDGES = (
    *("may", "might", "could", "perhaps", "possibly", "probably", "likely", "maybe", "seems"),
    *("seem", "appears", "appear", "suggests", "generally", "usually", "sometimes", "often"),
    *("typically", "roughly", "around", "approximately"),
)
_NEGATIONS = ("not", "no", "never", "none", "nothing", "without", "cannot", "neither", "nor")
_READER = ("you", "your", "yours", "yourself")
_WRITER = ("i", "we", "my", "our", "me", "us", "mine", "ours")
_APOLOGIES = r"(?i)\b(?:sorry|apologi[sz]e|apologies|unfortunately|unable|as an ai)\b"

_text, _words = pl.col("response"), pl.col("words")
_count, _characters = pl.col("words").list.len(), pl.col("response").str.len_chars()
_sentences = _text.str.count_matches(_SENTENCE_END).clip(lower_bound=1)


@dataclass(frozen=True)
class Function:
    """A public number of a response: its `name`, and what it is."""

    name: str
    about: str
    of: pl.Expr


def _log1p(expression: pl.Expr) -> pl.Expr:
    return expression.cast(pl.Float64).log1p()


def _log_match_count(pattern: str) -> pl.Expr:
    return _log1p(_text.str.count_matches(pattern))


def _share_of_whole(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    """Return a share; 0 of nothing."""
    return part.cast(pl.Float64) / whole.clip(lower_bound=1).cast(pl.Float64)


def _share_of_characters(pattern: str) -> pl.Expr:
    return _share_of_whole(_text.str.count_matches(pattern), _characters)


def _share_of_words(words: tuple[str, ...]) -> pl.Expr:
    return _share_of_whole(_words.list.eval(pl.element().is_in(list(words))).list.sum(), _count)


def _mean_of_words(of_word: pl.Expr) -> pl.Expr:
    return _words.list.eval(of_word).list.mean().fill_null(0.0).cast(pl.Float64)


def _reading_ease() -> pl.Expr:
    syllables = pl.element().str.count_matches("[aeiouyáéíóúäöü]+").clip(lower_bound=1)
    return -1.015 * _share_of_whole(_count, _sentences) - 84.6 * _mean_of_words(syllables)


def _share_in_prompt() -> pl.Expr:
    distinct = _words.list.unique()
    return _share_of_whole(
        distinct.list.set_intersection(pl.col("prompt_words")).list.len(), distinct.list.len()
    )


# All functions, in the order of the features.
FUNCTIONS = (
    Function("words", "log of the number of words", _log1p(_count)),
    Function("sentences", "log of the number of sentences", _log1p(_sentences)),
    Function(
        "sentence-length", "log of words a sentence", _log1p(_share_of_whole(_count, _sentences))
    ),
    Function("lines", "log of the number of lines with text", _log_match_count(r"(?m)^.*\S")),
    Function(
        "paragraphs", "log of the number of empty lines between text", _log_match_count(r"\n\s*\n")
    ),
    Function("list-items", "log of the number of list items", _log_match_count(_LIST_ITEM)),
    Function("headings", "log of the number of headings", _log_match_count(r"(?m)^#{1,6}\s+\S")),
    Function(
        "emphasis", "log of the number of words in bold", _log_match_count(r"\*\*[^*\n]+\*\*")
    ),
    Function(
        "table-rows", "log of the number of rows of tables", _log_match_count(r"(?m)^\s*\|.*\|\s*$")
    ),
    Function("links", "log of the number of links", _log_match_count(r"https?://\S|\]\(")),
    Function(
        "code",
        "share of characters in code",
        _share_of_whole(_text.str.extract_all(_CODE).list.join("").str.len_chars(), _characters),
    ),
    Function("digits", "share of characters that are digits", _share_of_characters(r"\p{Nd}")),
    Function("upper-case", "share of characters in upper case", _share_of_characters(r"\p{Lu}")),
    Function("punctuation", "share of characters that punctuate", _share_of_characters(r"\p{P}")),
    Function("questions", "log of the number of question marks", _log_match_count("[?？]")),
    Function("exclamations", "log of the number of exclamation marks", _log_match_count("[!！]")),
    Function("parentheses", "log of the number of parentheses", _log_match_count(r"[(（]")),
    Function("word-length", "mean letters a word", _mean_of_words(pl.element().str.len_chars())),
    Function(
        "variety",
        "distinct words over the root of all words (Guiraud)",
        _words.list.n_unique() / _count.clip(lower_bound=1).cast(pl.Float64).sqrt(),
    ),
    Function("reading-ease", "Flesch's reading ease, less its constant", _reading_ease()),
    Function("overlap", "share of distinct words that are in the prompt", _share_in_prompt()),
    Function("hedges", "share of words like may, perhaps, usually", _share_of_words(_HEDGES)),
    Function("negations", "share of words like not, never, without", _share_of_words(_NEGATIONS)),
    Function("addressing", "share of words like you, your", _share_of_words(_READER)),
    Function("first-person", "share of words like I, we, my", _share_of_words(_WRITER)),
    Function("apologies", "log of the number of apologies", _log_match_count(_APOLOGIES)),
)


def style(options: str, state: State | None) -> StyleFeatures:
    """Return the provider `style`, fitted earlier if `state` is given."""
    refuse_options("style", options)
    return StyleFeatures(state)


class StyleFeatures(FittedProvider):
    """φ(prompt, response) by `FUNCTIONS`; d is their number.

    What is learnt depends on the set of distinct pairs of prompt and response only, not on their
    order or side. The state holds `center` and `scale`, shape (d,): a function that is the same
    everywhere has scale 0 and says nothing.
    """

    # The mean squared norm of the group, beside that of others; see `learning.features`.
    weight = 0.25

    name = "style"
    arrays = frozenset({"center", "scale"})

    def fit(self, pairs: pa.Table) -> None:
        """Learn the mean and the spread of every function from at most 65,536 pairs."""
        responses = _prompts_and_responses(sample_pairs(pairs)).unique()
        values = self._values(responses.sort("prompt", "response"))
        spread = values.std(axis=0)
        varied = spread > 1e-9 * (1 + np.abs(values).max(axis=0))
        scale = np.divide(1, spread, where=varied, out=np.zeros_like(spread))
        self._state = {"center": values.mean(axis=0), "scale": scale}

    def __call__(self, pairs: pa.Table) -> Features:
        """Return the difference of the two responses' functions, shape (n, d), float32.

        Raises `LabelguardError` before `fit`.
        """
        fitted = self.fitted_state
        values = (self._values(_prompts_and_responses(pairs)) - fitted["center"]) * fitted["scale"]
        first, second = np.split(np.clip(values, -CLIP, CLIP), 2)
        return np.asarray(first - second, np.float32)

    def names(self) -> tuple[str, ...]:
        """Return the functions' names."""
        return tuple(function.name for function in FUNCTIONS)

    def identity(self) -> str:
        """Return the functions; what was learnt is named by the digest of the state."""
        return f"style {','.join(self.names())} clip={CLIP:g}"

    def _values(self, responses: pl.DataFrame) -> NDArray[np.float64]:
        """Return all functions of n responses, shape (n, d)."""
        parts = [np.zeros((0, len(FUNCTIONS)))]
        for start in range(0, len(responses), _PORTION):
            if self.progress:
                self.progress("reading responses", start / len(responses))
            parts.append(_measure(responses.slice(start, _PORTION)))
        return np.concatenate(parts)


def _measure(responses: pl.DataFrame) -> NDArray[np.float64]:
    def extract_words(column: str) -> pl.Expr:
        return pl.col(column).str.to_lowercase().str.extract_all(_WORD)

    prepared = responses.with_columns(
        words=extract_words("response"), prompt_words=extract_words("prompt").list.unique()
    )
    values = prepared.select(f.of.cast(pl.Float64).alias(f.name) for f in FUNCTIONS)
    return values.to_numpy()


def _prompts_and_responses(pairs: pa.Table) -> pl.DataFrame:
    """Return the prompts and responses of all first and then all second sides."""
    prompt = pl.Series("prompt", plain_text(content_column(pairs, "prompt")))
    sides = (plain_text(content_column(pairs, side)) for side in ("first", "second"))
    return pl.concat(
        [pl.DataFrame({"prompt": prompt, "response": pl.Series("response", s)}) for s in sides]
    )
