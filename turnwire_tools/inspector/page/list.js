// The list of sessions, of turns, or of what a search found. Only the rows in view have elements, however many there are.

import { clock, computed, h, marked, nameOf, plain, plural, share, short } from "/page/draw.js";

const HEIGHT = 58; // as in style.css
const SPARE = 6;
const KEPT = 25000;
const LEAST_AGAIN = 128;

// Sessions in their order, each followed by those of the helpers that it started, oldest first.
function tree(sessions) {
  const present = new Set(sessions.map((row) => row.session));
  const helpers = Map.groupBy(sessions, (row) => (present.has(row.parent) ? row.parent : ""));
  const rows = [];
  const open = (helpers.get("") ?? []).map((row) => ({ ...row, depth: 0 })).reverse();
  for (let row = open.pop(); row !== undefined; row = open.pop()) {
    // no recursion: clients name their parents, and a chain may be as long as the list
    rows.push(row);
    for (const helper of helpers.get(row.session) ?? []) open.push({ ...helper, depth: row.depth + 1 });
  }
  return rows;
}

export class List {
  constructor(frame, body, open) {
    this.frame = frame;
    this.body = body;
    this.open = open;
    this.known = new Map(); // row by id
    this.sessions = new Map(); // ids of turns by session
    this.titles = new Map(); // by session: the newest title that its client requested
    this.summaries = new Map(); // by session, until it changes
    this.shown = []; // what the list has: rows, or summaries of sessions
    this.mode = "sessions"; // or turns
    this.found = null; // rows that a search found, with the hit
    this.selected = null;
    this.pool = [];
    this.waiting = false;
    this.stale = true;
    this.version = 0; // of what is shown
    frame.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(frame);
  }

  add(rows) {
    for (const row of rows) {
      this.known.set(row.id, row);
      const turns = this.sessions.get(row.session);
      if (turns === undefined) this.sessions.set(row.session, new Set([row.id]));
      else turns.add(row.id);
      this.summaries.delete(row.session);
      if (row.title && row.parent) {
        this.titles.set(row.parent, row.title);
        this.summaries.delete(row.parent);
      }
    }
    if (this.known.size > KEPT) this.forget();
    this.stale = true;
    this.draw();
  }

  forget() {
    const oldest = [...this.known.values()].sort((one, other) => one.time - other.time).slice(0, KEPT / 5);
    for (const row of oldest) {
      this.known.delete(row.id);
      const turns = this.sessions.get(row.session);
      turns.delete(row.id);
      this.summaries.delete(row.session);
      if (turns.size) continue;
      this.sessions.delete(row.session);
      this.titles.delete(row.session);
    }
  }

  // Turns of a session, oldest first.
  turnsOf(session) {
    const rows = [...(this.sessions.get(session) ?? [])].map((id) => this.known.get(id));
    return rows.sort((one, other) => one.number - other.number || one.time - other.time);
  }

  newest() {
    let newest = null;
    for (const row of this.known.values()) if (!newest || row.time > newest.time) newest = row;
    return newest;
  }

  show(mode) {
    this.mode = mode;
    this.stale = true;
    this.frame.scrollTop = 0;
    this.draw();
  }

  find(found) {
    this.found = found;
    this.stale = true;
    this.frame.scrollTop = 0;
    this.draw();
  }

  compute() {
    const byTime = (one, other) => other.time - one.time;
    if (this.found) this.shown = this.found;
    else if (this.mode === "turns") this.shown = [...this.known.values()].sort(byTime);
    else {
      const summaries = [...this.sessions.keys()].map((session) => this.summary(session));
      const isTitle = (row) => row.kind === "background" && row.title && this.sessions.has(row.parent);
      this.shown = tree(summaries.filter((row) => !isTitle(row)).sort(byTime));
    }
    this.stale = false;
    this.version++;
  }

  summary(session) {
    const known = this.summaries.get(session);
    if (known) return known;
    const rows = this.turnsOf(session);
    const last = rows[rows.length - 1];
    const total = (name) => rows.reduce((sum, row) => sum + (row[name] ?? 0), 0);
    const asking = rows.find((row) => row.label && row.asks) ?? rows.find((row) => row.label) ?? last;
    const summary = {
      ...last, session, depth: 0, turns: rows.length, label: asking.label, asks: asking.asks, number: asking.number,
      title: last.kind === "background" ? last.title : this.titles.get(session) ?? "",
      prompt: total("prompt"), cached: total("cached"), again: total("again"), output: total("output"),
      trouble: rows.some((row) => row.trouble),
    };
    this.summaries.set(session, summary);
    return summary;
  }

  // At most one drawing a frame, however many rows change.
  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      if (this.stale) this.compute();
      this.render();
    });
  }

  render() {
    const first = Math.max(0, Math.floor(this.frame.scrollTop / HEIGHT) - SPARE);
    const room = Math.ceil(this.frame.clientHeight / HEIGHT) + 2 * SPARE;
    const rows = this.shown.slice(first, first + room);
    this.body.style.height = `${this.shown.length * HEIGHT}px`;
    this.body.dataset.empty = this.shown.length ? "" : this.found ? "Nothing found. All words have to be in one turn; fields are tool: key: client: model: state: kind:" : "No turns yet";
    if (this.pool.length < rows.length) this.version++; // all of them get another place
    while (this.pool.length < rows.length) this.pool.push(this.element());
    const used = new Set();
    rows.forEach((row, index) => {
      const at = first + index;
      const element = this.pool[at % this.pool.length]; // a row that stays in view keeps its element
      used.add(element);
      if (element.at !== at || element.version !== this.version) this.set(element, row, at);
      element.setAttribute("aria-selected", String(this.keyOf(row) === this.selected));
    });
    for (const element of this.pool) element.hidden = !used.has(element);
  }

  element() {
    const names = ["state", "title", "time", "note", "again", "cache", "figures"];
    const parts = Object.fromEntries(names.map((name) => [name, h("span", { class: name })]));
    parts.bar = h("i", { class: "cached" });
    parts.cache.append(parts.bar);
    const element = h("div", { class: "row", role: "option", onclick: () => this.choose(element.row) }, names.map((name) => parts[name]));
    element.parts = parts;
    this.body.append(element);
    return element;
  }

  set(element, row, at) {
    const parts = element.parts;
    element.row = row;
    element.at = at;
    element.version = this.version;
    element.setAttribute("aria-posinset", at + 1);
    element.style.transform = `translateY(${at * HEIGHT}px)`;
    element.style.paddingLeft = `${12 + 18 * Math.min(row.depth ?? 0, 6)}px`;
    element.dataset.state = row.state;
    element.dataset.kind = row.kind;
    element.classList.toggle("child", Boolean(row.depth));
    element.classList.toggle("found", Boolean(row.hit));
    parts.state.title = row.trouble ? `${row.state}, with trouble` : row.state;
    const name = nameOf(row.hit && this.sessions.has(row.session) ? this.summary(row.session) : row);
    parts.title.replaceChildren(...marked(name));
    parts.title.title = plain(name);
    parts.time.textContent = clock(row.time);
    if (row.hit?.match) {
      const { where, before, match, after } = row.hit;
      parts.note.replaceChildren(`turn ${row.number} · `, h("b", null, where), ...marked(` …${before}`), h("mark", null, match), ...marked(`${after}…`));
    } else {
      const kind = row.kind === "main" ? "" : row.title ? "title" : row.kind;
      const turns = row.turns ? plural(row.turns, "turn") : `turn ${row.number}`;
      const failed = ["failed", "cancelled"].includes(row.state) ? row.state : "";
      const facts = [kind, failed, row.key, row.client, turns, row.depth ? "" : row.model].filter(Boolean).join(" · ");
      parts.note.replaceChildren(...marked(facts + (row.trouble ? " ⚠" : "")));
    }
    parts.again.textContent = row.again >= LEAST_AGAIN ? `${short(row.again)} again` : "";
    parts.cache.title = `${share(row.cached, row.prompt)} of ${short(row.prompt)} prompt tokens from the cache`;
    parts.bar.style.width = row.prompt ? `${(100 * Math.min(row.cached ?? 0, row.prompt)) / row.prompt}%` : "0";
    parts.figures.textContent = row.prompt ? `${share(row.cached, row.prompt)} · ${short(computed(row))} → ${short(row.output)}` : row.state;
    parts.figures.title = `${share(row.cached, row.prompt)} cached, ${short(computed(row))} tokens computed, ${short(row.output)} written`;
  }

  keyOf(row) {
    return row.turns ? `session ${row.session}` : row.id;
  }

  // What is open is marked, whichever rows the list has.
  mark(session, turn) {
    this.selected = this.mode === "sessions" && !this.found ? `session ${session}` : turn;
    this.draw();
  }

  choose(row) {
    if (!row) return;
    this.selected = this.keyOf(row);
    this.open(row, Boolean(row.turns));
    this.draw();
  }

  move(step) {
    if (this.stale) this.compute();
    const at = this.shown.findIndex((row) => this.keyOf(row) === this.selected);
    const next = at < 0 ? 0 : Math.max(0, Math.min(this.shown.length - 1, at + step));
    if (!this.shown.length) return;
    this.selected = this.keyOf(this.shown[next]);
    const top = next * HEIGHT;
    if (top < this.frame.scrollTop) this.frame.scrollTop = top;
    if (top + HEIGHT > this.frame.scrollTop + this.frame.clientHeight) this.frame.scrollTop = top + HEIGHT - this.frame.clientHeight;
    this.draw();
  }

  current() {
    return this.shown.find((row) => this.keyOf(row) === this.selected);
  }
}
