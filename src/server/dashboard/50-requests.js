// SPDX-License-Identifier: Apache-2.0
// The tab Requests: those that run, each with a button that cancels it, and the last ones that ended, failures in red.

const cancelling = new Map(); // id -> what became of the click

const cell = (text, attributes = {}) => make("td", attributes, text);
const number = (value, words = count, style = "n") => cell(value === null || value === undefined ? "–" : words(value), { class: style });
const idCell = (id) => cell(id.length > 18 ? id.slice(0, 16) + "…" : id, { class: "code wide", title: id });

async function cancelRequest(id) {
  cancelling.set(id, "asked");
  try {
    await call("/abort_request", { method: "POST", body: JSON.stringify({ request_id: id }) });
  } catch (error) {
    cancelling.set(id, error.status === 404 ? "It had already ended." : error.message);
  }
  loadRequests();
}

const runningRows = new Map(); // id -> its row, which stays in the page while it runs: a press on its button outlasts a refresh

function runningRow(row) {
  let made = runningRows.get(row.id);
  if (!made) {
    const button = make("button", { class: "small", "aria-label": "Cancel request " + row.id, onclick: () => cancelRequest(row.id) });
    made = make("tr", {}, make("td", {}, button, make("span", { class: "error" })));
    runningRows.set(row.id, made);
  }
  const last = made.lastElementChild;
  while (made.firstElementChild !== last) made.firstElementChild.remove();
  last.before(idCell(row.id), cell(row.path, { class: "wide" }), cell(row.state), number(row.age_ms, duration), number(row.prompt_tokens, count, "n wide"),
    number(row.tokens), number(row.tokens_per_s, short));
  const [button, error] = last.children, state = cancelling.get(row.id);
  button.disabled = state === "asked";
  button.textContent = state === "asked" ? "Cancelling" : "Cancel";
  error.textContent = state && state !== "asked" ? " " + state : "";
  return made;
}

// The rows in their order; those that are there already stay where they are.
function showRunningRows(rows) {
  const body = $("running-rows"), shown = rows.length ? rows.map(runningRow) : [emptyRow("No request is running.", 8)];
  for (const id of runningRows.keys()) if (!rows.some((row) => row.id === id)) runningRows.delete(id);
  for (const old of [...body.children]) if (!shown.includes(old)) old.remove();
  shown.forEach((row, i) => { if (body.children[i] !== row) body.insertBefore(row, body.children[i] ?? null); });
}

const kResults = { stop: "complete", length: "cut at its limit", tool_calls: "tool call", abort: "client left" };

function endedRow(row) {
  const words = row.failed ? `${row.finish}${row.status ? ` (${row.status})` : ""}` : kResults[row.finish] ?? row.finish;
  const result = make("td", { class: row.failed ? "error" : row.finish === "length" || row.finish === "abort" ? "warn" : null }, words);
  if (row.message) result.append(make("span", { class: "reason" }, row.message));
  return make("tr", { class: row.failed ? "failed" : null }, cell(clock(row.ended, true)), idCell(row.id), cell(row.path, { class: "wide" }), result,
    number(row.prompt_tokens), number(row.cached_tokens), number(row.tokens), number(row.first_token_ms, duration), number(row.tokens_per_s, short),
    number(row.total_ms, duration));
}

const emptyRow = (text, columns) => make("tr", {}, make("td", { colspan: columns, class: "dim" }, text));

function showRequests(rows) {
  const live = new Set(rows.running.map((row) => row.id));
  for (const id of cancelling.keys()) if (!live.has(id)) cancelling.delete(id);
  showRunningRows(rows.running);
  const failed = rows.ended.filter((row) => row.failed);
  const ended = $("only-failed").checked ? failed : rows.ended;
  $("ended-rows").replaceChildren(...(ended.length ? ended.map(endedRow)
    : [emptyRow($("only-failed").checked ? "No request has failed." : "No request has ended yet.", 10)]));
  $("running-count").textContent = rows.running.length || "";
  $("ended-count").textContent = rows.ended.length ? `the last ${rows.ended.length}, ${failed.length} failed or cancelled` : "";
}

async function loadRequests() {
  try {
    showRequests(await (await call("/ui/requests")).json());
    $("requests-error").textContent = "";
  } catch (error) {
    $("requests-error").textContent = "The requests cannot be loaded: " + error.message;
  }
}

$("only-failed").addEventListener("change", loadRequests);
