"""Language models and releases that are made in a moment: bytes for tokens, two narrow layers.

The planted preference is for words of `PREFERRED`; a model of this size learns it in a few steps.
"""

import numpy as np
import pyarrow as pa
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import no_grad
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed

PREFERRED = ("yes", "good", "sure", "fine")
OTHERS = ("no", "bad", "never", "poor")
TOPICS = ("tea", "rain", "maps", "bread", "trains", "birds", "chess", "salt")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<eos>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer(chat=False):
    """One token a byte, and <eos> and <pad>; with a chat template if `chat`."""
    vocabulary = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<eos>", "<pad>"]
    numbered = {token: index for index, token in enumerate(vocabulary)}
    backend = Tokenizer(models.BPE(vocab=numbered, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>", model_max_length=256
    )
    if chat:
        made.chat_template = CHAT_TEMPLATE
    return made


def config(layers=2, width=32, *, positions=256, vocabulary=258):
    """Of a GPT-2 for `tokenizer`'s tokens."""
    return GPT2Config(
        vocab_size=vocabulary,
        n_positions=positions,
        n_embd=width,
        n_layer=layers,
        n_head=2,
        bos_token_id=256,
        eos_token_id=256,
        pad_token_id=257,
    )


def gpt2(seed=0, layers=2, width=32, **settings):
    """A GPT-2 with random weights, in memory: it has no path."""
    set_seed(seed)
    return GPT2LMHeadModel(config(layers, width, **settings))


def saved(directory, seed=0, layers=2, width=32, *, chat=False, **more):
    """The directory, with `gpt2` and `tokenizer` in it as `from_pretrained` reads them."""
    gpt2(seed, layers, width, **more).save_pretrained(directory)
    tokenizer(chat).save_pretrained(directory)
    return directory


def loaded(directory):
    """The model in a directory."""
    return GPT2LMHeadModel.from_pretrained(directory)


def certain(directory):
    """The path of a model so sure of itself that its log-probabilities differ much in bf16."""
    model = gpt2()
    with no_grad():
        for weights in model.parameters():
            weights.mul_(8)
    model.save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    return str(directory)


def planted(pairs, seed=0, *, chat=False):
    """Pairs of which `chosen` is truly preferred: columns item_id, prompt, chosen, rejected."""
    draw = np.random.default_rng(seed)
    prompts = [f"{TOPICS[k]}?" for k in draw.integers(len(TOPICS), size=pairs)]
    chosen, rejected = (_answers(draw, words, pairs) for words in (PREFERRED, OTHERS))
    if chat:
        prompts, chosen, rejected = (
            [[{"role": role, "content": text}] for text in texts]
            for role, texts in (("user", prompts), ("assistant", chosen), ("assistant", rejected))
        )
    identifiers = [f"{seed}-{row:06d}" for row in range(pairs)]
    return pa.table(
        {"item_id": identifiers, "prompt": prompts, "chosen": chosen, "rejected": rejected}
    )


def release_table(
    pairs,
    seed=0,
    *,
    flip_probability=None,
    label_probability=None,
    residual_flip_estimate=None,
    chat=False,
):
    """`planted` as a release has it, with the columns of noise; sides flipped where γ says so.

    The three are numbers, or arrays of shape (pairs,), or None: a column of nulls.
    """
    table = planted(pairs, seed, chat=chat)
    gamma = np.broadcast_to(0.0 if flip_probability is None else flip_probability, pairs)
    flipped = np.random.default_rng((seed, 1)).random(pairs) < gamma
    sides = [table["chosen"].to_pylist(), table["rejected"].to_pylist()]
    for name, first in (("chosen", 0), ("rejected", 1)):
        column = [sides[first ^ flip][row] for row, flip in enumerate(flipped.tolist())]
        table = table.set_column(table.column_names.index(name), name, pa.array(column))
    noise = {
        "label_probability": label_probability,
        "flip_probability": flip_probability,
        "residual_flip_estimate": residual_flip_estimate,
    }
    for name, values in noise.items():
        filled = pa.array(
            np.broadcast_to(np.nan if values is None else values, pairs), pa.float64()
        )
        column = pa.nulls(pairs, pa.float64()) if values is None else filled
        table = table.append_column(name, column)
    return table


def release(pairs, seed=0, **noise):
    """`release_table` as `lg.load(release, "datasets")` gives it."""
    return Dataset(release_table(pairs, seed, **noise))


def read_pairs(directory):
    """The pairs that `export` wrote, as a data set."""
    return Dataset.from_parquet(f"{directory}/pairs.parquet", keep_in_memory=True)


def _answers(draw, words, pairs):
    return [" ".join(words[k] for k in row) for row in draw.integers(len(words), size=(pairs, 2))]
