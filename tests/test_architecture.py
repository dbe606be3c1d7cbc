"""The layers of the product, as tables that are held against every import of every file.

A rule that is in the way is changed here, in the same commit, with a sentence of why. It is never
gone around with `importlib` or a string.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WATCHDOG = ROOT / "watchdog"
TRAINER = ROOT / "trainer"
PRODUCT = sorted([*WATCHDOG.rglob("*.py"), *TRAINER.rglob("*.py")])
WRITTEN = sorted(
    path
    for folder in ("watchdog", "trainer", "tests", "benchmarks", "docs")
    for path in (ROOT / folder).rglob("*.py")
)

MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_ARGUMENTS = 400, 80, 8
VAGUE_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "handler", "handlers"}


# --- reading imports ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Import:
    """One imported module; `lazy` inside a function, `typing` under `if TYPE_CHECKING`."""

    module: str
    line: int
    lazy: bool
    typing: bool

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]


@cache
def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def is_module(name: str) -> bool:
    """Whether a dotted name is a file or folder of ours (and not a thing inside one)."""
    for base in (WATCHDOG, TRAINER):
        path = base.joinpath(*name.split("."))
        if path.is_dir() or path.with_suffix(".py").is_file():
            return True
    return False


def module_of(path: Path) -> str:
    base = WATCHDOG if path.is_relative_to(WATCHDOG) else TRAINER
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(node: ast.AST, path: Path) -> list[str]:
    """What one statement imports, `from package import module` as the module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        here = module_of(path).split(".")
        package = here if path.name == "__init__.py" else here[:-1]
        kept = package[: len(package) - node.level + 1]
        base = ".".join([*kept, base] if base else kept)
    names = [f"{base}.{alias.name}" for alias in node.names]
    return [name if is_module(name) else base for name in names]


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    found: list[Import] = []

    def visit(node: ast.AST, *, lazy: bool, typing: bool) -> None:
        for module in imported_modules(node, path):
            line = getattr(node, "lineno", 0)
            if module != "__future__":
                found.append(Import(module, line, lazy, typing))
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.iter_child_nodes(node):
            visit(child, lazy=inside, typing=typing or guarded)

    visit(syntax(path), lazy=False, typing=False)
    return tuple(dict.fromkeys(found))


def is_within(module: str, allowed: tuple[str, ...]) -> bool:
    return any(module == prefix or module.startswith(f"{prefix}.") for prefix in allowed)


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


# --- who may import whom of ours ------------------------------------------------------------------

SHARED = ("overnight.adapters.child", "overnight.adapters.files", "overnight.adapters.inotify")
VALUES = (
    *("overnight.core.events", "overnight.core.story", "overnight.core.orders"),
    "overnight.core.text",
    "overnight.core.lines",  # bytes into lines: the same for a live tail and for replay
)
QUERIES = (
    "overnight.core",
    "overnight.config",
    "overnight.adapters.store",
    "overnight.adapters.control",
    "overnight.adapters.lock",  # whether a supervisor lives: a few lines, no import of weight
    "overnight.adapters.patience",  # a user's pattern must end in replay, too
)


@dataclass(frozen=True)
class Layer:
    """Files (globs below watchdog/overnight) and what of ours they may import at all.

    `lazily` may be imported inside functions and for type checkers only.
    """

    name: str
    files: tuple[str, ...]
    may: tuple[str, ...]
    lazily: tuple[str, ...] = ()
    named: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def paths(self) -> list[Path]:
        found = {path for glob in self.files for path in (WATCHDOG / "overnight").glob(glob)}
        return sorted(path for path in found if path.suffix == ".py")


LAYERS = (
    Layer("errors", ("errors.py", "__init__.py"), may=()),
    Layer("core", ("core/**/*.py",), may=("overnight.core",)),
    Layer("config", ("config.py",), may=("overnight.core", "overnight.errors")),
    Layer(  # named: the launcher must know where its recorder lies
        "adapters",
        ("adapters/*.py",),
        may=(*VALUES, *SHARED, "overnight.errors"),
        named={"adapters/worker.py": ("overnight.adapters.recorder",)},
    ),
    *(
        Layer(
            f"adapters/{folder}",
            (f"adapters/{folder}/**/*.py",),
            may=(*VALUES, *SHARED, "overnight.errors", f"overnight.adapters.{folder}"),
        )
        for folder in ("checkpoints", "notify", "tail")
    ),
    Layer(
        "supervisor",
        ("supervisor/**/*.py",),
        may=("overnight.core", "overnight.errors", "overnight.supervisor"),
    ),
    Layer(
        "app",
        ("app.py", "preflight.py", "practice.py"),
        may=(
            "overnight.core",
            "overnight.errors",
            "overnight.config",
            "overnight.adapters",
            "overnight.supervisor",
            "overnight.preflight",
            "overnight.app",
        ),
    ),
    Layer(
        "cli",
        ("cli/**/*.py", "__main__.py"),
        may=("overnight.errors", "overnight.cli", *QUERIES),
        lazily=("overnight.app", "overnight.preflight", "overnight.practice"),
    ),
)


@pytest.mark.parametrize(
    ("layer", "path"),
    [pytest.param(layer, path, id=label(path)) for layer in LAYERS for path in layer.paths()],
)
def test_a_layer_imports_only_what_lies_below_it(layer: Layer, path: Path) -> None:
    """app -> supervisor -> core, app -> adapters -> the values of core; nothing else."""
    inside = str(path.relative_to(WATCHDOG / "overnight"))
    may = layer.may + layer.named.get(inside, ())
    wrong = []
    for found in imports_of(path):
        if found.package not in ("overnight", "overnight_trainer") or found.module == "overnight":
            continue  # the bare package holds nothing but the version
        in_function = (found.lazy or found.typing) and is_within(found.module, layer.lazily)
        if not (is_within(found.module, may) or in_function):
            wrong.append(f"line {found.line}: {found.module}")
    assert not wrong, f"{layer.name} may not import this: {', '.join(wrong)}"


def test_every_file_belongs_to_one_layer() -> None:
    """A new folder needs a row in the table, else nothing holds it."""
    ruled = [path for layer in LAYERS for path in layer.paths()]
    assert sorted(ruled) == sorted((WATCHDOG / "overnight").rglob("*.py"))


def test_query_commands_load_neither_pydantic_nor_the_supervisor() -> None:
    """`overnight status` is typed at three in the morning, in a loop, over ssh."""
    slow = ("overnight.app", "overnight.supervisor", "overnight.config", "pydantic", "psutil")
    for name in ("__init__", "query", "steer", "text"):
        path = WATCHDOG / "overnight" / "cli" / f"{name}.py"
        eager = [found for found in imports_of(path) if not (found.lazy or found.typing)]
        assert not [f.module for f in eager if is_within(f.module, slow)], label(path)


def test_the_trainer_does_not_know_the_watchdog() -> None:
    """The reference worker shows that any script can be watched."""
    for path in TRAINER.rglob("*.py"):
        modules = [found.module for found in imports_of(path)]
        assert not [name for name in modules if is_within(name, ("overnight",))], label(path)


# --- what of the outside may be used where --------------------------------------------------------

CORE_LIBRARY = {
    "bisect",
    "codecs",
    "collections",
    "csv",  # one line at a time, no files
    "dataclasses",
    "datetime",  # as values; `now` is refused below
    "enum",
    "itertools",
    "json",
    "math",
    "pathlib",  # Path as a value; calls are refused below
    "pydantic",  # the config models that stand beside their owners
    "re",
    "shlex",
    "statistics",
    "struct",
    "typing",
}

ONLY_IN: dict[str, tuple[str, ...]] = {
    "torch": ("trainer/", "watchdog/overnight_probe/"),
    "numpy": (),
    **dict.fromkeys(("matplotlib", "PIL", "apprise"), ("watchdog/overnight/adapters/notify/",)),
    "pynvml": ("watchdog/overnight/adapters/gpu.py",),
    "apscheduler": ("watchdog/overnight/adapters/housekeeping.py",),
    "sqlite3": ("watchdog/overnight/adapters/store.py",),
    "psutil": ("watchdog/overnight/adapters/",),
    "pydantic": ("watchdog/overnight/core/", "watchdog/overnight/config.py"),
    "click": ("watchdog/overnight/cli/",),
    "subprocess": ("watchdog/overnight/adapters/", "watchdog/overnight/cli/demo.py"),
    "socket": ("watchdog/overnight/adapters/",),
    "yaml": ("watchdog/overnight/adapters/config_copy.py",),
}
"""Module -> where it may be imported. The demo runs our own commands, as people do."""
ONLY_LAZILY = ("apprise", "matplotlib", "PIL", "pynvml", "yaml")
"""They belong to children, or few need them; the supervisor must not load them."""


@pytest.mark.parametrize("path", sorted((WATCHDOG / "overnight/core").rglob("*.py")), ids=label)
def test_core_has_no_effects(path: Path) -> None:
    """No clock, process, file, socket, thread, randomness or logging: values in, values out."""
    used = {found.package for found in imports_of(path)} - {"overnight"}
    assert used <= CORE_LIBRARY

    calls = [node for node in ast.walk(syntax(path)) if isinstance(node, ast.Call)]
    names = {ast.unparse(call.func) for call in calls}
    assert not names & {"open", "print", "input", "exec", "eval", "Path"}
    assert not {name for name in names if re.search(r"\b(date|datetime)\.(utc)?(now|today)", name)}


@pytest.mark.parametrize("package", ONLY_IN)
def test_libraries_stay_where_they_belong(package: str) -> None:
    """One outside thing a file, so that what it costs and how it fails is in one place."""
    wrong = [
        label(path)
        for path in PRODUCT
        if package in {found.package for found in imports_of(path)}
        and not label(path).startswith(ONLY_IN[package])
    ]
    assert not wrong


@pytest.mark.parametrize("package", ONLY_LAZILY)
def test_libraries_of_children_are_imported_in_functions(package: str) -> None:
    """A module-level import would load them into the supervisor."""
    wrong = [
        f"{label(path)}:{found.line}"
        for path in WATCHDOG.rglob("*.py")
        for found in imports_of(path)
        if found.package == package and not (found.lazy or found.typing)
    ]
    assert not wrong


def test_the_recorder_is_standard_library_only() -> None:
    """It runs with -I -S beside a training for days: no site packages, nothing of ours."""
    used = {found.package for found in imports_of(WATCHDOG / "overnight/adapters/recorder.py")}
    assert used <= set(sys.stdlib_module_names)


@pytest.mark.parametrize(
    "path", sorted((WATCHDOG / "overnight/supervisor").rglob("*.py")), ids=label
)
def test_the_supervisor_reaches_the_outside_through_ports(path: Path) -> None:
    """Effects are handed in, so that a test can hand in others."""
    direct = {"os", "random", "shutil", "select", "fcntl", "ctypes", "tempfile", "glob"}
    assert not {found.package for found in imports_of(path)} & direct


# --- nothing runs at import time ------------------------------------------------------------------

IMPORT_TIME_EFFECTS = re.compile(
    r"^(print|open|input|exec|eval)$"
    r"|^(subprocess|socket|threading|signal|shutil|tempfile|logging|time|random|sqlite3)\."
    r"|^os\.(?!path\.|fspath)"
    r"|\b(cwd|home|read_text|read_bytes|write_text|write_bytes|mkdir|unlink|exists|stat)$"
)
QUIET_CALLS = {"logging.getLogger"}


def import_time_calls(tree: ast.Module) -> Iterator[tuple[ast.Call, bool]]:
    """Calls that run when the module is imported, each with whether its value is thrown away."""

    def visit(node: ast.AST, *, alone: bool) -> Iterator[tuple[ast.Call, bool]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                yield from visit(decorator, alone=False)
            return
        if isinstance(node, ast.Lambda):
            return
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Call):
            yield node, alone
        for child in ast.iter_child_nodes(node):
            yield from visit(child, alone=isinstance(node, ast.Expr))

    yield from visit(tree, alone=False)


# sitecustomize.py exists to do something when Python starts; it is all that does.
@pytest.mark.parametrize("path", [p for p in PRODUCT if p.name != "sitecustomize.py"], ids=label)
def test_nothing_happens_at_import(path: Path) -> None:
    """A module may build constants; it may not do anything."""
    wrong = []
    for call, alone in import_time_calls(syntax(path)):
        name = ast.unparse(call.func)
        if name not in QUIET_CALLS and (alone or IMPORT_TIME_EFFECTS.search(name)):
            wrong.append(f"line {call.lineno}: {name}(...)")
    assert not wrong


# --- sizes and names ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", WRITTEN, ids=label)
def test_files_fit_in_a_head(path: Path) -> None:
    """400 lines a file, 80 a function, 8 arguments: beyond that nobody reads it at night."""
    lines = len(path.read_text().splitlines())
    wrong = [f"{lines} lines"] if lines > MAX_FILE_LINES else []
    for node in ast.walk(syntax(path)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > MAX_FUNCTION_LINES:
            wrong.append(f"{node.name} has {length} lines")
        given = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
        counted = [argument for argument in given if argument.arg not in ("self", "cls")]
        if len(counted) > MAX_ARGUMENTS:
            wrong.append(f"{node.name} has {len(counted)} arguments")
    assert not wrong


@pytest.mark.parametrize("path", PRODUCT, ids=label)
def test_every_module_says_what_it_is(path: Path) -> None:
    """The first sentence could be the file's line in the README."""
    assert ast.get_docstring(syntax(path))


def test_no_file_has_a_vague_name() -> None:
    """A file is named after what it holds."""
    vague = [label(path) for path in WRITTEN if VAGUE_NAMES & set(path.stem.split("_"))]
    assert not vague
