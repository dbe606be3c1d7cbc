"""From what a worker prints to judged records: every line of an attempt passes here once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from overnight.core.events import Family, Level, LogChunk, StepMetric
from overnight.core.formats import WorkerEvent
from overnight.core.lifecycle import Event, State
from overnight.core.lines import LINE_BYTES
from overnight.core.probe import is_poisoned, skipped_verdict
from overnight.core.text import one_line
from overnight.supervisor.attempt import Attempt
from overnight.supervisor.journal import Journal
from overnight.supervisor.judging import Judge
from overnight.supervisor.keeping import Keeper
from overnight.supervisor.ports import Effects
from overnight.supervisor.recovery import Recoverer
from overnight.supervisor.run import Run


class Reader:
    """Feeds records to the detectors, the ledger and the recovery, and verdicts to the judge."""

    def __init__(
        self,
        run: Run,
        effects: Effects,
        journal: Journal,
        *,
        keeper: Keeper,
        recoverer: Recoverer,
        judge: Judge,
    ) -> None:
        self._run = run
        self._effects = effects
        self._journal = journal
        self._keeper = keeper
        self._recoverer = recoverer
        self._judge = judge

    def chunk(self, chunk: LogChunk) -> None:
        """Lines of the current attempt; what a dead one still had to say is not judged."""
        attempt = self._run.attempt
        if attempt is None or chunk.attempt != attempt.number:
            return
        if chunk.source == "log":
            attempt.tail.extend(chunk.lines)
            advice = attempt.buffering.observe(at=chunk.at, read_bytes=chunk.read_bytes)
            if advice is not None:
                self._effects.say(f"warning: {advice}")
        if chunk.source != "metrics":
            attempt.stall.active(chunk.at)
        if chunk.damage:
            self._effects.say(f"warning: {chunk.damage}")
        if chunk.skipped_bytes:
            self._run.ledger.records_lost()
            self._effects.say(
                f"warning: {chunk.skipped_bytes:,} bytes of log skipped, too far behind"
            )
        if chunk.cut_lines and not attempt.cut_lines:
            self._effects.say(
                f"warning: long lines are cut; {LINE_BYTES >> 10} KiB of each are read"
            )
        attempt.cut_lines = max(attempt.cut_lines, chunk.cut_lines)
        for found in attempt.stream.read(chunk, time_utc=self._effects.wall()):
            self._take(found, attempt, chunk.at)
        if attempt.stream.shape.adversarial and not attempt.levels_ignored:
            self._ignore_levels(attempt)
        if attempt.stream.total_steps is not None:
            self._run.total_steps = attempt.stream.total_steps
        while attempt.stream.notes:
            self._effects.say(attempt.stream.notes.pop(0))

    def inject(self, record: StepMetric) -> None:
        """A record that the worker did not print: a drill's."""
        assert self._run.attempt is not None
        self._record(record, self._run.attempt)

    def tick(self, attempt: Attempt, at: float) -> None:
        """Time has passed: a run of which nothing is understood is told of."""
        advice = attempt.stream.advise(at)
        if not advice and self._run.settings.probe.enabled and attempt.first_at is not None:
            advice = attempt.probe.absence(attempt.records, at - attempt.first_at)
        if advice:
            self._effects.say(f"warning: {advice}")

    def finish(self, attempt: Attempt, at: float) -> None:
        """Nothing more will come: a record of several lines that was waiting is complete."""
        for found in attempt.stream.finish(at=at, time_utc=self._effects.wall()):
            self._take(found, attempt, at)

    def _take(self, found: StepMetric | WorkerEvent, attempt: Attempt, at: float) -> None:
        if isinstance(found, WorkerEvent):
            self._event(found, attempt, at)
        elif not attempt.condemned:
            self._record(found, attempt)

    def _event(self, event: WorkerEvent, attempt: Attempt, at: float) -> None:
        fields = event.fields
        if event.name == "hello":
            before = self._run.means
            self._run.hello = dict(fields)
            if self._run.means != before:
                self._effects.say(f"resume: {self._run.means.sentence}")
        elif event.name == "probe":
            self._probe(fields, attempt)
        elif event.name == "phase":
            attempt.stall.phase(str(fields.get("name", "")), at=at)
        elif event.name == "rebase":
            self._run.rebase()
            why = one_line(str(fields.get("why", "")), limit=80) or "no reason given"
            self._effects.say(f"a change was announced ({why}): the level of the loss starts anew")
        elif event.name == "checkpoint" and isinstance(fields.get("path"), str):
            step = fields.get("step")
            known_step = step if isinstance(step, int) else None
            self._effects.checkpoints.announce(fields["path"], known_step)
            self._recoverer.checkpoint_saved(at)

    def _probe(self, said: Mapping[str, Any], attempt: Attempt) -> None:
        """The probe speaks of itself, or answers an order."""
        if "hello" in said and attempt.probe.alive:  # another model, in the same process
            self._run.rebase()
        for_people = attempt.probe.hear(said)
        if for_people is not None:
            self._effects.say(for_people)
        if said.get("optimizers") and not attempt.levels_ignored:
            self._ignore_levels(attempt)
        if "rollback" in said or "off" in said:
            self._recoverer.answered(said)

    def _ignore_levels(self, attempt: Attempt) -> None:
        attempt.levels_ignored = True
        attempt.panel.ignore_level()
        self._effects.say("two losses that fight (GAN or RL): only dead losses are judged")

    def _record(self, record: StepMetric, attempt: Attempt) -> None:
        run, probe = self._run, attempt.probe
        if probe.alive and not probe.told_of_skip and is_poisoned(record):
            probe.told_of_skip = True
            self._judge.judge(skipped_verdict(record))
        judgement = attempt.observe(record)
        comeback = attempt.comeback if not attempt.levels_ignored else None
        lost = comeback.observe(record) if comeback is not None else None
        run.records.append(record)
        if run.first_step is None:
            run.first_step = record.step
            run.ledger.began(record.step, started_utc=run.started_utc)
        run.record_count += 1
        run.reached(record.step)
        self._journal.record(record)
        if run.life.state is State.STARTING:
            run.life.apply(Event.FIRST_RECORD)
            run.signatures.clear()
        suspect = judgement.level >= Level.SUSPECT
        run.ledger.record(record, suspect=suspect, suspect_since=judgement.suspect_since)
        if suspect:
            run.book.still_bad(Family.NUMERIC, record_count=run.record_count)
        else:
            self._recoverer.record(record)
            self._judge.check_lr_proof(attempt, record)
        verdict = lost or judgement.verdict
        self._climb(record, attempt, clean=not suspect and verdict is None)
        if verdict is not None:
            self._judge.judge(verdict)
        self._keeper.keep_safe()
        self._judge.close_calm()

    def _climb(self, record: StepMetric, attempt: Attempt, *, clean: bool) -> None:
        """A rate that was lowered for a while returns, if the worker takes it while it runs."""
        run = self._run
        if run.climb is None:
            return
        run.climb = run.climb.after(record.step, clean=clean)
        idle = self._recoverer.current is None
        if idle and clean and run.means.live and run.climb.is_due(record.step):
            run.climbed()
            attempt.lr_scale = run.lr_scale
            self._recoverer.launcher.write_control(run.lr_scale, None)
            self._effects.say(f"the learning rate is back at x{run.lr_scale:g}")
