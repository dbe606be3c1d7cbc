"""gpu-hot by script: temperatures in, verdicts out."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from pydantic import ValidationError

from overnight.core.detect.gpu_hot import Cooling, GpuHotConfig, GpuHotDetector
from overnight.core.events import Fault, GpuSample, Severity, Verdict

POLL_S = 2.0
WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL


def sample(at: float, celsius: float | None, *, gpu: int = 0) -> GpuSample:
    """One poll of one of our cards."""
    return GpuSample(at, gpu, f"GPU-{gpu}", "NVIDIA GeForce RTX 5090", celsius)


def hold(seconds: float, celsius: float | None) -> list[float | None]:
    """That temperature at every poll for that long, the first and the last included."""
    return [celsius] * (int(seconds / POLL_S) + 1)


def judge(
    temperatures: Iterable[float | None], config: GpuHotConfig | None = None
) -> list[tuple[float, Severity]]:
    """When a fresh detector says what, polled every 2 s from 0 on."""
    detector = GpuHotDetector(config or GpuHotConfig())
    verdicts = [detector.observe(sample(i * POLL_S, t)) for i, t in enumerate(temperatures)]
    return [(verdict.at, verdict.severity) for verdict in verdicts if verdict]


def feed(detector: GpuHotDetector, *samples: GpuSample) -> list[Verdict]:
    """All verdicts on those samples."""
    return [verdict for each in samples if (verdict := detector.observe(each))]


# --- the critical verdict ------------------------------------------------------------------------


def test_heat_for_the_whole_window_is_critical_once():
    """The verdict comes when the window is full, and is not repeated while it stays hot."""
    assert judge([60, *hold(100, 91)]) == [(12.0, CRITICAL)]


def test_the_reason_is_a_sentence_with_numbers():
    """Card, temperature, limit and duration; the evidence holds them for machines."""
    detector = GpuHotDetector(GpuHotConfig())
    (verdict,) = feed(detector, *(sample(at, 91) for at in range(0, 12, 2)))
    assert verdict.fault is Fault.GPU_HOT
    assert verdict.reason == "GPU 0 (NVIDIA GeForce RTX 5090) at 91 °C, at or above 88 °C for 10 s"
    assert verdict.evidence["temperature_c"] == 91
    assert verdict.evidence["uuid"] == "GPU-0"


@pytest.mark.parametrize(
    ("temperatures", "verdicts"),
    [
        pytest.param([*hold(8, 91), 87], [], id="cooler-before-the-window-is-full"),
        pytest.param([*hold(8, 91), 87] * 6, [], id="each-dip-starts-the-window-anew"),
        pytest.param(hold(10, 88), [(10.0, CRITICAL)], id="the-level-itself-counts"),
        pytest.param(hold(50, 87.9), [], id="just-below"),
        pytest.param([91, None, None, 91, None, 91], [(10.0, CRITICAL)], id="unknown-in-between"),
        pytest.param([91, None, None, None, None, 91], [], id="two-samples-are-too-few"),
        pytest.param([91, *hold(100, None)], [], id="unknown-does-not-fill-the-window"),
        pytest.param(
            [91, 91, *hold(60, None), 91, 91], [], id="a-minute-of-silence-starts-it-anew"
        ),
        pytest.param([], [], id="nothing"),
    ],
)
def test_window(temperatures, verdicts):
    """What fills the 10 s window at or above 88 °C, and what does not."""
    assert judge(temperatures, GpuHotConfig(warn_c=None)) == verdicts


def test_a_silence_restarts_the_window_but_does_not_stop_it():
    """After a long gap the next hot samples fill a whole new window."""
    polls = [91, *hold(70, None), *hold(12, 91)]
    resumed_at = (len(polls) - 7) * POLL_S
    assert judge(polls, GpuHotConfig(warn_c=None)) == [(resumed_at + 10, CRITICAL)]


def test_slow_polls_still_need_three_samples():
    """With 15 s between polls, the second one is past the window, the third one decides."""
    detector = GpuHotDetector(GpuHotConfig())
    assert [v.at for v in feed(detector, *(sample(at, 91) for at in (0, 15, 30, 45)))] == [30]


# --- warning and hysteresis ----------------------------------------------------------------------


def test_a_minute_above_the_warning_level_warns_once():
    """No action is due yet, so one warning is enough."""
    assert judge(hold(300, 84)) == [(60.0, WARNING)]


def test_a_warning_is_followed_by_the_critical_verdict():
    """Growing heat speaks again, in the same excursion."""
    assert judge(hold(70, 84) + hold(20, 90)) == [(60.0, WARNING), (82.0, CRITICAL)]


def test_after_the_critical_verdict_there_is_no_warning():
    """The same excursion does not step down in its words."""
    assert judge(hold(10, 90) + hold(200, 85)) == [(10.0, CRITICAL)]


@pytest.mark.parametrize(
    ("between", "again"),
    [(81, False), (80, False), (79, True)],
)
def test_verdicts_are_armed_again_three_degrees_below_the_warning_level(between, again):
    """A card that swings around the level is one excursion."""
    said = judge([*hold(10, 90), between, *hold(10, 90)])
    assert [severity for _, severity in said] == [CRITICAL] * (2 if again else 1)


def test_without_a_warning_level_the_kill_level_arms():
    """warn_c = None: silence below kill_c, and a new excursion from 3 °C below it."""
    config = GpuHotConfig(warn_c=None)
    assert judge(hold(300, 87), config) == []
    assert len(judge([*hold(10, 90), 85, *hold(10, 90)], config)) == 1
    assert len(judge([*hold(10, 90), 84, *hold(10, 90)], config)) == 2


def test_each_card_is_judged_by_its_uuid():
    """Two hot cards are two verdicts; a cool neighbour does not break a window."""
    detector = GpuHotDetector(GpuHotConfig())
    polls = [
        each
        for at in range(0, 12, 2)
        for each in (sample(at, 91), sample(at, 50, gpu=1), sample(at, 95, gpu=2))
    ]
    assert [v.evidence["uuid"] for v in feed(detector, *polls)] == ["GPU-0", "GPU-2"]


def test_reset_forgets_windows_and_excursions():
    """A new attempt begins with nothing held against it."""
    detector = GpuHotDetector(GpuHotConfig())
    hot = [sample(at, 91) for at in range(0, 12, 2)]
    assert len(feed(detector, *hot)) == 1
    detector.reset()
    assert feed(detector, *hot[:-1]) == []
    assert len(feed(detector, hot[-1])) == 1


def test_disabled_says_nothing():
    """enabled = false is obeyed at any heat."""
    assert judge(hold(100, 120), GpuHotConfig(enabled=False)) == []


# --- cooling -------------------------------------------------------------------------------------


def cooled_at(samples: Iterable[GpuSample], config: GpuHotConfig | None = None) -> float | None:
    """When the wait that began at 0 is over."""
    cooling = Cooling(config or GpuHotConfig(hold_s=20), at=0.0)
    return next((each.at for each in samples if cooling.observe(each)), None)


def test_cooling_ends_after_the_hold_time_below_the_level():
    """65 is not below 65; from the first cooler sample on, 20 s must pass."""
    temperatures = [90, 75, 65, *hold(40, 64)]
    assert cooled_at(sample(i * POLL_S, t) for i, t in enumerate(temperatures)) == 26.0


def test_a_warm_sample_starts_the_hold_time_anew():
    """Heat that comes back from the heatsink is waited for."""
    temperatures = [*hold(18, 60), 66, *hold(40, 60)]
    assert cooled_at(sample(i * POLL_S, t) for i, t in enumerate(temperatures)) == 42.0


def test_every_card_must_be_cool():
    """The slower of two cards decides."""
    polls = [
        each
        for at in range(0, 100, 2)
        for each in (sample(at, 50), sample(at, 80 if at < 30 else 60, gpu=1))
    ]
    assert cooled_at(polls) == 50


@pytest.mark.parametrize(
    "temperatures",
    [
        pytest.param([60, *hold(100, None)], id="falls-silent-while-cool"),
        pytest.param([90, *hold(100, None)], id="falls-silent-while-hot"),
        pytest.param(hold(100, None), id="never-speaks"),
        pytest.param([60, 60, *hold(62, None), 60, 60], id="long-silence-in-between"),
        pytest.param([], id="nothing"),
    ],
)
def test_unknown_is_not_cool(temperatures):
    """Only known temperatures end the wait."""
    assert cooled_at(sample(i * POLL_S, t) for i, t in enumerate(temperatures)) is None


def test_unknown_does_not_break_the_hold_time():
    """A missing value between two cool ones changes nothing."""
    temperatures = [60, None, None, *hold(14, 60)]
    assert cooled_at(sample(i * POLL_S, t) for i, t in enumerate(temperatures)) == 20.0


def test_a_card_without_a_sensor_is_not_waited_for():
    """A second card that never gives a temperature cannot hold up the run."""
    polls = [each for at in range(0, 60, 2) for each in (sample(at, None, gpu=1), sample(at, 50))]
    assert cooled_at(polls) == 20


def test_samples_from_before_do_not_count():
    """What was still in the queue when cooling began is no evidence of it."""
    assert cooled_at([sample(-100, 50), sample(-50, 50), sample(0, 50)]) is None


# --- configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"resume_below_c": 88}, r"resume_below_c \(88\) must be below kill_c \(88\)"),
        ({"warn_c": 95}, r"warn_c \(95\) must be below kill_c \(88\)"),
        ({"kill_c": 70}, r"warn_c \(83\) must be below kill_c \(70\)"),
        ({"hold_s": -1}, "hold_s"),
        ({"kill_c": float("nan")}, "kill_c"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_levels_out_of_order_are_refused(values, words):
    """The message names both values; unknown keys and impossible numbers are refused too."""
    with pytest.raises(ValidationError, match=words):
        GpuHotConfig(**values)


def test_defaults_are_those_of_the_documentation():
    """Warn 83, kill 88 after 10 s, resume below 65 for 3 min."""
    assert GpuHotConfig().model_dump() == {
        "enabled": True,
        "warn_c": 83,
        "kill_c": 88,
        "window_s": 10,
        "resume_below_c": 65,
        "hold_s": 180,
    }


def test_every_field_is_described():
    """docs/config.md is made from these sentences."""
    assert all(field.description for field in GpuHotConfig.model_fields.values())
