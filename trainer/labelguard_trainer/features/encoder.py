"""A frozen encoder as a provider of features: the mean of its last layer, or the last token.

Every distinct (prompt, response) is encoded once and stored in a cache (see `cache`): a second run
loads no model. One text's vector depends on its neighbours in a batch only through
rounding (about 1e-7 in float32), and the cache returns it bit for bit.

bfloat16 on a GPU and float32 elsewhere, unless the specification says `dtype=…`. The two differ (by
1% of a difference's length for MiniLM), are cached apart and have different identities: fit and
score with one of them.

Texts are encoded in portions, whose batches depend on nothing else. Without a GPU a batch is
computed on one core, since the order of sums depends on how many share them; here several batches
are computed at once. So may the workers of an engine encode a portion each: the command caches what
they return, and the cache has the same bytes as if this process had encoded all.
"""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.errors import LabelguardError
from labelguard.learning.providers import Features
from labelguard.release.model_card import find_learned_releases
from labelguard.storage.executor import Workers, run_ahead, run_over_buckets
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
_TOKENS_PER_BATCH = {"cpu": 1 << 11, "cuda": 1 << 16}
# Held while torch computes on one core each: their number is a setting of the whole process.
_ONE_CORE = threading.Lock()

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

    `progress`, if set, is called with the share that is done of the texts that were not cached;
    `workers`, if set, encode these where they are not threads of this process. `runs_on` is where
    torch computes; by default a GPU if there is one. `cores` is how many batches are computed at
    once without a GPU; by default as many as torch has threads.
    """

    _model_class = "AutoModel"

    def __init__(
        self,
        config: EncoderConfig,
        *,
        runs_on: str | None = None,
        cores: int | None = None,
    ) -> None:
        self.config = config
        self.progress: Progress | None = None
        self.workers: Workers | None = None
        self.stored = True  # whether vectors go to the cache on disk; not those of passing texts
        self._runs_on = runs_on
        self._cores = cores

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
            return self.encode(texts.prompts, texts.responses)
        cache = VectorCache(self._identity)
        missing = np.flatnonzero(~cache.contains(texts.keys))
        if len(missing):
            cache.prepare()
        portions = [missing[at : at + _PORTION] for at in range(0, len(missing), _PORTION)]
        workers = self.workers
        if workers and len(portions) > 1 and self._can_use(workers):
            encoded = self._encode_by_workers(texts, portions, workers)
        else:
            encoded = self._encode_portions(texts, portions)
        for rows, vectors in zip(portions, encoded, strict=True):
            cache.store(texts.keys[rows], vectors)
        return cache.vectors(texts.keys)

    def _can_use(self, workers: Workers) -> bool:
        """Return True for workers outside of this process, unless it has a GPU."""
        return not workers.executor.shares_memory and self._device == "cpu"

    def _encode_portions(
        self, texts: DistinctTexts, portions: Sequence[NDArray[np.intp]]
    ) -> Iterator[Features]:
        """Yield the vectors of each portion of rows, computed here."""
        done, total = 0, sum(map(len, portions))
        for rows in portions:
            yield self.encode(texts.prompts.take(rows), texts.responses.take(rows), done, total)
            done += len(rows)

    def _encode_by_workers(
        self, texts: DistinctTexts, portions: Sequence[NDArray[np.intp]], workers: Workers
    ) -> Iterator[Features]:
        """Yield the vectors of each portion of rows, computed by workers from a file of texts."""
        with TemporaryDirectory(prefix="labelguard-", dir=workers.scratch) as directory:
            task = EncodingTask(type(self), self.config, self._identity, Path(directory))
            for number, rows in enumerate(portions):
                columns = [texts.prompts.take(rows), texts.responses.take(rows)]
                task.write(number, pa.record_batch(columns, names=["prompt", "response"]))
            report, count = self._report_progress, len(portions)
            yield from run_over_buckets(workers.executor, encode_portion, task, report, count=count)

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
        return model.to(self._device).eval()

    @cached_property
    def _device(self) -> str:
        return self._runs_on or device()

    @property
    def _width(self) -> int:
        return int(self._model.config.hidden_size)

    def encode(
        self,
        prompts: pa.Array,
        responses: pa.Array,
        encoded_before: int = 0,
        to_encode: int | None = None,
    ) -> Features:
        """Return the vectors of texts, shape (m, d); batches are longest first."""
        inputs = self._input_tokenizer(prompts, responses)
        to_encode = to_encode or len(inputs)
        lengths = np.array([len(ids) for ids in inputs])
        longest_first = np.argsort(-lengths, kind="stable")
        limit = _TOKENS_PER_BATCH[self._device]
        batches = [
            [inputs[row] for row in rows] for rows in batch_by_tokens(longest_first, lengths, limit)
        ]
        vectors: list[Features] = []
        done = encoded_before
        self._report_progress(done / to_encode)
        for result in self._compute_batches(batches):
            vectors.append(result)
            done += len(result)
            self._report_progress(done / to_encode)
        encoded = np.concatenate(vectors)
        return encoded[np.argsort(longest_first)]

    def _report_progress(self, share: float) -> None:
        if self.progress:
            self.progress("encoding", share)

    def _compute_batches(self, batches: Sequence[list[TokenIds]]) -> Iterator[Features]:
        """Yield the vectors of each batch, in order; without a GPU each from one core.

        Passing texts are few, and nothing is compared with their last bits: all cores share them.
        """
        import torch

        if self._device != "cpu" or not self.stored:
            yield from map(self._forward, batches)
            return

        def compute(number: int) -> Features:
            return self._forward(batches[number])

        assert self._model  # loaded before several threads want it
        with _ONE_CORE:
            threads = torch.get_num_threads()
            cores = self._cores or threads
            torch.set_num_threads(1)
            try:
                with ThreadPoolExecutor(cores) as pool:
                    yield from run_ahead(pool, cores, compute, range(len(batches)))
            finally:
                torch.set_num_threads(threads)

    def _forward(self, inputs: list[TokenIds]) -> Features:
        """Vectors of one batch, shape (len(inputs), d), float32."""
        import torch

        longest = len(inputs[0])
        ids = np.full((len(inputs), longest), self._input_tokenizer.padding)
        for row, tokens in enumerate(inputs):
            ids[row, : len(tokens)] = tokens
        lengths = torch.tensor([len(tokens) for tokens in inputs], device=self._device)
        # Padding is on the right, so that positions count from the text's start in every model.
        mask = torch.arange(longest, device=self._device) < lengths[:, None]
        with torch.inference_mode():
            vectors = self._compute_vectors(torch.from_numpy(ids).to(self._device), mask)
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


@dataclass(frozen=True)
class EncodingTask:
    """Portions of texts in files of a directory, and the encoder by its class and identity."""

    encoder: type[FrozenEncoder]
    config: EncoderConfig
    identity: str
    directory: Path

    def write(self, number: int, texts: pa.RecordBatch) -> None:
        """Write a portion: columns prompt and response."""
        with pa.ipc.new_file(self._path(number), texts.schema) as writer:
            writer.write_batch(texts)

    def read(self, number: int) -> pa.RecordBatch:
        """Return a portion."""
        with pa.OSFile(self._path(number)) as source:
            return pa.ipc.open_file(source).get_batch(0)

    def _path(self, number: int) -> str:
        return str(self.directory / f"{number:06d}.arrow")


def encode_portion(task: EncodingTask, number: int) -> Features:
    """Return the vectors of one portion, in a worker.

    Raises `LabelguardError` if the encoder's files are others than those of the command.
    """
    texts = task.read(number)
    return _open_encoder(task).encode(texts["prompt"], texts["response"])


@lru_cache(maxsize=1)
def _open_encoder(task: EncodingTask) -> FrozenEncoder:
    """Return the encoder of a task, whose weights each process loads once."""
    opened = task.encoder(task.config, runs_on="cpu", cores=1)  # one task runs for each core
    if opened.identity() != task.identity:
        raise LabelguardError(
            f"worker {socket.gethostname()} has no encoder in {task.config.directory}, or another "
            "one than the command; an engine needs the same files under the same path everywhere"
        )
    return opened


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
