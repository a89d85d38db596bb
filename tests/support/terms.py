"""Words of our own in what commands print: each is explained by the README, or by the output."""

import re

from support.pages import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
# Those of the glossary (docs/concepts.md) and of cards that a reader cannot know.
TERMS = (
    *("ε", "ε0", "δ", "γ", "σ", "accountant", "adjacency", "allowance", "anchor", "ball noise"),
    *(
        "block",
        "bound",
        "canary",
        "ceiling",
        "charge",
        "clip norm",
        "cohort",
        "component",
        "connector",
    ),
    *("content", "curator", "dead letter", "draft", "dry run", "els", "epoch", "erased", "event"),
    *("feature", "flip probability", "gate", "head", "held out", "held-out", "hook"),
    *("inbox", "item", "journal", "labeler", "ledger", "loss multiplier", "mechanism"),
    *("noise multiplier", "policy", "private map", "project", "promote", "props", "pseudonym"),
    *("quarantine", "release", "replace_labels", "retired", "rr", "segment", "sensitivity"),
    *("source", "statistic", "teacher", "tie", "tombstone", "training run", "uls", "uninformative"),
    *("unit", "use", "window"),
)

_WORDS = {
    word.lower() for pair in re.findall(r"\*\*([^*]+)\*\*|`([^`]+)`", README) for word in pair
}


def unexplained(text):
    """The terms in a command's output that neither the README nor the output explains."""
    return [
        term
        for term in TERMS
        if re.search(rf"(?<![\w-]){_forms(term)}(?![\w-]|\.\w)", text, re.IGNORECASE)
        and not any(re.fullmatch(_forms(term), word) for word in _WORDS)
        and not re.search(
            rf"\({_forms(term)}\)|{_forms(term)}( \(|: |, (?:who|which|that|a) )[a-z]",
            text,
            re.IGNORECASE,
        )
    ]


def _forms(term):
    """A term, or its plural; of `policy` policies, of `charge` charged."""
    stem = re.escape(term.removesuffix("y"))
    return rf"{stem}(?:y|ies)" if term.endswith("y") else rf"{stem}(?:e?s|d)?"
