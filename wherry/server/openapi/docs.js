// Relative to this page, so that it also works under a prefix.
const base = location.pathname.replace(/docs\/?$/, "");
const MOST_OPEN = 5; // models whose first route is open from the start
let openapi = {};

function looked(value) {
  for (let hops = 0; value && value.$ref && hops < 8; hops++) {
    value = value.$ref.slice(2).split("/").reduce(
      (within, key) => within?.[key.replaceAll("~1", "/").replaceAll("~0", "~")], openapi);
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
      const initial = member.default === undefined ? "" : " = " + JSON.stringify(member.default);
      return pad + JSON.stringify(key) + (needed.includes(key) ? "" : "?") + ": " +
        of(member) + initial + (note ? "  // " + note.replaceAll("\n", " ") : "");
    });
    return "{\n" + lines.join("\n") + "\n" + "  ".repeat(depth) + "}";
  }
  if (schema.contentSchema) return "JSON text of " + of(schema.contentSchema);
  const bound = [["minimum", ">="], ["exclusiveMinimum", ">"]].filter(([key]) => key in schema)
    .map(([key, sign]) => ` ${sign} ${schema[key]}`).join("");
  return (schema.type ?? "any") + (schema.format === "binary" ? " (a file)" : bound);
}

// What models of any server take by these names.
const KNOWN = { messages: [{ role: "user", content: "Hello" }], max_tokens: 64 };

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
      (key) => [key, KNOWN[key] ?? sampleOf(schema.properties[key] ?? {}, depth + 1)]));
  }
  const plain = { string: "text", integer: Math.max(schema.minimum ?? 1, 1), number: 1, boolean: true };
  return plain[type] ?? (type === "object" ? {} : null);
}

const quoted = (text) => "'" + text.replaceAll("'", "'\\''") + "'";

function fieldsOf(path, parameters) {
  return parameters.filter((one) => one.in === "path" || one.in === "query").map((one) => {
    const input = make("input", { autocomplete: "off" });
    input.value = one.in === "path" && one.name === "version" ? "1" : "";
    return { ...one, input, label: make("label", {}, one.name + " ", input) };
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

// The inputs of the models, by their names.
function inputsOfModels() {
  const operations = Object.values(openapi.paths).map((methods) => methods.post).filter((one) => one?.["x-model"]);
  return new Map(operations.map((one) =>
    [one["x-model"], looked(one.requestBody?.content?.["application/json"]?.schema).properties ?? {}]).reverse());
}

function sampleBody(path, operation) {
  const content = operation.requestBody?.content?.["application/json"];
  const [example] = Object.values(content?.examples ?? {});
  if (example) return example.value;
  const { properties = {} } = looked(content?.schema);
  const sample = path.startsWith("/v1/messages") ? { ...KNOWN } : sampleOf(content?.schema ?? {});
  // A language model needs none of its inputs alone.
  if (properties.messages && !sample.prompt) sample.messages = KNOWN.messages;
  if (!path.startsWith("/v1/") || !(properties.model || sample.max_tokens)) return sample;
  const models = [...inputsOfModels()].reverse();
  const [model, inputs] = models.find(([, has]) => Object.keys(sample).some((key) => key in has)) ?? models[0] ?? ["", {}];
  // One of an engine, which has tasks, goes on for long, and has the parameter.
  return { ...sample, model, ...(properties.max_tokens && inputs.task && { max_tokens: KNOWN.max_tokens }) };
}

async function send(method, address, body, headers, output, status) {
  const key = byId("key").value;
  if (key) headers["X-API-Key"] = key;
  output.replaceChildren();
  output.hidden = false;
  status.textContent = "sending…";
  const began = performance.now();
  try {
    const answer = await fetch(address, { method, headers, body });
    await showAnswer(answer, output);
    const took = Math.round(performance.now() - began);
    status.textContent = `${answer.status} ${answer.statusText}, ${took} ms`;
    output.className = answer.ok ? "" : "failed";
  } catch (error) {
    status.textContent = "No answer.";
    output.textContent = String(error);
    output.className = "failed";
  }
}

async function showAnswer(answer, output) {
  const type = (answer.headers.get("content-type") ?? "").split(";")[0];
  if (type && !/^text\/|json/.test(type)) {
    const blob = await answer.blob();
    const url = URL.createObjectURL(blob);
    if (type.startsWith("image/")) output.append(make("img", { src: url, alt: "The answer" }));
    if (type.startsWith("audio/")) output.append(make("audio", { src: url, controls: true }));
    output.append(make("a", { href: url, download: "answer" }, `${type}, ${blob.size} bytes`));
    return;
  }
  const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
  for (let part; reader && !(part = await reader.read()).done;) {
    output.textContent = (output.textContent + part.value).slice(-MOST_SHOWN);
  }
}

// A file as the whole body, where the route takes one.
function fileOf(content) {
  const types = Object.keys(content ?? {}).filter((media) => !/json|form/.test(media));
  return types.length ? make("input", { type: "file", accept: types.includes("application/octet-stream") ? "" : types.join() }) : null;
}

function tryIt(method, path, operation) {
  const fields = fieldsOf(path, (operation.parameters ?? []).map(looked));
  const content = operation.requestBody?.content;
  const area = content?.["application/json"] && make("textarea", { rows: 4, spellcheck: false });
  if (area) {
    area.value = JSON.stringify(sampleBody(path, operation), null, 2);
    area.rows = Math.min(12, Math.max(3, area.value.split("\n").length));
  }
  const file = fileOf(content);
  const line = make("pre", { tabIndex: 0 }), output = make("pre", { hidden: true, tabIndex: 0 });
  const status = make("span", { class: "soft" });
  status.setAttribute("role", "status");
  output.setAttribute("aria-label", "answer");
  line.setAttribute("aria-label", "The same with curl");
  const streams = JSON.stringify(operation.responses).includes("event-stream") ? "-N " : "";
  const write = () => {
    const key = operation.security && byId("key").value ? " -H 'X-API-Key: KEY'" : "";
    let body = area?.value ?? "";
    try { body = JSON.stringify(JSON.parse(body)); } catch { /* as it was written */ }
    let sent = area ? ` -H 'Content-Type: application/json' -d ${quoted(body)}` : "";
    if (file?.files[0]) {
      const headers = Object.entries(headersOf(file.files[0], operation)).map(([name, value]) => ` -H ${quoted(`${name}: ${value}`)}`);
      sent = `${headers.join("")} --data-binary ${quoted("@" + file.files[0].name)}`;
    }
    const how = method === "GET" ? "" : `-X ${method} `;
    line.textContent = `curl -s ${streams}${how}${quoted(location.origin + addressOf(path, fields))}${key}${sent}`;
  };
  for (const input of [area, file, ...fields.map((one) => one.input)]) input?.addEventListener("input", write);
  write();
  const run = () => {
    const chosen = file?.files[0], body = chosen ?? area?.value;
    const headers = chosen ? headersOf(chosen, operation) : body === undefined ? {} : { "Content-Type": "application/json" };
    send(method, addressOf(path, fields), body, headers, output, status);
  };
  const sendButton = make("button", { type: "button", onclick: run }, "Send");
  const copy = make("button", { type: "button", class: "second" }, "Copy as curl");
  copy.onclick = async () => {
    try {
      await navigator.clipboard.writeText(line.textContent);
      status.textContent = "copied";
    } catch { getSelection().selectAllChildren(line); }
  };
  area?.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(); });
  return [
    ...(fields.length ? [make("div", { class: "bar" }, ...fields.map((one) => one.label))] : []),
    ...(area ? [make("label", {}, "Body", area)] : []),
    ...(file ? [make("label", {}, area ? "or a file " : "File ", file)] : []),
    make("div", { class: "row" }, sendButton, copy, status), output, line,
  ];
}

// The answer to a file is a file, too, if the route has one.
function headersOf(file, operation) {
  const headers = { "Content-Type": file.type || "application/octet-stream" };
  const files = Object.keys(operation.responses["200"]?.content ?? {}).filter((media) => !/json|event-stream|text/.test(media));
  return files.length ? { ...headers, Accept: files.join(", ") } : headers;
}

const label = (text) => make("p", { class: "label" }, text);

function typesOf(title, content) {
  return Object.entries(content ?? {}).flatMap(([media, one]) => [
    label(`${title}, ${media}`),
    ...(one.schema ? [make("pre", { tabIndex: 0 }, typeOf(one.schema))] : []),
  ]);
}

function detailsOf(operation) {
  const failures = make("dl", {});
  for (const [status, answer] of Object.entries(operation.responses)) {
    if (status === "200") continue;
    failures.append(make("dt", {}, status), make("dd", {}, looked(answer).description ?? ""));
  }
  const described = make("dl", {});
  for (const one of (operation.parameters ?? []).map(looked)) {
    described.append(make("dt", {}, `${one.name} (${one.in})`),
      make("dd", {}, `${typeOf(one.schema ?? {})}. ${one.description ?? ""}`));
  }
  return make("details", { class: "more" }, make("summary", {}, "Types, headers, errors"),
    ...typesOf("Request", operation.requestBody?.content),
    ...typesOf("Response", operation.responses["200"]?.content),
    ...(described.children.length ? [label("Parameters and headers"), described] : []),
    label("Errors"), failures);
}

function fillCard(card, method, path, operation) {
  const about = operation.description ?? "";
  if (about && !operation["x-model"]) card.append(make("p", {}, about));
  card.append(...tryIt(method, path, operation), detailsOf(operation));
}

function cardOf(method, path, operation) {
  const model = operation["x-model"];
  // The model's name and what it does stand above its routes.
  const words = model ? [[" (V2)", "V2"], [" (as tensors)", "V2, as tensors"]].find(([end]) => operation.summary.endsWith(end))?.[1] ?? "" : operation.summary ?? "";
  const card = make("details", { class: "route", id: operation.operationId },
    make("summary", {}, make("b", {}, method), make("code", {}, path), " ", words));
  card.dataset.text = `${method} ${path} ${operation.summary ?? ""}`.toLowerCase();
  // A card is filled when it is opened: there may be hundreds.
  card.addEventListener("toggle", () => fill());
  const fill = () => { if (card.open && card.children.length === 1) fillCard(card, method, path, operation); };
  return card;
}

// The groups below the models, in this order; routes of packages have groups of their own.
const GROUPS = [
  ["OpenAI and Anthropic", (tag) => tag === "openai" || tag === "anthropic"],
  ["V2 protocol", (tag, path) => ["inference", "model-config", "shared-memory"].includes(tag) || (tag === "metadata" && path.startsWith("/v2"))],
  ["Management and statistics", (tag) => ["model-repository", "statistics", "metrics", "trace", "logging"].includes(tag)],
  ["Health", (tag) => tag === "health"],
  ["Pages and documents", (tag) => tag === "metadata"],
];

function show() {
  const models = new Map(), groups = new Map(GROUPS.map(([name]) => [name, []]));
  for (const [path, methods] of Object.entries(openapi.paths ?? {})) {
    for (const [method, operation] of Object.entries(methods)) {
      const model = operation["x-model"], tag = operation.tags?.[0] ?? "";
      const of = model ? models : groups;
      const name = model ?? GROUPS.find(([, holds]) => holds(tag, path))?.[0] ?? tag;
      if (!of.has(name)) of.set(name, []);
      of.get(name).push([cardOf(method.toUpperCase(), path, operation), operation]);
    }
  }
  const sections = [...models].map(([name, routes], at) => {
    if (at < MOST_OPEN) routes[0][0].open = true;
    return make("section", {}, make("h2", {}, name), make("p", {}, routes[0][1].description ?? ""), ...routes.map(([card]) => card));
  });
  for (const [name, routes] of groups) {
    if (!routes.length) continue;
    sections.push(make("details", { class: "group" },
      make("summary", {}, make("h2", {}, name), make("span", { class: "soft" }, ` ${routes.length} routes`)), ...routes.map(([card]) => card)));
  }
  byId("routes").replaceChildren(...sections);
  const { title, version, description } = openapi.info;
  const count = models.size === 1 ? "1 model" : `${models.size} models`;
  const more = models.size ? "Change the body of a route and send it, here or with curl." : "None is loaded.";
  byId("about").textContent = `${title} ${version}, ${count}. ${description?.includes("loaded;") ? description : more}`;
  find();
  const linked = location.hash && byId(decodeURIComponent(location.hash.slice(1)));
  if (linked) {
    linked.open = true;
    if (linked.parentElement.open === false) linked.parentElement.open = true;
    linked.scrollIntoView();
  }
}

function find() {
  const words = byId("find").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const section of byId("routes").children) {
    const cards = [...section.querySelectorAll(".route")];
    for (const card of cards) card.hidden = !words.every((word) => card.dataset.text.includes(word));
    section.hidden = cards.every((card) => card.hidden);
    if (section.open !== undefined) section.open = words.length > 0 && !section.hidden;
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
    openapi = await answer.json();
    show();
  } catch (error) {
    byId("about").textContent = String(error);
  }
}

byId("find").addEventListener("input", find);
byId("key").addEventListener("change", read);
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.matches("input, textarea")) return;
  event.preventDefault();
  byId("find").focus();
});
byId("dashboard").href = base;
byId("document").href = base + "openapi.json" + location.search;
read();
