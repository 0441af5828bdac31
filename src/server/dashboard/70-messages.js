// SPDX-License-Identifier: Apache-2.0
// Messages as the page shows them. A view is updated in place while its answer streams; a conversation that is opened is
// shown from its data alone.

const views = new WeakMap(); // message -> its view

const action = (name, does, label) => make("button", { class: "quiet small", type: "button", "aria-label": label ?? name, onclick: does }, name);

function showConversation() {
  $("log").replaceChildren(...current.messages.filter((message) => message.role !== "tool").map(viewOf));
  if (current.messages.length === 0) {
    $("log").append(make("div", { class: "empty" }, make("p", {}, "Ask the model something."),
      make("p", { class: "dim small" }, "Enter sends, Shift and Enter begins a line, Esc stops an answer.")));
  }
  scrollDown(true);
  showUsage();
}

/** Keeps the newest in sight, unless the reader has scrolled up. */
function scrollDown(always) {
  const log = $("log");
  if (always || log.scrollHeight - log.scrollTop - log.clientHeight < 120) log.scrollTop = log.scrollHeight;
}

function viewOf(message) {
  const view = message.role === "user" ? userView(message) : assistantView(message);
  views.set(message, view);
  return view.element;
}

// ---- the user's

function userView(message) {
  const body = make("div", { class: "body" });
  const element = make("article", { class: "message user", "aria-label": "You" }, body);
  for (const file of message.files ?? [])
    body.append(make("details", { class: "file" }, make("summary", {}, `${file.name} (${bytes(file.text.length)})`), make("pre", { tabindex: 0 }, file.text.slice(0, 20_000))));
  if (message.content) body.append(make("p", { class: "as-typed" }, message.content));
  const copyButton = action("Copy", () => copy(message.content, copyButton), "Copy the message");
  element.append(make("div", { class: "actions" }, copyButton, action("Edit", () => edit(message, element), "Edit the message")));
  return { element };
}

function edit(message, element) {
  if (run) return;
  const text = make("textarea", { rows: Math.min(message.content.split("\n").length + 1, 12), "aria-label": "Edit the message" });
  text.value = message.content;
  const close = () => element.replaceWith(viewOf(message));
  const form = make("form", { class: "edit", onsubmit: (event) => {
    event.preventDefault();
    if (!text.value.trim() && !message.files?.length) return;
    message.content = text.value.trim();
    truncateAfter(message);
    answer(current);
  } }, text, make("div", { class: "row" }, make("span", { class: "dim small" }, "What follows is replaced."), make("span", { class: "grow" }),
    make("button", { type: "button", onclick: close }, "Leave as it is"), make("button", { class: "primary" }, "Save and answer")));
  form.addEventListener("keydown", (event) => { if (event.key === "Escape") { event.stopPropagation(); close(); } });
  element.replaceChildren(form);
  text.focus();
}

function truncateAfter(message) {
  current.messages.length = current.messages.indexOf(message) + 1;
  showConversation();
}

// ---- the model's

function assistantView(message) {
  const reasoning = make("details", { class: "reasoning" });
  const reasoningTitle = make("summary"), reasoningText = make("div", { class: "as-typed" });
  reasoning.append(reasoningTitle, reasoningText);
  const text = make("div", { class: "markdown" }), calls = make("div", { class: "calls" });
  const error = make("p", { class: "error", role: "alert" }), note = make("p", { class: "warn" });
  const stats = make("span", { class: "dim small stats" }), buttons = make("span", { class: "actions" });
  const element = make("article", { class: "message assistant", "aria-label": "The model" }, reasoning, text, calls, error, note,
    make("div", { class: "foot" }, buttons, stats));
  const view = { element, reasoning, reasoningTitle, reasoningText, text, calls, error, note, stats, buttons, callViews: [] };
  updateAssistant(message, view);
  return view;
}

function updateAssistant(message, view = views.get(message)) {
  if (!view) return;
  const running = message.running === true;
  view.element.classList.toggle("running", running);
  view.element.setAttribute("aria-busy", String(running));
  const thinks = running && !message.content && !message.tool_calls;
  view.reasoning.hidden = !message.reasoning_content;
  if (message.reasoning_content) {
    // Open while the model reasons, folded when it answers; afterwards the reader's click counts.
    if (view.reasoned !== thinks) view.reasoning.open = thinks;
    view.reasoned = thinks;
    view.reasoningTitle.textContent = thinks ? "Reasoning …" : message.reasoning_ms ? `Reasoned for ${duration(message.reasoning_ms)}` : "Reasoning";
    if (view.reasoningText.textContent.length !== message.reasoning_content.length) view.reasoningText.textContent = message.reasoning_content;
  }
  if (view.shown !== message.content) showMarkdown(view.text, message.content);
  view.shown = message.content;
  (message.tool_calls ?? []).forEach((tool, i) => updateCall(message, tool, i, view));
  view.error.textContent = message.error ?? "";
  view.note.textContent = message.interrupted ? "The page was left before this answer was complete."
    : message.stopped ? "Stopped." : message.cut ? "The answer was cut at its limit of tokens." : "";
  view.stats.textContent = running ? "" : statsText(message);
  const copyButton = action("Copy", () => copy(message.content, copyButton), "Copy the answer");
  const last = message === current.messages[current.messages.length - 1];
  if (running) view.buttons.replaceChildren();
  else view.buttons.replaceChildren(...(message.content ? [copyButton] : []), ...(last ? [action("Regenerate", () => regenerate(message), "Answer again")] : []));
}

function statsText({ stats }) {
  if (!stats) return "";
  const parts = [];
  if (stats.tokens_per_s > 0) parts.push(short(stats.tokens_per_s) + " tokens/s");
  parts.push(`${count(stats.completion)} tokens`);
  if (stats.reasoning) parts.push(`${count(stats.reasoning)} of them reasoning`);
  parts.push(`prompt ${count(stats.prompt)}, ${count(stats.cached)} cached`);
  if (stats.first_ms >= 0) parts.push(`first token after ${duration(stats.first_ms)}`);
  return parts.join(" · ");
}

function regenerate(message) {
  if (run) return;
  current.messages.splice(current.messages.indexOf(message));
  showConversation();
  answer(current);
}

// ---- tool calls

function updateCall(message, tool, i, view) {
  let call = view.callViews[i];
  if (!call) {
    const name = make("strong"), code = make("code"), below = make("div");
    call = view.callViews[i] = { name, code, below, element: make("section", { class: "call", "aria-label": "Tool call" },
      make("p", {}, make("span", { class: "dim small" }, "calls "), name), make("pre", { tabindex: 0 }, code), below) };
    view.calls.append(call.element);
  }
  call.name.textContent = tool.function.name;
  call.code.textContent = pretty(tool.function.arguments);
  const result = resultOf(tool.id);
  if (result !== null && call.state !== "given") {
    call.state = "given";
    call.below.replaceChildren(make("span", { class: "dim small" }, "result"), make("pre", { tabindex: 0 }, result));
  } else if (result === null && !message.running && call.state !== "asks") {
    call.state = "asks";
    call.below.replaceChildren(resultForm(message, tool));
  }
}

function pretty(json) {
  try { return JSON.stringify(JSON.parse(json), null, 2); } catch { return json; }
}

const resultOf = (id) => current.messages.find((message) => message.role === "tool" && message.tool_call_id === id)?.content ?? null;

function resultForm(message, tool) {
  const id = "result-" + newId();
  const text = make("textarea", { id, rows: 2, class: "code", spellcheck: "false" });
  text.value = tool.function.name === "get_weather" ? '{"temperature": 24, "condition": "sunny"}' : "";
  return make("form", { class: "result", onsubmit: (event) => {
    event.preventDefault();
    if (run) return;
    current.messages.push({ role: "tool", tool_call_id: tool.id, content: text.value });
    current.changed = Date.now();
    save(current);
    updateAssistant(message);
    if (message.tool_calls.every((each) => resultOf(each.id) !== null)) answer(current);
  } }, make("label", { for: id, class: "small" }, "Its result"), text, make("div", { class: "row" }, make("button", { class: "give" }, "Give the result")));
}
