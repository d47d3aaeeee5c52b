from app.chat_sampling import CHAT_SAMPLING, chat_sampling
from engine.generation import SamplingParams


def test_a_models_own_recommendation_wins() -> None:
    recommended = SamplingParams(temperature=0.2, top_k=20)
    assert chat_sampling(recommended) is recommended


def test_a_model_that_recommends_nothing_is_not_left_greedy() -> None:
    assert chat_sampling(SamplingParams()) == CHAT_SAMPLING
    assert CHAT_SAMPLING.temperature > 0
