"use strict";
// What all pages of the server have: each is this, and its own scripts, which set `base`.
// Only text goes into a page, never markup: names, errors and answers are of strangers.

const byId = (id) => document.getElementById(id);
const MOST_SHOWN = 200000; // characters of an answer
const MOST_ERROR = 4000;

// -- Making elements

// One by one: an answer may have more children than a call takes arguments.
function filled(node, children) {
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}

function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else if (key.includes("-") || key === "role" || key === "for") made.setAttribute(key, value);
    else made[key] = value;
  }
  return filled(made, children);
}

// A node is touched only if its text has changed: what a person selects or reads stays.
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Marks that would turn around or hide what stands beside them are shown as what they are.
const plain = (text) => String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\ufeff]/g,
  (mark) => "\\u" + mark.charCodeAt(0).toString(16).padStart(4, "0"));

// -- Requests to the server

const access = { key: "", extra: "" };
try {
  access.key = sessionStorage.getItem("wherry-key") || "";
  access.extra = sessionStorage.getItem("wherry-extra") || "";
} catch { /* storage is off: what is typed holds until the page is left */ }

// Until the tab is closed.
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

class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

function fetchPath(path, options = {}) {
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
  const answer = await fetchPath(path);
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
