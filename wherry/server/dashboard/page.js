// -- What is known

const state = {
  server: null,
  past: null, // of the server
  models: new Map(), // by key: the model now, its last rates, whether it was on its device
  about: new Map(), // by name: its inputs and outputs
  spoken: new Set(), // models of the OpenAI routes
  at: 0,
  tab: "", // what is shown
  shown: "", // key of the model that is shown in full
};

const keyOf = (model) => model.name + "/" + model.version;
const RESIDENT = { asleep: 0, resting: 0, waking: 1, stopping: 1, ready: 2 };
const SERVER_FIGURES = ["requests_per_second", "failures_per_second", "refused_per_second", "requests_in_flight",
  "cpu_share", "loop_stall_seconds"];

function keep(list, value) {
  list.push(value);
  if (list.length > RECENT) list.shift();
}

function note(change, whole) {
  state.server = change.server;
  state.at = change.at;
  if (whole) {
    const keys = new Set(change.models.map(keyOf));
    for (const key of state.models.keys()) if (!keys.has(key)) state.models.delete(key);
  }
  for (const [name, version] of change.gone || []) state.models.delete(name + "/" + version);
  for (const model of change.models) {
    const found = state.models.get(keyOf(model));
    if (found) found.now = model;
    else state.models.set(keyOf(model), { now: model, rates: [], resident: [] });
  }
  let rate = 0, failures = 0;
  for (const { now, rates, resident } of state.models.values()) {
    keep(rates, now.requests_per_second || 0);
    keep(resident, RESIDENT[now.residence?.state] ?? null);
    rate += now.requests_per_second || 0;
    failures += now.failures_per_second || 0;
  }
  const { server } = state;
  const figures = { requests_per_second: rate, failures_per_second: failures, requests_in_flight: server.requests_in_flight,
    cpu_share: server.process?.cpu_share, loop_stall_seconds: server.loop_stall.last_seconds,
    refused_per_second: server.refused_per_second };
  state.past.push(state.at, (name) => figures[name]);
  if (page) page.push();
}

// What the server has kept, so that the page opens full.
async function loadPast() {
  const kept = await json("dashboard/history");
  state.past.load(kept);
  for (const [name, version, figures] of kept.models) {
    const found = state.models.get(name + "/" + version);
    if (!found) continue;
    found.rates = decoded(figures.requests_per_second, Float32Array);
    if (figures.resident) found.resident = decoded(figures.resident, Float32Array);
  }
  if (!view.span) {
    const lived = state.at - state.server.started_at;
    view.span = SPANS.find(([span]) => span >= lived)?.[0] || KEPT;
  }
  zoom(view.from, view.to);
  show();
}

function forget() {
  state.models.clear();
  state.past.clear();
  state.shown = "";
}

// -- Watching

const watching = { stop: null, paused: false, waits: 0, timer: 0 };

function setState(kind, text) {
  byId("state").className = kind;
  setText(byId("state"), text);
}

async function watch() {
  stopWatching();
  const stop = (watching.stop = new AbortController());
  try {
    const answer = await fetchPath("dashboard/events", { signal: stop.signal });
    if (!answer.ok) throw await refusal(answer);
    for await (const event of events(answer)) {
      const update = JSON.parse(event.data);
      watching.waits = 0;
      const before = state.models.size;
      const whole = event.name === "whole";
      note(update, whole);
      if (state.models.size !== before || whole) describe().catch(() => {});
      show();
      if (whole) {
        loadPast().catch(() => {});
        if (page) page.load();
      }
      setState("live", headline());
    }
    throw new Error("the server has ended the stream");
  } catch (error) {
    if (stop.signal.aborted) return;
    lost(error);
  }
}

function lost(error) {
  if (error.status === 401 || error.status === 403) {
    setState("lost", plain(error.message).slice(0, MOST_ERROR));
    openAccess(true);
    return;
  }
  watching.waits = Math.min(10, watching.waits * 2 || 1);
  setState("lost", (error.status ? plain(error.message).slice(0, MOST_ERROR) : "No connection") + "; trying again in " + watching.waits + " s.");
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
    const { data } = await json("v1/models");
    state.spoken = new Set(data.map((model) => model.id));
    byId("to-chat").hidden = !data.some((model) => model.abilities.includes("chat"));
  } catch { /* the OpenAI routes may be off */ }
  if (page) page.describe();
  if (state.tab === "try") showTry();
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
  stall: tile("Event loop"), cpu: tile("Server process"), memory: tile("Machine"), up: tile("Up for"),
};
state.past = new Past(SERVER_FIGURES);
for (const chart of [
  lineChart(state.past, "Requests of all models", "a second", number, [["requests", "requests_per_second"],
    ["failures", "failures_per_second"], ["refused", "refused_per_second"]]),
  lineChart(state.past, "In flight", "requests", number, [["requests in flight", "requests_in_flight"]]),
  lineChart(state.past, "Server process", "share of one core", percent, [["CPU", "cpu_share"]]),
  lineChart(state.past, "Event loop", "longest stall in each second", seconds, [["stall", "loop_stall_seconds"]]),
]) byId("whole").append(chart.node);

function showServer() {
  const { server, past, at } = state;
  const last = (name) => past.columns.get(name).at(-1);
  tiles.rate(number(last("requests_per_second")), "a second");
  tiles.failures(number(last("failures_per_second")), "a second", last("failures_per_second") > 0);
  tiles.flight(number(server.requests_in_flight), bytes(server.request_bytes));
  tiles.refused(number(server.refused), "since the start", false);
  tiles.stall(seconds(server.loop_stall.longest_seconds), "longest stall, last minute", server.loop_stall.longest_seconds > 1);
  const process = server.process || {};
  tiles.cpu(percent(process.cpu_share), "of one core, " + bytes(process.resident_bytes));
  const machine = server.machine || {};
  tiles.memory(percent(machine.cpu_share), `CPU, ${bytes(machine.memory_used_bytes)} of ${bytes(machine.memory_total_bytes)}`);
  tiles.up(age(at - server.started_at), "version " + server.version);
  showFronts(server.fronts);
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
  const shown = held.map(({ now }) => [now.name, now.residence.device, now.state, bytes(now.residence.footprint_bytes), number(now.residence.wakes)]);
  fill(boxOfServer("turns"), JSON.stringify([held.map((one) => one.resident), shown]), () => (held.length
    ? [grid("Models on their devices", ["model", "device", "state", "takes", "wakes", "last 2 min"],
      shown.map(([name, device, now, takes, wakes], at) => [named(name), named(device), badge(now), takes, wakes, lane(held[at].resident)]))] : []));
}

function lane(places) {
  const marks = places.map((one, at) => (one
    ? draw("rect", { class: one > 1 ? "ready" : "waking", x: RECENT - places.length + at, y: 0, width: 1.05, height: 10 }) : null));
  return draw("svg", { class: "lane", viewBox: `0 0 ${RECENT} 10`, preserveAspectRatio: "none", "aria-hidden": "true" },
    ...marks.filter((one) => one));
}

// -- The list of models

const list = { rows: new Map(), body: make("tbody", { role: "rowgroup" }) };
const COLUMNS = [["model", ""], ["state", ""], ["requests/s", "number"], ["last 2 min", ""], ["p50", "number"], ["p99", "number"],
  ["queue", "number"], ["failures/s", "number"]];
byId("list").append(make("div", { class: "scroll" }, make("table", { role: "table", "aria-labelledby": "models-title" },
  make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...COLUMNS.map(([text, kind]) =>
    make("th", { scope: "col", role: "columnheader", class: kind }, text)))), list.body)));

function pathOf(points, top) {
  return points.map((value, at) => (at ? "L" : "M") + (RECENT - points.length + at) + " " + (100 - (100 * value) / top).toFixed(2)).join("");
}

function listRow(key, model) {
  const link = make("a", { href: hashOf("live", key) }, named(model.name));
  const version = make("small", { class: "note" });
  const spark = draw("path", { class: "s1" });
  const cells = Object.fromEntries(["rate", "p50", "p99", "queue", "failures"].map((name, at) => [name,
    make("td", { role: "cell", class: "number", "data-label": ["requests/s", "p50", "p99", "queue", "failures/s"][at] })]));
  const status = make("span", { class: "badge" });
  const row = make("tr", { role: "row" },
    make("th", { scope: "row", role: "rowheader" }, link, " ", version),
    make("td", { role: "cell", class: "state" }, status), cells.rate,
    make("td", { role: "cell", class: "spark" }, draw("svg", { viewBox: `0 -4 ${RECENT - 1} 108`, preserveAspectRatio: "none", "aria-hidden": "true" }, spark)),
    cells.p50, cells.p99, cells.queue, cells.failures);
  function update({ now, rates }) {
    status.className = "badge " + now.state;
    setText(status, now.state.toLowerCase());
    setText(version, now.version ? "version " + now.version : "");
    setText(cells.rate, number(now.requests_per_second));
    setText(cells.p50, seconds(now.request_seconds?.p50));
    setText(cells.p99, seconds(now.request_seconds?.p99));
    setText(cells.queue, number(now.queued_requests));
    setText(cells.failures, number(now.failures_per_second));
    spark.setAttribute("d", pathOf(rates, Math.max(1e-9, ...rates)));
    if (key === state.shown) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
  }
  return { row, update, name: model.name };
}

function showList() {
  const filter = byId("find").value.trim().toLowerCase();
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
    entry.row.hidden = !entry.name.toLowerCase().includes(filter);
    entry.update(one);
  }
}

// -- One model in full

let page = null;

function modelPage(key) {
  const model = state.models.get(key).now;
  const status = make("span", { class: "badge" });
  const title = make("h2", { id: "model-title", tabIndex: -1 }, named(model.name), " ",
    make("small", {}, model.version ? "version " + model.version : ""));
  const reason = make("p", { class: "reason" });
  const about = make("p", { class: "about" });
  const words = make("ul", { class: "words" });
  const [lines, batching] = [make("div", { class: "charts" }), make("div", { class: "charts three" })];
  const instances = make("div");
  const current = () => state.models.get(key)?.now || model;
  const drawn = chartsOf(model);
  const past = new Past(drawn.flatMap(([, , , series]) => series.map(([, name]) => name)));
  const made = drawn.map((one) => lineChart(past, ...one));
  lines.append(...made.map((chart) => chart.node));
  if (model.kind === "batches") {
    const more = [sizesChart(past, current), reasonsChart(past), curveChart(current)];
    batching.append(...more.map((chart) => chart.node));
    made.push(...more);
  }
  byId("model").replaceChildren(make("div", { class: "above" }, title, status), reason, about, words, lines, batching, instances);
  byId("model").hidden = false;
  function update() {
    const now = current();
    status.className = "badge " + now.state;
    setText(status, now.state.toLowerCase());
    setText(reason, plain(now.reason));
    if (!now.kind) return;
    const lines = now.batching.in_words || inWords(now.generation);
    fill(words, lines.join("\n"), () => lines.map((text) => make("li", {}, text)));
    showInstances(instances, now);
  }
  function push() {
    const now = current();
    if (!now.kind) return;
    past.push(state.at, (name) => of(now, name));
    const { batch_sizes, cut_reasons } = now;
    past.latest = { at: state.at, batch_sizes, cut_reasons };
    if (!(state.at - past.totals.at(-1)?.at < 10)) past.totals.push(past.latest);
  }
  async function load() {
    if (!model.kind) return;
    const which = new URLSearchParams({ model: model.name, version: model.version });
    const kept = await json("dashboard/history?" + which).catch(() => null);
    if (kept) past.load(kept);
    for (const chart of made) chart.update();
  }
  function describe() {
    setText(about, plain(state.about.get(model.name)?.description || ""));
  }
  describe();
  push();
  load();
  return { key, kind: model.kind, title, update, push, load, describe, drop: () => made.forEach((chart) => chart.drop()) };
}

function inWords(generation) {
  if (!known(generation?.kv_blocks)) return [];
  const { kv_blocks: all, kv_blocks_used: used, preemptions } = generation;
  return [`${number(used)} of ${number(all)} KV blocks are in use; sequences were preempted ${preemptions} times.`];
}

// Title, unit, how a value is read, and of each line its label and its figure.
function chartsOf(model) {
  if (!model.kind) return [];
  const times = (figure) => ["p50", "p95", "p99"].map((name) => [name, `${figure}.${name}`]);
  const drawn = [
    ["Throughput", "a second", number, [["requests", "requests_per_second"], ["rows", "rows_per_second"],
      ["failures", "failures_per_second"], ...(model.streams ? [["responses", "responses_per_second"]] : [])]],
    ["Request time", "arrival to answer", seconds, times("request_seconds")],
    ["Queue time", "arrival to start", seconds, times("queue_seconds")],
    ["Load", "now", number, [["queued", "queued_requests"],
      [model.kind === "steps" ? "running" : "batches", "running_batches"], ["rows", "running_rows"]]],
  ];
  if (model.kind !== "steps") return drawn;
  return [...drawn,
    ["Tokens", "a second", number, [["generated", "generation.tokens_per_second"], ["prompts", "generation.prompt_tokens_per_second"]]],
    ["Time to first token", "arrival to first response", seconds, times("generation.first_response_seconds")],
    ["Time between tokens", "one response to the next", seconds, times("generation.next_response_seconds")],
    ["Sequences", "now", number, [["running", "generation.running"], ["waiting", "generation.waiting"]]],
    ["Cache", "share", percent, [["KV blocks in use", "generation.kv_cache_usage"], ["prompts found", "generation.prefix_hit_share"]]],
  ];
}

function showInstances(box, now) {
  const { worker_restarts: restarts, worker_deaths: deaths } = now.totals;
  const died = Object.entries(deaths).map(([cause, count]) => `${count} by ${cause}`).join(", ");
  const title = "Instances" + (restarts ? `; restarts: ${restarts}` : "") + (died ? ` (${died})` : "");
  const rows = now.instances.map((one) => [named(one.name), one.state, one.device, one.pid, bytes(one.resident_bytes),
    one.running_rows, one.running_since ? Math.floor(Math.max(0, state.at - one.running_since)) : null, one.reason]);
  fill(box, title + JSON.stringify(rows), () => {
    if (!rows.length) {
      const next = known(now.next_try_seconds) ? ` The next try is in ${seconds(now.next_try_seconds)}.` : "";
      return [make("p", { class: "note" }, (now.kind === "pipeline" ? "A pipeline runs in the server itself." : "No instance is up." + next))];
    }
    return [grid(title, ["instance", "state", "device", "process", "memory", "rows in flight", "for"],
      rows.map(([name, status, device, pid, memory, running, since, why]) => [name,
        make("span", {}, badge(status), why ? " " + why : ""), named(device), pid ? String(pid) : "of the server", memory,
        number(running), since === null ? "–" : age(since)]))];
  });
}

// -- Errors of all models

function showErrors() {
  const models = [...state.models.values()].map((one) => one.now).filter((one) => one.kind);
  const counts = models.map((one) => [one.name, Object.entries(one.totals.failures).filter(([, count]) => count)])
    .filter(([, failures]) => failures.length);
  const errors = models.flatMap((one) => one.errors.map((error) => ({ ...error, model: one.name })))
    .sort((a, b) => b.at - a.at);
  const off = [...state.models.values()].map((one) => one.now).filter((one) => one.reason);
  setText(byId("error-count"), errors.length ? String(errors.length) : "");
  fill(byId("errors"), JSON.stringify([counts, errors, off]), () => [
    make("p", { class: "note" }, counts.length ? "Failures since the load: "
      + counts.map(([name, failures]) => `${plain(name)} ${failures.map(([reason, count]) => count + " " + reason.toLowerCase()).join(", ")}`).join("; ") + "."
      : "No request has failed since the models were loaded."),
    ...off.map((one) => make("p", { class: "reason" }, named(one.name), ": " + plain(one.reason))),
    errors.length ? make("ul", { class: "errors card" }, ...errors.map((one) => make("li", {},
      make("b", {}, one.kind), " ", named(one.model), " ", make("small", {}, `${clock(one.at)}, ${one.count} of this kind`),
      make("p", { dir: "auto", tabIndex: 0 }, plain(one.message))))) : null,
  ].filter((one) => one));
}

// -- Tabs

const TABS = ["live", "try", "errors", "requests"];
const tabOf = (name) => byId("tab-" + name);

const hashOf = (tab, key) => `#${tab}/${encodeURIComponent(key)}`;

// The tab and the model that the address names; "" for what it does not.
function addressed() {
  const [tab, key = ""] = location.hash.slice(1).split("/");
  try {
    return [TABS.includes(tab) ? tab : "", decodeURIComponent(key)];
  } catch { /* not ours */
    return ["", ""];
  }
}

function openTab(name) {
  state.tab = name;
  for (const one of TABS) {
    const chosen = one === name;
    tabOf(one).setAttribute("aria-selected", String(chosen));
    tabOf(one).tabIndex = chosen ? 0 : -1;
    byId("panel-" + one).hidden = !chosen;
  }
  readRequests();
}

byId("tabs").onclick = (event) => {
  const tab = event.target.closest("[role=tab]");
  if (tab) location.hash = hashOf(tab.id.slice(4), state.shown);
};

byId("tabs").onkeydown = (event) => {
  const at = TABS.indexOf(state.tab);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const name = TABS.at(to % TABS.length);
  history.replaceState(null, "", hashOf(name, state.shown));
  opened(false);
  tabOf(name).focus();
};

// Which model is tried: the one that is shown, by the list above the form.
const choice = byId("choice");
choice.onchange = () => {
  location.hash = hashOf("try", choice.value);
};

function showTry() {
  const models = [...state.models].filter(([, one]) => one.now.kind).sort(([a], [b]) => (a < b ? -1 : 1));
  fill(choice, models.map(([key]) => key).join("\n"), () => models.map(([key, { now }]) =>
    make("option", { value: key }, plain(now.name) + (models.filter(([, other]) => other.now.name === now.name).length > 1 ? " version " + now.version : ""))));
  choice.value = state.shown;
  const about = state.about.get(state.models.get(state.shown)?.now.name);
  if (!about) return;
  const key = JSON.stringify([state.shown, about.inputs, about.outputs, about.examples, state.spoken.has(about.name)]);
  if (byId("trial").dataset.key !== key) dropPreviews(byId("trial"));
  fill(byId("trial"), key, () => tryParts(about));
}

// -- The page as a whole

// What is shown first.
function busiest() {
  const rate = ([, { now }]) => now.requests_per_second || 0;
  const models = [...state.models].sort(([a], [b]) => (a < b ? -1 : 1));
  return models.length ? models.reduce((best, one) => (rate(one) > rate(best) ? one : best))[0] : "";
}

function openModel(key) {
  if (!state.models.has(key)) key = state.models.has(state.shown) ? state.shown : busiest();
  state.shown = key;
  const kind = state.models.get(key)?.now.kind;
  if (page && page.key === key && page.kind === kind) return;
  if (page) page.drop();
  page = key ? modelPage(key) : null;
  dots.next();
  if (page) page.update();
  else byId("model").hidden = true;
}

// Open what the address names. Without traffic there is nothing to see: a model is tried first.
function opened(focus) {
  if (!state.server) return;
  const [tab, key] = addressed();
  const called = [...state.models.values()].some((one) => one.now.totals?.requests || one.now.errors?.length);
  openTab(tab || state.tab || (called || !state.models.size ? "live" : "try"));
  const before = state.shown;
  openModel(key);
  show();
  if (focus && state.tab === "live" && state.shown !== before && page) page.title.focus();
}

function show() {
  if (!state.tab) opened(false);
  openModel(addressed()[1]);
  showServer();
  showErrors();
  if (state.tab === "live") {
    showList();
    for (const chart of charts) chart.update();
    if (page) page.update();
  }
  if (state.tab === "try") showTry();
  if (state.tab === "requests") showRequests();
  setText(byId("footer"), `Rates and quantiles are of the last seconds; ${state.server.viewers} watching. As of ${clock(state.at)}.`);
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

byId("pause").onclick = () => {
  watching.paused = !watching.paused;
  byId("pause").setAttribute("aria-pressed", String(watching.paused));
  setText(byId("pause"), watching.paused ? "Go on" : "Pause");
  if (watching.paused) {
    stopWatching();
    setState("", "Paused.");
  } else watch();
};

byId("find").oninput = () => showList();
window.onhashchange = () => opened(true);
// Who does not look costs the server nothing.
document.onvisibilitychange = () => {
  if (watching.paused) return;
  if (document.hidden) stopWatching();
  else watch();
};
