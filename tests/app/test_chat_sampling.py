from app.chat_sampling import CHAT_SAMPLING, SamplingChoice, chat_sampling, chosen_sampling, other_sampling
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


def test_what_is_chosen_stands_in_the_place_of_what_is_recommended_and_nothing_else_does() -> None:
    recommended = SamplingParams(temperature=0.7, top_k=40, top_p=0.8)
    choice = SamplingChoice(temperature=0.0, top_p=1.0, seed=7, max_tokens=9, stop=("END",))
    assert chosen_sampling(recommended, choice) == SamplingParams(
        temperature=0.0, top_k=40, top_p=1.0, seed=7
    )
    assert chosen_sampling(recommended, SamplingChoice()) == recommended
    assert chosen_sampling(SamplingParams(), SamplingChoice(top_k=3)).temperature == CHAT_SAMPLING.temperature


def test_another_version_keeps_what_is_chosen_but_for_the_seed() -> None:
    choice = SamplingChoice(temperature=1.5, seed=7)
    others = [other_sampling(SamplingParams(), choice) for _ in range(20)]
    assert {other.temperature for other in others} == {1.5}
    assert len({other.seed for other in others}) > 15
