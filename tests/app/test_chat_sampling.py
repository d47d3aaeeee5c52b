from app.chat_sampling import CHAT_SAMPLING, chat_sampling, other_sampling
from engine.generation import SamplingParams


def test_a_models_own_recommendation_wins() -> None:
    recommended = SamplingParams(temperature=0.2, top_k=20)
    assert chat_sampling(recommended) is recommended


def test_a_model_that_recommends_nothing_is_not_left_greedy() -> None:
    assert chat_sampling(SamplingParams()) == CHAT_SAMPLING
    assert CHAT_SAMPLING.temperature > 0


def test_another_version_has_another_seed_each_time_and_is_never_greedy() -> None:
    own = SamplingParams(temperature=0.7, top_k=40, seed=3)
    seeds = {other_sampling(own).seed for _ in range(20)}
    assert len(seeds) > 15
    assert other_sampling(own).top_k == 40
    assert other_sampling(SamplingParams(temperature=0.0, top_k=5)).temperature > 0
