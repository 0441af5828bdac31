// SPDX-License-Identifier: Apache-2.0
// The tabs, the theme, the key, and the connection that the numbers come by.

// ---- tabs

const tabs = [...document.querySelectorAll("[role=tab]")];
const shownTab = () => tabs.find((tab) => tab.getAttribute("aria-selected") === "true").getAttribute("aria-controls");

function showTab(name) {
  for (const tab of tabs) {
    const shown = tab.getAttribute("aria-controls") === name;
    tab.setAttribute("aria-selected", String(shown));
    tab.tabIndex = shown ? 0 : -1;
    $(tab.getAttribute("aria-controls")).hidden = !shown;
  }
  // Not the section's id alone, to which a browser would scroll and move the focus.
  if (location.hash !== "#/" + name) history.replaceState(null, "", "#/" + name);
  if (name === "metrics") renderMetrics();
  if (name === "requests" && connected) loadRequests();
  if (name === "chat") scrollDown(true);
}

for (const tab of tabs) tab.addEventListener("click", () => showTab(tab.getAttribute("aria-controls")));
$("tabs").addEventListener("keydown", (event) => {
  const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -tabs.length, End: tabs.length };
  if (!(event.key in steps)) return;
  event.preventDefault();
  const from = tabs.findIndex((tab) => tab.tabIndex === 0);
  const to = Math.abs(steps[event.key]) > 1 ? (steps[event.key] < 0 ? 0 : tabs.length - 1) : (from + steps[event.key] + tabs.length) % tabs.length;
  showTab(tabs[to].getAttribute("aria-controls"));
  tabs[to].focus();
});

// ---- theme

function setTheme(name) { if (name === "light" || name === "dark") document.documentElement.dataset.theme = name; }
setTheme(new URLSearchParams(location.search).get("theme") ?? memory.read(localStorage, "theme", ""));
$("theme").addEventListener("click", () => {
  const shown = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const name = shown === "dark" ? "light" : "dark";
  setTheme(name);
  memory.write(localStorage, "theme", name);
});

// ---- the key and the connection

let connected = false;
let wakeUp = () => {};
let feed = new AbortController();
addEventListener("pagehide", () => feed.abort());
addEventListener("pageshow", (event) => { if (event.persisted) wakeUp(); });

function setState(kind, text) {
  if ($("state").textContent === text && $("state").dataset.state === kind) return;
  $("state").dataset.state = kind;
  $("state").textContent = text;
}

/** Shows the box for the key, with what was wrong with the last one beside it. */
function askForKey(error) {
  connected = false;
  $("gate").hidden = $("key-form").hidden = false;
  $("key-error").textContent = error;
  $("key").setAttribute("aria-invalid", String(error !== ""));
  setState("bad", "needs a key");
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  apiKey = $("key").value.trim();
  if (!apiKey) { askForKey("Enter the key."); return; }
  wakeUp();
});
$("key-open").addEventListener("click", () => {
  $("key").value = apiKey;
  $("gate").hidden = $("key-form").hidden = false;
  $("key").focus();
});

function showLoading(readiness) {
  const shown = readiness.status !== "ready";
  $("loading").hidden = !shown;
  if (!shown) return;
  $("gate").hidden = false;
  const { status, waiting_for: what, progress, seconds_left: left } = readiness;
  $("loading-text").textContent = { loading: "Loading", draining: "Shutting down: waiting for", recovering: "Recovering" }[status] !== undefined
    ? `${{ loading: "Loading", draining: "Shutting down: waiting for", recovering: "Recovering" }[status]} ${what}${left !== undefined ? `, ${duration(left * 1000)} left` : ""}`
    : `Failed: ${what}`;
  $("loading-bar").hidden = progress === undefined;
  if (progress !== undefined) $("loading-bar").value = progress;
  setState(status === "failed" ? "bad" : "wait", progress !== undefined ? `${status} ${percent(progress)}` : status);
}

/** What is served: once a connection. */
async function connect() {
  metrics.info = await (await call("/server_info")).json();
  memory.write(sessionStorage, "key", apiKey);
  connected = true;
  $("gate").hidden = $("key-form").hidden = true;
  $("key-error").textContent = $("key").value = "";
  $("model").textContent = metrics.info.model;
  document.title = "koho · " + metrics.info.model;
  showUsage();
  await loadHistory();
  if (shownTab() === "requests") loadRequests();
}

async function follow() {
  feed = new AbortController();
  const response = await call("/ui/events", { signal: feed.signal });
  for await (const event of events(response)) {
    setState(event.device_up ? "good" : "bad", event.device_up ? "ready" : "the device is down");
    showMetrics(event);
    if (shownTab() === "requests") loadRequests();
  }
}

async function watch() {
  for (;;) {
    try {
      const status = await (await call("/ui/status")).json();
      $("key-open").hidden = !status.needs_key;
      showLoading(status.readiness);
      if (status.needs_key && !apiKey) {
        if ($("key-form").hidden) { askForKey(""); $("key").focus(); }
      } else if (status.readiness.status === "ready") {
        await connect();
        await follow();
      }
    } catch (error) {
      connected = false;
      if (leaving) await new Promise((done) => { wakeUp = done; });
      else if (error.status === 401) { apiKey = ""; askForKey(error.message); } else setState("bad", "no connection");
    }
    await Promise.race([pause(1000), new Promise((done) => { wakeUp = done; })]);
  }
}

// ---- begin

open(memory.read(localStorage, "current", index[0]?.id ?? null));
showRunning();
const asked = () => { const name = location.hash.slice(2); return tabs.some((tab) => tab.getAttribute("aria-controls") === name) ? name : "chat"; };
showTab(asked());
addEventListener("hashchange", () => showTab(asked()));
watch();
