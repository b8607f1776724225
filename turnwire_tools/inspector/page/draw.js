// Makes elements. All text goes in as text, never as HTML, and its invisible characters have marks.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "at") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one); // by CSSOM: the policy forbids style attributes
    else element.setAttribute(name, value === true ? "" : READ.has(name) ? plain(value) : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    if (child instanceof Node) element.append(child);
    else element.append(...marked(child));
  }
  return element;
}

const READ = new Set(["title", "aria-label", "alt"]); // attributes that people read

// Characters that have no shape of their own, or that move the text around them, so that it reads otherwise than the model got it:
// control characters, all but tabs and the ends of lines; marks of direction; joiners, selectors and spaces of no width.
const UNSEEN = /(?!\r\n|[\t\n])[\p{Cc}\p{Default_Ignorable_Code_Point}\p{Zl}\p{Zp}\u2800\ufff9-\ufffb]/gu;
// Where they belong to what is seen: in emoji, and between letters of scripts that they join or part.
const JOINING = `[${["Arabic", "Syriac", "Mongolian", "Nko", "Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam", "Sinhala", "Khmer", "Myanmar"].map((script) => `\\p{Script=${script}}`).join("")}]`;
const SEEN = new RegExp(`\\p{RGI_Emoji}|\\p{Extended_Pictographic}[\\ufe0e\\ufe0f]|(?<=${JOINING})[\\u200c\\u200d](?=${JOINING})`, "gv");

// The unseen characters of a text, with their places.
function unseen(text) {
  const found = [...text.matchAll(UNSEEN)];
  if (!found.length) return found;
  const seen = [...text.matchAll(SEEN)];
  let at = 0;
  return found.filter(({ index }) => {
    while (at < seen.length && seen[at].index + seen[at][0].length <= index) at++;
    return at === seen.length || index < seen[at].index;
  });
}

const CONTROLS = "NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US".split(" ");

// ESC, U+202E.
function nameOfCharacter(character) {
  const code = character.codePointAt(0);
  return CONTROLS[code] ?? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

// A text in pieces; each unseen character is an element, which shows its name and has the character for who copies it.
export function marked(value) {
  const text = String(value);
  const pieces = [];
  let end = 0;
  for (const { 0: character, index } of unseen(text)) {
    if (index > end) pieces.push(text.slice(end, index));
    const mark = document.createElement("span");
    mark.className = "unseen";
    mark.dataset.name = nameOfCharacter(character);
    mark.append(character);
    pieces.push(mark);
    end = index + character.length;
  }
  return end ? [...pieces, text.slice(end)] : [text];
}

// The same where there are no elements.
export function plain(value) {
  let text = String(value);
  for (const { 0: character, index } of unseen(text).reverse()) text = `${text.slice(0, index)}[${nameOfCharacter(character)}]${text.slice(index + character.length)}`;
  return text;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const whole = new Intl.NumberFormat("en-US");
export const count = (number) => (number === null || number === undefined ? "–" : whole.format(number));

// A number of tokens in a row: 412, 3.4k, 34k, 1.2M.
export function short(number) {
  if (number === null || number === undefined) return "–";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (number >= size) return `${(number / size).toFixed(number < 10 * size ? 1 : 0).replace(/\.0$/, "")}${unit}`;
  }
  return String(number);
}

export function ms(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 60000) return `${Math.floor(value / 60000)} min ${Math.round((value % 60000) / 1000)} s`;
  if (value >= 1000) return `${(value / 1000).toFixed(value >= 10000 ? 1 : 2)} s`;
  return value >= 100 ? `${Math.round(value)} ms` : `${value.toFixed(1)} ms`;
}

export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
export const share = (part, all) => (part === null || part === undefined || !all ? "–" : `${Math.floor((100 * part) / all)} %`);
const time = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
export const clock = (seconds) => time.format(seconds * 1000);
export const percent = (value) => `${Math.max(0, Math.min(100, value)).toFixed(3)}%`;
export const LEAST_AGAIN = 128; // tokens computed again that matter
export const computed = (turn) => (turn.cached === null ? null : Math.max(0, turn.prompt - turn.cached));
export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (text.endsWith(".") ? "" : ".");
export const running = (state) => ["received", "placed", "writing"].includes(state);

export const address = (kind, id) => `#/${kind}/${encodeURIComponent(id)}`;
export const turnLink = (row, text) => h("a", { href: address("turn", row.id) }, text ?? `turn ${row.number}`);
export const searchLink = (field, value, text) => h("a", { href: `#/?q=${encodeURIComponent(`${field}:${/\s/.test(value) ? `"${value}"` : value}`)}` }, text ?? value);

// What a row is called.
export function nameOf(row) {
  if (row.title) return row.title;
  if (row.label) return row.label;
  return row.asks ? `question ${row.number}` : `turn ${row.number} of ${row.session.slice(0, 8)}`;
}

// A prompt as a bar: from the cache, computed again, computed for the first time.
export function cacheBar(turn) {
  const total = turn.prompt || 1;
  const cached = Math.min(turn.cached ?? 0, total);
  const again = Math.min(turn.again, total - cached);
  return h("span", { class: "cachebar", role: "img", "aria-label": `${share(turn.cached, turn.prompt)} cached` },
    h("i", { class: "cached", at: { width: percent((100 * cached) / total) } }),
    h("i", { class: "again", at: { width: percent((100 * again) / total) } }));
}

export async function get(path) {
  const response = await fetch(path, { headers: { accept: "application/json" } });
  const body = await response.json();
  if (!response.ok) throw new Error(body.error.message);
  return body;
}

export function table(heads, rows, attributes) {
  const head = h("tr", null, heads.map((text) => h("th", { scope: "col" }, text)));
  const lines = rows.map((cells) => h("tr", null, cells.map((cell) => h("td", null, cell))));
  return h("div", { class: "scroll" }, h("table", attributes, h("thead", null, head), h("tbody", null, lines)));
}
