"""Build the wheel and the source archive, and check them: `python -m tools.dist` (`make dist`).

Both are built twice: the same sources make the same bytes. Then twine checks what an index would, and their
files are compared with those in git, so that nothing is missing and nothing strays in. With names of Pythons,
`python -m tools.dist python3.12 python3.13`, the wheel is also tried in an empty environment of each.
"""

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from urllib.parse import urljoin
from urllib.request import HTTPCookieProcessor, build_opener

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
MOST_PACKAGES = 12
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
SCRIPTS = "src/dibs/dashboard/static"
ABOUT = {
    *("METADATA", "RECORD", "WHEEL", "entry_points.txt"),
    *("licenses/LICENSE", f"licenses/{SCRIPTS}/idiomorph.LICENSE.txt", "sboms/vendored.cdx.json"),
}
BESIDE = {  # hatchling adds the first three
    *(".gitignore", "PKG-INFO", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "SECURITY.md")
}
LONGEST_IMPORT = 150  # milliseconds, beside what an empty interpreter takes


def main(pythons: list[str]) -> None:
    """Build, compare, check, and try what was built."""
    wheel, archive = build(DIST)
    with tempfile.TemporaryDirectory() as again:
        for first, second in zip((wheel, archive), build(Path(again)), strict=True):
            if _digest(first) != _digest(second):
                sys.exit(f"{first.name} differs when it is built again")
    run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(archive))
    compare(wheel, archive)
    for built in (wheel, archive):
        print(f"{built.relative_to(ROOT)}  {built.stat().st_size // 1024} KiB  sha256 {_digest(built)}")
    for python in pythons:
        try_out(python, wheel)


def build(folder: Path) -> tuple[Path, Path]:
    """Build into a folder; return the wheel and the source archive."""
    for old in folder.glob("dibs-*"):
        old.unlink()
    run(sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT), quiet=True)
    [wheel], [archive] = folder.glob("dibs-*.whl"), folder.glob("dibs-*.tar.gz")
    return wheel, archive


def compare(wheel: Path, archive: Path) -> None:
    """End with an error if the archives have other files than git has below src/, or lack licence or SBOM."""
    tracked = run("git", "ls-files", "src", cwd=ROOT, quiet=True).split()
    wanted = {name.removeprefix("src/") for name in tracked}
    inside = zipfile.ZipFile(wheel).namelist()
    packed = {name for name in inside if ".dist-info/" not in name}
    about = {name.partition(".dist-info/")[2] for name in inside} - {""}
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    sources = {name.removeprefix("src/") for name in names if name.startswith("src/")}
    other = {name for name in names if not name.startswith("src/")}
    for what, found, right in (
        ("the wheel", packed, wanted),
        ("the wheel's dist-info", about, ABOUT),
        ("the source archive", sources, wanted),
        ("the source archive", other, BESIDE),
    ):
        if found != right:
            sys.exit(f"{what} lacks {sorted(right - found)} and has {sorted(found - right)} besides")


def try_out(python: str, wheel: Path) -> None:
    """Install the wheel into an empty environment; run an import, the demo, the example of the README."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        run(python, "-m", "venv", folder)
        run(str(home / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", str(wheel))
        packages = count_packages(home / "bin/pip")
        spent, beside = import_time(home / "bin/python", "dibs"), import_time(home / "bin/python", "typer")
        if spent > LONGEST_IMPORT:
            sys.exit(f"{python}: import dibs takes {spent:.0f} ms, import typer {beside:.0f} ms")
        run(str(home / "bin/dibs"), "demo", "--jobs", "500", cwd=home, quiet=True)
        [(code, said), *_] = EXAMPLE.findall((ROOT / "README.md").read_text())
        if run(str(home / "bin/python"), "-W", "error", "-c", code, cwd=home, quiet=True) != said:
            sys.exit(f"{python}: the example of the README prints something else")
        show_page(home, wheel)
    print(
        f"{python}: {packages} packages, imported in {spent:.0f} ms (typer: {beside:.0f} ms); "
        "demo, example and page are shown"
    )


def show_page(home: Path, wheel: Path) -> None:
    """Install what `dibs serve` needs, and open the page and its assets by the link that it prints."""
    run(str(home / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", f"{wheel}[serve]")
    words = [str(home / "bin/dibs"), "serve", "--port", "0"]
    with subprocess.Popen(words, cwd=home, stdout=subprocess.PIPE, text=True) as service:  # noqa: S603
        try:
            assert service.stdout is not None
            link = next(line.split()[-1] for line in service.stdout if line.startswith("the page"))
            opener = build_opener(HTTPCookieProcessor())
            shown = opener.open(link).read().decode()
            for asset in re.findall(r'(?:href|src)="(static/[^"]+)"', shown):
                opener.open(urljoin(link, asset))
        finally:
            service.terminate()
    if 'data-page="overview"' not in shown:
        sys.exit(f"the page of the wheel shows something else:\n{shown}")


def count_packages(pip: Path) -> int:
    """Return how many packages dibs brings, itself among them."""
    listed = run(str(pip), "list", "--format=freeze", quiet=True).split()
    packages = [name for name in listed if not name.startswith(("pip=", "setuptools="))]
    if len(packages) > MOST_PACKAGES:
        sys.exit(f"dibs brings {len(packages)} packages: {', '.join(packages)}")
    return len(packages)


def import_time(python: Path, module: str) -> float:
    """Return how many milliseconds of the processor an import takes: the best of nine."""
    code = f"import time; t = time.process_time(); import {module}; print((time.process_time() - t) * 1000)"
    return min(float(run(str(python), "-W", "error", "-c", code, quiet=True)) for _ in range(9))


def run(*words: str, cwd: Path | None = None, quiet: bool = False) -> str:
    """Run a command and return what it printed; end with its error if it fails."""
    env = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=quiet, text=True, check=False)  # noqa: S603
    if done.returncode:
        sys.exit(f"{' '.join(words[:4])} … failed\n{done.stdout or ''}{done.stderr or ''}")
    return done.stdout or ""


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
