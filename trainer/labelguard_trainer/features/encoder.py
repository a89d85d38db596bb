"""A frozen encoder as a provider of features: the mean of its last layer, or the last token.

Every distinct (prompt, response) is encoded once and stored in a cache (see `cache`): a second run
loads no model. One text's vector depends on its neighbours in a batch only through
rounding (about 1e-7 in float32), and the cache returns it bit for bit.

bfloat16 on a GPU and float32 elsewhere, unless the specification says `dtype=…`. The two differ (by
1% of a difference's length for MiniLM), are cached apart and have different identities: fit and
score with one of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.errors import LabelguardError
from labelguard.learning.features import Features
from labelguard.release.model_card import find_learned_releases
from labelguard.text import Progress
from labelguard_trainer.features.cache import VectorCache
from labelguard_trainer.features.tokens import (
    DistinctTexts,
    InputTokenizer,
    TokenIds,
    find_distinct_texts,
)

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_PORTION = 4096  # distinct texts that are encoded, then cached, together: what a crash may lose
TOKENS_PER_BATCH = {"cpu": 1 << 14, "cuda": 1 << 16}  # with padding, and tokens to be generated

# What decides the numbers; other files of a model directory are documentation.
WEIGHTS = ("model*.safetensors",)
TOKENIZER = (
    "tokenizer*",
    "vocab.*",
    "merges.txt",
    "*.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
SETTINGS = ("config.json", "modules.json", "sentence_bert_config.json")


@dataclass(frozen=True)
class EncoderConfig:
    """A frozen encoder: a directory with weights (safetensors), tokenizer and config.json.

    `pooling` is mean or last (the last token); `template` is chat (the tokenizer's own) or lines
    (`role: content`), and matters for chats only; `input` is both (prompt and response) or the
    response alone; `normalize` gives vectors length 1.
    """

    directory: Path
    name: str
    dtype: str
    max_tokens: int
    pooling: str = "mean"
    template: str = "lines"
    input: str = "both"
    normalize: bool = False


def _blank_prompts(pairs: pa.Table) -> pa.Table:
    """Return the same pairs as answers to nothing."""
    kind = pairs.schema.field("prompt").type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    empty = pa.repeat(pa.scalar("" if text else [], kind), pairs.num_rows)
    return pairs.set_column(pairs.column_names.index("prompt"), "prompt", empty)


class FrozenEncoder:
    """φ(prompt, response) by one frozen encoder, cached; nothing is learnt from pairs.

    `progress`, if set, is called with the share that is done of the texts that were not cached.
    """

    _model_class = "AutoModel"

    def __init__(
        self,
        config: EncoderConfig,
    ) -> None:
        self.config = config
        self.progress: Progress | None = None
        self.stored = True  # whether vectors go to the cache on disk; not those of passing texts

    def fit(self, pairs: pa.Table) -> None:
        """Learn nothing: the encoder is frozen. Raise `LabelguardError` for one of raw labels.

        What it says of a pair would tell them, by the card in its directory; features are public.
        """
        find_learned_releases(str(self.config.directory), private=True)

    def state(self) -> dict[str, NDArray[Any]]:
        """{}: weights and settings are named by the identity."""
        return {}

    def identity(self) -> str:
        """Settings and SHA-256 of weights, tokenizer and configuration; never a path."""
        return self._identity

    def _list_distinct_texts(self, pairs: pa.Table) -> DistinctTexts:
        alone = self.config.input == "response"
        return find_distinct_texts(_blank_prompts(pairs) if alone else pairs)

    def __call__(self, pairs: pa.Table) -> Features:
        """φ(prompt, first) − φ(prompt, second), shape (n, d), float32."""
        texts = self._list_distinct_texts(pairs)
        if not len(texts.keys):
            return np.zeros((0, self._width), np.float32)
        vectors = self._encode_with_cache(texts)
        features: Features = vectors[texts.first]
        features -= vectors[texts.second]
        return features

    def _encode_with_cache(self, texts: DistinctTexts) -> Features:
        """Vectors of at least one text, shape (m, d); those that are missing are computed."""
        if not self.stored:
            return self._encode(texts, np.arange(len(texts.keys)), 0, len(texts.keys))
        cache = VectorCache(self._identity)
        missing = np.flatnonzero(~cache.contains(texts.keys))
        if len(missing):
            cache.prepare()
        for done in range(0, len(missing), _PORTION):
            rows = missing[done : done + _PORTION]
            vectors = self._encode(texts, rows, done, len(missing))
            cache.store(texts.keys[rows], vectors)
        return cache.vectors(texts.keys)

    @cached_property
    def _identity(self) -> str:
        config = self.config
        return (
            f"{config.name} pooling={config.pooling} normalize={config.normalize} "
            f"template={config.template} input={config.input} "
            f"max_tokens={config.max_tokens} dtype={config.dtype} "
            f"weights=sha256:{_hash_matching_files(config.directory, WEIGHTS)} "
            f"tokenizer=sha256:{_hash_matching_files(config.directory, TOKENIZER)} "
            f"settings=sha256:{_hash_matching_files(config.directory, SETTINGS)} input=1"
        )

    @cached_property
    def _input_tokenizer(self) -> InputTokenizer:
        return InputTokenizer(self._load_tokenizer(), self.config.max_tokens, self.config.template)

    def _load_tokenizer(self) -> PreTrainedTokenizerBase:
        from transformers import AutoTokenizer

        with _explain_failed_loading(self.config.directory):
            # Inputs are cut to max_tokens; a limit of its own would only have the tokenizer warn.
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                self.config.directory, local_files_only=True, model_max_length=10**9
            )
        return tokenizer

    @cached_property
    def _model(self) -> PreTrainedModel:
        """The weights as a model of the provider's class; without a task head, the encoder."""
        import torch
        import transformers

        with _explain_failed_loading(self.config.directory):
            model: PreTrainedModel = getattr(transformers, self._model_class).from_pretrained(
                self.config.directory,
                dtype=getattr(torch, self.config.dtype),
                local_files_only=True,
                use_safetensors=True,
            )
        model.config.use_cache = False
        if self._model_class == "AutoModel" and model.config.is_encoder_decoder:
            model = model.get_encoder()
        return model.to(device()).eval()

    @property
    def _width(self) -> int:
        return int(self._model.config.hidden_size)

    def _encode(
        self, texts: DistinctTexts, rows: NDArray[np.intp], encoded_before: int, to_encode: int
    ) -> Features:
        """Vectors of the chosen texts, shape (len(rows), d); batches are longest first."""
        inputs = self._input_tokenizer(texts.prompts.take(rows), texts.responses.take(rows))
        lengths = np.array([len(ids) for ids in inputs])
        longest_first = np.argsort(-lengths, kind="stable")
        limit = TOKENS_PER_BATCH[device()]
        vectors: list[Features] = []
        done = encoded_before
        for batch in batch_by_tokens(longest_first, lengths, limit):
            self._report_progress(done / to_encode)
            vectors.append(self._forward([inputs[row] for row in batch]))
            done += len(batch)
        self._report_progress(done / to_encode)
        encoded = np.concatenate(vectors)
        return encoded[np.argsort(longest_first)]

    def _report_progress(self, share: float) -> None:
        if self.progress:
            self.progress("encoding", share)

    def _forward(self, inputs: list[TokenIds]) -> Features:
        """Vectors of one batch, shape (len(inputs), d), float32."""
        import torch

        longest = len(inputs[0])
        ids = np.full((len(inputs), longest), self._input_tokenizer.padding)
        for row, tokens in enumerate(inputs):
            ids[row, : len(tokens)] = tokens
        lengths = torch.tensor([len(tokens) for tokens in inputs], device=device())
        # Padding is on the right, so that positions count from the text's start in every model.
        mask = torch.arange(longest, device=device()) < lengths[:, None]
        with torch.inference_mode():
            vectors = self._compute_vectors(torch.from_numpy(ids).to(device()), mask)
        array: Features = vectors.float().cpu().numpy()
        return array

    def _compute_vectors(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Vectors of a batch, (b, t), (b, t) → (b, d)."""
        import torch

        hidden = self._model(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()
        pooled = _pool(hidden, mask, self.config.pooling)
        if self.config.normalize:
            pooled = torch.nn.functional.normalize(pooled, dim=1)
        return pooled


def batch_by_tokens(
    order: NDArray[np.intp], lengths: NDArray[np.int_], limit: int
) -> Iterator[NDArray[np.intp]]:
    """Consecutive rows of `order` (longest first), at most `limit` tokens with their padding."""
    start = 0
    while start < len(order):
        count = max(limit // int(lengths[order[start]]), 1)
        yield order[start : start + count]
        start += count


def _pool(hidden: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """Mean over the real tokens, or the last of them: (b, t, d), (b, t) → (b, d)."""
    if pooling == "last":
        return hidden[range(len(hidden)), mask.sum(dim=1) - 1]
    weights = mask.float()
    return (hidden * weights[:, :, None]).sum(dim=1) / weights.sum(dim=1, keepdim=True)


def device() -> str:
    """Return where torch computes: cuda (also AMD's) if there is one, else cpu."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def _explain_failed_loading(directory: Path) -> Iterator[None]:
    """No progress bars and reports of the loader's own; one line for what goes wrong."""
    from safetensors import SafetensorError
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0]
        raise LabelguardError(f"cannot load the encoder in {directory}: {reason}") from None
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _hash_matching_files(directory: Path, patterns: tuple[str, ...]) -> str:
    """SHA-256 of the names and contents of the files that match, in the order of names."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in directory.glob(pattern)}):
        status = path.stat()
        content = _hash_file(path, status.st_ino, status.st_size, status.st_mtime_ns)
        digest.update(f"{path.name} {content}\n".encode())
    return digest.hexdigest()


@lru_cache(maxsize=64)
def _hash_file(path: Path, inode: int, size: int, changed: int) -> str:
    """SHA-256 of a file, read once a process as long as it does not change."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class FrozenJudge(FrozenEncoder):
    """A model with a task head, which gives one number."""

    @property
    def _width(self) -> int:
        return 1
