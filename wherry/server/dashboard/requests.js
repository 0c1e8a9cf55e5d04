// -- Requests: as dots, and as a list

// What the server has recorded of the last requests. It records only while a client reads them.
const recent = { keeps: false, since: 0, batches: [], leftOut: 0, timer: 0 };
const MOST_BATCHES = 2000;
const LISTED = 50;

async function readRequests() {
  clearTimeout(recent.timer);
  const [every, needs] = state.tab === "requests" ? [1000, true] : [4000, state.tab === "live" && dots.seen];
  const soon = recent.batches.length ? every : 1000; // the first question begins the recording
  if (watching.paused || document.hidden || !state.server || !needs) return;
  recent.timer = setTimeout(readRequests, soon);
  try {
    const found = await json("dashboard/requests?since=" + recent.since);
    const last = found.batches.at(-1)?.number;
    if (last) recent.since = last;
    Object.assign(recent, { keeps: found.keeps, leftOut: found.left_out });
    recent.batches = recent.batches.concat(found.batches).slice(-MOST_BATCHES);
    if (state.tab === "requests") showRequests();
    dots.take();
  } catch (error) {
    if (error.status) clearTimeout(recent.timer); // it may not be read, or the server is older
  }
}

// -- The list

const timeOf = (value) => (value < 1e-6 ? "0 ms" : seconds(value));

function rowsOfRequests() {
  const failed = new Map(recent.batches.filter((one) => one.error).map((one) => [one.model + one.requests[0].slice(0, 2), one.error]));
  const rows = recent.batches.flatMap((batch) => batch.requests.map((request) => ({ batch, request })))
    .filter(({ batch }) => !batch.error || !recent.batches.some((one) => one.instance && one.model === batch.model
      && one.requests.some(([, came]) => came === batch.requests[0][1])));
  return rows.slice(-LISTED).reverse().map(({ batch, request }) => {
    const [id, came] = request;
    const ended = batch.started + batch.input_seconds + batch.infer_seconds;
    const mates = batch.requests.filter((one) => one !== request).map(([mate]) => mate || "?");
    const more = batch.rows - batch.requests.length;
    return { came, id, batch, mates, more, error: failed.get(batch.model + request.slice(0, 2)) || "",
      times: batch.instance ? [batch.started - came, batch.input_seconds, batch.infer_seconds, Math.max(0, batch.ended - ended)]
        : [batch.ended - came, null, null, null], whole: batch.ended - came };
  });
}

function showRequests() {
  const rows = rowsOfRequests();
  const hint = recent.keeps ? "The last fifty requests that were recorded."
    : "Requests are recorded while you look, and without their ids. The server keeps the last fifty, with their ids, if it is started with --recent-requests.";
  const leftOut = recent.leftOut ? ` ${number(recent.leftOut)} are left out: at most 400 a second are recorded.` : "";
  fill(byId("requests"), JSON.stringify([rows, hint, leftOut]), () => {
    const note = make("p", { class: "note" }, hint + leftOut);
    if (!rows.length) return [note, make("p", { class: "empty" }, "None yet.")];
    return [note, grid("Requests, newest first", ["time", "id", "model", "instance", "queue", "batch", "compute", "answer", "in all", "batch mates", "outcome"],
      rows.map((one) => [make("span", {}, clock(one.came)), named(one.id || "–"), named(one.batch.model), named(one.batch.instance || "–"),
        ...one.times.map((value) => (value === null ? "–" : timeOf(value))), timeOf(one.whole), mates(one),
        make("span", { class: one.error ? "failed" : "" }, one.error || "answered")]))];
  });
}

function mates({ batch, mates: ids, more }) {
  if (!batch.instance) return make("span", {}, "–");
  if (!ids.length) return make("span", {}, "alone");
  const shown = recent.keeps ? ids.slice(0, 3).map(plain).join(", ") + (ids.length > 3 ? ", …" : "") : "";
  return make("span", { title: more > 0 ? `${batch.rows} rows in all` : "" }, ids.length + (shown ? ": " : ""), shown ? make("bdi", {}, shown) : null);
}

// -- The dots

const LONG = 6; // seconds that one replay takes
const SOME = 10; // batches in it, at least
const WIDE = { all: 700, queue: 236, lane: 290, end: 610 };
const NARROW = { all: 340, queue: 92, lane: 124, end: 276 };
const counted = (count, name) => `${count} ${name}${count === 1 ? "" : name.endsWith("h") ? "es" : "s"}`;
const still = matchMedia("(prefers-reduced-motion: reduce)");

// What the dots of some batches do: when and where each waits, runs and leaves.
function sceneOf(batches) {
  const lanes = [...new Set(batches.map((one) => one.instance))].sort().slice(0, 6);
  const tracks = lanes.map(() => []);
  const ran = batches.filter((one) => lanes.includes(one.instance)).map((batch, at) => {
    const lane = lanes.indexOf(batch.instance), starts = batch.started;
    const ends = starts + batch.input_seconds + batch.infer_seconds;
    let track = tracks[lane].findIndex((free) => free <= starts);
    if (track < 0) track = tracks[lane].length;
    tracks[lane][track] = ends;
    return { at, lane, track, starts, ends, leaves: Math.max(ends, batch.ended), count: batch.requests.length };
  });
  const requests = batches.filter((one) => lanes.includes(one.instance)).flatMap((batch, at) =>
    batch.requests.map(([, came], place) => ({ came, place, batch: ran[at] }))).sort((a, b) => a.came - b.came);
  return { lanes, tracks: tracks.map((one) => Math.max(1, one.length)), requests, ran };
}

const laneAt = (lane) => 44 + 72 * lane;

function spotOf(scene, one, at, waiting) {
  const { batch } = one;
  if (at < batch.starts) {
    const k = waiting.get(one) ?? 0;
    const row = Math.floor(scene.form.queue / 15);
    return [scene.form.queue - 13 * (k % row), laneAt(0) + 13 * Math.floor(k / row)];
  }
  const gap = Math.min(13, 44 / scene.tracks[batch.lane]);
  const y = laneAt(batch.lane) + (batch.track - (scene.tracks[batch.lane] - 1) / 2) * gap;
  const done = Math.min(1, (at - batch.starts) / Math.max(1e-9, batch.ends - batch.starts));
  const rows = Math.min(4, batch.count);
  const [dx, dy] = [11 * Math.floor(one.place / 4), 11 * ((one.place % 4) - (rows - 1) / 2)];
  if (at < batch.leaves) return [scene.form.lane + (scene.form.end - scene.form.lane - 11 * Math.floor((batch.count - 1) / 4)) * done + dx, y + dy];
  return [scene.form.all + 20, y + dy];
}

const dots = {
  seen: false, playing: false, began: 0, scene: null, window: [0, 0], circles: new Map(), frame: 0,

  show() {
    const id = newId();
    this.picture = draw("svg", { viewBox: "0 0 700 80", role: "img", "aria-label": "Requests as dots" });
    this.play = make("button", { type: "button", onclick: () => this.toggle() }, "Play");
    this.text = make("small", {}, "");
    this.hint = make("p", { class: "note" }, "Each dot is a request: it waits, gathers in a batch (one colour), runs on an instance, and leaves.");
    this.node = make("figure", { class: "card dots", "aria-labelledby": id },
      make("figcaption", {}, this.title = make("span", { id }, "Requests"), this.text), this.picture, make("div", { class: "row" }, this.play, this.hint));
    new IntersectionObserver(([one]) => {
      this.seen = one.isIntersecting;
      if (this.seen) readRequests();
    }).observe(this.node);
    this.playing = !still.matches;
    setText(this.play, this.playing ? "Stop" : "Play");
    return this.node;
  },

  toggle() {
    this.playing = !this.playing;
    setText(this.play, this.playing ? "Stop" : "Play");
    this.began = performance.now();
    if (this.playing) this.take();
  },

  // New records are there: begin a replay, unless one is under way.
  take() {
    if (!this.scene || (this.playing && !this.frame)) this.next();
  },

  next() {
    const model = state.models.get(state.shown)?.now;
    const all = recent.batches.filter((one) => one.instance && model && one.model === model.name && one.version === model.version);
    this.circles.clear();
    setText(this.title, "Requests" + (model ? " of " + plain(model.name) : ""));
    if (!all.length) {
      this.scene = null;
      this.picture.replaceChildren();
      setText(this.text, "no request in the last seconds");
      this.frame = 0;
      return;
    }
    const took = all.flatMap((one) => one.requests.map(([, came]) => one.ended - came)).sort((a, b) => a - b);
    const half = took[Math.floor(took.length / 2)];
    // Not to the very end: of what was still running then nothing is recorded yet.
    const end = Math.max(all.at(-1).ended - 2 * half, all[0].ended);
    // As slow as a request can be followed, but with some of them in one replay.
    const some = end - all.filter((one) => one.ended <= end).slice(-SOME)[0].started;
    const slow = Math.max(1, Math.min(1.5 / Math.max(1e-4, half), LONG / Math.max(1e-4, some)));
    const begin = end - LONG / slow;
    const form = this.node.clientWidth < 560 ? NARROW : WIDE;
    this.scene = { form, ...sceneOf(all.filter((one) => one.ended >= begin).slice(0, 80)) };
    this.window = [begin, end];
    this.first = true;
    this.slow = slow;
    const { lanes, requests, ran } = this.scene;
    const what = `${counted(requests.length, "request")} in ${counted(ran.length, "batch")}`;
    setText(this.text, what + (slow > 1.5 ? `, slowed down ${number(slow)} times` : ""));
    this.picture.setAttribute("viewBox", `0 0 ${form.all} ${laneAt(lanes.length - 1) + 34}`);
    this.picture.setAttribute("aria-label", `${what} on ${counted(lanes.length, "instance")}`);
    this.picture.replaceChildren(
      draw("text", { x: form.queue, y: 12, "text-anchor": "end" }, "waiting"), draw("text", { x: form.all - 4, y: 12, "text-anchor": "end" }, "answered"),
      ...lanes.flatMap((name, lane) => [
        draw("rect", { class: "track", x: form.lane - 12, y: laneAt(lane) - 25, width: form.end - form.lane + 24, height: 50, rx: 8 }),
        draw("text", { x: form.lane - 8, y: laneAt(lane) - 29 }, plain(name))]));
    this.began = performance.now();
    const middle = ran[Math.floor(ran.length / 2)];
    if (!this.playing) this.paint((middle.starts + middle.ends) / 2, true);
    else if (!this.frame) this.frame = requestAnimationFrame(() => this.tick());
  },

  tick() {
    this.frame = 0;
    if (!this.playing || !this.seen || state.tab !== "live") return;
    const at = this.window[0] + (performance.now() - this.began) / 1000 / this.slow;
    if (at > this.window[1]) {
      this.next();
      return;
    }
    this.paint(at, this.first);
    this.first = false;
    this.frame = requestAnimationFrame(() => this.tick());
  },

  paint(at, whole) {
    const here = this.scene.requests.filter((one) => one.came <= at && at < one.batch.leaves + 0.5 / this.slow);
    const waiting = new Map(here.filter((one) => at < one.batch.starts).map((one, place) => [one, place]));
    for (const [one, circle] of this.circles) {
      if (here.includes(one)) continue;
      circle.remove();
      this.circles.delete(one);
    }
    for (const one of here) {
      const [x, y] = spotOf(this.scene, one, at, waiting);
      let circle = this.circles.get(one);
      if (!circle) {
        circle = draw("circle", { class: "d" + (one.batch.at % 4 + 1), r: 5, cx: whole ? x : -6, cy: whole ? y : laneAt(0) });
        this.circles.set(one, circle);
        this.picture.append(circle);
      }
      for (const [name, value] of [["cx", x], ["cy", y]]) {
        const now = Number(circle.getAttribute(name));
        circle.setAttribute(name, (whole ? value : now + (value - now) * 0.22).toFixed(1));
      }
    }
  },
};

byId("picture").append(dots.show());
