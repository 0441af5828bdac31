// SPDX-License-Identifier: Apache-2.0
// Markdown to elements: headings, paragraphs, lists, quotes, tables, code, emphasis and links. Markup in the text stays
// text, a link is followed only if it is http, https or mailto, and a picture becomes a link: the page loads nothing.

const kNesting = 10; // deeper quotes, lists and emphasis stay text
const kLookAhead = 4000; // characters to the end of an emphasis, a link or a span of code

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(?:\s+|$)/;
const DELIMITERS = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

const isTable = (line, next) => line.includes("|") && next !== undefined && next.includes("-") && next.includes("|") && DELIMITERS.test(next);
const opensBlock = (line) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);

/** The text's blocks: {kind, lines}. A block's text never depends on what follows it, but for the last one's. */
function blocksOf(text) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const blocks = [];
  for (let i = 0; i < lines.length;) {
    const line = lines[i], start = i++;
    if (!line.trim()) continue;
    let kind = "paragraph";
    const fence = FENCE.exec(line);
    if (fence) {
      kind = "code";
      while (i < lines.length && !closes(lines[i], fence[1])) ++i;
      ++i;
    } else if (HEADING.test(line)) {
      kind = "heading";
    } else if (RULE.test(line)) {
      kind = "rule";
    } else if (QUOTE.test(line)) {
      kind = "quote";
      while (i < lines.length && lines[i].trim() && (QUOTE.test(lines[i]) || !opensBlock(lines[i]))) ++i;
    } else if (ITEM.test(line)) {
      kind = "list";
      i = endOfList(lines, i, ITEM.exec(line));
    } else if (isTable(line, lines[i])) {
      kind = "table";
      while (i < lines.length && lines[i].includes("|")) ++i;
    } else {
      while (i < lines.length && lines[i].trim() && !opensBlock(lines[i]) && !isTable(lines[i], lines[i + 1])) ++i;
    }
    blocks.push({ kind, lines: lines.slice(start, i) });
  }
  return blocks;
}

function closes(line, fence) {
  const text = line.trim();
  return text.length >= fence.length && text === fence[0].repeat(text.length);
}

function endOfList(lines, i, first) {
  const isOther = (item) => item && item[1].length <= first[1].length && /\d/.test(item[2]) !== /\d/.test(first[2]);
  let fence = null;
  for (; i < lines.length; ++i) {
    const line = lines[i];
    if (fence) {
      if (closes(line, fence)) fence = null;
      continue;
    }
    if (!line.trim()) {
      const next = lines[i + 1];
      if (next === undefined || !(ITEM.test(next) || /^\s{2,}\S/.test(next))) return i;
      continue;
    }
    if (/^\s{2,}\S/.test(line)) fence = FENCE.exec(line.trim())?.[1] ?? null;
    else if (!ITEM.test(line) && (opensBlock(line) || !lines[i - 1].trim())) return i;
    if (RULE.test(line) || isOther(ITEM.exec(line))) return i;
  }
  return i;
}

/** Shows `text` in `host`. Blocks that have not changed stay the elements they are. */
function showMarkdown(host, text) {
  const blocks = blocksOf(text);
  const before = host.sources ?? [];
  host.sources = blocks.map((block) => block.kind + block.lines.join("\n"));
  host.sources.forEach((source, i) => {
    if (before[i] === source) return;
    const element = elementOf(blocks[i], 0);
    if (host.children[i]) host.children[i].replaceWith(element);
    else host.append(element);
  });
  while (host.children.length > blocks.length) host.lastChild.remove();
}

function elementOf(block, depth) {
  const { kind, lines } = block;
  if (depth > kNesting) return make("p", {}, lines.join("\n"));
  if (kind === "code") return codeBlock(lines);
  if (kind === "rule") return make("hr");
  if (kind === "list") return listOf(lines, depth);
  if (kind === "table") return tableOf(lines);
  if (kind === "quote") {
    const quote = make("blockquote");
    for (const inner of blocksOf(lines.map((line) => line.replace(QUOTE, "")).join("\n"))) quote.append(elementOf(inner, depth + 1));
    return quote;
  }
  if (kind === "heading") {
    const [, run, text] = HEADING.exec(lines[0]);
    return make("h" + Math.min(run.length + 2, 6), {}, ...inline(text, 0)); // h1 and h2 are the page's
  }
  return make("p", {}, ...inline(lines.map((line) => line.replace(/^\s+/, "")).join("\n"), 0));
}

function codeBlock(lines) {
  const [, fence, info] = FENCE.exec(lines[0]);
  const closed = lines.length > 1 && closes(lines[lines.length - 1], fence);
  const text = lines.slice(1, closed ? -1 : undefined).join("\n");
  const language = info.trim().split(/\s+/)[0].slice(0, 30);
  const button = make("button", { class: "quiet small", type: "button", "aria-label": "Copy the code" }, "Copy");
  button.addEventListener("click", () => copy(text, button));
  return make("figure", { class: "block" },
    make("figcaption", {}, make("span", {}, language || "text"), button),
    make("pre", { tabindex: 0, role: "region", "aria-label": (language || "text") + " code" }, make("code", {}, ...highlighted(text, language))));
}

function listOf(lines, depth) {
  const first = ITEM.exec(lines[0]);
  const ordered = /\d/.test(first[2]);
  const list = make(ordered ? "ol" : "ul", ordered ? { start: parseInt(first[2], 10) } : {});
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && (items.length === 0 || item[1].length < items[items.length - 1].indent)) {
      const indent = item[1].length + item[2].length + 1;
      items.push({ indent, lines: [line.slice(item[0].length)] });
    } else {
      const last = items[items.length - 1];
      const spaces = /^\s*/.exec(line)[0].length;
      last.lines.push(line.slice(Math.min(spaces, last.indent)));
    }
  }
  for (const item of items) list.append(itemOf(item.lines, depth));
  return list;
}

function itemOf(lines, depth) {
  const element = make("li");
  const task = /^\[([ xX])\]\s+/.exec(lines[0]);
  if (task) {
    lines = [lines[0].slice(task[0].length), ...lines.slice(1)];
    element.append(task[1] === " " ? "☐ " : "☑ ");
  }
  const blocks = blocksOf(lines.join("\n"));
  for (const block of blocks) {
    const tight = block.kind === "paragraph" && block === blocks[0];
    if (tight) element.append(...inline(block.lines.join("\n"), 0));
    else element.append(elementOf(block, depth + 1));
  }
  return element;
}

function cellsOf(line) {
  const cells = [""];
  let code = false;
  const text = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  for (let i = 0; i < text.length; ++i) {
    if (text[i] === "`") code = !code;
    if (text[i] === "\\" && text[i + 1] === "|") cells[cells.length - 1] += text[++i];
    else if (text[i] === "|" && !code) cells.push("");
    else cells[cells.length - 1] += text[i];
  }
  return cells.map((cell) => cell.trim());
}

function tableOf(lines) {
  const [head, delimiters, ...rows] = lines;
  const columns = cellsOf(head);
  const sides = cellsOf(delimiters).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "c" : "n") : null));
  const row = (cells, tag) => make("tr", {}, ...columns.map((_, i) =>
    make(tag, { class: sides[i], scope: tag === "th" ? "col" : null }, ...inline(cells[i] ?? "", 0))));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table" }, make("table", {},
    make("thead", {}, row(columns, "th")), make("tbody", {}, ...rows.map((line) => row(cellsOf(line), "td")))));
}

// ---- inside a paragraph

const SPECIAL = /[\\`*_~[!<\n]|https?:\/\//g;
const TAGS = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "del" };

function safeAddress(text) {
  try {
    return ["http:", "https:", "mailto:"].includes(new URL(text).protocol) ? new URL(text).href : null;
  } catch { return null; }
}
const link = (href, ...children) => make("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);

/** The nodes of a line of text. */
function inline(text, depth) {
  const nodes = [];
  let plain = "", at = 0;
  const flush = () => { if (plain) nodes.push(plain); plain = ""; };
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const found = depth > kNesting ? null : SPECIAL.exec(text);
    if (!found) { plain += text.slice(at); break; }
    plain += text.slice(at, found.index);
    at = found.index;
    const made = piece(text, at, depth);
    if (made === null) {
      plain += text[at++];
    } else {
      flush();
      nodes.push(...made.nodes);
      at = made.end;
    }
  }
  flush();
  return nodes;
}

/** What begins at `at`: its nodes and its end; null: nothing but a character. */
function piece(text, at, depth) {
  const c = text[at];
  if (c === "\n") return / {2}$/.test(text.slice(at - 2, at)) ? { nodes: [make("br")], end: at + 1 } : null;
  if (c === "\\") return /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "") ? { nodes: [text[at + 1]], end: at + 2 } : null;
  if (c === "`") return codeSpan(text, at);
  if (c === "<") return angle(text, at);
  if (c === "[" || (c === "!" && text[at + 1] === "[")) return linkAt(text, at, depth);
  if (c === "h") return bareLink(text, at);
  return c === "!" ? null : emphasis(text, at, depth);
}

function codeSpan(text, at) {
  const run = /^`+/.exec(text.slice(at, at + 20))[0];
  for (let end = at + run.length; (end = text.indexOf(run, end)) >= 0 && end - at < kLookAhead; ++end) {
    if (text[end + run.length] === "`" || text[end - 1] === "`") continue;
    const inside = text.slice(at + run.length, end).replace(/\n/g, " ");
    return { nodes: [make("code", {}, inside.replace(/^ (.*) $/, "$1"))], end: end + run.length };
  }
  return { nodes: [run], end: at + run.length };
}

function angle(text, at) {
  const part = text.slice(at, at + 500);
  const br = /^<br\s*\/?>/i.exec(part);
  if (br) return { nodes: [make("br")], end: at + br[0].length };
  const found = /^<((?:https?:\/\/|mailto:)[^\s<>]+)>/.exec(part);
  const href = found && safeAddress(found[1]);
  return href ? { nodes: [link(href, found[1])], end: at + found[0].length } : null;
}

function bareLink(text, at) {
  const found = /^https?:\/\/[^\s<>"'`|\])}]+/.exec(text.slice(at, at + 2000));
  const shown = found && found[0].replace(/[.,;:!?*_~]+$/, "");
  const href = shown && safeAddress(shown);
  return href && !/\w/.test(text[at - 1] ?? "") ? { nodes: [link(href, shown)], end: at + shown.length } : null;
}

function linkAt(text, at, depth) {
  const picture = text[at] === "!";
  const begin = at + (picture ? 2 : 1);
  let open = 1, end = begin;
  for (; end < text.length && end - at < 1000; ++end) {
    if (text[end] === "\\") ++end;
    else if (text[end] === "[") ++open;
    else if (text[end] === "]" && --open === 0) break;
  }
  if (open !== 0 || text[end + 1] !== "(") return null;
  const target = /^\(\s*<?([^\s<>]*?)>?(?:\s+["'(][^"')]*["')])?\s*\)/.exec(text.slice(end + 1, end + 2000));
  const href = target && safeAddress(target[1]);
  if (!href) return null;
  const shown = text.slice(begin, end);
  const nodes = picture ? ["picture: " + (shown || href)] : inline(shown, depth + 1);
  return { nodes: [link(href, ...nodes)], end: end + 1 + target[0].length };
}

function emphasis(text, at, depth) {
  const c = text[at];
  const sign = text[at + 1] === c ? c + c : c;
  const tag = TAGS[sign], begin = at + sign.length;
  const inWord = /\w/.test(text[at - 1] ?? "");
  if (!tag || /\s/.test(text[begin] ?? " ") || (c === "_" && inWord)) return { nodes: [sign], end: begin };
  for (let end = begin + 1; (end = text.indexOf(sign, end)) >= 0 && end - at < kLookAhead; ++end) {
    if (/\s/.test(text[end - 1]) || text[end - 1] === "\\") continue;
    if (c === "_" && /\w/.test(text[end + sign.length] ?? "")) continue;
    if (sign.length === 2 && text[end + 2] === c) ++end; // ***: the first one ends what is inside
    if (sign.length === 1 && (text[end + 1] === c || text[end - 1] === c)) { ++end; continue; } // of a longer sign
    return { nodes: [make(tag, {}, ...inline(text.slice(begin, end), depth + 1))], end: end + sign.length };
  }
  return { nodes: [sign], end: begin };
}

// ---- colours of code

const WORDS = new Set(("abstract and as async await auto bool break case catch char class const constexpr continue def default del delete do double elif else enum "
  + "except export extends extern false final finally float fn for from func function go if impl implements import in include inline int interface "
  + "is lambda let long loop match mod module mut namespace new nil None not null or override package pass private protected pub public raise "
  + "return select self short sizeof static struct super switch template this throw trait true True False try type typedef typename union unsafe "
  + "unsigned use using var virtual void where while with yield SELECT FROM WHERE JOIN INSERT UPDATE DELETE CREATE TABLE GROUP ORDER BY AND OR NOT "
  + "echo fi then done esac").split(" "));
const HASH = new Set(["py", "python", "sh", "bash", "shell", "zsh", "yaml", "yml", "toml", "ruby", "rb", "r", "perl", "cmake", "dockerfile", "makefile", "console"]);
const SLASHES = new Set(["c", "cpp", "c++", "cuda", "cu", "h", "java", "js", "javascript", "ts", "typescript", "go", "rust", "rs", "swift", "kotlin", "csharp", "cs", "php", "scala", "css", "json", "jsonc"]);

function highlighted(text, language) {
  const name = language.toLowerCase();
  if (text.length > 50_000 || !(HASH.has(name) || SLASHES.has(name) || name === "sql")) return [text];
  const comment = HASH.has(name) ? "#[^\\n]*" : name === "sql" ? "--[^\\n]*" : "\\/\\/[^\\n]*|\\/\\*[^]*?\\*\\/";
  const tokens = new RegExp(`(${comment})|("(?:[^"\\\\\\n]|\\\\.)*"|'(?:[^'\\\\\\n]|\\\\.)*')|\\b(\\d[\\w.]*)|\\b([A-Za-z_]\\w*)`, "g");
  const nodes = [];
  let at = 0;
  for (const found of text.matchAll(tokens)) {
    const kind = found[1] ? "comment" : found[2] ? "string" : found[3] ? "number" : WORDS.has(found[4]) ? "word" : null;
    if (kind === null) continue;
    nodes.push(text.slice(at, found.index), make("span", { class: kind }, found[0]));
    at = found.index + found[0].length;
  }
  return [...nodes, text.slice(at)];
}
