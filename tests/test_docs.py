"""Documents that cannot lag behind the code: each is held against what it describes."""

from __future__ import annotations

import ast
import configparser
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import click
import pytest

from overnight.cli import cli
from overnight.config import Config, parse_config
from overnight.core import events, replay
from overnight.core.arguments import PLACEHOLDERS
from overnight.core.cause_words import RULES
from overnight.core.causes import CAUSES, Retry
from overnight.core.lifecycle import State
from overnight.core.proof import LrProof
from overnight.core.resume import Route
from overnight.core.status import Now, public, snapshot
from overnight.core.story import Entry, Incident, checkpoint_json, incident_json

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
CORE = ROOT / "watchdog" / "overnight" / "core"
UNIT = ROOT / "systemd" / "overnight@.service"
EXAMPLE = ROOT / "deploy" / "overnight.example.toml"
COMMANDS = cli.list_commands(click.Context(cli))


def section(page: str, heading: str) -> str:
    """The text below `## heading`, up to the next heading of the same level."""
    found = re.search(rf"(?ms)^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page)
    assert found, f"no section {heading!r}"
    return found[1]


def rows(text: str) -> set[str]:
    """The first cells of a table, where they are code."""
    return set(re.findall(r"(?m)^\| `([^`|]+)` \|", text))


# --- the README -----------------------------------------------------------------------------------


def readme_tree() -> dict[str, str]:
    """Path -> purpose, from the indented listing below the heading `The tree`."""
    block = section((ROOT / "README.md").read_text(), "The tree").split("```")[1]
    above: list[str] = []
    found: dict[str, str] = {}
    for line in block.splitlines()[1:]:
        match = re.fullmatch(r"( *)(\S+)\s*(.*)", line)
        assert match, line
        above[len(match[1]) // 2 :] = [match[2]]
        found["".join(above)] = match[3]
    return found


def holds_code(path: Path) -> bool:
    """Whether a file is more than a docstring and a version: an empty __init__.py is no entry."""
    body = ast.parse(path.read_text()).body[1:]
    return any(not isinstance(node, ast.Assign) for node in body)


def test_the_readme_names_exactly_the_files_of_the_product() -> None:
    """The tree is the map: a file that is not on it cannot be found, a stale line misleads."""
    named = {path for path in readme_tree() if path.startswith(("watchdog/", "trainer/"))}
    real = {
        str(path.relative_to(ROOT))
        for folder in ("watchdog", "trainer")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "__init__.py" or holds_code(path)
    }
    assert {path for path in named if not path.endswith("/")} == real


def test_the_readme_tree_is_true_and_says_why() -> None:
    """Every path exists, and every line has a purpose."""
    tree = readme_tree()
    assert not [path for path in tree if not (ROOT / path).exists()]
    assert not [path for path, purpose in tree.items() if not purpose.strip()]


def test_documents_link_to_what_exists() -> None:
    """Every relative link of every page leads to a file, and to a heading of it."""
    broken = []
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text()):
            name, _, anchor = target.partition("#")
            file = page.parent / name if name else page
            if not file.exists() or (anchor and anchor not in anchors(file)):
                broken.append(f"{page.name}: {target}")
    assert not broken


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, spelled as code hosts do."""
    headings = re.findall(r"(?m)^#+ (.+)$", page.read_text())
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs"])
def test_documents_use_american_spelling(page: str) -> None:
    """One spelling, so that a search finds everything."""
    british = r"\b\w*(?:colour|behaviour|favour|neighbour|honour|licence|signalled|judgement)\w*\b"
    place = ROOT / page
    texts = [place] if place.is_file() else sorted(place.rglob("*.md"))
    assert not [word for text in texts for word in re.findall(british, text.read_text())]


# --- the command line -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name: str) -> None:
    """docs/cli.md has a section for each command that names each of its options."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    text = section((DOCS / "cli.md").read_text(), f"`overnight {name}`")
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    spelled = [flag for option in options for flag in (*option.opts, *option.secondary_opts)]
    assert not [flag for flag in spelled if not re.search(rf"`{flag}\b", text)]


def test_no_option_is_documented_that_does_not_exist() -> None:
    """The rows of the tables of docs/cli.md are options of that command."""
    page = (DOCS / "cli.md").read_text()
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        known = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}
        table = re.findall(r"(?m)^\| (`--.*?) \|", section(page, f"`overnight {name}`"))
        documented = {flag for row in table for flag in re.findall(r"`(--[\w-]+)", row)}
        assert documented <= known, name


# --- glossary and runbook -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heading", "words"),
    [
        ("Faults", events.Fault),
        ("Severities", events.Severity),
        ("Actions", events.Action),
        ("Health of a checkpoint", events.Health),
        ("States of a run", State),
        ("Proof of the learning rate", LrProof),
        ("Resume routes", Route),
    ],
)
def test_the_glossary_has_every_public_word(heading: str, words: type[Enum]) -> None:
    """Names that appear in messages and in JSON are explained, and no others."""
    text = section((DOCS / "glossary.md").read_text(), heading)
    assert rows(text) == {word.value for word in words}


def test_the_glossary_gives_each_fault_its_family() -> None:
    """Which faults become one incident."""
    text = section((DOCS / "glossary.md").read_text(), "Faults")
    told = dict(re.findall(r"(?m)^\| `([\w-]+)` \| (\w+) \|", text))
    assert told == {fault.value: events.family_of(fault).value for fault in events.Fault}


def test_the_glossary_has_every_cause_of_death() -> None:
    """A cause is in the alert, so it is in the glossary."""
    told = rows(section((DOCS / "glossary.md").read_text(), "Causes of death"))
    assert told == set(CAUSES)
    assert {rule.cause for rule in RULES} <= told


def test_the_glossary_has_every_retry_class() -> None:
    """What trying again is worth, by the names of the code."""
    told = rows(section((DOCS / "glossary.md").read_text(), "Worth of a retry"))
    assert told == {retry.value for retry in Retry}


def alerting_faults() -> Iterator[str]:
    """Faults that some code can raise today, by their mention in what judges."""
    places = [*(CORE / "detect").glob("*.py"), CORE / "exits.py", CORE / "causes.py"]
    places.append(ROOT / "watchdog" / "overnight" / "supervisor" / "judging.py")
    for place in places:
        for node in ast.walk(ast.parse(place.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Fault":
                yield events.Fault[node.attr].value


@pytest.mark.parametrize("fault", sorted(set(alerting_faults())))
def test_every_fault_that_can_alert_is_in_the_runbook(fault: str) -> None:
    """Who is woken by it finds what it means, what was done and what to do."""
    text = section((DOCS / "runbook.md").read_text(), fault)
    assert "**What it means.**" in text
    assert "**What Overnight did.**" in text
    assert "**What you do.**" in text


# --- the protocol ---------------------------------------------------------------------------------


def json_section(command: str) -> set[str]:
    """The documented fields of one `--json` output."""
    page = (DOCS / "protocol.md").read_text()
    found = re.search(rf"(?ms)^### `overnight {command} --json`\n(.*?)(?=^###? |\Z)", page)
    assert found
    return rows(found[1])


def a_snapshot() -> dict[str, object]:
    """One run as `status --json` prints it."""
    now = Now(
        name="night",
        state="running",
        attempt=1,
        pid=1,
        started_utc=0.0,
        now_utc=1.0,
        total_steps=None,
        lr_scale=1.0,
        resume_route="none",
        alerts_waiting=0,
    )
    live = snapshot(now, records=[], best=None, gpus=[], open_incidents=[])
    counts = {"waiting": 0, "failed": 0}
    printed = public(live, now_utc=1.0, incidents=[], alerts=counts, alive=True)
    del printed["needs_you"]  # becomes the exit status
    return printed


def test_the_fields_of_json_are_documented() -> None:
    """Scripts are written against docs/protocol.md, so it names what is printed, and no more."""
    incident = Incident(
        id=1,
        fault=events.Fault.CRASH,
        severity=events.Severity.CRITICAL,
        opened_utc=0.0,
        reason="",
        action=events.Action.RESTART,
    )
    identity = events.Identity("a.pt", 1, 1, 1)
    entry = Entry(identity, "pt", saved_utc=0.0, position=events.Position(1, 1))
    assert json_section("status") == set(a_snapshot())
    assert json_section("incidents") == set(incident_json(incident))
    assert json_section("replay") == set(replay.public("train.log", replay.Report()))
    assert json_section("checkpoints") == set(checkpoint_json(entry, events.Health.HEALTHY, ""))


def test_placeholders_and_variables_are_documented() -> None:
    """What a worker is given, and what may be written in its flags."""
    page = (DOCS / "protocol.md").read_text()
    assert not [name for name in PLACEHOLDERS if f"`{{{name}}}`" not in page]
    launching = (ROOT / "watchdog/overnight/supervisor/launching.py").read_text()
    given = set(re.findall(r'"(OVERNIGHT_\w+)"', launching))
    assert given
    assert given <= rows(section(page, "Environment"))


# --- configuration --------------------------------------------------------------------------------


def test_the_config_page_is_up_to_date() -> None:
    """`python docs/make_config.py` writes it from the models."""
    spec = importlib.util.spec_from_file_location("make_config", DOCS / "make_config.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (DOCS / "config.md").read_text() == module.page(), "run: python docs/make_config.py"


def test_the_example_config_parses() -> None:
    """As it stands, and with every setting in it switched on one after another."""
    text = EXAMPLE.read_text()
    config = parse_config(tomllib.loads(text), source=EXAMPLE.name)
    assert config.resume.args
    lines = text.splitlines()
    switches = [at for at, line in enumerate(lines) if re.match(r"#\w+ = ", line)]
    assert switches
    for at in switches:
        key = lines[at][1:].partition(" ")[0]
        begun = max(n for n, line in enumerate(lines[:at]) if line.startswith("["))
        kept = [line for line in lines[begun:at] if not line.startswith(f"{key} = ")]
        changed = [*lines[:begun], *kept, lines[at][1:], *lines[at + 1 :]]
        parse_config(tomllib.loads("\n".join(changed)), source=f"{EXAMPLE.name}:{at + 1}")


def test_the_example_shows_the_defaults() -> None:
    """A setting that is switched off shows its default where it has one."""
    name, lines = "", EXAMPLE.read_text().splitlines()
    defaults = Config().model_dump()
    checked = 0
    for line in lines:
        if match := re.match(r"\[([\w.]+)\]", line):
            name = match[1]
        elif match := re.match(r"#(\w+ = .+)", line):
            ((key, value),) = tomllib.loads(match[1]).items()
            held: object = defaults
            for part in [*name.split("."), key]:
                held = held.get(part) if isinstance(held, dict) else None
            if isinstance(held, bool | int | float):
                assert value == held, line
                checked += 1
    assert checked > 10


# --- deployment -----------------------------------------------------------------------------------


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign] - systemd's keys have capitals
    parser.read(UNIT)
    return parser


def test_the_unit_leaves_the_worker_time_and_does_not_repeat_what_needs_a_human() -> None:
    """A stop lets the worker save; a halt and a usage error are not started again."""
    service = unit()["Service"]
    assert service["Type"] == "exec"
    assert service["KillMode"] == "mixed"
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"].split() == ["1", "2"]
    assert set(service["SuccessExitStatus"].split()) >= {"130", "143"}
    assert float(service["TimeoutStopSec"]) >= Config().run.grace_s + 20
    assert "StateDirectory" in service
    assert re.search(
        r"/overnight run --config %E/overnight/%i\.toml --name %i$", service["ExecStart"]
    )


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """Not a word on stderr, with the command replaced by one that exists."""
    copy = tmp_path / UNIT.name
    copy.write_text(re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", UNIT.read_text()))
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(tmp_path / "overnight@night.service")],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", ["deploy/install.sh", ".ci/run"])
def test_scripts_are_executable_and_bash(script: str) -> None:
    """They are typed as they stand."""
    path = ROOT / script
    assert os.access(path, os.X_OK)
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, check=False, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_installer_explains_itself_and_refuses_what_is_not_its_own(tmp_path: Path) -> None:
    """A directory of somebody else is neither filled nor removed."""
    (tmp_path / "precious").write_text("mine")
    script = [str(ROOT / "deploy/install.sh"), "--prefix", str(tmp_path)]
    env = {**os.environ, "PYTHON": sys.executable}
    install = subprocess.run(
        script, capture_output=True, text=True, env=env, check=False, timeout=60
    )
    assert install.returncode == 1
    assert "not ours" in install.stderr
    remove = [*script, "--uninstall"]
    subprocess.run(remove, capture_output=True, env=env, check=True, timeout=60)
    assert (tmp_path / "precious").read_text() == "mine"
    shown = subprocess.run(
        [*script, "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    assert "--uninstall" in shown.stdout
