"""A real card that fails while it answers; in a process of its own, which can't use the card any more."""

from __future__ import annotations

import json

import pytest
from card_process import ROOT, output_of

from engine.cuda.availability import NoCard, find_card

MODEL = ROOT / "tests" / "models" / "tiny-qwen2"

LOSES_ITS_CARD_IN_MID_ANSWER = f"""
import ctypes, json
from pathlib import Path
from engine.checkpoints.model_folder import open_model
from engine.config import EngineConfig
from engine.cuda import availability
from engine.cuda.nvrtc_compiler import NvrtcCompiler
from engine.engine import Engine
from engine.generation import DeviceChanged, Finished, GenerationRequest, SamplingParams, TextDelta

ASTRAY = '''
struct Arguments {{ long long nothing; }};
extern "C" __global__ void astray(const __grid_constant__ Arguments args) {{ *(volatile int*)64 = 1; }}
'''

class Arguments(ctypes.Structure):
    _fields_ = (("nothing", ctypes.c_int64),)

drivers = []
opened = availability.open_card
def open_card(*args, **kwargs):
    drivers.append(opened(*args, **kwargs))
    return drivers[-1]
availability.open_card = open_card

def load(device):
    config = EngineConfig(device=device, keep_states=False, context=512, weights="native", kv="native")
    return Engine.load(open_model(Path({str(MODEL)!r})), config)

def answer(engine, at_third=lambda: None):
    request = GenerationRequest(tuple(range(5, 80)), SamplingParams(), max_new_tokens=24, ignore_eos=True)
    found = []
    for event in engine.generate(request):
        found.append(event)
        if sum(isinstance(each, TextDelta) for each in found) == 3 and isinstance(event, TextDelta):
            at_third()
    return found

def lose():
    driver = drivers[-1]
    code = NvrtcCompiler().compile({{"astray.cu": ASTRAY}}, "astray.cu", card=driver.info)
    driver.launch(driver.load(code, ["astray"])["astray"], Arguments(), grid=(1, 1, 1), block=32)

engine = load("cuda")
before = engine.summary.device
events = answer(engine, lose)
changes = [event.notice.code for event in events if isinstance(event, DeviceChanged)]
after = engine.summary.device
again = answer(engine)[-1].token_ids
engine.close()
expected = answer(load("cpu"))[-1].token_ids
same = events[-1].token_ids == expected, again == expected
print(json.dumps([before, changes, after, *same, len(expected)]))
"""


@pytest.mark.gpu
def test_an_answer_goes_on_on_the_cpu_when_a_real_card_fails_in_the_middle_of_it() -> None:
    found = find_card()
    if isinstance(found, NoCard):
        pytest.skip(found.reason)
    found = output_of(LOSES_ITS_CARD_IN_MID_ANSWER, timeout=240)
    assert json.loads(found) == ["cuda", ["card-lost-meanwhile"], "cpu", True, True, 24]
