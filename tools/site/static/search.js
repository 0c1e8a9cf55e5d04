// Which pages answer a question? The site's search, over the sections that `sources.py` writes.
//
// A section is [place, anchor, page title, heading, keywords, text]; keywords are the phrases of
// the table "By word". BM25 over its fields, where a word of a keyword or a title counts more than
// one of the text; the best section speaks for its page. It needs no network: the sections are a
// script beside the page, which a browser loads from a disk, too.
"use strict";

const STOP = new Set(
  "a an and are as at be by can do does for from get how i if in into is it me my of on or so that the this to use using want we what when where which why will with you".split(" "),
);
const WEIGHTS = { title: 3, heading: 2.5, keywords: 8, text: 1 };
const LATER = /^(changelog|examples\/|pages)/; // seldom what somebody looks for

// "batches", "batching" and "batch" are one word; so are "deploy" and "deployment".
const stem = (word) => {
  const short = word.replace(/(?:ments?|ings?|ers?|ed|es|s|e)$/, "");
  return short.length >= 3 ? short.replace(/(.)\1$/, "$1") : word;
};
const words = (text) =>
  (text.toLowerCase().match(/[a-z0-9]+/g) ?? []).filter((word) => !STOP.has(word)).map(stem);

function indexed(sections) {
  const inverted = new Map(); // word -> section number -> weight
  const lengths = [];
  sections.forEach(([, , title, heading, keywords, text], number) => {
    const fields = { title, heading, keywords: keywords.join(" "), text };
    lengths[number] = words(text).length;
    for (const [field, content] of Object.entries(fields)) {
      for (const word of words(content)) {
        const found = inverted.get(word) ?? new Map();
        const weight = field === "text" ? WEIGHTS.text / (0.3 + 0.7 * (lengths[number] / 120)) : WEIGHTS[field];
        found.set(number, (found.get(number) ?? 0) + weight);
        inverted.set(word, found);
      }
    }
  });
  return { sections, inverted };
}

// The words of the index for one of a question: itself; if it is not there, what begins with it;
// if nothing does, what differs by one letter.
function matches(word, inverted) {
  if (inverted.has(word)) return [word];
  if (word.length < 3) return [];
  const known = [...inverted.keys()];
  const longer = known.filter((other) => other.startsWith(word));
  return longer.length || word.length < 5 ? longer : known.filter((other) => nearlySame(word, other));
}

function nearlySame(one, other) {
  if (one.length > other.length) return nearlySame(other, one);
  let same = 0;
  while (same < one.length && one[same] === other[same]) same += 1;
  const left = one.slice(same);
  const swapped = other[same + 1] + other[same] + other.slice(same + 2);
  return [other.slice(same + 1), swapped].includes(left) || left.slice(1) === other.slice(same + 1);
}

// Sections, best first, one of each page: [section, score].
function ranked(index, question) {
  const { sections, inverted } = index;
  const terms = [...new Set(words(question))];
  const scores = new Map();
  for (const term of terms) {
    for (const known of matches(term, inverted)) {
      const found = inverted.get(known);
      const rarity = Math.log(1 + sections.length / found.size);
      for (const [number, weight] of found)
        scores.set(number, (scores.get(number) ?? 0) + (rarity * weight) / (weight + 2));
    }
  }
  const best = new Map(); // place -> [section, score]
  for (const [number, score] of scores) {
    const place = sections[number][0];
    const total = score * (LATER.test(place) ? 0.4 : 1);
    if (total > (best.get(place)?.[1] ?? 0)) best.set(place, [sections[number], total]);
  }
  return [...best.values()].sort((one, other) => other[1] - one[1]);
}

function excerpt(text, question) {
  const terms = new Set(words(question));
  const tokens = [...text.matchAll(/[A-Za-z0-9]+/g)].filter((match) => terms.has(stem(match[0].toLowerCase())));
  const from = Math.max(0, (tokens[0]?.index ?? 0) - 60);
  const begin = from ? text.indexOf(" ", from) + 1 : 0;
  const shown = document.createElement("p");
  let at = begin;
  for (const match of tokens) {
    if (match.index < at || match.index > begin + 220) continue;
    const mark = Object.assign(document.createElement("mark"), { textContent: match[0] });
    shown.append(text.slice(at, match.index), mark);
    at = match.index + match[0].length;
  }
  const end = text.indexOf(" ", begin + 240);
  shown.append(end < 0 ? text.slice(at) : `${text.slice(at, end)} ...`);
  return shown;
}

function show(index, question, list, count) {
  const found = ranked(index, question).slice(0, 10);
  count.textContent = question.trim() && !found.length ? "No page has any of these words." : "";
  list.replaceChildren(
    ...found.map(([[place, anchor, title, heading, , text]]) => {
      const link = document.createElement("a");
      link.href = place.replace(/\.md$/, ".html") + (anchor && `#${anchor}`);
      link.textContent = heading && heading !== title ? `${title}: ${heading}` : title;
      const item = document.createElement("li");
      item.append(link, excerpt(text, question));
      return item;
    }),
  );
}

function begin() {
  const [box, list, count] = ["question", "found", "count"].map((id) => document.getElementById(id));
  const index = indexed(SECTIONS);
  box.value = new URLSearchParams(location.search).get("q") ?? "";
  box.addEventListener("input", () => {
    show(index, box.value, list, count);
    history.replaceState(null, "", `?q=${encodeURIComponent(box.value)}`);
  });
  box.form.addEventListener("submit", (event) => event.preventDefault());
  show(index, box.value, list, count);
  box.focus();
}

if (globalThis.document?.getElementById("question")) begin();
