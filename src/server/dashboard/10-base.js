// SPDX-License-Identifier: Apache-2.0
// What every part of the page uses: elements, words for numbers, the browser's storage, and calls of the server. All text
// of the server, a model or a file reaches the page as text nodes; the page's policy refuses markup made of text.
"use strict";

const $ = (id) => document.getElementById(id);

/** make("p", {class: "dim", onclick: f}, "text", child): an element. Members that start with "on" are listeners. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// ---- words for numbers

const fixed = (n, digits) => n.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
const atMost = (n, digits) => n.toLocaleString("en", { maximumFractionDigits: digits });
/** Two digits or more: 0.12, 4.5, 12, 987. */
const short = (n) => atMost(n, Math.abs(n) < 1 ? 2 : Math.abs(n) < 10 ? 1 : 0);

function count(n) {
  if (n >= 1e9) return fixed(n / 1e9, 2) + " G";
  if (n >= 1e6) return fixed(n / 1e6, 2) + " M";
  return n >= 1e4 ? fixed(n / 1e3, 1) + " k" : short(n);
}
function duration(ms) {
  if (ms < 1000) return short(ms) + " ms";
  if (ms < 60e3) return fixed(ms / 1e3, ms < 10e3 ? 2 : 1) + " s";
  const minutes = Math.floor(ms / 60e3);
  if (minutes < 60) return `${minutes} min ${Math.floor((ms % 60e3) / 1e3)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}
function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < 4) { n /= 1024; ++unit; }
  return (n < 10 && unit > 0 ? fixed(n, 1) : fixed(n, 0)) + " " + units[unit];
}
const percent = (share) => atMost(100 * share, share === 0 || share >= 0.1 ? 0 : share >= 0.01 ? 1 : 2) + " %";
const clock = (seconds, exact) => new Date(seconds * 1000).toLocaleTimeString("en-GB",
  { hour: "2-digit", minute: "2-digit", second: exact ? "2-digit" : undefined });

// ---- the browser's storage, which a private window may refuse

const memory = {
  read(area, name, otherwise) {
    try { return JSON.parse(area.getItem("koho." + name)) ?? otherwise; } catch { return otherwise; }
  },
  /** False where there is no room, or no storage. */
  write(area, name, value) {
    try { area.setItem("koho." + name, JSON.stringify(value)); return true; } catch { return false; }
  },
  remove(area, name) { try { area.removeItem("koho." + name); } catch { /* no storage */ } },
};

// ---- calls

let apiKey = memory.read(sessionStorage, "key", "");

/** An error of the server, with its status and the field that it is about. */
class ServerError extends Error {
  constructor(status, message, param) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

/** fetch() with the key; not-2xx answers are ServerErrors with the server's words. */
async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (apiKey) headers.Authorization = "Bearer " + apiKey;
  if (options.body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The server cannot be reached.");
  }
  if (response.ok) return response;
  let told = {};
  try { told = (await response.json()).error ?? {}; } catch { /* not the server's own words */ }
  throw new ServerError(response.status, told.message || `The server answered ${response.status}.`, told.param);
}

/** The data of a response's server-sent events, as they come. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) {
      const data = rest.slice(0, end).split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** Copies text and says so on the button. */
async function copy(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => { button.textContent = before; }, 1500);
}
