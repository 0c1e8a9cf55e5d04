// Markdown as elements. Each character that a model wrote becomes text, never markup: nothing here
// parses HTML, and the page's policy has the browser refuse it, too.
// Whatever the text, the work grows with its length: nesting and look-back are bounded.

const DEEPEST = 10; // quotes and lists within each other
const MOST_MARKS = 64; // that are open at a time: * _ ~ [
const LONGEST_URL = 2000;

// -- Blocks

const FENCE = /^ *(`{3,32}|~{3,32})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t](.*))?$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:([ \t]+)(.*))?$/;

const indentOf = (line) => line.length - line.trimStart().length;
const starts = (line) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line);

// Whether a list begins here, within a paragraph: a year at the start of a line is no list.
function interrupts(line) {
  const found = ITEM.exec(line);
  return found !== null && Boolean(found[4]) && (found[2].length === 1 || parseInt(found[2], 10) === 1);
}

const closing = (fence) => new RegExp(`^ *${fence[0]}{${fence.length},}[ \\t]*$`);

// The text as blocks: {kind, source, ...what its kind needs}. Equal sources make equal elements.
function blocksOf(lines) {
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const block = fenceAt(lines, at) || lineAt(lines, at) || quoteAt(lines, at) || listAt(lines, at) ||
      tableAt(lines, at) || paragraphAt(lines, at);
    block.source = lines.slice(at, block.end).join("\n");
    at = block.end;
    blocks.push(block);
  }
  return blocks;
}

function fenceAt(lines, at) {
  const found = FENCE.exec(lines[at]);
  if (!found) return null;
  const indent = indentOf(lines[at]), code = [];
  const closes = closing(found[1]);
  for (let end = at + 1; end < lines.length; end++) {
    if (closes.test(lines[end])) return { kind: "code", end: end + 1, language: found[2].trim(), code };
    code.push(lines[end].slice(Math.min(indent, indentOf(lines[end]))));
  }
  return { kind: "code", end: lines.length, language: found[2].trim(), code };
}

function lineAt(lines, at) {
  const heading = HEADING.exec(lines[at]);
  if (heading) {
    const text = (heading[2] || "").trim().replace(/(?:^|[ \t])#+$/, "");
    return { kind: "heading", end: at + 1, level: heading[1].length, text };
  }
  return RULE.test(lines[at]) ? { kind: "rule", end: at + 1 } : null;
}

function quoteAt(lines, at) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  return end === at ? null : { kind: "quote", end, lines: lines.slice(at, end).map((line) => line.replace(QUOTE, "")) };
}

function listAt(lines, at) {
  const first = ITEM.exec(lines[at]);
  if (!first) return null;
  const ordered = first[2].length > 1, base = first[1].length, items = [];
  let end = at;
  while (end < lines.length) {
    const found = ITEM.exec(lines[end]);
    if (!found || found[2].length > 1 !== ordered || found[1].length > base + 1 || found[1].length < base - 1 || RULE.test(lines[end])) break;
    const inner = found[1].length + found[2].length + Math.min((found[3] || " ").length, 4);
    const within = Math.min(inner, found[1].length + 2); // a model may indent by less than it ought to
    const item = [found[4] || ""];
    let closes = FENCE.test(item[0]) ? closing(FENCE.exec(item[0])[1]) : null;
    for (end += 1; end < lines.length; end++) {
      const line = lines[end], fence = FENCE.exec(line), inside = indentOf(line) >= within;
      if (closes) {
        if (line.trim() && !inside) break;
        if (closes.test(line)) closes = null;
      } else if (!line.trim()) {
        const next = lines[end + 1];
        if (!next?.trim() || indentOf(next) < within) break;
      } else if (!inside && (!lines[end - 1].trim() || ITEM.test(line) || starts(line))) break;
      else if (fence) closes = closing(fence[1]);
      item.push(line.slice(Math.min(inner, indentOf(line))));
    }
    items.push(item);
    // One blank line between two items.
    if (end + 1 < lines.length && !lines[end].trim() && ITEM.test(lines[end + 1])) end += 1;
  }
  if (!items.length) return null;
  if (!lines[end - 1].trim()) end -= 1;
  return { kind: "list", end, ordered, from: ordered ? parseInt(first[2], 10) : 1, items };
}

const cellsOf = (line) => line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/)
  .map((cell) => cell.trim().replaceAll("\\|", "|"));

function tableAt(lines, at) {
  if (!lines[at].includes("|") || !/^[ \t|:-]+$/.test(lines[at + 1] ?? "")) return null;
  const head = cellsOf(lines[at]), marks = cellsOf(lines[at + 1]);
  if (head.length !== marks.length || head.length > 64 || !marks.every((mark) => /^:?-+:?$/.test(mark))) return null;
  const rows = [];
  let end = at + 2;
  for (; end < lines.length && lines[end].includes("|") && !starts(lines[end]); end++) rows.push(cellsOf(lines[end]));
  const sides = marks.map((mark) => (mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : ""));
  return { kind: "table", end, head, sides, rows };
}

function paragraphAt(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !starts(lines[end]) && !interrupts(lines[end]) &&
    !(lines[end].includes("|") && tableAt(lines, end))) end += 1;
  return { kind: "paragraph", end, text: lines.slice(at, end).map((line) => line.trim()).join("\n") };
}

// -- Elements of blocks

const MAKERS = {
  code: (block) => codeBlock(block.language, block.code.join("\n")),
  // Below the heading of the message, whatever level the model began with.
  heading: (block) => make("h3", { class: "level" + block.level }, inline(block.text)),
  rule: () => make("hr"),
  quote: (block, depth) => make("blockquote", {}, elementsOf(block.lines, depth + 1)),
  list: (block, depth) => make(block.ordered ? "ol" : "ul", block.ordered ? { start: block.from } : {},
    block.items.map((item) => make("li", {}, itemOf(item, depth + 1)))),
  table: (block) => {
    const row = (cells, name) => make("tr", {}, cells.slice(0, block.head.length).map((cell, at) =>
      make(name, { class: block.sides[at] }, inline(cell))));
    return make("div", { class: "table", tabIndex: 0, role: "region", "aria-label": "Table" }, make("table", {},
      make("thead", {}, row(block.head, "th")), make("tbody", {}, block.rows.map((cells) => row(cells, "td")))));
  },
  paragraph: (block) => make("p", {}, inline(block.text)),
};

function elementsOf(lines, depth) {
  if (depth > DEEPEST) return [make("p", {}, plain(lines.join("\n")))];
  return blocksOf(lines).map((block) => MAKERS[block.kind](block, depth));
}

// What is one paragraph stands in its item without a box of its own.
function itemOf(lines, depth) {
  const [first, ...others] = elementsOf(lines, depth);
  return first?.tagName === "P" ? [[...first.childNodes], others].flat() : [first, ...others];
}

function codeBlock(language, text) {
  const code = make("code", {}, plain(text));
  const copy = make("button", { type: "button", class: "link" }, "Copy");
  copy.onclick = () => copyText(copy, text, code);
  return make("div", { class: "code" }, make("div", { class: "bar" }, make("span", {}, plain(language.slice(0, 40))), copy),
    make("pre", { tabIndex: 0 }, code));
}

// Where only https has a clipboard, `node` is marked, so that Ctrl+C copies it.
async function copyText(button, text, node) {
  try {
    await navigator.clipboard.writeText(text);
    setText(button, "Copied");
  } catch {
    getSelection().selectAllChildren(node);
    setText(button, "Marked");
  }
  setTimeout(() => setText(button, "Copy"), 1500);
}

// -- Inline

const SPECIAL = /[\\`*_~[\]!<\n]|https?:\/\//g;
const ESCAPED = /[!-/:-@[-`{-~]/;
const URL_HERE = /https?:\/\/[^\s<>"'`]{1,2000}/y;
const BREAK = /<br ?\/?>/iy;
const ANGLE = /<(https?:\/\/[^\s<>]+)>/y;
const WORD = /[\p{L}\p{N}]/u;
const TAGS = { "*1": "em", "_1": "em", "*2": "strong", "_2": "strong", "~2": "s" };

function inline(text) {
  // Texts, elements, and marks that may yet begin something: {mark}.
  const out = [], open = [], unclosed = new Set();
  let at = 0;
  const addText = (piece) => {
    if (typeof out.at(-1) === "string") out[out.length - 1] += plain(piece);
    else if (piece) out.push(plain(piece));
  };
  const openMark = (mark, opener) => {
    const node = { mark };
    out.push(node);
    open.push({ ...opener, node });
    if (open.length > MOST_MARKS) open.shift();
  };
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const found = SPECIAL.exec(text);
    addText(text.slice(at, found ? found.index : undefined));
    if (!found) break;
    at = found.index;
    const sign = text[at];
    if (sign === "\\" && ESCAPED.test(text[at + 1] || "")) {
      addText(text[at + 1]);
      at += 2;
    } else if (sign === "\n") {
      out.push(make("br"));
      at += 1;
    } else if (sign === "`") at = codeSpan(text, at, out, addText, unclosed);
    else if (sign === "*" || sign === "_" || sign === "~") at = emphasis(text, at, out, open, addText, openMark);
    else if (sign === "[" || (sign === "!" && text[at + 1] === "[")) {
      const mark = sign === "[" ? "[" : "![";
      openMark(mark, { sign: "[" });
      at += mark.length;
    } else if (sign === "]") at = linkEnd(text, at, out, open, addText);
    else if (sign === "<") at = angle(text, at, out, addText);
    else if (sign === "h") at = bareLink(text, at, out, addText);
    else {
      addText(sign);
      at += 1;
    }
  }
  return out.map(asText);
}

const asText = (one) => one.mark ?? one;

function codeSpan(text, at, out, addText, unclosed) {
  const run = /`+/y;
  run.lastIndex = at;
  const ticks = run.exec(text)[0], from = at + ticks.length;
  if (!unclosed.has(ticks.length)) {
    for (let end = text.indexOf(ticks, from); end >= 0;) {
      let after = end;
      while (text[after] === "`") after += 1;
      if (after - end === ticks.length) {
        out.push(make("code", {}, plain(text.slice(from, end).replace(/\n/g, " ").trim())));
        return after;
      }
      end = text.indexOf(ticks, after);
    }
    unclosed.add(ticks.length); // and none is later
  }
  addText(ticks);
  return from;
}

function emphasis(text, at, out, open, addText, openMark) {
  const sign = text[at];
  let end = at;
  while (text[end] === sign) end += 1;
  let count = end - at;
  const before = text[at - 1] || " ", after = text[end] || " ";
  const within = sign === "_";
  const opens = !/\s/.test(after) && !(within && WORD.test(before));
  const closes = !/\s/.test(before) && !(within && WORD.test(after));
  while (closes && count) {
    const place = open.findLastIndex((one) => one.sign === sign);
    if (place < 0) break;
    const opener = open[place];
    const used = opener.count >= 2 && count >= 2 ? 2 : 1;
    const tag = TAGS[sign + used];
    if (!tag || open.slice(place + 1).some((one) => one.sign === "[")) break;
    const from = out.lastIndexOf(opener.node);
    const made = make(tag, {}, out.splice(from + 1).map(asText));
    open.length = place;
    opener.count -= used;
    if (opener.count) {
      opener.node.mark = sign.repeat(opener.count);
      open.push(opener);
    } else out.pop();
    out.push(made);
    count -= used;
  }
  if (!count) return end;
  if (opens && count <= 3) openMark(sign.repeat(count), { sign, count });
  else addText(sign.repeat(count));
  return end;
}

function linkEnd(text, at, out, open, addText) {
  const place = open.findLastIndex((one) => one.sign === "[");
  const url = place < 0 ? null : urlAt(text, at + 1);
  if (!url) {
    if (place >= 0) open.splice(place, 1);
    addText("]");
    return at + 1;
  }
  const { node } = open[place];
  const inside = out.splice(out.lastIndexOf(node)).slice(1).map(asText);
  open.length = place;
  const holdsLink = inside.some((one) => one instanceof Element && (one.tagName === "A" || one.querySelector("a")));
  if (holdsLink) for (const one of inside) out.push(one);
  else out.push(anchor(url.href, inside.length ? inside : [plain(url.href)]));
  return url.end;
}

// The address in the brackets behind a link's text.
function urlAt(text, at) {
  if (text[at] !== "(") return null;
  let depth = 0, end = at;
  for (; end < text.length && end - at < LONGEST_URL; end++) {
    if (text[end] === "(") depth += 1;
    else if (text[end] === ")") depth -= 1;
    else if (text[end] === "\n") return null;
    if (!depth) break;
    if (depth > 8) return null;
  }
  if (depth || text[end] !== ")") return null;
  const href = text.slice(at + 1, end).trim().split(/\s/)[0].replace(/^<|>$/g, "");
  return { href, end: end + 1 };
}

// Only what leads to a page or to mail; anything else stays the text it was.
function anchor(href, children) {
  let url = null;
  try {
    url = new URL(href);
  } catch { /* a path, or nothing */ }
  if (!url || !["http:", "https:", "mailto:"].includes(url.protocol)) {
    return make("span", {}, children, plain(` (${href})`));
  }
  return make("a", { href: url.href, rel: "noopener noreferrer nofollow", target: "_blank", title: plain(url.href) }, children);
}

function angle(text, at, out, addText) {
  ANGLE.lastIndex = BREAK.lastIndex = at;
  const link = ANGLE.exec(text), line = link ? null : BREAK.exec(text);
  if (link) out.push(anchor(link[1], [plain(link[1])]));
  else if (line) out.push(make("br"));
  else addText("<");
  return at + (link || line || "<")[0].length;
}

function bareLink(text, at, out, addText) {
  URL_HERE.lastIndex = at;
  const found = WORD.test(text[at - 1] || " ") ? null : URL_HERE.exec(text);
  let url = found ? found[0] : "";
  for (let end; (end = url.at(-1)) && (/[.,;:!?*_~]/.test(end) || (end === ")" && !url.includes("(")) || end === "]");) url = url.slice(0, -1);
  if (!/^https?:\/\/./.test(url)) {
    addText("http");
    return at + 4;
  }
  out.push(anchor(url, [plain(url)]));
  return at + url.length;
}

// -- A text that grows

// Shows `text` in `node`. Blocks that have not changed since the last call keep their elements, so
// that a selection in them stays, and a long answer costs no more with each piece.
function showMarkdown(node, text) {
  const blocks = blocksOf(text.split(/\r\n|[\n\r\u2028\u2029]/)); // what `.` does not match ends a line
  const shown = node.shown || [];
  let same = 0;
  while (same < shown.length && same < blocks.length && shown[same].source === blocks[same].source && shown[same].kind === blocks[same].kind) same += 1;
  const [old, block] = [shown[same], blocks[same]];
  if (same === shown.length - 1 && old.kind === "code" && block?.kind === "code" && old.language === block.language) {
    node.children[same].querySelector("code").textContent = plain(block.code.join("\n"));
    same += 1;
  }
  while (node.children.length > same) node.lastChild.remove();
  filled(node, blocks.slice(same).map((one) => MAKERS[one.kind](one, 0)));
  node.shown = blocks;
}
