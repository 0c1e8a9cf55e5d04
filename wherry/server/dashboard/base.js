"use strict";
// Only text goes into the page, never markup: names, errors and answers are of strangers.

// Relative to this page, so that it also works under a prefix, with or without a slash at its end.
const base = location.pathname.replace(/\/?$/, "/");
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const KEPT = 900; // seconds that are kept, as by the server
const RECENT = 120; // seconds that lists show
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
