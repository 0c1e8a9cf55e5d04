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
  const initial = example === undefined ? (input.optional ? "" : JSON.stringify(sampleOf(input))) : JSON.stringify(example);
  const box = make("textarea", { id, rows: Math.min(8, 2 + Math.floor(initial.length / 60)), value: initial, spellcheck: false });
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
    setText(about, file ? `${file.name}, ${file.type || "of unknown type"}, ${bytes(file.size)}` : "Choose a file, or drop one here.");
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
  const parts = [];
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
    setText(note, "running…");
    const began = performance.now();
    try {
      const outcome = await work(running.signal);
      setText(note, `${outcome}, ${seconds((performance.now() - began) / 1000)}`);
    } catch (error) {
      const stopped = running.signal.aborted;
      note.className = stopped ? "note" : "failed";
      setText(note, stopped ? "stopped" : plain(error.message || error).slice(0, MOST_ERROR));
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
      const answer = await fetchPath(path, { method: "POST", signal, body: JSON.stringify(body), headers });
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
