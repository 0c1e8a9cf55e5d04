// Relative to this page, so that it also works under a prefix, with or without a slash at its end.
const base = location.pathname.replace(/\/?$/, "/");
const SVG = "http://www.w3.org/2000/svg";
const KEPT = 900; // seconds that are kept, as by the server
const RECENT = 120; // seconds that lists show
const THOUSAND = 1024;

// -- Making elements

function draw(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function fill(node, key, children) {
  if (node.dataset.key === key) return;
  node.dataset.key = key;
  node.replaceChildren(...children());
}

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
