"""Build the site from the Markdown of this repository: `python -m tools.site` (`make site`).

Pages are copied to build/site/pages. A link that leaves docs/ leads to a page made of the file that it names,
so the site is whole without the repository. Zensical makes HTML of the pages; then every link is
followed, and one that leads nowhere ends the build. docs/site.toml has the pages and their order.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tools import reference

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BUILD = ROOT / "build" / "site"
PAGES, HTML = BUILD / "pages", BUILD / "html"

_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?(\))")
_HEADING = re.compile(r"^# (.+)$", re.MULTILINE)
_HIDDEN = re.compile(r"^<!-- .* -->\n", re.MULTILINE)


def main() -> None:
    """Build the site anew, and say where it is."""
    plan = tomllib.loads((DOCS / "site.toml").read_text())
    shutil.rmtree(BUILD, ignore_errors=True)
    PAGES.mkdir(parents=True)
    drawn = reference.write_pages(PAGES / "reference" / "api")
    Gathering().gather()
    nav = [navigation(part, drawn) for part in plan["part"]]
    (BUILD / "zensical.toml").write_text(settings(plan, nav))
    subprocess.run(  # noqa: S603 - our own tool, with no words from outside
        [Path(sys.executable).parent / "zensical", "build", "--clean"], cwd=BUILD, check=True
    )
    write_llms(plan, nav)
    if broken := list(broken_links()):
        sys.exit("\n".join(["links that lead nowhere:", *broken]))
    print(f"{sum(1 for _ in HTML.rglob('*.html'))} pages, every link followed: {HTML / 'index.html'}")


# -- Pages --------------------------------------------------------------------------------------


class Gathering:
    """Pages on their way into the site; a file that a page links to follows it there."""

    def __init__(self) -> None:
        self._waiting = [path for path in DOCS.rglob("*") if path.suffix in {".md", ".png", ".svg"}]
        self._gathered = set(self._waiting)

    def gather(self) -> None:
        """Copy all pages, and what they link to, with links that lead there."""
        while self._waiting:
            path = self._waiting.pop()
            place = PAGES / place_of(path)
            place.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix in {".png", ".svg"}:
                shutil.copyfile(path, place)
            else:
                place.write_text(self._page(path, place))

    def _page(self, path: Path, place: Path) -> str:
        if path.is_dir():
            return self._linked(_listing(path), path, place)
        if path.suffix == ".md":
            return self._linked(_HIDDEN.sub("", path.read_text()), path.parent, place)
        return _source(path)

    def _linked(self, text: str, folder: Path, place: Path) -> str:
        """Return the text with links that lead to the places of its targets."""

        def link(found: re.Match[str]) -> str:
            start, target, part, end = found.groups(default="")
            path = Path(os.path.normpath(folder / unquote(target)))
            if not path.exists():
                raise SystemExit(f"{place.relative_to(PAGES)}: there is no {target}")
            if path not in self._gathered:
                self._gathered.add(path)
                self._waiting.append(path)
            return f"{start}{os.path.relpath(PAGES / place_of(path), place.parent)}{part}{end}"

        parts = _CODE.split(text)
        return "".join(one if number % 2 else _LINK.sub(link, one) for number, one in enumerate(parts))


def place_of(path: Path) -> Path:
    """Return where a file of the repository stands among the pages."""
    if path.is_dir():
        return place_of(path / "index").with_suffix(".md")
    inside = path.relative_to(DOCS) if path.is_relative_to(DOCS) else Path("source") / path.relative_to(ROOT)
    return inside if inside.suffix in {".md", ".png", ".svg"} else inside.with_name(f"{inside.name}.md")


def _listing(folder: Path) -> str:
    files = sorted(path for path in folder.iterdir() if path.suffix in {".py", ".sql", ".lua", ".md"})
    return "\n".join([f"# {folder.relative_to(ROOT)}", "", *(f"- [{one.name}]({one.name})" for one in files)])


def _source(path: Path) -> str:
    language = {".py": "python", ".sql": "sql", ".lua": "lua", ".toml": "toml"}.get(path.suffix, "text")
    return f"# {path.relative_to(ROOT)}\n\n````{language}\n{path.read_text().rstrip()}\n````\n"


# -- Navigation ---------------------------------------------------------------------------------

Entry = dict[str, Any]  # title -> path, or -> list of entries


def navigation(part: dict[str, Any], drawn: list[Path]) -> Entry:
    """Return a part of the site as an entry, with its groups below it."""
    pages = [entry(page) for pattern in part.get("pages", ()) for page in expand(pattern)]
    made = [entry(page.relative_to(PAGES)) for page in drawn] if "drawn" in part else []
    groups = [navigation(group, drawn) for group in part.get("group", ())]
    return {part["title"]: [*pages, *made, *groups]}


def expand(pattern: str) -> list[Path]:
    """Return the pages that a path with a star stands for, in order."""
    return (
        sorted(path.relative_to(DOCS) for path in DOCS.glob(pattern)) if "*" in pattern else [Path(pattern)]
    )


def entry(page: Path) -> Entry:
    """Return a page as an entry: its heading, and its path."""
    heading = _HEADING.search((PAGES / page).read_text())
    assert heading is not None, f"{page} has no heading"
    return {heading[1].replace("`", ""): str(page)}


def named_pages(plan: dict[str, Any]) -> Iterator[Path]:
    """Yield the pages of docs/ that the plan names, as often as it does."""
    for part in plan["part"]:
        yield from (page for pattern in part.get("pages", ()) for page in expand(pattern))
        yield from named_pages({"part": part.get("group", ())})


def settings(plan: dict[str, Any], nav: list[Entry]) -> str:
    """Return the settings of Zensical; what it loads comes from the site alone, its fonts from the system."""
    return f"""\
[project]
site_name = {json.dumps(plan["name"])}
site_description = {json.dumps(plan["summary"])}
docs_dir = "pages"
site_dir = "html"
nav = {_toml(nav)}

[project.theme]
language = "en"
font = false
features = [
  "content.code.copy", "navigation.footer", "navigation.indexes", "navigation.sections", "navigation.tabs",
  "navigation.top", "navigation.tracking", "search.highlight", "toc.follow",
]

[[project.theme.palette]]
media = "(prefers-color-scheme)"
toggle = {{ icon = "lucide/sun-moon", name = "Light" }}

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle = {{ icon = "lucide/sun", name = "Dark" }}

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle = {{ icon = "lucide/moon", name = "As the system" }}
"""


def _toml(value: Any) -> str:
    match value:
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case dict():
            return f"{{ {', '.join(f'{json.dumps(key)} = {_toml(one)}' for key, one in value.items())} }}"
        case _:
            return json.dumps(value, ensure_ascii=False)


# -- For machines that read ---------------------------------------------------------------------


def write_llms(plan: dict[str, Any], nav: list[Entry]) -> None:
    """Write `llms.txt`, a list of all pages, and `llms-full.txt`, their texts."""
    lines, texts = [f"# {plan['name']}", "", f"> {plan['summary']}"], []
    for part in nav:
        for title, entries in part.items():
            lines += ["", f"## {title}", ""]
            for name, page in _flat(entries):
                text = (PAGES / page).read_text()
                lines.append(f"- [{name}]({page}): {first_sentence(text)}")
                texts.append(text)
                shutil.copyfile(PAGES / page, _beside(page))
    (HTML / "llms.txt").write_text("\n".join([*lines, ""]))
    (HTML / "llms-full.txt").write_text("\n\n".join(texts))


def _beside(page: str) -> Path:
    place = HTML / page
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _flat(entries: list[Entry]) -> Iterator[tuple[str, str]]:
    for one in entries:
        for name, page in one.items():
            yield from _flat(page) if isinstance(page, list) else [(name, page)]


def first_sentence(page: str) -> str:
    """Return the first sentence below the heading, on one line."""
    _, _, below = f"\n{page}".partition("\n# ")
    paragraphs = [one for one in below.split("\n\n")[1:] if re.match(r"[\w*\[]|`[^`]", one)]
    text = " ".join(paragraphs[0].split()) if paragraphs else ""
    return re.split(r"(?<=[.:]) (?=[A-Z`])", text)[0]


# -- Links --------------------------------------------------------------------------------------


class Targets(HTMLParser):
    """The links of a page, and the places in it that links may name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places = {"", "__top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what this tag leads to, and the name it has."""
        for name, value in attrs:
            if name in ("href", "src") and value and tag in ("a", "img", "link", "script"):
                self.links.append(value)
            if name in ("id", "name") and value:
                self.places.add(value)


def broken_links() -> Iterator[str]:
    """Yield the links of the site that lead nowhere, with their pages."""
    pages = {path: Targets(path.read_text()) for path in HTML.rglob("*.html") if path.name != "404.html"}
    for page, found in pages.items():
        for link in found.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = Path(os.path.normpath(page.parent / unquote(url.path))) if url.path else page
            target = target / "index.html" if target.is_dir() else target
            place = unquote(url.fragment)
            if not target.exists() or (target in pages and place not in pages[target].places):
                yield f"{page.relative_to(HTML)}: {link}"


if __name__ == "__main__":
    main()
