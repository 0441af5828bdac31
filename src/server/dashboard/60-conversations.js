// SPDX-License-Identifier: Apache-2.0
// The conversations, which only this browser keeps, and the settings of the chat. Messages are the API's, with members of
// the page's own beside them: files (of a user's message), stats, error, cut, interrupted.

const kTools = `[
  {
    "type": "function",
    "function": {
      "name": "get_weather",
      "description": "Get the weather in a city.",
      "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The city."}},
        "required": ["city"]
      }
    }
  }
]`;

const settings = { thinking: true, useTools: false, tools: kTools, sampling: {}, ...memory.read(localStorage, "settings", {}) };
const saveSettings = () => memory.write(localStorage, "settings", settings);

let index = memory.read(localStorage, "conversations", []); // [{id, title, changed}], newest first
let current = null;

const newId = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
const blank = () => ({ id: newId(), title: "New conversation", changed: Date.now(), system: current?.system ?? "", messages: [] });

/** Keeps a conversation and puts it on top of the list. One without messages is not kept. */
function save(conversation) {
  if (conversation.messages.length === 0) return;
  const first = conversation.messages[0];
  if (!conversation.named) conversation.title = (first.content || first.files?.[0]?.name || "").replace(/\s+/g, " ").slice(0, 80) || "New conversation";
  const { id, title } = conversation;
  const known = index.find((entry) => entry.id === id);
  if (known) Object.assign(known, { title, changed: conversation.changed });
  else index.unshift({ id, title, changed: conversation.changed });
  index.sort((a, b) => b.changed - a.changed);
  const kept = memory.write(localStorage, "conversation." + id, conversation) && memory.write(localStorage, "conversations", index);
  if (!kept) $("composer-error").textContent = "The browser has no room for this conversation: export it, or delete others.";
  showConversations();
}

function open(id) {
  const kept = memory.read(localStorage, "conversation." + id, null);
  current = kept ?? blank();
  const last = current.messages[current.messages.length - 1];
  if (last?.running && !(run && run.conversation.id === id)) {
    delete last.running;
    last.interrupted = true;
  }
  if (run && run.conversation.id === id) current = run.conversation;
  memory.write(localStorage, "current", current.id);
  $("composer-error").textContent = "";
  showConversations();
  showConversation();
}

function remove(id) {
  if (run?.conversation.id === id) run.controller.abort();
  index = index.filter((entry) => entry.id !== id);
  memory.write(localStorage, "conversations", index);
  memory.remove(localStorage, "conversation." + id);
  if (current.id === id) open(index[0]?.id);
  else showConversations();
}

function showConversations() {
  $("title").textContent = current.title;
  $("conversation-list").replaceChildren(...index.map((entry) => make("li", { class: entry.id === current.id ? "current" : null },
    make("button", { class: "entry", "aria-current": entry.id === current.id ? "true" : null, onclick: () => { open(entry.id); showSidebar(false); } },
      entry.title, make("span", { class: "dim small" }, new Date(entry.changed).toLocaleDateString("en-GB", { day: "numeric", month: "short" }))),
    deleteButton(entry))));
  if (index.length === 0) $("conversation-list").append(make("li", { class: "dim small" }, "None yet."));
}

/** Deletes at the second click. */
function deleteButton(entry) {
  const button = make("button", { class: "quiet small", "aria-label": "Delete " + entry.title }, "✕");
  button.addEventListener("click", () => {
    if (button.dataset.sure) { remove(entry.id); return; }
    button.dataset.sure = "yes";
    button.textContent = "Delete?";
    setTimeout(() => { delete button.dataset.sure; button.textContent = "✕"; }, 3000);
  });
  return button;
}

function showSidebar(shown) {
  $("conversations").classList.toggle("shown", shown);
  $("conversations-open").setAttribute("aria-expanded", String(shown));
}

// ---- export

function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function asMarkdown(conversation) {
  const parts = ["# " + conversation.title];
  if (conversation.system) parts.push("## System", conversation.system);
  for (const message of conversation.messages) {
    parts.push("## " + { user: "User", assistant: "Assistant", tool: "Tool result" }[message.role]);
    if (message.reasoning_content) parts.push("<details><summary>Reasoning</summary>\n\n" + message.reasoning_content + "\n\n</details>");
    for (const file of message.files ?? []) parts.push("File " + file.name + ":\n\n````\n" + file.text + "\n````");
    if (message.content) parts.push(message.role === "tool" ? "```\n" + message.content + "\n```" : message.content);
    for (const tool of message.tool_calls ?? []) parts.push("Calls `" + tool.function.name + "`:\n\n```json\n" + tool.function.arguments + "\n```");
    if (message.error) parts.push("*" + message.error + "*");
  }
  return parts.join("\n\n") + "\n";
}

const fileName = () => (current.title.replace(/[^\w-]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 40) || "conversation").toLowerCase();
$("export-markdown").addEventListener("click", () => download(fileName() + ".md", "text/markdown", asMarkdown(current)));
$("export-json").addEventListener("click", () => download(fileName() + ".json", "application/json",
  JSON.stringify({ title: current.title, messages: apiMessages(current) }, null, 2) + "\n"));

/** The conversation as the API takes it. */
function apiMessages(conversation) {
  const messages = conversation.system.trim() ? [{ role: "system", content: conversation.system }] : [];
  for (const message of conversation.messages) {
    const { role, content, reasoning_content, tool_calls, tool_call_id, files } = message;
    if (role === "user") {
      const attached = (files ?? []).map((file) => `File ${file.name}:\n\`\`\`\`\n${file.text}\n\`\`\`\`\n\n`).join("");
      messages.push({ role, content: attached + content });
    } else if (role === "tool") {
      messages.push({ role, tool_call_id, content });
    } else if (content || tool_calls || reasoning_content) {
      messages.push({ role, content, ...(reasoning_content && { reasoning_content }), ...(tool_calls && { tool_calls }) });
    }
  }
  return messages;
}

// ---- settings

/** [the API's field, its label, the step, the least, the most, the default's name in /server_info] */
const kSampling = [
  ["temperature", "Temperature", 0.1, 0, 2], ["top_p", "Top p", 0.05, 0, 1], ["top_k", "Top k", 1, -1, 1e6],
  ["min_p", "Min p", 0.01, 0, 1], ["repetition_penalty", "Repetition penalty", 0.05, 0, 2],
  ["max_tokens", "Tokens of an answer", 1, 1, 1e7], ["seed", "Seed", 1, 0, 2 ** 53],
];

function showSettings() {
  const defaults = { ...metrics.info?.default_sampling, max_tokens: "as many as fit", seed: "random" };
  $("system").value = current.system;
  $("sampling").replaceChildren(...kSampling.map(([name, label, step, min, max]) => {
    const error = make("span", { class: "error", id: name + "-error", role: "alert" });
    const input = make("input", { type: "number", id: "set-" + name, step, min, max, placeholder: defaults[name] ?? "", "aria-describedby": name + "-error" });
    input.value = settings.sampling[name] ?? "";
    input.addEventListener("input", () => {
      const value = input.valueAsNumber;
      const wrong = input.validity.badInput || input.validity.rangeUnderflow || input.validity.rangeOverflow;
      error.textContent = wrong ? `a number from ${min} to ${max}` : "";
      input.setAttribute("aria-invalid", String(wrong));
      if (input.value === "") delete settings.sampling[name];
      else if (!wrong) settings.sampling[name] = value;
      saveSettings();
    });
    return make("div", { class: "field" }, make("label", { for: "set-" + name }, label), input, error);
  }));
}
$("system").addEventListener("input", () => { current.system = $("system").value; save(current); });

/** The tools of the drawer; an Error says what is wrong. */
function readTools() {
  let list;
  try { list = JSON.parse($("tools-text").value); } catch (error) { throw new Error("This is no JSON: " + error.message); }
  if (!Array.isArray(list)) throw new Error("The tools must be a list: [{\"type\": \"function\", …}]");
  const bad = list.findIndex((tool) => tool?.type !== "function" || typeof tool.function?.name !== "string");
  if (bad >= 0) throw new Error(`Tool ${bad + 1} must have "type": "function" and a "function" with a "name".`);
  return list;
}

function checkTools() {
  let error = "";
  try { readTools(); } catch (wrong) { error = wrong.message; }
  $("tools-error").textContent = error;
  $("tools-text").setAttribute("aria-invalid", String(error !== ""));
}
$("tools-text").value = settings.tools;
$("tools-text").addEventListener("input", () => { settings.tools = $("tools-text").value; saveSettings(); checkTools(); });
