// SPDX-License-Identifier: Apache-2.0
// Sending a conversation and showing its answer as it comes; the composer with its files.

let run = null; // the answer under way: {conversation, message, controller}
let leaving = false; // the page is being closed, and its requests with it
let pending = []; // files to send: [{name, text}]

const kFileBytesMax = 2 << 20;

function requestOf(conversation) {
  const request = { model: metrics.info?.model ?? "", messages: apiMessages(conversation), stream: true, timings: true,
    stream_options: { include_usage: true }, enable_thinking: settings.thinking, ...settings.sampling };
  if (settings.useTools) request.tools = readTools();
  return request;
}

/** Asks for the conversation's next message. One answer at a time. */
async function answer(conversation) {
  if (run) return;
  let request;
  try {
    request = requestOf(conversation);
  } catch (error) {
    $("composer-error").textContent = "The tools cannot be sent. " + error.message;
    return;
  }
  const message = { role: "assistant", content: "", running: true };
  conversation.messages.push(message);
  conversation.changed = Date.now();
  run = { conversation, message, controller: new AbortController(), kept: 0 };
  const here = run;
  showRunning();
  if (conversation === current) { $("log").append(viewOf(message)); scrollDown(true); }
  const began = performance.now();
  try {
    const response = await call("/v1/chat/completions", { method: "POST", body: JSON.stringify(request), signal: here.controller.signal });
    for await (const event of events(response)) take(message, event, began);
  } catch (error) {
    if (leaving) return; // kept as it was, and marked when the page comes back
    if (error.name === "AbortError") message.stopped = true;
    else message.error = error instanceof ServerError ? error.message : "The answer broke off: the server cannot be reached.";
    if (error.status === 401) askForKey("The server refused the key: " + error.message);
  }
  delete message.running;
  run = null;
  save(conversation);
  showRunning();
  refresh(message);
  showUsage();
  $("announcer").textContent = message.error ? "" : message.tool_calls ? `The model calls ${message.tool_calls.map((tool) => tool.function.name).join(", ")}.`
    : message.stopped ? "Stopped." : "The answer is complete: " + message.content.slice(0, 400);
}

/** One event of the stream. */
function take(message, event, began) {
  if (event.error) throw new ServerError(event.error.status ?? 200, event.error.message, event.error.param);
  if (event.usage) {
    const { usage, timings } = event;
    message.stats = { prompt: usage.prompt_tokens, cached: usage.prompt_tokens_details?.cached_tokens ?? 0, completion: usage.completion_tokens,
      reasoning: usage.completion_tokens_details?.reasoning_tokens ?? 0, tokens_per_s: timings?.tokens_per_second ?? 0,
      first_ms: timings ? timings.queued_ms + timings.prefill_ms : -1 };
  }
  const choice = event.choices?.[0];
  if (!choice) return;
  const delta = choice.delta ?? {};
  if (delta.reasoning_content) {
    message.reasoning_content = (message.reasoning_content ?? "") + delta.reasoning_content;
    message.reasoning_ms = performance.now() - began;
  }
  if (delta.content) message.content += delta.content;
  for (const part of delta.tool_calls ?? []) {
    message.tool_calls ??= [];
    const tool = message.tool_calls[part.index] ??= { id: part.id, type: "function", function: { name: part.function.name, arguments: "" } };
    tool.function.arguments += part.function.arguments ?? "";
  }
  if (choice.finish_reason === "length") message.cut = true;
  schedule(message);
}

let scheduled = false;

/** Shows what has come, at most once a frame, and keeps it once a second. */
function schedule(message) {
  if (run && performance.now() - run.kept > 1000) {
    run.kept = performance.now();
    save(run.conversation);
  }
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => { scheduled = false; refresh(message); });
}

function refresh(message) {
  if (!current.messages.includes(message)) return;
  updateAssistant(message);
  const before = current.messages[current.messages.length - 2];
  if (before?.role === "assistant") updateAssistant(before);
  scrollDown(false);
}

// ---- the composer

function showRunning() {
  $("send").textContent = run ? "Stop" : "Send";
  $("send").classList.toggle("stop", run !== null);
  $("send").title = run ? "Stop the answer (Esc)" : "Send the message (Enter)";
}

/** How much of the context the conversation fills, as of its last answer. */
function showUsage() {
  const stats = current.messages.findLast((message) => message.stats)?.stats;
  const most = metrics.info?.max_model_len;
  $("usage").textContent = stats && most ? `${count(stats.prompt + stats.completion)} of ${count(most)} tokens` : "";
}

function send() {
  const text = $("text").value.trim();
  if (!text && pending.length === 0) return;
  const unanswered = current.messages.findLast((message) => message.tool_calls)?.tool_calls.find((tool) => resultOf(tool.id) === null);
  if (unanswered) {
    $("composer-error").textContent = `The model waits for the result of ${unanswered.function.name}: give it above, or answer again.`;
    return;
  }
  if (settings.useTools) {
    try { readTools(); } catch (error) {
      $("composer-error").textContent = "The tools cannot be sent. " + error.message;
      return;
    }
  }
  $("composer-error").textContent = "";
  const message = { role: "user", content: text, ...(pending.length && { files: pending }) };
  pending = [];
  $("text").value = "";
  fit();
  showFiles();
  current.messages.push(message);
  current.changed = Date.now();
  save(current);
  showConversation();
  answer(current);
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (run) run.controller.abort();
  else send();
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!run) send();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && run && !document.querySelector("dialog[open]")) run.controller.abort();
});

/** The box is as high as its text, up to a third of the window. */
function fit() {
  const box = $("text");
  box.style.height = "auto";
  box.style.height = Math.min(box.scrollHeight + 2, innerHeight / 3) + "px";
}
$("text").addEventListener("input", fit);

async function addFiles(files) {
  const wrong = [];
  for (const file of files) {
    if (file.size > kFileBytesMax) { wrong.push(`${file.name} has ${bytes(file.size)}: ${bytes(kFileBytesMax)} are allowed`); continue; }
    let text;
    try { text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer()); } catch { text = null; }
    if (text === null || text.includes("\0")) wrong.push(`${file.name} is no text in UTF-8`);
    else pending.push({ name: file.name, text });
  }
  $("composer-error").textContent = wrong.length ? wrong.join("; ") + "." : "";
  showFiles();
}

function showFiles() {
  $("files").replaceChildren(...pending.map((file, i) => make("li", {}, `${file.name} (${bytes(file.text.length)}) `,
    action("✕", () => { pending.splice(i, 1); showFiles(); }, "Remove " + file.name))));
}

$("attach").addEventListener("click", () => $("file-input").click());
$("file-input").addEventListener("change", () => { addFiles([...$("file-input").files]); $("file-input").value = ""; });
$("composer").addEventListener("dragover", (event) => event.preventDefault());
$("composer").addEventListener("drop", (event) => {
  if (event.dataTransfer.files.length === 0) return;
  event.preventDefault();
  addFiles([...event.dataTransfer.files]);
});
$("text").addEventListener("paste", (event) => {
  if (event.clipboardData.files.length === 0) return;
  event.preventDefault();
  addFiles([...event.clipboardData.files]);
});

// ---- the rest of the tab

$("thinking").checked = settings.thinking;
$("thinking").addEventListener("change", () => { settings.thinking = $("thinking").checked; saveSettings(); });
$("use-tools").checked = settings.useTools;
$("use-tools").addEventListener("change", () => {
  settings.useTools = $("use-tools").checked;
  $("composer-error").textContent = "";
  saveSettings();
});
$("settings-open").addEventListener("click", () => { showSettings(); $("settings").showModal(); });
$("tools-open").addEventListener("click", () => { checkTools(); $("tools").showModal(); });
$("export").addEventListener("click", () => $("export-dialog").showModal());
for (const dialog of document.querySelectorAll("dialog"))
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
$("new-conversation").addEventListener("click", () => { open(); showSidebar(false); $("text").focus(); });
$("conversations-open").addEventListener("click", () => showSidebar(!$("conversations").classList.contains("shown")));
// A page that is left may live on in the browser's cache, with its connections: it must give them back.
addEventListener("pagehide", () => {
  leaving = true;
  if (!run) return;
  save(run.conversation);
  run.controller.abort();
});
addEventListener("pageshow", (event) => {
  leaving = false;
  if (!event.persisted) return;
  run = null;
  open(current.id);
  showRunning();
});
