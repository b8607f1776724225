// Makes elements. All text goes in as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "at") Object.assign(element.style, value); // by CSSOM: the policy forbids style attributes
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const whole = new Intl.NumberFormat("en-US");
export const count = (number) => (number === null || number === undefined ? "–" : whole.format(number));

export function ms(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1000) return `${(value / 1000).toFixed(value >= 10000 ? 1 : 2)} s`;
  return value >= 100 ? `${Math.round(value)} ms` : `${value.toFixed(1)} ms`;
}

export const share = (part, all) => (part === null || part === undefined || !all ? "–" : `${Math.floor((100 * part) / all)} %`);
export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");
export const percent = (value) => `${Math.max(0, Math.min(100, value)).toFixed(3)}%`;
export const turnLink = (row, text) => h("a", { href: `#/turn/${encodeURIComponent(row.id)}` }, text ?? `turn ${row.number}`);

export async function get(path) {
  const response = await fetch(path, { headers: { accept: "application/json" } });
  const body = await response.json();
  if (!response.ok) throw new Error(body.error.message);
  return body;
}

export function table(heads, rows, name) {
  const head = h("tr", null, heads.map((text) => h("th", { scope: "col" }, text)));
  const lines = rows.map((cells) => h("tr", null, cells.map((cell) => h("td", null, cell))));
  return h("div", { class: "scroll" }, h("table", { id: name }, h("thead", null, head), h("tbody", null, lines)));
}
