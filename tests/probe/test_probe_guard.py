"""The numbers that decide: the adaptive bound, and whether a state is worth keeping."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight_probe.guard import PATIENCE, WARM_UP_STEPS, AutoClip, Calm, Clip


def test_no_bound_during_the_warm_up():
    """25 norms are needed to know what is usual."""
    clip = AutoClip()
    for _ in range(WARM_UP_STEPS - 1):
        clip.observe(1.0)
    assert clip.bound() is None
    clip.observe(1.0)
    assert clip.bound() == pytest.approx(math.exp(0.25))


def test_usual_norms_are_left_alone():
    """Log-normal norms with a spread of a third: about 1 in 160 is above 2.5 deviations."""
    rng, clip, clipped = random.Random(0), AutoClip(), 0
    for step in range(4000):
        norm = math.exp(rng.gauss(0, 0.3))
        bound = clip.bound()
        clipped += step > 200 and bound is not None and norm > bound
        clip.observe(norm)
    assert clipped < 0.02 * 3800


def test_the_bound_follows_a_slow_change_but_no_spike():
    """Norms fall by a factor of 10 in training; a series of spikes raises the bound little."""
    clip = AutoClip()
    for step in range(1000):
        clip.observe(1.0 * 0.1 ** (step / 1000))
    assert clip.bound() == pytest.approx(0.1, rel=0.5)
    before = clip.bound()
    for _ in range(5):
        clip.observe(1e6)
    assert clip.bound() < 2 * before


@given(st.lists(st.floats()))
def test_any_norms_are_taken(norms):
    """NaN, infinity, zero and negative ones teach nothing."""
    clip = Clip("auto")
    for norm in norms:
        clip.observe(norm)
    bound = clip.bound()
    assert bound is None or bound > 0


def test_a_rule_can_be_changed_on_the_way():
    """After a rollback `auto` knows at once what has been usual."""
    clip = Clip("off")
    for _ in range(30):
        clip.observe(2.0)
    assert clip.bound() is None
    clip.change("auto")
    assert clip.bound() == pytest.approx(2.0 * math.exp(0.25))
    clip.change("1.5")
    assert clip.bound() == 1.5
    with pytest.raises(ValueError, match="could not convert"):
        clip.change("hard")


def test_a_risen_loss_is_waited_for():
    """So that the good snapshots are not pushed out; but not for ever."""
    calm = Calm()
    assert calm.allows()
    for _ in range(20):
        calm.observe(2.0)
    assert calm.allows()
    for _ in range(20):
        calm.observe(3.0)
    assert [calm.allows() for _ in range(PATIENCE + 1)] == [False] * PATIENCE + [True]
    assert calm.allows()


@pytest.mark.parametrize("first", [2.0, -2.0, 0.0])
def test_a_falling_or_a_lost_loss(first):
    """Falling is fine, also below zero; NaN is waited for until it is over."""
    calm = Calm()
    for step in range(100):
        calm.observe(first - step / 100)
    assert calm.allows()
    calm.observe(math.nan)
    assert not calm.allows()
    calm.observe(first - 1)
    assert calm.allows()


def test_a_fixed_norm_holds_beside_auto():
    """A rollback turns `auto` on: it may be stricter than what was asked for, not laxer."""
    clip = Clip("1.0")
    for _ in range(100):
        clip.observe(50.0)
    clip.change("auto")
    assert clip.bound() == 1.0
    clip.change("off")
    assert clip.bound() is None
    low = Clip("100.0")
    for _ in range(100):
        low.observe(2.0)
    low.change("auto")
    assert low.bound() < 3.0
