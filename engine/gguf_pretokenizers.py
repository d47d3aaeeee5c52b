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

from engine.tokenizer_definition import Component


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
# Letters of the scripts that have two cases: Latin, Greek, Cyrillic, Armenian, Georgian, Cherokee, Coptic, …
_CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼι"
    "ῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
    "𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
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
