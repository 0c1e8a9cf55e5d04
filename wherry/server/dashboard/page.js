"use strict";
// Only text goes into the page, never markup: names, errors and answers are of strangers.

// Relative to this page, so that it also works under a prefix, with or without a slash at its end.
const base = location.pathname.replace(/\/?$/, "/");
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const KEEP = 120; // readings that charts show, one a second
const MOST_SHOWN = 200000; // characters of an answer
const MOST_ERROR = 4000;
const THOUSAND = 1024;

// -- Making elements

function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else if (key.includes("-") || key === "role" || key === "for") made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function draw(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// A node is touched only if its text has changed: what a person selects or reads stays.
function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function fill(node, key, children) {
  if (node.dataset.key === key) return;
  node.dataset.key = key;
  node.replaceChildren(...children());
}

// Marks that would turn around or hide what stands beside them are shown as what they are.
const plain = (text) => String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\ufeff]/g,
  (mark) => "\\u" + mark.charCodeAt(0).toString(16).padStart(4, "0"));

const named = (text) => make("bdi", { class: "name" }, plain(text));
let ids = 0;
const newId = () => "e" + ++ids;

// -- Numbers as people read them

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

function number(value) {
  if (!known(value)) return "–";
  if (value >= 1e9) return (value / 1e9).toPrecision(3) + " G";
  if (value >= 1e6) return (value / 1e6).toPrecision(3) + " M";
  if (value >= 1e4) return (value / 1e3).toPrecision(3) + " k";
  if (value >= 100 || Number.isInteger(value)) return String(Math.round(value));
  return String(Number(value.toPrecision(2)));
}

function seconds(value) {
  if (!known(value)) return "–";
  if (value === 0) return "0 ms";
  if (value < 1e-3) return Number((value * 1e6).toPrecision(2)) + " µs";
  if (value < 1) return Number((value * 1e3).toPrecision(value < 0.1 ? 2 : 3)) + " ms";
  if (value < 120) return Number(value.toPrecision(3)) + " s";
  return age(value);
}

function age(value) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const at = units.findIndex(([, size]) => value >= size);
  if (at < 0) return "0 s";
  const [unit, size] = units[at];
  const rest = units[at + 1];
  const more = rest && at < 2 ? Math.floor((value % size) / rest[1]) : 0;
  return Math.floor(value / size) + " " + unit + (more ? " " + more + " " + rest[0] : "");
}

function bytes(value) {
  if (!known(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= THOUSAND && at < units.length - 1) {
    value /= THOUSAND;
    at += 1;
  }
  return Number(value.toPrecision(3)) + " " + units[at];
}

const percent = (value) => (known(value) ? Number((100 * value).toPrecision(value < 0.1 ? 1 : 3)) + " %" : "–");
const clock = (at) => new Date(at * 1000).toLocaleTimeString();
const sum = (values) => values.reduce((all, value) => all + value, 0);
const shape = (dims) => "[" + dims.map((size) => (size === -1 ? "any" : size)).join(", ") + "]";

// -- Asking the server

const access = { key: "", extra: "" };
try {
  access.key = sessionStorage.getItem("wherry-key") || "";
  access.extra = sessionStorage.getItem("wherry-extra") || "";
} catch { /* storage is off: what is typed holds until the page is left */ }

class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

function ask(path, options = {}) {
  const headers = new Headers(options.headers);
  if (access.key) headers.set("Authorization", "Bearer " + access.key);
  const colon = access.extra.indexOf(":");
  if (colon > 0) headers.set(access.extra.slice(0, colon).trim(), access.extra.slice(colon + 1).trim());
  return fetch(base + path, { cache: "no-store", ...options, headers });
}

async function refusal(answer) {
  const text = (await answer.text()).slice(0, MOST_SHOWN);
  try {
    const { error } = JSON.parse(text);
    return new Refused(answer.status, error.message || String(error));
  } catch {
    return new Refused(answer.status, text || answer.statusText);
  }
}

async function json(path) {
  const answer = await ask(path);
  if (!answer.ok) throw await refusal(answer);
  return answer.json();
}

// Server-sent events of an answer: EventSource cannot send a key.
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      for (let end; (end = text.search(/\r?\n\r?\n/)) >= 0;) {
        const lines = text.slice(0, end).split(/\r?\n/);
        text = text.slice(end).replace(/^\r?\n\r?\n/, "");
        const data = lines.filter((line) => line.startsWith("data:"));
        const name = lines.find((line) => line.startsWith("event:"));
        if (data.length) {
          yield {
            name: name ? name.slice(6).trim() : "message",
            data: data.map((line) => line.slice(5).replace(/^ /, "")).join("\n"),
          };
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// -- What is known

const state = {
  server: null,
  models: new Map(), // by key: the model, and its last readings
  about: new Map(), // by name: its inputs and outputs
  spoken: new Set(), // models of the OpenAI routes
  total: [],
  shown: "", // key of the model that is shown in full
};

const keyOf = (model) => model.name + "/" + model.version;

function note(at, change, whole) {
  state.server = change.server;
  if (whole) {
    const keys = new Set(change.models.map(keyOf));
    for (const key of state.models.keys()) if (!keys.has(key)) state.models.delete(key);
  }
  for (const [name, version] of change.gone || []) state.models.delete(name + "/" + version);
  for (const model of change.models) {
    const found = state.models.get(keyOf(model));
    if (found) found.now = model;
    else state.models.set(keyOf(model), { now: model, past: [] });
  }
  let rate = 0, failures = 0;
  for (const one of state.models.values()) {
    const now = one.now;
    one.past.push({ at, model: now });
    if (one.past.length > KEEP) one.past.shift();
    rate += now.requests_per_second || 0;
    failures += now.failures_per_second || 0;
  }
  state.total.push({ at, rate, failures });
  if (state.total.length > KEEP) state.total.shift();
}

function forget() {
  state.models.clear();
  state.total = [];
  state.shown = "";
}

// -- Watching

const watching = { stop: null, paused: false, waits: 0, timer: 0 };

function tell(kind, text) {
  byId("state").className = kind;
  say(byId("state"), text);
}

async function watch() {
  stopWatching();
  const stop = (watching.stop = new AbortController());
  try {
    const answer = await ask("dashboard/events", { signal: stop.signal });
    if (!answer.ok) throw await refusal(answer);
    describe().catch(() => {});
    for await (const event of events(answer)) {
      const told = JSON.parse(event.data);
      watching.waits = 0;
      const before = state.models.size;
      note(told.at, told, event.name === "whole");
      if (state.models.size !== before || event.name === "whole") describe().catch(() => {});
      show();
      tell("live", headline());
    }
    throw new Error("the server has ended the stream");
  } catch (error) {
    if (stop.signal.aborted) return;
    lost(error);
  }
}

function lost(error) {
  if (error.status === 401 || error.status === 403) {
    tell("lost", plain(error.message).slice(0, MOST_ERROR));
    openAccess(true);
    return;
  }
  watching.waits = Math.min(10, watching.waits * 2 || 1);
  tell("lost", (error.status ? plain(error.message).slice(0, MOST_ERROR) : "No connection") + "; trying again in " + watching.waits + " s.");
  watching.timer = setTimeout(watch, watching.waits * 1000);
}

function stopWatching() {
  clearTimeout(watching.timer);
  if (watching.stop) watching.stop.abort();
  watching.stop = null;
}

function headline() {
  const models = [...state.models.values()];
  const ready = models.filter((one) => one.now.state !== "UNAVAILABLE").length;
  const count = models.length;
  const draining = state.server.draining ? " The server drains." : "";
  if (!count) return "No model is loaded." + draining;
  return `${ready} of ${count} model${count > 1 ? "s" : ""} ready.` + draining;
}

// Inputs and outputs, which change only with the models.
async function describe() {
  const { models } = await json("v2/models");
  state.about = new Map(models.map((model) => [model.name, model]));
  try {
    state.spoken = new Set((await json("v1/models")).data.map((model) => model.id));
  } catch { /* the OpenAI routes may be off */ }
  if (page) page.describe();
}

// -- Charts

function ceiling(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 7.5, 10].find((step) => step * unit >= value * 0.999) * unit;
}

const swatch = (number) =>
  draw("svg", { viewBox: "0 0 24 10", "aria-hidden": "true" }, draw("path", { class: "s" + number, d: "M0 5H24" }));

function pathOf(points, top) {
  let path = "", pen = "M";
  points.forEach((value, at) => {
    if (!known(value)) {
      pen = "M";
      return;
    }
    path += pen + (KEEP - points.length + at) + " " + (100 - (100 * value) / top).toFixed(2);
    pen = "L";
  });
  return path;
}

// Its table is behind it, for who cannot see the lines.
function lineChart(title, unit, format, series) {
  const id = newId();
  const top = make("span", { "aria-hidden": "true" });
  const lines = series.map((_, at) => draw("path", { class: "s" + (at + 1) }));
  const area = draw("path", { class: "area" });
  const svg = draw("svg", { viewBox: `0 0 ${KEEP - 1} 100`, preserveAspectRatio: "none", "aria-hidden": "true" },
    draw("path", { class: "grid", d: `M0 50H${KEEP}` }), area, ...lines);
  const values = series.map(() => make("b", {}, "–"));
  const legend = make("ul", { class: "legend" }, ...series.map(([name], at) =>
    make("li", {}, swatch(at + 1), name + " ", values[at])));
  const body = make("tbody");
  const head = make("tr", {}, ...["time", ...series.map(([name]) => name)].map((text) =>
    make("th", { scope: "col", class: text === "time" ? "" : "number" }, text)));
  const table = make("table", {}, make("caption", {}, title + ", newest first"), make("thead", {}, head), body);
  const details = make("details", {}, make("summary", {}, "As a table"),
    make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": title + ", table" }, table));
  const node = make("figure", { class: "card", "aria-labelledby": id },
    make("figcaption", {}, make("span", { id }, title), make("small", {}, unit)), legend,
    make("div", { class: "plot" }, svg, top),
    make("div", { class: "axis", "aria-hidden": "true" }, make("span", {}, "2 min ago"), make("span", {}, "now")), details);
  function update(past) {
    const columns = series.map(([, read]) => past.map(({ model }) => read(model)));
    const most = ceiling(Math.max(0, ...columns.flat().filter(known)));
    columns.forEach((column, at) => {
      lines[at].setAttribute("d", pathOf(column, most));
      say(values[at], format(column.at(-1)));
    });
    const first = series.length === 1 ? pathOf(columns[0].map((value) => value || 0), most) : "";
    area.setAttribute("d", first && past.length > 1 ? `${first}V100H${KEEP - past.length}Z` : "");
    say(top, format(most));
    if (details.open) {
      body.replaceChildren(...past.map(({ at }, row) => make("tr", {}, make("th", { scope: "row" }, clock(at)),
        ...columns.map((column) => make("td", { class: "number" }, format(column[row]))))).reverse());
    }
  }
  return { node, update };
}

function figure(title, unit, ...parts) {
  const id = newId();
  const small = make("small", {}, unit);
  const node = make("figure", { class: "card", "aria-labelledby": id },
    make("figcaption", {}, make("span", { id }, title), small), ...parts);
  return { node, small };
}

// What was counted since the oldest reading that charts show, of totals.
function grown(past, read) {
  const [first, last] = [read(past[0].model), read(past.at(-1).model)];
  return Object.fromEntries(Object.entries(last)
    .map(([name, count]) => [name, count - (first[name] <= count ? first[name] : 0)])
    .filter(([, count]) => count > 0));
}

function sizesChart() {
  const list = make("ol", { class: "columns" });
  const labels = make("div", { class: "labels", "aria-hidden": "true" });
  const empty = make("p", { class: "empty" }, "No batch in this time.");
  const { node, small } = figure("Batch sizes", "", list, labels, empty);
  function update(past) {
    const read = (model) => Object.fromEntries(model.batch_sizes || []);
    let sizes = Object.entries(grown(past, read)).map(([rows, count]) => [Number(rows), count]);
    if (sizes.length > 12) { // in powers of two
      const grouped = new Map();
      for (const [rows, count] of sizes) {
        const high = 2 ** Math.ceil(Math.log2(rows));
        grouped.set(high, (grouped.get(high) || 0) + count);
      }
      sizes = [...grouped].map(([high, count]) => [high, count, high > 2 ? `${high / 2 + 1}–${high}` : String(high)]);
    }
    const batches = sum(sizes.map(([, count]) => count));
    const model = past.at(-1).model;
    const rows = sum(Object.entries(grown(past, read)).map(([size, count]) => size * count));
    say(small, batches ? `${number(batches)} batches, ${number(rows / batches)} rows each, of at most ${model.batching.max_batch_rows || model.max_batch_size || 1}` : "");
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
  return { node, update };
}

const REASONS = {
  full: "it was full", idle: "an instance was free", waited: "it had waited", part: "a part of the queue",
  slots: "enough steps", preferred: "a preferred size", delay: "max_queue_delay was over",
  no_arrivals_expected: "no more was expected", mixed: "one could not join", deadline: "a deadline was near",
};

function reasonsChart() {
  const body = make("tbody");
  const table = make("table", { class: "bars" }, make("caption", { class: "quietly" }, "Why batches left"), body);
  const empty = make("p", { class: "empty" }, "No batch in this time.");
  const { node, small } = figure("Why batches left", "", table, empty);
  function update(past) {
    const cuts = Object.entries(grown(past, (model) => model.cut_reasons || {})).sort((a, b) => b[1] - a[1]);
    const all = sum(cuts.map(([, count]) => count));
    say(small, all ? "the last " + age(past.at(-1).at - past[0].at + 1) : "");
    empty.hidden = all > 0;
    table.hidden = !all;
    fill(body, JSON.stringify(cuts), () => cuts.map(([reason, count]) => {
      const bar = make("i", { "aria-hidden": "true" });
      bar.style.width = (100 * count) / cuts[0][1] + "%";
      return make("tr", {}, make("th", { scope: "row" }, REASONS[reason] || reason),
        make("td", { class: "number" }, percent(count / all)), make("td", {}, bar));
    }));
  }
  return { node, update };
}

function curveChart() {
  const band = draw("path", { class: "band" }), line = draw("path", { class: "s1" }), dots = draw("path", { class: "dots" });
  const svg = draw("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" }, band, line, dots);
  const top = make("span", { "aria-hidden": "true" });
  const right = make("span", {});
  const plot = make("div", { class: "plot" }, svg, top);
  const axis = make("div", { class: "axis", "aria-hidden": "true" }, make("span", {}, "0 rows"), right);
  const legend = make("ul", { class: "legend" }, make("li", {}, swatch(1), "learnt"), make("li", {},
    draw("svg", { viewBox: "0 0 24 10", "aria-hidden": "true" }, draw("path", { class: "dots", d: "M12 5h0" })), "observed"));
  const body = make("tbody");
  const table = make("table", {}, make("caption", {}, "Seconds of a batch by its rows"), make("thead", {}, make("tr", {},
    ...["rows", "learnt", "observed", "batches"].map((text) => make("th", { scope: "col", class: text === "rows" ? "" : "number" }, text)))), body);
  const details = make("details", {}, make("summary", {}, "As a table"),
    make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Seconds of a batch, table" }, table));
  const empty = make("p", { class: "empty" }, "Nothing is learnt yet.");
  const { node, small } = figure("Seconds of a batch", "", legend, plot, axis, details, empty);
  function update(past) {
    const { curve = [], observed = [], fixed_seconds: fixed, row_seconds: each } = past.at(-1).model.batching;
    const some = curve.length + observed.length > 0;
    empty.hidden = some;
    for (const part of [legend, plot, axis, details]) part.hidden = !some;
    say(small, known(fixed) && known(each) ? `${seconds(fixed)} + ${seconds(each)} a row` : "");
    if (!some) return;
    const wide = Math.max(...curve.map((one) => one[0]), ...observed.map((one) => one[0])) * 1.04;
    const high = ceiling(Math.max(...curve.map((one) => one[1]), ...observed.map((one) => one[1])));
    const at = (rows, value) => ((100 * rows) / wide).toFixed(2) + " " + (100 - (100 * Math.max(0, Math.min(high * 1.2, value))) / high).toFixed(2);
    line.setAttribute("d", curve.map(([rows, value], n) => (n ? "L" : "M") + at(rows, value)).join(""));
    band.setAttribute("d", curve.length > 1 ? curve.map(([rows, value, off], n) => (n ? "L" : "M") + at(rows, value + off)).join("") +
      [...curve].reverse().map(([rows, value, off]) => "L" + at(rows, value - off)).join("") + "Z" : "");
    dots.setAttribute("d", observed.map(([rows, value]) => "M" + at(rows, value) + "h0").join(""));
    say(top, seconds(high));
    say(right, Math.round(wide / 1.04) + " rows");
    if (details.open) {
      const sizes = [...new Set([...curve, ...observed].map((one) => one[0]))].sort((a, b) => a - b);
      const learnt = new Map(curve.map((one) => [one[0], one[1]]));
      const seen = new Map(observed.map((one) => [one[0], one]));
      body.replaceChildren(...sizes.map((rows) => make("tr", {}, make("th", { scope: "row" }, String(rows)),
        ...[seconds(learnt.get(rows)), seconds(seen.get(rows)?.[1]), number(seen.get(rows)?.[2])].map((text) => make("td", { class: "number" }, text)))));
    }
  }
  return { node, update };
}

// -- The server

function tile(name) {
  const value = make("dd", {}, "–");
  byId("tiles").append(make("div", {}, make("dt", {}, name), value));
  return (text, small = "", bad = false) => {
    fill(value, text + "|" + small, () => [text, ...(small ? [" ", make("small", {}, small)] : [])]);
    value.className = bad ? "bad" : "";
  };
}

const tiles = {
  rate: tile("Requests"), failures: tile("Failures"), flight: tile("In flight"), refused: tile("Refused"),
  stall: tile("Longest loop stall"), cpu: tile("Server process"), memory: tile("Machine"), up: tile("Up for"),
};

function showServer() {
  const { server, total } = state;
  const { rate, failures, at } = total.at(-1);
  tiles.rate(number(rate), "a second");
  tiles.failures(number(failures), "a second", failures > 0);
  tiles.flight(number(server.requests_in_flight), bytes(server.request_bytes));
  tiles.refused(number(server.refused), "since the start", false);
  tiles.stall(seconds(server.loop_stall.longest_seconds), "of late", server.loop_stall.longest_seconds > 1);
  const process = server.process || {};
  tiles.cpu(percent(process.cpu_share), "of a core, " + bytes(process.resident_bytes));
  const machine = server.machine || {};
  tiles.memory(percent(machine.cpu_share), `CPU, ${bytes(machine.memory_used_bytes)} of ${bytes(machine.memory_total_bytes)}`);
  tiles.up(age(at - server.started_at), "version " + server.version);
  showFronts(server.fronts);
  showDevices(server.devices);
  showTurns();
}

function grid(title, columns, rows) {
  const cell = (value, at) => {
    const made = at ? make("td", { class: typeof value === "object" ? "" : "number" }, value) : make("th", { scope: "row" }, value);
    return made;
  };
  return make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": title },
    make("table", {}, make("caption", {}, title),
      make("thead", {}, make("tr", {}, ...columns.map((text, at) =>
        make("th", { scope: "col", class: at && rows.length && typeof rows[0][at] !== "object" ? "number" : "" }, text)))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map(cell))))));
}

const badge = (text) => make("span", { class: "badge " + text.replace(" ", "-") }, text.toLowerCase());

function showFronts(fronts) {
  const rows = fronts.map((one) => [named("front " + one.number), number(one.connections), number(one.calls),
    number(one.refused), seconds(one.longest_stall_seconds), seconds(one.cpu_seconds), bytes(one.resident_bytes)]);
  fill(byId("fronts"), JSON.stringify(rows.map((row) => row.slice(1))), () => (rows.length
    ? [grid("Fronts", ["front", "connections", "gRPC calls", "refused", "longest stall", "CPU", "memory"], rows)] : []));
}

function boxOfServer(id) {
  let box = byId(id);
  if (!box) {
    box = make("div", { id });
    byId("server").append(box);
  }
  return box;
}

// Which models were on their device, where not all fit.
function showTurns() {
  const held = [...state.models.values()].filter((one) => one.now.residence?.device);
  const turns = held.map(({ now, past }) => past.map(({ model }) => model.residence?.state || ""));
  const shown = held.map(({ now }) => [now.name, now.residence.device, now.state, bytes(now.residence.footprint_bytes), number(now.residence.wakes)]);
  fill(boxOfServer("turns"), JSON.stringify([turns, shown]), () => (held.length
    ? [grid("Models on their devices", ["model", "device", "state", "takes", "wakes", "last 2 min"],
      shown.map(([name, device, now, takes, wakes], at) => [named(name), named(device), badge(now), takes, wakes, lane(turns[at])]))] : []));
}

function lane(states) {
  const marks = states.map((one, at) => (one && one !== "asleep"
    ? draw("rect", { class: one, x: KEEP - states.length + at, y: 0, width: 1.05, height: 10 }) : null));
  return draw("svg", { class: "lane", viewBox: `0 0 ${KEEP} 10`, preserveAspectRatio: "none", "aria-hidden": "true" },
    ...marks.filter((one) => one));
}

function showDevices(devices) {
  fill(boxOfServer("devices"), JSON.stringify(devices), () => (devices.length ? [grid("Devices", ["device", "memory in use", "of"],
    devices.map((one) => [named(one.device), bytes(one.memory_used_bytes), bytes(one.memory_total_bytes)]))] : []));
}

// -- The list of models

const list = { rows: new Map(), body: make("tbody", { role: "rowgroup" }) };
const COLUMNS = [["model", ""], ["state", ""], ["requests/s", "number"], ["last 2 min", ""], ["p50", "number"], ["p99", "number"],
  ["queue", "number"], ["failures/s", "number"]];
byId("list").append(make("div", { class: "scroll" }, make("table", { role: "table", "aria-labelledby": "models-title" },
  make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...COLUMNS.map(([text, kind]) =>
    make("th", { scope: "col", role: "columnheader", class: kind }, text)))), list.body)));

function listRow(key, model) {
  const link = make("a", { href: "#" + encodeURIComponent(key) }, named(model.name));
  const version = make("small", { class: "note" });
  const spark = draw("path", { class: "s1" });
  const cells = Object.fromEntries(["rate", "p50", "p99", "queue", "failures"].map((name, at) => [name,
    make("td", { role: "cell", class: "number", "data-label": ["requests/s", "p50", "p99", "queue", "failures/s"][at] })]));
  const status = make("span", { class: "badge" });
  const row = make("tr", { role: "row" },
    make("th", { scope: "row", role: "rowheader" }, link, " ", version),
    make("td", { role: "cell", class: "state" }, status), cells.rate,
    make("td", { role: "cell", class: "spark" }, draw("svg", { viewBox: `0 -4 ${KEEP - 1} 108`, preserveAspectRatio: "none", "aria-hidden": "true" }, spark)),
    cells.p50, cells.p99, cells.queue, cells.failures);
  function update({ now, past }) {
    status.className = "badge " + now.state;
    say(status, now.state.toLowerCase());
    say(version, now.version ? "version " + now.version : "");
    say(cells.rate, number(now.requests_per_second));
    say(cells.p50, seconds(now.request_seconds?.p50));
    say(cells.p99, seconds(now.request_seconds?.p99));
    say(cells.queue, number(now.queued_requests));
    say(cells.failures, number(now.failures_per_second));
    const rates = past.map(({ model }) => model.requests_per_second || 0);
    spark.setAttribute("d", pathOf(rates, Math.max(1e-9, ...rates)));
    if (key === state.shown) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
  }
  return { row, update, name: model.name };
}

function showList() {
  const wanted = byId("find").value.trim().toLowerCase();
  const models = [...state.models].sort(([a], [b]) => (a < b ? -1 : 1));
  document.querySelector(".find").hidden = models.length < 8;
  for (const [key, one] of list.rows) {
    if (!state.models.has(key)) {
      one.row.remove();
      list.rows.delete(key);
    }
  }
  let last = null;
  for (const [key, one] of models) {
    let entry = list.rows.get(key);
    if (!entry) {
      entry = listRow(key, one.now);
      list.rows.set(key, entry);
      if (last) last.after(entry.row);
      else list.body.prepend(entry.row);
    }
    last = entry.row;
    entry.row.hidden = !entry.name.toLowerCase().includes(wanted);
    entry.update(one);
  }
}

// -- One model in full

let page = null;

function modelPage(key, model) {
  const status = make("span", { class: "badge" });
  const title = make("h2", { id: "model-title", tabIndex: -1 }, named(model.name), " ",
    make("small", {}, model.version ? "version " + model.version : ""));
  const reason = make("p", { class: "reason" });
  const about = make("p", { class: "about" });
  const words = make("ul", { class: "words" });
  const charts = make("div", { class: "charts" });
  const instances = make("div"), errors = make("div", { class: "card wide" }), tryBox = make("div", { class: "card wide" });
  const drawn = chartsOf(model);
  const batching = make("div", { class: "charts three" });
  for (const chart of drawn) (chart.batching ? batching : charts).append(chart.node);
  byId("model").replaceChildren(make("div", { class: "above" }, title, status), reason, about, words, charts, batching, instances,
    make("div", { class: "charts" }, errors, tryBox));
  byId("model").hidden = false;
  function update({ now, past }) {
    status.className = "badge " + now.state;
    say(status, now.state.toLowerCase());
    say(reason, plain(now.reason));
    if (!now.kind) return;
    const told = past.filter((one) => one.model.kind);
    for (const chart of drawn) chart.update(told);
    const said = now.batching.in_words || inWords(now.generation);
    fill(words, said.join("\n"), () => said.map((text) => make("li", {}, text)));
    showInstances(instances, now);
    showErrors(errors, now);
  }
  function tellAbout() {
    const told = state.about.get(model.name);
    say(about, plain(told?.description || ""));
    if (told) fill(tryBox, JSON.stringify([told.inputs, told.outputs, told.examples, state.spoken.has(model.name)]), () => tryParts(told));
  }
  tellAbout();
  return { key, kind: model.kind, title, update, describe: tellAbout };
}

function inWords(generation) {
  if (!known(generation?.kv_blocks)) return [];
  const { kv_blocks: all, kv_blocks_used: used, preemptions } = generation;
  return [`${number(used)} of ${number(all)} KV blocks are in use; sequences were preempted ${preemptions} times.`];
}

function chartsOf(model) {
  if (!model.kind) return [];
  const times = (field) => [["p50", "p50"], ["p95", "p95"], ["p99", "p99"]].map(([name, at]) => [name, (one) => one[field][at]]);
  const charts = [
    lineChart("Throughput", "a second", number, [["requests", (one) => one.requests_per_second],
      ["rows", (one) => one.rows_per_second], ["failures", (one) => one.failures_per_second],
      ...(model.streams ? [["responses", (one) => one.responses_per_second]] : [])]),
    lineChart("Request time", "arrival to answer", seconds, times("request_seconds")),
    lineChart("Queue time", "arrival to start", seconds, times("queue_seconds")),
    lineChart("Load", "now", number, [["queued", (one) => one.queued_requests],
      [model.kind === "steps" ? "running" : "batches", (one) => one.running_batches], ["rows", (one) => one.running_rows]]),
  ];
  if (model.kind === "steps") {
    const of = (field) => (one) => one.generation?.[field];
    const quantiles = (field) => ["p50", "p95", "p99"].map((name) => [name, (one) => one.generation?.[field]?.[name]]);
    charts.push(
      lineChart("Tokens", "a second", number, [["generated", of("tokens_per_second")], ["prompts", of("prompt_tokens_per_second")]]),
      lineChart("Time to first token", "arrival to first response", seconds, quantiles("first_response_seconds")),
      lineChart("Time between tokens", "one response to the next", seconds, quantiles("next_response_seconds")),
      lineChart("Sequences", "now", number, [["running", of("running")], ["waiting", of("waiting")]]),
      lineChart("Cache", "share", percent, [["KV blocks in use", of("kv_cache_usage")], ["prompts found", of("prefix_hit_share")]]),
    );
  }
  if (model.kind === "batches") {
    charts.push(...[sizesChart(), reasonsChart(), curveChart()].map((chart) => ({ ...chart, batching: true })));
  }
  return charts;
}

function showInstances(box, now) {
  const at = state.total.at(-1).at;
  const { worker_restarts: restarts, worker_deaths: deaths } = now.totals;
  const died = Object.entries(deaths).map(([cause, count]) => `${count} by ${cause}`).join(", ");
  const title = "Instances" + (restarts ? `; restarts: ${restarts}` : "") + (died ? ` (${died})` : "");
  const rows = now.instances.map((one) => [named(one.name), one.state, one.device, one.pid, bytes(one.resident_bytes),
    one.running_rows, one.running_since ? Math.floor(Math.max(0, at - one.running_since)) : null, one.reason]);
  fill(box, title + JSON.stringify(rows), () => {
    if (!rows.length) {
      const next = known(now.next_try_seconds) ? ` The next try is in ${seconds(now.next_try_seconds)}.` : "";
      return [make("p", { class: "note" }, (now.kind === "pipeline" ? "A pipeline runs in the server itself." : "No instance is up." + next))];
    }
    return [grid(title, ["instance", "state", "device", "process", "memory", "rows that run", "for"],
      rows.map(([name, status, device, pid, memory, running, since, why]) => [name,
        make("span", {}, badge(status), why ? " " + why : ""), named(device), pid ? String(pid) : "of the server", memory,
        number(running), since === null ? "–" : age(since)]))];
  });
}

function showErrors(box, now) {
  fill(box, JSON.stringify([now.errors, now.totals.failures]), () => {
    const failures = Object.entries(now.totals.failures).filter(([, count]) => count)
      .map(([reason, count]) => `${count} ${reason.toLowerCase()}`).join(", ");
    const title = make("h3", {}, "Last errors");
    if (!now.errors.length) return [title, make("p", { class: "note" }, failures ? `None kept; failures: ${failures}.` : "None since the model was loaded.")];
    return [title, make("p", { class: "note" }, `Failures since the load: ${failures || "none"}.`),
      make("ul", { class: "errors" }, ...now.errors.map((one) => make("li", {},
        make("b", {}, one.kind), " ", make("small", {}, `${clock(one.at)}, ${one.count} of this kind`),
        make("p", { dir: "auto", tabIndex: 0 }, plain(one.message)))))];
  });
}

// -- Trying a model

// JSON has no such numbers: V2 carries them as binary data only.
const BINARY_ONLY = ["FP16", "BF16"];

// What its bytes hold, if that is known: "image", "audio" or "file".
const contentOf = (tensor) => tensor.parameters?.content || "";
const isFile = (tensor) => tensor.form === "list[bytes]" || contentOf(tensor) !== "";

// A field for one input: its node, and what it gives. Undefined: the input is left out.
function fieldOf(input, example) {
  const id = newId();
  const hint = `${input.datatype} ${shape(input.shape)}${input.optional ? ", optional" : ""}`;
  const label = make("label", { for: id }, named(input.name), " ", make("small", {}, hint));
  const scalar = input.shape.length <= 1;
  if (isFile(input) && scalar) return fileField(input, id, label);
  if (input.datatype === "BOOL" && scalar) {
    const box = make("input", { id, type: "checkbox", checked: example === true });
    return { node: make("div", { class: "field" }, label, box), read: () => box.checked };
  }
  if (input.form === "list[str]" && scalar) {
    const box = make("textarea", { id, rows: 3, value: example ?? (input.optional ? "" : "some text"), spellcheck: false });
    return { node: make("div", { class: "field" }, label, box), read: () => (input.optional && !box.value ? undefined : box.value) };
  }
  if (scalar && input.datatype !== "BYTES") {
    const whole = input.datatype.includes("INT");
    const box = make("input", { id, type: "number", step: whole ? "1" : "any", value: String(example ?? (input.optional ? "" : 1)) });
    return { node: make("div", { class: "field" }, label, box), read: () => {
      if (box.value === "" && input.optional) return undefined;
      if (box.value === "" || !box.validity.valid) throw new Error(`${input.name}: a ${whole ? "whole " : ""}number is needed`);
      return Number(box.value);
    } };
  }
  const given = example === undefined ? (input.optional ? "" : JSON.stringify(sampleOf(input))) : JSON.stringify(example);
  const box = make("textarea", { id, rows: Math.min(8, 2 + Math.floor(given.length / 60)), value: given, spellcheck: false });
  label.append(make("small", {}, ", as JSON"));
  return { node: make("div", { class: "field" }, label, box), read: () => {
    if (!box.value.trim() && input.optional) return undefined;
    try {
      return JSON.parse(box.value);
    } catch (error) {
      throw new Error(`${input.name}: ${error.message}`);
    }
  } };
}

function sampleOf(input) {
  if (input.form === "list[dict]") return {};
  const one = { BOOL: true, BYTES: "some text" }[input.datatype] ?? 1;
  const sizes = input.shape.slice(1).map((size) => Math.max(size, 1));
  const count = sizes.reduce((all, size) => all * size, 1);
  return sizes.length ? Array(Math.min(count, 4096)).fill(one) : one;
}

function base64(buffer) {
  const all = new Uint8Array(buffer), parts = [];
  for (let at = 0; at < all.length; at += 0x8000) parts.push(String.fromCharCode(...all.subarray(at, at + 0x8000)));
  return btoa(parts.join(""));
}

// What a browser shows of a file; as a picture SVG runs nothing.
function preview(blob, name) {
  const url = URL.createObjectURL(blob);
  if (blob.type.startsWith("image/")) return make("img", { class: "preview", src: url, alt: name });
  if (blob.type.startsWith("audio/")) return make("audio", { controls: true, src: url, "aria-label": name });
  return make("span", { class: "note" }, "no preview");
}

// By its first bytes, what a browser can show.
function typeOf(content) {
  const begin = String.fromCharCode(...new Uint8Array(content.slice(0, 12)));
  if (begin.startsWith("\x89PNG")) return "image/png";
  if (begin.startsWith("\xff\xd8\xff")) return "image/jpeg";
  if (begin.startsWith("GIF8")) return "image/gif";
  if (begin.startsWith("RIFF") && begin.endsWith("WEBP")) return "image/webp";
  if (begin.startsWith("RIFF") && begin.endsWith("WAVE")) return "audio/wav";
  return "application/octet-stream";
}

function dropPreviews(node) {
  for (const media of node.querySelectorAll("[src^='blob:'], [href^='blob:']")) URL.revokeObjectURL(media.src || media.href);
  node.replaceChildren();
}

function fileField(input, id, label) {
  const box = make("input", { id, type: "file", accept: (input.parameters?.accepts || []).join() });
  const shown = make("div");
  const about = make("p", { class: "note" });
  let file = null;
  const take = (chosen) => {
    file = chosen || null;
    dropPreviews(shown);
    say(about, file ? `${file.name}, ${file.type || "of unknown type"}, ${bytes(file.size)}` : "Choose a file, or drop one here.");
    if (file) shown.append(preview(file, file.name));
  };
  box.onchange = () => take(box.files[0]);
  const drop = make("div", { class: "drop" }, box, about, shown);
  drop.ondragover = (event) => {
    event.preventDefault();
    drop.classList.add("over");
  };
  drop.ondragleave = () => drop.classList.remove("over");
  drop.ondrop = (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    if (event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
  };
  take(null);
  return { node: make("div", { class: "field" }, label, drop), read: async () => {
    if (!file && input.optional) return undefined;
    if (!file) throw new Error(`${input.name}: choose a file`);
    return { b64: base64(await file.arrayBuffer()) };
  } };
}

function curlLine(model, path) {
  const body = JSON.stringify(exampleOf(model)).replaceAll("'", "'\\''");
  return `curl ${model.streams ? "-N " : ""}'${location.origin}${path}' -d '${body}'`;
}

function exampleOf(model) {
  if (model.examples.length) return model.examples[0];
  const required = model.inputs.filter((input) => !input.optional);
  return Object.fromEntries(required.map((input) => [input.name,
    isFile(input) ? { b64: "aGVsbG8=" } : sampleOf(input)]));
}

function tryParts(model) {
  const path = "v2/models/" + encodeURIComponent(model.name) + (model.streams ? "/generate_stream" : "/generate");
  const parts = [make("h3", {}, "Try it")];
  const chats = state.spoken.has(model.name) && model.inputs.some((input) => input.name === "messages");
  if (chats) parts.push(make("p", {}, make("a", { href: base + "chat#" + encodeURIComponent(model.name) }, "Chat with it")));
  if (!model.inputs.length) return [...parts, make("p", { class: "note" }, "Nothing is known of its inputs.")];
  if ([...model.inputs, ...model.outputs].some((one) => BINARY_ONLY.includes(one.datatype))) {
    parts.push(make("p", { class: "note" }, BINARY_ONLY.join(" and ") + " travel as binary data only, not as JSON: call it with ",
      make("code", {}, "wherry call"), " or a Triton client."));
  } else {
    const form = tryForm(model, path);
    parts.push(chats ? make("details", {}, make("summary", {}, "All inputs"), form) : form);
  }
  parts.push(make("details", {}, make("summary", {}, "From a program"),
    make("pre", { tabIndex: 0, "aria-label": "The same with curl" }, curlLine(model, base + path)), tensors(model)));
  return parts;
}

function tensors(model) {
  const rows = [["input", model.inputs], ["output", model.outputs]].flatMap(([kind, specs]) => specs.map((one) =>
    [named(one.name), make("span", {}, one.optional ? kind + ", optional" : kind), make("span", {}, one.datatype), make("span", {}, shape(one.shape)), make("span", {}, one.form)]));
  return grid("Inputs and outputs", ["name", "kind", "datatype", "shape", "in Python"], rows);
}

// A button that runs something, one that stops it, and what became of it.
function runner(name) {
  const start = make("button", { type: "submit" }, name);
  const stop = make("button", { type: "button", hidden: true }, "Stop");
  const note = make("span", { role: "status", class: "note" });
  let running = null;
  stop.onclick = () => running && running.abort();
  async function run(work) {
    running = new AbortController();
    start.disabled = true;
    stop.hidden = false;
    note.className = "note";
    say(note, "running…");
    const began = performance.now();
    try {
      const said = await work(running.signal);
      say(note, `${said}, ${seconds((performance.now() - began) / 1000)}`);
    } catch (error) {
      const stopped = running.signal.aborted;
      note.className = stopped ? "note" : "failed";
      say(note, stopped ? "stopped" : plain(error.message || error).slice(0, MOST_ERROR));
    }
    const focused = document.activeElement === stop;
    stop.hidden = true;
    start.disabled = false;
    if (focused) start.focus();
  }
  return { node: make("div", { class: "row" }, start, stop, note), run, get busy() { return start.disabled; } };
}

function tryForm(model, path) {
  const example = model.examples[0] || {};
  const fields = model.inputs.map((input) => ({ input, ...fieldOf(input, example[input.name]) }));
  const output = make("div");
  const run = runner("Run");
  const form = make("form", { class: "try", "aria-label": "Try " + model.name, noValidate: true },
    ...fields.map((one) => one.node), run.node, output);
  form.onsubmit = (event) => {
    event.preventDefault();
    if (run.busy) return;
    dropPreviews(output);
    run.run(async (signal) => {
      const body = {};
      for (const { input, read } of fields) {
        const value = await read();
        if (value !== undefined) body[input.name] = value;
      }
      const headers = { "Content-Type": "application/json" };
      const file = !model.streams && model.outputs.length === 1 && isFile(model.outputs[0]) ? model.outputs[0] : null;
      if (file) headers.Accept = `${file.parameters?.media_type || "application/octet-stream"}, application/octet-stream;q=0.9, application/json;q=0.8`;
      const answer = await ask(path, { method: "POST", signal, body: JSON.stringify(body), headers });
      if (!answer.ok) throw await refusal(answer);
      await showAnswer(answer, output, file);
      return String(answer.status);
    });
  };
  return form;
}

async function showAnswer(answer, output, file) {
  const type = (answer.headers.get("content-type") || "").split(";")[0];
  if (file && type !== "application/json") {
    const content = await answer.arrayBuffer();
    const blob = new Blob([content], { type: type === "application/octet-stream" ? typeOf(content) : type });
    const saves = make("a", { href: URL.createObjectURL(blob), download: file.name }, "Save");
    output.append(preview(blob, "the answer"), make("p", { class: "note" }, `${blob.type}, ${bytes(blob.size)} `, saves));
    return;
  }
  const text = make("pre", { tabIndex: 0, role: "region", "aria-label": "Answer" });
  output.append(text);
  if (type === "text/event-stream") {
    let shown = "";
    for await (const event of events(answer)) {
      const { error, ...value } = JSON.parse(event.data);
      if (error) throw new Error(error.message || error);
      delete value.model_name;
      delete value.model_version;
      const values = Object.values(value);
      const only = values.length === 1 && typeof values[0] === "string";
      shown = (shown + (only ? values[0] : JSON.stringify(value) + "\n")).slice(-MOST_SHOWN);
      text.textContent = shown;
      text.scrollTop = text.scrollHeight;
    }
    return;
  }
  const whole = await answer.text();
  text.textContent = readable(whole).slice(0, MOST_SHOWN);
  if (whole.length > MOST_SHOWN) output.append(make("p", { class: "note" }, `The first ${MOST_SHOWN} of ${whole.length} characters.`));
}

// One member a line; within, as short as JSON can be: a long array is not a tower of numbers.
function readable(text) {
  try {
    const value = JSON.parse(text);
    if (value === null || typeof value !== "object" || Array.isArray(value)) return JSON.stringify(value);
    const lines = Object.entries(value).map(([name, one]) => "  " + JSON.stringify(name) + ": " + JSON.stringify(one));
    return lines.length ? "{\n" + lines.join(",\n") + "\n}" : "{}";
  } catch {
    return text;
  }
}

// -- The page as a whole

// What is shown first.
function busiest() {
  const rate = ([, { now }]) => now.requests_per_second || 0;
  const models = [...state.models].sort(([a], [b]) => (a < b ? -1 : 1));
  return models.length ? models.reduce((best, one) => (rate(one) > rate(best) ? one : best))[0] : "";
}

function openModel(focus) {
  let key = "";
  try {
    key = decodeURIComponent(location.hash.slice(1));
  } catch { /* not ours */ }
  if (!state.models.has(key)) key = state.models.has(state.shown) ? state.shown : busiest();
  if (!key) {
    state.shown = "";
    page = null;
    dropPreviews(byId("model"));
    byId("model").hidden = true;
    return;
  }
  const { now } = state.models.get(key);
  if (!page || page.key !== key || page.kind !== now.kind) {
    dropPreviews(byId("model"));
    state.shown = key;
    page = modelPage(key, now);
    page.update(state.models.get(key));
  }
  if (focus && location.hash.slice(1) !== "models-title") page.title.focus();
}

function show() {
  showServer();
  openModel(false);
  showList();
  if (page) page.update(state.models.get(page.key));
  say(byId("footer"), `Rates and quantiles are of the last seconds; ${state.server.viewers} watch. As of ${clock(state.total.at(-1).at)}.`);
}

function openAccess(open) {
  byId("access").hidden = !open;
  byId("key").setAttribute("aria-expanded", String(open));
}

byId("key").onclick = () => {
  openAccess(byId("access").hidden);
  if (!byId("access").hidden) byId("api-key").focus();
};

byId("access").onsubmit = (event) => {
  event.preventDefault();
  keepAccess(byId("api-key").value.trim(), byId("extra").value.trim());
  openAccess(false);
  byId("key").focus();
  watch();
};

byId("forget").onclick = () => {
  byId("api-key").value = byId("extra").value = "";
  keepAccess("", "");
  forget();
  watch();
};

function keepAccess(key, extra) {
  access.key = key;
  access.extra = extra;
  try {
    for (const [name, value] of [["wherry-key", key], ["wherry-extra", extra]]) {
      if (value) sessionStorage.setItem(name, value);
      else sessionStorage.removeItem(name);
    }
  } catch { /* storage is off */ }
}

byId("pause").onclick = () => {
  watching.paused = !watching.paused;
  byId("pause").setAttribute("aria-pressed", String(watching.paused));
  say(byId("pause"), watching.paused ? "Go on" : "Pause");
  if (watching.paused) {
    stopWatching();
    tell("", "Paused.");
  } else watch();
};

byId("find").oninput = () => showList();
window.onhashchange = () => {
  openModel(true);
  if (state.total.length) showList();
};
// Who does not look costs the server nothing.
document.onvisibilitychange = () => {
  if (watching.paused) return;
  if (document.hidden) stopWatching();
  else watch();
};

byId("to-metrics").href = base + "metrics";
byId("to-stats").href = base + "v2/models/stats";
byId("api-key").value = access.key;
byId("extra").value = access.extra;
watch();
