// SPDX-License-Identifier: Apache-2.0
// The tab Metrics: what is served, numbers of now, and charts. Samples come from the server, which keeps those of the last
// five minutes, hour and day; so a reload shows what happened before it.

const metrics = { range: 1, fields: {}, samples: [], samplesMax: 300, newest: null, info: null };

const rateOf = (n) => short(n) + " tok/s";
const plain = (n) => count(n);
const milliseconds = (n) => duration(n);

/** name of the chart -> [its chart, the samples' fields it shows, in what unit they come]. */
const overTime = [
  [new Chart({ title: "Throughput", kind: "lines", format: rateOf, axis: count, most: 1,
    series: [{ name: "decode", style: "a" }, { name: "prefill", style: "b" }] }), ["decode", "prefill"]],
  [new Chart({ title: "Requests", kind: "lines", format: plain, most: 4,
    series: [{ name: "running", style: "a" }, { name: "waiting", style: "b" }] }), ["running", "waiting"]],
  [new Chart({ title: "KV cache", kind: "areas", format: percent, most: 0.01,
    series: [{ name: "in use", style: "a" }, { name: "cached", style: "b" }] }), ["kv_used", "kv_cached"]],
  [new Chart({ title: "Time to first token", kind: "lines", format: milliseconds,
    series: [{ name: "p50", style: "a" }, { name: "p95", style: "b" }, { name: "p99", style: "c" }] }), ["ttft_p50", "ttft_p95", "ttft_p99"]],
  [new Chart({ title: "Between two tokens", kind: "lines", format: milliseconds,
    series: [{ name: "p50", style: "a" }, { name: "p95", style: "b" }, { name: "p99", style: "c" }] }), ["itl_p50", "itl_p95", "itl_p99"]],
  [new Chart({ title: "Ended requests", kind: "bars", format: plain, most: 4,
    series: [{ name: "answered", style: "a" }, { name: "cancelled", style: "b" }, { name: "failed", style: "bad" }] }), ["completed", "cancelled", "failed"]],
];
const stepsChart = new Chart({ title: "Last steps", kind: "bars", format: milliseconds, bare: true,
  series: [{ name: "with prefill", style: "a" }, { name: "decode only", style: "b" }] });
const histograms = {
  ttft: new Chart({ title: "Time to first token", kind: "bars", format: plain, most: 4, bare: true, series: [{ name: "requests", style: "a" }] }),
  inter_token: new Chart({ title: "Between two tokens", kind: "bars", format: plain, most: 4, bare: true, series: [{ name: "tokens", style: "b" }] }),
};
$("charts").append(...overTime.map(([chart]) => chart.element));
$("charts-now").append(stepsChart.element, histograms.ttft.element, histograms.inter_token.element);

// ---- cards

const card = (name, value, note, bad) => make("div", { class: bad ? "card bad" : "card" }, make("h3", {}, name),
  make("p", { class: "value" }, value), note ? make("p", { class: "dim small" }, note) : null);

function showFacts() {
  const info = metrics.info, now = metrics.newest;
  if (!info) return;
  const kv = now ? `${count(now.pages * now.tokens_per_page)} tokens` : "";
  $("facts").replaceChildren(
    card("Model", info.model),
    card("Context", count(info.max_model_len) + " tokens", `${info.max_num_seqs} sequences at a time`),
    card("Device", info.device ?? "not known", info.device_memory_bytes ? bytes(info.device_memory_bytes) + " of memory" : ""),
    card("KV cache", bytes(info.kv_bytes), kv),
    card("Ranks", String(info.ranks), info.ranks === 1 ? "one device" : "devices work as one"),
    card("Version", info.version, [info.commit?.slice(0, 12), now ? "up " + duration(now.uptime_s * 1000) : ""].filter(Boolean).join(", ")));
}

function showNumbers(now) {
  const at = (field) => (now.sample ? now.sample[metrics.fields[field]] ?? 0 : 0);
  const used = now.pages - now.pages_free - now.pages_cached;
  $("numbers").replaceChildren(
    card("Running", count(now.running), `${count(now.connections)} connections`),
    card("Waiting", count(now.waiting + now.held), `${count(now.preempted)} preempted`),
    card("Decode", short(at("decode")) + " tok/s", `${count(now.sampled_tokens)} tokens in all`),
    card("Prefill", short(at("prefill")) + " tok/s", `${count(now.prompt_tokens)} prompt tokens`),
    card("Prompt cached", now.prompt_tokens ? percent(now.cached_tokens / now.prompt_tokens) : "–", `${count(now.cached_tokens)} tokens`),
    card("KV cache in use", percent(now.pages ? used / now.pages : 0), `${count(now.evicted_pages)} pages evicted`),
    card("Answered", count(now.completed), `${count(now.cancelled)} cancelled`),
    card("Failed", count(now.failed + now.server_errors), `${count(now.client_errors)} refused (4xx)`, now.failed + now.server_errors > 0));
}

// ---- charts

/** The samples' times to show on the axis, round in the clock, at most `most`. */
function timeTicks(first, last, most) {
  const span = last - first;
  const step = [10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600].find((s) => span / s <= most) ?? 43200;
  const zone = new Date(last * 1000).getTimezoneOffset() * 60;
  const ticks = [];
  for (let t = Math.ceil((first - zone) / step) * step + zone; t <= last; t += step) ticks.push([t, clock(t, step < 60)]);
  return ticks;
}

function showHistory() {
  const { samples, fields } = metrics;
  const last = samples.length ? samples[samples.length - 1][fields.time] : Date.now() / 1000;
  // A young server's charts begin with it, but show at least a fifth of the range.
  const whole = metrics.range * metrics.samplesMax;
  const age = samples.length ? last - samples[0][fields.time] : 0;
  const first = last - Math.min(whole, Math.max(age, whole / 5));
  for (const [chart, names] of overTime) {
    const bars = chart.options.kind === "bars";
    const position = (t) => (bars ? (t - last) / metrics.range : t);
    const points = samples.map((sample) => ({
      x: position(sample[fields.time]), label: clock(sample[fields.time], metrics.range < 60),
      values: names.map((name) => { const value = sample[fields[name]]; return value < 0 ? null : value; }),
    }));
    const ticks = timeTicks(first, last, Math.max(Math.floor(chart.svg.clientWidth / 80), 3)).map(([t, text]) => [position(t), text]);
    chart.set(points, { ends: [position(first), position(last)], xTicks: ticks });
  }
}

function showSteps(steps) {
  const points = steps.map(([step, , us, decodes, tokens, waiting], i) => {
    const prefill = tokens > decodes;
    return { x: i, label: `step ${step}: ${tokens} tokens, ${decodes} of them decodes, ${waiting} sequences waiting`,
      values: prefill ? [us / 1000, null] : [null, us / 1000] };
  });
  const ticks = points.length ? [[0, "step " + steps[0][0]], [points.length - 1, String(steps[steps.length - 1][0])]] : [];
  stepsChart.set(points, { xTicks: ticks });
}

/** A latency's bounds rise by 2^(1/4) from 1/16 ms. */
const boundMs = (i) => 2 ** (i / 4) / 16;

function showHistogram(chart, histogram) {
  const points = histogram.counts.map((n, i) => ({ x: i, values: [n],
    label: `${duration(boundMs(histogram.first + i - 1))} to ${duration(boundMs(histogram.first + i))}` }));
  const every = Math.ceil(points.length / 4);
  const ticks = points.filter((_, i) => i % every === 0).map((p) => [p.x, duration(boundMs(histogram.first + p.x))]);
  const [p50, p95, p99] = histogram.percentiles_ms;
  chart.set(points, { xTicks: ticks, note: histogram.count === 0 ? ""
    : `${count(histogram.count)} measured: mean ${duration(histogram.sum_ms / histogram.count)}, p50 ${duration(p50)}, p95 ${duration(p95)}, p99 ${duration(p99)}` });
}

// ---- where it comes from

async function loadHistory() {
  try {
    const history = await (await call("/ui/history/" + metrics.range)).json();
    if (history.period_s !== metrics.range) return; // another range was chosen meanwhile
    metrics.fields = Object.fromEntries(history.fields.map((name, i) => [name, i]));
    metrics.samples = history.samples;
    metrics.samplesMax = history.samples_max;
    $("metrics-error").textContent = "";
    showHistory();
  } catch (error) {
    $("metrics-error").textContent = "The charts cannot be loaded: " + error.message;
  }
}

/** An event of /ui/events. */
function showMetrics(now) {
  metrics.newest = now;
  const newest = metrics.samples[metrics.samples.length - 1];
  const at = metrics.fields.time;
  if (now.sample && at !== undefined) {
    const gone = newest ? now.sample[at] - newest[at] : Infinity;
    if (metrics.range === 1 && gone >= 1) {
      metrics.samples.push(now.sample);
      if (metrics.samples.length > metrics.samplesMax) metrics.samples.shift();
    } else if (metrics.range > 1 && gone > metrics.range + 2 && gone !== Infinity) {
      if (!metrics.loading) metrics.loading = loadHistory().finally(() => { metrics.loading = null; });
    }
  }
  if (!$("metrics").hidden) renderMetrics();
}

function renderMetrics() {
  const now = metrics.newest;
  if (!now) return;
  showFacts();
  showNumbers(now);
  showHistory();
  showSteps(now.steps);
  showHistogram(histograms.ttft, now.ttft);
  showHistogram(histograms.inter_token, now.inter_token);
}

for (const choice of document.getElementsByName("range"))
  choice.addEventListener("change", () => { metrics.range = Number(choice.value); metrics.samples = []; loadHistory(); });
