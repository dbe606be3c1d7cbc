"""The panel: all record detectors together, on real healthy curves and with injected faults."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from core_lab import INF, NAN, criticals, curve, flat, inject, record, verdicts
from overnight.core.detect.collapse import CollapseConfig
from overnight.core.detect.drift import DriftConfig
from overnight.core.detect.panel import Panel, PanelConfig
from overnight.core.detect.spike import SpikeConfig
from overnight.core.events import Fault, Level, Position, Severity, StepMetric

WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL
CURVES = ["gpt_dense", "gpt_loss_only", "t5_sparse"]


def said(records: list[StepMetric], config: PanelConfig | None = None) -> list[tuple]:
    """Fault, severity and detected step of each verdict."""
    return [(v.fault, v.severity, v.detected_step) for v in verdicts(records, config)]


def scaled(records: list[StepMetric], first: int, factor: Callable[[int], float]) -> list:
    """The records with the k-th loss from `first` on multiplied."""
    for k in range(len(records) - first):
        records = inject(records, first + k, 1, times=factor(k))
    return records


# --- real curves ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CURVES)
def test_healthy_curves_have_no_critical_verdict(name: str) -> None:
    """False alarms kill somebody's night of training."""
    assert criticals(curve(name)) == []


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize(
    ("fault", "expected", "within"),
    [
        pytest.param({"loss": NAN, "count": 400}, Fault.LOSS_NONFINITE, 3, id="nan"),
        pytest.param({"times": 100.0, "count": 400}, Fault.LOSS_SPIKE, 3, id="explosion"),
        pytest.param({"times": 1.25, "count": 400}, Fault.LOSS_SPIKE, 40, id="kept-25-percent"),
        pytest.param({"times": 2.0, "count": 1}, None, 0, id="one-record-doubled"),
    ],
)
def test_injected_loss_faults(name: str, fault: dict, expected: Fault | None, within: int) -> None:
    """A fault in a real curve is found soon, a single bad batch is not."""
    first = len(curve(name)) - 130
    records = inject(curve(name), first, **fault)
    found = criticals(records)
    if expected is None:
        assert found == []
        return
    assert found[0].fault is expected
    delay = next(i for i, r in enumerate(records) if r.position == found[0].detected) - first + 1
    assert 1 <= delay <= within
    assert found[0].onset is not None
    assert found[0].onset >= records[first].position


@pytest.mark.parametrize("name", ["gpt_dense", "t5_sparse"])
def test_injected_gradient_spike(name: str) -> None:
    """Ten times the gradient norm for six records is found."""
    found = criticals(inject(curve(name), 300, 6, grad_times=12.0))
    assert [v.fault for v in found] == [Fault.GRAD_SPIKE]


# --- sparse logs ---------------------------------------------------------------------------------


def test_one_nan_is_certain_in_a_sparse_log_from_the_second_record_on() -> None:
    """The stride is learned from the log itself."""
    assert said([record(500), record(1000), record(1500, NAN)]) == [
        (Fault.LOSS_NONFINITE, CRITICAL, 1500)
    ]


def test_a_nan_from_the_very_start_of_a_sparse_log() -> None:
    """The records before the stride was known are judged again."""
    assert said([record(500, NAN), record(1000, NAN)])[-1] == (Fault.LOSS_NONFINITE, CRITICAL, 1000)


def test_a_dense_log_is_not_taken_for_a_sparse_one_by_a_gap() -> None:
    """The median of the first strides decides."""
    steps = [1, 2, 3, 100, 101, 102, 103, 104, 105]
    assert said([*map(record, steps), record(106, NAN)]) == [(Fault.LOSS_NONFINITE, WARNING, 106)]


def test_steps_that_never_rise_are_a_dense_log() -> None:
    """A script that always prints the same step is judged by the dense rules."""
    records = [record(7, position=replace(record(i).position)) for i in range(1, 300)]
    bad = [record(7, NAN, position=record(i).position) for i in range(300, 303)]
    assert [severity for _f, severity, _s in said([*records, *bad])] == [WARNING, CRITICAL]


@pytest.mark.parametrize(
    "mine",
    [{"need": 10}, {"min_records": 150}, {"persist": 12}],
    ids=["need", "min-records", "persist"],
)
def test_the_sparse_preset_never_makes_a_users_config_deaf(mine: dict) -> None:
    """What was set by hand stays, and what does not fit to it is left out of the preset."""
    records = inject(flat(300, stride=10), 200, 100, times=1.5)
    assert criticals(records, PanelConfig(spike=SpikeConfig(**mine))) != []


# --- suspicion, warnings, episodes ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("suspects", "warns"), [(9, False), (10, True)], ids=["nine-are-not", "ten-of-twenty"]
)
def test_lasting_suspicion_is_a_warning(suspects: int, warns: bool) -> None:
    """Every other record stands out: never ten of twelve, but worth telling after ten."""
    records = flat(300)
    for i in range(suspects):
        records = inject(records, 200 + 2 * i, 1, grad_times=25.0)
    config = PanelConfig(spike=SpikeConfig(grad_ratio=19.0, grad_ratio_high=19.0))
    found = said(records, config)
    assert found == ([(Fault.GRAD_SPIKE, WARNING, 219)] if warns else [])


def test_a_lone_gradient_spike_warns_only_if_the_loss_does_not_return() -> None:
    """One gradient norm above ten times: quiet with the loss in its band, else a warning."""
    quiet = inject(flat(300), 200, 1, grad_times=20.0)
    assert said(quiet) == []
    up = inject(quiet, 201, 7, times=1.3)
    assert said(up) == [(Fault.LOSS_SPIKE, WARNING, 206)]
    returned = inject(quiet, 201, 4, times=1.3)
    assert said(returned) == []


def test_an_episode_marks_its_first_suspect_record_until_100_calm_ones() -> None:
    """Checkpoints since then are suspect, and given back when it stays calm."""
    panel = Panel(PanelConfig())
    judged = [panel.observe(each) for each in inject(flat(400), 200, 1, grad_times=20.0)]
    assert judged[199].suspect_since is None
    assert judged[200].level is Level.SUSPECT
    since = {each.suspect_since for each in judged[200:300]}
    assert [position.record for position in since if position] == [201]
    assert judged[300].suspect_since is None


def test_a_new_episode_speaks_again_the_same_one_does_not() -> None:
    """One verdict a class of evidence and episode."""
    records = inject(
        inject(inject(flat(600), 200, 2, loss=NAN), 230, 2, loss=NAN), 450, 1, loss=INF
    )
    assert said(records) == [
        (Fault.LOSS_NONFINITE, WARNING, 201),
        (Fault.LOSS_NONFINITE, WARNING, 451),
    ]


def test_each_class_of_evidence_speaks_and_needs_no_proof_once_alarmed() -> None:
    """Spike, then infinity, then NaN: a number lost during an alarm is critical at once."""
    records = inject(flat(400), 200, 20, times=1.5)
    records = inject(records, 220, 1, loss=INF)
    records = inject(records, 221, 100, loss=NAN)
    assert said(records) == [
        (Fault.LOSS_SPIKE, CRITICAL, 210),
        (Fault.LOSS_NONFINITE, CRITICAL, 221),
        (Fault.LOSS_NONFINITE, CRITICAL, 222),
    ]


def test_no_warning_follows_the_critical_verdict_of_the_same_class() -> None:
    """An explosion that shrinks to a lasting rise has been told already."""
    records = inject(inject(flat(400), 200, 2, times=100.0), 202, 9, times=1.2)
    assert said(records) == [(Fault.LOSS_SPIKE, CRITICAL, 202)]


# --- history -------------------------------------------------------------------------------------


def test_rebuilt_from_history_it_sees_a_spike_at_once() -> None:
    """After a restart there is no new grace, and no verdict about the past."""
    history = inject(flat(300), 100, 20, times=1.5)
    panel = Panel(PanelConfig(), history)
    resumed = [record(300 + i, 3.0) for i in range(1, 15)]
    judged = [panel.observe(each) for each in resumed]
    assert [j.level for j in judged[:2]] == [Level.SUSPECT, Level.SUSPECT]
    assert judged[9].verdict is not None
    assert judged[9].verdict.severity is CRITICAL
    assert judged[0].suspect_since == resumed[0].position


def test_rebuilt_twice_it_says_the_same() -> None:
    """The same records make the same panel: its state is never stored."""
    records = inject(curve("gpt_dense")[:600], 500, 100, times=1.3)
    rebuilt = Panel(PanelConfig(), records[:480])
    later = [v for r in records[480:] if (v := rebuilt.observe(r).verdict)]
    assert later == verdicts(records)


def test_a_nan_never_enters_a_baseline_and_a_later_spike_is_still_seen() -> None:
    """Non-finite losses and gradients are judged and forgotten."""
    records = inject(flat(500), 150, 2, loss=NAN, grad=NAN)
    records = inject(records, 300, 100, times=1.5)
    assert (Fault.LOSS_SPIKE, CRITICAL, 310) in said(records)


@pytest.mark.parametrize(
    "config",
    [SpikeConfig(enabled=False), SpikeConfig(adversarial=True)],
    ids=["off", "adversarial"],
)
def test_without_level_tests_nan_is_still_found(config: SpikeConfig) -> None:
    """GAN losses may jump as they like, but not to NaN."""
    records = inject(inject(flat(300), 100, 100, times=50.0), 250, 3, loss=NAN)
    config = PanelConfig(spike=config, drift=DriftConfig(enabled=config.enabled))
    found = criticals(records, config)
    assert [v.fault for v in found] == [Fault.LOSS_NONFINITE]


def test_a_verdict_carries_its_line_steps_and_evidence() -> None:
    """What the incident and the alert are made of."""
    records = [replace(r, line=2 * r.step) for r in inject(flat(300), 200, 3, loss=NAN)]
    found = criticals(records)[0]
    assert (found.onset_step, found.detected_step, found.line) == (201, 203, 406)
    assert found.onset == records[200].position
    assert found.evidence["in_a_row"] == 3


# --- divergence, collapse, slowdown ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "within"),
    [
        pytest.param(lambda _k: 1.15, 60, id="fifteen-percent-kept"),
        pytest.param(lambda k: 1 + k / 2000, 650, id="one-percent-in-twenty-records"),
    ],
)
def test_a_slow_divergence_is_found(factor: Callable[[int], float], within: int) -> None:
    """What no spike detector sees."""
    records = scaled(list(curve("gpt_loss_only")), 700, factor)
    found = criticals(records)[0]
    assert found.fault in {Fault.DIVERGENCE, Fault.LOSS_SPIKE}
    assert 700 < found.detected.record < 700 + within


@pytest.mark.parametrize("name", ["gpt_dense", "gpt_loss_only"])
@pytest.mark.parametrize("tau", [5, 20])
def test_a_healing_spike_is_left_alone(name: str, tau: int) -> None:
    """A doubled loss that decays: rolling back would cost more than waiting."""
    records = scaled(list(curve(name)), 650, lambda k: 1 + math.exp(-k / tau))
    assert criticals(records) == []


def test_a_level_that_stays_speaks_twice() -> None:
    """1.0 to 4.5 and on: a leap after three records, no transient any more after ten."""
    records = inject(flat(300), 200, 100, times=4.5)
    assert said(records) == [
        (Fault.LOSS_SPIKE, CRITICAL, 203),
        (Fault.DIVERGENCE, CRITICAL, 210),
    ]


def test_a_loss_spike_after_a_gradient_alarm_is_told_at_once() -> None:
    """The gradient grew for some records, then the loss follows: both are one story."""
    records = inject(flat(300), 200, 3, grad_times=100.0)
    assert said(inject(records, 203, 1, times=2.0, grad_times=900.0)) == [
        (Fault.GRAD_SPIKE, CRITICAL, 203),
        (Fault.LOSS_SPIKE, WARNING, 204),
    ]


def test_a_dead_loss_is_a_collapse() -> None:
    """Zeros beside NaN gradients: the third is certain, in a sparse log the first."""
    dead = inject(flat(300), 200, 100, loss=0.0, grad=NAN)
    assert (Fault.COLLAPSE, CRITICAL, 203) in said(dead)
    sparse = [record(20 * i, each.loss, each.grad_norm) for i, each in enumerate(dead, start=1)]
    assert said(sparse)[0] == (Fault.COLLAPSE, CRITICAL, 20 * 201)


def test_collapse_can_be_switched_off() -> None:
    """For losses that are 0.0 by design."""
    records = [record(i, 0.0, 0.0) for i in range(1, 200)]
    assert {fault for fault, *_ in said(records)} == {Fault.COLLAPSE}
    assert said(records, PanelConfig(collapse=CollapseConfig(enabled=False))) == []


def test_a_slowdown_is_told_and_makes_nothing_suspect() -> None:
    """A warning; checkpoints stay as good as they were."""
    records = [replace(r, at=5.0 * i if i < 300 else 10.0 * i) for i, r in enumerate(flat(600))]
    panel = Panel(PanelConfig())
    judged = [panel.observe(each) for each in records]
    told = [each.verdict for each in judged if each.verdict]
    assert [(v.fault, v.severity) for v in told] == [(Fault.SLOWDOWN, WARNING)]
    assert all(each.suspect_since is None for each in judged)


# --- changes of data ------------------------------------------------------------------------------


def test_an_announced_change_is_a_new_level() -> None:
    """After rebase() the level is learned anew, and a NaN is still a NaN."""
    panel = Panel(PanelConfig())
    for each in flat(300):
        panel.observe(each)
    panel.rebase()
    later = inject(inject(flat(300, first=301), 0, 300, times=1.5), 200, 3, loss=NAN)
    told = [v for each in later if (v := panel.observe(each).verdict)]
    assert [(v.fault, v.severity) for v in told] == [
        (Fault.LOSS_NONFINITE, WARNING),
        (Fault.LOSS_NONFINITE, CRITICAL),
    ]


def again(times: float, at: int, **more) -> list:
    """Verdicts of a second attempt from step 150, which meets a rise where the first one did."""
    first = Panel(PanelConfig())
    records = inject(flat(400), 200, 200, times=1.5)
    assert [v for each in records if (v := first.observe(each).verdict)]
    second = Panel(PanelConfig(), records[:150], shifts=first.shifts)
    later = [
        replace(each, position=Position(2, number))
        for number, each in enumerate(inject(flat(400), at, 200, times=times, **more)[150:], 1)
    ]
    return [(v.fault, v.severity) for each in later if (v := second.observe(each).verdict)]


def test_the_same_rise_at_the_same_place_is_the_data() -> None:
    """With gradients that are finite and normal it is accepted and told, not acted on."""
    assert again(1.5, 200) == [(Fault.LOSS_SPIKE, Severity.INFO)]


@pytest.mark.parametrize(
    ("times", "at", "more"),
    [
        pytest.param(1.5, 260, {}, id="elsewhere"),
        pytest.param(2.5, 200, {}, id="higher"),
        pytest.param(1.5, 200, {"grad_times": 20.0}, id="wild-gradients"),
        pytest.param(1.5, 200, {"grad": NAN}, id="lost-gradients"),
    ],
)
def test_another_rise_is_damage(times: float, at: int, more: dict) -> None:
    """Anything that differs is acted on."""
    assert CRITICAL in [severity for _fault, severity in again(times, at, **more)]


def test_a_loss_found_to_be_adversarial_is_judged_by_its_numbers_only() -> None:
    """Which loss it is may be known only after some records: a generator's may rise for ever."""
    panel = Panel(PanelConfig())
    records = inject(inject(flat(500), 100, 300, times=5.0), 400, 3, loss=NAN)
    for each in records[:80]:
        panel.observe(each)
    panel.ignore_level()
    told = [v for each in records[80:] if (v := panel.observe(each).verdict)]
    assert {v.fault for v in told} == {Fault.LOSS_NONFINITE}


@pytest.mark.parametrize("power", [2, 3, 4])
@pytest.mark.parametrize("stride", [1, 10], ids=["dense", "sparse"])
def test_the_skewed_noise_of_diffusion_is_no_fault(power: int, stride: int) -> None:
    """A random time step a record: most losses are tiny, some a hundred times larger."""
    alarms = 0
    for seed in range(4):
        noise = random.Random(f"{power} {stride} {seed}")
        losses = [0.002 + 0.4 * noise.random() ** power for _ in range(600)]
        rows = [record(n * stride, loss) for n, loss in enumerate(losses, start=1)]
        rows = [replace(row, position=Position(1, n)) for n, row in enumerate(rows, start=1)]
        alarms += len(criticals(rows))
    assert alarms == 0
