"""How a byte-level vocabulary splits text into words, by the name that a GGUF file gives
(`tokenizer.ggml.pre`).

The names are llama.cpp's (src/llama-vocab.cpp); what each stands for is taken from the tokenizer.json that
the models were published with, whose patterns llama.cpp rewrites for its own regex engine. Normalizers are
not part of a GGUF file, so they stand here too: the Qwen tokenizers compose characters (NFC), without which
text from a Mac or Korean typed in parts becomes other tokens.

A name that isn't here is refused: splitting text in another way than in training gives words that look right
and a model that is worse, and nothing would ever tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine.tokenizers.tokenizer_definition import Component


@dataclass(frozen=True)
class PreTokenizer:
    """`splitters` are done one after the other; each splits the pieces of the one before."""

    splitters: tuple[Component, ...]
    nfc: bool = False
    ignore_merges: bool = False  # a word that is a token as a whole is taken whole
    adds_bos: bool = False  # where the file does not say

    @property
    def normalizer(self) -> Component | None:
        return {"type": "NFC"} if self.nfc else None

    @property
    def component(self) -> Component:
        if len(self.splitters) == 1:
            return self.splitters[0]
        return {"type": "Sequence", "pretokenizers": list(self.splitters)}


def _split(pattern: str) -> Component:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(*, use_regex: bool) -> Component:
    """Bytes as characters; `use_regex` splits with GPT-2's pattern first."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _words(pattern: str) -> PreTokenizer:
    return PreTokenizer((_split(pattern), _byte_level(use_regex=False)))


_DIGITS_ALONE: Component = {"type": "Digits", "individual_digits": True}

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _gpt4_pattern(numbers: str) -> str:
    """The pattern of cl100k and its many children, which differ in how numbers are cut."""
    return rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}|{_SYMBOLS}|{_SPACES}"


def _case_pattern(after_word: str, numbers: str) -> str:
    """The pattern of o200k and Tekken: a capital inside a word begins a new one."""
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{after_word}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{after_word}"
        rf"|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


_GPT2 = PreTokenizer((_byte_level(use_regex=True),))
_DIGITS_GPT2 = PreTokenizer((_DIGITS_ALONE, _byte_level(use_regex=True)))
_LLAMA3 = replace(_words(_gpt4_pattern(r"\p{N}{1,3}")), ignore_merges=True, adds_bos=True)
_DBRX = _words(_gpt4_pattern(r"\p{N}{1,3}"))
_QWEN2 = replace(_words(_gpt4_pattern(r"\p{N}")), nfc=True)
_QWEN35 = replace(
    _words(
        rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
    ),
    nfc=True,
)
_TEKKEN = replace(_words(_case_pattern("", r"\p{N}")), ignore_merges=True, adds_bos=True)
_O200K = _words(_case_pattern(f"{_CONTRACTION}?", r"\p{N}{1,3}"))
_SEED_CODER = _words(
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
)

_CJK = "[一-龥ࠀ-一가-퟿]+"
# Letters of the scripts that have two cases (Latin, Greek, Cyrillic, …), as DeepSeek lists them. Escaped:
# several of them turn into others as soon as something normalizes this file.
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102"
    "\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
_DEEPSEEK_LLM = PreTokenizer(
    (
        _split("[\r\n]"),
        _split(rf"\s?[{_CASED_LETTERS}]+"),
        _split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
        _split(r"\s+$"),
        _split(_CJK),
        _DIGITS_ALONE,
        _byte_level(use_regex=False),
    )
)
_DEEPSEEK_CODER = PreTokenizer(
    (
        _split("[\r\n]"),
        _split(r"\s?\p{L}+"),
        _split(r"\s?\p{P}+"),
        _split(_CJK),
        _DIGITS_ALONE,
        _byte_level(use_regex=False),
    )
)
_DEEPSEEK_V3 = PreTokenizer(
    (
        _split(r"\p{N}{1,3}"),
        _split("[一-龥぀-ゟ゠-ヿ]+"),
        _split(
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
        ),
        _byte_level(use_regex=False),
    )
)
# What llama.cpp does for the name "default", which old conversions gave to vocabularies they didn't know.
_DEFAULT = PreTokenizer(
    (
        _split(r"[\p{P}\$\+<=>\^~\|]+"),
        _split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
        _split(r"\p{N}+"),
        _split("[0-9][0-9][0-9]"),
        _byte_level(use_regex=False),
    )
)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": _DEFAULT,
    **dict.fromkeys(("gpt-2", "phi-2", "mellum", "a.x-4.0", "trillion"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "minerva-7b"), _DIGITS_GPT2),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "midm-2.0"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _DBRX),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "f2llmv2"), _QWEN2),
    "qwen35": _QWEN35,
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), _O200K),
    "seed-coder": _SEED_CODER,
    "deepseek-llm": _DEEPSEEK_LLM,
    "deepseek-coder": _DEEPSEEK_CODER,
    "deepseek-v3": _DEEPSEEK_V3,
}
