"""The CPU backend against Hugging Face transformers: same weights, same threads, same run.

    python benchmarks/cpu_vs_transformers.py MODEL [--threads 2] [--prompt 512] [--new 64] [--repeats 5]

Both compute in float32 with a cache of their own; transformers uses its `sdpa` attention. transformers gets
the very tensors that this engine reads (dequantised where the file is quantised), so both must choose the
same tokens, and the program fails if they don't. Runs alternate, and medians are compared, so what else the
machine does meets both. Prefill is timed to the logits after the last token; decoding is greedy. Needs
`transformers`, which the project itself never uses. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from engine.cpu.backend import CpuBackend
from engine.model_folder import ModelFolder, open_model
from engine.models.spec import ModelSpec
from engine.runtime import default_threads, prepare_runtime


@dataclass(frozen=True)
class Timing:
    """Seconds for the prompt and for each token after it, and the tokens that were chosen."""

    prefill: float
    per_token: float
    ids: list[int]


def run(
    prefill: Callable[[list[int]], int], step: Callable[[int], int], prompt: list[int], new: int
) -> Timing:
    """`prefill` and `step` return the most probable next token."""
    began = time.perf_counter()
    ids = [prefill(prompt)]
    prefill_seconds = time.perf_counter() - began
    began = time.perf_counter()
    while len(ids) <= new:
        ids.append(step(ids[-1]))
    return Timing(prefill_seconds, (time.perf_counter() - began) / new, ids)


def run_engine(backend: CpuBackend, prompt: list[int], new: int) -> Timing:
    cache = backend.new_cache()

    def choose(ids: list[int]) -> int:
        return int(backend.forward(ids, cache).argmax())

    return run(choose, lambda token: choose([token]), prompt, new)


def run_transformers(model: transformers.LlamaForCausalLM, prompt: list[int], new: int) -> Timing:
    cache = transformers.DynamicCache(config=model.config)

    def choose(ids: list[int]) -> int:
        out = model(torch.tensor([ids]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        return int(out.logits[0, -1].argmax())

    with torch.inference_mode():
        return run(choose, lambda token: choose([token]), prompt, new)


def transformers_model(folder: ModelFolder) -> transformers.LlamaForCausalLM:
    """Llama with our tensors. Settings that plain Llama doesn't have are refused, not dropped."""
    spec = folder.spec
    model = transformers.LlamaForCausalLM(llama_config(spec)).eval()
    state = {}
    for parameter in folder.parameters:
        for piece in parameter.pieces:
            name = piece.source if piece.source.startswith("lm_head.") else f"model.{piece.source}"
            state[name] = folder.tensors.read(piece.source).float()
    if spec.tied_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True, assign=True)
    model.tie_weights()
    return model


def llama_config(spec: ModelSpec) -> transformers.LlamaConfig:
    layer = spec.layers[0]
    attention, dense = layer.attention, layer.feed_forward
    if spec.family != "Llama" or attention.rope.kind != "default":
        raise SystemExit(
            "this benchmark compares models of the Llama family without scaled rotary embeddings"
        )
    return transformers.LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=dense.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=attention.num_heads,
        num_key_value_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        max_position_embeddings=spec.context_length,
        rms_norm_eps=spec.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": attention.rope.theta},
        attention_bias=attention.qkv_bias,
        mlp_bias=dense.bias,
        tie_word_embeddings=spec.tied_embeddings,
        attn_implementation="sdpa",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens decoded after it")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    prepare_runtime(options.threads)

    folder = open_model(options.model)
    backend = CpuBackend.load(folder.spec, folder.parameters, folder.tensors)
    model = transformers_model(folder)
    folder.tensors.close()
    prompt = random.Random(0).choices(range(folder.spec.vocab_size), k=options.prompt)

    run_engine(backend, prompt, 4)  # both warm up
    run_transformers(model, prompt, 4)
    ours, theirs = [], []
    for repeat in range(options.repeats):
        theirs.append(run_transformers(model, prompt, options.new))
        ours.append(run_engine(backend, prompt, options.new))
        if ours[-1].ids != theirs[-1].ids:
            raise SystemExit(f"the tokens differ: {ours[-1].ids} against {theirs[-1].ids}")
        print(
            f"run {repeat}: prefill {ours[-1].prefill:.3f} s against {theirs[-1].prefill:.3f} s, "
            f"decode {ours[-1].per_token * 1e3:.1f} ms against {theirs[-1].per_token * 1e3:.1f} ms a token"
        )
    print(json.dumps(result(options, ours, theirs)))


def result(options: argparse.Namespace, ours: list[Timing], theirs: list[Timing]) -> dict[str, object]:
    def median(runs: list[Timing], field: str) -> float:
        return statistics.median(getattr(timing, field) for timing in runs)

    prefill, prefill_theirs = median(ours, "prefill"), median(theirs, "prefill")
    decode, decode_theirs = median(ours, "per_token"), median(theirs, "per_token")
    return {
        "model": options.model.name,
        "threads": options.threads,
        "prompt_tokens": options.prompt,
        "new_tokens": options.new,
        "repeats": options.repeats,
        "prefill_tokens_per_second": options.prompt / prefill,
        "prefill_tokens_per_second_transformers": options.prompt / prefill_theirs,
        "prefill_ratio": prefill_theirs / prefill,
        "decode_tokens_per_second": 1 / decode,
        "decode_tokens_per_second_transformers": 1 / decode_theirs,
        "decode_ratio": decode_theirs / decode,
        "same_tokens": True,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


if __name__ == "__main__":
    main()
