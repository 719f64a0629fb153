"""Paired comparison against sums of binomial probabilities, a plain bootstrap, and a known null."""

import itertools
import math
import random
import statistics as plain

import numpy as np
import pytest

from laco.errors import RecipeError
from laco.statistics import mcnemar, paired


def coin(heads: int, tosses: int) -> float:
    """The two-sided p of a fair coin: every outcome that is no likelier than this one."""
    likelihood = [math.comb(tosses, k) / 2**tosses for k in range(tosses + 1)]
    return sum(one for one in likelihood if one <= likelihood[heads] * (1 + 1e-9))


def answers(right: int, wrong: int) -> list[int]:
    return [1] * right + [0] * wrong


def split(gained: int, lost: int, alike: int) -> tuple[list[int], list[int]]:
    """Answers of two models, of which one gains and loses that many questions."""
    mine = answers(gained, lost) + [1] * alike
    return mine, [1 - answer for answer in mine[: gained + lost]] + [1] * alike


@pytest.mark.parametrize(("gained", "lost"), [(0, 1), (3, 3), (5, 0), (0, 6), (12, 15), (40, 22)])
def test_p_is_a_sum_of_binomial_probabilities(gained, lost):
    assert mcnemar(gained, lost) == pytest.approx(coin(gained, gained + lost), rel=1e-9)
    assert paired(*split(gained, lost, 50)).p == mcnemar(gained, lost)


def test_questions_answered_alike_by_both_say_nothing():
    found = paired([1, 0, 1, 0], [1, 0, 1, 0])
    assert (found.p, found.gained, found.lost) == (1.0, 0, 0)
    assert (found.difference, found.low, found.high) == (0.0, 0.0, 0.0)
    assert found.within_noise
    assert found.words == "within noise: 0 gained, 0 lost of 4, p 1.00"


def test_gained_and_lost_are_counted_from_the_baseline():
    found = paired([1, 1, 1, 0, 1, 0], [0, 0, 1, 1, 1, 0])
    assert (found.gained, found.lost, found.questions) == (2, 1, 6)
    assert found.difference == pytest.approx(1 / 6)


def test_other_numbers_are_gained_where_larger():
    found = paired([0.5, -1.0, 3.0, 2.0], [0.4, -2.0, 3.5, 2.0])
    assert (found.gained, found.lost) == (2, 1)
    assert found.difference == pytest.approx((0.1 + 1.0 - 0.5 + 0.0) / 4)


@pytest.mark.parametrize("kind", ["right or wrong", "other numbers"])
def test_interval_is_that_of_a_plain_bootstrap(kind):
    generator = np.random.default_rng(3)
    if kind == "right or wrong":
        mine, baseline = (generator.random((2, 150)) < [[0.7], [0.5]]).astype(float)
    else:
        mine, baseline = generator.gamma([[2.4], [2.0]], size=(2, 90))
    differences = [float(one) for one in mine - baseline]
    draws = random.Random(0)
    means = sorted(plain.fmean(draws.choices(differences, k=len(mine))) for _ in range(2000))
    found = paired(list(mine), list(baseline))
    noise = 0.2 * plain.stdev(means)  # three times the error that 2,000 draws leave
    assert found.low == pytest.approx(means[50], abs=noise)
    assert found.high == pytest.approx(means[-51], abs=noise)


def test_interval_is_the_same_each_time_and_in_any_number_of_pieces(monkeypatch):
    mine, baseline = split(20, 9, 100)
    first = paired(mine, baseline)
    assert paired(mine, baseline) == first
    monkeypatch.setattr("laco.statistics.DRAWS", 3 * 700)
    again = paired(mine, baseline)
    assert (again.low, again.high) == (first.low, first.high)


@pytest.mark.parametrize("unlike", [*range(1, 30), 60, 100, 200, 500])
def test_a_fair_split_of_the_questions_raises_an_alarm_at_most_once_in_twenty(unlike):
    """Exactly: the probabilities of all splits of `unlike` questions that raise one, added up."""
    alarms = 0.0
    for gained in range(unlike // 2 + 1):  # each stands for its mirror image, too
        if mcnemar(gained, unlike - gained) > 0.05:
            break
        alarms += 2 * math.comb(unlike, gained) / 2**unlike
    assert alarms <= 0.05


def test_equally_good_models_are_called_different_at_most_once_in_twenty():
    """Both models are right at one rate; a share `alike` of their answers is the same by design."""
    generator = np.random.default_rng(0)
    trials, every = 150, 0
    settings = list(itertools.product([20, 100, 500], [0.3, 0.6, 0.9], [0.0, 0.8]))
    for questions, accuracy, alike in settings:
        alarms = 0
        for _ in range(trials):
            mine, other = generator.random((2, questions)) < accuracy
            baseline = np.where(generator.random(questions) < alike, mine, other)
            alarms += not paired(mine.tolist(), baseline.tolist()).within_noise
        chance = 3 * math.sqrt(0.05 * 0.95 / trials)  # what so few trials may add
        assert alarms / trials <= 0.05 + chance, (questions, accuracy, alike)
        every += alarms
    assert every <= 0.05 * trials * len(settings)


def test_skewed_numbers_of_equal_mean_raise_no_alarm_by_their_signs():
    generator = np.random.default_rng(0)
    trials, by_sign, alarms = 150, 0, 0
    for _ in range(trials):
        found = paired(list(generator.exponential(size=60)), [1.0] * 60)
        by_sign += found.p <= 0.05
        alarms += not found.within_noise
    assert by_sign > 0.3 * trials
    assert alarms < 0.1 * trials


def test_a_real_difference_is_seen():
    generator = np.random.default_rng(0)
    seen = 0
    for _ in range(100):
        mine, baseline = generator.random((2, 500)) < [[0.65], [0.5]]
        seen += not paired(mine.tolist(), baseline.tolist()).within_noise
    assert seen >= 95


def test_the_exact_test_decides_where_few_answers_differ():
    five, six = paired(*split(5, 0, 95)), paired(*split(6, 0, 94))
    assert five.low > 0
    assert (five.p, six.p) == (2 / 2**5, 2 / 2**6)
    assert (five.within_noise, six.within_noise) == (True, False)


def test_words_say_the_verdict_and_the_counts():
    assert paired(*split(12, 15, 173)).words == "within noise: 12 gained, 15 lost of 200, p 0.70"
    assert paired(*split(30, 14, 56)).words == "better: 30 gained, 14 lost of 100, p 0.023"
    assert paired(*split(3, 40, 7)).words == "worse: 3 gained, 40 lost of 50, p below 0.001"


def test_what_is_no_pairs_of_numbers_is_refused():
    with pytest.raises(RecipeError, match="There are 2 answers to set against 3"):
        paired([1, 0], [1, 0, 1])
    with pytest.raises(RecipeError, match="no answers to compare"):
        paired([], [])
    with pytest.raises(RecipeError, match="Question 1 has no finite pair"):
        paired([1, math.nan], [1, 1])
