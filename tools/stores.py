"""Run the suites of conformance and worker on every version of a server that can be had.

    python -m tools.stores [NAME …]      # `pytest --help` has the names, at --store

One store after the other. What ran is written into docs/stores.json, from which `make docs` draws the table
of versions. The run ends with what was not tested, and why.
"""

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.servers.processes import MissingServer
from tests.support.servers.stores import STORES

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "stores.json"
SUITES = ("tests/conformance", "tests/worker")


def main(names: list[str]) -> int:
    """Test these stores, or all; return 1 if a test failed."""
    if unknown := set(names) - STORES.keys():
        raise SystemExit(f"there is no store {', '.join(sorted(unknown))}; there are {', '.join(STORES)}")
    not_tested: dict[str, str] = {}
    failed = []
    for name in names or STORES:
        try:
            STORES[name].find()
        except MissingServer as error:
            not_tested[name] = str(error)
            continue
        print(f"\n=== {name}", flush=True)
        if not _test(name):
            failed.append(name)
    print()
    for name, reason in not_tested.items():
        print(f"NOT TESTED: {name}: {reason}")
    for name in failed:
        print(f"FAILED: {name}")
    if not failed and not not_tested:
        print("every store was tested, and nothing failed")
    return 1 if failed else 0


def _test(name: str) -> bool:
    """Run the tests on this store and write down what came of it; return whether all passed."""
    store, processes = STORES[name], str(min(5, os.cpu_count() or 1))
    report = store.report(name)
    report.unlink(missing_ok=True)
    words = ["--store", name, "--numprocesses", processes, "--dist", "worksteal", *SUITES, *store.also]
    command = [sys.executable, "-m", "pytest", "-q", *words]
    code = subprocess.run(command, check=False, cwd=ROOT).returncode  # noqa: S603 - our own words
    if not report.exists():
        return False
    told = json.loads(report.read_text())
    if told["version"] is not None:
        _write_down(name, told)
    return code == 0


def _write_down(name: str, told: dict[str, object]) -> None:
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    results[name] = {
        "store": STORES[name].title,
        "version": told["version"],
        "passed": told["passed"],
        "failed": int(str(told["failed"])) + int(str(told["error"])),
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
    }
    ordered = {each: results[each] for each in STORES if each in results}
    RESULTS.write_text(json.dumps(ordered, indent=2) + "\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
