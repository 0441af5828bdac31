// SPDX-License-Identifier: Apache-2.0
// One chart: axes with round numbers that fit the data, a legend with the newest values, and the values under the pointer
// or, with the arrow keys, under a cursor. Lines, stacked areas or stacked bars.

const kMargin = { left: 46, right: 10, top: 8, bottom: 20 };
const kHeight = 150;

/** The numbers to show from 0 to at least `most`, about four: 0, 50, 100, 150. */
function ticksTo(most) {
  if (!(most > 0)) return [0, 1];
  const rough = most / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const ticks = [];
  for (let i = 0; i === 0 || ticks[i - 1] < most * 0.999; ++i) ticks.push(i * step);
  return ticks;
}

/** An element of a drawing. */
function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

class Chart {
  /**
   * options: title; kind: "lines", "areas" or "bars"; series: [{name, style: "a".."c" or "bad"}]; format: a value in words;
   * axis: a tick of the y axis in words (else format); most: the least upper end of the y axis; note: text below.
   */
  constructor(options) {
    this.options = options;
    this.points = []; // {x, label, values: one a series, null: none, styles: of bars that differ}
    this.ends = null; // [first x, last x] where the axis is longer than the data
    this.cursor = -1;
    this.svg = draw("svg", { role: "img", tabindex: "0", focusable: "true" });
    this.legend = make("div", { class: "legend" });
    this.tip = make("div", { class: "tip", hidden: true });
    this.spoken = make("p", { class: "unseen", "aria-live": "polite" });
    this.note = make("p", { class: "dim small note" });
    this.element = make("figure", { class: "card chart" },
      make("figcaption", {}, make("h3", {}, options.title), this.legend),
      make("div", { class: "plot" }, this.svg, this.tip), this.note, this.spoken);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("blur", () => this.leave());
    this.svg.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.render()).observe(this.svg);
  }

  set(points, more = {}) {
    this.points = points;
    this.ends = more.ends ?? null;
    this.xTicks = more.xTicks ?? null; // [[x, text]] of the x axis
    this.note.textContent = more.note ?? "";
    this.render();
  }

  /** Sums of the series before each one, for stacked kinds. */
  stacked(point) {
    let sum = 0;
    return point.values.map((value) => { const from = sum; sum += value ?? 0; return [from, sum]; });
  }

  render() {
    const width = this.svg.clientWidth;
    this.showLegend();
    if (width === 0) return; // in a tab that is not shown
    const { points, options } = this;
    const tops = points.map((p) => (options.kind === "lines" ? Math.max(0, ...p.values.map((v) => v ?? 0)) : p.values.reduce((a, v) => a + (v ?? 0), 0)));
    const ticks = ticksTo(Math.max(options.most ?? 0, ...tops));
    const top = ticks[ticks.length - 1];
    const [first, last] = this.ends ?? (points.length ? [points[0].x, points[points.length - 1].x] : [0, 1]);
    const inner = width - kMargin.left - kMargin.right, high = kHeight - kMargin.top - kMargin.bottom;
    // Bars stand between two positions; lines from the first to the last.
    const slots = Math.max(options.kind === "bars" ? last - first + 1 : last - first, 1e-9);
    const shift = options.kind === "bars" ? 0.5 : 0;
    this.x = (x) => kMargin.left + inner * (x - first + shift) / slots;
    this.y = (v) => kMargin.top + high * (1 - Math.min(v / top, 1));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${kHeight}`);
    const parts = [];
    for (const tick of ticks) {
      const y = this.y(tick).toFixed(1);
      parts.push(draw("line", { class: "grid", x1: kMargin.left, x2: width - kMargin.right, y1: y, y2: y }),
        draw("text", { class: "tick", x: kMargin.left - 6, y: Number(y) + 3.5, "text-anchor": "end" }, tick === 0 ? "0" : (options.axis ?? options.format)(tick)));
    }
    let free = 0; // a tick that would cover the one before it is left out
    for (const [x, text] of this.xTicks ?? []) {
      const half = 3.2 * text.length, at = Math.max(this.x(x), half), anchor = at > width - half ? "end" : "middle";
      if (at - half < free) continue;
      free = at + half + 6;
      parts.push(draw("text", { class: "tick", x: at.toFixed(1), y: kHeight - 5, "text-anchor": anchor }, text));
    }
    options.series.forEach((series, i) => parts.push(...this.shapesOf(series, i, inner / slots)));
    if (points.length === 0)
      parts.push(draw("text", { class: "tick", x: kMargin.left + inner / 2, y: kHeight / 2, "text-anchor": "middle" }, "nothing measured yet"));
    this.rule = draw("line", { class: "rule", y1: kMargin.top, y2: kHeight - kMargin.bottom, x1: -9, x2: -9 });
    this.svg.replaceChildren(...parts, this.rule);
    if (this.cursor >= 0) this.show(Math.min(this.cursor, points.length - 1), false);
  }

  shapesOf(series, i, slot) {
    const { points, options } = this;
    if (options.kind === "bars") {
      const width = Math.max(Math.min(slot * 0.8, 24), 1);
      return points.filter((p) => p.values[i] > 0).map((p) => {
        const [from, to] = this.stacked(p)[i];
        const y = this.y(to);
        return draw("rect", { class: "fill " + (p.styles?.[i] ?? series.style), x: (this.x(p.x) - width / 2).toFixed(2), width: width.toFixed(2),
          y: y.toFixed(2), height: Math.max(this.y(from) - y, 0.8).toFixed(2) });
      });
    }
    const runs = [[]];
    for (const p of points) {
      if (p.values[i] === null) runs.push([]);
      else runs[runs.length - 1].push(p);
    }
    return runs.filter((run) => run.length > 0).map((run) => {
      const value = (p) => (options.kind === "areas" ? this.stacked(p)[i][1] : p.values[i]);
      const line = run.map((p) => `${this.x(p.x).toFixed(1)},${this.y(value(p)).toFixed(1)}`);
      if (options.kind === "areas") {
        const base = run.map((p) => `${this.x(p.x).toFixed(1)},${this.y(this.stacked(p)[i][0]).toFixed(1)}`).reverse();
        return draw("polygon", { class: "fill " + series.style, points: [...line, ...base].join(" ") });
      }
      if (run.length === 1) return draw("circle", { class: "fill " + series.style, cx: line[0].split(",")[0], cy: line[0].split(",")[1], r: 1.8 });
      return draw("polyline", { class: "line " + series.style, points: line.join(" ") });
    });
  }

  words(point) {
    return this.options.series.map((series, i) => [series, point.values[i] === null ? "–" : this.options.format(point.values[i])]);
  }

  showLegend() {
    const newest = this.points[this.points.length - 1];
    const rows = newest && !this.options.bare ? this.words(newest) : this.options.series.map((series) => [series, ""]);
    this.legend.replaceChildren(...(this.options.series.length > 1 || !this.options.bare ? rows : []).map(([series, value]) =>
      make("span", {}, make("i", { class: "swatch " + series.style, "aria-hidden": "true" }), series.name + " ", value ? make("b", {}, value) : null)));
    this.svg.setAttribute("aria-label", `${this.options.title}: ` + (newest
      ? `newest, ${rows.map(([series, value]) => `${series.name} ${value}`).join(", ")}; ${this.points.length} points, left and right arrow keys read them`
      : "nothing measured yet"));
  }

  point(event) {
    if (this.points.length === 0 || !this.x) return;
    const at = event.clientX - this.svg.getBoundingClientRect().left;
    let best = 0;
    this.points.forEach((p, i) => { if (Math.abs(this.x(p.x) - at) < Math.abs(this.x(this.points[best].x) - at)) best = i; });
    this.show(best, false);
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 };
    if (event.key === "Escape") this.leave();
    if (!(event.key in steps) || this.points.length === 0) return;
    event.preventDefault();
    const from = this.cursor < 0 ? (steps[event.key] < 0 ? this.points.length : -1) : this.cursor;
    this.show(Math.max(0, Math.min(this.points.length - 1, from + steps[event.key])), true);
  }

  show(i, speak) {
    const point = this.points[i];
    if (!point) return;
    this.cursor = i;
    const x = this.x(point.x);
    this.rule.setAttribute("x1", x);
    this.rule.setAttribute("x2", x);
    const rows = this.words(point);
    this.tip.replaceChildren(make("strong", {}, point.label), ...rows.map(([series, value]) =>
      make("span", {}, make("i", { class: "swatch " + series.style }), series.name + " ", make("b", {}, value))));
    this.tip.hidden = false;
    const room = this.svg.clientWidth - this.tip.offsetWidth;
    this.tip.style.left = Math.max(0, Math.min(room, x > this.svg.clientWidth / 2 ? x - this.tip.offsetWidth - 10 : x + 10)) + "px";
    if (speak) this.spoken.textContent = `${point.label}: ${rows.map(([series, value]) => `${series.name} ${value}`).join(", ")}`;
  }

  leave() {
    this.cursor = -1;
    this.tip.hidden = true;
    this.rule?.setAttribute("x1", -9);
    this.rule?.setAttribute("x2", -9);
  }
}
