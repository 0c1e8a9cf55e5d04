// -- Charts, by uPlot

// Which seconds the charts show: the newest `span`, or from `from` to `to` once a person has zoomed.
const view = { span: 0, from: 0, to: 0 };

const inView = (at) => (view.to ? [view.from, view.to] : [at - view.span, at]);
const charts = new Set(); // those on the page
const colour = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const LINES = [["--one", []], ["--two", [6, 3]], ["--three", [2, 3]], ["--four", [9, 3, 2, 3]]];
const FONT = "12px system-ui, sans-serif";

// The figures of up to fifteen minutes: when each second was, and for each name a column.
class Past {
  constructor(names) {
    this.names = names;
    this.clear();
  }

  clear() {
    this.at = [];
    this.columns = new Map(this.names.map((name) => [name, []]));
    this.totals = []; // what was counted, and when: about each minute
    this.latest = null;
  }

  // Take what the server has kept; seconds that were seen since then stay.
  load(kept) {
    const { at: seen, columns: before } = this;
    this.at = decoded(kept.at, Float64Array);
    const more = seen.findIndex((one) => one > (this.at.at(-1) ?? 0) + 0.5);
    const length = this.at.length;
    for (const name of this.names) {
      const idle = name.includes("per_") ? 0 : null;
      const column = kept.figures[name] ? decoded(kept.figures[name], Float32Array) : Array(length).fill(idle);
      this.columns.set(name, more < 0 ? column : column.concat(before.get(name).slice(more)));
    }
    if (more >= 0) this.at = this.at.concat(seen.slice(more));
    this.totals = kept.totals.map(([at, one]) => ({ at, ...one })).concat(this.totals);
  }

  push(at, read) {
    if (at <= (this.at.at(-1) ?? 0)) return;
    this.at.push(at);
    for (const [name, column] of this.columns) column.push(read(name) ?? null);
    if (this.at.length > KEPT) for (const column of [this.at, ...this.columns.values()]) column.shift();
  }

  // What was counted between the ends of what is shown, by name.
  grown(read) {
    const [from, to] = inView(this.at.at(-1) ?? 0);
    const before = this.totals.findLast((one) => one.at <= from) || this.totals[0];
    const after = (view.to && this.totals.find((one) => one.at >= to)) || this.latest;
    if (!before || !after) return { counts: [], seconds: 0 };
    const [first, last] = [read(before), read(after)];
    const counts = Object.entries(last).map(([name, count]) => [name, count - (first[name] <= count ? first[name] : 0)]);
    return { counts: counts.filter(([, count]) => count > 0), seconds: after.at - before.at };
  }
}

function decoded(text, Type) {
  const content = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  return Array.from(new Type(content.buffer), (value) => (Number.isNaN(value) ? null : value));
}

const of = (value, name) => name.split(".").reduce((found, part) => found?.[part], value);

function ceiling(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 7.5, 10].find((step) => step * unit >= value * 0.999) * unit;
}

const swatch = (number) =>
  draw("svg", { viewBox: "0 0 24 10", "aria-hidden": "true" }, draw("path", { class: "s" + number, d: "M0 5H24" }));

const axisOf = (format, more = {}) => ({
  stroke: colour("--soft"), font: FONT, grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false },
  values: (_, splits) => splits.map(format), ...more,
});
const X_AXIS = { size: 26, space: 95, gap: 4 };
const Y_AXIS = { size: 58, space: 34, gap: 6 };

function lineOf(number, more = {}) {
  const [name, dash] = LINES[number];
  return { stroke: colour(name), width: 2, dash, points: { show: false }, ...more };
}

const times = (_, splits, __, ___, step) => splits.map((at) => new Date(at * 1000).toLocaleTimeString([],
  { hour: "2-digit", minute: "2-digit", ...(step < 60 && { second: "2-digit" }) }));

// A card with a caption and a plot, which is as wide as its card.
function plotted(title, unit, options, ...above) {
  const box = make("div", { class: "plot", "aria-hidden": "true" });
  const { node, small } = figure(title, unit, ...above, box);
  const plot = new uPlot({ width: 300, height: 150, legend: { show: false }, padding: [8, 28, 0, 0], ...options }, undefined, box);
  const sized = new ResizeObserver(() => box.clientWidth && plot.setSize({ width: box.clientWidth, height: 150 }));
  sized.observe(box);
  const drop = () => {
    sized.disconnect();
    plot.destroy();
  };
  return { node, small, plot, drop };
}

// Its table is behind it, for users who cannot see the lines. Each of `series` is a label and a figure's name.
function lineChart(past, title, unit, format, series) {
  const values = series.map(() => make("b", {}, "–"));
  const keys = series.map(([label], at) => make("button", { type: "button", class: "key", "aria-pressed": "true" },
    swatch(at + 1), label + " ", values[at]));
  const moment = make("small", { class: "moment" });
  const legend = make("div", { class: "legend", role: "group", "aria-label": title + ", lines" }, ...keys, moment);
  const columns = () => series.map(([, name]) => past.columns.get(name));
  const row = (at) => columns().forEach((column, number) => setText(values[number], format(at === null ? column.at(-1) : column[at])));
  const made = plotted(title, unit, {
    cursor: {
      sync: { key: "wherry" }, y: false, points: { size: 7 },
      drag: { x: true, y: false, setScale: false },
      bind: { dblclick: () => () => zoom(0, 0) },
    },
    scales: { y: { range: (_, __, most) => [0, ceiling(most)] } },
    axes: [axisOf(null, { ...X_AXIS, values: times }), axisOf(format, Y_AXIS)],
    series: [{}, ...series.map((_, at) => lineOf(at, series.length === 1 ? { fill: colour("--tint") } : {}))],
    hooks: {
      setCursor: [(plot) => {
        const at = plot.cursor.idx ?? null;
        row(at);
        setText(moment, at === null || !past.at[at] ? "" : clock(past.at[at]));
      }],
      setSelect: [(plot) => {
        const { left, width } = plot.select;
        if (width < 3) return;
        const [from, to] = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
        plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        if (to - from >= 3) zoom(from, to);
      }],
    },
  }, legend);
  keys.forEach((key, at) => {
    key.onclick = () => {
      const shown = key.getAttribute("aria-pressed") !== "true";
      key.setAttribute("aria-pressed", String(shown));
      made.plot.setSeries(at + 1, { show: shown });
    };
  });
  const body = make("tbody");
  const head = make("tr", {}, ...["time", ...series.map(([label]) => label)].map((text) =>
    make("th", { scope: "col", class: text === "time" ? "" : "number" }, text)));
  const details = behind(title, make("table", {}, make("caption", {}, title + ", newest first"), make("thead", {}, head), body));
  made.node.append(details);
  details.ontoggle = () => update();
  function update() {
    const [from, to] = inView(past.at.at(-1) ?? 0);
    made.plot.setData([past.at, ...columns()], false);
    made.plot.setScale("x", { min: from, max: to });
    if (made.plot.cursor.idx === null || made.plot.cursor.idx === undefined) row(null);
    if (!details.open) return;
    const rows = past.at.map((at, number) => [at, number]).filter(([at]) => at >= from && at <= to).slice(-RECENT).reverse();
    body.replaceChildren(...rows.map(([at, number]) => make("tr", {}, make("th", { scope: "row" }, clock(at)),
      ...columns().map((column) => make("td", { class: "number" }, format(column[number]))))));
  }
  return shownChart({ ...made, update });
}

function shownChart(chart) {
  charts.add(chart);
  return { ...chart, drop: () => {
    charts.delete(chart);
    if (chart.drop) chart.drop();
  } };
}

function behind(title, table) {
  return make("details", {}, make("summary", {}, "As a table"),
    make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": title + ", table" }, table));
}

function figure(title, unit, ...parts) {
  const id = newId();
  const small = make("small", {}, unit);
  const node = make("figure", { class: "card", "aria-labelledby": id },
    make("figcaption", {}, make("span", { id }, title), small), ...parts);
  return { node, small };
}

function sizesChart(past, now) {
  const list = make("ol", { class: "columns" });
  const labels = make("div", { class: "labels", "aria-hidden": "true" });
  const empty = make("p", { class: "empty" }, "No batch in this time.");
  const { node, small } = figure("Batch sizes", "", list, labels, empty);
  function update() {
    const { counts } = past.grown((one) => Object.fromEntries(one.batch_sizes));
    const each = counts.map(([rows, count]) => [Number(rows), count]);
    let sizes = each;
    if (sizes.length > 12) { // in powers of two
      const grouped = new Map();
      for (const [rows, count] of sizes) {
        const high = 2 ** Math.ceil(Math.log2(rows));
        grouped.set(high, (grouped.get(high) || 0) + count);
      }
      sizes = [...grouped].map(([high, count]) => [high, count, high > 2 ? `${high / 2 + 1}–${high}` : String(high)]);
    }
    const batches = sum(sizes.map(([, count]) => count));
    const rows = sum(each.map(([size, count]) => size * count));
    const model = now();
    setText(small, batches ? `${number(batches)} batches, ${number(rows / batches)} rows each, of at most ${model.batching.max_batch_rows || model.max_batch_size || 1}` : "");
    empty.hidden = batches > 0;
    list.hidden = labels.hidden = !batches;
    const most = Math.max(...sizes.map(([, count]) => count));
    fill(list, JSON.stringify(sizes), () => sizes.map(([size, count, name]) => {
      const bar = make("i", { "aria-hidden": "true" });
      bar.style.height = (92 * count) / most + "%";
      return make("li", {}, make("span", { class: "quietly" }, `${name || size} rows: `),
        make("span", {}, number(count)), bar);
    }));
    fill(labels, sizes.map(([size, , name]) => name || size).join(), () =>
      sizes.map(([size, , name]) => make("span", {}, String(name || size))));
  }
  return shownChart({ node, update });
}

const REASONS = {
  full: "it was full", idle: "an instance was free", waited: "it had waited", part: "a part of the queue",
  slots: "enough steps", preferred: "a preferred size", delay: "max_queue_delay was over",
  no_arrivals_expected: "no more were expected", mixed: "one could not join", deadline: "a deadline was near",
};

function reasonsChart(past) {
  const title = "Why each batch started";
  const body = make("tbody");
  const table = make("table", { class: "bars" }, make("caption", { class: "quietly" }, title), body);
  const empty = make("p", { class: "empty" }, "No batch in this time.");
  const { node, small } = figure(title, "", table, empty);
  function update() {
    const { counts, seconds: span } = past.grown((one) => one.cut_reasons);
    const cuts = counts.sort((a, b) => b[1] - a[1]);
    const all = sum(cuts.map(([, count]) => count));
    setText(small, all ? "in " + age(span) : "");
    empty.hidden = all > 0;
    table.hidden = !all;
    fill(body, JSON.stringify(cuts), () => cuts.map(([reason, count]) => {
      const bar = make("i", { "aria-hidden": "true" });
      bar.style.width = (100 * count) / cuts[0][1] + "%";
      return make("tr", {}, make("th", { scope: "row" }, REASONS[reason] || reason),
        make("td", { class: "number" }, percent(count / all)), make("td", {}, bar));
    }));
  }
  return shownChart({ node, update });
}

function curveChart(now) {
  const title = "Seconds of a batch";
  const moment = make("small", { class: "moment" });
  const legend = make("div", { class: "legend" }, make("span", {}, swatch(1), "learnt"), make("span", {},
    draw("svg", { viewBox: "0 0 24 10", "aria-hidden": "true" }, draw("circle", { class: "dot", cx: 12, cy: 5, r: 4 })), "observed"), moment);
  const rowsOf = (rows) => Math.round(rows) + (rows === 1 ? " row" : " rows");
  const made = plotted(title, "", {
    cursor: { y: false, drag: { x: false, y: false } },
    scales: { x: { time: false, range: (_, __, most) => [0, (most || 1) * 1.04] }, y: { range: (_, __, most) => [0, ceiling(most)] } },
    axes: [axisOf((rows) => number(rows), X_AXIS), axisOf(seconds, Y_AXIS)],
    bands: [{ series: [1, 2], fill: colour("--tint") }],
    series: [{}, { spanGaps: true, points: { show: false } }, { spanGaps: true, points: { show: false } }, lineOf(0, { spanGaps: true }),
      { stroke: colour("--two"), paths: () => null, points: { show: true, size: 8, fill: colour("--two") } }],
    hooks: { setCursor: [(plot) => {
      const at = plot.cursor.idx ?? null;
      const [rows, , , learnt, observed] = plot.data;
      setText(moment, at === null || !rows.length ? "" : `${rowsOf(rows[at])}: ${seconds(learnt[at])} learnt, ${seconds(observed[at])} observed`);
    }] },
  }, legend);
  const body = make("tbody");
  const details = behind(title, make("table", {}, make("caption", {}, title + " by its rows"), make("thead", {}, make("tr", {},
    ...["rows", "learnt", "observed", "batches"].map((text) => make("th", { scope: "col", class: text === "rows" ? "" : "number" }, text)))), body));
  const empty = make("p", { class: "empty" }, "Nothing is learnt yet.");
  made.node.append(details, empty);
  let key = "";
  function update() {
    const { curve = [], observed = [], fixed_seconds: fixed, row_seconds: each } = now().batching;
    const some = curve.length + observed.length > 0;
    empty.hidden = some;
    for (const part of [legend, made.plot.root.parentNode, details]) part.hidden = !some;
    setText(made.small, known(fixed) && known(each) ? `${seconds(fixed)} + ${seconds(each)} a row` : "");
    const latest = JSON.stringify([curve, observed]);
    if (!some || latest === key) return;
    key = latest;
    const sizes = [...new Set([...curve, ...observed].map((one) => one[0]))].sort((a, b) => a - b);
    const learnt = new Map(curve.map((one) => [one[0], one]));
    const seen = new Map(observed.map((one) => [one[0], one]));
    const column = (read) => sizes.map((rows) => read(learnt.get(rows), seen.get(rows)) ?? null);
    made.plot.setData([sizes, column((one) => one && one[1] + one[2]), column((one) => one && Math.max(0, one[1] - one[2])),
      column((one) => one?.[1]), column((_, one) => one?.[1])]);
    body.replaceChildren(...sizes.map((rows) => make("tr", {}, make("th", { scope: "row" }, String(rows)),
      ...[seconds(learnt.get(rows)?.[1]), seconds(seen.get(rows)?.[1]), number(seen.get(rows)?.[2])].map((text) => make("td", { class: "number" }, text)))));
  }
  return shownChart({ ...made, update });
}

// -- What the charts show

const SPANS = [[120, "2 min"], [300, "5 min"], [900, "15 min"]];
const spans = SPANS.map(([span, text]) => make("button", { type: "button", "aria-pressed": "false", onclick: () => {
  view.span = span;
  zoom(0, 0);
} }, text));
const range = make("span", { class: "note", role: "status" });
byId("spans").append(...spans, range);

// Show this time in all charts; 0, 0: the newest.
function zoom(from, to) {
  Object.assign(view, { from, to });
  spans.forEach((one, at) => one.setAttribute("aria-pressed", String(!to && SPANS[at][0] === view.span)));
  setText(range, to ? `${clock(from)} to ${clock(to)}` : "drag in a chart to zoom");
  for (const chart of charts) chart.update();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of charts) if (chart.plot) chart.plot.redraw();
});
