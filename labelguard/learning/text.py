"""Features of plain words: tf-idf of the responses, reduced by a truncated SVD. No torch.

Words and pairs of adjacent words are hashed into 32,768 columns (so that no vocabulary, and thus no
text, is kept), weighted by the inverse document frequency of the texts it was fitted on, normalised
to length 1 and projected on their leading right singular vectors (latent semantic analysis,
Deerwester et al. 1990). The prompt is left out: it is the same on both sides.

n-grams of characters would cost four times as much to hash and as much again to factorise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from labelguard.errors import InvalidLabels
from labelguard.learning.columns import content_column, plain_text
from labelguard.learning.providers import (
    Features,
    FittedProvider,
    State,
    refuse_options,
    sample_pairs,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

COLUMNS = 1 << 15
COMPONENTS = 128
# The SVD sees at most this many texts, evenly spaced in their sorted order.
FACTORISED_TEXTS = 20_000

_PORTION = 1 << 14


def text(options: str, state: State | None) -> WordFeatures:
    """Return the provider `text`, fitted earlier if `state` is given."""
    refuse_options("text", options)
    return WordFeatures(state)


class WordFeatures(FittedProvider):
    """φ(prompt, response) from the words of the response alone; d <= 128.

    What is learnt depends on the set of distinct responses only, not on their order or side. The
    state holds, of the c hashed columns that occur, `columns` (c,), `idf` (c,) and `components`
    (d, c): at most 17 MB.
    """

    name = "text"
    arrays = frozenset({"columns", "idf", "components"})

    def fit(self, pairs: pa.Table) -> None:
        """Learn frequencies and components from the distinct responses of at most 65,536 pairs.

        Raises `InvalidLabels` if no response holds a word.
        """
        responses = pc.unique(_responses(sample_pairs(pairs)))
        responses = responses.take(pc.sort_indices(responses))
        counts = self._count_words(responses)
        documents = np.bincount(counts.indices, minlength=COLUMNS)
        columns = np.flatnonzero(documents).astype(np.int32)
        if not len(columns):
            raise InvalidLabels("features text: no response holds a word of two letters or more")
        idf = np.log((1 + len(responses)) / (1 + documents[columns])) + 1
        self._state = {"columns": columns, "idf": idf.astype(np.float32)}
        self._state["components"] = _right_singular_vectors(self._weigh(_evenly_spaced(counts)))

    def __call__(self, pairs: pa.Table) -> Features:
        """Return the difference of the two responses' components, shape (n, d), float32.

        Raises `LabelguardError` before `fit`.
        """
        components = np.ascontiguousarray(self.fitted_state["components"].T)
        encoded = _responses(pairs).dictionary_encode()
        vectors = self._weigh(self._count_words(encoded.dictionary)) @ components
        index = encoded.indices.to_numpy()
        first, second = index[: pairs.num_rows], index[pairs.num_rows :]
        return np.asarray(vectors[first] - vectors[second])

    def identity(self) -> str:
        """Return the settings; what was learnt is named by the digest of the state."""
        return f"text words=1-2 hashed={COLUMNS} tf-idf l2 svd={COMPONENTS} float32"

    def _weigh(self, counts: csr_matrix) -> csr_matrix:
        """Return tf-idf over the columns that occurred in `fit`, rows of length 1 (0: no words)."""
        chosen = counts[:, self._state["columns"]]
        chosen.data *= self._state["idf"][chosen.indices]
        row = np.repeat(np.arange(chosen.shape[0]), np.diff(chosen.indptr))
        lengths = np.sqrt(np.bincount(row, chosen.data.astype(float) ** 2))
        chosen.data /= lengths[row].astype(np.float32)
        return chosen

    def _count_words(self, responses: pa.Array) -> csr_matrix:
        """Return signed counts of hashed words and word pairs, shape (texts, COLUMNS), float32."""
        from scipy.sparse import csr_matrix, vstack
        from sklearn.feature_extraction.text import HashingVectorizer

        hashing = HashingVectorizer(
            n_features=COLUMNS, ngram_range=(1, 2), norm=None, dtype=np.float32
        )
        parts = [csr_matrix((0, COLUMNS), dtype=np.float32)]
        for start in range(0, len(responses), _PORTION):
            if self.progress:
                self.progress("counting words", start / len(responses))
            parts.append(hashing.transform(responses.slice(start, _PORTION).to_pylist()))
        return vstack(parts, format="csr")


def _responses(pairs: pa.Table) -> pa.Array:
    """Return the texts of all first and then all second sides."""
    return pa.concat_arrays(
        [plain_text(content_column(pairs, side)) for side in ("first", "second")]
    )


def _evenly_spaced(counts: csr_matrix) -> csr_matrix:
    texts = counts.shape[0]
    if texts <= FACTORISED_TEXTS:
        return counts
    return counts[np.arange(FACTORISED_TEXTS) * texts // FACTORISED_TEXTS]


def _right_singular_vectors(weighted: csr_matrix) -> Features:
    """Return the leading right singular vectors (d, c), float32; d <= 128 is at most the rank."""
    from sklearn.utils.extmath import randomized_svd

    size = min(COMPONENTS, *weighted.shape)
    _, strengths, components = randomized_svd(weighted, size, n_iter=4, random_state=0)
    # A direction without strength is rounding noise.
    strong = components[strengths > strengths[0] * 1e-5]
    return np.ascontiguousarray(strong, dtype=np.float32)
