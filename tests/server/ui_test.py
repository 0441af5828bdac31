#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pages /ui and /docs in headless Chromium: a chat with a tool call, cancel, reload, keys, errors, a phone; axe-core finds nothing
serious at three sizes in light and dark; the console stays empty.

  tests/server/ui_test.py --install                           brings Debian's chromium (as root) and axe-core (pip) first
  tests/server/ui_test.py --screenshots FOLDER                keeps a picture of every view, size and theme; the documentation's
                                                              dashboard-light.png is metrics-laptop-light.png
  tests/server/ui_test.py SCENE ...                           only these scenes

Without Chromium it says so and exits with 77, which ctest reports as skipped.
"""
import argparse
import contextlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

import clients
from browser import Page, until
from ui_walk import AXE, COLOURS, NO_COLOURS, QUESTION, SIZES, Walk, install, load

SKIPPED = 77
PAGE_BYTES_MAX = 300_000
HOSTILE = """# A <b>title</b>

<img src=x onerror="window.broken=1"> <script>window.broken=1</script> [a](javascript:window.broken=1) [b](data:text/html,x)
![p](https://example.com/p.png) [ok](https://example.com/a?b=1) **bold *both*** `<i>` <https://example.org> \\*no\\*

- one
  - inner `code`
- [x] done

1. first
2. second

> quoted
> - list

| a | b |
|:--|--:|
| 1 | `x|y` |

```html
<script>window.broken=1</script>
```
"""


# ---- scenes, each on a browser that has never seen the page

def chat(walk):
    """A tool call, its result, the answer with its numbers; reasoning is folded when it is done."""
    page = walk.page
    answer = walk.weather()
    assert "sunny with 24 degrees" in answer, answer
    assert page.text(".call strong") == "get_weather", page.text(".call")
    assert json.loads(page.text(".call code")) == {"city": "Lisbon"}, page.text(".call code")
    assert page.text(".reasoning summary").startswith("Reasoned for"), page.text(".reasoning")
    assert page.count(".reasoning[open]") == 0 and len(page.text(".reasoning > div")) > 10
    stats = page.text(".message:last-child .stats")
    assert "tokens/s" in stats and "cached" in stats, stats
    cached = page.js("current.messages.at(-1).stats.cached")
    assert cached >= 64, f"the second turn shares a page with the first, found {cached} cached tokens"
    page.click(".message:last-child .reasoning summary")
    assert page.count(".reasoning[open]") == 1, "a click opens the reasoning"
    # The next request has the whole conversation: what the page sends is what was said.
    roles = page.js("apiMessages(current).map(m => m.role).join(' ')")
    assert roles == "user assistant tool assistant", roles


def regenerate_and_edit(walk):
    page = walk.page
    page.click("#thinking")
    walk.ask("What is 37 + 48?")
    walk.answered()
    first = page.text(".message:last-child .markdown")
    assert "85" in first, first
    page.click("button[aria-label='Answer again']")
    walk.answered()
    assert page.text(".message:last-child .markdown") == first and page.count(".message") == 2
    page.click("button[aria-label='Edit the message']")
    page.replace(".edit textarea", "What is the capital of France?")
    page.click(".edit .primary")
    walk.answered()
    assert "Paris" in page.text(".message:last-child .markdown"), page.text("#log")
    assert page.count(".message") == 2 and page.text("#title") == "What is the capital of France?", page.text("#title")
    page.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.click("button[aria-label='Copy the answer']")
    until(lambda: page.js("navigator.clipboard.readText()") == page.js("current.messages[1].content"), "nothing was copied")


def stop(walk):
    """Stop, and Esc, end an answer and keep what came; an answer that is cut says so."""
    page = walk.page
    for end in ("click", "Escape"):
        walk.ask("Tell a story.", 4000)
        until(lambda: page.js("current.messages.at(-1).content.length + (current.messages.at(-1).reasoning_content ?? '').length") > 20, "nothing came")
        if end == "click":
            page.click("#send")
        else:
            page.press(end)
        walk.answered()
        assert page.text(".message:last-child .warn") == "Stopped.", page.text("#log")
    until(lambda: page.js("metrics.newest.running") == 0, "stopped answers still run on the server")
    walk.ask("Tell a story.", 12)
    walk.answered()
    assert "cut" in page.text(".message:last-child .warn"), page.text("#log")


def cancel(walk):
    """A request that is cancelled in its list ends here and there, in red."""
    page = walk.page
    walk.ask("Tell a long story.", 8000)
    page.click("#tab-requests")
    until(lambda: page.shown("#running-rows button"), lambda: "no running request: " + page.text("#requests"))
    until(lambda: "answering" in page.text("#running-rows"), lambda: "no state: " + page.text("#running-rows"))
    row = page.js("[...document.querySelectorAll('#running-rows tr:first-child td')].map(e => e.textContent)")
    assert row[1] == "/v1/chat/completions" and "s" in row[3] and int(row[4]) > 0, row
    until(lambda: page.js("parseInt(document.querySelector('#running-rows tr').children[5].textContent.replace(/\\D/g, ''))") > 0, "no tokens")
    page.click("#running-rows button", held_s=1.5)  # the list is made anew every second
    until(lambda: "No request is running" in page.text("#running-rows"), lambda: "not cancelled: " + page.text("#running-rows"))
    until(lambda: page.count("#ended-rows tr.failed") == 1, lambda: "no failure: " + page.text("#ended-rows"))
    red = page.js("getComputedStyle(document.querySelector('#ended-rows tr.failed .error')).color")
    assert red == page.js("(() => { const e = make('i', {class: 'error'}, 'x'); document.body.append(e); const c = getComputedStyle(e).color; e.remove(); return c; })()"), red
    page.click("#only-failed")
    until(lambda: page.count("#ended-rows tr") == page.count("#ended-rows tr.failed"), "the filter does nothing")
    page.click("#tab-chat")
    assert "abort" in page.text(".message:last-child .error"), page.text("#log")


def reload(walk):
    """Conversations and the charts' history are there after a reload; several conversations; export; delete."""
    page = walk.page
    walk.weather()
    before = time.time()
    page.reload()
    walk.ready()
    assert "sunny with 24 degrees" in page.text(".message:last-child .markdown")
    assert page.count(".call") == 1 and not page.shown(".give")
    until(lambda: page.js("metrics.samples.length") > 1, "no history")
    oldest = page.js("metrics.samples[0][metrics.fields.time]")
    assert oldest < before, (oldest, before)
    assert page.js("metrics.samples.some(s => s[metrics.fields.completed] > 0)"), "the history has no answered request"
    page.click("#new-conversation")
    page.click("#use-tools")
    walk.ask("What is the capital of France?")
    walk.answered()
    assert page.count("#conversation-list li") == 2
    page.click("#conversation-list li:nth-child(2) .entry")
    assert page.text("#title") == QUESTION, page.text("#title")
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(walk.folder))
    for kind, name in (("markdown", "md"), ("json", "json")):
        page.click("#export")
        page.click(f"#export-{kind}")
        file = walk.folder / f"what-is-the-weather-in-lisbon.{name}"
        until(file.exists, f"no export {file}")
        until(lambda file=file: "sunny with 24 degrees" in file.read_text(), "the export lacks the answer")
    assert json.loads(file.read_text())["messages"][1]["tool_calls"][0]["function"]["name"] == "get_weather"
    for _ in range(2):
        page.click("#conversation-list li:nth-child(2) .quiet")
    until(lambda: page.count("#conversation-list li") == 1, "not deleted")
    assert page.text("#title") == "What is the capital of France?"
    walk.ask("Tell a story.", 8000)
    until(lambda: page.js("current.messages.at(-1).content.length + (current.messages.at(-1).reasoning_content ?? '').length") > 20, "nothing came")
    page.js("window.old = true")
    page.reload()
    walk.ready()
    assert "before this answer was complete" in page.text(".message:last-child .warn"), page.text("#log")


def files_and_settings(walk):
    """Text files are sent, others refused beside the box; the settings' defaults are the model's; wrong values say so."""
    page = walk.page
    (walk.folder / "note.txt").write_text("The secret word is osprey.")
    (walk.folder / "picture.bin").write_bytes(bytes(range(256)))
    page.choose_files("#file-input", [walk.folder / "note.txt", walk.folder / "picture.bin"])
    until(lambda: page.count("#files li") == 1, lambda: "no file: " + page.text("#composer"))
    assert "picture.bin is no text" in page.text("#composer-error"), page.text("#composer-error")
    walk.ask("What does the file say?")
    walk.answered()
    assert "osprey" in page.js("apiMessages(current)[0].content") and page.count("#files li") == 0
    assert "note.txt" in page.text(".message.user summary")
    page.click("#settings-open")
    shown = page.js("document.querySelector('#set-temperature').placeholder")
    config = json.loads((pathlib.Path(walk.args.model) / "generation_config.json").read_text())
    assert float(shown) == config["temperature"], shown
    page.replace("#set-top_p", "7")
    assert page.text("#top_p-error") == "a number from 0 to 1" and page.js("settings.sampling.top_p") is None
    page.replace("#set-top_p", "0.9")
    assert page.text("#top_p-error") == "" and page.js("settings.sampling.top_p") == 0.9
    page.replace("#system", "Answer in one word.")
    walk.axe("settings")
    page.press("Escape")
    until(lambda: not page.shown("#settings"), "Esc leaves the drawer open")
    assert page.js("apiMessages(current)[0]") == {"role": "system", "content": "Answer in one word."}
    page.click("#tools-open")
    page.replace("#tools-text", '[{"type": "function"')
    assert "no JSON" in page.text("#tools-error"), page.text("#tools-error")
    page.replace("#tools-text", '[{"type": "function"}]')
    assert "name" in page.text("#tools-error"), page.text("#tools-error")
    walk.axe("tools")
    page.press("Escape")
    page.click("#use-tools")
    page.type("#text", "Hello")
    page.press("Enter")
    assert "Tool 1" in page.text("#composer-error") and page.js("document.querySelector('#text').value") == "Hello"


def errors(walk):
    """The server's refusals stand where they arose, in its own words."""
    page = walk.page
    page.js("settings.sampling.top_k = -5; 0")
    walk.ask("Hello")
    walk.answered()
    assert "top_k" in page.text(".message:last-child .error"), page.text("#log")
    walk.axe("a refused message")
    walk.expect_errors("400 (Bad Request)")
    page.click("#tab-metrics")
    until(lambda: "1 refused" in page.text("#numbers"), lambda: page.text("#numbers"))
    page.click("#tab-requests")
    until(lambda: "top_k" in page.text("#ended-rows tr.failed"), lambda: page.text("#ended-rows"))
    shown = page.js("feed.abort(); showLoading({status: 'loading', waiting_for: 'the weights', progress: 0.4, seconds_left: 12});"
                    "[$('loading-text').textContent, $('loading-bar').value, $('state').textContent]")
    assert shown == ["Loading the weights, 12.0 s left", 0.4, "loading 40 %"], shown
    walk.axe("loading")
    walk.ready()
    assert not page.shown("#gate"), "the bar of loading stays"


def markdown(walk):
    """Markdown becomes elements, and what a model writes cannot become markup, a script or a request."""
    page = walk.page
    page.js(f"window.host = make('div', {{class: 'markdown'}}); document.querySelector('#log').replaceChildren(host); showMarkdown(host, {json.dumps(HOSTILE)}); 0")

    def inside(selector):
        return page.count("#log " + selector)
    assert inside("img") == inside("script") == inside("iframe") == inside("h3 b") == 0
    assert [inside(tag) for tag in ("h3", "ul", "ol", "blockquote ul", "table", "figure pre", "strong em")] == [1, 3, 1, 1, 1, 1, 1], page.js("host.innerHTML")
    assert page.js("[...host.querySelectorAll('a')].map(a => a.href)") == \
        ["https://example.com/p.png", "https://example.com/a?b=1", "https://example.org/"]
    assert page.text("#log td:nth-child(2) code") == "x|y" and page.text("#log figcaption span") == "html"
    assert "<script>window.broken=1</script>" in page.text("#log figure code")
    # While a text grows its finished blocks stay the same elements, and the end is what it would be at once.
    page.js(f"window.grown = make('div'); (() => {{ const text = {json.dumps(HOSTILE)}; for (let n = 1; n <= text.length; n += 3) {{ showMarkdown(grown, text.slice(0, n));"
            "if (n === 100) window.heading = grown.firstChild; } showMarkdown(grown, text); })(); 0")
    assert page.js("grown.innerHTML === host.innerHTML && grown.firstChild === heading")
    for repeated in ("*", "**a ", "`", "[", "[a](", "> ", "- ", "|", "_a_", "![", "<", "\\n> - ", "1. "):
        before = page.thread_seconds()
        page.js(f"showMarkdown(make('div'), {json.dumps(repeated)}.repeat(20000)); 0")
        spent = page.thread_seconds() - before
        assert spent < 5, f"{repeated!r} 20,000 times took {spent:.1f} s of a processor"
    refused = page.js("(() => { try { host.innerHTML = '<b>x</b>'; return ''; } catch (error) { return error.name; } })()")
    assert refused == "TypeError", f"the policy lets text become markup: {refused!r}"
    assert page.js("window.broken") is None
    page.errors = [error for error in page.errors if "TrustedHTML" not in error]


def metrics_tab(walk):
    """Charts have axes that fit, values under the pointer and the arrow keys, and ranges from the server."""
    page = walk.page
    walk.weather()
    load(walk.url, 3, 200)
    page.click("#tab-metrics")
    until(lambda: page.count("#charts .chart") == 6 and page.count("#charts polyline") >= 4, "no lines")
    for name in ("tiny", "tokens", "cpu", "GiB", "one device"):
        assert name in page.text("#facts"), (name, page.text("#facts"))
    until(lambda: page.js("metrics.newest.completed") >= 5, "the requests did not end")
    until(lambda: "p99" in page.text("#charts-now .note"), "no percentiles")
    ticks = page.js("[...document.querySelector('#charts svg').querySelectorAll('text')].map(e => e.textContent)")
    assert "0" in ticks and len(ticks) >= 5 and any(":" in tick for tick in ticks), ticks
    most = page.js("Math.max(...metrics.samples.map(s => Math.max(s[metrics.fields.decode], s[metrics.fields.prefill])))")
    top = page.js("Math.max(...[...document.querySelector('#charts svg').querySelectorAll('text')].map(e => e.textContent)"
                  ".filter(t => !t.includes(':')).map(t => parseFloat(t.replace(',', '')) * (t.includes('k') ? 1000 : 1)))")
    assert 0.99 * most <= top <= 2.6 * most, (most, top)
    page.point_at("#charts svg", 0.97)
    assert page.shown("#charts .tip") and "decode" in page.text("#charts .tip") and "tok/s" in page.text("#charts .tip"), page.text("#charts .tip")
    page.point_at("#tab-metrics")
    page.js("document.querySelector('#charts svg').focus()")
    page.press("End")
    page.press("ArrowLeft")
    assert page.shown("#charts .tip") and "decode" in page.text("#charts .chart:first-child [aria-live]"), "the arrow keys read no value"
    page.press("Escape")
    for period in (10, 240, 1):
        page.js(f"document.querySelector('[name=range][value=\"{period}\"]').click()")
        until(lambda period=period: page.js("metrics.range") == period and not page.text("#metrics-error"), "the range does not change")
    until(lambda: page.js("metrics.samples.length") > 2, "the finest range did not come back")


def keys(walk):
    """The box for a key is there only where one is needed, with what was wrong beside it."""
    page = walk.page
    assert not page.shown("#gate") and not page.shown("#key-open")
    with clients.server(walk.args.koho, walk.args.model, "--api-key", "right-key") as url:
        page.open(url + "/ui")
        until(lambda: page.shown("#key"), "no box for the key")
        walk.axe("the key's box")
        walk.expect_errors()
        page.type("#key", "wrong-key")
        page.press("Enter")
        until(lambda: page.text("#key-error"), "no word about the wrong key")
        assert "key" in page.text("#key-error") and page.text("#state") == "needs a key"
        walk.expect_errors("401 (Unauthorized)")
        page.replace("#key", "right-key")
        page.press("Enter")
        until(lambda: page.text("#state") == "ready" and not page.shown("#gate"), lambda: "not let in: " + page.text("#gate"))
        page.reload()
        until(lambda: page.text("#state") == "ready", "the key is not kept")
        assert not page.shown("#gate") and page.shown("#key-open")
        walk.ask("What is the capital of France?")
        walk.answered()
        assert "Paris" in page.text("#log"), page.text("#log")
        walk.expect_errors()
    until(lambda: page.text("#state") == "no connection", "the end of the server is not shown")
    walk.ask("And of Italy?")
    walk.answered()
    assert "cannot be reached" in page.text(".message:last-child .error"), page.text("#log")
    page.errors.clear()  # of a server that has gone


def keyboard(walk):
    """Everything by keys: the tabs, a message, its answer's buttons."""
    page = walk.page
    page.js("document.activeElement.blur()")
    page.press("Tab")
    assert page.js("document.activeElement.className") == "skip"
    page.press("Tab")
    assert page.js("document.activeElement.id") == "tab-chat"
    for name in ("metrics", "requests", "chat"):
        page.press("ArrowRight")
        assert page.js("document.activeElement.id") == "tab-" + name and page.shown("#" + name)
    for _ in range(40):
        if page.js("document.activeElement.id") == "text":
            break
        page.press("Tab")
    assert page.js("document.activeElement.id") == "text", "the message's box cannot be reached"
    page.call("Input.insertText", text="What is the capital")
    page.press("Enter", shift=True)
    page.call("Input.insertText", text="of France?")
    assert page.js("document.querySelector('#text').value.split('\\n').length") == 2
    page.press("Enter")
    walk.answered()
    assert "Paris" in page.text("#log") and "complete" in page.text("#announcer"), page.text("#announcer")


def phone(walk):
    """On a phone nothing is wider than the screen, and the conversations are one touch away."""
    page = walk.page
    page.size(*SIZES["phone"], phone=True)
    walk.open()
    assert not page.shown("#conversations")
    assert "sunny" in walk.weather()
    page.click("#conversations-open")
    assert page.shown("#conversations") and page.js("document.querySelector('#conversations-open').ariaExpanded") == "true"
    page.click("#new-conversation")
    assert not page.shown("#conversations") and page.count(".message") == 0
    for tab in ("chat", "metrics", "requests"):
        page.click("#tab-" + tab)
        wide = page.js("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{tab} is {wide} pixels wider than the screen"
        if tab == "requests":
            load(walk.url, 1, 20_000)
            until(lambda: page.shown("#running-rows button"), "no running request")
            right = page.js("document.querySelector('#running-rows button').getBoundingClientRect().right - innerWidth")
            assert right <= 0, f"the button that cancels ends {right} pixels beyond the screen"
            page.click("#running-rows button")
            until(lambda: "No request is running" in page.text("#running-rows"), "not cancelled")
        small = page.js("[...document.querySelectorAll('button')].filter(e => e.checkVisibility() && e.getClientRects().length && e.getBoundingClientRect().height < 24).map(e => e.textContent)")
        assert not small, f"too small to touch: {small}"
    page.size(*SIZES["laptop"])


def looks(walk):
    """Every tab at three sizes in light and, which changes colours alone, dark: axe-core, no overflow, and a picture."""
    page = walk.page
    walk.weather()
    load(walk.url, 4, 1200)
    page.js("fetch('/v1/completions', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{\"prompt\": \"x\", \"max_tokens\": -7, \"model\": \"tiny\"}'}); 0")
    page.js(f"current.messages.push({{role: 'user', content: 'Show me some Markdown.'}}, {{role: 'assistant', content: {json.dumps(HOSTILE)}}}); save(current); 0")
    walk.expect_errors("400 (Bad Request)")
    time.sleep(2)
    for theme, options in (("light", None), ("dark", COLOURS)):
        for name, size in SIZES.items():
            page.size(*size, phone=name == "phone")
            for tab in ("chat", "metrics", "requests"):
                walk.open(tab, theme)
                until(lambda tab=tab: tab != "metrics" or page.count("#numbers .card") == 8, "no numbers")
                until(lambda tab=tab: tab != "requests" or page.count("#ended-rows td") > 1, "no rows")
                assert page.js("document.documentElement.scrollWidth <= innerWidth"), f"{tab} at {name}: too wide"
                walk.axe(f"{tab}, {name}, {theme}", options)
                walk.shot(f"{tab}-{name}-{theme}")
            for drawer in ("settings", "tools"):
                walk.open("chat", theme)
                page.click(f"#{drawer}-open")
                walk.axe(f"{drawer}, {name}, {theme}", options)
                walk.shot(f"{drawer}-{name}-{theme}")
    page.size(*SIZES["laptop"])


def api_page(walk):
    """The page of the API, /docs, at three sizes in light and dark: axe-core, no overflow, and a picture."""
    for theme in ("light", "dark"):
        walk.page.dark(theme == "dark")
        for name, size in SIZES.items():
            walk.page.size(*size, phone=name == "phone")
            walk.page.open(walk.url + "/docs")
            until(lambda: "The API of this server" in walk.page.text("h1"), "no heading")
            walk.page.js("document.querySelectorAll('details').forEach(details => { details.open = true; }); 0")
            assert walk.page.js("document.documentElement.scrollWidth <= innerWidth"), f"/docs at {name}: too wide"
            # Its style has no media query: one size shows the colours, one theme the rest.
            if name == "laptop":
                walk.axe(f"/docs, {name}, {theme}", COLOURS if theme == "dark" else None)
            elif theme == "light":
                walk.axe(f"/docs, {name}, {theme}", NO_COLOURS)
            walk.shot(f"docs-{name}-{theme}")
    walk.page.dark(False)
    walk.page.size(*SIZES["laptop"])


def one_file(walk):
    """One file, small, with a strict policy, and nothing loaded from elsewhere."""
    with urllib.request.urlopen(walk.url + "/ui") as answer:
        size, policy = len(answer.read()), answer.headers["Content-Security-Policy"]
    assert size <= PAGE_BYTES_MAX, size
    assert "default-src 'none'" in policy and "unsafe" not in policy and "require-trusted-types-for 'script'" in policy, policy
    for tab in ("metrics", "requests", "chat"):
        walk.page.click("#tab-" + tab)
    loaded = walk.page.js("performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith(location.origin + '/') && !n.startsWith('data:'))")
    assert not loaded, loaded
    print(f"    {size} bytes; {policy}")


SCENES = [chat, regenerate_and_edit, stop, cancel, reload, files_and_settings, errors, markdown, metrics_tab, keyboard, phone, one_file, looks, api_page, keys]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=", ".join(scene.__name__ for scene in SCENES))
    parser.add_argument("--install", action="store_true", help="bring what is missing")
    parser.add_argument("--install-only", action="store_true", help="the same, and test nothing")
    parser.add_argument("--chromium", default="chromium")
    parser.add_argument("--koho", default=str(clients.ROOT / "build/release/src/app/koho"))
    parser.add_argument("--model", default=str(clients.ROOT / "models/tiny"))
    parser.add_argument("--screenshots", type=pathlib.Path, metavar="FOLDER")
    args = parser.parse_args()
    if args.install or args.install_only:
        try:
            install()
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"not installed: {error}")
            return 1
    if args.install_only:
        return 0 if shutil.which(args.chromium) else SKIPPED
    if shutil.which(args.chromium) is None:
        print(f"skipped: there is no {args.chromium}; tests/server/ui_test.py --install brings it")
        return SKIPPED
    if not AXE.exists():
        print("without axe-core: tests/server/ui_test.py --install brings it")
    if args.screenshots:
        args.screenshots.mkdir(parents=True, exist_ok=True)
    failed = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, clients.server(args.koho, args.model) as url, \
            contextlib.closing(Page(args.chromium, folder)) as page:
        for scene in [each for each in SCENES if not args.scenes or each.__name__ in args.scenes]:
            print(f"{scene.__name__}: {scene.__doc__ or 'answers again, and answers an edited message'}", flush=True)
            files = pathlib.Path(folder) / scene.__name__
            files.mkdir()
            walk = Walk(args, page, url, files)
            started = time.monotonic()
            try:
                page.size(*SIZES["laptop"])
                walk.fresh()
                scene(walk)
                walk.expect_errors()
            except AssertionError as error:
                failed.append(scene.__name__)
                print(f"    FAILED: {error}")
                walk.shot(f"failed-{scene.__name__}")
                page.errors.clear()
            print(f"    {time.monotonic() - started:.1f} s", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
