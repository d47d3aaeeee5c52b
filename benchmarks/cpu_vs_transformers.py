"""The CPU backend against Hugging Face transformers: same weights, same threads, same run.

    python benchmarks/cpu_vs_transformers.py MODEL [--threads 2] [--prompt 512] [--new 64] [--repeats 5]

Both compute in float32 with a cache of their own; transformers uses its `sdpa` attention. transformers gets
the very tensors that this engine reads (dequantised where the file is quantised), so both must choose the
same tokens, and the program fails if they don't. They run in turns, token by token, and medians are compared,
so what else the machine does meets both alike. Prefill is timed to the logits after the last token; decoding
is greedy. Needs `transformers`, which the project itself never uses. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from engine.checkpoints.model_folder import ModelFolder, open_model
from engine.models.spec import DenseSpec, ModelSpec
from engine.runtime import default_threads, prepare_runtime

if TYPE_CHECKING:  # torch is imported as the program does it: by prepare_runtime
    import transformers

    from engine.cpu.backend import CpuBackend


Choose = Callable[[list[int]], int]
"""Runs ids behind those it was given before and returns the most probable next one."""


@dataclass
class Timings:
    """Seconds for each prompt and for each token after one, and the tokens that were chosen last."""

    prefill: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    def take(self, choose: Choose, ids: list[int], times: list[float]) -> None:
        began = time.perf_counter()
        chosen = choose(ids)
        times.append(time.perf_counter() - began)
        self.ids.append(chosen)


def run_both(sides: list[tuple[Timings, Choose]], prompt: list[int], new: int) -> None:
    """One answer from each, in turns token by token: what else the machine does meets both alike."""
    for timings, choose in sides:
        timings.ids.clear()
        timings.take(choose, prompt, timings.prefill)
    for _ in range(new):
        for timings, choose in sides:
            timings.take(choose, timings.ids[-1:], timings.steps)


def engine_run(backend: CpuBackend) -> Choose:
    cache = backend.new_cache()
    return lambda ids: int(backend.forward(ids, cache).argmax())


def transformers_run(model: transformers.LlamaForCausalLM) -> Choose:
    import torch
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)

    @torch.inference_mode()
    def choose(ids: list[int]) -> int:
        out = model(torch.tensor([ids]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        return int(out.logits[0, -1].argmax())

    return choose


def transformers_model(folder: ModelFolder) -> transformers.LlamaForCausalLM:
    """Llama with our tensors. Settings that plain Llama doesn't have are refused, not dropped."""
    from transformers import LlamaForCausalLM

    spec = folder.spec
    model = LlamaForCausalLM(llama_config(spec)).eval()
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
    from transformers import LlamaConfig

    attention, dense = spec.layers[0].attention, spec.layers[0].feed_forward
    if spec.family != "Llama" or attention.rope.kind != "default" or not isinstance(dense, DenseSpec):
        raise SystemExit(
            "this benchmark compares models of the Llama family without scaled rotary embeddings"
        )
    return LlamaConfig(
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
    prepare_runtime(options.threads)
    import transformers

    from engine.cpu.backend import CpuBackend

    transformers.logging.set_verbosity_error()
    folder = open_model(options.model)
    backend = CpuBackend.load(folder.spec, folder.parameters, folder.tensors)
    model = transformers_model(folder)
    folder.tensors.close()
    prompt = random.Random(0).choices(range(folder.spec.vocab_size), k=options.prompt)

    run_both([(Timings(), engine_run(backend)), (Timings(), transformers_run(model))], prompt, 4)  # warm up
    ours, theirs = Timings(), Timings()
    for repeat in range(options.repeats):
        run_both([(theirs, transformers_run(model)), (ours, engine_run(backend))], prompt, options.new)
        if ours.ids != theirs.ids:
            raise SystemExit(f"the tokens differ: {ours.ids} against {theirs.ids}")
        print(f"run {repeat}: prefill {ours.prefill[-1]:.3f} s against {theirs.prefill[-1]:.3f} s")
    print(json.dumps(result(options, ours, theirs)))


def result(options: argparse.Namespace, ours: Timings, theirs: Timings) -> dict[str, object]:
    prefill, prefill_theirs = statistics.median(ours.prefill), statistics.median(theirs.prefill)
    step, step_theirs = statistics.median(ours.steps), statistics.median(theirs.steps)
    return {
        "model": options.model.name,
        "threads": options.threads,
        "prompt_tokens": options.prompt,
        "new_tokens": options.new,
        "repeats": options.repeats,
        "prefill_tokens_per_second": options.prompt / prefill,
        "prefill_tokens_per_second_transformers": options.prompt / prefill_theirs,
        "prefill_ratio": prefill_theirs / prefill,
        "decode_milliseconds_per_token": step * 1e3,
        "decode_milliseconds_per_token_transformers": step_theirs * 1e3,
        "decode_ratio": step_theirs / step,
        "same_tokens": True,
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


if __name__ == "__main__":
    main()
