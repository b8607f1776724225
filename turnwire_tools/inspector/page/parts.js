// The parts of a conversation: instructions, tools, questions, reasoning, text, calls, results, images.

import { LEAST_AGAIN, address, cacheBar, clock, computed, count, get, h, marked, ms, nameOf, plural, share, short } from "/page/draw.js";

const LINES = 14; // of a text that is not open
const WIDE = 110; // characters of a line, about

const LABELS = { system: "Instructions", user: "User", text: "Answer", reasoning: "Reasoning", media: "Image", prompt: "Prompt" };

// How parts of a request came into the engine: cached, computed or computed again, or partly cached and the rest one of both.
export function shadeOf(all, section) {
  const { turn, difference } = section;
  const parts = all.filter(inPrompt);
  if (turn.cached === null || !parts.length || parts.some((part) => part.start === null)) return { name: "unknown", text: "" };
  const size = sum(parts, "tokens");
  const cached = parts.reduce((total, part) => total + cachedOf(part, turn), 0);
  if (size && cached >= size) return { name: "cached", text: "cached" };
  const departs = difference !== null && difference.again > 0 && difference.at !== null;
  const isAgain = departs && parts.some((part) => ["system", "tool"].includes(part.kind) && cachedOf(part, turn) < part.tokens && part.start + part.tokens > difference.at);
  const rest = isAgain ? "again" : "computed";
  if (cached < 0.01 * size) return { name: rest, text: isAgain ? "computed again" : "computed" };
  return { name: `partly ${rest}`, text: `${share(cached, size)} cached${isAgain ? ", the rest again" : ""}`, part: cached / size };
}

const inPrompt = (part) => part.facts !== "deferred"; // a tool that a search has to find first
const cachedOf = (part, turn) => Math.max(0, Math.min(part.tokens, turn.cached - part.start));
const missing = (parts, turn) => parts.reduce((total, part) => total + part.tokens - cachedOf(part, turn), 0);

// The messages and answers of the turns above, where they were computed again.
export function drawHistory(section) {
  const { turn, cost } = section;
  const heads = [...section.system, ...section.tools].filter(inPrompt);
  const shown = [...heads, ...section.parts];
  if (!cost || turn.cached === null || shown.some((part) => part.start === null)) return null;
  const again = cost.changed + cost.lost - missing(heads, turn);
  const tokens = Math.min(again, computed(turn) - missing(shown, turn));
  if (tokens < LEAST_AGAIN) return null;
  return h("div", { class: "part history again" },
    h("div", { class: "label" }, h("b", null, heads.length ? "Earlier messages" : "The prompt so far"), h("small", null, "of the turns above"), h("span", { class: "cost" }, `≈ ${count(tokens)} tokens · computed again`)));
}

// What the template writes around the parts, so that all of them are the prompt.
export function drawRest(section) {
  if (!section.rest) return null;
  const shown = [...section.system, ...section.tools, ...section.parts].filter(inPrompt);
  const about = section.difference?.again || section.tools.length || shown.some((part) => !part.exact) ? "≈ " : "";
  return h("div", { class: "part around" },
    h("div", { class: "label" }, "Template and other text", h("span", { class: "cost", title: "tokens of the prompt that are in none of the parts above" }, `${about}${count(section.rest)} tokens`)));
}

const tokens = (part) => (part.tokens === null ? "" : `${part.exact ? "" : "≈ "}${count(part.tokens)} tokens`);

function costOf(part, shade, written) {
  if (part.tokens === null || (part.kind === "media" && !part.exact)) return null;
  const facts = [tokens(part), written ? part.ms !== null && ms(part.ms) : shade.text].filter(Boolean);
  return h("span", { class: "cost", title: part.exact ? "" : "estimated by length" }, facts.join(" · "));
}

// A text, of which a long one is folded. `where` names it for the request of all of it.
function text(part, where, view) {
  if (view.hidden) return h("p", { class: "note" }, part.length ? `${plural(part.length, "character")}, not shown` : "empty");
  if (!part.text) return h("p", { class: "note" }, part.length ? "" : part.facts || "empty");
  const rows = part.text.split("\n").reduce((sum, line) => sum + 1 + Math.floor(line.length / WIDE), 0);
  const isCut = part.length > part.text.length;
  const pre = h("pre", null, part.text);
  if (rows <= LINES + 2 && !isCut) return pre;
  const open = view.opened.has(where);
  const fold = h("div", { class: open ? "fold open" : "fold" }, pre);
  const button = h("button", { type: "button", class: "more" });
  const label = () => (button.textContent = fold.classList.contains("open") ? "Show less" : `Show all · ${plural(part.length, "character")}`);
  const load = async () => {
    if (!isCut) return;
    const { text: all } = await get(view.textAt(where));
    pre.replaceChildren(...marked(all + (part.length > all.length ? `\n… ${plural(part.length - all.length, "character")} more were not kept` : "")));
  };
  button.addEventListener("click", () => {
    const isOpen = fold.classList.toggle("open");
    if (isOpen) view.opened.add(where);
    else view.opened.delete(where);
    label();
    if (isOpen) load().catch((error) => pre.append(`\n${error.message}`));
  });
  label();
  if (open) load().catch(() => {});
  return [fold, button];
}

// The arguments of a call: each by its name, a text as it is; or the JSON as the model wrote it.
function callArguments(part, where, view) {
  if (view.hidden || part.length > part.text.length || view.opened.has(`raw ${where}`)) return text(part, where, view);
  let values;
  try {
    values = JSON.parse(part.text || "{}");
  } catch {
    return text(part, where, view); // still being written, or a freeform tool's input
  }
  if (values === null || typeof values !== "object" || Array.isArray(values)) return text(part, where, view);
  return h("dl", { class: "arguments" }, Object.entries(values).map(([name, value]) => {
    const shown = typeof value === "string" ? value : JSON.stringify(value, null, 1);
    return [h("dt", null, name), h("dd", null, text({ text: shown, length: shown.length }, `${where} ${name}`, view))];
  }));
}

function image(part, view) {
  const facts = h("span", { class: "facts-line" }, [part.name, part.facts].filter(Boolean).join(" · "));
  if (!part.image || view.hidden || !view.images) return h("div", { class: "image none" }, facts);
  const picture = h("img", { src: `/api/images/${encodeURIComponent(part.image)}`, alt: part.name || part.facts, loading: "lazy" });
  const box = h("div", { class: "image" }, picture, facts);
  picture.addEventListener("error", () => { picture.remove(); box.classList.add("none"); });
  picture.addEventListener("click", () => box.classList.toggle("large"));
  return box;
}

function body(part, where, view) {
  if (part.kind === "media") return image(part, view);
  if (part.kind === "tool_use" || part.kind === "hosted") return callArguments(part, where, view);
  return text(part, where, view);
}

// Text that a client adds to a question, and instructions inside the conversation, which are folded.
function drawFolded(part, where, section, view) {
  const shade = shadeOf([part], section);
  return h("details", { class: `part added ${shade.name}`, at: extent(shade) },
    h("summary", { class: "label" }, h("b", null, part.kind === "user" ? "Added" : LABELS[part.kind]), h("small", null, first([part])), costOf(part, shade, false)),
    h("div", { class: "content" }, text(part, where, view)));
}

// `section` null: the part belongs to the answer.
export function drawPart(part, where, section, view, extra) {
  const written = section === null;
  if (part.kind === "system" || (part.kind === "user" && part.facts)) return drawFolded(part, where, section, view);
  const shade = written ? { name: "written", text: "" } : shadeOf([part], section);
  const isCall = part.kind === "tool_use" || part.kind === "hosted";
  const name = isCall ? part.name || "call" : part.kind === "result" ? part.name || "result" : part.kind === "user" && view.isHelper ? "Task" : LABELS[part.kind] ?? part.kind;
  const notes = [];
  if (isCall && part.cut) notes.push(h("em", { class: "trouble" }, "cut off"));
  if (part.error) notes.push(h("em", { class: "trouble" }, "error"));
  if (isCall && part.sent_ms !== null) notes.push(h("span", { class: "note", title: "The client could run the call" }, `sent at ${ms(part.sent_ms)}`));
  if (isCall && !view.hidden && part.text.startsWith("{")) {
    const raw = h("button", { type: "button", class: "quiet", title: "The arguments as the model wrote them" }, "JSON");
    raw.addEventListener("click", () => { view.toggle(`raw ${where}`); });
    notes.push(raw);
  }
  return h("div", { class: `part ${part.kind} ${shade.name}`, at: extent(shade) },
    h("div", { class: "label" }, part.kind === "result" && h("small", null, "result "), h("b", null, name), notes, costOf(part, shade, written)),
    h("div", { class: "content" }, body(part, where, view), extra));
}

const extent = (shade) => (shade.part ? { "--part": `${(100 * shade.part).toFixed(1)}%` } : null);
const sum = (parts, name) => parts.reduce((total, part) => total + (part[name] ?? 0), 0);

// Instructions or tools, which are folded.
export function drawHead(title, of, parts, section, view) {
  if (!parts.length) return null;
  const shade = shadeOf(parts, section);
  const known = of === "tools" ? section.tools_tokens : 0; // as in the details of the turn
  const exact = !known && parts.filter(inPrompt).every((part) => part.exact);
  const size = parts.every((part) => part.tokens === null) ? plural(sum(parts, "length"), "character") : `${exact ? "" : "≈ "}${count(known || sum(parts, "tokens"))} tokens`;
  const key = `${section.turn.id} ${of}`;
  const inside = h("div", { class: "inside" });
  const fillIn = () => inside.childElementCount || inside.append(...parts.map((part, at) => headItem(part, `${key} ${at}`, section, view)));
  const details = h("details", { class: `part head ${shade.name}`, at: extent(shade), open: view.opened.has(key), ontoggle: (event) => {
    if (event.target !== details) return;
    if (details.open) view.opened.add(key);
    else view.opened.delete(key);
    if (details.open) fillIn();
  } },
    h("summary", { class: "label" }, h("b", null, title), h("small", null, of === "tools" ? `${parts.length}: ${names(parts)}` : first(parts)), h("span", { class: "cost" }, [size, shade.text].filter(Boolean).join(" · "))),
    inside);
  if (details.open) fillIn();
  return details;
}

const names = (parts) => parts.slice(0, 12).map((part) => part.name).join(", ") + (parts.length > 12 ? " …" : "");
const first = (parts) => (parts.find((part) => part.text)?.text ?? "").trim().slice(0, 140).replace(/\s+/g, " ");

function headItem(part, where, section, view) {
  const shade = shadeOf([part], section);
  const label = [h("b", null, part.name || "text"), part.facts && h("small", null, part.facts), costOf(part, shade, false)];
  if (part.kind === "tool") return h("details", { class: `tool ${shade.name}`, at: extent(shade) }, h("summary", { class: "label" }, label), text(part, where, view));
  return h("div", { class: `part system ${shade.name}`, at: extent(shade) }, h("div", { class: "label" }, label), h("div", { class: "content" }, text(part, where, view)));
}

// A session that an agent started.
export function helperLink(helper) {
  const row = helper.first;
  const what = row.title ? "title" : row.kind;
  return h("a", { class: "helper", href: address("session", helper.session) },
    h("b", null, what), h("span", null, nameOf({ ...row, title: row.title || "" })),
    cacheBar({ ...helper, again: 0 }),
    h("small", null, `${plural(helper.turns, "turn")} · ${share(helper.cached, helper.prompt)} cached · ${short(helper.output)} written · ${clock(row.time)}`));
}
