"""Starting an attempt: command, environment and control file from a checkpoint and a scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePath

from overnight.core.arguments import (
    Values,
    fill,
    rate_arguments,
    resumed_command,
    with_file,
)
from overnight.core.buffering import BlockBuffering
from overnight.core.comeback import Comeback
from overnight.core.detect.overdue import OverdueDetector
from overnight.core.detect.panel import Panel
from overnight.core.detect.stall import StallDetector
from overnight.core.events import Target
from overnight.core.orders import Launch, Patch
from overnight.core.placing import BEFORE_ALL
from overnight.core.proof import LrWatch
from overnight.core.records import RecordStream
from overnight.core.resume import Route
from overnight.errors import ConfigError, WorkerError
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
        comeback = self._comeback(target) if target is not None and resumes else None
        run.ledger.resumed_from(target.identity if target else None)
        run.forget_future(target)
        last = run.last
        self._journal.rewind(last.position if last else BEFORE_ALL)
        run.attempts += 1
        run.lr_scale = lr_scale
        run.scales[run.attempts] = lr_scale
        directory = settings.directory / "attempts" / f"{run.attempts:04d}"
        values = Values(
            checkpoint=target.path if target is not None and resumes else "",
            attempt=run.attempts,
            lr_scale=lr_scale,
            step=target.step if target else None,
            lr=None if settings.base_lr is None else settings.base_lr * lr_scale,
            skip=skip,
            batch=self._batch(),
            config=str(directory / PurePath(settings.resume.config or "").name),
        )
        run.attempt = self._attempt(target, lr_scale, watch)
        run.attempt.comeback = comeback
        run.attempt.oom_kills = self._effects.oom_kills()
        self.write_control(lr_scale, skip)
        self._journal.flush(self._effects.clock(), force=True)
        launch = Launch(
            attempt=run.attempts,
            directory=directory,
            command=self._command(values, resumes=resumes),
            workdir=settings.workdir,
            env=self._env(values, directory, resumes=resumes),
        )
        try:
            self._patch(values, resumes=resumes)
            launch = replace(launch, env=self._with_probe(launch, values))
            self._effects.tails.open(run.attempts, directory)  # it must see what is there before
            self._effects.worker.start(launch)
        except (WorkerError, ConfigError, OSError) as error:  # OSError: no descriptors left
            self._effects.tails.finish()
            run.attempt = None
            raise WorkerError(f"cannot start the worker: {error}") from error

    def _command(self, values: Values, *, resumes: bool) -> list[str]:
        """The user's command, made to continue, with what earlier OOMs have taught."""
        settings, resume = self._run.settings, self._run.settings.resume
        command = list(settings.command)
        if resumes and resume.command:
            command = [fill(word, values) for word in resume.command]
        elif resumes:
            command = resumed_command(command, resume.args, values)
        elif values.lr_scale != 1.0:
            command = resumed_command(command, rate_arguments(resume.args), values)
        if values.batch is not None:
            command = resumed_command(command, resume.batch_args, values)
        if resume.config and self._patched_values(values, resumes=resumes):
            command = with_file(command, resume.config, values.config)
        return command

    def _batch(self) -> int | None:
        """The batch size after OOMs that the allocator alone did not cure."""
        base = self._run.settings.base_batch
        if self._run.relief < 2 or base is None:
            return None
        return max(1, base >> (self._run.relief - 1))

    def _patched_values(self, values: Values, *, resumes: bool) -> dict[str, str]:
        """What the copy of the script's config file gets; from scratch, only rate and batch."""
        rates = ("{lr}", "{lr_scale}") if values.lr_scale != 1.0 else ()
        return {
            key: fill(text, values)
            for key, text in self._run.settings.resume.config_values.items()
            if (values.batch is not None if "{batch}" in text else resumes or text in rates)
        }

    def _patch(self, values: Values, *, resumes: bool) -> None:
        settings = self._run.settings
        wanted = self._patched_values(values, resumes=resumes)
        if settings.resume.config and wanted:
            original = settings.workdir / settings.resume.config
            self._effects.patch_config(Patch(original, Path(values.config), wanted))

    def _comeback(self, target: Target) -> Comeback | None:
        """What the first records must look like, from what is known before it is forgotten."""
        run = self._run
        if target.step is None:
            return None
        abandoned = [e.run_step for e in run.ledger.entries() if e.identity != target.identity]
        return Comeback(
            target_step=target.step,
            lineage=run.lineage(target),
            stride=run.stride,
            left_behind=[step for step in abandoned if step is not None],
            band_steps=0 if target.partial else run.settings.resume.band_steps,
            by_steps=run.settings.drill_s > 0,
        )

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

    def write_control(self, lr_scale: float, skip: tuple[int, int] | None) -> None:
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
        if self._run.relief:
            env |= expandable(env)
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


def expandable(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that let PyTorch's allocator grow its segments, beside what the user has set.

    PYTORCH_CUDA_ALLOC_CONF is the name that every version knows; since 2.9 PYTORCH_ALLOC_CONF wins.
    """
    names = [name for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF") if env.get(name)]
    merged = {}
    for name in names or ["PYTORCH_CUDA_ALLOC_CONF"]:
        parts = [p for p in env.get(name, "").split(",") if p and "expandable_segments" not in p]
        merged[name] = ",".join([*parts, "expandable_segments:True"])
    return merged


def _skip_text(skip: tuple[int, int] | None) -> str:
    return f"{skip[0]}:{skip[1]}" if skip else ""
