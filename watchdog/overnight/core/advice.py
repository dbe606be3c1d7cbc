"""What a person can do to make a script resumable, in lines that can be copied."""

from __future__ import annotations

from overnight.core.events import Target

RESUME_LINES = (
    "try: from overnight_probe import resume",
    "except ImportError: resume = lambda *parts: 0",
    "start = resume(model, optimizer)  # behind their construction; 0 on a fresh start",
    "for step in range(start + 1, steps + 1):  # your loop",
)
"""What makes a PyTorch script resumable from its own checkpoints (overnight_probe/resuming.py)."""


def resume_advice(target: Target | None) -> tuple[str, ...]:
    """The exact lines that give a script a resume route."""
    path = target.path if target else "CHECKPOINT"
    return (
        "tell Overnight how your script resumes, then start it again under the same name:",
        '  overnight run --resume-args "--resume {checkpoint} --lr {lr}" -- CMD',
        "with the flags that your script really has; or, without flags, put into the script:",
        *(f"  {line}" for line in RESUME_LINES),
        "then start it with: overnight run --probe -- CMD",
        f"the checkpoint to resume from: {path}",
    )
