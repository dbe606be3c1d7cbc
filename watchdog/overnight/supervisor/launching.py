"""Starting an attempt: command, environment and control file from a checkpoint and a scale."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from overnight.core.buffering import BlockBuffering
from overnight.core.detect.overdue import OverdueDetector
from overnight.core.detect.panel import Panel
from overnight.core.detect.stall import StallDetector
from overnight.core.events import Target
from overnight.core.orders import Launch
from overnight.core.placing import BEFORE_ALL
from overnight.core.records import RecordStream
from overnight.core.resume import LrWatch, Route, Values, fill, rate_arguments, resumed_command
from overnight.errors import WorkerError
from overnight.supervisor.attempt import Attempt
from overnight.supervisor.journal import Journal
from overnight.supervisor.ports import Effects
from overnight.supervisor.run import Run


class Launcher:
    """Turns a target and a learning-rate scale into a running worker."""

    def __init__(self, run: Run, effects: Effects, journal: Journal) -> None:
        self._run = run
        self._effects = effects
        self._journal = journal

    def launch(
        self,
        target: Target | None,
        *,
        lr_scale: float,
        skip: tuple[int, int] | None = None,
        watch: LrWatch | None = None,
    ) -> None:
        """Start the next attempt from a checkpoint, or from scratch. Raises WorkerError."""
        run, settings = self._run, self._run.settings
        resumes = target is not None and run.means.route is not Route.NONE
        run.ledger.resumed_from(target.identity if target else None)
        run.forget_future(target)
        last = run.last
        self._journal.rewind(last.position if last else BEFORE_ALL)
        run.attempts += 1
        run.lr_scale = lr_scale
        run.scales[run.attempts] = lr_scale
        values = Values(
            checkpoint=target.path if target is not None and resumes else "",
            attempt=run.attempts,
            lr_scale=lr_scale,
            step=target.step if target else None,
            lr=None if settings.base_lr is None else settings.base_lr * lr_scale,
            skip=skip,
        )
        directory = settings.directory / "attempts" / f"{run.attempts:04d}"
        run.attempt = self._attempt(target, lr_scale, watch)
        self._write_control(lr_scale, skip)
        self._journal.flush(self._effects.clock(), force=True)
        command = list(settings.command)
        if resumes:
            command = resumed_command(command, settings.resume.args, values)
        elif lr_scale != 1.0:
            command = resumed_command(command, rate_arguments(settings.resume.args), values)
        launch = Launch(
            attempt=run.attempts,
            directory=directory,
            command=command,
            workdir=settings.workdir,
            env=self._env(values, directory, resumes=resumes),
        )
        try:
            launch = replace(launch, env=self._with_probe(launch, values))
            self._effects.tails.open(run.attempts, directory)  # it must see what is there before
            self._effects.worker.start(launch)
        except (WorkerError, OSError) as error:  # OSError: no descriptors left to read it
            self._effects.tails.finish()
            run.attempt = None
            raise WorkerError(f"cannot start the worker: {error}") from error

    def _with_probe(self, launch: Launch, values: Values) -> dict[str, str]:
        """The environment with our folder before all others, where the worker is to be probed."""
        settings, env = self._run.settings, dict(launch.env)
        if not settings.probe.enabled:
            return env
        try:
            folder = str(self._effects.install_probe(settings.directory))
        except OSError as error:
            self._effects.say(f"warning: no probe in the worker: {error.strerror or error}")
            return env
        by_command = list(launch.command) != list(settings.command)
        carried = by_command and bool(rate_arguments(settings.resume.args))
        path = env.get("PYTHONPATH")
        return env | {
            "PYTHONPATH": f"{folder}:{path}" if path else folder,
            "OVERNIGHT_PROBE": settings.probe.settings(
                first_step=values.step or 0,
                applied_scale=values.lr_scale if carried else 1.0,
                clip=self._run.clip,
            ),
        }

    def _write_control(self, lr_scale: float, skip: tuple[int, int] | None) -> None:
        """The file that a cooperating worker reads again at each step."""
        try:
            self._effects.write_control(
                self._control_path, {"lr_scale": lr_scale, "skip": _skip_text(skip)}
            )
        except OSError as error:  # the environment tells the new worker the same
            self._effects.say(f"warning: cannot write {self._control_path}: {error.strerror}")

    def _attempt(self, target: Target | None, lr_scale: float, watch: LrWatch | None) -> Attempt:
        run, settings = self._run, self._run.settings
        at = self._effects.clock()
        shifts = run.attempt.panel.shifts if run.attempt else ()
        return Attempt(
            number=run.attempts,
            started_at=at,
            started_utc=self._effects.wall(),
            resumed=target,
            lr_scale=lr_scale,
            stream=RecordStream(
                run.attempts,
                records_before=run.last.step if run.last else 0,
                metrics=settings.metrics,
                started_at=at,
                resumed_step=target.step if target else None,
                earlier=run.attempt.stream.steps if run.attempt else None,
                search=self._effects.search,
            ),
            panel=Panel(settings.panel, run.level_records, shifts=shifts),
            stall=StallDetector(settings.stall, started_at=at),
            buffering=BlockBuffering(),
            overdue=OverdueDetector(settings.max_loss_s),
            watch=watch,
        )

    @property
    def _control_path(self) -> Path:
        return self._run.settings.directory / "control.json"

    def _env(self, values: Values, directory: Path, *, resumes: bool) -> dict[str, str]:
        """The worker's environment: the user's, the config's, and the protocol's."""
        settings = self._run.settings
        env = dict(settings.env)
        env.setdefault("PYTHONUNBUFFERED", "1")  # Python block-buffers what goes to a file
        if resumes:
            config = settings.resume
            env.update({name: fill(text, values) for name, text in config.env.items()})
        skip = values.skip
        return env | {
            "OVERNIGHT_RUN": settings.name,
            "OVERNIGHT_ATTEMPT": str(values.attempt),
            "OVERNIGHT_METRICS": str(directory / "metrics.jsonl"),
            "OVERNIGHT_RESUME": values.checkpoint,
            "OVERNIGHT_LR_SCALE": f"{values.lr_scale:.10g}",
            "OVERNIGHT_SKIP": _skip_text(skip),
            "OVERNIGHT_CONTROL": str(self._control_path),
        }


def _skip_text(skip: tuple[int, int] | None) -> str:
    return f"{skip[0]}:{skip[1]}" if skip else ""
