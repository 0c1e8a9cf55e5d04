"use strict";
// Relative to this page, so that it also works under a prefix.
const base = location.pathname.replace(/docs\/?$/, "");
const byId = (id) => document.getElementById(id);
let told = {};

// Only text goes into the page, never markup: names and docstrings are of strangers.
function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else made[key] = value;
  }
  made.append(...children);
  return made;
}

function looked(value) {
  for (let hops = 0; value && value.$ref && hops < 8; hops++) {
    value = value.$ref.slice(2).split("/").reduce(
      (within, key) => within?.[key.replaceAll("~1", "/").replaceAll("~0", "~")], told);
  }
  return value ?? {};
}

// A schema in the words of TypeScript.
function typeOf(schema, depth = 0) {
  const name = schema.$ref ? schema.$ref.split("/").pop() : "";
  if (depth > 6) return name || "...";
  schema = looked(schema);
  const of = (inner) => typeOf(inner, depth + 1);
  const choices = schema.anyOf ?? schema.oneOf;
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  if (choices && choices[0] && !choices[0].required) return choices.map(of).join(" | ");
  if (Array.isArray(schema.type)) return schema.type.join(" | ");
  if (schema.type === "array") {
    const [least, most] = [schema.minItems, schema.maxItems];
    const count = least !== undefined && least === most ? String(least) : "";
    const inner = schema.items ? of(schema.items) : "any";
    return (inner.includes("|") ? `(${inner})` : inner) + `[${count}]`;
  }
  if (schema.properties) {
    const needed = schema.required ?? [], pad = "  ".repeat(depth + 1);
    const lines = Object.entries(schema.properties).map(([key, member]) => {
      const note = looked(member).description;
      const given = member.default === undefined ? "" : " = " + JSON.stringify(member.default);
      return pad + JSON.stringify(key) + (needed.includes(key) ? "" : "?") + ": " +
        of(member) + given + (note ? "  // " + note.replaceAll("\n", " ") : "");
    });
    return "{\n" + lines.join("\n") + "\n" + "  ".repeat(depth) + "}";
  }
  if (schema.contentSchema) return "JSON text of " + of(schema.contentSchema);
  const bound = [["minimum", ">="], ["exclusiveMinimum", ">"]].filter(([key]) => key in schema)
    .map(([key, sign]) => ` ${sign} ${schema[key]}`).join("");
  return (schema.type ?? "any") + (schema.format === "binary" ? " (a file)" : bound);
}

// A value that fits a schema, where the model has no example.
function sampleOf(schema, depth = 0) {
  schema = looked(schema);
  if (depth > 6) return null;
  if ("const" in schema) return schema.const;
  if ("default" in schema) return schema.default;
  if (schema.enum) return schema.enum[0];
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices && !schema.properties) return sampleOf(choices[0], depth + 1);
  const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
  if (type === "array") {
    const sizes = schema.prefixItems ?? [];
    return Array.from({ length: Math.min(schema.minItems ?? 1, 64) },
      (_, place) => sampleOf(sizes[place] ?? schema.items ?? {}, depth + 1));
  }
  if (schema.properties) {
    return Object.fromEntries((schema.required ?? []).map(
      (key) => [key, sampleOf(schema.properties[key] ?? {}, depth + 1)]));
  }
  const plain = { string: "text", integer: Math.max(schema.minimum ?? 1, 1), number: 1, boolean: true };
  return plain[type] ?? (type === "object" ? {} : null);
}

const quoted = (text) => "'" + text.replaceAll("'", "'\\''") + "'";

function fieldsOf(path, parameters) {
  return parameters.filter((one) => one.in === "path" || one.in === "query").map((one) => {
    const input = element("input", { autocomplete: "off" });
    input.value = one.in === "path" && one.name === "version" ? "1" : "";
    return { ...one, input, label: element("label", {}, one.name + " ", input) };
  });
}

function addressOf(path, fields) {
  let address = path;
  const query = new URLSearchParams();
  for (const { name, input, ...one } of fields) {
    if (one.in === "path") address = address.replace(`{${name}}`, encodeURIComponent(input.value) || `{${name}}`);
    else if (input.value) query.append(name, input.value);
  }
  return base + address.slice(1) + (String(query) && "?" + query);
}

async function send(method, address, body, output, status) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  const key = byId("key").value;
  if (key) headers["X-API-Key"] = key;
  output.hidden = false;
  output.textContent = "";
  status.textContent = "asking…";
  try {
    const answer = await fetch(address, { method, headers, body });
    const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
    for (let part; reader && !(part = await reader.read()).done;) {
      output.textContent = (output.textContent + part.value).slice(-200000);
    }
    status.textContent = answer.status + (answer.ok ? "" : " (refused)");
    output.className = answer.ok ? "" : "failed";
  } catch (error) {
    status.textContent = "failed";
    output.textContent = String(error);
  }
}

function tryIt(method, path, operation) {
  const parameters = (operation.parameters ?? []).map(looked);
  const fields = fieldsOf(path, parameters);
  const content = operation.requestBody?.content?.["application/json"];
  const examples = Object.values(content?.examples ?? {});
  const sample = content && (examples.length ? examples[0].value : sampleOf(content.schema ?? {}));
  const area = content && element("textarea", { rows: 4, spellcheck: false });
  if (area) area.value = JSON.stringify(sample, null, 1);
  const line = element("pre", {}), output = element("pre", { hidden: true, tabIndex: 0 });
  const status = element("span", { class: "soft" });
  status.setAttribute("role", "status");
  output.setAttribute("aria-label", "answer");
  const streams = JSON.stringify(operation.responses).includes("event-stream") ? "-N " : "";
  const write = () => {
    const key = operation.security && byId("key").value ? " -H 'X-API-Key: KEY'" : "";
    let body = area?.value ?? "";
    try { body = JSON.stringify(JSON.parse(body)); } catch { /* as it was written */ }
    const sent = area ? ` -H 'Content-Type: application/json' -d ${quoted(body)}` : "";
    const how = method === "GET" ? "" : `-X ${method} `;
    line.textContent = `curl -s ${streams}${how}${quoted(location.origin + addressOf(path, fields))}${key}${sent}`;
  };
  for (const input of [area, ...fields.map((one) => one.input)]) input?.addEventListener("input", write);
  write();
  const ask = element("button", { type: "button" }, "Send");
  ask.onclick = () => send(method, addressOf(path, fields), area?.value, output, status);
  const copy = element("button", { type: "button" }, "Copy");
  copy.onclick = async () => {
    try {
      await navigator.clipboard.writeText(line.textContent);
      status.textContent = "copied";
    } catch { getSelection().selectAllChildren(line); }
  };
  const labelled = area ? [element("label", {}, "Body", area)] : [];
  return [
    element("h3", {}, "Try it"),
    element("div", { class: "bar" }, ...fields.map((one) => one.label)),
    ...labelled, line, element("div", {}, ask, copy, status), output,
  ];
}

function typesOf(title, content) {
  return Object.entries(content ?? {}).flatMap(([media, one]) => [
    element("h3", {}, `${title} (${media})`),
    ...(one.schema ? [element("pre", { tabIndex: 0 }, typeOf(one.schema))] : []),
  ]);
}

function filled(card, method, path, operation) {
  const failures = element("dl", {});
  for (const [status, answer] of Object.entries(operation.responses)) {
    if (status === "200") continue;
    failures.append(element("dt", {}, status), element("dd", {}, looked(answer).description ?? ""));
  }
  const described = element("dl", {});
  for (const one of (operation.parameters ?? []).map(looked)) {
    described.append(element("dt", {}, `${one.name} (${one.in})`),
      element("dd", {}, `${typeOf(one.schema ?? {})}. ${one.description ?? ""}`));
  }
  if (operation.description) card.append(element("p", {}, operation.description));
  card.append(...tryIt(method, path, operation));
  if (described.children.length) card.append(element("h3", {}, "Parameters"), described);
  card.append(...typesOf("Takes", operation.requestBody?.content),
    ...typesOf("Answers", operation.responses["200"]?.content),
    element("h3", {}, "Refuses with"), failures);
}

function cardOf(method, path, operation) {
  const name = element("summary", {}, element("b", {}, method), element("code", {}, path),
    " ", operation.summary ?? "");
  const card = element("details", { id: operation.operationId }, name);
  card.dataset.text = `${method} ${path} ${operation.summary ?? ""}`.toLowerCase();
  // What nobody opens need not be there: there may be hundreds.
  const open = () => { if (card.open && card.children.length === 1) filled(card, method, path, operation); };
  card.addEventListener("toggle", open);
  return card;
}

function show() {
  const groups = new Map();
  for (const [path, methods] of Object.entries(told.paths ?? {})) {
    for (const [method, operation] of Object.entries(methods)) {
      const tag = operation.tags?.[0] ?? "";
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(cardOf(method.toUpperCase(), path, operation));
    }
  }
  const sections = [...groups].map(([tag, cards]) =>
    element("section", {}, element("h2", {}, tag), ...cards));
  byId("routes").replaceChildren(...sections);
  const { title, version, description } = told.info;
  byId("about").textContent = `${title} ${version}. ${description ?? ""}`;
  find();
  const linked = location.hash && byId(decodeURIComponent(location.hash.slice(1)));
  if (linked) { linked.open = true; linked.scrollIntoView(); }
}

function find() {
  const words = byId("find").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const section of byId("routes").children) {
    const cards = [...section.querySelectorAll("details")];
    for (const card of cards) card.hidden = !words.every((word) => card.dataset.text.includes(word));
    section.hidden = cards.every((card) => card.hidden);
  }
}

async function read() {
  const key = byId("key").value;
  const models = location.search; // ?model=NAME: of these only
  try {
    const answer = await fetch(base + "openapi.json" + models, { headers: key ? { "X-API-Key": key } : {} });
    if (!answer.ok) {
      const why = (await answer.json()).error;
      byId("about").textContent = typeof why === "string" ? why : String(answer.status);
      return;
    }
    told = await answer.json();
    show();
  } catch (error) {
    byId("about").textContent = String(error);
  }
}

byId("find").addEventListener("input", find);
byId("key").addEventListener("change", read);
byId("document").href = base + "openapi.json" + location.search;
read();
