#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the site of the docs in build/site by MkDocs (mkdocs.yml). This file is its hook, too: it adds the pages that are made of
the code and of real runs (site_pages.py, site_ways.py), the README as the first page, and the pages beside docs/.

    ./run.py --build && tools/make_site.py [--out FOLDER]

MkDocs comes from PyPI, into build/site-tools. Warnings are errors; then every link and every address that a page loads from is
checked. Publishing: copy the folder to any web server. Exits non-zero with what is wrong.
"""

import argparse
import html.parser
import os
import pathlib
import posixpath
import re
import subprocess
import sys
import tempfile
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import site_pages  # noqa: E402
import site_ways  # noqa: E402

TOOLS = ["mkdocs==1.6.1", "mkdocs-material==9.8.2"]
# Pages that other folders hold, and links of the README to what is no page.
ELSEWHERE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "THIRD_PARTY.md": "third-party.md"}


def koho_binary():
    named = pathlib.Path(os.environ.get("KOHO_BINARY", ROOT / "build" / "koho"))
    if not named.exists():
        sys.exit(f"make_site: {named} is missing: ./run.py --build makes it")
    return named.resolve()


def decisions_page():
    pages = sorted((ROOT / "docs/decisions").glob("*.md"))
    titles = [page.read_text().split("\n", 1)[0].removeprefix("# ") for page in pages]
    return "# Decisions\n\n" + "\n".join(f"- [{title}]({page.name})" for page, title in zip(pages, titles)) + "\n"


def generated_pages(folder):
    """{path in the site: Markdown} of every page that docs/ has not."""
    binary = koho_binary()

    def koho(*arguments):
        return subprocess.run([binary, *arguments], capture_output=True, text=True, check=True).stdout
    pages = {target: (ROOT / name).read_text() for name, target in ELSEWHERE.items()}
    pages |= {"decisions/index.md": decisions_page(), "reference/serve.md": site_pages.serve_page(koho),
              "reference/commands.md": site_pages.commands_page(koho), "reference/engine-h.md": site_pages.header_page(),
              "reference/python.md": site_pages.python_page()}
    console = site_ways.Console(binary, folder)
    console.start_server()
    try:
        pages |= {"quick-start.md": site_ways.quick_start(console), "migration.md": site_pages.migration_page(koho, console.run),
                  "troubleshooting.md": site_pages.troubleshooting_page(console.run)}
        pages |= {f"ways/{name}.md": site_ways.page(way, console) for name, way in site_ways.WAYS.items()}
    finally:
        console.stop_server()
    for command, reason in console.not_run:
        print(f"make_site: shown without output, as {reason}: {command}")
    return pages


def relinked(text, place, pages):
    """A page's Markdown with its links as the site has them. `place`: its path in the repository; `pages`: the site's pages by
    their paths in the repository. Links to files that are no pages become the files' names."""
    here = posixpath.dirname(place)
    own = posixpath.dirname(pages[place])

    def link(match):
        words, target = match[1], match[2]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, _, anchor = target.partition("#")
        found = posixpath.normpath(posixpath.join(here, path))
        found = f"{found}/index.md" if found == "docs/decisions" else found
        if found in pages:
            return f"[{words}]({posixpath.relpath(pages[found], own or '.')}{'#' + anchor if anchor else ''})"
        if found.startswith("docs/"):
            return f"[{words}]({posixpath.relpath(found.removeprefix('docs/'), own or '.')})"
        return words if words.strip("`") in (found, posixpath.basename(found)) else f"{words} (`{found}`)"
    text = re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", link, text)
    return text.replace('"docs/images/', '"images/') if place == "README.md" else text


# ---- the hook of MkDocs

def on_files(files, config):
    from mkdocs.structure.files import File
    with tempfile.TemporaryDirectory() as folder:
        for path, text in generated_pages(folder).items():
            files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    places = {f"docs/{file.src_uri}": file.src_uri for file in files.documentation_pages()}
    places |= ELSEWHERE
    place = next((name for name, target in ELSEWHERE.items() if target == page.file.src_uri), f"docs/{page.file.src_uri}")
    return relinked(markdown, place, places)


# ---- the checks of what came out

class Links(html.parser.HTMLParser):
    """What a page points to (`targets`), what it loads (`loads`) and its anchors."""

    def __init__(self, text):
        super().__init__()
        self.targets, self.loads, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if "id" in values:
            self.anchors.add(values["id"])
        if tag == "a" and values.get("href"):
            self.targets.append(values["href"])
        elif tag in ("img", "script", "iframe", "source") or (tag == "link" and values.get("rel") not in ("canonical", "prev", "next")):
            self.loads += [values[name] for name in ("src", "href", "srcset") if values.get(name)]


def check(site):
    """What is wrong with the pages: links and anchors that lead nowhere, and anything loaded from another host."""
    pages = {path: Links(path.read_text()) for path in site.rglob("*.html")}
    faults = []
    for path, links in pages.items():
        name = path.relative_to(site)
        for address in links.targets + links.loads:
            parts = urllib.parse.urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in links.loads and parts.scheme != "data":
                    faults.append(f"{name} loads {address}")
                continue
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() and name != pathlib.Path("404.html"):
                faults.append(f"{name} points to {address}, which is not there")
            elif parts.fragment and target in pages and urllib.parse.unquote(parts.fragment) not in pages[target].anchors | {"__skip"}:
                faults.append(f"{name} points to {address}, which has no such place")
    for path in [*site.rglob("*.css")]:
        faults += [f"{path.relative_to(site)} loads {address}" for address in re.findall(r"(?:url\(|@import\s+)[\"']?(https?:[^\"')]+)", path.read_text())]
    return faults, len(pages)


def mkdocs():
    """The program mkdocs with the theme, which pip fetches once."""
    folder = ROOT / "build" / "site-tools"
    if not (folder / "bin" / "mkdocs").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", *TOOLS], check=True)
    return folder / "bin" / "mkdocs"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "site", help="where the site goes (%(default)s)")
    parser.add_argument("--install-only", action="store_true", help="fetch MkDocs, and make nothing")
    options = parser.parse_args()
    if options.install_only:
        print(mkdocs())
        return
    koho_binary()
    made = subprocess.run([mkdocs(), "build", "--strict", "--config-file", ROOT / "mkdocs.yml", "--site-dir", options.out.resolve()], cwd=ROOT,
                          env=dict(os.environ, NO_MKDOCS_2_WARNING="1"), check=False)
    if made.returncode != 0:
        sys.exit("make_site: mkdocs build failed")
    faults, count = check(options.out.resolve())
    for fault in faults:
        print(fault)
    print(f"make_site: {count} pages in {options.out}, {len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
