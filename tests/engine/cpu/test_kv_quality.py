"""What the int8 cache costs a real model."""

from __future__ import annotations

from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch

from engine.checkpoints.model_folder import open_model
from engine.cpu.backend import CpuBackend
from engine.kv_geometry import KvFormat
from engine.tokenizers.tokenizer import load_tokenizer

TOKENS = 2000
BLOCK = 250


@pytest.mark.real
@pytest.mark.slow
def test_int8_rows_cost_less_than_a_five_hundredth_of_the_likelihood(starter_model_path: Path) -> None:
    folder = open_model(starter_model_path)
    text = "\n\n".join(topics[key] for key in sorted(topics))[: 8 * TOKENS]
    ids = load_tokenizer(folder.tokenizer).encode(text, parse_special=False)[: TOKENS + 1]
    backend = CpuBackend.load(folder.spec, folder.parameters, folder.tensors)
    folder.tensors.close()

    def nll(kv: KvFormat) -> float:
        cache, total = backend.new_cache(kv), 0.0
        for first in range(0, TOKENS, BLOCK):
            logits = backend.forward(ids[first : first + BLOCK], cache, all_logits=True).double()
            following = torch.tensor(ids[first + 1 : first + 1 + BLOCK])
            total -= float(logits.log_softmax(-1).gather(1, following[:, None]).sum())
        return total / TOKENS

    native = nll("native")
    assert len(ids) == TOKENS + 1
    assert 1 < native < 4  # it reads English
    assert abs(nll("int8") - native) < 0.002 * native
