// Calls v1/chat/completions, and keeps conversations in this browser.

// Relative to this page, so that it also works under a prefix.
const base = location.pathname.replace(/chat\/?$/, "");
const MOST_CHATS = 50;
const MOST_KEPT = 4_000_000; // characters of all conversations; browsers keep five million
const USUAL_TOKENS = 1024; // of an answer, unless the settings set another number

const button = (text, onclick, attributes = {}) => Object.assign(make("button", { type: "button", class: "link", ...attributes }, text), { onclick });

function duration(seconds) {
  if (seconds < 1) return Math.round(seconds * 1000) + " ms";
  return seconds < 100 ? Number(seconds.toPrecision(3)) + " s" : Math.round(seconds) + " s";
}

// -- Models

const server = { models: [], waits: 0, timer: 0 };

function headline(kind, text) {
  byId("state").className = kind;
  setText(byId("state"), text);
}

async function findModels() {
  clearTimeout(server.timer);
  try {
    const answer = await fetchPath("v1/models");
    if (!answer.ok) throw await refusal(answer);
    const { data } = await answer.json();
    server.models = data.filter((one) => one.abilities.includes("chat"));
    server.waits = 0;
    showModels();
    const context = server.models.find((one) => one.id === current.model)?.max_model_len;
    const count = server.models.length;
    if (count) headline("live", `${count} model${count > 1 ? "s" : ""}${context ? `, a context of ${context.toLocaleString("en")} tokens` : ""}`);
    else retryModels("No model of this server chats.");
  } catch (error) {
    const text = plain(error.message || error).slice(0, MOST_ERROR);
    if (error.status === 401 || error.status === 403) {
      headline("lost", text);
      openPanel("access", true);
    } else retryModels(error.status ? text : "No connection");
  }
}

function retryModels(why) {
  server.waits = Math.min(10, server.waits * 2 || 1);
  headline("lost", `${why.replace(/\.$/, "")}; trying again in ${server.waits} s.`);
  server.timer = setTimeout(findModels, server.waits * 1000);
}

// A conversation keeps its model's name while the model is away.
function showModels() {
  const names = server.models.map((one) => one.id);
  if (!current.model) current.model = names.includes(kept.model) ? kept.model : names[0] || "";
  if (current.model && !names.includes(current.model)) names.push(current.model);
  const box = byId("model");
  const there = new Set(server.models.map((one) => one.id));
  box.replaceChildren(...names.map((name) => make("option", { value: name }, plain(name) + (there.has(name) ? "" : " (not here)"))));
  box.value = current.model;
  box.disabled = !names.length;
}

// -- Conversations

const PREFIX = "wherry-chat " + base + " ";
const kept = { model: "" }; // what the next conversation begins with
const running = new Map(); // by a conversation's id: how its answer is stopped
let chats = []; // the newest first
let current = newChat();
let editing = false;

function newChat() {
  const id = Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
  return { id, at: Date.now(), title: "", model: "", system: "", temperature: "", maxTokens: "", tools: "", messages: [] };
}

function readChats() {
  const found = [];
  try {
    for (const key of Object.keys(localStorage)) {
      if (!key.startsWith(PREFIX)) continue;
      try {
        const chat = JSON.parse(localStorage.getItem(key));
        if (key === PREFIX + chat.id) found.push({ ...newChat(), ...chat, messages: chat.messages.map(read) });
      } catch { /* not ours */ }
    }
  } catch { /* storage is off: conversations last as long as the page */ }
  const here = new Map(chats.map((chat) => [chat.id, chat]));
  chats = found.map((chat) => (running.has(chat.id) ? here.get(chat.id) ?? chat : chat));
  chats.sort((a, b) => b.at - a.at);
}

// A kept message, whichever version wrote it.
const read = (message) => ({ ...message, content: String(message.content ?? ""), thoughts: String(message.thoughts ?? ""), calls: message.calls ?? [] });

function save(chat) {
  if (!chat.messages.length || chat.deleted) return;
  chat.at = Date.now();
  chat.title = chat.title || textOf(chat.messages.find((one) => one.role === "user")).replace(/\s+/g, " ").slice(0, 80) || "…";
  if (!chats.includes(chat)) chats.push(chat);
  chats.sort((a, b) => b.at - a.at);
  const texts = new Map(chats.map((one) => [one, JSON.stringify(one)]));
  const sum = () => [...texts.values()].reduce((all, text) => all + text.length, 0);
  while (chats.length > 1 && (chats.length > MOST_CHATS || sum() > MOST_KEPT)) texts.delete(dropOldest());
  for (;;) {
    try {
      localStorage.setItem(PREFIX + chat.id, texts.get(chat));
      return;
    } catch (error) {
      if (chats.length < 2 || error.name !== "QuotaExceededError") return; // too large alone, or storage is off
      dropOldest();
    }
  }
}

function dropOldest() {
  const chat = chats.pop();
  unkeep(chat);
  return chat;
}

function unkeep(chat) {
  try {
    localStorage.removeItem(PREFIX + chat.id);
  } catch { /* storage is off */ }
}

function deleteChats(gone) {
  for (const chat of gone) {
    chat.deleted = true;
    running.get(chat.id)?.abort();
    unkeep(chat);
  }
  chats = chats.filter((chat) => !gone.includes(chat));
  if (gone.includes(current)) open(newChat());
  else showChats();
}

const textOf = (message) => message?.content || "";

function showChats() {
  byId("chats").replaceChildren(...chats.map((chat) => {
    const title = plain(chat.title);
    const link = button(title, () => {
      open(chat);
      openPanel("side", false);
    }, { class: "chat" });
    if (chat === current) link.setAttribute("aria-current", "true");
    const away = button("Delete", () => {
      if (confirm(`Delete “${title.slice(0, 60)}”?`)) deleteChats([chat]);
    }, { "aria-label": "Delete " + title });
    return make("li", {}, link, away);
  }));
  byId("delete-all").disabled = !chats.length;
}

function open(chat) {
  stopEditing();
  if (chat !== current && !chat.messages.length) {
    for (const name of ["model", "system", "temperature", "maxTokens", "tools"]) chat[name] = chat[name] || current[name];
  }
  current = chat;
  byId("system").value = chat.system;
  byId("temperature").value = chat.temperature;
  byId("max-tokens").value = chat.maxTokens;
  byId("tools").value = chat.tools;
  showModels();
  showChats();
  showTalk();
  byId("box").focus();
}

// -- Messages

const views = new Map(); // by message: what shows it

function showTalk() {
  views.clear();
  const { messages } = current;
  byId("talk").replaceChildren(...messages.filter((one) => one.role !== "tool").map((message) => {
    const view = viewOf(message);
    views.set(message, view);
    return view.node;
  }));
  byId("empty").hidden = messages.length > 0;
  showButtons();
  toEnd(true);
}

function viewOf(message) {
  const name = message.role === "user" ? "You" : plain(message.model || current.model);
  const text = make("div", { class: "text", dir: "auto" });
  const thoughts = make("details", { hidden: true }, make("summary"), make("div", { class: "text", dir: "auto" }));
  const calls = make("div", { class: "calls" });
  const failure = make("p", { class: "failed", hidden: true, role: "alert" });
  const foot = make("p", { class: "foot" });
  const node = make("li", { class: message.role }, make("h2", {}, make("bdi", {}, name)), thoughts, text, calls, failure, foot);
  const view = { node, text, thoughts, calls, failure, foot };
  update(message, view);
  return view;
}

function update(message, view) {
  if (message.role === "user") setText(view.text, plain(message.content));
  else {
    rendered(view.text, message.content);
    showThoughts(message, view.thoughts);
    showCalls(message, view.calls);
  }
  view.failure.hidden = !message.error;
  if (message.error) setText(view.failure, message.error);
  showFoot(message, view.foot);
}

function rendered(node, text) {
  try {
    showMarkdown(node, text.slice(0, MOST_SHOWN));
  } catch { // the text matters more than its looks
    node.shown = [];
    node.textContent = plain(text.slice(0, MOST_SHOWN));
  }
}

function showThoughts(message, node) {
  node.hidden = !message.thoughts;
  if (!message.thoughts) return;
  const [summary, text] = node.children;
  const over = message.content || message.calls.length || !isOpen(message);
  setText(summary, over ? (message.thoughtSeconds ? `Thought for ${duration(message.thoughtSeconds)}` : "Thoughts") : "Thinking…");
  rendered(text, message.thoughts);
}

const isOpen = (message) => running.has(current.id) && current.messages.at(-1) === message;

function resultsOf(message) {
  const at = current.messages.indexOf(message);
  return current.messages.slice(at + 1, at + 1 + message.calls.length).filter((one) => one.role === "tool");
}

function showCalls(message, node) {
  if (!message.calls.length) return;
  const results = resultsOf(message), waits = !isOpen(message) && !results.length && message === current.messages.at(-1) && !message.error;
  const key = JSON.stringify([message.calls, results, waits]);
  if (node.dataset.key === key) return;
  node.dataset.key = key;
  const fields = message.calls.map((call) => make("textarea", { rows: 2, spellcheck: false, "aria-label": `Result of ${plain(call.name)}` }));
  node.replaceChildren(...message.calls.map((call, at) => make("div", { class: "call" },
    make("p", {}, make("b", {}, "Calls "), make("code", {}, plain(call.name))),
    make("pre", { tabIndex: 0 }, plain(indented(call.arguments))),
    results[at] ? make("pre", { tabIndex: 0, class: "result" }, plain(results[at].content)) : null,
    waits ? make("label", {}, "Its result ", fields[at]) : null)));
  if (waits) {
    node.append(button("Send the results", () => {
      message.calls.forEach((call, at) => current.messages.push({ role: "tool", id: call.id, content: fields[at].value }));
      answer(current);
    }, { class: "" }));
  }
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function showFoot(message, foot) {
  const last = current.messages.at(-1) === message, open = isOpen(message), busy = running.has(current.id);
  const question = current.messages.findLast((one) => one.role === "user");
  const parts = [message.stats, message.stopped ? "stopped" : "", message.cut ? "cut at the most tokens" : ""];
  const key = JSON.stringify([parts, last, open, busy, message.error, message === question]);
  if (foot.dataset.key === key) return;
  foot.dataset.key = key;
  const buttons = [];
  if (message.role === "assistant" && !open) {
    if (message.content) {
      const copy = button("Copy", () => copyText(copy, message.content, views.get(message).text));
      buttons.push(copy);
    }
    if (last && !busy) buttons.push(button(message.error ? "Retry" : "Regenerate", again));
  }
  if (message === question && !busy) buttons.push(button("Edit", edit));
  foot.replaceChildren(make("span", {}, parts.filter(Boolean).join(", ")), ...buttons);
}

function showButtons() {
  const busy = running.has(current.id);
  const focused = document.activeElement === byId("stop");
  byId("send").hidden = busy;
  byId("stop").hidden = !busy;
  if (focused && !busy) byId("box").focus();
  for (const [message, view] of views) update(message, view);
}

// Follows the answer, unless the reader has gone up.
function toEnd(always) {
  const area = byId("scroll");
  if (always || area.scrollHeight - area.scrollTop - area.clientHeight < 120) area.scrollTop = area.scrollHeight;
}

// -- Requests

function requestOf(chat) {
  const messages = [];
  if (chat.system.trim()) messages.push({ role: "system", content: chat.system });
  for (const one of chat.messages.slice(0, -1)) {
    if (one.role === "tool") messages.push({ role: "tool", tool_call_id: one.id, content: one.content });
    else if (one.role === "user") messages.push({ role: "user", content: one.content });
    else if (one.calls.length) {
      const calls = one.calls.map(({ id, name, arguments: args }) => ({ id, type: "function", function: { name, arguments: args } }));
      messages.push({ role: "assistant", content: one.content || null, tool_calls: calls });
    } else if (one.content) messages.push({ role: "assistant", content: one.content });
  }
  const request = { model: chat.model, messages, stream: true, stream_options: { include_usage: true } };
  if (chat.temperature !== "") request.temperature = Number(chat.temperature);
  // A small model may go on to the end of its context. A model that reports none may have no such input.
  const bounded = server.models.find((one) => one.id === chat.model)?.max_model_len;
  if (chat.maxTokens !== "") request.max_tokens = Number(chat.maxTokens);
  else if (bounded) request.max_tokens = Math.min(USUAL_TOKENS, bounded);
  if (chat.tools.trim()) {
    try {
      request.tools = JSON.parse(chat.tools);
    } catch (error) {
      throw new Error(`Settings, tools: ${error.message}`);
    }
  }
  return request;
}

async function answer(chat) {
  const message = { role: "assistant", model: chat.model, content: "", thoughts: "", calls: [] };
  const times = { begin: performance.now(), first: 0, last: 0, pieces: 0, tokens: 0 };
  const stop = new AbortController();
  chat.messages.push(message);
  running.set(chat.id, stop);
  save(chat);
  if (chat === current) showTalk();
  let drawn = 0, cost = 0;
  const draw = () => {
    drawn = 0;
    const view = chat === current && views.get(message), began = performance.now();
    if (!view) return;
    update(message, view);
    toEnd(false);
    cost = performance.now() - began;
  };
  // At most a fifth of the time, however long the text is.
  const drawSoon = () => { drawn = drawn || setTimeout(draw, Math.max(33, 4 * cost)); };
  try {
    await stream(requestOf(chat), message, times, stop.signal, drawSoon);
  } catch (error) {
    if (stop.signal.aborted) message.stopped = true;
    else {
      message.error = plain(error.status || error instanceof SyntaxError || !(error instanceof TypeError)
        ? error.message : "No connection to the server.").slice(0, MOST_ERROR);
      if (!error.status || error.status === 401) findModels();
    }
  }
  clearTimeout(drawn);
  message.stats = statsOf(times);
  running.delete(chat.id);
  save(chat);
  showChats();
  if (chat !== current) return;
  const view = views.get(message);
  if (view) update(message, view);
  showButtons();
  toEnd(false);
  setText(byId("news"), message.error ? "" : `The answer is complete. ${message.content.slice(0, 500)}`);
}

async function stream(request, message, times, signal, draw) {
  const response = await fetchPath("v1/chat/completions", {
    method: "POST", signal, body: JSON.stringify(request), headers: { "Content-Type": "application/json" } });
  if (!response.ok) throw await refusal(response);
  for await (const { data } of events(response)) {
    if (data === "[DONE]") return;
    const { choices = [], usage, error } = JSON.parse(data);
    if (error) throw new Error(error.message || String(error));
    if (usage?.completion_tokens) times.tokens = usage.completion_tokens;
    if (choices[0]) add(choices[0], message, times);
    draw();
  }
  throw new Error("The connection broke off before the answer was complete.");
}

function add({ delta = {}, finish_reason: reason }, message, times) {
  const text = delta.content || "", thoughts = delta.reasoning_content || "";
  if (text || thoughts || delta.tool_calls) {
    times.last = performance.now();
    times.first = times.first || times.last;
    times.pieces += 1;
  }
  if (message.thoughts && !message.content && text) message.thoughtSeconds = (times.last - times.first) / 1000;
  message.content = (message.content + text).slice(0, MOST_SHOWN);
  message.thoughts = (message.thoughts + thoughts).slice(0, MOST_SHOWN);
  for (const { index, id, function: called } of delta.tool_calls || []) {
    if (index > message.calls.length) continue;
    const call = (message.calls[index] ??= { id: "", name: "", arguments: "" });
    call.id = id || call.id;
    call.name = called?.name || call.name;
    call.arguments += called?.arguments || "";
  }
  message.cut = message.cut || reason === "length";
}

// The time to the first token is that of the whole way, the rate that of the tokens behind it.
function statsOf(times) {
  if (!times.first) return "";
  const count = times.tokens || times.pieces;
  const seconds = (times.last - times.first) / 1000;
  const rate = count > 1 && seconds > 0.01 ? `, ${Number(((count - 1) / seconds).toPrecision(3))} a second` : "";
  return `${count} ${times.tokens ? "token" : "piece"}${count > 1 ? "s" : ""}${rate}, the first after ${duration((times.first - times.begin) / 1000)}`;
}

async function send() {
  if (!current.model) await findModels();
  const text = byId("box").value.trim();
  if (!text || !current.model || running.has(current.id)) return;
  if (editing) truncate();
  const last = current.messages.at(-1);
  if (last?.role === "assistant" && !last.content && !last.calls.length) current.messages.pop();
  stopEditing();
  byId("box").value = "";
  grow();
  kept.model = current.model;
  current.messages.push({ role: "user", content: text });
  answer(current);
}

// Without the last question and what followed it.
function truncate() {
  const at = current.messages.findLastIndex((one) => one.role === "user");
  current.messages.length = Math.max(0, at);
}

function again() {
  if (running.has(current.id)) return;
  current.messages.pop();
  byId("box").focus();
  answer(current);
}

function edit() {
  editing = true;
  byId("editing").hidden = false;
  byId("box").value = current.messages.findLast((one) => one.role === "user").content;
  grow();
  byId("box").focus();
}

function stopEditing() {
  if (editing) byId("box").value = "";
  editing = false;
  byId("editing").hidden = true;
  grow();
}

function grow() {
  const box = byId("box");
  box.style.height = "auto";
  box.style.height = Math.min(box.scrollHeight + 2, innerHeight * 0.4) + "px";
}

// -- The page as a whole

const PANELS = { access: "key", settings: "open-settings", side: "open-side" };

// One at a time: together they would leave no room on a phone.
function openPanel(name, is) {
  if (is) for (const other of Object.keys(PANELS)) if (other !== name) openPanel(other, false);
  const panel = byId(name), opener = byId(PANELS[name]);
  if (name === "side") panel.classList.toggle("open", is);
  else panel.hidden = !is;
  opener.setAttribute("aria-expanded", String(is));
  if (is) panel.querySelector("input, textarea, button")?.focus();
}

for (const [name, opener] of Object.entries(PANELS)) {
  byId(opener).onclick = () => openPanel(name, byId(opener).getAttribute("aria-expanded") !== "true");
}

byId("access").onsubmit = (event) => {
  event.preventDefault();
  keepAccess(byId("api-key").value.trim(), byId("extra").value.trim());
  findModels();
  openPanel("access", false);
  byId("box").focus();
};
byId("forget").onclick = () => {
  byId("api-key").value = byId("extra").value = "";
  server.models = [];
  keepAccess("", "");
  findModels();
};
byId("composer").onsubmit = (event) => {
  event.preventDefault();
  send();
};
byId("box").oninput = grow;
byId("box").onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
};
byId("stop").onclick = () => running.get(current.id)?.abort();
document.onkeydown = (event) => {
  if (event.key !== "Escape") return;
  if (running.has(current.id)) running.get(current.id).abort();
  else if (editing) stopEditing();
};
byId("cancel-edit").onclick = () => {
  stopEditing();
  byId("box").focus();
};
byId("new").onclick = () => {
  openPanel("side", false);
  open(newChat());
};
byId("delete-all").onclick = () => {
  if (confirm(`Delete all ${chats.length} conversations?`)) deleteChats([...chats]);
};
byId("model").onchange = () => {
  current.model = kept.model = byId("model").value;
  save(current);
  findModels();
};
byId("settings").onsubmit = (event) => event.preventDefault();
byId("settings").oninput = () => {
  current.system = byId("system").value;
  current.temperature = byId("temperature").value;
  current.maxTokens = byId("max-tokens").value;
  current.tools = byId("tools").value;
  save(current);
};
// Another tab has changed what is kept.
window.onstorage = (event) => {
  if (event.key !== null && !event.key.startsWith(PREFIX)) return;
  readChats();
  const same = chats.find((chat) => chat.id === current.id);
  if (same && same !== current && !editing) open(same);
  else showChats();
};
window.onpagehide = () => {
  for (const chat of chats) if (running.has(chat.id)) save(chat);
};
window.ononline = findModels;

byId("to-dashboard").href = base;
byId("to-docs").href = base + "docs";
byId("api-key").value = access.key;
byId("extra").value = access.extra;
try {
  kept.model = decodeURIComponent(location.hash.slice(1));
} catch { /* not ours */ }
readChats();
open(current);
findModels();
