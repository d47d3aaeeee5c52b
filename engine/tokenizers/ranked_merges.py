"""Merges for vocabularies that have only an order: SentencePiece scores and tiktoken ranks.

Both join, again and again, the two neighbours whose union is the best token of the vocabulary. As a list of
merges: every way of cutting a token into two tokens, best token first.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.checkpoints.foreign_files import shown
from engine.errors import TokenizerError
from engine.tokenizers.tokenizer_definition import MergeList

MAX_TOKEN_CHARACTERS = 1024  # the longest in use are runs of 256 spaces; cutting is quadratic in the length


def merges_by_rank(tokens: Sequence[str]) -> MergeList:
    """`tokens` come best first. Of several cuts of one token the one with the better left part comes
    first."""
    rank_of = {token: rank for rank, token in enumerate(tokens)}
    merges = MergeList()
    for token in tokens:
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise TokenizerError(
                f"The vocabulary holds a token of {len(token):,} characters ({shown(token, 40)}).",
                "Download the tokenizer's file again.",
            )
        cuts = [
            (rank_of[left], left, right)
            for cut in range(1, len(token))
            if (left := token[:cut]) in rank_of and (right := token[cut:]) in rank_of
        ]
        for _, left, right in sorted(cuts):
            merges.append(left, right)
    return merges
